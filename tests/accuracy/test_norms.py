"""What a reported gradient norm is the norm of, each case summed by hand."""

from __future__ import annotations

from math import sqrt

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.checks.norms import OwnGradients, name_norm

RANDOM = np.random.default_rng(11)
WHOLE = {
    "embedding.weight": RANDOM.standard_normal((8, 6)),
    "layers.0.norm.weight": RANDOM.standard_normal(6),
    "layers.0.fc1.weight": RANDOM.standard_normal((12, 6)),
    "layers.0.experts.fc2.weight": RANDOM.standard_normal((4, 6, 5)),
    "layers.1.norm.weight": RANDOM.standard_normal(6),
    "output_layer.weight": RANDOM.standard_normal((8, 6)),
}
SIZES = {"tp": 2.0, "dp": 3.0, "tokens": 64.0}


def half(name, array, rank):
    if "norm" in name:
        return array
    return np.split(array, 2, axis=0)[rank]


RANKS = [{name: half(name, a, rank) for name, a in WHOLE.items()} for rank in (0, 1)]
OWN = OwnGradients(WHOLE, RANKS)
FLAT = np.concatenate([a.ravel() for a in WHOLE.values()])
NORM = float(np.linalg.norm(FLAT))


def squares(arrays):
    return sum(float((a**2).sum()) for a in arrays)


EXPERTS = WHOLE["layers.0.experts.fc2.weight"]
NORMS = squares(a for n, a in WHOLE.items() if "norm" in n)


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (sqrt(squares(RANKS[0].values())), "norm of rank 0's own gradients"),
        (sqrt(squares(RANKS[1].values())), "norm of rank 1's own gradients"),
        (sqrt(squares(RANKS[0].values()) + squares(RANKS[1].values())), "squares of every rank"),
        (sqrt(NORM**2 - squares([EXPERTS]) + squares([EXPERTS[:2]])), "experts' gradients it counts only those of"),
        (sqrt(NORM**2 - squares([WHOLE["output_layer.weight"]])), "output_layer.weight is left out"),
        (sqrt(NORM**2 + 2 * squares([WHOLE["layers.0.fc1.weight"]])), "layers.0.fc1.weight is counted 3 times"),
        (sqrt(NORM**2 - NORMS), "norms' weights are left out"),
        (NORM**2, "without the root"),
        (float(np.abs(FLAT).sum()), "type 1"),
        (float(np.abs(FLAT).max()), "type inf"),
        (sum(float(np.linalg.norm(a)) for a in WHOLE.values()), "sum of the weights' norms"),
        (65536 * NORM, "2^16: a loss scale"),
        (NORM * sqrt(3), "root of dp"),
        (float(np.float64(NORM).astype(ml_dtypes.bfloat16)), "rounded to bfloat16"),
    ],
)  # fmt: skip
def test_a_wrong_norm_is_named(reported, words):
    assert abs(reported / NORM - 1) > 1e-5
    names = name_norm(reported, OWN, SIZES, 1e-5, NORM)
    assert any(words in name.text and name.likely > names[0].likely - 0.04 for name in names), names


def test_a_norm_that_nothing_explains_is_not_named():
    assert name_norm(1.2345 * NORM, OWN, SIZES, 1e-6, NORM) == ()


@pytest.mark.parametrize("reported", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_norm_is_not_named(reported):
    assert name_norm(reported, OWN, SIZES, 1e-5) == ()
