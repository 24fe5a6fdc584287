"""What is different from a healthy job: factors and delays by step and rank, which the simulation applies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.faults.job import TracedJob

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stall:
    """Time that hosts lose at one place of a step.

    Parameters
    ----------
    step : int
        When.
    place : float
        Where in the step's operators, from 0 to 1.
    seconds : (ranks,) array
        How long each rank's host stands still.
    calls : tuple of str
        Runtime calls that show it, in turn, which also wait for the device; none: nothing is recorded, as when the
        interpreter collects garbage.
    """

    step: int
    place: float
    seconds: Floats
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Effects:
    """Arrays are (steps, ranks) unless said otherwise; factors of 1 and delays of 0 change nothing.

    Attributes
    ----------
    compute, expert : arrays
        Device time of all kernels, and of the experts' besides.
    link, pair : arrays
        Time of transfers over a rank's network port, and of those between a rank and the same one of the next stage.
    host : array
        Host time of every operator.
    data_s, checkpoint_s : arrays
        Added to loading; a checkpoint's length (0: none is written).
    stalls : list of Stall
        Single delays.
    idle_s, idle_factor, idle_window_s : (ranks,) arrays
        Idle time after which a device runs its kernels that much longer, and for how long it does.
    burst_factor, burst_s, burst_period_s, burst_phase_s : (ranks,) arrays
        In bursts of a monitor that come with a period, hosts take that much longer.
    jump_s, jump_step : (ranks,) arrays
        By how much a rank's clock jumps, and in the middle of which step.
    """

    compute: Floats
    expert: Floats
    link: Floats
    pair: Floats
    host: Floats
    data_s: Floats
    checkpoint_s: Floats
    idle_s: Floats
    idle_factor: Floats
    idle_window_s: Floats
    burst_factor: Floats
    burst_s: Floats
    burst_period_s: Floats
    burst_phase_s: Floats
    jump_s: Floats
    jump_step: NDArray[np.int64]
    stalls: list[Stall] = field(default_factory=list)

    @classmethod
    def none(cls, job: TracedJob) -> Effects:
        """Return those of a healthy job, to be changed in place."""

        def each(value: float) -> Floats:
            return np.full(job.ranks, value)

        def table(value: float) -> Floats:
            return np.full((job.steps, job.ranks), value)

        return cls(
            compute=table(1.0),
            expert=table(1.0),
            link=table(1.0),
            pair=table(1.0),
            host=table(1.0),
            data_s=table(0.0),
            checkpoint_s=table(0.0),
            idle_s=each(np.inf),
            idle_factor=each(1.0),
            idle_window_s=each(0.0),
            burst_factor=each(1.0),
            burst_s=each(0.0),
            burst_period_s=each(1.0),
            burst_phase_s=each(0.0),
            jump_s=each(0.0),
            jump_step=np.full(job.ranks, -1),
        )
