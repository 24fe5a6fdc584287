"""Every count against a list of the checkpoint's tensors, written from the config by hand for each family."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit import catalog
from telekit.errors import InputError
from telekit.model.count import count
from telekit.model.families.registry import FAMILIES
from telekit.model.huggingface import from_huggingface, read_model

Tensors = Iterator[tuple[str, tuple[int, ...]]]

# families that the catalog does not use
OTHERS: dict[str, dict[str, Any]] = {
    "mistral-7b": {
        "model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "vocab_size": 32000, "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072,
        "vocab_size": 151936, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "attention_bias": False, "use_sliding_window": False, "tie_word_embeddings": True,
    },
    "deepseek-v2-dense": {
        "model_type": "deepseek_v2", "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 128,
        "vocab_size": 100, "num_attention_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12, "n_routed_experts": None,
    },
    "llama-biased": {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
        "vocab_size": 100, "num_attention_heads": 4, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
# others have their own files of tests
HERE = {"llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3", "telechat", "telechat3",
        "telechat3_moe", "gpt2", "gpt_oss"}  # fmt: skip
RECORDS = {name: catalog.record("models", name)["config"] for name in catalog.names("models")}
CATALOG = {name: config for name, config in RECORDS.items() if config["model_type"] in HERE}
CONFIGS = CATALOG | OTHERS


def linear(name: str, out: int, into: int, bias: bool = False) -> Tensors:
    yield f"{name}.weight", (out, into)
    if bias:
        yield f"{name}.bias", (out,)


def qkvo(p: str, c: dict[str, Any], bias: bool, norms: bool = False, sinks: bool = False) -> Tensors:
    h, n = c["hidden_size"], c["num_attention_heads"]
    kv = c.get("num_key_value_heads") or n
    d = c.get("head_dim") or h // n
    yield from linear(f"{p}.q_proj", n * d, h, bias)
    yield from linear(f"{p}.k_proj", kv * d, h, bias)
    yield from linear(f"{p}.v_proj", kv * d, h, bias)
    yield from linear(f"{p}.o_proj", h, n * d, bias)
    if norms:
        yield f"{p}.q_norm.weight", (d,)
        yield f"{p}.k_norm.weight", (d,)
    if sinks:
        yield f"{p}.sinks", (n,)


def swiglu(p: str, h: int, width: int, bias: bool = False) -> Tensors:
    yield from linear(f"{p}.gate_proj", width, h, bias)
    yield from linear(f"{p}.up_proj", width, h, bias)
    yield from linear(f"{p}.down_proj", h, width, bias)


def latent(p: str, c: dict[str, Any]) -> Tensors:
    h, n, rope, rank = c["hidden_size"], c["num_attention_heads"], c["qk_rope_head_dim"], c["kv_lora_rank"]
    query, bias = n * (c["qk_nope_head_dim"] + rope), bool(c.get("attention_bias"))
    if c["q_lora_rank"] is None:
        yield from linear(f"{p}.q_proj", query, h)
    else:
        yield from linear(f"{p}.q_a_proj", c["q_lora_rank"], h, bias)
        yield f"{p}.q_a_layernorm.weight", (c["q_lora_rank"],)
        yield from linear(f"{p}.q_b_proj", query, c["q_lora_rank"])
    yield from linear(f"{p}.kv_a_proj_with_mqa", rank + rope, h, bias)
    yield f"{p}.kv_a_layernorm.weight", (rank,)
    yield from linear(f"{p}.kv_b_proj", n * (c["qk_nope_head_dim"] + c["v_head_dim"]), rank)
    yield from linear(f"{p}.o_proj", h, n * c["v_head_dim"], bias)


def deepseek_block(p: str, c: dict[str, Any], i: int) -> Tensors:
    h = c["hidden_size"]
    yield from latent(f"{p}.self_attn", c)
    yield f"{p}.input_layernorm.weight", (h,)
    yield f"{p}.post_attention_layernorm.weight", (h,)
    if not c["n_routed_experts"] or i < c["first_k_dense_replace"] or i % c.get("moe_layer_freq", 1):
        yield from swiglu(f"{p}.mlp", h, c["intermediate_size"])
        return
    yield f"{p}.mlp.gate.weight", (c["n_routed_experts"], h)
    if c["topk_method"] == "noaux_tc":
        yield f"{p}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
    for j in range(c["n_routed_experts"]):
        yield from swiglu(f"{p}.mlp.experts.{j}", h, c["moe_intermediate_size"])
    if c["n_shared_experts"]:
        yield from swiglu(f"{p}.mlp.shared_experts", h, c["n_shared_experts"] * c["moe_intermediate_size"])


def deepseek(c: dict[str, Any]) -> Tensors:
    h, layers = c["hidden_size"], c["num_hidden_layers"]
    for i in range(layers):
        yield from deepseek_block(f"model.layers.{i}", c, i)
    for i in range(layers, layers + c.get("num_nextn_predict_layers", 0)):
        p = f"mtp.{i}"  # in the checkpoint: model.layers.{i}
        yield f"{p}.enorm.weight", (h,)
        yield f"{p}.hnorm.weight", (h,)
        yield from linear(f"{p}.eh_proj", h, 2 * h)
        yield from deepseek_block(p, c, i)
        yield f"{p}.shared_head.norm.weight", (h,)


def llama_like(c: dict[str, Any]) -> Tensors:
    h, kind = c["hidden_size"], c["model_type"]
    bias = bool(c.get("attention_bias"))
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        yield from qkvo(f"{p}.self_attn", c, bias, kind.startswith("qwen3"), kind == "gpt_oss")
        yield f"{p}.input_layernorm.weight", (h,)
        yield f"{p}.post_attention_layernorm.weight", (h,)
        if kind == "mixtral":
            yield f"{p}.block_sparse_moe.gate.weight", (c["num_local_experts"], h)
            for j in range(c["num_local_experts"]):
                yield f"{p}.block_sparse_moe.experts.{j}.w1.weight", (c["intermediate_size"], h)
                yield f"{p}.block_sparse_moe.experts.{j}.w2.weight", (h, c["intermediate_size"])
                yield f"{p}.block_sparse_moe.experts.{j}.w3.weight", (c["intermediate_size"], h)
        elif kind == "gpt_oss":
            count, width = c["num_local_experts"], c["intermediate_size"]
            yield from linear(f"{p}.mlp.router", count, h, True)
            yield f"{p}.mlp.experts.gate_up_proj", (count, h, 2 * width)
            yield f"{p}.mlp.experts.gate_up_proj_bias", (count, 2 * width)
            yield f"{p}.mlp.experts.down_proj", (count, width, h)
            yield f"{p}.mlp.experts.down_proj_bias", (count, h)
        elif (
            kind == "qwen3_moe" and i not in c["mlp_only_layers"] and (i + 1) % c["decoder_sparse_step"] == 0
        ):
            yield f"{p}.mlp.gate.weight", (c["num_experts"], h)
            for j in range(c["num_experts"]):
                yield from swiglu(f"{p}.mlp.experts.{j}", h, c["moe_intermediate_size"])
        else:
            yield from swiglu(f"{p}.mlp", h, c["intermediate_size"], bool(c.get("mlp_bias")))


def telechat2(c: dict[str, Any]) -> Tensors:
    h = c["hidden_size"]
    d = h // c["n_head"]
    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}"
        yield f"{p}.input_layernorm.weight", (h,)
        yield f"{p}.post_attention_layernorm.weight", (h,)
        yield from linear(f"{p}.self_attention.query", h, h)
        yield from linear(f"{p}.self_attention.key_value", 2 * c["num_key_value_heads"] * d, h)
        yield from linear(f"{p}.self_attention.dense", h, h, True)
        yield from linear(f"{p}.mlp.gate_proj", c["ffn_hidden_size"], h)
        yield from linear(f"{p}.mlp.up_proj", c["ffn_hidden_size"], h)
        yield from linear(f"{p}.mlp.down_proj", h, c["ffn_hidden_size"], True)


def gpt2(c: dict[str, Any]) -> Tensors:
    h, width = c["n_embd"], c.get("n_inner") or 4 * c["n_embd"]
    yield "wpe.weight", (c["n_positions"], h)
    yield "ln_f.bias", (h,)
    for i in range(c["n_layer"]):
        p = f"h.{i}"
        for name in ("ln_1", "ln_2"):
            yield f"{p}.{name}.weight", (h,)
            yield f"{p}.{name}.bias", (h,)
        yield from linear(f"{p}.attn.c_attn", 3 * h, h, True)
        yield from linear(f"{p}.attn.c_proj", h, h, True)
        yield from linear(f"{p}.mlp.c_fc", width, h, True)
        yield from linear(f"{p}.mlp.c_proj", h, width, True)


def tensors(c: dict[str, Any]) -> Tensors:
    """All tensors of the checkpoint; MTP modules' names begin with ``mtp``."""
    h = c.get("hidden_size") or c["n_embd"]
    yield "embedding.weight", (c["vocab_size"], h)
    yield "norm.weight", (h,)
    if not c.get("tie_word_embeddings", c["model_type"] == "gpt2"):
        yield "head.weight", (c["vocab_size"], h)
    if "kv_lora_rank" in c:
        yield from deepseek(c)
    else:
        yield from {"telechat": telechat2, "gpt2": gpt2}.get(c["model_type"], llama_like)(c)


