"""What bounds one rank, and its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from telekit.diagnose.analysis.breakdown import CATEGORIES, IDLE
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.analysis.launches import launch_queue

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
    launch_delay_s, queue_depth : float or None
        Medians; None without correlation ids.
    """

    rank: int | None
    source: str
    steps: int
    incomplete: tuple[int, ...]
    step_s: float
    seconds: dict[str, float]
    own_s: float
    bound: str
    launch_delay_s: float | None = None
    queue_depth: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {
            "rank": self.rank,
            "source": self.source,
            "steps": self.steps,
            "incomplete_steps": list(self.incomplete),
            "step_time_s": self.step_s,
            "own_time_s": self.own_s,
            "bound": self.bound,
            "launch_delay_s": self.launch_delay_s,
            "queue_depth": self.queue_depth,
            "breakdown_s": self.seconds,
        }


def summarise(run: Run) -> tuple[RankSummary, ...]:
    """Put each rank of a run into numbers."""
    import numpy as np

    found = []
    for trace, steps, broken in zip(run.traces, run.steps, run.breakdowns, strict=True):
        whole = steps.complete
        mean = broken.seconds[whole].mean(axis=0) if whole.any() else np.zeros(len(CATEGORIES))
        seconds = dict(zip(CATEGORIES, mean.tolist(), strict=True))
        wall = sum(seconds.values())
        queue = launch_queue(trace)
        known = len(queue.start_s) > 0
        bound = bound_of(seconds) if trace.on_device.any() else "unknown"
        found.append(
            RankSummary(
                trace.rank, trace.source, len(steps.seen), steps.incomplete, wall, seconds,
                wall - seconds["waiting"], bound, float(np.median(queue.delay_s)) if known else None,
                float(np.median(queue.depth)) if known else None,
            )
        )  # fmt: skip
    return tuple(found)


def bound_of(seconds: dict[str, float]) -> str:
    """Say what bounds a rank, from its seconds by category."""
    wall = sum(seconds.values())
    if wall <= 0:
        return "unknown"
    if seconds["data"] >= DATA_BOUND * wall:
        return "data"
    if sum(seconds[c] for c in IDLE) - seconds["data"] >= HOST_BOUND * wall:
        return "host"
    if seconds["transfer"] + seconds["waiting"] >= COMMUNICATION_BOUND * wall:
        return "communication"
    return "compute"
