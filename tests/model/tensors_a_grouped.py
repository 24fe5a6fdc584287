"""Checkpoints with grouped-query or linear attention: Qwen, GLM-4, MiniMax, MiMo, Step.

Read from transformers' models/<family>/modeling_<family>.py and, where said, vLLM's model_executor/models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensors_a_parts import (
    Config,
    Shapes,
    at,
    get,
    gqa,
    join,
    layer,
    linear,
    mlp,
    model,
    moe,
    mtp,
    norms,
    text,
)


def _kv(c: Config) -> int:
    return get(c, "num_key_value_heads", c["num_attention_heads"])


def _dim(c: Config, default: int | None = None) -> int:
    return get(c, "head_dim", default or c["hidden_size"] // c["num_attention_heads"])


def _attention(c: Config, dim: int, *, bias: bool, o_bias: bool = False, qk_norm: bool = False) -> Shapes:
    widths = (dim, dim) if qk_norm else None
    kv = _kv(c)
    return gqa(c["hidden_size"], c["num_attention_heads"], kv, dim, bias=bias, o_bias=o_bias, qk_norm=widths)


def _sparse(c: Config, i: int) -> bool:
    """Say whether Qwen's layer i is a mixture."""
    every, only = get(c, "decoder_sparse_step", 1), get(c, "mlp_only_layers", [])
    return i not in only and get(c, "num_experts", 0) > 0 and (i + 1) % every == 0


def _qwen_ffn(c: Config, i: int, *, shared: bool) -> Shapes:
    h = c["hidden_size"]
    if not _sparse(c, i):
        return mlp("mlp", h, c["intermediate_size"])
    one = c["shared_expert_intermediate_size"] if shared else 0
    width, n = c["moe_intermediate_size"], c["num_experts"]
    out = moe(h, width, n, bias=False, shared=one, shared_name="shared_expert")
    return join(out, linear("mlp.shared_expert_gate", 1, h)) if shared else out


def qwen2(config: Config) -> Shapes:
    """List Qwen2, Qwen2-VL and Qwen2.5-VL: biases on query, key and value only."""
    c = text(config)
    parts = _attention(c, _dim(c), bias=True), mlp("mlp", c["hidden_size"], c["intermediate_size"])
    return model(c, *[layer(i, c["hidden_size"], *parts) for i in range(c["num_hidden_layers"])])


def qwen2_moe(config: Config) -> Shapes:
    c = {"num_experts": 60} | text(config)
    attention = _attention(c, _dim(c), bias=get(c, "qkv_bias", True))
    ffn = [_qwen_ffn(c, i, shared=True) for i in range(c["num_hidden_layers"])]
    return model(c, *[layer(i, c["hidden_size"], attention, f) for i, f in enumerate(ffn)])


def qwen3(config: Config) -> Shapes:
    """List Qwen3 and Qwen3-VL: a norm per head on query and key."""
    c = text(config)
    bias = get(c, "attention_bias", False)
    attention = _attention(c, _dim(c, 128), bias=bias, o_bias=bias, qk_norm=True)
    parts = attention, mlp("mlp", c["hidden_size"], c["intermediate_size"])
    return model(c, *[layer(i, c["hidden_size"], *parts) for i in range(c["num_hidden_layers"])])


def qwen3_moe(config: Config) -> Shapes:
    """List Qwen3-MoE and Qwen3-VL-MoE."""
    c = text(config)
    c = {"num_experts": get(c, "num_local_experts", 128)} | c
    bias = get(c, "attention_bias", False)
    attention = _attention(c, _dim(c), bias=bias, o_bias=bias, qk_norm=True)
    ffn = [_qwen_ffn(c, i, shared=False) for i in range(c["num_hidden_layers"])]
    return model(c, *[layer(i, c["hidden_size"], attention, f) for i, f in enumerate(ffn)])


def _gated_attention(c: Config) -> Shapes:
    """List attention whose query projection also makes an output gate of the query's size."""
    h, heads, dim = c["hidden_size"], c["num_attention_heads"], _dim(c, 256)
    bias, twice = get(c, "attention_bias", False), 2 if get(c, "attn_output_gate", True) else 1
    out = gqa(h, heads, _kv(c), dim, bias=bias, o_bias=bias, qk_norm=(dim, dim))
    return out | linear("self_attn.q_proj", heads * dim * twice, h, bias)


