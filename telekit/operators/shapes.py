"""One operator of a layer, and the shapes it is made from.

Everything is for **one micro-batch on one device**. Shapes follow the layout: a number for one layout, a column
(n, 1) for a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from telekit.model.config import ModelConfig
from telekit.model.tensors import Tensor
from telekit.training.config import BYTES, TrainConfig


@dataclass(frozen=True)
class Operator:
    """One kernel, or a few that belong together.

    Parameters
    ----------
    name : str
        What it is.
    kind : str
        gemm, grouped_gemm, attention or memory (bound by its bytes, whatever it computes).
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
    streams: int
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
            streams=model.residual_streams,
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

    def product(
        self, tensor: Tensor, *modules: str, whole_input: bool = False, saved: float = 0.0, held: float = 1.0
    ) -> Operator:
        """Product with a matrix whose outputs are split, or that is whole on each rank.

        A split matrix meets every token of the context rank; a whole one those of the rank's own shard, or every
        token with ``whole_input`` (so each tensor rank does the same work). ``saved`` and ``held`` are copies of
        the output that are kept.
        """
        outputs, inputs = tensor.shape
        tokens = self.tokens if tensor.split or whole_input else self.shard_tokens
        outer = outputs / self.tp if tensor.split else float(outputs)
        rows = self.bytes * tokens * outer
        return self.gemm(tensor.name, tokens, inputs, outer, *modules, saved=saved * rows, held=held * rows)

    def stream(
        self,
        name: str,
        forward_bytes: Any,
        backward_bytes: Any,
        *modules: str,
        flops: Any = 0.0,
        saved: Any = 0.0,
        held: Any = 0.0,
    ) -> Operator:
        """Work that its bytes bound: element-wise, or a product too thin to keep the device busy (``flops``)."""
        twice = 2.0 * flops
        return Operator(name, "memory", modules, flops, twice, forward_bytes, backward_bytes, saved, held)


def boundary_width(model: ModelConfig) -> int:
    """Numbers a token that a pipeline stage hands to the next: all residual streams, and any per-layer inputs.

    Per-layer inputs are made with the embedding, so later layers' travel along; counted whole at every boundary.
    """
    inputs = model.per_layer_inputs
    return model.hidden_size * model.residual_streams + (inputs.width * model.num_layers if inputs else 0)
