"""Where a rank's time goes: each moment in one category, so that the categories add up to the wall time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.classes import HOST_CLASSES, host_classes
from telekit.diagnose.analysis.intervals import Sweep, sweep, union
from telekit.diagnose.analysis.steps import Steps
from telekit.diagnose.trace import Floats, Trace

IDLE = (*HOST_CLASSES, "silent")
CATEGORIES = ("compute", "overlap", "transfer", "waiting", "copy", *IDLE)
"""``compute``: kernels alone; ``overlap``: kernels with communication or copies under them; ``transfer`` and
``waiting``: exposed communication that moves data, and that waits for another rank; ``copy``: copies alone; the others:
the device idles, by what its host does then."""
LONG_SHARE = 0.5
"""A plain host event longer than this share of its step frames other work; it says nothing about an idle device."""


@dataclass(frozen=True, eq=False)
class Breakdown:
    """One rank's time.

    Parameters
    ----------
    seconds : (steps, categories) array
        Columns are :data:`CATEGORIES`.
    longest_idle_s : (steps,) array
        The longest time without any work on the device.
    edges_s : (steps + 1,) array
        Step boundaries.
    gap_start_s, gap_end_s : arrays
        All times without kernels (communication may run), ascending.
    """

    seconds: Floats
    longest_idle_s: Floats
    edges_s: Floats
    gap_start_s: Floats
    gap_end_s: Floats

    @property
    def wall_s(self) -> Floats:
        """Length of each step."""
        return np.diff(self.edges_s)

    def total_s(self) -> dict[str, float]:
        """Seconds of each category over all steps; they add up to the wall time."""
        return dict(zip(CATEGORIES, self.seconds.sum(axis=0).tolist(), strict=True))

    @property
    def span_s(self) -> tuple[float, float]:
        """Begin of the first step and end of the last."""
        return float(self.edges_s[0]), float(self.edges_s[-1])


def break_down(trace: Trace, steps: Steps, transfer: tuple[Floats, Floats] | None = None) -> Breakdown:
    """Put every moment of a rank's steps into one of :data:`CATEGORIES`.

    Parameters
    ----------
    trace : Trace
        One rank, repaired.
    steps : Steps
        Its steps.
    transfer : (start_s, end_s), optional
        When its communication moves data; the rest of it waits. Default: all of it moves data.
    """
    edges = steps.edges_s
    window = (float(edges[0]), float(edges[-1]))
    found, category = pieces(trace, steps, transfer)
    step = np.clip(np.searchsorted(edges, found.edges_s[:-1], side="right") - 1, 0, max(len(edges) - 2, 0))
    steps_count = len(edges) - 1
    flat = step * len(CATEGORIES) + category
    seconds = np.bincount(flat, weights=found.length_s, minlength=steps_count * len(CATEGORIES))
    longest = _longest(found, step, steps_count)
    kernels = union(trace.start_s[k := trace.is_kind("kernel")], trace.end_s[k])
    gaps = np.r_[window[0], kernels[1]], np.r_[kernels[0], window[1]]
    real = gaps[1] > gaps[0]
    return Breakdown(
        np.asarray(seconds, float).reshape(steps_count, len(CATEGORIES)),
        longest,
        edges,
        gaps[0][real],
        gaps[1][real],
    )


def pieces(
    trace: Trace, steps: Steps, transfer: tuple[Floats, Floats] | None = None
) -> tuple[Sweep, NDArray[np.int64]]:
    """Cut a rank's steps at every change, and say what each piece is: an index into :data:`CATEGORIES`.

    Parameters as of :func:`break_down`.
    """
    edges = steps.edges_s
    found = sweep(_classes(trace, steps, transfer), (float(edges[0]), float(edges[-1])), edges.tolist())
    return found, _category(found.active)


def _classes(
    trace: Trace, steps: Steps, transfer: tuple[Floats, Floats] | None
) -> list[tuple[Floats, Floats]]:
    """Intervals of kernels, communication, its transfers, copies, and of the host's classes."""
    comm = trace.is_kind("communication") & trace.on_device
    if not trace.on_device.any():
        comm = trace.is_kind("communication")
    device = [trace.is_kind("kernel"), comm, comm, trace.is_kind("copy")]
    host = host_classes(trace)
    wall = float(np.median(np.diff(steps.edges_s))) if len(steps.edges_s) > 1 else 0.0
    frame = (host == HOST_CLASSES.index("host")) & (trace.duration_s > LONG_SHARE * wall)
    if len(steps.number) > 1:
        host = np.where(frame, -1, host)
    masks = [*device, *(host == c for c in range(len(HOST_CLASSES)))]
    found = [(trace.start_s[m], trace.end_s[m]) for m in masks]
    if transfer is not None:
        found[2] = transfer
    return found


