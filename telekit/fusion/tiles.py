"""The tile loop: the views, registers and NumPy calls of one kernel, and the walk over its tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from telekit.fusion.compute import UFUNCS, Array, check_index, combine, finish, reduce
from telekit.fusion.instructions import ACCUMULATE, UNIT, Axes, Instruction, Kernel, Slot
from telekit.fusion.ops import numpy_dtype, scalar, wide_dtype

_ALL = slice(None)
Step = tuple[Callable[..., Any], int, int, int]  # call, first source, second source or -1, destination


class Total:
    """A reduction that is added up tile by tile: sums in fp64, largest and smallest in their own dtype (or fp32).

    Parameters
    ----------
    op : str
        ``sum``, ``mean``, ``max`` or ``min``.
    dtype : str
        Of the result.
    shape : tuple of int
        Of the result.
    count : int
        Elements that are reduced into one.
    """

    def __init__(self, op: str, dtype: str, shape: tuple[int, ...], count: int) -> None:
        self.op, self.dtype, self.count = op, dtype, count
        self.ufunc, start = combine(op)
        wide = np.dtype("f8") if op in ("sum", "mean") else wide_dtype(dtype)
        self.array: Array = np.full(shape, start, wide)

    def combine(self, into: Total) -> None:
        """Add what another thread found to ``into``."""
        self.ufunc(self.array, into.array, out=into.array)

    def result(self) -> Array:
        """Return what was found, not yet rounded to the dtype of the result."""
        return finish(self.op, self.array, self.count, self.dtype)


def totals(kernel: Kernel, whole: Sequence[int]) -> dict[int, Total]:
    """Make the empty accumulators of a kernel, by slot."""
    made = {}
    for op, dst, sources, mask in kernel.body:
        if op in ACCUMULATE:
            slot, source = kernel.slots[dst], kernel.slots[sources[0]]
            count = prod(whole[a] for i, a in enumerate(source.axes) if mask >> i & 1 and a != UNIT)
            made[dst] = Total(op.removeprefix("acc_"), slot.dtype, _shape(slot.axes, whole), count)
    return made


class Tiles:
    """One thread's registers, and the walk over its tiles.

    Parameters
    ----------
    kernel : Kernel
        What runs.
    block : sequence of int
        How much of each axis a tile has.
    whole : sequence of int
        Size of each axis.
    tensors : sequence of ndarray
        All tensors of the program.
    sums : dict
        This thread's accumulators.
    tail : bool
        Whether the tail runs in place of the body; ``block`` is then ``whole``.
    """

    def __init__(
        self,
        kernel: Kernel,
        block: Sequence[int],
        whole: Sequence[int],
        tensors: Sequence[Array],
        sums: dict[int, Total],
        tail: bool = False,
    ) -> None:
        self.slots = kernel.slots
        self.block, self.whole = block, whole
        self.sums = sums
        code = kernel.tail if tail else kernel.body
        self.split = [a for a in kernel.loop if block[a] < whole[a]]
        self.counts = [-(-whole[a] // block[a]) for a in self.split]
        self.used = _used(self.slots, code)
        self.memory = {
            i: tensors[self.slots[i].ref] if self.slots[i].kind == "view" else sums[i].array
            for i in self.used
            if self.slots[i].kind in ("view", "acc")
        }
        cut = set(self.split)
        self.moving = [(i, self.slots[i].axes) for i in self.memory if not cut.isdisjoint(self.slots[i].axes)]
        fixed = set(self.memory).difference(i for i, _ in self.moving)
        self.turning = [
            (i, self.slots[i].ref, self.slots[i].perm) for i in self.used if self.slots[i].kind == "alias"
        ]
        self.wide: dict[int, Array] = {}
        self.steps = [self._step(instruction, fixed) for instruction in code]
        sizes_bytes = register_bytes(self.slots, code, block)
        self.buffers = {ref: np.empty(size, np.uint8) for ref, size in sizes_bytes.items()}
        self.frames: dict[tuple[int, ...], list[Any]] = {}

    def run(self, numbers: Iterable[int]) -> None:
        """Execute the tiles of these numbers, in row-major order of the split axes."""
        steps, turning = self.steps, self.turning
        moving = []
        for i, axes in self.moving:  # rows: the one axis that is cut, where it is the first
            rows = axes[0] if [a for a in axes if a in self.split] == [axes[0]] else -1
            moving.append((i, self.memory[i], axes, rows))
        with np.errstate(all="ignore"):
            for number in numbers:
                part, extent = self._part(number)
                slots = self.frames.get(extent) or self._frame(extent)
                for i, array, axes, rows in moving:
                    slots[i] = array[part[rows] if rows >= 0 else tuple([part.get(a, _ALL) for a in axes])]
                for i, base, perm in turning:
                    slots[i] = slots[base].transpose(perm)
                for call, a, b, dst in steps:
                    if b < 0:
                        call(slots[a], slots[dst])
                    else:
                        call(slots[a], slots[b], slots[dst])

    def _part(self, number: int) -> tuple[dict[int, slice], tuple[int, ...]]:
        """Where tile ``number`` lies along each split axis, and how long it is there."""
        part, extent = {}, []
        for axis, count in zip(reversed(self.split), reversed(self.counts), strict=True):
            number, place = divmod(number, count)
            start = place * self.block[axis]
            stop = min(start + self.block[axis], self.whole[axis])
            part[axis] = slice(start, stop)
            extent.append(stop - start)
        return part, tuple(extent)

    def _frame(self, extent: tuple[int, ...]) -> list[Any]:
        """Operands of tiles of one shape; views that move are filled in tile by tile."""
        sizes = list(self.block)
        for axis, length in zip(reversed(self.split), extent, strict=True):
            sizes[axis] = length
        frame: list[Any] = [None] * len(self.slots)
        for i in self.used:
            slot = self.slots[i]
            if slot.kind == "reg":
                shape, dtype = _shape(slot.axes, sizes), numpy_dtype(slot.dtype)
                frame[i] = self.buffers[slot.ref][: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            elif slot.kind == "imm":
                frame[i] = scalar(slot.value, slot.dtype)
            elif slot.kind in ("view", "acc"):
                frame[i] = self.memory[i]
        self.frames[extent] = frame
        return frame

    def _step(self, instruction: Instruction, fixed: set[int]) -> Step:
        op, dst, sources, mask = instruction
        second = sources[1] if len(sources) == 2 else -1
        return self._call(op, dst, sources, mask, fixed), sources[0], second, dst

    def _call(
        self, op: str, dst: int, sources: tuple[int, ...], mask: int, fixed: set[int]
    ) -> Callable[..., Any]:
        if op in UFUNCS:
            return UFUNCS[op]
        slot, source = self.slots[dst], self.slots[sources[0]]
        axes = tuple(i for i in range(len(source.axes)) if mask >> i & 1)
        keepdims = len(slot.axes) == len(source.axes)
        match op:
            case "copy" | "cast":
                return _copy
            case "matmul" if slot.dtype in ("fp32", "fp64"):
                return np.matmul
            case "matmul":
                return partial(self._product, sources[1] if sources[1] in fixed else -1)
            case "take":
                return partial(_take, mask)
            case "finish":
                return partial(_finish, self.sums[sources[0]])
            case _ if op in ACCUMULATE:
                name = op.removeprefix("acc_")
                return partial(_accumulate, combine(name)[0], name, axes, keepdims)
            case _:
                return partial(_reduce, op, axes, keepdims)

    def _product(self, key: int, a: Array, b: Array, out: Array) -> None:
        """Product of 16-bit operands; a right one that is the same for every tile is widened once."""
        if key >= 0:
            if key not in self.wide:
                self.wide[key] = b.astype(np.float32)
            b = self.wide[key]
        out[...] = np.matmul(a.astype(np.float32), b.astype(np.float32, copy=False))


def register_bytes(
    slots: Sequence[Slot], code: Sequence[Instruction], block: Sequence[int]
) -> dict[int, int]:
    """Bytes of each register of a section, for tiles of this size: as its widest use needs."""
    sizes_bytes: dict[int, int] = {}
    for i in _used(slots, code):
        slot = slots[i]
        if slot.kind == "reg":
            size = prod(_shape(slot.axes, block)) * numpy_dtype(slot.dtype).itemsize
            sizes_bytes[slot.ref] = max(sizes_bytes.get(slot.ref, 0), size)
    return sizes_bytes


def _used(slots: Sequence[Slot], code: Sequence[Instruction]) -> list[int]:
    """Slots that a section names, an alias after what it is an alias of."""
    found = {i for instruction in code for i in (instruction.dst, *instruction.sources)}
    waiting = list(found)
    while waiting:
        slot = slots[waiting.pop()]
        if slot.kind == "alias" and slot.ref not in found:
            found.add(slot.ref)
            waiting.append(slot.ref)
    return sorted(found)


def _shape(axes: Axes, sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple([1 if a == UNIT else sizes[a] for a in axes])


def _copy(source: Array, out: Array) -> None:
    np.copyto(out, source, casting="unsafe")


def _reduce(op: str, axes: tuple[int, ...], keepdims: bool, source: Array, out: Array) -> None:
    out[...] = reduce(op, source, axes, keepdims)


def _accumulate(
    ufunc: np.ufunc, op: str, axes: tuple[int, ...], keepdims: bool, source: Array, total: Array
) -> None:
    ufunc(total, reduce("sum" if op == "mean" else op, source, axes, keepdims), out=total)


def _finish(total: Total, _: Array, out: Array) -> None:
    out[...] = total.result()


def _take(axis: int, source: Array, index: Array, out: Array) -> None:
    if not out.size:
        return
    check_index(index, source.shape[axis])
    np.take(
        source, index, axis=axis, out=out, mode="clip"
    )  # in bounds already; "raise" would buffer the result