def met_by_a_token(c: dict[str, Any], name: str, shape: tuple[int, ...]) -> int:
    """Numbers of one tensor that one token meets: of routed experts, only ``top_k``."""
    if ".experts." not in name:
        return math.prod(shape)
    if c["model_type"] == "gpt_oss":
        return c["num_experts_per_tok"] * math.prod(shape[1:])
    number = int(name.split(".experts.")[1].split(".")[0])
    return math.prod(shape) if number < c["num_experts_per_tok"] else 0


def assert_counts_the_tensors(c: dict[str, Any]) -> None:
    counted = count(from_huggingface(c))
    every = list(tensors(c))
    main = [(name, shape) for name, shape in every if not name.startswith("mtp")]
    active = sum(met_by_a_token(c, name, shape) for name, shape in main)
    assert counted.total == sum(math.prod(shape) for _, shape in main)
    assert counted.mtp == sum(math.prod(shape) for name, shape in every if name.startswith("mtp"))
    assert counted.active == active
    lookup = {name: math.prod(shape) for name, shape in main}
    separate = lookup["embedding.weight"] if "head.weight" in lookup else 0
    assert counted.active_without_input_embedding == active - separate
    assert sum(counted.by_component.values()) == counted.total


@pytest.mark.parametrize("name", CONFIGS)
def test_counts_equal_the_sum_of_the_checkpoints_tensors(name):
    assert_counts_the_tensors(CONFIGS[name])


