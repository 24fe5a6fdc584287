"""A layer as a list of operators: FLOPs, bytes and what is kept for the backward pass.

The layer is Megatron-Core's, with flash attention and no dropout: a residual stream, or several; in each half a norm,
then a token mixer or a feed-forward block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from telekit.model.config import FeedForward, LayerKind, MixtureOfExperts, ModelConfig
from telekit.model.tensors import Tensor, layer_tensors, trunk_tensors
from telekit.operators.attention import compressed, grouped, latent
from telekit.operators.coefficients import now
from telekit.operators.recurrent import recurrent
from telekit.operators.shapes import Operator as Operator
from telekit.operators.shapes import Shapes as Shapes
from telekit.training.config import TrainConfig

Matrices = dict[str, Tensor]
NORMS = ("layernorm",)
"""Recompute module of the norms before the halves of a block."""

SORTS = {"alltoall": 2.0, "alltoall_deredundency": 2.0, "hybridep": 0.5}
"""Times that token copies are put in order on either side of the experts; HybridEP's kernels do half of it."""
ROUTER_LAUNCHES = 12.0
"""Operators that the host issues to choose experts and count their tokens (Megatron-Core's ``moe_utils.py``, about)."""

_MIXERS: dict[str, Callable[[Shapes, Any, Matrices], Iterator[Operator]]] = {
    "gqa": grouped,
    "mla": latent,
    "compressed": compressed,
    "gated-delta": recurrent,
    "kda": recurrent,
    "lightning": recurrent,
    "mamba2": recurrent,
}


def matrices(tensors: tuple[Tensor, ...]) -> Matrices:
    """Return what a token is multiplied by, by name."""
    return {t.name: t for t in tensors if t.multiplied}


def layer_operators(
    model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any
) -> tuple[Operator, ...]:
    """Operators of one transformer block, in the order of the forward pass; none where it has neither half."""
    x = Shapes.of(model, train, layout)
    found = matrices(layer_tensors(model, kind))
    mixer = _MIXERS.get(kind.attention.kind)
    halves: dict[str, list[Operator]] = {"attention": [], "mlp": []}
    if mixer:
        halves["attention"] += mixer(x, kind.attention, found)
    if kind.mlp.kind == "dense":
        halves["mlp"] += _dense(x, kind.mlp)
    elif kind.mlp.kind == "moe":
        halves["mlp"] += _experts(x, kind.mlp, layout)
    operators = [*_blocks(x, kind, halves, found)]
    if model.per_layer_inputs:
        operators += _per_layer_input(x, model.per_layer_inputs.width, found)
    return tuple(operators)


def _blocks(
    x: Shapes, kind: LayerKind, halves: dict[str, list[Operator]], found: Matrices
) -> Iterator[Operator]:
    """Halves with their norms: one before each while there are any, the rest after them."""
    names = {"attention": "input_norm", "mlp": "pre_mlp_norm"}
    there = [name for name, operators in halves.items() if operators]
    after = max(kind.norms - len(there), 0)
    modules = () if kind.attention.kind == "mamba2" else NORMS  # Megatron-Core's Mamba layer has none
    for name, operators in halves.items():
        if x.streams > 1:
            yield from _collapse(x, f"{name}_streams", found[f"hc_{name}_fn"])
        if name in there:
            before = there.index(name) < kind.norms
            yield _norm(x, names[name], modules) if before else _residual_add(x)
        yield from operators
        if name in there:
            posts = after // len(there) + (there.index(name) < after % len(there))
            yield from (_post_norm(x, f"{name}_post_norm") for _ in range(posts))
        if x.streams > 1:
            yield _expand(x, f"{name}_streams")


def _norm(x: Shapes, name: str, modules: tuple[str, ...] = NORMS) -> Operator:
    width = x.bytes * x.shard_tokens * x.hidden
    output = x.product_bytes * x.shard_tokens * x.hidden
    if x.streams > 1:  # what the streams collapse to is held already, and there is no sum
        return x.stream(name, 2.0 * width, 3.0 * width, *modules, saved=output)
    # forward: read the block's output and the residual, write their sum; read it, write its norm; the sum is held
    return x.stream(name, 5.0 * width, 6.0 * width, *modules, saved=output, held=width, launches=2.0)


def _post_norm(x: Shapes, name: str) -> Operator:
    """Norm of a half's output, which is held for it."""
    width = x.bytes * x.shard_tokens * x.hidden
    return x.stream(name, 2.0 * width, 3.0 * width, held=width)


def _residual_add(x: Shapes) -> Operator:
    """Add to the stream without a norm of its own: the half reads what the one before it read."""
    width = x.bytes * x.shard_tokens * x.hidden
    return x.stream("residual_add", 3.0 * width, 2.0 * width)


