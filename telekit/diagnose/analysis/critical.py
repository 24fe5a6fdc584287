"""The chain of work that a rank's step could not have been shorter than, over host and device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.classes import HOST_CLASSES, host_classes
from telekit.diagnose.analysis.intervals import sweep
from telekit.diagnose.trace import KINDS, Trace


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
    """

    links: tuple[Link, ...]

    def seconds(self) -> dict[str, float]:
        """Time on the path by kind."""
        found: dict[str, float] = {}
        for link in self.links:
            found[link.kind] = found.get(link.kind, 0.0) + link.end_s - link.start_s
        return found


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
        trace.on_device & trace.is_kind("kernel", "communication", "copy") & (trace.start_s >= begin)
        & (trace.end_s <= end)
    )  # fmt: skip
    launch_of, classes = _launches(trace), host_classes(trace)
    by_end = device[np.argsort(trace.end_s[device], kind="stable")]
    ends = trace.end_s[by_end]
    links: list[Link] = []
    now = end
    used = len(by_end)
    while now > begin and used > 0:
        used = min(used, int(np.searchsorted(ends, now, side="right")))
        if used == 0:
            break
        event = int(by_end[used - 1])
        used -= 1
        done = float(trace.end_s[event])
        if done < now:
            links += _host(trace, classes, done, now)
        start = max(float(trace.start_s[event]), begin)
        links.append(Link(event, KINDS[trace.kind[event]], start, min(done, now)))
        earlier = min(used, int(np.searchsorted(ends, start, side="right")))
        before = float(ends[earlier - 1]) if earlier else begin
        launched = launch_of.get(int(trace.correlation[event]), begin)
        now = start
        if launched > before:  # the device waited for its host
            links += _host(trace, classes, before, now)
            now = before
    if now > begin:
        links += _host(trace, classes, begin, now)
    return CriticalPath(tuple(reversed(links)))


def _launches(trace: Trace) -> dict[int, float]:
    """When each correlation id's launch ended."""
    at = np.flatnonzero(trace.is_kind("launch") & ~trace.on_device & (trace.correlation >= 0))
    return dict(zip(trace.correlation[at].tolist(), trace.end_s[at].tolist(), strict=True))


def _host(trace: Trace, classes: NDArray[np.int64], start_s: float, end_s: float) -> list[Link]:
    """Pieces of the host's time, each by the most telling class that runs in it; latest first, as the walk goes."""
    if end_s <= start_s:
        return []
    during = np.flatnonzero((trace.start_s < end_s) & (trace.end_s > start_s) & (classes >= 0))
    kinds = np.unique(classes[during]).tolist()
    parts = [(trace.start_s[at], trace.end_s[at]) for k in kinds if len(at := during[classes[during] == k])]
    found = sweep(parts, (start_s, end_s))
    links: list[Link] = []
    for piece in range(len(found.length_s) - 1, -1, -1):
        begin, end = float(found.edges_s[piece]), float(found.edges_s[piece + 1])
        on = np.flatnonzero(found.active[piece])
        kind = HOST_CLASSES[kinds[on[0]]] if len(on) else "idle"
        if links and links[-1].kind == kind:
            links[-1] = Link(-1, kind, begin, links[-1].end_s)
        else:
            links.append(Link(-1, kind, begin, end))
    return links
