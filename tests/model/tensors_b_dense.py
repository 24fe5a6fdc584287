"""Tensor listings of families without experts; sources: transformers 5 ``models/<family>/modeling_<family>.py``."""

from tensors_b_parts import (
    Config,
    Dims,
    Shapes,
    attention,
    decoder,
    dims,
    gated,
    linear,
    norm,
    norms,
    opt,
    plain_mlp,
    pre_norms,
)


def llama_layer(
    p: str, w: Dims, f: int, *, bias: bool = False, o_bias: bool | None = None, mlp_bias: bool = False
) -> Shapes:
    return {
        **attention(f"{p}.self_attn", w, bias, o_bias),
        **gated(f"{p}.mlp", w.h, f, mlp_bias),
        **pre_norms(p, w.h),
    }


def llama(c: Config) -> Shapes:
    w, f = dims(c), opt(c, "intermediate_size", 11008)
    bias, mlp_bias = opt(c, "attention_bias", False), opt(c, "mlp_bias", False)
    return decoder(
        c, lambda _, p: llama_layer(p, w, f, bias=bias, mlp_bias=mlp_bias), h=w.h, vocab=32000, layers=32
    )


def mistral(c: Config) -> Shapes:  # no bias key is read
    w, f = dims(c, kv=8), opt(c, "intermediate_size", 14336)
    return decoder(c, lambda _, p: llama_layer(p, w, f), h=w.h, vocab=32000, layers=32)


def ministral3(c: Config) -> Shapes:
    w, f = dims(c, kv=8, d=128), opt(c, "intermediate_size", 14336)
    return decoder(c, lambda _, p: llama_layer(p, w, f), h=w.h, vocab=131072, layers=34)


def seed_oss(c: Config) -> Shapes:
    w, f = dims(c, heads=80, kv=8, d=128), opt(c, "intermediate_size", 27648)
    bias, o_bias = opt(c, "attention_bias", True), opt(c, "attention_out_bias", False)
    mlp_bias = opt(c, "mlp_bias", False)

    def layer(_: int, p: str) -> Shapes:
        return llama_layer(p, w, f, bias=bias, o_bias=o_bias, mlp_bias=mlp_bias)

    return decoder(c, layer, h=w.h, vocab=155136, layers=64)


def ernie4_5(c: Config) -> Shapes:
    w, f = dims(c, hidden=1024, heads=16, kv=2, d=128), opt(c, "intermediate_size", 3072)
    bias = opt(c, "use_bias", False)

    def layer(_: int, p: str) -> Shapes:
        return llama_layer(p, w, f, bias=bias, mlp_bias=bias)

    return decoder(c, layer, h=w.h, vocab=103424, layers=18, tie=True)


def pangu_embedded(c: Config) -> Shapes:
    """List openPangu-Embedded; vLLM openpangu.py: one ``bias`` for the attention, none in the MLP."""
    w, f = dims(c), c["intermediate_size"]
    bias = opt(c, "attention_bias", False) or opt(c, "bias", False)
    qkv, mlp_bias = opt(c, "qkv_bias", bias), opt(c, "mlp_bias", False)

    def layer(_: int, p: str) -> Shapes:
        return llama_layer(p, w, f, bias=qkv, o_bias=bias, mlp_bias=mlp_bias)

    return decoder(c, layer, h=w.h, vocab=153376, layers=34)


def hunyuan_v1_dense(c: Config) -> Shapes:
    w, f = dims(c), opt(c, "intermediate_size", 11008)
    bias = opt(c, "attention_bias", False)

    def layer(_: int, p: str) -> Shapes:
        qk = norms(f"{p}.self_attn", w.d, "query_layernorm", "key_layernorm")
        return {**llama_layer(p, w, f, bias=bias), **qk}

    return decoder(c, layer, h=w.h, vocab=290943, layers=32)


def gemma2(c: Config, qk_norm: bool = False, vocab: int = 256000) -> Shapes:
    """Four norms a layer, two before and two after; the head is as wide as ``head_dim`` says, 256 by default."""
    w, f = dims(c, hidden=2304, heads=8, kv=4, d=256), opt(c, "intermediate_size", 9216)
    bias = opt(c, "attention_bias", False)

    def layer(_: int, p: str) -> Shapes:
        out = norms(p, w.h, "pre_feedforward_layernorm", "post_feedforward_layernorm")
        qk = norms(f"{p}.self_attn", w.d, "q_norm", "k_norm") if qk_norm else {}
        return {**llama_layer(p, w, f, bias=bias), **out, **qk}

    return decoder(c, layer, h=w.h, vocab=vocab, layers=26, tie=True)


def gemma3_text(c: Config) -> Shapes:
    return gemma2(c, qk_norm=True, vocab=262208)


