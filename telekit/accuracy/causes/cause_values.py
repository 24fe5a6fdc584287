"""Causes that the values of one tensor show: a factor, an order, zeros, an overflow, a coarser type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD, SETUP
from telekit.accuracy.curves.ratios import RatioName, constant_ratio, name_ratio
from telekit.accuracy.graph.noise import COARSE, representable
from telekit.accuracy.measures.pairs import FORMATS, Array, Floats

_ATTENTION = ("attn", "attention", "softmax", "score")


def taken_away(case: Case, hypothesis: Floats) -> float:
    """Return how much of the difference a hypothesis explains, 0 to 1; 0 where more than a fifth is left."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if hypothesis.shape != t.shape:
        return 0.0
    whole, left = _norm(t - g), _norm(t - hypothesis)
    if not whole or not np.isfinite(left):
        return 0.0
    share = left / whole
    if share > 0.2 and left > case.noise * _norm(t):
        return 0.0
    return max(0.0, 1.0 - share) if share < 0.5 else 0.0


def agrees(value: Floats, golden: Floats, case: Case, times: float = 4.0, least: float = 1e-6) -> bool:
    """Whether golden was reproduced within rounding: so many epsilons, or ``least`` where that is more."""
    if value.shape != golden.shape:
        return False
    return _norm(value - golden) <= max(times * case.epsilon, least) * _norm(golden)


def other_signs(case: Case) -> bool:
    """Whether the target is golden with other signs in places: no angle, no order, no factor."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    left, whole = _norm(np.abs(t) - np.abs(g)), _norm(t - g)
    return left <= case.noise * _norm(g) and left < 0.2 * whole


def _norm(array: Floats) -> float:
    return float(np.linalg.norm(np.asarray(array).ravel()))


def shape_causes(case: Case) -> Iterator[Cause]:
    """Shapes that differ: a piece of the whole, several copies, or a transpose."""
    a, b = case.target_shape, case.golden_shape
    if a is None or b is None or a == b:
        return
    text = f"target {a}, golden {b}"
    if sorted(a) == sorted(b):
        yield Cause(kinds.SHAPE, 0.8, f"{text}: axes stand in another order")
        return
    n, m = int(np.prod(a)), int(np.prod(b))
    names = name_ratio(n / m, case.sizes) if n and m else ()
    said = f": {names[0].what} pieces were not joined, or joined twice" if names else ""
    yield Cause(kinds.SHAPE, 0.7, text + said)


def overflow_causes(case: Case) -> Iterator[Cause]:
    """NaN and Inf that golden has not, or values stuck at the largest of a type."""
    t, g = case.target, case.golden
    if t is None or g is None or t.shape != g.shape or not t.size:
        s = case.summary
        if s is not None:
            bad = [k for k, v in s.target.items() if v is not None and not np.isfinite(v)]
            if bad and all(np.isfinite(s.golden[k] or 0.0) for k in bad):
                yield Cause(
                    kinds.OVERFLOW, 0.9, f"{', '.join(bad)} of the target are not finite, golden's are"
                )
        return
    special = ~np.isfinite(t) & np.isfinite(g)
    if special.any():
        yield from _masked_rows(case, special)
        kind = f"{int(np.isnan(t[special]).sum())} NaN and {int(np.isinf(t[special]).sum())} Inf"
        first = tuple(int(i) for i in np.argwhere(special)[0])
        yield Cause(kinds.OVERFLOW, 0.95, f"{kind} of {t.size} where golden is finite, the first at {first}")
        return
    for name in ("float16", "float8_e4m3fn", "float8_e5m2"):
        top = FORMATS[name].maximum
        stuck = (np.abs(t) == top) & (np.abs(g) > top * 1.01)
        if stuck.any() and (np.abs(t[np.isfinite(t)]) <= top).all():
            yield Cause(
                kinds.OVERFLOW, 0.9, f"{int(stuck.sum())} values stand at {top:g}, the largest of {name}"
            )


def _masked_rows(case: Case, special: Array) -> Iterator[Cause]:
    """NaN over whole rows at the same positions of every sequence: a softmax over nothing, 0 / 0."""
    t = case.target
    assert t is not None
    if case.phase != "forward" or t.ndim < 3 or not any(w in case.words for w in _ATTENTION):
        return
    whole: Array = np.asarray(special.all(axis=-1))
    if not np.array_equal(whole, special.any(axis=-1)) or not np.isnan(t[special]).all() or whole.all():
        return
    for axis in range(whole.ndim):
        at = whole.any(axis=tuple(a for a in range(whole.ndim) if a != axis))
        spread = np.broadcast_to(at.reshape([-1 if a == axis else 1 for a in range(whole.ndim)]), whole.shape)
        if not at.all() and np.array_equal(spread, whole):
            rows = np.flatnonzero(at)[:8].tolist()
            text = f"NaN in the whole rows of positions {rows} of axis {axis}, everywhere, and nowhere else"
            yield Cause(kinds.MASK, 0.97, f"{text}: rows of the softmax in which the mask leaves no key")
            return


def zero_causes(case: Case) -> Iterator[Cause]:
    """Find a target that is all zero, and one that is noise around a golden that is."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if not t.any() and g.any():
        yield Cause(kinds.ZERO, 0.95, f"every element of the target is 0, golden's norm is {_norm(g):.3g}")
    if not g.any() and t.any():
        inputs = max((_norm(k.golden) for k in case.inputs if k.golden is not None), default=0.0)
        if _norm(t) <= 4 * case.epsilon * inputs:
            yield Cause(kinds.NEAR_ZERO, 0.7, "golden is 0 and the target is rounding of what cancels")