def _category(active: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Index of the category of each piece of time."""
    compute, comm, moving, copy = active[:, 0], active[:, 1], active[:, 2], active[:, 3]
    host = active[:, 4:]
    idle = np.where(host.any(axis=1), host.argmax(axis=1), len(HOST_CLASSES)) + 5
    return np.select(
        [compute & (comm | copy), compute, comm & moving, comm, copy], [1, 0, 2, 3, 4], idle
    ).astype(np.int64)


def _longest(found: Sweep, step: NDArray[np.int64], steps: int) -> Floats:
    """Longest time without work on the device in each step."""
    idle: NDArray[np.bool_] = np.asarray(~found.active[:, :4].any(axis=1))
    begin = np.flatnonzero(idle & np.r_[True, ~idle[:-1] | (np.diff(step) > 0)])
    last = np.flatnonzero(idle & np.r_[~idle[1:] | (np.diff(step) > 0), True])
    length = found.edges_s[last + 1] - found.edges_s[begin]
    longest = np.zeros(steps)
    np.maximum.at(longest, step[begin], length)
    return longest


def longest_of(trace: Trace, steps: Steps, at: int, names: Sequence[str]) -> tuple[float, float]:
    """Start and length of a step's longest time in a row of some categories; length 0 where there is none.

    Parameters
    ----------
    trace, steps : Trace, Steps
        One rank, repaired, and its steps.
    at : int
        Which of the steps.
    names : sequence of str
        Some of :data:`CATEGORIES`.
    """
    found, category = pieces(trace, steps)
    begin, end = found.edges_s[:-1], found.edges_s[1:]
    wanted = np.isin(category, [CATEGORIES.index(n) for n in names])
    wanted &= (begin >= steps.edges_s[at]) & (end <= steps.edges_s[at + 1])
    start, stop = union(begin[wanted], end[wanted])
    if not len(start):
        return 0.0, 0.0
    longest = int(np.argmax(stop - start))
    return float(start[longest]), float(stop[longest] - start[longest])


def by_stream(trace: Trace, window: tuple[float, float] | None = None) -> dict[str, dict[str, float]]:
    """Busy and idle seconds of each stream of a device (or of each thread, where no device was traced)."""
    span = window or trace.span_s
    device = trace.on_device
    which = device & trace.is_kind("kernel", "communication", "copy") if device.any() else ~device
    found: dict[str, dict[str, float]] = {}
    for lane in np.unique(trace.lane[which]):
        mine = which & (trace.lane == lane)
        start, end = union(np.clip(trace.start_s[mine], *span), np.clip(trace.end_s[mine], *span))
        busy = float((end - start).sum())
        found[str(trace.lanes[lane])] = {"busy_s": busy, "idle_s": span[1] - span[0] - busy}
    return found


def idle_event(
    trace: Trace, start_s: float, end_s: float, names: Sequence[str] = HOST_CLASSES
) -> dict[str, Any] | None:
    """Return the host's most telling event of some classes during a time, as evidence; None where there is none."""
    host = host_classes(trace)
    wanted = [HOST_CLASSES.index(n) for n in names if n in HOST_CLASSES]
    during = (trace.start_s < end_s) & (trace.end_s > start_s) & np.isin(host, wanted)
    at = np.flatnonzero(during)
    if not len(at):
        return None
    shared = np.minimum(trace.end_s[at], end_s) - np.maximum(trace.start_s[at], start_s)
    order = np.lexsort((-shared, host[at]))
    heavy = shared[order] >= 0.3 * (end_s - start_s)
    return trace.event(int(at[order[np.argmax(heavy)] if heavy.any() else np.argmax(shared)]))
