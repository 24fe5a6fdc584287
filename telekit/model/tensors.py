"""The tensors of a block, one by one: what a checkpoint stores, and from which every count is summed.

A matrix is what a token is multiplied by; all else is a vector. Which tensors a kind of layer has follows its code in
Hugging Face transformers (``src/transformers/models``), or the model's own repository where it is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from telekit.model.attention import (
    CompressedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    Indexer,
    KimiDeltaAttention,
    LightningAttention,
    Mamba2,
    MultiHeadLatentAttention,
)
from telekit.model.config import FeedForward, LayerKind, MixtureOfExperts, ModelConfig

Component = Literal["attention", "mlp", "shared_experts", "experts", "latent", "router", "norms", "residual"]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a block, or ``copies`` alike.

    Parameters
    ----------
    name : str
        Its name, shortened.
    component : str
        attention (whatever mixes tokens), mlp, shared_experts, experts, latent, router, norms, or residual.
    shape : tuple of int
        As stored; a matrix has (outputs, inputs), a vector one number.
    split : bool
        Divided by tensor parallelism (experts: by expert parallelism), else whole on each rank.
    copies, active : int
        How many are stored, and how many of them one token meets.
    multiplied : bool
        A token is multiplied by it: matrices and convolutions.
    """

    name: str
    component: Component
    shape: tuple[int, ...]
    split: bool = False
    copies: int = 1
    active: int = 1
    multiplied: bool = True

    @property
    def size(self) -> int:
        """Parameters of one copy."""
        return prod(self.shape)


def layer_tensors(model: ModelConfig, kind: LayerKind) -> tuple[Tensor, ...]:
    """Tensors of one block of ``kind``; those of no size (a part that is not there) are left out."""
    return tuple(t for t in _layer(model, kind) if t.size)


