"""Files as transformers 5.24 writes them after reading the released ones: other fields, the same model."""

from __future__ import annotations

import pytest

from telekit import catalog
from telekit.errors import InputError
from telekit.model.count import count

CATALOG = {name: catalog.record("models", name)["config"] for name in catalog.names("models")}
SKIPPED = ("name", "notes", "defaults")


def numbers(config):
    return {k: v for k, v in count(config, seq_len=16384).to_dict().items() if k not in SKIPPED}


def refused(config):
    with pytest.raises(InputError) as caught:
        count(config)
    return {p.field: str(p) for p in caught.value.problems}


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def overrides(kinds, kind, **sizes):
    """Fields of ``per_layer_config`` as they are written, layers in two digits."""
    return {f"{i:02}": sizes for i, word in enumerate(kinds) if word == kind}


GEMMA = CATALOG["gemma-4-26b-a4b"]
TEXT = GEMMA["text_config"]
WIDE = overrides(TEXT["layer_types"], "full_attention", head_dim=512, num_key_value_heads=2)
NEW_TEXT = without(TEXT, "global_head_dim", "num_global_key_value_heads") | {"per_layer_config": WIDE}

STEP = CATALOG["step-3.5-flash"]
KINDS = STEP["layer_types"][: STEP["num_hidden_layers"]]
MANY = overrides(KINDS, "sliding_attention", num_attention_heads=96)
NEW_STEP = without(STEP, "attention_other_setting") | {"layer_types": KINDS, "per_layer_config": MANY}

KIMI = CATALOG["kimi-linear-48b-a3b"]
FULL_LAYERS = KIMI["linear_attn_config"]["full_attn_layers"]
KIMI_TYPES = [
    "full_attention" if i + 1 in FULL_LAYERS else "linear_attention" for i in range(KIMI["num_hidden_layers"])
]
KIMI_SIZES = {"linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
HYBRID = CATALOG["nemotron-h-56b"]
WORDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("deepseek-v3.2", CATALOG["deepseek-v3.2"] | {"layer_types": ["indexed_attention"] * 61}),
        ("glm-5", CATALOG["glm-5"] | {"layer_types": ["indexed_attention"] * 78, "indexer_types": ["full"] * 78}),
        ("kimi-linear-48b-a3b", KIMI | KIMI_SIZES),
        ("kimi-linear-48b-a3b", KIMI | KIMI_SIZES | {"layer_types": KIMI_TYPES}),
        ("kimi-linear-48b-a3b", without(KIMI, "linear_attn_config") | KIMI_SIZES | {"layer_types": KIMI_TYPES}),
        ("gemma-4-26b-a4b", GEMMA | {"text_config": NEW_TEXT}),
        ("gemma-4-26b-a4b", GEMMA | {"text_config": TEXT | {"per_layer_config": WIDE}}),
        ("step-3.5-flash", NEW_STEP),
        ("step-3.5-flash", NEW_STEP | {"num_sliding_attention_heads": 96}),
        ("step-3.5-flash", STEP | {"layer_types": KINDS, "per_layer_config": MANY}),
        ("qwen2-57b-a14b", CATALOG["qwen2-57b-a14b"] | {"sliding_window": 0, "layer_types": ["full_attention"] * 28}),
        ("dbrx", CATALOG["dbrx"] | {"num_key_value_heads": 8}),
        ("ernie-4.5-300b-a47b", CATALOG["ernie-4.5-300b-a47b"] | {"moe_norm_min": 1e-12, "moe_layer_end_index": 53}),
        ("nemotron-h-56b", without(HYBRID, "hybrid_override_pattern") | {
            "layers_block_type": [WORDS[letter] for letter in HYBRID["hybrid_override_pattern"]],
            "num_nextn_predict_layers": 0, "mtp_layers_block_type": ["full_attention", "moe"]}),
    ],
)  # fmt: skip
def test_a_file_saved_again_is_the_same_model(name, again):
    assert numbers(again) == numbers(CATALOG[name])