def test_gpt2_as_its_file_stands():
    config = {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    }  # fmt: skip
    assert count(config).total == 124_439_808
    assert_counts_the_tensors(config)


def test_every_family_is_tried():
    tried = {c["model_type"] for c in CONFIGS.values()}
    assert tried == HERE <= set(FAMILIES)


@pytest.mark.parametrize(
    ("change", "groups"),
    [
        ({}, (8, 4)),
        ({"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 3}, (4, 3)),
        ({"topk_method": "greedy"}, (1, None)),  # looks at all experts
        ({"n_group": 1, "topk_group": 1}, (1, None)),
        ({"n_group": None, "topk_group": None}, (1, None)),
    ],
)
def test_groups_of_experts_are_read(change, groups):
    (moe,) = {
        kind.mlp for kind in from_huggingface(CONFIGS["deepseek-v3"] | change).kinds if kind.mlp.kind == "moe"
    }
    assert (moe.groups, moe.group_limit) == groups


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_group": 7}, "n_group = 7: must divide n_routed_experts=256; for example 4"),
        ({"topk_group": 9}, "topk_group = 9: must be from 1"),
        (
            {"n_group": 64, "topk_group": 1},
            "must be from 2, which hold num_experts_per_tok=8 experts, to n_group=64",
        ),
    ],
)
def test_groups_that_no_router_has_are_refused(change, says):
    with pytest.raises(InputError, match=re.escape(says)):
        from_huggingface(CONFIGS["deepseek-v3"] | change)


# --- the same for configs that nobody has -------------------------------------------------------------------

LAYERS = {"num_hidden_layers", "n_layer"}
SWITCHES = ("attention_bias", "mlp_bias", "tie_word_embeddings")
EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts"}


def small(c: dict[str, Any]) -> dict[str, Any]:
    """The same family at toy size, so that one change is cheap to count."""
    c = dict(c)
    for name in LAYERS & c.keys():
        c[name] = 4
    for name in EXPERTS & c.keys():
        c[name] = c[name] and 16
    if "layer_types" in c:
        c["layer_types"] = c["layer_types"][:4]
    return c


