"""A program as text that a person can read, and step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from telekit.errors import bad
from telekit.fusion.bytecode import Program
from telekit.fusion.instructions import UNIT, Instruction, Kernel, Slot, base
from telekit.fusion.machine import Machine, tiling
from telekit.fusion.shapes import Dim, text
from telekit.units import format_bytes


class Step(NamedTuple):
    """One line of the walk through a program.

    Parameters
    ----------
    kernel : int
        Number of the kernel.
    phase : str
        ``loop`` (once a kernel), ``body`` (for each tile) or ``tail`` (once, after the loop).
    code : str
        The instruction as the listing writes it.
    reads, writes : tuple of str
        Operands.
    registers : tuple of str
        Registers that hold a value which is read later, after the instruction.
    """

    kernel: int
    phase: str
    code: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    registers: tuple[str, ...]


def listing(program: Program, sizes: Mapping[str, int] | None = None, machine: Machine | None = None) -> str:
    """Write a program as text.

    Parameters
    ----------
    program : Program
        What to write; it is checked first.
    sizes : Mapping, optional
        Value of each named size: then the tiles are shown as the machine would cut them.
    machine : Machine, optional
        Whose tiles.

    Raises
    ------
    InputError
        Not a program that is safe to run; a size that is missing.
    """
    decoded = program.decoded
    lines = [
        f"; {len(program.code)} bytes, {len(decoded.kernels)} kernels, sizes {', '.join(decoded.sizes) or 'none'}"
    ]
    for number, tensor in enumerate(decoded.tensors):
        lines.append(
            f"tensor t{number:<3} {tensor.role:<9} {tensor.dtype:<5} {text(tensor.shape):<18} {tensor.name}"
        )
    for place, kernel in enumerate(decoded.kernels):
        lines += ["", f"kernel {place} {kernel.label}", f"  {_loop_line(kernel, sizes, machine)}"]
        lines += [f"    {_written(kernel, instruction)}" for instruction in kernel.body]
        if kernel.tail:
            lines += ["  end", *(f"    {_written(kernel, instruction)}" for instruction in kernel.tail)]
    lines += ["", *(f"output {name} = t{number}" for name, number in decoded.outputs)]
    return "\n".join(lines)


def steps(
    program: Program, sizes: Mapping[str, int] | None = None, machine: Machine | None = None
) -> tuple[Step, ...]:
    """Walk through a program: each kernel's loop, its instructions once, its tail.

    Parameters
    ----------
    program, sizes, machine
        As for :func:`listing`.

    Raises
    ------
    InputError
        As :func:`listing`.
    """
    found: list[Step] = []
    for place, kernel in enumerate(program.decoded.kernels):
        found.append(Step(place, "loop", _loop_line(kernel, sizes, machine), (), (), ()))
        for phase, code in (("body", kernel.body), ("tail", kernel.tail)):
            found += _phase(place, kernel, phase, code)
    return tuple(found)


def _phase(place: int, kernel: Kernel, phase: str, code: Sequence[Instruction]) -> list[Step]:
    last = {base(kernel.slots, s): i for i, instruction in enumerate(code) for s in instruction.sources}
    holds: dict[int, int] = {}  # register, and the slot it holds
    made = []
    for i, instruction in enumerate(code):
        holds = {register: slot for register, slot in holds.items() if last.get(slot, -1) > i}
        target = kernel.slots[instruction.dst]
        if target.kind == "reg":
            holds[target.ref] = instruction.dst
        reads = tuple(_operand(kernel, s) for s in instruction.sources)
        registers = tuple(f"r{register}" for register in sorted(holds))
        writes = (_operand(kernel, instruction.dst),)
        made.append(Step(place, phase, _written(kernel, instruction), reads, writes, registers))
    return made


def _loop_line(kernel: Kernel, sizes: Mapping[str, int] | None, machine: Machine | None) -> str:
    axes = [f"{_axis(a)}={size}" for a, size in enumerate(kernel.axes)]
    looped = [axes[a] for a in kernel.loop]
    held = [axes[a] for a in range(len(axes)) if a not in kernel.loop]
    line = f"loop {' '.join(looped)}" if looped else "once"
    line += f", held {' '.join(held)}" if held else ""
    if sizes is None:
        return line
    missing = [dim for dim in kernel.axes if isinstance(dim, str) and dim not in sizes]
    if missing:
        raise bad("sizes", ", ".join(map(str, missing)), "every named size needs a value", f"{missing[0]}=8")
    cut = tiling(kernel, [_value(dim, sizes) for dim in kernel.axes], machine or Machine())
    parts = " ".join(f"{_axis(a)}:{cut.block[a]}" for a in kernel.loop)
    return f"{line}; {cut.tiles} tiles of {parts or 'all'}, {format_bytes(cut.tile_bytes)} each"


def _value(dim: Dim, sizes: Mapping[str, int]) -> int:
    return int(sizes[dim]) if isinstance(dim, str) else dim


def _axis(axis: int) -> str:
    """Letters for the axes of a kernel: i j k ..."""
    letters = "ijklmnopqrstuvwxyzabcdefgh"
    return letters[axis] if axis < len(letters) else f"i{axis}"


def _operand(kernel: Kernel, number: int) -> str:
    slot: Slot = kernel.slots[number]
    axes = ",".join("1" if a == UNIT else _axis(a) for a in slot.axes)
    match slot.kind:
        case "imm":
            return repr(slot.value)
        case "reg":
            return f"r{slot.ref}[{axes}]"
        case "view":
            return f"t{slot.ref}[{axes}]"
        case "acc":
            return f"acc{slot.ref}[{axes}]"
        case _:
            return f"{_operand(kernel, base(kernel.slots, number)).split('[')[0]}^T[{axes}]"


def _written(kernel: Kernel, instruction: Instruction) -> str:
    op, dst, sources, mask = instruction
    slot = kernel.slots[dst]
    line = f"{op + '.' + slot.dtype:<16} {_operand(kernel, dst):<12} <- "
    line += ", ".join(_operand(kernel, s) for s in sources)
    if op == "take":
        return f"{line}  along axis {mask}"
    return line
