"""Rules of the operator checkers: msprobe's single and double benchmark, ULP, absolute and others; Ascend's own."""

from __future__ import annotations

from math import inf

import numpy as np

from telekit.accuracy.measures.metrics import Metrics, compare_arrays
from telekit.accuracy.measures.operator_errors import (
    ACCUMULATIVE,
    EPSILON,
    LIMITS,
    MINIMUM_ERROR,
    Limits,
    OperatorErrors,
    count_different,
    operator_errors,
    relative_errors,
    row_of,
)
from telekit.accuracy.measures.pairs import Array, blocks
from telekit.accuracy.measures.ulp import ulp_errors
from telekit.accuracy.standards.tolerances import closeness
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, Part, check, skipped

# name, threshold of the relative error, share that must be above it
HUNDRED = ("double hundred", 1e-2, 0.99)
THOUSAND = ("double thousand", 1e-3, 0.999)
TEN_THOUSAND = ("double ten thousand", 1e-4, 0.9999)
SHARES = {
    "float16": (HUNDRED, THOUSAND),
    "bfloat16": (HUNDRED, THOUSAND),
    "float32": (THOUSAND, TEN_THOUSAND),
    "float64": (THOUSAND, TEN_THOUSAND),
}
# small values, RMSE, largest and mean relative error, balance (reported only): limits of the ratio by level
RATIOS = ((2.0, 2.0, 10.0, 2.0, 2.0), (2.0, 1.5, 5.0, 1.5, 2.0), (2.0, 1.2, 2.0, 1.2, 2.0))
ASCEND_RATIOS = ((10.0, 2.0, 2.0), (5.0, 1.5, 1.5), (2.0, 1.2, 1.2))
ASCEND_CASES = (5_000, 10_000, 30_000)
ASCEND_SINGLE = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-13,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
ASCEND_MIXED = {
    "float16": (2.0**-9, 2.0**-9),
    "bfloat16": (2.0**-6, 2.0**-6),
    "float32": (2.0**-10, 2.0**-16),
}
ASCEND_EPSILON = 1e-7
FREE = {"float16": (1.002, 1e-6), "bfloat16": (1.004, 1e-4), "float32": (1.0002, 1e-8)}


def _exact(target: Array, golden: Array) -> list[Part]:
    different = count_different(target, golden)
    share = different / target.size
    return [check("share different", share, not different, "= 0", note=f"{different} of {target.size}")]