def grouped(c: dict[str, Any], experts: int) -> bool:
    """Whether the groups a token may visit are there and hold its experts."""
    groups = c.get("n_group", 1)
    limit = c.get("topk_group", groups)
    return groups == 1 or (
        experts % groups == 0 and limit <= groups and limit * (experts // groups) >= c["num_experts_per_tok"]
    )


def allowed(c: dict[str, Any]) -> bool:
    """Whether a model of these sizes can exist."""
    heads = c.get("num_attention_heads") or c["n_head"]
    hidden = c.get("hidden_size") or c["n_embd"]
    layers = c.get("num_hidden_layers") or c["n_layer"]
    experts = next((c[name] for name in EXPERTS & c.keys()), None)
    return (
        ("kv_lora_rank" in c or heads % (c.get("num_key_value_heads") or heads) == 0)
        and ("head_dim" in c or "kv_lora_rank" in c or hidden % heads == 0)
        and (experts is None or c["num_experts_per_tok"] <= experts)
        and (experts is None or c.get("first_k_dense_replace", 0) <= layers)
        and (experts is None or grouped(c, experts))
        and len(c.get("layer_types", range(layers))) == layers
    )


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_one_changed_field_is_counted_or_refused(data):
    config = small(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)), label="model")])
    numbers = [k for k, v in config.items() if type(v) is int and k != "sliding_window"]
    field = data.draw(st.sampled_from(sorted([*numbers, *(SWITCHES & config.keys())])), label="field")
    if field in SWITCHES:
        config[field] = not config[field]
    else:
        least = 0 if field in ("first_k_dense_replace", "num_nextn_predict_layers", "n_shared_experts") else 1
        most = 12 if field in LAYERS | EXPERTS | {"num_nextn_predict_layers"} else 300
        config[field] = data.draw(st.integers(least, most), label="value")
    if "kv_lora_rank" in config and config.get("mlp_bias"):
        with pytest.raises(InputError, match="mlp_bias"):
            from_huggingface(config)
    elif allowed(config):
        assert_counts_the_tensors(config)
    else:
        with pytest.raises(InputError):
            from_huggingface(config)


@given(step=st.integers(1, 5), only=st.lists(st.integers(0, 9), max_size=10), layers=st.integers(10, 14))
def test_qwen3_moe_places_dense_blocks_where_its_file_says(step, only, layers):
    config = small(CATALOG["qwen3-30b-a3b"]) | {
        "decoder_sparse_step": step, "mlp_only_layers": only, "num_hidden_layers": layers,
    }  # fmt: skip
    assert_counts_the_tensors(config)
    kinds = [layer.mlp.kind for layer in from_huggingface(config).layers]
    assert [kind == "dense" for kind in kinds] == [(i + 1) % step != 0 or i in only for i in range(layers)]


@given(first=st.integers(0, 12), freq=st.integers(1, 4))
def test_deepseek_places_dense_blocks_where_its_file_says(first, freq):
    config = small(CATALOG["deepseek-v2-lite"])
    config |= {"first_k_dense_replace": first, "moe_layer_freq": freq, "num_hidden_layers": 12}
    assert_counts_the_tensors(config)


def windows(config: dict[str, Any]) -> list[int | None]:
    return [layer.attention.window for layer in from_huggingface(config).layers]


def test_windows_stand_where_the_file_says():
    assert windows(CATALOG["gpt-oss-120b"]) == [128, None] * 18
    without = {k: v for k, v in CATALOG["gpt-oss-120b"].items() if k != "layer_types"}
    assert windows(without) == [128, None] * 18
    assert windows(OTHERS["mistral-7b"]) == [4096] * 32
    assert windows(OTHERS["mistral-7b"] | {"sliding_window": None}) == [None] * 32
    assert windows(CATALOG["mixtral-8x7b"] | {"sliding_window": 512}) == [512] * 32
    qwen = OTHERS["qwen3-0.6b"] | {"sliding_window": 4096, "max_window_layers": 20}
    assert windows(qwen) == [None] * 28, "a window that is not used"
    assert windows(qwen | {"use_sliding_window": True}) == [None] * 20 + [4096] * 8
    types = ["full_attention"] * 27 + ["sliding_attention"]
    assert windows(qwen | {"use_sliding_window": True, "layer_types": types}) == [None] * 27 + [4096]


def test_other_names_of_the_same_field():
    qwen = dict(CATALOG["qwen3-30b-a3b"])
    qwen["num_local_experts"] = qwen.pop("num_experts")
    assert count(qwen).total == 30_532_122_624
    telechat = dict(CATALOG["telechat2-115b"])
    telechat["n_embed"] = telechat.pop("hidden_size")
    assert count(telechat).total == count("telechat2-115b").total
    both = CATALOG["qwen3-30b-a3b"] | {"num_local_experts": 64}
    with pytest.raises(InputError, match="num_local_experts = 64: must equal num_experts"):
        from_huggingface(both)


def test_telechat3_under_every_name_of_its_parts():
    moe = CATALOG["telechat3-105b-a4.7b"]
    for kind in ("telechat3", "telechat3_moe", "deepseek_v3"):
        config = moe | {"model_type": kind, "architectures": ["DeepseekV3ForCausalLM"]}
        assert count(config).total == 102_256_318_208


@pytest.mark.parametrize("name", CATALOG)
def test_catalog_configs_leave_nothing_unread(name):
    assert read_model(name).ignored == ()
