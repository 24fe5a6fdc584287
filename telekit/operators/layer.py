"""A layer as a list of operators: FLOPs, bytes and what is kept for the backward pass.

Everything is for **one micro-batch on one device**. Shapes follow the layout: a number for one layout, a column
(n, 1) for a table. The layer is Megatron-Core's, with flash attention and no dropout.

Symbols: ``t`` tokens of a micro-batch on a context rank; ``t_s`` the same after sequence parallelism; ``a`` bytes of an
activation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from telekit.model.config import (
    FeedForward,
    GroupedQueryAttention,
    LayerKind,
    MixtureOfExperts,
    ModelConfig,
    MultiHeadLatentAttention,
)
from telekit.model.flops import mean_keys
from telekit.training.config import BYTES, TrainConfig

FLASH_BACKWARD = 2.5
"""Flash attention's backward does five products where the forward does two (Dao 2023, section 3.2)."""


@dataclass(frozen=True)
class Operator:
    """One kernel, or a few that belong together.

    Parameters
    ----------
    name : str
        What it is.
    kind : str
        gemm, grouped_gemm, attention or memory (bound by bytes alone).
    modules : tuple of str
        Megatron-Core's recompute modules it is part of.
    forward_flops, backward_flops : float or column
        Arithmetic of one pass.
    forward_bytes, backward_bytes : float or column
        Traffic with the device's memory of one pass.
    saved_bytes : float or column
        Output kept for the backward pass, unless one of ``modules`` is recomputed.
    held_bytes : float or column
        Output kept even then: only full recompute frees it.
    forward_cast_bytes, backward_cast_bytes : float or column
        Traffic of the casts to fp8 around a matrix product, which are kernels of their own.
    """

    name: str
    kind: str
    modules: tuple[str, ...]
    forward_flops: Any
    backward_flops: Any
    forward_bytes: Any
    backward_bytes: Any
    saved_bytes: Any = 0.0
    held_bytes: Any = 0.0
    forward_cast_bytes: Any = 0.0
    backward_cast_bytes: Any = 0.0


@dataclass(frozen=True)
class Shapes:
    """Token counts and byte widths that every operator of a layer uses.

    ``bytes`` is an activation between operators, ``product_bytes`` one that a matrix product reads and keeps for its
    backward pass (1 in fp8 recipes; DeepSeek-V3, arXiv 2412.19437, section 3.3.3).
    """

    hidden: int
    bytes: int
    product_bytes: int
    tp: Any
    tokens: Any
    shard_tokens: Any
    seq_len: int

    @classmethod
    def of(cls, model: ModelConfig, train: TrainConfig, layout: Any) -> Shapes:
        """Shapes of one micro-batch under a layout."""
        tokens = layout.micro_batch * float(train.seq_len) / layout.cp
        return cls(
            hidden=model.hidden_size,
            bytes=train.activation_bytes,
            product_bytes=BYTES[train.precision],
            tp=layout.tp,
            tokens=tokens,
            shard_tokens=tokens / layout.sequence_shards,
            seq_len=train.seq_len,
        )

    def gemm(
        self,
        name: str,
        tokens: Any,
        inner: Any,
        outer: Any,
        *modules: str,
        kind: str = "gemm",
        groups: Any = 1.0,
        saved: Any = 0.0,
        held: Any = 0.0,
    ) -> Operator:
        """Product of (tokens, inner) with (inner, outer); ``groups`` weight matrices of that size are read."""
        flops = 2.0 * tokens * inner * outer
        weights = self.product_bytes * groups * inner * outer
        moved = tokens * (self.product_bytes * inner + self.bytes * outer) + weights
        # fp8: the input is cast forward; backward the output's gradient, in two orders, and the input once more
        cast = float(self.product_bytes < self.bytes) * tokens
        casts = (cast * inner * (self.bytes + 1), cast * (outer * (self.bytes + 2) + 2 * inner))
        return Operator(name, kind, modules, flops, 2.0 * flops, moved, 2.0 * moved, saved, held, *casts)

    def stream(
        self,
        name: str,
        forward_bytes: Any,
        backward_bytes: Any,
        *modules: str,
        saved: Any = 0.0,
        held: Any = 0.0,
    ) -> Operator:
        """Element-wise work: only its bytes count."""
        return Operator(name, "memory", modules, 0.0, 0.0, forward_bytes, backward_bytes, saved, held)


