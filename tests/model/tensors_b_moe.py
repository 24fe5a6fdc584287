"""Tensor listings of families with experts; sources: transformers 5, or the code that a listing names."""

from tensors_b_parts import (
    Config,
    Dims,
    Shapes,
    attention,
    decoder,
    dims,
    experts,
    gated,
    linear,
    mla,
    norm,
    norms,
    opt,
    pre_norms,
)


def each(value: int | list[int], i: int) -> int:
    """Read a number that a file may give once or for each layer."""
    return value[i] if isinstance(value, list) else value


def mixtral(c: Config) -> Shapes:
    w, f, n = dims(c, kv=8), opt(c, "intermediate_size", 14336), opt(c, "num_local_experts", 8)

    def layer(_: int, p: str) -> Shapes:
        moe = {**linear(f"{p}.mlp.gate", n, w.h), **experts(f"{p}.mlp.experts", n, w.h, f)}
        return {**attention(f"{p}.self_attn", w), **moe, **pre_norms(p, w.h)}

    return decoder(c, layer, h=w.h, vocab=32000, layers=32)


def phimoe(c: Config) -> Shapes:
    """LayerNorm with bias everywhere; the head has a bias of its own where ``lm_head_bias`` says so."""
    w, f, n = dims(c, kv=8), opt(c, "intermediate_size", 6400), opt(c, "num_local_experts", 16)
    bias, head_bias = opt(c, "attention_bias", False), opt(c, "lm_head_bias", False)

    def layer(_: int, p: str) -> Shapes:
        moe = {**linear(f"{p}.mlp.router", n, w.h), **experts(f"{p}.mlp.experts", n, w.h, f)}
        return {**attention(f"{p}.self_attn", w, bias), **moe, **pre_norms(p, w.h, bias=True)}

    out = decoder(c, layer, h=w.h, vocab=32064, layers=32, bias=True, head_bias=head_bias)
    if head_bias and "lm_head.bias" not in out:  # a tied head keeps its bias
        out["lm_head.bias"] = (opt(c, "vocab_size", 32064),)
    return out


def olmoe(c: Config) -> Shapes:
    w, f, n = dims(c, hidden=2048, heads=16), opt(c, "intermediate_size", 2048), opt(c, "num_experts", 64)
    bias = opt(c, "attention_bias", False)

    def layer(_: int, p: str) -> Shapes:
        return {
            **attention(f"{p}.self_attn", w, bias),
            **norm(f"{p}.self_attn.q_norm", w.q),
            **norm(f"{p}.self_attn.k_norm", w.kv),
            **linear(f"{p}.mlp.gate", n, w.h),
            **experts(f"{p}.mlp.experts", n, w.h, f),
            **pre_norms(p, w.h),
        }

    return decoder(c, layer, h=w.h, vocab=50304, layers=16)


def gpt_oss(c: Config) -> Shapes:
    w = dims(c, hidden=2880, heads=64, kv=8, d=64)
    f, n, bias = (
        opt(c, "intermediate_size", 2880),
        opt(c, "num_local_experts", 128),
        opt(c, "attention_bias", True),
    )

    def layer(_: int, p: str) -> Shapes:
        e = f"{p}.mlp.experts"
        return {
            **attention(f"{p}.self_attn", w, bias),
            f"{p}.self_attn.sinks": (opt(c, "num_attention_heads", 64),),
            **linear(f"{p}.mlp.router", n, w.h, True),
            f"{e}.gate_up_proj": (n, w.h, 2 * f),
            f"{e}.gate_up_proj_bias": (n, 2 * f),
            f"{e}.down_proj": (n, f, w.h),
            f"{e}.down_proj_bias": (n, w.h),
            **pre_norms(p, w.h),
        }

    return decoder(c, layer, h=w.h, vocab=201088, layers=36)


