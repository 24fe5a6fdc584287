"""Cross-entropy done again from logits and labels, and what losses are instead: each made by hand."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.redoing.loss.cross_entropy import Losses, labels_of, loss_causes, losses_of

RANDOM = np.random.default_rng(3)
SHAPE = (4, 32)
LOGITS = 2 * RANDOM.standard_normal((128, 50))
LABELS = RANDOM.integers(0, 50, 128)
LSE = logsumexp(LOGITS, axis=1)
RIGHT = -log_softmax(LOGITS, axis=1)[np.arange(128), LABELS]
GOLDEN = Losses(LOGITS, LABELS, RIGHT.astype(np.float32).astype(np.float64))


def best(loss, labels=LABELS):
    target = Losses(LOGITS, labels, np.asarray(loss).astype(np.float32).astype(np.float64))
    found = loss_causes(target, GOLDEN, SHAPE)
    return found[0] if found else None


def test_cross_entropy_itself_has_nothing_to_explain():
    assert np.allclose(GOLDEN.right, RIGHT)
    assert best(RIGHT) is None and best(RIGHT * (1 + 1e-7)) is None


SMOOTH = 0.9 * RIGHT + 0.1 * (LSE - LOGITS.mean(axis=1))
LAST = np.where(np.arange(128) % 32 == 31, 0.0, RIGHT)


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (RIGHT + 1e-4 * LSE**2, kinds.LOSS_TERM, "a z-loss: 0.0001 times"),
        (RIGHT - 1e-3 * LSE**2, kinds.LOSS_TERM, "(subtracted)"),
        (SMOOTH, kinds.LOSS_TERM, "label smoothing of 0.1"),
        (RIGHT.astype(ml_dtypes.bfloat16), kinds.WRONG_DTYPE, "bfloat16"),
        (RIGHT.astype(np.float16), kinds.WRONG_DTYPE, "float16"),
        (LAST, kinds.MASK, "0 at positions 31 of 32"),
        (np.where(np.arange(128) // 32 == 2, 0.0, RIGHT), kinds.MASK, "0 at sequences 2 of 4"),
        (np.where(LABELS[0] == LABELS, 0.0, RIGHT), kinds.MASK, f"wherever the label is {LABELS[0]}"),
        (
            -log_softmax(LOGITS / 1.5, axis=1)[np.arange(128), LABELS],
            kinds.SOFTMAX_SCALE,
            "multiplied by 0.6667",
        ),
        (RIGHT + np.log((np.exp(LSE) + 14) / np.exp(LSE)), kinds.NORMALISATION, "14 more entries"),
        (RIGHT / np.log(2), kinds.SCALED, "logarithm of base 2"),
        (2 * RIGHT, kinds.SCALED, "2 times the cross-entropy"),
        (-RIGHT, kinds.SIGN, "opposite sign"),
        (RIGHT * np.exp(RANDOM.standard_normal(128)), kinds.UNKNOWN, "off by"),
    ],
)
def test_another_loss_is_named(loss, kind, words):
    cause = best(loss)
    assert cause.kind == kind and words in cause.text, cause


def test_losses_at_other_labels_say_which():
    moved = np.roll(LABELS.reshape(SHAPE), 1, axis=1).ravel()
    cause = best(-log_softmax(LOGITS, axis=1)[np.arange(128), moved])
    assert cause.kind == kinds.DIFFERENT_INPUTS and "that of the position before" in cause.text


def test_labels_are_recovered_from_losses():
    found = labels_of(LOGITS.reshape(*SHAPE, 50), GOLDEN.loss.reshape(SHAPE))
    assert np.array_equal(found.ravel(), LABELS)
    assert labels_of(LOGITS, GOLDEN.loss * 1.01) is None


def test_an_ignored_index_on_both_sides_is_no_fault():
    labels = np.where(np.arange(128) < 5, -100, LABELS)
    sides = [replace(GOLDEN, labels=labels, loss=np.where(labels < 0, 0.0, GOLDEN.loss)) for _ in range(2)]
    assert loss_causes(*sides, SHAPE) == ()


def test_nothing_is_said_where_golden_s_own_loss_is_another():
    golden = Losses(LOGITS, LABELS, RIGHT + 1e-2 * LSE**2)
    assert loss_causes(GOLDEN, golden, SHAPE) == ()


def test_shapes_that_do_not_belong_together_are_left_alone():
    assert losses_of(LOGITS, LABELS[:5], RIGHT) is None
    assert losses_of(LOGITS * np.inf, LABELS, RIGHT) is None