def _delta_net(c: Config, *, fused: bool) -> Shapes:
    h, values = c["hidden_size"], get(c, "linear_num_value_heads", 32)
    k = get(c, "linear_num_key_heads", 16) * get(c, "linear_key_head_dim", 128)
    v = values * get(c, "linear_value_head_dim", 128)
    one = {"qkvz": 2 * k + 2 * v, "ba": 2 * values}
    apart = {"qkv": 2 * k + v, "z": v, "b": values, "a": values}
    return at(
        "linear_attn.",
        *[linear(f"in_proj_{name}", out, h) for name, out in (one if fused else apart).items()],
        {"conv1d.weight": (2 * k + v, 1, get(c, "linear_conv_kernel_dim", 4))},
        {"dt_bias": (values,), "A_log": (values,)},
        norms("norm", size=get(c, "linear_value_head_dim", 128)),
        linear("out_proj", h, v),
    )


def _hybrid(c: Config, ffn: Callable[[int], Shapes], *, fused: bool, ahead: int) -> Shapes:
    """List delta net and gated attention mixed; MTP: vLLM, qwen3_next_mtp.py and qwen3_5_mtp.py."""
    n, h, every = c["num_hidden_layers"], c["hidden_size"], get(c, "full_attention_interval", 4)
    kinds = c.get("layer_types") or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(n)
    ]
    delta, full = _delta_net(c, fused=fused), _gated_attention(c)
    layers = [layer(i, h, delta if kinds[i] == "linear_attention" else full, ffn(i)) for i in range(n)]
    assert not c.get("mtp_use_dedicated_embeddings"), "no published checkpoint has its own embedding there"
    if ahead:
        three = norms("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", size=h)
        layers.append(join(linear("mtp.fc", h, 2 * h), three))
        layers += [layer(f"mtp.layers.{j}.", h, full, ffn(j)) for j in range(ahead)]
    return model(c, *layers)


def qwen3_next(config: Config) -> Shapes:
    """List Qwen3-Next; its config does not name the MTP layer that its checkpoint holds."""
    c = {"num_experts": 512} | text(config)
    ahead = get(c, "num_nextn_predict_layers", 1)
    return _hybrid(c, lambda i: _qwen_ffn(c, i, shared=True), fused=True, ahead=ahead)


def qwen3_5(config: Config) -> Shapes:
    c = text(config)
    dense = mlp("mlp", c["hidden_size"], c["intermediate_size"])
    return _hybrid(c, lambda i: dense, fused=False, ahead=get(c, "mtp_num_hidden_layers", 1))


def qwen3_5_moe(config: Config) -> Shapes:
    """List Qwen3.5-MoE: every layer is a mixture, whatever ``mlp_only_layers`` says."""
    c = {"num_experts": 256} | text(config) | {"mlp_only_layers": [], "decoder_sparse_step": 1}
    return _hybrid(
        c, lambda i: _qwen_ffn(c, i, shared=True), fused=False, ahead=get(c, "mtp_num_hidden_layers", 1)
    )


def glm4(config: Config) -> Shapes:
    """List GLM-4-0414: four norms a layer, gate and up in one matrix."""
    c = text(config)
    h, width = c["hidden_size"], c["intermediate_size"]
    ffn = join(linear("mlp.gate_up_proj", 2 * width, h), linear("mlp.down_proj", h, width))
    more = norms("post_self_attn_layernorm", "post_mlp_layernorm", size=h)
    attention = _attention(c, _dim(c, 128), bias=get(c, "attention_bias", True))
    return model(c, *[layer(i, h, attention, ffn, more) for i in range(c["num_hidden_layers"])])


def _glm4_moe(c: Config, *, bias: bool, ahead: int) -> Shapes:
    n, h, width = c["num_hidden_layers"], c["hidden_size"], c["moe_intermediate_size"]
    attention = _attention(c, _dim(c, 128), bias=bias, qk_norm=get(c, "use_qk_norm", False))
    shared = width * get(c, "n_shared_experts", 1)
    sparse = moe(h, width, get(c, "n_routed_experts", 128), bias=True, shared=shared)
    dense = mlp("mlp", h, c["intermediate_size"])
    first = get(c, "first_k_dense_replace", 1)
    layers = [layer(i, h, attention, dense if i < first else sparse) for i in range(n)]
    return model(c, *layers, *[mtp(j, h, attention, sparse) for j in range(ahead)])


def glm4_moe(config: Config) -> Shapes:
    c = text(config)
    return _glm4_moe(c, bias=get(c, "attention_bias", False), ahead=get(c, "num_nextn_predict_layers", 0))


def glm4v_moe(config: Config) -> Shapes:
    """List GLM-4.5V's language model: no query and key norm, no MTP in its checkpoint."""
    c = text(config) | {"use_qk_norm": False}
    return _glm4_moe(c, bias=get(c, "attention_bias", True), ahead=0)


def _minimax_kinds(c: Config) -> Sequence[bool]:
    """Say of each layer whether its attention is lightning; MiniMax's own files write 0 for that."""
    n = c["num_hidden_layers"]
    numbers = c.get("attn_type_list") or c.get("decoder_attention_types")
    if numbers:
        return [numbers[i] == 0 for i in range(n)]
    if c.get("layer_types"):
        return [kind == "linear_attention" for kind in c["layer_types"]]
    return [c["model_type"] == "minimax" and i % 2 == 1 for i in range(n)]


