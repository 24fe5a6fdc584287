"""Phi-3, Phi-4 and Phi-3.5-MoE."""

from __future__ import annotations

from collections.abc import Sequence

from telekit.model.families.parts import (
    ACTIVATIONS,
    Family,
    Parts,
    Trunk,
    Window,
    attention_bias,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    layer_windows,
    trunk,
)
from telekit.model.fields import Fields


def phi3(f: Fields) -> Parts:
    """Phi-3 and Phi-4: Llama with a window in every layer where the file gives one."""
    t = trunk(f)
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        f.expect(name, False, "not modelled yet: biases in this family")
    f.skip("interpolate_factor")
    f.expect("full_attn_mod", 1, "not modelled yet: full attention in some layers")
    return Parts(t, blocks(t, grouped_query(f, t), feed_forward(f), windows=_windows(f, t)))


def phimoe(f: Fields) -> Parts:
    """Phi-3.5-MoE: experts in every block, LayerNorm, a bias on the head."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True, **attention_bias(f))
    f.choice("hidden_act", ACTIVATIONS, "silu")
    f.skip("input_jitter_noise")
    moe = experts(f, "num_local_experts", "intermediate_size")
    extra = {"norm_bias": True, "head_bias": f.flag("lm_head_bias", False)}
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers), windows=_windows(f, t)), extra)


def _windows(f: Fields, t: Trunk) -> Sequence[Window]:
    windowed = f.optional("sliding_window") is not None
    return layer_windows(f, t, lambda _: windowed)


FAMILIES = {
    "phi3": Family(phi3, ("Phi3ForCausalLM",)),
    "phimoe": Family(phimoe, ("PhimoeForCausalLM", "PhiMoEForCausalLM")),
}
