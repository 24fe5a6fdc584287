"""Adapters against lists of the checkpoints' tensors: DeepSeek, Kimi, GLM, Qwen, MiniMax, MiMo, Step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tensors_a import TENSORS
from tensors_a_configs import CONFIGS

from telekit.documents import parse, read_text
from telekit.errors import InputError
from telekit.model.attention_flops import mixer_flops
from telekit.model.count import count
from telekit.model.families import deepseek, glm, minimax, moonshot, qwen, stepfun, xiaomi
from telekit.model.huggingface import from_huggingface, read_model

Config = dict[str, Any]

# what the lists of tensors take for granted, and a config.json has to say; and switches, as they are by default
DELTA_NET = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16}
DELTA_NET |= {"linear_conv_kernel_dim": 4, "full_attention_interval": 4, "attention_bias": False}
NO_BIAS = {"attention_bias": False, "mlp_bias": False}
SAID: dict[str, Config] = {
    "deepseek_v3": NO_BIAS,
    "deepseek_v32": NO_BIAS | {"index_topk": 2048},
    "deepseek_v4": NO_BIAS | {"index_topk": 512, "sliding_window": 128},
    "glm4_moe_lite": NO_BIAS,
    "glm_moe_dsa": NO_BIAS | {"index_topk": 2048},
    "kimi_k2": NO_BIAS,
    "kimi_linear": {"attention_bias": False, "mla_use_output_gate": False, "attn_res_block_size": 0},
    "mimo_v2_flash": {"sliding_window": 128, "attention_bias": False},
    "qwen2_moe": {"qkv_bias": True, "decoder_sparse_step": 1},
    "qwen3": {"attention_bias": False},
    "qwen3_moe": {"attention_bias": False, "decoder_sparse_step": 1},
    "qwen3_next": DELTA_NET | {"attn_output_gate": True, "decoder_sparse_step": 1},
    "qwen3_5": DELTA_NET | {"attn_output_gate": True, "mtp_use_dedicated_embeddings": False},
    "qwen3_5_moe": DELTA_NET | {"attn_output_gate": True, "mtp_use_dedicated_embeddings": False},
    "qwen3_vl": {"attention_bias": False},
    "qwen3_vl_moe": {"attention_bias": False, "decoder_sparse_step": 1},
    "step3_text": {"num_attention_groups": 1, "use_moe": True},
    "step3p5": {"sliding_window": 512, "attention_bias": False},
    "step3p7": {"sliding_window": 512},
}
OTHERS: dict[str, Config] = {  # families that the list of published configurations does not have
    "Qwen2.5-VL": CONFIGS["Qwen2-VL-2B"] | {"model_type": "qwen2_5_vl", "vision_config": {"depth": 32}},
    "Qwen2-VL, nested": {"model_type": "qwen2_vl", "text_config": CONFIGS["Qwen2-VL-2B"]
                         | {"model_type": "qwen2_vl_text"}},
    "Qwen2.5-VL, nested": {"model_type": "qwen2_5_vl", "text_config": CONFIGS["Qwen2-VL-2B"]
                           | {"model_type": "qwen2_5_vl_text"}},
    "Qwen3-VL-2B": {"model_type": "qwen3_vl", "text_config": CONFIGS["Qwen3-0.6B"] | {"model_type": "qwen3_vl_text"}},
    "Qwen3-VL-30B": {"model_type": "qwen3_vl_moe", "tie_word_embeddings": False, "vision_config": {"depth": 27},
                     "text_config": CONFIGS["Qwen3-30B-A3B"] | {"model_type": "qwen3_vl_moe_text"}},
    "Qwen3.5-27B, nested": {"model_type": "qwen3_5", "text_config": CONFIGS["Qwen3.5-27B"]["text_config"]
                            | {"model_type": "qwen3_5_text"}},
    "Qwen3.5-35B, nested": {"model_type": "qwen3_5_moe", "text_config": CONFIGS["Qwen3.5-35B-A3B"]["text_config"]
                            | {"model_type": "qwen3_5_moe_text", "mlp_only_layers": []}},
    "Kimi-K2.5": {"model_type": "kimi_k25", "tie_word_embeddings": False, "text_config": CONFIGS["Kimi-K2"]},
    "GLM-4.5V": {"model_type": "glm4v_moe", "text_config": CONFIGS["GLM-4.5-Air"]
                 | {"model_type": "glm4v_moe_text", "num_nextn_predict_layers": 0}},
    "Step-3, nested": {"model_type": "step3_vl", "text_config": CONFIGS["Step-3"]},
    "Step-3.7": CONFIGS["Step-3.5-Flash"] | {"model_type": "step3p7", "attention_other_setting": None},
    "MiniMax-Text-01-hf": CONFIGS["MiniMax-Text-01"] | {"model_type": "minimax", "attn_type_list": None},
    "MiniMax-M1": CONFIGS["MiniMax-Text-01"] | {"model_type": "minimax_m1"},
    "GLM-5, chosen": CONFIGS["GLM-5"] | {"indexer_types": (["full", "shared", "shared"] * 26)},
    "GLM-5, pattern": CONFIGS["GLM-5"] | {"index_topk_pattern": "FFS" * 26},
    "GLM-5, typed": CONFIGS["GLM-5"] | {"mlp_layer_types": ["dense", "sparse"] * 39},
    "DeepSeek-V4, typed": CONFIGS["DeepSeek-V4-Flash"] | {
        "compress_ratios": None, "layer_types": (["sliding_attention", "compressed_sparse_attention",
        "heavily_compressed_attention"] * 15)[:43], "mlp_layer_types": ["hash_moe", "moe"] * 21 + ["moe"],
        "compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}},
    "DeepSeek-V4, plain": {k: v for k, v in CONFIGS["DeepSeek-V4-Pro"].items() if k != "compress_ratios"},
}  # fmt: skip
LONGCAT = "longcat_flash"  # listed, but not modelled: two attentions and two dense blocks share a mixture


def said(config: Config) -> Config:
    """Add what its list of tensors takes for granted; the model inside a wrapper may leave its kind to that."""
    if "text_config" not in config:
        return {"tie_word_embeddings": False} | SAID.get(config["model_type"], {}) | config
    text = {"model_type": config["model_type"]} | config["text_config"]
    more = SAID.get(text["model_type"]) or SAID.get(text["model_type"].removesuffix("_text"), {})
    tied = {} if "tie_word_embeddings" in config else {"tie_word_embeddings": False}
    return config | {"text_config": tied | more | config["text_config"]}


FULL = {name: said(c) for name, c in (CONFIGS | OTHERS).items() if c["model_type"] != LONGCAT}


def size(shapes: Iterator[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def met_by_a_token(text: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> int:
    names = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k")
    chosen = next((text[name] for name in names if text.get(name)), 0)
    met = {
        n: (chosen, *s[1:]) if ".experts." in n else s for n, s in shapes.items() if not n.startswith("mtp.")
    }
    return size(iter(met.values()))


def assert_counts_the_tensors(config: Config) -> None:
    counted, shapes = count(config), TENSORS[config["model_type"]](config)
    assert counted.total == size(s for name, s in shapes.items() if not name.startswith("mtp."))
    assert counted.mtp == size(s for name, s in shapes.items() if name.startswith("mtp."))
    assert counted.active == met_by_a_token(config.get("text_config", config), shapes)


@pytest.mark.parametrize("name", FULL)
def test_counts_equal_the_sum_of_the_checkpoints_tensors(name):
    assert_counts_the_tensors(FULL[name])


# --- the same for configs that nobody has -------------------------------------------------------------------

SIZES = {
    "hidden_size": 64, "vocab_size": 100, "intermediate_size": 72, "num_attention_heads": 8, "head_dim": 16,
    "num_key_value_heads": 2, "num_attention_groups": 2, "v_head_dim": 12, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20, "share_expert_dim": 20, "q_lora_rank": 28, "kv_lora_rank": 22,
    "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "index_n_heads": 4, "index_head_dim": 14, "o_groups": 4,
    "o_lora_rank": 18, "share_q_dim": 26, "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4,
    "swa_head_dim": 16, "swa_v_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 10, "linear_value_head_dim": 14,
    "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "moe_num_experts": 8,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_top_k": 2,
}  # fmt: skip
LAYERS = 8


def small(config: Config) -> Config:
    """The same family at toy size, so that one change is cheap to count."""
    if "text_config" in config:
        return config | {"text_config": small(config["text_config"])}
    c = {name: SIZES.get(name, value) if value is not None else None for name, value in config.items()}
    one_key = c["model_type"] in ("deepseek_v4", "step3_text") if "model_type" in c else False
    c |= {name: 1 for name in ("num_key_value_heads", "num_attention_groups") if one_key and name in c}
    for name, value in config.items():
        if isinstance(value, list) or name == "index_topk_pattern":
            c[name] = value[:LAYERS]  # one entry a layer
    c["num_hidden_layers"] = LAYERS
    if "compress_ratios" in c:
        c["compress_ratios"] = [0, 128, 4, 128, 4, 128, 4, 128, 0]
    if "moe_layers_enum" in c:
        c["moe_layers_enum"] = "3,4,5,6,7"
    if isinstance(c.get("attention_other_setting"), dict):
        c["attention_other_setting"] = {"attention_type": "sliding_attention", "num_attention_heads": 12,
                                        "num_attention_groups": 2, "head_dim": 16}  # fmt: skip
    if "linear_attn_config" in c:
        c["linear_attn_config"] = {"num_heads": 4, "head_dim": 10, "short_conv_kernel_size": 3,
                                   "full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}  # fmt: skip
    return c


def changes(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield the config with one number doubled or one larger, or one truth value turned; inner objects too."""
    for name, value in config.items():
        if isinstance(value, dict) and name != "vision_config":
            yield from ((what, config | {name: inner}) for what, inner in changes(value))
        elif type(value) is bool:
            yield f"{name}={not value}", config | {name: not value}
        elif type(value) is int:
            yield f"{name}*2", config | {name: 2 * value}
            yield f"{name}+1", config | {name: value + 1}


