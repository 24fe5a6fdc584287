"""What a device waits for besides its own work: the host that issues, a frequency lowered when idle, a monitor.

The models behind the cluster chapter; their parameters are fitted from traces by :mod:`telekit.diagnose.fits`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem, bad

Floats = NDArray[np.float64]


def _check(**limits: tuple[float, float, float]) -> None:
    """Raise one error for all values (value, least, most) out of their range."""
    problems = [
        Problem(name.replace("__", "."), value, f"must be from {least:g} to {most:g}")
        for name, (value, least, most) in limits.items()
        if not least <= value <= most
    ]
    if problems:
        raise InputError(problems)


@dataclass(frozen=True, eq=False)
class Issued:
    """Operators of one host thread on one stream, in time.

    Attributes
    ----------
    launched_s, start_s, end_s : (operators,) arrays
        End of the launch; start and end of the kernel.
    """

    launched_s: Floats
    start_s: Floats
    end_s: Floats

    @property
    def idle_s(self) -> Floats:
        """Time the device waits for its host before each kernel but the first."""
        return np.asarray(self.start_s[1:] - self.end_s[:-1])

    @property
    def busy_share(self) -> float:
        """Part of the time from the first kernel's start to the last one's end that kernels run."""
        span = float(self.end_s[-1] - self.start_s[0])
        return float((self.end_s - self.start_s).sum()) / span if span > 0 else 1.0

    @property
    def queued_s(self) -> Floats:
        """Time each kernel waits between its launch and its start: near 0 all along where the host is the limit."""
        return np.asarray(self.start_s - self.launched_s)

    @property
    def ahead(self) -> NDArray[np.int64]:
        """Launches that are queued or running when each kernel has been launched, itself included."""
        ended = np.searchsorted(self.end_s, self.launched_s, side="right")
        return np.asarray(np.arange(1, len(self.end_s) + 1) - ended)


def issue(host_s: ArrayLike, kernel_s: ArrayLike, queue_depth: int = 1024) -> Issued:
    """Run operators: the host issues one after the other, ahead of the device by the queue's depth at most.

    Parameters
    ----------
    host_s, kernel_s : float or arrays (operators,)
        Host time to issue each operator, device time of its kernel; one of them at least an array.
    queue_depth : int
        Kernels launched and not ended, at most.

    Raises
    ------
    InputError
        Nothing to run, a time below 0 or no room in the queue.
    """
    host, kernel = (
        np.array(x, dtype=np.float64).reshape(-1)
        for x in np.broadcast_arrays(np.asarray(host_s, float), np.asarray(kernel_s, float))
    )
    if not len(host) or not (host.min() >= 0 and kernel.min() >= 0 and np.isfinite(host + kernel).all()):
        raise bad("host_s, kernel_s", f"{len(host)} operators", "must be times of at least 0, one at least")
    _check(queue_depth=(queue_depth, 1, 2**31))
    launched, start, end = (np.empty(len(host)) for _ in range(3))
    now = free = 0.0
    for i in range(len(host)):
        now += host[i]
        if i >= queue_depth:
            now = max(now, end[i - queue_depth])
        launched[i] = now
        start[i] = max(now, free)
        free = end[i] = start[i] + kernel[i]
    return Issued(launched, start, end)


def bound_by(host_s: float, kernel_s: float, operators: int) -> tuple[str, float]:
    """Say what limits equal operators, and the time of all of them.

    Parameters
    ----------
    host_s, kernel_s : float
        Host time to issue one operator, device time of its kernel.
    operators : int
        How many.

    Returns
    -------
    (str, float)
        ``host`` or ``device``, and ``host_s + (operators - 1) * max(host_s, kernel_s) + kernel_s`` seconds.
    """
    _check(host_s=(host_s, 0, 1e3), kernel_s=(kernel_s, 0, 1e3), operators=(operators, 1, 1e12))
    seconds = host_s + (operators - 1) * max(host_s, kernel_s) + kernel_s
    return ("host" if host_s > kernel_s else "device"), seconds


@dataclass(frozen=True)
class IdleFrequency:
    """A device that lowers its frequency when idle.

    Parameters
    ----------
    threshold_s : float
        Idle time after which it does.
    factor : float
        High over low frequency: how much longer kernels then take.
    window_s : float
        Time of work until the high frequency is back.
    """

    threshold_s: float
    factor: float
    window_s: float

    def __post_init__(self) -> None:
        """Check the values.

        Raises
        ------
        InputError
            All values out of range.
        """
        _check(
            idle__threshold_s=(self.threshold_s, 0, 1e3),
            idle__factor=(self.factor, 1, 100),
            idle__window_s=(self.window_s, 0, 1e3),
        )

    def work_s(self, work_s: ArrayLike, idle_s: ArrayLike) -> Floats:
        """Time that stretches of work take, each after its idle time.

        ``work_s`` is the time at the high frequency. A stretch after a short idle time goes on at whatever frequency
        the stretches before it have left.

        Returns
        -------
        array
            Seconds of each stretch.
        """
        work, idle = (
            np.array(x) for x in np.broadcast_arrays(np.asarray(work_s, float), np.asarray(idle_s, float))
        )
        taken = np.empty(work.shape)
        slow_left = 0.0  # of the window; it goes by while idle, too
        for i in range(work.size):
            gap, do = float(idle.flat[i]), float(work.flat[i])
            slow_left = self.window_s if gap > self.threshold_s else max(slow_left - gap, 0.0)
            slowly = min(do * self.factor, slow_left)
            taken.flat[i] = slowly + (do - slowly / self.factor)
            slow_left = max(slow_left - taken.flat[i], 0.0)
        return taken

    def slowdown(self, work_s: ArrayLike, idle_s: ArrayLike) -> float:
        """Time of work and idle time together, over what it is at the high frequency."""
        work, idle = np.broadcast_arrays(np.asarray(work_s, float), np.asarray(idle_s, float))
        return float((self.work_s(work, idle) + idle).sum() / (work + idle).sum())


@dataclass(frozen=True)
class Monitor:
    """A monitor that takes a host's time in bursts, at the same period on all nodes.

    Parameters
    ----------
    period_s, burst_s : float
        From burst to burst; time that one takes.
    """

    period_s: float
    burst_s: float

    def __post_init__(self) -> None:
        """Check the values.

        Raises
        ------
        InputError
            All values out of range.
        """
        _check(
            monitor__period_s=(self.period_s, 1e-9, 1e9), monitor__burst_s=(self.burst_s, 0, self.period_s)
        )

    def delay_s(self, step_s: float, nodes: int, together: bool = False) -> float:
        """Mean time that a step loses to it, where all nodes wait for the one that is delayed most.

        A burst counts in the step that it begins in; its phase is uniform. Of nodes whose bursts are not aligned it
        is hardly ever that none is hit: with ``q`` the chance of one more burst than the whole periods of a step,
        ``burst * (whole + 1 - (1 - q)^nodes)``. Aligned, they lose together: ``burst * (whole + q)``.

        Parameters
        ----------
        step_s : float
            Length of the step, in which a host is needed all along (host-bound, or a wait at every step).
        nodes : int
            How many wait for each other.
        together : bool
            All nodes' bursts come at the same time.
        """
        _check(step_s=(step_s, 0, 1e9), nodes=(nodes, 1, 2**31))
        whole = math.floor(step_s / self.period_s)
        rest = step_s / self.period_s - whole
        return self.burst_s * (whole + (rest if together else 1.0 - (1.0 - rest) ** nodes))
