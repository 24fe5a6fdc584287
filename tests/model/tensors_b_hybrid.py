"""Tensor listings of Ling and of families that mix attention with linear or state-space layers."""

from collections.abc import Callable
from math import ceil

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
    mamba2,
    mla,
    norm,
    norms,
    opt,
    plain_mlp,
    pre_norms,
)

LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
RENAMED = {"linear_attention": "mamba", "full_attention": "attention"}


def nemotron_h(c: Config) -> Shapes:
    """One mixer a block, by ``hybrid_override_pattern`` or ``layers_block_type``; MTP by vLLM nemotron_h_mtp.py."""
    w = dims({**c, "head_dim": c.get("head_dim") or c.get("attention_head_dim")}, kv=8, d=128)
    heads, inner = (
        opt(c, "mamba_num_heads", 128),
        opt(c, "mamba_num_heads", 128) * opt(c, "mamba_head_dim", 64),
    )
    groups, state, kernel = opt(c, "n_groups", 8), opt(c, "ssm_state_size", 128), opt(c, "conv_kernel", 4)
    bias, n = opt(c, "mlp_bias", False), opt(c, "n_routed_experts", 8)
    f, latent = opt(c, "moe_intermediate_size", 7688), c.get("moe_latent_size")
    flags = {"proj_bias": opt(c, "use_bias", False), "conv_bias": opt(c, "use_conv_bias", True)}

    def moe(m: str) -> Shapes:
        wide = opt(c, "moe_shared_expert_intermediate_size", 7688)
        out = {
            **linear(f"{m}.gate", n, w.h),
            f"{m}.gate.e_score_correction_bias": (n,),
            f"{m}.experts.up_proj": (n, f, latent or w.h),
            f"{m}.experts.down_proj": (n, latent or w.h, f),
            **plain_mlp(f"{m}.shared_experts", w.h, wide, bias),
        }
        if latent:
            out |= linear(f"{m}.fc1_latent_proj", latent, w.h, bias)
            out |= linear(f"{m}.fc2_latent_proj", w.h, latent, bias)
        return out

    def block(kind: str, p: str) -> Shapes:
        m, kind = f"{p}.mixer", RENAMED.get(kind, kind)
        mixer = {
            "mamba": lambda: mamba2(m, w.h, heads, inner, groups, state, kernel, **flags),
            "attention": lambda: attention(m, w, opt(c, "attention_bias", False)),
            "mlp": lambda: plain_mlp(m, w.h, opt(c, "intermediate_size", 21504), bias),
            "moe": lambda: moe(m),
        }[kind]()
        return {**norm(f"{p}.norm", w.h), **mixer}

    def kinds(names: str, letters: str, default: list[str]) -> list[str]:
        return opt(c, names, [LETTERS[x] for x in opt(c, letters, "")] or default)

    main = kinds("layers_block_type", "hybrid_override_pattern", ["mamba", "moe", "attention", "mlp"])
    c = {**c, "num_hidden_layers": len(main)}
    names = {"embed": "backbone.embeddings", "block": "backbone.layers", "final": "backbone.norm_f"}
    out = decoder(c, lambda i, p: block(main[i], p), h=w.h, vocab=131072, layers=0, **names)
    ahead = kinds("mtp_layers_block_type", "mtp_hybrid_override_pattern", ["attention", "moe"])
    for step in range(opt(c, "num_nextn_predict_layers", 0)):
        p = f"mtp.{step}"
        out |= {**norms(p, w.h, "enorm", "hnorm", "final_layernorm"), **linear(f"{p}.eh_proj", w.h, 2 * w.h)}
        out |= {k: v for i, kind in enumerate(ahead) for k, v in block(kind, f"{p}.layers.{i}").items()}
    return out


def bailing_block(c: Config, second: bool) -> tuple[Dims, bool, bool]:
    """Give the widths, whether query and key are normed, and whether routers have a bias."""
    qk_norm, router_bias = opt(c, "use_qk_norm", second), opt(c, "moe_router_enable_expert_bias", second)
    return dims(c, hidden=2048, heads=16, kv=4), qk_norm, router_bias


def bailing_mlp(c: Config, p: str, i: int, h: int, router_bias: bool, bias: bool) -> Shapes:
    n, f = c["num_experts"], c["moe_intermediate_size"]
    if i < opt(c, "first_k_dense_replace", 0):
        return gated(f"{p}.mlp", h, c["intermediate_size"], bias)
    out = {**linear(f"{p}.mlp.gate", n, h), **experts(f"{p}.mlp.experts", n, h, f)}
    if router_bias:
        out[f"{p}.mlp.gate.expert_bias"] = (n,)
    shared = opt(c, "num_shared_experts", 0) * opt(c, "moe_shared_expert_intermediate_size", f)
    return out | (gated(f"{p}.mlp.shared_experts", h, shared, bias) if shared else {})


