"""An AdamW step read back from tensors before and after it."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.updating.fit_causes import step_causes
from telekit.accuracy.updating.updates import fit

LR, B1, B2, EPS, DECAY, TIME = 1e-3, 0.9, 0.95, 1e-8, 0.1, 3


def step(*, lr=LR, first=1 - B1**TIME, second=1 - B2**TIME, eps=EPS, decay=DECAY, power=0.5, size=600):
    """One step in float64, from moments and a gradient drawn at random; corrections are divisors."""
    random = np.random.default_rng(5)
    p, g, m = random.standard_normal((3, size)) * [[0.1], [1e-3], [1e-3]]
    v = random.standard_normal(size) ** 2 * 1e-6
    m1, v1 = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
    p1 = p - lr * decay * p - lr * (m1 / first) / (np.sqrt(v1) / second**power + eps)
    before = {"grad": g, "parameter": p, "exp_avg": m, "exp_avg_sq": v}
    return before, {"parameter": p1, "exp_avg": m1, "exp_avg_sq": v1}


def test_a_step_is_read_back():
    found = fit(*step(eps=1e-4))
    rate = LR * sqrt(1 - B2**TIME) / (1 - B1**TIME)
    assert (found.keep1, found.take1, found.keep2, found.take2) == pytest.approx(
        (B1, 1 - B1, B2, 1 - B2), rel=1e-6
    )
    assert (found.decay, found.rate) == pytest.approx((LR * DECAY, rate), rel=1e-3)
    assert found.eps == pytest.approx(1e-4 * sqrt(1 - B2**TIME), rel=1e-3)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-3])
def test_the_closed_form_leaves_what_least_squares_leaves(eps):
    before, after = step(eps=1e-4)
    change = after["parameter"] - before["parameter"]
    u = after["exp_avg"] / (np.sqrt(after["exp_avg_sq"]) + eps)
    matrix = np.stack([before["parameter"], u], axis=1)
    answer, *_ = np.linalg.lstsq(matrix, change, rcond=None)
    left = np.linalg.norm(matrix @ answer - change) / np.linalg.norm(change)
    assert fit(before, after).left_with(eps) == pytest.approx(left, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"lr": 1.1e-3}, kinds.LEARNING_RATE, "1.1 times"),
        ({"first": 1.0}, kinds.BIAS_CORRECTION, "the first moment's bias correction is left out"),
        ({"first": 1.0, "second": 1.0}, kinds.BIAS_CORRECTION, "both bias corrections"),
        ({"second": 1.0}, kinds.BIAS_CORRECTION, "the second moment's bias correction is left out"),
        ({"power": 1.0}, kinds.BIAS_CORRECTION, "not under the root"),
        ({"decay": 0.0}, kinds.WEIGHT_DECAY, "decays"),
        ({"eps": 1e-3}, kinds.ADAM_EPSILON, "eps"),
    ],
)
def test_what_is_set_otherwise_is_named(change, kind, words):
    causes = list(step_causes(fit(*step(**change)), fit(*step()), TIME))
    best = max(causes, key=lambda c: c.confidence)
    assert best.kind == kind and words in best.text


def test_values_that_are_not_finite_are_not_fitted():
    before, after = step()
    after["exp_avg"][3] = np.nan
    assert fit(before, after) is None
