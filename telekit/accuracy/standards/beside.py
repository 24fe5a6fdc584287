"""Telekit's own rules beside msprobe's: clear differences that no rule of msprobe's looks at.

Each part says ``own``, so that msprobe's column ``Result`` keeps msprobe's value.
"""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import numpy as np

from telekit.accuracy.measures.metrics import COMPARED, MSPROBE_ZERO, Metrics
from telekit.accuracy.measures.pairs import FORMATS, Array, blocks
from telekit.accuracy.measures.summaries import NAMES, SummaryErrors
from telekit.accuracy.standards.verdict import ERROR, WARNING, Part, check, skipped

SCALE = 0.05
"""How far the ratio of two norms may be from 1 where the directions agree."""
NEAR_ZERO = 1e-3
"""What may stand where golden is all zeros: msprobe's limit of the largest error."""
SCALAR = 0.01
"""Relative error a single number may have: more than one step of bf16 (0.0078)."""
CLEAR = 0.5
"""Relative error of a single number, or of a largest or smallest value, beyond doubt: msprobe's limit of a norm."""
MIRRORED = 1e-3
"""How close statistics are to golden's with the sign turned, relative to golden's largest value."""


def infinities(metrics: Metrics) -> list[Part]:
    """Fail where +Inf stands against -Inf, which most standards take for the same value."""
    count = metrics.opposite_infinities
    return [_infinities(count)] if count else []


def infinities_of(target: Array, golden: Array) -> list[Part]:
    """As `infinities`, of two arrays of one shape."""
    if any(a.dtype.kind in "biu" for a in (target, golden)):
        return []
    if any(a.dtype.kind == "c" for a in (target, golden)):
        target, golden = (as_pairs(a.astype(np.complex128, copy=False)) for a in (target, golden))
    count = sum(int(np.count_nonzero(np.isinf(x) & (x == -y))) for _, (x, y) in blocks(target, golden))
    return [_infinities(count)] if count else []


def _infinities(count: int) -> Part:
    return check("sign of infinities", count, False, "none is opposite", own=True)


def as_pairs(array: Array) -> Array:
    """Return complex numbers as pairs of floats along a new last axis."""
    return np.ascontiguousarray(array).reshape(array.shape)[..., np.newaxis].view(array.real.dtype)


def zero(m: Metrics) -> list[Part]:
    """Fail where one side is all zeros and the other is not: no cosine is defined then, and most rules are skipped.

    What is below the smallest number that target's type holds may be zero there.
    """
    if (
        m.status != COMPARED
        or m.target is None
        or m.golden is None
        or not (m.target.finite and m.golden.finite)
    ):
        return []
    if m.golden.l2norm == 0 and m.target.l2norm:
        near = m.max_abs_error is not None and m.max_abs_error <= NEAR_ZERO
        rule = f"zero as golden is, to {NEAR_ZERO}"
        return [check("zero", m.max_abs_error, near, rule, note="golden is all zeros", own=True)]
    if m.target.l2norm == 0 and m.golden.l2norm:
        form = FORMATS.get(m.target_dtype)
        smallest = 2.0 ** (form.min_exponent - form.mantissa) if form else 0.0
        under = m.max_abs_error is not None and m.max_abs_error < smallest
        rule = "not all zeros where golden is not"
        return [check("zero", m.max_abs_error, under, rule, note="target is all zeros", own=True)]
    return []


def single_number(m: Metrics, *, sure: bool = True) -> list[Part]:
    """Judge one element alone, of which no direction and no share says anything.

    Parameters
    ----------
    m : Metrics
    sure : bool
        Whether any miss is an error; otherwise only a clear one is, and a smaller one a warning.
    """
    if m.status != COMPARED or m.elements != 1 or m.max_abs_error is None or m.golden is None:
        return []
    size = abs(m.golden.maximum or 0.0)
    if not size:
        return []  # `zero` is about it
    error = m.max_abs_error / size
    rule = f"at most {SCALAR}, telekit's own rule for a single number"
    level = ERROR if sure or error > CLEAR else WARNING
    return [check("relative error", error, error <= SCALAR, rule, level=level, own=True)]


