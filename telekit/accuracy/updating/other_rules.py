"""Rules of another optimizer than AdamW, or of its step taken from other tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.measures.pairs import Floats, to_grid
from telekit.accuracy.updating.stepping import Rule, Settings, Step, update, usual, without_decay


def said(text: str) -> Callable[[float, Settings], str]:
    """Say a rule in words that may have its number in them."""
    return lambda x, k: text.format(x=x)


def other_rules() -> Iterator[Rule]:
    """Rules of another optimizer."""
    for kind, text, of in _FIXED:
        yield Rule(kind, said(text), _at_golden_rate(of), confidence=0.91)
    for text, of in _FREE:
        yield Rule(kinds.OPTIMIZER_STATE, said(text), _at_any_rate(of), _rate_of(of), 0.87)
    yield from _changes()


Of = Callable[[Step, Settings], Floats]


def _at_golden_rate(of: Of) -> Callable[[Step, Settings, float], Floats]:
    return lambda s, k, x: -k.decay * s.p - k.lr * of(s, k)


def _at_any_rate(of: Of) -> Callable[[Step, Settings, float], Floats]:
    return lambda s, k, x: -k.decay * s.p - x * of(s, k)


def _rate_of(of: Of) -> Of:
    return lambda s, k: without_decay(s, k) / of(s, k)


def _size(s: Step, k: Settings, v: Floats) -> Floats:
    return np.sqrt(np.maximum(v, 0) / k.corrections[1]) + k.eps


_FIXED: tuple[tuple[str, str, Of], ...] = (
    (kinds.OPTIMIZER_STATE, "the gradient itself is taken in place of the first moment",
     lambda s, k: s.g / _size(s, k, s.v1)),
    (kinds.OPTIMIZER_STATE, "the first moment of the step before is used",
     lambda s, k: s.m / k.corrections[0] / _size(s, k, s.v1)),
    (kinds.OPTIMIZER_STATE, "the second moment of the step before is used",
     lambda s, k: s.m1 / k.corrections[0] / _size(s, k, s.v)),
    (kinds.OPTIMIZER_STATE, "the larger of the second moment before and after is used (AMSGrad)",
     lambda s, k: s.m1 / k.corrections[0] / _size(s, k, np.maximum(s.v, s.v1))),
    (kinds.ADAM_BETA, "the first moment is looked ahead with beta1 (Nesterov)",
     lambda s, k: (k.beta1 * s.m1 / (1 - k.beta1 ** (k.time + 1)) + (1 - k.beta1) * s.g / k.corrections[0])
     / _size(s, k, s.v1)),
    (kinds.ADAM_BETA, "the first moment is looked ahead with beta1 (Nesterov)",
     lambda s, k: (k.beta1 * s.m1 + (1 - k.beta1) * s.g) / k.corrections[0] / _size(s, k, s.v1)),
    (kinds.OPTIMIZER_STATE, "the second moment is taken without its root",
     lambda s, k: s.m1 / k.corrections[0] / (np.maximum(s.v1, 0) / k.corrections[1] + k.eps)),
    (kinds.OPTIMIZER_STATE, "elements whose step goes against the gradient are left out (a cautious step)",
     lambda s, k: update(s, k) * (s.m1 * s.g > 0)),
)  # fmt: skip
"""Class, words, and what takes the place of the moment over its root, at golden's rate."""

_FREE: tuple[tuple[str, Of], ...] = (
    ("the step is {x:.4g} times the first moment, not divided by the second's root", lambda s, k: s.m1),
    ("the step is {x:.4g} times the gradient: no moments (SGD)", lambda s, k: s.g),
    ("the step is {x:.4g} times the sign of the first moment", lambda s, k: np.sign(s.m1)),
)
"""The same at a rate that is solved for."""


def _changes() -> Iterator[Rule]:
    """Rules of what is done with AdamW's own change."""
    yield Rule(
        kinds.CLIPPING,
        said("the weight's change, not its gradient, is clipped at {x:.4g} at every element"),
        lambda s, k, x: np.clip(usual(s, k), -x, x),
        lambda s, k: np.full(s.p.shape, np.abs(s.change).max()),
        0.91,
    )
    yield Rule(
        kinds.WEIGHT_DECAY,
        said("the weight decays after the step, which decays with it"),
        lambda s, k, x: -k.decay * s.p - (1 - k.decay) * k.lr * update(s, k),
        confidence=0.91,
    )
    yield Rule(
        kinds.WRONG_DTYPE,
        said("the step starts from the weight rounded to bfloat16, not from the float32 master"),
        lambda s, k, x: (
            to_grid(s.p, "bfloat16") - s.p - k.decay * to_grid(s.p, "bfloat16") - k.lr * update(s, k)
        ),
    )
