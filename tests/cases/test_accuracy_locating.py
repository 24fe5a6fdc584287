"""Confusions and faults of public tools about where two runs part, each with its right answer.

Numbers are the rows of the published cases: Megatron-LM, Transformer Engine, PyTorch and others by their issues.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import NEXT_DUMP
from telekit.accuracy.checks.anomalies import anomalies, finite_statistics
from telekit.accuracy.checks.determinism import ABSENT, check_scatter, diff_check, first_stale, same_set
from telekit.accuracy.checks.replicas import (
    check_replicas,
    invariant_to_split,
    left_out,
    reduction_of,
    shared_gradient,
)
from telekit.accuracy.graph.noise import error_of
from telekit.accuracy.locating.locate import locate
from telekit.accuracy.locating.walk.explain import explain
from telekit.accuracy.measures.summaries import compare_summaries
from telekit.accuracy.standards.depth import depth_bound, in_epsilons

sys.path.append(str(Path(__file__).parents[1] / "accuracy"))
from locating_rows import operator, row, tensor

EPSILON = 2.0**-7


def off(array, relative, seed=0):
    """An array whose relative error is exactly so large."""
    noise = np.random.default_rng(seed).standard_normal(array.shape)
    return array + noise * (relative * np.linalg.norm(array) / np.linalg.norm(noise))


def test_row_1_shared_embedding_under_a_distributed_optimizer():
    """Megatron-LM 844: mean over dp of the sum over pp."""
    found = shared_gradient([[1, 2], [4, 8]], [7.0, 9.5])
    assert found.expected == 7.5 and not found.equal
    assert "stage 0 gave rank 0's own" in found.explanations[0]
    assert "stage 1 gave rank 1's own" in found.explanations[1]
    assert shared_gradient([[1, 2], [4, 8]], [7.5] * 4).equal


def test_row_2_norm_gradients_of_tensor_parallel_ranks_differ():
    """Megatron-LM 1446."""
    values = {"final_layernorm": [[2.9907e-3], [2.9755e-3], [3.0289e-3], [1.9131e-3]]}
    verdict = check_replicas(values, group="tp")
    assert not verdict.passed and "missing TP all-reduce" in verdict.parts[0].note


def test_row_3_errors_in_epsilons():
    """Megatron-LM 1464: 0.4 to 3 epsilons are healthy, dQ and the position embedding are not."""
    x = np.random.default_rng(1).standard_normal((32, 32))
    rows = []
    healthy = [("mlp", 0.4), ("layernorm", 3.0), ("linear_proj", 1.0)]
    for order, (name, eps) in enumerate(healthy):
        rows += operator(f"Module.{name}.M", order, [(x, x)], [(off(x, eps * EPSILON), x)], phase="backward")
    assert locate(rows, epsilon=EPSILON).clean
    rows += operator("Module.core_attention.CP", 3, [(x, x)], [(off(x, 147 * EPSILON), x)], phase="backward")
    rows += operator("Module.pos_emb.E", 4, [(x, x)], [(off(x, 296 * EPSILON), x)], phase="backward")
    found = locate(rows, epsilon=EPSILON)
    assert "core_attention" in found.operator and found.phase == "backward"
    assert [c.operator for c in found.candidates] == ["Module.pos_emb.E"]
    assert in_epsilons(1.14) == pytest.approx(147, abs=1.5) and depth_bound(0) < 1.14


def test_row_8_scatter_with_repeated_indices():
    """PyTorch 88096: both devices are right."""
    source = [11.0, 12.0, 14.0, 15.0]
    found = check_scatter(np.zeros(3), [0, 1, 1, 2], source, [[11, 14, 15], [11, 12, 15]])
    assert found.legal and found.repeated == (1,) and "undefined order" in found.text
    assert not check_scatter(np.zeros(3), [0, 1, 1, 2], source, [[11, 13, 15]]).legal


def test_row_9_two_terms_of_one_gradient():
    """Megatron-LM 7452, item 11."""
    parts = [np.array([0.1200, 0.0400]), np.array([0.0197, -0.0077])]
    golden = np.array([0.1397, 0.0323])
    assert reduction_of(parts, golden) == "their sum"
    name = "Module.out_norm.RMSNorm"
    rows = [row(name, "backward", "parameters_grad", "weight", parts[0], golden, 0)]
    ranks = [tensor(rows[0].name, p, rank=r) for r, p in enumerate(parts)]
    found = locate(rows, replicas=ranks, sizes={"tp": 2})
    assert found.operator == name and found.cause == kinds.MISSING_REDUCTION


def test_row_10_gather_repeats_shards_though_shapes_fit():
    """Megatron-LM 7452, item 7."""
    for golden, target in (([0, 1, 2, 3], [0, 1, 0, 1]), ([12, 13, 14, 15], [12, 13, 12, 13])):
        g, t = (np.repeat(np.array(v, float)[:, None], 4, 1) + np.arange(4) / 10 for v in (golden, target))
        assert explain(Case(t, g))[0].kind == kinds.DUPLICATED


def test_row_11_one_parameter_is_not_in_the_norm():
    """Megatron-LM 7452, item 8, and pull request 5916."""
    norms = {"attention": 2.0, "sink": 0.5, "mlp": 3.0}
    assert left_out(norms, (4 + 9) ** 0.5) == ("sink is left out",)
    assert left_out(norms, (4 + 0.25 + 9) ** 0.5) == ()


def test_row_12_loss_is_equal_and_the_routers_gradient_is_not():
    """Transformers 48687."""
    random = np.random.default_rng(3)
    x, w, d = random.standard_normal((16, 8)), random.standard_normal((4, 8)), random.standard_normal((16, 4))
    rows = operator(
        "Module.layers.0.router.TopKRouter", 0, [(x, x)], [(x @ w.T, x @ w.T)], parameters=[(w, w)]
    )
    rows += operator("Module.layers.0.router.TopKRouter", 1, [(d, d)], [(d @ w, d @ w)], phase="backward")
    rows.append(
        row(
            "Module.layers.0.router.TopKRouter",
            "backward",
            "parameters_grad",
            "weight",
            0.5 * d.T @ x,
            d.T @ x,
            1,
        )
    )
    found = locate(rows, losses=([2.0], [2.0]), sizes={"ep": 2})
    assert (found.phase, found.part) == ("backward", "parameters_grad") and "router" in found.operator
    assert found.cause == kinds.GRADIENT_SCALING


def test_row_15_balancing_loss_must_not_depend_on_the_split():
    """Megatron-LM pull requests 3768 and 3672."""
    verdict = invariant_to_split({"tp1 cp1": 0.010, "tp2 cp1": 0.010, "tp2 cp2": 0.020})
    assert verdict.part("tp2 cp1").result == "pass" and verdict.part("tp2 cp2").value == pytest.approx(2)


def test_row_16_swiglu_resharded_without_interleave():
    """Megatron-LM pull request 520: norm and multiset are equal, so statistics cannot see it."""
    w = np.random.default_rng(4).standard_normal((16, 8))
    gate, up = np.split(w, 2)
    wrong = np.concatenate([gate[:4], up[:4], gate[4:], up[4:]])
    found = explain(Case(wrong, w, sizes={"tp": 2}))[0]
    assert found.kind == kinds.PERMUTATION and "gate and up" in found.text
    said = [{"Max": a.max(), "Min": a.min(), "Mean": a.mean(), "Norm": np.linalg.norm(a)} for a in (wrong, w)]
    assert max(abs(v) for v in compare_summaries(*said).difference.values()) < 1e-12


def test_row_17_a_gradient_near_zero_is_judged_by_scale():
    """Transformer Engine pull request 3095: relative 0.0617, absolute 2.27e-5 of a gradient whose terms cancel."""
    random = np.random.default_rng(5)
    d = random.standard_normal((256, 8))
    d -= d.mean(axis=0)  # the sum over tokens nearly vanishes
    golden = np.full(8, 2.27e-5 / 0.0617)
    bias = row(
        "Module.k_proj.Linear",
        "backward",
        "parameters_grad",
        "bias",
        golden + 2.27e-5 * (-1.0) ** np.arange(8),
        golden,
        1,
    )
    rows = [*operator("Module.k_proj.Linear", 0, [(d, d)], [(d, d)], phase="backward"), bias]
    assert error_of(bias) == pytest.approx(0.0617, rel=1e-3)
    assert locate(rows, epsilon=EPSILON).clean
    big = row("Module.k_proj.Linear", "backward", "parameters_grad", "bias", golden + 1.0, golden, 1)
    assert not locate([*rows[:-1], big], epsilon=EPSILON).clean


def test_row_20_first_operator_that_is_not_deterministic():
    """Megatron-LM 2369: hashes differ first at the order of top-k slots."""
    scores = np.random.default_rng(6).standard_normal((4, 8))
    slots = np.argsort(-scores, axis=1)[:, :2].astype(np.int64)
    rows = operator("Module.router.gating", 0, [(scores, scores)], [(scores, scores)])
    rows += operator("Torch.topk.0", 1, [(scores, scores)], [(slots[:, ::-1].copy(), slots)])
    rows += operator("Module.experts.M", 2, [(slots[:, ::-1].copy(), slots)], [(scores + 1, scores)])
    found = diff_check(rows)
    assert found.first is not None and found.first.operator == "Torch.topk.0" and found.first.order_only
    assert len(found.found) == 1


def test_row_31_a_dump_of_step_2_must_not_hold_step_1s_gradients():
    first = {"fc.weight": np.ones(4), "norm.weight": np.arange(4.0)}
    assert first_stale(first, {"fc.weight": np.ones(4), "norm.weight": np.ones(4)}) == ("fc.weight",)


def test_row_34_top_k_without_order_is_a_set():
    assert same_set([[3, 1]], [[1, 3]])


def test_row_36_absence_under_dump_is_not_absence():
    x = np.ones((2, 2))
    assert diff_check(operator("Module.a.A", 0, [(x, x)], [(x, x)])).text == ABSENT
    assert "absence under dump is not absence" in NEXT_DUMP[kinds.OVERFLOW]


def test_ac09_mask_of_the_opposite_meaning():
    """Megatron-Bridge 2466: inputs and weights of layer 0 are equal, its attention is not."""
    random = np.random.default_rng(8)
    q, k, v = random.standard_normal((3, 2, 8, 2, 4))

    def attend(mask):
        s = np.where(mask, np.einsum("bqhd,bkhd->bhqk", q, k) / 2, -np.inf)
        p = np.exp(s - np.where(mask.any(-1), s.max(-1), 0)[..., None])
        p = p / np.maximum(p.sum(-1, keepdims=True), 1e-30)
        return np.einsum("bhqk,bkhd->bqhd", p, v).reshape(2, 8, 8)

    seen = np.tri(8) > 0
    golden, target = attend(seen), attend(~seen)
    pairs = [(a, a) for a in (q, k, v)]
    rows = operator(
        "Module.layers.0.self_attention.core_attention.DotProductAttention", 0, pairs, [(target, golden)]
    )
    rows += operator(
        "Module.layers.0.self_attention.linear_proj.Linear", 1, [(target, golden)], [(target, golden)]
    )
    found = locate(rows)
    assert "layers.0.self_attention.core_attention" in found.operator
    assert found.cause == kinds.MASK and "opposite" in " ".join(found.evidence)
    assert "what true means" in found.next_dump


def test_ac10_the_first_of_a_wall_of_differences():
    """Pai-Megatron-Patch 605: the input of the output projection is the first that differs."""
    x = np.random.default_rng(9).standard_normal((8, 8))
    rows = operator("Module.layers.0.input_layernorm.RMSNorm", 0, [(x, x)], [(x, x)])
    rows += operator(
        "Module.layers.0.self_attn.o_proj.Linear", 1, [(x + 0.48, x)], [(x + 0.125, x)], parameters=[(x, x)]
    )
    rows += operator("Module.layers.0.self_attn.Attention", 2, [(x, x)], [(x + 0.125, x)])
    rows += operator("Module.layers.1.input_layernorm.RMSNorm", 3, [(x + 0.238, x)], [(x + 0.2, x)])
    found = locate(rows)
    assert "layers.0.self_attn.o_proj" in found.operator and found.part == "input"
    assert "core attention output" in found.operator


def test_ac15_first_contaminated_layer():
    """MaxText 4727: two NaN of 4096 in layer 4, all of layer 5."""
    layers = [np.ones(4096) for _ in range(6)]
    layers[4] = layers[4].copy()
    layers[4][[7, 100]] = np.nan
    layers[5] = np.full(4096, np.nan)
    import dataclasses

    tensors = []
    for i, array in enumerate(layers):
        before = layers[i - 1] if i else layers[0]
        for part, a in (("input", before), ("output", array)):
            tensors.append(dataclasses.replace(tensor(f"layer.{i}.{part}.0", a), api=f"layer.{i}", part=part))
    found = anomalies(tensors)
    assert (found[0].operator, found[0].level, found[0].count, found[0].elements) == (
        "layer.4",
        "critical",
        2,
        4096,
    )
    assert [a.operator for a in found] == ["layer.4", "layer.5"]
    clean = finite_statistics(layers[4])
    assert (clean.mean, clean.maximum, clean.nan) == (1.0, 1.0, 2)
    assert finite_statistics(layers[5]).mean is None