def direction(m: Metrics) -> list[Part]:
    """Look at the direction of tensors so small that msprobe takes their norms for zero and their cosine for 1."""
    tiny = [s is not None and s.l2norm is not None and s.l2norm <= MSPROBE_ZERO for s in (m.target, m.golden)]
    if m.direction is None or not all(tiny):
        return []
    note = f"norms up to {MSPROBE_ZERO:.3g} are zero to msprobe"
    return [
        check("direction", m.direction, m.direction >= 0.99, ">= 0.99", level=WARNING, note=note, own=True)
    ]


def scale_part(m: Metrics) -> Part:
    """Compare the norms: the cosine cannot see a factor."""
    rule, ratio = f"within {SCALE} of 1 where the cosine is above 0.99", m.norm_ratio
    if ratio is None or m.cosine is None:
        return skipped("scale", rule, "not defined")
    wrong = m.cosine > 0.99 and abs(ratio - 1) > SCALE
    note = f"target is golden times {ratio:.6g}: a factor, not noise" if wrong else ""
    return check("scale", ratio, not wrong, rule, note=note, own=True)


def of_pair(m: Metrics) -> list[Part]:
    """Return all that is said of two tensors that ought to be equal: `infinities`, `zero`, one number, direction."""
    return [*infinities(m), *zero(m), *single_number(m), *direction(m)]


def mirrored(s: SummaryErrors) -> bool:
    """Whether four statistics are golden's with the sign turned, and are not golden's."""
    t, g = s.target, s.golden
    keys = ("Max", "Min", "Mean")
    found = [(t[k], g[k]) for k in keys]
    numbers = [(a, b) for a, b in found if a is not None and b is not None and isfinite(a) and isfinite(b)]
    if len(numbers) < len(keys):
        return False
    size = max(abs(b) for _, b in numbers[:2])
    (high, g_high), (low, g_low), (mean, g_mean) = numbers
    straight = max(abs(high - g_high), abs(low - g_low), abs(mean - g_mean))
    turned = max(abs(high + g_low), abs(low + g_high), abs(mean + g_mean))
    return turned <= MIRRORED * size < straight / 10


def of_statistics(s: SummaryErrors, *, clean: bool) -> list[Part]:
    """Look at the statistics of an output: NaN and Inf in any of the four, a turned sign, a wild extreme, a gap.

    Parameters
    ----------
    s : SummaryErrors
    clean : bool
        Whether the operator's inputs agree; if they do not, only NaN, Inf and gaps are looked at.
    """
    parts = _special(s)
    if clean:
        if mirrored(s):
            parts.append(
                Part("sign", None, "golden's sign", ERROR, "the statistics are golden's turned around", True)
            )
        parts += _extremes(s)
    return parts


def _special(s: SummaryErrors) -> list[Part]:
    t, g = s.target, s.golden
    new = [k for k in NAMES if _is_special(t[k]) and not _is_special(g[k])]
    gone = [k for k in NAMES if _is_special(g[k]) and not _is_special(t[k])]
    missing = [k for k in NAMES if t[k] is None and g[k] is not None]
    parts = []
    if new:
        parts.append(
            check("NaN or Inf", ", ".join(new), False, "none in target that golden has not", own=True)
        )
    if gone and not new:
        rule = "none in golden that target has not"
        parts.append(check("golden's NaN or Inf", ", ".join(gone), False, rule, level=WARNING, own=True))
    if missing:
        rule = "every statistic that golden has"
        parts.append(check("missing statistics", ", ".join(missing), False, rule, level=WARNING, own=True))
    turned = [k for k in NAMES if _infinite(t[k]) and _infinite(g[k]) and t[k] != g[k]]
    if turned:
        parts.append(_infinities(len(turned)))
    return parts


def _is_special(value: float | None) -> bool:
    return value is not None and not isfinite(value)


def _infinite(value: float | None) -> bool:
    return _is_special(value) and not isnan(value or 0.0)


def _extremes(s: SummaryErrors) -> list[Part]:
    """Warn of a largest or smallest value that is off by more than half of golden's largest."""
    known: list[Any] = [s.golden[k] for k in ("Max", "Min")]
    size = max((abs(v) for v in known if v is not None and isfinite(v)), default=0.0)
    found = []
    for name in ("Max", "Min"):
        change = s.difference[name]
        if size and change is not None and isfinite(change) and abs(change) > CLEAR * size:
            rule = f"within {CLEAR} of golden's largest value"
            found.append(check(name, abs(change) / size, False, rule, level=WARNING, own=True))
    return found
