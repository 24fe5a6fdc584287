"""What a difference between two loss curves looks like, and what to do next: causes with how sure each is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from telekit.accuracy.curves.curve_clues import Clues, Suspect
from telekit.accuracy.curves.curve_errors import CurveErrors
from telekit.accuracy.curves.curve_pairs import Pair, pair
from telekit.accuracy.curves.curve_statistics import Floats, Steps, robust_scale
from telekit.accuracy.curves.ratios import LARGEST_RATIO, MicroBatchMeans, name_ratio
from telekit.accuracy.readers.curve import LossCurve

AUXILIARY = ("aux", "balanc", "mtp", "z_loss", "z-loss", "z loss", "router")
EXACT = 1e-6
"""Relative; two logged losses this near are equal in all digits that logs carry."""
CONSTANT = 0.2
"""A ratio or an offset is constant when its scatter is below this share of it."""

SPECIFIC = ("scaling", "auxiliary loss", "mean of micro-batch means", "shifted steps")
GENERAL = ("forward", "backward", "other start", "drift")
"""What a specific cause would look like too: half as sure beside one."""


def suspects(clues: Clues) -> tuple[Suspect, ...]:
    """Name causes, the likeliest first; always at least one."""
    found = [s for rule in _RULES for s in rule(clues)]
    if not found:
        found = list(_noise(clues))
    if any(s.cause in SPECIFIC for s in found):
        found = [replace(s, confidence=s.confidence / 2) if s.cause in GENERAL else s for s in found]
    return tuple(sorted(found, key=lambda s: -s.confidence))


def _identical(clues: Clues) -> Iterator[Suspect]:
    loss, norm = clues.errors.loss, clues.errors.norm
    same = loss.finite.all() and not loss.error.any()
    if same and (norm is None or (norm.finite.all() and not norm.error.any())):
        known = norm is not None and norm.steps.size > 0
        what = "losses and gradient norms" if known else "losses"
        text = f"all {loss.steps.size} {what} that are compared are equal to the last digit"
        gaps = clues.errors.coverage.gaps
        if gaps or (norm is not None and norm.both_lost):
            left = "; ".join((*gaps, *(("gradient norms are not finite on both sides",) if not gaps else ())))
            yield Suspect("identical", 0.5, f"{text}, but {left}", "compare runs that are whole")
        else:
            yield Suspect("identical", 1.0, text, "nothing")


def _lost(clues: Clues) -> Iterator[Suspect]:
    for what, found in (("loss", clues.errors.loss), ("gradient norm", clues.errors.norm)):
        mine = np.zeros(0, bool) if found is None else ~np.isfinite(found.target)
        if found is None or not mine.any():
            continue
        step = int(found.steps[mine][0])
        text = f"target's {what} is {found.lost} at {int(mine.sum())} steps, first at {step}"
        look = f"dump step {step} and the one before: the first operator with NaN or Inf"
        yield Suspect("non-finite", 0.95, f"{text}, golden's is finite there", look)


def _scaling(clues: Clues) -> Iterator[Suspect]:
    """Look for one factor between the losses, or between the gradient norms."""
    for what, quantity, found in (
        ("loss", "loss", clues.errors.loss),
        ("gradient norm", "norm", clues.errors.norm),
    ):
        ratio = None if found is None else _constant_ratio(found)
        if ratio is None:
            continue
        value, scatter, steps = ratio
        if quantity == "norm" and abs(value - 1) <= (clues.norm_bound or 0.0):
            continue  # any ratio near 1 is some group's, if but a small part is counted twice
        for name in name_ratio(value, clues.sizes, quantity=quantity, spread=scatter)[:3]:
            sure = name.confidence * (1.0 if steps > 2 else 0.9)
            text = (
                f"{what} is {value:.6g} times golden's at {steps} steps (scatter {scatter:.2g}): {name.text}"
            )
            where = "the loss's reduction" if what == "loss" else "gradient reduction and norm, by parameter"
            yield Suspect("scaling", round(sure, 3), text, f"look at {where} over {name.what}")


def _constant_ratio(found: Pair) -> tuple[float, float, int] | None:
    """Return the ratio, its relative scatter and the steps, where one factor explains the pair better than a sum."""
    t, g = found.target[found.finite], found.golden[found.finite]
    usable = (t != 0) & (g != 0) & (np.sign(t) == np.sign(g))
    if not t.size or usable.mean() < 0.9:
        return None
    with np.errstate(over="ignore"):
        ratios = t[usable] / g[usable]
    value = float(np.median(ratios))
    if not 1 / LARGEST_RATIO < value < LARGEST_RATIO:
        return None
    scatter = robust_scale(ratios) / value
    difference = found.error
    offset = float(np.median(difference))
    away = abs(math.log(value))
    if away < EXACT or scatter > CONSTANT * away:
        return None
    if difference.size > 2 and robust_scale(difference) / max(abs(offset), 1e-300) < 0.5 * scatter / away:
        return None  # an offset fits twice as well
    return value, scatter, int(usable.sum())


def _offset(clues: Clues) -> Iterator[Suspect]:
    """Look for a constant sum between the losses: an auxiliary loss, or another mean."""
    difference, at = clues.errors.loss.error, clues.errors.loss.at
    if not difference.any():
        return
    auxiliary = [
        *_auxiliary(clues.target, at, difference, "target"),
        *_auxiliary(clues.golden, at, -difference, "golden"),
    ]
    yield from auxiliary
    if clues.micro_batches is not None:
        yield from _micro_batches(clues.micro_batches, clues.errors)
    if clues.first_passes and clues.mean_passes:
        return
    middle, scatter = float(np.median(difference)), robust_scale(difference)
    constant = difference.size >= 5 and abs(middle) > scatter / CONSTANT
    if constant and not auxiliary and _constant_ratio(clues.errors.loss) is None:
        text = f"the losses differ by {middle:.6g} at every step (scatter {scatter:.2g})"
        yield Suspect(
            "mean of micro-batch means", 0.4, f"{text}: a mean over tokens on one side, a mean of micro-batches' "
            "means on the other, gives such an offset where micro-batches hold unequal counts of tokens",
            "compare sum(loss * tokens) / sum(tokens) with mean(loss) over the micro-batches of one step",
        )  # fmt: skip
        yield Suspect(
            "auxiliary loss", 0.35, f"{text}: an auxiliary loss that one side adds to what it logs",
            "log the language model's loss and the auxiliary loss apart, and subtract the second",
        )  # fmt: skip
        yield Suspect("offset", 0.2, text, "compare the loss's mask, labels and reduction on one batch")


def _auxiliary(curve: LossCurve, at: Steps, difference: Floats, side: str) -> Iterator[Suspect]:
    """Find a column of ``curve`` that its loss has on top: the difference is it, or a multiple of it."""
    for name in curve.columns:
        if name == curve.loss or not any(word in name.lower() for word in AUXILIARY):
            continue
        own = pair((at, difference), curve.series(name))
        x, y = own.golden[own.finite], own.target[own.finite]
        if not x.size or not x.any() or np.median(y) <= 0:
            continue
        factor = 1.0 if np.median(np.abs(y - x)) < 0.05 * np.median(np.abs(y)) else float(y @ x / (x @ x))
        left = float(np.median(np.abs(y - factor * x)) / np.median(np.abs(y)))
        if factor <= 0 or left > 0.05 or (factor != 1 and x.size < 5):
            continue
        times = "" if factor == 1 else f"{factor:.4g} times "
        text = f"the losses differ by {times}{side}'s {name}, but for {left:.1%}: {side} logs the sum"
        yield Suspect(
            "auxiliary loss", 0.95 if factor == 1 else 0.7, text, f"subtract {name} from {side}'s loss"
        )


def _micro_batches(means: MicroBatchMeans, errors: CurveErrors) -> Iterator[Suspect]:
    """Hold the first step's losses against the two means of its micro-batches."""
    sides = (errors.first.target, errors.first.golden)
    for (one, two), who in ((sides, "target"), (sides[::-1], "golden")):
        near = math.isclose(one, means.mean_of_means, rel_tol=1e-3) and math.isclose(
            two, means.token_mean, rel_tol=1e-3
        )
        if near and abs(means.offset) > 2e-3 * abs(means.token_mean):
            text = (
                f"{who} logs {one:.6g}, the mean of micro-batches' means ({means.mean_of_means:.6g}); the other "
                f"{two:.6g}, the mean over tokens ({means.token_mean:.6g})"
            )
            yield Suspect(
                "mean of micro-batch means", 0.95, text, f"divide {who}'s sum by the count of all tokens"
            )


