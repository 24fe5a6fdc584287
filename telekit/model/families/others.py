"""Makers with one family here: DBRX, Grok-1, dots.llm1, Skywork-MoE, Seed-OSS, Command R7B, EXAONE 4, Granite 4."""

from __future__ import annotations

from telekit.model.families.parts import (
    ACTIVATIONS,
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
    head_dim_follows,
    layer_types,
    layer_windows,
    sparse_from,
    trunk,
)
from telekit.model.fields import Fields


def dbrx(f: Fields) -> Parts:
    """DBRX: fields of attention and experts in objects of their own; experts in every block, no bias."""
    f.expect("tie_word_embeddings", False, "not modelled yet: its class has a head of its own")
    t = trunk(f, layers="n_layers", hidden="d_model")
    a, m = f.inside("attn_config"), f.inside("ffn_config")
    heads, groups = f.count("n_heads"), a.count("kv_n_heads")
    f.divides("n_heads", heads, "d_model", t.hidden_size)
    a.divides("kv_n_heads", groups, "n_heads", heads)
    f.expect("num_key_value_heads", groups, "must equal attn_config.kv_n_heads")
    attention: Raw = {"heads": heads, "kv_heads": groups, "head_dim": max(t.hidden_size // heads, 1)}
    moe = experts(m, "moe_num_experts", "ffn_hidden_size", top_k="moe_top_k")
    a.skip("model_type", "rope_theta", "clip_qkv", "attn_pdrop")
    m.skip("model_type", "hidden_size", "ffn_act_fn", "moe_loss_weight", "moe_normalize_expert_weights")
    m.skip("moe_jitter_eps", "uniform_expert_assignment")
    f.skip("max_seq_len", "router_aux_loss_coef")
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers)))


def grok(f: Fields) -> Parts:
    """Grok-1: four norms a block, experts in every block."""
    f.expect("tie_word_embeddings", True, "not modelled yet: its class reads one embedding at both ends")
    t = trunk(f, tied=True)
    attention = grouped_query(f, t, kv_required=True)
    head_dim_follows(f, t, attention)
    f.expect("residual_moe", False, "not modelled yet: a dense block beside the experts (Grok-2)")
    f.skip("widening_factor", "max_attn_value", "attn_output_multiplier", "embedding_multiplier_scale")
    f.skip("output_multiplier_scale", "max_attn_value", "attn_logit_softcapping")
    f.assume(hidden_act="gelu")
    f.choice("hidden_act", ACTIVATIONS, "gelu")
    moe = experts(f, f.first("num_experts", "num_local_experts"), "intermediate_size")
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers), norms=4))


def dots(f: Fields) -> Parts:
    """dots.llm1: norms of queries and keys, routed and shared experts after the first dense blocks."""
    t = trunk(f)
    f.assume(sliding_window=4096, max_window_layers=62)
    attention = grouped_query(f, t, kv_required=True, **attention_bias(f), qk_norm="head")
    windowed, first_windowed = f.optional("sliding_window"), f.count("max_window_layers", least=0)
    windows = layer_windows(f, t, lambda i: windowed is not None and i >= first_windowed)
    moe = experts(
        f, f.first("n_routed_experts", "num_local_experts"), "moe_intermediate_size", correction_bias=True
    )
    moe["shared_ffn_hidden_size"] = f.count("n_shared_experts") * moe["expert_ffn_hidden_size"]
    f.skip("use_sliding_window")  # the class reads max_window_layers only
    f.expect("topk_method", "noaux_tc", "not modelled yet: experts without a load-balancing bias")
    f.expect("moe_layer_freq", 1, "not modelled yet: dense blocks between those with experts")
    return Parts(t, blocks(t, attention, feed_forward(f), moe, sparse_from(f, t, default=0), windows))


def skywork(f: Fields) -> Parts:
    """Skywork-MoE: Mixtral with two maps in the router."""
    t = trunk(f)
    listed = f.config.get("num_experts")
    if isinstance(listed, list) and len(listed) == 1:
        f.config = {**f.config, "num_experts": listed[0]}
    f.expect("moe_expert_interval", 1, "not modelled yet: dense blocks between those with experts")
    f.assume(num_experts_per_tok=2)
    f.skip("moe_use_mixtral_gating", "moe_use_logits_norm", "moe_gate_norm_std", "moe_feature_no_mul_topk")
    f.choice("hidden_act", ACTIVATIONS, "silu")
    moe = experts(f, "num_experts", "intermediate_size")
    if f.flag("moe_2layer_gate", True):
        moe["router_hidden_size"] = 8 * moe["num_experts"]
    attention = grouped_query(f, t)
    head_dim_follows(f, t, attention)
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers)))


def seed_oss(f: Fields) -> Parts:
    """Seed-OSS: Llama with biases of queries, keys and values."""
    t = trunk(f)
    bias: Raw = {
        "qkv_bias": f.flag("attention_bias", True),
        "output_bias": f.flag("attention_out_bias", False),
    }
    attention = grouped_query(f, t, kv_required=True, dim_required=True, **bias)
    return Parts(t, blocks(t, attention, feed_forward(f, bias=f.flag("mlp_bias", False))))


