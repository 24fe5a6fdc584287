"""FLOPs and utilisation by each publisher's convention, against what they published."""

from __future__ import annotations

import json

import pytest

from telekit import catalog
from telekit.errors import InputError
from telekit.model.flops import core_flops, layer_flops, training_flops_per_token
from telekit.model.huggingface import from_huggingface, load_model
from telekit.model.utilization import CONVENTIONS, flops_per_token, utilization

ROWS = {row["id"]: row for row in json.loads((catalog.root() / "measurements/flops.json").read_text())}
MODELS = {
    "DeepSeekV3": "deepseek-v3", "LLAMA3_70B": "llama-3.1-70b", "LLAMA3_8B": "llama-3.1-8b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b", "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
}  # fmt: skip


def gpt(row):
    heads = row["hidden"] // 128
    return from_huggingface({"model_type": "gpt2", "n_layer": row["layers"], "n_embd": row["hidden"],
                             "n_head": heads, "n_positions": row["seq_len"], "vocab_size": row["vocab"]})  # fmt: skip


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row["kind"] == "flops_per_token"])
def test_nvidia_counts_as_its_tables_do(name):
    row, model = ROWS[name], load_model(MODELS[ROWS[name]["model"]])
    if "Nemotron" in row["model"]:  # trained with two prediction modules that share the weights of one
        model = model.model_copy(update={"mtp_layers": 2})
    mtp = "with_mtp" in name or "Nemotron" in row["model"]
    found = flops_per_token(model, row["seq_len"], "nvidia", mtp=mtp)
    assert found / 1e9 == pytest.approx(row["train_GFLOPs_per_token"], rel=0.01)


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row["kind"] == "flops_per_iteration"])
def test_megatron_counts_as_its_papers_do(name):
    row = ROWS[name]
    recompute = "full" if row["includes_recompute"] else "none"
    found = flops_per_token(gpt(row), row["seq_len"], "megatron", recompute=recompute)
    assert found * row["gbs"] * row["seq_len"] == pytest.approx(row["iteration_FLOPs"], rel=1e-3)


def test_llama_3_is_six_for_each_parameter_and_token():
    row = ROWS["flops_llama3_405b_total"]
    found = training_flops_per_token(load_model("llama-3.1-405b"), 1, weights="parameters")
    assert found * row["train_tokens"] == pytest.approx(row["train_FLOPs"], rel=0.01)


def test_the_zero_bubble_paper_splits_a_layer_in_three():
    """F = s b h (24 h + 4 s); B has the same products and twice the attention; W has no attention."""
    h, s = 4096, 2048
    model = gpt({"layers": 1, "hidden": h, "seq_len": s, "vocab": 1})
    layer = layer_flops(model, model.kinds[0], s, "full")
    core = core_flops(model.kinds[0], s, "full")
    assert layer.total == h * (24 * h + 4 * s)
    assert layer.total + core == h * (24 * h + 8 * s)
    assert layer.total - core == 24 * h * h


@pytest.mark.parametrize(("convention", "mfu", "tflops"), [("deepseek-causal", 0.3894, 385),
                                                           ("deepseek-noncausal", 0.4373, 432)])  # fmt: skip
def test_deepseek_v3_as_its_hardware_paper_counts(convention, mfu, tflops):
    """arXiv 2505.09343, Table 4: 19.926 s a step of 15,360 sequences of 4,096 on 2,048 H800."""
    speed = 15360 * 4096 / 19.926 / 2048
    found = utilization(load_model("deepseek-v3"), 4096, speed, 989e12, convention, mtp=True)
    assert found.mfu == pytest.approx(mfu, abs=2e-4)
    assert speed * found.model_flops_per_token == pytest.approx(tflops * 1e12, rel=2e-3)


def test_palm_counts_6n_and_attention():
    """PaLM 540B, arXiv 2204.02311 appendix B: 46.2 % of 6,144 TPU v4 at 238.3 thousand tokens a second."""
    palm = {"n_layer": 118, "n_embd": 18432, "n_head": 48, "n_positions": 1, "vocab_size": 256_000,
            "model_type": "gpt2", "n_inner": 73728}  # fmt: skip
    n, layers, heads, width, s = 540.35e9, 118, 48, 18432 // 48, 2048
    model = from_huggingface(palm)
    found = flops_per_token(model, s, "palm")
    parameters = training_flops_per_token(model, s, weights="parameters") - layers * 3 * core_flops(
        model.kinds[0], s
    )
    assert found == pytest.approx(parameters + 12 * layers * heads * width * s)
    assert (6 * n + 12 * layers * heads * 256 * s) * 238_300 / (6144 * 275e12) == pytest.approx(
        0.462, abs=1e-3
    )


def test_palm_counts_an_untied_embedding_as_if_it_were_multiplied():
    model = load_model("llama-3.1-8b")
    full = training_flops_per_token(model, 4096, attention="full", weights="parameters")
    assert flops_per_token(model, 4096, "palm") - full == 6 * 128256 * 4096


def test_recompute_raises_hfu_only():
    model = load_model("llama-3.1-8b")
    plain = utilization(model, 8192, 5000, 989e12)
    full = utilization(model, 8192, 5000, 989e12, recompute="full")
    some = utilization(model, 8192, 5000, 989e12, recompute="selective")
    assert plain.mfu == full.mfu == some.mfu == plain.hfu < some.hfu < full.hfu
    blocks = 32 * layer_flops(model, model.kinds[0], 8192).total
    assert full.hardware_flops_per_token - full.model_flops_per_token == pytest.approx(blocks)
    core = 32 * core_flops(model.kinds[0], 8192)
    assert some.hardware_flops_per_token - some.model_flops_per_token == pytest.approx(core)


def test_recompute_of_prediction_modules_repeats_them_without_their_heads():
    model, off = load_model("deepseek-v3"), load_model("deepseek-v3").model_copy(update={"mtp_layers": 0})
    for recompute, share in (("full", 1 / 3), ("selective", None)):
        mine, its = (
            flops_per_token(m, 4096, recompute=recompute, mtp=True) - flops_per_token(m, 4096, mtp=True)
            for m in (model, off)
        )
        block = layer_flops(model, model.kinds[-1], 4096)
        repeated = block.total + 4 * 7168**2 if share else block.attention_core
        assert mine - its == pytest.approx(repeated)


def test_more_than_the_peak_is_remarked():
    assert "dense" in utilization(load_model("llama-3.1-8b"), 8192, 30_000, 989e12).notes[0]


def test_bad_input_is_refused():
    model = load_model("llama-3.1-8b")
    with pytest.raises(InputError, match="convention"):
        flops_per_token(model, 4096, "mosaic")
    with pytest.raises(InputError) as caught:
        utilization(model, 4096, 0, float("nan"))
    assert {p.field for p in caught.value.problems} == {"tokens_per_s_per_device", "peak_flops_per_s"}
    for documents in ([4000], [0, 4096], [4096.0], [-1, 4097]):
        with pytest.raises(InputError, match="documents"):
            flops_per_token(model, 4096, documents=documents)


def test_every_convention_has_words_and_a_source():
    assert all(c.text and c.source for c in CONVENTIONS.values())
