"""Programs that nobody's encoder writes, with a valid checksum: refused, or cheap, never a hang or a lost gibibyte."""

import numpy as np
import pytest

from telekit.errors import InputError
from telekit.fusion.bytecode import Program, _pack, encode
from telekit.fusion.graph import Graph
from telekit.fusion.instructions import Decoded, Instruction, Kernel, Slot
from telekit.fusion.kernels import Fusion
from telekit.fusion.listing import steps
from telekit.fusion.machine import Machine, run
from telekit.fusion.reference import run_unfused

ONE = Slot("imm", "fp32", 0, (), 1.0)


def register(number, axes):
    return Slot("reg", "fp32", number, axes)


def forged(*kernels):
    return Program(_pack(Decoded((), (), (), kernels)))


def test_a_loop_of_nothing_is_refused():
    with pytest.raises(InputError, match="a kernel has instructions"):
        run(forged(Kernel("k", (2**40, 2**40), (0, 1), (ONE,), (), ())), {})


def test_every_tile_is_charged_to_the_budget():
    body = (Instruction("copy", 1, (0,)),)
    with pytest.raises(InputError, match="handles at most"):
        run(forged(Kernel("k", (2**20, 2**21, 2**20), (0, 1, 2), (ONE, register(0, ())), body, ())), {})
    small = forged(Kernel("k", (64,), (0,), (ONE, register(0, ())), body, ()))
    assert run(small, {}, machine=Machine(elements=64 * 257)) == {}
    with pytest.raises(InputError, match="handles at most"):
        run(small, {}, machine=Machine(elements=256))


def test_registers_of_the_tail_and_accumulators_are_counted():
    """16,384 squared elements: 1 GiB in a register of the tail, 2 GiB in the fp64 accumulator of each thread."""
    side, slots = 2**14, (ONE, register(0, (0, 1)), Slot("acc", "fp32", 1, (0, 1)))
    copy = Instruction("copy", 1, (0,))
    tail = Kernel("k", (side, side), (0, 1), slots, (copy,), (copy,))
    summed = Kernel("k", (side, side), (0, 1), slots, (copy, Instruction("acc_sum", 2, (1,), 0)), ())
    for kernel, least in ((tail, 2**30), (summed, 2**31)):
        for machine in (Machine(memory_bytes=2**20, threads=2), Machine(threads=1)):
            with pytest.raises(InputError, match="registers and accumulators take at most") as caught:
                run(forged(kernel), {}, machine=machine)
            assert int(caught.value.problems[0].value.split()[0]) >= least


def test_an_alias_of_an_alias_is_refused_and_never_written():
    turned = [Slot("alias", "fp32", i, (0,), 0.0, (0,)) for i in (1, 2)]
    slots = (ONE, register(0, (0,)), *turned)
    with pytest.raises(InputError, match="of a view or register"):
        _ = forged(Kernel("k", (1,), (0,), slots, (Instruction("copy", 1, (0,)),), ())).decoded
    graph = Graph("turned")
    value = graph.input("x", ("A", "B", "C"))
    graph.output(value.transpose((1, 2, 0)).transpose((0, 2, 1)).transpose((2, 1, 0)).exp(), "y")
    program = encode(graph, Fusion.whole(graph))
    assert [slot.kind for slot in program.decoded.kernels[0].slots].count("alias") == 3
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 24
    expected = np.exp(x.transpose(1, 2, 0).transpose(0, 2, 1).transpose(2, 1, 0))
    np.testing.assert_array_equal(run(program, {"x": x})["y"], expected)
    np.testing.assert_array_equal(run_unfused(graph, {"x": x})["y"], expected)


def test_many_readers_of_an_alias_are_checked_in_linear_time():
    count = 60_000
    aliases = [Slot("alias", "fp32", 1, (0,), 0.0, (0,))] * count
    slots = (ONE, register(0, (0,)), *aliases, register(1, (0,)))
    body = (Instruction("copy", 1, (0,)), *(Instruction("copy", count + 2, (2 + i,)) for i in range(count)))
    assert len(forged(Kernel("k", (1,), (0,), slots, body, ())).decoded.kernels[0].body) == count + 1


def test_a_register_that_nothing_reads_is_walked_through():
    copies = (Instruction("copy", 1, (0,)), Instruction("copy", 2, (0,)))
    walk = steps(forged(Kernel("k", (), (), (ONE, register(0, ()), register(1, ())), copies, ())))
    assert [step.registers for step in walk] == [(), ("r0",), ("r1",)]
