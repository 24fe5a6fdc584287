"""What a layout does to rounding: the same layer whole and split, so that a difference is known before it is blamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import Array, format_of
from telekit.accuracy.numerics.emulate import Arithmetic, Precision, reduce_terms
from telekit.accuracy.numerics.operator_formulas import rms_norm
from telekit.accuracy.numerics.rounding import rounded
from telekit.accuracy.numerics.rounding_model import (
    expected_difference,
    expected_sum,
    one_rounding,
    partial_sums,
)
from telekit.errors import InputError, Problem

SHARES = (1e-4, 1e-3, 1e-2)


@dataclass(frozen=True)
class Difference:
    """A split result against the whole one.

    Attributes
    ----------
    name : str
        What was split, and how.
    max_abs, mean_abs : float
        Of the absolute difference.
    shares : dict of float to float
        Share of elements whose absolute difference is above each threshold.
    relative : float
        Norm of the difference over the norm of the whole.
    epsilons : float
        The same in epsilons of ``dtype``.
    expected : float
        What the model of independent roundings expects ``relative`` to be; 0 where the split changes no sum.
    dtype : str
        Format of the results.
    split, whole : ndarray
        The results.
    """

    name: str
    max_abs: float
    mean_abs: float
    shares: dict[float, float]
    relative: float
    epsilons: float
    expected: float
    dtype: str
    split: Array
    whole: Array

    @property
    def exact(self) -> bool:
        """Whether every element is equal."""
        return self.max_abs == 0

    @property
    def expected_epsilons(self) -> float:
        """The expected relative difference in epsilons."""
        return self.expected / format_of(self.dtype).epsilon


def difference(
    name: str, split: Array, whole: Array, dtype: str, expected: float, thresholds: Sequence[float] = SHARES
) -> Difference:
    """Take the figures of a split result against the whole one."""
    d = np.abs(split.astype(np.float64) - whole)
    norm = float(np.linalg.norm(whole.astype(np.float64)))
    relative = float(np.linalg.norm(d)) / norm if norm else 0.0
    return Difference(
        name,
        float(d.max(initial=0.0)),
        float(d.mean()) if d.size else 0.0,
        {t: float(np.mean(d > t)) if d.size else 0.0 for t in thresholds},
        relative,
        relative / format_of(dtype).epsilon,
        expected,
        dtype,
        split,
        whole,
    )


def linear_inputs(
    tokens: int = 1024, inner: int = 4096, width: int = 256, *, dtype: str = "bfloat16", seed: int = 0
) -> tuple[Array, Array]:
    """Draw a linear layer's inputs: standard normal ``(tokens, inner)``, and weights ``(inner, width)``.

    Weights have the scale 1/sqrt(inner). The defaults are those of a published study of row parallelism.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, inner))
    w = rng.standard_normal((inner, width)) / sqrt(inner)
    return rounded(x, dtype), rounded(w, dtype)


def column_parallel(x: Any, w: Any, tp: int, precision: Precision | None = None) -> Difference:
    """Split the output columns over ``tp`` ranks: no sum is cut, so nothing changes.

    Parameters
    ----------
    x, w : array_like
        ``(tokens, inner)`` and ``(inner, width)``, rounded to the precision's dtype.
    tp : int
        Ranks; must divide ``width``.
    precision : Precision
        bf16 with fp32 accumulation if left out. With order ``native`` NumPy may pick another kernel for a narrower
        matrix, as a device's library may.

    Raises
    ------
    InputError
        If a shape does not fit or is not divisible.
    """
    ar, x, w = _linear(x, w, precision)
    _divides("tp", tp, "width", w.shape[1])
    whole = ar.store(ar.matmul(x, w))
    split = np.concatenate([ar.store(ar.matmul(x, part)) for part in np.split(w, tp, axis=1)], axis=1)
    return difference(f"column parallel over {tp}", split, whole, ar.precision.dtype, 0.0)


def row_parallel(
    x: Any,
    w: Any,
    tp: int,
    precision: Precision | None = None,
    *,
    order: str = "ring",
    reduce: str = "bfloat16",
    partial: str = "",
) -> Difference:
    """Split the inner dimension over ``tp`` ranks and sum their partial results.

    Parameters
    ----------
    x, w, tp, precision
        As in `column_parallel`; ``tp`` must divide ``inner``.
    order : str
        In which order ranks are summed: ``ring``, ``tree``, ``sequential`` or another of
        `telekit.accuracy.numerics.emulate.ORDERS`.
    reduce : str
        Format of the sum over ranks: float32 keeps partial sums wide and rounds once at the end.
    partial : str
        Format each rank's result is rounded to before the sum; the precision's dtype if left out.

    Raises
    ------
    InputError
        If a shape does not fit or is not divisible, or a format or order is not known.
    """
    ar, x, w = _linear(x, w, precision)
    _divides("tp", tp, "inner", x.shape[1])
    whole = ar.store(ar.matmul(x, w))
    held = partial or ar.precision.dtype
    split = ar.store(reduce_terms(_partials(ar, x, w, tp, held), order=order, dtype=reduce))
    expected = _expected_row(ar.precision, x.shape[1], tp, order, reduce, held)
    name = f"row parallel over {tp}, {order} in {reduce}"
    return difference(name, split, whole, ar.precision.dtype, expected)


def _partials(ar: Arithmetic, x: Array, w: Array, tp: int, held: str) -> Array:
    pairs = zip(np.split(x, tp, axis=1), np.split(w, tp), strict=True)
    return np.stack([rounded(ar.matmul(a, b), held) for a, b in pairs])


