"""Operators of linear attention and state-space layers: projections, a short convolution, a recurrence, a gate.

A kernel works through the sequence in chunks. It keeps what it read, and no states: those at the ends of chunks are
rebuilt in the backward pass, which therefore costs three forwards. Sources: ``fla/ops/gated_delta_rule/chunk.py`` and
``fla/ops/kda/chunk.py`` of github:fla-org/flash-linear-attention, ``megatron/core/ssm/gated_delta_net.py`` of
github:NVIDIA/Megatron-LM, ``mamba_ssm/ops/triton/ssd_combined.py`` of github:state-spaces/mamba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from telekit.model.attention import GatedDeltaNet, KimiDeltaAttention, LightningAttention, Mamba2
from telekit.model.attention_flops import mixer_flops
from telekit.model.tensors import Tensor
from telekit.operators.shapes import Operator, Shapes

RECURRENT_BACKWARD = 3.0
"""Twice the forward's work for the gradients, and once more to rebuild the states."""
DELTA_CHUNK = 64
"""Tokens of a chunk of the delta rule's kernels; they keep a triangle of that width for each token and head."""
STATE_CHUNK = 128
"""Tokens of a chunk of Mamba-2's kernel, as Megatron-Core sets it."""


@dataclass(frozen=True)
class Recurrence:
    """Numbers a token, over all heads, on the way through a recurrent layer.

    Parameters
    ----------
    prepared : int
        Written between convolution and recurrence, and kept: activated, normed or repeated queries, keys, values.
    read, kept : int
        What the recurrence reads; what it keeps beside that.
    output : int
        Its output, kept too; the gate has as many.
    states : float
        Numbers of chunks' states, for each token, that pass through memory on the way.
    """

    prepared: int
    read: int
    kept: int
    output: int
    states: float


def _gated_delta(a: GatedDeltaNet) -> Recurrence:
    keys, values = a.key_heads * a.key_head_dim, a.value_heads * a.value_head_dim
    each = a.value_heads * a.key_head_dim  # queries and keys are repeated for each value head
    repeated = 2 * each if each != keys else 0
    read = 2 * each + values + 2 * a.value_heads
    states = a.value_heads * a.key_head_dim * a.value_head_dim / DELTA_CHUNK
    return Recurrence(2 * keys + repeated + values, read, DELTA_CHUNK * a.value_heads, values, states)


def _kimi_delta(a: KimiDeltaAttention) -> Recurrence:
    width = a.heads * a.head_dim
    kept = 2 * DELTA_CHUNK * a.heads  # two triangles: of keys, and of queries with keys
    return Recurrence(3 * width, 4 * width + a.heads, kept, width, width * a.head_dim / DELTA_CHUNK)


def _lightning(a: LightningAttention) -> Recurrence:
    width = a.heads * a.head_dim
    return Recurrence(3 * width, 3 * width, 0, width, 0.0)  # its state stays on the chip


def _mamba2(a: Mamba2) -> Recurrence:
    inner, maps = a.heads * a.head_dim, a.groups * a.state_size
    # one kernel with the convolution, which it rebuilds
    return Recurrence(0, inner + 2 * maps + a.heads, 0, inner, inner * a.state_size / STATE_CHUNK)


_RECURRENCES: dict[str, Callable[[Any], Recurrence]] = {
    "gated-delta": _gated_delta,
    "kda": _kimi_delta,
    "lightning": _lightning,
    "mamba2": _mamba2,
}
RECURRENT = tuple(_RECURRENCES)
"""Kinds of mixers that these operators are of."""
_OUTPUTS = ("o_proj", "out_proj")


def recurrent(x: Shapes, spec: Any, found: dict[str, Tensor]) -> Iterator[Operator]:
    """Operators of a recurrent mixer. Kept, beside what :class:`Recurrence` names: the projections' outputs.

    The recurrence counts :func:`~telekit.model.attention_flops.mixer_flops` at the speed of attention kernels, or
    its traffic with memory, whichever takes longer.
    """
    numbers = _RECURRENCES[spec.kind](spec)
    conv = found.get("conv")
    for tensor in found.values():
        if tensor.component == "attention" and tensor is not conv and tensor.name not in _OUTPUTS:
            yield x.product(tensor)
    if conv is not None:
        channels, kernel = conv.shape
        rows = x.bytes * x.tokens * channels / x.tp
        flops = 2.0 * x.tokens * channels * kernel / x.tp
        yield x.stream("conv", 2.0 * rows, 3.0 * rows, flops=flops)
    if numbers.prepared:
        rows = x.bytes * x.tokens * numbers.prepared / x.tp
        yield x.stream("prepare", 2.0 * rows, 3.0 * rows, held=rows)
    yield _recurrence(x, spec, numbers)
    rows = x.bytes * x.tokens * numbers.output / x.tp
    gated = x.product_bytes * x.tokens * numbers.output / x.tp
    yield x.stream("gated_norm", 3.0 * rows, 5.0 * rows, held=gated)
    yield x.gemm("output_projection", x.tokens, numbers.output / x.tp, x.hidden)


def _recurrence(x: Shapes, spec: Any, numbers: Recurrence) -> Operator:
    flops = x.tokens * mixer_flops(spec, x.seq_len) / x.tp
    passed = numbers.read + numbers.output + 2.0 * numbers.states
    moved = x.bytes * x.tokens * passed / x.tp
    held = x.bytes * x.tokens * (numbers.output + numbers.kept) / x.tp
    backward = RECURRENT_BACKWARD * flops
    return Operator("recurrence", "attention", (), flops, backward, moved, 3.0 * moved, held_bytes=held)
