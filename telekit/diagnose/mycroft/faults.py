"""Seven faults to inject, and which operations of the rank each one slows or stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.mycroft.job import TP, RingJob
from telekit.diagnose.mycroft.program import COMPUTE, COPY, DELIVER, TRANSMIT, Program
from telekit.errors import InputError, Problem

NOT_STARTED = "not started"
NOT_TRANSMITTED = "not transmitted"
NOT_DELIVERED = "not delivered"
WAITING = "waiting for GPU data"

CAUSES = {
    NOT_STARTED: "operation not started on this rank: look at its earlier operation, its compute or its host",
    NOT_TRANSMITTED: "not transmitted: local RDMA problem, or the receiver is not ready",
    NOT_DELIVERED: "not delivered: RDMA problem, or the receiver failed",
    WAITING: "waiting: GPU data is not ready on this rank",
}
"""The cause table, by its rows; its conditions are in :func:`telekit.diagnose.mycroft.walk.cause_of`."""


class FaultKind(NamedTuple):
    """One kind.

    Attributes
    ----------
    role : int
        The operations of the rank that it hits.
    stops : bool
        It stops them for good; otherwise it multiplies their time.
    network_only : bool
        Only flows between stages and data ranks are hit, not those inside a tensor group.
    cause : str
        The row of the cause table that is right.
    slowest, fastest : float
        Range of the factor that a drawn fault has (illustrative); 1, 1 where it stops.
    says : str
        What it stands for.
    """

    role: int
    stops: bool
    network_only: bool
    cause: str
    slowest: float
    fastest: float
    says: str


FAULT_KINDS = {
    "process-stuck": FaultKind(COMPUTE, True, False, NOT_STARTED, 1, 1, "a process or its kernel never ends"),
    "gpu-slow": FaultKind(
        COMPUTE, False, False, NOT_STARTED, 3, 6, "power limit, or other work on the device"
    ),
    "gpu-hang": FaultKind(COPY, True, False, WAITING, 1, 1, "the device stops inside a collective"),
    "pcie-slow": FaultKind(COPY, False, True, WAITING, 24, 48, "the copy to the card runs at a lower grade"),
    "nic-down": FaultKind(TRANSMIT, True, True, NOT_TRANSMITTED, 1, 1, "the card sends nothing"),
    "nic-slow": FaultKind(TRANSMIT, False, True, NOT_TRANSMITTED, 8, 16, "the card's bandwidth is limited"),
    "link-lost": FaultKind(DELIVER, True, True, NOT_DELIVERED, 1, 1, "what is sent does not arrive"),
}


@dataclass(frozen=True)
class Fault:
    """One injected fault.

    Parameters
    ----------
    kind : str
        One of :data:`FAULT_KINDS`.
    rank : int
        Where; of a flow, its sender.
    start_s : float
        Operations that start from then on are hit.
    factor : float
        How many times as long they take; no effect on a kind that stops them.
    """

    kind: str
    rank: int
    start_s: float
    factor: float = 8.0

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in FAULT_KINDS:
            problems.append(Problem("fault.kind", self.kind, f"must be one of {', '.join(FAULT_KINDS)}"))
        if not 0 <= self.start_s < math.inf:
            problems.append(Problem("fault.start_s", self.start_s, "must be a number of seconds from 0 up"))
        if not 1 <= self.factor < math.inf:
            problems.append(Problem("fault.factor", self.factor, "must be 1 or more", "8 works"))
        if problems:
            raise InputError(problems)

    @property
    def stops(self) -> bool:
        """Whether it stops what it hits."""
        return FAULT_KINDS[self.kind].stops

    @property
    def cause(self) -> str:
        """The row of the cause table that is right."""
        return FAULT_KINDS[self.kind].cause


def draw_fault(kind: str, job: RingJob, seed: int, first_s: float = 6.0, last_s: float = 9.0) -> Fault:
    """Draw a rank, a start and a factor for one kind."""
    rng = np.random.default_rng([seed, list(FAULT_KINDS).index(kind)])
    low, high = FAULT_KINDS[kind].slowest, FAULT_KINDS[kind].fastest
    start_s, factor = float(rng.uniform(first_s, last_s)), float(rng.uniform(low, high))
    return Fault(kind, int(rng.integers(job.ranks)), start_s, factor)


def check_fault(fault: Fault, job: RingJob) -> None:
    """Refuse a rank that is not there, and a network fault in a job that sends nothing over the network."""
    problems = []
    if not (isinstance(fault.rank, int) and 0 <= fault.rank < job.ranks):
        problems.append(Problem("fault.rank", fault.rank, f"must be from 0 to {job.ranks - 1}"))
    if FAULT_KINDS[fault.kind].network_only and job.pp == job.dp == 1:
        rule = "hits flows between stages or data ranks, and this job has neither"
        problems.append(Problem("fault.kind", fault.kind, rule, "pp 2 or dp 2 works"))
    if problems:
        raise InputError(problems)


def hit(fault: Fault, program: Program, start_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which operations a fault hits; ``start_s`` (operations,) says when they start without it.

    What starts before the fault is the same with and without it, so this is exact.
    """
    kind = FAULT_KINDS[fault.kind]
    found: NDArray[np.bool_] = (
        (program.rank == fault.rank) & (program.role == kind.role) & (start_s >= fault.start_s)
    )
    if kind.network_only:
        found &= (program.kind != TP) & (program.kind >= 0)
    if fault.kind == "gpu-hang" and found.any():  # inside a collective: something has been sent already
        inside = found & (program.chunk >= 1)
        found &= start_s >= start_s[inside].min(initial=math.inf)
    return found
