"""Latency and efficiency of the links between nodes, fitted to all collectives that were measured over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig
from telekit.comm.collectives import collective_time_s
from telekit.comm.fit import NOISE
from telekit.comm.measurements import Measurement

FIELDS = ("latency_s", "efficiency")
SPREAD = 1.5
"""Of the logarithm of both around the catalog's: they count where rows say nothing, as of latency in large messages."""


@dataclass(frozen=True)
class LinkFit:
    """Links of the last tier by a user's rows.

    Attributes
    ----------
    tier : str
        Its name.
    latency_s, efficiency : float
        As in :class:`telekit.cluster.config.LinkTier`; four digits.
    intervals : dict of str to (float, float)
        95 % by field. They say how well the rows fix the two numbers, and grow with what two numbers cannot describe.
    rows : int
        Behind it.
    error : float
        Median absolute relative error on them.
    """

    tier: str
    latency_s: float
    efficiency: float
    intervals: dict[str, tuple[float, float]]
    rows: int
    error: float


def stride_of(row: Measurement, per_node: int) -> int | None:
    """Distance of a group's neighbours that spreads it evenly over its nodes; None where nothing even does."""
    on_each, rest = divmod(row.ranks, row.nodes)
    return None if rest or per_node % on_each else per_node // on_each


def fit_link(base: ClusterConfig, rows: Sequence[Measurement]) -> LinkFit:
    """Fit the last tier to rows of groups that reach over it.

    Parameters
    ----------
    base : ClusterConfig
        What all else is taken from. Curves of its last tier are not asked: this is what answers without them.
    rows : sequence of Measurement
        Of groups that lie evenly on nodes (:func:`stride_of`), of any collectives.

    Returns
    -------
    LinkFit
        Least squares of the logarithm of time, robust beyond 8 %.
    """
    from scipy.optimize import least_squares

    groups = _columns(rows, base.devices_per_node)
    centre = np.log([max(base.tiers[-1].latency_s, 1e-6), base.tiers[-1].efficiency])

    def residuals(x: np.ndarray) -> np.ndarray:
        error = _errors(base, groups, x) / NOISE
        return np.concatenate([np.sqrt(2.0 * (np.sqrt(1.0 + error**2) - 1.0)), (x - centre) / SPREAD])

    low, high = np.log([1e-9, 1e-6]), np.array([0.0, 1e-12])
    best = least_squares(residuals, np.clip(centre, low + 1e-6, high - 1e-13), bounds=(low, high))
    latency, efficiency = (float(f"{math.exp(v):.4g}") for v in best.x)
    error = float(np.median(np.abs(np.expm1(_errors(base, groups, best.x)))))
    return LinkFit(
        base.tiers[-1].name, latency, min(efficiency, 1.0), _intervals(best, len(rows)), len(rows), error
    )


def _columns(rows: Sequence[Measurement], per_node: int) -> dict[str, np.ndarray]:
    """Sizes, ranks, strides and times by collective."""
    found = {}
    for op in sorted({row.op for row in rows}):
        mine = [(r.size_bytes, r.ranks, stride_of(r, per_node), r.time_s) for r in rows if r.op == op]
        found[op] = np.array(mine, float).T
    return found


def _errors(base: ClusterConfig, groups: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Logarithm of the priced over the measured time, all rows."""
    values = {name: math.exp(v) for name, v in zip(FIELDS, x, strict=True)}
    tier = base.tiers[-1].model_copy(update=values | {"curves": {}})
    made = base.model_copy(update={"tiers": (*base.tiers[:-1], tier)})
    errors = [
        np.log(collective_time_s(op, size, ranks, stride, made) / time)
        for op, (size, ranks, stride, time) in groups.items()
    ]
    return np.concatenate(errors)


def _intervals(best: Any, rows: int) -> dict[str, tuple[float, float]]:
    from scipy.stats import t

    left = max(rows - len(FIELDS), 1)
    covariance = np.linalg.inv(best.jac.T @ best.jac) * 2.0 * float(best.cost) / left
    half = t.ppf(0.975, left) * np.sqrt(np.diag(covariance))
    return {
        name: (math.exp(v - h), math.exp(min(v + h, 700.0)))
        for name, v, h in zip(FIELDS, best.x, half, strict=True)
    }
