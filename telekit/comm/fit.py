"""Fit a curve to measurements.

The fit is least squares on the logarithm of time, robust beyond 1.5 times the noise, which is taken from the rows
themselves. A weak prior (usual values, or the curve of the catalog) answers only where no row does: a log of one group
size says how long a small message takes there, not which part of that is steps. How time grows with the ranks is
therefore searched as shares (step over start, in-switch rate over bandwidth), which hold when the rest moves far.
Intervals are 95 %, of Student's t, from the Jacobian's covariance at the optimum, prior included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.cluster.curves import Curve, CurveErrors, HeldOut
from telekit.comm.measurements import Measurement
from telekit.errors import bad

LARGE_BYTES = 2**24
"""Messages of this size and more count as above 16 MB (16 MiB is 16.8 MB)."""

POOR_FIT = 0.15
"""Median error above which a curve is no description of its rows."""

NOISE = 0.08
"""Relative, before the rows have said theirs."""
LEAST_NOISE = 0.003
NOISE_ROWS, NOISE_BEFORE = 2.0, 0.03
"""What is believed of the noise beforehand: as much as two rows of 3 %."""
ROBUST = 1.5
PASSES = 4
FEWEST_ROWS = 3
FIELDS = ("start_s", "step_s", "bandwidth_bytes_per_s", "low_latency_ratio", "ramp_s", "rank_exponent")
USUAL = {"start_s": 8e-6, "step_s": 1.2e-6, "low_latency_ratio": 2.5, "ramp_s": 25e-6, "rank_exponent": 0.4}
SPREAD = {
    "start_s": 1.5, "step_s": 0.7, "bandwidth_bytes_per_s": 1.5, "low_latency_ratio": 0.6, "ramp_s": 1.5,
    "rank_exponent": 0.3,
}  # fmt: skip
"""Of each search variable around its prior: logarithms, for the step that of step over start; the exponent as it is."""
NOT_SEEN = 0.9
"""Part of the prior's spread that is left where rows say nothing."""


@dataclass(frozen=True)
class Fit:
    """A fitted curve, and how well its rows know it.

    Attributes
    ----------
    curve : Curve
        Four digits a parameter.
    intervals : dict of str to (float, float)
        95 % by parameter; wide where the rows say nothing.
    held, notes : tuple of str
        Parameters that stay at the prior, and remarks for a person.
    noise : float
        Relative scatter of the rows around the curve.
    """

    curve: Curve
    intervals: dict[str, tuple[float, float]]
    held: tuple[str, ...]
    notes: tuple[str, ...]
    noise: float
    _space: _Space
    _data: _Columns
    _x: np.ndarray
    _covariance: np.ndarray
    _quantile: float

    def time_interval_s(self, size_bytes: float, ranks: int) -> tuple[float, float]:
        """95 % interval of the time of one collective."""

        def log_time(x: np.ndarray) -> float:
            return math.log(self._space.curve(x, self._data).time_s(self._data.op, size_bytes, float(ranks)))

        return self._interval(log_time)

    def bus_bandwidth_interval(self, ranks: int) -> tuple[float, float]:
        """95 % interval of the bus bandwidth of endless messages, bytes a second."""

        def log_rate(x: np.ndarray) -> float:
            curve = self._space.curve(x, self._data)
            return math.log(curve.bus_bandwidth_bytes_per_s(self._data.op, float(ranks)))

        return self._interval(log_rate)

    def _interval(self, log_value: Any) -> tuple[float, float]:
        middle, width = log_value(self._x), 1e-5
        slope = np.array(
            [(log_value(self._x + width * one) - middle) / width for one in np.eye(len(self._x))]
        )
        half = self._quantile * math.sqrt(float(slope @ self._covariance @ slope))
        return math.exp(middle - half), math.exp(middle + half)


@dataclass(frozen=True)
class _Columns:
    """The rows of one operation as arrays."""

    op: str
    ranks: np.ndarray
    size_bytes: np.ndarray
    time_s: np.ndarray
    counts: tuple[int, ...]

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
        return cls(ops[0], ranks, size, time, tuple(sorted({int(n) for n in ranks})))