def dbrx(c: Config) -> Shapes:
    """LayerNorm without bias; the experts' matrices are stacked."""
    attn, ffn = opt(c, "attn_config", {}), opt(c, "ffn_config", {})
    h, heads = opt(c, "d_model", 2048), opt(c, "n_heads", 16)
    kv = opt(attn, "kv_n_heads", 1) * (h // heads)
    f, n = opt(ffn, "ffn_hidden_size", 3584), opt(ffn, "moe_num_experts", 4)

    def layer(_: int, p: str) -> Shapes:
        return {
            **norms(f"{p}.norm_attn_norm", h, "norm_1", "norm_2"),
            **linear(f"{p}.norm_attn_norm.attn.Wqkv", h + 2 * kv, h),
            **linear(f"{p}.norm_attn_norm.attn.out_proj", h, h),
            **linear(f"{p}.ffn.router.layer", n, h),
            **{f"{p}.ffn.experts.mlp.{m}": (n * f, h) for m in ("w1", "v1", "w2")},
        }

    c = {**c, "num_hidden_layers": opt(c, "n_layers", 24)}
    names = {"embed": "transformer.wte", "block": "transformer.blocks", "final": "transformer.norm_f"}
    return decoder(c, layer, h=h, vocab=32000, layers=24, **names)


def grok_1(c: Config) -> Shapes:
    """xai-org/grok-1's port to PyTorch: four norms a layer, gated experts, one embedding read at both ends.

    The common checkpoints call the experts ``num_experts`` and can untie the head; SGLang grok.py reads those.
    """
    w, f = dims(c, hidden=6144, heads=48, kv=8), opt(c, "intermediate_size", 32768)
    n = opt(c, "num_experts", opt(c, "num_local_experts", 8))

    def layer(_: int, p: str) -> Shapes:
        return {
            **attention(f"{p}.attn", w),
            **linear(f"{p}.moe_block.gate", n, w.h),
            **experts(f"{p}.moe_block.experts", n, w.h, f),
            **norms(p, w.h, "pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"),
        }

    return decoder(c, layer, h=w.h, vocab=131072, layers=64, tie=True)


def llama4_text(c: Config) -> Shapes:
    w = dims(c, hidden=5120, heads=40, kv=8, d=128)
    f, wide = opt(c, "intermediate_size", 8192), opt(c, "intermediate_size_mlp", 16384)
    n, bias = opt(c, "num_local_experts", 16), opt(c, "attention_bias", False)
    layers, step = opt(c, "num_hidden_layers", 48), opt(c, "interleave_moe_layer_step", 1)
    sparse = set(opt(c, "moe_layers", range(step - 1, layers, step)))

    def layer(i: int, p: str) -> Shapes:
        ff = f"{p}.feed_forward"
        mlp = gated(ff, w.h, wide)
        if i in sparse:
            mlp = {
                **linear(f"{ff}.router", n, w.h),
                f"{ff}.experts.gate_up_proj": (n, w.h, 2 * f),
                f"{ff}.experts.down_proj": (n, f, w.h),
                **gated(f"{ff}.shared_expert", w.h, f),
            }
        return {**attention(f"{p}.self_attn", w, bias), **mlp, **pre_norms(p, w.h)}

    return decoder(c, layer, h=w.h, vocab=202048, layers=48)


def gemma4_text(c: Config) -> Shapes:
    """Full-attention layers have heads of their own; the last layers may read earlier keys and values."""
    w = dims(c, hidden=2304, heads=8, kv=4, d=256)
    heads, layers, f = (
        opt(c, "num_attention_heads", 8),
        opt(c, "num_hidden_layers", 30),
        opt(c, "intermediate_size", 9216),
    )
    share, k_eq_v = opt(c, "attention_k_eq_v", False), opt(c, "attention_k_eq_v", False)
    kinds = opt(c, "layer_types", ["full" if (i + 1) % 6 == 0 else "sliding" for i in range(layers)])
    d = opt(c, "global_head_dim", 512)
    kv_heads = (c.get("num_global_key_value_heads") if share else None) or w.kv // w.d
    full, first_shared = Dims(w.h, d, heads * d, kv_heads * d), layers - opt(c, "num_kv_shared_layers", 0)
    n, ple = opt(c, "num_experts", 0), opt(c, "hidden_size_per_layer_input", 256)

    def layer(i: int, p: str) -> Shapes:
        glob, owns, attn = kinds[i].startswith("full") or i == layers - 1, i < first_shared, f"{p}.self_attn"
        a = full if glob else w
        out = {
            **attention(attn, a, opt(c, "attention_bias", False), keys=owns),
            **norms(attn, a.d, "q_norm", *(["k_norm"] if owns else [])),
            **gated(f"{p}.mlp", w.h, f * (2 if opt(c, "use_double_wide_mlp", False) and not owns else 1)),
            **pre_norms(p, w.h),
            **norms(p, w.h, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        }
        if glob and k_eq_v and owns:  # the key is read as the value too
            out = {k: v for k, v in out.items() if ".v_proj." not in k}
        if opt(c, "enable_moe_block", False):
            after = (
                "post_feedforward_layernorm_1",
                "post_feedforward_layernorm_2",
                "pre_feedforward_layernorm_2",
            )
            out |= {f"{p}.router.scale": (w.h,), f"{p}.router.per_expert_scale": (n,)}
            out |= {**linear(f"{p}.router.proj", n, w.h), **norms(p, w.h, *after)}
            out |= experts(f"{p}.experts", n, w.h, c["moe_intermediate_size"])
        out |= {f"{p}.layer_scalar": (1,)}  # a buffer, but learned and stored
        if ple:
            out |= {
                **linear(f"{p}.per_layer_input_gate", ple, w.h),
                **linear(f"{p}.per_layer_projection", w.h, ple),
            }
            out |= norm(f"{p}.post_per_layer_input_norm", w.h)
        return out

    out = decoder(c, layer, h=w.h, vocab=262144, layers=30, tie=True)
    if ple:
        rows = opt(c, "vocab_size_per_layer_input", 262144)
        out["model.embed_tokens_per_layer.weight"] = (rows, layers * ple)
        out |= linear("model.per_layer_model_projection", layers * ple, w.h)
        out |= norm("model.per_layer_projection_norm", ple)
    return out


def hunyuan_v1_moe(c: Config) -> Shapes:
    """Every layer has experts and a shared MLP.

    transformers gives both ``intermediate_size``; SGLang hunyuan.py and Tencent's code let ``moe_intermediate_size``
    say the experts' width and ``num_shared_expert`` multiply the shared one. Released files agree either way.
    """
    w, width = dims(c), opt(c, "intermediate_size", 11008)
    bias = opt(c, "attention_bias", False)

    def layer(i: int, p: str) -> Shapes:
        n, f = each(opt(c, "num_experts", 1), i), each(opt(c, "moe_intermediate_size", width), i)
        shared = width * each(opt(c, "num_shared_expert", 1), i)
        return {
            **attention(f"{p}.self_attn", w, bias),
            **norms(f"{p}.self_attn", w.d, "query_layernorm", "key_layernorm"),
            **linear(f"{p}.mlp.gate.wg", n, w.h),
            **experts(f"{p}.mlp.experts", n, w.h, f),
            **gated(f"{p}.mlp.shared_mlp", w.h, shared),
            **pre_norms(p, w.h),
        }

    return decoder(c, layer, h=w.h, vocab=290943, layers=32)


def hunyuan(c: Config) -> Shapes:
    """List Hunyuan-Large (SGLang hunyuan.py): only each ``cla_share_factor``-th layer has keys and values of its own.

    The others norm their query and the key they borrow.
    """
    w = dims({**c, "head_dim": c.get("head_dim") or c.get("attention_head_dim")})
    bias, step = opt(c, "attention_bias", False), opt(c, "cla_share_factor", 1) if c.get("use_cla") else 1
    width = c["intermediate_size"]

    def layer(i: int, p: str) -> Shapes:
        n = each(opt(c, "num_experts", 1), i)
        out = {**attention(f"{p}.self_attn", w, bias, keys=i % step == 0), **pre_norms(p, w.h)}
        if c.get("use_qk_norm"):
            out |= norms(f"{p}.self_attn", w.d, "query_layernorm", "key_layernorm")
        if n == 1:
            return out | gated(f"{p}.mlp", w.h, width, opt(c, "mlp_bias", False))
        out |= linear(f"{p}.mlp.gate.wg", n, w.h)
        out |= experts(f"{p}.mlp.experts", n, w.h, each(opt(c, "moe_intermediate_size", width), i))
        if c.get("use_mixed_mlp_moe"):
            out |= gated(f"{p}.mlp.shared_mlp", w.h, width * each(opt(c, "num_shared_expert", 1), i))
        return out

    return decoder(c, layer, h=w.h, vocab=290943, layers=32)


def ernie4_5_moe(c: Config) -> Shapes:
    """A layer is sparse between start and end, at the interval; MTP (vLLM ernie_mtp.py) is one dense layer a step."""
    w = dims(c, hidden=2560, heads=20, kv=4)
    layers, dense, f = (
        opt(c, "num_hidden_layers", 28),
        opt(c, "intermediate_size", 12288),
        opt(c, "moe_intermediate_size", 1536),
    )
    n, shared, bias = (
        opt(c, "moe_num_experts", 64),
        opt(c, "moe_num_shared_experts", 2),
        opt(c, "use_bias", False),
    )
    start, end, step = (
        opt(c, "moe_layer_start_index", 1),
        opt(c, "moe_layer_end_index", -1),
        opt(c, "moe_layer_interval", 1),
    )
    end = layers - 1 if end == -1 else end

    def block(p: str, mlp: Shapes) -> Shapes:
        return {**attention(f"{p}.self_attn", w, bias), **mlp, **pre_norms(p, w.h)}

    def layer(i: int, p: str) -> Shapes:
        if (i + 1) % step or not start <= i <= end:
            return block(p, gated(f"{p}.mlp", w.h, dense, bias))
        moe = {
            **linear(f"{p}.mlp.gate", n, w.h),
            f"{p}.mlp.moe_statics.e_score_correction_bias": (1, n),
            **experts(f"{p}.mlp.experts", n, w.h, f),
            **(gated(f"{p}.mlp.shared_experts", w.h, f * shared, bias) if shared else {}),
        }
        return block(p, moe)

    out = decoder(c, layer, h=w.h, vocab=103424, layers=28, tie=True)
    if bias:  # a tied head keeps its bias
        out["lm_head.bias"] = (opt(c, "vocab_size", 103424),)
    for i in range(opt(c, "num_nextn_predict_layers", 0)):
        out |= {**norm(f"mtp.emb_norm.{i}", w.h), **norm(f"mtp.hidden_norm.{i}", w.h)}
        out |= linear(f"mtp.linear_proj.{i}", w.h, 2 * w.h)
        out |= block(f"mtp.block.{i}", gated(f"mtp.block.{i}.mlp", w.h, dense, bias))
    return out


def dots1(c: Config) -> Shapes:
    w, f = dims(c, hidden=4608, kv=32), opt(c, "moe_intermediate_size", 1408)
    n, shared, bias = c["n_routed_experts"], opt(c, "n_shared_experts", 0), opt(c, "attention_bias", False)

    def layer(i: int, p: str) -> Shapes:
        mlp = gated(f"{p}.mlp", w.h, opt(c, "intermediate_size", 10944))
        if i >= opt(c, "first_k_dense_replace", 0):
            mlp = {
                **linear(f"{p}.mlp.gate", n, w.h),
                f"{p}.mlp.gate.e_score_correction_bias": (n,),
                **experts(f"{p}.mlp.experts", n, w.h, f),
                **(gated(f"{p}.mlp.shared_experts", w.h, f * shared) if shared else {}),
            }
        qk = norms(f"{p}.self_attn", w.d, "q_norm", "k_norm")
        return {**attention(f"{p}.self_attn", w, bias), **qk, **mlp, **pre_norms(p, w.h)}

    return decoder(c, layer, h=w.h, vocab=152064, layers=62)


def pangu_pro_moe(c: Config) -> Shapes:
    """Pangu Pro MoE (vllm-ascend pangu_moe.py): a scale for each expert beside the router, biases in the attention."""
    second = {"param_sink_number", "qk_nope_dim", "sandwich_norm", "router_enable_expert_bias"}
    assert not second & set(c), "the second Pangu Pro MoE has another attention; telekit refuses it"
    w, n = dims({**c, "head_dim": None}, hidden=5120, heads=40, kv=8), opt(c, "num_experts", 64)
    f, shared = opt(c, "moe_intermediate_size", 1344), opt(c, "shared_expert_intermediate_size", 5376)

    def layer(i: int, p: str) -> Shapes:
        block = {**attention(f"{p}.self_attn", w, True), **pre_norms(p, w.h)}
        if i in opt(c, "mlp_only_layers", []) or not n:
            return block | gated(f"{p}.mlp", w.h, c["intermediate_size"])
        block |= {f"{p}.mlp.router_scale": (1, n), **linear(f"{p}.mlp.gate", n, w.h)}
        block |= experts(f"{p}.mlp.experts", n, w.h, f)
        return block | (gated(f"{p}.mlp.shared_expert", w.h, shared) if shared else {})

    return decoder(c, layer, h=w.h, vocab=153376, layers=48)


def pangu_ultra_moe(c: Config) -> Shapes:
    """Pangu Ultra MoE: the first files have names of their own, later ones DeepSeek's (vLLM openpangu.py)."""

    def read(old: str, new: str, default: int) -> int:
        return opt(c, old, opt(c, new, default))

    h, heads, f = (
        opt(c, "hidden_size", 7680),
        opt(c, "num_attention_heads", 128),
        opt(c, "moe_intermediate_size", 2048),
    )
    q_rank, kv_rank = (
        read("attention_q_lora_dim", "q_lora_rank", 1536),
        read("attention_kv_lora_dim", "kv_lora_rank", 512),
    )
    nope, rope = (
        read("attention_qk_dim", "qk_nope_head_dim", 128),
        read("attention_qk_rope_dim", "qk_rope_head_dim", 64),
    )
    v, n = read("attention_v_dim", "v_head_dim", 128), read("num_routed_experts", "n_routed_experts", 256)
    shared, dense = (
        read("num_shared_experts", "n_shared_experts", 1),
        read("num_dense_layers", "first_k_dense_replace", 3),
    )
    layers = opt(c, "num_hidden_layers", 61)

    def layer(i: int, p: str) -> Shapes:
        out = {**mla(f"{p}.self_attn", h, heads, q_rank, kv_rank, nope, rope, v), **pre_norms(p, h)}
        if c.get("sandwich_norm"):
            out |= norms(p, h, "pre_mlp_layernorm", "post_mlp_layernorm")
        if i < dense:
            return out | gated(f"{p}.mlp", h, opt(c, "intermediate_size", 18432))
        out |= {**linear(f"{p}.mlp.gate", n, h), **experts(f"{p}.mlp.experts", n, h, f)}
        if c.get("router_enable_expert_bias"):
            out[f"{p}.mlp.gate.e_score_correction_bias"] = (n,)
        return out | gated(f"{p}.mlp.shared_experts", h, f * shared)

    out = decoder(c, layer, h=h, vocab=153600, layers=61)
    for i in range(read("num_mtp_layers", "num_nextn_predict_layers", 0)):
        p = f"mtp.{i}"
        out |= {**norms(p, h, "enorm", "hnorm", "shared_head.norm"), **linear(f"{p}.eh_proj", h, 2 * h)}
        out |= layer(layers + i, p)
    return out


def skywork_moe(c: Config) -> Shapes:
    """Skywork-MoE (SkyworkAI's vLLM fork): ``num_experts`` is a list, the gate two matrices deep unless it says not."""
    w, f, n = dims(c), opt(c, "intermediate_size", 11008), each(opt(c, "num_experts", [32]), 0)
    step = opt(c, "moe_expert_interval", 1)

    def layer(i: int, p: str) -> Shapes:
        gate = {**linear(f"{p}.mlp.gate.wg.0", 8 * n, w.h), **linear(f"{p}.mlp.gate.wg.2", n, 8 * n)}
        if not opt(c, "moe_2layer_gate", True):
            gate = linear(f"{p}.mlp.gate.wg", n, w.h)
        moe = {**gate, **experts(f"{p}.mlp.experts", n, w.h, f)}
        mlp = gated(f"{p}.mlp", w.h, f) if (i + 1) % step else moe
        return {**attention(f"{p}.self_attn", w), **mlp, **pre_norms(p, w.h)}

    return decoder(c, layer, h=w.h, vocab=32000, layers=32)