def layer_operators(
    model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any
) -> tuple[Operator, ...]:
    """Operators of one transformer block, in the order of the forward pass."""
    shapes = Shapes.of(model, train, layout)
    attention = _mla(shapes, kind.attention) if kind.attention.kind == "mla" else _gqa(shapes, kind.attention)
    mlp = _dense(shapes, kind.mlp) if kind.mlp.kind == "dense" else _experts(shapes, kind.mlp, layout)
    return (_norm(shapes, "input_norm"), *attention, _norm(shapes, "pre_mlp_norm"), *mlp)


def _norm(x: Shapes, name: str) -> Operator:
    width = x.bytes * x.shard_tokens * x.hidden
    # forward: read the block's output and the residual, write their sum and its norm; the sum is held
    output = x.product_bytes * x.shard_tokens * x.hidden
    return x.stream(name, 4.0 * width, 5.0 * width, "layernorm", saved=output, held=width)


def _core_attention(
    x: Shapes, heads: int, qk_dim: int, v_dim: int, read_dim: float, window: int | None
) -> Operator:
    flops = 2.0 * x.tokens * mean_keys(x.seq_len, window) * heads * (qk_dim + v_dim) / x.tp
    output = x.bytes * x.tokens * heads * v_dim / x.tp
    moved = x.bytes * x.tokens * read_dim / x.tp + output
    log_sum_exp = 4.0 * x.tokens * heads / x.tp
    return Operator(
        "core_attention",
        "attention",
        ("core_attn",),
        flops,
        FLASH_BACKWARD * flops,
        moved,
        3.0 * moved,
        log_sum_exp,
        output,
    )


def _gqa(x: Shapes, spec: GroupedQueryAttention) -> Iterator[Operator]:
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    width = float(queries + 2 * keys)
    rows = x.bytes * x.tokens * width / x.tp
    yield x.gemm("qkv_projection", x.tokens, x.hidden, width / x.tp, held=rows)
    turned = x.bytes * x.tokens * (queries + keys) / x.tp
    if spec.qk_norm != "none":
        yield x.stream("qk_norm", 2.0 * turned, 3.0 * turned, held=turned)
    yield x.stream("rotary", 2.0 * turned, 2.0 * turned)
    yield _core_attention(x, spec.heads, spec.head_dim, spec.head_dim, width, spec.window)
    yield x.gemm("output_projection", x.tokens, queries / x.tp, x.hidden)


def _mla(x: Shapes, spec: MultiHeadLatentAttention) -> Iterator[Operator]:
    qk_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim
    latent = spec.kv_lora_rank + spec.qk_rope_head_dim
    up = "mla_up_proj"
    queries = x.bytes * x.tokens * spec.heads * qk_dim / x.tp
    if spec.q_lora_rank is None:
        yield x.gemm("q_projection", x.tokens, x.hidden, spec.heads * qk_dim / x.tp, held=queries)
    else:
        small = x.bytes * x.shard_tokens * spec.q_lora_rank
        yield x.gemm("q_down_projection", x.shard_tokens, x.hidden, spec.q_lora_rank, held=small)
        yield x.stream(
            "q_norm", 2.0 * small, 3.0 * small, up, saved=x.product_bytes * x.tokens * spec.q_lora_rank
        )
        yield x.gemm(
            "q_up_projection", x.tokens, spec.q_lora_rank, spec.heads * qk_dim / x.tp, up, saved=queries
        )
    small = x.bytes * x.shard_tokens * latent
    yield x.gemm("kv_down_projection", x.shard_tokens, x.hidden, latent, held=small)
    yield x.stream(
        "kv_norm", 2.0 * small, 3.0 * small, up, saved=x.product_bytes * x.tokens * spec.kv_lora_rank
    )
    rebuilt = (
        x.bytes * x.tokens * spec.heads * (qk_dim + spec.v_head_dim) / x.tp
    )  # keys with rope, and values
    width = spec.heads * (spec.qk_nope_head_dim + spec.v_head_dim) / x.tp
    yield x.gemm("kv_up_projection", x.tokens, spec.kv_lora_rank, width, up, saved=rebuilt)
    turned = x.bytes * x.tokens * spec.heads * spec.qk_rope_head_dim / x.tp
    yield x.stream("rotary", 4.0 * turned + rebuilt, 4.0 * turned + rebuilt, up)
    yield _core_attention(
        x, spec.heads, qk_dim, spec.v_head_dim, spec.heads * (2.0 * qk_dim + spec.v_head_dim), None
    )
    yield x.gemm("output_projection", x.tokens, spec.heads * spec.v_head_dim / x.tp, x.hidden)