# a change that is refused: by a rule between fields, or as a part that is not modelled
MAY_BE_REFUSED = {
    "hidden_size+1", "num_attention_heads+1", "num_key_value_heads+1", "num_attention_groups+1", "o_groups+1",
    "linear_num_key_heads+1", "linear_num_value_heads+1", "swa_num_attention_heads+1",
    "swa_num_key_value_heads+1",  # must divide
    "num_hidden_layers*2", "num_hidden_layers+1", "num_nextn_predict_layers*2", "num_nextn_predict_layers+1",
    "moe_layer_freq*2", "moe_layer_freq+1",  # lists with one entry a layer; MTP modules that differ
    "n_shared_experts*2", "n_shared_experts+1", "num_key_value_heads*2", "num_attention_groups*2",
    "mtp_num_hidden_layers*2", "mtp_num_hidden_layers+1", "shared_intermediate_size+1", "use_moe=False",
    "decoder_sparse_step*2", "decoder_sparse_step+1", "attn_res_block_size+1", "mla_use_output_gate=True",
    "attention_bias=True", "mlp_bias=True", "attn_output_gate=False", "use_qk_norm=True", "use_qk_norm=False",
    "use_routing_bias=False", "mtp_use_dedicated_embeddings=True", "tie_word_embeddings=True",
    "tie_word_embeddings=False",
}  # fmt: skip


