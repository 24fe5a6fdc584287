"""Step-3 and Step-3.5 to 3.7."""

from __future__ import annotations

from collections.abc import Sequence

from telekit.model.families.deepseek import NO_BIAS, mtp_count
from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    blocks,
    experts,
    feed_forward,
    fixed,
    grouped_query,
    per_layer_config,
    sparse_layers,
    trunk,
)
from telekit.model.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
_HEADS_UNSAID = (
    "the file does not say how many heads the windowed layers have: {}, those of the full layers, are taken, as its "
    "class does; Step-3.5-Flash has half as many again there, and a model like it is larger than told here"
)


def step3_text(f: Fields) -> Parts:
    """Step-3, its text model: one key head, queries through a bottleneck, a shared expert without a gate."""
    t = trunk(f)
    _skip_routing(f)
    rank = f.count("share_q_dim")
    groups = f.first("num_attention_groups", "num_key_value_heads")
    keys = fixed(f, groups, 1, "these models have one key head")
    attention = grouped_query(f, t, kv_heads=groups, dim_required=True, q_lora_rank=rank) | {"kv_heads": keys}
    sparse = _enumerated(f, t.layers)
    if sparse is None:
        sparse = f.fill("moe_layers_enum", list(range(1, t.layers)))
    return Parts(t, blocks(t, attention, feed_forward(f), _experts(f), sparse))


def step3p5(f: Fields) -> Parts:
    """Step-3.5 and 3.7: windowed layers with more heads, a gate for each head, a shared expert."""
    t = trunk(f)
    _skip_routing(f)
    for name in ("attention_bias", "mlp_bias"):
        f.expect(name, False, NO_BIAS)
    fixed(f, "n_shared_experts", 1, "these models have one shared expert")
    mtp = mtp_count(f, f.first("num_nextn_predict_layers", "num_mtp_layers"))
    kinds = _kinds(f, t, mtp)
    mixers = _mixers(f, t, kinds)
    moe = _experts(f) | {"correction_bias": f.flag("use_moe_router_bias", True)}
    dense, sparse = feed_forward(f), _sparse(f, t, mtp)
    found = [Block(mixers[kind], moe if i in sparse else dense) for i, kind in enumerate(kinds)]
    if len({repr(block) for block in found[t.layers :]}) > 1:
        f.refuse(
            "layer_types", "not modelled yet: MTP modules that differ", value=", ".join(kinds[t.layers :])
        )
    return Parts(t, found[: t.layers], {"mtp_layers": mtp}, found[-1] if mtp else None)


def _kinds(f: Fields, t: Trunk, mtp: int) -> list[str]:
    """Kind of each layer, and behind them of each MTP module, which the released models give a window."""
    kinds = f.entries("layer_types", str)
    if kinds is None:
        f.fill("layer_types", f"{FULL} everywhere")
    kinds = [FULL] * (t.layers + mtp) if kinds is None else kinds + (f.entries("mtp_layer_types", str) or [])
    unknown = sorted(set(kinds) - {FULL, SLIDING})
    if unknown:
        rule = f"not modelled yet: layers of this type; known: {FULL}, {SLIDING}"
        f.refuse("layer_types", rule, value=", ".join(unknown))
    elif f.clean("num_hidden_layers", "layer_types") and len(kinds) not in (t.layers, t.layers + mtp):
        rule = f"must have one entry a layer, {t.layers} in all, or one for each MTP module besides"
        f.refuse("layer_types", rule, value=f"{len(kinds)} entries")
    if not f.clean("layer_types"):
        return [FULL] * (t.layers + mtp)
    short = t.layers + mtp - len(kinds)
    return kinds + f.fill("mtp_layer_types", [SLIDING] * short) if short else kinds


def _mixers(f: Fields, t: Trunk, kinds: Sequence[str]) -> dict[str, Raw]:
    groups = f.first("num_attention_groups", "num_key_value_heads")
    gate = "head" if f.flag("use_head_wise_attn_gate", True) else "none"
    full = grouped_query(
        f, t, kv_heads=groups, kv_number=True, dim_required=True, qk_norm="head", output_gate=gate
    )
    swa = full | _windowed_sizes(f, t, kinds, full)
    f.divides(groups, swa["kv_heads"], "the heads of windowed layers", swa["heads"])
    window = f.count("sliding_window") if SLIDING in kinds else f.optional("sliding_window")
    return {FULL: full, SLIDING: swa | {"window": window}}


