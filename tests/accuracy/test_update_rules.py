"""An AdamW step done again from its own tensors: each way to take it otherwise is named, with its number."""

from __future__ import annotations

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.updating.stepping import RATE, Settings, Step
from telekit.accuracy.updating.update_rules import rule_causes

K = Settings(lr=2e-3, beta1=0.9, beta2=0.95, eps=1e-8, decay=2e-4, time=3)


def taken(change, k=K, size=4000, seed=1):
    """Take one step in float64 and keep it in float32, as trainings do."""
    random = np.random.default_rng(seed)
    p, g, m = random.standard_normal((3, size)) * [[0.2], [1e-3], [1e-3]]
    v = (random.standard_normal(size) * 1e-3) ** 2
    m1, v1 = k.beta1 * m + (1 - k.beta1) * g, k.beta2 * v + (1 - k.beta2) * g * g
    p, g, m, v, m1, v1 = (x.astype(np.float32).astype(np.float64) for x in (p, g, m, v, m1, v1))
    p1 = (p + change(p, g, m, v, m1, v1, k)).astype(np.float32).astype(np.float64)
    return Step(g, p, m, v, p1, m1, v1)


def adamw(p, g, m, v, m1, v1, k):
    c1, c2 = 1 - k.beta1**k.time, 1 - k.beta2**k.time
    return -k.decay * p - k.lr * (m1 / c1) / (np.sqrt(v1 / c2) + k.eps)


def otherwise(*, lr=1.0, decay=1.0, inside=0.0, outside=0.0, first=1.0, second=1.0, sign=1.0):
    def change(p, g, m, v, m1, v1, k):
        c1, c2 = (1 - k.beta1**k.time) * first, (1 - k.beta2**k.time) * second
        size = np.sqrt(v1 / c2 + inside) + k.eps + outside
        return sign * (-decay * k.decay * p - lr * k.lr * (m1 / c1) / size)

    return change


def causes(change):
    return rule_causes(taken(change, seed=2), taken(adamw), K, K)


def test_golden_s_own_step_has_nothing_to_explain():
    assert causes(adamw) == ()


C1, C2 = 1 - K.beta1**3, 1 - K.beta2**3


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (otherwise(lr=0.8, decay=0.8), RATE, "0.8 times golden's at every element"),
        (otherwise(lr=1.01), RATE, "1.01 times golden's at every element, its decay is not"),
        (otherwise(sign=-1), RATE, "opposite sign"),
        (otherwise(decay=0), kinds.WEIGHT_DECAY, "does not decay"),
        (otherwise(decay=-1), kinds.WEIGHT_DECAY, "-1 times"),
        (otherwise(decay=500), kinds.WEIGHT_DECAY, "not multiplied by the learning rate"),
        (otherwise(inside=1e-6), kinds.ADAM_EPSILON, "inside the root: sqrt(v + 1e-06)"),
        (otherwise(outside=1e-4), kinds.ADAM_EPSILON, "eps is 0.0001 instead of 1e-08"),
        (lambda p, g, m, v, m1, v1, k: -k.decay * p - k.lr * g, kinds.OPTIMIZER_STATE, "no moments (SGD)"),
        (lambda p, g, m, v, m1, v1, k: -k.decay * p - 0.5 * m1, kinds.OPTIMIZER_STATE, "0.5 times the first moment"),
        (lambda p, g, m, v, m1, v1, k: adamw(p, g, m, v, m, v1, k), kinds.OPTIMIZER_STATE,
         "first moment of the step before"),
        (lambda p, g, m, v, m1, v1, k: adamw(p, g, m, v, m1, np.maximum(v, v1), k), kinds.OPTIMIZER_STATE, "AMSGrad"),
        (lambda p, g, m, v, m1, v1, k: adamw(p, g, m, v, k.beta1 * m1 + (1 - k.beta1) * g, v1, k), kinds.ADAM_BETA,
         "Nesterov"),
        (lambda p, g, m, v, m1, v1, k: -k.decay * p - k.lr * m1 / C1 / (v1 / C2 + k.eps), kinds.OPTIMIZER_STATE,
         "without its root"),
        (lambda *a: 0 * a[0], kinds.STALE, "not updated"),
    ],
)  # fmt: skip
def test_another_step_is_named_with_its_number(change, kind, words):
    best = causes(change)[0]
    assert best.kind == kind and words in best.text


@pytest.mark.parametrize(
    ("first", "second"), [(1 / C1, 1.0), (1.0, 1 / C2), ((1 - 0.9**4) / C1, (1 - 0.95**4) / C2)]
)
def test_a_bias_correction_is_one_explanation_of_a_constant_factor(first, second):
    found = causes(otherwise(first=first, second=second))
    assert kinds.BIAS_CORRECTION in {c.kind for c in found} <= {RATE, kinds.BIAS_CORRECTION}


def test_no_ratio_is_said_that_elements_do_not_agree_on():
    noise = np.exp(0.3 * np.random.default_rng(4).standard_normal(4000))
    assert causes(lambda p, g, m, v, m1, v1, k: noise * adamw(p, g, m, v, m1, v1, k)) is None


def test_nothing_is_said_where_golden_is_no_adamw_by_its_numbers():
    other = taken(otherwise(inside=1e-5))
    assert rule_causes(taken(adamw), other, K, K) is None
