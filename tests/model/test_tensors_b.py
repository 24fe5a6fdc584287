"""The listings of tensors_b.py against a third way: instantiated models, and the sizes that were published."""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

import pytest
from tensors_b import TENSORS
from tensors_b_configs import CONFIGS

Config = dict[str, Any]
INSTANTIATED = json.loads(Path(__file__).with_name("tensors_b_instantiated.json").read_text())


def listing(config: Config) -> dict[str, tuple[int, ...]]:
    return TENSORS[config["model_type"]](config)


def sizes(config: Config) -> tuple[int, int]:
    """Give the elements of the model proper and of what predicts further tokens."""
    found = {"main": 0, "mtp": 0}
    for name, shape in listing(config).items():
        found["mtp" if name.startswith("mtp.") else "main"] += prod(shape)
    return found["main"], found["mtp"]


def counted(name: str, what: str = "main") -> int:
    main, ahead = sizes(CONFIGS[name])
    return {"main": main, "all": main + ahead}[what]


def text(config: Config) -> Config:
    return config.get("text_config", config)


ROUTED = ("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
USUAL = {  # routed experts and how many there are, where a config leaves both to its class
    "mixtral": (2, 8), "phimoe": (2, 16), "olmoe": (8, 64), "gpt_oss": (4, 128), "grok-1": (2, 8),
    "llama4_text": (1, 16), "PanguProMoE": (8, 64), "pangu_ultra_moe": (8, 256), "skywork_moe": (2, 16),
    "ernie4_5_moe": (6, 64),
}  # fmt: skip


def share(config: Config) -> float:
    """Give the part of a layer's routed experts that one token goes through."""
    c = text(config) | text(config).get("ffn_config", {})
    k, n = USUAL.get(c["model_type"], (0, 0))
    k = next((c[key] for key in (*ROUTED, "moe_top_k") if key in c), k)
    n = next((c[key] for key in EXPERTS if key in c), n)
    return (k[0] if isinstance(k, list) else k) / (n[0] if isinstance(n, list) else n)


def active(name: str, embedding: str) -> float:
    """Count what one token goes through; ``embedding``: both, head (without the input's), none."""
    shapes = {k: prod(v) for k, v in listing(CONFIGS[name]).items() if not k.startswith("mtp.")}
    routed = sum(size for key, size in shapes.items() if ".experts." in key)
    ends = {k: v for k, v in shapes.items() if any(word in k for word in ("embed", "wte", "lm_head"))}
    inputs = max(ends.values())
    less = {"both": 0, "head": inputs if len(ends) > 1 else 0, "none": sum(ends.values())}[embedding]
    return sum(shapes.values()) - routed * (1 - share(CONFIGS[name])) - less


@pytest.mark.parametrize("name", INSTANTIATED["models"])
def test_real_models_as_instantiated(name):
    assert counted(name) == INSTANTIATED["models"][name]


@pytest.mark.parametrize("row", INSTANTIATED["rows"], ids=lambda row: row["config"]["model_type"])
def test_every_switch_as_instantiated(row):
    assert sizes(row["config"])[0] == row["total"]


# Sources below: "card" is the model card or README, "report" the technical report, "bench" the parameter column of
# public llama-bench logs (the elements of a GGUF file), "hub" the element count that Hugging Face shows for the
# safetensors. (*) marks a figure from memory.
EXACT = [
    ("Llama-2-7B", 6_738_415_616),  # hub (*)
    ("Llama-3.1-8B", 8_030_261_248),  # hub (*)
    ("Mistral-7B", 7_241_732_096),  # hub (*)
    ("Mixtral-8x7B", 46_702_792_704),  # hub (*)
    ("Phi-3-mini", 3_821_079_552),  # hub (*)
    ("Gemma-2-2B", 2_614_341_888),  # hub (*)
    ("GPT-2", 124_439_808),  # the sum of the published checkpoint (*)
    ("GPT-NeoX-20B", 20_554_567_680),  # report, section 2 (*)
    ("BLOOM", 176_247_271_424),  # card (*)
    ("OLMoE-1B-7B", 6_919_161_856),  # hub (*)
    (
        "Nemotron-3-Super-120B-A12B",
        120_668_707_840,
    ),  # n_params of a GGUF, as llama-bench reports it; without MTP
]
BILLIONS = [  # published to two decimals: every digit must come out
    ("Llama-4-Scout", 107.77),  # bench; text only, the card's 109B has the vision tower
    ("Llama-4-Maverick", 400.71),  # bench; text only
    ("Gemma-4-26B-A4B", 25.23),  # bench; card 25.2B
    ("Gemma-4-31B", 30.70),  # bench; card 30.7B
    ("gpt-oss-120b", 116.83),  # report, Table 1
    ("gpt-oss-20b", 20.91),  # report, Table 1
    ("Hunyuan-A13B", 80.39),  # bench; card 80B
    ("ERNIE-4.5-21B-A3B", 21.83),  # bench; card 21B
    ("Ling-flash-2.0", 102.89),  # bench; card 103B
    ("Nemotron-3-Nano-30B-A3B", 31.58),  # bench; card 31.6B
    ("Pangu Pro MoE", 71.99),  # report, Table 1
    ("dots.llm1", 142.77),  # bench (*); card 142B
]
PUBLISHED = [  # rounded by the publication: name, what, billions, relative tolerance
    ("Llama-3.1-70B", "main", 70.6, 1e-3),  # hub (*)
    ("Llama-3.1-405B", "main", 405.85, 1e-4),  # hub (*)
    ("Gemma-3-27B", "main", 27.0, 5e-3),  # report: 25.6B beside 1.4B of embedding (*)
    ("GPT-3 175B", "main", 174.6, 1e-3),  # Megatron (arXiv:2104.04473), Table 2, with its vocabulary of 51200
    ("OPT-175B", "main", 175, 5e-3),  # the name
    ("Phi-3.5-MoE", "main", 41.9, 1e-3),  # card 42B, hub 41.9B (*)
    ("DBRX", "main", 132, 5e-3),  # card; hub 131.6B (*)
    ("OLMo-2-7B", "main", 7.3, 1e-3),  # hub (*)
    ("Hunyuan-Large", "main", 389, 1e-3),  # report
    ("ERNIE-4.5-300B-A47B", "main", 300, 5e-3),  # card
    ("Ling-lite-1.5", "main", 16.8, 1e-3),  # card
    ("Ling-mini-2.0", "main", 16.26, 1e-3),  # hub (*)
    ("Ling-1T", "main", 1000, 1e-3),  # card
    ("Ring-flash-linear-2.0", "main", 104.2, 1e-3),  # report: 104.2B (*)
    (
        "openPangu-Embedded-7B",
        "main",
        8.03,
        1e-3,
    ),  # its shape is Llama-3's but for width and layers; card "7B" (*)
    ("Pangu Ultra MoE", "main", 718, 2e-3),  # report; without the MTP layer
    ("Skywork-MoE", "main", 146, 3e-3),  # report
    ("TeleChat2-35B", "main", 35, 0.02),  # the name
    ("Nemotron-4-340B", "main", 341, 1e-3),  # 340B on the card, 341B on the hub (*)
    ("Nemotron-H-8B", "main", 8.1, 2e-3),  # report: 8.1B (*)
    ("Nemotron-3-Super-120B-A12B", "all", 123.6, 1e-3),  # hub (*); with MTP
    ("Jamba-v0.1", "main", 51.6, 1e-3),  # hub (*)
    ("Seed-OSS-36B", "main", 36.2, 2e-3),  # hub (*)
]
ACTIVE = [  # name, embeddings counted, billions, relative tolerance; sources as above
    ("Mixtral-8x7B", "both", 12.9, 2e-3),  # announcement
    ("Llama-4-Maverick", "both", 17, 0.02),
    ("Gemma-4-26B-A4B", "both", 3.8, 0.01),
    ("gpt-oss-120b", "head", 5.13, 2e-3),  # report, Table 1: the unembedding is in, the embedding is not
    ("gpt-oss-20b", "head", 3.61, 2e-3),
    ("Phi-3.5-MoE", "both", 6.6, 0.01),
    ("DBRX", "both", 36, 0.02),
    ("OLMoE-1B-7B", "both", 1.28, 3e-3),
    ("Hunyuan-Large", "both", 52, 0.02),
    ("Hunyuan-A13B", "both", 13, 0.02),
    ("ERNIE-4.5-300B-A47B", "both", 47, 0.02),
    ("dots.llm1", "both", 14, 0.03),
    ("Ling-flash-2.0", "both", 6.1, 0.01),
    ("Pangu Pro MoE", "both", 16.5, 2e-3),
    ("Pangu Ultra MoE", "head", 39, 0.01),
    ("Skywork-MoE", "head", 22, 0.02),
    ("Nemotron-3-Nano-30B-A3B", "both", 3.6, 0.01),
    ("Nemotron-3-Nano-30B-A3B", "head", 3.2, 0.01),
    ("Nemotron-3-Super-120B-A12B", "head", 12.1, 0.02),
]


@pytest.mark.parametrize(("name", "published"), EXACT)
def test_exact_sizes(name, published):
    assert counted(name) == published


@pytest.mark.parametrize(("name", "published"), BILLIONS)
def test_sizes_published_to_two_decimals(name, published):
    assert round(counted(name) / 1e9, 2) == published


@pytest.mark.parametrize(("name", "what", "published", "tolerance"), PUBLISHED)
def test_rounded_sizes(name, what, published, tolerance):
    assert counted(name, what) / 1e9 == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(("name", "embedding", "published", "tolerance"), ACTIVE)
def test_active_sizes(name, embedding, published, tolerance):
    assert active(name, embedding) / 1e9 == pytest.approx(published, rel=tolerance)


def test_grok_is_published_without_its_embedding():
    vocabulary = 131072 * 6144
    assert (counted("Grok-1") - vocabulary) / 1e9 == pytest.approx(314, rel=3e-3)


@pytest.mark.parametrize(
    ("name", "published", "stored", "towers"),
    [  # the card's size has the vision and audio towers; a GGUF (bench) also keeps keys and values no layer reads
        ("Gemma-4-E2B", 5.1, 4.65, 0.15 + 0.3),
        ("Gemma-4-E4B", 8.0, 7.52, 0.15 + 0.3),  # bench (*)
    ],
)
def test_gemma_with_shared_keys_and_values(name, published, stored, towers):
    c = CONFIGS[name]
    kinds = c["layer_types"][-c["num_kv_shared_layers"] :]
    widths = [c["global_head_dim"] if kind == "full_attention" else c["head_dim"] for kind in kinds]
    unread = sum(2 * c["num_key_value_heads"] * d * c["hidden_size"] + d for d in widths)
    assert round((counted(name) + unread) / 1e9, 2) == stored
    assert counted(name) / 1e9 + towers == pytest.approx(published, rel=0.015)


def test_names_under_mtp_are_all_that_the_main_model_lacks():
    for name, config in CONFIGS.items():
        without = {k: v for k, v in config.items() if k not in ("num_nextn_predict_layers", "num_mtp_layers")}
        assert sizes(without) == (counted(name), 0), name


SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")
REAL = {  # the figures of transformers' instances, but for the pruned 49B: card 49.9B
    "google__gemma-4-26B-A4B": 25_233_141_790,
    "meta-llama__Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "meta-llama__Meta-Llama-3.1-70B": 70_553_706_496,
    "mistralai__Mixtral-8x7B-v0.1": 46_702_792_704,
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_940_288,
    "nvidia__Nemotron-H-56B-Base-8K": 56_324_350_464,
    "openai__gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.skipif(not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with cases/hf_configs")
@pytest.mark.parametrize("name", REAL)
def test_real_files(name):
    config = json.loads(Path(SAMPLES, "cases/hf_configs", f"{name}.json").read_text())
    assert sizes(config) == (REAL[name], 0)