def weight_causes(case: Case) -> Iterator[Cause]:
    """Find a weight that before the first step has nothing to do with golden's, but has its size."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != SETUP or t.size < 16 or not _norm(t) or not _norm(g):
        return
    cosine, size = float(np.vdot(t, g)) / (_norm(t) * _norm(g)), _norm(t) / _norm(g)
    ordered = _norm(np.sort(t.ravel()) - np.sort(g.ravel())) < 0.02 * _norm(t - g)
    if abs(cosine) < 0.5 and 0.1 < size < 10 and not ordered:
        text = f"before the first step the weight has {size:.3g} times golden's norm and a cosine of {cosine:.2g} to it"
        yield Cause(kinds.DIFFERENT_WEIGHTS, 0.8, f"{text}: of another checkpoint, or another seed")


def ratio_causes(case: Case) -> Iterator[Cause]:
    """One factor on every element."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    fit = constant_ratio(t, g)
    if fit is None or abs(fit.ratio - 1) < max(0.25 * case.epsilon, 1e-9):
        return
    share = taken_away(case, fit.ratio * g)
    if not share or fit.spread > max(case.noise, 1e-6):
        return  # a factor leaves no more than rounding
    if t.size == 1 or np.count_nonzero(g) <= 1:
        share *= 0.5  # any single number is a multiple of another
    if fit.ratio < 0:
        yield Cause(kinds.SIGN, 0.97 * share, f"target is {fit.ratio:.4g} times golden")
    else:
        yield from _factor(case, fit.ratio, fit.spread, share)


def ratio_names(case: Case, ratio: float, spread: float = 0.0) -> tuple[RatioName, ...]:
    """Name a ratio by the sizes of groups that this tensor may be summed over; no guess where they are known."""
    quantity = "gradient" if case.phase == BACKWARD else "value"
    names = name_ratio(ratio, case.summed, quantity=quantity, spread=spread)
    return tuple(n for n in names if n.what != "group" or not case.sizes)


def _factor(case: Case, c: float, spread: float, share: float) -> Iterator[Cause]:
    """Say what a factor above 0 is: a group's size, a softmax's scale, or one that no size explains."""
    if case.phase == SETUP:  # nothing was summed yet
        text = f"before the first step the target is {c:.6g} times golden everywhere (spread {spread:.2g})"
        yield Cause(
            kinds.SCALED, 0.95 * share, f"{text}: another scale of the initialisation, or of what was loaded"
        )
        return
    names = ratio_names(case, c, spread)
    said = f": {names[0].text}" if names else ", a factor that no known size explains"
    text = f"target is {c:.6g} times golden everywhere (spread {spread:.2g}){said}"
    size = next(
        (n for n in names if n.what not in ("group", "tokens", "loss_scale") and n.confidence > 0.3), None
    )
    if case.phase == BACKWARD:
        yield Cause(kinds.GRADIENT_SCALING, 0.95 * share, text)
        if size is not None and c > 1:
            yield Cause(kinds.DOUBLE_REDUCTION, 0.6 * share, text)
        return
    if any(w in case.words for w in _ATTENTION) and _head_scale(c, case) and size is None:
        yield Cause(
            kinds.SOFTMAX_SCALE, 0.85 * share, f"{text}; a power of a head's width is left out or added"
        )
    if size is not None and c > 1:
        yield Cause(kinds.DOUBLE_REDUCTION, 0.9 * share, text)
    if size is not None and c < 1:
        yield Cause(kinds.MISSING_REDUCTION, 0.6 * share, text)
    yield Cause(kinds.SCALED, (0.75 if size is not None else 0.9) * share, text)


def _head_scale(ratio: float, case: Case) -> bool:
    """Whether a ratio is a power of a plausible head width (or of the usual ones)."""
    widths = {k.golden.shape[-1] for k in case.inputs if k.golden is not None and k.golden.ndim} | {
        8,
        16,
        32,
        64,
        128,
    }
    return any(abs(np.log(ratio / d**p)) < 0.01 for d in widths if d > 1 for p in (-1.0, -0.5, 0.5, 1.0))


def dtype_causes(case: Case) -> Iterator[Cause]:
    """Find an error of a coarser type's size, or values that all fit one."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    a, b = t[np.isfinite(t) & (t != 0)][:65536], g[np.isfinite(g) & (g != 0)][:65536]
    if a.size < 16 or not _norm(g) or np.unique(a).size < 8:
        return
    error = _norm(t - g) / _norm(g)
    for name in COARSE:
        epsilon = FORMATS[name].epsilon
        if epsilon <= case.epsilon * 2:
            continue
        if representable(a, name) and not representable(b, name):
            if error <= 4 * epsilon:
                text = f"every value fits {name}, golden's do not; the error is {error / epsilon:.2g} of its epsilon"
                yield Cause(kinds.WRONG_DTYPE, 0.9, text)
            return
    if error > 40 * case.epsilon and not case.inputs_error > 0.1 * error:
        for name in ("float32", "float16", "bfloat16"):
            epsilon = FORMATS[name].epsilon
            if 0.05 * epsilon <= error <= 2 * epsilon and _unstructured(t - g, g):
                yield Cause(
                    kinds.WRONG_DTYPE,
                    0.6,
                    f"the error {error:.3g} has the size of {name}'s rounding ({epsilon:.3g})",
                )
                return


def _unstructured(d: Floats, g: Floats) -> bool:
    """Whether a difference looks like rounding: spread over most elements, without a common sign."""
    nonzero = int(np.count_nonzero(d)) / max(int(np.count_nonzero(g)), 1)
    lean = abs(float(np.vdot(d, g))) / max(_norm(d) * _norm(g), 1e-300)
    return bool(nonzero > 0.3 and lean < 0.3)
