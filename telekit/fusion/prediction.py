"""How long the machine and plain NumPy take on this computer, from a few measured numbers.

Whole arrays, one call after the other (unfused): a call takes its overhead, and the longer of its arithmetic and its
memory traffic; a fresh result takes its pages from the operating system on top. Tile by tile (fused): each instruction
of each tile takes its overhead and its arithmetic in cache, and the tensors that come and go take their traffic on top,
for a tile waits for its operands before anything else is done with it. Threads share both.

The numbers are inputs (:class:`Cpu`); :func:`measure_cpu` finds them in a second or two, on nothing but single calls.
Covered are graphs of element-wise operators, the chains that fusion is measured on. Within 25 % of what was measured
are processor times of one thread with fresh results (``time.thread_time``). Unfused runs with ``out=`` were off by up
to 35 %, wall time on a shared machine by up to 96 %: take those for an order of magnitude.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from telekit.errors import bad
from telekit.fusion.bytecode import Program, encode
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion, Instruction, Kernel, plan
from telekit.fusion.machine import Machine, run, tiling
from telekit.fusion.ops import OPS, numpy_dtype
from telekit.units import KIB, MIB

CACHED_ELEMENTS = 16 * KIB
"""Of a call whose arithmetic is measured: three arrays of fp32 take 192 KiB, a core's own cache."""
LARGE_ELEMENTS = 16 * MIB
"""Of a call whose traffic is measured: 64 MiB an array in fp32, beyond the caches."""


@dataclass(frozen=True)
class Cpu:
    """What this computer does.

    Parameters
    ----------
    call_s : float
        Overhead of one NumPy call.
    element_s : Mapping of (str, str) to float
        Time an element in cache, by NumPy function and dtype, operands and result in arrays of their own.
    read_s_per_byte, write_s_per_byte : float
        One thread's traffic with memory.
    fresh_s_per_byte : float
        What a result in a fresh array takes on top of one that is written again.
    cached_s_per_byte : float
        What a call saves in cache for each array less that it touches: in place, or with a number for an operand.
    threads : int
        Of the machine.
    compute_speed_up, traffic_speed_up : float
        What these threads reach together: arithmetic in cache, and traffic.
    """

    call_s: float
    element_s: Mapping[tuple[str, str], float]
    read_s_per_byte: float
    write_s_per_byte: float
    fresh_s_per_byte: float
    cached_s_per_byte: float = 0.0
    threads: int = 1
    compute_speed_up: float = 1.0
    traffic_speed_up: float = 1.0


@dataclass(frozen=True)
class Prediction:
    """Predicted times of one graph, and their ratio."""

    unfused_s: float
    fused_s: float

    @property
    def gain(self) -> float:
        """Unfused over fused."""
        return self.unfused_s / self.fused_s


def predict(
    graph: Graph,
    sizes: Mapping[str, int],
    cpu: Cpu,
    fresh: bool = True,
    fusion: Fusion | None = None,
    machine: Machine | None = None,
) -> Prediction:
    """Predict an element-wise graph's times.

    Parameters
    ----------
    graph, sizes
        What runs, at which sizes.
    cpu : Cpu
        This computer.
    fresh : bool
        Whether results of both runs are fresh arrays, as NumPy expressions make them.
    fusion : Fusion, optional
        Kernels of the fused run; one when not given.
    machine : Machine, optional
        Its cache; as many threads as ``cpu`` was measured with when not given.

    Raises
    ------
    InputError
        An operator that is not element-wise, or a function that was not measured.
    """
    machine = machine or Machine(threads=cpu.threads)
    shapes = graph.bind(sizes)
    for index in graph.operators:
        if graph.nodes[index].kind != "element" or graph.nodes[index].op == "cast":
            node = graph.nodes[index]
            raise bad(
                node.name, node.op, "the prediction is for element-wise operators", "leave it out", graph.name
            )
    fusion = fusion or Fusion.whole(graph)
    page = cpu.fresh_s_per_byte if fresh else 0.0
    unfused = sum(
        _node_s(graph, index, shapes, cpu, page) for index in graph.operators if index in graph.live()
    )
    fused = sum(
        _kernel_s(plan(graph, group), graph, shapes, sizes, cpu, page, machine) for group in fusion.groups
    )
    return Prediction(unfused, fused)


