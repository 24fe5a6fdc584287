"""One matrix product, healthy or with a fault planted, and the checks that are asked what they think of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from telekit.accuracy.measures.metrics import Metrics, compare_arrays
from telekit.accuracy.measures.pairs import Array, format_of
from telekit.accuracy.measures.summaries import checksum, compare_summaries
from telekit.accuracy.numerics.emulate import GOLDEN, Arithmetic, Precision
from telekit.accuracy.numerics.operator_cases import as_dtype
from telekit.accuracy.numerics.rounding import rounded
from telekit.accuracy.standards import msprobe
from telekit.accuracy.standards.judge import judge
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, Verdict
from telekit.errors import InputError

ROWS, COLUMNS, TERMS = 64, 64, 256
LEFT_OUT = TERMS // 32
"""Terms of the sum that one fault leaves out."""


@dataclass(frozen=True)
class Pair:
    """A result, what it should be (fp64), and a trusted device's result; values of ``dtype`` held wider."""

    target: Array
    golden: Array
    device: Array
    dtype: str

    @property
    def metrics(self) -> Metrics:
        """Metrics of the pair, golden in fp32 as a dump holds it."""
        return compare_arrays(self.target.astype(np.float32), self.golden.astype(np.float32))


@dataclass(frozen=True)
class Base:
    """A product of matrices with unit results: the operands as the device has them, and its healthy result."""

    a: Array
    b: Array
    golden: Array
    target: Array
    dtype: str


@lru_cache(maxsize=64)
def base(dtype: str, seed: int = 0) -> Base:
    """Multiply ``(64, 256)`` by ``(256, 64)``, accumulated in fp32, one term after another."""
    rng = np.random.default_rng((seed, 2))
    own = Arithmetic(Precision(dtype))
    a = own.store(rng.standard_normal((ROWS, TERMS)))
    b = own.store(rng.standard_normal((TERMS, COLUMNS)) / np.sqrt(TERMS))
    return Base(a, b, Arithmetic(GOLDEN).matmul(a, b), own.store(own.matmul(a, b)), dtype)


@lru_cache(maxsize=64)
def in_order(dtype: str, seed: int, order: str, accumulate: str = "float32") -> Array:
    """Take the same product in another order of its sums, or accumulated in another format."""
    it, own = base(dtype, seed), Arithmetic(Precision(dtype, accumulate, order=order))
    return own.store(own.matmul(it.a, it.b))


def _larger(place: Callable[[Base], Any]) -> Callable[[Base, float, int], tuple[Array, Array]]:
    def plant(it: Base, size: float, seed: int) -> tuple[Array, Array]:
        target, at = it.target.copy(), place(it)
        target[at] = rounded(target[at] * (1 + size), it.dtype)
        return target, it.golden

    return plant


def _ordinary(it: Base) -> tuple[int, ...]:
    """Return the place of a value of ordinary size, 1."""
    return tuple(int(i) for i in np.unravel_index(np.argmin(np.abs(np.abs(it.golden) - 1)), it.golden.shape))


def _near_zero(it: Base, size: float, seed: int) -> tuple[Array, Array]:
    target, golden = it.target.copy(), it.golden.copy()
    golden[0, 7] = 1e-8
    target[0, 7] = rounded(1e-8 + format_of(it.dtype).epsilon / 2, it.dtype)
    return target, golden


def _terms_missing(it: Base, size: float, seed: int) -> tuple[Array, Array]:
    own = Arithmetic(Precision(it.dtype))
    return own.store(own.matmul(it.a[:, :-LEFT_OUT], it.b[:-LEFT_OUT])), it.golden


def _narrow(dtype: str) -> str:
    return "bfloat16" if dtype == "float32" else dtype


def _one_nan(it: Base, size: float, seed: int) -> tuple[Array, Array]:
    target = it.target.copy()
    target[_ordinary(it)] = np.nan
    return target, it.golden


@dataclass(frozen=True)
class Plant:
    """Something that is done to a healthy product: ``healthy`` where no check should mind."""

    name: str
    healthy: bool
    what: str
    plant: Callable[[Base, float, int], tuple[Array, Array]]
    sized: bool = False


PLANTS = (
    Plant(
        "healthy", True, "fp32 accumulation, rounded once at the end", lambda it, *_: (it.target, it.golden)
    ),
    Plant(
        "healthy, other order",
        True,
        "the same, its sums taken pairwise",
        lambda it, size, seed: (in_order(it.dtype, seed, "tree"), it.golden),
    ),
    Plant("healthy, golden near 0", True, "one golden value is 1e-8, and off by half an epsilon", _near_zero),
    Plant("all too large", False, "a wrong scale", _larger(lambda it: slice(None)), True),
    Plant("one row too large", False, "a wrong scale in one of 64 rows", _larger(lambda it: 3), True),
    Plant("one value too large", False, "one of 4,096 values, itself of size 1", _larger(_ordinary), True),
    Plant(
        "rows out of order",
        False,
        "each row is another's",
        lambda it, *_: (np.roll(it.target, 1, axis=0), it.golden),
    ),
    Plant("terms left out", False, f"{LEFT_OUT} of the {TERMS} terms of each sum", _terms_missing),
    Plant(
        "narrow accumulation",
        False,
        "partial sums in the dtype itself; of fp32, in bf16",
        lambda it, size, seed: (in_order(it.dtype, seed, "sequential", _narrow(it.dtype)), it.golden),
    ),
    Plant("one NaN", False, "in place of one of 4,096 values", _one_nan),
)
BY_NAME = {it.name: it for it in PLANTS}


