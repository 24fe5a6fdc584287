"""Arithmetic of a chosen precision on a CPU: what is rounded, to which format, and in which order sums are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import FORMATS, Array
from telekit.accuracy.numerics.rounding import carrier, rounded
from telekit.errors import InputError, Problem

ORDERS = {
    "sequential": "one after another",
    "pairwise": "halves of halves, down to blocks that are summed one after another, as NumPy does",
    "tree": "halves of halves, down to single terms",
    "blocked": "each block one after another, then the blocks' sums one after another",
    "split-k": "a few long parts, each one after another, then the parts' sums one after another",
    "mma": "blocks summed in float64 and rounded once, one after another, like a matrix unit with a wide adder",
    "random": "one after another in an order drawn by the seed, like atomic additions",
    "ring": "as a ring reduction over ranks: chunk c of the output starts at term c + 1 and goes round",
    "native": "whatever NumPy does in the wide type, rounded once",
}
# Multiplications up to which BLAS stays on one thread: many small products on several wait for each other.
_ONE_THREAD = 1 << 17
Rounder = Callable[[Array], Array]
Term = Callable[[int], Array]


@dataclass(frozen=True)
class Precision:
    """How an operator computes.

    Attributes
    ----------
    dtype : str
        Format of inputs and outputs.
    accumulate : str
        Format of every partial sum; products are rounded to it too (of 8- and 16-bit inputs they are exact in
        float32, so that product and sum are one rounding, as in a fused multiply-add; of float32 inputs they are not).
    compute : str
        Format of every elementwise result inside the operator: float32 for a fused kernel, the dtype itself for one
        that runs operation by operation.
    order : str
        How sums are taken: see ``ORDERS``.
    block : int
        Terms of a block for ``blocked`` and ``pairwise`` (128 if 0) and ``mma`` (16 if 0).
    parts : int
        Parts of ``split-k``.
    seed : int
        Of the ``random`` order.
    saturate : bool
        Whether storing saturates, as casts to fp8 do.

    Raises
    ------
    InputError
        If a format or order is not known, or a number is out of range.
    """

    dtype: str = "bfloat16"
    accumulate: str = "float32"
    compute: str = "float32"
    order: str = "sequential"
    block: int = 0
    parts: int = 4
    seed: int = 0
    saturate: bool = False

    def __post_init__(self) -> None:
        problems = [
            Problem(name, getattr(self, name), f"must be one of {', '.join(FORMATS)}")
            for name in ("dtype", "accumulate", "compute")
            if getattr(self, name) not in FORMATS
        ]
        problems += order_problems(self.order, self.block, self.parts)
        if problems:
            raise InputError(problems, "precision")


def terms_a_block(order: str, block: int = 0) -> int:
    """Terms of a block, with the order's own number where none is given."""
    return block or (16 if order == "mma" else 128)


def order_problems(order: str, block: int = 0, parts: int = 1) -> list[Problem]:
    """Name what is wrong with an order of summation."""
    problems = []
    if order not in ORDERS:
        problems.append(Problem("order", order, f"must be one of {', '.join(ORDERS)}"))
    if block < 0:
        problems.append(Problem("block", block, "must be at least 1, or 0 for the order's own", "128"))
    if parts < 1:
        problems.append(Problem("parts", parts, "must be at least 1", "4"))
    return problems


GOLDEN = Precision("float64", "float64", "float64", "native")