def test_windows_of_mimo_saved_again_see_one_key_more():
    old = CATALOG["mimo-v2-flash"]
    new = old | {"sliding_window": 129, "sliding_window_size": 128}
    windowed = sum(old["hybrid_layer_pattern"])
    more = count(new).forward_flops_per_token - count(old).forward_flops_per_token
    pair = 2 * old["swa_num_attention_heads"] * (old["swa_head_dim"] + old["swa_v_head_dim"])
    assert more == pytest.approx(
        windowed * pair * (4096 - 128) / 4096, rel=1e-6
    )  # one key more from the 129th on
    assert count(new).total == count(old).total


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (KIMI | KIMI_SIZES | {"linear_num_heads": 16}, "linear_num_heads"),
        (KIMI | {"layer_types": KIMI_TYPES[::-1]}, "layer_types"),
        (without(KIMI, "linear_attn_config") | KIMI_SIZES, "linear_attn_config.full_attn_layers"),
        (GEMMA | {"text_config": NEW_TEXT | {"global_head_dim": 256}}, "text_config.global_head_dim"),
        (GEMMA | {"text_config": NEW_TEXT | {"per_layer_config": {}}}, "text_config.per_layer_config"),
        (GEMMA | {"text_config": NEW_TEXT | {"per_layer_config": None}}, "text_config.per_layer_config"),
        (GEMMA | {"text_config": NEW_TEXT | {"per_layer_config": [1]}}, "text_config.per_layer_config"),
        (GEMMA | {"text_config": NEW_TEXT | {"per_layer_config": WIDE | {"05": {"head_dim": 256}}}},
         "text_config.per_layer_config"),
        (GEMMA | {"text_config": NEW_TEXT | {"per_layer_config": {key: {"head_dim": "512"} for key in WIDE}}},
         "text_config.per_layer_config"),
        (GEMMA | {"text_config": NEW_TEXT | {"per_layer_config": {key: {"num_key_value_heads": 3} for key in WIDE}}},
         "text_config.per_layer_config"),
        (NEW_STEP | {"num_sliding_attention_heads": 64}, "per_layer_config"),
        (NEW_STEP | {"per_layer_config": {key: {"num_key_value_heads": 4} for key in MANY}}, "per_layer_config"),
        (NEW_STEP | {"per_layer_config": {**MANY, "00": {"num_attention_heads": 96}}}, "per_layer_config"),
        (CATALOG["dbrx"] | {"num_key_value_heads": 48}, "num_key_value_heads"),
        (CATALOG["llama-3.1-8b"] | {"per_layer_config": {"0": {"head_dim": 64}}}, "per_layer_config"),
        (without(HYBRID, "num_hidden_layers") | {"layers_block_type": []}, "layers_block_type"),
    ],
)  # fmt: skip
def test_fields_of_the_new_form_that_say_something_else_are_refused(config, field):
    assert list(refused(config)) == [field]


def test_widths_of_single_layers_are_read():
    half = {key: {"head_dim": 256, "num_key_value_heads": 4} for key in WIDE}
    found = count(GEMMA | {"text_config": NEW_TEXT | {"per_layer_config": half}})
    heads, hidden = TEXT["num_attention_heads"], TEXT["hidden_size"]
    per_layer = hidden * (2 * heads * (512 - 256) + 2 * 512 - 4 * 256) + 2 * (
        512 - 256
    )  # q and o, k, two norms
    assert count(GEMMA).total - found.total == len(WIDE) * per_layer


HUNYUAN = {
    "model_type": "hunyuan_v1_dense", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "attention_head_dim": 128, "intermediate_size": 14336,
    "vocab_size": 128167, "tie_word_embeddings": True, "use_qk_norm": True, "use_cla": False, "cla_share_factor": 2,
    "enable_lm_head_fp32": True, "num_experts": 1,
}  # fmt: skip


def test_hunyuan_7b_is_counted_where_sharing_is_off():
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 128 + 2 * 4096
    assert count(HUNYUAN).total == 128167 * 4096 + 32 * layer + 4096  # 7.50 billion, as published
    assert "use_cla" in refused(HUNYUAN | {"use_cla": True})


def test_a_deepseek_language_model_that_says_it_has_a_head():
    plain = CATALOG["deepseek-v2-lite"]
    assert count(plain | {"lm_head": True, "use_mla": True}).total == count(plain).total
    assert "lm_head" in refused(plain | {"lm_head": False})
    assert next(iter(refused(plain | {"use_mla": False}))) == "use_mla"
