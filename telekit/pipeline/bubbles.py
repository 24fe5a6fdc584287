"""Where a pipeline's idle time comes from: differences between timings of one order, summing to all of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.pipeline.simulate import Simulation, run
from telekit.pipeline.times import Times

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bubbles:
    """Idle time of each device by cause, arrays (..., stages); together they are the idle time, exactly.

    The order is timed again and again, each time without one more cause; what a device idles less is that
    cause's. Its turn matters where causes hide behind each other, and it is the one below. A value is
    negative where the cause keeps the device itself busy: the slowest stage idles less for being slow.

    Attributes
    ----------
    communication : array
        Gone when passes arrive at once.
    recompute : array
        Gone when nothing is run twice. The time of the recompute itself is work, not idle time.
    uneven_micro_batches : array
        Gone when each micro-batch, and each piece of a sequence, takes the mean time.
    imbalance : array
        Gone when each chunk of each stage takes the mean time.
    warm_up, drain, gaps : arrays
        What the schedule itself leaves, with equal stages and free communication: before a device's first
        start, after its last end, and in between. Their sum is the ideal bubble.
    """

    communication: Floats
    recompute: Floats
    uneven_micro_batches: Floats
    imbalance: Floats
    warm_up: Floats
    drain: Floats
    gaps: Floats

    @property
    def ideal(self) -> Floats:
        """Bubble of the schedule alone, shape (..., stages)."""
        return self.warm_up + self.drain + self.gaps

    @property
    def total(self) -> Floats:
        """Idle time of each device, shape (..., stages)."""
        return np.asarray(sum(getattr(self, field.name) for field in fields(self)))


def bubbles(found: Simulation) -> Bubbles:
    """Decompose the idle time of a simulation.

    Parameters
    ----------
    found : Simulation
        Of one or many duration sets.
    """
    times = found.times
    steps = [found]
    for leaner in (_without_comm, _without_recompute, _even_micro_batches, _even_stages):
        times = leaner(times)
        steps.append(run(found.order, times))
    idle = [np.broadcast_to(step.idle_s, found.idle_s.shape) for step in steps]
    causes = [more - less for more, less in pairwise(idle)]
    last, first = steps[-1], found.order.first
    warm_up = last.start_s[..., first[:-1]]
    drain = np.asarray(last.makespan_s)[..., None] - last.end_s[..., first[1:] - 1]
    ends = (np.broadcast_to(x, found.idle_s.shape) for x in (warm_up, drain, last.idle_s - warm_up - drain))
    return Bubbles(*causes, *ends)


def _without_comm(times: Times) -> Times:
    return replace(times, comm=0.0)


def _without_recompute(times: Times) -> Times:
    return replace(times, recompute=0.0)


def _even_micro_batches(times: Times) -> Times:
    """Give each micro-batch, and each piece, the mean time."""
    passes = _passes(times)
    if times.by_micro_batch:
        passes = {name: values.mean(axis=-3) for name, values in passes.items()}
    if times.micro_batch is not None:
        factor = np.asarray(times.micro_batch, dtype=np.float64).mean(axis=-1)[..., None, None]
        passes = {name: values * factor for name, values in passes.items()}
    return replace(times, **passes, micro_batch=None, piece=None, by_micro_batch=False)


def _even_stages(times: Times) -> Times:
    """Give each chunk of each stage the mean time."""
    even: dict[str, Any] = {
        name: np.broadcast_to(values.mean(axis=(-2, -1), keepdims=True), values.shape)
        for name, values in _passes(times).items()
    }
    return replace(times, **even)


def _passes(times: Times) -> dict[str, Any]:
    names = ("forward", "backward_input", "backward_weight", "pair")
    every = {name: getattr(times, name) for name in names}
    return {name: np.asarray(x, dtype=np.float64) for name, x in every.items() if x is not None}
