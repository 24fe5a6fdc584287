"""Two fits of a step beside each other: betas, gradients scaled or clipped, decay, eps, bias corrections, the rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite, sqrt

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.updating.updates import Fitted

_FITS = 1e-3  # of a moment: what its fit may leave
_DIFFERS = 0.004  # a fitted coefficient this far off is not the same setting
_LOOSE = 0.01  # of a weight's change: what a fit leaves that is no step of that kind
Later = Callable[[], tuple[Fitted, Fitted, int] | None]


def step_causes(t: Fitted, g: Fitted, time: int, later: Later = lambda: None) -> Iterator[Cause]:
    """Compare two fits of the same parameter.

    Parameters
    ----------
    t, g : Fitted
        Target's and golden's.
    time : int
        The step, from 1, as the bias corrections count it.
    later : callable
        Fits target, golden and gives the time of a later step of the same parameter, or None: asked where one step
        cannot tell a learning rate from a bias correction.
    """
    yield from moment_causes(t, g)
    yield from weight_causes(t, g, time, later)


def weight_causes(t: Fitted, g: Fitted, time: int, later: Later = lambda: None) -> Iterator[Cause]:
    """Compare how two fits change the weight, as :func:`step_causes` does; nothing where the states stood still."""
    if _still(t) and not _still(g):
        return
    betas = not any(_apart(getattr(t, k), getattr(g, k)) for k in ("take1", "take2"))
    yield from _weights(t, g, time, betas, later)


def moment_causes(t: Fitted, g: Fitted, unclip: float | None = None) -> Iterator[Cause]:
    """Compare how two fits make the moments: betas, a scaled gradient, coupled decay, states that are lost or kept.

    ``unclip`` is one over the coefficient that the target clipped with: a moment of the unclipped gradient counts it
    so many times.
    """
    if _still(t) and not _still(g):
        yield Cause(
            kinds.OPTIMIZER_STATE, 0.9, "the target's states come out as they went in: they are not updated"
        )
        return
    if t.coupled and not g.coupled:
        yield Cause(
            kinds.WEIGHT_DECAY,
            0.93,
            f"the weight itself is in the moment ({t.coupled:.3g} of it): decay is coupled (L2)",
        )
        return
    scaled = _scaled_gradient(t, g, unclip)
    if scaled is not None:
        yield scaled
        return
    for name, number in (("beta1", 1), ("beta2", 2)):
        keep, take, left = f"keep{number}", f"take{number}", t.left[number - 1]
        a, b, x, y = getattr(t, take), getattr(g, take), getattr(t, keep), getattr(g, keep)
        which = "first" if number == 1 else "second"
        if left > max(_FITS, 10 * g.left[number - 1]):
            text = f"the {which} moment is no mean of the old one and the gradient dumped ({left:.2g} of it is neither)"
            yield Cause(kinds.OPTIMIZER_STATE, 0.5, text)
        elif _apart(x, y) and abs(x) < 0.01 and not _apart(a, b):
            text = f"the moment before counts {x:.3g} times instead of {y:.3g} ({name}): the state was lost"
            yield Cause(kinds.OPTIMIZER_STATE, 0.9, text)
        elif _apart(a, b):
            one = np.isnan(x) or abs(x + a - 1) < _DIFFERS
            beta = f": {name} {1 - a:.4g} instead of {1 - b:.4g}" if one else ""
            kind = kinds.ADAM_BETA if one else kinds.GRADIENT_SCALING
            yield Cause(
                kind, 0.92, f"the new gradient counts {a:.5g} instead of {b:.5g} in the {which} moment{beta}"
            )
        elif _apart(x, y):
            yield Cause(kinds.ADAM_BETA, 0.8, f"the moment before counts {x:.4g} instead of {y:.4g} ({name})")


def _scaled_gradient(t: Fitted, g: Fitted, unclip: float | None) -> Cause | None:
    """Whether both moments, or one of them, are of a multiple of the gradient that was dumped."""
    first = t.take1 / g.take1 if g.take1 else 1.0
    second = t.take2 / g.take2 if g.take2 else 1.0
    if not (isfinite(first) and isfinite(second)) or max(t.left[:2]) > _FITS:
        return None
    clipped = unclip is not None and abs(unclip - 1) > 0.01
    of_first = clipped and unclip is not None and abs(first / unclip - 1) < _DIFFERS
    of_second = clipped and unclip is not None and abs(second / unclip**2 - 1) < 2 * _DIFFERS
    if of_first or of_second:
        which = (
            "both moments are"
            if of_first and of_second
            else "the first moment is"
            if of_first
            else "the second moment is"
        )
        text = f"{which} of the gradient before clipping, {unclip:.5g} times the clipped one that was dumped"
        return Cause(kinds.CLIPPING, 0.93, text)
    both = abs(first - 1) > _DIFFERS and abs(second / first**2 - 1) < 2 * _DIFFERS
    kept = not (_apart(t.keep1, g.keep1) or _apart(t.keep2, g.keep2))
    if both and kept:
        text = f"both moments are of {first:.5g} times the gradient that was dumped"
        return Cause(kinds.GRADIENT_SCALING, 0.92, text)
    return None


def _weights(t: Fitted, g: Fitted, time: int, betas: bool, later: Later) -> Iterator[Cause]:
    """Compare the weights' change: lr, decay, eps, corrections."""
    if _other_eps(t, g, time):
        text = f"an eps of {t.eps:.3g} (before bias correction) fits the target, golden's is {g.eps:.3g}"
        yield Cause(kinds.ADAM_EPSILON, 0.93, text)
        cause = rate_causes(t.rate / g.rate, g, time, later)[0] if betas and _apart(t.rate, g.rate) else None
        if cause is not None and cause.kind == kinds.BIAS_CORRECTION:
            yield Cause(cause.kind, 0.95, cause.text)
        return
    if t.left[2] > max(_LOOSE, 10 * g.left[2]):
        yield Cause(
            kinds.UNKNOWN, 0.3, f"the target's update is no AdamW step ({t.left[2]:.2g} left), golden's is"
        )
        return
    size = max(abs(g.rate), 1e-30)
    decays = abs(t.decay - g.decay) > max(0.02 * abs(g.decay), 2e-4 * size)
    both = abs(g.decay) > 1e-4 * size and abs(t.decay / g.decay - t.rate / g.rate) < 0.02
    if decays and not both:
        ratio = f"{t.decay / g.decay:.3g} times" if abs(g.decay) > 1e-4 * size else "instead of none:"
        yield Cause(
            kinds.WEIGHT_DECAY,
            0.92,
            f"the weight decays by {t.decay:.3g} a step, {ratio} golden's {g.decay:.3g}",
        )
    if betas and _apart(t.rate, g.rate):
        yield from rate_causes(t.rate / g.rate, g, time, later)


