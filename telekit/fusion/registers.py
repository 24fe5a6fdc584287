"""Registers by liveness: a register is free again after the last instruction that reads it."""

from __future__ import annotations

from telekit.fusion.instructions import Instruction, Slot, base
from telekit.fusion.ops import numpy_dtype

# These read and write element by element, so that the result may take the place of an operand.
_NOT_IN_PLACE = frozenset(("matmul", "take", "copy", "cast", "sum", "mean", "max", "min"))


def allocate(slots: list[Slot], code: list[Instruction]) -> None:
    """Give each register slot that ``code`` writes a register number, in place."""
    last: dict[int, int] = {}
    for place, instruction in enumerate(code):
        for source in instruction.sources:
            last[base(slots, source)] = place
    free: list[tuple[object, int]] = []  # what it held last (axes and item size), and its number
    count = 0
    for place, instruction in enumerate(code):
        number = -1
        ending = [b for b in {base(slots, s) for s in instruction.sources} if last[b] == place]
        ending = [b for b in ending if slots[b].kind == "reg"]
        target = slots[instruction.dst]
        if target.kind == "reg":
            number = _in_place(slots, instruction, ending)
            if number < 0:
                like = _like(target)
                match = next((i for i, (held, _) in enumerate(free) if held == like), len(free) - 1)
                number = free.pop(match)[1] if free else count
                count = max(count, number + 1)
            slots[instruction.dst] = target._replace(ref=number)
        free += [(_like(slots[b]), slots[b].ref) for b in sorted(ending) if slots[b].ref != number]


def _like(slot: Slot) -> object:
    return slot.axes, numpy_dtype(slot.dtype).itemsize


def _in_place(slots: list[Slot], instruction: Instruction, ending: list[int]) -> int:
    """Register of an operand that ends here and has the shape and dtype of the result, -1 when there is none."""
    target = slots[instruction.dst]
    if (
        not ending
        or instruction.op in _NOT_IN_PLACE
        or any(slots[s].kind == "alias" for s in instruction.sources)
    ):
        return -1
    for source in instruction.sources:
        if source in ending and slots[source].axes == target.axes and slots[source].dtype == target.dtype:
            return slots[source].ref
    return -1
