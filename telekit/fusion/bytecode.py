"""Fused programs as bytes: what the host writes once, and the machine reads for whatever sizes come.

    program  header | sizes by name | tensors | outputs | kernels
    header   magic "TKVM", version u8, reserved u8, length u32, CRC-32 u32 of all that follows
    tensor   role u8, dtype u8, name, shape
    kernel   label, axes (a shape), looped axes, slots, body, tail
    slot     kind u8, dtype u8, ref u16, rank u8, an axis u8 each (255: size 1); an ``imm`` has a float64 more, an
             ``alias`` a permutation
    instr    opcode u8, mask u8, dst u16, source u16, source u16 (65535: none): 8 bytes

All little-endian. A size is an i64: a number from 0, or -1 - i for the i-th name. So a program is for every shape,
and a new one needs no new encoding. Names are a length u8 and UTF-8. Constants that are not single numbers are not in
the bytes but in a table beside them; the tensors say what shape and dtype each must have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np

from telekit.errors import InputError, bad
from telekit.fusion.graph import Graph
from telekit.fusion.instructions import (
    BINARY,
    KINDS,
    OPCODES,
    ROLES,
    UNIT,
    Decoded,
    Instruction,
    Kernel,
    Slot,
    Tensor,
)
from telekit.fusion.kernels import Fusion, check_member, plan
from telekit.fusion.ops import DTYPES, FLOATS
from telekit.fusion.shapes import MAX_RANK, MAX_SIZE, Dim, Shape
from telekit.fusion.verify import verify

MAGIC, VERSION = b"TKVM", 1
_CODE = {name: code for code, name in enumerate(OPCODES)}
_DTYPE = {name: code for code, name in enumerate(DTYPES)}
_KIND = {name: code for code, name in enumerate(KINDS)}
_HEADER = struct.Struct("<4sBBII")
_INSTRUCTION = struct.Struct("<BBHHH")
_SLOT = struct.Struct("<BBHB")
_U16 = struct.Struct("<H")
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")
_NONE = 0xFFFF
_STRETCHED = 0xFF


@dataclass(frozen=True, eq=False)
class Program:
    """A fused program.

    Parameters
    ----------
    code : bytes
        The program.
    constants : tuple of ndarray
        Its constant table.
    """

    code: bytes
    constants: tuple[np.ndarray[Any, Any], ...] = ()

    @cached_property
    def decoded(self) -> Decoded:
        """The program, decoded and checked once.

        Raises
        ------
        InputError
            The bytes are no program that is safe to run.
        """
        made = decode(self.code)
        verify(made, self.constants)
        return made


def encode(graph: Graph, fusion: Fusion | Iterable[Iterable[int]]) -> Program:
    """Write a graph as a program, one kernel a group.

    Parameters
    ----------
    graph : Graph
        What is computed.
    fusion : Fusion or iterable of groups of node indices
        Which operators share a kernel, in the order the kernels run.

    Raises
    ------
    InputError
        A group cannot be one kernel, an operator is missing or in two groups, or the order is wrong: a group reads what
        a later one makes (as when two groups each need the other).
    """
    parts: Any = fusion.groups if isinstance(fusion, Fusion) else fusion
    parts = list(parts) if isinstance(parts, Iterable) else None
    if parts is None or not all(isinstance(group, Iterable) for group in parts):
        raise bad("groups", fusion, "groups of node indices", str([graph.operators[:5]]), graph.name)
    groups = [tuple(group) for group in parts]
    live = graph.live()
    _check_partition(graph, groups, live)
    group_of = {index: place for place, group in enumerate(groups) for index in group}
    readers, outputs = graph.consumers(), set(graph.outputs.values())
    number: dict[int, int] = {}
    tensors: list[Tensor] = []
    constants = []
    for node in graph.nodes:
        inner = node.index in group_of
        if inner and node.index not in outputs:
            outside = [r for r in readers[node.index] if r in live and group_of[r] != group_of[node.index]]
            if not outside:
                continue
        elif not inner and node.op != "input" and node.index not in live:
            continue
        if node.op == "constant":
            if node.shape == () and node.dtype in FLOATS and node.index not in outputs:
                continue
            constants.append(node.attrs["value"])
        role = node.op if not inner else "output" if node.index in outputs else "temporary"
        number[node.index] = len(tensors)
        tensors.append(Tensor(node.name, role, node.dtype, node.shape))
    kernels = [plan(graph, group, number) for group in groups if not live.isdisjoint(group)]
    named = tuple((name, number[index]) for name, index in graph.outputs.items())
    return Program(_pack(Decoded(graph.symbols(), tuple(tensors), named, tuple(kernels))), tuple(constants))


def _check_partition(graph: Graph, groups: Sequence[tuple[int, ...]], live: frozenset[int]) -> None:
    seen: set[int] = set()
    nodes = graph.nodes
    for group in groups:
        for index in group:
            check_member(graph, index)
            if index in seen:
                raise bad(
                    "groups", nodes[index].name, "in two groups, or twice in one", "leave one out", graph.name
                )
            seen.add(index)
        inside = set(group)
        for index in group:
            for source in nodes[index].inputs:
                late = source not in seen and nodes[source].op not in ("input", "constant")
                if late and source not in inside and index in live:
                    rule = "reads what no earlier group makes"
                    order = f"run {nodes[source].name} before it; if that needs this group, take them apart"
                    raise bad(nodes[index].name, nodes[source].name, rule, order, graph.name)
    missing = [nodes[i].name for i in graph.operators if i in live and i not in seen]
    if missing:
        names = ", ".join(missing[:5])
        raise bad("groups", names, "these operators are in no group", "a group of their own", graph.name)


def _pack(program: Decoded) -> bytes:
    where = {name: -1 - i for i, name in enumerate(program.sizes)}

    def shape(dims: Sequence[Dim]) -> bytes:
        return bytes((len(dims),)) + b"".join(
            [_I64.pack(where[d] if isinstance(d, str) else d) for d in dims]
        )

    parts = [_count(program.sizes), *map(_name, program.sizes), _count(program.tensors)]
    for tensor in program.tensors:
        parts += (
            bytes((ROLES.index(tensor.role), _DTYPE[tensor.dtype])),
            _name(tensor.name),
            shape(tensor.shape),
        )
    parts.append(_count(program.outputs))
    for name, tensor_number in program.outputs:
        parts += (_name(name), _U16.pack(tensor_number))
    parts.append(_count(program.kernels))
    for kernel in program.kernels:
        parts += (_name(kernel.label), shape(kernel.axes), bytes((len(kernel.loop), *kernel.loop)))
        parts.append(_count(kernel.slots))
        parts += map(_packed_slot, kernel.slots)
        for code in (kernel.body, kernel.tail):
            parts.append(_count(code))
            parts += [
                _INSTRUCTION.pack(
                    _CODE[op], mask, dst, sources[0], sources[1] if len(sources) == 2 else _NONE
                )
                for op, dst, sources, mask in code
            ]
    return seal(b"".join(parts))


def seal(payload: bytes) -> bytes:
    """Put the header before the sections of a program."""
    return _HEADER.pack(MAGIC, VERSION, 0, _HEADER.size + len(payload), crc32(payload)) + payload


def _count(things: Sequence[Any]) -> bytes:
    if len(things) >= _NONE:
        raise bad("program", len(things), f"a section has at most {_NONE - 1} entries", "smaller groups")
    return _U16.pack(len(things))


def _name(text: str) -> bytes:
    raw = text.encode()[:255]
    raw = raw.decode(errors="ignore").encode()  # no half of a character at the end
    return bytes((len(raw),)) + raw


def _packed_slot(slot: Slot) -> bytes:
    kind, dtype, ref, axes, value, perm = slot
    head = _SLOT.pack(_KIND[kind], _DTYPE[dtype], ref, len(axes))
    rest = _F64.pack(value) if kind == "imm" else bytes(perm)
    return head + bytes([a if a != UNIT else _STRETCHED for a in axes]) + rest


def decode(code: bytes) -> Decoded:
    """Read a program; the meaning is checked by :func:`telekit.fusion.verify.verify`.

    Raises
    ------
    InputError
        Not a program, another version, damaged, or cut off; the text says at which byte.
    """
    if len(code) < _HEADER.size or code[:4] != MAGIC:
        raise bad("program", code[:4], f"starts with {MAGIC!r}", "bytes that encode() made", "bytecode")
    _, version, reserved, length, checksum = _HEADER.unpack_from(code)
    if version != VERSION or reserved:
        raise bad(
            "program.version", version, f"this machine reads version {VERSION}", "encode it again", "bytecode"
        )
    if length != len(code):
        raise bad(
            "program.length", len(code), f"the header says {length} bytes", "the whole file", "bytecode"
        )
    if crc32(code[_HEADER.size :]) != checksum:
        raise bad(
            "program.checksum", checksum, "the bytes were changed after they were written", "", "bytecode"
        )
    reader = _Reader(code)
    try:
        return reader.program()
    except (struct.error, IndexError, UnicodeDecodeError):
        raise bad(f"byte {reader.at}", "", "the program ends or breaks off here", "", "bytecode") from None


class _Reader:
    """Reads sections; every index into a table of names is checked here, every other one by the verifier."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.at = _HEADER.size
        self.sizes: tuple[str, ...] = ()

    def program(self) -> Decoded:
        self.sizes = tuple(self.name() for _ in range(self.u16()))
        tensors = tuple(self.tensor() for _ in range(self.u16()))
        outputs = tuple((self.name(), self.u16()) for _ in range(self.u16()))
        kernels = tuple(self.kernel() for _ in range(self.u16()))
        if self.at != len(self.code):
            raise self.wrong(len(self.code) - self.at, "bytes are left over")
        return Decoded(self.sizes, tensors, outputs, kernels)

    def wrong(self, value: Any, rule: str) -> InputError:
        return bad(f"byte {self.at}", value, rule, "", "bytecode")

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self.code, self.at)
        self.at += form.size
        return found

    def u8(self) -> int:
        self.at += 1
        return self.code[self.at - 1]

    def u16(self) -> int:
        return int(self.take(_U16)[0])

    def raw(self, length: int) -> bytes:
        if self.at + length > len(self.code):
            raise self.wrong(length, "the program breaks off here")
        self.at += length
        return self.code[self.at - length : self.at]

    def name(self) -> str:
        return self.raw(self.u8()).decode()

    def pick(self, names: Sequence[str], number: int) -> str:
        if number >= len(names):
            raise self.wrong(number, f"a number below {len(names)}")
        return names[number]

    def shape(self, longest: int) -> Shape:
        rank = self.u8()
        if rank > longest:
            raise self.wrong(rank, f"at most {longest} axes")
        return tuple(self.dim() for _ in range(rank))

    def dim(self) -> Dim:
        size = int(self.take(_I64)[0])
        if not -len(self.sizes) <= size <= MAX_SIZE:
            raise self.wrong(size, f"a size is from 0 to {MAX_SIZE} or one of the names")
        return self.sizes[-1 - size] if size < 0 else size

    def tensor(self) -> Tensor:
        role, dtype = self.pick(ROLES, self.u8()), self.pick(DTYPES, self.u8())
        return Tensor(self.name(), role, dtype, self.shape(MAX_RANK))

    def kernel(self) -> Kernel:
        label, axes, loop = self.name(), self.shape(255), tuple(self.raw(self.u8()))
        slots = tuple(self.slot() for _ in range(self.u16()))
        body, tail = (tuple(self.instruction() for _ in range(self.u16())) for _ in range(2))
        return Kernel(label, axes, loop, slots, body, tail)

    def slot(self) -> Slot:
        kind, dtype, ref, rank = self.take(_SLOT)
        axes = tuple(UNIT if a == _STRETCHED else a for a in self.raw(rank))
        name = self.pick(KINDS, kind)
        value = float(self.take(_F64)[0]) if name == "imm" else 0.0
        perm = tuple(self.raw(rank)) if name == "alias" else ()
        return Slot(name, self.pick(DTYPES, dtype), ref, axes, value, perm)

    def instruction(self) -> Instruction:
        code, mask, dst, first, second = self.take(_INSTRUCTION)
        op = self.pick(OPCODES, code)
        two = op in BINARY or op in ("matmul", "take")
        if two != (second != _NONE):
            raise self.wrong(op, f"has {1 + two} sources")
        return Instruction(op, dst, (first, second) if two else (first,), mask)