def _element_s(cpu: Cpu, call: str, dtype: str, arrays: int) -> float:
    """Time of a call an element in cache, when it touches so many arrays."""
    if (call, dtype) not in cpu.element_s:
        raise bad(
            "cpu.element_s", f"{call} of {dtype}", "was not measured", f"measure_cpu([{call!r}], {dtype!r})"
        )
    fewer: int = getattr(np, call).nin + 1 - arrays
    return max(cpu.element_s[call, dtype] - fewer * cpu.cached_s_per_byte * numpy_dtype(dtype).itemsize, 0.0)


def _node_s(graph: Graph, index: int, shapes: list[tuple[int, ...]], cpu: Cpu, page_s: float) -> float:
    """Time of one operator as NumPy calls over whole arrays."""
    node, size = graph.nodes[index], numpy_dtype(graph.nodes[index].dtype).itemsize
    whole, total = prod(shapes[index]) * size, 0.0
    for call, operands in OPS[node.op].calls:
        arrays = [o for o in operands if isinstance(o, str | int)]
        read = sum(_operand_bytes(o, node.inputs, shapes, whole, size) for o in dict.fromkeys(arrays))
        arithmetic = whole / size * _element_s(cpu, call, node.dtype, len(set(arrays)) + 1)
        traffic = read * cpu.read_s_per_byte + whole * cpu.write_s_per_byte
        total += cpu.call_s + max(arithmetic, traffic) + whole * page_s
    return total


def _operand_bytes(
    operand: str | int, inputs: tuple[int, ...], shapes: list[tuple[int, ...]], whole: int, size: int
) -> int:
    """Bytes that a call reads of an operand: an earlier result is whole, a single number nothing."""
    if isinstance(operand, int):
        return whole
    shape = shapes[inputs["xy".index(operand)]]
    return prod(shape) * size if shape else 0


def _kernel_s(
    kernel: Kernel,
    graph: Graph,
    shapes: list[tuple[int, ...]],
    sizes: Mapping[str, int],
    cpu: Cpu,
    page_s: float,
    machine: Machine,
) -> float:
    """Time of one kernel, tile by tile."""
    whole = [int(sizes[d]) if isinstance(d, str) else d for d in kernel.axes]
    cut = tiling(kernel, whole, machine)
    one = cut.threads == 1
    views = {
        kernel.slots[s] for i in kernel.body for s in (*i.sources, i.dst) if kernel.slots[s].kind == "view"
    }
    calls = arithmetic = traffic = page = 0.0
    for instruction in kernel.body:
        target = kernel.slots[instruction.dst]
        elements = prod(whole[a] for a in target.axes if a >= 0)
        arithmetic += elements * _element_s(cpu, instruction.op, target.dtype, _arrays(kernel, instruction))
        calls += cpu.call_s * cut.tiles
    written = {kernel.slots[i.dst].ref for i in kernel.body if kernel.slots[i.dst].kind == "view"}
    for view in views:
        moved = prod(shapes[view.ref]) * numpy_dtype(view.dtype).itemsize
        traffic += moved * (cpu.write_s_per_byte if view.ref in written else cpu.read_s_per_byte)
        page += moved * page_s * (view.ref in written)
    compute_s = (arithmetic + calls) / (1.0 if one else cpu.compute_speed_up)
    traffic_s = (traffic + page) / (1.0 if one else cpu.traffic_speed_up)
    return compute_s + traffic_s


def _arrays(kernel: Kernel, instruction: Instruction) -> int:
    """How many arrays an instruction touches."""
    slots = [kernel.slots[s] for s in (*instruction.sources, instruction.dst)]
    return len({(slot.kind, slot.ref) for slot in slots if slot.kind != "imm"})


