"""The parts of a verdict on two loss curves, one for each rule of a standard."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.curves.curve_coverage import COVERED
from telekit.accuracy.curves.curve_errors import CurveErrors
from telekit.accuracy.curves.curve_pairs import Pair, pair, relative
from telekit.accuracy.curves.curve_standards import (
    LOSS_METRIC,
    CurveStandard,
    EveryStep,
    Limit,
    allowed_bad_steps,
    steady,
)
from telekit.accuracy.curves.curve_statistics import MIN_STEPS, Floats
from telekit.accuracy.readers.curve import LossCurve
from telekit.accuracy.readers.problems import shown
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, Part, check, skipped

FIRST, MEAN, NORM, BOUND, DRIFT = (
    "first step",
    "mean",
    "gradient norm",
    "gradient norm, epsilon bound",
    "drift",
)
OUTLIERS, SPIKES, FINITE, LENGTH = "outliers", "spikes", "finite", "length"
COVERAGE, NAMES = "steps compared", "columns"


def finite(errors: CurveErrors) -> list[Part]:
    """Report NaN and Inf that one side alone has."""
    loss = errors.loss
    mine, theirs = ~np.isfinite(loss.target), ~np.isfinite(loss.golden)
    rule = "NaN and Inf only where golden has them"
    if mine.any():
        note = f"first at step {int(loss.steps[mine][0])}"
        return [check(FINITE, int(mine.sum()), False, rule, note=note)]
    if theirs.any():
        note = f"golden's loss is {loss.lost} at {int(theirs.sum())} steps where target's is finite"
        return [Part(FINITE, 0, rule, WARNING, note)]
    return []


def covered(errors: CurveErrors) -> list[Part]:
    """Warn where the comparison leaves out a good part of what the files hold."""
    found = errors.coverage
    rule = f"{COVERED:.0%} of either run or more, and every loss in it read"
    return [Part(COVERAGE, found.steps, rule, WARNING, "; ".join(found.gaps))] if found.gaps else []


def columns_part(errors: CurveErrors) -> list[Part]:
    """Warn where the two columns do not sound like one quantity."""
    names = errors.names
    note = f"target's {shown(names.target)} beside golden's {shown(names.golden)}"
    return [] if names.alike else [Part(NAMES, None, "one quantity on both sides", WARNING, note)]


def first_part(errors: CurveErrors, limit: Limit) -> Part:
    """Judge the first common step."""
    first = errors.first
    passes = limit.passes(first.abs_error, first.rel_error)
    note = f"step {first.step}: {first.target:.7g} against {first.golden:.7g}, {first.rel_error:.4%}"
    return check(FIRST, first.abs_error, passes, str(limit), note=note)


def mean_part(errors: CurveErrors, limit: Limit) -> Part:
    """Judge the mean over the run."""
    mean = errors.mean
    if mean is None:
        return skipped(MEAN, str(limit), "no step is finite on both sides")
    note = (
        f"over {mean.steps} steps {mean.mre:.4%}, signed {mean.bias:+.4%}; largest {mean.max_abs:.4g} at step "
        f"{mean.max_abs_step}, {mean.max_rel:.4%} at step {mean.max_rel_step}"
    )
    return check(MEAN, mean.mae, limit.passes(mean.mae, mean.mre), str(limit), note=note)


def norm_parts(
    errors: CurveErrors, limit: float, first: float | None, bound: float | None, arithmetic: str
) -> Iterator[Part]:
    """Judge the gradient's norm: its mean error, and the first step's against what rounding explains."""
    rule = f"mean relative error <= {limit:.4g}"
    norm, gaps = errors.norm, errors.coverage.norm_gaps
    if norm is None or not norm.steps.size + norm.both_lost:
        note = "not logged by both" if norm is None else "no step in common"
        yield skipped(NORM, rule, note) if not gaps else Part(NORM, None, rule, WARNING, "; ".join(gaps))
        return
    yield _norm_part(norm, rule, limit, gaps)
    if norm.steps.size and not np.isfinite(norm.target[0]) and int(norm.steps[0]) == errors.first.step:
        yield Part(BOUND, None, "finite", ERROR, f"the norm of step {errors.first.step} is {norm.lost}")
    elif first is not None and bound is not None:
        why = f"first step, same weights: what rounding in {arithmetic} explains (TTrace); a warning"
        yield check(BOUND, first, first <= bound, f"<= {bound:.6g}", level=WARNING, note=why)


def _norm_part(norm: Pair, rule: str, limit: float, gaps: tuple[str, ...]) -> Part:
    """Judge the norms that are finite; one that target alone has not fails, others that are not warn."""
    mine, theirs = (int((~np.isfinite(side)).sum()) for side in (norm.target, norm.golden))
    said = [(mine, "target alone"), (theirs, "golden alone"), (norm.both_lost, "both")]
    lost = "; ".join([*(f"{norm.lost} in {who} at {count} steps" for count, who in said if count), *gaps])
    note = f"over {norm.at.size} steps" + (f"; {lost}" if lost else "")
    if not norm.at.size:
        return Part(NORM, None, rule, ERROR if mine else WARNING, lost)
    mre = norm.mre
    passes = mre <= limit and not mine
    return Part(NORM, mre, rule, ERROR if not passes else WARNING if lost else PASS, note)


def drift_part(errors: CurveErrors, limit: Limit) -> Part:
    """Judge the end of the run, and what follows an onset, against the mean's limit; less that is steady is said."""
    drift, mean = errors.drift, errors.mean
    rule = f"the error keeps around 0; last quarter, and from where it leaves the band, {limit}"
    if mean is None:
        return skipped(DRIFT, rule, "no step is finite on both sides")
    late = abs(drift.late_abs), abs(drift.late_rel)
    note = f"last quarter {drift.late_rel:+.4%}"
    if drift.onset.step is not None:
        note += f", outside the band of {drift.onset.source} from step {drift.onset.step} on"
    found = drift.trend
    if found is not None and found.significant:
        note += f", not luck (p = {found.p:.1g})"
    since = drift.since_abs, drift.since_rel
    gone = drift.onset.step is not None and not limit.passes(*map(abs, since))
    if gone:
        note += f", off by {since[0]:+.4g} ({since[1]:+.4%}) from there on"
    if gone or not limit.passes(*late):
        return Part(DRIFT, since[0] if gone else drift.late_abs, rule, ERROR, note)
    if found is None:
        return Part(DRIFT, drift.late_abs, rule, SKIP, f"{note}; a test of drift needs {MIN_STEPS} steps")
    half = not limit.passes(2 * late[0], 2 * late[1])
    return Part(DRIFT, drift.late_abs, rule, WARNING if found.significant and half else PASS, note)


