"""Each hypothesis on arrays made to fit it, and none where nothing fits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.locating.walk.explain import explain
from telekit.accuracy.measures.summaries import compare_summaries

RANDOM = np.random.default_rng(7)
G = RANDOM.standard_normal((4, 16, 32))


def top(target, golden, **more):
    """The likeliest cause."""
    more = {"target_shape": np.shape(target), "golden_shape": np.shape(golden), "operator": "op", "phase": "forward",
            "part": "output"} | more  # fmt: skip
    return explain(Case(np.asarray(target, float), np.asarray(golden, float), **more))[0]


def known(name, array):
    return Known(name, array, array)


@given(st.sampled_from([2.0, 4.0, 0.5, 0.25, 3.0]), st.integers(0, 100))
def test_a_factor_on_everything_is_a_ratio_whatever_the_values(factor, seed):
    g = np.random.default_rng(seed).standard_normal((8, 8))
    found = explain(Case(factor * g, g, phase="backward"))[0]
    assert found.kind == kinds.GRADIENT_SCALING and found.confidence > 0.9


def test_the_factor_is_named_by_the_sizes_given():
    assert top(4 * G, G, sizes={"tp": 4, "dp": 2}).text.count("tensor-parallel") == 1
    assert top(4 * G, G, sizes={"tp": 4}).kind == kinds.DOUBLE_REDUCTION
    assert top(4 * G, G, sizes={"dp": 4}).kind == kinds.SCALED  # no activation is summed over data
    assert top(2.7 * G, G, sizes={"dp": 4}).kind == kinds.SCALED
    assert top(-G, G).kind == kinds.SIGN


@pytest.mark.parametrize("factor", [2.0, 4.0, 0.5])
def test_weights_before_the_first_step_were_never_reduced(factor):
    found = explain(
        Case(factor * G, G, "w", "linear_fc2", "setup", "parameters", sizes={"tp": 2, "dp": 4},
             replicas=(factor * G, factor * G), target_shape=G.shape, golden_shape=G.shape)
    )  # fmt: skip
    assert found[0].kind == kinds.SCALED and "initialisation" in found[0].text
    assert not {c.kind for c in found} & {kinds.DOUBLE_REDUCTION, kinds.MISSING_REDUCTION}


def test_all_zero_and_overflow():
    assert top(0 * G, G).kind == kinds.ZERO
    spoiled = G.copy()
    spoiled[1, 2, 3] = np.nan
    found = top(spoiled, G)
    assert found.kind == kinds.OVERFLOW and "(1, 2, 3)" in found.text
    assert top(np.clip(1e6 * G, -65504, 65504), 1e6 * G).kind == kinds.OVERFLOW


def test_order_alone_is_a_permutation_and_copies_are_duplicates():
    w = RANDOM.standard_normal((16, 8))
    halves = np.concatenate([w[:4], w[8:12], w[4:8], w[12:]])
    found = top(halves, w)
    assert found.kind == kinds.PERMUTATION and "[0, 2, 1, 3]" in found.text
    assert top(w[[0, 1, 0, 1, 4, 5, 4, 5, *range(8, 16)]], w).kind == kinds.DUPLICATED


def test_terms_that_are_missing_or_counted_for_each_rank():
    bias, residual = RANDOM.standard_normal(32), RANDOM.standard_normal(G.shape)
    more = {"parameters": (known("bias", bias),)}
    assert top(G - bias, G, **more).kind == kinds.MISSING_TERM
    found = top(G + 3 * bias, G, sizes={"tp": 4}, **more)
    assert found.kind == kinds.EXTRA_TERM and "4 times, once for each rank of tp" in found.text
    found = top(G - residual, G, inputs=(known("residual", residual),))
    assert found.kind == kinds.MISSING_TERM and "residual" in found.text


def test_where_it_differs_tells_tokens_from_shards():
    dropped = G.copy()
    dropped[:, 3:6] = 0
    assert top(dropped, G).kind == kinds.DROPPED
    shard = G.copy()
    shard[..., 16:] += RANDOM.standard_normal((4, 16, 16))
    found = top(shard, G, sizes={"tp": 2})
    assert found.kind == kinds.ONE_SHARD and "piece 1 of 2 of tp" in found.text


@pytest.mark.parametrize("centred", [False, True])
def test_a_norm_says_its_eps(centred):
    x, w = 0.1 * G, 1 + 0.1 * RANDOM.standard_normal(32)

    def norm(eps):
        c = x - x.mean(-1, keepdims=True) if centred else x
        return c / np.sqrt((c * c).mean(-1, keepdims=True) + eps) * w

    found = top(norm(1e-3), norm(1e-5), inputs=(known("x", x),), parameters=(known("w", w),))
    assert found.kind == kinds.NORM_EPSILON and "0.001" in found.text
    plain = norm(1e-5) / w
    assert (
        top(plain, norm(1e-5), inputs=(known("x", x),), parameters=(known("w", w),)).kind
        == kinds.CHANNEL_WEIGHT
    )


def test_turned_pairs_are_rotary():
    a, b = np.split(G, 2, axis=-1)
    turn = np.arange(16)[None, :, None] * 100.0 ** (-np.arange(16) / 16)
    found = top(
        np.concatenate([a * np.cos(turn) - b * np.sin(turn), b * np.cos(turn) + a * np.sin(turn)], -1), G
    )
    assert found.kind == kinds.ROTARY


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def test_probabilities_tell_scale_mask_and_normalisation():
    scores = RANDOM.standard_normal((8, 12))
    assert top(softmax(scores * 3), softmax(scores)).kind == kinds.SOFTMAX_SCALE
    seen = np.where(np.tri(8, 12), scores, -np.inf)
    assert top(softmax(scores), softmax(seen)).kind == kinds.MASK
    assert top(1.7 * softmax(scores) + 0.1, softmax(scores)).kind == kinds.NORMALISATION


def attention(q, k, v, mask, scale):
    scores = np.where(mask, np.einsum("bqhd,bkhd->bhqk", q, k) * scale, -np.inf)
    return np.einsum("bhqk,bkhd->bqhd", softmax(scores), v).reshape(*q.shape[:2], -1)


@pytest.mark.parametrize(
    ("mask", "scale", "kind"),
    [(np.tri(16) > 0, 1.0, kinds.SOFTMAX_SCALE), (np.ones((16, 16)) > 0, 8**-0.5, kinds.MASK),
     (np.tri(16, k=1) > 0, 8**-0.5, kinds.MASK)],
)  # fmt: skip
def test_attention_is_done_again(mask, scale, kind):
    q, k, v = RANDOM.standard_normal((3, 2, 16, 4, 8))
    found = top(attention(q, k, v, mask, scale), attention(q, k, v, np.tri(16) > 0, 8**-0.5),
                inputs=tuple(known(n, a) for n, a in zip("qkv", (q, k, v), strict=True)))  # fmt: skip
    assert found.kind == kind and found.confidence > 0.9


def test_swiglu_is_done_again():
    x = RANDOM.standard_normal((8, 32))

    def act(gate, up):
        return gate / (1 + np.exp(-gate)) * up

    gate, up = np.split(x, 2, -1)
    more = {"inputs": (known("x", x),)}
    assert top(act(up, gate), act(gate, up), **more).kind == kinds.PERMUTATION
    assert top(np.maximum(gate, 0) * up, act(gate, up), **more).kind == kinds.ACTIVATION
    shards = [np.split(p, 2, -1) for p in np.split(x, 2, -1)]
    split = np.concatenate([act(a, b) for a, b in shards], -1)
    found = top(split, act(gate, up), sizes={"tp": 2}, **more)
    assert found.kind == kinds.PERMUTATION and "interleaving" in found.text


def test_a_product_says_which_ranks_part_counts():
    x, w = RANDOM.standard_normal((8, 32)), RANDOM.standard_normal((16, 32))
    more = {"inputs": (known("x", x),), "parameters": (known("w", w),), "sizes": {"tp": 2}}
    assert top(x[:, :16] @ w[:, :16].T, x @ w.T, **more).kind == kinds.MISSING_REDUCTION
    half = x @ w.T - 0.5 * x[:, 16:] @ w[:, 16:].T
    assert top(half, x @ w.T, **more).kind == kinds.ONE_SHARD


def test_router_rules():
    logits = RANDOM.standard_normal((32, 8))
    p = softmax(logits)
    order = np.argsort(-p, axis=1)[:, :2]
    weights = np.take_along_axis(p, order, 1)
    golden = weights / weights.sum(1, keepdims=True)
    more = {"operator": "router", "inputs": (known("logits", logits),)}
    for wrong in (weights, golden[:, ::-1], np.full_like(golden, 0.5)):
        assert top(wrong, golden, **more).kind == kinds.ROUTER


def test_wrong_dtype_by_its_values_and_by_its_size():
    coarse = G.astype(ml_dtypes.bfloat16).astype(float)
    assert top(coarse, G, epsilon=2.0**-23).kind == kinds.WRONG_DTYPE
    rounded = G + (G.astype(np.float16).astype(float) - G) * RANDOM.uniform(0.9, 1.1, G.shape)
    assert top(rounded, G, epsilon=2.0**-23).kind == kinds.WRONG_DTYPE


def test_shapes_and_statistics():
    assert top(G[..., :16], G, sizes={"tp": 2}).kind == kinds.SHAPE
    s = compare_summaries(
        {"Max": 2, "Min": -4, "Mean": 0.2, "Norm": 8}, {"Max": 1, "Min": -2, "Mean": 0.1, "Norm": 4}
    )
    found = explain(Case(None, None, summary=s, sizes={"cp": 2}))[0]
    assert found.kind == kinds.SCALED and "context-parallel" in found.text


@given(st.integers(0, 200))
def test_noise_is_not_given_a_name(seed):
    random = np.random.default_rng(seed)
    g = random.standard_normal((6, 8, 16))
    found = explain(Case(g + random.standard_normal(g.shape), g, epsilon=2.0**-7, sizes={"tp": 2}))[0]
    assert found.confidence < 0.6


def test_local_gradients_and_terms_may_differ_between_ranks():
    terms = [RANDOM.standard_normal((16, 8)) for _ in range(2)]
    g = RANDOM.standard_normal((16, 8))
    for part, phase in (("parameters_grad", "backward"), ("input", "backward")):
        case = Case(terms[0], g, phase=phase, part=part, replicas=tuple(terms))
        assert all(c.kind != kinds.MISSING_REDUCTION for c in explain(case))
    joined = Case(sum(terms), g, phase="forward", part="output", replicas=tuple(terms))
    assert all(c.kind != kinds.MISSING_REDUCTION for c in explain(joined))
    replicas = Case(terms[0], g, phase="forward", part="output", replicas=tuple(terms))
    assert explain(replicas)[0].kind == kinds.MISSING_REDUCTION
    one = Case(terms[0], g, phase="forward", part="output", replicas=(terms[0], g))
    assert explain(one)[0].kind == kinds.ONE_SHARD


def test_flipped_columns_are_no_rotation_and_no_other_order():
    flipped = G.copy()
    flipped[..., 3:6] *= -1
    for operator in ("op", "layers.0.mlp.linear_fc1", "self_attention.rotary_pos_emb"):
        found = top(flipped, G, operator=operator)
        assert found.kind == kinds.LOCAL and "other sign" in found.text


def test_a_weight_of_another_checkpoint_is_not_one_in_another_order():
    w = RANDOM.standard_normal((32, 16))
    other = RANDOM.standard_normal((32, 16))
    assert top(other, w, phase="setup", part="parameters").kind == kinds.DIFFERENT_WEIGHTS
    assert top(RANDOM.permutation(w), w, phase="setup", part="parameters").kind == kinds.PERMUTATION
    assert top(other, w, phase="forward").kind == kinds.UNKNOWN


def test_rows_that_see_no_key_are_a_mask_and_stray_nan_an_overflow():
    rows, stray = G.copy(), G.copy()
    rows[:, 0] = np.nan
    stray[:, 0, :5] = np.nan
    assert top(rows, G, operator="core_attention").kind == kinds.MASK
    assert top(stray, G, operator="core_attention").kind == kinds.OVERFLOW
    assert top(rows, G, operator="mlp").kind == kinds.OVERFLOW


def test_missing_rows_of_experts_are_dropped_tokens():
    rows, weights = RANDOM.standard_normal((32, 16)), RANDOM.random((16, 2))
    order = RANDOM.permutation(32)
    g = (rows.reshape(16, 2, 16) * weights[..., None]).sum(axis=1)
    t = g - np.where(np.arange(16) < 3, weights[:, 1], 0)[:, None] * rows[1::2]
    inputs = (known("rows", rows[order]), known("probs", weights))
    found = top(t, g, operator="mlp.token_dispatcher.combine", inputs=inputs)
    assert found.kind == kinds.DROPPED and "3 of 16 tokens miss 3" in found.text
    noisy = g + np.where(np.arange(16) < 3, 1.0, 0)[:, None] * RANDOM.standard_normal((16, 16))
    assert top(noisy, g, operator="mlp.token_dispatcher.combine", inputs=inputs).kind != kinds.DROPPED
