"""FLOPs per token against brute force, published formulas and NVIDIA's tables, each in its own convention."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit import catalog
from telekit.errors import InputError
from telekit.model.config import (
    FeedForward,
    GroupedQueryAttention,
    LayerKind,
    MixtureOfExperts,
    ModelConfig,
    MultiHeadLatentAttention,
)
from telekit.model.count import count
from telekit.model.flops import (
    core_flops,
    forward_flops_per_token,
    head_flops,
    layer_flops,
    mean_keys,
    mtp_flops,
    training_flops_per_token,
)
from telekit.model.huggingface import from_huggingface, load_model


def seen_keys(seq_len, window, attention):
    """Which key each query meets, as a matrix."""
    query, key = np.arange(seq_len)[:, None], np.arange(seq_len)[None, :]
    if attention == "full":
        return np.full((seq_len, seq_len), True)[:, : min(window or seq_len, seq_len)]
    return (key <= query) & (key > query - (window or seq_len))


@given(st.integers(1, 200), st.none() | st.integers(1, 250), st.sampled_from(["causal", "full"]))
def test_mean_keys_are_counted_one_by_one(seq_len, window, attention):
    expected = seen_keys(seq_len, window, attention).sum() / seq_len
    assert mean_keys(seq_len, window, attention) == pytest.approx(expected, rel=1e-14)


def test_a_window_of_512_in_2048():
    # a published fix takes min(s, w) / 2 = 256, and so claims a factor of 4 where it is 2.286
    assert mean_keys(2048) == 1024.5
    assert mean_keys(2048, 512) == 448.125
    assert mean_keys(2048) / mean_keys(2048, 512) == pytest.approx(2.286, abs=5e-4)


# --- brute force: run a toy layer and count every multiply-add ----------------------------------------------


class Counter:
    """Counts 2 FLOPs for each multiply-add of the products it is shown."""

    def __init__(self):
        self.flops = 0

    def linear(self, rows, into, out):
        self.flops += 2 * rows * into * out
        return out

    def feed_forward(self, rows, hidden, width, gated):
        for _ in range(2 if gated else 1):
            self.linear(rows, hidden, width)
        self.linear(rows, width, hidden)


def run(model, seq_len, attention, random):
    """Count one forward pass over a sequence; a router sends each token to any ``top_k`` experts."""
    c, h = Counter(), model.hidden_size
    for kind in model.layers:
        a = kind.attention
        seen = int(seen_keys(seq_len, a.window, attention).sum())
        if a.kind == "mla":
            qk = a.qk_nope_head_dim + a.qk_rope_head_dim
            if a.q_lora_rank:
                c.linear(seq_len, h, a.q_lora_rank)
            c.linear(seq_len, a.q_lora_rank or h, a.heads * qk)
            c.linear(seq_len, h, a.kv_lora_rank + a.qk_rope_head_dim)
            c.linear(seq_len, a.kv_lora_rank, a.heads * (a.qk_nope_head_dim + a.v_head_dim))
            qk_dim, v_dim = qk, a.v_head_dim
        else:
            for heads in (a.heads, a.kv_heads, a.kv_heads):
                c.linear(seq_len, h, heads * a.head_dim)
            qk_dim = v_dim = a.head_dim
        for _ in range(a.heads):
            c.flops += 2 * seen * (qk_dim + v_dim)
        c.linear(seq_len, a.heads * v_dim, h)
        m = kind.mlp
        if m.kind == "dense":
            c.feed_forward(seq_len, h, m.ffn_hidden_size, m.gated)
            continue
        c.linear(seq_len, h, m.num_experts)
        chosen = [random.sample(range(m.num_experts), m.top_k) for _ in range(seq_len)]
        for expert in range(m.num_experts):
            rows = sum(expert in some for some in chosen)
            c.feed_forward(rows, h, m.expert_ffn_hidden_size, m.gated)
        if m.shared_ffn_hidden_size:
            c.feed_forward(seq_len, h, m.shared_ffn_hidden_size, m.gated)
    c.linear(seq_len, h, model.vocab_size)
    return c.flops


size = st.integers(1, 40)
grouped = st.builds(
    lambda kv, group, dim, window: GroupedQueryAttention(
        heads=kv * group, kv_heads=kv, head_dim=dim, window=window, qkv_bias=True, qk_norm="head", sinks=True
    ),
    st.integers(1, 4), st.integers(1, 3), size, st.none() | st.integers(1, 30),
)  # fmt: skip
latent = st.builds(
    MultiHeadLatentAttention,
    heads=st.integers(1, 6), q_lora_rank=st.none() | size, kv_lora_rank=size, qk_nope_head_dim=size,
    qk_rope_head_dim=size, v_head_dim=size,
)  # fmt: skip
dense = st.builds(FeedForward, ffn_hidden_size=size, gated=st.booleans(), bias=st.booleans())
sparse = st.builds(
    lambda e, k, f, shared, gated: MixtureOfExperts(
        num_experts=e, top_k=min(e, k), expert_ffn_hidden_size=f, shared_ffn_hidden_size=shared, gated=gated,
        expert_bias=True, router_bias=True, correction_bias=True,
    ),
    st.integers(1, 8), st.integers(1, 8), size, st.integers(0, 20), st.booleans(),
)  # fmt: skip
kinds = st.lists(
    st.builds(LayerKind, name=st.just("x"), attention=grouped | latent, mlp=dense | sparse),
    min_size=1, max_size=3,
)  # fmt: skip


@st.composite
def models(draw):
    found = tuple(draw(kinds))
    pattern = draw(st.lists(st.integers(0, len(found) - 1), min_size=1, max_size=5))
    return ModelConfig(
        name="toy", hidden_size=draw(size), vocab_size=draw(size), kinds=found, pattern=tuple(pattern),
        tied_embeddings=draw(st.booleans()), learned_positions=draw(st.integers(0, 9)), norm_bias=True,
    )  # fmt: skip


@given(models(), st.integers(1, 24), st.sampled_from(["causal", "full"]), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_forward_pass_counted_product_by_product(model, seq_len, attention, random):
    got = seq_len * forward_flops_per_token(model, seq_len, attention=attention)
    assert got == pytest.approx(run(model, seq_len, attention, random), rel=1e-12)


@given(models(), st.integers(1, 5000))
@settings(deadline=None)
def test_conventions_differ_by_what_they_say(model, seq_len):
    base = forward_flops_per_token(model, seq_len)
    assert base - forward_flops_per_token(model, seq_len, include_head=False) == pytest.approx(
        head_flops(model), rel=1e-9
    )
    assert training_flops_per_token(model, seq_len) == 3 * base
    again = training_flops_per_token(model, seq_len, recompute="full") - 3 * base
    assert again == pytest.approx(base - head_flops(model), rel=1e-9)
    full = forward_flops_per_token(model, seq_len, attention="full")
    assert full >= base
    by_layer = sum(layer_flops(model, kind, seq_len).total for kind in model.layers)
    assert by_layer + head_flops(model) == pytest.approx(base, rel=1e-12)


# --- published formulas -------------------------------------------------------------------------------------


def gpt(hidden, layers, heads):
    return from_huggingface({
        "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 2048,
        "vocab_size": 51200,
    })  # fmt: skip


# hidden, layers, heads, global batch, FLOPs of an iteration by F = 96 B s l h^2 (1 + s/6h + V/16lh)
# (arXiv 2104.04473)
SC21 = [
    (2304, 24, 24, 512, 1.5466830067924994e16),
    (8192, 48, 64, 1536, 1.0212263998783488e18),
    (25600, 128, 160, 3072, 5.139051377527358e19),
]
# the same of arXiv 2205.05198 (72 B l s h^2 (1 + s/6h + v/12hl))
KORTHIKANTI = [(12288, 96, 96, 64, 1.4109153109947186e17), (25600, 128, 160, 512, 6.425875806211277e18)]


@pytest.mark.parametrize(("hidden", "layers", "heads", "batch", "flops"), SC21)
def test_megatrons_formula_counts_full_attention_and_recompute(hidden, layers, heads, batch, flops):
    token = training_flops_per_token(gpt(hidden, layers, heads), 2048, attention="full", recompute="full")
    assert batch * 2048 * token == pytest.approx(flops, rel=1e-12)


@pytest.mark.parametrize(("hidden", "layers", "heads", "batch", "flops"), KORTHIKANTI)
def test_korthikantis_formula_counts_full_attention_without_recompute(hidden, layers, heads, batch, flops):
    token = training_flops_per_token(gpt(hidden, layers, heads), 2048, attention="full")
    assert batch * 2048 * token == pytest.approx(flops, rel=1e-12)


def test_the_logits_term_is_v_over_12lh_without_recompute():
    # one sequence of GPT-3; V / 16lh in the formula without recompute would give 2,202,622,438,146,048
    token = training_flops_per_token(load_model("gpt3-175b"), 2048, attention="full")
    assert 2048 * token == 2_204_555_173_429_248


def test_six_n_and_full_attention():
    model = load_model("qwen3-30b-a3b")
    token = training_flops_per_token(model, 8192, attention="full", weights="parameters")
    assert token == 37_578_559_488
    assert token == 6 * count(model).active_without_input_embedding + 6 * 48 * 32 * 256 * 8192


def test_windows_are_not_charged_full_attention():
    def oss_20b(**change):
        config = catalog.record("models", "gpt-oss-120b")["config"]
        shape = {"num_hidden_layers": 24, "num_local_experts": 32, "layer_types": None}
        return load_model(config | shape | change)

    convention = {"attention": "full", "weights": "parameters"}
    every_layer_full = oss_20b(layer_types=["full_attention"] * 24)
    assert training_flops_per_token(oss_20b(), 4096, **convention) == 24_141_260_160
    assert training_flops_per_token(every_layer_full, 4096, **convention) == 26_481_681_792


def test_zero_bubble_papers_layer():
    # arXiv 2401.10241, Table 1: the forward pass of a layer is s b h (24 h + 4 s)
    model = gpt(4096, 32, 32)
    block = layer_flops(model, model.kinds[0], 2048, "full")
    assert block.total == 4096 * (24 * 4096 + 4 * 2048)
    assert block.attention_core == core_flops(model.kinds[0], 2048, "full") == 4 * 2048 * 4096
    assert (block.experts, block.router, block.norms) == (0, 0, 0)


def test_a_look_up_is_free_and_tying_changes_nothing():
    config = catalog.record("models", "qwen3-30b-a3b")["config"]
    tied, untied = (load_model(config | {"tie_word_embeddings": tie}) for tie in (True, False))
    assert head_flops(tied) == head_flops(untied) == 622_329_856
    assert forward_flops_per_token(tied, 4096) == forward_flops_per_token(untied, 4096)


def test_llama_3_405b_trained_on_its_tokens():
    # arXiv 2407.21783: 3.8e25 FLOPs for 15.6e12 tokens, by 6 N D
    assert 6 * count("llama-3.1-405b").total * 15.6e12 == pytest.approx(3.8e25, rel=0.01)


# --- NVIDIA's tables ----------------------------------------------------------------------------------------

# GFLOPs per token: medians of model TFLOP/s over tokens/s in the tables of
# github:NVIDIA-NeMo/Megatron-Bridge@067f987df0:docs/performance-summary*.md
NVIDIA = [
    ("deepseek-v3", 4096, True, 260.015),
    ("deepseek-v3", 4096, False, 249.67),
    ("llama-3.1-70b", 8192, False, 449.205),
    ("llama-3.1-8b", 8192, False, 51.47),
    ("qwen3-235b-a22b", 4096, False, 147.98),
    ("qwen3-30b-a3b", 4096, False, 23.01),
]


@pytest.mark.parametrize(("name", "seq_len", "mtp", "gflops"), NVIDIA)
@pytest.mark.parametrize("weights", ["matrices", "parameters"])
def test_nvidias_tables_within_one_percent(name, seq_len, mtp, gflops, weights):
    token = training_flops_per_token(load_model(name), seq_len, weights=weights, include_mtp=mtp)
    assert token / 1e9 == pytest.approx(gflops, rel=0.01)


def test_mtp_costs_a_block_a_projection_and_a_pass_through_the_head():
    model = load_model("deepseek-v3")
    extra = forward_flops_per_token(model, 4096, include_mtp=True) - forward_flops_per_token(model, 4096)
    block = layer_flops(model, model.layers[-1], 4096).total
    assert extra == pytest.approx(block + 4 * 7168**2 + head_flops(model), rel=1e-9)
    assert extra == pytest.approx(mtp_flops(model, 4096), rel=1e-9)
    headless = {"include_mtp": True, "include_head": False}
    assert forward_flops_per_token(model, 4096, **headless) == pytest.approx(
        forward_flops_per_token(model, 4096, include_mtp=True) - 2 * head_flops(model), rel=1e-12
    )
    assert training_flops_per_token(model, 4096, include_mtp=True, recompute="full") == pytest.approx(
        4 * forward_flops_per_token(model, 4096, include_mtp=True) - 2 * head_flops(model), rel=1e-12
    )
    assert mtp_flops(load_model("telechat3-36b"), 4096) == 0


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [0, -1, 10**10, 4096.0, True, "4096", None, math.nan])
def test_a_bad_sequence_length_is_refused(seq_len):
    model = load_model("llama-3.1-8b")
    for ask in (forward_flops_per_token, training_flops_per_token, count):
        with pytest.raises(InputError, match=r"seq_len = .*must be a whole number from 1 to"):
            ask(model, seq_len)


def test_an_unknown_convention_is_refused_and_all_are_listed():
    model = load_model("llama-3.1-8b")
    with pytest.raises(InputError, match="must be one of causal, full"):
        count(model, attention="half")
    with pytest.raises(InputError) as caught:
        training_flops_per_token(model, 0, attention="x", weights="y", recompute="some")
    assert [p.field for p in caught.value.problems] == ["seq_len", "attention", "weights", "recompute"]
    for attention, weights in itertools.product(["causal", "full"], ["matrices", "parameters"]):
        assert training_flops_per_token(model, 8, attention=attention, weights=weights) > 0