def _elements_s(
    calls: Iterable[str],
    dtype: str,
    cached: list[np.ndarray[Any, Any]],
    call_s: float,
    timed: Callable[[Callable[[], Any], int], float],
) -> dict[tuple[str, str], float]:
    """Time an element of each call in cache, its overhead taken off."""
    found = {}
    for name in dict.fromkeys(calls):
        ufunc = getattr(np, name)
        spent = timed(partial(ufunc, *cached[: ufunc.nin], out=cached[2]), 20)
        found[name, dtype] = max(spent - call_s, 0.0) / CACHED_ELEMENTS
    return found


def measure_cpu(
    calls: Iterable[str],
    dtype: str = "fp32",
    threads: int = 0,
    repeats: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> Cpu:
    """Measure single NumPy calls, and what threads gain; best of ``repeats``, which noise only lengthens.

    Parameters
    ----------
    calls : iterable of str
        NumPy functions whose arithmetic is measured; :func:`calls_of` names those of a graph.
    dtype : str
        Of the arrays.
    threads : int
        Of the machine; 0 is its own choice.
    repeats : int
        How often each is run.
    clock : callable
        ``time.thread_time`` with one thread leaves out what other processes take of the cores.
    """
    rng, kind = np.random.default_rng(0), numpy_dtype(dtype)
    cached = [(rng.random(CACHED_ELEMENTS) + 0.5).astype(kind) for _ in range(3)]
    large = [(rng.random(LARGE_ELEMENTS) + 0.5).astype(kind) for _ in range(3)]
    tiny = [array[:1] for array in cached]

    def timed(function: Callable[[], Any], count: int) -> float:
        times = []
        for _ in range(repeats):
            start = clock()
            for _ in range(count):
                function()
            times.append((clock() - start) / count)
        return min(times)

    call_s = timed(lambda: np.add(tiny[0], tiny[1], out=tiny[2]), 500)
    element_s = _elements_s(calls, dtype, cached, call_s, timed)
    zero = np.zeros_like(cached[0])
    apart = timed(lambda: np.add(cached[0], zero, out=cached[2]), 20)
    in_place = timed(lambda: np.add(cached[0], zero, out=cached[0]), 20)
    size = large[0].nbytes
    one = timed(lambda: np.negative(large[0], out=large[2]), 1) / size
    two = timed(lambda: np.add(large[0], large[1], out=large[2]), 1) / size
    new = timed(lambda: np.add(large[0], large[1]), 1) / size
    read = max(two - one, 0.05 * one)
    workers = Machine(threads=threads).workers
    speed = _speed_ups(dtype, workers, timed) if workers > 1 else (1.0, 1.0)
    return Cpu(
        call_s,
        element_s,
        read,
        max(one - read, 0.05 * one),
        max(new - two, 0.0),
        max(apart - in_place, 0.0) / cached[0].nbytes,
        workers,
        *speed,
    )


def calls_of(graph: Graph) -> tuple[str, ...]:
    """NumPy functions that the element-wise operators of a graph call."""
    nodes = (graph.nodes[i] for i in graph.operators)
    return tuple(dict.fromkeys(call for node in nodes for call, _ in OPS[node.op].calls))


def _speed_ups(
    dtype: str, workers: int, timed: Callable[[Callable[[], Any], int], float]
) -> tuple[float, float]:
    """How much faster the machine's threads are together than one: on much arithmetic, and on mere traffic."""
    x = np.full(LARGE_ELEMENTS, 0.5, numpy_dtype(dtype))
    out = {"y": np.empty_like(x)}

    def spent(program: Program, threads: int) -> float:
        return timed(lambda: run(program, {"x": x}, out=out, machine=Machine(threads=threads)), 1)

    programs = (_repeated("tanh", 12, dtype), _repeated("neg", 1, dtype))
    compute, traffic = (max(spent(p, 1) / spent(p, workers), 0.5) for p in programs)
    return compute, traffic


def _repeated(op: str, steps: int, dtype: str) -> Program:
    graph = Graph(op)
    value = graph.input("x", ("N",), dtype)
    for _ in range(steps):
        value = graph.apply(op, value)
    graph.output(value, "y")
    return encode(graph, Fusion.whole(graph))
