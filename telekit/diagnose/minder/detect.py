"""Minder's call: the last 15 minutes of all machines, one metric after the other, until one names a machine.

Source: arXiv 2411.01791. Three things are ours, and each can be switched off. Each machine above the threshold keeps
its own count, where the paper follows the top one, so that two faulty machines do not hide each other. Over the whole
time it must also be further away than healthy machines are, since one that always differs a little has a high z-score
too. And of that time's windows one in twenty may miss, for :data:`MISSING_S` in a row at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.minder.metrics import MachineMetrics, Silence
from telekit.diagnose.minder.model import (
    CONTINUITY_S,
    WINDOW,
    MinderModel,
    moving_mean,
    windows_over,
    z_scores,
)
from telekit.errors import InputError, Problem

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FEWEST_MACHINES = 3
CALL_S, PULL_S = 480.0, 900.0
"""Minder's service looks every 8 minutes at the last 15."""
MISSING_S = 4.0
"""Between a machine's candidate windows so many seconds of others may lie; what is further apart are two events."""


@dataclass(frozen=True)
class Rules:
    """When a machine is called faulty.

    Parameters
    ----------
    threshold : float
        Z-score from which a machine is a candidate. Of few machines none can reach a high one: it is lowered to what
        two equal outliers reach, less a fifth.
    continuity_s : float
        How long it must stay one; 0: one window is enough.
    steadiness : float
        In which share of that time's windows; the paper's is 1. Below it, filled gaps of other machines, which look
        odd for a moment, do not break it off.
    top_only : bool
        As in the paper, only the machine with the highest z-score of a window is a candidate, and nobody looks again
        without the machines named.
    healthy_distance : bool
        Ask also for a distance, averaged over that time, that healthy machines do not have.
    all_metrics : bool
        Go on after a metric has named a machine.
    """

    threshold: float = 2.5
    continuity_s: float = CONTINUITY_S
    steadiness: float = 0.95
    top_only: bool = False
    healthy_distance: bool = True
    all_metrics: bool = False

    def __post_init__(self) -> None:
        times = 0 < self.threshold < math.inf and 0 <= self.continuity_s < math.inf
        if not (times and 0 < self.steadiness <= 1):
            value = f"{self.threshold:g}, {self.continuity_s:g} s, {self.steadiness:g}"
            rule = "threshold above 0, continuity 0 s or more, steadiness above 0 and at most 1"
            raise InputError([Problem("rules", value, rule, "2.5, 240 and 0.95 work")])

    def threshold_of(self, machines: int) -> float:
        """Threshold for so many machines: k equal outliers among n have a z-score of sqrt((n - k) / k)."""
        return float(self.thresholds_of(np.array(machines)))

    def thresholds_of(self, machines: NDArray[np.int64]) -> Floats:
        """Threshold of each window, by the machines that have samples in it."""
        return np.minimum(self.threshold, 0.8 * np.sqrt(np.maximum(machines - 2, 0.5) / 2))

    def windows(self, stride_s: float, length_s: float = WINDOW) -> int:
        """Windows that cover the continuity, from the first one's begin to the last one's end."""
        return windows_over(self.continuity_s, stride_s, length_s)


class Alert(NamedTuple):
    """One machine named.

    Attributes
    ----------
    machine, metric : str
        Who, and in what it is unlike the others.
    start_s, alert_s : float
        Since when, and when the time was full.
    z_score, distance : float
        Means over that time.
    """

    machine: str
    metric: str
    start_s: float
    alert_s: float
    z_score: float
    distance: float


class MetricScores(NamedTuple):
    """One metric of one call.

    Attributes
    ----------
    begin_s : array (windows,)
        When each window begins.
    machines : tuple of str
        Those with samples.
    distance, z_score, candidate : arrays (windows, machines)
        Mean distance to the others, that normalised (both NaN in a window of which samples are missing), and whether
        it is a candidate.
    """

    begin_s: Floats
    machines: tuple[str, ...]
    distance: Floats
    z_score: Floats
    candidate: Bools


