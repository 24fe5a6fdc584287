"""GPT-2 and GPT-3 and their kin (OPT, BLOOM, GPT-NeoX), gpt-oss, and TeleChat2, which is Llama under GPT's names."""

from __future__ import annotations

from typing import Any

from telekit.model.families.parts import (
    ACTIVATIONS,
    Family,
    Parts,
    Raw,
    Trunk,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    head_dim_follows,
    layer_windows,
    trunk,
)
from telekit.model.fields import Fields


def gpt2(f: Fields) -> Parts:
    """GPT-2 and GPT-3: LayerNorm, learned positions, no gate in the MLP, biases everywhere."""
    t = trunk(f, layers="n_layer", hidden="n_embd", tied=True)
    heads = f.count("n_head")
    f.divides("n_head", heads, "n_embd", t.hidden_size)
    attention = {"heads": heads, "kv_heads": heads, "head_dim": max(t.hidden_size // heads, 1)}
    width = f.optional("n_inner")
    if width is None:
        width = f.fill("n_inner", 4 * t.hidden_size)
    f.choice("activation_function", ACTIVATIONS, "gelu_new")
    dense = {"ffn_hidden_size": width, "gated": False, "bias": True}
    positions = f.count(f.first("n_positions", "max_position_embeddings"))
    extra = {"norm_bias": True, "learned_positions": positions}
    return Parts(t, blocks(t, attention | {"qkv_bias": True, "output_bias": True}, dense), extra)


def opt(f: Fields) -> Parts:
    """OPT: GPT-3 with ReLU; its table of positions has two rows more than the longest text."""
    t = trunk(f, tied=True)
    f.expect(
        "word_embed_proj_dim",
        t.hidden_size,
        "not modelled yet: an embedding of another width than the blocks",
    )
    f.expect("do_layer_norm_before", True, "not modelled yet: norms after both halves of a block")
    f.expect("_remove_final_layer_norm", False, "not modelled yet: a model without a last norm")
    f.expect("layer_norm_elementwise_affine", True, "not modelled yet: norms without weights")
    bias, width = f.flag("enable_bias", True), f.count("ffn_dim")
    f.choice("activation_function", ACTIVATIONS, "relu")
    heads = _heads(f, t, "num_attention_heads", "hidden_size")
    dense: Raw = {"ffn_hidden_size": width, "gated": False, "bias": bias}
    f.skip("prefix", "layerdrop", "init_std")
    return _with_layer_norm(
        f, t, heads, bias, dense, learned_positions=f.count("max_position_embeddings") + 2
    )


def bloom(f: Fields) -> Parts:
    """BLOOM: no positions but ALiBi's slopes, a norm of the embedding, biases everywhere."""
    hidden = f.first("hidden_size", "n_embed")
    t = trunk(f, layers=f.first("n_layer", "num_hidden_layers"), hidden=hidden, tied=True)
    f.expect("n_inner", 4 * t.hidden_size, "must be 4 times the hidden width: the class reads no other")
    heads = _heads(f, t, f.first("n_head", "num_attention_heads"), hidden)
    dense: Raw = {"ffn_hidden_size": 4 * t.hidden_size, "gated": False, "bias": True}
    f.skip(
        "apply_residual_connection_post_layernorm",
        "slow_but_exact",
        "offset_alibi",
        "seq_length",
        "unk_token_id",
    )
    f.skip("masked_softmax_fusion")
    return _with_layer_norm(f, t, heads, True, dense, embedding_norm=True)


def gpt_neox(f: Fields) -> Parts:
    """GPT-NeoX and Pythia: attention and feed-forward part side by side, a head of its own."""
    t = trunk(f)
    f.choice("hidden_act", ACTIVATIONS, "gelu")
    heads = _heads(f, t, "num_attention_heads", "hidden_size")
    dense: Raw = {"ffn_hidden_size": f.count("intermediate_size"), "gated": False, "bias": True}
    f.skip("use_parallel_residual")
    return _with_layer_norm(f, t, heads, f.flag("attention_bias", True), dense)


def _heads(f: Fields, t: Trunk, name: str, hidden: str) -> int:
    heads = f.count(name)
    f.divides(name, heads, hidden, t.hidden_size)
    f.expect("head_dim", t.hidden_size // heads, "must be the hidden width over the heads")
    return heads


def _with_layer_norm(f: Fields, t: Trunk, heads: int, bias: bool, dense: Raw, **extra: Any) -> Parts:
    """Plain multi-head attention, and norms with biases."""
    attention: Raw = {"heads": heads, "kv_heads": heads, "head_dim": max(t.hidden_size // heads, 1)}
    attention |= {"qkv_bias": bias, "output_bias": bias}
    return Parts(t, blocks(t, attention, dense), {"norm_bias": True, **extra})


def gpt_oss(f: Fields) -> Parts:
    """gpt-oss: every second layer has a window, sinks in the softmax, biases in router and experts."""
    t = trunk(f)
    bias = f.flag("attention_bias", True)
    more: Raw = {"qkv_bias": bias, "output_bias": bias, "sinks": True}
    attention = grouped_query(f, t, kv_required=True, dim_required=True, **more)
    f.choice("hidden_act", ACTIVATIONS, "silu")
    count = f.first("num_local_experts", "num_experts")
    top_k = f.first("num_experts_per_tok", "experts_per_token")
    moe = experts(f, count, "intermediate_size", top_k=top_k, expert_bias=True, router_bias=True)
    windows = layer_windows(f, t, lambda i: i % 2 == 0)
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers), windows=windows))


def telechat2(f: Fields) -> Parts:
    """TeleChat and TeleChat2: Llama under GPT names, with a bias on the last matrix of attention and MLP."""
    hidden = f.first("hidden_size", "n_embed")
    t = trunk(f, layers="n_layer", hidden=hidden, tied=None)
    f.expect("embed_layernorm", False, "not modelled yet: a norm of the embedding")
    attention = grouped_query(f, t, heads="n_head", hidden=hidden, output_bias=True)
    head_dim_follows(f, t, attention)
    return Parts(t, blocks(t, attention, feed_forward(f, "ffn_hidden_size", down_bias=True)))


FAMILIES = {
    "gpt2": Family(gpt2, ("GPT2LMHeadModel",)),
    "opt": Family(opt, ("OPTForCausalLM",)),
    "bloom": Family(bloom, ("BloomForCausalLM", "BloomModel")),
    "gpt_neox": Family(gpt_neox, ("GPTNeoXForCausalLM",)),
    "gpt_oss": Family(gpt_oss, ("GptOssForCausalLM",)),
    "telechat": Family(telechat2, ("TelechatForCausalLM", "TeleChatForCausalLM", "TeleChat2ForCausalLM")),
}
