"""Which ranks stand out, persistently or in some steps, by tests that allow for many ranks, steps and heavy tails."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from telekit.diagnose.trace import Floats

Z = 6.0
"""Robust standard deviations above the lower quartile; one of 512 normal ranks exceeds it with probability 3e-5."""
ALPHA = 1e-6
"""Probability that a healthy run has a rank flagged for single steps, by the fitted tail; small: the fit errs."""
USUAL_SHAPE, PRIOR = 0.2, 10
"""What the shape is drawn to, and by the weight of how many cells."""
OUTRIGHT = 1.4, 16.0
"""A cell so many times the least that matters, and the largest of the other rows, needs no fitted tail."""
LEAST_SHAPE = 0.1
"""Least shape of the generalised Pareto tail: even what looks normal is taken to be somewhat heavier."""


@dataclass(frozen=True)
class Outlier:
    """A row (a rank, a node, a group) that stands out.

    Parameters
    ----------
    row : int
        Index.
    persistent : bool
        In most steps; else in ``steps`` only.
    excess : float
        Mean over all steps of the excess above the healthy.
    steps : tuple of int
        Indices of the steps in which it stands out.
    score : float
        Robust standard deviations, or minus the logarithm of the tail's probability.
    """

    row: int
    persistent: bool
    excess: float
    steps: tuple[int, ...]
    score: float


def healthy_level(values: Floats, axis: int | None = 0) -> Floats:
    """Lower quartile: what is normal even where almost three quarters are slow."""
    return np.asarray(np.nanquantile(values, 0.25, axis=axis))


def spread_below(values: Floats) -> float:
    """Estimate the standard deviation by the half below the median, which slow ones leave alone; more of few values."""
    middle, low = np.nanquantile(values, (0.4, 0.05))
    return float((middle - low) / 1.3915) * (1 + 4 / max(len(values), 1))


def persistent(values: Floats, least: float, noise: float) -> list[Outlier]:
    """Rows whose median over steps is above the healthy by ``least`` and by :data:`Z` deviations (``noise`` at least).

    Parameters
    ----------
    values : (rows, steps) array
        Excesses in any unit; NaN where unknown.
    least, noise : float
        In that unit.
    """
    if values.shape[0] < 2 or not values.size:
        return []
    level = _nanmedian(values)
    known = level[~np.isnan(level)]
    if len(known) < 2:
        return []
    base = float(np.quantile(known, 0.25))
    scale = max(math.hypot(spread_below(known), _median_error(values)), noise)
    score = (level - base) / scale
    found = []
    for row in np.flatnonzero((score >= Z) & (level - base >= least)):
        over = values[row] - base >= least / 2
        if over[~np.isnan(values[row])].mean() > 0.5:
            steps = tuple(np.flatnonzero(over).tolist())
            excess = float(np.nanmean(values[row])) - base
            found.append(Outlier(int(row), True, excess, steps, float(score[row])))
    return found


def _median_error(values: Floats) -> float:
    """Give the standard error of a usual row's median over steps: 1.253 deviations over the root of the steps."""
    away = np.abs(values - _nanmedian(values)[:, None])
    deviation = 1.4826 * float(np.nanmedian(_nanmedian(away)))
    return 1.2533 * deviation / math.sqrt(values.shape[1])


def transient(values: Floats, least: float, noise: float) -> list[Outlier]:
    """Rows that exceed ``least`` in some steps more often and further than the tail of the other rows allows.

    The tail is a generalised Pareto fitted (probability-weighted moments) to the largest cells of the rows but the
    most extreme ones. A row with its k largest cells above x has probability ``C(steps, k) p(x)**k``; the least over k,
    times the number of rows and of k tried, must stay below :data:`ALPHA`.
    """
    rows, steps = values.shape
    if rows < 2 or not steps:
        return []
    found = []
    filled = np.where(np.isnan(values), -np.inf, values)
    for row in np.flatnonzero((filled >= least).any(axis=1)):
        pool = _pool(filled, int(row))
        tail = _Tail.fit(pool, noise)
        over = np.flatnonzero(filled[row] >= least)
        ranked = np.sort(filled[row, over])[::-1]
        logs = [
            math.log(rows * len(ranked)) + _log_choose(steps, k) + k * tail.log_p(float(x))
            for k, x in enumerate(ranked, 1)
        ]
        beyond = len(pool) > 0 and ranked[0] >= max(OUTRIGHT[0] * least, OUTRIGHT[1] * float(pool.max()))
        if min(logs) < math.log(ALPHA) or beyond:
            excess = float(filled[row, over].sum()) / steps
            found.append(Outlier(int(row), False, excess, tuple(over.tolist()), -min(logs)))
    return found


def _pool(values: Floats, row: int) -> Floats:
    """Cells of the other rows, the most extreme twentieth (at least one beyond two rows) left out."""
    others = np.delete(values, row, axis=0)
    drop = max(len(others) // 20, 1) if len(others) > 2 else 0
    order = np.argsort(others.max(axis=1))
    cells = others[order[: len(others) - drop]].ravel()
    return cells[np.isfinite(cells)]


@dataclass(frozen=True)
class _Tail:
    share: float
    start: float
    scale: float
    shape: float

    @classmethod
    def fit(cls, cells: Floats, noise: float) -> _Tail:
        """Fit the largest cells; never lighter nor narrower than ``noise`` says."""
        if len(cells) < 4:
            return cls(1.0, 0.0, noise, 0.25)
        count = int(min(max(len(cells) // 50, 12), 200, len(cells) // 2))
        ranked = np.sort(cells)
        start = float(ranked[-count - 1])
        over = ranked[-count:] - start
        mean = float(over.mean())
        weight = np.arange(count) / max(count - 1, 1)  # ascending: weights of the second moment
        second = float(((1 - weight) * over).mean())
        if mean <= 0 or mean - 2 * second <= 0:
            shape, scale = 0.25, max(mean, noise)
        else:
            shape = 2 - mean / (mean - 2 * second)
            shape += (USUAL_SHAPE - shape) * PRIOR / (PRIOR + count)  # few cells say little of a shape
            scale = 2 * mean * second / (mean - 2 * second)
        shape = min(max(shape, LEAST_SHAPE), 0.6)
        return cls(count / len(cells), max(start, 0.0), max(scale, mean * (1 - shape), noise), shape)

    def log_p(self, value: float) -> float:
        """Logarithm of the probability that a cell exceeds ``value``."""
        over = max(value - self.start, 0.0)
        return math.log(self.share) - math.log1p(self.shape * over / self.scale) / self.shape


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _nanmedian(values: Floats) -> Floats:
    """Median over steps; NaN where nothing is known, without a warning."""
    known = ~np.isnan(values).all(axis=1)
    level = np.full(len(values), np.nan)
    level[known] = np.nanmedian(values[known], axis=1)
    return level
