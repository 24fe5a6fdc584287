"""Minder without earlier runs: ranges and distances from the run itself, for metrics that no model was trained on.

What healthy runs would teach is taken from this one. A metric's range is that of most of its samples; the embedding is
the window itself; and a machine must be further away than most machines of this run are, and by a share of the range.
The order of metrics, which labelled faults would teach, is by how far the furthest machine lies. A machine that always
differs cannot be told from one that is faulty.
"""

from __future__ import annotations

import numpy as np

from telekit.diagnose.minder.embedding import LinearEmbedding
from telekit.diagnose.minder.metrics import Floats, MachineMetrics
from telekit.diagnose.minder.model import (
    CONTINUITY_S,
    MARGIN,
    WINDOW,
    MetricModel,
    MinderModel,
    mean_distances,
    moving_mean,
    windows_over,
)

LEAST_WIDTH = 0.2
"""A range is at least this share of the metric's usual level: what hardly moves is not blown up to noise."""
LEAST_APART = 0.25
"""A machine that differs by less than this share of a range, sample by sample, is like the others."""
MOST_WINDOWS = 2_000


def untrained(metrics: MachineMetrics) -> MinderModel:
    """Make a model of a run for the run itself, of metrics that change and that 3 machines and more have.

    Parameters
    ----------
    metrics : MachineMetrics
        What machines report.
    """
    found: list[tuple[float, str, MetricModel]] = []
    for name in metrics.names:
        values = metrics.filled(name)
        values = values[np.isfinite(values).any(axis=1)]
        if len(values) < 3 or values.shape[1] < WINDOW or float(np.nanmax(values) - np.nanmin(values)) <= 0:
            continue
        low, high = _range(values)
        blank = MetricModel(low, high, LinearEmbedding(np.zeros(WINDOW), np.eye(WINDOW)), 0.0)
        lasting = _lasting(blank, values, metrics.period_s)
        lasting = lasting[np.isfinite(lasting)]
        if len(lasting) < 3:
            continue
        usual = float(np.sort(lasting)[: max(len(lasting) - max(len(lasting) // 4, 2), 1)].max())
        floor = max(MARGIN * usual, LEAST_APART * WINDOW**0.5)
        found.append((float(lasting.max()), name, MetricModel(low, high, blank.embedding, floor)))
    found.sort(key=lambda one: -one[0])
    return MinderModel({name: model for _, name, model in found})


def _range(values: Floats) -> tuple[float, float]:
    """Range of most samples, no narrower than :data:`LEAST_WIDTH` of the usual level."""
    low, usual, high = (float(q) for q in np.nanquantile(values, [0.005, 0.5, 0.995]))
    if high <= low:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
    width = max(high - low, LEAST_WIDTH * abs(usual))
    middle = (low + high) / 2
    return middle - width / 2, middle + width / 2


def _lasting(model: MetricModel, values: Floats, period_s: float) -> Floats:
    """Largest distance of each machine to the others, averaged over the time that an alert takes."""
    stride = max(WINDOW // 2 if len(values) <= 64 else WINDOW, values.shape[1] // MOST_WINDOWS)
    apart = mean_distances(model.embedding.encode(model.windows(values, stride)).swapaxes(0, 1))
    needed = windows_over(CONTINUITY_S, stride * period_s, WINDOW * period_s)
    means = moving_mean(apart, min(needed, len(apart)))
    known = np.isfinite(means)
    return np.where(known.any(axis=0), np.where(known, means, -np.inf).max(axis=0), np.nan)
