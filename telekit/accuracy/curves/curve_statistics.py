"""What the difference of two curves does over the steps: drift, onset, jumps; what one curve does: spikes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

MIN_STEPS = 20
"""Fewer steps do not tell a drift from luck."""
SIGNIFICANCE = 0.001
SIGMA = 1.4826
"""Standard deviation of a normal distribution by its median absolute deviation."""
SMOOTH = 5
WINDOW = 11
OUTLIER, SPIKE, BAND = 10.0, 8.0, 5.0
"""In robust standard deviations: a difference that is out of line, a loss that jumps, the self-made noise band."""
SPIKE_SHARE = 0.02
FEW = 0.1
"""Outliers are few: at most this share of the steps."""
AWAY = 10.0
"""In robust standard deviations of all differences: several steps on end that are out of line with the run."""
TIMES = 2.0
"""Of the largest difference of two golden runs so far: one pair of runs shows one sample of the noise."""
LASTING = 0.9
"""A divergence lasts: this share of the steps from its onset on is outside the band."""
RESOLUTION = 1e-7
"""Relative; below it a logged loss has no digits."""


@dataclass(frozen=True)
class Trend:
    """Whether a series keeps around 0.

    Attributes
    ----------
    mean, slope : float
        Of the least-squares line: at the middle, and per step.
    end : float
        The line at the last step.
    late : float
        Median of the last quarter.
    mean_p, slope_p : float
        Probability of so large a mean, or slope, were there none; autocorrelation allowed for.
    autocorrelation : float
        Of neighbours, bias corrected, after the line is taken off.
    effective : float
        Independent values that tell as much as the series.
    """

    mean: float
    slope: float
    end: float
    late: float
    mean_p: float
    slope_p: float
    autocorrelation: float
    effective: float

    @property
    def p(self) -> float:
        """The smaller of the two probabilities."""
        return min(self.mean_p, self.slope_p)

    @property
    def significant(self) -> bool:
        """Whether the mean or the slope is not luck."""
        return self.p < SIGNIFICANCE


def trend(steps: Steps, values: Floats) -> Trend | None:
    """Test a series of differences for an offset and a slope.

    Neighbouring differences of two runs resemble one another, so that a plain t-test finds drift everywhere. The
    variance of the mean here is the long-run one: an AR(1) filter whose coefficient is corrected for its bias
    (Kendall), then a Bartlett kernel on what the filter leaves (Andrews and Monahan, 1992); degrees of freedom are
    those of the effective sample. On simulated noise without drift, up to a random walk, fewer than one series in
    ten of 50 steps or more is called a drift (``tests/accuracy/test_loss_curves.py``).

    Parameters
    ----------
    steps, values : ndarray, shape (n,)
        Ascending steps and finite values.

    Returns
    -------
    Trend or None
        None for fewer than ``MIN_STEPS`` steps.
    """
    n = values.size
    if n < MIN_STEPS:
        return None
    at = steps.astype(np.float64)
    at -= at.mean()
    spread = float(at @ at)
    unit = float(np.abs(values).max()) or 1.0
    values = values / unit  # differences of the smallest numbers there are have no digits left for a variance
    mean, slope = float(values.mean()), float(at @ values / spread)
    late = float(np.median(values[-max(n // 4, 1) :]))
    centred = values - mean
    line = centred - slope * at
    mean_p = _p_value(mean, centred, 1, float(n))[0]
    slope_p, coefficient = _p_value(slope, line, 2, spread)
    effective = n * (1 - coefficient) / (1 + coefficient)
    end = mean + slope * float(at[-1])
    sizes = (unit * mean, unit * slope, unit * end, unit * late)
    return Trend(*sizes, mean_p, slope_p, coefficient, min(effective, n))


def _p_value(estimate: float, residual: Floats, parameters: int, weight: float) -> tuple[float, float]:
    """Return the p-value of an estimate whose variance is the residual's long-run variance over ``weight``."""
    from scipy import stats

    n = residual.size
    scale = float(np.abs(residual).max())
    if scale <= RESOLUTION * abs(estimate) * math.sqrt(n) or scale == 0:
        return (1.0 if estimate == 0 else 0.0), 0.0
    variance, coefficient = _long_run_variance(residual / scale, parameters)
    if variance == 0:
        return (1.0 if estimate == 0 else 0.0), coefficient
    effective = max(n * (1 - coefficient) / (1 + coefficient), 3.0)
    statistic = abs(estimate) / (scale * math.sqrt(variance / weight))
    freedom = max(min(effective, n) - parameters, 1.0)
    return float(2 * stats.t.sf(statistic, freedom)), coefficient


def _long_run_variance(residual: Floats, parameters: int) -> tuple[float, float]:
    """Return the long-run variance and the AR(1) coefficient."""
    n = residual.size
    before, after = residual[:-1], residual[1:]
    power = float(before @ before)
    raw = float(before @ after) / power if power else 0.0
    bias = (1 + 3 * raw if parameters == 1 else 2 + 4 * raw) / n
    coefficient = max(min(raw + bias, 1 - 1 / n), -0.9)
    rest = after - coefficient * before
    own = float(rest @ rest)
    variance = own / (rest.size - parameters)
    lags = int(4 * (n / 100) ** (2 / 9))
    for k in range(1, lags + 1):
        variance += 2 * (1 - k / (lags + 1)) * float(rest[k:] @ rest[:-k]) / rest.size
    variance = max(variance, 0.1 * own / rest.size)  # a kernel's sum may come out near or below zero
    return variance / (1 - coefficient) ** 2, coefficient


