"""Gemma 2, 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    attention_bias,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    layer_types,
    layer_windows,
    per_layer_config,
    trunk,
)
from telekit.model.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"


def gemma2(f: Fields) -> Parts:
    """Gemma 2: norms before and after both halves of a block, every second layer with a window."""
    return _gemma(f, 2)


def gemma3(f: Fields) -> Parts:
    """Gemma 3: Gemma 2 with norms of queries and keys, five windowed layers to one full.

    The files of the small models leave out what their class holds.
    """
    f.assume(
        vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=4096
    )
    name = f.first("sliding_window_pattern", "_sliding_window_pattern")
    return _gemma(f, f.count(name, 6), qk_norm="head")


def _gemma(f: Fields, pattern: int, **more: Any) -> Parts:
    t = trunk(f, tied=True)
    f.expect("use_bidirectional_attention", False, "not modelled yet: attention to later tokens")
    f.count("num_key_value_heads")  # null is no answer here
    attention = grouped_query(f, t, dim_required=True, **attention_bias(f), **more)
    windows = layer_windows(f, t, lambda i: (i + 1) % pattern != 0)
    f.expect("sliding_window_size", f.config.get("sliding_window"), "must equal sliding_window")
    return Parts(t, blocks(t, attention, _gelu(f), windows=windows, norms=4))


def _gelu(f: Fields) -> Raw:
    f.skip("hidden_act")  # the class reads the other name
    f.skip("final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar")
    f.assume(hidden_activation="gelu_pytorch_tanh")
    return feed_forward(f, activation="hidden_activation")


def gemma4(f: Fields) -> Parts:
    """Gemma 4: full layers with wider heads, experts beside the dense block, keys shared between the last layers."""
    t = trunk(f, tied=True)
    f.expect("use_bidirectional_attention", "vision", "not modelled yet: text that attends to later text")
    kinds = layer_types(f, t, (FULL, SLIDING), lambda i: SLIDING if (i + 1) % 6 else FULL)
    kinds[-1] = FULL  # whatever the file says
    shared = _shared_layers(f, t, kinds)
    attention = _attention(f, t, kinds)
    mlp, norms = _feed_forward(f)
    wide = {
        name: 2 * size for name, size in mlp.items() if name in ("ffn_hidden_size", "shared_ffn_hidden_size")
    }
    double = f.flag("use_double_wide_mlp", False)
    found = []
    for i, kind in enumerate(kinds):
        borrows = i >= t.layers - shared
        keys: Raw = {"own_keys": False, "qk_norm": "query"} if borrows else {}
        found.append(
            Block(attention[kind] | keys, mlp | wide if double and borrows else mlp, norms, output_scale=True)
        )
    return Parts(t, found, _per_layer_inputs(f))


def _shared_layers(f: Fields, t: Trunk, kinds: Sequence[str]) -> int:
    """How many of the last layers have no keys of their own: each takes those of the last layer of its type."""
    name = "num_kv_shared_layers"
    shared = f.count(name, 0, least=0)
    if shared and f.clean(name, "layer_types", "num_hidden_layers"):
        if shared >= t.layers:
            f.refuse(name, f"must be less than num_hidden_layers={t.layers}", "for example 0")
        elif set(kinds[: t.layers - shared]) != set(kinds):
            f.refuse(name, "must leave a layer of each of layer_types with keys of its own", "for example 0")
    return shared


def _attention(f: Fields, t: Trunk, kinds: Sequence[str]) -> dict[str, Raw]:
    more: Raw = {"qk_norm": "head", **attention_bias(f)}
    f.count("num_key_value_heads")  # null is no answer here
    sliding = grouped_query(f, t, dim_required=True, **more) | {"window": f.count("sliding_window")}
    one, name = f.flag("attention_k_eq_v", False), "num_global_key_value_heads"
    own = per_layer_config(f, t, kinds, FULL, ("head_dim", "num_key_value_heads"))
    if own:  # in files of the newer form; the older form may only repeat it
        width, kv_heads = own.get("head_dim", sliding["head_dim"]), own.get("num_key_value_heads")
        f.expect("global_head_dim", width, "must be what per_layer_config says")
        f.expect(name, kv_heads, "must be what per_layer_config says")
    else:
        f.assume(global_head_dim=512)
        width, kv_heads = f.count("global_head_dim"), f.optional(name)
        kv_heads = kv_heads if one else None  # only there do full layers have their own number
    full = sliding | {"window": None, "head_dim": width, "own_values": not one}
    if kv_heads:
        f.divides("per_layer_config" if own else name, kv_heads, "num_attention_heads", full["heads"])
        full["kv_heads"] = kv_heads
    return {FULL: full, SLIDING: sliding}


def _feed_forward(f: Fields) -> tuple[Raw, int]:
    """Feed-forward part of a block, and the norms that the block then has."""
    dense = _gelu(f)
    if not f.flag("enable_moe_block", False):
        f.skip("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
        return dense, 4
    more: Raw = {
        "expert_scale": True,
        "router_scale": True,
        "shared_ffn_hidden_size": dense["ffn_hidden_size"],
    }
    return experts(f, "num_experts", "moe_intermediate_size", top_k="top_k_experts", **more), 7


def _per_layer_inputs(f: Fields) -> Raw:
    f.assume(hidden_size_per_layer_input=256)
    width, vocabulary = f.count("hidden_size_per_layer_input", least=0), "vocab_size_per_layer_input"
    if not width:
        f.skip(vocabulary)
        return {}
    f.assume(vocab_size_per_layer_input=262_144)
    return {"per_layer_inputs": {"width": width, "vocab_size": f.count(vocabulary)}}


FAMILIES = {
    "gemma2": Family(gemma2, ("Gemma2ForCausalLM",)),
    "gemma3_text": Family(gemma3, ("Gemma3ForCausalLM", "Gemma3TextModel")),
    "gemma4_text": Family(gemma4, ("Gemma4ForCausalLM",)),
}
