"""The listings of tensors_a.py against published sizes: a third way, so that what judges the counts is judged too."""

from __future__ import annotations

import json
import os
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest
from tensors_a import TENSORS
from tensors_a_configs import CONFIGS

Config = dict[str, Any]


def listing(config: Config) -> dict[str, tuple[int, ...]]:
    return TENSORS[config["model_type"]](config)


def total(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(prod(shape) for shape in shapes.values())


def sizes(config: Config) -> tuple[int, int]:
    """Give the elements of the model proper and of what predicts further tokens."""
    shapes = listing(config)
    ahead = {name: shape for name, shape in shapes.items() if name.startswith("mtp.")}
    return total(shapes) - total(ahead), total(ahead)


def ends(config: Config) -> int:
    """Count embedding and head, which the MTP layers of some checkpoints repeat."""
    shapes = listing(config)
    return total(
        {name: shape for name, shape in shapes.items() if name.startswith(("model.embed", "lm_head"))}
    )


def counted(name: str, what: str) -> int:
    main, ahead = sizes(CONFIGS[name])
    return {"main": main, "all": main + ahead, "stored": main + ahead + ends(CONFIGS[name])}[what]


# Sources below: "hub" is the element count that Hugging Face gives for the safetensors (safetensors.total), "header"
# a sum over the shards' headers, "bench" the parameter count of llama.cpp's logs (the elements of a GGUF file, MTP in
# or out as it was converted), "index" model.safetensors.index.json, "card" the model card, "report" the technical
# report. (*) marks a figure from memory. "all" adds MTP, "stored" adds MTP with its copies of embedding and head.
EXACT = [
    ("DeepSeek-V2", "main", 235_741_434_880),  # hub
    ("DeepSeek-V2-Lite", "main", 15_706_484_224),  # hub
    ("DeepSeek-V3", "main", 671_026_419_200),  # hub, MAI-DS-R1 (no MTP); card 671B
    ("DeepSeek-V3", "stored", 684_489_845_504),  # hub, DeepSeek-R1; V3's own, with scales, below
    ("DeepSeek-V3.2", "stored", 685_355_329_792),  # hub
    (
        "DeepSeek-V4-Flash",
        "all",
        290_944_616_402 - 3 * 129_280 * 6,
    ),  # hub, less three tables of hashes; card 284B
    ("DeepSeek-V4-Pro", "all", 1_598_839_674_782 - 3 * 129_280 * 6),  # hub, as above; card 1.6T
    ("GLM-4-9B-0414", "main", 9_400_279_040),  # bench
    ("GLM-4.5", "all", 356_785_898_816),  # hub, GLM-4.6
    ("GLM-4.5", "stored", 358_337_791_296),  # hub, GLM-4.5 and 4.7
    ("GLM-4.5-Air", "main", 106_852_251_264),  # hub, INTELLECT-3 (no MTP)
    ("GLM-4.5-Air", "stored", 110_468_824_832),  # hub
    ("GLM-4.7-Flash", "main", 29_943_393_920),  # bench
    ("GLM-5", "all", 753_864_139_008),  # hub; card 744B
    ("GLM-5.2", "all", 753_329_940_480),  # hub
    ("Kimi-K2", "main", 1_026_408_232_448),  # header (Instruct); hub shows 3,416 more; card 1T
    ("Kimi-Linear-48B-A3B", "main", 49_122_681_728),  # hub, index
    ("LongCat-Flash", "all", 561_862_880_256 - 131_072 * 6144),  # hub, less MTP's copy of the embedding
    ("MiMo-V2-Flash", "all", 309_766_601_088),  # bench, mimo2 310B.A15B
    ("MiniMax-M2", "main", 228_689_764_864),  # hub; no MTP in the checkpoint, whatever its config says
    ("MiniMax-Text-01", "main", 456_089_655_296),  # hub, MiniMax-M1
    ("Qwen1.5-MoE-A2.7B", "main", 14_315_784_192),  # hub
    ("Qwen2-7B", "main", 7_615_616_512),  # hub, Qwen2.5-7B
    ("Qwen2-57B-A14B", "main", 57_408_658_944),  # hub
    ("Qwen2-VL-2B", "main", 1_543_714_304),  # hub, Qwen2.5-1.5B, whose shape its language model has
    ("Qwen3-0.6B", "main", 751_632_384 - 151_936 * 1024),  # hub, less the tied head, which the file repeats
    ("Qwen3-32B", "main", 32_762_123_264),  # hub
    ("Qwen3-30B-A3B", "main", 30_532_122_624),  # hub
    ("Qwen3-235B-A22B", "main", 235_093_634_560),  # hub
    ("Qwen3-Next-80B-A3B", "main", 79_674_391_296),  # hub, Qwen3-Coder-Next (no MTP)
    ("Qwen3-Next-80B-A3B", "all", 81_324_862_720),  # hub
    ("Qwen3.5-27B", "main", 26_895_998_464),  # bench
    ("Qwen3.5-35B-A3B", "main", 34_660_610_688),  # bench
    ("Qwen3.5-122B-A10B", "main", 122_111_526_912),  # bench
    ("Qwen3.5-397B-A17B", "main", 396_346_350_336),  # header, language model
    (
        "Qwen3.5-397B-A17B",
        "all",
        396_346_350_336 + 6_595_568_128,
    ),  # header, MTP apart; vision is 456,010,480 more
    ("Step-3.5-Flash", "all", 199_384_301_376 - 3 * 128_896 * 4096),  # hub, less MTP's copies of the head
]
BILLIONS = [  # published to two decimals: every digit must come out
    ("GLM-4-32B-0414", "main", 32.57),  # bench
    ("MiMo-7B", "all", 7.83),  # hub (*)
    ("Qwen3.5-27B", "all", 27.32),  # bench
    ("Qwen3.5-35B-A3B", "all", 35.51),  # bench
    ("Qwen3.5-122B-A10B", "all", 124.64),  # bench
]
NAMED = [  # (model, what, published in billions, percent by which the listing is above it)
    ("DeepSeek-V3.2", "main", 671, 0.13),  # card (V3's figure: the indexers add 0.85B)
    ("DeepSeek-V4-Pro", "all", 1600, -0.07),  # card
    ("GLM-4.5", "main", 355, -0.62),  # card, report
    ("GLM-4.5-Air", "main", 106, 0.80),  # card, report
    ("GLM-5", "main", 744, -0.01),  # card
    (
        "Kimi-K2",
        "main",
        1040,
        -1.31,
    ),  # report: 1.04T is what all 61 layers sparse would hold; the first is dense
    ("Kimi-Linear-48B-A3B", "main", 48, 2.34),  # card; 48.37B without the embedding
    ("LongCat-Flash", "main", 560, 0.12),  # card, report
    ("MiMo-V2-Flash", "main", 309, -0.07),  # card
    ("MiniMax-M2", "main", 230, -0.57),  # card
    ("MiniMax-Text-01", "main", 456, 0.02),  # card, report
    ("Step-3", "main", 316, 0.09),  # card, language model only; 321B with vision
    ("Step-3.5-Flash", "main", 196.81, 0.07),  # card
]
ACTIVE = [  # (model, experts per token, published billions): cards and reports
    ("DeepSeek-V2", 6, "21"),
    ("DeepSeek-V2-Lite", 6, "2.4"),
    ("DeepSeek-V3", 8, "37"),
    ("DeepSeek-V4-Flash", 6, "13"),
    ("DeepSeek-V4-Pro", 6, "49"),
    ("Kimi-K2", 8, "32.6"),
    ("Kimi-Linear-48B-A3B", 8, "3"),
    ("GLM-4.5", 8, "32"),
    ("GLM-4.5-Air", 8, "12"),
    ("GLM-4.7-Flash", 4, "3"),
    ("GLM-5", 8, "40"),
    ("MiMo-V2-Flash", 8, "15"),
    ("MiniMax-M2", 8, "10"),
    ("MiniMax-Text-01", 2, "45.9"),
    ("Qwen2-57B-A14B", 8, "14"),
    ("Qwen3-30B-A3B", 8, "3.3"),
    ("Qwen3-235B-A22B", 8, "22"),
    ("Qwen3-Next-80B-A3B", 10, "3"),
    ("Qwen3.5-122B-A10B", 8, "10"),
    ("Qwen3.5-397B-A17B", 10, "17"),
    ("Step-3", 3, "38"),
    ("Step-3.5-Flash", 8, "11"),
]


@pytest.mark.parametrize(("name", "what", "published"), EXACT)
def test_an_exact_published_count_is_met(name: str, what: str, published: int):
    assert counted(name, what) == published


@pytest.mark.parametrize(("name", "what", "published"), BILLIONS)
def test_a_count_published_to_two_decimals_is_met(name: str, what: str, published: float):
    assert round(counted(name, what) / 1e9, 2) == published


@pytest.mark.parametrize(("name", "what", "published", "percent"), NAMED)
def test_a_rounded_published_size_is_near_by_the_difference_stated(
    name: str, what: str, published: float, percent: float
):
    assert round(100 * (counted(name, what) / (published * 1e9) - 1), 2) == percent
    assert abs(percent) < 2.5


@pytest.mark.parametrize(("name", "routed", "published"), ACTIVE)
def test_a_published_active_size_lies_between_the_two_ways_to_count_it(
    name: str, routed: int, published: str
):
    """Publishers count embedding and head or leave them out, and round."""
    shapes = {key: shape for key, shape in listing(CONFIGS[name]).items() if not key.startswith("mtp.")}
    active = sum(
        prod(shape[1:]) * routed if ".experts." in key else prod(shape) for key, shape in shapes.items()
    )
    half = 0.5 / 10 ** len(published.partition(".")[2])
    low, high = (active - ends(CONFIGS[name])) / 1e9, active / 1e9
    assert low - half <= float(published) <= high + half


def blocks(shape: tuple[int, ...]) -> int:
    """Count the scales of a matrix, or of stacked matrices, quantized in blocks of 128 by 128."""
    rows, columns = shape[-2:]
    return prod(shape[:-2]) * ceil(rows / 128) * ceil(columns / 128)


def test_every_element_of_deepseek_v3_is_found():
    """Index: total_size 1,369,062,772,000 bytes at two an element, block scales and copies of the ends included."""
    config = CONFIGS["DeepSeek-V3"]
    bf16 = ("model.embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "eh_proj.weight")
    scales = sum(blocks(s) for k, s in listing(config).items() if len(s) > 1 and not k.endswith(bf16))
    assert counted("DeepSeek-V3", "stored") + scales == 1_369_062_772_000 // 2


def test_every_tensor_and_element_of_deepseek_v4_flash_is_found():
    """Hub: 69,187 tensors of 158,069,433,298 elements, two fp4 weights an element, scales and hash tables in."""
    config = CONFIGS["DeepSeek-V4-Flash"]
    fp8 = ("q_a_proj", "q_b_proj", "self_attn.kv_proj", "o_a_proj", "o_b_proj", ".e_proj", ".h_proj")
    tensors, elements = config["num_hash_layers"], config["num_hash_layers"] * config["vocab_size"] * 6
    for name, shape in listing(config).items():
        if ".experts." in name:  # a weight and its scales, for each expert; gate and up apart
            tensors += 2 * shape[0] * (2 if "gate_up" in name else 1)
            elements += prod(shape) // 2 + prod(shape) // 32
        elif "shared_experts" in name or name.removesuffix(".weight").endswith(fp8):
            tensors, elements = tensors + 2, elements + prod(shape) + blocks(shape)
        else:
            tensors, elements = tensors + 1, elements + prod(shape)
    assert (tensors, elements) == (69_187, 158_069_433_298)


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_are_whole_and_layers_are_all_there(name: str):
    shapes = listing(CONFIGS[name])
    assert all(isinstance(n, int) and n > 0 for shape in shapes.values() for n in shape)
    text = CONFIGS[name].get("text_config", CONFIGS[name])
    found = {key.split(".")[2] for key in shapes if key.startswith("model.layers.")}
    assert found == {str(i) for i in range(text.get("num_hidden_layers", text.get("num_layers")))}


def test_every_type_has_a_configuration_or_is_another_name_of_one():
    same = {}
    for name, config in CONFIGS.items():
        same.setdefault(TENSORS[config["model_type"]], name)
    alone = {kind for kind, function in TENSORS.items() if function not in same}
    assert alone == {"glm4v_moe", "glm4v_moe_text"}  # next test


def test_glm_4_5v_is_air_without_mtp():
    """Card: "based on GLM-4.5-Air", 106B; hub 108B (*) with vision. Its config has Air's sizes."""
    config = CONFIGS["GLM-4.5-Air"]
    wrapped = {"model_type": "glm4v_moe", "text_config": config, "vision_config": {"depth": 24}}
    assert sizes(wrapped) == (sizes(config)[0], 0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("kimi_k25", "Kimi-K2"), ("qwen2_5_vl", "Qwen2-7B"), ("qwen3_vl", "Qwen3-0.6B"), ("step3p7", "Step-3.5-Flash"),
     ("qwen3_vl_moe", "Qwen3-235B-A22B"), ("step3_vl", "Step-3")],
)  # fmt: skip
def test_a_wrapper_lists_its_language_model(kind: str, name: str):
    inner = CONFIGS[name]
    wrapped = {"model_type": kind, "text_config": inner, "vision_config": {"depth": 1, "hidden_size": 8}}
    assert listing(wrapped) == listing(inner)
    assert listing(inner | {"model_type": kind}) == listing(inner)


def test_a_tied_head_is_listed_once_wherever_the_tie_stands():
    flat = CONFIGS["Qwen2-7B"] | {"model_type": "qwen2_vl"}
    tied = {"model_type": "qwen2_vl", "tie_word_embeddings": True, "text_config": flat}
    assert total(listing(flat)) - total(listing(tied)) == 152064 * 3584
    inner = flat | {"tie_word_embeddings": False}  # the inner word counts
    assert listing(tied | {"text_config": inner}) == listing(flat)


def _renamed(name: str, drop: tuple[str, ...], add: Config) -> Config:
    return {key: value for key, value in CONFIGS[name].items() if key not in drop} | add


_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
TWINS = {  # transformers' converted files say the same in other keys
    "DeepSeek-V4-Flash": _renamed("DeepSeek-V4-Flash", ("compress_ratios", "num_hash_layers"), {
        "layer_types": ["sliding_attention"] * 2 + [_SPARSE, _HEAVY] * 20 + [_SPARSE],
        "compress_rates": {_SPARSE: 4, _HEAVY: 128}, "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40}),
    "MiMo-V2-Flash": _renamed("MiMo-V2-Flash", ("hybrid_layer_pattern", "moe_layer_freq"), {
        "layer_types": ["full_attention"] + (["sliding_attention"] * 4 + ["full_attention"])
        + (["sliding_attention"] * 5 + ["full_attention"]) * 7,
        "mlp_layer_types": ["dense"] + ["sparse"] * 47}),
    "MiniMax-Text-01": _renamed("MiniMax-Text-01", ("attn_type_list",), {
        "model_type": "minimax", "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10}),
    "Step-3.5-Flash": _renamed("Step-3.5-Flash", ("moe_layers_enum", "attention_other_setting"), {
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42, "num_sliding_attention_heads": 96}),
    "GLM-4.7-Flash": _renamed("GLM-4.7-Flash", ("first_k_dense_replace",), {
        "mlp_layer_types": ["dense"] + ["sparse"] * 46}),
    "Qwen3.5-122B-A10B": {"model_type": "qwen3_5_moe_text", **CONFIGS["Qwen3.5-122B-A10B"]["text_config"],
                          "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12},
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_the_same_model_in_other_keys_has_the_same_tensors(name: str):
    assert listing(TWINS[name]) == listing(CONFIGS[name])


@pytest.mark.parametrize(
    "keys",
    [CONFIGS["GLM-5.2"], {"index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS"},
     {"indexer_types": ["full"] * 3 + ["shared", "shared", "shared", "full"] * 18 + ["shared"] * 3}],
)  # fmt: skip
def test_glm_layers_that_share_a_selection_have_no_indexer(keys: Config):
    config = CONFIGS["GLM-5"]
    gone = listing(config).keys() - listing(config | keys).keys()
    layers = {int(name.split(".")[2]) for name in gone}
    assert layers == {i for i in range(3, 78) if i % 4 != 2}
    assert len(gone) == 5 * len(layers) and all(".indexer." in name for name in gone)


@pytest.mark.parametrize(
    ("name", "keys"),
    [("Kimi-Linear-48B-A3B", {"num_nextn_predict_layers": 1}), ("MiniMax-Text-01", {"shared_intermediate_size": 64}),
     ("Qwen3.5-27B", {"mtp_use_dedicated_embeddings": True}), ("Step-3.5-Flash", {"attention_bias": True})],
)  # fmt: skip
def test_what_no_checkpoint_defines_is_not_listed(name: str, keys: Config):
    with pytest.raises(AssertionError, match=r"no published checkpoint|do not agree"):
        TENSORS[CONFIGS[name]["model_type"]](CONFIGS[name].get("text_config", CONFIGS[name]) | keys)


FILES = {  # config.json as published; a wrapper's count is its language model's
    "MiniMaxAI__MiniMax-M2.5": "MiniMax-M2",
    "Qwen__Qwen3-0.6B": "Qwen3-0.6B",
    "Qwen__Qwen3-235B-A22B": "Qwen3-235B-A22B",
    "Qwen__Qwen3-32B": "Qwen3-32B",
    "Qwen__Qwen3-32B-FP8": "Qwen3-32B",
    "Qwen__Qwen3-VL-235B-A22B-Instruct": "Qwen3-235B-A22B",
    "Qwen__Qwen3.5-122B-A10B": "Qwen3.5-122B-A10B",
    "XiaomiMiMo__MiMo-V2-Flash": "MiMo-V2-Flash",
    "deepseek-ai__DeepSeek-V3": "DeepSeek-V3",
    "deepseek-ai__DeepSeek-V3.2": "DeepSeek-V3.2",
    "deepseek-ai__DeepSeek-V4-Flash": "DeepSeek-V4-Flash",
    "moonshotai__Kimi-K2.5": "Kimi-K2",
    "zai-org__GLM-5": "GLM-5",
    "zai-org__GLM-5-FP8": "GLM-5",
}
COUNTS = {
    "Qwen__Qwen3-VL-2B-Instruct": (1_720_574_976, 0),  # Qwen3-1.7B's; bench 1.72 B (*)
    # A flattened copy without the sliding layers' 96 heads: 33 + 3 layers less of three 32-head pieces.
    "stepfun-ai__Step-3.7-Flash": (195_844_508_736, 743_240_448),
}
SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")


@pytest.mark.skipif(not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with cases/hf_configs")
@pytest.mark.parametrize("stem", [*FILES, *COUNTS])
def test_a_real_file_lists_what_its_keys_above_list(stem: str):
    config = json.loads((Path(SAMPLES) / "cases" / "hf_configs" / f"{stem}.json").read_text(encoding="utf-8"))
    if stem in FILES:
        assert listing(config) == listing(CONFIGS[FILES[stem]])
    else:
        assert sizes(config) == COUNTS[stem]


def test_the_flattened_step_file_differs_from_the_whole_by_its_missing_heads():
    main, ahead = sizes(CONFIGS["Step-3.5-Flash"])
    missing = (96 - 64) * 4096 * (2 * 128 + 1)  # query, output and gate of 32 heads
    assert (main - 33 * missing, ahead - 3 * missing) == COUNTS["stepfun-ai__Step-3.7-Flash"]
