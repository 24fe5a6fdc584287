"""The integer program of balancing: which rank takes which sample, the busiest as idle as can be.

One variable, 0 or 1, for each sample and rank, and one for the busiest rank's work. Ranks are alike, so sample ``i``
in falling order of work may only go to the first ``i + 1`` of them. HiGHS solves it, through ``scipy.optimize.milp``,
inside the process; its presolve, which has been seen to loop for ever, is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.packing.inputs import Floats, Ints

MOST_CELLS = 40_000
"""Samples times ranks that the program is built for; past that HiGHS does not get through its first relaxation soon."""
_OPTIMAL, _LIMIT, _INFEASIBLE = 0, 1, 2


@dataclass(frozen=True)
class Program:
    """Work and tokens of samples, ranks, samples a rank or None, tokens a rank at most, and bounds that are known.

    ``least`` and ``most`` bound the busiest rank's work; ``most`` may leave nothing.
    """

    work: Floats
    ranks: int
    per_rank: int | None = None
    tokens: Floats | None = None
    cap: float = math.inf
    least: float = 0.0
    most: float = math.inf


@dataclass(frozen=True)
class Answer:
    """Ranks or None, what was shown of the busiest rank's work, and whether there is proved to be no assignment."""

    rank: Ints | None
    bound: float
    infeasible: bool


def solve(problem: Program, time_limit_s: float) -> Answer:
    """Solve a program of at most :data:`MOST_CELLS` samples times ranks within a time limit."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    samples, ranks = problem.work.size, problem.ranks
    unit = problem.work.max() or 1.0
    order = np.argsort(-problem.work, kind="stable")
    cell = np.arange(samples * ranks).reshape(samples, ranks)
    rows, columns, values, least, most = _rows(problem, order, cell, unit)
    matrix = coo_array((values, (rows, columns)), shape=(len(least), samples * ranks + 1)).tocsr()
    lower, upper = np.zeros(samples * ranks + 1), np.ones(samples * ranks + 1)
    upper[:-1] = np.tril(np.ones((samples, ranks))).ravel()
    upper[-1] = min(problem.most, problem.work.sum()) / unit
    lower[-1] = min(problem.least / unit, upper[-1])
    answer = milp(
        np.arange(samples * ranks + 1) == samples * ranks,
        integrality=np.arange(samples * ranks + 1) < samples * ranks,
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(matrix, least, most),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0, "presolve": False},
    )
    dual = answer.mip_dual_bound
    bound = max(problem.least, dual * unit if dual is not None and math.isfinite(dual) else 0.0)
    if answer.x is None:
        return Answer(None, bound, answer.status == _INFEASIBLE)
    rank = np.empty(samples, dtype=np.int64)
    rank[order] = answer.x[:-1].reshape(samples, ranks).argmax(axis=1)
    return Answer(rank, bound, False)


def _rows(problem: Program, order: Ints, cell: Ints, unit: float) -> tuple[Any, ...]:
    """Coordinates of all rows with their bounds: one rank a sample; work, samples and tokens of each rank."""
    samples, ranks = cell.shape
    parts: list[tuple[Any, Any, Any]] = []
    least: list[float] = []
    most: list[float] = []

    def add(group: Any, weights: Any, low: float, high: float) -> None:
        first = len(least)
        count = int(group.max()) + 1
        parts.append((group + first, cell.ravel(), weights))
        least.extend([low] * count)
        most.extend([high] * count)

    by_sample, by_rank = np.repeat(np.arange(samples), ranks), np.tile(np.arange(ranks), samples)
    add(by_sample, np.ones(cell.size), 1.0, 1.0)
    first = len(least)
    add(by_rank, np.repeat(problem.work[order] / unit, ranks), -np.inf, 0.0)
    parts.append((first + np.arange(ranks), np.full(ranks, cell.size), -np.ones(ranks)))
    if problem.per_rank is not None:
        add(by_rank, np.ones(cell.size), problem.per_rank, problem.per_rank)
    if problem.tokens is not None and math.isfinite(problem.cap):
        add(by_rank, np.repeat(problem.tokens[order] / problem.cap, ranks), -np.inf, 1.0)
    rows, columns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    return rows, columns, values, np.array(least), np.array(most)
