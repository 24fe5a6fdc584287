"""The same faults in counting FLOPs, asked of ``telekit.estimate``: its rate, its share of the peak, and its times.

FL11 (packed documents) is not here: a job has whole sequences, and documents are ``telekit.packing``'s. FL14 (a model
cut short) stands with the rules of layouts, ``tests/layout/test_rule_cases.py``.
"""

from __future__ import annotations

import pytest

from telekit import Job, count, estimate
from telekit.model.huggingface import from_huggingface, load_model

GPT_OSS_20B = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "intermediate_size": 2880, "vocab_size": 201088, "sliding_window": 128,
}  # fmt: skip
GPT = {
    "model_type": "gpt2",
    "n_layer": 96,
    "n_embd": 12288,
    "n_head": 96,
    "n_positions": 2048,
    "vocab_size": 51200,
}


def answer(model, seq_len, device="h200", **layout):
    """Estimate on 8 devices; ``model`` is a name of the catalog, or a model."""
    name = model if isinstance(model, str) else "llama-3.1-8b"
    said = {
        "cluster": {"device": device, "nodes": 1},
        "train": {"seq_len": seq_len, "global_batch": 8, "mtp": False},
    }
    job = Job.read(said | {"model": name, "layout": layout})
    job = job if isinstance(model, str) else Job(model, job.cluster, job.train, job.layout, job.given)
    found = estimate(job)
    assert found.valid
    return found


def per_token(found):
    """FLOPs of one token, as the estimate's own rates have it."""
    return 1e12 * found.model_tflops_per_device / found.tokens_per_s_per_device


def test_fl01_active_experts_and_both_products_of_attention():
    """Torchtitan's 37,578,559,488 counts every key; a causal token meets (s + 1) / 2, and norms are no products."""
    s, norms, scores = 8192, 48 * (2 * 2048 + 2 * 128) + 2048, 6 * 48 * 32 * (2 * 128)
    expected = 37_578_559_488 - 6 * norms - scores * s + scores * (s + 1) / 2
    assert per_token(answer("qwen3-30b-a3b", s)) == pytest.approx(expected, rel=1e-12)


def test_fl02_windowed_layers_meet_their_window_only():
    windowed = answer(from_huggingface(GPT_OSS_20B), 4096)
    full = answer(from_huggingface(GPT_OSS_20B | {"layer_types": ["full_attention"] * 24}), 4096)
    keys = 4097 / 2 - (
        128 - 128 * 127 / 2 / 4096
    )  # all before a token, or the last 128 where there are so many
    assert per_token(full) - per_token(windowed) == pytest.approx(12 * 6 * 64 * 128 * keys, rel=1e-9)
    assert full.step_time_s > windowed.step_time_s


def test_fl03_mean_keys_of_a_causal_window():
    shape = {"model_type": "mistral", "num_hidden_layers": 4, "hidden_size": 4096, "num_attention_heads": 32,
             "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 32000}  # fmt: skip
    found = {w: per_token(answer(from_huggingface(shape | {"sliding_window": w}), 2048)) for w in (None, 512)}
    assert found[None] - found[512] == pytest.approx(4 * 6 * 32 * 256 * (1024.5 - 448.125), rel=1e-9)


def test_fl05_only_the_routed_experts_are_charged():
    model = load_model("mixtral-8x7b")
    matrices = count(model).active_without_input_embedding - (2 * 32 + 1) * 4096
    expected = 6 * matrices + 6 * 32 * 32 * 256 * 4097 / 2
    assert per_token(answer("mixtral-8x7b", 4096, ep=8)) == pytest.approx(expected, rel=1e-12)
    assert expected < 6 * count(model).total / 3


def test_fl07_a_look_up_costs_nothing_and_tying_changes_no_flops():
    config = {"model_type": "qwen3", "num_hidden_layers": 8, "hidden_size": 2048, "num_attention_heads": 16,
              "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936}  # fmt: skip
    tied, apart = (
        answer(from_huggingface(config | {"tie_word_embeddings": tie}), 4096) for tie in (True, False)
    )
    assert per_token(tied) == per_token(apart)
    assert tied.breakdown_s["compute"] == apart.breakdown_s["compute"]
    assert tied.peak_bytes < apart.peak_bytes


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_fl08_the_head_term_stays_whatever_is_recomputed(recompute):
    """72 s L h^2 (1 + s / 6h + V / 12Lh) with the causal half of s: recomputed work is none of the model's."""
    h, layers, vocab, s = 12288, 96, 51200, 2048
    found = answer(from_huggingface(GPT), s, tp=8, recompute=recompute)
    expected = 72 * layers * h**2 * (1 + (s + 1) / 2 / (6 * h) + vocab / (12 * layers * h))
    assert per_token(found) == pytest.approx(expected, rel=1e-12)


def test_fl09_the_share_is_of_the_dense_peak():
    found = answer("llama-3.1-8b", 8192)
    assert found.mfu == pytest.approx(found.model_tflops_per_device / 989.5, rel=1e-3)
    assert 0.2 < found.mfu < 1