def phi3(c: Config) -> Shapes:
    w, f = dims(c, hidden=3072), opt(c, "intermediate_size", 8192)

    def layer(_: int, p: str) -> Shapes:
        return {
            **linear(f"{p}.self_attn.qkv_proj", w.q + 2 * w.kv, w.h),
            **linear(f"{p}.self_attn.o_proj", w.h, w.q),
            **linear(f"{p}.mlp.gate_up_proj", 2 * f, w.h),
            **linear(f"{p}.mlp.down_proj", w.h, f),
            **pre_norms(p, w.h),
        }

    return decoder(c, layer, h=w.h, vocab=32064, layers=32)


def olmo2(c: Config) -> Shapes:
    """Norms after the blocks only, and query and key normed over all heads together."""
    w, f = dims(c), opt(c, "intermediate_size", 11008)
    bias = opt(c, "attention_bias", False)

    def layer(_: int, p: str) -> Shapes:
        return {
            **attention(f"{p}.self_attn", w, bias),
            **norm(f"{p}.self_attn.q_norm", w.q),
            **norm(f"{p}.self_attn.k_norm", w.kv),
            **gated(f"{p}.mlp", w.h, f),
            **norms(p, w.h, "post_attention_layernorm", "post_feedforward_layernorm"),
        }

    return decoder(c, layer, h=w.h, vocab=50304, layers=32)


def exaone4(c: Config) -> Shapes:
    w, f = dims(c, kv=32), opt(c, "intermediate_size", 16384)

    def layer(_: int, p: str) -> Shapes:
        return {
            **attention(f"{p}.self_attn", w),
            **norms(f"{p}.self_attn", w.d, "q_norm", "k_norm"),
            **gated(f"{p}.mlp", w.h, f),
            **norms(p, w.h, "post_attention_layernorm", "post_feedforward_layernorm"),
        }

    return decoder(c, layer, h=w.h, vocab=102400, layers=32)


def cohere2(c: Config) -> Shapes:
    """Attention and MLP side by side after one norm; head_dim is always hidden over heads."""
    w, f = dims({**c, "head_dim": None}, hidden=8192, heads=64), opt(c, "intermediate_size", 22528)
    bias = opt(c, "attention_bias", False)

    def layer(_: int, p: str) -> Shapes:
        blocks = {**attention(f"{p}.self_attn", w, bias), **gated(f"{p}.mlp", w.h, f)}
        return {**blocks, **norm(f"{p}.input_layernorm", w.h)}

    return decoder(c, layer, h=w.h, vocab=256000, layers=40, tie=True)


def nemotron(c: Config) -> Shapes:
    """Nemotron-4: LayerNorm with bias, MLP of two matrices."""
    w, f = dims(c, hidden=6144, heads=48), opt(c, "intermediate_size", 24576)
    bias, mlp_bias = opt(c, "attention_bias", False), opt(c, "mlp_bias", False)

    def layer(_: int, p: str) -> Shapes:
        blocks = {**attention(f"{p}.self_attn", w, bias), **plain_mlp(f"{p}.mlp", w.h, f, mlp_bias)}
        return {**blocks, **pre_norms(p, w.h, bias=True)}

    return decoder(c, layer, h=w.h, vocab=256000, layers=32, bias=True)


