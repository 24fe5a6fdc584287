"""Where one training step ends and the next begins, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.marks import step_marks
from telekit.diagnose.pairing import launch_of, launches_of
from telekit.diagnose.trace import Floats, Trace

REGULAR = 0.25
"""A name that recurs with gaps that vary by less than this (standard deviation over mean) may mark steps."""
FILLED = 0.75
"""Steps that fill this share of the time from one to the next leave none out, though their numbers be apart."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of one rank; what its trace leaves out between them stands as one step without events.

    Parameters
    ----------
    number : (steps,) int array
        Ascending.
    edges_s : (steps + 1,) array
        Where each begins; the last is the end of the last. Work that a step launched and the device finished later
        belongs to the step that launched it as far as an order in time allows.
    of_event : (events,) int array
        Index of each event's step, -1 before the first and after the last.
    kernels : (steps,) int array
        Events of the device in each.
    found_by : str
        ``marks``, the name that recurs, or ``whole trace``.
    unfinished : (events,) bool array
        What ran after the last mark that ended: of the next step, whose length is not known. It has no place in
        ``number``; in a run that hangs it is the step that hung.
    missing : (steps,) bool array
        Which stand for steps (one or several; ``number`` is the first) that the trace does not hold.
    note : str
        What a reader should know of how they were found; mostly nothing.
    """

    number: NDArray[np.int64]
    edges_s: Floats
    of_event: NDArray[np.int64]
    kernels: NDArray[np.int64]
    found_by: str
    unfinished: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    note: str = ""

    @property
    def seen(self) -> NDArray[np.int64]:
        """Numbers of the steps that the trace holds."""
        return self.number[~self.missing]

    def number_of(self, events: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the number of each event's step; that of an unfinished one is the next; -1 of none."""
        if not len(self.number):
            return np.full(len(events), -1, np.int64)
        step = self.of_event[events]
        numbered = np.where(step >= 0, self.number[step], -1)
        return np.where(self.unfinished[events], self.number[-1] + 1, numbered)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Numbers of steps without a kernel though others have some (a profiler drops those at its start)."""
        return tuple(self.number[(self.kernels == 0) & ~self.missing & bool(self.kernels.any())].tolist())

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which steps have their kernels."""
        return ((self.kernels > 0) | (not self.kernels.any())) & ~self.missing


def find_steps(trace: Trace) -> Steps:
    """Find the steps of one rank: marked, else by the rarest name that recurs regularly, else the trace as one."""
    if not len(trace):
        none = np.zeros(0, np.int64)
        return Steps(none, np.zeros(1), none, none, "whole trace", none.astype(bool), none.astype(bool))
    marks = step_marks(trace)
    step = np.where((trace.step < 0) & (marks.number >= 0), marks.number, trace.step)
    if (step >= 0).any():
        step = _spread(_within(trace, step, marks.number), step)
        unfinished = _unfinished(trace, step, marks.number)
        found = _windows(
            _within(trace, step, marks.number), np.where(unfinished, -1, step), "marks", unfinished
        )
        others = ", ".join(repr(name) for name in marks.passed)
        note = f"steps are counted by marks like {marks.followed!r}, not by those like {others}"
        return replace(found, note=note if others else "")
    starts, name = _recurring(trace)
    if len(starts):
        step = np.searchsorted(starts, trace.start_s, side="right") - 1
        return _windows(trace, step, f"every {name}")
    return _windows(trace, np.zeros(len(trace), np.int64), "whole trace")


def _within(trace: Trace, step: NDArray[np.int64], number: NDArray[np.int64]) -> Trace:
    """End host events with their step's mark: what outlasts it (a frame that stops the profiler) is not the step's."""
    marks = np.flatnonzero(number >= 0)
    if not len(marks):
        return trace
    numbers, which = np.unique(number[marks], return_inverse=True)
    ends = np.full(len(numbers), -np.inf)
    np.maximum.at(ends, which, trace.end_s[marks])
    at = np.minimum(np.searchsorted(numbers, step), len(numbers) - 1)
    ours = ~trace.on_device & (numbers[at] == step)
    cut = np.maximum(np.minimum(trace.end_s, ends[at]), trace.start_s)
    return replace(trace, end_s=np.where(ours, cut, trace.end_s))


