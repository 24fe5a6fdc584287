"""Qwen 2, 3, 3-Next and 3.5, with experts and without, and the text models of Qwen-VL."""

from __future__ import annotations

from typing import Any

from telekit.model.families.parts import (
    ACTIVATIONS,
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    layer_types,
    layer_windows,
    trunk,
)
from telekit.model.fields import Fields

Windows = tuple[int | None, ...]


def qwen2(f: Fields) -> Parts:
    """Qwen2 and 2.5: biases on queries, keys and values; windows from ``max_window_layers`` on."""
    t = trunk(f)
    f.expect("attention_bias", True, "these models always have biases on queries, keys and values")
    f.skip("use_mrope")
    _dual_chunks(f)
    attention = grouped_query(f, t, kv_required=True, qkv_bias=True)
    return Parts(t, blocks(t, attention, feed_forward(f), windows=_late_windows(f, t)))


def qwen2_vl(f: Fields) -> Parts:
    """Qwen2-VL's and 2.5-VL's text model: Qwen2, in older files beside its vision tower."""
    f.skip("vision_config")
    return qwen2(f)


def qwen2_moe(f: Fields) -> Parts:
    """Qwen2 with experts: shared ones have a gate; every second of the first layers may have a window."""
    t = trunk(f)
    f.skip("use_mrope")
    attention = grouped_query(f, t, kv_required=True, qkv_bias=f.flag("qkv_bias", True))
    windowed, first = _windowed(f, off=0), _first_window(f)
    if f.config.get("use_sliding_window") is True:
        f.count("sliding_window")  # null is no answer: the class has windowed layers all the same
    sliding = (lambda i: i % 2 == 0 and i < first) if windowed else None
    windows = _flagged(f, layer_windows(f, t, sliding))
    return Parts(t, blocks(t, attention, feed_forward(f), _gated_experts(f), sparse_steps(f, t), windows))


def qwen3(f: Fields) -> Parts:
    """Qwen3 dense: norms on queries and keys of each head; windows from ``max_window_layers`` on."""
    t = trunk(f)
    attention = _attention(f, t, dim_required=True)
    _dual_chunks(f)
    return Parts(t, blocks(t, attention, feed_forward(f), windows=_late_windows(f, t)))


def qwen3_moe(f: Fields) -> Parts:
    """Qwen3 with experts in every ``decoder_sparse_step``-th block that ``mlp_only_layers`` does not name."""
    t = trunk(f)
    attention = _attention(f, t, dim_required=False)
    _dual_chunks(f)
    windowed = _windowed(f)
    windows = _flagged(f, layer_windows(f, t, lambda _: windowed))
    if windowed and None in windows:
        f.refuse("layer_types", "must give every layer a window: the class reads use_sliding_window only")
    return Parts(t, blocks(t, attention, feed_forward(f), _experts(f), sparse_steps(f, t), windows))


def qwen3_vl_text(f: Fields) -> Parts:
    """Qwen3-VL's text model: Qwen3 without windows."""
    f.skip("vision_config")
    t = trunk(f)
    return Parts(t, blocks(t, _attention(f, t, dim_required=True), feed_forward(f)))


def qwen3_vl_moe_text(f: Fields) -> Parts:
    """Qwen3-VL with experts; that the head is the embedding or not must be said, as wrapper and class differ."""
    f.skip("vision_config")
    t = trunk(f, tied=None)
    attention = _attention(f, t, dim_required=False)
    return Parts(t, blocks(t, attention, feed_forward(f), _experts(f), sparse_steps(f, t)))


def qwen3_next(f: Fields) -> Parts:
    """Qwen3-Next: gated delta nets, every fourth layer softmax attention with a gate; gated shared experts."""
    t = trunk(f)
    f.expect("use_sliding_window", False, "not modelled yet: windows in these models")
    moe, dense, sparse = _gated_experts(f), feed_forward(f), sparse_steps(f, t)
    mlps = [moe if i in sparse else dense for i in range(t.layers)]
    return _hybrid(f, t, mlps, "num_nextn_predict_layers")


def qwen3_5_text(f: Fields) -> Parts:
    """Qwen3.5 dense: Qwen3-Next's layers."""
    t = trunk(f)
    return _hybrid(f, t, [feed_forward(f)] * t.layers, "mtp_num_hidden_layers")


def qwen3_5_moe_text(f: Fields) -> Parts:
    """Qwen3.5 with experts in every layer."""
    t = trunk(f)
    f.expect("mlp_only_layers", [], "not modelled yet: dense layers in these models")
    f.expect("decoder_sparse_step", 1, "not modelled yet: dense layers in these models")
    f.choice("hidden_act", ACTIVATIONS, "silu")
    return _hybrid(f, t, [_gated_experts(f)] * t.layers, "mtp_num_hidden_layers")


def _hybrid(f: Fields, t: Trunk, mlps: list[Raw], mtp_name: str) -> Parts:
    """Gated delta nets and gated softmax attention; the MTP module is a first layer with the latter."""
    f.expect("attn_output_gate", True, "these models always have a gate on the attention's output")
    f.expect(
        "mtp_use_dedicated_embeddings", False, "not modelled yet: MTP modules with embeddings of their own"
    )
    f.skip("vision_config", "mamba_ssm_dtype")
    mixers = {"full_attention": _attention(f, t, kv_number=True, dim_required=True, output_gate="element")}
    mixers["linear_attention"] = _delta_net(f)
    every = 1 if f.has("layer_types") else f.count("full_attention_interval", 4)
    f.optional("full_attention_interval")
    kinds = layer_types(f, t, mixers, lambda i: "linear_attention" if (i + 1) % every else "full_attention")
    mtp = f.count(mtp_name, 1, least=0)
    if mtp > 1:
        f.refuse(mtp_name, "not modelled yet: several MTP layers behind one projection", "for example 1")
    found = [Block(mixers[kind], mlp) for kind, mlp in zip(kinds, mlps, strict=True)]
    own = Block(mixers["full_attention"], mlps[0])
    return Parts(t, found, {"mtp_layers": mtp}, own if mtp else None)


