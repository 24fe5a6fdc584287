"""What every trace gets after reading: twice-told events dropped, impossible times cut, steps filled in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.marks import step_marks
from telekit.diagnose.pairing import launch_of
from telekit.diagnose.trace import Trace

FAR_S = 86_400.0
"""Events this far from the middle of the trace are of another clock."""
ROUNDING_S = 2e-6
"""Events of one stream may overlap by this much from rounding to microseconds."""
GUESSED = "a rank is taken from the name of a file or its folder, as its trace does not say it"
BY_DEVICE = "ranks are taken from the order of the devices that the processes use, as nothing says them"
UNKNOWN = "the rank is not known: neither the trace nor its file name says (rank3.json would)"
_RANK = re.compile(
    r"(?:^|(?:(?<![a-z0-9])(?P<of>[a-z]+))?[^a-z0-9])(?:rank|worker)[-_ ]?(?P<rank>\d{1,7})(?![a-z0-9])"
    r"(?![-_.]\d{1,2}[-_.]\d{1,2})",  # a date
    re.IGNORECASE,
)
_NOT_OF_ALL = {"lora", "low", "top", "local", "node", "tp", "cp", "pp", "dp", "ep", "etp", "edp", "sp"}
"""A rank of these is a size, or one in a group."""
_DEVICE_FILE = re.compile(r"(?:^|[-_. ])(?:npu|gpu|device)[-_ ]?(\d{1,4})$", re.IGNORECASE)
_ASCEND_FILE = re.compile(r"^profiler_info_(\d{1,7})\.json$")


def finished(trace: Trace, streams: bool = True) -> Trace:
    """Return the trace without duplicates, times of another clock and overlaps on a stream, with its steps.

    Parameters
    ----------
    trace : Trace
        As read.
    streams : bool
        As of a :class:`~telekit.diagnose.trace.Trace`.
    """
    problems = ProblemCounter()
    trace = replace(trace, streams=streams)
    for repair in (_names, _far, _once, _apart):
        trace = repair(trace, problems)
    trace = with_steps(trace)
    notes = list(trace.notes)
    if trace.rank is None:
        notes.append(UNKNOWN)
    if len(trace) and not trace.on_device.any():
        notes.append("no event is on a device: only host events were recorded")
    elif len(trace) and not trace.is_kind("communication").any():
        notes.append(
            "no communication kernel was found: exposed communication cannot be told from this trace"
        )
    devices = len(_devices(trace))
    if devices > 1:
        notes.append(f"kernels of {devices} devices are in one trace: together they count as one rank")
    return replace(trace, notes=tuple(notes), problems=(*trace.problems, *problems.listed()))


def _devices(trace: Trace) -> list[str]:
    """Name the devices that run a trace's kernels."""
    lanes = np.unique(trace.lane[trace.on_device & trace.is_kind("kernel")]).tolist()
    return sorted({trace.lanes[lane].process for lane in lanes})


