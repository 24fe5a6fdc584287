"""Checkpoints with latent or compressed attention: DeepSeek, Kimi, GLM-4.7-Flash and GLM-5, LongCat.

Read from transformers' models/<family>/modeling_<family>.py and, where said, vLLM's model_executor/models.
"""

from __future__ import annotations

from collections.abc import Callable

from tensors_a_parts import (
    Config,
    Shapes,
    at,
    get,
    join,
    layer,
    linear,
    mla,
    mlp,
    model,
    moe,
    mtp,
    norms,
    text,
)


def _deepseek_moe(c: Config, i: int, *, first: int, bias: bool) -> Shapes:
    """List layer i's feed-forward: dense for the first layers, off the frequency, or without experts."""
    h, n, start = c["hidden_size"], c.get("n_routed_experts"), get(c, "first_k_dense_replace", first)
    sparse = n is not None and i >= start and i % get(c, "moe_layer_freq", 1) == 0
    if c.get("mlp_layer_types") and i < c["num_hidden_layers"]:
        sparse = c["mlp_layer_types"][i] == "sparse"
    if not sparse:
        return mlp("mlp", h, c["intermediate_size"])
    width = c["moe_intermediate_size"]
    return moe(h, width, n, bias=bias, shared=width * get(c, "n_shared_experts", 0))


def _latent(c: Config, *, first: int, bias: bool, indexer: Callable[[int], Shapes] = lambda i: {}) -> Shapes:
    """List a DeepSeek-V3 shape: latent attention (with an indexer), dense then sparse layers, MTP at the end."""
    n, h = c["num_hidden_layers"], c["hidden_size"]

    def parts(i: int) -> tuple[Shapes, ...]:
        return mla(c), indexer(i), _deepseek_moe(c, i, first=first, bias=bias)

    extra = [mtp(j, h, *parts(n + j)) for j in range(get(c, "num_nextn_predict_layers", 0))]
    return model(c, *[layer(i, h, *parts(i)) for i in range(n)], *extra)


def deepseek_v2(config: Config) -> Shapes:
    c = {"q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2} | text(config)
    return _latent(c, first=0, bias=c.get("topk_method") == "noaux_tc")


def deepseek_v3(config: Config) -> Shapes:
    """List DeepSeek-V3, Kimi-K2 and, inside its wrapper, Kimi-K2.5."""
    c = {"q_lora_rank": 1536, "n_routed_experts": 256, "n_shared_experts": 1} | text(config)
    return _latent(c, first=3, bias=get(c, "topk_method", "noaux_tc") == "noaux_tc")


def _indexer(c: Config, heads: int) -> Shapes:
    dim, h = get(c, "index_head_dim", 128), c["hidden_size"]
    n = get(c, "index_n_heads", heads)
    return at(
        "self_attn.indexer.",
        linear("wq_b", n * dim, c["q_lora_rank"]),
        linear("wk", dim, h),
        {"k_norm.weight": (dim,), "k_norm.bias": (dim,)},  # a LayerNorm
        linear("weights_proj", n, h),
    )


def deepseek_v32(config: Config) -> Shapes:
    c = {"q_lora_rank": 1536, "n_routed_experts": 256, "n_shared_experts": 1} | text(config)
    return _latent(c, first=3, bias=True, indexer=lambda i: _indexer(c, 64))


def glm_moe_dsa(config: Config) -> Shapes:
    """List GLM-5: a layer that shares its neighbour's selection has no indexer of its own."""
    c = {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 256}
    c |= {"n_shared_experts": 1} | text(config)
    kinds = c.get("indexer_types")
    if kinds is None and c.get("index_topk_pattern") is not None:
        kinds = [{"F": "full", "S": "shared"}.get(k, k) for k in c["index_topk_pattern"]]
    if kinds is None:
        freq, offset = max(get(c, "index_topk_freq", 1), 1), get(c, "index_skip_topk_offset", 2)
        kinds = ["shared" if max(i - offset + 1, 0) % freq else "full" for i in range(c["num_hidden_layers"])]

    def own(i: int) -> Shapes:  # the MTP layer, past the list, selects for itself
        return _indexer(c, 32) if i >= len(kinds) or kinds[i] == "full" else {}

    return _latent(c, first=3, bias=True, indexer=own)


def glm4_moe_lite(config: Config) -> Shapes:
    c = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64}
    return _latent(c | {"n_shared_experts": 1} | text(config), first=1, bias=True)


