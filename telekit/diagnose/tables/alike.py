"""Ranks that take longer than their like, from one number a rank and step: alone, or as a block of neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.outliers import Outlier, persistent
from telekit.diagnose.tables.report import middle
from telekit.diagnose.trace import Floats

LEAST, NOISE = 0.05, 0.01
"""Shares of a step: an excess below the first does not matter (msprof-analyze's documentation looks from 5 % on), and
the second is the least that healthy ranks are taken to differ by (standard deviation)."""
UNEVEN = 0.10
"""Blocks that differ by less than this share of a step are taken for even."""
SMALLEST_BLOCK = 4
FEWEST = 3
"""Ranks from which on one can be told from the others."""


@dataclass(frozen=True)
class Blocks:
    """Equal blocks of consecutive rows, alike inside and unlike each other: pipeline stages, or nodes.

    Parameters
    ----------
    size : int
        Rows of a block.
    level : (blocks,) array
        Median of each.
    """

    size: int
    level: Floats

    @property
    def heaviest(self) -> int:
        """Index of the block with most."""
        return int(self.level.argmax())

    @property
    def excess(self) -> float:
        """Most over median."""
        return float(self.level.max() - np.median(self.level))

    @property
    def alone(self) -> bool:
        """One block in the middle stands out and all others are alike: rather a node than a stage.

        A pipeline's first and last stages have the embedding and the head besides.
        """
        rest = np.delete(self.level, self.heaviest)
        inside = 0 < self.heaviest < len(self.level) - 1
        return inside and float(np.ptp(rest)) < 0.25 * (float(self.level.max()) - float(rest.max()))

    def rows(self, block: int) -> tuple[int, ...]:
        """Rows of a block."""
        return tuple(range(block * self.size, (block + 1) * self.size))


def blocks_of(level: Floats, least: float) -> Blocks | None:
    """Find the largest equal blocks whose medians differ by ``least`` and whose rows do not; None where there are none.

    One slow row moves no median of four and more, and so makes no block.
    """
    count = len(level)
    for size in range(count // 2, SMALLEST_BLOCK - 1, -1):
        if count % size:
            continue
        table = level.reshape(-1, size)
        medians = middle(table)
        spread = float(np.ptp(medians))
        inside = float(middle(np.abs(table - medians[:, None])).max())
        if spread >= least and inside <= 0.2 * spread:
            return Blocks(size, medians)
    return None


def above(values: Floats, step_s: float, blocks: Blocks | None = None) -> list[Outlier]:
    """Rows that lie above the others of their block in most steps, by :data:`LEAST` of a step, most first.

    Parameters
    ----------
    values : (rows, steps) array
        Seconds; NaN where unknown.
    step_s : float
        Length of a step.
    blocks : Blocks, optional
        What differs between these counts for none of their rows.
    """
    if len(values) < FEWEST or step_s <= 0:
        return []
    base = np.zeros(len(values)) if blocks is None else np.repeat(blocks.level, blocks.size)
    found = persistent(values - base[:, None], LEAST * step_s, NOISE * step_s)
    return sorted(found, key=lambda o: -o.excess)


def waits_less(wait: Floats, row: int, excess_s: float) -> bool:
    """Tell whether a row waits less than the others by about its excess, as the one they wait for does.

    Parameters
    ----------
    wait : (rows,) array
        Seconds a step; NaN where unknown.
    """
    others = np.delete(wait, row)
    if not np.isfinite(wait[row]) or not np.isfinite(others).any():
        return False
    return bool(wait[row] <= np.nanmedian(others) - 0.5 * excess_s)


def table_of(
    rank: NDArray[np.int64], step: NDArray[np.int64], value: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Spread values over ranks (rows) and steps (columns); the first of several counts, NaN where there is none."""
    ranks, row = np.unique(rank, return_inverse=True)
    steps, column = np.unique(step, return_inverse=True)
    found = np.full((len(ranks), len(steps)), np.nan)
    found[row[::-1], column[::-1]] = value[::-1]
    return ranks, steps, found


def uneven(rank: NDArray[np.int64], blocks: Blocks, step_s: float, what: str, ranks_per_node: int) -> Finding:
    """Word blocks of ranks that differ: one node or group that is slow, or stages with unequal work."""
    rows = blocks.rows(blocks.heaviest)
    ranks = tuple(int(rank[r]) for r in rows)
    least, most = float(blocks.level.min()), float(blocks.level.max())
    text = (
        f"ranks {ranks[0]} to {ranks[-1]} are alike: {what} {most * 1e3:.2f} ms a step; blocks of {blocks.size} ranks "
        f"go from {least * 1e3:.2f} ms"
    )
    score = (most - least) / step_s / 0.01
    if blocks.alone:
        scope = "node" if blocks.size == ranks_per_node else "group"
        detail = "ranks that stand side by side"
        advice = (
            "a slow node, or a group whose members wait for one of theirs: compare clocks and temperatures"
        )
        return Finding(
            "slow rank", scope, ranks, (), blocks.excess / step_s, score, (Evidence(text),), detail, advice
        )
    advice = "if these are pipeline stages, move layers: `telekit balance` finds the best split"
    return Finding("uneven work", "group", ranks, (), blocks.excess / step_s, score, (Evidence(text),),
                   "blocks of ranks differ", advice)  # fmt: skip