def outlier_part(errors: CurveErrors, limit: Limit) -> Part:
    """Judge steps out of line, single or on end: beyond the limit, and more than Megatron-LM's tests let pass."""
    jumps = errors.jumps
    if errors.mean is None:
        return skipped(OUTLIERS, str(limit), "no step is finite on both sides")
    allowed = allowed_bad_steps(errors.loss.at.size)
    rule = f"{limit}, but for {allowed} of {errors.loss.at.size} steps"
    if jumps.away > jumps.count and not limit.passes(jumps.away_abs, jumps.away_rel):
        level = ERROR if jumps.away > allowed else WARNING
        note = f"by {jumps.away_abs:.4g} in the median, from step {jumps.away_first} on"
        return Part(OUTLIERS, jumps.away, rule, level, note)
    if not jumps.count or limit.passes(jumps.largest, jumps.largest_rel):
        return Part(OUTLIERS, jumps.count, rule, PASS, f"largest {jumps.largest:.4g}" if jumps.count else "")
    steps = ", ".join(str(step) for step in jumps.outliers[:5])
    level = ERROR if jumps.count > allowed else WARNING
    return Part(OUTLIERS, jumps.count, rule, level, f"up to {jumps.largest:.4g}, at steps {steps}")


def spike_part(errors: CurveErrors) -> Part:
    """Warn of spikes that the target alone has."""
    jumps = errors.jumps
    rule = "no spike of the loss that golden lacks"
    if errors.mean is None:
        return skipped(SPIKES, rule, "no step is finite on both sides")
    if not jumps.target_spikes:
        return Part(SPIKES, 0, rule, PASS, f"{jumps.common_spikes} in both" if jumps.common_spikes else "")
    steps = ", ".join(str(step) for step in jumps.target_spikes[:5])
    return Part(SPIKES, len(jumps.target_spikes), rule, WARNING, f"target alone at steps {steps}")


def every_step(
    target: LossCurve, golden: LossCurve, errors: CurveErrors, standard: CurveStandard
) -> Iterator[Part]:
    """Judge the metrics that have a rule for each step."""
    for metric, rule in standard.every.items():
        name = f"every step: {metric}"
        if metric == LOSS_METRIC:
            yield _steps_part(name, errors.loss, rule)
        elif metric in target.columns and metric in golden.columns:
            yield _steps_part(name, pair(target.series(metric), golden.series(metric)), rule)
        elif metric in golden.columns:
            yield skipped(name, str(rule), "not in the target's file")


def _steps_part(name: str, found: Pair, rule: EveryStep) -> Part:
    """Judge each step; a step where one side alone is not finite fails."""
    t, g, at = found.target[found.finite], found.golden[found.finite], found.at
    lost = found.steps.size - at.size
    if rule.steady:
        inside = np.isin(at, steady(int(at[-1]) if at.size else 0))
        if not inside.any():
            return skipped(name, str(rule), "no steady step is logged")
        t, g, at, lost = np.array([np.median(t[inside])]), np.array([np.median(g[inside])]), at[inside][:1], 0
    if not found.steps.size:
        return skipped(name, str(rule), "no common step")
    if rule.smoothing and at.size:
        t, g = (_smoothed(x, rule.smoothing) for x in (t, g))
    gap, room = np.abs(t - g), rule.absolute + rule.relative * np.abs(g)
    fine = (gap < room) | (gap == 0) if rule.strict else gap <= room
    bad = int((~fine).sum()) + lost
    allowed = allowed_bad_steps(at.size + lost) if rule.bad_steps and at.size + lost > 1 else 0
    note = (
        f"largest {float(np.abs(relative(gap, g)).max()):.4%}"
        if at.size
        else "no step is finite on both sides"
    )
    if bad:
        failing = [*at[~fine], *found.steps[~found.finite]] if not rule.steady else list(at)
        note += f"; {bad} of {at.size + lost} steps fail, first at {int(min(failing))}, {allowed} may"
    return check(name, bad, bad <= allowed, str(rule), note=note)


def _smoothed(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average that starts at the first value."""
    from scipy.signal import lfilter

    start = np.array([weight * values[0]])
    return np.asarray(lfilter([1 - weight], [1, -weight], values, zi=start)[0], np.float64)


def length(errors: CurveErrors, standard: CurveStandard) -> Part:
    """Say how long the run is; a short one is judged by the other parts, which then speak for these steps only."""
    steps = errors.loss.at.size
    rule = f">= {standard.min_steps} steps, {standard.steps} or 12 h by default"
    if steps < standard.min_steps:
        return Part(
            LENGTH, steps, rule, SKIP, "shorter than the standard asks: what is said holds for these steps"
        )
    return Part(LENGTH, steps, rule, PASS)
