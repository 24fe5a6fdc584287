"""Context parallelism: attention over a split sequence, merged by online softmax, against attention on one device."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import Array
from telekit.accuracy.numerics.emulate import Arithmetic, Precision
from telekit.accuracy.numerics.operator_formulas import attention, scores
from telekit.accuracy.numerics.parallel_numerics import Difference, difference
from telekit.accuracy.numerics.rounding import rounded
from telekit.accuracy.numerics.rounding_model import expected_difference, expected_sum, one_rounding
from telekit.errors import InputError, Problem

_EXPONENT = 4.0  # a usual distance of a score from the largest, and a usual log of a sum


def context_parallel(
    q: Any,
    k: Any,
    v: Any,
    cp: int,
    precision: Precision | None = None,
    *,
    zigzag: bool = True,
    partial: str = "",
) -> Difference:
    """Causal ring attention over ``cp`` ranks.

    A rank keeps its queries; keys and values go round the ring. Each step's output is rounded to ``partial`` and
    merged with what was there by the logs of the sums of exponentials, in the precision's ``compute`` format.

    Parameters
    ----------
    q, k, v : array_like, ``(heads, tokens, head_dim)``
        Rounded to the precision's dtype.
    cp : int
        Ranks; with ``zigzag`` twice as many must divide the tokens.
    precision : Precision
        bf16 with fp32 accumulation if left out.
    zigzag : bool
        Whether rank r holds chunks r and 2 cp - 1 - r of 2 cp, so that causal work is even; else contiguous chunks.
    partial : str
        Format of a step's output; the precision's dtype if left out, as fused kernels return it.

    Returns
    -------
    Difference
        Outputs in the order of the sequence. A causal row that only sees keys of its own rank does not change.

    Raises
    ------
    InputError
        If shapes differ, or the tokens cannot be split.
    """
    ar = Arithmetic(precision or Precision())
    q, k, v = (ar.store(x) for x in (q, k, v))
    owner = _owner(q, k, v, cp, zigzag)
    whole = attention(ar, q, k, v)["y"]
    split = np.empty_like(whole)
    held = partial or ar.precision.dtype
    places = [np.flatnonzero(owner == r) for r in range(cp)]
    with np.errstate(all="ignore"):
        for rank, mine in enumerate(places):
            ring = [places[(rank - step) % cp] for step in range(cp)]
            split[:, mine] = ar.store(_ring(ar, q[:, mine], k, v, mine, ring, held))
    name = f"context parallel over {cp}, {'zigzag' if zigzag else 'contiguous'}, steps in {held}"
    expected = _expected(owner, ar.precision, held)
    return difference(name, split, whole, ar.precision.dtype, expected)


def _owner(q: Array, k: Array, v: Array, cp: int, zigzag: bool) -> Array:
    """Rank of each token."""
    problems = []
    if q.ndim != 3 or not q.shape == k.shape == v.shape:
        problems.append(
            Problem("q, k, v", (q.shape, k.shape, v.shape), "must have one shape (heads, tokens, head_dim)")
        )
    chunks = 2 * cp if zigzag else cp
    if not problems and (cp < 1 or q.shape[1] % chunks):
        rule = f"must be at least 1, and {'2 cp' if zigzag else 'cp'} must divide the {q.shape[1]} tokens"
        problems.append(Problem("cp", cp, rule, "1"))
    if problems:
        raise InputError(problems)
    chunk = np.repeat(np.arange(chunks), q.shape[1] // chunks)
    return np.minimum(chunk, chunks - 1 - chunk) if zigzag else chunk


def _ring(ar: Arithmetic, q: Array, k: Array, v: Array, mine: Array, ring: list[Array], held: str) -> Array:
    total: Array | None = None
    log: Array | None = None
    for theirs in ring:
        out, own = _step(ar, q, k[:, theirs], v[:, theirs], mine, theirs)
        out = rounded(out, held).astype(ar.kind, copy=False)
        if total is None or log is None:
            total, log = out, own
            continue
        both = ar.op(np.logaddexp, log, own)
        kept, added = (ar.op(np.exp, ar.op(np.subtract, x, both)) for x in (log, own))
        total = ar.op(np.add, ar.op(np.multiply, total, kept), ar.op(np.multiply, out, added))
        log = both
    assert total is not None
    return total


def _step(ar: Arithmetic, q: Array, k: Array, v: Array, mine: Array, theirs: Array) -> tuple[Array, Array]:
    """Output of one step and the log of its sum of exponentials; zero and -Inf for a row that sees no key."""
    s = scores(ar, q, k, mine, theirs)
    top = np.max(s, axis=-1, keepdims=True)
    blind = np.isneginf(top)
    e = ar.op(np.exp, ar.op(np.subtract, s, np.where(blind, ar.kind(0), top)))
    total = ar.sum(e)
    out = ar.op(np.divide, ar.matmul(ar.store(e), v), np.where(blind, ar.kind(1), total))
    log = ar.op(np.add, top, ar.op(np.log, np.where(blind, ar.kind(1), total)))
    return out, log


def _expected(owner: Array, p: Precision, held: str) -> float:
    """Count roundings row by row: a row over t keys has a norm of about 1/sqrt(t).

    Steps are rounded, and sums over keys are cut. Exponentials are rounded relative to the largest score in sight:
    those of a step that does not hold it are rounded anew, on both sides. So are exponents and the logs of sums in the
    elementwise format, whose errors count as often as the exponent is large.
    """
    seen = np.array([len(np.unique(owner[: t + 1])) for t in range(len(owner))])
    keys = np.arange(1, len(owner) + 1)
    order = "blocked" if p.order == "native" else p.order
    square = 0.0
    for ranks in np.unique(seen[seen > 1]).tolist():
        t = int(keys[seen == ranks].mean())
        sums = [expected_sum(n, p.accumulate, order, block=p.block, parts=p.parts) for n in (t, t // ranks)]
        anew = (1 - 1 / ranks) * (
            2 * one_rounding(p.dtype) ** 2 + 4 * (_EXPONENT * one_rounding(p.compute)) ** 2
        )
        error = sqrt(one_rounding(held) ** 2 + anew + sums[0] ** 2 + sums[1] ** 2)
        square += float((1 / keys[seen == ranks]).sum()) * expected_difference(error, p.dtype) ** 2
    return sqrt(square / float((1 / keys).sum()))