def grouped(c: Config, p: str, w: Dims, qk_norm: bool, qkv_bias: bool, bias: bool) -> Shapes:
    """Softmax attention in Ling's names: one matrix for query, key and value."""
    out = linear(f"{p}.attention.query_key_value", w.q + 2 * w.kv, w.h, qkv_bias)
    out |= linear(f"{p}.attention.dense", w.h, w.q, bias)
    return out | (norms(f"{p}.attention", w.d, "query_layernorm", "key_layernorm") if qk_norm else {})


def bailing_moe(c: Config) -> Shapes:
    """List Ling and Ring 1.x and 2.0 (SGLang bailing_moe.py, bailing_moe_nextn.py); 2.0's files say bailing_moe too."""
    second = c["model_type"] == "bailing_moe_v2" or "BailingMoeV2ForCausalLM" in (
        c.get("architectures") or []
    )
    (w, qk_norm, router_bias), bias = bailing_block(c, second), opt(c, "use_bias", False)

    def layer(i: int, p: str) -> Shapes:
        attn = grouped(c, p, w, qk_norm, bias or opt(c, "use_qkv_bias", False), bias)
        return {**attn, **bailing_mlp(c, p, i, w.h, router_bias, bias), **pre_norms(p, w.h)}

    out = decoder(c, layer, h=w.h, vocab=157184, layers=20, embed="model.word_embeddings")
    return out | ling_mtp(c, w.h, layer)


def ling_mtp(c: Config, h: int, layer: Callable[[int, str], Shapes]) -> Shapes:
    out: Shapes = {}
    for i in range(opt(c, "num_nextn_predict_layers", 0)):
        p = f"mtp.{i}"
        out |= {**norms(p, h, "enorm", "hnorm", "final_layernorm"), **linear(f"{p}.eh_proj", h, 2 * h)}
        out |= layer(c["num_hidden_layers"] + i, p)
    return out


def bailing_linear(c: Config) -> Shapes:
    """Ring-linear-2.0 and Ling-2.5 (SGLang bailing_moe_linear.py): lightning layers, the last of each group softmax.

    A group's last layer is grouped-query attention in bailing_moe_linear and latent attention in bailing_hybrid.
    """
    assert "short_conv_kernel_size" not in c, (
        "Ling 3.0's delta attention: no public code was read; telekit refuses it"
    )
    w, qk_norm, router_bias = bailing_block(c, True)
    bias, group, layers = opt(c, "use_bias", False), opt(c, "layer_group_size", 1), c["num_hidden_layers"]
    qkv_bias, latent = bias or opt(c, "use_qkv_bias", False), c["model_type"] == "bailing_hybrid"
    heads = w.q // w.d

    def full(p: str) -> Shapes:
        if not latent:
            return grouped(c, p, w, qk_norm, qkv_bias, bias)
        sizes = [
            opt(c, k, v)
            for k, v in (("kv_lora_rank", 512), ("qk_nope_head_dim", 128), ("qk_rope_head_dim", 64))
        ]
        return mla(f"{p}.attention", w.h, heads, c.get("q_lora_rank"), *sizes, opt(c, "v_head_dim", 128))

    def lightning(p: str) -> Shapes:
        out = grouped(c, p, w._replace(kv=w.q), qk_norm, qkv_bias, bias)
        return {**out, **linear(f"{p}.attention.g_proj", w.q, w.h), **norm(f"{p}.attention.g_norm", w.q)}

    def layer(i: int, p: str) -> Shapes:
        whole = (i + 1) % group == 0 or i >= layers // group * group
        return {
            **(full(p) if whole else lightning(p)),
            **bailing_mlp(c, p, i, w.h, router_bias, False),
            **pre_norms(p, w.h),
        }

    out = decoder(c, layer, h=w.h, vocab=157184, layers=20, embed="model.word_embeddings")
    return out | ling_mtp(c, w.h, layer)


