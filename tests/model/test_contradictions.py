"""What is refused by name: fields that may shape the model and that nothing reads, fields that contradict others."""

from __future__ import annotations

import pytest

from telekit import catalog
from telekit.errors import InputError
from telekit.model.count import count
from telekit.model.huggingface import read_model

CATALOG = {name: catalog.record("models", name)["config"] for name in catalog.names("models")}
LLAMA = CATALOG["llama-3.1-8b"]


def refused(config):
    with pytest.raises(InputError) as caught:
        read_model(config)
    return {p.field: str(p) for p in caught.value.problems}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("is_encoder_decoder", True), ("add_cross_attention", True), ("learned_positions", 4096),
        ("num_memory_tokens", 64), ("num_codebooks", 8), ("num_registers", 16), ("num_loops", 4),
        ("total_ut_steps", 4), ("n_streams_in", 2), ("_extra_layers", 4), ("rope_extra_heads", 4),
        ("_num_mtp_layers", 1), ("initializer_layers", 4), ("quantization_heads", 4), ("summary_experts", 2.0),
        ("pruned_heads", {"0": [1]}), ("per_layer_config", {"0": {}}), ("mean_recurrence", 32), ("use_mla", True),
    ],
)  # fmt: skip
def test_a_field_that_nobody_read_and_that_shapes_a_model_is_refused(field, value):
    told = refused(LLAMA | {field: value})
    assert list(told) == [field] and "not modelled yet" in told[field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("is_encoder_decoder", False), ("add_cross_attention", False), ("_extra_layers", 0), ("pruned_heads", {}),
        ("num_beams", 1), ("num_return_sequences", 1), ("num_labels", 2), ("max_window_layers", 28),
        ("is_decoder", True), ("n_positions", 131072), ("n_ctx", 8192), ("layer_norm_eps", 1e-5),
        ("mtp_loss_scaling_factor", 0.3), ("rope_theta", 1e6), ("_attn_implementation", "eager"),
        ("router_aux_loss_coef", 0.001), ("top_k", 50), ("id2label", {"0": "LABEL_0"}),
        ("quantization_config", {"bits": 4}), ("cross_attention_hidden_size", None),
    ],
)  # fmt: skip
def test_fields_known_to_shape_nothing_are_passed_over_without_a_word(field, value):
    plain, found = count(LLAMA), count(LLAMA | {field: value})
    assert found == plain


def test_fields_of_unknown_meaning_are_passed_over_with_a_word():
    found = count(LLAMA | {"alibi": True, "swiglu": False, "highway": "x", "sliding_window": None})
    assert found.ignored == ("alibi", "swiglu", "highway")


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("d_model", "n_embd", "n_embed"), 4096), (("n_layer", "n_layers", "num_layers"), 32),
        (("n_head", "n_heads", "num_heads"), 32), (("n_kv_heads", "num_kv_heads"), 8),
        (("ffn_dim", "n_inner", "ffn_hidden_size"), 14336),
    ],
)  # fmt: skip
def test_another_name_of_what_was_read_must_agree(names, value):
    for name in names:
        assert count(LLAMA | {name: value}) == count(LLAMA)
        told = refused(LLAMA | {name: value // 2})
        assert list(told) == [name] and "another name of the same thing" in told[name]


LITE = {
    "model_type": "glm4_moe_lite", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4,
    "v_head_dim": 16, "vocab_size": 100, "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (LITE | {"head_dim": 16}, "head_dim"),
        (CATALOG["gpt2-xl"] | {"max_position_embeddings": 2048}, "max_position_embeddings"),
        (LLAMA | {"architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]}, "architectures"),
        (CATALOG["qwen3.5-122b-a10b"] | {"vision_config": [1]}, "vision_config"),
        (LLAMA | {"audio_config": 7}, "audio_config"),
        ({"model_type": "llava", "text_config": LLAMA, "hidden_size": 5120}, "hidden_size"),
        ({"model_type": "llava", "text_config": LLAMA | {"layer_types": ["full_attention"] * 32},
          "layer_types": ["sliding_attention"] * 32}, "layer_types"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(config, field):
    assert list(refused(config)) == [field]


def test_what_only_repeats_is_read():
    assert count(LITE | {"head_dim": 4}).total == count(LITE).total
    gpt = CATALOG["gpt2-xl"]
    assert count(gpt | {"max_position_embeddings": gpt["n_positions"]}).total == count(gpt).total
    wrapper = {"model_type": "llava", "text_config": LLAMA, "hidden_size": 4096, "vision_config": None}
    assert count(wrapper).total == count(LLAMA).total and count(wrapper).vision == 0


@pytest.mark.parametrize(
    ("kind", "close"),
    [
        ("qwen4_moe", "qwen3_moe"),
        ("exaone4_5_text", "exaone4"),
        ("LLAMA", "llama"),
        ("deepseek-v3", "deepseek_v3"),
    ],
)
def test_an_unknown_family_is_told_with_names_like_it(kind, close):
    told = refused({"model_type": kind} | {k: v for k, v in LLAMA.items() if k != "model_type"})["model_type"]
    assert told.startswith(f"model_type = {kind}: not modelled yet") and close in told and len(told) < 200


def test_an_unknown_family_like_none_is_told_in_one_line():
    for kind in ("rwkv7", 7, ["llama"], ""):
        assert len(refused(LLAMA | {"model_type": kind})["model_type"]) < 200