def _shifted(clues: Clues) -> Iterator[Suspect]:
    errors = clues.errors
    if (clues.mean_passes and clues.first_passes) or errors.loss.at.size < 10:
        return
    plain = float(np.median(np.abs(errors.loss.error)))
    for by in (-1, 1):
        moved = pair((errors.loss.steps + by, errors.loss.target), (errors.loss.steps, errors.loss.golden))
        if moved.error.size >= 8 and float(np.median(np.abs(moved.error))) < 0.1 * plain:
            text = (
                f"target's step s is golden's step s {'+' if by > 0 else '-'} 1: so shifted, the curves agree"
            )
            yield Suspect(
                "shifted steps", 0.9, text, "number the steps alike, or look where a batch is skipped"
            )


def _start(clues: Clues) -> Iterator[Suspect]:
    """Read the first step, its gradient norm and the second step: forward, backward, optimizer."""
    errors, first = clues.errors, clues.errors.first
    if not clues.first_passes:
        if not math.isfinite(first.abs_error):
            return
        text = f"the loss of step {first.step} differs by {first.abs_error:.4g} ({first.rel_error:.3%})"
        if clues.mean_passes and clues.end_passes and errors.loss.at.size > 2:
            yield Suspect("other start", 0.6, f"{text}, the mean over the run does not: other initial weights or data",
                          "load the same weights and the same first batch, then compare step 1 again")  # fmt: skip
        else:
            yield Suspect("forward", 0.6, f"{text}: the forward pass, its weights or its data",
                          "check weights and data, then dump the forward pass of this step, modules first")  # fmt: skip
        return
    norm = clues.first_norm
    if norm is not None and clues.norm_bound is not None and norm > clues.norm_bound:
        text = (
            f"step {first.step}: loss within {first.rel_error:.3%}, gradient norm off by {norm:.2%}, "
            f"beyond the {clues.norm_bound:.2%} that rounding explains"
        )
        yield Suspect(
            "backward", 0.75, text, "compare each parameter's gradient norm of this step, then its dump"
        )
        return
    yield from _second_step(clues)
    if errors.norm is not None and errors.norm.at.size and clues.norm_limit is not None:
        mre = errors.norm.mre
        if mre > clues.norm_limit:
            text = f"the gradient norm is off by {mre:.2%} on average, the first loss agrees"
            yield Suspect("backward", 0.55, text, "find the first step whose norm is off, and its parameters")