def _unfinished(trace: Trace, step: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which events belong to a step that has begun and not ended: profilers write a step's mark at its end.

    They run on the host after the last mark (its ``number`` known), or were launched there; also where the trace
    numbers them, as long as other steps have marks.
    """
    marks = np.flatnonzero(number >= 0)
    none = np.zeros(len(trace), bool)
    if not len(marks):
        return none
    last = int(step[marks].max())
    late = ~trace.on_device & (trace.start_s >= trace.end_s[marks].max()) & ((step < 0) | (step > last))
    late |= step > last
    launches = launches_of(trace)
    launched = trace.correlation[launches[late[launches]]]
    late |= trace.on_device & (step < 0) & np.isin(trace.correlation, launched)
    return late if (step[~late] >= 0).any() else none


def _spread(trace: Trace, step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give events without a step that of their launch, else that of the mark they start in."""
    host = ~trace.on_device
    step = step.copy()
    known = np.flatnonzero(host & (step >= 0))
    if not len(known):
        known = np.flatnonzero(step >= 0)
    numbers, first = np.unique(step[known], return_index=True)
    starts = trace.start_s[known][first]  # events ascend, so the first of each is its earliest
    ends = np.full(len(numbers), -np.inf)
    np.maximum.at(ends, np.searchsorted(numbers, step[known]), trace.end_s[known])
    order = np.argsort(starts)
    at = np.searchsorted(starts[order], trace.start_s, side="right") - 1
    inside = (at >= 0) & (trace.start_s < np.append(ends[order], -np.inf)[at])
    guess = np.where(inside, numbers[order][at], -1)
    step[host] = np.where(step[host] >= 0, step[host], guess[host])
    launches = launches_of(trace)
    caused = np.flatnonzero(~host & (step < 0))
    launch = launch_of(trace, caused, launches[step[launches] >= 0])
    step[caused[launch >= 0]] = step[launch[launch >= 0]]
    return np.where((step < 0) & ~host, guess, step)


def _windows(
    trace: Trace, step: NDArray[np.int64], found_by: str, unfinished: NDArray[np.bool_] | None = None
) -> Steps:
    """Cut time into steps: none begins before its host began it, nor while the device works on the one before."""
    numbers = np.unique(step[step >= 0])
    index = np.where(step >= 0, np.searchsorted(numbers, step), -1)
    device = trace.on_device & trace.is_kind("kernel", "communication", "copy")
    first, last = _extent(trace, index, ~device, len(numbers))
    begun, done = _extent(trace, index, device, len(numbers))
    edges = np.where(np.isfinite(first), first, begun)
    before = np.r_[-np.inf, np.maximum.accumulate(done)[:-1]]
    edges = np.minimum(np.maximum(edges, before), np.where(np.isfinite(begun), begun, np.inf))
    edges = np.maximum.accumulate(edges)
    end = max(float(np.maximum(last, done).max()), float(edges[-1]))
    kernels = np.bincount(index[device & (index >= 0)], minlength=len(numbers)).astype(np.int64)
    tail = np.zeros(len(trace), bool) if unfinished is None else unfinished
    missing = np.zeros(len(numbers), bool)
    found = Steps(numbers, np.append(edges, end), index, kernels, found_by, tail, missing)
    return _with_holes(found, np.maximum(last, done), begun)


def _with_holes(steps: Steps, ends_s: Floats, begun_s: Floats) -> Steps:
    """Put a step without events where numbers are left out.

    The step before a hole lasts as long as it shows events, and the one after it begins with its work on the device:
    what the device had to do before is not known.
    """
    after = _holes(steps, ends_s)
    if not len(after):
        return steps
    edges = steps.edges_s.copy()
    next_ = np.where(np.isfinite(begun_s[after + 1]), begun_s[after + 1], edges[after + 1])
    edges[after + 1] = np.clip(next_, edges[after + 1], edges[after + 2])
    closed = np.clip(ends_s[after], edges[after], edges[after + 1])
    moved = np.arange(len(steps.number)) + np.searchsorted(after, np.arange(len(steps.number)))
    return replace(
        steps,
        number=np.insert(steps.number, after + 1, steps.number[after] + 1),
        edges_s=np.insert(edges, after + 1, closed),
        of_event=np.where(steps.of_event >= 0, moved[steps.of_event], -1),
        kernels=np.insert(steps.kernels, after + 1, 0),
        missing=np.insert(steps.missing, after + 1, True),
    )


def _holes(steps: Steps, ends_s: Floats) -> NDArray[np.intp]:
    """Find steps after which numbers are left out; those of every tenth step that is marked are not, where it lasts."""
    apart = np.diff(steps.number)
    if not len(apart):
        return np.zeros(0, np.intp)
    usual = int(apart.min())
    length = np.diff(steps.edges_s[:-1])
    if usual > 1 and np.median((ends_s - steps.edges_s[:-1])[:-1][apart == usual]) < FILLED * np.median(
        length[apart == usual]
    ):
        usual = 1
    return np.flatnonzero(apart > usual)


def _extent(
    trace: Trace, index: NDArray[np.int64], which: NDArray[np.bool_], steps: int
) -> tuple[Floats, Floats]:
    """Earliest start and latest end of some events in each step; infinite where there are none."""
    use = which & (index >= 0)
    first, last = np.full(steps, np.inf), np.full(steps, -np.inf)
    np.minimum.at(first, index[use], trace.start_s[use])
    np.maximum.at(last, index[use], trace.end_s[use])
    return first, last


def _recurring(trace: Trace) -> tuple[Floats, str]:
    """Return starts of the rarest name that recurs regularly over most of the trace; nothing where none does."""
    device = trace.on_device & trace.is_kind("kernel", "communication")
    pool = np.flatnonzero(device if device.any() else trace.is_kind("host", "launch"))
    pool = pool[np.argsort(trace.name[pool], kind="stable")]
    names, place, count = np.unique(trace.name[pool], return_inverse=True, return_counts=True)
    same = place[1:] == place[:-1]
    gaps, of = np.diff(trace.start_s[pool])[same], place[1:][same]
    total = np.bincount(of, gaps, len(names))
    mean = total / np.maximum(count - 1, 1)
    spread = np.sqrt(np.bincount(of, (gaps - mean[of]) ** 2, len(names)) / np.maximum(count - 1, 1))
    span = trace.span_s[1] - trace.span_s[0]
    regular = np.flatnonzero((count > 2) & (total >= 0.5 * span) & (mean > 0) & (spread < REGULAR * mean))
    if not len(regular):
        return np.zeros(0), ""
    best = int(regular[np.argmin(count[regular])])
    return trace.start_s[pool[place == best]], trace.names[names[best]]
