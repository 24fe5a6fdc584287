"""Kimi: K2, which is DeepSeek-V3's, and Kimi Linear."""

from __future__ import annotations

from telekit.model.families.deepseek import NO_BIAS, deepseek_v3, latent_attention, routed_and_shared
from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    feed_forward,
    fixed,
    layer_types,
    trunk,
)
from telekit.model.fields import Fields


def kimi_k25(f: Fields) -> Parts:
    """Kimi-K2.5's text model: K2."""
    f.skip("vision_config")
    return deepseek_v3(f)


_NAMES = (
    ("num_experts", "num_local_experts", "n_routed_experts"),
    ("num_experts_per_token", "num_experts_per_tok"),
    ("num_shared_experts", "n_shared_experts"),
)
"""What Kimi Linear calls its experts, those of a token, and the shared ones; then what transformers does."""


def kimi_linear(f: Fields) -> Parts:
    """Kimi Linear: delta attention in most layers, latent attention in the others, DeepSeek-V3's experts."""
    t = trunk(f)
    f.expect("attention_bias", False, NO_BIAS)
    f.expect("mla_use_output_gate", False, "not modelled yet: a gate on the output of latent attention")
    fixed(f, "attn_res_block_size", 0, "not modelled yet: residuals over blocks of layers")
    f.skip("mla_use_nope", "model_max_length")
    f.skip("moe_renormalize", "moe_router_activation_func", "use_grouped_topk", "num_expert_group")
    kinds, linear = _linear(f, t)
    mixers = {"linear_attention": linear, "full_attention": latent_attention(f, q_lora_key=False)}
    count, top_k, shared = (f.first(*names) for names in _NAMES)
    f.count(count)  # there is no such model without experts
    first = 1 if f.has("mlp_layer_types") else None
    moe, sparse = routed_and_shared(
        f, t, "noaux_tc", count=count, top_k=top_k, shared=shared, dense_first=first
    )
    dense = feed_forward(f)
    f.expect("dense_ffn_hidden", dense["ffn_hidden_size"], "must be intermediate_size")
    mtp = f.first("num_nextn_predict_layers", "num_mtp_layers")
    fixed(f, mtp, 0, "not modelled yet: MTP modules of these models")
    return Parts(t, [Block(mixers[k], moe if moe and i in sparse else dense) for i, k in enumerate(kinds)])


def _linear(f: Fields, t: Trunk) -> tuple[list[str], Raw]:
    """Kind of each layer, and delta attention; the released files have an object for both, later ones fields too."""
    inner = f.inside("linear_attn_config")
    names = {
        "num_heads": "linear_num_heads",
        "head_dim": "linear_head_dim",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }
    if f.has("linear_attn_config"):
        heads, width, kernel = (inner.count(name) for name in names)
        for size, (old, new) in zip((heads, width, kernel), names.items(), strict=True):
            f.expect(new, size, f"must equal linear_attn_config.{old}")
    else:
        heads, width, kernel = (f.count(name) for name in names.values())
    mixer: Raw = {"kind": "kda", "heads": heads, "head_dim": width, "conv_kernel": kernel}
    return _kinds(f, inner, t), mixer


def _kinds(f: Fields, inner: Fields, t: Trunk) -> list[str]:
    """Kind of each layer, in words or as two lists of numbers from 1 on; where both are, they must agree."""
    words = layer_types(f, t, ("full_attention", "linear_attention"), lambda _: "linear_attention")
    listed = [inner.entries(name, int) for name in ("full_attn_layers", "kda_layers")]
    if f.has("layer_types") and listed == [None, None]:
        return words
    full, delta = (numbers or [] for numbers in listed)
    if sorted(full + delta) != list(range(1, t.layers + 1)):
        inner.refuse("full_attn_layers", f"must name, with kda_layers, each layer from 1 to {t.layers} once")
        return words
    kinds = ["full_attention" if i + 1 in full else "linear_attention" for i in range(t.layers)]
    if f.has("layer_types") and f.clean("layer_types") and words != kinds:
        f.refuse(
            "layer_types", "must say the same as linear_attn_config.full_attn_layers", "give one of them"
        )
    return kinds


FAMILIES = {
    "kimi_k2": Family(deepseek_v3, ("DeepseekV3ForCausalLM", "KimiK2ForCausalLM")),
    "kimi_k25": Family(kimi_k25, ("KimiK25ForConditionalGeneration",)),
    "kimi_linear": Family(kimi_linear, ("KimiLinearForCausalLM",)),
}
