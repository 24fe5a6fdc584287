"""What ranks do with their own pieces: of a vocabulary, of gate and up, of the experts, of the norm, of the bytes."""

from __future__ import annotations

from math import sqrt

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.checks.norms import OwnGradients, name_norm
from telekit.accuracy.locating.phase_hint import phase_hint
from telekit.accuracy.redoing.experts.own_experts import missing_choices
from telekit.accuracy.redoing.layers.halves import READINGS, exchanged, of_pieces
from telekit.accuracy.redoing.loss.cross_entropy import Losses, loss_causes
from telekit.accuracy.redoing.loss.vocabulary import vocabulary_causes
from telekit.accuracy.redoing.output.reread import reread

RANDOM = np.random.default_rng(5)
LOGITS = 2 * RANDOM.standard_normal((60, 32))
LABELS = RANDOM.integers(0, 32, 60)
OWN = LOGITS[np.arange(60), LABELS]
RIGHT = np.log(np.exp(LOGITS).sum(axis=1)) - OWN
SHARDS = LOGITS.reshape(60, 4, 8)
FOREIGN = LABELS[:, None] // 8 != np.arange(4)


def added(entry):
    """Each shard's logit at an entry, for tokens whose label is another's."""
    picked = np.take_along_axis(SHARDS, entry[..., None], axis=2)[..., 0]
    return RIGHT - np.where(FOREIGN, picked, 0).sum(axis=1)