def _windowed_sizes(f: Fields, t: Trunk, kinds: Sequence[str], full: Raw) -> Raw:
    """Heads of windowed layers, and in older files their key heads and widths; three fields may say it."""
    name, other = "num_sliding_attention_heads", f.inside("attention_other_setting")
    other.skip("attention_type")
    if other.config.get("attention_type", SLIDING) != SLIDING:
        other.refuse("attention_type", "not modelled yet: layers of this type with sizes of their own")
    layered = per_layer_config(f, t, kinds, SLIDING, ("num_attention_heads",)).get("num_attention_heads")
    if other.config:
        names = {"heads": "num_attention_heads", "kv_heads": "num_attention_groups", "head_dim": "head_dim"}
        sizes = {part: other.count(field, full[part]) for part, field in names.items()}
        f.expect(name, sizes["heads"], "must be what attention_other_setting says")
    elif layered and not f.has(name):
        sizes = {"heads": layered}
    else:
        if SLIDING in kinds and not f.has(name):
            f.note(_HEADS_UNSAID.format(full["heads"]))
        sizes = {"heads": f.count(name, full["heads"])}
    if layered not in (None, sizes["heads"]):
        f.refuse(
            "per_layer_config", f"must give windowed layers {sizes['heads']} heads, as the other fields do"
        )
    other.expect("true_head_dim", sizes.get("head_dim", full["head_dim"]), "must equal head_dim")
    return sizes


def _sparse(f: Fields, t: Trunk, mtp: int) -> frozenset[int]:
    """Layers, and MTP modules behind them, with experts; three fields may say it, and one of them must."""
    listed = _enumerated(f, t.layers + mtp)
    if f.has("mlp_layer_types"):
        f.optional("first_k_dense_replace", least=0)
        kinds = (f.entries("mlp_layer_types", str) or []) + (f.entries("mtp_mlp_layer_types", str) or [])
        if set(kinds) - {"dense", "sparse"} or len(kinds) not in (t.layers, t.layers + mtp):
            f.refuse("mlp_layer_types", f"must have dense or sparse for each of {t.layers} layers")
        return frozenset(i for i, kind in enumerate(kinds) if kind == "sparse")
    if listed is not None:
        return frozenset(listed)
    return sparse_layers(f, t, "first_k_dense_replace", "moe_layer_freq")


def _enumerated(f: Fields, most: int) -> list[int] | None:
    """Layers with experts, listed or as numbers in a text."""
    name, value = "moe_layers_enum", f.config.get("moe_layers_enum")
    f.skip(name)
    if value is None:
        return None
    found: Sequence[int] = f.entries(name, int) or [] if not isinstance(value, str) else []
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not all(part.isdecimal() and len(part) < 6 for part in parts):
            f.refuse(name, "must be numbers with commas between them", "for example 3,4,5")
            return []
        found = [int(part) for part in parts]
    if any(not 0 <= i < most for i in found):
        f.refuse(name, f"its entries must be layers, from 0 to {most - 1}")
    return list(found)


def _experts(f: Fields) -> Raw:
    count = f.first("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts")
    moe = experts(f, count, "moe_intermediate_size", top_k=f.first("moe_top_k", "num_experts_per_tok"))
    return moe | {"shared_ffn_hidden_size": f.count(f.first("share_expert_dim", "share_expert_dims"))}


def _skip_routing(f: Fields) -> None:
    """Fields of rotary embedding, router and clamps; and two that say which code runs."""
    f.skip("vision_config")
    f.expect("use_moe", True, "not modelled yet: these models without experts")
    f.expect("att_impl_type", "GQA", "not modelled yet: attention of this form")
    f.skip(
        "use_rope_layers",
        "yarn_only_types",
        "partial_rotary_factors",
        "max_seq_len",
        "max_position_embedding",
    )
    f.skip("moe_router_activation", "moe_router_scaling_factor", "norm_expert_weight", "need_fp32_gate")
    f.skip("swiglu_limits", "swiglu_limits_shared", "query_pre_attn_scalar", "moe_every_n_layer")


FAMILIES = {
    "step3_vl": Family(step3_text, ("Step3VLForConditionalGeneration",)),
    "step3_text": Family(step3_text, ("Step3TextForCausalLM",)),
    "step3p5": Family(step3p5, ("Step3p5ForCausalLM",)),
    "step3p7": Family(step3p5, ("Step3p7ForConditionalGeneration", "Step3p7FlashForCausalLM")),
}
