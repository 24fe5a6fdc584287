"""Exact timing of a pipeline schedule: start and end of every pass, makespan, bubble, activations held."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem
from telekit.pipeline.closed_form import gpipe_time_s
from telekit.pipeline.lattice import LATTICED, lattice, lattice_makespan
from telekit.pipeline.numbers import numbers, wrong_numbers
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, KIND_NAMES, PAIR, WEIGHT, Order
from telekit.pipeline.order import dependencies as dependencies  # of old, this module's
from telekit.pipeline.schedules import order, raise_broken
from telekit.pipeline.times import Times
from telekit.timeline import chrome_trace

SIMULATED = ("gpipe", "1f1b", "interleaved-1f1b")
"""Schedules of a layout whose own order is known; the others have a closed form only."""

_SETS_AT_ONCE = 64

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Simulation:
    """One schedule, timed, with one or many duration sets: leading axes (...) of all that depends on time.

    Bubbles are over all devices; which one is meant is always said. Where nothing takes any time they are 0.

    Attributes
    ----------
    order : Order
        What ran where.
    times : Times
        How long it took.
    end_s : array (..., operations)
        When each operation of ``order`` ends; the first starts at 0.
    """

    order: Order
    times: Times
    end_s: Floats

    @cached_property
    def duration_s(self) -> Floats:
        """How long each operation runs, shape (..., operations)."""
        table, row = _durations(self.order, self.times)
        return np.moveaxis(table if row is None else table[row], 0, -1)

    @cached_property
    def start_s(self) -> Floats:
        """When each operation starts, shape (..., operations)."""
        return self.end_s - self.duration_s

    @property
    def makespan_s(self) -> Any:
        """From the first start to the last end, float or array (...)."""
        return self.end_s[..., self.order.first[1:] - 1].max(axis=-1)[()]

    @cached_property
    def busy_s(self) -> Floats:
        """Time each stage computes, shape (..., stages)."""
        table, row = _durations(self.order, self.times)
        device = self.order.device
        if row is not None:
            device = device[self.order.classes[0]]
            table = table * np.bincount(row).reshape(-1, *[1] * (table.ndim - 1))
        busy = np.zeros((self.order.stages, *table.shape[1:]))
        np.add.at(busy, device, table)
        return np.moveaxis(busy, 0, -1)

    @property
    def idle_s(self) -> Floats:
        """Time of the makespan that each stage does not compute, shape (..., stages)."""
        return np.asarray(self.makespan_s)[..., None] - self.busy_s

    @property
    def bubble_fraction(self) -> Any:
        """Idle time over all time: ``1 - busy / (stages * makespan)``."""
        return (1.0 - _share(self.busy_s.mean(axis=-1), self.makespan_s))[()]

    @property
    def bubble_fraction_of_ideal(self) -> Any:
        """Idle time over busy time (SAPP's bubble, and Megatron-LM's ``(p - 1) / m``)."""
        return (_share(self.makespan_s, self.busy_s.mean(axis=-1)) - 1.0)[()]

    @property
    def bubble_fraction_of_span(self) -> Any:
        """Zero-bubble's: idle over span of the device with the longest span, first start to last end."""
        first = self.order.first
        begin = self.end_s[..., first[:-1]] - self.duration_s[..., first[:-1]]
        span = self.end_s[..., first[1:] - 1] - begin
        longest = np.argmax(span, axis=-1)[..., None]
        busy, span = (np.take_along_axis(x, longest, axis=-1)[..., 0] for x in (self.busy_s, span))
        return (1.0 - _share(busy, span))[()]

    @property
    def peak_in_flight(self) -> Ints:
        """Most micro-batches (with pieces: most pieces) that each chunk of each stage holds at once.

        Shape (chunks, stages). Held from the start of the forward to the end of the backward, or of its
        weight half. The chunks of a stage need not peak together: :meth:`peak_held` knows.
        """
        begin = 2 * self.order.first[:-1]
        chunks = range(self.order.chunks)
        return np.stack([np.maximum.reduceat(_held(self.order, chunk)[0], begin) for chunk in chunks])

    @property
    def peak_activations(self) -> Floats:
        """Most micro-batches of a full stage that each device holds at once, shape (stages,).

        A chunk of a model cut into k parts for each stage counts 1 / k.
        """
        return self.peak_held(np.full(self.order.part.shape, self.order.stages / self.order.parts))

    def peak_held(self, weight: ArrayLike, for_weights: ArrayLike | None = None) -> Floats:
        """Most that each stage holds at once, shape (stages,).

        Parameters
        ----------
        weight, for_weights : arrays (chunks, stages)
            As in :meth:`memory`, in any unit.
        """
        held = _weighed(self.order, weight, for_weights)
        return np.asarray(np.maximum.reduceat(held, 2 * self.order.first[:-1]))

    def memory(self, weight: ArrayLike, for_weights: ArrayLike | None = None) -> list[tuple[Floats, Floats]]:
        """Activations that each device holds over time.

        Parameters
        ----------
        weight : array (chunks, stages)
            What one micro-batch keeps on each chunk of each stage, in bytes or any other unit, from the start
            of its forward to the end of its backward; where that is split, to the end of the weight half.
        for_weights : array (chunks, stages), optional
            What it keeps between the end of the input half and the end of the weight half, where that is
            less: the buffers that the weight gradient is made of.

        Returns
        -------
        list (stages,) of (times (..., n), held (n,))
            Steps: ``held[k]`` from ``times[..., k]`` on. The last one is 0.
        """
        held = _weighed(self.order, weight, for_weights)
        times = np.stack([self.start_s, self.end_s], axis=-1).reshape(*self.end_s.shape[:-1], -1)
        cuts = (2 * self.order.first[1:-1]).tolist()
        return list(zip(np.split(times, cuts, axis=-1), np.split(held, cuts), strict=True))

    def marks(self) -> dict[str, Any]:
        """Columns (lane, kind, start_s, end_s) of one duration set for a Gantt chart, one row a mark.

        A recompute is a mark of its own, before its backward.
        """
        found = self.order
        start, end = self.start_s, self.end_s
        begin = end - replace(self, times=replace(self.times, recompute=0.0)).duration_s
        again = np.flatnonzero(begin > start)
        return {
            "lane": np.append(found.device, found.device[again]),
            "kind": np.append(np.array(KIND_NAMES)[found.kind], np.full(again.size, "recompute")),
            "start_s": np.append(np.maximum(begin, start), start[again]),
            "end_s": np.append(end, begin[again]),
        }

    def to_chrome_trace(self) -> dict[str, Any]:
        """Trace of one duration set for Perfetto, one track a stage."""
        found = self.order
        kinds = [KIND_NAMES[kind] for kind in found.kind]
        names = [found.describe(i).partition(" on ")[0] for i in range(found.kind.size)]
        stages = [f"stage {s}" for s in range(found.stages)]
        return chrome_trace(self.start_s, self.end_s, found.device, names, kinds, stages)


