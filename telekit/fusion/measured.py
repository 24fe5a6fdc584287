"""What fusion brings on this computer, measured: NumPy operator by operator against the machine.

The gain grows with the chain and falls with the arithmetic of its operators. A chain of five functions (exp, tanh and
the like) of fp32 in one thread gained 1.8 times, less than twice, for its arithmetic is most of it either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.fusion.bytecode import Program, encode
from telekit.fusion.compute import Array
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import Machine, run
from telekit.fusion.ops import INTEGERS, numpy_dtype
from telekit.fusion.reference import run_unfused


@dataclass(frozen=True)
class Measured:
    """Times of one graph at one set of sizes, in seconds, each the best of several runs.

    Parameters
    ----------
    unfused_s : float
        NumPy, operator by operator, with a fresh array for each result.
    unfused_out_s : float
        The same with results of element-wise operators written into arrays that are kept (``out=``).
    fused_s : float
        The machine, with a fresh array for each output.
    fused_out_s : float
        The same with outputs written into arrays that are kept.
    encode_s, decode_s : float
        Writing the program, and reading and checking it: once, whatever sizes come.
    other_shape_s : float
        First run of the same program at another shape, of one element a named size: what a new shape costs.
    threads : int
        Of the fused run; NumPy's element-wise operators have one.
    """

    unfused_s: float
    unfused_out_s: float
    fused_s: float
    fused_out_s: float
    encode_s: float
    decode_s: float
    other_shape_s: float
    threads: int

    @property
    def gain(self) -> float:
        """Unfused over fused, both with fresh arrays."""
        return self.unfused_s / self.fused_s

    @property
    def gain_over_out(self) -> float:
        """Unfused over fused, both with ``out=``."""
        return self.unfused_out_s / self.fused_out_s


def measure(
    graph: Graph,
    sizes: Mapping[str, int],
    fusion: Fusion | None = None,
    machine: Machine | None = None,
    repeats: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Run a graph unfused and fused on random inputs, and time both.

    Parameters
    ----------
    graph, sizes
        What runs, at which sizes.
    fusion : Fusion, optional
        Kernels of the fused run; one when not given.
    machine : Machine, optional
        Its cache and threads.
    repeats : int
        How often each is run; the best counts, for noise only lengthens.
    clock : callable
        Seconds; ``time.process_time`` leaves out what other processes take, and adds up threads.

    Raises
    ------
    InputError
        Sizes that are missing, or a fusion that is none of this graph.
    """
    machine, fusion = machine or Machine(), fusion or Fusion.whole(graph)
    inputs = random_inputs(graph, sizes)

    def best(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(repeats):
            start = clock()
            call()
            times.append(clock() - start)
        return min(times)

    program = encode(graph, fusion)
    fused_s = best(lambda: run(program, inputs, sizes, machine=machine))
    out = run(program, inputs, sizes, machine=machine)
    fused_out_s = best(lambda: run(program, inputs, sizes, out, machine))
    unfused_s = best(lambda: run_unfused(graph, inputs, sizes))
    kept: dict[int, Array] = {}
    unfused_out_s = best(lambda: run_unfused(graph, inputs, sizes, kept))
    small = dict.fromkeys(sizes, 1)
    few = random_inputs(graph, small)
    return Measured(
        unfused_s,
        unfused_out_s,
        fused_s,
        fused_out_s,
        best(lambda: encode(graph, fusion)),
        best(lambda: Program(program.code, program.constants).decoded),
        best(lambda: run(program, few, small, machine=machine)),
        machine.workers,
    )


def random_inputs(graph: Graph, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Arrays for a graph's inputs: floats from 0.5 to 1.5; whole numbers that every gather of theirs allows."""
    rng, shapes, made = np.random.default_rng(seed), graph.bind(sizes), dict[str, Array]()
    rows = [shapes[n.inputs[0]][n.attrs["axis"]] for n in graph.nodes if n.op == "gather"]
    for name, node in graph.inputs.items():
        shape, dtype = shapes[node.index], numpy_dtype(node.dtype)
        if node.dtype in INTEGERS:
            made[name] = rng.integers(0, max(1, min(rows, default=1)), shape).astype(dtype)
        else:
            made[name] = (rng.random(shape, np.float32) + np.float32(0.5)).astype(dtype)
    return made
