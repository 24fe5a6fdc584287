"""Gradients that sum other pieces than they should, and a vocabulary in shards that are not reduced."""

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.cause_orders import permutation_causes
from telekit.accuracy.causes.rank_causes import rank_causes
from telekit.accuracy.redoing.layers.pieces import mixed_piece_causes, token_piece_causes
from telekit.accuracy.redoing.loss.vocabulary import vocabulary_causes

RANDOM = np.random.default_rng(5)
X, UP = RANDOM.standard_normal((4, 16, 12)), RANDOM.standard_normal((4, 16, 24))


def product(x, up):
    return up.reshape(-1, up.shape[-1]).T @ x.reshape(-1, x.shape[-1])


def of_weight(target, sizes):
    return Case(
        target, product(X, UP), "Module.linear.parameters_grad.0.weight", "Module.linear", "backward",
        "parameters_grad",
        sizes=sizes, inputs=(Known("up", UP, UP), Known("x", X, X)),
    )  # fmt: skip


def test_own_positions_alone_are_named():
    halves = [product(X[:, s], UP[:, s]) for s in (slice(8), slice(8, 16))]
    target = np.concatenate([halves[0][:12], halves[1][12:]])
    (cause,) = token_piece_causes(of_weight(target, {"tp": 2}))
    assert cause.kind == kinds.MISSING_TERM
    assert "each of 2 (tp) pieces of its axis 0 sums its own rank's positions alone" in cause.text


def test_how_often_each_ranks_sequences_count_is_named():
    times = np.array([1.0, 1.0, 0.5, 0.0])[:, None, None]
    (cause,) = token_piece_causes(of_weight(product(times * X, UP), {"dp": 4}))
    assert "the 4 pieces (dp) of the sequences count [1.0, 1.0, 0.5, 0.0] times" in cause.text


def test_a_clean_gradient_has_no_pieces_to_name():
    assert not list(token_piece_causes(of_weight(product(X, UP), {"dp": 4, "tp": 2})))


def reduced(target, golden):
    return Case(
        target, golden, "Gradient.experts.weight.reduce.step.0.output.0", "Gradient.experts.weight.reduce", "backward",
        "output", sizes={"ep": 2}, inputs=(Known("experts.weight.reduce.input", golden, golden),),
    )  # fmt: skip


def test_a_sum_over_too_many_ranks_is_named_and_a_factor_is_none():
    golden = RANDOM.standard_normal((4, 6, 5))
    a, b = np.split(golden, 2)
    (cause,) = mixed_piece_causes(reduced(np.concatenate([a + b, a + b]), golden))
    assert cause.kind == kinds.EXTRA_TERM
    assert "piece 0 is piece 0 + piece 1" in cause.text
    assert not list(mixed_piece_causes(reduced(2 * golden, golden)))
    alike = np.ones((4, 6, 5))  # pieces that cannot be told apart prove nothing
    assert not list(mixed_piece_causes(reduced(np.concatenate([alike[:2], 2 * alike[2:]]), alike)))


LOGITS = 2 * RANDOM.standard_normal((50, 32))
LABELS = RANDOM.integers(0, 32, 50)
OWN = LOGITS[np.arange(50), LABELS]


def entropy(logits):
    return np.log(np.exp(logits).sum(axis=1))


def not_reduced(name):
    shards = LOGITS.reshape(50, 4, 8)
    top = shards.max(axis=2)
    total = np.log(np.exp(shards - top[:, :, None]).sum(axis=(1, 2)))
    owner = LABELS // 8
    return {
        "the maximum not reduced": total - (OWN - top[np.arange(50), owner]),
        "and shard 1's is put back": total + top[:, 1] - OWN,
        "the sum of exponentials not reduced: shard 2's alone": entropy(shards[:, 2]) - OWN,
        "the predicted logit not reduced": entropy(LOGITS) - np.where(owner == 3, OWN, 0),
        "nothing reduced: shard 0's alone": entropy(shards[:, 0]) - np.where(owner == 0, OWN, 0),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "the maximum not reduced", "and shard 1's is put back", "the sum of exponentials not reduced: shard 2's alone",
        "the predicted logit not reduced", "nothing reduced: shard 0's alone",
    ],
)  # fmt: skip
def test_a_reduction_left_out_of_the_cross_entropy_is_named(name):
    rounding = np.full(50, 1e-6)
    (cause,) = vocabulary_causes(LOGITS, OWN, LABELS, not_reduced(name), rounding)
    assert cause.kind == kinds.MISSING_REDUCTION
    assert (
        f"a vocabulary in 4 shards with {name.split(':')[0].split(' and ')[0]}" in cause.text
        or name in cause.text
    )
    assert not list(vocabulary_causes(LOGITS, OWN, LABELS, entropy(LOGITS) - OWN + 0.01, rounding))


def test_a_shard_held_twice_is_no_replica():
    golden = RANDOM.standard_normal((8, 6))
    first = golden[:4]
    target = np.concatenate([first, first])
    weight = Case(target, golden, "weight", "linear", "setup", "parameters", replicas=(first, first.copy()))
    (cause,) = rank_causes(weight)
    assert cause.kind == kinds.DUPLICATED
    assert "pieces [1] of it are on no rank" in cause.text


def test_a_slice_that_stands_twice_is_no_other_order():
    golden = RANDOM.standard_normal((12, 512))  # so many values that sorted ones are alike
    target = golden[[0, 1, 2, 3, 4, 1, 6, 7, 8, 9, 10, 11]]
    (cause,) = permutation_causes(Case(target, golden, "weight", "linear", epsilon=2.0**-7))
    assert cause.kind == kinds.DUPLICATED
    (cause,) = permutation_causes(Case(golden[::-1], golden, "weight", "linear", epsilon=2.0**-7))
    assert cause.kind == kinds.PERMUTATION
