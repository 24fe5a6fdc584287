"""GLM: 4 dense, 4.5 to 4.7 with experts, 4.7-Flash and 5 with latent attention."""

from __future__ import annotations

from dataclasses import replace

from telekit.model.families.deepseek import (
    indexer,
    latent_model,
    mtp_count,
    mtp_mlp,
    routed_and_shared,
    sparse_latent,
)
from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    blocks,
    feed_forward,
    grouped_query,
    trunk,
)
from telekit.model.fields import Fields


def glm4(f: Fields) -> Parts:
    """GLM-4-0414: biases on queries, keys and values, norms behind attention and MLP too."""
    t = trunk(f)
    bias = f.flag("attention_bias", True)
    attention = grouped_query(f, t, kv_number=True, dim_required=True, qkv_bias=bias)
    return Parts(t, blocks(t, attention, feed_forward(f), norms=4))


def glm4_moe(f: Fields) -> Parts:
    """GLM-4.5 to 4.7: grouped queries, DeepSeek-V3's experts and MTP."""
    mtp = mtp_count(f, f.first("num_nextn_predict_layers", "num_mtp_layers"))
    return _experts(f, bias=False, qk_norm="head" if f.flag("use_qk_norm", False) else "none", mtp=mtp)


def glm4v_moe_text(f: Fields) -> Parts:
    """GLM-4.5V's text model."""
    f.skip("vision_config")
    f.expect("use_qk_norm", False, "not modelled yet: norms of queries and keys in these models")
    f.expect("num_nextn_predict_layers", 0, "not modelled yet: MTP modules of these models")
    return _experts(f, bias=True, qk_norm="none", mtp=0)


def _experts(f: Fields, *, bias: bool, qk_norm: str, mtp: int) -> Parts:
    t = trunk(f)
    bias = f.flag("attention_bias", bias)
    attention = grouped_query(f, t, kv_number=True, dim_required=True, qkv_bias=bias, qk_norm=qk_norm)
    count = f.first("n_routed_experts", "num_local_experts")
    f.count("n_shared_experts", least=0)
    f.expect("moe_layer_freq", 1, "not modelled yet: dense layers between those with experts")
    moe, sparse = routed_and_shared(f, t, "noaux_tc", count=count, dense_first=1, ahead=mtp)
    dense = feed_forward(f)
    own = Block(attention, mtp_mlp(f, t, mtp, dense, moe, sparse))
    return Parts(t, blocks(t, attention, dense, moe, sparse), {"mtp_layers": mtp}, own if mtp else None)


def glm4_moe_lite(f: Fields) -> Parts:
    """GLM-4.7-Flash: DeepSeek-V3 with one dense layer."""
    width = f.config.get("qk_rope_head_dim")
    f.expect("head_dim", width, "must equal qk_rope_head_dim: the class reads either name as the same number")
    return latent_model(f, dense_first=1)


def glm_moe_dsa(f: Fields) -> Parts:
    """GLM-5: DeepSeek-V3.2, where a layer may meet the keys that an earlier one chose; the MTP module has its own."""
    f.skip("indexer_rope_interleave")
    parts = latent_model(f, _choosing, dense_first=3)
    own = parts.mtp and replace(parts.mtp, attention=parts.mtp.attention | {"indexer": indexer(f)})
    return replace(parts, mtp=own)


def _choosing(f: Fields, t: Trunk) -> list[Raw]:
    mixer, owners = sparse_latent(f, t)[0], _owners(f, t)
    if not owners[0]:
        f.refuse("indexer_types", "the first layer has no earlier one to share keys with", value="shared")
    both = {own: mixer | {"indexer": mixer["indexer"] | {"own": own}} for own in (True, False)}
    return [both[own] for own in owners]


def _owners(f: Fields, t: Trunk) -> list[bool]:
    """Whether each layer has its own indexer, from whichever fields say it."""
    words = {"full": True, "F": True, "shared": False, "S": False}
    name = "indexer_types" if f.has("indexer_types") else "index_topk_pattern"
    places = ("index_topk_freq", "index_skip_topk_offset")
    if not f.has(name):
        f.skip(name, "indexer_types")
        every, offset = f.count(places[0], 1), f.count(places[1], 2, least=0)
        return [max(i - offset + 1, 0) % every == 0 for i in range(t.layers)]
    f.skip("indexer_types", "index_topk_pattern")
    for place in places:
        f.optional(place, least=0)
    value = f.config[name]
    kinds = list(value) if isinstance(value, str) else f.entries(name, str) or []
    if set(kinds) - set(words) or len(kinds) != t.layers:
        f.refuse(name, f"must have one of full and shared (F and S) for each of {t.layers} layers")
        return [True] * t.layers
    return [words[kind] for kind in kinds]


FAMILIES = {
    "glm4": Family(glm4, ("Glm4ForCausalLM",)),
    "glm4_moe": Family(glm4_moe, ("Glm4MoeForCausalLM",)),
    "glm4_moe_lite": Family(glm4_moe_lite, ("Glm4MoeLiteForCausalLM",)),
    "glm4v_moe": Family(glm4v_moe_text, ("Glm4vMoeForConditionalGeneration",)),
    "glm4v_moe_text": Family(glm4v_moe_text, ()),
    "glm_moe_dsa": Family(glm_moe_dsa, ("GlmMoeDsaForCausalLM",)),
}
