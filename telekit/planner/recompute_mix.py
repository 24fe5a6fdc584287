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
"""Mixes of a stage's chunks looked at together."""
MOST_POINTS = 512
"""Points kept of a frontier; both ends always are."""


@dataclass(frozen=True)
class Frontier:
    """Mixes of recompute options that no other mix beats in both size and time.

    Sorted from the largest activation (least extra time) to the smallest. Each mix is a mix of one layer less
    (``parent``, its place in that frontier) and an option (``slot``) for a layer of the last kind.
    """

    activation: Floats
    extra: Floats
    parent: Ints
    slot: Ints


class Mixer:
    """Finds and remembers mixes for one problem.

    Layers are counted by *kind*: runs whose layers cost the same share one. ``exact`` turns False when a
    frontier had to be thinned; mixes then still fit, but may recompute a little more than they must.
    """

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        self.exact = True
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
        nothing = Frontier(np.zeros(1), np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.int64))
        self._frontiers: dict[Kinds, Frontier] = {(0,) * len(kinds): nothing}
        self._mixes: dict[tuple[int, bytes], tuple[Floats, Ints] | None] = {}

    def frontier(self, layers: Kinds) -> Frontier:
        """Best mixes of so many layers of each kind."""
        missing = []
        at = layers
        while at not in self._frontiers:
            missing.append(at)
            at = _one_less(at)
        found = self._frontiers[at]
        for at in reversed(missing):
            found = self._frontiers[at] = self._one_more(found, _last_kind(at))
        return found

    def _one_more(self, fewer: Frontier, kind: int) -> Frontier:
        """Every mix with every option for one more layer, less those that another beats or equals."""
        slots = [i for i, (k, _) in enumerate(self.slots) if k == kind]
        options = self.runs[kind].options
        activation = np.add.outer([o.activation_bytes for o in options], fewer.activation).ravel()
        extra = np.add.outer([o.extra_backward_s for o in options], fewer.extra).ravel()
        by_extra = np.lexsort((activation, extra))
        sizes = activation[by_extra]
        keep = np.ones(len(sizes), dtype=bool)
        keep[1:] = sizes[1:] < np.minimum.accumulate(sizes)[:-1]
        best = by_extra[keep]
        if len(best) > MOST_POINTS:
            self.exact = False
            best = best[_thinned(len(best), MOST_POINTS)]
        parent, slot = best % len(fewer.extra), np.array(slots)[best // len(fewer.extra)]
        return Frontier(activation[best], extra[best], parent, slot)

    def _unwound(self, layers: Kinds, index: int) -> Ints:
        """Layers by slot of one mix of a frontier."""
        counts = np.zeros(len(self.slots), np.int64)
        while any(layers):
            found = self._frontiers[layers]
            counts[found.slot[index]] += 1
            layers, index = _one_less(layers), int(found.parent[index])
        return counts

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
        wanted = [tuple(row) for row in layers.tolist()]
        fronts = [self.frontier(row) for row in wanted]
        limit = room + _slack(self.problem, stage)
        fattest, leanest = ([front.activation[end] for front in fronts] for end in (0, -1))
        if (held @ fattest <= limit).all():  # nothing needs to be recomputed, so nothing more is to be found
            whole = [self._unwound(row, 0) for row in wanted]
            return np.array([front.extra[0] for front in fronts]), np.stack(whole)
        if (held @ leanest > limit).any():
            return None
        most = max(2, int(MOST_MIXES ** (1 / len(fronts))))
        picks = [_thinned(len(front.extra), most) for front in fronts]
        grids = np.meshgrid(*picks, indexing="ij")
        index = np.stack([g.ravel() for g in grids])
        activation = np.stack([front.activation[i] for front, i in zip(fronts, index, strict=True)])
        fits = ((held @ activation) <= limit).all(axis=0)
        extra = np.stack([front.extra[i] for front, i in zip(fronts, index, strict=True)])
        total, longest = extra.sum(axis=0), extra.max(axis=0)
        best = np.lexsort((longest, np.where(fits, total, math.inf)))[0]
        chosen = [self._unwound(row, int(i)) for row, i in zip(wanted, index[:, best], strict=True)]
        return extra[:, best], np.stack(chosen)


def _slack(problem: StageProblem, stage: int) -> float:
    cap = float(problem.cap_bytes[stage])
    return CAP_SLACK * cap if math.isfinite(cap) else 0.0


def _thinned(count: int, most: int) -> Ints:
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def _last_kind(layers: Kinds) -> int:
    return max(k for k, n in enumerate(layers) if n)


def _one_less(layers: Kinds) -> Kinds:
    """Without one layer of the last kind: runs come in order, so a shorter stretch of the model is known."""
    kind = _last_kind(layers)
    return (*layers[:kind], layers[kind] - 1, *layers[kind + 1 :])