def binary(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Every value equal; NaN equals NaN."""
    return _exact(target, golden)


def single_benchmark(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Cosine first, then the largest error, then shares by type; integers and bool exactly."""
    if dtype.startswith(("int", "uint", "bool")):
        return _exact(target, golden)
    (hard, soft), epsilon = row_of(SHARES, dtype, "the single benchmark"), EPSILON[dtype]
    metrics = compare_arrays(target, golden)
    parts = [_cosine(metrics)]
    error = metrics.max_abs_error
    if error is not None and not metrics.opposite_infinities and error < 0.001:
        note = "decided by MaxAbsErr"
        parts.append(check("MaxAbsErr", error, True, "< 0.001 passes", note=f"at {metrics.max_abs_place}"))
        return parts + [skipped(name, f"> {share}", note) for name, _, share in (hard, soft)]
    parts.append(Part("MaxAbsErr", error, "< 0.001 passes", SKIP, "not below: the shares decide"))
    found = relative_errors(target, golden, epsilon, (hard[1], soft[1])).shares
    for (name, limit, share), level in ((hard, ERROR), (soft, WARNING)):
        parts.append(
            check(name, found[limit], found[limit] > share, f"share below {limit:g} > {share}", level=level)
        )
    return parts


def _cosine(m: Metrics) -> Part:
    if m.cosine is not None:
        return check("Cosine", m.cosine, m.cosine > 0.99, "> 0.99")
    if m.elements == 1 and m.max_abs_error is not None:
        return skipped("Cosine", "> 0.99", "one element")
    return check("Cosine", None, False, "> 0.99", note=m.messages[-1] if m.messages else "")


def quantization(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Off by one step at most."""
    m = compare_arrays(target, golden)
    error = m.max_abs_error
    return [check("MaxAbsErr", error, error is not None and error <= 1, "<= 1", note=f"at {m.max_abs_place}")]


def dropout(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Only how many elements are zero, from 100 elements on."""
    if target.size < 100:
        return [check("zero share", None, True, "not judged below 100 elements")]
    counts = [int(np.count_nonzero(a)) for a in (target, golden)]
    difference = abs(counts[0] - counts[1]) / target.size
    return [check("zero share", difference, difference < 0.1, "differs by < 0.1")]


def thousandth(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Share of elements with a relative error below 0.001."""
    epsilon = row_of(EPSILON, dtype, "the thousandth standard")
    share = relative_errors(target, golden, epsilon, (1e-3,)).shares[1e-3]
    return [check("share below 0.001", share, share >= 0.999, ">= 0.999")]


def _all_zero(errors: OperatorErrors) -> list[Part]:
    return [
        check("NaN or Inf", errors.special_share, errors.special_share == 0, "= 0 differ"),
        check("relative errors", errors.relative_share, errors.relative_share == 0, "= 0 above rtol"),
        check("absolute errors", errors.absolute_share, errors.absolute_share == 0, "= 0 above atol"),
    ]


def absolute(target: Array, golden: Array, *_: Array, dtype: str, standard: str = "absolute") -> list[Part]:
    """Return shares of wrong values, all zero: special, normal (relative error) and small (absolute error)."""
    limits: Limits = row_of(LIMITS[standard], dtype, f"the {standard} standard")
    return _all_zero(operator_errors(target, golden, limits, dtype))


def accumulative(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Like `absolute`, with one bound for relative and absolute errors, and a bound on the balance."""
    bound, balance = row_of(ACCUMULATIVE, dtype, "the accumulative standard")
    own: Limits = LIMITS["absolute"][dtype]
    errors = operator_errors(target, golden, Limits(own.small_value, bound, bound, own.epsilon), dtype)
    return [
        *_all_zero(errors),
        check("balance", errors.balance, errors.balance <= balance, f"<= {balance:.4g}"),
    ]


def ratio(target: float, device: float, minimum: float) -> float:
    """Return ``|target| / max(|device|, minimum)``; 0/0 is 0."""
    floor = max(abs(device), minimum)
    return abs(target) / floor if floor else (inf if target else 0.0)


def double_benchmark(target: Array, golden: Array, device: Array, *, dtype: str, level: int) -> list[Part]:
    """Errors of the target over those of a trusted device, both against golden."""
    limits: Limits = row_of(LIMITS["benchmark"], dtype, "the double benchmark")
    own, other = (operator_errors(a, golden, limits, dtype) for a in (target, device))
    parts = [_special(own, other)]
    fields = ("absolute_share", "rmse", "max_relative", "mean_relative", "balance")
    names = ("small values", "RMSE", "largest relative error", "mean relative error", "balance")
    for name, key, limit in zip(names, fields, RATIOS[level], strict=True):
        mine, theirs = getattr(own, key), getattr(other, key)
        value = ratio(mine, theirs, MINIMUM_ERROR[dtype])
        part = check(name, value, value <= limit, f"ratio <= {limit:g}", note=f"{mine:.6g} over {theirs:.6g}")
        if key == "balance":
            part = Part(name, value, part.rule, SKIP, f"{part.note}; reported, not judged")
        parts.append(part)
    return parts


def _special(own: OperatorErrors, other: OperatorErrors) -> Part:
    """NaN and Inf must not be wrong more often than on the trusted device."""
    passes = own.special_share <= other.special_share
    note = f"the device's {other.special_share:.6g}"
    return check("NaN or Inf", own.special_share, passes, "as consistent as the device's", note=note)


def ulp(target: Array, golden: Array, *device: Array, dtype: str) -> list[Part]:
    """Units in the last place: one of several limits is enough."""
    errors = ulp_errors(target, golden, dtype)
    if errors.share_above is None or errors.mean is None:
        return [*_finite(target, golden), skipped("ulp", "", "no finite value")]
    share, threshold = errors.share_above, errors.threshold
    other = ulp_errors(device[0], golden, dtype).share_above if device else None
    against = None if other is None else ratio(share, other, 0.0)
    wide = threshold == 32
    limit = 0.05 if wide else 0.001
    ways = [(f"share above {threshold:g} ulp", share, share < limit, f"< {limit}")]
    if wide:
        ways.insert(0, ("mean ulp", errors.mean, errors.mean < 64, "< 64"))
    if against is not None:
        ways.append(("share over the device's", against, against < 1, "< 1"))
    passed = any(w[2] for w in ways)
    parts = [
        Part(
            name,
            value,
            rule,
            PASS if ok else SKIP if passed else ERROR,
            "" if ok else "one of these is enough",
        )
        for name, value, ok, rule in ways
    ]
    return [*_finite(target, golden), *parts]


def _finite(target: Array, golden: Array) -> list[Part]:
    different = sum(
        int(np.count_nonzero((~np.isfinite(x) | ~np.isfinite(y)) & (x != y) & ~(np.isnan(x) & np.isnan(y))))
        for _, (x, y) in blocks(target, golden)
    )
    return [check("NaN or Inf", different, not different, "the same on both sides")]


def ascend_single(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Mean relative error below the type's threshold, the largest below ten times it."""
    limit = row_of(ASCEND_SINGLE, dtype, "Ascend's single benchmark")
    found = relative_errors(target, golden, ASCEND_EPSILON)
    return [
        check("MERE", found.mean, found.mean < limit, f"< {limit:.6g}"),
        check("MARE", found.maximum, found.maximum < 10 * limit, f"< {10 * limit:.6g}"),
    ]


def ascend_dual(target: Array, golden: Array, device: Array, *, dtype: str, level: int) -> list[Part]:
    """Errors over those of a third-party device; the standard also asks for many cases, and one pair is one."""
    own, other = (relative_errors(a, golden, ASCEND_EPSILON) for a in (target, device))
    parts = []
    for name, key, limit in zip(
        ("MARE", "MERE", "RMSE"), ("maximum", "mean", "rmse"), ASCEND_RATIOS[level], strict=True
    ):
        mine, theirs = getattr(own, key), getattr(other, key)
        value = 1.0 if mine == theirs == inf else ratio(mine, theirs, 0.0)
        parts.append(
            check(name, value, value <= limit, f"ratio <= {limit:g}", note=f"{mine:.6g} over {theirs:.6g}")
        )
    cases = f">= {ASCEND_CASES[level]} generated cases"
    return [*parts, skipped("cases", cases, "one pair is one case")]


def ascend_mixed(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """99 % of elements within ``atol + rtol * |golden|``; for fp32 it is not settled which of two is rtol."""
    pair = row_of(ASCEND_MIXED, dtype, "Ascend's mixed tolerance")
    readings = [pair] if pair[0] == pair[1] else [pair, pair[::-1]]
    inside = [1 - closeness(target, golden, r, a, equal_nan=True).share for r, a in readings]
    failed = ERROR if not any(s >= 0.99 for s in inside) else WARNING
    note = "" if len(readings) == 1 else "sources do not settle which is rtol: both readings are judged"
    return [
        check(f"rtol {r:.6g}, atol {a:.6g}", s, s >= 0.99, "share inside >= 0.99", level=failed, note=note)
        for (r, a), s in zip(readings, inside, strict=True)
    ]


def free_benchmark(target: Array, golden: Array, *_: Array, dtype: str) -> list[Part]:
    """Without a golden: the output of a perturbed run against the plain one, by their ratio."""
    limit, tolerance = row_of(FREE, dtype, "the free benchmark")
    floor, top, flips = tolerance**0.5, 1.0, 0
    with np.errstate(all="ignore"):
        for _part, (x, y) in blocks(target, golden):
            own, other = np.maximum(np.abs(x), floor), np.maximum(np.abs(y), floor)
            ratios = np.maximum(own / other, other / own)
            ratios[(x == y) | (np.isnan(x) & np.isnan(y))] = 1.0
            top = max(top, float(np.where(np.isnan(ratios), inf, ratios).max()))
            flips += int(np.count_nonzero((x * y < 0) & (own > floor) & (other > floor)))
    return [
        check("largest ratio", top, top <= limit, f"<= {limit:g}"),
        check("sign flips", flips, not flips, "none above the floor"),
    ]
