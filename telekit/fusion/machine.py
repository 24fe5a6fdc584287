"""The machine: runs a fused program tile by tile, so that what lies between two operators never leaves the cache.

A kernel is a loop over tiles. For each tile the machine points the views at their part of each tensor, then executes
the instructions one after the other; each is one NumPy call over the whole tile that writes into a register, which is
a buffer that is used again, or straight into the result. Nothing is interpreted for an element: the price of the
machine is a fixed time for each instruction and tile, so tiles are as large as the cache allows and not larger.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from telekit.errors import InputError, Problem, bad
from telekit.fusion.bytecode import Program
from telekit.fusion.compute import Array, bind, check_named
from telekit.fusion.instructions import ACCUMULATE, UNIT, Decoded, Instruction, Kernel, Slot
from telekit.fusion.kernels import footprint
from telekit.fusion.ops import numpy_dtype
from telekit.fusion.tiles import Tiles, register_bytes, totals
from telekit.units import KIB

CACHE_BYTES = 1024 * KIB  # what the operands of a tile may take: a core's own cache (L2)
MAX_THREADS = 1024
CALL_ELEMENTS = 256  # what a call costs beside its elements (a good half of a microsecond), in elements
LEAST_ELEMENTS = 4096  # below this the fixed time of an instruction is more than its arithmetic


@dataclass(frozen=True)
class Machine:
    """How programs are run.

    Parameters
    ----------
    cache_bytes : int
        What the operands of a tile may take together.
    threads : int
        How many tiles are worked on at once; 0 is one a core, eight at most (numexpr's own default).
    least_elements : int
        A tile is not made smaller than this to fit the cache; a kernel of less than 32 times as many has one thread.
    memory_bytes : int
        Most that results, temporaries, registers and accumulators may take; beyond it the run is refused before it
        starts.
    scratch_bytes : int
        Most of it that is neither result nor temporary: registers and accumulators of all threads.
    elements : int
        Most elements that all instructions may write or read together; a call for a tile counts 256 more.

    Raises
    ------
    InputError
        A field that is not a whole number within its bounds.
    """

    cache_bytes: int = CACHE_BYTES
    threads: int = 0
    least_elements: int = LEAST_ELEMENTS
    memory_bytes: int = 2**34
    scratch_bytes: int = 2**30
    elements: int = 2**42

    def __post_init__(self) -> None:
        problems = []
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name == "least_elements")
            most = MAX_THREADS if field.name == "threads" else 2**62
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                rule = f"must be a whole number from {least} to {most}"
                problems.append(Problem(field.name, value, rule, str(field.default)))
        if problems:
            raise InputError(problems)

    @property
    def workers(self) -> int:
        """Number of threads."""
        return self.threads or min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 8)


def run(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    out: Mapping[str, Array] | None = None,
    machine: Machine | None = None,
) -> dict[str, Array]:
    """Run a program.

    Parameters
    ----------
    program : Program
        From ``encode``, or bytes from anywhere: they are checked before they run.
    inputs : Mapping
        Array of each input, of its dtype; any strides, any sizes that agree.
    sizes : Mapping, optional
        Named sizes that no input shows.
    out : Mapping, optional
        Arrays that outputs are written into; fresh ones are made where none is given.
    machine : Machine, optional
        Cache, threads and bounds.

    Returns
    -------
    dict
        Array of each output, by name.

    Raises
    ------
    InputError
        A program that is not safe to run, inputs that do not fit, sizes beyond the bounds, an index out of bounds, the
        largest of nothing.
    """
    machine = machine or Machine()
    decoded = program.decoded
    wanted = {t.name: (t.shape, t.dtype) for t in decoded.tensors if t.role == "input"}
    bound = bind(wanted, inputs, {} if sizes is None else sizes)
    check_named(bound, decoded.sizes)
    missing = [name for name in decoded.sizes if name not in bound]
    if missing:
        raise bad("sizes", ", ".join(missing), "every named size needs a value", f"{missing[0]}=8")
    shapes = [tuple(bound[d] if isinstance(d, str) else d for d in t.shape) for t in decoded.tensors]
    wholes = [[bound[d] if isinstance(d, str) else d for d in k.axes] for k in decoded.kernels]
    cuts = [tiling(k, whole, machine) for k, whole in zip(decoded.kernels, wholes, strict=True)]
    _check_bounds(decoded, shapes, wholes, cuts, machine)
    store = _Store(decoded, shapes, inputs, program.constants, out or {})
    with np.errstate(all="ignore"):
        for place, kernel in enumerate(decoded.kernels):
            _run_kernel(kernel, wholes[place], cuts[place], store.ready(place))
            store.release(place)
    return store.results()


class Tiling(NamedTuple):
    """How a kernel is cut: size of a tile along each axis, how many there are, threads, bytes a tile occupies."""

    block: tuple[int, ...]
    tiles: int
    threads: int
    tile_bytes: int


def tiling(kernel: Kernel, whole: Sequence[int], machine: Machine) -> Tiling:
    """Cut a kernel into tiles.

    The innermost looped axis is taken whole first, then the next, as long as the operands fit the cache; the axis at
    which they no longer fit is cut into equal parts.

    Parameters
    ----------
    kernel : Kernel
        What runs.
    whole : sequence of int
        Size of each axis.
    machine : Machine
        Cache, threads, and least size of a tile.
    """
    alone = any(i.op == "matmul" for i in kernel.body)  # a product has threads of its own
    workers = 1 if alone or prod(whole) < 32 * machine.least_elements else machine.workers
    used = footprint(kernel)
    block = [min(1, size) if axis in kernel.loop else size for axis, size in enumerate(whole)]
    for axis in reversed(kernel.loop):
        looped = [(size, prod(block[a] for a in axes if a != axis)) for size, axes in used if axis in axes]
        fixed = sum(size * prod(block[a] for a in axes) for size, axes in used if axis not in axes)
        each = max(sum(size * elements for size, elements in looped), 1)
        widest = max((elements for _, elements in looped), default=1)
        least = -(-machine.least_elements // max(widest, 1))
        count = max(-(-whole[axis] // max((machine.cache_bytes - fixed) // each, least, 1)), 1)
        if axis == kernel.loop[0] and whole[axis] >= 2 * workers * least:
            count = -(-count // workers) * workers  # as many tiles for one thread as for the other
        block[axis] = -(-whole[axis] // count)
        if block[axis] < whole[axis]:
            break
    tiles = prod(-(-whole[a] // block[a]) if block[a] else 0 for a in kernel.loop)
    held = sum(prod(block[a] for a in axes) * size for size, axes in used)
    return Tiling(tuple(block), tiles, min(workers, max(tiles, 1)), held)


def _check_bounds(
    program: Decoded,
    shapes: Sequence[tuple[int, ...]],
    wholes: Sequence[list[int]],
    cuts: Sequence[Tiling],
    machine: Machine,
) -> None:
    """Refuse a run that would take more memory or work than the machine allows, before any of it is done."""
    results = sum(
        prod(shape) * numpy_dtype(tensor.dtype).itemsize
        for tensor, shape in zip(program.tensors, shapes, strict=True)
        if tensor.role in ("temporary", "output")
    )
    if results > machine.memory_bytes:
        rule = f"results take at most {machine.memory_bytes} bytes"
        raise bad("sizes", f"{results} bytes", rule, "smaller sizes")
    most, left = min(machine.scratch_bytes, machine.memory_bytes - results), machine.elements
    for kernel, whole, cut in zip(program.kernels, wholes, cuts, strict=True):
        taken = _scratch_bytes(kernel, whole, cut)
        if taken > most:
            rule = f"registers and accumulators take at most {most} bytes"
            raise bad(kernel.label, f"{taken} bytes", rule, "smaller sizes or groups")
        left -= cut.tiles * _work(kernel, kernel.body, cut.block) + _work(kernel, kernel.tail, whole)
        if left < 0:
            work = machine.elements - left
            rule = f"a run handles at most {machine.elements} elements"
            raise bad(kernel.label, work, rule, "smaller sizes")


def _scratch_bytes(kernel: Kernel, whole: Sequence[int], cut: Tiling) -> int:
    """Bytes of registers and accumulators: of the body for each thread, of the tail once."""
    totals_bytes = sum(
        8 * prod(whole[a] for a in kernel.slots[i.dst].axes if a != UNIT)
        for i in kernel.body
        if i.op in ACCUMULATE
    )
    each = sum(register_bytes(kernel.slots, kernel.body, cut.block).values()) + totals_bytes
    return cut.threads * each + sum(register_bytes(kernel.slots, kernel.tail, whole).values())


def _run_kernel(kernel: Kernel, whole: list[int], cut: Tiling, tensors: Sequence[Array]) -> None:
    try:
        _loop(kernel, cut, whole, tensors)
    except InputError as error:
        raise error.within(kernel.label) from None
    except (ValueError, MemoryError) as error:
        raise bad(kernel.label, "", f"NumPy refuses it: {error}") from None


def _work(kernel: Kernel, code: Sequence[Instruction], sizes: Sequence[int]) -> int:
    """Elements that the instructions handle in one tile: of the widest operand, all of a product's."""
    total = 0
    for instruction in code:
        operands = [kernel.slots[i].axes for i in (instruction.dst, *instruction.sources)]
        if instruction.op == "take":
            del operands[1]
        axes = [set().union(*operands)] if instruction.op == "matmul" else operands
        total += CALL_ELEMENTS + max(prod(sizes[a] for a in found if a != UNIT) for found in axes)
    return total


def _loop(kernel: Kernel, cut: Tiling, whole: list[int], tensors: Sequence[Array]) -> None:
    tiles, workers = cut.tiles, cut.threads
    sums = [totals(kernel, whole) for _ in range(workers)]
    loops = [Tiles(kernel, cut.block, whole, tensors, mine) for mine in sums]
    if workers == 1:
        loops[0].run(range(tiles))
    else:
        # sums are added up in an order that does not depend on which thread is faster: then each has its own range
        shares: list[Iterable[int]] = [
            range(tiles * w // workers, tiles * (w + 1) // workers) for w in range(workers)
        ]
        if not sums[0]:
            shares = [iter(range(tiles))] * workers  # next() of a range is one step of the interpreter
        jobs = [_pool(workers).submit(loop.run, share) for loop, share in zip(loops, shares, strict=True)]
        wait(jobs)
        for job in jobs:
            job.result()
    for mine in sums[1:]:
        for slot, total in mine.items():
            total.combine(sums[0][slot])
    if kernel.tail:
        Tiles(kernel, whole, whole, tensors, sums[0], tail=True).run(range(1))


@lru_cache(maxsize=4)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "telekit-fusion")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has the pool but not its threads


def _memory(name: str, size_bytes: int) -> Array:
    try:
        return np.empty(size_bytes, np.uint8)
    except MemoryError:
        raise bad(name, size_bytes, "this computer has no such memory left", "smaller sizes") from None


def _overlaps(array: Array) -> bool:
    """Whether two elements of an array may lie in one place, as where a stride is 0."""
    reach = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < reach:
            return array.size > 0
        reach += stride * (size - 1)
    return False


class _Store:
    """The tensors of one run: made when the first kernel needs them, temporaries given back after the last."""

    def __init__(
        self,
        program: Decoded,
        shapes: Sequence[tuple[int, ...]],
        inputs: Mapping[str, Array],
        constants: Sequence[Array],
        out: Mapping[str, Array],
    ) -> None:
        self.program, self.shapes = program, shapes
        table = iter(constants)
        self.arrays: list[Array] = [np.empty(0)] * len(shapes)
        for i, tensor in enumerate(program.tensors):
            if tensor.role in ("input", "constant"):
                self.arrays[i] = inputs[tensor.name] if tensor.role == "input" else next(table)
        self.out = out
        self.place_of: dict[int, str] = {}
        for name, number in program.outputs:
            self.place_of.setdefault(number, name)
        self._check_out()
        self.made_by: list[set[int]] = [{s.ref for s in self._written(k)} for k in program.kernels]
        last = {s.ref: place for place, k in enumerate(program.kernels) for s in k.slots if s.kind == "view"}
        self.ends = [
            [i for i, end in last.items() if end == place and program.tensors[i].role == "temporary"]
            for place in range(len(program.kernels))
        ]
        self.free: dict[int, list[Array]] = {}

    @staticmethod
    def _written(kernel: Kernel) -> list[Slot]:
        found = [kernel.slots[i.dst] for i in (*kernel.body, *kernel.tail)]
        return [slot for slot in found if slot.kind == "view"]

    def _check_out(self) -> None:
        for name, array in self.out.items():
            number = dict(self.program.outputs).get(name)
            if number is None:
                raise bad(f"out.{name}", "", "no such output", ", ".join(n for n, _ in self.program.outputs))
            dtype, shape = numpy_dtype(self.program.tensors[number].dtype), self.shapes[number]
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
                raise bad(
                    f"out.{name}", getattr(array, "shape", array), f"an array of {dtype}, shape {shape}"
                )
            if (
                not array.flags.writeable
                or _overlaps(array)
                or any(np.may_share_memory(array, other) for other in self._taken(name))
            ):
                raise bad(
                    f"out.{name}", "", "memory of its own that may be written to", "np.empty(shape, dtype)"
                )

    def _taken(self, name: str) -> Iterator[Array]:
        yield from self.arrays
        yield from (array for other, array in self.out.items() if other != name)

    def ready(self, place: int) -> Sequence[Array]:
        """Make the tensors that a kernel writes."""
        for i in self.made_by[place]:
            if i in self.place_of and self.place_of[i] in self.out:
                self.arrays[i] = self.out[self.place_of[i]]
                continue
            shape, dtype = self.shapes[i], numpy_dtype(self.program.tensors[i].dtype)
            size = prod(shape) * dtype.itemsize
            spare = self.free.get(size) if i not in self.place_of else None
            flat = spare.pop() if spare else _memory(self.program.tensors[i].name, size)
            self.arrays[i] = flat.view(dtype).reshape(shape)
        return self.arrays

    def release(self, place: int) -> None:
        """Keep the memory of temporaries that no later kernel reads for the next ones."""
        for i in self.ends[place]:
            array = self.arrays[i]
            self.free.setdefault(array.nbytes, []).append(array.reshape(-1).view(np.uint8))
            self.arrays[i] = np.empty(0)

    def results(self) -> dict[str, Array]:
        """Name the outputs; one that is an input or constant, or leaves twice, is a copy."""
        found: dict[str, Array] = {}
        for name, number in self.program.outputs:
            own = self.program.tensors[number].role == "output" and self.place_of[number] == name
            if own or name not in self.out:
                found[name] = self.arrays[number] if own else self.arrays[number].copy()
            else:
                np.copyto(self.out[name], self.arrays[number])
                found[name] = self.out[name]
        return found