class MinderReport(NamedTuple):
    """One call's answer.

    Attributes
    ----------
    alerts : tuple of Alert
        In the order of metrics, then of time.
    looked_at : tuple of str
        Metrics, in order.
    problems : tuple of str
        What could not be compared, in words.
    """

    alerts: tuple[Alert, ...]
    looked_at: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def machines(self) -> frozenset[str]:
        """Machines named."""
        return frozenset(alert.machine for alert in self.alerts)


def scores(
    model: MinderModel, metrics: MachineMetrics, name: str, rules: Rules | None = None, stride: int = 1
) -> MetricScores:
    """Compare machines in one metric, window by window.

    Parameters
    ----------
    model : MinderModel
        What was learnt.
    metrics : MachineMetrics
        What machines report.
    name : str
        A metric that both have.
    rules : Rules, optional
        When a machine is a candidate.
    stride : int
        Samples from one window to the next.

    Returns
    -------
    MetricScores
    """
    rules, known = rules or Rules(), model.metrics[name]
    values = metrics.filled(name)
    here = np.flatnonzero(np.isfinite(values).any(axis=1))
    machines = tuple(metrics.machines[row] for row in here)
    distance = known.distances(values[here], stride)
    z_score = z_scores(distance)
    present = np.isfinite(z_score)
    candidate = z_score >= rules.thresholds_of(present.sum(axis=1))[:, None]
    if rules.top_only and here.size:
        candidate &= z_score == np.where(present, z_score, -np.inf).max(axis=1, keepdims=True)
    begin_s = metrics.start_s + np.arange(len(distance), dtype=np.float64) * (stride * metrics.period_s)
    return MetricScores(begin_s, machines, distance, z_score, candidate)


def detect(
    model: MinderModel,
    metrics: MachineMetrics,
    rules: Rules | None = None,
    *,
    stride: int = 1,
    progress: Callable[[str], None] | None = None,
) -> MinderReport:
    """Look for faulty machines in one stretch of metrics.

    Parameters
    ----------
    model : MinderModel
        From :func:`telekit.diagnose.minder.model.train`.
    metrics : MachineMetrics
        The last 15 minutes, say.
    rules : Rules, optional
        When a machine is called faulty.
    stride : int
        Samples from one window to the next.
    progress : callable, optional
        Called with the name of each metric looked at.

    Returns
    -------
    MinderReport

    Raises
    ------
    InputError
        Fewer than 3 machines, or less than a window of samples, or no metric that the model knows.
    """
    rules = rules or Rules()
    names = [name for name in model.metrics if name in metrics.names]
    _check(metrics, names, stride)
    alerts: list[Alert] = []
    looked_at: list[str] = []
    problems = [f"{name}: not known to the model" for name in metrics.names if name not in model.metrics]
    problems += [_said(silence) for silence in metrics.silences()]
    for name in names:
        if progress:
            progress(name)
        looked_at.append(name)
        silent = _silent(metrics, name)
        if silent:
            problems.append(f"{name}: no samples of {', '.join(silent)}")
        alerts += _named(model, metrics, name, rules, stride, {alert.machine for alert in alerts})
        if alerts and not rules.all_metrics:
            break
    return MinderReport(tuple(alerts), tuple(looked_at), tuple(problems))


def _said(silence: Silence) -> str:
    if silence.end_s is None:
        return f"{silence.machine}: not reporting since {silence.begin_s:.0f} s"
    return f"{silence.machine}: not reporting from {silence.begin_s:.0f} s to {silence.end_s:.0f} s"


def _silent(metrics: MachineMetrics, name: str) -> list[str]:
    known = np.isfinite(metrics.values[metrics.names.index(name)]).any(axis=1)
    return [machine for machine, here in zip(metrics.machines, known, strict=True) if not here]


