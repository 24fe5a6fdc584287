"""Search for a short makespan: layers moved between model parts, each placement simulated exactly.

A placement is the number of layers of each part, in model order; how much is recomputed follows
(:mod:`telekit.planner.recompute_mix`). All moves of one layer are simulated in one batch. The search is
deterministic for a seed and ends by rounds, or by time when that comes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from itertools import combinations, islice

import numpy as np

from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import makespan
from telekit.planner.recompute_mix import Mixer
from telekit.planner.stage_problem import Floats, Ints, Placement, StageProblem, bottleneck

MOST_UNIFORM = 50
BATCH_VALUES = 4_000_000
"""Pass times simulated at once: operations times placements."""


class Evaluator:
    """Times, makespans and placements for batches of part sizes, each of shape (batch, parts).

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    mixer : Mixer, optional
        Shared, so that mixes are found once.
    most_bottleneck : float
        Placements with a longer bottleneck count as not fitting.
    """

    def __init__(
        self, problem: StageProblem, mixer: Mixer | None = None, most_bottleneck: float = math.inf
    ) -> None:
        self.problem = problem
        self.mixer = mixer or Mixer(problem)
        self.most_bottleneck = most_bottleneck
        self.chunk, self.stage = np.array(problem.positions).T
        run_rates = np.array([(run.forward_s, run.backward_s) for run in self.mixer.runs])
        self._forward, self._backward = run_rates.T
        passes = order(problem.schedule, problem.stages, problem.micro_batches, problem.chunks).device.size
        self.batch = max(1, BATCH_VALUES // passes)

    def kinds(self, sizes: Ints) -> Ints:
        """Layers by kind on each chunk and stage, shape (batch, chunks, stages, kinds)."""
        ends = np.concatenate([np.zeros((len(sizes), 1), np.int64), sizes.cumsum(axis=1)], axis=1)
        spread = np.diff(self.mixer.prefix[:, ends], axis=2)
        placed = np.zeros((len(sizes), self.problem.chunks, self.problem.stages, len(spread)), np.int64)
        placed[:, self.chunk, self.stage] = np.moveaxis(spread, 0, -1)
        return placed

    def times(self, sizes: Ints) -> tuple[Floats, Floats]:
        """Forward and backward seconds, shape (batch, chunks, stages); infinite where a stage cannot fit."""
        placed = self.kinds(sizes)
        end_forward, end_backward = self.problem.end_times
        forward = placed @ self._forward + end_forward
        backward = placed @ self._backward + end_backward
        for s in range(self.problem.stages):
            mine = placed[:, :, s].reshape(len(sizes), -1)
            # In a neighbourhood most rows leave a stage as it is: only the others are looked at.
            other = (mine != mine[0]).any(axis=1)
            backward[~other, :, s] += self._extra(s, mine[0])
            rows, which = np.unique(mine[other], axis=0, return_inverse=True)
            extra = np.array([self._extra(s, row) for row in rows]).reshape(-1, self.problem.chunks)
            backward[other, :, s] += extra[which.ravel()]
        return forward, backward

    def _extra(self, stage: int, layers: Ints) -> Floats:
        found = self.mixer.mix(stage, layers.reshape(self.problem.chunks, -1))
        return np.full(self.problem.chunks, np.inf) if found is None else found[0]

    def makespans(self, sizes: Ints) -> Floats:
        """Simulate each row; infinite for those that do not fit."""
        result = np.full(len(sizes), np.inf)
        for at in range(0, len(sizes), self.batch):
            forward, backward = self.times(sizes[at : at + self.batch])
            fits = np.isfinite(backward).all(axis=(1, 2))
            if math.isfinite(self.most_bottleneck):
                fits &= bottleneck(self.problem, forward, backward) <= self.most_bottleneck
            if fits.any():
                problem = self.problem
                found = makespan(
                    problem.schedule, forward[fits], backward[fits], problem.micro_batches, problem.comm_s
                )
                result[at : at + self.batch][fits] = found
        return result

    def placement(self, sizes: Ints) -> Placement:
        """Placement of one row of sizes, recompute chosen."""
        placed = self.kinds(sizes[None])[0]
        problem, slots = self.problem, self.mixer.slots
        counts = np.zeros((len(problem.columns), problem.chunks, problem.stages), np.int64)
        by_slot = np.zeros((len(slots), problem.chunks, problem.stages), np.int64)
        for s in range(problem.stages):
            found = self.mixer.mix(s, placed[:, s])
            if found is None:
                raise ValueError("these sizes do not fit")
            by_slot[:, :, s] = found[1].T
        ends = np.concatenate([[0], sizes.cumsum()])
        edges = np.concatenate([[0], np.cumsum([run.count for run in problem.layers])])
        for part, (v, s) in enumerate(problem.positions):
            for t in range(len(problem.layers)):
                left = min(ends[part + 1], edges[t + 1]) - max(ends[part], edges[t])
                for o in reversed(range(len(problem.layers[t].options))):
                    slot = slots.index((self.mixer.kind_of_run[t], o))
                    take = min(max(int(left), 0), int(by_slot[slot, v, s]))
                    counts[problem.columns.index((t, o)), v, s] = take
                    by_slot[slot, v, s] -= take
                    left -= take
        return Placement.from_array(problem, counts)


def part_sizes(problem: StageProblem, placement: Placement) -> Ints:
    """Layers of each model part, in model order."""
    layers = placement.layers
    return np.array([layers[v, s] for v, s in problem.positions])


def even_sizes(problem: StageProblem) -> Ints:
    """Layers spread evenly, the surplus in the middle of the model."""
    parts = len(problem.positions)
    sizes = np.full(parts, problem.total_layers // parts)
    surplus = problem.total_layers - int(sizes.sum())
    start = (parts - surplus) // 2
    sizes[start : start + surplus] += 1
    return sizes


def uniform_sizes(problem: StageProblem) -> list[Ints]:
    """Sizes in which every chunk has the same layers on each stage, but for one that takes the rest.

    Interleaved pipelines like them: stages then wait for each other least.
    """
    base, surplus = divmod(problem.total_layers, len(problem.positions))
    whole, rest = divmod(surplus, problem.stages)
    chunk_of = np.array([chunk for chunk, _ in problem.positions])
    stage_of = np.array([stage for _, stage in problem.positions])
    found = []
    for larger in islice(combinations(range(problem.chunks), whole), MOST_UNIFORM):
        for other in set(range(problem.chunks)) - set(larger):
            for first in {0, (problem.stages - rest) // 2, problem.stages - rest}:
                extra = (chunk_of == other) & (stage_of >= first) & (stage_of < first + rest)
                found.append(base + np.isin(chunk_of, larger).astype(int) + extra)
    return found


def search(
    evaluator: Evaluator,
    seeds: Iterable[Ints],
    kicks: int,
    deadline: float,
    seed: int = 0,
) -> tuple[Ints, float] | None:
    """Descend from every seed by single moves until none helps, then from the best one kicked at random.

    Parameters
    ----------
    evaluator : Evaluator
        Of the problem.
    seeds : iterable of array (parts,)
        Where to start; from one that does not fit, the search goes on if a neighbour fits.
    kicks : int
        Kicks without improvement after which the search ends.
    deadline : float
        ``time.monotonic()`` at which it ends in any case.
    seed : int
        Of the random kicks.

    Returns
    -------
    (array (parts,), float) or None
        Best sizes and their makespan; None when nothing fits.
    """
    random = np.random.default_rng(seed)
    best: tuple[Ints, float] | None = None
    for start in seeds:
        at = _descend(evaluator, np.asarray(start), random, deadline)
        if np.isfinite(at[1]) and (best is None or at[1] < best[1]):
            best = at
    failed = 0
    while best is not None and failed < kicks and time.monotonic() < deadline:
        at = _descend(evaluator, _kicked(evaluator, best[0], random), random, deadline)
        failed = 0 if at[1] < best[1] * (1 - 1e-12) else failed + 1
        if at[1] <= best[1]:
            best = at
    return best


def _descend(
    evaluator: Evaluator, sizes: Ints, random: np.random.Generator, deadline: float
) -> tuple[Ints, float]:
    value = float(evaluator.makespans(sizes[None])[0])
    while time.monotonic() < deadline:
        near = _moves(sizes, evaluator.problem.min_layers)
        if len(near) == 0:
            break
        if len(near) > evaluator.batch:
            near = near[random.permutation(len(near))[: max(evaluator.batch, 64)]]
        values = evaluator.makespans(near)
        best = int(np.argmin(values))
        if not values[best] < value:
            break
        sizes, value = near[best], float(values[best])
    return sizes, value


def _moves(sizes: Ints, least: int) -> Ints:
    """Every way to take one layer from a part and give it to another."""
    parts = len(sizes)
    giver, taker = np.nonzero(~np.eye(parts, dtype=bool))
    can = sizes[giver] > least
    giver, taker = giver[can], taker[can]
    near = np.repeat(sizes[None], len(giver), axis=0)
    rows = np.arange(len(giver))
    near[rows, giver] -= 1
    near[rows, taker] += 1
    return near


def _kicked(evaluator: Evaluator, sizes: Ints, random: np.random.Generator) -> Ints:
    kicked = sizes.copy()
    for _ in range(int(random.integers(2, 5))):
        near = _moves(kicked, evaluator.problem.min_layers)
        if len(near):
            kicked = near[int(random.integers(len(near)))]
    return kicked
