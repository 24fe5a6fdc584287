"""Expert parallelism: a token's experts summed at home or where they are, against all experts on one device."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import Array
from telekit.accuracy.numerics.emulate import Arithmetic, Precision, reduce_terms
from telekit.accuracy.numerics.parallel_numerics import Difference, difference
from telekit.accuracy.numerics.rounding_model import (
    expected_difference,
    expected_sum,
    one_rounding,
    partial_sums,
)
from telekit.errors import InputError, Problem

DISPATCHERS = ("alltoall", "allgather")
COMBINES = ("slot", "expert")


def routed_inputs(
    tokens: int = 1024,
    width: int = 256,
    experts: int = 64,
    top_k: int = 8,
    *,
    dtype: str = "bfloat16",
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """Draw expert outputs ``(tokens, top_k, width)``, their weights and which experts ``(tokens, top_k)``.

    Weights are a softmax over the chosen, the largest first, in float32.

    Raises
    ------
    InputError
        If a number is below 1, or more experts are chosen than there are.
    """
    sizes = {"tokens": tokens, "width": width, "experts": experts, "top_k": top_k}
    problems = [Problem(n, v, "must be at least 1", "1") for n, v in sizes.items() if v < 1]
    if top_k > experts:
        problems.append(Problem("top_k", top_k, f"must be at most experts = {experts}", str(experts)))
    if problems:
        raise InputError(problems)
    rng = np.random.default_rng(seed)
    outputs = Arithmetic(Precision(dtype)).store(rng.standard_normal((tokens, top_k, width)))
    logits = rng.standard_normal((tokens, experts))
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    e = np.exp(np.take_along_axis(logits, chosen, axis=1))
    return outputs, (e / e.sum(axis=1, keepdims=True)).astype(np.float32), chosen


def expert_parallel(
    outputs: Any,
    weights: Any,
    chosen: Any,
    experts: int,
    ep: int,
    precision: Precision | None = None,
    *,
    dispatcher: str = "alltoall",
    combine: str = "slot",
    order: str = "ring",
    reduce: str = "bfloat16",
) -> Difference:
    """Combine a token's experts over ``ep`` ranks, rank r holding the r-th ``experts / ep`` of them.

    Parameters
    ----------
    outputs : array_like, ``(tokens, top_k, width)``
        Of the experts chosen for each token.
    weights, chosen : array_like, ``(tokens, top_k)``
        Router weights, and the numbers of the experts.
    experts, ep : int
        How many there are, and ranks; ``ep`` must divide them.
    precision : Precision
        bf16 with fp32 accumulation if left out.
    dispatcher : str
        Megatron-Core's names. ``alltoall`` brings each expert's row home, where they are summed: nothing changes.
        ``allgather`` sums on every rank what its experts gave, stores that, and reduce-scatters over the ranks.
    combine : str
        In which order a device sums a token's rows: by ``slot`` (largest weight first, as one device does here) or by
        ``expert`` (the number). Changes what ``alltoall`` gives.
    order, reduce : str
        Order and format of the sum over ranks.

    Raises
    ------
    InputError
        If shapes do not fit, ``ep`` does not divide the experts, or a name is not known.
    """
    ar = Arithmetic(precision or Precision())
    y, g, where = ar.store(outputs), np.asarray(weights), np.asarray(chosen)
    _check(y, g, where, experts, ep, dispatcher, combine)
    rows = ar.op(np.multiply, y, g[..., None])
    whole = ar.store(ar.sum(rows, axis=1))[:, 0]
    if combine == "expert":
        by_expert = np.argsort(where, axis=1, kind="stable")
        where = np.take_along_axis(where, by_expert, axis=1)
        rows = np.take_along_axis(rows, by_expert[..., None], axis=1)
    rank = where // (experts // ep)
    if dispatcher == "alltoall":
        split = ar.store(ar.sum(rows, axis=1))[:, 0]
    else:
        own = (rank == np.arange(ep)[:, None, None])[..., None]
        partial = np.stack([ar.store(ar.sum(np.where(m, rows, ar.kind(0)), axis=1))[:, 0] for m in own])
        split = ar.store(reduce_terms(partial, order=order, dtype=reduce))
    expected = _expected(rank, ar.precision, dispatcher, combine, order, reduce)
    name = f"expert parallel over {ep}, {dispatcher}, by {combine}"
    return difference(name, split, whole, ar.precision.dtype, expected)


def _check(y: Array, g: Array, where: Array, experts: int, ep: int, dispatcher: str, combine: str) -> None:
    problems = []
    if y.ndim != 3:
        problems.append(Problem("outputs", y.shape, "must be (tokens, top_k, width)"))
    for name, x in (("weights", g), ("chosen", where)):
        if x.shape != y.shape[:2]:
            problems.append(Problem(name, x.shape, f"must be outputs' {y.shape[:2]}"))
    if where.size and (where.dtype.kind not in "iu" or where.min() < 0 or where.max() >= experts):
        problems.append(Problem("chosen", where.dtype.name, f"must be whole numbers from 0 to {experts - 1}"))
    if ep < 1 or experts < 1 or experts % ep:
        problems.append(Problem("ep", ep, f"must be at least 1 and divide experts = {experts}", "1"))
    for name, value, known in (("dispatcher", dispatcher, DISPATCHERS), ("combine", combine, COMBINES)):
        if value not in known:
            problems.append(Problem(name, value, f"must be one of {', '.join(known)}"))
    if problems:
        raise InputError(problems)


def _expected(rank: Array, p: Precision, dispatcher: str, combine: str, order: str, reduce: str) -> float:
    """Count roundings by how many ranks a token's experts are on: one rank's zeros add nothing."""
    k = rank.shape[1]
    # another order of the same rows: two sums whose errors are independent
    moved = sqrt(2) * expected_sum(k, p.accumulate) if combine == "expert" and k > 2 else 0.0
    if dispatcher == "alltoall":
        return expected_difference(moved, p.dtype)
    several = np.array([len(set(r)) for r in rank.tolist()])
    square = float(np.mean(several == 1)) * expected_difference(moved, p.dtype) ** 2
    for ranks in np.unique(several[several > 1]).tolist():
        sums = partial_sums(ranks, "sequential" if order == "native" else order)
        counted = sums[:-1] if reduce == p.dtype else sums
        error = one_rounding(p.dtype) ** 2 + one_rounding(reduce) ** 2 * float(counted.sum()) / ranks
        share = float(np.mean(several == ranks))
        square += share * expected_difference(sqrt(error + moved**2), p.dtype) ** 2
    return sqrt(square)
