"""Least recomputation that makes given layers fit a stage.

Recomputing costs backward time only, and a makespan never falls when a pass takes longer. So once the layers of
a stage are chosen, the mix that adds the least backward time while it fits is best (for one chunk a stage; with
several, the least total over the stage's chunks).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from telekit.planner.stage_problem import CAP_SLACK, Floats, Ints, StageProblem

Kinds = tuple[int, ...]
MOST_MIXES = 20_000


@dataclass(frozen=True)
class Frontier:
    """Mixes of recompute options that no other mix beats in both size and time.

    Sorted from the largest activation (least extra time) to the smallest; ``layers[mix, option slot]`` counts
    layers for every (kind, option).
    """

    activation: Floats
    extra: Floats
    layers: Ints


class Mixer:
    """Finds and remembers mixes for one problem.

    Layers are counted by *kind*: runs whose layers cost the same share one.
    """

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        kinds = list(dict.fromkeys(run.kind for run in problem.layers))
        self.kind_of_run = [kinds.index(run.kind) for run in problem.layers]
        first = [self.kind_of_run.index(k) for k in range(len(kinds))]
        self.runs = [problem.layers[t] for t in first]
        self.slots = [(k, o) for k, run in enumerate(self.runs) for o in range(len(run.options))]
        self.parameter = np.array([run.parameter_bytes for run in self.runs])
        pattern = np.repeat(self.kind_of_run, [run.count for run in problem.layers])
        one_hot = pattern[None, :] == np.arange(len(kinds))[:, None]
        self.prefix = np.concatenate([np.zeros((len(kinds), 1), np.int64), one_hot.cumsum(axis=1)], axis=1)
        """Layers of each kind before each place in the model, shape (kinds, layers + 1)."""
        self._singles: dict[tuple[int, int], Frontier] = {}
        self._frontiers: dict[Kinds, Frontier] = {}
        self._mixes: dict[tuple[int, bytes], tuple[Floats, Ints] | None] = {}

    def frontier(self, layers: Kinds) -> Frontier:
        """Best mixes of so many layers of each kind."""
        found = self._frontiers.get(layers)
        if found is None:
            found = self._single(0, layers[0])
            for kind, count in enumerate(layers[1:], start=1):
                if count:
                    found = _combined(found, self._single(kind, count))
            self._frontiers[layers] = found
        return found

    def _single(self, kind: int, count: int) -> Frontier:
        have = max((n for k, n in self._singles if k == kind and n <= count), default=-1)
        if have < 0:
            nothing = np.zeros(1)
            self._singles[kind, 0] = Frontier(nothing, nothing, np.zeros((1, len(self.slots)), np.int64))
            have = 0
        for n in range(have, count):
            self._singles[kind, n + 1] = _combined(self._singles[kind, n], self._one(kind))
        return self._singles[kind, count]

    def _one(self, kind: int) -> Frontier:
        mine = [i for i, (k, _) in enumerate(self.slots) if k == kind]
        options = self.runs[kind].options
        return _pruned(
            np.array([o.activation_bytes for o in options]),
            np.array([o.extra_backward_s for o in options]),
            np.eye(len(self.slots), dtype=np.int64)[mine],
        )

    def room(self, stage: int, layers: Ints) -> float:
        """Bytes left for activations on a stage that holds layers of shape (chunks, kinds)."""
        parameters = float(layers.sum(axis=0) @ self.parameter)
        return float(self.problem.cap_bytes[stage] - self.problem.fixed_bytes[stage] - parameters)

    def mix(self, stage: int, layers: Ints) -> tuple[Floats, Ints] | None:
        """Extra backward seconds of each chunk and layers by (chunk, slot); None when nothing fits.

        ``layers`` has shape (chunks, kinds).
        """
        key = (stage, layers.tobytes())
        if key not in self._mixes:
            self._mixes[key] = self._find(stage, layers)
        return self._mixes[key]

    def least_extra(self, layers: Ints) -> Floats:
        """Extra backward seconds of a single chunk with these layers (kinds,) on each stage, shape (stages,)."""
        front = self.frontier(tuple(layers.tolist()))
        held = self.problem.profiles[:, 0].max(axis=0)
        rooms = [self.room(s, layers[None]) + _slack(self.problem, s) for s in range(self.problem.stages)]
        fits = front.activation[None, :] * held[:, None] <= np.array(rooms)[:, None]
        return np.where(fits.any(axis=1), front.extra[fits.argmax(axis=1)], np.inf)

    def _find(self, stage: int, layers: Ints) -> tuple[Floats, Ints] | None:
        room = self.room(stage, layers)
        held = np.unique(self.problem.profiles[:, :, stage], axis=0)
        fronts = [self.frontier(tuple(row)) for row in layers.tolist()]
        most = max(2, int(MOST_MIXES ** (1 / len(fronts))))
        picks = [_thinned(len(front.extra), most) for front in fronts]
        grids = np.meshgrid(*picks, indexing="ij")
        index = np.stack([g.ravel() for g in grids])
        activation = np.stack([front.activation[i] for front, i in zip(fronts, index, strict=True)])
        fits = ((held @ activation) <= room + _slack(self.problem, stage)).all(axis=0)
        if not fits.any():
            return None
        extra = np.stack([front.extra[i] for front, i in zip(fronts, index, strict=True)])
        total, longest = extra.sum(axis=0), extra.max(axis=0)
        best = np.lexsort((longest, np.where(fits, total, math.inf)))[0]
        chosen = np.stack([front.layers[i] for front, i in zip(fronts, index[:, best], strict=True)])
        return extra[:, best], chosen


def _slack(problem: StageProblem, stage: int) -> float:
    cap = float(problem.cap_bytes[stage])
    return CAP_SLACK * cap if math.isfinite(cap) else 0.0


def _thinned(count: int, most: int) -> Ints:
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def _combined(first: Frontier, second: Frontier) -> Frontier:
    return _pruned(
        np.add.outer(first.activation, second.activation).ravel(),
        np.add.outer(first.extra, second.extra).ravel(),
        (first.layers[:, None, :] + second.layers[None, :, :]).reshape(-1, first.layers.shape[1]),
    )


def _pruned(activation: Floats, extra: Floats, layers: Ints) -> Frontier:
    """Drop mixes that another one beats or equals in both ways."""
    by_extra = np.lexsort((activation, extra))
    activation, extra, layers = activation[by_extra], extra[by_extra], layers[by_extra]
    smallest = np.minimum.accumulate(activation)
    keep = np.ones(len(activation), dtype=bool)
    keep[1:] = activation[1:] < smallest[:-1]
    return Frontier(activation[keep], extra[keep], layers[keep])
