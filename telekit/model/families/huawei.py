"""openPangu: Embedded (dense), Pro MoE and Ultra MoE."""

from __future__ import annotations

from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    Raw,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    head_dim_follows,
    listed_layers,
    sparse_from,
    trunk,
)
from telekit.model.fields import MOST_LAYERS, Fields


def pangu_embedded(f: Fields) -> Parts:
    """Pangu Embedded: Llama with biases in attention."""
    t = trunk(f)
    f.expect("sandwich_norm", False, "not modelled yet: four norms a block in this family")
    f.expect("mlp_bias", False, "not modelled yet: biases in these feed-forward blocks")
    f.expect("is_causal", True, "not modelled yet: attention to later tokens")
    bias = f.flag(f.first("bias", "attention_bias"))  # its class and vLLM's differ on what absence means
    f.expect("qkv_bias", bias, "must equal bias: the released class reads no other flag")
    attention = grouped_query(f, t, qkv_bias=bias, output_bias=bias)
    return Parts(t, blocks(t, attention, feed_forward(f)))


def pangu_pro(f: Fields) -> Parts:
    """Pangu Pro MoE: experts in groups, a learned factor for each, one shared expert of its own width."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True, qkv_bias=True, output_bias=True)
    head_dim_follows(f, t, attention)
    f.expect("attention_bias", True, "not modelled yet: the released code has these biases always")
    only = listed_layers(f, t, "mlp_only_layers")
    shared = f.count("shared_expert_intermediate_size", least=0)
    moe = experts(f, "num_experts", "moe_intermediate_size", shared_ffn_hidden_size=shared, expert_scale=True)
    dense = feed_forward(f) if only else None
    f.skip("intermediate_size", "hidden_act")
    return Parts(t, blocks(t, attention, dense, moe, set(range(t.layers)) - set(only or ())))


_NAMES = {
    "qk_nope_head_dim": "attention_qk_dim",
    "qk_rope_head_dim": "attention_qk_rope_dim",
    "v_head_dim": "attention_v_dim",
    "q_lora_rank": "attention_q_lora_dim",
    "kv_lora_rank": "attention_kv_lora_dim",
    "n_routed_experts": "num_routed_experts",
    "n_shared_experts": "num_shared_experts",
    "first_k_dense_replace": "num_dense_layers",
    "num_nextn_predict_layers": "num_mtp_layers",
}
"""DeepSeek-V3's names of what Pangu Ultra MoE calls otherwise; files have either."""


def pangu_ultra(f: Fields) -> Parts:
    """Pangu Ultra MoE: DeepSeek-V3 with four norms a block, and no load-balancing bias."""
    t = trunk(f)
    name = {theirs: f.first(ours, theirs) for theirs, ours in _NAMES.items()}
    heads = f.count("num_attention_heads")
    f.expect("num_key_value_heads", heads, "must equal num_attention_heads: every head has its own")
    f.expect("attention_bias", False, "not modelled yet: biases in this family")
    attention: Raw = {"kind": "mla", "heads": heads, "kv_lora_rank": f.count(name["kv_lora_rank"])}
    attention |= {
        part: f.count(name[part]) for part in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    }
    attention["q_lora_rank"] = f.count(name["q_lora_rank"])
    bias = f.flag("router_enable_expert_bias", False)
    moe = experts(f, name["n_routed_experts"], "moe_intermediate_size", correction_bias=bias)
    shared = f.count(name["n_shared_experts"], least=0)
    moe["shared_ffn_hidden_size"] = shared * moe["expert_ffn_hidden_size"]
    sparse = sparse_from(f, t, name["first_k_dense_replace"])
    modules = f.count(name["num_nextn_predict_layers"], 0, least=0, most=MOST_LAYERS)
    norms = 4 if f.flag("sandwich_norm", False) else 2
    mtp = Block(attention, moe, norms) if modules else None
    found = blocks(t, attention, feed_forward(f), moe, sparse, norms=norms)
    return Parts(t, found, {"mtp_layers": modules}, mtp)


FAMILIES = {
    "PanguEmbedded": Family(pangu_embedded, ("PanguEmbeddedForCausalLM",)),
    "PanguProMoE": Family(pangu_pro, ("PanguProMoEForCausalLM",)),
    "pangu_ultra_moe": Family(pangu_ultra, ("PanguUltraMoEForCausalLM",)),
}