def cohere2(f: Fields) -> Parts:
    """Command R7B: one norm a block, three windowed layers to one full."""
    t = trunk(f, tied=True)
    attention = grouped_query(f, t, **attention_bias(f))
    head_dim_follows(f, t, attention)
    for name in ("use_qk_norm", "use_parallel_embedding"):
        f.expect(name, False, "not modelled yet: this part in this family")
    for name in ("use_gated_activation", "use_parallel_block", "use_embedding_sharing"):
        f.expect(name, True, "not modelled yet: this family without it")
    f.skip(
        "layer_switch", "order_of_interleaved_layers", "logit_scale", "position_embedding_type", "rotary_pct"
    )
    pattern = f.count("sliding_window_pattern", 4)
    windows = layer_windows(f, t, lambda i: (i + 1) % pattern != 0)
    return Parts(t, blocks(t, attention, feed_forward(f), windows=windows, norms=1))


def exaone4(f: Fields) -> Parts:
    """EXAONE 4: norms after both halves of a block and of queries and keys; three windowed layers to one full."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True, qk_norm="head")
    pattern = 1
    if not f.has("layer_types"):
        f.assume(sliding_window=4096)
        pattern = f.count("sliding_window_pattern", 4) if f.has("sliding_window") else 1
    f.skip("sliding_window_pattern")  # the list of layers says it
    windows = layer_windows(f, t, lambda i: (i + 1) % pattern != 0)
    return Parts(t, blocks(t, attention, feed_forward(f), windows=windows))


def granite_hybrid(f: Fields) -> Parts:
    """Granite 4: Mamba-2 or attention, then a shared block with or without experts beside it."""
    t = trunk(f)
    name = f.first("layer_types", "layers_block_type")
    if f.has(name):
        new = {"mamba": "linear_attention", "attention": "full_attention"}
        words = f.config[name]
        words = (
            [new.get(w, w) if isinstance(w, str) else w for w in words] if isinstance(words, list) else words
        )
        f.config = {**f.config, "layer_types": words}
    kinds = layer_types(f, t, ("linear_attention", "full_attention"), lambda _: "linear_attention")
    mixers: dict[str, Raw] = {
        "full_attention": grouped_query(f, t, **attention_bias(f)),
        "linear_attention": _granite_mamba(f, t),
    }
    shared = f.count("shared_intermediate_size")
    f.choice("hidden_act", ACTIVATIONS, "silu")
    mlp: Raw = {"ffn_hidden_size": shared}
    if f.count("num_local_experts", least=0):
        mlp = experts(f, "num_local_experts", "intermediate_size", shared_ffn_hidden_size=shared)
    f.skip("num_experts_per_tok", "intermediate_size", "position_embedding_type", "normalization_function")
    f.skip(
        "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling", "init_method"
    )
    return Parts(t, [Block(mixers[kind], mlp) for kind in kinds])


def _granite_mamba(f: Fields, t: Trunk) -> Raw:
    heads, inner = f.count("mamba_n_heads"), f.count("mamba_expand", 2) * t.hidden_size
    f.divides("mamba_n_heads", heads, "mamba_expand * hidden_size", inner)
    f.skip("mamba_d_head", "mamba_chunk_size", "time_step_limit", "time_step_min", "time_step_max")
    width = f.config.get("mamba_d_head", "auto")
    if width not in ("auto", None) and width != inner / heads:
        f.refuse(
            "mamba_d_head", f"must be mamba_expand * hidden_size / mamba_n_heads ({inner} / {heads})", "auto"
        )
    groups = f.count("mamba_n_groups", 1)
    f.assume(mamba_conv_bias=True)
    f.divides("mamba_n_groups", groups, "mamba_n_heads", heads)
    return {
        "kind": "mamba2", "heads": heads, "head_dim": max(inner // heads, 1), "groups": groups,
        "state_size": f.count("mamba_d_state"), "conv_kernel": f.count("mamba_d_conv"),
        "conv_bias": f.flag("mamba_conv_bias"), "projection_bias": f.flag("mamba_proj_bias", False),
    }  # fmt: skip


FAMILIES = {
    "dbrx": Family(dbrx, ("DbrxForCausalLM",)),
    "grok-1": Family(grok, ("Grok1ModelForCausalLM", "Grok1ForCausalLM")),
    "dots1": Family(dots, ("Dots1ForCausalLM",)),
    "skywork": Family(skywork, ("SkyworkMoeForCausalLM",)),
    "skywork_moe": Family(skywork, ("SkyworkMoeForCausalLM",)),
    "seed_oss": Family(seed_oss, ("SeedOssForCausalLM",)),
    "cohere2": Family(cohere2, ("Cohere2ForCausalLM",)),
    "exaone4": Family(exaone4, ("Exaone4ForCausalLM",)),
    "granitemoehybrid": Family(granite_hybrid, ("GraniteMoeHybridForCausalLM",)),
}
