"""Orders, joins, factors of pieces and the loss's gradient, each on tensors that were made by hand."""

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.cause_orders import flat_shift, permutation_causes
from telekit.accuracy.locating.walk.explain import explain
from telekit.accuracy.redoing.formula.orders import counts, matched
from telekit.accuracy.redoing.output.columns import column_causes
from telekit.accuracy.redoing.output.factors import by_columns

RANDOM = np.random.default_rng(4)
Q, K = RANDOM.standard_normal((2, 4, 8, 6)), RANDOM.standard_normal((2, 4, 8, 6))
NOISE = 1 + 0.004 * RANDOM.standard_normal((32, 24))


@pytest.mark.parametrize("by", [1, -5, 40])
def test_an_offset_in_memory_is_found_through_rounding(by):
    golden = RANDOM.standard_normal((32, 24))
    target = np.roll(golden.ravel(), by).reshape(golden.shape) * NOISE
    assert flat_shift(golden, target, 0.01) == by
    assert flat_shift(golden, golden * NOISE, 0.01) is None
    found = next(permutation_causes(Case(target, golden, "w", "reduce", "backward", epsilon=2.0**-7)))
    assert found.kind == kinds.PERMUTATION and f"{abs(by)} {'later' if by > 0 else 'earlier'}" in found.text


def test_columns_are_followed_to_where_they_were_copied_from():
    rounded = [np.float32(x * 1.001).astype(np.float64) for x in (Q, K)]
    near = (Known("q", rounded[0], Q), Known("k", rounded[1], K))

    def join(a, b):
        return np.concatenate([a, b], axis=2)

    def found(target):
        case = Case(target, join(Q, K), "x", "linear", "backward", "input", epsilon=2.0**-7, near=near)
        return list(column_causes(case))

    assert not found(join(*rounded))
    (swapped,) = found(join(*rounded[::-1]))
    assert swapped.kind == kinds.PERMUTATION and "columns 0 to 47 are those from 0 on of k" in swapped.text
    (twice,) = found(join(rounded[0], rounded[0]))
    assert twice.kind == kinds.DUPLICATED
    assert found(join(rounded[0], -rounded[1]))[0].kind == kinds.ONE_SHARD


def test_slices_that_are_another_s_are_matched():
    weights = RANDOM.standard_normal((5, 6, 6))

    def made(x):
        return np.einsum("hij,bhj->bhi", weights, x)

    x = RANDOM.standard_normal((3, 5, 6))
    order = [3, 0, 4, 1, 2]
    found = matched(made, x, made(x[:, order]), 1e-6)
    assert found is not None and str(order) in found[0]
    assert matched(made, x, made(x), 1e-6) is None


def test_pieces_are_those_of_the_layout():
    case = Case(Q, Q, sizes={"tp": 4, "dp": 2, "tokens": 64})
    assert counts(case) == [(4, "tp"), (2, "dp")] and counts(case, "cp") == []
    assert [n for n, _ in counts(Case(Q, Q))] == [2, 4, 8]


def test_a_factor_of_each_rank_s_channels():
    own = RANDOM.standard_normal((3, 16, 8))
    case = Case(own, own, phase="forward", sizes={"tp": 4})
    factors = np.repeat([1, 2, 1, 1], 2)
    (found,) = by_columns(own, own * factors, 1e-6, case)
    assert found.kind == kinds.ONE_SHARD and "the 4 pieces (tp) of the channels are 1, 2, 1, 1" in found.text
    some = np.where(np.isin(np.arange(8), (1, 4)), 0.9, 1)
    (found,) = by_columns(own, own * some, 1e-6, case)
    assert found.kind == kinds.SCALED and "[1, 4], are 0.9 times" in found.text


LOGITS = RANDOM.standard_normal((2, 12, 16))
LABELS = RANDOM.integers(0, 16, (2, 12)).astype(np.float64)
UP = RANDOM.random((2, 12)) + 0.5


def gradient(ones=None, logits=LOGITS, scale=1.0):
    p = np.exp(scale * logits)
    p = p / p.sum(axis=-1, keepdims=True)
    ones = (LABELS[..., None] == np.arange(16)) * 1.0 if ones is None else ones
    return (p - ones) * UP[..., None]


ONES = (LABELS[..., None] == np.arange(16)) * 1.0


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        (gradient(0 * ONES), kinds.MISSING_TERM, "the label's term left out"),
        (gradient(ONES * (np.arange(16) < 8)), kinds.MISSING_TERM, "in piece [1] of 2 of axis 2 alone"),
        (gradient(0.9 * ONES + 0.1 / 16), kinds.LOSS_TERM, "label smoothing of 0.1"),
        (
            gradient((LABELS[..., None] + 1 == np.arange(16)) * 1.0),
            kinds.DIFFERENT_INPUTS,
            "+1 from the label",
        ),
        (
            gradient((LABELS[..., None] % 8 == np.arange(16) % 8) * 1.0),
            kinds.EXTRA_TERM,
            "at the label's remainder for tokens whose label is another shard's",
        ),
        (gradient(scale=1.3), kinds.SOFTMAX_SCALE, "multiplied by 1.3"),
    ],
)
def test_the_loss_s_gradient_is_made_again(target, kind, words):
    inputs = tuple(Known(n, a, a) for n, a in (("logits", LOGITS), ("labels", LABELS), ("up", UP)))
    case = Case(
        target, gradient(), "loss.backward", "loss", "backward", "output", sizes={"tp": 2}, inputs=inputs
    )
    found = explain(case)[0]
    assert found.kind == kind and words in found.text