def run(order: Order, times: Times) -> Simulation:
    """Time every operation of an order, for one or many duration sets.

    Raises
    ------
    InputError
        For times that are not finite, negative or zero (communication and recompute may be zero), shapes that
        do not fit the order, or operations that wait for each other in a circle, which is named.
    """
    problems = times.problems(order)
    if problems:
        raise InputError(problems)
    return _timed(order, times)


def _timed(order: Order, times: Times) -> Simulation:
    table, row = _durations(order, times)
    end = order.compiled.finish(table, times.lags(order), row=row, lag_row=order.links[2])
    return Simulation(order, times, np.moveaxis(end, 0, -1))


def _durations(order: Order, times: Times) -> tuple[Floats, Ints | None]:
    """Durations (rows, ...) and the row of each operation, None where each has its own."""
    if times.by_micro_batch or times.micro_batch is not None:
        return times.durations(order, np.arange(order.kind.size)), None
    one, row = order.classes
    return times.durations(order, one), row


def _share(part: Any, whole: Any) -> Any:
    """Ratio of two times, 1 where both are 0."""
    nothing = np.asarray(whole) == 0
    return np.where(nothing, 1.0, part / np.where(nothing, 1.0, whole))


def _held(order: Order, chunk: int) -> tuple[Ints, Ints]:
    """Count micro-batches (or pieces) on one chunk of each device after each start and each end, in turn.

    Two arrays (2 * operations,): with all activations held, and with what the weight half needs.
    """
    held, rest = np.zeros((2, order.kind.size, 2), dtype=np.int64)
    for kinds, column, edge, change, waits in (
        ((FORWARD, PAIR), order.chunk, 0, 1, 0),
        ((BACKWARD,), order.chunk, 1, -1, 0),
        ((INPUT,), order.chunk, 1, -1, 1),
        ((WEIGHT,), order.chunk, 1, 0, -1),
        ((PAIR,), order.other_chunk, 1, -1, 0),
    ):
        if column is not None:
            here = np.isin(order.kind, kinds) & (column == chunk)
            held[here, edge] += change
            rest[here, edge] += waits
    return held.reshape(-1).cumsum(), rest.reshape(-1).cumsum()


