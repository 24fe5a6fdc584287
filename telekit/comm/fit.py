"""Fit a curve to measurements.

The fit is least squares on the logarithm of time, robust (soft L1 beyond 8 %), towards a prior: usual values with wide
spread, or the curve of a sibling device. So a few rows move what they can see, and a parameter that no row can see is
held and named. Intervals are 95 %, from the Jacobian's covariance at the optimum, prior included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.cluster.curves import Curve, CurveErrors
from telekit.comm.measurements import Measurement
from telekit.errors import bad

LARGE_BYTES = 2**24
"""Messages of this size and more count as above 16 MB (16 MiB is 16.8 MB)."""

NOISE = 0.08
FEWEST_ROWS = 3
FIELDS = ("start_s", "step_s", "bandwidth_bytes_per_s", "low_latency_ratio", "ramp_s")
USUAL = {"start_s": 8e-6, "step_s": 1.2e-6, "low_latency_ratio": 3.0, "ramp_s": 25e-6}
SPREAD = {
    "start_s": 0.5, "step_s": 0.8, "bandwidth_bytes_per_s": 0.7, "low_latency_ratio": 0.5, "ramp_s": 0.6,
    "rank_exponent": 0.35, "in_switch_bytes_per_s": 0.3,
}  # fmt: skip
USUAL_EXPONENT = 0.4
SIBLING_SPREAD = 0.15
"""Of a parameter's logarithm around a sibling's."""


@dataclass(frozen=True)
class Fit:
    """A fitted curve: 95 % intervals by parameter, the parameters held at the prior, and remarks for a person."""

    curve: Curve
    intervals: dict[str, tuple[float, float]]
    held: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Columns:
    """The rows of one operation as arrays."""

    op: str
    ranks: np.ndarray
    size_bytes: np.ndarray
    time_s: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Measurement]) -> _Columns:
        ops = sorted({row.op for row in rows})
        if len(ops) != 1:
            raise bad("op", ", ".join(ops) or "no rows", "a curve is of one collective", "one op at a time")
        columns = [
            np.array([getattr(row, k) for row in rows], float) for k in ("ranks", "size_bytes", "time_s")
        ]
        ranks, size, time = columns
        if not (np.all(time > 0) and np.all(size > 0) and np.all(ranks >= 2)):
            raise bad("rows", len(rows), "each must have a time and size above 0 and 2 ranks or more")
        return cls(ops[0], ranks, size, time)


def fit_curve(
    rows: Sequence[Measurement],
    *,
    link_bytes_per_s: float,
    in_switch: bool = False,
    rank_exponent: float = USUAL_EXPONENT,
    prior: Curve | None = None,
) -> Fit:
    """Fit one collective's curve.

    Parameters
    ----------
    rows : sequence of Measurement
        Of one collective, in groups that lie inside one tier; three at least.
    link_bytes_per_s : float
        Of the tier, one way per device: where the bandwidth's prior stands.
    in_switch : bool
        Whether the switch may reduce (NVLS): ``in_switch_bytes_per_s`` is fitted instead of ``rank_exponent``.
    rank_exponent : float
        Its prior: 0.4 behind a switch, 3.2 on V100's mesh, where a pair has one of a device's six links.
    prior : Curve or None
        A sibling's curve, to lean on instead of the usual values.

    Returns
    -------
    Fit
        Four digits a parameter.

    Raises
    ------
    InputError
        For fewer than three rows, several collectives, or a time of 0.
    """
    from scipy.optimize import least_squares

    data = _Columns.of(rows)
    if len(rows) < FEWEST_ROWS:
        raise bad("rows", len(rows), f"a fit of {data.op} needs {FEWEST_ROWS} rows or more")
    names, centre, spread = _prior(link_bytes_per_s, in_switch, rank_exponent, prior)
    free, notes = _free(names, data)
    lowest = np.array([0.0 if name == "low_latency_ratio" else -np.inf for name in names])

    def residuals(x: np.ndarray) -> np.ndarray:
        full = centre.copy()
        full[free] = x
        error = (
            np.log(_curve(names, full).time_s(data.op, data.size_bytes, data.ranks)) - np.log(data.time_s)
        ) / NOISE
        soft = np.sqrt(2.0 * (np.sqrt(1.0 + error**2) - 1.0))
        return np.concatenate([soft, (x - centre[free]) / spread[free]])

    tries = []
    for more in (0.0, 0.7):  # the two protocols have two optima where rows are few: take the better
        start = centre + np.where(np.array(names) == "low_latency_ratio", more, 0.0)
        tries.append(
            least_squares(residuals, start[free], bounds=(lowest[free], np.inf), x_scale=spread[free])
        )
    best = min(tries, key=lambda result: float(result.cost))
    full = centre.copy()
    full[free] = best.x
    curve = with_digits(parameters(_curve(names, full)), rows=len(rows))
    held = tuple(name for name, is_free in zip(names, free, strict=True) if not is_free)
    return Fit(curve, _intervals(names, free, best, len(rows)), held, notes)


def _prior(
    link_bytes_per_s: float, in_switch: bool, rank_exponent: float, prior: Curve | None
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names of the six parameters, and centre and spread of each (of its logarithm, but for the exponent)."""
    last = "in_switch_bytes_per_s" if in_switch else "rank_exponent"
    names = (*FIELDS, last)
    usual = USUAL | {
        "bandwidth_bytes_per_s": 0.75 * link_bytes_per_s,
        "in_switch_bytes_per_s": 0.6 * link_bytes_per_s,
        "rank_exponent": rank_exponent,
    }
    spread = dict(SPREAD)
    for name in names:
        if prior is not None and (value := getattr(prior, name)) is not None:
            usual[name] = value if name == "rank_exponent" else max(value, 1e-9)
            spread[name] = SIBLING_SPREAD
    logs = [usual[n] if n == "rank_exponent" else math.log(usual[n]) for n in names]
    return names, np.array(logs), np.array([spread[n] for n in names])


