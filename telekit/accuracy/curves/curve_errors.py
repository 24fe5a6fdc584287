"""The errors of one curve against another, measured; what they mean is for standards and suspects to say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from telekit.accuracy.curves.curve_coverage import (
    Columns,
    Coverage,
    Names,
    compared_names,
    coverage,
    notes,
)
from telekit.accuracy.curves.curve_pairs import LARGEST, Pair, pair, relative
from telekit.accuracy.curves.curve_statistics import (
    Floats,
    Onset,
    Steps,
    Trend,
    away,
    middle,
    onset,
    outliers,
    spikes,
    trend,
)
from telekit.accuracy.readers.curve import LossCurve
from telekit.errors import InputError, bad

LISTED = 20
"""How many steps of a kind are listed; the count is always whole."""


@dataclass(frozen=True)
class FirstStep:
    """The loss of the first step that both have; errors are infinite where one side is not finite."""

    step: int
    target: float
    golden: float
    abs_error: float
    rel_error: float


@dataclass(frozen=True)
class MeanError:
    """Errors over the ``steps`` common steps; ``bias`` is the signed mean relative error."""

    steps: int
    mae: float
    mre: float
    bias: float
    max_abs: float
    max_abs_step: int
    max_rel: float
    max_rel_step: int


@dataclass(frozen=True)
class Drift:
    """What the signed difference does over the run.

    ``trend`` is that of the difference or of the relative difference (``of``), whichever tells more: an offset is
    steady in the one, a factor in the other. None for too short a run. ``late`` is the median of the last quarter,
    ``since`` that from the onset on, 0 without one.
    """

    trend: Trend | None
    of: str
    late_abs: float
    late_rel: float
    onset: Onset
    since_abs: float = 0.0
    since_rel: float = 0.0


@dataclass(frozen=True)
class Jumps:
    """Steps out of line: single differences (``outliers``), steps on end, and spikes that one curve alone has.

    ``away`` counts steps on end that are out of line with the run, ``away_first`` is the first of them (-1 for none),
    ``away_abs`` and ``away_rel`` are their median differences.
    """

    outliers: tuple[int, ...]
    count: int
    largest: float
    largest_rel: float
    target_spikes: tuple[int, ...]
    golden_spikes: tuple[int, ...]
    common_spikes: int
    away: int = 0
    away_first: int = -1
    away_abs: float = 0.0
    away_rel: float = 0.0


@dataclass(frozen=True)
class SelfNoise:
    """How far runs of the golden itself are apart: the largest over all pairs of them.

    ``band`` holds the absolute difference of losses at the steps of the pair that is judged.
    """

    runs: int
    steps: int
    first_abs: float
    first_rel: float
    mae: float
    mre: float
    norm_mre: float | None
    band: Floats = field(repr=False)


@dataclass(frozen=True)
class CurveErrors:
    """Everything measured of a pair of curves."""

    loss: Pair
    norm: Pair | None
    first: FirstStep
    mean: MeanError | None
    drift: Drift
    jumps: Jumps
    noise: SelfNoise | None
    resumed: bool
    notes: tuple[str, ...]
    coverage: Coverage
    names: Names


def measure(
    target: LossCurve, golden: LossCurve, noise: Sequence[LossCurve] = (), columns: Columns | None = None
) -> CurveErrors:
    """Measure target against golden.

    Raises
    ------
    InputError
        A curve without a loss, or no common step.
    """
    named = columns or Columns()
    ours = series(target, named.target, named.subtract_target)
    theirs = series(golden, named.golden, named.subtract_golden)
    loss = pair(ours, theirs)
    if not loss.steps.size:
        raise _nothing_common(target, ours, theirs, loss)
    norm = _norms(target, golden)
    curves = [theirs, *(series(run, named.golden, named.subtract_golden) for run in noise)]
    own = self_noise(curves, [golden, *noise], loss.at) if noise else None
    resumed = bool(ours[0][0] > theirs[0][0])
    return CurveErrors(
        loss, norm, _first(loss), _mean(loss), _drift(loss, own), _jumps(loss), own, resumed,
        notes(loss, ours[0], theirs[0]), coverage(loss, norm, (target, golden), (ours[0], theirs[0]), named),
        compared_names(target, golden, named),
    )  # fmt: skip


def series(curve: LossCurve, column: str, subtract: str) -> tuple[Steps, Floats]:
    """Return a curve's loss, less the column to subtract where that has a value."""
    name = column or curve.loss
    if name is None:
        rule = "none is known as the loss; name the column"
        raise bad("columns", ", ".join(curve.columns), rule, next(iter(curve.columns), ""), curve.source)
    steps, values = curve.series(name)
    if subtract:
        other_steps, other = curve.series(subtract)
        steps, i, j = np.intersect1d(steps, other_steps, assume_unique=True, return_indices=True)
        values = values[i] - other[j]
    return steps, values


def _nothing_common(
    target: LossCurve, ours: tuple[Steps, Floats], theirs: tuple[Steps, Floats], loss: Pair
) -> InputError:
    if loss.both_lost:
        value = f"{LARGEST:g} or more" if loss.huge else "NaN"
        return bad("loss", value, f"is {loss.lost} in both curves at all common steps", source=target.source)
    spans = [f"{s[0]} to {s[-1]}" if s.size else "none" for s, _ in (ours, theirs)]
    return bad("steps", spans[0], f"have none in common with golden's {spans[1]}", source=target.source)


