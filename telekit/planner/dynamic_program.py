"""Exact least bottleneck for one chunk a stage, by dynamic programming: the oracle of the integer program.

Stages take consecutive layers, so the state is (stage, layers placed so far): ``best[s][j]`` is the least
longest stage when stages 0..s hold the first j layers, and ``best[s][j] = min over n of
max(best[s - 1][j - n], time(s, j - n, n))``. A stage's time is that of its least recompute mix that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from telekit.planner.recompute_mix import Mixer
from telekit.planner.stage_problem import Floats, Ints, StageProblem

MOST_MIXED_LAYERS = 256
"""Most layers of more than one kind: every stretch of them has a mix of its own to find."""


@dataclass(frozen=True)
class Split:
    """Layers of each stage, and the longest stage's forward and backward seconds (proved least)."""

    sizes: Ints
    bottleneck_s: float


def covers(problem: StageProblem) -> bool:
    """Whether :func:`least_bottleneck` answers this problem.

    Chunks of one stage share its memory, so that cuts are not independent: one chunk a stage only.
    """
    kinds = len({run.kind for run in problem.layers})
    return problem.chunks == 1 and (kinds == 1 or problem.total_layers <= MOST_MIXED_LAYERS)


def least_bottleneck(problem: StageProblem, mixer: Mixer) -> Split | None:
    """Split with the shortest longest stage; None when no split fits the memory.

    The bottleneck is proved least while ``mixer.exact``; that nothing fits is certain in any case.

    Raises
    ------
    ValueError
        For a problem it does not cover.
    """
    if not covers(problem):
        raise ValueError("the dynamic program does not cover this problem")
    total = problem.total_layers
    longest = min(total, 2 * -(-total // problem.stages))
    while True:
        # Longer stages than these cannot be part of a better split once the answer is below their own time.
        found = _solve(problem, mixer, longest)
        if longest == total or (
            found is not None and found.bottleneck_s <= _least_time(problem, longest + 1)
        ):
            return found
        longest = min(total, 2 * longest)


def _least_time(problem: StageProblem, layers: int) -> float:
    """No stage with so many layers takes less: forward and backward of the cheapest ones."""
    each = np.repeat(
        [run.forward_s + run.backward_s for run in problem.layers], [run.count for run in problem.layers]
    )
    return float(np.sort(each)[:layers].sum())


def _solve(problem: StageProblem, mixer: Mixer, longest: int) -> Split | None:
    total, stages, least = problem.total_layers, problem.stages, problem.min_layers
    time = _stage_times(problem, mixer, longest)
    best = np.full(total + 1, np.inf)
    best[0] = 0.0
    taken = np.zeros((stages, total + 1), dtype=np.int64)
    for s in range(stages):
        reach = np.full((longest + 1, total + 1), np.inf)
        for n in range(least, longest + 1):
            reach[n, n:] = np.maximum(best[: total + 1 - n], time[s, n, : total + 1 - n])
        taken[s] = reach.argmin(axis=0)
        best = reach.min(axis=0)
    if not np.isfinite(best[total]):
        return None
    sizes, left = np.zeros(stages, dtype=np.int64), total
    for s in reversed(range(stages)):
        sizes[s] = taken[s, left]
        left -= sizes[s]
    return Split(sizes, float(best[total]))


def _stage_times(problem: StageProblem, mixer: Mixer, longest: int) -> Floats:
    """Seconds of a stage with n layers from place i on, shape (stages, n, i); infinite where it cannot fit."""
    total, stages = problem.total_layers, problem.stages
    work = np.array([run.forward_s + run.backward_s for run in mixer.runs])
    ends = (problem.end_times[0] + problem.end_times[1])[0]
    time = np.full((stages, longest + 1, total + 1), np.inf)
    for n in range(longest + 1):
        start = np.arange(total + 1 - n)
        # The first stage starts the model and the last ends it: with two stages most stretches are neither's.
        start = start[(start == 0) | (start + n == total) | (stages > 2)]
        rows, which = np.unique(
            (mixer.prefix[:, start + n] - mixer.prefix[:, start]).T, axis=0, return_inverse=True
        )
        extra = np.array([mixer.least_extra(row) for row in rows])
        time[:, n, start] = ((rows @ work)[:, None] + extra + ends)[which.ravel()].T
    return time
