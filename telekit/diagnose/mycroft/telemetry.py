"""What Mycroft sees of a job: a completion log, and every 100 ms the three counters of each flow under way.

The job runs on the event kernel (:mod:`telekit.timeline`). A fault changes nothing that starts before it, so one order
is timed once without it, to know which operations start later, and once with their times changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.mycroft.faults import Fault, check_fault, hit
from telekit.diagnose.mycroft.job import RingJob
from telekit.diagnose.mycroft.program import COMPUTE, TRANSMIT, Program, program

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STATE_PERIOD_S = 0.1
"""The state log's period. Source: arXiv 2509.03018."""


class Counters(NamedTuple):
    """One flow at one time: chunks that are GPU ready, transmitted and done, of so many in all."""

    ready: int
    transmitted: int
    done: int
    chunks: int


@dataclass(frozen=True)
class Telemetry:
    """The logs of one run.

    Parameters
    ----------
    job : RingJob
        What ran.
    start_s, end_s : arrays (calls,)
        When each call starts and ends on its rank; infinite where it does not.
    chunk_s : array (flows, most chunks, 3)
        When each chunk counts as ready, transmitted and done; infinite where it never does.
    horizon_s : float
        Until when the logs go: the time that the run would have taken without a fault.
    faults : tuple of Fault
        The truth, for scoring; the analysis does not read it.
    """

    job: RingJob
    start_s: Floats
    end_s: Floats
    chunk_s: Floats
    horizon_s: float
    faults: tuple[Fault, ...] = ()

    @property
    def program(self) -> Program:
        """The job's calls and flows, which the logs name."""
        return program(self.job)

    @cached_property
    def blocking(self) -> tuple[Ints, ...]:
        """Calls that each rank waits in, in the order of its program."""
        calls = self.program.calls
        return tuple(np.flatnonzero((calls.rank == r) & (calls.blocking == 1)) for r in range(self.job.ranks))

    @cached_property
    def _ends(self) -> tuple[Floats, ...]:
        return tuple(self.end_s[calls] for calls in self.blocking)

    @cached_property
    def members(self) -> Ints:
        """Calls of each meeting, shape (meetings, most ranks of one); -1 where there are fewer."""
        meeting = self.program.calls.meeting
        by_meeting = np.argsort(meeting, kind="stable")
        sizes = np.bincount(meeting)
        place = np.arange(meeting.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        found = np.full((sizes.size, int(sizes.max(initial=1))), -1)
        found[meeting[by_meeting], place] = by_meeting
        return found

    def completed(self, rank: int, at_s: float) -> int:
        """How many blocking calls a rank has completed (completion log)."""
        return int(np.searchsorted(self._ends[rank], at_s, side="right"))

    def current(self, rank: int, at_s: float) -> int | None:
        """Find the call that a rank is in, or goes to next; None when it has completed all."""
        turn = self.completed(rank, at_s)
        return int(self.blocking[rank][turn]) if turn < self.blocking[rank].size else None

    def counters(self, flow: int, at_s: float) -> Counters:
        """Three counters of a flow (state log)."""
        ready, transmitted, done = (self.chunk_s[flow] <= at_s).sum(axis=0).tolist()
        return Counters(ready, transmitted, done, int(self.program.flows.chunks[flow]))

    def history(self, flow: int, times_s: Floats) -> Ints:
        """Three counters of a flow at many times, shape (times, 3), to be drawn."""
        events = np.sort(self.chunk_s[flow], axis=0)
        return np.stack([np.searchsorted(column, times_s, side="right") for column in events.T], axis=1)

    def last_change_s(self, flow: int, at_s: float) -> float:
        """When a counter of a flow last rose; -inf when none has."""
        times = self.chunk_s[flow]
        return float(times[times <= at_s].max(initial=-math.inf))


def logged_s(at_s: float) -> float:
    """Time of the latest state log at or before ``at_s``."""
    return math.floor(at_s / STATE_PERIOD_S + 1e-9) * STATE_PERIOD_S


def simulate(job: RingJob | None = None, faults: Fault | Iterable[Fault] = (), seed: int = 0) -> Telemetry:
    """Run a job with faults and keep its logs.

    Parameters
    ----------
    job : RingJob, optional
        What runs. Writing out a new job takes longer than running it; it is kept.
    faults : Fault or iterable of Fault
        What goes wrong.
    seed : int
        Of the jitter.

    Returns
    -------
    Telemetry

    Raises
    ------
    InputError
        A fault has no rank in this job, or nothing to hit.
    """
    job = job or RingJob()
    wanted = (
        (faults,) if isinstance(faults, Fault) else tuple(sorted(faults, key=lambda fault: fault.start_s))
    )
    for fault in wanted:
        check_fault(fault, job)
    plan = program(job)
    duration = plan.duration_s * _jitter(job, plan, seed)
    end = plan.order.finish(duration)
    horizon_s = float(end.max())
    for fault in wanted:
        start = np.full(end.shape, math.inf)
        np.subtract(end, duration, out=start, where=np.isfinite(end))
        mask = hit(fault, plan, start)
        duration = np.where(mask, math.inf if fault.stops else duration * fault.factor, duration)
        end = plan.order.finish(duration)
    calls, flows = plan.calls, plan.flows
    chunk_s = np.where(flows.operations < 0, math.inf, end[flows.operations])
    return Telemetry(job, end[calls.start], end[calls.end], chunk_s, horizon_s, wanted)


def _jitter(job: RingJob, plan: Program, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    noisy = (plan.role == COMPUTE) | (plan.role == TRANSMIT)
    factor = np.ones(plan.role.size)
    factor[noisy] = np.exp(rng.normal(0.0, job.jitter, int(noisy.sum())))
    return factor