def _feed_forward(
    x: Shapes,
    prefix: str,
    tokens: Any,
    width: Any,
    gated: bool,
    modules: tuple[str, ...],
    activation_modules: tuple[str, ...],
    kind: str = "gemm",
    groups: Any = 1.0,
) -> Iterator[Operator]:
    inputs = 2.0 if gated else 1.0
    up, down = x.bytes * tokens * inputs * width, x.bytes * tokens * width
    yield x.gemm(
        f"{prefix}fc1", tokens, x.hidden, inputs * width, *modules, kind=kind, groups=groups, saved=up
    )
    yield x.stream(
        f"{prefix}activation",
        up + down,
        2.0 * up + down,
        *activation_modules,
        saved=x.product_bytes * tokens * width,
    )
    yield x.gemm(f"{prefix}fc2", tokens, width, x.hidden, *modules, kind=kind, groups=groups)


def _dense(x: Shapes, spec: FeedForward) -> Iterator[Operator]:
    yield from _feed_forward(x, "", x.tokens, spec.ffn_hidden_size / x.tp, spec.gated, ("mlp",), ("mlp",))


def routed_tokens(x: Shapes, spec: MixtureOfExperts, layout: Any) -> Any:
    """Token copies that the experts of one device work on: EP cancels, and each ETP rank sees all of its group's."""
    return x.tokens / x.tp * float(spec.top_k) * layout.etp * layout.expert_imbalance


def _experts(x: Shapes, spec: MixtureOfExperts, layout: Any) -> Iterator[Operator]:
    scores = 4.0 * x.shard_tokens * spec.num_experts
    yield x.gemm("router", x.shard_tokens, x.hidden, spec.num_experts, "moe", saved=scores)
    copies = routed_tokens(x, spec, layout)
    moved = x.bytes * copies * x.hidden
    yield x.stream("permute", 2.0 * moved, 2.0 * moved, "moe", saved=x.product_bytes * copies * x.hidden)
    yield from _feed_forward(
        x,
        "expert_",
        copies,
        spec.expert_ffn_hidden_size / layout.etp,
        spec.gated,
        ("moe",),
        ("moe", "moe_act"),
        "grouped_gemm",
        spec.num_experts / layout.ep,
    )
    yield x.stream("unpermute", 2.0 * moved, 2.0 * moved, "moe")
    if spec.shared_ffn_hidden_size:
        modules = ("moe", "shared_experts")
        yield from _feed_forward(
            x, "shared_", x.tokens, spec.shared_ffn_hidden_size / x.tp, spec.gated, modules, modules
        )


def head_operators(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Operator, ...]:
    """List final norm, output projection and cross-entropy of one micro-batch (logits split over ``tp``)."""
    x = Shapes.of(model, train, layout)
    logits = x.tokens * float(model.vocab_size) / x.tp
    projection = x.gemm("output_head", x.tokens, x.hidden, float(model.vocab_size) / x.tp)
    loss = x.stream("cross_entropy", (x.bytes + 8.0) * logits, (x.bytes + 4.0) * logits)
    return (_norm(x, "final_norm"), projection, loss)


def embedding_operators(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Operator, ...]:
    """Look-up of one micro-batch's tokens."""
    x = Shapes.of(model, train, layout)
    rows = x.bytes * x.tokens * model.hidden_size
    return (x.stream("embedding", 2.0 * rows, 3.0 * rows),)


def mtp_operators(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Operator, ...]:
    """One multi-token-prediction module: two norms, a projection of twice the width, a block, the head again."""
    x = Shapes.of(model, train, layout)
    join = x.gemm(
        "mtp_projection",
        x.tokens,
        2 * model.hidden_size,
        model.hidden_size / x.tp,
        held=2.0 * x.bytes * x.shard_tokens * model.hidden_size,
    )
    block = layer_operators(model, model.layers[-1], train, layout)
    return (_norm(x, "mtp_norm"), join, *block, *head_operators(model, train, layout))
