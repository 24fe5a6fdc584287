"""Where tensor-parallel ranks meet: what is an identity on the way there is a sum on the way back, and the reverse.

Megatron-Core's regions (core/tensor_parallel/mappings): copy, reduce, gather and reduce-scatter along positions.
"""

from __future__ import annotations

from telekit.accuracy.miniature.mesh import Array
from telekit.accuracy.miniature.tape import Operator, Tape

_POSITIONS = 4
"""Axis of positions in ``[dp, cp, tp, batch, positions, ...]``."""


def _region(forward: str, backward: str, *, wide: bool = False, fans_out: bool = False) -> Operator:
    """Make the operator that does one thing on the way there and another on the way back."""

    def through(tape: Tape, kind: str, x: Array) -> Array:
        rnd = tape.mesh.wide if wide else None
        return tape.collective(kind, "tp", x, rnd, axis=_POSITIONS) if kind else x

    return Operator(
        lambda tape, x: through(tape, forward, x), lambda tape, grad, x: (through(tape, backward, grad),),
        wide=wide, own_event=False, fans_out=fans_out,
    )  # fmt: skip


COPY = _region("", "all_reduce", fans_out=True)
"""Before a split linear layer: each rank makes a part of the input's gradient."""
WIDE_COPY = _region("", "all_reduce", wide=True, fans_out=True)
REDUCE = _region("all_reduce", "")
"""After a linear layer that each rank has a term of."""
GATHER = _region("all_gather", "reduce_scatter", fans_out=True)
"""With sequence parallelism, in place of COPY."""
WIDE_GATHER = _region("all_gather", "reduce_scatter", wide=True, fans_out=True)
SCATTER = _region("reduce_scatter", "all_gather")
"""With sequence parallelism, in place of REDUCE."""


def _gather_context(tape: Tape, x: Array) -> Array:
    return tape.collective("all_gather", "cp", x, axis=_POSITIONS)


def _scatter_context(tape: Tape, grad: Array, x: Array) -> tuple[Array]:
    return (tape.collective("reduce_scatter", "cp", grad, axis=_POSITIONS),)


GATHER_CONTEXT = Operator(_gather_context, _scatter_context, own_event=False)
"""Keys or values of all context-parallel ranks, in the order of ranks."""
