"""The largest differencing method: partial assignments joined two by two, each time those that differ most.

A partial assignment is a tuple of sums, one a rank, with the samples in each. Joining two puts the largest sums of one
onto the smallest of the other, so that differences cancel.
"""

from __future__ import annotations

import heapq

import numpy as np

from telekit.packing.inputs import Floats, Ints


def even_tuples(work: Floats, ranks: int) -> Ints:
    """Ranks of samples with equally many samples to each.

    Samples in falling order, cut into tuples of ``ranks``; so each rank takes one of every tuple, whichever way they
    are joined (Michiels, Korst, Aarts, van Leeuwen 2003).
    """
    members = np.argsort(-work, kind="stable").reshape(-1, ranks)
    return _joined(
        [(sums, each[:, None]) for sums, each in zip(work[members], members, strict=True)], work.size
    )


def single_tuples(work: Floats, ranks: int) -> Ints:
    """Ranks of samples with any number of samples to each (Karmarkar and Karp 1982)."""
    heap = [(-float(w), at, at) for at, w in enumerate(work)]
    heapq.heapify(heap)
    sums: dict[int, Floats] = {}
    made: list[
        tuple[int, int, Ints]
    ] = []  # two tuples, and the place in the second that meets each of the first
    fresh = work.size
    first = np.zeros(ranks)
    while len(heap) > 1:
        _, _, a = heapq.heappop(heap)
        _, _, b = heapq.heappop(heap)
        one, other = (sums.pop(t) if t in sums else _alone(first, work[t]) for t in (a, b))
        joined = one + other[::-1]
        order = np.argsort(-joined, kind="stable")
        sums[fresh] = joined[order]
        made.append((a, b, order))
        heapq.heappush(heap, (float(joined.min() - joined.max()), fresh, fresh))
        fresh += 1
    return _unfolded(made, work.size, ranks)


def _alone(zeros: Floats, weight: float) -> Floats:
    found = zeros.copy()
    found[0] = weight
    return found


def _unfolded(made: list[tuple[int, int, Ints]], samples: int, ranks: int) -> Ints:
    """Follow the joins back from the last: at which rank each place of each tuple lies."""
    rank = np.zeros(samples, dtype=np.int64)
    places: dict[int, Ints] = {samples + len(made) - 1: np.arange(ranks)}
    for at in range(len(made) - 1, -1, -1):
        a, b, order = made[at]
        mine = places.pop(samples + at)
        of_a = np.empty_like(mine)
        of_a[order] = mine
        for child, where in ((a, of_a), (b, of_a[::-1])):
            if child < samples:
                rank[child] = where[0]
            else:
                places[child] = where
    return rank


def _joined(tuples: list[tuple[Floats, Ints]], samples: int) -> Ints:
    heap = [(float(sums[-1] - sums[0]), at, sums, members) for at, (sums, members) in enumerate(tuples)]
    heapq.heapify(heap)
    fresh = len(heap)
    while len(heap) > 1:
        _, _, one, mine = heapq.heappop(heap)
        _, _, other, theirs = heapq.heappop(heap)
        sums = one + other[::-1]
        order = np.argsort(-sums, kind="stable")
        sums, members = sums[order], np.concatenate([mine, theirs[::-1]], axis=1)[order]
        heapq.heappush(heap, (float(sums[-1] - sums[0]), fresh, sums, members))
        fresh += 1
    rank = np.empty(samples, dtype=np.int64)
    whole = heap[0][3]
    rank[whole] = np.arange(whole.shape[0])[:, None]
    return rank