@pytest.mark.parametrize("name", FULL)
def test_one_changed_field_is_counted_or_refused(name):
    config = small(FULL[name])
    assert_counts_the_tensors(config)
    tried, refused = 0, set()
    for what, changed in changes(config):
        tried += 1
        try:
            read_model(changed)
        except InputError as error:
            assert error.problems
            refused.add(what)
        else:
            assert_counts_the_tensors(changed)
    assert refused <= MAY_BE_REFUSED
    assert len(refused) < tried / 2  # it is no test of refusing everything


# --- what no sum of tensors shows ---------------------------------------------------------------------------


def mixers(name: str) -> list[Any]:
    return [layer.attention for layer in from_huggingface(FULL[name]).layers]


def test_windows_stand_where_the_file_says():
    mimo, step, text01 = mixers("MiMo-V2-Flash"), mixers("Step-3.5-Flash"), mixers("MiniMax-Text-01")
    assert [a.window for a in mimo] == [[None, 128][i] for i in FULL["MiMo-V2-Flash"]["hybrid_layer_pattern"]]
    assert [(a.window, a.heads) for a in step] == [(None, 64), (512, 96), (512, 96), (512, 96)] * 11 + [
        (None, 64)
    ]
    assert [a.kind for a in text01] == (["lightning"] * 7 + ["gqa"]) * 10
    softmax = FULL["MiniMax-Text-01"] | {"sliding_window": 77}
    assert {a.window for a in (layer.attention for layer in from_huggingface(softmax).layers)} == {None, 77}
    moe = FULL["Qwen2-57B-A14B"] | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 4}
    found = [layer.attention.window for layer in from_huggingface(moe).layers]
    assert found == [9, None, 9, None] + [None] * 24
    late = FULL["Qwen2-7B"] | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 26}
    assert [layer.attention.window for layer in from_huggingface(late).layers] == [None] * 26 + [9] * 2


