"""Llama, Mistral, Ministral and Mixtral."""

from __future__ import annotations

from dataclasses import replace

from telekit.model.families.parts import (
    ACTIVATIONS,
    Family,
    Parts,
    attention_bias,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    layer_types,
    layer_windows,
    listed_layers,
    trunk,
)
from telekit.model.fields import Fields


def llama(f: Fields) -> Parts:
    """Llama 1 to 3: RMSNorm, SwiGLU, grouped queries; biases only where the file says so."""
    t = trunk(f)
    bias = f.flag("attention_bias", False)
    attention = grouped_query(f, t, qkv_bias=bias, output_bias=bias)
    dense = feed_forward(f, bias=f.flag("mlp_bias", False))
    return Parts(t, blocks(t, attention, dense, windows=layer_windows(f, t)))


def llama4(f: Fields) -> Parts:
    """Llama 4: every ``interleave_moe_layer_step``-th block has experts, three of four layers see their chunk only."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True, dim_required=True, **attention_bias(f))
    dense, width = feed_forward(f, "intermediate_size_mlp"), f.count("intermediate_size")
    moe = experts(f, "num_local_experts", "intermediate_size", shared_ffn_hidden_size=width)
    step, listed = f.count("interleave_moe_layer_step", 1), listed_layers(f, t, "moe_layers")
    sparse = range(step - 1, t.layers, step) if listed is None else listed
    rope = f.entries("no_rope_layers", int, t.layers if f.config.get("no_rope_layers") else None)
    every = f.count("no_rope_layer_interval", 4)
    # where a layer turns its queries by their position, it sees only the keys of its chunk
    turned = [bool(flag) for flag in rope] if rope else [(i + 1) % every != 0 for i in range(t.layers)]
    if len(turned) != t.layers:
        turned = [True] * t.layers  # a problem is told
    known = ("chunked_attention", "full_attention")
    f.assume(attention_chunk_size=8192)
    size = f.optional("attention_chunk_size")
    kinds = layer_types(f, t, known, lambda i: known[size is None or not turned[i]])
    if known[0] in kinds:
        size = f.count("attention_chunk_size")  # says that it is missing
    chunk = {"chunk": size}
    f.skip(
        "use_qk_norm", "attn_temperature_tuning", "attn_scale", "floor_scale", "for_llm_compressor"
    )  # no weights
    found = blocks(t, attention, dense, moe, sparse)
    return Parts(
        t,
        [
            replace(b, attention=attention | chunk) if k == known[0] else b
            for b, k in zip(found, kinds, strict=True)
        ],
    )


def mistral(f: Fields) -> Parts:
    """Mistral: Llama without biases, every layer with the same window; a null window is full attention."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True)
    windowed = f.optional("sliding_window", key_required=True) is not None
    windows = layer_windows(f, t, lambda _: windowed)
    return Parts(t, blocks(t, attention, feed_forward(f), windows=windows))


def ministral3(f: Fields) -> Parts:
    """Ministral 3: Mistral with heads of their own width; without a window unless the file gives one."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True, dim_required=True)
    windowed = f.optional("sliding_window") is not None
    return Parts(t, blocks(t, attention, feed_forward(f), windows=layer_windows(f, t, lambda _: windowed)))


def mixtral(f: Fields) -> Parts:
    """Mixtral: Mistral whose every block has experts."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True)
    f.choice("hidden_act", ACTIVATIONS, "silu")
    moe = experts(f, f.first("num_local_experts", "num_experts"), "intermediate_size")
    windowed = f.optional("sliding_window") is not None
    windows = layer_windows(f, t, lambda _: windowed)
    return Parts(t, blocks(t, attention, moe=moe, sparse=range(t.layers), windows=windows))


FAMILIES = {
    "llama": Family(llama, ("LlamaForCausalLM", "LLaMAForCausalLM")),
    "llama4_text": Family(llama4, ("Llama4ForCausalLM",)),
    "ministral3": Family(ministral3, ("Ministral3ForCausalLM",)),
    "mistral": Family(mistral, ("MistralForCausalLM",)),
    "mixtral": Family(mixtral, ("MixtralForCausalLM",)),
}
