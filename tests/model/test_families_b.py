"""Adapters against lists of the checkpoints' tensors: Gemma, Nemotron, Llama 4, Ling, Pangu, Hunyuan and others."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from families_b_configs import FULL, TOY
from tensors_b import TENSORS

from telekit import catalog
from telekit.documents import parse, read_text
from telekit.errors import InputError
from telekit.model.count import count
from telekit.model.families import allenai, ant, baidu, google, huawei, microsoft, nvidia, others, tencent
from telekit.model.flops import forward_flops_per_token
from telekit.model.huggingface import defaults_filled, from_huggingface, read_model

Config = dict[str, Any]
CATALOG = {name: catalog.record("models", name)["config"] for name in catalog.names("models")}
HERE = {
    **google.FAMILIES, **nvidia.FAMILIES, **microsoft.FAMILIES, **allenai.FAMILIES, **tencent.FAMILIES,
    **baidu.FAMILIES, **huawei.FAMILIES, **ant.FAMILIES, **others.FAMILIES,
}  # fmt: skip
KINDS = {*HERE, "llama4_text", "ministral3", "gpt_neox", "opt", "bloom"}
SAME = {"skywork": "skywork_moe"}  # two names of one family


def text(config: Config) -> Config:
    return config.get("text_config", config)


def size(shapes: Iterator[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def tensors(config: Config) -> dict[str, tuple[int, ...]]:
    kind = config["model_type"]
    return TENSORS[SAME.get(kind, kind)](config)


def listed(config: Config) -> tuple[int, int]:
    """Give the elements of the model proper and of its MTP modules, by the list of tensors."""
    shapes = tensors(config)
    main = size(s for name, s in shapes.items() if not name.startswith("mtp."))
    return main, size(s for name, s in shapes.items() if name.startswith("mtp."))


def assert_counts_the_tensors(config: Config) -> None:
    counted = count(config)
    assert (counted.total, counted.mtp) == listed(config)
    assert sum(counted.by_component.values()) == counted.total
    names = (
        name for name in tensors(config).items() if ".experts." in name[0] and not name[0].startswith("mtp.")
    )
    routed, moe = size(shape for _, shape in names), from_huggingface(config).moe
    met = routed * moe.top_k // moe.num_experts if moe else 0
    assert counted.active == counted.total - routed + met


def test_every_family_is_tried():
    tried = {text(c)["model_type"] for c in TOY.values()}
    assert {SAME.get(kind, kind) for kind in KINDS} <= tried


@pytest.mark.parametrize("name", TOY)
def test_toy_models(name):
    assert_counts_the_tensors(TOY[name])


@pytest.mark.parametrize("name", FULL)
def test_models_of_a_published_size(name):
    config, published, tolerance = FULL[name]
    assert_counts_the_tensors(config)
    assert count(config).total / 1e9 == pytest.approx(published, rel=tolerance or 1e-12)


@pytest.mark.parametrize("name", [n for n, c in CATALOG.items() if text(c).get("model_type") in KINDS])
def test_the_catalogs_models(name):
    assert_counts_the_tensors(CATALOG[name])


# --- configs that nobody has ----------------------------------------------------------------------------------


def changes(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield the config with one number changed, one truth value turned, or one field left out or null."""
    for name, value in config.items():
        if isinstance(value, dict) and name in ("text_config", "attn_config", "ffn_config"):
            yield from ((f"{name}.{what}", config | {name: inner}) for what, inner in changes(value))
            continue
        if name == "model_type":
            continue
        if type(value) is bool:
            yield f"{name}={not value}", config | {name: not value}
        elif type(value) is int:
            yield from (
                (f"{name}={new}", config | {name: new}) for new in (2 * value, value + 1, value - 1, 0)
            )
        yield f"without {name}", {k: v for k, v in config.items() if k != name}
        yield f"{name}=null", config | {name: None}