def rolling_median(values: Floats, window: int) -> Floats:
    """Return the median of each value's neighbourhood, the ends repeated."""
    from scipy.ndimage import median_filter

    size = min(window, values.size)
    return np.asarray(median_filter(values, size=size, mode="nearest"), np.float64)


def middle(values: Floats) -> float:
    """Return the median; NaN between two infinities of opposite signs."""
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.median(values))


def robust_scale(values: Floats) -> float:
    """Return the standard deviation by the median absolute deviation; 0 for nothing."""
    return SIGMA * float(np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def outliers(differences: Floats, size: float) -> npt.NDArray[np.bool_]:
    """Mark the few differences that are out of line with their neighbours and with the rest.

    Parameters
    ----------
    differences : ndarray, shape (n,)
        Target less golden.
    size : float
        Typical size of golden, for the resolution.

    Returns
    -------
    ndarray of bool, shape (n,)
        All False where more than ``FEW`` of the steps stand out, since then they are not the exception.
    """
    rest = differences - rolling_median(differences, WINDOW)
    marked = np.abs(rest) > max(OUTLIER * robust_scale(rest), 10 * RESOLUTION * size)
    if marked.sum() > max(FEW * marked.size, 1):
        marked[:] = False
    return marked


def away(differences: Floats, size: float) -> npt.NDArray[np.bool_]:
    """Mark steps on end that are out of line with the run: `outliers` do not stand out among their neighbours there.

    Parameters
    ----------
    differences : ndarray, shape (n,)
        Target less golden.
    size : float
        Typical size of golden, for the resolution.

    Returns
    -------
    ndarray of bool, shape (n,)
        Where a step, and the median of it and its neighbours, is beyond ``AWAY`` robust deviations of all from their
        median.
    """
    if differences.size < MIN_STEPS:
        return np.zeros(differences.size, np.bool_)
    rest = differences - np.median(differences)
    limit = max(AWAY * robust_scale(rest), 10 * RESOLUTION * size)
    ahead = np.abs(_smoothed(rest)) > limit
    near = np.convolve(ahead, np.ones(SMOOTH))[: ahead.size] > 0  # the last of them see others ahead
    return np.asarray(near & (np.abs(rest) > limit), np.bool_)


def spikes(values: Floats) -> npt.NDArray[np.bool_]:
    """Mark steps where a curve jumps above its neighbourhood, by much of its noise and of its size."""
    if values.size < MIN_STEPS:
        return np.zeros(values.size, np.bool_)
    middle = rolling_median(values, WINDOW)
    rest = values - middle
    limit = np.maximum(SPIKE * robust_scale(rest), SPIKE_SHARE * np.abs(middle))
    return np.asarray(rest > limit, np.bool_)


@dataclass(frozen=True)
class Onset:
    """The first step from which the difference stays outside the noise band; ``step`` None where there is none.

    ``band`` is the half width at that step (at the last step where there is none); ``source`` says whose noise.
    """

    step: int | None
    band: float
    source: str


def onset(steps: Steps, differences: Floats, size: float, noise: Floats | None = None) -> Onset:
    """Find where a difference leaves the band for good.

    Parameters
    ----------
    steps, differences : ndarray, shape (n,)
        Finite differences, target less golden.
    size : float
        Typical size of golden, for the resolution.
    noise : ndarray, shape (n,), optional
        Differences of two runs of the golden itself at the same steps. Its band is ``TIMES`` the largest noise seen
        up to each step, since runs part over time. Without it, the band is ``BAND`` robust deviations of the pair's own
        first tenth (at least ``MIN_STEPS`` steps) around their median, so that a constant offset is no onset.
    """
    n = differences.size
    floor = RESOLUTION * size
    if noise is not None:
        own = differences
        band = np.maximum(TIMES * np.maximum.accumulate(np.abs(noise)), floor)
        source = "two runs of the golden"
    else:
        head = differences[: max(MIN_STEPS, n // 10)]
        if n <= head.size:
            return Onset(None, math.nan, "too few steps")
        own = differences - np.median(head)
        band = np.full(n, max(BAND * robust_scale(head), floor))
        source = "the pair's own first steps"
    raw = np.abs(own)
    outside = np.abs(_smoothed(own)) > band
    left = np.cumsum(outside[::-1])[::-1] / np.arange(n, 0, -1)
    starts = np.flatnonzero(outside & (left >= LASTING))
    starts = starts[starts <= n - max(min(SMOOTH, n), min(n // 20, MIN_STEPS))]
    if not starts.size:
        return Onset(None, float(band[-1]), source)
    first = int(starts[0]) + int(np.argmax(raw[starts[0] :] > band[starts[0] :]))
    return Onset(int(steps[first]), float(band[first]), source)


def _smoothed(differences: Floats) -> Floats:
    """Return the median of each step and those that follow: a jump of one step is no divergence, a step is sharp."""
    width = min(SMOOTH, differences.size)
    padded = np.concatenate([differences, np.full(width - 1, differences[-1])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    out = np.empty(differences.size)
    for start in range(0, out.size, 1 << 20):  # the median copies its windows
        out[start : start + (1 << 20)] = np.median(windows[start : start + (1 << 20)], axis=1)
    return out
