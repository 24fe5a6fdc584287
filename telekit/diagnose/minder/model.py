"""What Minder learns from earlier runs: ranges, embeddings, the order of metrics, how unlike healthy machines are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.minder.embedding import LinearEmbedding
from telekit.diagnose.minder.generate import MachineRun
from telekit.diagnose.minder.metrics import MachineMetrics
from telekit.diagnose.minder.priority import metric_order
from telekit.errors import InputError, Problem

Floats = NDArray[np.float64]

WINDOW = 8
"""Samples of a window. Source: arXiv 2411.01791."""

LATENT = 4
MARGIN = 1.5
"""A machine must be so many times as far from the others as the furthest one of the healthy runs."""

CONTINUITY_S = 240.0
"""How long a machine must be unlike the others. Source: arXiv 2411.01791."""

MANY = 64
"""Machines from which distances are made in single precision; its error (1e-3 of a window's spread) is none."""
LARGEST_CHUNK = 2**21
"""Distances that are made at once."""


@dataclass(frozen=True)
class MetricModel:
    """One metric.

    Attributes
    ----------
    low, high : float
        Range in healthy runs, which becomes 0 to 1.
    embedding : LinearEmbedding
        Of windows in that range.
    healthy_distance : float
        Largest mean distance to the other machines, averaged over 4 minutes, of any machine in the healthy runs, times
        :data:`MARGIN`.
    """

    low: float
    high: float
    embedding: LinearEmbedding
    healthy_distance: float

    def windows(self, values: Floats, stride: int = 1) -> Floats:
        """Scale samples (..., samples) and cut windows (..., windows, :data:`WINDOW`).

        A value far outside the range counts as one range outside, so that one wild machine hides no other.
        """
        scaled = np.clip((values - self.low) / (self.high - self.low), -1.0, 2.0)
        return np.lib.stride_tricks.sliding_window_view(scaled, WINDOW, axis=-1)[..., ::stride, :]

    def distances(self, values: Floats, stride: int = 1) -> Floats:
        """Mean distance of each machine's embedding to the others', shape (windows, machines)."""
        return mean_distances(self.embedding.encode(self.windows(values, stride)).swapaxes(0, 1))


@dataclass(frozen=True)
class MinderModel:
    """All metrics, in the order in which they are looked at."""

    metrics: dict[str, MetricModel]


def mean_distances(embedded: Floats) -> Floats:
    """Pairwise Euclidean distances between machines, averaged for each.

    Parameters
    ----------
    embedded : array (windows, machines, latent)

    Returns
    -------
    array (windows, machines)
        The sum of the distances to the others over their number. A machine whose embedding is not finite is not there
        in that window: NaN, and the others do without it.
    """
    windows, machines, _ = embedded.shape
    here = np.asarray(np.isfinite(embedded).all(axis=-1))
    if not here.all():
        embedded = np.where(here[..., None], embedded, 0.0)
    found = np.empty((windows, machines))
    chunk = max(LARGEST_CHUNK // machines**2, 1)
    for first in range(0, windows, chunk):
        part = embedded[first : first + chunk]
        part = part - part.mean(axis=1, keepdims=True)  # far from 0 the product below would lose digits
        part = part.astype(np.float32) if machines > MANY else part
        squares = (part**2).sum(axis=-1)
        apart = part @ part.swapaxes(1, 2)
        apart *= -2.0
        apart += squares[:, :, None]
        apart += squares[:, None, :]
        np.maximum(apart, 0.0, out=apart)
        np.sqrt(apart, out=apart)
        apart[:, np.arange(machines), np.arange(machines)] = 0.0
        if not here[first : first + chunk].all():
            apart *= here[first : first + chunk, None, :]
        found[first : first + chunk] = apart.sum(axis=-1)
    found /= np.maximum(here.sum(axis=1, keepdims=True) - 1, 1)
    found[~here] = np.nan
    return found


def z_scores(distances: Floats) -> Floats:
    """Normalise each window's distances over machines (windows, machines); 0 where all are alike, NaN of the absent."""
    here = np.isfinite(distances)
    count = np.maximum(here.sum(axis=1, keepdims=True), 1)
    away = distances - distances.sum(axis=1, keepdims=True, where=here) / count
    spread = np.sqrt((away**2).sum(axis=1, keepdims=True, where=here) / count)
    found: Floats = np.divide(away, spread, out=np.zeros_like(away), where=spread > 0)
    return np.where(here, found, np.nan)


def moving_mean(values: Floats, count: int) -> Floats:
    """Mean of each ``count`` rows one after the other, shape (rows - count + 1, ...); over those that are known."""
    here = np.isfinite(values)
    whole = bool(here.all())
    sums = np.cumsum(np.concatenate([np.zeros_like(values[:1]), np.where(here, values, 0.0)]), axis=0)
    if whole:
        means: Floats = (sums[count:] - sums[:-count]) / count
        return means
    known = np.cumsum(np.concatenate([np.zeros_like(values[:1]), here]), axis=0)
    known = known[count:] - known[:-count]
    means = np.full_like(known, np.nan)
    np.divide(sums[count:] - sums[:-count], known, out=means, where=known > 0)
    return means


def windows_over(span_s: float, stride_s: float, length_s: float) -> int:
    """Count windows of a length, ``stride_s`` from begin to begin, that cover a time from first begin to last end."""
    return max(math.ceil((span_s - length_s) / stride_s - 1e-9), 0) + 1


def train(
    healthy: Sequence[MachineMetrics], labelled: Sequence[MachineRun] = (), latent: int = LATENT
) -> MinderModel:
    """Learn from earlier runs.

    Parameters
    ----------
    healthy : sequence of MachineMetrics
        Runs without a fault; all have the same metrics.
    labelled : sequence of MachineRun
        Runs with faults, for the order of metrics; without any, the order of the first run stays.
    latent : int
        Size of an embedding.

    Returns
    -------
    MinderModel

    Raises
    ------
    InputError
        No healthy run, one of fewer than 2 machines or 8 samples, or runs with different metrics.
    """
    _check(healthy, labelled)
    found = {name: _metric(name, healthy, latent) for name in healthy[0].names}
    if labelled:
        scores, faulty = zip(*(_labelled(run, found) for run in labelled), strict=True)
        order = metric_order(np.concatenate(scores), np.concatenate(faulty))
        names = list(found)
        found = {names[metric]: found[names[metric]] for metric in order}
    return MinderModel(found)


def _metric(name: str, healthy: Sequence[MachineMetrics], latent: int) -> MetricModel:
    filled = [run.filled(name) for run in healthy]
    low = min(float(np.min(values, initial=np.inf, where=np.isfinite(values))) for values in filled)
    high = max(float(np.max(values, initial=-np.inf, where=np.isfinite(values))) for values in filled)
    if not high > low:
        low, high = (low, low + 1.0) if np.isfinite(low) else (0.0, 1.0)
    blank = MetricModel(low, high, LinearEmbedding(np.zeros(WINDOW), np.eye(WINDOW)), 0.0)
    windows = [blank.windows(values, WINDOW // 2).reshape(-1, WINDOW) for values in filled]
    known = np.concatenate(windows)
    embedding = LinearEmbedding.fit(known[np.isfinite(known).all(axis=1)], latent)
    fitted = MetricModel(low, high, embedding, 0.0)
    distance = 0.0
    for run, values in zip(healthy, filled, strict=True):
        apart = fitted.distances(values, WINDOW // 2)
        windows_in = windows_over(CONTINUITY_S, WINDOW // 2 * run.period_s, WINDOW * run.period_s)
        lasting = moving_mean(apart, min(windows_in, len(apart)))
        distance = max(distance, float(lasting.max(initial=0.0, where=np.isfinite(lasting))))
    return MetricModel(low, high, embedding, MARGIN * distance)


def _labelled(run: MachineRun, models: dict[str, MetricModel]) -> tuple[Floats, NDArray[np.bool_]]:
    """Largest z-scores of each window (windows, metrics), and whether a fault is there for the whole window."""
    stride, scores = WINDOW // 2, []
    for name, model in models.items():
        z_score = z_scores(model.distances(run.metrics.filled(name), stride))
        scores.append(z_score.max(axis=1, initial=0.0, where=np.isfinite(z_score)))
    begin = run.metrics.start_s + np.arange(scores[0].size) * stride * run.metrics.period_s
    end = begin + (WINDOW - 1) * run.metrics.period_s
    faulty = np.zeros(begin.size, dtype=bool)
    for fault in run.faults:
        faulty |= (begin >= fault.start_s) & (end <= fault.end_s)
    return np.stack(scores, axis=1), faulty


def _check(healthy: Sequence[MachineMetrics], labelled: Sequence[MachineRun]) -> None:
    if not healthy:
        raise InputError([Problem("healthy", "nothing", "one healthy run at least is needed")])
    names, problems = set(healthy[0].names), []
    for run in (*healthy, *(each.metrics for each in labelled)):
        if set(run.names) != names:
            problems.append(
                Problem("metrics", ", ".join(run.names), f"each run must have {', '.join(sorted(names))}")
            )
        if len(run.machines) < 2 or run.samples < WINDOW:
            sizes = f"{len(run.machines)} machines, {run.samples} samples"
            problems.append(Problem("run", sizes, f"must have 2 machines and {WINDOW} samples at least"))
    if problems:
        raise InputError(problems)