@pytest.mark.parametrize("name", TOY)
def test_one_changed_field_is_counted_or_refused(name):
    counted = refused = 0
    for what, config in changes(TOY[name]):
        try:
            found = count(config)
        except InputError as error:
            assert error.problems and len(str(error)) < 2000, what
            refused += 1
            continue
        assert (found.total, found.mtp) == listed(config), what
        counted += 1
    assert counted > refused / 3  # it is no test of refusing everything


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "field", "words"),
    [
        ("llama4", {"moe_layers": [4]}, "moe_layers", "from 0 to 3"),
        ("llama4", {"no_rope_layers": [1, 1]}, "no_rope_layers", "one entry a layer"),
        ("llama4", {"layer_types": ["sliding_attention"] * 4}, "layer_types", "not modelled yet"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention", "later tokens"),
        ("gemma4, shared", {"num_kv_shared_layers": 12}, "num_kv_shared_layers", "less than num_hidden_layers"),
        ("gemma4, shared", {"num_kv_shared_layers": 7}, "num_kv_shared_layers", "a layer of each"),
        ("gemma4, dense", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention", "later text"),
        ("gemma4, dense", {"num_global_key_value_heads": 3}, "num_global_key_value_heads", "must divide"),
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim", "another width"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm", "last norm"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before", "not modelled yet"),
        ("bloom", {"n_inner": 100}, "n_inner", "4 times"),
        ("phi3", {"mlp_bias": True}, "mlp_bias", "biases"),
        ("olmoe", {"head_dim": 24}, "head_dim", "hidden_size / num_attention_heads"),
        ("grok-1", {"residual_moe": True}, "residual_moe", "Grok-2"),
        ("hunyuan", {"moe_topk": [1, 1, 2, 1]}, "moe_topk", "layers of different sizes"),
        ("hunyuan", {"moe_topk": [1]}, "moe_topk", "one entry a layer"),
        ("hunyuan_v1_moe", {"use_cla": True}, "use_cla", "another layer"),
        ("hunyuan_v1_moe", {"moe_intermediate_size": 48}, "moe_intermediate_size", "must equal"),
        ("hunyuan_v1_dense", {"use_mla": True}, "use_mla", "latent attention"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias", "multi-token"),
        ("ernie4_5_moe", {"moe_num_experts": [6, 6]}, "moe_num_experts", "not a list"),
        ("bailing_moe", {"use_bias": True}, "use_bias", "not modelled yet"),
        ("bailing_moe", {"multi_gate": True}, "multi_gate", "router"),
        ("bailing_hybrid", {"architectures": ["BailingMoeV3ForCausalLM"]}, "architectures", "not modelled yet"),
        ("bailing_hybrid", {"short_conv_kernel_size": 4}, "short_conv_kernel_size", "delta attention"),
        ("PanguProMoE", {"param_sink_number": 128}, "param_sink_number", "not modelled yet"),
        ("PanguProMoE", {"qk_nope_dim": 128}, "qk_nope_dim", "not modelled yet"),
        ("PanguProMoE", {"sandwich_norm": True}, "sandwich_norm", "not modelled yet"),
        ("PanguEmbedded", {"bias": None}, "bias", "true or false"),
        ("skywork_moe", {"num_experts": [4, 8]}, "num_experts", "not a list"),
        ("skywork_moe", {"moe_expert_interval": 2}, "moe_expert_interval", "dense blocks"),
        ("nemotron_h", {"hybrid_override_pattern": "M-M*M"}, "num_hidden_layers", "length of the pattern, 5"),
        ("nemotron_h", {"hybrid_override_pattern": "MXM*M-"}, "hybrid_override_pattern", "letters * - E M"),
        ("nemotron_h", {"layers_block_type": ["mamba"] * 6}, "layers_block_type", "must say the same"),
        ("nemotron_h", {"mamba_proj_bias": True}, "mamba_proj_bias", "use_bias"),
        ("nemotron_h, experts", {"mlp_bias": True}, "mlp_bias", "biases in a model with experts"),
        ("nemotron_h, experts", {"n_shared_experts": 2}, "n_shared_experts", "one shared expert"),
        ("nemotron_h, words", {"layers_block_type": ["mlp2"] * 6}, "layers_block_type", "layers of this type"),
        ("nemotron_h, MTP", {"mtp_hybrid_override_pattern": "ME"}, "mtp_hybrid_override_pattern", "only *E"),
        ("granitemoehybrid", {"mamba_d_head": 12}, "mamba_d_head", "mamba_n_heads"),
        ("granitemoehybrid", {"layer_types": ["mamba3"] * 4}, "layer_types", "mamba3"),
        ("cohere2", {"use_parallel_block": False}, "use_parallel_block", "not modelled yet"),
        ("dots1", {"moe_layer_freq": 2}, "moe_layer_freq", "dense blocks"),
    ],
)  # fmt: skip
def test_what_would_change_the_model_is_refused(name, change, field, words):
    with pytest.raises(InputError) as caught:
        from_huggingface(TOY[name] | change)
    told = {p.field: str(p) for p in caught.value.problems}
    assert list(told) == [field] and words in told[field]


@pytest.mark.parametrize(
    ("part", "change", "field"),
    [
        ("attention", {"replace_with_linear": True}, "replace_with_linear"),
        ("attention", {"sparsify": [0.5]}, "sparsify"),
        ("attention", {"num_sink_tokens": 4}, "num_sink_tokens"),
        ("attention", {"n_heads_in_group": 3}, "n_heads_in_group"),
        ("ffn", {"replace_with_linear": True}, "replace_with_linear"),
        ("ffn", {"ffn_mult": -1.0}, "ffn_mult"),
        ("ffn", {"ffn_mult": math.inf}, "ffn_mult"),
        ("ffn", {"ffn_mult": 1e300}, "ffn_mult"),
        ("ffn", {"moe": {"num_local_experts": 8}}, "moe"),
    ],
)
def test_forms_of_pruned_blocks_that_are_not_modelled(part, change, field):
    config = TOY["nemotron-nas"]
    first = config["block_configs"][0]
    blocks = [first | {part: first[part] | change}, *config["block_configs"][1:]]
    with pytest.raises(InputError) as caught:
        from_huggingface(config | {"block_configs": blocks})
    assert [p.field for p in caught.value.problems] == [f"block_configs[0].{part}.{field}"]


PASSED_OVER: dict[str, Config] = {  # further fields of released files
    "llama4": {"use_qk_norm": True, "attn_temperature_tuning": True, "attn_scale": 0.1, "floor_scale": 8192,
               "for_llm_compressor": False, "cache_implementation": "hybrid", "router_jitter_noise": 0.0},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 144,
               "final_logit_softcapping": 30.0, "sliding_window_size": 16},
    "bloom": {"n_inner": None, "offset_alibi": 100, "seq_length": 2048, "masked_softmax_fusion": True,
              "apply_residual_connection_post_layernorm": False, "slow_but_exact": False, "unk_token_id": 0},
    "opt": {"_remove_final_layer_norm": False, "init_std": 0.02, "layerdrop": 0.0, "prefix": "</s>"},
    "phi3": {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "original_max_position_embeddings": 8},
    "dbrx": {"max_seq_len": 32768, "emb_pdrop": 0.0, "router_aux_loss_coef": 0.05},
    "grok-1": {"max_attn_value": 30.0, "attn_output_multiplier": 0.088, "embedding_multiplier_scale": 78.4},
    "hunyuan_v1_moe": {"q_lora_rank": None, "dense_list": [4096, 0], "pool_type": "last", "vit_norm_type": "fused",
                       "moe_layer_num_skipped": 0, "norm_type": "rms", "cla_share_factor": 2},
    "ernie4_5_moe": {"moe_capacity": [64, 64, 64], "moe_use_aux_free": True},
    "bailing_moe": {"router_type": "topN", "multi_gate": False, "norm_head": False, "use_sliding_window": False,
                    "sliding_window": 4096, "max_window_layers": 28, "embedding_dropout": 0.0},
    "nemotron_h": {"chunk_size": 128, "expand": 2, "time_step_limit": [0.0, math.inf], "time_step_rank": 512,
                   "rescale_prenorm_residual": True, "num_logits_to_keep": 1, "sliding_window": None},
    "cohere2": {"layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "logit_scale": 0.25,
                "use_gated_activation": True, "use_parallel_embedding": False, "position_embedding_type": "rope_gptj"},
    "granitemoehybrid": {"logits_scaling": 16, "init_method": "mup", "normalization_function": "rmsnorm",
                         "mamba_d_head": 16, "mamba_chunk_size": 256, "position_embedding_type": "nope"},
}  # fmt: skip


@pytest.mark.parametrize("name", PASSED_OVER)
def test_fields_of_the_released_files_that_change_nothing(name):
    reading, plain = read_model(TOY[name] | PASSED_OVER[name]), from_huggingface(TOY[name])
    assert reading.model == plain and reading.ignored == ()


def test_a_wrapper_that_ties_by_its_class_is_not_contradicted():
    wrapped = TOY["gemma3, wrapped"]
    assert count(wrapped).by_component["head"] == 0
    inner = wrapped["text_config"] | {"tie_word_embeddings": False}
    with pytest.raises(InputError, match=r"must equal text_config\.tie_word_embeddings"):
        count(wrapped | {"text_config": inner})
    assert count(wrapped | {"text_config": inner, "tie_word_embeddings": False}).by_component["head"] > 0


# --- what the tensors do not say ------------------------------------------------------------------------------


def seen(config: Config) -> list[int | None]:
    """Give the keys that a query of each layer sees at most: its window's, or its chunk's."""
    return [
        a.window or getattr(a, "chunk", None)
        for a in (layer.attention for layer in from_huggingface(config).layers)
    ]


def test_windows_and_chunks_stand_where_the_files_say():
    assert seen(TOY["llama4"]) == [32, 32, 32, None]
    assert seen(TOY["llama4"] | {"no_rope_layers": [0, 1, 1, 0]}) == [None, 32, 32, None]
    assert seen(TOY["llama4"] | {"no_rope_layers": []}) == [32, 32, 32, None]
    assert (
        seen(TOY["llama4"] | {"layer_types": ["full_attention", "chunked_attention"] * 2}) == [None, 32] * 2
    )
    assert seen(TOY["gemma2"]) == [16, None] * 2
    assert seen(TOY["gemma3"]) == [16, 16, None, 16]
    assert seen(TOY["gemma3, wrapped"]) == [4096] * 5 + [None, 4096]
    assert seen(TOY["gemma4, dense"]) == ([16] * 5 + [None]) * 2
    assert seen(TOY["gemma4, dense"] | {"layer_types": ["sliding_attention"] * 12}) == [16] * 11 + [None]
    assert seen(TOY["olmo3"]) == [16, 16, 16, None]
    assert seen(TOY["cohere2"]) == [16, 16, None, 16]
    assert seen(TOY["exaone4"]) == [16, 16, 16, None]
    assert seen(TOY["exaone4"] | {"sliding_window": None}) == [None] * 4
    assert seen(TOY["phi3"]) == [16] * 4
    assert seen(TOY["phi3"] | {"sliding_window": None}) == [None] * 4
    assert seen(TOY["dots1"] | {"sliding_window": 8, "max_window_layers": 3}) == [None, None, None, 8]
    assert seen(TOY["nemotron-nas"]) == [None, None, 8, None]


def test_a_shared_key_costs_its_attention_and_no_projection():
    config = TOY["gemma4, dense"] | {"attention_k_eq_v": False}
    whole, shared = from_huggingface(config), from_huggingface(config | {"num_kv_shared_layers": 2})
    saved = (
        2 * 64 * 2 * (16 + 32) * 2
    )  # hidden x two heads x (a sliding and a full layer's width) x keys, values
    assert forward_flops_per_token(whole, 100) - forward_flops_per_token(shared, 100) == pytest.approx(saved)


def test_a_pruned_model_keeps_what_its_blocks_keep():
    kinds = [
        (layer.attention.kind, layer.mlp.kind, layer.norms)
        for layer in from_huggingface(TOY["nemotron-nas"]).layers
    ]
    assert kinds == [("gqa", "dense", 2), ("none", "dense", 1), ("gqa", "none", 1), ("gqa", "dense", 2)]
    widths = [
        layer.mlp.ffn_hidden_size
        for layer in from_huggingface(TOY["nemotron-nas"]).layers
        if layer.mlp.kind == "dense"
    ]
    assert widths == [256, 768, 80]  # int(2 x 5.25 x 64 / 3) = 224 and 560, up to the next 256


def test_layers_of_a_hybrid_stand_in_the_order_of_its_pattern():
    names = {"gqa": "*", "mamba2": "M", "none": "-"}
    found = from_huggingface(TOY["nemotron_h"]).layers
    assert (
        "".join(names[layer.attention.kind] for layer in found)
        == TOY["nemotron_h"]["hybrid_override_pattern"]
    )
    ring = from_huggingface(
        TOY["bailing_moe_linear"]
    ).layers  # groups of three; the last two are no whole group
    assert [layer.attention.kind for layer in ring] == ["lightning", "lightning", "gqa"] * 2 + ["gqa"] * 2


def test_what_a_class_holds_is_filled_in_and_said():
    filled = {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    assert filled.items() <= defaults_filled(TOY["gemma3, wrapped"]).items()
    assert "moe_2layer_gate" in defaults_filled(FULL["skywork-moe"][0])
    assert defaults_filled(TOY["nemotron"])["hidden_act"] == "relu2"


def test_an_mtp_module_of_ernie_has_two_norms_and_a_dense_block():
    model = from_huggingface(TOY["ernie4_5_moe"])
    assert model.mtp_norms == 2 and model.mtp_block.mlp.kind == "dense"
    assert (
        "mlp" in model.kinds[model.pattern[1]].model_fields_set
        and model.kinds[model.pattern[1]].mlp.kind == "moe"
    )


# --- real files -----------------------------------------------------------------------------------------------

SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")
REAL = {  # total without MTP and vision towers; published beside it
    "google__gemma-4-26B-A4B": (25_233_141_790, 25.2, 3e-3),
    "meta-llama__Llama-4-Scout-17B-16E-Instruct": (
        107_769_861_120,
        107.77,
        1e-4,
    ),  # 109B with the vision tower
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1": (49_867_145_216, 49.9, 1e-3),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31_577_940_288, 31.6, 1e-3),
    "nvidia__Nemotron-H-56B-Base-8K": (56_324_350_464, 56.3, 1e-3),
    "mistralai__Mixtral-8x7B-v0.1": (46_702_792_704, 46.7, 1e-3),
    "meta-llama__Meta-Llama-3.1-70B": (70_553_706_496, 70.6, 1e-3),
    "openai__gpt-oss-120b": (116_829_156_672, 116.83, 1e-4),
}


@pytest.mark.skipif(not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with cases/hf_configs")
@pytest.mark.parametrize("name", REAL)
def test_real_files(name):
    path, (total, published, tolerance) = Path(SAMPLES) / "cases" / "hf_configs" / f"{name}.json", REAL[name]
    reading, counted = read_model(path), count(path)
    assert counted.total == total
    assert (counted.total, counted.mtp) == listed(parse(read_text(path), name, is_json=True, infinite=True))
    assert counted.total / 1e9 == pytest.approx(published, rel=tolerance)
    assert reading.ignored == ()


def test_infinity_stands_in_a_list_of_a_file(tmp_path):
    path = tmp_path / "config.json"  # Python writes it so, and released files of Nemotron-H have it
    path.write_text(json.dumps(TOY["nemotron_h"] | {"time_step_limit": [0.0, math.inf]}), encoding="utf-8")
    assert "Infinity" in path.read_text(encoding="utf-8")
    assert count(path).total == count(TOY["nemotron_h"]).total
    path.write_text(json.dumps(TOY["nemotron_h"] | {"expand": math.inf}), encoding="utf-8")
    with pytest.raises(InputError, match="expand = Infinity: is not a JSON number"):
        count(path)
