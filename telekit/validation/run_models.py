"""Models of the published runs: from the catalog, cut to some layers, or built from a row's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from telekit import catalog
from telekit.model.attention import GroupedQueryAttention
from telekit.model.config import FeedForward, LayerKind, ModelConfig
from telekit.model.huggingface import load_model

MPT = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (64, 8192, 64),
}
"""Layers, width and heads of the MPT models (mosaicml/llm-foundry, scripts/train/yamls/pretrain): with these, the
vocabulary of 50,368 and a learned position for each token, counts equal the rows' ``num_params``."""

MPT_VOCABULARY = 50368


@cache
def gpt(
    hidden: int, heads: int, layers: int, vocab: int, positions: int, *, bias: bool = True
) -> ModelConfig:
    """Build a GPT: LayerNorm, learned positions, two matrices in the MLP, tied head; Megatron-LM's with biases."""
    attention = GroupedQueryAttention(
        heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=bias, output_bias=bias
    )
    dense = FeedForward(ffn_hidden_size=4 * hidden, gated=False, bias=bias)
    return ModelConfig(
        name=f"gpt-{layers}x{hidden}",
        source="fields of the published row",
        hidden_size=hidden,
        vocab_size=vocab,
        kinds=(LayerKind(name="block", attention=attention, mlp=dense),),
        pattern=(0,) * layers,
        tied_embeddings=True,
        learned_positions=positions,
        norm_bias=bias,
    )


def padded(row: Mapping[str, Any]) -> int:
    """Vocabulary as Megatron-LM stores it: a multiple of 128 times the tensor-parallel size."""
    multiple = 128 * int(row["tp"])
    return -(-int(row["vocab"]) // multiple) * multiple


def gpt_of(row: Mapping[str, Any]) -> ModelConfig:
    """Build the GPT of a row that states hidden, heads, layers and vocabulary."""
    return gpt(row["hidden"], row["heads"], row["layers"], padded(row), row["seq_len"])


@cache
def llama(
    hidden: int,
    heads: int,
    kv_heads: int,
    layers: int,
    ffn: int,
    vocab: int,
    experts: int = 0,
    top_k: int = 2,
) -> ModelConfig:
    """Build a Llama, or with ``experts`` a Mixtral, of a row's own fields."""
    fields: dict[str, Any] = {
        "model_type": "mixtral" if experts else "llama",
        "architectures": ["MixtralForCausalLM" if experts else "LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    if experts:
        fields |= {"num_local_experts": experts, "num_experts_per_tok": top_k, "sliding_window": None}
    return load_model(fields)


@cache
def cut(name: str, layers: int, dense_layers: int = 1, **changed: Any) -> ModelConfig:
    """Cut a catalog model to its first layers, without MTP modules, as single-node measurements do."""
    fields = dict(catalog.record("models", name)["config"]) | {"num_hidden_layers": layers} | changed
    for field, value in (("first_k_dense_replace", dense_layers), ("num_nextn_predict_layers", 0)):
        if field in fields:
            fields[field] = value
    return load_model(fields)


def mpt(size: str, seq_len: int) -> ModelConfig:
    """Build an MPT model: a GPT without biases."""
    layers, hidden, heads = MPT[size]
    return gpt(hidden, heads, layers, MPT_VOCABULARY, seq_len, bias=False)
