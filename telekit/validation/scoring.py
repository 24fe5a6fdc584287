"""Published rows beside our estimates of them, and what estimates of other jobs may take from their errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from telekit.cost.constants import DEVICE
from telekit.cost.estimate import Estimate, estimate
from telekit.cost.interval import kind_of, likeness
from telekit.cost.memory import allocated_bytes
from telekit.job import Job
from telekit.validation.kernel_rows import kernel_rows
from telekit.validation.memory_runs import memory_runs
from telekit.validation.reasons import likely_reason
from telekit.validation.runs import published_runs

OUTSIDE = 0.1
"""Part of like runs that may lie below an interval, and above it."""

FEWEST_FOR_INTERVAL = 9
"""Held-out configurations that an interval must stand on: of fewer, even the least and the largest do not span it."""


@dataclass(frozen=True)
class ScoredRow:
    """A row beside our estimate: seconds, or bytes where ``kind`` is memory; a kernel has no job.

    ``fits`` is False where the estimate says of a run that was measured that it does not fit its device.
    """

    id: str
    group: str
    kind: str
    configuration: str
    job: Job | None
    measured: float
    estimated: float
    in_fit: bool
    verified: bool
    reason: str
    fits: bool = True

    @property
    def error(self) -> float:
        """Estimated over measured, less one."""
        return self.estimated / self.measured - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.id,
            "measured": self.measured,
            "estimated": self.estimated,
            "error": self.error,
            "in_fit": self.in_fit,
            "reason": self.reason,
        }


@cache
def scored(name: str, kind: str) -> tuple[ScoredRow, ...]:
    """Estimate every row of one group."""
    return tuple({"step_time": _steps, "memory": _peaks, "kernel": _kernels}[kind](name))


def _steps(name: str) -> Iterator[ScoredRow]:
    for run in published_runs(name):
        answer = estimate(run.job)
        reason = likely_reason(name, run.notes, answer.breakdown_s or {})
        yield ScoredRow(
            run.id, name, "step_time", run.configuration, run.job, run.measured_step_s, _step(answer), run.in_fit,
            run.verified, reason, answer.fits,
        )  # fmt: skip


def _peaks(name: str) -> Iterator[ScoredRow]:
    for peak in memory_runs(name):
        answer = estimate(peak.job)
        fullest = max((s.memory_bytes for s in answer.stages), key=lambda held: float(allocated_bytes(held)))
        ours = float(allocated_bytes(fullest))
        ran = peak.measured_bytes <= answer.capacity_bytes  # a compiler's peak may be over any device's
        holders = {holder: size for holder, size in fullest.items() if holder != "framework"}
        reason = likely_reason(name, peak.notes, holders)
        yield ScoredRow(
            peak.id,
            name,
            "memory",
            peak.id,
            peak.job,
            peak.measured_bytes,
            ours,
            False,
            peak.verified,
            reason,
            answer.fits or not ran,
        )


def _kernels(name: str) -> Iterator[ScoredRow]:
    for kernel in kernel_rows(name):
        reason = likely_reason(name, (), None)
        yield ScoredRow(
            kernel.id, name, "kernel", kernel.configuration, None, kernel.row["time_s"], kernel.estimated_s(),
            kernel.in_fit, kernel.verified, reason,
        )  # fmt: skip


def _step(answer: Estimate) -> float:
    assert answer.step_time_s is not None  # readers keep only valid jobs
    return answer.step_time_s


def bounds(ratios: Sequence[float]) -> tuple[float, float]:
    """Where one more ratio like these lies with a probability of 1 - 2 :data:`OUTSIDE`, whatever their distribution.

    Split conformal prediction (arXiv 2107.07511, section 1): of n + 1 ratios in any order, the new one is below the
    k-th of the others, or above the k-th from the top, with a probability of k / (n + 1) each.
    """
    found, k = sorted(ratios), int(OUTSIDE * (len(ratios) + 1) + 1e-9)
    return found[k - 1], found[-k]


def intervals(steps: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Bounds of measured over estimated, of held-out configurations by device, kind of model and precision."""
    ratios: dict[str, list[float]] = {}
    keys: dict[str, tuple[str, str, str]] = {}
    for row in steps:
        if not row.in_fit and row.job is not None:
            ratios.setdefault(row.configuration, []).append(row.measured / row.estimated)
            keys[row.configuration] = kind_of(row.job)
    sets: dict[tuple[str | None, str | None, str | None], list[float]] = {}
    for at, values in ratios.items():
        for key in likeness(*keys[at]):
            sets.setdefault(key, []).append(float(np.mean(values)))
    found = []
    for key, means in sorted(sets.items(), key=lambda item: [part or "" for part in item[0]]):
        if len(means) >= FEWEST_FOR_INTERVAL:
            low, high = bounds(means)
            named = dict(zip(("device", "model", "precision"), key, strict=True))
            of = (
                " ".join(part for part in (key[1], key[2], f"on {key[0]}" if key[0] else None) if part)
                or "all runs"
            )
            found.append({**named, "low": low, "high": high, "configurations": len(means), "of": of})
    return found


def constants(steps: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """List what of each device was measured, fitted or assumed, and on what."""
    devices = {row.job.cluster.device.name: row.job.cluster.device for row in steps if row.job is not None}
    found = []
    for name, device in sorted(devices.items()):
        kernels = device.kernels
        for at, record, fields in (("", device, DEVICE), ("kernels.", kernels, kernels.sources)):
            for field in fields:
                origin = record.sources.get(field)
                found.append(
                    {
                        "device": name,
                        "constant": at + field,
                        "value": getattr(record, field),
                        "source": origin.source if origin else device.source,
                        "verified": origin.verified if origin else device.verified,
                    }
                )
    return found