def reduce_terms(
    terms: Any,
    *,
    axis: int = 0,
    order: str = "sequential",
    dtype: str = "float32",
    block: int = 0,
    parts: int = 4,
    seed: int = 0,
) -> Array:
    """Sum along an axis in a chosen order, rounding after every addition.

    Parameters
    ----------
    terms : array_like
        Rounded to ``dtype`` first. For ranks, stack their tensors along ``axis``.
    axis : int
        The axis that is summed; the result lacks it.
    order : str
        See ``ORDERS``.
    dtype : str
        Format of every partial sum.
    block, parts, seed : int
        As in `Precision`.

    Returns
    -------
    ndarray of float32 (float64 for float64)
        Values of ``dtype``; zeros for no terms.

    Raises
    ------
    InputError
        If the order or format is not known, or there is no such axis.

    Examples
    --------
    >>> float(reduce_terms([256.0, 1.0, 1.0], dtype="bfloat16"))
    256.0
    >>> float(reduce_terms([1.0, 1.0, 256.0], dtype="bfloat16"))
    258.0
    """
    problems = order_problems(order, block, parts)
    x = rounded(terms, dtype)
    if not -x.ndim <= axis < x.ndim:
        problems.append(Problem("axis", axis, f"the array has {x.ndim} axes"))
    if problems:
        raise InputError(problems)
    x = np.ascontiguousarray(np.moveaxis(x, axis, 0))
    if not len(x):
        return np.zeros(x.shape[1:], x.dtype)
    with np.errstate(all="ignore"):
        if order == "native":
            return rounded(x.sum(axis=0), dtype)
        if order == "ring":
            return _ring(x, rounder(dtype))
        size = terms_a_block(order, block)
        if order == "mma":
            starts = range(0, len(x), size)
            sums = [rounded(x[k : k + size].astype(np.float64).sum(axis=0), dtype) for k in starts]
            return np.asarray(_sequential(sums.__getitem__, range(len(sums)), rounder(dtype)))
        return np.asarray(_reduced(x.__getitem__, len(x), order, rounder(dtype), size, parts, seed))


def rounder(dtype: str) -> Rounder:
    """Return what rounds values already held in `carrier`; nothing to do for float32 and float64."""
    if dtype in ("float32", "float64"):
        return lambda x: x
    return lambda x: rounded(x, dtype)