AT = LABELS[:, None] - 8 * np.arange(4)
MISTAKES = {
    "at its first entry": (kinds.EXTRA_TERM, added(0 * AT)),
    "at the nearest entry": (kinds.EXTRA_TERM, added(np.clip(AT, 0, 7))),
    "at the label's remainder": (kinds.EXTRA_TERM, added(AT % 8)),
    "log(4) = 1.386 too large": (kinds.DOUBLE_REDUCTION, RIGHT + np.log(4)),
    "log(4) = 1.386 too small": (kinds.NORMALISATION, RIGHT - np.log(4)),
    "the label's logit counted 4 times": (kinds.DOUBLE_REDUCTION, RIGHT - 3 * OWN),
    "label smoothing of 0.1 over a shard's own vocabulary, not all of it: shard 2's": (
        kinds.LOSS_TERM, RIGHT + 0.1 * (OWN - SHARDS[:, 2].mean(axis=1))),
    "the square of shard 1's own log": (
        kinds.LOSS_TERM, RIGHT + 0.01 * np.log(np.exp(SHARDS[:, 1]).sum(axis=1)) ** 2),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_a_shard_of_the_vocabulary_that_does_something_of_its_own_is_named(words):
    kind, loss = MISTAKES[words]
    (cause,) = vocabulary_causes(LOGITS, OWN, LABELS, loss, np.full(60, 1e-6))
    assert cause.kind == kind
    assert words in cause.text
    assert "4 shards" in cause.text


def test_a_sum_of_exponentials_in_bfloat16_is_read_from_the_losses():
    top = LOGITS.max(axis=1)
    total = np.exp(LOGITS - top[:, None]).sum(axis=1).astype(ml_dtypes.bfloat16).astype(float)
    target = Losses(LOGITS, LABELS, np.log(total) + top - OWN)
    cause = loss_causes(target, Losses(LOGITS, LABELS, RIGHT), (60,))[0]
    assert (cause.kind, "accumulated in it" in cause.text) == (kinds.WRONG_DTYPE, True)


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_what_is_read_from_the_wrong_places_is_written_back_there(pieces):
    x = RANDOM.standard_normal((3, 16))
    for _, read, write in READINGS:
        assert np.array_equal(of_pieces(write, pieces, of_pieces(read, pieces, x)), x)


def test_a_rank_reads_its_own_piece_interleaved():
    gate, up = np.arange(4.0), 10 + np.arange(4.0)
    read = next(r for text, r, _ in READINGS if text == "read interleaved")
    # rank 0 holds [0, 1; 10, 11] and takes 0, 10 for its gate; rank 1 holds [2, 3; 12, 13]
    assert of_pieces(read, 2, np.concatenate([gate, up])).tolist() == [0, 10, 2, 12, 1, 11, 3, 13]


def test_channels_in_another_order_are_found_wherever_they_stand():
    halves = RANDOM.standard_normal((50, 12))
    gate, up = np.array([5, 4, 3, 2, 1, 0]), np.array([6, 7, 8, 0, 1, 2])
    found = exchanged(halves, np.tanh, np.tanh(halves[:, gate]) * halves[:, up])
    assert found is not None
    assert (found[1].tolist(), found[2].tolist()) == (gate.tolist(), up.tolist())
    assert exchanged(halves, np.tanh, np.tanh(halves[:, :6]) * halves[:, 6:]) is None


def test_choices_of_other_ranks_experts_are_told_from_any_zeros():
    chosen = np.argsort(RANDOM.standard_normal((4, 8, 8)), axis=-1)[..., :2].astype(float)
    case = Case(
        chosen, chosen, "dispatcher.backward", "layers.0.mlp.token_dispatcher", "backward", "output",
        sizes={"dp": 2, "ep": 2}, inputs=(Known("chosen", chosen, chosen),),
    )  # fmt: skip
    rank = np.repeat([0, 1], 2)[:, None, None]
    cause = missing_choices(case, chosen // 4 != rank)
    assert cause is not None
    assert (cause.kind, "another expert-parallel rank holds" in cause.text) == (kinds.MISSING_REDUCTION, True)
    own = missing_choices(case, chosen // 4 == rank)
    assert own is not None
    assert "the token's own rank holds" in own.text
    assert missing_choices(case, RANDOM.random(chosen.shape) < 0.5) is None


def test_bytes_of_e5m2_read_as_e4m3_halve_the_exponent():
    # exponents 15, 17 and 13 of five bits: 7, 8 and 6 of four, and a half more
    x = np.array([1.0, 4.0, -0.25])
    assert reread(x, "float8_e5m2", "float8_e4m3fn").tolist() == [1.5, 3.0, -0.75]
    assert reread(np.array([1.0]), "bfloat16", "float16").tolist() == [1.875]


def test_a_norm_of_one_stage_or_of_one_index_in_tp_is_named():
    a, b = RANDOM.standard_normal((2, 8, 6))
    experts = RANDOM.standard_normal((4, 6, 4))
    whole = {"layers.0.fc1": a, "layers.1.fc1": b, "layers.1.experts.fc2": experts}
    ranks = [
        {"layers.0.fc1": a[:4]}, {"layers.0.fc1": a[4:]},
        {"layers.1.fc1": b[:4], "layers.1.experts.fc2": experts[:, :3]},
        {"layers.1.fc1": b[4:], "layers.1.experts.fc2": experts[:, 3:]},
    ]  # fmt: skip
    own, sizes = OwnGradients(whole, ranks), {"tp": 2.0, "pp": 2.0}
    stage = name_norm(float(np.linalg.norm(a)), own, sizes, 1e-6)[0]
    assert "pipeline stage 0 alone" in stage.text
    part = sqrt(own.norm**2 - float((experts[:, 3:] ** 2).sum()))
    assert any("of the experts' gradients it counts only those of the ranks of index 0 in tp" in n.text
               for n in name_norm(part, own, sizes, 1e-6))  # fmt: skip


def test_a_loss_that_agrees_within_rounding_does_not_speak_against_the_forward():
    hint = phase_hint(([3.015], [3.0]), ([1.2], [1.0]), 2.0**-7)
    assert hint.phase == "backward"
    assert "agrees within rounding (0.005)" in hint.evidence[0]
    assert not hint.against("forward")
    assert "agrees" not in hint.beside("forward")[0]
    same = phase_hint(([3.0], [3.0]), ([1.2], [1.0]), 2.0**-7)
    assert same.against("forward")
    assert same.beside("forward") == same.evidence == same.beside("backward")
