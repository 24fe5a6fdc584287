"""Pieces of a tensor listing, shared by the families: each returns {name: shape}, weights as (out, in)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shapes = dict[str, tuple[int, ...]]
Config = Mapping[str, Any]


def at(prefix: str, *parts: Shapes) -> Shapes:
    """Join parts, and put them under a prefix; two tensors of one name are an error of the listing."""
    out: Shapes = {}
    for part in parts:
        for name, shape in part.items():
            if f"{prefix}{name}" in out:
                raise AssertionError(f"{prefix}{name} listed twice")
            out[f"{prefix}{name}"] = shape
    return out


def join(*parts: Shapes) -> Shapes:
    return at("", *parts)


def text(config: Config) -> dict[str, Any]:
    """Give the language model's config: a wrapper's ``text_config`` (which may leave the tie outside), or itself."""
    outer = {k: config[k] for k in ("tie_word_embeddings",) if k in config}
    return outer | dict(config["text_config"]) if "text_config" in config else dict(config)


def get(c: Config, key: str, default: Any) -> Any:
    """Read a key; absent and null both mean the default."""
    value = c.get(key)
    return default if value is None else value


def linear(name: str, out: int, inp: int, bias: Any = False) -> Shapes:
    return {f"{name}.weight": (out, inp)} | ({f"{name}.bias": (out,)} if bias else {})


def norms(*names: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,) for name in names}


def mlp(name: str, hidden: int, width: int) -> Shapes:
    up = join(linear(f"{name}.gate_proj", width, hidden), linear(f"{name}.up_proj", width, hidden))
    return join(up, linear(f"{name}.down_proj", hidden, width))


def moe(
    hidden: int, width: int, experts: int, *, bias: bool, shared: int = 0, shared_name: str = "shared_experts"
) -> Shapes:
    """List a mixture of experts: router, stacked routed experts, and one shared expert ``shared`` wide."""
    out = join(
        linear("mlp.gate", experts, hidden),
        {"mlp.experts.gate_up_proj": (experts, 2 * width, hidden)},
        {"mlp.experts.down_proj": (experts, hidden, width)},
    )
    if bias:
        out["mlp.gate.e_score_correction_bias"] = (experts,)
    return join(out, mlp(f"mlp.{shared_name}", hidden, shared)) if shared else out


def gqa(
    hidden: int, heads: int, kv: int, dim: int, *, v_dim: int | None = None, bias: Any = False, o_bias: Any = False,
    qk_norm: tuple[int, int] | None = None,
) -> Shapes:  # fmt: skip
    """List grouped-query attention; ``qk_norm`` gives the widths of the query's and the key's norm."""
    v = dim if v_dim is None else v_dim
    out = join(
        linear("self_attn.q_proj", heads * dim, hidden, bias),
        linear("self_attn.k_proj", kv * dim, hidden, bias),
        linear("self_attn.v_proj", kv * v, hidden, bias),
        linear("self_attn.o_proj", hidden, heads * v, o_bias),
    )
    if qk_norm:
        out |= {"self_attn.q_norm.weight": (qk_norm[0],), "self_attn.k_norm.weight": (qk_norm[1],)}
    return out


def mla(c: Config) -> Shapes:
    """List DeepSeek's latent attention; a null ``q_lora_rank`` means one query projection."""
    h, heads, bias = c["hidden_size"], c["num_attention_heads"], c.get("attention_bias")
    q_rank, kv_rank = c.get("q_lora_rank"), get(c, "kv_lora_rank", 512)
    nope, rope, v = get(c, "qk_nope_head_dim", 128), get(c, "qk_rope_head_dim", 64), get(c, "v_head_dim", 128)
    if q_rank is None:
        query = linear("q_proj", heads * (nope + rope), h)
    else:
        query = join(
            linear("q_a_proj", q_rank, h, bias),
            norms("q_a_layernorm", size=q_rank),
            linear("q_b_proj", heads * (nope + rope), q_rank),
        )
    key_value = join(
        linear("kv_a_proj_with_mqa", kv_rank + rope, h, bias),
        norms("kv_a_layernorm", size=kv_rank),
        linear("kv_b_proj", heads * (nope + v), kv_rank),
    )
    return at("self_attn.", query, key_value, linear("o_proj", h, heads * v, bias))


def layer(i: int | str, hidden: int, *parts: Shapes) -> Shapes:
    """Place one decoder layer; an ``i`` that is text is taken as the whole prefix."""
    two = norms("input_layernorm", "post_attention_layernorm", size=hidden)
    return at(i if isinstance(i, str) else f"model.layers.{i}.", *parts, two)


def model(c: Config, *layers: Shapes, tied: bool = False) -> Shapes:
    """Add embedding, last norm and head; ``tied`` is the default of ``tie_word_embeddings``."""
    h, v = c["hidden_size"], c["vocab_size"]
    ends = join({"model.embed_tokens.weight": (v, h)}, norms("model.norm", size=h))
    head = {} if c.get("tie_word_embeddings", tied) else linear("lm_head", v, h)
    return join(ends, *layers, head)


def mtp(i: int, hidden: int, *parts: Shapes) -> Shapes:
    """Place one multi-token-prediction layer as DeepSeek-V3 stores it, less its copies of embedding and head."""
    three = norms("enorm", "hnorm", "shared_head.norm", size=hidden)
    extra = at(f"mtp.{i}.", three, linear("eh_proj", hidden, 2 * hidden))
    return join(layer(f"mtp.{i}.", hidden, *parts), extra)