def nemotron_nas(c: Config) -> Shapes:
    """List DeciLM: each block says its key/value heads, its width, and what it leaves out (vLLM nemotron_nas.py)."""
    h, heads = opt(c, "hidden_size", 4096), opt(c, "num_attention_heads", 32)
    d = opt(c, "head_dim", h // heads)
    bias = opt(c, "attention_bias", False)

    def width(multiple: float) -> int:
        exact = int(2 * multiple * h / 3)
        return -(-exact // 256) * 256

    def layer(i: int, p: str) -> Shapes:
        attn, ffn, out = c["block_configs"][i]["attention"], c["block_configs"][i]["ffn"], {}
        replaced = attn.get("replace_with_linear") or ffn.get("replace_with_linear")
        assert not replaced, (
            "no published checkpoint has a block replaced by one linear layer; telekit refuses it"
        )
        if not attn["no_op"]:
            w = Dims(h, d, heads * d, heads // attn["n_heads_in_group"] * d)
            out |= {**attention(f"{p}.self_attn", w, bias), **norm(f"{p}.input_layernorm", h)}
        if not ffn["no_op"]:
            wide = width(ffn["ffn_mult"]) if "ffn_mult" in ffn else ffn["intermediate_size"]
            out |= gated(f"{p}.mlp", h, wide, opt(c, "mlp_bias", False))
            out |= norm(f"{p}.post_attention_layernorm", h)
        return out

    return decoder(c, layer, h=h, vocab=32000, layers=32)


def gpt2(c: Config) -> Shapes:
    h = opt(c, "n_embd", opt(c, "hidden_size", 768))
    f = opt(c, "n_inner", 4 * h)

    def layer(_: int, p: str) -> Shapes:
        return {
            **norms(p, h, "ln_1", "ln_2", bias=True),
            **linear(f"{p}.attn.c_attn", 3 * h, h, True),
            **linear(f"{p}.attn.c_proj", h, h, True),
            **plain_mlp(f"{p}.mlp", h, f, True, "c_fc", "c_proj"),
        }

    c = {**c, "num_hidden_layers": opt(c, "n_layer", opt(c, "num_hidden_layers", 12))}
    names = {"embed": "transformer.wte", "block": "transformer.h", "final": "transformer.ln_f"}
    positions = opt(c, "n_positions", opt(c, "max_position_embeddings", 1024))
    out = decoder(c, layer, h=h, vocab=50257, layers=12, tie=True, bias=True, **names)
    return {**out, "transformer.wpe.weight": (positions, h)}


def gpt_neox(c: Config) -> Shapes:
    h, f, bias = (
        opt(c, "hidden_size", 6144),
        opt(c, "intermediate_size", 24576),
        opt(c, "attention_bias", True),
    )

    def layer(_: int, p: str) -> Shapes:
        return {
            **pre_norms(p, h, bias=True),
            **linear(f"{p}.attention.query_key_value", 3 * h, h, bias),
            **linear(f"{p}.attention.dense", h, h, bias),
            **plain_mlp(f"{p}.mlp", h, f, True, "dense_h_to_4h", "dense_4h_to_h"),
        }

    names = {"embed": "gpt_neox.embed_in", "block": "gpt_neox.layers", "final": "gpt_neox.final_layer_norm"}
    return decoder(c, layer, h=h, vocab=50432, layers=44, bias=True, head="embed_out", **names)


def bloom(c: Config) -> Shapes:
    h = opt(c, "hidden_size", opt(c, "n_embed", 64))

    def layer(_: int, p: str) -> Shapes:
        return {
            **pre_norms(p, h, bias=True),
            **linear(f"{p}.self_attention.query_key_value", 3 * h, h, True),
            **linear(f"{p}.self_attention.dense", h, h, True),
            **plain_mlp(f"{p}.mlp", h, 4 * h, True, "dense_h_to_4h", "dense_4h_to_h"),
        }

    c = {**c, "num_hidden_layers": opt(c, "n_layer", opt(c, "num_hidden_layers", 2))}
    names = {"embed": "transformer.word_embeddings", "block": "transformer.h", "final": "transformer.ln_f"}
    out = decoder(c, layer, h=h, vocab=250880, layers=2, tie=True, bias=True, **names)
    return {**out, **norm("transformer.word_embeddings_layernorm", h, True)}


def opt_family(c: Config) -> Shapes:
    """OPT: learned positions with two rows in front; OPT-350m projects its embedding and norms after the blocks."""
    h, f, bias = opt(c, "hidden_size", 768), opt(c, "ffn_dim", 3072), opt(c, "enable_bias", True)
    narrow, affine = opt(c, "word_embed_proj_dim", h), opt(c, "layer_norm_elementwise_affine", True)

    def layer(_: int, p: str) -> Shapes:
        w = Dims(h, 0, h, h)
        return {
            **attention(f"{p}.self_attn", w, bias, out="out_proj"),
            **linear(f"{p}.fc1", f, h, bias),
            **linear(f"{p}.fc2", h, f, bias),
            **(norms(p, h, "self_attn_layer_norm", "final_layer_norm", bias=True) if affine else {}),
        }

    d = "model.decoder"
    out = decoder(
        c, layer, h=narrow, vocab=50272, layers=12, tie=True, embed=f"{d}.embed_tokens", block=f"{d}.layers"
    )
    del out["model.norm.weight"]
    out[f"{d}.embed_positions.weight"] = (opt(c, "max_position_embeddings", 2048) + 2, h)
    last = opt(c, "do_layer_norm_before", True) and not opt(c, "_remove_final_layer_norm", False)
    if last and affine:
        out |= norm(f"{d}.final_layer_norm", h, True)
    if narrow != h:
        out |= {**linear(f"{d}.project_in", h, narrow), **linear(f"{d}.project_out", narrow, h)}
    return out


def telechat(c: Config) -> Shapes:
    """TeleChat2 (modeling_telechat2.py): only the matrices that write to the residual stream have a bias."""
    h, f, heads = c["hidden_size"], c["ffn_hidden_size"], c["n_head"]
    kv = opt(c, "num_key_value_heads", heads) * (h // heads)

    def layer(_: int, p: str) -> Shapes:
        return {
            **pre_norms(p, h),
            **linear(f"{p}.self_attention.query", h, h),
            **linear(f"{p}.self_attention.key_value", 2 * kv, h),
            **linear(f"{p}.self_attention.dense", h, h, True),
            **linear(f"{p}.mlp.gate_proj", f, h),
            **linear(f"{p}.mlp.up_proj", f, h),
            **linear(f"{p}.mlp.down_proj", h, f, True),
        }

    c = {**c, "num_hidden_layers": opt(c, "n_layer", c.get("num_hidden_layers"))}
    names = {"embed": "transformer.word_embeddings", "block": "transformer.h", "final": "transformer.ln_f"}
    out = decoder(c, layer, h=h, vocab=160256, layers=30, **names)
    return {**out, **(norm("transformer.word_embeddings_layernorm", h) if c.get("embed_layernorm") else {})}
