"""Published totals to the last parameter, and how a block's parameters split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit import catalog
from telekit.model.count import count
from telekit.model.huggingface import from_huggingface, load_model
from telekit.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_layer,
    mtp_parameters,
    norm_parameters,
)

# totals without MTP, as the released checkpoints sum up
EXACT = {
    "deepseek-v3": 671_026_419_200,
    "deepseek-v2-lite": 15_706_484_224,
    "telechat3-105b-a4.7b": 102_256_318_208,
    "telechat3-36b": 36_239_579_136,
    "llama-3.1-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
}
# (with input embedding and head, without the input embedding)
EXACT_ACTIVE = {
    "deepseek-v3": (37_552_297_472, 36_625_618_432),
    "deepseek-v2-lite": (2_661_150_208, 2_451_435_008),
    "telechat3-105b-a4.7b": (4_675_835_648, 4_340_291_328),
    "mixtral-8x7b": (12_879_925_248, 12_748_853_248),
}
# billions, from the models' papers, cards and repositories
PUBLISHED = {
    "qwen3-235b-a22b": (235.0936, 22.1908, 21.5684),
    "gpt-oss-120b": (116.83, 5.71, 5.13),
    "gpt3-175b": (174.6, 174.6, 174.6),
    "llama-3.1-405b": (405.85, 405.85, 403.75),
    "llama-3.1-8b": (8.03, 8.03, 7.50),
}


@pytest.mark.parametrize("name", EXACT)
def test_totals_are_exact(name):
    assert count(name).total == EXACT[name]


@pytest.mark.parametrize("name", EXACT_ACTIVE)
def test_active_counts_are_exact(name):
    counted = count(name)
    assert (counted.active, counted.active_without_input_embedding) == EXACT_ACTIVE[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    counted = count(name)
    found = (counted.total, counted.active, counted.active_without_input_embedding)
    assert [n / 1e9 for n in found] == pytest.approx(PUBLISHED[name], abs=0.02)


def test_multi_token_prediction_is_counted_apart():
    assert count("telechat3-105b-a4.7b").mtp == 2_319_858_368
    assert count("deepseek-v3").mtp == 11_610_068_224
    assert count("telechat3-36b").mtp == 0
    # the hub's checkpoint holds the module with its own copies of embedding and head
    v3 = load_model("deepseek-v3")
    assert count(v3).total + mtp_parameters(v3) + 2 * 129280 * 7168 == 684_489_845_504


# --- one block ----------------------------------------------------------------------------------------------


def test_latent_attention_of_telechat3():
    # q_a 2560x1536 and its norm, q_b 1536x6144, kv_a 2560x576 and its norm, kv_b 512x8192, o 4096x2560
    model = load_model("telechat3-105b-a4.7b")
    block = layer_parameters(model, model.kinds[1])
    assert block.attention == 29_526_016
    assert block.attention_replicated == 2560 * 1536 + 1536 + 2560 * 576 + 512
    assert block.experts == 192 * 11_796_480 and block.experts_active == 4 * 11_796_480
    assert block.router == 192 * 2560 + 192
    assert block.total - block.attention - block.norms == 2_277_212_352


def test_what_is_whole_on_each_tensor_rank():
    qwen, llama = load_model("qwen3-30b-a3b"), load_model("llama-3.1-8b")
    assert layer_parameters(qwen, qwen.kinds[0]).attention_replicated == 2 * 128, "norms of queries and keys"
    assert layer_parameters(llama, llama.kinds[0]).attention_replicated == 0
    gpt = load_model("gpt3-175b")
    assert layer_parameters(gpt, gpt.kinds[0]).attention_replicated == 12288, "the output projection's bias"


def test_mixtral_on_tp2_ep8_holds_what_megatron_says():
    # 16 devices, TP 2, EP 8, ETP 1: attention and embeddings over TP, experts over EP, the rest whole
    model = load_model("mixtral-8x7b")
    block = layer_parameters(model, model.kinds[0])
    per_layer = block.attention_sharded // 2 + block.router + block.norms + block.experts // 8
    ends = (embedding_parameters(model) + head_parameters(model)) // 2 + norm_parameters(model)
    assert 32 * per_layer + ends == 6_440_620_032


def test_matrices_only_leaves_out_every_vector():
    for name in catalog.names("models"):
        model = load_model(name)
        for kind in model.kinds:
            every, matrices = layer_parameters(model, kind), layer_parameters(model, kind, matrices_only=True)
            assert matrices.norms == 0
            vectors = every.total - matrices.total
            assert 0 < vectors < 0.006 * every.total
    bare, gpt = load_model("llama-3.1-8b"), load_model("gpt3-175b")
    dropped = [
        layer_parameters(m, m.kinds[0]).total - layer_parameters(m, m.kinds[0], matrices_only=True).total
        for m in (bare, gpt)
    ]
    assert dropped == [2 * 4096, 13 * 12288]


def test_one_mtp_module():
    model = load_model("telechat3-105b-a4.7b")
    module, block = mtp_layer(model), layer_parameters(model, model.layers[-1])
    assert module.total - block.total == 2 * 2560 * 2560 + 3 * 2560
    assert mtp_layer(model, matrices_only=True).norms == 0


def test_tied_embeddings_are_counted_once():
    tied = from_huggingface({
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "tie_word_embeddings": True,
    })  # fmt: skip
    counted = count(tied)
    assert counted.total == counted.active == counted.active_without_input_embedding == 596_049_920
    assert head_parameters(tied) == 0
    assert counted.total + 151936 * 1024 == 751_632_384, "what two pipeline stages hold"


# arXiv 2104.04473, Table 1: hidden, layers, heads, billions
SC21 = [
    (2304, 24, 24, 1.7), (3072, 30, 32, 3.6), (4096, 36, 32, 7.5), (6144, 40, 48, 18.4), (8192, 48, 64, 39.1),
    (10240, 60, 80, 76.1), (12288, 80, 96, 145.6), (16384, 96, 128, 310.1), (20480, 105, 128, 529.6),
    (25600, 128, 160, 1008.0),
]  # fmt: skip


def gpt(hidden, layers, heads, vocab=51200, seq_len=2048):
    return from_huggingface({
        "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": seq_len,
        "vocab_size": vocab,
    })  # fmt: skip


@pytest.mark.parametrize(("hidden", "layers", "heads", "billions"), SC21)
def test_megatrons_formula(hidden, layers, heads, billions):
    # P = 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh); it leaves out the last norm
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + (51200 + 2048) * hidden
    total = count(gpt(hidden, layers, heads)).total
    assert total == formula + 2 * hidden
    assert total / 1e9 == pytest.approx(billions, abs=0.051)


@given(st.integers(1, 10_000), st.integers(1, 200))
def test_counts_do_not_wrap_or_round(hidden, layers):
    total = count(gpt(hidden, layers, 1)).total
    assert type(total) is int
    assert total == 12 * layers * hidden**2 + 13 * layers * hidden + 53248 * hidden + 2 * hidden