def granitemoehybrid(c: Config) -> Shapes:
    w, layers = dims(c), opt(c, "num_hidden_layers", 32)
    f, n, shared = (
        opt(c, "intermediate_size", 11008),
        opt(c, "num_local_experts", 8),
        opt(c, "shared_intermediate_size", 1024),
    )
    kinds = opt(c, "layer_types", opt(c, "layers_block_type", ["mamba"] * layers))
    inner, flags = int(opt(c, "mamba_expand", 2) * w.h), {"proj_bias": opt(c, "mamba_proj_bias", False)}
    flags["conv_bias"] = opt(c, "mamba_conv_bias", True)
    sizes = [opt(c, k, v) for k, v in (("mamba_n_groups", 1), ("mamba_d_state", 256), ("mamba_d_conv", 4))]

    def layer(i: int, p: str) -> Shapes:
        out = {**linear(f"{p}.shared_mlp.input_linear", 2 * shared, w.h), **pre_norms(p, w.h)}
        out |= linear(f"{p}.shared_mlp.output_linear", w.h, shared)
        if n:
            out |= {
                **linear(f"{p}.block_sparse_moe.router", n, w.h),
                **experts(f"{p}.block_sparse_moe.experts", n, w.h, f),
            }
        if kinds[i] in ("attention", "full_attention"):
            return out | attention(f"{p}.self_attn", w, opt(c, "attention_bias", False))
        return out | mamba2(f"{p}.mamba", w.h, opt(c, "mamba_n_heads", 128), inner, *sizes, **flags)

    return decoder(c, layer, h=w.h, vocab=32000, layers=32)


def falcon_h1(c: Config) -> Shapes:
    """Each layer has a Mamba-2 mixer and attention side by side."""
    w, f, layers = dims(c, kv=8), opt(c, "intermediate_size", 14336), opt(c, "num_hidden_layers", 32)
    inner = opt(c, "mamba_d_ssm", 1024 if "mamba_d_ssm" not in c else int(opt(c, "mamba_expand", 2) * w.h))
    sizes = [opt(c, k, v) for k, v in (("mamba_n_groups", 1), ("mamba_d_state", 256), ("mamba_d_conv", 4))]
    flags = {
        "proj_bias": opt(c, "mamba_proj_bias", False),
        "out_bias": opt(c, "projectors_bias", False),
        "conv_bias": opt(c, "mamba_conv_bias", True),
        "gated_norm": opt(c, "mamba_rms_norm", False),
    }

    def layer(_: int, p: str) -> Shapes:
        return {
            **mamba2(f"{p}.mamba", w.h, opt(c, "mamba_n_heads", 128), inner, *sizes, **flags),
            **attention(f"{p}.self_attn", w, opt(c, "attention_bias", False)),
            **gated(f"{p}.feed_forward", w.h, f, opt(c, "mlp_bias", False)),
            **norms(p, w.h, "input_layernorm", "pre_ff_layernorm"),
        }

    return decoder(c, layer, h=w.h, vocab=128000, layers=layers, final="model.final_layernorm")


def jamba(c: Config) -> Shapes:
    """Mamba-1 with normed step, input and output; attention and experts by period and offset."""
    w, f, n = dims(c, kv=8), opt(c, "intermediate_size", 14336), opt(c, "num_experts", 16)
    state, kernel, inner = (
        opt(c, "mamba_d_state", 16),
        opt(c, "mamba_d_conv", 4),
        opt(c, "mamba_expand", 2) * w.h,
    )
    rank = opt(c, "mamba_dt_rank", "auto")
    rank, bias = ceil(w.h / 16) if rank == "auto" else rank, opt(c, "mamba_proj_bias", False)

    def mamba(p: str) -> Shapes:
        return {
            f"{p}.A_log": (inner, state),
            f"{p}.D": (inner,),
            f"{p}.conv1d.weight": (inner, 1, kernel),
            **({f"{p}.conv1d.bias": (inner,)} if opt(c, "mamba_conv_bias", True) else {}),
            **linear(f"{p}.in_proj", 2 * inner, w.h, bias),
            **linear(f"{p}.x_proj", rank + 2 * state, inner),
            **linear(f"{p}.dt_proj", inner, rank, True),
            **linear(f"{p}.out_proj", w.h, inner, bias),
            **norm(f"{p}.dt_layernorm", rank),
            **norms(p, state, "b_layernorm", "c_layernorm"),
        }

    def at(i: int, what: str, period: int, offset: int) -> bool:
        return i % opt(c, f"{what}_layer_period", period) == opt(c, f"{what}_layer_offset", offset)

    def layer(i: int, p: str) -> Shapes:
        mixer = attention(f"{p}.self_attn", w) if at(i, "attn", 8, 4) else mamba(f"{p}.mamba")
        ff = f"{p}.feed_forward"
        mlp = gated(ff, w.h, f)
        if at(i, "expert", 2, 1) and n > 1:
            mlp = {**linear(f"{ff}.router", n, w.h), **experts(f"{ff}.experts", n, w.h, f)}
        return {**mixer, **mlp, **norms(p, w.h, "input_layernorm", "pre_ff_layernorm")}

    return decoder(c, layer, h=w.h, vocab=65536, layers=32, final="model.final_layernorm")
