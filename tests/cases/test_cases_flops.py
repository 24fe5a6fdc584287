"""Faults that public tools had in counting FLOPs, each with its right answer (recomputed by hand)."""

from __future__ import annotations

import pytest

from telekit import count
from telekit.cluster.config import load_cluster
from telekit.model.flops import core_flops, head_flops, mean_keys, training_flops_per_token
from telekit.model.huggingface import from_huggingface, load_model
from telekit.model.utilization import utilization

GPT_OSS_20B = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "intermediate_size": 2880, "vocab_size": 201088, "sliding_window": 128,
}  # fmt: skip


def torchtitan(model, seq_len):
    """Rule of torchtitan: 6 for each active parameter save the input embedding, all keys."""
    return training_flops_per_token(model, seq_len, attention="full", weights="parameters")


def test_fl01_active_experts_and_both_products_of_attention():
    assert torchtitan(load_model("qwen3-30b-a3b"), 8192) == 37_578_559_488


def test_fl02_windowed_layers_meet_their_window_only():
    model = from_huggingface(GPT_OSS_20B)
    full = from_huggingface(GPT_OSS_20B | {"layer_types": ["full_attention"] * 24})
    assert torchtitan(model, 4096) == 24_141_260_160
    assert torchtitan(full, 4096) == 26_481_681_792
    assert torchtitan(full, 4096) - torchtitan(model, 4096) == 12 * 6 * 64 * 128 * (4096 - 128)


def test_fl03_mean_keys_of_a_causal_window():
    assert mean_keys(2048) == 1024.5
    assert mean_keys(2048, 512) == 448.125


def test_fl05_only_the_routed_experts_are_charged():
    model = load_model("mixtral-8x7b")
    ratio = count(model).total / count(model).active
    assert ratio == pytest.approx(3.63, abs=0.005)
    products = training_flops_per_token(model, 1, attention="full") / 6
    assert products == pytest.approx(count(model).active_without_input_embedding, rel=1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_fl07_a_look_up_costs_nothing_and_tying_changes_no_flops(tied):
    config = {
        "model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1, "vocab_size": 151936,
        "tie_word_embeddings": tied,
    }  # fmt: skip
    model = from_huggingface(config)
    assert head_flops(model) == 622_329_856
    other = from_huggingface(config | {"tie_word_embeddings": not tied})
    for weights in ("matrices", "parameters"):
        mine, its = (training_flops_per_token(m, 128, weights=weights) for m in (model, other))
        assert mine == its


def test_fl08_the_head_term_without_recompute():
    found = 2048 * training_flops_per_token(_gpt(), 2048, attention="full")
    assert found == 2_204_555_173_429_248
    h, layers, vocab, s = 12288, 96, 51200, 2048
    assert found == pytest.approx(72 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h)))
    again = 2048 * training_flops_per_token(_gpt(), 2048, attention="full", recompute="full")
    assert again == pytest.approx(96 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h)))


def _gpt():
    return from_huggingface({"model_type": "gpt2", "n_layer": 96, "n_embd": 12288, "n_head": 96,
                             "n_positions": 2048, "vocab_size": 51200})  # fmt: skip


def test_fl09_peaks_are_dense_and_a_sparse_one_would_halve_the_share():
    peak = load_cluster({"device": "h200", "nodes": 1}).device.peak_flops["bf16"]
    assert peak == pytest.approx(989.5e12, rel=1e-3)
    model = load_model("llama-3.1-8b")
    speed = 420e12 / training_flops_per_token(model, 8192)
    assert utilization(model, 8192, speed, peak).mfu == pytest.approx(0.424, abs=1e-3)
    assert utilization(model, 8192, speed, 1979e12).mfu == pytest.approx(0.212, abs=1e-3)


def test_fl11_packed_documents_meet_only_their_own_keys():
    documents = [2048, 1024, 512, 512]
    assert sum(n * n for n in documents) / 4096**2 == 0.34375
    model = load_model("llama-3.1-8b")
    whole = core_flops(model.kinds[0], 4096, "full")
    assert core_flops(model.kinds[0], 4096, "full", documents=documents) == 0.34375 * whole
    products = training_flops_per_token(model, 4096, attention="full") - 32 * 3 * whole
    packed = training_flops_per_token(model, 4096, attention="full", documents=documents)
    assert packed - 32 * 3 * 0.34375 * whole == pytest.approx(products)
