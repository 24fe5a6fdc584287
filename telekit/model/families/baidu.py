"""ERNIE 4.5."""

from __future__ import annotations

from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    attention_bias,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    trunk,
)
from telekit.model.fields import MOST_LAYERS, Fields


def ernie(f: Fields) -> Parts:
    """ERNIE 4.5 dense: Llama with one flag for all biases."""
    t = trunk(f, tied=True)
    attention = grouped_query(f, t, kv_required=True, dim_required=True, **attention_bias(f, name="use_bias"))
    return Parts(t, blocks(t, attention, feed_forward(f, bias=f.flag("use_bias", False))))


def ernie_moe(f: Fields) -> Parts:
    """ERNIE 4.5 with experts from one layer to another; a dense block in its MTP module, without a last norm."""
    t = trunk(f, tied=True)
    attention, bias = (
        grouped_query(f, t, kv_required=True, **attention_bias(f, name="use_bias")),
        f.flag("use_bias", False),
    )
    dense = feed_forward(f, bias=bias)
    f.expect("moe_use_aux_free", True, "not modelled yet: experts without a load-balancing bias")
    f.skip("moe_capacity", "moe_gate", "moe_gate_act", "moe_norm_gate_logits", "moe_norm_min", "moe_group")
    f.skip("moe_aux_loss_lambda", "moe_orthogonal_loss_lambda", "compression_ratio")
    count, top_k = f.first("moe_num_experts", "num_experts"), f.first("moe_k", "num_experts_per_tok")
    moe = experts(f, count, "moe_intermediate_size", top_k=top_k, correction_bias=True, shared_bias=bias)
    moe["shared_ffn_hidden_size"] = f.count("moe_num_shared_experts", least=0) * moe["expert_ffn_hidden_size"]
    first, every = f.count("moe_layer_start_index", least=0), f.count("moe_layer_interval", 1)
    last = f.count("moe_layer_end_index", -1, least=-1)
    end = t.layers if last == -1 else last + 1
    sparse = [i for i in range(first, min(end, t.layers)) if (i + 1) % every == 0]
    modules = f.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)
    if modules and bias:
        f.refuse("use_bias", "not modelled yet: biases in a multi-token-prediction module", "write false")
    extra = {"head_bias": bias, "mtp_layers": modules, "mtp_norms": 2}
    mtp = Block(attention, dense) if modules else None
    return Parts(t, blocks(t, attention, dense, moe, sparse), extra, mtp)


FAMILIES = {
    "ernie4_5": Family(ernie, ("Ernie4_5ForCausalLM",)),
    "ernie4_5_moe": Family(ernie_moe, ("Ernie4_5_MoeForCausalLM",)),
}