def _expected_row(p: Precision, inner: int, tp: int, order: str, reduce: str, held: str) -> float:
    """Count roundings of partial results and of the sum over ranks, before both results are stored.

    Where the split cuts between blocks that the whole sums in the same way, fp32 differs by less.
    """
    if tp == 1:
        return 0.0
    squares = one_rounding(held) ** 2
    sums = partial_sums(tp, "sequential" if order == "native" else order)
    # a last sum that is rounded to the stored format is the storing
    counted = sums[:-1] if reduce == p.dtype else sums
    squares += one_rounding(reduce) ** 2 * float(counted.sum()) / tp
    own = "blocked" if p.order == "native" else p.order
    for terms in (inner, inner // tp):
        squares += expected_sum(terms, p.accumulate, own, block=p.block, parts=p.parts) ** 2
    return expected_difference(sqrt(squares), p.dtype)


def sequence_parallel(
    x: Any,
    w: Any,
    weight: Any,
    tp: int,
    precision: Precision | None = None,
    *,
    all_reduce: str = "ring",
    reduce_scatter: str = "ring",
    reduce: str = "bfloat16",
) -> Difference:
    """Row-parallel layer and RMS norm: tokens split over the ranks for the norm, against every rank doing all of it.

    A ring all-reduce is a reduce-scatter and an all-gather, and a norm looks at one token: with both as rings nothing
    changes. ``whole`` is tensor parallelism alone here, not a single device.

    Parameters
    ----------
    x, w, tp, precision
        As in `row_parallel`; ``tp`` must divide the tokens too.
    weight : array_like, ``(width,)``
        Of the norm.
    all_reduce, reduce_scatter : str
        Orders of the two collectives.
    reduce : str
        Format both sum in.
    """
    ar, x, w = _linear(x, w, precision)
    _divides("tp", tp, "inner", x.shape[1])
    _divides("tp", tp, "tokens", x.shape[0])
    gamma, p = ar.store(weight), ar.precision
    partial = _partials(ar, x, w, tp, p.dtype)
    together = rms_norm(ar, ar.store(reduce_terms(partial, order=all_reduce, dtype=reduce)), gamma)["y"]
    scattered = np.split(ar.store(reduce_terms(partial, order=reduce_scatter, dtype=reduce)), tp)
    split = np.concatenate([rms_norm(ar, own, gamma)["y"] for own in scattered])
    expected = 0.0
    if all_reduce != reduce_scatter and tp > 2:
        sums = [partial_sums(tp, o)[:-1] for o in (all_reduce, reduce_scatter)]
        before = one_rounding(reduce) * sqrt(sum(float(s.sum()) for s in sums) / tp)
        expected = expected_difference(expected_difference(before, p.dtype), p.dtype)
    name = f"sequence parallel over {tp}, {reduce_scatter} against {all_reduce} in {reduce}"
    return difference(name, split, together, p.dtype, expected)


def data_parallel(
    gradients: Any, *, accumulate: str = "bfloat16", reduce: str = "bfloat16", order: str = "ring"
) -> Difference:
    """Average gradients over micro-batches and ranks, against the same average taken in fp32 by one device.

    Parameters
    ----------
    gradients : array_like, ``(dp, micro_batches, ...)``
        Of each rank and micro-batch, as computed: rounded to ``accumulate`` by who adds them.
    accumulate : str
        Format of the sum over a rank's micro-batches.
    reduce, order : str
        Format and order of the sum over ranks.

    Returns
    -------
    Difference
        In epsilons of the narrower of the two formats. ``expected`` is for gradients that do not depend on each other,
        of any sign.

    Raises
    ------
    InputError
        If there is no axis of ranks and micro-batches, or one is empty.
    """
    g = np.asarray(gradients, np.float64)
    if g.ndim < 2 or 0 in g.shape:
        rule = "must be (dp, micro_batches, ...), none of them empty"
        raise InputError([Problem("gradients", g.shape, rule)])
    dp, micro = g.shape[:2]
    own = reduce_terms(rounded(g, accumulate), axis=1, dtype=accumulate)
    total = reduce_terms(rounded(own, reduce), order=order, dtype=reduce)
    whole = reduce_terms(g.reshape(dp * micro, *g.shape[2:]), dtype="float32")
    squares = one_rounding(accumulate) ** 2 + expected_sum(micro, accumulate) ** 2
    if reduce != accumulate and format_of(reduce).mantissa < format_of(accumulate).mantissa:
        squares += one_rounding(reduce) ** 2
    squares += expected_sum(dp, reduce, "sequential" if order == "native" else order) ** 2
    squares += expected_sum(dp * micro, "float32") ** 2
    coarse = min((accumulate, reduce), key=lambda d: format_of(d).mantissa)
    name = f"{micro} micro-batches in {accumulate}, {dp} ranks by {order} in {reduce}"
    count = np.float32(dp * micro)
    return difference(name, total / count, whole / count, coarse, sqrt(squares))


def _linear(x: Any, w: Any, precision: Precision | None) -> tuple[Arithmetic, Array, Array]:
    ar = Arithmetic(precision or Precision())
    a, b = ar.store(x), ar.store(w)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise InputError(
            [Problem("w", b.shape, f"must be (inner, width) for x's {a.shape} = (tokens, inner)")]
        )
    return ar, a, b


def _divides(name: str, ranks: int, what: str, size: int) -> None:
    if ranks < 1 or size % ranks:
        works = next((str(n) for n in range(min(max(ranks, 1), size), 0, -1) if size % n == 0), "")
        raise InputError([Problem(name, ranks, f"must be at least 1 and divide {what} = {size}", works)])