def minimax(config: Config) -> Shapes:
    """List MiniMax-Text-01 and M1 (vLLM, minimax_text_01.py, for files not converted to transformers)."""
    c = text(config)
    h, heads, dim = c["hidden_size"], c["num_attention_heads"], _dim(c)
    assert not get(c, "shared_intermediate_size", 0), "no published checkpoint has a shared expert"
    inner = heads * dim
    lightning = at(
        "self_attn.",
        linear("qkv_proj", 3 * inner, h),
        linear("output_gate", inner, h),
        linear("out_proj", h, inner),
        norms("norm", size=inner),
    )
    softmax = gqa(h, heads, _kv(c), dim)
    sparse = moe(h, c["intermediate_size"], get(c, "num_local_experts", 8), bias=False)
    return model(
        c, *[layer(i, h, lightning if fast else softmax, sparse) for i, fast in enumerate(_minimax_kinds(c))]
    )


def minimax_m2(config: Config) -> Shapes:
    """List MiniMax-M2: norms over all heads at once; ``use_mtp`` is set but no checkpoint holds those layers."""
    c = text(config)
    h, heads, kv, dim = c["hidden_size"], c["num_attention_heads"], _kv(c), _dim(c, 128)
    assert not get(c, "shared_intermediate_size", 0), "no published checkpoint has a shared expert"
    widths = (heads * dim, kv * dim) if get(c, "use_qk_norm", True) else None
    bias = get(c, "use_routing_bias", True)
    sparse = moe(h, c["intermediate_size"], get(c, "num_local_experts", 256), bias=bias)
    parts = gqa(h, heads, kv, dim, qk_norm=widths), sparse
    return model(c, *[layer(i, h, *parts) for i in range(c["num_hidden_layers"])])


def mimo(config: Config) -> Shapes:
    """List MiMo-7B: Qwen2 with MTP layers of the same shape (modeling_mimo.py beside the checkpoint)."""
    c = text(config)
    h = c["hidden_size"]
    parts = _attention(c, _dim(c), bias=True), mlp("mlp", h, c["intermediate_size"])
    three = norms("token_layernorm", "hidden_layernorm", "final_layernorm", size=h)
    extra = join(three, linear("input_proj", h, 2 * h))
    ahead = [layer(f"mtp.{j}.", h, *parts, extra) for j in range(get(c, "num_nextn_predict_layers", 0))]
    return model(c, *[layer(i, h, *parts) for i in range(c["num_hidden_layers"])], *ahead)


def mimo_v2_flash(config: Config) -> Shapes:
    """List MiMo-V2-Flash; its config does not name its three MTP layers (SGLang, mimo_v2_flash_nextn.py)."""
    c = text(config)
    n, h = c["num_hidden_layers"], c["hidden_size"]
    window = c.get("hybrid_layer_pattern") or [kind == "sliding_attention" for kind in c["layer_types"]]
    mixed = c.get("moe_layer_freq") or [kind == "sparse" for kind in c["mlp_layer_types"]]
    bias = get(c, "attention_bias", False)

    def attention(swa: bool) -> Shapes:
        keys = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
        heads, kv, dim, v = (c[key] for key in keys)
        sink = c.get("add_full_attention_sink_bias")
        if swa:  # its own sizes; transformers, which does not read them, doubles the key heads
            defaults = (heads, 2 * kv, dim, v)
            heads, kv, dim, v = (get(c, f"swa_{key}", d) for key, d in zip(keys, defaults, strict=True))
            sink = get(c, "add_swa_attention_sink_bias", True)
        out = gqa(h, heads, kv, dim, v_dim=v, bias=bias)
        return join(out, {"self_attn.attention_sink_bias": (heads,)}) if sink else out

    shared = c["moe_intermediate_size"] * get(c, "n_shared_experts", 0)
    sparse = moe(h, c["moe_intermediate_size"], c["n_routed_experts"], bias=True, shared=shared)
    dense = mlp("mlp", h, c["intermediate_size"])
    layers = [layer(i, h, attention(bool(window[i])), sparse if mixed[i] else dense) for i in range(n)]
    extra = join(norms("enorm", "hnorm", "final_layernorm", size=h), linear("eh_proj", h, 2 * h))
    ahead = range(get(c, "num_nextn_predict_layers", 3))
    return model(c, *layers, *[layer(f"mtp.{j}.", h, attention(True), dense, extra) for j in ahead])


def _listed(value: str | Sequence[int]) -> set[int]:
    return {int(i) for i in (value.split(",") if isinstance(value, str) else value) if str(i).strip()}


