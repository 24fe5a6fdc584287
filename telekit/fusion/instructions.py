"""What programs are made of: tensors, operands, instructions, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from telekit.fusion.shapes import Dim, Shape

UNIT = -1
"""An axis of literal size 1: it is stretched, not looped over."""
Axes = tuple[int, ...]

ROLES = ("input", "constant", "temporary", "output")
KINDS = ("view", "reg", "imm", "acc", "alias")
UNARY = ("negative", "exp", "log", "sqrt", "tanh", "absolute", "square", "reciprocal", "sin", "cos")
BINARY = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum")
REDUCE = ("sum", "mean", "max", "min")
ACCUMULATE = tuple(f"acc_{name}" for name in REDUCE)
OPCODES = (*UNARY, *BINARY, "cast", "copy", *REDUCE, *ACCUMULATE, "finish", "matmul", "take")


class Slot(NamedTuple):
    """What an operand of an instruction names.

    ``kind`` is ``view`` (the tile of tensor ``ref``), ``reg`` (register ``ref``), ``imm`` (the number ``value``),
    ``acc`` (the accumulator that body instruction ``ref`` adds to) or ``alias`` (the view or register that is slot
    ``ref``, its axes permuted by ``perm``). ``axes`` are the kernel's axes, one for each axis of the operand;
    ``UNIT`` where the size is 1.
    """

    kind: str
    dtype: str
    ref: int
    axes: Axes
    value: float = 0.0
    perm: tuple[int, ...] = ()


def base(slots: Sequence[Slot], number: int) -> int:
    """Slot whose memory an operand is: itself, or the view or register that an alias is of."""
    return slots[number].ref if slots[number].kind == "alias" else number


class Instruction(NamedTuple):
    """One instruction; ``mask`` is the bit set of the axes a reduction reduces, or the axis of a ``take``."""

    op: str
    dst: int
    sources: tuple[int, ...]
    mask: int = 0


class Kernel(NamedTuple):
    """A group as one loop over tiles.

    Parameters
    ----------
    label : str
        First and last operator.
    axes : tuple of Dim
        Size of each axis.
    loop : tuple of int
        The axes the loop runs over, outermost first; the others are held.
    slots : tuple of Slot
        Operands.
    body, tail : tuple of Instruction
        What runs for each tile, and once after the loop.
    """

    label: str
    axes: tuple[Dim, ...]
    loop: Axes
    slots: tuple[Slot, ...]
    body: tuple[Instruction, ...]
    tail: tuple[Instruction, ...]


class Tensor(NamedTuple):
    """A value that lies in memory; ``role`` is ``input``, ``constant``, ``temporary`` or ``output``."""

    name: str
    role: str
    dtype: str
    shape: Shape


class Decoded(NamedTuple):
    """A program as the machine reads it."""

    sizes: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    outputs: tuple[tuple[str, int], ...]
    kernels: tuple[Kernel, ...]