def _second_step(clues: Clues) -> Iterator[Suspect]:
    errors, loss = clues.errors, clues.errors.loss
    if loss.at.size < 2 or not loss.finite[:2].all():
        return
    size, share = float(abs(loss.error[1])), float(abs(loss.relative[1]))
    equal = errors.first.rel_error <= EXACT
    if not clues.first.passes(size, share):
        sure = 0.8 if equal else 0.6
    elif equal and share > 1e-3 and errors.noise is None:
        sure = 0.4
    else:
        return
    if errors.first.rel_error > 0.3 * share:
        return  # the second step only goes on as the first
    text = (
        f"step {loss.at[0]} agrees (to {errors.first.rel_error:.2g}), step {loss.at[1]} is off by {share:.3%}"
    )
    if errors.resumed:
        text += f"; the target resumes at step {errors.first.step}"
        if errors.first.step and _learning_rate(clues.target, errors.first.step) == 0:
            text += " with learning rate 0"
        yield Suspect("optimizer state", min(sure + 0.1, 0.9), text,
                      "compare the optimizer's states, its step count and the learning rate after loading")  # fmt: skip
    else:
        yield Suspect(
            "optimizer", sure, text, "compare the parameters after the first update, and its learning rate"
        )


def _learning_rate(curve: LossCurve, step: int) -> float | None:
    name = next(
        (
            n
            for n in curve.columns
            if n.lower().replace("-", " ").replace("_", " ") in ("learning rate", "lr")
        ),
        None,
    )
    if name is None:
        return None
    steps, values = curve.series(name)
    here = values[steps == step]
    return float(here[0]) if here.size else None


