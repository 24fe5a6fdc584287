"""Exchanges of samples between ranks: from an assignment to one that no single exchange betters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.packing.inputs import Floats, Ints

CLOSE = 5e-4
"""Above the bound, relative, where exchanging stops: a step is not measured more exactly."""
TURNS = 2
"""Turns of the pairing before the busiest rank looks at all others."""
MOST_SWEEPS = 30
"""Sweeps after which it is good enough: each takes 40 microseconds for 512 samples on 64 ranks."""
_WIDEST = 4_000_000
"""Pairs of samples that one sweep compares at most."""


@dataclass
class Slots:
    """Ranks as rows of slots, each with a sample or empty (index -1, no work, no tokens)."""

    index: Ints
    work: Floats
    tokens: Floats | None
    loads: Floats
    held: Floats | None
    cap: float

    @classmethod
    def of(cls, rank: Ints, work: Floats, ranks: int, even: bool, tokens: Floats | None, cap: float) -> Slots:
        """Slots of an assignment; one empty slot a rank lets samples move alone where counts are free."""
        counts = np.bincount(rank, minlength=ranks)
        order = np.argsort(rank, kind="stable")
        width = int(counts.max()) + (not even)
        index = np.full((ranks, width), -1)
        index[np.arange(width) < counts[:, None]] = order
        padded = np.append(work, 0.0)
        sizes = None if tokens is None else np.append(tokens, 0.0)[index]
        held = None if sizes is None else sizes.sum(axis=1)
        return cls(index, padded[index], sizes, padded[index].sum(axis=1), held, cap)

    def swap(self, a: Ints, i: Ints, b: Ints, j: Ints) -> None:
        """Exchange slots ``i`` of rows ``a`` with slots ``j`` of rows ``b``; no row twice."""
        width = self.work.shape[1]
        one, other = a * width + i, b * width + j  # one index is quicker than two
        for table, sums in ((self.index, None), (self.work, self.loads), (self.tokens, self.held)):
            if table is not None:
                flat = table.reshape(-1)
                mine, theirs = flat[one], flat[other]
                flat[one], flat[other] = theirs, mine
                if sums is not None:
                    sums[a] += theirs - mine
                    sums[b] -= theirs - mine

    def fits(self, a: Ints, b: Ints) -> NDArray[np.bool_]:
        """Which exchanges keep both rows within the cap, shape (rows, slots of a, slots of b)."""
        assert self.tokens is not None
        assert self.held is not None
        grown = self.tokens[b][:, None, :] - self.tokens[a][:, :, None]
        held_a, held_b = self.held[a][:, None, None], self.held[b][:, None, None]
        return np.asarray((held_a + grown <= self.cap) & (held_b - grown <= self.cap))


def exchanged(
    rank: Ints,
    work: Floats,
    ranks: int,
    bound: float,
    even: bool,
    tokens: Floats | None = None,
    cap: float = np.inf,
) -> Ints:
    """Exchange samples, one for one, until the busiest rank is close to ``bound`` or no exchange helps it.

    Each sweep pairs the busiest rank with the idlest, the second with the second, and so on, and in every pair makes
    the exchange that levels it best. Where the busiest gains nothing so, the idler half turns by one; after some turns
    the busiest looks at the samples of all ranks, and where those do not help either, it is over.

    Parameters
    ----------
    rank : (samples,) int array
        Where to start.
    work, tokens : (samples,) arrays
        Work to level; tokens to keep within ``cap``, if any.
    even : bool
        Keep every rank's count of samples; else a sample may also move alone.
    """
    if ranks < 2:
        return rank
    rows = Slots.of(rank, work, ranks, even, tokens, cap)
    goal = bound * (1 + CLOSE)
    turn = 0
    for _ in range(MOST_SWEEPS):
        if rows.loads.max() <= goal:
            break
        if not _level_pairs(rows, turn):
            turn += 1
            if turn % TURNS == 0 and not _relieve(rows):
                break
    found = np.empty_like(rank)
    there = rows.index >= 0
    found[rows.index[there]] = np.nonzero(there)[0]
    return found


def _level_pairs(rows: Slots, turn: int) -> bool:
    """Exchange in all pairs at once; whether the busiest rank got rid of work."""
    ranks, width = rows.work.shape
    order = rows.loads.argsort()
    pairs = min(ranks // 2, max(_WIDEST // width**2, 1))
    at = np.arange(pairs)
    low, high = order[(at - turn) % pairs], order[ranks - 1 - at]
    lead = rows.loads[high] - rows.loads[low]
    above = rows.work[high] - (lead / 2)[:, None]  # so that what is sought is the least difference
    off = above[:, :, None] - rows.work[low][:, None, :]
    np.abs(off, out=off)
    if rows.tokens is not None:
        off[~rows.fits(high, low)] = np.inf
    best = off.reshape(pairs, -1).argmin(axis=1)
    i, j = best // width, best % width
    gain = rows.work[high, i] - rows.work[low, j]
    good = (gain > 1e-9 * lead) & (gain < lead * (1 - 1e-9)) & np.isfinite(off[at, i, j])
    if not good.any():
        return False
    rows.swap(high[good], i[good], low[good], j[good])
    return bool(good[0])


def _relieve(rows: Slots) -> bool:
    """Make the exchange with any rank that relieves the busiest most; whether there is one."""
    width = rows.work.shape[1]
    busiest = int(rows.loads.argmax())
    top = rows.loads[busiest]
    others = np.flatnonzero(np.arange(rows.loads.size) != busiest)[: max(_WIDEST // width**2, 1)]
    mine = np.full(others.size, busiest)
    moved = rows.work[busiest][None, :, None] - rows.work[others][:, None, :]
    after = np.maximum(top - moved, rows.loads[others][:, None, None] + moved)
    if rows.tokens is not None:
        after[~rows.fits(mine, others)] = np.inf
    best = int(after.argmin())
    at, i, j = np.unravel_index(best, after.shape)
    if not after[at, i, j] < top * (1 - 1e-9):
        return False
    one = np.array([busiest]), np.array([i]), np.array([others[at]]), np.array([j])
    rows.swap(*one)
    return True
