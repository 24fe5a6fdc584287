"""Megatron-LM's timers: which takes the step, which rank is out of line, and who only waits.

What a timer spans is told by its name (Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py``):
``forward-compute`` holds ``batch-generator``; ``forward-backward`` and ``optimizer`` hold the others. A timer of own
work still holds the collectives of tensor and expert parallelism, whose members wait for each other in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.tables.report import middle
from telekit.diagnose.trace import Floats, Table

ROLES = ("whole", "frame", "data", "work", "mixed", "wait", "aside")
"""What a timer spans: the iteration; other timers; loading of a batch; own work; work with a collective in it; exchange
with other ranks, mostly waiting; what is no part of a step (setup, saving, evaluation)."""
_ROLES = (
    ("whole", re.compile(r"^(?:iteration-time|interval-time|train-step|e2e-iteration)$")),
    ("frame", re.compile(r"^(?:forward-backward|optimizer)$")),
    ("aside", re.compile(r"setup|checkpoint|evaluat|^eval|iterators|startup|initiali[sz]")),
    ("data", re.compile(r"batch-generator|data-?loader|get-batch")),
    ("mixed", re.compile(r"^optimizer-(?:unscale|clip|count)")),
    (
        "wait",
        re.compile(r"recv|send|all-?reduce|all-?gather|reduce-?scatter|grads-sync|all-?to-?all|barrier"),
    ),
)
SAVE = re.compile(r"save-checkpoint")


def role_of(timer: str) -> str:
    """Tell one of :data:`ROLES` from a timer's name; what is unknown is own work."""
    return next((role for role, pattern in _ROLES if pattern.search(timer.lower())), "work")


@dataclass(frozen=True, eq=False)
class Timer:
    """One timer over a log.

    Parameters
    ----------
    name, role : str
        As the log names it; one of :data:`ROLES`.
    iteration : (iterations,) array
        Numbers of the iterations that report it.
    least_s, most_s : (iterations,) arrays
        Over ranks; the least is NaN where the log has only the largest.
    rank : (ranks,) array
        Ranks told apart; none where the log has extremes only.
    by_rank_s : (ranks, iterations) array
        Each rank's; NaN where unknown.
    """

    name: str
    role: str
    iteration: NDArray[np.int64]
    least_s: Floats
    most_s: Floats
    rank: NDArray[np.int64]
    by_rank_s: Floats

    @property
    def usual_s(self) -> tuple[float, float]:
        """Medians of least and most over iterations."""
        least, most = middle(np.array([self.least_s, self.most_s]))
        return float(least), float(most)


def timers_of(tables: Sequence[Table], problems: ProblemCounter) -> dict[str, Timer]:
    """Put the reports of logs together, by timer; the first iteration is left out where there are three and more.

    Several files of different ranks that report no extremes are each rank's own.
    """
    names = np.array([n for t in tables for n in t.labels["timer"]], dtype=object)
    cells = np.concatenate([_cells(t, _own(tables)) for t in tables], axis=1)
    roles = {name: role_of(name) for name in set(names.tolist())}
    steps = np.unique(cells[0][np.isfinite(cells[0])])
    before = ~np.isfinite(cells[0]) & np.array([roles[n] != "aside" for n in names], bool)
    if before.any() and len(steps):
        problems.add("a timer before the first iteration that the log names", count=int(before.sum()))
    keep = np.isfinite(cells[0]) if len(steps) else np.ones(len(names), bool)
    keep |= np.array([roles[n] == "aside" for n in names], bool)
    if len(steps) >= 3:  # the first one compiles, allocates and connects
        keep &= ~(cells[0] == steps[0]) | np.array([roles[n] == "aside" for n in names], bool)
    return {
        name: _timer(name, role, cells[:, keep & (names == name)])
        for name, role in roles.items()
        if (keep & (names == name)).any()
    }


def _own(tables: Sequence[Table]) -> bool:
    """Tell whether each file has one rank's own times."""
    ranks = {t.rank for t in tables}
    return len(tables) > 1 and len(ranks) == len(tables) and None not in ranks


def _cells(table: Table, own: bool) -> Floats:
    """Return iteration, rank, least and most of each row."""
    column = table.columns
    rank, least, most = column["rank"], column["min_s"], column["max_s"]
    alone = ~np.isfinite(rank) & (~np.isfinite(least) | (least >= 0.999 * most))
    if own and table.rank is not None:
        rank = np.where(alone, table.rank, rank)
    return np.array([column["iteration"], rank, least, most])


def _timer(name: str, role: str, cells: Floats) -> Timer:
    """Extremes and ranks of one timer, of several reports in one iteration the last."""
    iteration = np.where(np.isfinite(cells[0]), cells[0], -1).astype(np.int64)
    steps, column = np.unique(iteration, return_inverse=True)
    alone = np.isfinite(cells[1])
    ranks = np.unique(cells[1][alone]).astype(np.int64)
    by_rank = np.full((len(ranks), len(steps)), np.nan)
    by_rank[np.searchsorted(ranks, cells[1][alone]), column[alone]] = cells[3][alone]
    least, most = np.full(len(steps), np.nan), np.full(len(steps), np.nan)
    least[column[~alone]], most[column[~alone]] = cells[2][~alone], cells[3][~alone]
    if len(ranks):
        few = by_rank if len(ranks) > 1 else np.full_like(by_rank, np.nan)
        known = np.isfinite(few).any(axis=0)
        least[known], most[known] = np.nanmin(few[:, known], axis=0), np.nanmax(few[:, known], axis=0)
        most = np.where(np.isfinite(most), most, by_rank[0])
    return Timer(name, role, steps, least, most, ranks, by_rank)


def iteration_s(timers: dict[str, Timer]) -> float:
    """Median time of an iteration: as the log prints it, else what its outermost timers add up to."""
    whole = [t.usual_s[1] for t in timers.values() if t.role == "whole"]
    if whole:
        return max(whole)
    frames = [t.usual_s[1] for t in timers.values() if t.role == "frame"]
    parts = frames or [t.usual_s[1] for t in timers.values() if t.role != "aside"]
    return float(np.nansum(parts)) if parts else np.nan