def mtp_tensors(model: ModelConfig) -> tuple[Tensor, ...]:
    """Tensors of one multi-token-prediction module: its block, a projection 2 hidden -> hidden, its norms.

    Embedding and head are the model's own (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    hidden = model.hidden_size
    join = _matrix("mtp_projection", "mlp", hidden, 2 * hidden, split=True)
    norms = _norms(model, "mtp_norm", model.mtp_norms)
    return (*layer_tensors(model, model.mtp_block), join, *norms, *_streams_head(model))


def trunk_tensors(model: ModelConfig) -> tuple[Tensor, ...]:
    """Tensors outside blocks, embeddings and head.

    The final norm; and, in models that have them, a norm of the embedding, what collapses several residual
    streams into one, and the projection that makes per-layer inputs of the embedding.
    """
    found = [*_norms(model, "final_norm", 1), *_streams_head(model)]
    if model.embedding_norm:
        found += _norms(model, "embedding_norm", 1)
    if model.per_layer_inputs:
        width = model.per_layer_inputs.width
        found.append(_matrix("per_layer_projection", "residual", width * model.num_layers, model.hidden_size))
        found.append(_vector("per_layer_projection_norm", "residual", width))
    return tuple(found)


def _matrix(name: str, part: Component, outputs: int, inputs: int, **more: Any) -> Tensor:
    return Tensor(name, part, (outputs, inputs), **more)


def _vector(name: str, part: Component, size: int, **more: Any) -> Tensor:
    return Tensor(name, part, (size,), multiplied=False, **more)


def _norms(model: ModelConfig, name: str, count: int) -> Iterator[Tensor]:
    size = model.hidden_size * (2 if model.norm_bias else 1)
    yield _vector(name, "norms", size, copies=count, active=count)


def _streams_head(model: ModelConfig) -> Iterator[Tensor]:
    n = model.residual_streams
    if n > 1:
        yield _matrix("hc_head_fn", "residual", n, n * model.hidden_size)
        yield _vector("hc_head_base", "residual", n + 1)  # with the scale


def _layer(model: ModelConfig, kind: LayerKind) -> Iterator[Tensor]:
    hidden, mlp = model.hidden_size, kind.mlp
    mixer = _MIXERS.get(kind.attention.kind)
    if mixer:
        yield from mixer(hidden, kind.attention)
    if isinstance(mlp, FeedForward):
        yield from _feed_forward("mlp", "mlp", hidden, mlp.ffn_hidden_size, mlp.gated, split=True)
        inner = mlp.bias * (1 + mlp.gated) * mlp.ffn_hidden_size
        yield _vector("mlp.biases", "mlp", inner + (mlp.bias or mlp.down_bias) * hidden, split=True)
    elif isinstance(mlp, MixtureOfExperts):
        yield from _experts(hidden, mlp)
    yield from _norms(model, "norm", kind.norms)
    yield _vector("output_scale", "norms", int(kind.output_scale))
    if model.residual_streams > 1:
        yield from _streams(hidden, model.residual_streams)
    if model.per_layer_inputs:
        width = model.per_layer_inputs.width
        yield _matrix("per_layer_input_gate", "residual", width, hidden)
        yield _matrix("per_layer_projection", "residual", hidden, width)
        yield _vector("per_layer_norm", "residual", hidden)


# --- token mixers -------------------------------------------------------------------------------------------


def _grouped(hidden: int, a: GroupedQueryAttention) -> Iterator[Tensor]:
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim * a.own_keys
    values = a.kv_heads * a.value_dim * (a.own_keys and a.own_values)
    gate = {"none": 0, "element": a.heads * a.value_dim, "head": a.heads}[a.output_gate]
    if a.q_lora_rank:
        yield _matrix("q_down", "attention", a.q_lora_rank, hidden)
        yield _vector("q_down_norm", "attention", a.q_lora_rank)
    yield _matrix("q_proj", "attention", queries, a.q_lora_rank or hidden, split=True)
    yield _matrix("k_proj", "attention", keys, hidden, split=True)
    yield _matrix("v_proj", "attention", values, hidden, split=True)
    yield _matrix("output_gate", "attention", gate, hidden, split=True)
    yield _matrix("o_proj", "attention", hidden, a.heads * a.value_dim, split=True)
    gate_bias = gate if a.output_gate == "element" else 0  # it is a part of the query projection
    yield _vector("qkv_bias", "attention", a.qkv_bias * (queries + keys + values + gate_bias), split=True)
    yield _vector("o_bias", "attention", a.output_bias * hidden)
    yield _vector("sinks", "attention", a.sinks * a.heads, split=True)
    sizes = {"none": 0, "query": a.head_dim, "head": 2 * a.head_dim, "full": queries + keys}
    yield _vector("qk_norm", "attention", sizes[a.qk_norm])


def _latent(hidden: int, a: MultiHeadLatentAttention) -> Iterator[Tensor]:
    queries, latent = a.heads * a.qk_head_dim, a.kv_lora_rank + a.qk_rope_head_dim
    if a.q_lora_rank is not None:
        yield _matrix("q_down", "attention", a.q_lora_rank, hidden)
        yield _vector("q_down_norm", "attention", a.q_lora_rank)
        yield _vector("q_down_bias", "attention", a.bias * a.q_lora_rank)
    yield _matrix("q_up", "attention", queries, a.q_lora_rank or hidden, split=True)
    yield _matrix("kv_down", "attention", latent, hidden)
    yield _vector("kv_down_norm", "attention", a.kv_lora_rank)
    yield _vector("kv_down_bias", "attention", a.bias * latent)
    up = a.heads * (a.qk_nope_head_dim + a.v_head_dim)
    yield _matrix("kv_up", "attention", up, a.kv_lora_rank, split=True)
    yield _matrix("o_proj", "attention", hidden, a.heads * a.v_head_dim, split=True)
    yield _vector("o_bias", "attention", a.bias * hidden)
    if a.indexer and a.indexer.own:
        yield from _indexer(hidden, a.q_lora_rank or hidden, a.indexer)
        yield _matrix("indexer.k_proj", "attention", a.indexer.head_dim, hidden)
        yield _vector("indexer.k_norm", "attention", 2 * a.indexer.head_dim)  # a LayerNorm: weight and bias


def _indexer(hidden: int, latent: int, i: Indexer) -> Iterator[Tensor]:
    # small: each tensor rank holds it whole, so that all choose the same keys
    yield _matrix("indexer.q_proj", "attention", i.heads * i.head_dim, latent)
    yield _matrix("indexer.weights_proj", "attention", i.heads, hidden)


def _compressed(hidden: int, a: CompressedAttention) -> Iterator[Tensor]:
    inner = a.output_groups * a.output_lora_rank
    yield _matrix("q_down", "attention", a.q_lora_rank, hidden)
    yield _vector("q_down_norm", "attention", a.q_lora_rank)
    yield _matrix("q_up", "attention", a.heads * a.head_dim, a.q_lora_rank, split=True)
    yield _matrix("kv_proj", "attention", a.head_dim, hidden)
    yield _vector("kv_norm", "attention", a.head_dim)
    yield _matrix("o_down", "attention", inner, a.heads * a.head_dim // a.output_groups, split=True)
    yield _matrix("o_up", "attention", hidden, inner, split=True)
    yield _vector("sinks", "attention", a.heads, split=True)
    if a.compress_ratio:
        yield from _compressor("compressor", hidden, a.head_dim, a)
    if a.indexer:
        yield from _compressor("indexer", hidden, a.indexer.head_dim, a)
        yield from _indexer(hidden, a.q_lora_rank, a.indexer)


def _compressor(name: str, hidden: int, width: int, a: CompressedAttention) -> Iterator[Tensor]:
    wide = (1 + a.overlap) * width
    yield _matrix(f"{name}.kv_proj", "attention", wide, hidden)
    yield _matrix(f"{name}.gate_proj", "attention", wide, hidden)
    yield Tensor(f"{name}.position_bias", "attention", (a.compress_ratio, wide), multiplied=False)
    yield _vector(f"{name}.norm", "attention", width)


def _gated_delta(hidden: int, a: GatedDeltaNet) -> Iterator[Tensor]:
    keys, values = a.key_heads * a.key_head_dim, a.value_heads * a.value_head_dim
    yield _matrix("qkvz_proj", "attention", 2 * keys + 2 * values, hidden, split=True)
    yield _matrix("ba_proj", "attention", 2 * a.value_heads, hidden, split=True)
    yield _matrix("conv", "attention", 2 * keys + values, a.conv_kernel, split=True)
    yield _vector("decay", "attention", 2 * a.value_heads, split=True)  # A_log and dt_bias
    yield _vector("output_norm", "attention", a.value_head_dim)
    yield _matrix("o_proj", "attention", hidden, values, split=True)


def _kimi_delta(hidden: int, a: KimiDeltaAttention) -> Iterator[Tensor]:
    width = a.heads * a.head_dim
    yield _matrix("qkv_proj", "attention", 3 * width, hidden, split=True)
    yield _matrix("conv", "attention", 3 * width, a.conv_kernel, split=True)
    yield _vector("decay", "attention", a.heads + width, split=True)  # A_log a head, dt_bias a channel
    for name in ("decay", "gate"):
        yield _matrix(f"{name}_down", "attention", a.head_dim, hidden)
        yield _matrix(f"{name}_up", "attention", width, a.head_dim, split=True)
    yield _matrix("beta_proj", "attention", a.heads, hidden, split=True)
    yield _vector("output_norm", "attention", a.head_dim)
    yield _matrix("o_proj", "attention", hidden, width, split=True)


def _lightning(hidden: int, a: LightningAttention) -> Iterator[Tensor]:
    width = a.heads * a.head_dim
    yield _matrix("qkv_proj", "attention", 3 * width, hidden, split=True)
    yield _matrix("output_gate", "attention", width, hidden, split=True)
    yield _matrix("o_proj", "attention", hidden, width, split=True)
    yield _vector("qkv_bias", "attention", a.qkv_bias * 3 * width, split=True)
    yield _vector("o_bias", "attention", a.output_bias * hidden)
    yield _vector("output_norm", "attention", a.output_norm)
    yield _vector("qk_norm", "attention", a.qk_norm * 2 * a.head_dim)


def _mamba2(hidden: int, a: Mamba2) -> Iterator[Tensor]:
    inner, maps = a.heads * a.head_dim, a.groups * a.state_size
    outputs = 2 * inner + 2 * maps + a.heads
    yield _matrix("in_proj", "attention", outputs, hidden, split=True)
    yield _vector("in_bias", "attention", a.projection_bias * outputs, split=True)
    yield _matrix("conv", "attention", inner + 2 * maps, a.conv_kernel, split=True)
    yield _vector("conv_bias", "attention", a.conv_bias * (inner + 2 * maps), split=True)
    yield _vector("decay", "attention", 3 * a.heads, split=True)  # A_log, D and dt_bias
    yield _vector("output_norm", "attention", inner, split=True)
    yield _matrix("out_proj", "attention", hidden, inner, split=True)
    yield _vector("out_bias", "attention", a.projection_bias * hidden)


_MIXERS: dict[str, Callable[[int, Any], Iterator[Tensor]]] = {
    "gqa": _grouped,
    "mla": _latent,
    "compressed": _compressed,
    "gated-delta": _gated_delta,
    "kda": _kimi_delta,
    "lightning": _lightning,
    "mamba2": _mamba2,
}


# --- feed-forward blocks ------------------------------------------------------------------------------------


def _feed_forward(
    name: str, part: Component, hidden: int, width: int, gated: bool, **more: Any
) -> Iterator[Tensor]:
    yield _matrix(f"{name}.up", part, (1 + gated) * width, hidden, **more)
    yield _matrix(f"{name}.down", part, hidden, width, **more)


def _experts(hidden: int, moe: MixtureOfExperts) -> Iterator[Tensor]:
    inner, counts = moe.latent_size or hidden, {"copies": moe.num_experts, "active": moe.top_k}
    width, gated = moe.expert_ffn_hidden_size, moe.gated
    yield from _feed_forward("experts", "experts", inner, width, gated, split=True, **counts)
    if moe.expert_bias:
        yield _vector("experts.biases", "experts", (1 + gated) * width + inner, split=True, **counts)
    shared = moe.shared_ffn_hidden_size
    yield from _feed_forward("shared", "shared_experts", hidden, shared, gated, split=True)
    biases = moe.shared_bias * bool(shared) * ((1 + gated) * shared + hidden)
    yield _vector("shared.biases", "shared_experts", biases, split=True)
    yield _matrix("shared.gate", "router", int(moe.shared_gate), hidden)
    inside = moe.router_hidden_size or hidden
    yield _matrix("router", "router", moe.num_experts, inside)
    if moe.router_hidden_size:
        yield _matrix("router.hidden", "router", inside, hidden)
    biases = moe.num_experts * (moe.router_bias + moe.correction_bias + moe.expert_scale)
    yield _vector("router.biases", "router", biases)
    yield _vector("router.scale", "router", moe.router_scale * hidden)
    if moe.latent_size:
        yield _matrix("latent_down", "latent", moe.latent_size, hidden)
        yield _matrix("latent_up", "latent", hidden, moe.latent_size)


def _streams(hidden: int, streams: int) -> Iterator[Tensor]:
    mixed = (2 + streams) * streams
    for half in ("attention", "mlp"):
        yield _matrix(f"hc_{half}_fn", "residual", mixed, streams * hidden)
        yield _vector(f"hc_{half}_base", "residual", mixed + 3)  # with the three scales
