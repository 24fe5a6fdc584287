"""From a waiting rank back to what it waits for: the dependency walk and the cause table.

A rank in a call waits for its group. If a member has not come yet, the walk goes on at the member that is furthest
back; if all have come, the flow with the fewest chunks done is the one that holds the others up.
Source: arXiv 2509.03018.
"""

from __future__ import annotations

from typing import NamedTuple

from telekit.diagnose.mycroft.faults import NOT_DELIVERED, NOT_STARTED, NOT_TRANSMITTED, WAITING
from telekit.diagnose.mycroft.job import KIND_NAMES
from telekit.diagnose.mycroft.telemetry import Counters, Telemetry


class Step(NamedTuple):
    """One step of a walk: ``rank`` waits in a call of ``group`` (tp, pp or dp) for ``waits_for``."""

    rank: int
    group: str
    waits_for: int


class Origin(NamedTuple):
    """Where a walk ends.

    Attributes
    ----------
    rank : int
        Who holds the others up; of a flow, its sender.
    cause : str
        Row of the cause table.
    group : str
        Kind of group of the last step.
    target : int
        Receiver of the flow; -1 where the rank has not come to the call.
    counters : Counters
        Of that flow; all 0 where the rank has not come.
    since_s : float
        When it last moved.
    path : tuple of Step
        The walk, from the first waiting rank.
    """

    rank: int
    cause: str
    group: str
    target: int
    counters: Counters
    since_s: float
    path: tuple[Step, ...]


def cause_of(counters: Counters) -> str:
    """Read the cause table for the three counters of one flow.

    All 0: not started. The gap between ready and transmitted, or the one between transmitted and done, whichever is
    larger. All equal and above 0: waiting for the device.
    """
    ready, transmitted, done, _ = counters
    if ready == 0:
        return NOT_STARTED
    if ready == done:
        return WAITING
    return NOT_TRANSMITTED if ready - transmitted > transmitted - done else NOT_DELIVERED


def walk(logs: Telemetry, rank: int, at_s: float) -> Origin | None:
    """Walk from one rank to what it waits for at one time.

    Parameters
    ----------
    logs : Telemetry
        What is seen.
    rank : int
        Where to begin.
    at_s : float
        When.

    Returns
    -------
    Origin or None
        None when the rank does not wait in a call, or nobody in its call is behind the others.
    """
    path: list[Step] = []
    seen = {rank}
    while True:
        call = logs.current(rank, at_s)
        if call is None:
            return None
        if logs.start_s[call] > at_s:
            return _not_started(logs, rank, at_s, path)
        group = KIND_NAMES[int(logs.program.calls.kind[call])]
        absent = _furthest_back(logs, call, at_s)
        if absent is None:
            return _slowest_flow(logs, call, at_s, path)
        path.append(Step(rank, group, absent))
        if absent in seen:
            return None
        seen.add(absent)
        rank = absent


def _not_started(logs: Telemetry, rank: int, at_s: float, path: list[Step]) -> Origin | None:
    """End at a rank outside any call: it computes, or its host does not launch."""
    if not path:
        return None
    turn = logs.completed(rank, at_s)
    since_s = float(logs.end_s[logs.blocking[rank][turn - 1]]) if turn else 0.0
    return Origin(rank, NOT_STARTED, path[-1].group, -1, Counters(0, 0, 0, 0), since_s, tuple(path))


def _furthest_back(logs: Telemetry, call: int, at_s: float) -> int | None:
    """Name the member of a call's group that has not entered it and has completed the fewest calls."""
    calls = logs.program.calls
    members = logs.members[calls.meeting[call]]
    late = [int(m) for m in members if m >= 0 and m != call and logs.start_s[m] > at_s]
    if not late:
        return None
    ranks = [int(calls.rank[m]) for m in late]
    return min(ranks, key=lambda rank: (logs.completed(rank, at_s), _inside(logs, rank, at_s), rank))


def _inside(logs: Telemetry, rank: int, at_s: float) -> bool:
    call = logs.current(rank, at_s)
    return call is not None and bool(logs.start_s[call] <= at_s)


def _slowest_flow(logs: Telemetry, call: int, at_s: float, path: list[Step]) -> Origin | None:
    """End at the flow of a call that all have entered, which has the least done, then sent, then ready."""
    calls, flows = logs.program.calls, logs.program.flows
    members = logs.members[calls.meeting[call]]
    sent = sorted({int(calls.flow[m]) for m in members if m >= 0})
    progress = sorted((logs.counters(flow, at_s)[2::-1], flow) for flow in sent)
    if len(progress) > 1 and progress[0][0] == progress[1][0]:
        return None
    flow = progress[0][1]
    source, target = int(flows.source[flow]), int(flows.target[flow])
    counters = logs.counters(flow, at_s)
    if counters.done == counters.chunks:
        return None
    start_s = max(float(logs.start_s[m]) for m in members if m >= 0)
    since_s = max(logs.last_change_s(flow, at_s), start_s)
    step = Step(int(calls.rank[call]), KIND_NAMES[int(calls.kind[call])], source)
    return Origin(source, cause_of(counters), step.group, target, counters, since_s, (*path, step))
