"""Launches against kernels: how far the host runs ahead, and how much the device waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.diagnose.analysis.intervals import union
from telekit.diagnose.pairing import launch_of
from telekit.diagnose.trace import DEVICE_KINDS, Floats, Trace


@dataclass(frozen=True, eq=False)
class LaunchQueue:
    """Launches and their kernels, in order of the kernels' starts.

    Parameters
    ----------
    launch_s, start_s, end_s : (n,) arrays
        End of the launching call, and the kernel.
    depth : (n,) int array
        Kernels launched and not finished when each was launched, itself left out.
    host_bound_s : float
        Seconds the device idled although nothing was queued: it waited for the host.
    window_s : float
        From the first launch to the last kernel's end.
    """

    launch_s: Floats
    start_s: Floats
    end_s: Floats
    depth: Floats
    host_bound_s: float
    window_s: float

    @property
    def delay_s(self) -> Floats:
        """From the end of the launch to the kernel's start."""
        return np.maximum(self.start_s - self.launch_s, 0)

    @property
    def busy_share(self) -> float:
        """Share of the time between the first kernel's start and the last launch interval in which a kernel ran."""
        if not len(self.start_s):
            return 0.0
        start, end = union(self.start_s, self.end_s)
        tail = max(float(self.end_s.max()), float(self.start_s[0]) + self.interval_s * len(self.start_s))
        return float((end - start).sum()) / (tail - float(self.start_s[0]))

    @property
    def interval_s(self) -> float:
        """Median time between launches; 0 of fewer than two."""
        return float(np.median(np.diff(np.sort(self.launch_s)))) if len(self.launch_s) > 1 else 0.0

    @property
    def delay_growth_s(self) -> float:
        """By how much the delay grows a kernel (median of differences): above 0 the device falls behind."""
        return float(np.median(np.diff(self.delay_s))) if len(self.start_s) > 1 else 0.0

    @property
    def host_bound_share(self) -> float:
        """Share of the window in which the device waited for the host."""
        return self.host_bound_s / self.window_s if self.window_s > 0 else 0.0

    @property
    def bound(self) -> str:
        """``host`` where the device waits much for launches, else ``device``; ``unknown`` without any."""
        if not len(self.start_s):
            return "unknown"
        return "host" if self.host_bound_share > 0.3 else "device"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {
            "interval_s": self.interval_s,
            "delay_s": float(np.median(self.delay_s)),
            "delay_growth_s": self.delay_growth_s,
            "queue_depth": float(np.median(self.depth)),
            "device_busy_share": self.busy_share,
            "host_bound_share": self.host_bound_share,
            "bound": self.bound,
        }


def launch_cost(trace: Trace) -> tuple[float, float]:
    """Median length of a launching call, and median time from one to the next, seconds; NaN of fewer than three."""
    at = np.flatnonzero(trace.is_kind("launch") & ~trace.on_device)
    if len(at) < 3:
        return float("nan"), float("nan")
    return float(np.median(trace.duration_s[at])), float(np.median(np.diff(trace.start_s[at])))


def launch_queue(trace: Trace) -> LaunchQueue:
    """Pair launches with what they put on the device, by correlation."""
    device = np.flatnonzero(trace.on_device & trace.is_kind(*DEVICE_KINDS))  # by start, as all events
    host = launch_of(trace, device)
    device, host = device[host >= 0], host[host >= 0]
    launch = np.minimum(trace.end_s[host], trace.start_s[device])
    start, end = trace.start_s[device], trace.end_s[device]
    depth = np.searchsorted(np.sort(launch), launch) - np.searchsorted(np.sort(end), launch, side="right")
    busy = union(trace.start_s[on := trace.on_device], trace.end_s[on])
    window = float(end.max() - launch.min()) if len(end) else 0.0
    return LaunchQueue(launch, start, end, depth.astype(float), _starved_s(launch, start, busy), window)


def _starved_s(launch_s: Floats, start_s: Floats, busy: tuple[Floats, Floats]) -> float:
    """Idle time of the device up to each launch that found it idle."""
    at = np.searchsorted(busy[0], start_s, side="left")
    first = (at < len(busy[0])) & (at > 0)
    first &= busy[0][np.minimum(at, len(busy[0]) - 1)] == start_s  # opens a busy time
    before = busy[1][np.maximum(at - 1, 0)]
    idle = np.where(first, np.clip(launch_s - before, 0, None), 0.0)
    ahead = np.unique(start_s, return_index=True)[1]
    return float(idle[ahead].sum())
