"""Pieces of tensor listings that several families share.

A listing maps the names of the tensors of a checkpoint to their shapes. It is written from the modelling code of the
model and from nothing in telekit. An absent or null key takes the default of the configuration class.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def opt(config: Config, key: str, default: Any) -> Any:
    """Read a key; absent and null both mean the class's default."""
    value = config.get(key)
    return default if value is None else value


class Dims(NamedTuple):
    """Widths of an attention block: hidden, one head, all query heads, all key/value heads."""

    h: int
    d: int
    q: int
    kv: int


def dims(
    c: Config, *, hidden: int = 4096, heads: int = 32, kv: int | None = None, d: int | None = None
) -> Dims:
    """Widths from the usual keys; the keyword arguments are the class's defaults."""
    h, n = opt(c, "hidden_size", hidden), opt(c, "num_attention_heads", heads)
    # a null num_key_value_heads means multi-head attention even where the class's own default is grouped
    n_kv = (
        n
        if "num_key_value_heads" in c and c["num_key_value_heads"] is None
        else opt(c, "num_key_value_heads", kv or n)
    )
    head = opt(c, "head_dim", d or h // n)
    return Dims(h, head, n * head, n_kv * head)


def linear(name: str, out: int, inp: int, bias: bool = False) -> Shapes:
    return {f"{name}.weight": (out, inp), **({f"{name}.bias": (out,)} if bias else {})}


def norm(name: str, width: int, bias: bool = False) -> Shapes:
    return {f"{name}.weight": (width,), **({f"{name}.bias": (width,)} if bias else {})}


def norms(prefix: str, width: int, *names: str, bias: bool = False) -> Shapes:
    return {k: v for name in names for k, v in norm(f"{prefix}.{name}", width, bias).items()}


def pre_norms(prefix: str, width: int, bias: bool = False) -> Shapes:
    return norms(prefix, width, "input_layernorm", "post_attention_layernorm", bias=bias)


def attention(
    p: str, w: Dims, bias: bool = False, o_bias: bool | None = None, out: str = "o_proj", keys: bool = True
) -> Shapes:
    """Four projections; ``keys=False`` where another layer's keys and values are read."""
    own = {**linear(f"{p}.k_proj", w.kv, w.h, bias), **linear(f"{p}.v_proj", w.kv, w.h, bias)} if keys else {}
    o_bias = bias if o_bias is None else o_bias
    return {**linear(f"{p}.q_proj", w.q, w.h, bias), **own, **linear(f"{p}.{out}", w.h, w.q, o_bias)}


def mla(p: str, h: int, heads: int, q_rank: int | None, kv_rank: int, nope: int, rope: int, v: int) -> Shapes:
    """Multi-head latent attention in DeepSeek's names."""
    q = heads * (nope + rope)
    queries = linear(f"{p}.q_proj", q, h)
    if q_rank:
        queries = {
            **linear(f"{p}.q_a_proj", q_rank, h),
            **norm(f"{p}.q_a_layernorm", q_rank),
            **linear(f"{p}.q_b_proj", q, q_rank),
        }
    return {
        **queries,
        **linear(f"{p}.kv_a_proj_with_mqa", kv_rank + rope, h),
        **norm(f"{p}.kv_a_layernorm", kv_rank),
        **linear(f"{p}.kv_b_proj", heads * (nope + v), kv_rank),
        **linear(f"{p}.o_proj", h, heads * v),
    }


def plain_mlp(
    p: str, h: int, f: int, bias: bool = False, up: str = "up_proj", down: str = "down_proj"
) -> Shapes:
    return {**linear(f"{p}.{up}", f, h, bias), **linear(f"{p}.{down}", h, f, bias)}


def gated(p: str, h: int, f: int, bias: bool = False) -> Shapes:
    return {**linear(f"{p}.gate_proj", f, h, bias), **plain_mlp(p, h, f, bias)}


def experts(p: str, n: int, h: int, f: int) -> Shapes:
    """All experts of a layer, stacked as transformers stacks them when it reads the checkpoint."""
    return {f"{p}.gate_up_proj": (n, 2 * f, h), f"{p}.down_proj": (n, h, f)}


def mamba2(
    p: str, h: int, heads: int, d_inner: int, groups: int, state: int, kernel: int, **flags: bool
) -> Shapes:
    """Mamba-2 mixer; flags: proj_bias, out_bias (as proj_bias when not said), conv_bias, gated_norm."""
    conv, bias = d_inner + 2 * groups * state, flags.get("proj_bias", False)
    return {
        **{f"{p}.{name}": (heads,) for name in ("dt_bias", "A_log", "D")},
        f"{p}.conv1d.weight": (conv, 1, kernel),
        **({f"{p}.conv1d.bias": (conv,)} if flags.get("conv_bias", True) else {}),
        **linear(f"{p}.in_proj", d_inner + conv + heads, h, bias),
        **(norm(f"{p}.norm", d_inner) if flags.get("gated_norm", True) else {}),
        **linear(f"{p}.out_proj", h, d_inner, flags.get("out_bias", bias)),
    }


def decoder(
    c: Config,
    layer: Callable[[int, str], Shapes],
    *,
    h: int,
    vocab: int,
    layers: int,
    tie: bool = False,
    bias: bool = False,
    head_bias: bool = False,
    embed: str = "model.embed_tokens",
    block: str = "model.layers",
    final: str = "model.norm",
    head: str = "lm_head",
) -> Shapes:
    """Embedding, the layers, the last norm, and the head unless it is tied; the keyword arguments are defaults."""
    vocab = opt(c, "vocab_size", vocab)
    out: Shapes = {f"{embed}.weight": (vocab, h)}
    for i in range(opt(c, "num_hidden_layers", layers)):
        out.update(layer(i, f"{block}.{i}"))
    out.update(norm(final, h, bias))
    if not opt(c, "tie_word_embeddings", tie):
        out.update(linear(head, vocab, h, head_bias))
    return out
