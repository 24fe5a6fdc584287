"""Published rows beside our estimates of them, and what estimates of other jobs may take from their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

FEWEST_SOURCES = 5
"""Sources that an interval must stand on: runs of one source share its software and cluster, and err together."""


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


def bounds(ratios: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Where a run of one more source lies with a probability of about 1 - 2 :data:`OUTSIDE`.

    Quantiles in which every source has the same weight, its runs sharing it: sources are what may be exchanged for
    one another, not runs (hierarchical conformal prediction, arXiv 2306.06342, without its allowance for a source
    beyond all others, which fewer than nine sources leave unbounded).
    """
    each = np.concatenate([np.asarray(found, dtype=float) for found in ratios.values()])
    weight = np.concatenate([np.full(len(found), 1.0 / len(found)) for found in ratios.values()]) / len(
        ratios
    )
    order = np.argsort(each)
    below = np.cumsum(weight[order])
    low, high = np.searchsorted(below, (OUTSIDE - 1e-9, 1.0 - OUTSIDE - 1e-9))
    return float(each[order][low]), float(each[order][high])


def intervals(steps: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Bounds of measured over estimated, of held-out configurations by device, kind of model and precision."""
    ratios: dict[tuple[str, str], list[float]] = {}
    keys: dict[tuple[str, str], tuple[str, str, str]] = {}
    for row in steps:
        if not row.in_fit and row.job is not None:
            ratios.setdefault((row.group, row.configuration), []).append(row.measured / row.estimated)
            keys[row.group, row.configuration] = kind_of(row.job)
    sets: dict[tuple[str | None, str | None, str | None], dict[str, list[float]]] = {}
    for at, values in ratios.items():
        for key in likeness(*keys[at]):
            sets.setdefault(key, {}).setdefault(at[0], []).append(float(np.mean(values)))
    return [
        _interval(key, sources)
        for key, sources in sorted(sets.items(), key=lambda item: [part or "" for part in item[0]])
        if len(sources) >= FEWEST_SOURCES
    ]


def _interval(
    key: tuple[str | None, str | None, str | None], sources: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    low, high = bounds(sources)
    device, model, precision = key
    said = " ".join(part for part in (model, precision, f"on {device}" if device else None) if part)
    return {
        **dict(zip(("device", "model", "precision"), key, strict=True)),
        "low": low,
        "high": high,
        "configurations": sum(map(len, sources.values())),
        "sources": len(sources),
        "of": said or "all runs",
    }


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
