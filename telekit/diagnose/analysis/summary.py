"""What bounds one rank, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.diagnose.analysis.breakdown import CATEGORIES, IDLE, by_stream
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.analysis.intervals import overlaps
from telekit.diagnose.trace import DEVICE_KINDS, KINDS, OPERATIONS, Trace

HOST_BOUND, DATA_BOUND, COMMUNICATION_BOUND = 0.25, 0.1, 0.3


@dataclass(frozen=True)
class RankSummary:
    """One rank in numbers.

    Parameters
    ----------
    rank : int or None
        Its number.
    source : str
        The file.
    steps : int
        Steps found; ``incomplete`` lists those without kernels.
    step_s : float
        Mean wall time of complete steps.
    seconds : mapping
        Mean seconds a step by category; they add up to ``step_s``.
    own_s : float
        Mean seconds a step that are not waiting inside collectives.
    bound : str
        ``host``, ``data``, ``communication``, ``compute`` or ``unknown`` (no device traced).
    launching : mapping
        Its launches against its kernels (:meth:`~telekit.diagnose.analysis.launches.LaunchQueue.to_dict`); empty
        without correlation ids.
    steps_by : str
        How its steps were found (``found_by`` of :class:`~telekit.diagnose.analysis.steps.Steps`).
    streams : mapping
        Busy and idle seconds of each stream of the device over all steps (of each thread, where no device was traced).
    together_s : mapping of tuple of str
        Seconds over all steps in which just these ran on the device together: kernels, copies, collectives by
        operation; ``()`` is idle.
    """

    rank: int | None
    source: str
    steps: int
    incomplete: tuple[int, ...]
    step_s: float
    seconds: dict[str, float]
    own_s: float
    bound: str
    launching: Mapping[str, Any]
    steps_by: str
    streams: Mapping[str, Mapping[str, float]]
    together_s: Mapping[tuple[str, ...], float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {
            "rank": self.rank,
            "source": self.source,
            "steps": self.steps,
            "steps_found_by": self.steps_by,
            "incomplete_steps": list(self.incomplete),
            "step_time_s": self.step_s,
            "own_time_s": self.own_s,
            "bound": self.bound,
            "launch_delay_s": self.launching.get("delay_s"),
            "queue_depth": self.launching.get("queue_depth"),
            "streams": {name: dict(times) for name, times in self.streams.items()},
            "together_s": {" and ".join(names) or "idle": s for names, s in self.together_s.items()},
            "launching": {k: v for k, v in self.launching.items() if k not in ("delay_s", "queue_depth")},
            "breakdown_s": self.seconds,
        }


def summarise(run: Run) -> tuple[RankSummary, ...]:
    """Put each rank of a run into numbers."""
    found = []
    rows = zip(run.traces, run.steps, run.breakdowns, run.launching, strict=True)
    for trace, steps, broken, launching in rows:
        whole = steps.complete
        mean = broken.seconds[whole].mean(axis=0) if whole.any() else np.zeros(len(CATEGORIES))
        seconds = dict(zip(CATEGORIES, mean.tolist(), strict=True))
        wall = sum(seconds.values())
        bound = _bound(seconds) if trace.on_device.any() else "unknown"
        found.append(
            RankSummary(
                trace.rank, trace.source, len(steps.seen), steps.incomplete, wall, seconds,
                wall - seconds["waiting"], bound, launching, steps.found_by, by_stream(trace, broken.span_s),
                _together(trace, broken.span_s),
            )
        )  # fmt: skip
    return tuple(found)


def _together(trace: Trace, window: tuple[float, float]) -> dict[tuple[str, ...], float]:
    """Seconds by what runs on the device together."""
    device = trace.on_device & trace.is_kind(*DEVICE_KINDS)
    kind = np.where(trace.is_kind("communication"), len(KINDS) + trace.operation, trace.kind)
    found = {}
    for code in np.unique(kind[device]).tolist():
        name = KINDS[code] if code < len(KINDS) else OPERATIONS[code - len(KINDS)] or "communication"
        mine = device & (kind == code)
        found[name] = trace.start_s[mine], trace.end_s[mine]
    return overlaps(found, window) if found else {}


def _bound(seconds: Mapping[str, float]) -> str:
    """Say what bounds a rank, from its seconds by category."""
    return bound_of(
        sum(seconds.values()),
        data_s=seconds["data"],
        host_s=sum(seconds[c] for c in IDLE) - seconds["data"],
        communication_s=seconds["transfer"] + seconds["waiting"],
    )


def bound_of(wall_s: float, *, data_s: float, communication_s: float, host_s: float = 0.0) -> str:
    """Say what bounds a step, from its length and what of it is spent so: the first that takes its share.

    Parameters
    ----------
    wall_s : float
        Length of the step.
    data_s, host_s, communication_s : float
        Loading, other times in which the device waits for its host, and exposed communication.
    """
    if wall_s <= 0:
        return "unknown"
    if data_s >= DATA_BOUND * wall_s:
        return "data"
    if host_s >= HOST_BOUND * wall_s:
        return "host"
    return "communication" if communication_s >= COMMUNICATION_BOUND * wall_s else "compute"