def _other_eps(t: Fitted, g: Fitted, time: int) -> bool:
    """Whether neither side's eps would do for the other; before bias correction, which another beta2 changes too."""
    if t.eps == g.eps or max(t.left[2], g.left[2]) > 0.1:
        return False
    whole = [
        f.eps / sqrt(max(1 - (1 - f.take2) ** time, 1e-12)) if 0 < f.take2 < 1 else f.eps for f in (t, g)
    ]
    if max(whole) < 1.5 * min(whole):
        return False
    worse = t.left_with(g.eps), g.left_with(t.eps)
    return worse[0] > max(10 * t.left[2], 2e-3) and worse[1] > max(10 * g.left[2], 2e-3)


def rate_causes(ratio: float, g: Fitted, time: int, later: Later, within: float = 0.01) -> tuple[Cause, ...]:
    """Name the ratio of two steps: a correction left out, another count of steps, or the learning rate.

    ``within`` is how far a ratio may be from what a correction would make it.
    """
    said = f"the step is {ratio:.4g} times golden's: "
    rate = Cause(kinds.LEARNING_RATE, 0.85, f"{said}the learning rate")
    expected = _corrections(1 - g.take1, 1 - g.take2, time)
    key = next((k for k, e in expected.items() if _near(ratio, e, within) and abs(e - 1) > 0.004), None)
    if key is None:
        return (rate,)
    text = key if isinstance(key, str) else f"the bias corrections count step {key} instead of {time}"
    bias = Cause(kinds.BIAS_CORRECTION, 0.93, said + text)
    second = later()
    if second is not None and _apart(1.0, expected[key]):
        then = second[0].rate / second[1].rate
        would = _corrections(1 - g.take1, 1 - g.take2, second[2])
        moved = key if isinstance(key, str) else key + second[2] - time
        of_bias = [would[k] for k in dict.fromkeys((key, moved)) if k in would]
        if _near(then, ratio) and not any(_near(then, w) for w in of_bias):
            more = f", and {then:.4g} times in step {second[2]}, where a bias correction would have changed"
            return (Cause(kinds.LEARNING_RATE, 0.93, rate.text + more),)
        if any(_near(then, w) for w in of_bias) and not _near(then, ratio):
            return (bias,)
    if not _is_round(ratio):  # what a person sets is a round number, what a correction leaves hardly is
        return (bias,)
    both = "; one step cannot tell which, the next one can"
    return (
        Cause(kinds.LEARNING_RATE, 0.62, f"{rate.text}, or {text}{both}"),
        Cause(kinds.BIAS_CORRECTION, 0.6, f"{bias.text}, or the learning rate{both}"),
    )


def _corrections(b1: float, b2: float, time: int) -> dict[str | int, float]:
    """By what is wrong with the bias corrections (a number: the step they count): the step over the right one."""
    if not (0 < b1 < 1 and 0 < b2 < 1):
        return {}
    first, second = 1 - b1**time, 1 - b2**time
    found: dict[str | int, float] = {
        "both bias corrections are left out": first / sqrt(second),
        "the first moment's bias correction is left out": first,
        "the second moment's bias correction is left out": 1 / sqrt(second),
        "the second moment's correction is not under the root": sqrt(second),
    }
    for other in range(1, 12):
        if other != time:
            found[other] = sqrt(1 - b2**other) / (1 - b1**other) * first / sqrt(second)
    return found


def _near(a: float, b: float, within: float = 0.01) -> bool:
    return abs(a / b - 1) < within if b else False


def _is_round(ratio: float) -> bool:
    """Whether a ratio, or one over it, has one digit: 0.1, 0.5, 2, 3."""
    return any(
        x > 0 and abs(x / float(f"{x:.0e}") - 1) < _DIFFERS for x in (ratio, 1 / ratio if ratio else 0.0)
    )


def _apart(a: float, b: float) -> bool:
    """Whether two coefficients differ; nan on either side cannot tell."""
    return bool(np.isfinite(a) and np.isfinite(b) and abs(a - b) > _DIFFERS * max(abs(a), abs(b), 0.01))


def _still(f: Fitted) -> bool:
    return (
        abs(f.take1) < 1e-6 and abs(f.take2) < 1e-6
        if np.isfinite(f.take1) and np.isfinite(f.take2)
        else False
    )