def _collapse(x: Shapes, name: str, maps: Tensor) -> Iterator[Operator]:
    """Yield the maps that several residual streams are mixed by, and what they collapse to: both are held.

    The product is a few outputs wide, so the streams' bytes bound it (DeepSeek-V4's hyper-connections).
    """
    width = x.bytes * x.shard_tokens * x.hidden
    flops = 2.0 * x.shard_tokens * maps.size
    read = x.streams * width
    yield x.stream(f"{name}_maps", read, 3.0 * read, flops=flops, held=read)
    yield x.stream(f"{name}_collapse", read + width, 2.0 * read + width, held=width)


def _expand(x: Shapes, name: str) -> Operator:
    """Mix the streams and add the half's output to each; it is held for the gradient of its weights."""
    width = x.bytes * x.shard_tokens * x.hidden
    moved = 2.0 * x.streams * width + width
    return x.stream(f"{name}_expand", moved, moved + (x.streams + 1.0) * width, held=width)


def _per_layer_input(x: Shapes, width: int, found: Matrices) -> Iterator[Operator]:
    """Mix a layer's own embedding into the stream. Kept: the stream, the embedding, the gate, and both products."""
    stream = x.bytes * x.shard_tokens * x.hidden
    rows = x.bytes * x.shard_tokens * width
    yield x.product(found["per_layer_input_gate"])
    yield x.stream("per_layer_gate", 3.0 * rows, 5.0 * rows, held=stream + 2.0 * rows)
    yield x.product(found["per_layer_projection"])
    yield x.stream("per_layer_norm", 4.0 * stream, 5.0 * stream)


def _feed_forward(
    x: Shapes,
    prefix: str,
    tokens: Any,
    inner: int,
    width: Any,
    gated: bool,
    modules: tuple[str, ...],
    activation_modules: tuple[str, ...],
    kind: str = "gemm",
    groups: Any = 1.0,
) -> Iterator[Operator]:
    inputs = 2.0 if gated else 1.0
    up, down = x.bytes * tokens * inputs * width, x.bytes * tokens * width
    yield x.gemm(f"{prefix}fc1", tokens, inner, inputs * width, *modules, kind=kind, groups=groups, saved=up)
    yield x.stream(
        f"{prefix}activation",
        up + down,
        2.0 * up + down,
        *activation_modules,
        saved=x.product_bytes * tokens * width,
    )
    yield x.gemm(f"{prefix}fc2", tokens, width, inner, *modules, kind=kind, groups=groups)


def _dense(x: Shapes, spec: FeedForward) -> Iterator[Operator]:
    width = spec.ffn_hidden_size / x.tp
    yield from _feed_forward(x, "", x.tokens, x.hidden, width, spec.gated, ("mlp",), ("mlp", "mlp_act"))


def routed_tokens(x: Shapes, spec: MixtureOfExperts, layout: Any) -> Any:
    """Token copies that the experts of one device work on: EP cancels, and each ETP rank sees all of its group's.

    With a capacity every rank works on the same number, else the busiest has ``expert_imbalance`` times the mean.
    """
    over = layout.moe_expert_capacity_factor or layout.expert_imbalance
    return x.tokens / x.tp * float(spec.top_k) * layout.etp * over


def expert_width(hidden: int, spec: MixtureOfExperts) -> int:
    """Numbers of a token that experts read, write and exchange."""
    return spec.latent_size or hidden


def _experts(x: Shapes, spec: MixtureOfExperts, layout: Any) -> Iterator[Operator]:
    scores = 4.0 * x.shard_tokens * spec.num_experts
    yield x.gemm("router", x.shard_tokens, x.hidden, spec.num_experts, "moe", saved=scores, wide=True)
    yield x.stream(
        "top_k", 2.0 * scores, 3.0 * scores, "moe", launches=now("ROUTER_LAUNCHES", ROUTER_LAUNCHES)
    )
    inner, copies = expert_width(x.hidden, spec), routed_tokens(x, spec, layout)
    if spec.latent_size:
        yield x.gemm("latent_down", x.shard_tokens, x.hidden, inner, "moe")
    moved = x.bytes * copies * inner
    # copies are sorted by rank before they leave and by expert when they arrive, unless the dispatcher's kernels do it
    sorts = now("SORTS", SORTS.get(layout.dispatcher, 1.0))
    moved = sorts * moved
    yield x.stream(
        "permute",
        2.0 * moved,
        2.0 * moved,
        "moe",
        saved=x.product_bytes * copies * inner,
        launches=8.0 * sorts,
    )
    experts = _feed_forward(
        x,
        "expert_",
        copies,
        inner,
        spec.expert_ffn_hidden_size / layout.etp,
        spec.gated,
        ("moe",),
        ("moe", "moe_act"),
        "grouped_gemm",
        spec.num_experts / layout.ep,
    )
    yield from (map(_fused, experts) if layout.fused_experts else experts)
    yield x.stream("unpermute", 2.0 * moved, 2.0 * moved, "moe", launches=4.0 * sorts)
    if spec.latent_size:
        gathered = x.product_bytes * x.shard_tokens * inner  # experts' outputs, summed
        yield x.gemm("latent_up", x.shard_tokens, inner, x.hidden, "moe", saved=gathered)
    if spec.shared_ffn_hidden_size:
        yield from _shared_experts(x, spec)


