"""Where one training step ends and the next begins, on the host and on the device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.trace import Floats, Trace

MARK = re.compile(r"^(?:ProfilerStep|(?:train(?:ing)?[_ ]?)?(?:step|iteration))[ #_:]*(\d+)$", re.IGNORECASE)
"""Names that number a step."""
REGULAR = 0.25
"""A name that recurs with gaps that vary by less than this (standard deviation over mean) may mark steps."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of one rank.

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
    """

    number: NDArray[np.int64]
    edges_s: Floats
    of_event: NDArray[np.int64]
    kernels: NDArray[np.int64]
    found_by: str

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Numbers of steps without a kernel though others have some (a profiler drops those at its start)."""
        return tuple(self.number[(self.kernels == 0) & bool(self.kernels.any())].tolist())

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which steps have their kernels."""
        return (self.kernels > 0) | (not self.kernels.any())

    def averages_s(self, seconds: Floats) -> float:
        """Mean of one number a step over the complete steps."""
        return float(np.asarray(seconds)[self.complete].mean())


def find_steps(trace: Trace) -> Steps:
    """Find the steps of one rank: marked, else by the rarest name that recurs regularly, else the trace as one."""
    if not len(trace):
        none = np.zeros(0, np.int64)
        return Steps(none, np.zeros(1), none, none, "whole trace")
    step = _marked(trace)
    if (step >= 0).any():
        return _windows(trace, _spread(trace, step), "marks")
    starts, name = _recurring(trace)
    if len(starts):
        step = np.searchsorted(starts, trace.start_s, side="right") - 1
        return _windows(trace, step, f"every {name}")
    return _windows(trace, np.zeros(len(trace), np.int64), "whole trace")


def is_mark(trace: Trace) -> NDArray[np.bool_]:
    """Which events name a step as a whole."""
    return np.array([bool(MARK.match(name)) for name in trace.names] or [False])[trace.name]


def _marked(trace: Trace) -> NDArray[np.int64]:
    """Step of each event as the trace or a step's own mark says."""
    step = trace.step.astype(np.int64)
    marks = np.flatnonzero(is_mark(trace) & ~trace.on_device & (step < 0))
    for i in marks:
        found = MARK.match(trace.names[trace.name[i]])
        step[i] = int(found[1]) if found else -1
    return step


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
    launches = np.flatnonzero(host & trace.is_kind("launch") & (trace.correlation >= 0) & (step >= 0))
    if len(launches):
        launches = launches[np.argsort(trace.correlation[launches], kind="stable")]
        ids = trace.correlation[launches]
        where = np.minimum(np.searchsorted(ids, trace.correlation), len(ids) - 1)
        tied = (ids[where] == trace.correlation) & ~host & (step < 0)
        step[tied] = step[launches[where[tied]]]
    return np.where((step < 0) & ~host, guess, step)


def _windows(trace: Trace, step: NDArray[np.int64], found_by: str) -> Steps:
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
    return Steps(numbers, np.append(edges, end), index, kernels, found_by)


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
    names, counts = np.unique(trace.name[pool], return_counts=True)
    span = trace.span_s[1] - trace.span_s[0]
    for name in names[np.argsort(counts, kind="stable")]:
        starts = trace.start_s[pool[trace.name[pool] == name]]
        gaps = np.diff(starts)
        if len(gaps) < 2 or gaps.sum() < 0.5 * span:
            continue
        if gaps.mean() > 0 and gaps.std() < REGULAR * gaps.mean():
            return starts, trace.names[name]
    return np.zeros(0), ""