def planted(name: str, dtype: str = "bfloat16", size: float = 0.01, seed: int = 0) -> Pair:
    """Return a pair with one of ``PLANTS``.

    Parameters
    ----------
    name : str
        Which.
    dtype : str
        Of operands and result.
    size : float
        By which part what is too large is too large.
    seed : int
        Of the operands.
    """
    it = base(dtype, seed)
    target, golden = BY_NAME[name].plant(it, size, seed)
    return Pair(target, golden, in_order(dtype, seed, "native"), dtype)


# --- checks -------------------------------------------------------------------------------------------------


def _limit(holds: Callable[[Metrics], bool]) -> Callable[[Pair], str]:
    """Judge by one figure; figures that are not defined (NaN at different places) are an error."""

    def check(pair: Pair) -> str:
        found = pair.metrics
        return PASS if found.max_abs_error is not None and holds(found) else ERROR

    return check


def _statistics(pair: Pair) -> str:
    found = pair.metrics
    if found.target is None or found.golden is None:
        return ERROR
    relative = compare_summaries(found.target, found.golden).relative.values()
    return PASS if all(it is not None and it <= 0.5 for it in relative) else ERROR


def _checksum(pair: Pair) -> str:
    own = [checksum(as_dtype(x, pair.dtype)) for x in (pair.target, rounded(pair.golden, pair.dtype))]
    return PASS if own[0] == own[1] else ERROR


def judged(pair: Pair, name: str) -> Verdict:
    """Judge by a standard of the package, golden in fp32 where it looks at a dump; msprobe sees equal inputs."""
    wide = (pair.target.astype(np.float32), pair.golden.astype(np.float32))
    if name in msprobe.OUTPUT_SHARE:
        return msprobe.judge_output(compare_arrays(*wide), name)
    if name in ("msprobe-old", "depth-bound", "mindspore-coded"):
        return judge(*wide, name, dtype=pair.dtype)
    device = pair.device if name.startswith(("double", "ascend-dual")) else None
    return judge(pair.target, pair.golden, name, device=device, dtype=pair.dtype)


METRICS: dict[str, Callable[[Pair], str]] = {
    "cosine > 0.99": _limit(lambda m: m.cosine is not None and m.cosine > 0.99),
    "MaxAbsErr < 0.001": _limit(lambda m: (m.max_abs_error or 0.0) < 0.001),
    "MaxRelativeErr <= 0.5": _limit(lambda m: (m.max_relative_error or 0.0) <= 0.5),
    "four statistics <= 50 %": _statistics,
    "CRC equal": _checksum,
}
"""Single figures with limits of msprobe: its guide's, its old highlighting's, its first difference's."""
STANDARDS = {
    "msprobe-documented": "msprobe, document",
    "msprobe-coded": "msprobe, code",
    "msprobe-old": "msprobe, old rule",
    "single-benchmark": "single benchmark",
    "double-benchmark-l0": "double benchmark L0",
    "double-benchmark-l2": "double benchmark L2",
    "ulp": "ULP",
    "thousandth": "thousandth",
    "ascend-single": "Ascend, single",
    "ascend-mixed": "Ascend, mixed",
    "ascend-dual-l2": "Ascend, dual L2",
    "transformer-engine": "torch, TE",
    "jax": "JAX",
    "numpy-allclose": "numpy.allclose",
    "mindformers-helper": "MindFormers helper",
    "depth-bound": "TTrace, 33 layers",
}
"""Standards side by side, by their name here and on charts."""
DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8 e4m3": "float8_e4m3fn",
    "fp8 e5m2": "float8_e5m2",
}


def opinion(pair: Pair, check: str) -> str:
    """Ask a check of ``METRICS`` or ``STANDARDS``; ``skip`` where it has no rule for the dtype."""
    if check in METRICS:
        return METRICS[check](pair)
    return result(pair, check)[0]


def result(pair: Pair, name: str) -> tuple[str, Verdict | None]:
    """Judge by a standard; ``skip`` and no verdict where it has no row for the dtype."""
    try:
        verdict = judged(pair, name)
    except InputError as error:
        if all(p.field == "dtype" for p in error.problems):
            return SKIP, None
        raise
    return verdict.result, verdict