def test_compressed_blocks_stand_where_the_file_says():
    flash = mixers("DeepSeek-V4-Flash")
    assert [a.compress_ratio for a in flash] == [0, 0] + [4, 128] * 20 + [4]
    assert all(
        a.window == 128 and (a.indexer is not None) == a.overlap == (a.compress_ratio == 4) for a in flash
    )
    assert [a.compress_ratio for a in mixers("DeepSeek-V4, plain")[:6]] == [128, 128, 128, 4, 128, 4]
    assert [a.compress_ratio for a in mixers("DeepSeek-V4, typed")[:4]] == [0, 8, 64, 0]
    assert from_huggingface(FULL["DeepSeek-V4-Flash"]).mtp_block.attention.compress_ratio == 0


def test_linear_layers_stand_where_the_file_says():
    assert [a.kind for a in mixers("Kimi-Linear-48B-A3B")][:8] == ["kda"] * 3 + ["mla"] + ["kda"] * 3 + [
        "mla"
    ]
    for name in ("Qwen3-Next-80B-A3B", "Qwen3.5-27B", "Qwen3.5-35B, nested"):
        assert [a.kind for a in mixers(name)][:8] == (["gated-delta"] * 3 + ["gqa"]) * 2
        assert from_huggingface(FULL[name]).mtp_block.attention.kind == "gqa"


def test_a_layer_that_shares_a_choice_meets_the_chosen_keys_and_pays_for_no_choosing():
    own, shared = mixers("GLM-5, pattern")[1:3]
    assert own.indexer.own and not shared.indexer.own and shared.indexer.top_k == 2048
    choosing = 2 * 32 * (128 + 1) * (8192 + 1) / 2  # scores of the keys before it, and their sum over heads
    assert mixer_flops(own, 8192) - mixer_flops(shared, 8192) == pytest.approx(choosing, rel=1e-12)
    assert from_huggingface(FULL["GLM-5, chosen"]).mtp_block.attention.indexer.own


def test_a_wrapper_laid_flat_is_the_same_model():
    for name, config in FULL.items():
        if "text_config" in config and "nested" not in name:
            flat = config | config["text_config"] | {"model_type": config["model_type"]}
            del flat["text_config"]
            assert count(flat).by_component == count(config).by_component, name


