"""Critical paths of simulated placements, as rows of an integer program.

A schedule fixes the order of all passes, so its makespan is the longest of many sums of pass times: one sum for
each path through the order. Which path is longest depends on the placement, but each path's length bounds the
makespan of *every* placement from below, and it is linear in the layer counts. A path that was longest for one
placement is therefore a valid row ``T >= path`` for all, and some dozens of them describe the makespan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from telekit.pipeline.order import dependencies
from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import simulate
from telekit.planner.stage_problem import Floats, StageProblem

Ints = NDArray[np.int64]
_NOTHING = -1


@dataclass(frozen=True)
class Path:
    """How often a path runs each chunk's forward and backward, and how often it crosses between parts.

    ``passes`` has one entry for each (kind, chunk, stage), flat, forwards first.
    """

    passes: tuple[int, ...]
    crossings: int

    def length_s(self, forward_s: Floats, backward_s: Floats, comm_s: float) -> float:
        """Seconds along the path under any times, each of shape (chunks, stages)."""
        times = np.concatenate([forward_s.ravel(), backward_s.ravel()])
        return float(times @ np.array(self.passes)) + self.crossings * comm_s


def critical_paths(problem: StageProblem, forward_s: Floats, backward_s: Floats) -> tuple[Path, ...]:
    """Longest paths under the given times, one or two: where two ways are equally long, each side once."""
    found = simulate(problem.schedule, forward_s, backward_s, problem.micro_batches, problem.comm_s)
    end = [*found.end_s.tolist(), float("-inf")]  # the last stands for "nothing", which is number -1
    links = _links(problem.schedule, problem.stages, problem.micro_batches, problem.chunks)
    last = int(np.argmax(found.end_s))
    paths = [_trace(problem, links, end, last, stay=stay) for stay in (True, False)]
    return tuple(dict.fromkeys(paths))


def one_slow_part(problem: StageProblem) -> tuple[Path, ...]:
    """Paths that become critical when one chunk, or a whole stage, dwarfs all others: first rows of a program."""
    shape = (problem.chunks, problem.stages)
    tilt = np.linspace(1.0, 1.1, problem.chunks * problem.stages).reshape(shape)
    paths: dict[Path, None] = {}
    for stage in range(problem.stages):
        slow = tilt.copy()
        slow[:, stage] *= 50.0
        paths.update(dict.fromkeys(critical_paths(problem, slow, 2.0 * slow)))
    return tuple(paths)


@dataclass(frozen=True)
class _Links:
    """For each pass: the one before it on its stage, the one it waits for, and its place in a path."""

    before: list[int]
    waits_for: list[int]
    crosses: list[bool]
    slot: list[int]


@lru_cache(maxsize=16)
def _links(schedule: str, stages: int, micro_batches: int, chunks: int) -> _Links:
    found = order(schedule, stages, micro_batches, chunks)
    waits_for = np.full(found.device.size, _NOTHING)
    first, second = dependencies(found)
    waits_for[second] = first
    before = np.arange(found.device.size) - 1
    before[1:][found.device[1:] != found.device[:-1]] = _NOTHING
    crosses = (waits_for != _NOTHING) & (found.device[waits_for] != found.device)
    slot = (found.kind * chunks + found.chunk) * stages + found.device
    return _Links(before.tolist(), waits_for.tolist(), crosses.tolist(), slot.tolist())


def _trace(problem: StageProblem, links: _Links, end: list[float], at: int, stay: bool) -> Path:
    """Walk back from the last pass to whatever it really waited for; ``stay`` prefers its own stage in a tie."""
    passes = [0] * (2 * problem.chunks * problem.stages)
    crossings = 0
    while at != _NOTHING:
        passes[links.slot[at]] += 1
        before, other = links.before[at], links.waits_for[at]
        own = end[before]
        foreign = end[other] + (problem.comm_s if links.crosses[at] else 0.0)
        if foreign > own or (foreign == own and not stay):
            crossings += links.crosses[at]
            at = other
        else:
            at = before
    return Path(tuple(passes), crossings)
