"""Orders of each rank's micro-batches, so that its pipeline ends early."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from telekit.packing.plan import Plan
from telekit.packing.timing import AT_ONCE, Floats, Ints, checked_times, ends_s, met, operations

MOST_EXCHANGES = 1024
"""Most exchanges of two micro-batches that a round of the search tries for a rank; near ones come first."""
EFFORT = 2**25
"""Operations that a search simulates at most, after the rules: a few seconds. Slow ranks are searched for first."""


def order_micro_batches(
    forward_s: ArrayLike, backward_s: ArrayLike, plan: Plan, by_part: bool = False, exchanges: bool = True
) -> Ints:
    """Order each rank's micro-batches so that its pipeline, simulated, ends early.

    The best of a few rules (as given, ascending, descending, largest or smallest in the middle), then exchanges of two
    micro-batches while one helps, the slowest ranks first, until :data:`EFFORT` is spent. Never worse than as given;
    equal to brute force on most small cases, not all. Ranks that meet in layers take one order for their group.

    Parameters
    ----------
    forward_s, backward_s, plan, by_part
        As in :func:`telekit.packing.step.run_step`.
    exchanges : bool
        Whether to exchange after the rules.

    Returns
    -------
    array (..., ranks, micro_batches)
        Indices: entry k is the micro-batch that runs k-th.
    """
    forward, backward = checked_times(forward_s, backward_s, plan, by_part)
    ranks = forward.shape[:-3]
    forward, backward = met(forward, plan), met(backward, plan)
    count = forward.shape[-3]
    flat = (-1, *forward.shape[-3:])
    own = forward.reshape(flat), backward.reshape(flat)
    if plan.stages == 1 or count < 2:
        best = np.broadcast_to(np.arange(count), (len(own[0]), count))
    else:
        best, least = _best_rule(*own, plan)
        if exchanges:
            best = _exchanged(best, least, *own, plan)
    found = best.reshape(*forward.shape[:-3], count)
    return np.repeat(found, ranks[-1] // found.shape[-2], axis=-2)


def _rules(cost: Floats) -> list[Ints]:
    """Orders by a few rules, each (rows, micro_batches), from the time of each micro-batch (rows, micro_batches)."""
    up = np.argsort(cost, axis=-1, kind="stable")
    return [
        np.broadcast_to(np.arange(cost.shape[-1]), cost.shape),
        up,
        up[..., ::-1],
        np.concatenate([up[..., ::2], up[..., 1::2][..., ::-1]], axis=-1),  # largest in the middle
        np.concatenate([up[..., ::-2], up[..., -2::-2][..., ::-1]], axis=-1),  # smallest in the middle
    ]


def _best_rule(forward: Floats, backward: Floats, plan: Plan) -> tuple[Ints, Floats]:
    """Pick the rule of the shortest pipeline for each row, and give its seconds."""
    rows = np.arange(len(forward))
    rules = _rules((forward + backward).sum(axis=(-2, -1)))
    time = np.stack([ends_s(forward, backward, rows, rule, plan) for rule in rules])
    first = time.argmin(axis=0)
    return np.stack(rules)[first, rows], time[first, rows]


def _exchanged(best: Ints, least: Floats, forward: Floats, backward: Floats, plan: Plan) -> Ints:
    """Exchange two micro-batches of a row while that helps it and effort is left, the slowest rows first."""
    count = best.shape[1]
    size = operations(plan, count)
    pairs = np.array(list(islice(_pairs(count), min(MOST_EXCHANGES, max(EFFORT // size, 1)))))
    rows = max(AT_ONCE // (len(pairs) * count), 1)
    left, active = EFFORT // (size * len(pairs)), np.arange(len(best))
    while active.size and left > 0:
        searched = active[np.argsort(-least[active], kind="stable")][:left]
        left -= searched.size
        better = [np.zeros(0, dtype=np.int64)]
        for first in range(0, searched.size, rows):
            some = searched[first : first + rows]
            tried = np.repeat(best[some], len(pairs), axis=0)
            swaps = np.tile(pairs, (some.size, 1))
            np.put_along_axis(tried, swaps, np.take_along_axis(tried, swaps[:, ::-1], axis=1), axis=1)
            time = ends_s(forward, backward, np.repeat(some, len(pairs)), tried, plan)
            at = time.reshape(some.size, -1).argmin(axis=1) + np.arange(some.size) * len(pairs)
            good = time[at] < least[some] * (1 - 1e-12)
            best[some[good]], least[some[good]] = tried[at[good]], time[at[good]]
            better.append(some[good])
        active = np.concatenate(better)
    return best


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    """Pairs of places, near ones first."""
    return ((i, i + apart) for apart in range(1, count) for i in range(count - apart))