@dataclass(frozen=True)
class _Space:
    """The six search variables: prior, and what is not searched."""

    centre: np.ndarray
    spread: np.ndarray
    in_switch_share: float | None
    unit_ranks: int

    @classmethod
    def of(
        cls,
        prior: Mapping[str, float],
        spread: Mapping[str, float],
        in_switch_share: float | None,
        unit_ranks: int,
    ) -> _Space:
        values = np.array(
            [prior[n] if n == "rank_exponent" else math.log(max(prior[n], 1e-9)) for n in FIELDS]
        )
        values[1] -= values[0]
        return cls(
            values, np.array([(SPREAD | dict(spread))[n] for n in FIELDS]), in_switch_share, unit_ranks
        )

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Variables stay where a curve is one."""
        low, high = self.centre - 14.0, self.centre + 14.0
        low[3], high[3] = 0.0, math.log(900.0)
        low[5], high[5] = -2.0, 8.0
        return low, high

    @staticmethod
    def parameters(x: np.ndarray) -> np.ndarray:
        """Parameters (their logarithms, but for the exponent) of a point: a share becomes what it is of."""
        found = x.copy()
        found[1] += x[0]
        return found

    def curve(self, x: np.ndarray, data: _Columns) -> Curve:
        """Return the curve of one point of the search, unchecked and with all digits."""
        values: dict[str, Any] = {n: math.exp(v) for n, v in zip(FIELDS, self.parameters(x), strict=True)}
        values["rank_exponent"] = float(x[5])
        return Curve.model_construct(
            **values, in_switch_share=self.in_switch_share, unit_ranks=self.unit_ranks, ranks=data.counts
        )

    def starts(self, data: _Columns) -> list[np.ndarray]:
        """Where the search begins: the prior's shape at the rows' own scale, for each mix of the two protocols."""
        first = self.centre.copy()
        shown = self.curve(first, data)
        small, large = int(np.argmin(data.time_s)), int(np.argmax(data.size_bytes / data.time_s))
        first[0] += math.log(data.time_s[small] / shown.time_s(data.op, 0.0, data.ranks[small]))
        endless = data.size_bytes[large] * shown.wire_share(data.op, data.ranks[large]) / data.time_s[large]
        first[2] += math.log(endless / shown.bus_bandwidth_bytes_per_s(data.op, data.ranks[large]))
        found = [first]
        for ratio, ramp in ((1.02, 1.0), (2.5, 0.1), (2.5, 2.0), (6.0, 4.0)):
            other = first.copy()
            other[3], other[4] = math.log(ratio), math.log(ramp * data.time_s[small])
            found.append(other)
        low, high = self.bounds
        return [np.clip(x, low + 1e-6, high - 1e-6) for x in found]


def fit_curve(
    rows: Sequence[Measurement],
    *,
    link_bytes_per_s: float,
    in_switch_share: float | None = None,
    prior: Mapping[str, float] | None = None,
    spread: Mapping[str, float] | None = None,
    unit_ranks: int = 1,
) -> Fit:
    """Fit one collective's curve.

    Parameters
    ----------
    rows : sequence of Measurement
        Of one collective, in groups over one tier; three at least.
    link_bytes_per_s : float
        Of the tier, one way per device: where the bandwidth's prior stands.
    in_switch_share : float or None
        As in :class:`Curve`, where the switch may reduce (NVLS).
    prior, spread : mapping or None
        Parameters to take the place of the usual values (:func:`parameters` of a curve like it), and spreads to take
        that of :data:`SPREAD`'s.
    unit_ranks : int
        Ranks of a node, for groups of whole nodes.

    Returns
    -------
    Fit
        The curve and its intervals.

    Raises
    ------
    InputError
        For fewer than three rows, several collectives, or a time of 0.
    """
    data = _Columns.of(rows)
    if len(rows) < FEWEST_ROWS:
        raise bad("rows", len(rows), f"a fit of {data.op} needs {FEWEST_ROWS} rows or more")
    usual = USUAL | {"bandwidth_bytes_per_s": 0.75 * link_bytes_per_s} | dict(prior or {})
    space = _Space.of(usual, spread or {}, in_switch_share, unit_ranks)
    noise, starts = NOISE, space.starts(data)
    for turn in range(PASSES):  # the two protocols have several optima where rows are few: take the best
        found = sorted(
            (_search(space, data, noise, x) for x in starts), key=lambda result: float(result.cost)
        )
        best = found[0].x
        inverse, noise_now, rows_left = _covariance(space, data, best, noise)
        if turn == PASSES - 1:
            break
        noise, starts = noise_now, [result.x for result in found[: 3 if turn == 0 else 1]]
    return _fit_of(space, data, best, inverse, noise, rows_left)


def _errors(space: _Space, data: _Columns, x: np.ndarray) -> np.ndarray:
    """Logarithm of the curve's time over the row's."""
    errors: np.ndarray = np.log(
        space.curve(x, data).time_s(data.op, data.size_bytes, data.ranks) / data.time_s
    )
    return errors


def _search(space: _Space, data: _Columns, noise: float, start: np.ndarray) -> Any:
    from scipy.optimize import least_squares

    def residuals(x: np.ndarray) -> np.ndarray:
        error = _errors(space, data, x) / (noise * ROBUST)
        soft = ROBUST * np.sqrt(2.0 * (np.sqrt(1.0 + error**2) - 1.0))
        return np.concatenate([soft, (x - space.centre) / space.spread])

    return least_squares(residuals, start, bounds=space.bounds, x_scale=space.spread, max_nfev=200)


def _covariance(
    space: _Space, data: _Columns, x: np.ndarray, noise: float
) -> tuple[np.ndarray, float, float]:
    """Covariance of the variables, the noise that the rows show, and how many rows are left to show it."""
    width = 1e-5
    errors = _errors(space, data, x)
    slopes = np.stack([(_errors(space, data, x + width * one) - errors) / width for one in np.eye(len(x))], 1)
    weights = 1.0 / np.sqrt(1.0 + (errors / (noise * ROBUST)) ** 2)
    seen = (slopes.T * weights) @ slopes / noise**2
    covariance = np.linalg.inv(seen + np.diag(space.spread**-2.0))
    rows_left = max(len(errors) - float(np.trace(covariance @ seen)), 0.5)
    limit = max(3.0 * 1.4826 * float(np.median(np.abs(errors))), LEAST_NOISE)
    squares = float(np.sum(np.minimum(np.abs(errors), limit) ** 2))
    shown = math.sqrt((NOISE_ROWS * NOISE_BEFORE**2 + squares) / (NOISE_ROWS + rows_left))
    return covariance, max(shown, LEAST_NOISE), rows_left


def _fit_of(
    space: _Space, data: _Columns, x: np.ndarray, covariance: np.ndarray, noise: float, rows_left: float
) -> Fit:
    from scipy.stats import t

    middle = space.curve(x, data)
    curve = with_digits(
        parameters(middle),
        in_switch_share=space.in_switch_share,
        rows=len(data.ranks),
        ranks=data.counts,
        unit_ranks=space.unit_ranks,
    )
    quantile = float(t.ppf(0.975, NOISE_ROWS + rows_left))
    turn = np.stack([space.parameters(one) for one in np.eye(len(x))], 1)
    half = quantile * np.sqrt(np.diag(turn @ covariance @ turn.T))
    intervals = {}
    for name, value, h in zip(FIELDS, space.parameters(x), half, strict=True):
        low, high = float(value - h), float(value + h)
        as_it_is = name == "rank_exponent"
        intervals[name] = (low, high) if as_it_is else (math.exp(low), math.exp(min(high, 700.0)))
    left = np.sqrt(np.diag(covariance)) / space.spread
    held = tuple(n for n, part in zip(FIELDS, left, strict=True) if part > NOT_SEEN)
    notes = tuple(f"{name} is held near its prior: {_why(name, data)}" for name in held)
    return Fit(curve, intervals, held, notes, noise, space, data, x, covariance, quantile)


def _why(name: str, data: _Columns) -> str:
    if len(data.counts) == 1 and name in ("step_s", "rank_exponent"):
        return "rows of one group size"
    if np.max(data.size_bytes) < LARGE_BYTES:
        return "no message of 16 MiB or more"
    return f"the rows' {len(np.unique(data.size_bytes))} sizes do not show it"


def with_digits(values: Mapping[str, float], **fields: Any) -> Curve:
    """Make a curve of parameters kept to four digits: no more are known, and files stay readable."""
    return Curve.model_validate({n: float(f"{v:.4g}") for n, v in values.items()} | fields)


def parameters(curve: Curve) -> dict[str, float]:
    """Return a curve's six parameters by name."""
    return {n: getattr(curve, n) for n in FIELDS}


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


def scored(fit: Fit, rows: Sequence[Measurement], hold_out_each: bool = False, **options: Any) -> Curve:
    """Return the fitted curve with its errors, each count of ranks held out in turn where that is asked for."""
    overall, large = median_errors(fit.curve, rows)
    apart = []
    for ranks in fit.curve.ranks if hold_out_each else ():
        error, above = hold_out(rows, ranks, **options)
        apart.append(HeldOut(ranks=ranks, error=_short(error), error_above_16_mb=_short(above)))
    errors = CurveErrors(fit=_short(overall), fit_above_16_mb=_short(large), held_out=tuple(apart))
    return fit.curve.model_copy(update={"errors": errors})


def _short(value: float | None) -> Any:
    return None if value is None else round(value, 4)