def _jumps(clues: Clues) -> Iterator[Suspect]:
    jumps = clues.errors.jumps
    if clues.jumps_out:
        if clues.excursion:
            size = f"by {jumps.away_abs:.4g} in the median"
            text = f"{jumps.away} of {clues.errors.loss.at.size} steps are off {size}, from step {jumps.away_first} on"
            yield Suspect("outliers", 0.6 if clues.first_passes and clues.end_passes else 0.3, text,
                          f"compare data and learning rate of step {jumps.away_first}, and dump it")  # fmt: skip
            return
        some = ", ".join(str(step) for step in jumps.outliers[:5])
        text = f"{jumps.count} of {clues.errors.loss.at.size} steps stand out, by up to {jumps.largest:.4g}: {some}"
        alone = clues.first_passes and clues.end_passes
        yield Suspect("outliers", 0.7 if alone else 0.3, text,
                      "look for a resume, another batch or a loss spike at these steps")  # fmt: skip


def _drift(clues: Clues) -> Iterator[Suspect]:
    """Read a difference that comes later, after a good first step."""
    drift, mean = clues.errors.drift, clues.errors.mean
    if mean is None or not clues.first_passes:
        return
    if clues.end_passes and (clues.mean_passes or clues.jumps_out):
        return
    text = f"the first step agrees, the last quarter is off by {drift.late_rel:+.3%}"
    if drift.onset.step is not None:
        text += f"; it leaves the band of {drift.onset.source} at step {drift.onset.step}"
        text += f", off by {drift.since_rel:+.3%} from there on"
    zero = clues.lr_zero
    if zero is None or zero.mean is None:
        yield Suspect(
            "drift", 0.5, text, "run 1,000 steps with learning rate 0: what still differs is no update"
        )
    elif _still(clues, zero):
        more = f"{text}; with learning rate 0 the mean error is {zero.mean.mre:.3%}"
        yield Suspect(
            "optimizer", 0.65, more, "compare gradients by parameter, then the update and its states"
        )
    else:
        more = f"{text}; with learning rate 0 it is still {zero.mean.mre:.3%}: no update is needed for it"
        yield Suspect(
            "forward", 0.65, more, "compare data by step, then the forward pass of the first bad step"
        )


def _still(clues: Clues, zero: CurveErrors) -> bool:
    """Whether the runs with learning rate 0 agree: the golden's noise in training is no measure for them."""
    first, late = clues.plain
    mean = zero.mean
    passes = first.passes(zero.first.abs_error, zero.first.rel_error)
    return passes and mean is not None and late.passes(mean.mae, mean.mre)


def _noise(clues: Clues) -> Iterator[Suspect]:
    mean, drift = clues.errors.mean, clues.errors.drift
    if mean is None:
        yield Suspect(
            "non-finite", 0.5, "no common step is finite on both sides", "look at the logs themselves"
        )
        return
    text = f"mean relative error {mean.mre:.3%}, bias {mean.bias:+.3%}"
    text += f", largest {mean.max_rel:.3%} at step {mean.max_rel_step}"
    moved = drift.trend is not None and drift.trend.significant
    if moved:
        text += f"; a small but steady difference, {drift.late_rel:+.3%} in the last quarter"
    noise = clues.errors.noise
    within = noise is not None and mean.mae <= noise.mae
    if noise is not None:
        text += f"; two golden runs differ by {noise.mre:.3%}"
    sure = (0.9 if within else 0.7) - (0.2 if moved else 0.0) - (0.2 if mean.steps < 20 else 0.0)
    yield Suspect("noise", round(sure, 2), text, "nothing, unless a longer run drifts")


_RULES: tuple[Callable[[Clues], Iterator[Suspect]], ...] = (
    _identical, _lost, _scaling, _offset, _shifted, _start, _jumps, _drift,
)  # fmt: skip