def _compressor(name: str, hidden: int, dim: int, ratio: int, series: int) -> Shapes:
    """List one compressor: ``series`` overlapping series of ``dim`` channels, one entry per ``ratio`` tokens."""
    width = series * dim
    return at(
        f"self_attn.{name}.",
        linear("kv_proj", width, hidden),
        linear("gate_proj", width, hidden),
        {"position_bias": (ratio, width)},
        norms("kv_norm", size=dim),
    )


_V4_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def _v4_attention(c: Config, kind: str) -> Shapes:
    h, heads, dim, rank = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
    groups, o_rank = c["o_groups"], c["o_lora_rank"]
    rates = {name: ratio for ratio, name in _V4_KINDS.items()} | get(c, "compress_rates", {})
    out = at(
        "self_attn.",
        linear("q_a_proj", rank, h),
        norms("q_a_norm", size=rank),
        linear("q_b_proj", heads * dim, rank),
        linear("kv_proj", dim, h),
        norms("kv_norm", size=dim),
        linear("o_a_proj", groups * o_rank, heads * dim // groups),
        linear("o_b_proj", h, groups * o_rank),
        {"sinks": (heads,)},
    )
    if kind == "heavily_compressed_attention":
        return join(out, _compressor("compressor", h, dim, rates[kind], 1))
    if kind == "compressed_sparse_attention":
        n, small = c["index_n_heads"], c["index_head_dim"]
        ask = join(linear("q_b_proj", n * small, rank), linear("scorer.weights_proj", n, h))
        return join(
            out,
            _compressor("compressor", h, dim, rates[kind], 2),
            _compressor("compressor.indexer", h, small, rates[kind], 2),
            at("self_attn.compressor.indexer.", ask),
        )
    assert kind == "sliding_attention", kind
    return out


def _hyper(name: str, hidden: int, streams: int) -> Shapes:
    width = (2 + streams) * streams
    return {f"{name}.fn": (width, streams * hidden), f"{name}.base": (width,), f"{name}.scale": (3,)}


def _hyper_head(name: str, hidden: int, streams: int) -> Shapes:
    fn = {f"{name}.hc_fn": (streams, streams * hidden)}
    return fn | {f"{name}.hc_base": (streams,), f"{name}.hc_scale": (1,)}


def deepseek_v4(config: Config) -> Shapes:
    """List DeepSeek-V4; the checkpoint's own names differ (attn.wq_a), its shapes do not."""
    c = text(config)
    n, h, streams = c["num_hidden_layers"], c["hidden_size"], get(c, "hc_mult", 4)
    kinds = c.get("layer_types") or [_V4_KINDS[r] for r in get(c, "compress_ratios", [])]
    if not kinds:
        kinds = [_V4_KINDS[128]] * min(n, 2) + [_V4_KINDS[4 if i % 2 else 128] for i in range(max(n - 2, 0))]
    kinds = kinds + [_V4_KINDS[0]] * n  # an MTP layer without an entry has no compressor
    hashed = get(c, "num_hash_layers", 3)
    routes = c.get("mlp_layer_types") or ["hash_moe" if i < hashed else "moe" for i in range(n)]

    def parts(i: int) -> tuple[Shapes, ...]:
        width, learned = c["moe_intermediate_size"], i >= n or routes[i] == "moe"
        ffn = moe(h, width, c["n_routed_experts"], bias=learned, shared=width * get(c, "n_shared_experts", 1))
        return _v4_attention(c, kinds[i]), ffn, _hyper("attn_hc", h, streams), _hyper("ffn_hc", h, streams)

    def ahead(j: int) -> Shapes:  # vLLM, deepseek_v4_mtp.py
        extra = join(norms("enorm", "hnorm", "norm", size=h), linear("e_proj", h, h), linear("h_proj", h, h))
        own = join(extra, _hyper_head("hc_head", h, streams))
        return join(layer(f"mtp.{j}.", h, *parts(n + j)), at(f"mtp.{j}.", own))

    layers = [layer(i, h, *parts(i)) for i in range(n)]
    mtp_layers = [ahead(j) for j in range(get(c, "num_nextn_predict_layers", 1))]
    return model(c, *layers, _hyper_head("model.hc_head", h, streams), *mtp_layers)


def _kda(c: Config) -> Shapes:
    """List Kimi delta attention (vLLM, layers/kda.py): no biases, three short convolutions, two low-rank gates."""
    a, h = c["linear_attn_config"], c["hidden_size"]
    heads, dim, kernel = a["num_heads"], a["head_dim"], a["short_conv_kernel_size"]
    wide = heads * dim
    return at(
        "self_attn.",
        *[linear(f"{x}_proj", wide, h) for x in "qkv"],
        {f"{x}_conv1d.weight": (wide, 1, kernel) for x in "qkv"},
        *[join(linear(f"{x}_a_proj", dim, h), linear(f"{x}_b_proj", wide, dim)) for x in "fg"],
        linear("b_proj", heads, h),
        {"A_log": (1, 1, heads, 1), "dt_bias": (wide,)},
        norms("o_norm", size=dim),
        linear("o_proj", h, wide),
    )


def kimi_linear(config: Config) -> Shapes:
    """List Kimi-Linear (vLLM, kimi_linear.py): delta attention and latent attention, layers counted from 1."""
    c = text(config)
    c |= {"n_routed_experts": c["num_experts"], "n_shared_experts": get(c, "num_shared_experts", 0)}
    assert not get(c, "num_nextn_predict_layers", 0), "no published checkpoint of this kind predicts ahead"
    delta, full = (set(c["linear_attn_config"][k]) for k in ("kda_layers", "full_attn_layers"))
    n, h = c["num_hidden_layers"], c["hidden_size"]
    assert delta | full == set(range(1, n + 1)) and not delta & full
    attention = [_kda(c) if i + 1 in delta else mla(c) for i in range(n)]
    return model(c, *[layer(i, h, attention[i], _deepseek_moe(c, i, first=0, bias=True)) for i in range(n)])


def longcat_flash(config: Config) -> Shapes:
    """List LongCat-Flash: two attentions and two dense MLPs a layer, one mixture across them.

    Zero-computation experts have a row in the router and no weights. MTP: vLLM, longcat_flash_mtp.py.
    """
    c = {"q_lora_rank": 1536} | text(config)
    h, n, width = c["hidden_size"], c["num_layers"], c["ffn_hidden_size"]
    experts, w = c["n_routed_experts"], c["expert_ffn_hidden_size"]
    slots = experts + get(c, "zero_expert_num", 0)
    mixture = join(
        {"mlp.experts.gate_up_proj": (experts, 2 * w, h), "mlp.experts.down_proj": (experts, h, w)},
        linear("mlp.router.classifier", slots, h, c.get("router_bias")),
        {"mlp.router.e_score_correction_bias": (slots,)},
    )

    def half(k: int) -> Shapes:
        two = norms(f"input_layernorm.{k}", f"post_attention_layernorm.{k}", size=h)
        attention = {name.replace("self_attn.", f"self_attn.{k}."): s for name, s in mla(c).items()}
        return join(attention, mlp(f"mlps.{k}", h, width), two)

    layers = [at(f"model.layers.{i}.", half(0), half(1), mixture) for i in range(n)]
    ahead = join(norms("enorm", "hnorm", "norm", size=h), linear("eh_proj", h, 2 * h))
    return model(c, *layers, layer("mtp.0.", h, mla(c), mlp("mlp", h, width)), at("mtp.0.", ahead))


LATENT: dict[str, Callable[[Config], Shapes]] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "deepseek_v4": deepseek_v4,
    "glm4_moe_lite": glm4_moe_lite,
    "glm_moe_dsa": glm_moe_dsa,
    "kimi_k2": deepseek_v3,
    "kimi_k25": deepseek_v3,
    "kimi_linear": kimi_linear,
    "longcat_flash": longcat_flash,
}
