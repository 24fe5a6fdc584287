"""MiniMax: Text-01 and M1 with lightning attention, M2 without."""

from __future__ import annotations

from telekit.model.families.deepseek import NO_BIAS
from telekit.model.families.parts import (
    ACTIVATIONS,
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    blocks,
    experts,
    fixed,
    grouped_query,
    layer_types,
    trunk,
)
from telekit.model.fields import Fields

NO_SHARED = "not modelled yet: shared experts in these models"
LINEAR, FULL = "linear_attention", "full_attention"


def minimax(f: Fields) -> Parts:
    """MiniMax-Text-01 and M1: lightning attention and some layers of softmax attention, experts everywhere."""
    t = trunk(f)
    _skip_scales(f)
    full = grouped_query(f, t, kv_required=True)
    if (window := f.optional("sliding_window")) is not None:
        full["window"] = window
    heads, width = full["heads"], full["head_dim"]
    linear = {"kind": "lightning", "heads": heads, "head_dim": width, "output_norm": heads * width}
    mixers = {FULL: full, LINEAR: linear}
    fixed(f, "shared_intermediate_size", 0, NO_SHARED)
    moe = _experts(f)
    return Parts(t, [Block(mixers[kind], moe) for kind in _kinds(f, t)])


def minimax_text_01(f: Fields) -> Parts:
    """Text-01 and M1 from the files of the first release, which have to say each layer's kind."""
    if not any(f.has(name) for name in ("attn_type_list", "decoder_attention_types", "layer_types")):
        f.refuse("attn_type_list", "this field is required", "one number a layer, 0 for lightning attention")
    return minimax(f)


def _kinds(f: Fields, t: Trunk) -> list[str]:
    """Kind of each layer: in words, or in the older files 0 for lightning and 1 for softmax attention."""
    name = f.first("attn_type_list", "decoder_attention_types")
    words = layer_types(f, t, (FULL, LINEAR), lambda i: LINEAR if i % 2 else FULL)
    types = f.entries(name, int, t.layers if f.clean("num_hidden_layers") else None)
    if set(types or ()) - {0, 1}:
        f.refuse(name, "not modelled yet: layers of this type; known: 0, 1", value=max(types or (), key=abs))
    if types is None or len(types) != t.layers:
        return words
    kinds = [FULL if kind else LINEAR for kind in types]
    if f.has("layer_types") and kinds != words:
        f.refuse(name, "must say the same as layer_types")
    return kinds


def _skip_scales(f: Fields) -> None:
    """Factors and orders of the residual stream, sizes of kernels."""
    for part in ("full_attention", "linear_attention", "mlp"):
        f.skip(f"layernorm_{part}_alpha", f"layernorm_{part}_beta")
    for part in ("full_attn", "linear_attn", "mlp"):
        f.skip(f"{part}_alpha_factor", f"{part}_beta_factor")
    f.skip("postnorm", "shared_moe_mode", "block", "block_size", "max_model_len")


def _experts(f: Fields) -> Raw:
    f.choice("hidden_act", ACTIVATIONS, "silu")
    return experts(f, f.first("num_local_experts", "num_experts"), "intermediate_size")


def minimax_m2(f: Fields) -> Parts:
    """MiniMax-M2: norms over all queries and keys, a load-balancing bias, no shared experts.

    The files name MTP modules, of which the released checkpoints hold nothing and no code is public.
    """
    t = trunk(f)
    _skip_scales(f)
    for name in ("num_mtp_modules", "mtp_transformer_layers", "mlp_intermediate_size"):
        f.optional(name, least=0)
    f.skip("use_mtp", "swa_rope_theta")
    f.expect("attention_bias", False, NO_BIAS)
    f.expect("use_qk_norm", True, "these models always have norms of queries and keys")
    f.expect("qk_norm_type", "per_layer", "not modelled yet: norms of this form")
    f.expect("use_routing_bias", True, "these models always have a load-balancing bias")
    fixed(f, "shared_intermediate_size", 0, NO_SHARED)
    types = f.entries("attn_type_list", int, t.layers if f.clean("num_hidden_layers") else None)
    if set(types or ()) - {1}:
        f.refuse("attn_type_list", "not modelled yet: layers of other types than 1 in these models")
    attention = grouped_query(f, t, kv_number=True, dim_required=True, qk_norm="full")
    moe = _experts(f) | {"correction_bias": True}
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers)))


_TEXT01 = ("MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM")

FAMILIES = {
    "minimax": Family(minimax, _TEXT01),
    "minimax_text_01": Family(minimax_text_01, _TEXT01),
    "minimax_m1": Family(minimax_text_01, _TEXT01),
    "minimax_m2": Family(minimax_m2, ("MiniMaxM2ForCausalLM",)),
}