def _delta_net(f: Fields) -> Raw:
    keys, values = f.count("linear_num_key_heads"), f.count("linear_num_value_heads")
    f.divides("linear_num_key_heads", keys, "linear_num_value_heads", values)
    return {
        "kind": "gated-delta",
        "key_heads": keys,
        "value_heads": values,
        "key_head_dim": f.count("linear_key_head_dim"),
        "value_head_dim": f.count("linear_value_head_dim"),
        "conv_kernel": f.count("linear_conv_kernel_dim"),
    }


def _experts(f: Fields) -> Raw:
    return experts(f, f.first("num_experts", "num_local_experts"), "moe_intermediate_size")


def _gated_experts(f: Fields) -> Raw:
    shared = f.count("shared_expert_intermediate_size")
    return _experts(f) | {"shared_ffn_hidden_size": shared, "shared_gate": True}


def sparse_steps(f: Fields, t: Trunk) -> frozenset[int]:
    """Layers with experts: every ``decoder_sparse_step``-th that ``mlp_only_layers`` does not name."""
    step, only = f.count("decoder_sparse_step", 1), f.entries("mlp_only_layers", int) or []
    if f.clean("num_hidden_layers") and any(not 0 <= i < t.layers for i in only):
        f.refuse("mlp_only_layers", f"its entries must be layers, from 0 to {t.layers - 1}", "for example []")
    return frozenset(range(step - 1, t.layers, step)) - frozenset(only)


def _windowed(f: Fields, off: int = 1) -> bool:
    """Whether layers may have a window; where not, the file may still give one, from ``off`` on."""
    if not f.flag("use_sliding_window", False):
        f.optional("sliding_window", least=off)
        return False
    f.assume(sliding_window=4096)
    return f.optional("sliding_window") is not None


def _first_window(f: Fields) -> int:
    """Layer that ``max_window_layers`` names, where it says which have a window."""
    used = f.config.get("use_sliding_window") is True and not f.has("layer_types")
    return f.count("max_window_layers", least=0) if used else 0


def _flagged(f: Fields, windows: Windows) -> Windows:
    """Refuse windows that the flag turns off."""
    if any(windows) and f.config.get("use_sliding_window") is not True:
        rule = "must have no sliding_attention where use_sliding_window is not true"
        f.refuse("layer_types", rule, "write use_sliding_window: true")
    return windows


def _late_windows(f: Fields, t: Trunk) -> Windows:
    windowed, first = _windowed(f), _first_window(f)
    return _flagged(f, layer_windows(f, t, lambda i: windowed and i >= first))


def _dual_chunks(f: Fields) -> None:
    if f.has("dual_chunk_attention_config"):
        inner = f.inside("dual_chunk_attention_config")
        inner.skip(*inner.config)
        f.note("dual_chunk_attention_config is not modelled: FLOPs are those of plain attention")


def _attention(f: Fields, t: Trunk, *, dim_required: bool, **more: Any) -> Raw:
    # the class of the dense models has head_dim 128 by default, that of the others derives it
    bias = f.flag("attention_bias", False)
    norms: Raw = {"qkv_bias": bias, "output_bias": bias, "qk_norm": "head"}
    return grouped_query(f, t, kv_required=True, dim_required=dim_required, **norms, **more)


FAMILIES = {
    "qwen2": Family(qwen2, ("Qwen2ForCausalLM",)),
    "qwen2_vl": Family(qwen2_vl, ("Qwen2VLForConditionalGeneration",)),
    "qwen2_vl_text": Family(qwen2_vl, ()),
    "qwen2_5_vl": Family(qwen2_vl, ("Qwen2_5_VLForConditionalGeneration",)),
    "qwen2_5_vl_text": Family(qwen2_vl, ()),
    "qwen2_moe": Family(qwen2_moe, ("Qwen2MoeForCausalLM",)),
    "qwen3": Family(qwen3, ("Qwen3ForCausalLM",)),
    "qwen3_moe": Family(qwen3_moe, ("Qwen3MoeForCausalLM",)),
    "qwen3_vl": Family(qwen3_vl_text, ("Qwen3VLForConditionalGeneration",)),
    "qwen3_vl_text": Family(qwen3_vl_text, ()),
    "qwen3_vl_moe": Family(qwen3_vl_moe_text, ("Qwen3VLMoeForConditionalGeneration",)),
    "qwen3_vl_moe_text": Family(qwen3_vl_moe_text, ()),
    "qwen3_next": Family(qwen3_next, ("Qwen3NextForCausalLM",)),
    "qwen3_5": Family(qwen3_5_text, ("Qwen3_5ForConditionalGeneration",)),
    "qwen3_5_text": Family(qwen3_5_text, ()),
    "qwen3_5_moe": Family(qwen3_5_moe_text, ("Qwen3_5MoeForConditionalGeneration",)),
    "qwen3_5_moe_text": Family(qwen3_5_moe_text, ()),
}