def step3p5(config: Config) -> Shapes:
    """List Step-3.5-Flash and Step-3.7-Flash's language model (vLLM, step3p5.py and step3p5_mtp.py too).

    Each MTP layer's ``shared_head.output`` is the model's own head again (so Megatron-Bridge maps it, and so the
    card's 0.81B of MTP come out).
    """
    c = text(config)
    n, h, ahead = c["num_hidden_layers"], c["hidden_size"], get(c, "num_nextn_predict_layers", 0)
    assert not c.get("attention_bias"), "transformers and vLLM do not agree on where these biases go"
    kinds = list(c.get("layer_types") or ["full_attention"] * (n + ahead))
    kinds += ["sliding_attention"] * (n + ahead - len(kinds))
    if "mlp_layer_types" in c:
        sparse = {i for i, kind in enumerate(c["mlp_layer_types"]) if kind == "sparse"}
    elif c.get("moe_layers_enum") is not None:
        sparse = _listed(c["moe_layers_enum"])
    else:
        sparse = set(range(get(c, "first_k_dense_replace", 3), n))
    experts = next((c[k] for k in ("moe_num_experts", "n_routed_experts", "num_experts") if k in c), 288)
    kv, dim, other = get(c, "num_attention_groups", c.get("num_key_value_heads")), get(c, "head_dim", 128), {}
    if c.get("attention_other_setting"):
        other = c["attention_other_setting"]
    elif c.get("num_sliding_attention_heads"):
        other = {"num_attention_heads": c["num_sliding_attention_heads"]}

    def attention(kind: str) -> Shapes:
        use = other if kind == other.get("attention_type", "sliding_attention") else {}
        heads, size = get(use, "num_attention_heads", c["num_attention_heads"]), get(use, "head_dim", dim)
        out = gqa(h, heads, get(use, "num_attention_groups", kv), size, qk_norm=(size, size))
        gate = get(c, "use_head_wise_attn_gate", True)
        return join(out, linear("self_attn.g_proj", heads, h)) if gate else out

    def ffn(i: int) -> Shapes:
        if i not in sparse:
            return mlp("mlp", h, c["intermediate_size"])
        bias, shared = get(c, "use_moe_router_bias", True), get(c, "share_expert_dim", 1280)
        return moe(h, c["moe_intermediate_size"], experts, bias=bias, shared=shared)

    layers = [layer(i, h, attention(kinds[i]), ffn(i)) for i in range(n)]
    return model(c, *layers, *[mtp(j, h, attention(kinds[n + j]), ffn(n + j)) for j in range(ahead)])


def step3(config: Config) -> Shapes:
    """List Step-3's language model (vLLM, step3_text.py): one key head, queries through a shared low rank."""
    c = text(config)
    h, heads, dim, rank = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["share_q_dim"]
    attention = at(
        "self_attn.",
        linear("q_proj", rank, h),
        linear("k_proj", dim, h),
        linear("v_proj", dim, h),
        norms("inter_norm", size=rank),
        linear("wq", heads * dim, rank),
        linear("o_proj", h, heads * dim),
    )
    n = c["num_hidden_layers"]
    mixed = set(range(1, n)) if c.get("moe_layers_enum") is None else _listed(c["moe_layers_enum"])
    width, shared = c["moe_intermediate_size"], c["share_expert_dim"]
    sparse = moe(h, width, c["moe_num_experts"], bias=False, shared=shared)
    dense = mlp("mlp", h, c["intermediate_size"])
    return model(c, *[layer(i, h, attention, sparse if i in mixed else dense) for i in range(n)])


GROUPED: dict[str, Callable[[Config], Shapes]] = {
    "glm4": glm4,
    "glm4_moe": glm4_moe,
    "glm4v_moe": glm4v_moe,
    "glm4v_moe_text": glm4v_moe,
    "mimo": mimo,
    "mimo_v2_flash": mimo_v2_flash,
    "minimax": minimax,
    "minimax_m1": minimax,
    "minimax_m2": minimax_m2,
    "minimax_text_01": minimax,
    "qwen2": qwen2,
    "qwen2_5_vl": qwen2,
    "qwen2_5_vl_text": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen2_vl": qwen2,
    "qwen2_vl_text": qwen2,
    "qwen3": qwen3,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
    "qwen3_5_moe_text": qwen3_5_moe,
    "qwen3_5_text": qwen3_5,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen3_vl": qwen3,
    "qwen3_vl_moe": qwen3_moe,
    "qwen3_vl_moe_text": qwen3_moe,
    "qwen3_vl_text": qwen3,
    "step3_text": step3,
    "step3_vl": step3,
    "step3p5": step3p5,
    "step3p7": step3p5,
}