def _weighed(order: Order, weight: ArrayLike, for_weights: ArrayLike | None) -> Floats:
    """Weigh what each device holds after each start and each end, in turn, shape (2 * operations,)."""
    full = numbers("weight", weight)
    later = full if for_weights is None else numbers("for_weights", for_weights)
    for name, values in (("weight", full), ("for_weights", later)):
        if values.shape != order.part.shape:
            rule = f"must have shape (chunks, stages) = {order.part.shape}"
            raise InputError([Problem(name, values.shape, rule, f"{order.part.shape} works")])
    device = np.repeat(order.device, 2)
    total = np.zeros(device.size)
    for chunk in range(order.chunks):
        for counts, each in zip(_held(order, chunk), (full, later), strict=True):
            total += counts * each[chunk, device]
    return total / order.pieces


def simulate(
    schedule: str, forward_s: ArrayLike, backward_s: ArrayLike, micro_batches: int, comm_s: float = 0.0
) -> Simulation:
    """Time every pass of a schedule by its name; stages without work are allowed.

    Parameters
    ----------
    schedule : str
        A name of :data:`telekit.pipeline.schedules.ORDERED`.
    forward_s, backward_s : arrays (chunks, stages)
        Seconds of one micro-batch's pass. Chunk v of stage s is part ``v * stages + s`` of the model.
    micro_batches : int
        Micro-batches of a step.
    comm_s : float
        Seconds from the end of a pass to the moment the neighbouring stage may use it; no device is busy
        with it.

    Raises
    ------
    InputError
        For times that are negative or not finite, shapes that do not fit, or numbers the schedule forbids.
    """
    forward, backward = checked_times(forward_s, backward_s, comm_s)
    if forward.ndim != 2:
        raise InputError(
            [Problem("forward_s", forward.shape, "simulate takes one set: shape (chunks, stages)")]
        )
    chunks, stages = forward.shape
    found = order(schedule, stages, micro_batches, chunks)
    return _timed(found, Times(forward, backward / 2, backward / 2, comm=comm_s))


def makespan(
    schedule: str, forward_s: ArrayLike, backward_s: ArrayLike, micro_batches: int, comm_s: float = 0.0
) -> Any:
    """Makespan alone, of many duration sets at once: for searches.

    Equal to :func:`simulate`'s up to rounding (a few units in the last place for each micro-batch), and equal
    to the last bit when all times are whole numbers.

    Parameters
    ----------
    schedule, micro_batches, comm_s
        As in :func:`simulate`.
    forward_s, backward_s : arrays (..., chunks, stages)
        Duration sets.

    Returns
    -------
    float or array (...)
        Seconds.

    Raises
    ------
    InputError
        As :func:`simulate`.
    """
    forward, backward = checked_times(forward_s, backward_s, comm_s)
    batch, (chunks, stages) = forward.shape[:-2], forward.shape[-2:]
    if schedule == "gpipe":
        raise_broken(schedule, stages, micro_batches, chunks)
        return gpipe_time_s(forward[..., 0, :], backward[..., 0, :], micro_batches, comm_s)[..., 0][()]
    if schedule == "interleaved-sapp" and chunks > 1 and micro_batches % stages == 0:
        schedule = "interleaved-1f1b"  # the same order
    forward, backward = (x.reshape(-1, chunks, stages) for x in (forward, backward))
    if schedule in LATTICED:
        durations = np.moveaxis(np.stack([forward, backward]), 1, -1)
        last = lattice_makespan(lattice(schedule, stages, micro_batches, chunks), durations, comm_s)
        return last.reshape(batch)[()]
    found, last = order(schedule, stages, micro_batches, chunks), np.empty(len(forward))
    for begin in range(0, len(forward), _SETS_AT_ONCE):
        some = slice(begin, begin + _SETS_AT_ONCE)
        times = Times(forward[some], backward[some] / 2, backward[some] / 2, comm=comm_s)
        last[some] = _timed(found, times).makespan_s
    return last.reshape(batch)[()]


def checked_times(forward_s: ArrayLike, backward_s: ArrayLike, comm_s: float) -> tuple[Floats, Floats]:
    """Return times as arrays of one shape (..., chunks, stages), finite and not negative, or raise."""
    forward, backward = numbers("forward_s", forward_s), numbers("backward_s", backward_s)
    problems = []
    if forward.ndim < 2 or forward.shape[-1] < 1 or forward.shape[-2] < 1:
        problems.append(Problem("forward_s", forward.shape, "its shape must end in (chunks, stages)"))
    if forward.shape != backward.shape:
        problems.append(Problem("backward_s", backward.shape, f"must have forward_s's shape {forward.shape}"))
    for name, values in (("forward_s", forward), ("backward_s", backward)):
        problems += wrong_numbers(name, values, zero=True)
    problems += wrong_numbers("comm_s", comm_s, zero=True, single=True)
    if problems:
        raise InputError(problems)
    return forward, backward
