"""Closed forms of overlap, where exact ones exist: element by element over NumPy columns, for planners.

Each equals the makespan that :func:`telekit.comm.overlap.simulate` finds for the plan of the same name; inputs are in
seconds and broadcast against each other. What is not here (two micro-batches, ragged buckets, chunks with
interference on both sides) has no such form and is simulated.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def pair_s(compute_s: Any, comm_s: Any, compute_rate: Any = 1.0, comm_rate: Any = 1.0) -> Any:
    """Makespan of one computation and one communication that start together.

    ``max(compute, comm)`` at rates 1. Else the one that ends first runs at its rate all along, and the other makes up
    for what it lost meanwhile.
    """
    compute, comm = np.asarray(compute_s, dtype=np.float64), np.asarray(comm_s, dtype=np.float64)
    c, m = np.asarray(compute_rate, dtype=np.float64), np.asarray(comm_rate, dtype=np.float64)
    compute_first = m * compute <= c * comm
    return np.where(compute_first, comm + compute * (1 - m) / c, compute + comm * (1 - c) / m)[()]


def pair_exposed_s(compute_s: Any, comm_s: Any, compute_rate: Any = 1.0, comm_rate: Any = 1.0) -> Any:
    """Exposed communication of :func:`pair_s`: ``max(0, comm - compute)`` at rates 1."""
    compute, comm = np.asarray(compute_s, dtype=np.float64), np.asarray(comm_s, dtype=np.float64)
    return np.maximum(comm - compute * np.asarray(comm_rate) / np.asarray(compute_rate), 0.0)[()]


def shared_expert_s(
    dispatch_s: Any,
    expert_s: Any,
    combine_s: Any,
    shared_up_s: Any,
    shared_down_s: Any,
    compute_rate: Any = 1.0,
    comm_rate: Any = 1.0,
) -> Any:
    """Makespan of :func:`telekit.comm.overlap_plans.shared_expert`: a pair, the experts, a pair."""
    before = pair_s(shared_up_s, dispatch_s, compute_rate, comm_rate)
    return before + expert_s + pair_s(shared_down_s, combine_s, compute_rate, comm_rate)


def chunked_s(
    dispatch_s: Any,
    expert_s: Any,
    combine_s: Any,
    chunks: Any,
    start_s: Any = 0.0,
    efficiency: Any = 1.0,
    both_ways: bool = False,
) -> Any:
    """Makespan of :func:`telekit.comm.overlap_plans.chunked` without interference.

    A flow of equal parts through three stages: the first part passes all of them, the others follow at the pace of
    the slowest. Where dispatch and combine share a stream, all of both is a second limit.
    """
    n = np.asarray(chunks, dtype=np.float64)
    first, work, last = dispatch_s / n + start_s, expert_s / (n * efficiency), combine_s / n + start_s
    flow = first + work + last + (n - 1) * np.maximum(np.maximum(first, work), last)
    return flow if both_ways else np.maximum(flow, n * (first + last))


def tp_overlap_s(
    gemm_s: Any,
    comm_s: Any,
    tp: Any,
    start_s: Any = 0.0,
    efficiency: Any = 1.0,
    compute_rate: Any = 1.0,
    comm_rate: Any = 1.0,
) -> Any:
    """Makespan of :func:`telekit.comm.overlap_plans.tp_overlap`, of either kind: one piece alone, the rest in pairs."""
    ranks = np.asarray(tp, dtype=np.float64)
    piece, step = gemm_s / (ranks * efficiency), comm_s / np.maximum(ranks - 1, 1) + start_s
    return piece + (ranks - 1) * pair_s(piece, step, compute_rate, comm_rate)


def dp_buckets_s(
    compute_s: Any,
    comm_s: Any,
    buckets: Any,
    start_s: Any = 0.0,
    compute_rate: Any = 1.0,
    comm_rate: Any = 1.0,
) -> Any:
    """Makespan of ``dp_buckets`` and, since it is the same read backwards, of ``dp_gather``, with equal buckets.

    The first bucket's backward runs alone, the last bucket's reduction runs alone, the rest are pairs.
    """
    n = np.asarray(buckets, dtype=np.float64)
    work, reduce = compute_s / n, comm_s / n + start_s
    return work + reduce + (n - 1) * pair_s(work, reduce, compute_rate, comm_rate)
