"""Hunyuan: the dense models, A13B, and Large, whose layers share keys and values in pairs."""

from __future__ import annotations

from dataclasses import replace

from telekit.model.families.parts import (
    ACTIVATIONS,
    Family,
    Parts,
    Raw,
    Trunk,
    attention_bias,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    trunk,
)
from telekit.model.fields import Fields

_UNUSED = (
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",  # latent attention is off
    "add_classification_head", "class_num", "dense_list", "pool_type", "mask_init_id", "sep_num", "norm_type",
    "org_vocab_size", "use_rotary_pos_emb", "group_limited_greedy", "moe_drop_tokens", "capacity_factor",
    "moe_random_routing_dropped_token", "xdrope_section", "position_embedding_xdrope", "num_media_embeds",
    "skip_cls_token",
)  # fmt: skip


def hunyuan_dense(f: Fields) -> Parts:
    """Hunyuan 0.5B to 7B: norms of queries and keys of each head."""
    t = trunk(f)
    f.expect("num_experts", 1, "must be 1: this class has no experts")
    f.expect("use_cla", False, "not modelled yet: keys and values of another layer in this family")
    f.skip(
        "moe_topk",
        "moe_intermediate_size",
        "num_shared_expert",
        "moe_layer_num_skipped",
        "use_mixed_mlp_moe",
        "cla_share_factor",
    )
    return Parts(t, blocks(t, _attention(f, t, normed=True), feed_forward(f)))


def hunyuan_moe(f: Fields) -> Parts:
    """Hunyuan-A13B: experts and a shared one in every block."""
    return _experts_everywhere(f, v1=True)


def hunyuan_large(f: Fields) -> Parts:
    """Hunyuan-Large: as A13B; of ``cla_share_factor`` layers in a row only the first has keys and values."""
    return _experts_everywhere(f, v1=False)


def _experts_everywhere(f: Fields, *, v1: bool) -> Parts:
    t = trunk(f)
    attention = _attention(f, t, normed=v1)
    f.choice("hidden_act", ACTIVATIONS, "silu")
    f.expect("moe_layer_num_skipped", 0, "not modelled yet: first layers without experts")
    for name in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"):
        _one_for_all(f, t, name)
    width, shared = f.count("intermediate_size"), f.count("num_shared_expert", 1)
    if v1:  # transformers' class and the released one agree on these only
        f.expect(
            "moe_intermediate_size", width, "must equal intermediate_size: the class reads no other width"
        )
        f.expect("num_shared_expert", 1, "must be 1: the class makes one")
        f.expect("use_mixed_mlp_moe", True, "not modelled yet: experts without a shared one")
    elif not f.flag("use_mixed_mlp_moe"):
        shared = 0
    f.count("num_experts", least=2)
    name = "moe_intermediate_size" if f.has("moe_intermediate_size") else "intermediate_size"
    f.skip("moe_intermediate_size")
    top_k = f.first("moe_topk", "num_experts_per_tok")
    moe = experts(f, "num_experts", name, top_k=top_k, shared_ffn_hidden_size=shared * width)
    found = blocks(t, attention, moe=moe, sparse=range(t.layers))
    if not f.flag("use_cla", False):
        f.skip("cla_share_factor")
        return Parts(t, found)
    if v1:
        f.refuse(
            "use_cla", "not modelled yet: keys and values of another layer in this family", "write false"
        )
    every = f.count("cla_share_factor", 1)
    borrowed = attention | {"own_keys": False}
    return Parts(t, [replace(b, attention=borrowed) if i % every else b for i, b in enumerate(found)])


def _one_for_all(f: Fields, t: Trunk, name: str) -> None:
    """Take one number for a list that has it for every layer."""
    if not isinstance(f.config.get(name), list):
        return
    given = f.entries(name, int, t.layers) or [1]
    if len(set(given)) > 1:
        f.refuse(name, "not modelled yet: layers of different sizes")
    f.config = {**f.config, name: given[0]}


def _attention(f: Fields, t: Trunk, *, normed: bool) -> Raw:
    f.expect("use_mla", False, "not modelled yet: latent attention in this family")
    f.expect("mlp_bias", False, "not modelled yet: biases in these feed-forward blocks")
    f.skip(*_UNUSED, *(name for name in f.config if str(name).startswith("vit_")))  # a tower, apart
    if normed:
        f.expect("use_qk_norm", True, "must be true: the released code always norms queries and keys")
    norm = "head" if normed or f.flag("use_qk_norm", False) else "none"
    width = "head_dim" if normed else f.first("head_dim", "attention_head_dim")
    attention = grouped_query(f, t, head_dim=width, **attention_bias(f), qk_norm=norm)
    f.expect("attention_head_dim", attention["head_dim"], "must equal head_dim")
    return attention


FAMILIES = {
    "hunyuan_v1_dense": Family(hunyuan_dense, ("HunYuanDenseV1ForCausalLM",)),
    "hunyuan_v1_moe": Family(hunyuan_moe, ("HunYuanMoEV1ForCausalLM",)),
    "hunyuan": Family(hunyuan_large, ("HunYuanForCausalLM", "HunYuanMoEForCausalLM")),
}
