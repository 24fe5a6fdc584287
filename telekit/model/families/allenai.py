"""OLMo 2, OLMo 3 and OLMoE."""

from __future__ import annotations

from telekit.model.families.parts import (
    ACTIVATIONS,
    Family,
    Parts,
    attention_bias,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    head_dim_follows,
    layer_windows,
    trunk,
)
from telekit.model.fields import Fields


def olmo2(f: Fields) -> Parts:
    """OLMo 2: norms after both halves of a block, and over all queries and all keys."""
    t = trunk(f)
    attention = grouped_query(f, t, **attention_bias(f), qk_norm="full")
    return Parts(t, blocks(t, attention, feed_forward(f)))


def olmo3(f: Fields) -> Parts:
    """OLMo 3: OLMo 2 with three windowed layers to one full."""
    t = trunk(f)
    attention = grouped_query(f, t, **attention_bias(f), qk_norm="full")
    windows = layer_windows(f, t, lambda i: (i + 1) % 4 != 0)
    return Parts(t, blocks(t, attention, feed_forward(f), windows=windows))


def olmoe(f: Fields) -> Parts:
    """OLMoE: experts in every block, norms over all queries and all keys."""
    t = trunk(f)
    attention = grouped_query(f, t, **attention_bias(f), qk_norm="full")
    head_dim_follows(f, t, attention)
    f.choice("hidden_act", ACTIVATIONS, "silu")
    f.skip("clip_qkv")
    moe = experts(f, f.first("num_experts", "num_local_experts"), "intermediate_size")
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers)))


FAMILIES = {
    "olmo2": Family(olmo2, ("Olmo2ForCausalLM",)),
    "olmo3": Family(olmo3, ("Olmo3ForCausalLM",)),
    "olmoe": Family(olmoe, ("OlmoeForCausalLM",)),
}
