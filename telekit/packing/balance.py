"""Samples of a global batch onto data-parallel ranks, so that no rank waits long for the busiest.

Splitting numbers into sums that are alike is the multiway number partition. Its largest sum is bounded from below, and
every policy here is stated against that bound: longest-first (Graham 1969), the largest differencing method of
Karmarkar and Karp (1982; with equal counts as in Michiels, Korst, Aarts, van Leeuwen 2003), and ``balanced``, which
starts from a good one and then exchanges samples between ranks. The optimizer sees the same samples whatever the
assignment: only who computes them changes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from telekit.packing.caps import capped, fewest
from telekit.packing.differencing import even_tuples, single_tuples
from telekit.packing.exchange import exchanged
from telekit.packing.inputs import Floats, Ints, check_caps, checked_ranks, checked_tokens, checked_work

MOST_HOLES = 64
"""Samples a rank up to which the lower bound counts pigeonholes; with more on each, the mean is as good."""


@dataclass(frozen=True)
class Assignment:
    """Which rank takes which sample.

    Parameters
    ----------
    rank : (samples,) int array
        Rank of each sample.
    loads : (ranks,) array
        Work of each rank, in the unit of the work given (seconds).
    bound : float
        No assignment has a busiest rank below it.
    """

    rank: Ints
    loads: Floats
    bound: float

    @property
    def largest(self) -> float:
        """Work of the busiest rank: what the step waits for."""
        return float(self.loads.max())

    @property
    def imbalance(self) -> float:
        """Work of the busiest rank over the mean; 1 where no rank waits, or none has work."""
        mean = float(self.loads.mean())
        return self.largest / mean if mean > 0 else 1.0

    @property
    def gap(self) -> float:
        """How far the busiest rank is above the bound, as a share of it: an assignment of gap 0 is optimal."""
        return max(self.largest / self.bound - 1.0, 0.0) if self.bound > 0 else 0.0

    @property
    def counts(self) -> Ints:
        """Samples of each rank."""
        return np.bincount(self.rank, minlength=self.loads.size)

    def per_rank(self) -> list[Ints]:
        """List the samples of each rank by index, in the order given."""
        order = np.argsort(self.rank, kind="stable")
        return np.split(order, np.cumsum(self.counts)[:-1])


def assignment(rank: ArrayLike, work: ArrayLike, ranks: int, bound: float) -> Assignment:
    """Sum the loads of an assignment."""
    found = np.asarray(rank, dtype=np.int64)
    loads = np.bincount(found, weights=np.asarray(work, float), minlength=ranks).astype(float)
    return Assignment(found, loads, bound)


def lower_bound(work: ArrayLike, ranks: int, per_rank: int | None = None) -> float:
    """Work that the busiest rank has at least, under every assignment.

    The larger of the mean and of what pigeonholes show. Take the ``k * ranks + m`` largest samples; say ``g`` ranks
    hold more than ``k`` of them each. The others hold ``k`` at most, so these hold ``max(k * g + m, (k + 1) * g)`` or
    more: at least the smallest so many, and, where every rank takes ``per_rank`` samples, the smallest of all to fill
    them up. The busiest has the mean of the ``g`` at least, for the kindest ``g``. With ``k = 0`` and ``m = 1`` it is
    the single largest sample. ``m`` runs over 1, ``ranks``, and where samples fall off most steeply in between.

    Parameters
    ----------
    work : (samples,) array
        Work of each sample.
    ranks : int
        Ranks.
    per_rank : int, optional
        Samples that every rank takes exactly; None: any number.

    Raises
    ------
    InputError
        For work that is negative, not a number or none; for counts that do not fit.
    """
    found = checked_work(work)
    checked_ranks(found.size, ranks, per_rank)
    falling = np.sort(found)[::-1]
    sums = np.concatenate([[0.0], np.cumsum(falling)])
    held = _pigeonholes(falling, sums, ranks, per_rank)
    # sums in another order differ by rounding, which must not lift the bound above the truth
    slack = 4 * np.finfo(float).eps * found.size * sums[-1]
    return float(max(sums[-1] / ranks - slack / ranks, held - slack, falling[0]))


def _pigeonholes(falling: Floats, sums: Floats, ranks: int, per_rank: int | None) -> float:
    samples = falling.size
    most = min(MOST_HOLES, 2_000_000 // ranks + 1)
    k = np.arange(min((samples - 1) // ranks + 1, most))[:, None, None]
    edge = np.append(falling, 0.0)
    places = np.minimum(k[:, :, 0] * ranks + np.arange(1, ranks + 1), samples)
    steepest = 1 + (edge[places - 1] - edge[places]).argmax(axis=1)
    m = np.stack([np.ones_like(steepest), steepest, np.full_like(steepest, ranks)], axis=1)[:, :, None]
    m = np.minimum(m, samples - k * ranks)
    g = np.arange(1, ranks + 1)
    top = k * ranks + m
    large = np.maximum(k * g + m, (k + 1) * g)
    possible = (large <= top) & (large <= (samples if per_rank is None else per_rank * g))
    large = np.minimum(large, top)
    held = sums[top] - sums[top - large]
    if per_rank is not None:
        held = held + sums[-1] - sums[samples - np.clip(per_rank * g - large, 0, samples)]
    return float(np.where(possible, held / g, np.inf).min(axis=2).max())


def as_given(work: ArrayLike, ranks: int) -> Assignment:
    """Cut samples, in the order given, into as equal counts as can be, the first ranks one more.

    Raises
    ------
    InputError
        As :func:`lower_bound`.
    """
    found = checked_work(work)
    checked_ranks(found.size, ranks, None)
    base, more = divmod(found.size, ranks)
    rank = np.repeat(np.arange(ranks), base + (np.arange(ranks) < more))
    return assignment(rank, found, ranks, lower_bound(found, ranks, None if more else base))


def longest_first(
    work: ArrayLike,
    ranks: int,
    per_rank: int | None = None,
    tokens: ArrayLike | None = None,
    cap: float | None = None,
) -> Assignment:
    """Give each sample, the one of most work first, to the rank of least work that has room for it.

    Parameters
    ----------
    work, ranks, per_rank
        As :func:`lower_bound`.
    tokens : (samples,) array, optional
        Tokens of each sample, with ``cap``, the tokens that a rank takes at most.

    Raises
    ------
    InputError
        As :func:`lower_bound`; for a cap that cannot be kept, or that this rule does not manage to keep.
    """
    found = checked_work(work)
    checked_ranks(found.size, ranks, per_rank)
    bound = lower_bound(found, ranks, per_rank)
    if cap is None:
        rank = _greedy(np.argsort(-found, kind="stable"), found, ranks, per_rank)
    else:
        size = checked_tokens(tokens, found.size)
        check_caps(size, ranks, cap)
        rank = capped(found, size, ranks, cap, per_rank)
    return assignment(rank, found, ranks, bound)


def _greedy(order: Ints, work: Floats, ranks: int, per_rank: int | None) -> Ints:
    rank = np.empty(work.size, dtype=np.int64)
    heap = [(0.0, r) for r in range(ranks)]
    left = [per_rank or work.size] * ranks
    for sample, weight in zip(order.tolist(), work[order].tolist(), strict=True):
        load, r = heap[0]
        rank[sample] = r
        left[r] -= 1
        if left[r]:
            heapq.heapreplace(heap, (load + weight, r))
        else:
            heapq.heappop(heap)
    return rank


def karmarkar_karp(work: ArrayLike, ranks: int, per_rank: int | None = None) -> Assignment:
    """Assign by the largest differencing method; with ``per_rank``, by tuples that give every rank equally many.

    Raises
    ------
    InputError
        As :func:`lower_bound`.
    """
    found = checked_work(work)
    checked_ranks(found.size, ranks, per_rank)
    rank = single_tuples(found, ranks) if per_rank is None else even_tuples(found, ranks)
    return assignment(rank, found, ranks, lower_bound(found, ranks, per_rank))


def balanced(
    work: ArrayLike,
    ranks: int,
    per_rank: int | None = None,
    tokens: ArrayLike | None = None,
    cap: float | None = None,
) -> Assignment:
    """Start from a good assignment, then exchange samples between busy and idle ranks; the fast policy.

    Parameters and errors are those of :func:`longest_first`. Starts from :func:`karmarkar_karp` where every rank takes
    equally many samples and there is no cap, else from :func:`longest_first`, and is never worse than its start.
    """
    found = checked_work(work)
    if cap is not None or per_rank is None:
        start = longest_first(found, ranks, per_rank, tokens, cap)
    else:
        start = karmarkar_karp(found, ranks, per_rank)
    size = None if cap is None else checked_tokens(tokens, found.size)
    limit = np.inf if cap is None else float(cap)
    rank = exchanged(start.rank, found, ranks, start.bound, per_rank is not None, size, limit)
    return assignment(rank, found, ranks, start.bound)


def micro_batches(work: ArrayLike, tokens: ArrayLike, count: int | None, cap: float) -> Assignment:
    """Split the samples of one rank into micro-batches that never hold more than ``cap`` tokens.

    Parameters
    ----------
    work, tokens : (samples,) arrays
        Work to level, and tokens, of each sample.
    count : int or None
        Micro-batches; None: the fewest that keep the cap (as many as the tokens fill are often too few).
    cap : float
        Tokens of a micro-batch at most.

    Returns
    -------
    Assignment
        ``rank`` is the micro-batch of each sample.

    Raises
    ------
    InputError
        As :func:`longest_first`; a count that is too small names one that works.
    """
    found = checked_work(work)
    size = checked_tokens(tokens, found.size)
    bins = fewest(size, cap)[0] if count is None else count
    checked_ranks(found.size, bins)
    return balanced(found, bins, None, size, cap)