def test_towers_are_named_and_not_counted():
    for name in ("Qwen2.5-VL", "Qwen3-VL-30B"):
        counted = count(FULL[name])
        assert counted.vision is None and "vision_config" in " ".join(counted.notes)


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("DeepSeek-V3.2", {"q_lora_rank": None}, "q_lora_rank"),
        ("DeepSeek-V3.2", {"layer_types": ["full_attention"] * 61}, "layer_types"),
        ("DeepSeek-V4-Flash", {"compress_ratios": [0, 8] * 22}, "compress_ratios"),
        ("DeepSeek-V4-Flash", {"compress_ratios": [0] * 45}, "compress_ratios"),
        ("DeepSeek-V4-Flash", {"mlp_layer_types": ["dense"] * 43}, "mlp_layer_types"),
        ("DeepSeek-V4-Flash", {"hc_mult": 1}, "hc_mult"),
        ("DeepSeek-V4, typed", {"compress_rates": {"compressed_sparse_attention": 4}},
         "compress_rates.heavily_compressed_attention"),
        ("GLM-5", {"index_topk_pattern": "FX" * 39}, "index_topk_pattern"),
        ("GLM-5", {"index_skip_topk_offset": 0, "index_topk_freq": 2}, "indexer_types"),
        ("GLM-5", {"indexer_types": ["full"] * 77}, "indexer_types"),
        ("Kimi-Linear-48B-A3B", {"linear_attn_config": {"num_heads": 32, "head_dim": 128, "full_attn_layers": [1],
         "short_conv_kernel_size": 4, "kda_layers": [2]}}, "linear_attn_config.full_attn_layers"),
        ("Kimi-Linear-48B-A3B", {"linear_attn_config": 3}, "linear_attn_config"),
        ("Kimi-Linear-48B-A3B", {"routed_expert_hidden_size": 512}, "routed_expert_hidden_size"),
        ("Qwen3-Next-80B-A3B", {"layer_types": ["mamba"] * 48}, "layer_types"),
        ("MiniMax-Text-01", {"attn_type_list": [2] * 80}, "attn_type_list"),
        ("MiniMax-Text-01", {"attn_type_list": None}, "attn_type_list"),
        ("MiniMax-Text-01", {"layer_types": ["full_attention"] * 80}, "attn_type_list"),
        ("MiniMax-M2", {"attn_type_list": [1] * 61 + [0]}, "attn_type_list"),
        ("MiniMax-M2", {"qk_norm_type": "per_head"}, "qk_norm_type"),
        ("MiMo-V2-Flash", {"hybrid_layer_pattern": [2] * 48}, "hybrid_layer_pattern"),
        ("MiMo-V2-Flash", {"moe_layer_freq": 1}, "moe_layer_freq"),
        ("Step-3.5-Flash", {"moe_layers_enum": "3,four"}, "moe_layers_enum"),
        ("Step-3.5-Flash", {"moe_layers_enum": "48"}, "moe_layers_enum"),
        ("Step-3.5-Flash", {"moe_layers_enum": "45"}, "layer_types"),
        ("Step-3.5-Flash", {"moe_layers_enum": None}, "first_k_dense_replace"),
        ("Step-3.5-Flash", {"attention_other_setting": {"attention_type": "x"}},
         "attention_other_setting.attention_type"),
        ("Step-3.5-Flash", {"use_output_gate_twice": True}, "use_output_gate_twice"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(name, change, field):
    with pytest.raises(InputError) as caught:
        from_huggingface(FULL[name] | change)
    assert caught.value.problems[0].field == field


def test_every_family_is_tried():
    modules = (deepseek, glm, minimax, moonshot, qwen, stepfun, xiaomi)
    known = {kind for module in modules for kind in module.FAMILIES} - {"telechat3", "telechat3_moe"}
    tried = {c["model_type"] for c in FULL.values()}
    tried |= {c["text_config"].get("model_type") for c in FULL.values() if "text_config" in c}
    assert known <= tried


# --- real files ---------------------------------------------------------------------------------------------

REAL = {
    "MiniMaxAI__MiniMax-M2.5": 228_689_764_864,
    "Qwen__Qwen3-VL-235B-A22B-Instruct": 235_093_634_560,
    "Qwen__Qwen3-VL-2B-Instruct": 1_720_574_976,
    "Qwen__Qwen3.5-122B-A10B": 122_111_526_912,
    "XiaomiMiMo__MiMo-V2-Flash": 308_778_780_864,
    "deepseek-ai__DeepSeek-V3.2": 671_877_944_064,
    "deepseek-ai__DeepSeek-V4-Flash": 284_332_240_471,
    "moonshotai__Kimi-K2.5": 1_026_408_232_448,
    "stepfun-ai__Step-3.7-Flash": 195_844_508_736,
    "zai-org__GLM-5": 743_911_218_432,
    "zai-org__GLM-5-FP8": 743_911_218_432,
}
SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")


@pytest.mark.skipif(not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with cases/hf_configs")
@pytest.mark.parametrize("name", REAL)
def test_real_files_are_counted_as_their_tensors_are(name):
    path = Path(SAMPLES) / "cases" / "hf_configs" / f"{name}.json"
    config = parse(read_text(path), str(path), is_json=True)
    assert_counts_the_tensors(config)
    assert count(path).total == REAL[name]
