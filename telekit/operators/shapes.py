"""One operator of a layer, and the shapes it is made from.

Everything is for **one micro-batch on one device**. Shapes follow the layout: a number for one layout, a column
(n, 1) for a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from telekit.model.config import ModelConfig
from telekit.model.tensors import Tensor
from telekit.operators.coefficients import now
from telekit.training.config import BYTES, LOW, TrainConfig

CASTS = {"delayed": 4.0, "tensorwise": 6.0, "blockwise": 4.0, "mxfp8": 4.0, "fp4": 7.0}
"""Bytes that casting one 16-bit number moves: it is read (tensorwise: once more for its largest; NVFP4: twice more, for
that and for the turned copy), and written along rows and along columns. Transformer Engine's kernels."""


GROUP_LAUNCH = 0.125
"""Host time of one more product inside a grouped one, over that of an operator: a loop in C++ (assumed)."""

CAST_LAUNCHES = 2.0
"""Host time of one low-precision product, over that of an operator: itself, and two casts at half an operator each
(assumed: Transformer Engine casts by one call of C++, or within a norm or activation; weights once a step)."""


class Product(NamedTuple):
    """Sizes of a matrix product: (rows, inner) with (inner, outer), the rows dealt evenly to ``groups`` matrices.

    ``wide`` keeps 16 bits where the recipe says fp8 or fp4.
    """

    rows: Any
    inner: Any
    outer: Any
    groups: Any = 1.0
    wide: bool = False


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
    weight_bytes : float or column
        Part of ``backward_bytes`` that only the weights' gradient moves.
    product : Product or None
        Sizes of a matrix product.
    keys : float or column
        Keys a query that attention's kernels work through at a stretch; 0: enough.
    launches : float or column
        Operators that the host issues for the forward pass; the backward pass takes ``backward_launches`` times as
        many (:class:`telekit.cluster.kernels.Kernels`, 1.5 unless a device says otherwise).
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
    weight_bytes: Any = 0.0
    product: Product | None = None
    keys: Any = 0.0
    launches: Any = 1.0


@dataclass(frozen=True)
class Shapes:
    """Token counts and byte widths that every operator of a layer uses.

    ``bytes`` is an activation between operators, ``product_bytes`` one that a matrix product reads and keeps for its
    backward pass (1 in fp8 recipes; DeepSeek-V3, arXiv 2412.19437, section 3.3.3).
    """

    hidden: int
    streams: int
    bytes: int
    product_bytes: float
    gradient_bytes: int
    cast_bytes: float
    unfused: bool
    tp: Any
    cp: Any
    micro_batch: Any
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
            product_bytes=train.product_bytes,
            gradient_bytes=BYTES[train.grad_dtype],
            cast_bytes=_cast_bytes(train),
            unfused=train.attention_kernel == "unfused",
            tp=layout.tp,
            cp=layout.cp,
            micro_batch=layout.micro_batch,
            tokens=tokens,
            shard_tokens=tokens / layout.sequence_shards,
            seq_len=train.seq_len,
        )

    @property
    def gathered_bytes(self) -> Any:
        """Bytes of the stream of all tensor ranks, where each holds its own part of the tokens; else 0."""
        apart = np.asarray(self.shard_tokens < self.tokens)
        return np.where(apart, self.bytes * self.tokens * self.hidden, 0.0)

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
        wide: bool = False,
    ) -> Operator:
        """Product of (tokens, inner) with (inner, outer); ``groups`` weight matrices of that size are read.

        The weights' gradient is added to the accumulated one, which is read and written. ``wide`` stays in 16 bits.
        """
        flops = 2.0 * tokens * inner * outer
        narrow = float(self.bytes) if wide else self.product_bytes
        weights = groups * inner * outer
        moved = tokens * (narrow * inner + self.bytes * outer) + narrow * weights
        weight = narrow * tokens * (inner + outer) + 2.0 * self.gradient_bytes * weights
        cast = 0.0 if wide else self.cast_bytes
        casts = (cast * tokens * inner, cast * tokens * outer)
        product = Product(tokens, inner, outer, groups, wide)
        more, casting = now("GROUP_LAUNCH", GROUP_LAUNCH), now("CAST_LAUNCHES", CAST_LAUNCHES)
        launches = (1.0 + (groups - 1.0) * more) * (casting if cast else 1.0)
        return Operator(
            name, kind, modules, flops, 2.0 * flops, moved, moved + weight, saved, held, *casts, weight,
            product, launches=launches,
        )  # fmt: skip

    def batched(
        self, name: str, pairs: Any, heads: Any, width: int, keys: Any, values: bool = False, held: Any = 0.0
    ) -> Operator:
        """Product of activations for each head: scores (queries by keys), or with ``values`` what they weigh."""
        rows = pairs / keys  # over all heads
        inner, outer = (keys, width) if values else (width, keys)
        flops = 2.0 * pairs * width
        moved = self.bytes * (pairs + 2.0 * rows * width)
        product = Product(rows, inner, outer, heads, True)
        return Operator(
            name, "gemm", ("core_attn",), flops, 2.0 * flops, moved, 2.0 * moved, 0.0, held,
            weight_bytes=moved, product=product,
        )  # fmt: skip

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
        launches: float = 1.0,
    ) -> Operator:
        """Work that its bytes bound: element-wise, or a product too thin to keep the device busy (``flops``)."""
        twice = 2.0 * flops
        return Operator(
            name,
            "memory",
            modules,
            flops,
            twice,
            forward_bytes,
            backward_bytes,
            saved,
            held,
            launches=launches,
        )


def recipe_of(train: TrainConfig) -> str:
    """Key of :data:`CASTS` for a low precision."""
    return train.fp8_recipe if train.precision == "fp8" else "fp4"


def _cast_bytes(train: TrainConfig) -> float:
    return now("CASTS", CASTS[recipe_of(train)]) if train.precision in LOW else 0.0


def boundary_width(model: ModelConfig) -> int:
    """Numbers a token that a pipeline stage hands to the next: all residual streams, and any per-layer inputs.

    Per-layer inputs are made with the embedding, so later layers' travel along; counted whole at every boundary.
    """
    inputs = model.per_layer_inputs
    return model.hidden_size * model.residual_streams + (inputs.width * model.num_layers if inputs else 0)
