"""The model's part of a MindFormers file, and in notes what no field of it names.

Fields were read where :mod:`telekit.launch.mindformers` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from telekit.launch.parts import attention_of, unlike_attention
from telekit.model.config import GroupedQueryAttention, ModelConfig


def attention_section(model: ModelConfig) -> dict[str, Any]:
    """Fields of the attention that stands for all layers'."""
    attention = attention_of(model)
    if attention.kind == "mla":
        return {
            "num_attention_heads": attention.heads,
            "multi_latent_attention": True,
            "mla_qkv_concat": False,
            "q_lora_rank": attention.q_lora_rank,
            "kv_lora_rank": attention.kv_lora_rank,
            "qk_nope_head_dim": attention.qk_nope_head_dim,
            "qk_rope_head_dim": attention.qk_rope_head_dim,
            "v_head_dim": attention.v_head_dim,
            "qk_layernorm": True,
        }
    if attention.kind != "gqa":
        return {"num_attention_heads": attention.heads} if attention.heads else {}
    section: dict[str, Any] = {
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "attention_bias": attention.qkv_bias,
        "qk_layernorm": attention.qk_norm != "none",
    }
    if attention.head_dim * attention.heads != model.hidden_size:
        section["head_dim"] = attention.head_dim
    return section


def leading_dense(model: ModelConfig) -> int:
    """Layers before the first expert layer."""
    kinds = [layer.mlp.kind for layer in model.layers]
    return kinds.index("moe")


def linear_biases(model: ModelConfig) -> set[bool]:
    """Whether linear maps have biases: True, False, or both, over all kinds of layers."""
    found: set[bool] = set()
    for kind in model.kinds:
        attention, mlp = kind.attention, kind.mlp
        if attention.kind != "none":
            found.add(getattr(attention, "output_bias", False) or getattr(attention, "bias", False))
        if mlp.kind == "dense":
            found |= {mlp.bias, mlp.bias or mlp.down_bias}
        elif mlp.kind == "moe":
            found.add(mlp.expert_bias)
    return found


def model_notes(model: ModelConfig) -> Iterator[str]:
    """Say what stands in the file for what it cannot name."""
    dense = {kind.mlp.ffn_hidden_size for kind in model.kinds if kind.mlp.kind == "dense"}
    mlps = [layer.mlp.kind for layer in model.layers]
    mixed = "moe" in mlps and "dense" in mlps[mlps.index("moe") :]
    gated = {kind.mlp.gated for kind in model.kinds if kind.mlp.kind != "none"}
    facts = (
        (
            unlike_attention(model),
            "attention differs between layers; the file takes one: that of the last layer",
        ),
        (
            any(k.attention.window for k in model.kinds),
            "attention windows are not in the file: queries see all",
        ),
        (
            any(getattr(k.attention, "sinks", False) for k in model.kinds),
            "attention sinks are not in the file",
        ),
        (len(dense) > 1, "feed-forward widths differ between layers; the file takes the widest"),
        (len(gated) > 1, "some feed-forward blocks are not gated; here all are"),
        (mixed, "dense layers after the first expert layer become expert layers"),
        (len(linear_biases(model)) > 1, "biases of only some linear maps are not in the file: left out"),
        (True in linear_biases(model) and "moe" in mlps, "grouped experts refuse add_bias_linear"),
        (any(k.norms != 2 for k in model.kinds), "layers with other than two norms are not in the file"),
        *_absent(model),
    )
    yield from (text for holds, text in facts if holds)


def _absent(model: ModelConfig) -> Iterator[tuple[bool, str]]:
    """Yield parts of a model that MindFormers' fields do not name, each with whether it is there."""
    kinds = [kind.attention.kind for kind in model.kinds]
    other = ", ".join(sorted({kind for kind in kinds if kind not in ("gqa", "mla", "none")}))
    halves = [half.kind for kind in model.kinds for half in (kind.attention, kind.mlp)]
    grouped = [k.attention for k in model.kinds if isinstance(k.attention, GroupedQueryAttention)]
    odd = any(
        a.v_head_dim
        or a.q_lora_rank
        or a.chunk
        or a.output_gate != "none"
        or not (a.own_keys and a.own_values)
        for a in grouped
    )
    sparse = any(getattr(kind.attention, "indexer", None) for kind in model.kinds)
    moe = model.moe
    yield bool(other), f"{other} layers are not in the file: it names softmax attention only"
    yield "none" in halves, "layers without attention or without a feed-forward block become whole ones"
    yield odd, "parts of the attention are not in the file: gates, chunks, shared keys or widths of their own"
    yield sparse, "the choice of keys by an indexer is not in the file: queries see all"
    yield model.residual_streams > 1, "several residual streams are not in the file: it has one"
    yield model.per_layer_inputs is not None, "per-layer embeddings are not in the file"
    yield model.embedding_norm, "the norm of the embedding is not in the file"
    yield model.head_bias, "the bias of the output head is not in the file"
    yield (
        bool(moe and moe.latent_size),
        "experts on a latent width are not in the file: they get the hidden width",
    )
    yield bool(moe and moe.shared_gate), "the gate of the shared experts is not in the file"
    scales = bool(moe and (moe.expert_scale or moe.router_scale))
    yield scales, "learned scales of the router are not in the file"