def _fused(op: Operator) -> Operator:
    """Operator inside a fused kernel: what lies between products, and casts, stay on the chip."""
    if op.kind == "memory":
        return replace(
            op, forward_bytes=0.0 * op.forward_bytes, backward_bytes=0.0 * op.backward_bytes, launches=0.0
        )
    return replace(op, forward_cast_bytes=0.0, backward_cast_bytes=0.0, launches=1.0)


def _shared_experts(x: Shapes, spec: MixtureOfExperts) -> Iterator[Operator]:
    modules, width = ("moe", "shared_experts"), spec.shared_ffn_hidden_size / x.tp
    yield from _feed_forward(x, "shared_", x.tokens, x.hidden, width, spec.gated, modules, modules)
    if spec.shared_gate:
        output = x.bytes * x.shard_tokens * x.hidden
        yield x.gemm("shared_gate", x.shard_tokens, x.hidden, 1.0, *modules)
        yield x.stream("shared_gating", 2.0 * output, 3.0 * output, *modules, saved=output)


def entry_bytes(model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any) -> Any:
    """Bytes of a block's inputs: all that full recompute keeps of it.

    The residual streams; its own embedding, where it has one; and keys and values of an earlier layer that it uses,
    counted at each layer that does.
    """
    x = Shapes.of(model, train, layout)
    own = model.per_layer_inputs.width if model.per_layer_inputs else 0
    entry = x.bytes * x.shard_tokens * (x.streams * x.hidden + own)
    spec = kind.attention
    if spec.kind == "gqa" and not spec.own_keys:
        entry = entry + x.bytes * x.tokens * spec.kv_heads * (spec.head_dim + spec.value_dim) / x.tp
    return entry


def head_operators(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Operator, ...]:
    """List final norm, output projection and cross-entropy of one micro-batch (logits split over ``tp``)."""
    x = Shapes.of(model, train, layout)
    logits = x.tokens * float(model.vocab_size) / x.tp
    trunk = matrices(trunk_tensors(model))
    streams = _collapse(x, "head_streams", trunk["hc_head_fn"]) if x.streams > 1 else ()
    projection = x.gemm("output_head", x.tokens, x.hidden, float(model.vocab_size) / x.tp, wide=True)
    loss = x.stream("cross_entropy", (x.bytes + 8.0) * logits, (x.bytes + 4.0) * logits)
    return (*streams, _norm(x, "final_norm"), projection, loss)


def embedding_operators(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Operator, ...]:
    """Look-up of one micro-batch's tokens, its norm and its copies where there are any, and per-layer inputs."""
    x = Shapes.of(model, train, layout)
    rows = x.bytes * x.tokens * model.hidden_size
    found = [x.stream("embedding", (1.0 + x.streams) * rows, (2.0 + x.streams) * rows)]
    own = x.bytes * x.shard_tokens * model.hidden_size
    if model.embedding_norm:
        found.append(x.stream("embedding_norm", 2.0 * own, 3.0 * own, held=own))
    if model.per_layer_inputs:
        rows = x.bytes * x.tokens * model.per_layer_inputs.width * model.num_layers
        found.append(x.stream("per_layer_embedding", 2.0 * rows, 3.0 * rows))
        found.append(x.product(matrices(trunk_tensors(model))["per_layer_projection"]))
        found.append(x.stream("per_layer_projection_norm", 3.0 * rows, 5.0 * rows))
    return tuple(found)


def mtp_operators(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Operator, ...]:
    """One multi-token-prediction module: two norms, a projection of twice the width, a block, the head again."""
    block = layer_operators(model, model.mtp_block, train, layout)
    entry, head = mtp_entry_operators(model, train, layout), head_operators(model, train, layout)
    return (*entry, *block, *head)


def mtp_entry_operators(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Operator, ...]:
    """List what a multi-token-prediction module does before its block: two norms, and the projection of both."""
    x = Shapes.of(model, train, layout)
    join = x.gemm(
        "mtp_projection",
        x.tokens,
        2 * model.hidden_size,
        model.hidden_size / x.tp,
        held=2.0 * x.bytes * x.shard_tokens * model.hidden_size,
    )
    return _norm(x, "mtp_norm"), join