def _reduced(term: Term, n: int, order: str, rnd: Rounder, block: int, parts: int, seed: int) -> Array:
    """Sum ``n`` terms that are made one at a time, so that a product never stands in memory whole."""
    if order == "random":
        return _sequential(term, np.random.default_rng(seed).permutation(n).tolist(), rnd)
    if order in ("tree", "pairwise"):
        return _halves(term, 0, n, 1 if order == "tree" else block, rnd)
    if order == "sequential":
        return _sequential(term, range(n), rnd)
    bounds = range(0, n, block if order == "blocked" else -(-n // parts))
    total: Array | None = None
    for start in bounds:
        part = _sequential(term, range(start, min(start + bounds.step, n)), rnd)
        total = part if total is None else rnd(np.add(total, part, out=total))
    assert total is not None
    return total


def _sequential(term: Term, places: Iterable[int], rnd: Rounder) -> Array:
    first, *rest = places
    total = np.array(term(first))
    for k in rest:
        total = rnd(np.add(total, term(k), out=total if total.ndim else None))
    return total


def _halves(term: Term, low: int, high: int, base: int, rnd: Rounder) -> Array:
    if high - low <= base:
        return _sequential(term, range(low, high), rnd)
    middle = (low + high) // 2
    return rnd(np.asarray(_halves(term, low, middle, base, rnd) + _halves(term, middle, high, base, rnd)))


def _ring(x: Array, rnd: Rounder) -> Array:
    n, shape = len(x), x.shape[1:]
    rows = x.reshape(n, -1)
    chunk = np.repeat(np.arange(n), [len(c) for c in np.array_split(np.empty(rows.shape[1]), n)])
    places = np.arange(rows.shape[1])
    total = rows[(chunk + 1) % n, places]
    for step in range(2, n + 1):
        total = rnd(total + rows[(chunk + step) % n, places])
    return total.reshape(shape)


@dataclass(frozen=True)
class Arithmetic:
    """An operator's arithmetic: written once against this, it runs in any precision, fp64 golden included.

    Arrays are float32 (float64 if a format is) whose values the format has.
    """

    precision: Precision = Precision()

    @property
    def kind(self) -> type[np.floating[Any]]:
        """NumPy type that carries the values."""
        return carrier(self.precision.dtype, self.precision.accumulate, self.precision.compute)

    def store(self, x: Any) -> Array:
        """Round to the format of inputs and outputs."""
        return rounded(x, self.precision.dtype, saturate=self.precision.saturate).astype(
            self.kind, copy=False
        )

    def op(self, function: Callable[..., Any], *values: Any) -> Array:
        """Apply one elementwise operation and round its result.

        Exact before rounding for ``+ - * /`` and the square root; others are as good as NumPy's.
        """
        with np.errstate(all="ignore"):
            wide = [np.asarray(v, self.kind) for v in values]
            return rounded(function(*wide), self.precision.compute).astype(self.kind, copy=False)

    def sum(self, x: Any, axis: int = -1) -> Array:
        """Sum along an axis, which stays with length 1."""
        p = self.precision
        total = reduce_terms(
            x, axis=axis, order=p.order, dtype=p.accumulate, block=p.block, parts=p.parts, seed=p.seed
        )
        return self._computed(np.expand_dims(total, axis))

    def mean(self, x: Any, axis: int = -1) -> Array:
        """Sum divided by the count."""
        return self.op(np.divide, self.sum(x, axis), np.shape(x)[axis])

    def matmul(self, a: Any, b: Any) -> Array:
        """Matrix product ``(..., m, k) @ (..., k, n)``; see `matmul`."""
        return self._computed(matmul(a, b, self.precision))

    def _computed(self, x: Array) -> Array:
        """Leave the accumulator: rounded if the elementwise format is narrower, as it is when stored."""
        return rounded(x, self.precision.compute).astype(self.kind, copy=False)


def matmul(a: Any, b: Any, precision: Precision) -> Array:
    """Multiply matrices, every product and partial sum rounded to the accumulation format.

    Parameters
    ----------
    a, b : array_like
        Shapes ``(..., m, k)`` and ``(..., k, n)``, leading axes as NumPy broadcasts them; taken as they are (round
        them to the input format first).
    precision : Precision
        ``accumulate``, ``order``, ``block``, ``parts``, ``seed`` count.

    Returns
    -------
    ndarray, ``(..., m, n)``
        Values of the accumulation format.

    Raises
    ------
    InputError
        If the shapes do not fit, or the order is ``ring``, which is one of ranks.

    Notes
    -----
    The terms of the sum are outer products, made one at a time: memory is a few results.
    """
    kind = carrier(precision.accumulate)
    x, y = (np.asarray(v) for v in (a, b))
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2]:
        raise InputError([Problem("b", y.shape, f"must be (..., k, n) for a's {x.shape} = (..., m, k)")])
    if precision.order == "ring":
        rule = "is an order of ranks, not of an operator's terms"
        raise InputError([Problem("order", "ring", rule, "reduce_terms(partial_results, order='ring')")])
    wide = kind if precision.accumulate in ("float32", "float64") else np.float32
    x, y = x.astype(wide, copy=False), y.astype(wide, copy=False)
    with np.errstate(all="ignore"):
        if precision.order == "native" or 0 in (*x.shape, *y.shape):
            return rounded(np.matmul(x, y), precision.accumulate)
        return _matmul(x, y, precision)


def _matmul(x: Array, y: Array, p: Precision) -> Array:
    n, rnd, block = x.shape[-1], rounder(p.accumulate), terms_a_block(p.order, p.block)
    if p.order == "mma":
        wide = x.astype(np.float64), y.astype(np.float64)
        rows = max(1, _ONE_THREAD // (block * y.shape[-1]))

        def whole(i: int) -> Array:
            part = slice(i * block, (i + 1) * block)
            tiles = [
                np.matmul(wide[0][..., row : row + rows, part], wide[1][..., part, :])
                for row in range(0, x.shape[-2], rows)
            ]
            return rounded(np.concatenate(tiles, axis=-2), p.accumulate)

        return _sequential(whole, range(-(-n // block)), rnd)
    columns = np.ascontiguousarray(np.moveaxis(x, -1, 0))[..., None]
    rows = np.ascontiguousarray(np.moveaxis(y, -2, 0))[..., None, :]
    buffer = np.empty(np.broadcast_shapes(columns.shape[1:], rows.shape[1:]), x.dtype)

    def term(k: int) -> Array:
        return rnd(np.multiply(columns[k], rows[k], out=buffer))

    return _reduced(term, n, p.order, rnd, block, p.parts, p.seed)
