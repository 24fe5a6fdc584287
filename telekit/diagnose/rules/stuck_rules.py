"""Ranks that never arrived at the last collective of their group."""

from __future__ import annotations

import numpy as np

from telekit.diagnose.analysis.features import Run
from telekit.diagnose.pairing import launches_of
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.trace import Ints

ENOUGH = 0.97
"""Share of the usual launches of a step that is a whole step's."""
HUNG = 10.0
"""A last collective that lasts this many times the usual is one that waits for somebody."""


def stuck_findings(run: Run) -> list[Finding]:
    """Find ranks that hold all others up for good: by what they never launched, or never began."""
    return _stopped(run) or _absent(run)


def _stopped(run: Run) -> list[Finding]:
    """Find hosts that stopped in a step of which the others launched all, which then never ran."""
    number = _last_begun(run)
    if len(run.traces) < 3 or number is None:
        return []
    launched, waiting = _launches(run, (number - 1, number))
    done = launched[:, 1] >= ENOUGH * launched[:, 0]
    stopped = ~done & (waiting[:, 1] <= waiting[:, 0])
    held = done & (waiting[:, 1] > waiting[:, 0] + 1)
    if not stopped.any() or stopped.mean() > 0.25 or held.mean() < 0.6:
        return []
    rows = np.flatnonzero(stopped)
    row = int(rows[0])
    trace = run.traces[row]
    host = np.flatnonzero(~trace.on_device)
    last = int(host[np.argmax(trace.end_s[host])])
    text = (
        f"rank {run.ranks[row]} launched {launched[row, 1]} of the usual {launched[row, 0]} in step {number} "
        f"and no more; {int(held.sum())} ranks launched all; up to {int(waiting[held, 1].max())} of them never ran"
    )
    evidence = Evidence(text, int(run.ranks[row]), trace.event(last), float(trace.start_s[last]),
                        float(trace.end_s[last]))  # fmt: skip
    return [Finding("stuck", "rank" if len(rows) == 1 else "several", tuple(run.ranks[rows].tolist()),
                    (number,), 1.0, 1000.0, (evidence,), "its host stopped",
                    "look at the stack of this rank")]  # fmt: skip


def _last_begun(run: Run) -> int | None:
    """Return the last step that every rank has begun, finished or not; hosts may be ahead of one that stopped."""
    last = [int(s.number[-1]) + bool(s.unfinished.any()) if len(s.number) else -1 for s in run.steps]
    return min(last) if last and min(last) > 0 and len(run.number) else None


def _launches(run: Run, numbers: tuple[int, int]) -> tuple[Ints, Ints]:
    """Count launches of each rank in two steps, and those of them that never ran."""
    launched = np.zeros((len(run.traces), 2), np.int64)
    waiting = np.zeros((len(run.traces), 2), np.int64)
    for row, (trace, steps) in enumerate(zip(run.traces, run.steps, strict=True)):
        host = launches_of(trace)
        of = steps.number_of(host)
        host, of = host[np.isin(of, numbers)], of[np.isin(of, numbers)]
        ran = np.isin(trace.correlation[host], trace.correlation[trace.on_device])
        for place, number in enumerate(numbers):
            here = of == number
            launched[row, place], waiting[row, place] = here.sum(), (here & ~ran).sum()
    return launched, waiting


def _absent(run: Run) -> list[Finding]:
    """Find groups whose last operation some members wait in and others never began."""
    found = run.collectives
    missing: dict[int, float] = {}
    waiting: dict[int, int] = {}
    of_group = found.ranks_of() if len(found) else {}
    seats = np.zeros(len(found.groups), np.int64)
    for group, members in of_group.items():
        seats[group] = len(members)
    short = set(found.group[found.members < seats[found.group]].tolist())
    for group, members in of_group.items():
        if group not in short:
            continue
        mine = np.flatnonzero(found.group[found.key] == group)
        if len(members) < 2 or len(mine) < 3 * len(members):
            continue
        longest = found.end_s[mine] - found.start_s[mine]
        for key in np.unique(found.key[mine]):
            there = mine[found.key[mine] == key]
            if len(there) == len(members) or len(there) * 2 < len(members):
                continue
            spent = float(np.median(found.end_s[there] - found.start_s[there]))
            if spent < max(HUNG * float(np.median(longest)), 0.5 * run.step_s):
                continue
            for absent in np.setdiff1d(members, found.rank[there]):
                if not _came_later(run, mine, int(absent), int(there[0])):
                    missing[int(absent)] = max(missing.get(int(absent), 0.0), spent)
                    waiting[int(absent)] = int(there[0])
    if not missing:
        return []
    return [_finding(run, missing, waiting)]


def _came_later(run: Run, mine: Ints, absent: int, witness: int) -> bool:
    """Tell whether a rank took part in operations of the group after this one, by the clock of one that waits."""
    found = run.collectives
    others = mine[found.rank[mine] == found.rank[witness]]
    later = found.key[others[found.start_s[others] > found.start_s[witness]]]
    return bool(np.isin(found.key[mine[found.rank[mine] == absent]], later).any())


def _finding(run: Run, missing: dict[int, float], waiting: dict[int, int]) -> Finding:
    found = run.collectives
    rows = sorted(missing, key=lambda r: -missing[r])
    row = rows[0]
    witness, event = int(found.rank[waiting[row]]), int(found.event[waiting[row]])
    trace = run.traces[witness]
    text = (
        f"rank {run.ranks[witness]} waits {missing[row]:.3f} s in {trace.names[trace.name[event]]}, "
        f"which rank {run.ranks[row]} never began"
    )
    evidence = Evidence(text, int(run.ranks[witness]), trace.event(event), float(trace.start_s[event]),
                        float(trace.end_s[event]))  # fmt: skip
    step = int(found.step[waiting[row]])
    steps = (int(run.steps[witness].number[step]),) if step >= 0 else ()
    span = max(t.span_s[1] - t.span_s[0] for t in run.traces)
    return Finding("stuck", "rank" if len(rows) == 1 else "several", tuple(run.ranks[rows].tolist()), steps,
                   missing[row] / span if span > 0 else 1.0, 1000.0, (evidence,), "never began a collective",
                   "look at the stack of this rank")  # fmt: skip