def _free(names: tuple[str, ...], data: _Columns) -> tuple[np.ndarray, tuple[str, ...]]:
    """Which parameters the rows can see; the others are held, with the reason."""
    held: dict[str, str] = {}
    if len(np.unique(data.ranks)) == 1:
        held |= dict.fromkeys(("step_s", "rank_exponent"), "rows of one group size")
    sizes = len(np.unique(data.size_bytes))
    if sizes < 4:
        held |= dict.fromkeys(("low_latency_ratio", "ramp_s"), f"rows of {sizes} sizes")
    if np.max(data.size_bytes) < LARGE_BYTES:
        held["ramp_s"] = "no message of 16 MiB or more"
    notes = tuple(f"{name} is held at its prior: {held[name]}" for name in names if name in held)
    return np.array([name not in held for name in names]), notes


def _curve(names: tuple[str, ...], x: np.ndarray) -> Curve:
    """Return the curve of one point of the search, unchecked and with all digits."""
    values: dict[str, Any] = dict.fromkeys(("rank_exponent", "in_switch_bytes_per_s"))
    for name, value in zip(names, x, strict=True):
        values[name] = float(value) if name == "rank_exponent" else math.exp(value)
    return Curve.model_construct(**values)


def with_digits(values: Mapping[str, float | None], **fields: Any) -> Curve:
    """Make a curve of parameters kept to four digits: no more are known, and files stay readable."""
    digits = {n: float(f"{v:.4g}") for n, v in values.items() if v is not None}
    return Curve.model_validate(digits | fields)


def parameters(curve: Curve) -> dict[str, float | None]:
    """Return a curve's parameters by name; of the last two one is None."""
    return {n: getattr(curve, n) for n in (*FIELDS, "rank_exponent", "in_switch_bytes_per_s")}


def _intervals(
    names: tuple[str, ...], free: np.ndarray, result: Any, rows: int
) -> dict[str, tuple[float, float]]:
    spread_of_rows = 2.0 * float(result.cost) / max(rows - int(free.sum()), 1)
    covariance = np.linalg.pinv(result.jac.T @ result.jac) * max(spread_of_rows, 1e-12)
    half = 1.96 * np.sqrt(np.diag(covariance))
    found = {}
    for name, x, h in zip(np.array(names)[free], result.x, half, strict=True):
        low, high = float(x - h), float(x + h)
        found[str(name)] = (
            (low, high) if name == "rank_exponent" else (math.exp(low), math.exp(min(high, 700.0)))
        )
    return found


def relative_errors(curve: Curve, rows: Sequence[Measurement]) -> np.ndarray:
    """Absolute relative error of the curve on each row."""
    data = _Columns.of(rows)
    errors: np.ndarray = np.abs(curve.time_s(data.op, data.size_bytes, data.ranks) / data.time_s - 1.0)
    return errors


def median_errors(curve: Curve, rows: Sequence[Measurement]) -> tuple[float, float | None]:
    """Median absolute relative error over all rows, and over those of 16 MiB and more (None without any)."""
    errors = relative_errors(curve, rows)
    large = errors[np.array([row.size_bytes >= LARGE_BYTES for row in rows])]
    return float(np.median(errors)), float(np.median(large)) if large.size else None


def hold_out(rows: Sequence[Measurement], ranks: int, **options: Any) -> tuple[float, float | None]:
    """Errors on the rows of ``ranks`` ranks of a curve fitted to all other rows; ``options`` as of ``fit_curve``."""
    kept = [row for row in rows if row.ranks != ranks]
    apart = [row for row in rows if row.ranks == ranks]
    return median_errors(fit_curve(kept, **options).curve, apart)


def scored(fit: Fit, rows: Sequence[Measurement], held_out_ranks: int | None = None, **options: Any) -> Curve:
    """Return the fitted curve with its errors, one count of devices held out where ``held_out_ranks`` names it."""
    overall, large = median_errors(fit.curve, rows)
    apart = hold_out(rows, held_out_ranks, **options) if held_out_ranks else (None, None)
    errors = CurveErrors(
        fit=_short(overall),
        fit_above_16_mb=_short(large),
        held_out_ranks=held_out_ranks,
        held_out=_short(apart[0]),
        held_out_above_16_mb=_short(apart[1]),
    )
    return fit.curve.model_copy(update={"errors": errors})


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
