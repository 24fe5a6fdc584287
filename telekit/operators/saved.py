"""What a layer keeps for its backward pass, tensor by tensor, and what it holds for a moment while it runs.

Everything is for one micro-batch on one device. The tensors are those of Megatron-Core with Transformer Engine: a
product keeps its input, a norm its input, an activation function its input, attention queries, keys, values and output.
A tensor that two operators keep is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from telekit.model.config import FeedForward, LayerKind, MixtureOfExperts, ModelConfig
from telekit.operators.layer import entry_bytes, expert_width, layer_operators, routed_tokens
from telekit.operators.shapes import Operator, Shapes
from telekit.training.config import LOW, TrainConfig

HIDDEN_DROPOUTS = 2
"""Dropouts of a block's residual stream, after attention and after the MLP; each keeps a mask of one byte a number."""


@dataclass(frozen=True)
class Saved:
    """One tensor, or a few alike, that a layer keeps from forward to backward.

    Parameters
    ----------
    name : str
        The operator that makes it.
    size_bytes : float or column
        Of one micro-batch on one device.
    modules : tuple of str
        Recompute modules that free it, by Megatron-Core's names; none: only full recompute does.
    """

    name: str
    size_bytes: Any
    modules: tuple[str, ...] = ()


def saved_tensors(model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any) -> tuple[Saved, ...]:
    """Tensors that one block keeps when nothing of it is recomputed, in the order of the forward pass."""
    found = [tensor for op in layer_operators(model, kind, train, layout) for tensor in _kept(op)]
    x = Shapes.of(model, train, layout)
    if train.activation_func_fp8_input_store:
        found = [_in_fp8(t, x) if t.name.endswith("fc1") else t for t in found]
    if found and train.attention_kernel == "unfused":  # its generation trained with dropout
        found.append(Saved("dropout_masks", float(HIDDEN_DROPOUTS) * x.shard_tokens * x.hidden))
    if kind.attention.kind in ("gqa", "mla"):
        numbers = x.tokens * _output_width(kind.attention) / x.tp
        if layout.cp_comm_type == "a2a":  # by heads for attention, and by tokens for the projection
            again = np.where(np.asarray(layout.cp) > 1, x.bytes * numbers, 0.0)
            found.append(Saved("attention_output_exchanged", again))
        if train.precision in LOW:  # 16 bits for attention, and what the projection reads
            found.append(Saved("attention_output_cast", train.product_bytes * numbers))
    if isinstance(kind.mlp, MixtureOfExperts) and train.precision in LOW:
        found.append(Saved("router_input", x.bytes * x.shard_tokens * x.hidden, ("layernorm",)))
    return tuple(found)


def _kept(op: Operator) -> Iterator[Saved]:
    for size_bytes, modules in ((op.saved_bytes, op.modules), (op.held_bytes, ())):
        if np.any(np.asarray(size_bytes) > 0):
            yield Saved(op.name, size_bytes, modules)


def _in_fp8(tensor: Saved, x: Shapes) -> Saved:
    return Saved(tensor.name, tensor.size_bytes / x.bytes, tensor.modules)


def _output_width(spec: Any) -> int:
    width: int = spec.heads * (spec.value_dim if spec.kind == "gqa" else spec.v_head_dim)
    return width


def kept_bytes(model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any) -> tuple[Any, Any, Any]:
    """Bytes that a block keeps by recompute choice: none, selective (the layout's modules), full.

    Full recompute keeps the block's inputs alone (:func:`telekit.operators.layer.entry_bytes`), of the first block of
    a group where several are recomputed together.
    """
    tensors = saved_tensors(model, kind, train, layout)
    nothing = 0.0 * Shapes.of(model, train, layout).tokens  # in the shape of the layout
    everything = sum((t.size_bytes for t in tensors), nothing)
    modules = frozenset(layout.recompute_modules)
    freed = sum((t.size_bytes for t in tensors if not modules.isdisjoint(t.modules)), nothing)
    return everything, everything - freed, np.minimum(entry_bytes(model, kind, train, layout), everything)


def working_bytes(model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any) -> Any:
    """Bytes of a block's backward pass beside what is kept, at its fullest.

    The gradient of the stream and, of the dense parts, that of the largest tensor: SwiGLU's backward holds its input
    and its input's gradient, when its output is free. Or, where tensor ranks split the sequence, the gathered input
    of the MLP's first product beside the gradient of it, before that is scattered.
    """
    x = Shapes.of(model, train, layout)
    stream = x.bytes * x.shard_tokens * x.hidden * x.streams
    parts = [t for t in saved_tensors(model, kind, train, layout) if "moe" not in t.modules]
    largest: Any = reduce(np.maximum, (t.size_bytes for t in parts), 0.0 * x.tokens)
    if not isinstance(kind.mlp, FeedForward):
        return stream + largest
    gathered = 2.0 * x.gathered_bytes - x.bytes * x.tokens * kind.mlp.ffn_hidden_size / x.tp
    return stream + np.maximum(largest, gathered)


def exchange_bytes(model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any) -> Any:
    """Bytes that the forward pass of a block with experts holds beside what it keeps, at its fullest; else 0.

    Megatron-Core's all-to-all dispatcher has four copies of the routed tokens at that moment: sorted by rank, as they
    arrived, what the experts made of them, and that in the order it goes back in (``moe_layer.py`` and
    ``token_dispatcher.py``; the sorted input of the experts is kept anyway). Without other expert ranks what arrives is
    what was sorted; a fused dispatcher sorts while it sends. The stream is there twice: the shared experts' output
    and the routed experts'.
    """
    x = Shapes.of(model, train, layout)
    if not isinstance(kind.mlp, MixtureOfExperts):
        return 0.0 * x.tokens
    apart = np.asarray(layout.ep * layout.etp) > 1
    copies = np.where(apart, 4.0 if layout.dispatcher.startswith("all") else 2.0, 3.0)
    routed = x.bytes * routed_tokens(x, kind.mlp, layout) * expert_width(x.hidden, kind.mlp)
    return copies * routed + 2.0 * x.bytes * x.shard_tokens * x.hidden
