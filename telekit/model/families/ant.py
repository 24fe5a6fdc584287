"""Ling and Ring, which their files call Bailing."""

from __future__ import annotations

from telekit.model.families.deepseek import latent_attention
from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    blocks,
    expert_groups,
    experts,
    feed_forward,
    grouped_query,
    head_dim_follows,
    sparse_from,
    trunk,
)
from telekit.model.fields import MOST_LAYERS, Fields

_V25 = "BailingMoeV2_5ForCausalLM"
_V2 = ("BailingMoeV2ForCausalLM", "BailingMoeLinearForCausalLM", "BailingMoeLinearV2ForCausalLM")


def bailing(f: Fields) -> Parts:
    """Ling: experts and a shared one after the first dense blocks; since 2.0 norms of queries and keys, and MTP."""
    t = trunk(f)
    attention, dense, moe = _attention(f, t), feed_forward(f), _experts(f)
    modules = f.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)
    mtp = Block(attention, moe) if modules else None
    sparse = sparse_from(f, t, default=0)
    return Parts(t, blocks(t, attention, dense, moe, sparse), {"mtp_layers": modules}, mtp)


def bailing_linear(f: Fields) -> Parts:
    """Ring-linear: lightning attention, but for the last layer of each ``layer_group_size`` and an unfinished group."""
    t = trunk(f)
    f.expect("num_nextn_predict_layers", 0, "not modelled yet: multi-token prediction in this family")
    full = _attention(f, t)
    return Parts(t, _grouped_layers(f, t, full, full, _experts(f)))


def bailing_hybrid(f: Fields) -> Parts:
    """Ling 2.5: Ring-linear with latent attention in its full layers, and in its MTP module."""
    t = trunk(f)
    if _V25 not in (f.entries("architectures", str) or ()):
        f.refuse(
            "architectures", "not modelled yet: other models of this model_type (Ling 3)", f"only {_V25}"
        )
    f.expect("short_conv_kernel_size", None, "not modelled yet: delta attention (Ling 3)")
    f.expect("attention_bias", False, "not modelled yet: biases in this family")
    heads, full, moe = _attention(f, t), latent_attention(f), _experts(f)
    modules = f.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)
    mtp = Block(full, moe) if modules else None
    return Parts(t, _grouped_layers(f, t, heads, full, moe), {"mtp_layers": modules}, mtp)


def _grouped_layers(f: Fields, t: Trunk, heads: Raw, full: Raw, moe: Raw) -> list[Block]:
    """Layers in groups: lightning attention with these heads, and ``full`` attention in the last of each group."""
    head_dim_follows(f, t, heads)
    count, width = heads["heads"], heads["head_dim"]
    linear: Raw = {
        "kind": "lightning", "heads": count, "head_dim": width, "output_norm": count * width,
        "qkv_bias": heads["qkv_bias"], "qk_norm": heads["qk_norm"] == "head",
    }  # fmt: skip
    dense, sparse, every = feed_forward(f), sparse_from(f, t, default=0), f.count("layer_group_size")
    f.skip("group_norm_size", "linear_silu", "use_linear_silu", "linear_rope", "linear_backend", "block")
    whole = t.layers // every * every
    return [
        Block(full if (i + 1) % every == 0 or i >= whole else linear, moe if i in sparse else dense)
        for i in range(t.layers)
    ]


def _attention(f: Fields, t: Trunk) -> Raw:
    f.expect("use_bias", False, "not modelled yet: the released codes disagree on where these biases are")
    f.expect("use_rmsnorm", True, "not modelled yet: LayerNorm in this family")
    f.expect("using_split_qkv_in_self_attention", False, "not modelled yet: split projections")
    f.expect("use_sliding_window", False, "not modelled yet: windows in this family")
    f.skip(
        "sliding_window", "max_window_layers", "router_dtype", "score_function", "norm_head", "norm_softmax"
    )
    norm = "head" if f.flag("use_qk_norm", _is_v2(f)) else "none"
    return grouped_query(f, t, kv_required=True, qkv_bias=f.flag("use_qkv_bias", False), qk_norm=norm)


def _experts(f: Fields) -> Raw:
    f.expect("router_type", "topN", "not modelled yet: another router")
    f.expect("multi_gate", False, "not modelled yet: a router for each kind of input")
    bias = f.flag("moe_router_enable_expert_bias", _is_v2(f))
    moe = experts(f, "num_experts", "moe_intermediate_size", correction_bias=bias)
    if _is_v2(f):
        moe |= expert_groups(f, moe, "num_experts", "num_experts_per_tok")
    width = f.count("moe_shared_expert_intermediate_size", moe["expert_ffn_hidden_size"])
    return moe | {"shared_ffn_hidden_size": f.count("num_shared_experts", least=0) * width}


def _is_v2(f: Fields) -> bool:
    classes = f.entries("architectures", str) or ()
    return f.config.get("model_type") != "bailing_moe" or any(name in _V2 for name in classes)


FAMILIES = {
    "bailing_moe": Family(bailing, ("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM")),
    "bailing_moe_v2": Family(bailing, ("BailingMoeV2ForCausalLM",)),
    "bailing_moe_linear": Family(bailing_linear, _V2[1:]),
    "bailing_hybrid": Family(bailing_hybrid, (_V25,)),
}
