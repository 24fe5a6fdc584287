"""What must hold of a program before the machine runs it: nothing that was decoded is trusted.

Every operand of every instruction has axes and a dtype that its operator allows, and axes whose sizes are those of its
tensor; no register or tensor is read before it is written; each tensor is written once, and wholly; what is held is
not split. Then no instruction can touch memory that is not its own, whatever sizes come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from telekit.errors import InputError, bad
from telekit.fusion.axes import MAX_AXES
from telekit.fusion.instructions import (
    ACCUMULATE,
    BINARY,
    REDUCE,
    UNARY,
    UNIT,
    Axes,
    Decoded,
    Instruction,
    Kernel,
    Slot,
    Tensor,
    base,
)
from telekit.fusion.ops import FLOATS, INTEGERS, numpy_dtype
from telekit.fusion.shapes import MAX_RANK


def verify(program: Decoded, constants: Sequence[np.ndarray[Any, Any]]) -> None:
    """Check a decoded program and its constant table.

    Raises
    ------
    InputError
        The first thing that is wrong, with the kernel and instruction where it is.
    """
    _check_names(program)
    _check_constants(program.tensors, constants)
    written = {i for i, tensor in enumerate(program.tensors) if tensor.role in ("input", "constant")}
    for place, kernel in enumerate(program.kernels):
        _KernelCheck(program, kernel, f"kernel {place}", written).run()
    for name, number in program.outputs:
        if number not in written:
            raise bad(f"outputs.{name}", number, "no kernel writes this tensor", "", "bytecode")


def _check_names(program: Decoded) -> None:
    if any(not name.isidentifier() for name in program.sizes) or len(set(program.sizes)) < len(program.sizes):
        raise bad("sizes", ", ".join(program.sizes), "names of sizes are different words", "", "bytecode")
    for what, names in (
        ("inputs", [t.name for t in program.tensors if t.role == "input"]),
        ("outputs", [name for name, _ in program.outputs]),
    ):
        if len(set(names)) < len(names) or any(not name.isprintable() for name in names):
            raise bad(what, ", ".join(names), "names are different and printable", "", "bytecode")


def _check_constants(tensors: Sequence[Tensor], constants: Sequence[np.ndarray[Any, Any]]) -> None:
    wanted = [tensor for tensor in tensors if tensor.role == "constant"]
    if len(wanted) != len(constants):
        rule = f"the program needs {len(wanted)}"
        raise bad("constants", len(constants), rule, "the table encode() made", "bytecode")
    for tensor, array in zip(wanted, constants, strict=True):
        if (
            not isinstance(array, np.ndarray)
            or array.dtype != numpy_dtype(tensor.dtype)
            or array.shape != tensor.shape
        ):
            raise bad(
                f"constants.{tensor.name}",
                getattr(array, "shape", array),
                f"{tensor.dtype} of {tensor.shape}",
            )


class _KernelCheck:
    """Checks one kernel, and notes what it writes."""

    def __init__(self, program: Decoded, kernel: Kernel, where: str, written: set[int]) -> None:
        self.tensors = program.tensors
        self.kernel = kernel
        self.where = where
        self.before = frozenset(written)
        self.written = written
        self.loop = frozenset(kernel.loop)
        self.here: dict[int, int] = {}  # tensor written in this section, and through which slot
        self.holder: dict[int, int] = {}  # register, and the slot whose value it holds
        self.totals: dict[int, Instruction] = {}

    def wrong(self, value: Any, rule: str) -> InputError:
        return bad(self.where, value, rule, "", "bytecode")

    def demand(self, truth: bool, value: Any, rule: str) -> None:
        if not truth:
            raise self.wrong(value, rule)

    def run(self) -> None:
        kernel, name = self.kernel, self.where
        self.demand(len(kernel.axes) <= MAX_AXES, len(kernel.axes), f"at most {MAX_AXES} axes")
        self.demand(len(self.loop) == len(kernel.loop), kernel.loop, "an axis is looped over once")
        self.demand(
            all(a < len(kernel.axes) for a in kernel.loop), kernel.loop, "looped axes are axes of the kernel"
        )
        self.demand(bool(kernel.body), "no instruction", "a kernel has instructions for each tile")
        for number, slot in enumerate(kernel.slots):
            self.where = f"{name} slot {number}"
            self._slot(number, slot)
        for section, code in (("body", kernel.body), ("tail", kernel.tail)):
            self.holder, self.here = {}, {}
            for place, instruction in enumerate(code):
                self.where = f"{name} {section} {place} ({instruction.op})"
                self._instruction(instruction, section == "body", place)
            self.written.update(self.here)
        self.where = name

    def _slot(self, number: int, slot: Slot) -> None:
        self.demand(len(slot.axes) <= MAX_RANK, slot.axes, f"at most {MAX_RANK} axes")
        real = [a for a in slot.axes if a != UNIT]
        self.demand(all(a < len(self.kernel.axes) for a in real), slot.axes, "axes of the kernel")
        self.demand(len(set(real)) == len(real), slot.axes, "an axis comes once in an operand")
        match slot.kind:
            case "view":
                self.demand(slot.ref < len(self.tensors), slot.ref, "no such tensor")
                tensor = self.tensors[slot.ref]
                sizes = tuple(1 if a == UNIT else self.kernel.axes[a] for a in slot.axes)
                self.demand(
                    sizes == tensor.shape and slot.dtype == tensor.dtype, slot.axes, f"not as tensor {tensor}"
                )
            case "imm":
                self.demand(
                    slot.axes == () and slot.dtype in FLOATS, slot.axes, "a number has no axes and is a float"
                )
            case "alias":
                self.demand(slot.ref < number, slot.ref, "an alias is of an earlier slot")
                base_slot = self.kernel.slots[slot.ref]
                self.demand(
                    base_slot.kind in ("view", "reg"), base_slot.kind, "an alias is of a view or register"
                )
                fits = sorted(slot.perm) == list(range(len(base_slot.axes))) and slot.dtype == base_slot.dtype
                self.demand(fits, slot.perm, "a permutation of the axes of its slot")
                self.demand(
                    slot.axes == tuple(base_slot.axes[i] for i in slot.perm), slot.axes, "axes in that order"
                )

    def _instruction(self, instruction: Instruction, body: bool, place: int) -> None:
        slots = self.kernel.slots
        for number in (instruction.dst, *instruction.sources):
            self.demand(number < len(slots), number, "no such slot")
        if instruction.op != "finish":
            for number in instruction.sources:
                self._readable(number)
        dst, sources = slots[instruction.dst], [slots[s] for s in instruction.sources]
        if instruction.op in ACCUMULATE:
            self._accumulate(instruction, dst, sources[0], body, place)
            return
        if instruction.op == "finish":
            total = self.totals.get(instruction.sources[0])
            self.demand(
                not body and total is not None, instruction.sources, "ends a sum of the body, in the tail"
            )
            self.demand(
                dst.axes == sources[0].axes and dst.dtype == sources[0].dtype, dst, "has the shape of the sum"
            )
        else:
            self._operator(instruction, dst, sources, self.loop if body else frozenset())
        self._write(instruction.dst, dst, body)

    def _readable(self, number: int) -> None:
        number = base(self.kernel.slots, number)
        slot = self.kernel.slots[number]
        match slot.kind:
            case "reg":
                self.demand(self.holder.get(slot.ref) == number, f"r{slot.ref}", "read before it is written")
            case "view":
                known = slot.ref in self.before or self.here.get(slot.ref) == number
                self.demand(known, self.tensors[slot.ref].name, "read before it is written")
            case "acc":
                raise self.wrong(number, "a sum is read by finish alone")

    def _write(self, number: int, slot: Slot, body: bool) -> None:
        self.demand(slot.kind in ("reg", "view"), slot.kind, "a result goes to a register or a tensor")
        if slot.kind == "reg":
            self.holder[slot.ref] = number
            return
        tensor = self.tensors[slot.ref]
        fresh = slot.ref not in self.before and slot.ref not in self.written and slot.ref not in self.here
        self.demand(fresh, tensor.name, "a tensor is written once, and never an input or constant")
        self.demand(
            not body or self.loop <= set(slot.axes), slot.axes, "what is stored has every looped axis"
        )
        self.here[slot.ref] = number

    def _accumulate(self, instruction: Instruction, dst: Slot, source: Slot, body: bool, place: int) -> None:
        self.demand(body and dst.kind == "acc" and dst.ref == place, dst, "adds to its own sum, in the body")
        self.demand(self.loop <= set(source.axes), source.axes, "what is summed up has every looped axis")
        self._reduction(instruction, dst, source, frozenset())
        self.totals[instruction.dst] = instruction

    def _operator(
        self, instruction: Instruction, dst: Slot, sources: list[Slot], looped: frozenset[int]
    ) -> None:
        op = instruction.op
        if op in UNARY or op in BINARY or op in ("copy", "cast"):
            for source in sources:
                self.demand(_stretches(source.axes, dst.axes), source.axes, f"does not stretch to {dst.axes}")
                self.demand(op == "cast" or source.dtype == dst.dtype, source.dtype, "one dtype")
            self.demand(op in ("copy", "cast") or dst.dtype in FLOATS, dst.dtype, "arithmetic is on floats")
        elif op in REDUCE:
            self._reduction(instruction, dst, sources[0], looped)
        elif op == "matmul":
            self._product(dst, sources[0], sources[1], looped)
        else:
            self._gather(instruction, dst, sources[0], sources[1], looped)

    def _reduction(self, instruction: Instruction, dst: Slot, source: Slot, looped: frozenset[int]) -> None:
        axes, mask = source.axes, instruction.mask
        self.demand(mask < 1 << len(axes), mask, "reduces axes that its operand has")
        reduced = [a for i, a in enumerate(axes) if mask >> i & 1]
        dropped = tuple(a for i, a in enumerate(axes) if not mask >> i & 1)
        kept = tuple(UNIT if mask >> i & 1 else a for i, a in enumerate(axes))
        self.demand(dst.axes in (dropped, kept), dst.axes, f"{dropped} or {kept}")
        self.demand(looped.isdisjoint(reduced), reduced, "an axis that is reduced in a tile is held")
        self.demand(dst.dtype == source.dtype and dst.dtype in FLOATS, dst.dtype, "one dtype, a float")

    def _product(self, dst: Slot, a: Slot, b: Slot, looped: frozenset[int]) -> None:
        self.demand(
            min(len(a.axes), len(b.axes), len(dst.axes)) >= 2, dst.axes, "operands have two axes or more"
        )
        self.demand(
            a.axes[-1] == b.axes[-2] and a.axes[-1] not in looped, a.axes, "the inner axis is one, and held"
        )
        self.demand(dst.axes[-2:] == (a.axes[-2], b.axes[-1]), dst.axes, "rows of one, columns of the other")
        for source in (a, b):
            self.demand(_stretches(source.axes[:-2], dst.axes[:-2]), source.axes, "does not stretch")
            self.demand(source.dtype == dst.dtype and dst.dtype in FLOATS, source.dtype, "one dtype, a float")

    def _gather(
        self, instruction: Instruction, dst: Slot, x: Slot, index: Slot, looped: frozenset[int]
    ) -> None:
        axis = instruction.mask
        self.demand(axis < len(x.axes), axis, "gathers along an axis that its operand has")
        self.demand(x.axes[axis] not in looped, x.axes, "the axis that is gathered along is held")
        wanted = (*x.axes[:axis], *index.axes, *x.axes[axis + 1 :])
        self.demand(dst.axes == wanted, dst.axes, f"{wanted}")
        self.demand(
            index.dtype in INTEGERS and x.dtype == dst.dtype, index.dtype, "an index is of whole numbers"
        )


def _stretches(source: Axes, target: Axes) -> bool:
    pairs = zip(source[::-1], target[::-1], strict=False)
    return len(source) <= len(target) and all(s in (UNIT, t) for s, t in pairs)
