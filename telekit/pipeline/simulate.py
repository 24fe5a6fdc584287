"""Exact timing of a pipeline schedule: start and end of every pass, makespan, bubble, activations held."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem
from telekit.pipeline.closed_form import gpipe_time_s
from telekit.pipeline.lattice import LATTICED, lattice, lattice_makespan
from telekit.pipeline.schedules import FORWARD, KIND_NAMES, Order, order, raise_broken
from telekit.timeline import CompiledOrder, chrome_trace, compile_order

SIMULATED = ("gpipe", "1f1b", "interleaved-1f1b")
"""Schedules of a layout whose own order is known; the others have a closed form only."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Simulation:
    """One schedule, timed. Bubbles are over all devices; which one is meant is always said.

    Attributes
    ----------
    order : Order
        What ran where.
    start_s, end_s : arrays (operations,)
        When each operation of ``order`` runs.
    """

    order: Order
    start_s: Floats
    end_s: Floats

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return float(self.end_s.max())

    @property
    def busy_s(self) -> Floats:
        """Time each stage computes, shape (stages,)."""
        return np.asarray(self._by_stage(self.end_s - self.start_s).sum(axis=1))

    @property
    def bubble_fraction(self) -> float:
        """Idle time over all time: ``1 - busy / (stages * makespan)``."""
        return 1.0 - float(self.busy_s.mean()) / self.makespan_s

    @property
    def bubble_fraction_of_ideal(self) -> float:
        """Idle time over busy time (SAPP's bubble, and Megatron-LM's ``(p - 1) / m``)."""
        return self.makespan_s / float(self.busy_s.mean()) - 1.0

    @property
    def bubble_fraction_of_span(self) -> float:
        """Zero-bubble's: idle over span of the device with the longest span, first start to last end."""
        span = self._by_stage(self.end_s).max(axis=1) - self._by_stage(self.start_s).min(axis=1)
        longest = int(np.argmax(span))
        return float(1.0 - self.busy_s[longest] / span[longest])

    @property
    def peak_in_flight(self) -> Ints:
        """Most micro-batches that each chunk of each stage holds at once, shape (chunks, stages).

        A micro-batch is held from the start of its forward to the end of its backward. The chunks of a
        stage need not peak together: :meth:`peak_held` knows.
        """
        return np.asarray(self._held().max(axis=2))

    def peak_held(self, weight: ArrayLike) -> Floats:
        """Most that each stage holds at once when a micro-batch weighs ``weight``, shape (stages,).

        Parameters
        ----------
        weight : array (chunks, stages)
            What one micro-batch in flight keeps on each chunk of each stage, in any unit.
        """
        weights = np.asarray(weight, dtype=np.float64)[..., None]
        return np.asarray((self._held() * weights).sum(axis=0).max(axis=1))

    def to_chrome_trace(self) -> dict[str, Any]:
        """Trace for Perfetto, one track a stage."""
        found = self.order
        kinds = [KIND_NAMES[kind] for kind in found.kind]
        names = [found.describe(i).partition(" on ")[0] for i in range(found.kind.size)]
        stages = [f"stage {s}" for s in range(found.stages)]
        return chrome_trace(self.start_s, self.end_s, found.device, names, kinds, stages)

    def _held(self) -> Ints:
        """Count micro-batches in flight after each turn of a device, shape (chunks, stages, turns)."""
        found = self.order
        step = np.where(found.kind == FORWARD, 1, -1)
        mine = found.chunk == np.arange(found.chunks)[:, None]
        return np.where(mine, step, 0).reshape(found.chunks, found.stages, -1).cumsum(axis=2)

    def _by_stage(self, values: Floats) -> Floats:
        return values.reshape(self.order.stages, -1)


def simulate(
    schedule: str, forward_s: ArrayLike, backward_s: ArrayLike, micro_batches: int, comm_s: float = 0.0
) -> Simulation:
    """Time every pass of a schedule.

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
    compiled, lag = compiled_order(schedule, stages, micro_batches, chunks)
    duration = np.stack([forward, backward])[found.kind, found.chunk, found.device]
    end = compiled.finish(duration, lag * comm_s)
    return Simulation(found, end - duration, end)


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
    both = np.stack([forward.reshape(-1, chunks, stages), backward.reshape(-1, chunks, stages)])
    durations = np.moveaxis(both, 1, -1)
    if schedule in LATTICED:
        last = lattice_makespan(lattice(schedule, stages, micro_batches, chunks), durations, comm_s)
    else:
        found = order(schedule, stages, micro_batches, chunks)
        compiled, lag = compiled_order(schedule, stages, micro_batches, chunks)
        last = compiled.finish(durations[found.kind, found.chunk, found.device], lag * comm_s).max(axis=0)
    return last.reshape(batch)[()]


@lru_cache(maxsize=16)
def compiled_order(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> tuple[CompiledOrder, Floats]:
    """Compile an order; the second value is 1 for each dependency between two devices, else 0."""
    found = order(schedule, stages, micro_batches, chunks)
    before, after = dependencies(found)
    lag = (found.device[before] != found.device[after]).astype(np.float64)
    return compile_order(found.device, before, after, found.describe), lag


def dependencies(found: Order) -> tuple[Ints, Ints]:
    """Operations (before, after) that wait for each other across parts of the model.

    A forward waits for the part before, a backward for the part behind, the last part's backward for its
    own forward. That a backward follows its own forward on every other part is implied.
    """
    part = found.part[found.chunk, found.device]
    at = np.empty((2, found.part.size, found.micro_batches), dtype=np.int64)
    at[found.kind, part, found.micro_batch] = np.arange(part.size)
    forward, backward = at
    before = np.concatenate([forward, backward[1:]])
    after = np.concatenate([forward[1:], backward[-1:], backward[:-1]])
    return before.ravel(), after.ravel()


def checked_times(forward_s: ArrayLike, backward_s: ArrayLike, comm_s: float) -> tuple[Floats, Floats]:
    """Return times as arrays of one shape (..., chunks, stages), finite and not negative, or raise."""
    forward, backward = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    problems = []
    if forward.ndim < 2 or forward.shape[-1] < 1 or forward.shape[-2] < 1:
        problems.append(Problem("forward_s", forward.shape, "its shape must end in (chunks, stages)"))
    if forward.shape != backward.shape:
        problems.append(Problem("backward_s", backward.shape, f"must have forward_s's shape {forward.shape}"))
    for name, values in (("forward_s", forward), ("backward_s", backward), ("comm_s", np.asarray(comm_s))):
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            problems.append(
                Problem(name, float(values[wrong][0]), "times are finite and not negative", "0 works")
            )
    if problems:
        raise InputError(problems)
    return forward, backward
