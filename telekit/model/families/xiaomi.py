"""MiMo and MiMo-V2-Flash."""

from __future__ import annotations

from dataclasses import replace

from telekit.model.families.deepseek import mtp_count
from telekit.model.families.parts import (
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    experts,
    feed_forward,
    fixed,
    grouped_query,
    layer_types,
    trunk,
)
from telekit.model.families.qwen import qwen2
from telekit.model.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
_ONE_KEY = (
    "windows are of {} keys, the query's own included, as in the code released with the model; SGLang and transformers "
    "take sliding_window_size for the keys before it, and see one more"
)


def mimo(f: Fields) -> Parts:
    """MiMo: Qwen2 with MTP modules."""
    return replace(qwen2(f), extra={"mtp_layers": mtp_count(f)})


def mimo_v2_flash(f: Fields) -> Parts:
    """MiMo-V2-Flash: windowed layers have more key heads and sinks; values are narrower than keys.

    The released checkpoint has three MTP modules, which its file does not mention: windowed, with a dense block.
    """
    t = trunk(f)
    fixed(f, "n_shared_experts", 0, "not modelled yet: shared experts in these models")
    f.expect("topk_method", "noaux_tc", "these models have a load-balancing bias for each expert")
    f.optional("attention_chunk_size")  # files repeat the window here
    f.skip("attention_value_scale", "swa_rope_theta")
    mixers = _mixers(f, t)
    moe = experts(
        f, f.first("n_routed_experts", "num_local_experts"), "moe_intermediate_size", correction_bias=True
    )
    mlps = {True: moe, False: feed_forward(f)}
    found = [
        Block(mixers[kind], mlps[sparse]) for kind, sparse in zip(_kinds(f, t), _sparse(f, t), strict=True)
    ]
    mtp = mtp_count(f, default=3)
    return Parts(t, found, {"mtp_layers": mtp}, Block(mixers[SLIDING], mlps[False]) if mtp else None)


def _mixers(f: Fields, t: Trunk) -> dict[str, Raw]:
    bias, values = f.flag("attention_bias", False), f.count("v_head_dim")
    full = grouped_query(f, t, kv_number=True, dim_required=True, qkv_bias=bias, v_head_dim=values)
    swa = {
        "heads": f.count("swa_num_attention_heads", full["heads"]),
        "kv_heads": f.count("swa_num_key_value_heads", 2 * full["kv_heads"]),
        "head_dim": f.count("swa_head_dim", full["head_dim"]),
        "v_head_dim": f.count("swa_v_head_dim", values),
        "window": _window(f),
        "sinks": f.flag("add_swa_attention_sink_bias", True),
        "qkv_bias": bias,
    }
    f.divides("swa_num_key_value_heads", swa["kv_heads"], "swa_num_attention_heads", swa["heads"])
    return {FULL: full | {"sinks": f.flag("add_full_attention_sink_bias", False)}, SLIDING: swa}


def _window(f: Fields) -> int:
    """Keys that a query sees, itself included.

    The code released with the model reads ``sliding_window``. SGLang, and transformers since 5.24, read
    ``sliding_window_size`` and see so many keys before the query; transformers then stores one more in
    ``sliding_window``. The released file has 128 for both.
    """
    name, before = "sliding_window", f.optional("sliding_window_size")
    if before is None:
        return f.count(name)
    if not f.has(name):
        return int(f.fill(name, before + 1))
    window = f.count(name)
    if window == before:
        f.note(_ONE_KEY.format(window))
    elif f.clean(name, "sliding_window_size") and window != before + 1:
        f.refuse(
            "sliding_window_size",
            f"must be sliding_window, or one less, {window - 1}",
            f"for example {window}",
        )
    return window


def _kinds(f: Fields, t: Trunk) -> list[str]:
    """Kind of each layer: in words, or 1 for a window and 0 for none."""
    if f.has("hybrid_layer_pattern") and not f.has("layer_types"):
        return [SLIDING if windowed else FULL for windowed in _flags(f, t, "hybrid_layer_pattern")]
    if not f.has("layer_types"):
        f.refuse(
            "hybrid_layer_pattern", "this field is required", "1 for a window and 0 for none, one a layer"
        )
    f.skip("hybrid_layer_pattern")
    return layer_types(f, t, (FULL, SLIDING), lambda _: FULL)


def _sparse(f: Fields, t: Trunk) -> list[bool]:
    if f.has("moe_layer_freq") and not f.has("mlp_layer_types"):
        return [bool(sparse) for sparse in _flags(f, t, "moe_layer_freq")]
    if not f.has("mlp_layer_types"):
        f.refuse("moe_layer_freq", "this field is required", "1 for experts and 0 for none, one a layer")
    f.skip("moe_layer_freq")
    kinds = layer_types(f, t, ("dense", "sparse"), lambda _: "dense", "mlp_layer_types")
    return [kind == "sparse" for kind in kinds]


def _flags(f: Fields, t: Trunk, name: str) -> list[int]:
    flags = f.entries(name, int, t.layers if f.clean("num_hidden_layers") else None)
    if set(flags or ()) - {0, 1}:
        f.refuse(name, "its entries must be 0 or 1", value=max(flags or (), key=abs))
    return flags if flags and len(flags) == t.layers else [0] * t.layers


FAMILIES = {
    "mimo": Family(mimo, ("MiMoForCausalLM",)),
    "mimo_v2_flash": Family(mimo_v2_flash, ("MiMoV2FlashForCausalLM",)),
}
