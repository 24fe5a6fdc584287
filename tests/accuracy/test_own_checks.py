"""What a run's own tensors say, in float32 and in bfloat16, where golden's rounding would hide it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.compare import compare
from telekit.accuracy.locating.locate import locate
from telekit.accuracy.miniature import Config, Fault, Layout, dump, run, skip, with_settings

CONFIG = Config(kv_heads=4)
PRECISIONS = ("fp32", "bf16")
DP2, TP2 = Layout(dp=2), Layout(tp=2)
FC1 = "decoder.layers.1.mlp.linear_fc1"


@cache
def golden_of(config):
    return run(config, seed=77)


def located(fault, precision, layout=DP2, config=CONFIG, steps=None):
    config = replace(config, precision=precision)
    golden = golden_of(config)
    target = run(config, layout, fault=fault, seed=77)
    return locate(
        compare(dump(target, steps=steps), dump(golden, steps=steps), locate=False).rows,
        losses=(target.curve, golden.curve),
        norms=(target.grad_norms, golden.grad_norms),
        sizes={n: float(getattr(layout, n)) for n in ("tp", "cp", "dp", "ep", "pp")},
        replicas=tuple(dump(target, merged=False, steps=steps)),
    )


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def tokens(change):
    return Fault("data.tokens", change)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (lambda e: (np.roll(e.inputs[0], 1, axis=-1), e.inputs[1]), "embedding", "shifted by 1 to the right"),
        (lambda e: (e.inputs[0], e.inputs[0]), "loss", "not shifted"),
        (lambda e: tuple(x[::-1].copy() for x in e.inputs), "embedding", "sequences 2, 3, 0, 1"),
        (lambda e: tuple(np.where(np.arange(16) > 12, 0, x) for x in e.inputs), "embedding", "in positions 13, 14, 15"),
        (lambda e: tuple((x + 1) % 64 for x in e.inputs), "embedding", "another batch"),
    ],
)  # fmt: skip
def test_other_tokens_or_labels_are_the_first_difference(precision, change, where, words):
    found = located(tokens(change), precision, steps=[0])
    assert where in found.operator and found.cause == kinds.DIFFERENT_INPUTS
    assert words in found.evidence[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_tensor_parallel_rank_with_tokens_of_its_own(precision):
    def change(e):
        x = e.inputs[0].copy()
        x[:, :, 1] = np.roll(x[:, :, 1], 1, axis=-1)
        return x, e.inputs[1]

    found = located(tokens(change), precision, TP2, steps=[0])
    assert found.cause == kinds.DIFFERENT_INPUTS and "ranks that agree: 0; 1" in found.evidence[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_copy_of_a_weight_that_differs_on_the_last_rank(precision):
    def change(e):
        x = e.inputs[0].copy()
        x[-1] *= 1.02
        return x

    found = located(Fault(f"initial.{FC1}.weight", change), precision, steps=[0])
    assert (found.phase, found.cause) == ("setup", kinds.DIFFERENT_WEIGHTS)
    assert FC1 in found.operator and "rank 1 is furthest" in found.evidence[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_little_noise_on_a_weight_before_the_first_step(precision):
    def change(e):
        x = e.inputs[0]
        noise = 0.01 * np.random.default_rng(1).standard_normal(x.shape[2:]) * x.std()
        return x + np.broadcast_to(noise, x.shape).astype(x.dtype)

    found = located(Fault(f"initial.{FC1}.weight", change), precision, steps=[0])
    assert (found.phase, found.cause) == ("setup", kinds.DIFFERENT_WEIGHTS) and FC1 in found.operator


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("which", [FC1, "decoder.layers.1.pre_mlp_layernorm", "embedding.word_embeddings"])
def test_the_weight_of_the_step_before_is_seen_below_rounding(precision, which):
    kept = {}

    def change(e):
        at = next(
            i for i, x in enumerate(e.inputs) if x.ndim < 6 and x.shape[-1] == 32 and i == len(e.inputs) - 1
        )
        if e.step == 0:
            kept["w"] = e.inputs[at].copy()
        return e.call(*e.inputs[:at], kept["w"])

    found = located(Fault(which, change), precision)
    assert found.cause == kinds.STALE and which in found.operator and found.step == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_tie_that_an_update_does_not_keep(precision):
    fault = Fault("optimizer.output_layer.weight.adam", with_settings(lr=0.0))
    found = located(fault, precision, Layout(pp=2), replace(CONFIG, tied=True))
    assert "output_layer" in found.operator and found.phase == "optimizer"
    assert found.cause == kinds.STALE and "it is not updated" in found.evidence[0]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("point", "change", "layout"),
    [
        ("gradients.*.accumulate", lambda e: bf16(e.call()), Layout(micro_batches=4)),
        ("gradients.*.all_reduce", lambda e: bf16(e.call()), DP2),
    ],
)
def test_sums_of_gradients_in_bfloat16(precision, point, change, layout):
    found = located(Fault(point, change), precision, layout, steps=[0])
    assert found.phase == "backward" and found.cause == kinds.WRONG_DTYPE and "Gradient" in found.operator


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: bf16(e.call()), "every loss is a bfloat16"),
        (lambda e: e.call() + np.float32(1e-3), "a constant 0.0"),
    ],
)
def test_the_loss_is_a_float32_operator_whatever_the_run_s_precision(precision, change, words):
    found = located(Fault("loss", change), precision, steps=[0])
    assert "loss" in found.operator and words in " ".join(found.evidence)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_reported_loss_that_is_one_rank_s(precision):
    found = located(Fault("loss.all_reduce", skip), precision, steps=[0])
    assert "loss" in found.operator and "mean of the tokens' losses" in " ".join(found.evidence)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("point", "change", "layout", "where", "words"),
    [
        ("optimizer.grad_norm.all_reduce", skip, TP2, "grad_norm", "norm of rank 0's own gradients"),
        ("optimizer.grad_norm.output_layer.weight", lambda e: 0 * e.call(), DP2, "grad_norm", "is left out"),
        ("optimizer.grad_norm", lambda e: e.call() ** 2, DP2, "grad_norm", "without the root"),
        ("optimizer.clip_grad", lambda e: np.ones_like(e.call()), DP2, "clip_grad", "not applied"),
        ("optimizer.clip_grad", lambda e: e.call() ** 2, TP2, "clip_grad", "applied twice"),
        ("optimizer.clip_grad", with_settings(largest=0.25), DP2, "clip_grad", "0.25 instead of 1"),
    ],
)
def test_norm_and_clipping_are_checked_by_the_gradients_they_are_of(
    precision, point, change, layout, where, words
):
    found = located(Fault(point, change), precision, layout, steps=[0])
    assert found.operator == f"optimizer.{where}" and found.cause == kinds.CLIPPING
    assert words in " ".join(found.evidence)


def sliced(e):
    """Each data-parallel rank updates its rows, and nobody gathers them."""
    m, a, s = e.call()
    m, rows = m.copy(), m.shape[3]
    for d in range(e.layout.dp):
        others = np.arange(rows) * e.layout.dp // rows != d
        m[d][:, :, others] = e.inputs[1][d][:, :, others]
    return m, a, s


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (sliced, kinds.ONE_SHARD, "the slice of rank 0 of dp"),
        (lambda e: (e.call()[0], e.call()[1], bf16(e.call()[2])), kinds.WRONG_DTYPE, "every second moment"),
        (with_settings(weight_decay=0.0), kinds.WEIGHT_DECAY, "does not decay"),
        (with_settings(eps=1e-6), kinds.ADAM_EPSILON, "eps is 1e-06"),
        (lambda e: e.call(2 * e.inputs[0], *e.inputs[1:]), kinds.GRADIENT_SCALING, "2 times the gradient"),
    ],
)
def test_an_update_is_done_again(precision, change, kind, words):
    found = located(Fault("*.adam", change), precision)
    assert found.phase == "optimizer" and found.cause == kind and words in " ".join(found.evidence)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_copies_that_an_update_leaves_unequal(precision):
    def change(e):
        m, a, s = e.call()
        m = m.copy()
        m[-1] = e.inputs[1][-1]
        return m, a, s

    found = located(Fault(f"optimizer.{FC1}.weight.adam", change), precision, steps=[0])
    assert found.cause == kinds.ONE_SHARD and "rank 1 is furthest" in found.evidence[0]


@pytest.mark.parametrize(
    "layout", [DP2, TP2, Layout(pp=2, micro_batches=2), Layout(cp=2, tp=2, sequence_parallel=True)]
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_layout_that_changes_nothing_passes_every_check(layout, precision):
    found = located(None, precision, layout)
    assert found.clean, found.evidence
    assert not any("failed" in line for line in found.evidence)
