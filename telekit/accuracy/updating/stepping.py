"""One AdamW step of a parameter, its numbers, and what a rule for another way to take it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from telekit.accuracy.measures.pairs import Floats


@dataclass(frozen=True)
class Settings:
    """Numbers of one AdamW step: ``decay`` is the learning rate times the weight decay."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    decay: float
    time: int

    @property
    def corrections(self) -> tuple[float, float]:
        """Divisors of the two moments."""
        return 1 - self.beta1**self.time, 1 - self.beta2**self.time


@dataclass(frozen=True)
class Step:
    """One parameter before and after a step: gradient, weight, moments; flat, one size."""

    g: Floats
    p: Floats
    m: Floats
    v: Floats
    p1: Floats
    m1: Floats
    v1: Floats

    @property
    def change(self) -> Floats:
        """What the step added to the weight."""
        return self.p1 - self.p


def step_of(before: dict[str, Floats], after: dict[str, Floats]) -> Step | None:
    """Put a step's tensors together; None where one is missing, has no element, or is not finite."""
    names = ("grad", "parameter", "exp_avg", "exp_avg_sq")
    if not all(n in before for n in names) or not all(n in after for n in names[1:]):
        return None
    arrays = [*(before[n].ravel() for n in names), *(after[n].ravel() for n in names[1:])]
    if not arrays[0].size or not all(np.isfinite(a).all() for a in arrays):
        return None
    return Step(*arrays)


@dataclass(frozen=True)
class Rule:
    """Another way to take the step.

    ``change(step, settings, number)`` is the weight's change; ``solve(step, settings)`` gives the number at every
    element, None where the rule has none; ``text(number, settings)`` says it.
    """

    kind: str
    text: Callable[[float, Settings], str]
    change: Callable[[Step, Settings, float], Floats]
    solve: Callable[[Step, Settings], Floats] | None = None
    confidence: float = 0.93


def update(s: Step, k: Settings) -> Floats:
    """Return the bias-corrected first moment over the root of the second."""
    c1, c2 = k.corrections
    return (s.m1 / c1) / (np.sqrt(np.maximum(s.v1, 0) / c2) + k.eps)


def usual(s: Step, k: Settings) -> Floats:
    """Return the change that AdamW makes."""
    return -k.decay * s.p - k.lr * update(s, k)


def without_decay(s: Step, k: Settings) -> Floats:
    """Return the step without the decay."""
    return -(s.change + k.decay * s.p)


RATE = "rate"
"""Not a class of its own: a factor that is named by what it may be of."""