def _norms(target: LossCurve, golden: LossCurve) -> Pair | None:
    """Return the norms that both log, which may have no step in common or none that is finite."""
    if target.grad_norm is None or golden.grad_norm is None:
        return None
    return pair(target.series(target.grad_norm), golden.series(golden.grad_norm))


def _first(loss: Pair) -> FirstStep:
    t, g = float(loss.target[0]), float(loss.golden[0])
    error = abs(t - g) if loss.finite[0] else math.inf
    share = abs(float(relative(np.array([t - g]), np.array([g]))[0])) if loss.finite[0] else math.inf
    return FirstStep(int(loss.steps[0]), t, g, error, share)


def _mean(loss: Pair) -> MeanError | None:
    size, share, at = np.abs(loss.error), loss.relative, loss.at
    if not size.size:
        return None
    one, two = int(size.argmax()), int(np.abs(share).argmax())
    with np.errstate(invalid="ignore", over="ignore"):  # infinite shares of both signs, where golden is 0
        bias = float(share.mean())
    return MeanError(
        size.size, float(size.mean()), loss.mre, bias, float(size[one]),
        int(at[one]), float(abs(share[two])), int(at[two]),
    )  # fmt: skip


def _drift(loss: Pair, noise: SelfNoise | None) -> Drift:
    error, n = loss.error, loss.at.size
    if not n:
        return Drift(None, "", math.nan, math.nan, Onset(None, math.nan, "too few steps"))
    late = slice(-max(n // 4, 1), None)
    own = onset(loss.at, error, loss.size, None if noise is None else noise.band)
    share = loss.relative
    found = {"difference": trend(loss.at, error)}
    if np.isfinite(share).all():
        found["relative difference"] = trend(loss.at, share)
    of, best = min(found.items(), key=lambda item: 1.0 if item[1] is None else item[1].p)
    since = [0.0, 0.0]
    if own.step is not None:
        since = [middle(x[loss.at >= own.step]) for x in (error, share)]
    return Drift(best, of, middle(error[late]), middle(share[late]), own, *since)


def _jumps(loss: Pair) -> Jumps:
    at, error = loss.at, loss.error
    if not at.size:
        return Jumps((), 0, 0.0, 0.0, (), (), 0)
    marked = outliers(error, loss.size)
    largest = float(np.abs(error[marked]).max()) if marked.any() else 0.0
    share = float(np.abs(loss.relative[marked]).max()) if marked.any() else 0.0
    off = away(error, loss.size)
    first = int(at[off][0]) if off.any() else -1
    sizes = [middle(np.abs(x[off])) if off.any() else 0.0 for x in (error, loss.relative)]
    ours, theirs = spikes(loss.target[loss.finite]), spikes(loss.golden[loss.finite])
    near = [np.convolve(mark, np.ones(5), "same") > 0 if mark.any() else mark for mark in (ours, theirs)]
    lone_ours, lone_theirs = ours & ~near[1], theirs & ~near[0]
    return Jumps(
        _steps(at[marked]), int(marked.sum()), largest, share, _steps(at[lone_ours]), _steps(at[lone_theirs]),
        int((ours & near[1]).sum()), int(off.sum()), first, *sizes,
    )  # fmt: skip


def _steps(steps: Steps) -> tuple[int, ...]:
    return tuple(int(step) for step in steps[:LISTED])


def self_noise(curves: Sequence[tuple[Steps, Floats]], logs: Sequence[LossCurve], steps: Steps) -> SelfNoise:
    """Measure how far runs of the golden are apart.

    Parameters
    ----------
    curves : sequence of (steps, losses)
        The golden and its further runs, two at least.
    logs : sequence of LossCurve
        The same, for their gradient norms.
    steps : ndarray
        Where the band is wanted; a step that the runs lack takes the last one's before it.

    Raises
    ------
    InputError
        Runs without a common step.
    """
    firsts, means, shares, band = [], [], [], np.zeros(steps.size)
    common = 0
    for (one, two), (log_one, log_two) in zip(combinations(curves, 2), combinations(logs, 2), strict=True):
        found = pair(one, two)
        mean = _mean(found)
        if mean is None:
            raise bad("noise", log_two.source, f"has no finite step in common with {log_one.source}")
        common = max(common, mean.steps)
        firsts.append(_first(found))
        means.append(mean)
        here = np.searchsorted(found.at, steps, side="right") - 1
        band = np.maximum(band, np.where(here >= 0, np.abs(found.error)[np.maximum(here, 0)], 0.0))
        norms = _norms(log_one, log_two)
        shares += [] if norms is None or not norms.at.size else [norms.mre]
    finite = [f for f in firsts if math.isfinite(f.abs_error)]
    return SelfNoise(
        len(curves), common, max((f.abs_error for f in finite), default=0.0),
        max((f.rel_error for f in finite), default=0.0), max(m.mae for m in means),
        max(m.mre for m in means), max(shares, default=None), band,
    )  # fmt: skip
