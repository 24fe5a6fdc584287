"""The errors of one curve against another, measured; what they mean is for standards and suspects to say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import numpy.typing as npt

from telekit.accuracy.curves.curve_statistics import (
    Floats,
    Onset,
    Steps,
    Trend,
    onset,
    outliers,
    spikes,
    trend,
)
from telekit.accuracy.readers.curve import LossCurve
from telekit.errors import InputError, bad

LISTED = 20
"""How many steps of a kind are listed; the count is always whole."""
LARGEST = 1e100
"""Of a loss or a norm: the square of a larger one overflows."""


@dataclass(frozen=True)
class Pair:
    """One column of two curves at the steps that both have.

    Attributes
    ----------
    steps, target, golden : ndarray, shape (n,)
        Steps where neither side, or only one of them, is NaN or Inf.
    finite : ndarray of bool, shape (n,)
        Where both are finite.
    both_lost : int
        Steps left out because both sides are NaN or Inf there.
    """

    steps: Steps
    target: Floats = field(repr=False)
    golden: Floats = field(repr=False)
    finite: npt.NDArray[np.bool_] = field(repr=False)
    both_lost: int = 0

    @property
    def error(self) -> Floats:
        """Target less golden at the finite steps."""
        return self.target[self.finite] - self.golden[self.finite]

    @property
    def relative(self) -> Floats:
        """``error / |golden|`` at the finite steps: 0 for 0 against 0, infinite against 0 otherwise."""
        return relative(self.error, self.golden[self.finite])

    @property
    def at(self) -> Steps:
        """The finite steps."""
        return self.steps[self.finite]

    @property
    def size(self) -> float:
        """Typical size of golden."""
        there = np.abs(self.golden[self.finite])
        return float(np.median(there)) if there.size else 0.0


def relative(error: Floats, golden: Floats) -> Floats:
    """Return ``error / |golden|``; where golden is 0, 0 for no error and a signed infinity for one."""
    out = np.where(error == 0, 0.0, np.copysign(np.inf, error))
    with np.errstate(over="ignore"):
        np.divide(error, np.abs(golden), out=out, where=golden != 0)
    return out


def pair(target: tuple[Steps, Floats], golden: tuple[Steps, Floats]) -> Pair:
    """Join two series at their common steps, which may be none; a value beyond ``LARGEST`` counts as infinite."""
    steps, i, j = np.intersect1d(target[0], golden[0], assume_unique=True, return_indices=True)
    t, g = (np.where(np.abs(x) >= LARGEST, np.copysign(np.inf, x), x) for x in (target[1][i], golden[1][j]))
    fine_t, fine_g = np.isfinite(t), np.isfinite(g)
    kept = fine_t | fine_g
    return Pair(steps[kept], t[kept], g[kept], (fine_t & fine_g)[kept], int((~kept).sum()))


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
    steady in the one, a factor in the other. None for too short a run.
    """

    trend: Trend | None
    of: str
    late_abs: float
    late_rel: float
    onset: Onset


@dataclass(frozen=True)
class Jumps:
    """Single steps out of line: differences (``outliers``), and spikes of each curve that the other lacks."""

    outliers: tuple[int, ...]
    count: int
    largest: float
    largest_rel: float
    target_spikes: tuple[int, ...]
    golden_spikes: tuple[int, ...]
    common_spikes: int


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


@dataclass(frozen=True)
class Columns:
    """Which columns are compared: the loss's, and those to subtract from it (an auxiliary loss) on either side."""

    target: str = ""
    golden: str = ""
    subtract_target: str = ""
    subtract_golden: str = ""


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
        _notes(loss, ours[0], theirs[0]),
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
        return bad("loss", "NaN", "is NaN or Inf in both curves at all common steps", source=target.source)
    spans = [f"{s[0]} to {s[-1]}" if s.size else "none" for s, _ in (ours, theirs)]
    return bad("steps", spans[0], f"have none in common with golden's {spans[1]}", source=target.source)


def _norms(target: LossCurve, golden: LossCurve) -> Pair | None:
    if target.grad_norm is None or golden.grad_norm is None:
        return None
    found = pair(target.series(target.grad_norm), golden.series(golden.grad_norm))
    return found if found.steps.size else None


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
    with np.errstate(invalid="ignore"):  # infinite shares of both signs, where golden is 0
        bias = float(share.mean())
    return MeanError(
        size.size, float(size.mean()), float(np.abs(share).mean()), bias, float(size[one]),
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
    return Drift(best, of, float(np.median(error[late])), float(np.median(share[late])), own)


def _jumps(loss: Pair) -> Jumps:
    at, error = loss.at, loss.error
    if not at.size:
        return Jumps((), 0, 0.0, 0.0, (), (), 0)
    marked = outliers(error, loss.size)
    largest = float(np.abs(error[marked]).max()) if marked.any() else 0.0
    share = float(np.abs(loss.relative[marked]).max()) if marked.any() else 0.0
    ours, theirs = spikes(loss.target[loss.finite]), spikes(loss.golden[loss.finite])
    near = [np.convolve(mark, np.ones(5), "same") > 0 if mark.any() else mark for mark in (ours, theirs)]
    lone_ours, lone_theirs = ours & ~near[1], theirs & ~near[0]
    return Jumps(
        _steps(at[marked]), int(marked.sum()), largest, share, _steps(at[lone_ours]), _steps(at[lone_theirs]),
        int((ours & near[1]).sum()),
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
        shares += [] if norms is None or not norms.at.size else [float(np.abs(norms.relative).mean())]
    finite = [f for f in firsts if math.isfinite(f.abs_error)]
    return SelfNoise(
        len(curves), common, max((f.abs_error for f in finite), default=0.0),
        max((f.rel_error for f in finite), default=0.0), max(m.mae for m in means),
        max(m.mre for m in means), max(shares, default=None), band,
    )  # fmt: skip


def _notes(loss: Pair, ours: Steps, theirs: Steps) -> tuple[str, ...]:
    notes = []
    if loss.both_lost:
        notes.append(f"{loss.both_lost} steps are NaN or Inf on both sides: left out")
    low, high = max(ours[0], theirs[0]), min(ours[-1], theirs[-1])
    inside = max(int(((s >= low) & (s <= high)).sum()) for s in (ours, theirs))
    joint = loss.steps.size + loss.both_lost
    if inside > joint:
        notes.append(
            f"of {inside} steps between {low} and {high}, {joint} are logged by both: these are compared"
        )
    if ours[0] != theirs[0]:
        notes.append(
            f"target starts at step {ours[0]}, golden at {theirs[0]}: the first common step is {low}"
        )
    if ours[-1] != theirs[-1]:
        notes.append(f"target ends at step {ours[-1]}, golden at {theirs[-1]}")
    return tuple(notes)