def _named(
    model: MinderModel, metrics: MachineMetrics, name: str, rules: Rules, stride: int, known: set[str]
) -> list[Alert]:
    """Name machines by one metric, and look again without those named: a second one may have been in their shadow."""
    alerts: list[Alert] = []
    while len(metrics.machines) - len(known) >= FEWEST_MACHINES:
        found = scores(model, metrics.without(known), name, rules, stride)
        period_s = metrics.period_s
        floor = model.metrics[name].healthy_distance
        fresh = _lasting(name, found, rules, floor, stride * period_s, WINDOW * period_s)
        alerts += fresh
        known = known | {alert.machine for alert in fresh}
        if not fresh or rules.top_only:
            break
    return alerts


def _lasting(
    name: str, found: MetricScores, rules: Rules, healthy_distance: float, stride_s: float, length_s: float
) -> list[Alert]:
    """Name machines that are candidates for long enough; the first such time of each.

    From the first window's begin to the last one's end it is that long; both are candidates, so nothing before or
    after the machine's own time counts in.
    """
    needed = rules.windows(stride_s, length_s)
    if needed > len(found.begin_s):
        return []
    distance = moving_mean(found.distance, needed)
    share = moving_mean(found.candidate.astype(np.float64), needed)
    joined = _joined(found.candidate, int(MISSING_S / stride_s))
    together = moving_mean(joined.astype(np.float64), needed)
    steady = (share >= rules.steadiness - 1e-9) & (together > 1 - 0.5 / needed)
    steady &= found.candidate[: len(share)] & found.candidate[needed - 1 :]
    if rules.healthy_distance:
        steady &= distance > healthy_distance
    alerts = []
    for column in np.flatnonzero(steady.any(axis=0)).tolist():
        first = int(steady[:, column].argmax())
        last = first + needed - 1
        z_score = float(np.nanmean(found.z_score[first : last + 1, column]))
        times = float(found.begin_s[first]), float(found.begin_s[last]) + length_s
        alerts.append(Alert(found.machines[column], name, *times, z_score, float(distance[first, column])))
    return sorted(alerts, key=lambda alert: (alert.alert_s, -alert.z_score))


def _joined(candidate: Bools, most: int) -> Bools:
    """Close gaps of up to ``most`` windows between candidates of one machine."""
    count, place = len(candidate), np.arange(len(candidate))[:, None]
    before = np.maximum.accumulate(np.where(candidate, place, -count - most), axis=0)
    after = np.minimum.accumulate(np.where(candidate, place, 2 * count + most)[::-1], axis=0)[::-1]
    closed: Bools = candidate | (after - before - 1 <= most)
    return closed


def pulls(
    metrics: MachineMetrics, every_s: float = CALL_S, pull_s: float = PULL_S
) -> Iterator[MachineMetrics]:
    """Yield what each call on a run looks at: the last ``pull_s`` seconds, from the first whole pull to the end."""
    end_s = metrics.start_s + metrics.samples * metrics.period_s
    for at_s in np.arange(metrics.start_s + pull_s, end_s + every_s, every_s).tolist():
        yield metrics.between(at_s - pull_s, at_s)


def _check(metrics: MachineMetrics, names: list[str], stride: int) -> None:
    problems = []
    if len(metrics.machines) < FEWEST_MACHINES:
        rule = f"one machine unlike the others takes {FEWEST_MACHINES} machines at least"
        problems.append(Problem("machines", len(metrics.machines), rule))
    if metrics.samples < WINDOW:
        problems.append(Problem("samples", metrics.samples, f"a window has {WINDOW}", "15 minutes work"))
    if not names:
        problems.append(Problem("metrics", ", ".join(metrics.names), "none of them is known to the model"))
    if stride < 1:
        problems.append(Problem("stride", stride, "must be 1 or more"))
    if problems:
        raise InputError(problems)
