"""What issuing costs a host, out of traces: only where it did nothing but issue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.intervals import union
from telekit.diagnose.pairing import launch_of
from telekit.diagnose.trace import DEVICE_KINDS, Trace

Floats = NDArray[np.float64]

_FEW = 8
"""Values that a fit needs."""
_QUEUE = 32
"""No device's queue is so short: of fewer launches that wait, it is not full."""
_BUSY = 0.95
"""A device that works for this share of the time is what the host waits for, if it waits."""


@dataclass(frozen=True)
class HostTimes:
    """What issuing costs.

    Parameters
    ----------
    host_launch_s : float
        From the start of one launch call to that of the next, where the host does nothing but issue (median).
    launch_call_s : float
        The call alone (median).
    launch_s : float
        Between two kernels of a stream when both wait there already (median).
    kernel_s : float
        Kernels' mean time.
    """

    host_launch_s: float
    launch_call_s: float
    launch_s: float
    kernel_s: float

    @property
    def host_bound(self) -> bool:
        """Whether the host is slower at issuing than the device at running."""
        return self.host_launch_s > self.kernel_s + self.launch_s


def fit_host(traces: Iterable[Trace]) -> HostTimes | None:
    """Fit what issuing costs; None where launches do not show it.

    From one launch to the next passes what issuing costs only where the host does nothing else: not where it waited
    for the device, as its queue was full or it had to synchronise.
    """
    between: list[Floats] = []
    calls: list[Floats] = []
    gaps: list[Floats] = []
    kernels: list[Floats] = []
    for trace in traces:
        launches = np.flatnonzero(trace.is_kind("launch"))
        device = np.flatnonzero(trace.is_kind("kernel"))
        calls.append(trace.duration_s[launches])
        kernels.append(trace.duration_s[device])
        between += _issuing(trace, launches)
        gaps += _gaps_when_queued(trace, device)
    if sum(map(len, between)) < _FEW:
        return None
    all_gaps = np.concatenate([*gaps, np.zeros(0)])
    return HostTimes(
        float(np.median(np.concatenate(between))),
        float(np.median(np.concatenate(calls))),
        float(np.median(all_gaps)) if len(all_gaps) else 0.0,
        float(np.concatenate(kernels).mean()) if sum(map(len, kernels)) else 0.0,
    )


def _issuing(trace: Trace, launches: NDArray[np.int64]) -> list[Floats]:
    """Take the times from a launch to the next one of its thread in which the host did nothing but issue."""
    device = np.flatnonzero(trace.on_device & trace.is_kind(*DEVICE_KINDS))
    launch = launch_of(trace, device)
    device, launch = device[launch >= 0], launch[launch >= 0]
    if not len(device):
        return []
    done = np.full(len(launches), np.nan)  # when what each put on the device has ended
    np.fmax.at(done, np.searchsorted(launches, launch), trace.end_s[device])
    ends = np.sort(done[np.isfinite(done)])
    start = trace.start_s[launches]
    depth = np.arange(len(launches)) - np.searchsorted(ends, start, "right") - np.cumsum(np.isnan(done))
    found = []
    waits = np.flatnonzero(trace.is_kind("wait", "data") & ~trace.on_device)
    told = bool(trace.is_kind("wait")[waits].any())  # a trace with some waits of the host has them all
    paced = _device_s(trace, device)
    for lane in np.unique(trace.lane[launches]):
        mine = np.flatnonzero(trace.lane[launches] == lane)
        now, then = mine[:-1], mine[1:]
        length = start[then] - start[now]
        ran = done[now] - start[now]
        free = (ran > length) | (ran < length / 2) | told | _apart(length, ran)
        full = (depth[now] >= max(_QUEUE, 0.9 * depth.max())) & (depth[then] <= depth[now])
        inside = (trace.end_s[launches[now]] - start[now] > 0.8 * length) & (
            np.abs(length / paced - 1) < 0.25
        )
        here = np.sort(trace.start_s[waits[trace.lane[waits] == lane]])
        waited = np.searchsorted(here, start[then]) > np.searchsorted(here, start[now])
        found.append(length[free & ~full & ~inside & ~waited & (length > 0)])
    return found


def _apart(length: Floats, ran: Floats) -> bool:
    """Whether launches follow each other however long kernels take: a host that waits keeps its distance to their ends.

    Of kernels all alike nothing can be told.
    """
    after = (length - ran)[ran <= length]
    if len(after) < _FEW:
        return False
    own, kept = (float(np.subtract(*np.quantile(x, [0.75, 0.25]))) for x in (length[ran <= length], after))
    return kept > max(2 * own, 0.01 * float(np.median(length)))


def _device_s(trace: Trace, device: NDArray[np.int64]) -> float:
    """Time from one piece of work of a device that never idles to the next; without end where it does idle."""
    start, end = union(trace.start_s[device], trace.end_s[device])
    span = float(end[-1] - start[0]) if len(start) else 0.0
    busy = span > 0 and float((end - start).sum()) > _BUSY * span
    return span / len(device) if busy else np.inf


def _gaps_when_queued(trace: Trace, device: NDArray[np.int64]) -> list[Floats]:
    """Gaps between neighbours of a stream where the second was launched well before the first ended."""
    found = []
    for lane in np.unique(trace.lane[device]):
        rows = device[trace.lane[device] == lane]
        launch = launch_of(trace, rows[1:])
        gap = trace.start_s[rows[1:]] - trace.end_s[rows[:-1]]
        queued = (launch >= 0) & (trace.end_s[launch] + 20e-6 < trace.end_s[rows[:-1]])
        found.append(gap[queued & (gap >= 0)])
    return found
