"""What is placed and where: layers of a few types, stages and chunks, a memory cap; and a placement of them.

Nothing here knows models or clusters. Times are in seconds and sizes in bytes, but any consistent units work
(SAPP's files have their own). Stages are the last axis of every array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError
from telekit.pipeline.order import BACKWARD, FORWARD
from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import makespan
from telekit.planner.stage_checks import broken_numbers, broken_shapes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_RUNS = 40
"""Runs that an integer program keeps in order."""
CAP_SLACK = 1e-9
"""Rounding that a full stage may have, as a part of the cap."""

Counts = tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]


@dataclass(frozen=True)
class RecomputeOption:
    """One way to keep activations: what it stores a micro-batch, and what it adds to the backward pass."""

    name: str
    extra_backward_s: float
    activation_bytes: float


@dataclass(frozen=True)
class LayerType:
    """A run of ``count`` equal layers.

    ``backward_s`` is without recomputation; ``options`` start with the one that recomputes nothing.
    """

    name: str
    count: int
    forward_s: float
    backward_s: float
    parameter_bytes: float
    options: tuple[RecomputeOption, ...]

    @property
    def kind(self) -> tuple[float, float, float, tuple[tuple[float, float], ...]]:
        """What makes two layers equal to a planner: everything but name and count."""
        mixes = tuple((o.extra_backward_s, o.activation_bytes) for o in self.options)
        return (self.forward_s, self.backward_s, self.parameter_bytes, mixes)


@dataclass(frozen=True)
class EndLoad:
    """What stands before the first layer or after the last one: embedding; head and loss."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class StageProblem:
    """Layers to be put onto the chunks of pipeline stages.

    Parameters
    ----------
    layers : tuple of LayerType
        Runs of equal layers, in model order. A chunk takes consecutive layers and may straddle runs.
    stages, chunks, micro_batches : int
        Pipeline stages, model parts a stage holds, micro-batches of a step.
    schedule : str
        A schedule of :mod:`telekit.pipeline.schedules`; it also says where each chunk lies in the model.
    head, tail : EndLoad
        On the first and on the last model part.
    in_flight : array (chunks, stages) or (profiles, chunks, stages), optional
        Micro-batches whose activations are held at once. Several profiles are several moments, each of which
        must fit. None: the exact moments of the schedule (:func:`in_flight_profiles`).
    memory_cap_bytes : float or array (stages,), optional
        None: no cap.
    constant_bytes : float or array (stages,)
        Held on each stage whatever is placed there.
    comm_s : float
        Between neighbouring model parts; it does not occupy a stage.
    min_layers : int
        Least layers of a chunk.
    ordered : bool
        False: the order of runs does not matter (:func:`by_kind`).

    Raises
    ------
    InputError
        Every broken rule at once.
    """

    layers: tuple[LayerType, ...]
    stages: int
    chunks: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    head: EndLoad = EndLoad()
    tail: EndLoad = EndLoad()
    in_flight: ArrayLike | None = None
    memory_cap_bytes: ArrayLike | None = None
    constant_bytes: ArrayLike = 0.0
    comm_s: float = 0.0
    min_layers: int = 1
    ordered: bool = True

    def __post_init__(self) -> None:
        problems = list(broken_numbers(self)) or list(broken_shapes(self))
        if problems:
            raise InputError(problems)
        order(self.schedule, self.stages, self.micro_batches, self.chunks)

    @property
    def total_layers(self) -> int:
        """Layers of all runs."""
        return sum(layer.count for layer in self.layers)

    @cached_property
    def columns(self) -> tuple[tuple[int, int], ...]:
        """(run, option) of every kind of count, in one flat list."""
        return tuple((t, o) for t, run in enumerate(self.layers) for o in range(len(run.options)))

    @cached_property
    def part(self) -> Ints:
        """Which model part, from 0, each (chunk, stage) is."""
        return order(self.schedule, self.stages, self.micro_batches, self.chunks).part

    @cached_property
    def positions(self) -> tuple[tuple[int, int], ...]:
        """(chunk, stage) of each model part, first to last."""
        flat = np.argsort(self.part, axis=None)
        return tuple((int(i) // self.stages, int(i) % self.stages) for i in flat)

    @cached_property
    def profiles(self) -> Floats:
        """Activations held at each moment that matters, shape (profiles, chunks, stages)."""
        if self.in_flight is None:
            return in_flight_profiles(self.schedule, self.stages, self.micro_batches, self.chunks)
        given = np.asarray(self.in_flight, dtype=np.float64)
        return given.reshape(-1, self.chunks, self.stages)

    @cached_property
    def cap_bytes(self) -> Floats:
        """Cap of each stage, infinite without one."""
        cap = np.inf if self.memory_cap_bytes is None else self.memory_cap_bytes
        return np.broadcast_to(np.asarray(cap, dtype=np.float64), (self.stages,))

    @cached_property
    def fixed_bytes(self) -> Floats:
        """Held on each stage before any layer: the constant, and the ends."""
        fixed = np.broadcast_to(np.asarray(self.constant_bytes, dtype=np.float64), (self.stages,)).copy()
        fixed[self.positions[0][1]] += self.head.memory_bytes
        fixed[self.positions[-1][1]] += self.tail.memory_bytes
        return fixed

    @cached_property
    def end_times(self) -> tuple[Floats, Floats]:
        """Forward and backward seconds of the ends, shape (chunks, stages)."""
        forward, backward = np.zeros((2, self.chunks, self.stages))
        for end, where in ((self.head, self.positions[0]), (self.tail, self.positions[-1])):
            forward[where] += end.forward_s
            backward[where] += end.backward_s
        return forward, backward

    @cached_property
    def rates(self) -> tuple[Floats, Floats, Floats, Floats]:
        """For each column: forward, backward, activation and parameter of one layer."""
        rows = []
        for t, o in self.columns:
            run, option = self.layers[t], self.layers[t].options[o]
            backward = run.backward_s + option.extra_backward_s
            rows.append((run.forward_s, backward, option.activation_bytes, run.parameter_bytes))
        forward, backward_, activation, parameter = np.array(rows, dtype=np.float64).T
        return forward, backward_, activation, parameter


@dataclass(frozen=True)
class Placement:
    """How many layers of each run, with each recompute option, stand on each chunk of each stage.

    ``counts[run][option][chunk][stage]``.
    """

    counts: Counts

    @classmethod
    def from_array(cls, problem: StageProblem, array: ArrayLike) -> Placement:
        """From an array (columns, chunks, stages), its first axis as ``problem.columns``."""
        whole = np.asarray(array)
        counts: list[list[Any]] = [[] for _ in problem.layers]
        for (t, _), matrix in zip(problem.columns, whole.tolist(), strict=True):
            counts[t].append(tuple(tuple(int(n) for n in row) for row in matrix))
        return cls(tuple(tuple(run) for run in counts))

    @cached_property
    def array(self) -> Ints:
        """All counts, shape (columns, chunks, stages)."""
        return np.array([matrix for run in self.counts for matrix in run], dtype=np.int64)

    @property
    def layers(self) -> Ints:
        """Layers of every kind, shape (chunks, stages)."""
        return np.asarray(self.array.sum(axis=0))

    @property
    def offset(self) -> Ints:
        """Layers above an even share, rounded down (SAPP's and MindFormers' ``offset``)."""
        return np.asarray(self.layers - self.layers.sum() // self.layers.size)

    def recompute(self, problem: StageProblem, option: str) -> Ints:
        """Layers with a recompute option, over all runs, shape (chunks, stages)."""
        chosen = [problem.layers[t].options[o].name == option for t, o in problem.columns]
        return np.asarray(self.array[np.array(chosen)].sum(axis=0))


def by_kind(problem: StageProblem) -> StageProblem:
    """State a problem of many runs (alternating kinds of layers) by kind: equal layers are one run, in no order.

    Every placement is one of this problem too, so bounds of it hold; its solutions say how many layers a part takes,
    not which. A problem of up to :data:`MOST_RUNS` runs is returned as it is.
    """
    if len(problem.layers) <= MOST_RUNS:
        return problem
    counts: dict[Any, int] = {}
    for run in problem.layers:
        counts[run.kind] = counts.get(run.kind, 0) + run.count
    first = {run.kind: run for run in reversed(problem.layers)}
    layers = tuple(replace(first[kind], count=count) for kind, count in counts.items())
    return replace(problem, layers=layers, ordered=False)


def placed_by_kind(problem: StageProblem, placement: Placement) -> Placement:
    """Return a placement as one of :func:`by_kind`'s problem."""
    stated = by_kind(problem)
    if stated is problem:
        return placement
    kinds = [run.kind for run in stated.layers]
    whole = np.zeros((len(stated.columns), problem.chunks, problem.stages), dtype=np.int64)
    for (run, option), layers in zip(problem.columns, placement.array, strict=True):
        whole[stated.columns.index((kinds.index(problem.layers[run].kind), option))] += layers
    return Placement.from_array(stated, whole)


def stage_times(problem: StageProblem, placement: Placement) -> tuple[Floats, Floats]:
    """Forward and backward seconds of one micro-batch, each of shape (chunks, stages), ends included."""
    forward, backward, _, _ = problem.rates
    end_forward, end_backward = problem.end_times
    counts = placement.array
    return (
        np.tensordot(forward, counts, axes=1) + end_forward,
        np.tensordot(backward, counts, axes=1) + end_backward,
    )


def peak_memory(problem: StageProblem, placement: Placement) -> Floats:
    """Most bytes each stage holds at any moment of the schedule, shape (stages,)."""
    _, _, activation, parameter = problem.rates
    held = np.tensordot(activation, placement.array, axes=1)
    parameters = np.tensordot(parameter, placement.array, axes=1).sum(axis=0)
    moments = np.einsum("kvs,vs->ks", problem.profiles, held)
    return np.asarray(moments.max(axis=0) + parameters + problem.fixed_bytes)


def simulated_makespan(problem: StageProblem, placement: Placement) -> float:
    """Seconds from the first forward to the last backward, simulated exactly."""
    forward, backward = stage_times(problem, placement)
    found = makespan(problem.schedule, forward, backward, problem.micro_batches, problem.comm_s)
    return float(np.asarray(found))


def bottleneck(problem: StageProblem, forward_s: Floats, backward_s: Floats) -> Floats:
    """SAPP's objective (mindformers, ``toolkit/pipeline_balance``, its default level O1).

    With one chunk the longest stage, forward and backward. With several chunks the longest forward and
    backward of any two chunks of a stage; where micro-batches equal stages, SAPP adds the slowest last chunk
    and the slowest backward of the others (:func:`last_chunk_share`).

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    forward_s, backward_s : arrays (..., chunks, stages)
        As of :func:`stage_times`.

    Returns
    -------
    array (...)
        Seconds.
    """
    if problem.chunks == 1 or problem.micro_batches != problem.stages:
        return np.asarray((forward_s.max(axis=-2) + backward_s.max(axis=-2)).max(axis=-1))
    end_forward = problem.end_times[0][-1]
    part = last_chunk_share(problem) * (forward_s[..., -1, :] - end_forward)
    last = (backward_s[..., -1, :] + end_forward + part).max(axis=-1)
    slowest = backward_s[..., :-1, :].max(axis=(-2, -1))
    return np.asarray(slowest + np.maximum(last, slowest))


def last_chunk_share(problem: StageProblem) -> Floats:
    """Part of a last chunk's forward that SAPP's O1 rows count on each stage when ``m == p``.

    ``s / m`` in less-memory mode, else ``abs(p - 1 - 2 s) / m`` for the second half of the stages.
    """
    stage = np.arange(problem.stages)
    if problem.schedule == "interleaved-sapp-less-memory":
        return stage / problem.micro_batches
    lead = np.abs(problem.stages - 1 - 2 * stage)
    lead[: problem.stages // 2] = 0
    return lead / problem.micro_batches


@lru_cache(maxsize=64)
def in_flight_profiles(schedule: str, stages: int, micro_batches: int, chunks: int) -> Floats:
    """Activations held by each chunk at every moment that can be a stage's fullest.

    Read from the schedule's order: after each forward a stage holds so many micro-batches of each chunk. Only
    moments are kept that no other moment of the stage dominates; with one chunk that is its peak.

    Returns
    -------
    array (profiles, chunks, stages)
        Stages with fewer moments repeat their last one.
    """
    found = order(schedule, stages, micro_batches, chunks)
    change = np.where(found.kind == FORWARD, 1, np.where(found.kind == BACKWARD, -1, 0))
    moments = []
    for stage in range(stages):
        mine = found.device == stage
        steps = np.zeros((int(mine.sum()), chunks), dtype=np.int64)
        steps[np.arange(len(steps)), found.chunk[mine]] = change[mine]
        moments.append(_not_dominated(np.unique(steps.cumsum(axis=0), axis=0)))
    most = max(len(m) for m in moments)
    table = np.empty((most, chunks, stages))
    for stage, rows in enumerate(moments):
        table[:, :, stage] = rows[np.minimum(np.arange(most), len(rows) - 1)]
    table.flags.writeable = False
    return table


def _not_dominated(rows: Ints) -> Ints:
    """Rows that no other row exceeds or equals everywhere."""
    covers = (rows[None, :, :] >= rows[:, None, :]).all(axis=2)
    return np.asarray(rows[covers.sum(axis=1) == 1])