def by_device(traces: Sequence[Trace]) -> list[Trace]:
    """Give processes of unknown rank the order of their devices, where each runs kernels on one of its own."""
    used = [_devices(t) for t in traces]
    names = {name for devices in used for name in devices}
    known = any(t.rank is not None for t in traces) or any(len(devices) != 1 for devices in used)
    if len(traces) < 2 or known or len(names) < len(traces):
        return list(traces)
    order = sorted(names, key=lambda n: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", n)])
    said = [tuple(n for n in t.notes if n != UNKNOWN) for t in traces]
    return [
        replace(t, rank=order.index(devices[0]), notes=(*notes, BY_DEVICE))
        for t, devices, notes in zip(traces, used, said, strict=True)
    ]


def ranked(path: Path, said: int | None) -> dict[str, Any]:
    """Return the rank, as said or else by the file's name, and a note if so: ``rank`` and ``notes`` of a trace."""
    if said is not None:
        return {"rank": said, "notes": ()}
    found = rank_of(path)
    return {"rank": found, "notes": () if found is None else (GUESSED,)}


def rank_of(path: Path) -> int | None:
    """Return the rank that a file's name says, else its nearest folders' names; None where none says just one.

    Ascend's profilers name a file ``profiler_info_<rank>.json`` in the folder above their output.
    """
    for part in (path.name, *(p.name for p in list(path.parents)[:2])):
        said = {int(m["rank"]) for m in _RANK.finditer(part) if (m["of"] or "").lower() not in _NOT_OF_ALL}
        if len(said) == 1:
            return said.pop()
    found = _DEVICE_FILE.search(path.name.split(".")[0])
    if found:
        return int(found[1])
    if path.parent.name == "ASCEND_PROFILER_OUTPUT":
        ranks = [m[1] for p in path.parent.parent.iterdir() if (m := _ASCEND_FILE.match(p.name))]
        return int(ranks[0]) if len(ranks) == 1 else None
    return None


def median_place(times: Any) -> int:
    """Median of nanoseconds in an array; 0 of none."""
    return int(np.median(np.frombuffer(times, np.int64))) if len(times) else 0


def _place(trace: Trace, indices: Any) -> list[str]:
    return [f"{trace.names[trace.name[i]][:60]!r} at {trace.start_s[i]:.6f} s" for i in indices[:3]]


def _note(problems: ProblemCounter, trace: Trace, which: Any, reason: str, lost: bool) -> None:
    """Count events of a mask under one reason."""
    indices = np.flatnonzero(which)
    if len(indices):
        problems.add(reason, ", ".join(_place(trace, indices)), lost=lost, count=len(indices))


def _names(trace: Trace, problems: ProblemCounter) -> Trace:
    """Write control characters and bytes that are not UTF-8 visibly."""
    odd = [i for i, name in enumerate(trace.names) if not name.isprintable()]
    if not odd:
        return trace
    names = list(trace.names)
    for i in odd:
        names[i] = "".join(c if c.isprintable() else repr(c)[1:-1] for c in names[i])
    trace = replace(trace, names=tuple(names))
    _note(problems, trace, np.isin(trace.name, odd),
          "had characters in its name that cannot be shown: written as escapes", lost=False)  # fmt: skip
    return trace


def _far(trace: Trace, problems: ProblemCounter) -> Trace:
    """Drop events a day and more from the middle of the trace, and those that last a day and more."""
    if not len(trace) or trace.span_s[1] - trace.span_s[0] < FAR_S:
        return trace
    endless = trace.duration_s > FAR_S
    _note(problems, trace, endless, "lasts over a day", lost=True)
    trace = trace.select(~endless)
    if not len(trace):
        return trace
    far = np.abs(trace.start_s - float(np.median(trace.start_s))) > FAR_S
    _note(problems, trace, far, "its time is over a day from the rest of the trace", lost=True)
    trace = trace.select(~far)
    zero = float(trace.start_s[0]) if len(trace) else 0.0
    base = None if trace.base_ns is None else trace.base_ns + round(zero * 1e9)
    return replace(trace.shifted(-zero), base_ns=base)


def _once(trace: Trace, problems: ProblemCounter) -> Trace:
    """Drop what stands twice: the same name, lane, start, end and ids, longer than 0.

    Host events without ids may really be two, one inside the other: they stay.
    """
    same = (np.diff(trace.start_s) == 0) & (np.diff(trace.end_s) == 0) & (trace.duration_s[1:] > 0)
    near = np.zeros(len(trace), bool)
    near[1:] |= same
    near[:-1] |= same
    rows = np.flatnonzero(near)
    keys = np.stack([trace.start_s[rows], trace.end_s[rows], trace.name[rows].astype(float),
                     trace.lane[rows].astype(float), trace.correlation[rows].astype(float)])  # fmt: skip
    _, first = np.unique(keys, axis=1, return_index=True)
    twice = np.zeros(len(trace), bool)
    twice[np.delete(rows, first)] = True
    unsure = twice & (trace.correlation == -1) & ~trace.on_device
    _note(
        problems,
        trace,
        unsure,
        "stands twice and has no id: kept, it may be one inside the other",
        lost=False,
    )
    twice &= ~unsure
    _note(problems, trace, twice, "stands twice", lost=True)
    trace = replace(trace, correlation=np.maximum(trace.correlation, -1))
    return trace.select(~twice) if twice.any() else trace


def _apart(trace: Trace, problems: ProblemCounter) -> Trace:
    """Cut an event of a stream where the next one begins: a stream runs one at a time."""
    now, then = trace.overruns()
    end = trace.end_s.copy()
    wrong = np.zeros(len(trace), bool)
    wrong[now[end[now] - trace.start_s[then] > ROUNDING_S]] = True
    end[now] = trace.start_s[then]
    _note(problems, trace, wrong, "ran into the next event of its stream, where it was cut", lost=False)
    return replace(trace, end_s=end)


def with_steps(trace: Trace) -> Trace:
    """Return the trace with the step of each event: that of the annotation it starts in, or of its launch."""
    number = step_marks(trace).number
    marks = number >= 0
    if not marks.any() or (trace.step >= 0).any():
        return trace
    starts, ends, numbers = trace.start_s[marks], trace.end_s[marks], number[marks]
    at = np.searchsorted(starts, trace.start_s, "right") - 1
    inside = (at >= 0) & (trace.start_s < ends[at])
    step = np.where(inside, numbers[at], -1).astype(np.int32)
    caused = np.flatnonzero(trace.on_device)
    launch = launch_of(trace, caused)
    step[caused[launch >= 0]] = step[launch[launch >= 0]]
    return replace(trace, step=step)
