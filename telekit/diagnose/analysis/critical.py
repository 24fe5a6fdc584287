"""The chain of work that a rank's step could not have been shorter than, over host and device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.diagnose.analysis.classes import HOST_CLASSES, host_classes
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.analysis.intervals import sweep
from telekit.diagnose.pairing import launch_of
from telekit.diagnose.trace import DEVICE_KINDS, KINDS, Floats, Trace
from telekit.units import format_seconds

MOST_NAMES = 8
"""Names of the device's work told of a path."""
LEAST_SHARE = 0.005
"""A kind of less than this share of the path is not told in words."""


@dataclass(frozen=True)
class Link:
    """One piece of the path: an event (index; -1 nobody's time), what it was, and when.

    Parameters
    ----------
    event : int
        Index in the trace; -1 for time in which nothing on the path ran.
    kind : str
        Of an event its kind; of the host's time one of :data:`~telekit.diagnose.analysis.classes.HOST_CLASSES`, or
        ``idle`` where no host event is seen.
    start_s, end_s : float
        By the rank's clock; pieces follow one another without a gap.
    """

    event: int
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class CriticalPath:
    """Pieces in order of time; their lengths add up to the window.

    Parameters
    ----------
    links : tuple of Link
        The path.
    names_s : mapping
        Time on the path by the name of the device's work, most first.
    """

    links: tuple[Link, ...]
    names_s: Mapping[str, float]

    def seconds(self) -> dict[str, float]:
        """Time on the path by kind."""
        found: dict[str, float] = {}
        for link in self.links:
            found[link.kind] = found.get(link.kind, 0.0) + link.end_s - link.start_s
        return found


@dataclass(frozen=True)
class CriticalStep:
    """The critical path of one rank's step.

    Parameters
    ----------
    rank, step : int
        Its rank, and the step's number.
    path : CriticalPath
        The path.
    """

    rank: int
    step: int
    path: CriticalPath

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        longest = dict(list(self.path.names_s.items())[:MOST_NAMES])
        return {"rank": self.rank, "step": self.step, "seconds": self.path.seconds(), "longest_s": longest}

    def __str__(self) -> str:
        """One line: what the path consists of, and its longest work."""
        seconds = self.path.seconds()
        whole = sum(seconds.values())
        order = sorted(seconds.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{kind} {s / whole:.0%}" for kind, s in order if s >= LEAST_SHARE * whole)
        text = f"critical path of rank {self.rank}, step {self.step} ({format_seconds(whole)}): {parts}"
        longest = [(name, s) for name, s in self.path.names_s.items() if s >= LEAST_SHARE * whole][:3]
        names = ", ".join(f"{name[:60]} {s / whole:.0%}" for name, s in longest)
        return f"{text}; longest on the device: {names}" if names else text


def critical_step(run: Run, column: int | None = None) -> CriticalStep | None:
    """Walk the path of the rank with most time of its own, which the others wait for; None without a device's work.

    Parameters
    ----------
    run : Run
        What was measured.
    column : int, optional
        Which of the common steps; default the median one of the rank that has most over all of them.
    """
    if not run.number.size or run.step_s <= 0 or not any(t.on_device.any() for t in run.traces):
        return None
    own = np.where(run.present, run.wall_s - run.category("waiting"), 0.0)
    if column is None:
        row = int(np.argmax(own.sum(axis=1) / np.maximum(run.present.sum(axis=1), 1)))
        wall = np.where(run.present[row], run.wall_s[row], np.inf)
        column = int(np.argsort(wall, kind="stable")[(int(run.present[row].sum()) - 1) // 2])
    else:
        row = int(np.argmax(own[:, column]))
    if not run.present[row, column]:
        return None
    edges = run.breakdowns[row].edges_s[run.column[row, column] :][:2]
    path = critical_path(run.traces[row], (float(edges[0]), float(edges[1])))
    return CriticalStep(int(run.ranks[row]), int(run.number[column]), path)


def critical_path(trace: Trace, window: tuple[float, float] | None = None) -> CriticalPath:
    """Walk back from the last work of a rank to what each piece waited for.

    A kernel waited for whichever ended last: the kernel before it on any stream (a stream's order, or an event
    between streams) or its launch; a launch waited for what its thread did before, and a synchronisation for the
    device. Without correlation ids only the device's order is known.

    Parameters
    ----------
    trace : Trace
        One rank, repaired.
    window : (float, float), optional
        Default: the trace's span.
    """
    begin, end = window or trace.span_s
    device = np.flatnonzero(
        trace.on_device & trace.is_kind(*DEVICE_KINDS) & (trace.start_s < end) & (trace.end_s > begin)
    )
    device = device[np.argsort(trace.end_s[device], kind="stable")]
    starts, ends = np.maximum(trace.start_s[device], begin), np.minimum(trace.end_s[device], end)
    launch = launch_of(trace, device)
    launched = np.where(launch >= 0, trace.end_s[launch], begin)
    host = _Host(trace, (begin, end))
    links: list[Link] = []
    now, used = end, len(device)
    while now > begin:
        used = min(used, int(np.searchsorted(ends, now, side="right")))
        if used == 0:
            links += host.during(begin, now)
            break
        used -= 1
        start, done = float(starts[used]), float(ends[used])
        links += host.during(done, now)
        links.append(Link(int(device[used]), KINDS[trace.kind[device[used]]], start, done))
        earlier = min(used, int(np.searchsorted(ends, start, side="right")))
        before = float(ends[earlier - 1]) if earlier else begin
        now = before if launched[used] > before else start
        links += host.during(now, start)  # the device waited for its host
    return CriticalPath(tuple(reversed(links)), _by_name(trace, links))


def _by_name(trace: Trace, links: list[Link]) -> dict[str, float]:
    """Time of the device's work by name, most first."""
    found: dict[str, float] = {}
    for link in links:
        if link.event >= 0:
            name = trace.names[trace.name[link.event]]
            found[name] = found.get(name, 0.0) + link.end_s - link.start_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))


class _Host:
    """What a host does at each moment of a window: the most telling class that runs, found once."""

    def __init__(self, trace: Trace, window: tuple[float, float]) -> None:
        classes = host_classes(trace)
        during = np.flatnonzero((trace.start_s < window[1]) & (trace.end_s > window[0]) & (classes >= 0))
        kinds = np.unique(classes[during]).tolist()
        masks = [during[classes[during] == k] for k in kinds]
        found = sweep([(trace.start_s[m], trace.end_s[m]) for m in masks], window)
        self._names = [*(HOST_CLASSES[k] for k in kinds), "idle"]
        nothing = np.ones((len(found.length_s), 1), bool)
        kind = np.hstack([found.active, nothing]).argmax(axis=1)  # the first that runs
        change = np.flatnonzero(np.diff(kind)) + 1  # pieces of one kind in a row are one
        self._kind = kind[np.r_[0, change]]
        self._edges_s: Floats = found.edges_s[np.r_[0, change, len(kind)]]

    def during(self, start_s: float, end_s: float) -> list[Link]:
        """Pieces of a time; latest first, as the walk goes."""
        if end_s <= start_s:
            return []
        first = int(np.searchsorted(self._edges_s, start_s, side="right")) - 1
        last = int(np.searchsorted(self._edges_s, end_s, side="left"))
        edges = np.clip(self._edges_s[first : last + 1], start_s, end_s).tolist()
        kinds = [self._names[k] for k in self._kind[first:last]]
        pieces = [Link(-1, k, a, b) for k, a, b in zip(kinds, edges[:-1], edges[1:], strict=True)]
        return pieces[::-1]
