"""The items of the three phases that are read from a verdict on two loss curves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from telekit.accuracy.curves.curve_pairs import relative
from telekit.accuracy.curves.curve_rules import (
    BOUND,
    COVERAGE,
    DRIFT,
    FINITE,
    FIRST,
    LENGTH,
    MEAN,
    NAMES,
    NORM,
    OUTLIERS,
    SPIKES,
)
from telekit.accuracy.curves.judge import CurveVerdict
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, Part, worst

PREPARATION, SHORT, LONG = "preparation", "short alignment", "long stability"
PHASES = (PREPARATION, SHORT, LONG)
OPEN = "open"
"""An item for which nothing was given."""
TELECHAT = "TeleChat3-MoE report: three phases; its thresholds are not public"
MINDFORMERS = "MindFormers practice: precision_optimization.md"
MSPROBE = "msprobe practice: config check"
MEGATRON = "Megatron-LM practice: --deterministic-mode"


@dataclass(frozen=True)
class Item:
    """One line of the checklist.

    Attributes
    ----------
    phase, name : str
        Where it belongs, and what is asked.
    practice : str
        Whose practice it is.
    result : str
        pass, warning, error, or open.
    found : str
        What the files say.
    how : str
        What to do when it is open or bad.
    """

    phase: str
    name: str
    practice: str
    result: str
    found: str
    how: str = ""


def _part(verdict: CurveVerdict | None, name: str) -> Part | None:
    return None if verdict is None else next((p for p in verdict.verdict.parts if p.name == name), None)


def _from_part(phase: str, name: str, part: Part | None, how: str, why: str = "") -> Item:
    """Make an item of a part of the verdict; ``why`` says that there is none since the losses cannot be compared."""
    if part is None and why:
        return Item(phase, name, MINDFORMERS, ERROR, why, how)
    if part is None or part.result == SKIP:
        note = "nothing of it is logged on both sides" if part is None else part.note
        return Item(phase, name, MINDFORMERS, OPEN, note, how)
    text = f"{part.note} ({part.rule})" if part.note else part.rule
    return Item(phase, name, MINDFORMERS, part.result, text, "" if part.result == PASS else how)


def short_items(verdict: CurveVerdict | None, why: str) -> tuple[Item, ...]:
    """Fill step 1's loss, step 1's gradient norm and step 2's loss: forward, backward, optimizer."""
    return (
        _from_part(
            SHORT,
            "step-1 loss agrees (forward)",
            _part(verdict, FIRST),
            "dump the forward pass of step 1",
            why,
        ),
        _from_part(
            SHORT,
            "step-1 gradient norm agrees (backward)",
            _part(verdict, BOUND),
            "log the gradient norm; local norms by weight tell which",
            why,
        ),
        _second(verdict, why),
        _whole(
            SHORT,
            "loss finite where golden's is",
            verdict,
            (FINITE,),
            "dump the first step that is not finite",
            why,
        ),
    )


def _second(verdict: CurveVerdict | None, why: str) -> Item:
    name, how = "step-2 loss agrees (optimizer)", "compare the parameters after the first update"
    loss = None if verdict is None else verdict.errors.loss
    if why:
        return Item(SHORT, name, MINDFORMERS, ERROR, why, how)
    if verdict is None or loss is None or loss.steps.size < 2:
        return Item(SHORT, name, MINDFORMERS, OPEN, "no second step is given", how)
    if not loss.finite[1]:
        text = f"step {int(loss.steps[1])}: {loss.target[1]:.6g} against {loss.golden[1]:.6g}"
        return Item(SHORT, name, MINDFORMERS, ERROR, text, how)
    error = abs(loss.target[1:2] - loss.golden[1:2])
    size, share = float(error[0]), float(relative(error, loss.golden[1:2])[0])
    limit = verdict.first_limit or verdict.mean_limit
    if limit is None:
        return Item(SHORT, name, MINDFORMERS, OPEN, "the standard has no limit for it", how)
    fine = limit.passes(size, share)
    text = f"step {int(loss.steps[1])}: off by {size:.4g}, {share:.4%} ({limit})"
    return Item(SHORT, name, MINDFORMERS, PASS if fine else ERROR, text, "" if fine else how)


def _whole(
    phase: str, name: str, verdict: CurveVerdict | None, parts: Collection[str], how: str, why: str
) -> Item:
    """Make an item of parts that a verdict has only where something is wrong."""
    if verdict is None:
        return Item(phase, name, MINDFORMERS, ERROR if why else OPEN, why or "no losses given", how)
    found = [p for p in verdict.verdict.parts if p.name in parts]
    if not found:
        steps = verdict.errors.coverage.steps
        return Item(phase, name, MINDFORMERS, PASS, f"{steps} steps")
    text = "; ".join(f"{p.note} ({p.rule})" for p in found)
    return Item(phase, name, MINDFORMERS, worst(p.result for p in found), text, how)


def noise_item(verdict: CurveVerdict | None, given: bool, why: str) -> Item:
    """Say whether golden's self-noise is known."""
    name = "golden's self-noise known"
    noise = None if verdict is None else verdict.errors.noise
    if not given or noise is None:
        how = "run golden twice with determinism off: noise above a limit is the limit"
        text = (why or "not compared") if given else "no second run of golden is given"
        return Item(LONG, name, MINDFORMERS, OPEN, text, how)
    return Item(
        LONG, name, MINDFORMERS, PASS, f"{noise.runs} runs differ by {noise.mae:.4g}, {noise.mre:.4%}"
    )


def zero_item(zero: CurveVerdict | None, why: str) -> Item:
    """Fill the item of the runs with learning rate 0; ``why`` says that they are there and cannot be compared."""
    name, how = (
        "learning rate 0 for 1,000 steps agrees",
        "what differs without an update is forward pass or data",
    )
    if zero is None:
        return Item(
            LONG, name, MINDFORMERS, ERROR if why else OPEN, why or "no such pair of runs is given", how
        )
    bad = [f"{p.name}: {p.note}" for p in zero.verdict.parts if p.result in (ERROR, WARNING)]
    mean = zero.errors.mean
    if mean is None:
        return Item(LONG, name, MINDFORMERS, ERROR, "; ".join(bad), how)
    text = f"{mean.steps} steps: mean error {mean.mae:.4g}, {mean.mre:.4%} (published case: loss 0.001, norm 0.05)"
    text = "; ".join([text, *bad])
    result = WARNING if zero.passed and mean.steps < 1000 else zero.result
    return Item(LONG, name, MINDFORMERS, result, text, "" if result == PASS else how)


def long_items(verdict: CurveVerdict | None, why: str) -> tuple[Item, ...]:
    """Fill the items of the long run."""
    rows: tuple[tuple[str, str, str], ...] = (
        ("mean loss error within its limit", MEAN, "isolate with learning rate 0"),
        ("gradient norm within 10 %", NORM, "log the gradient norm on both sides"),
        ("error around 0, no drift", DRIFT, "look where it leaves the noise band"),
        ("no steps out of line", OUTLIERS, "look for a resume or another batch there"),
        ("no spikes that golden lacks", SPIKES, "look for another batch, or a loss scale that overflows"),
        ("long enough", LENGTH, "run 5,000 steps or 12 h, 1,000 steps at least"),
    )
    whole = _whole(
        LONG, "all losses finite, read and compared", verdict, (FINITE, COVERAGE, NAMES),
        "look at the files: what is left out is not judged", why,
    )  # fmt: skip
    return (whole, *(_from_part(LONG, name, _part(verdict, part), how, why) for name, part, how in rows))
