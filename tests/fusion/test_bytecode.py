"""Programs as bytes: there and back, one encoding for every shape, and nothing that was damaged or forged does harm."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import cases, partitions

from telekit.errors import InputError
from telekit.fusion.bytecode import Program, _pack, decode, encode, seal
from telekit.fusion.graph import Graph
from telekit.fusion.instructions import Decoded, Instruction, Slot
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import Machine, run
from telekit.fusion.reference import run_unfused
from telekit.fusion.verify import verify

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck))
BOUNDED = Machine(threads=1, memory_bytes=2**22, elements=2**22)
HEADER = 14


def mixed():
    """One kernel with every kind of slot, a tail, a gather, a transpose; and a second one with a product."""
    graph = Graph("mixed")
    x, index = graph.input("x", ("T", "H")), graph.input("index", ("T",), "int64")
    weight = graph.constant("weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    rows = graph.gather(x, index)
    norm = rows * ((rows * rows).mean(-1, keepdims=True) + 1e-6).rsqrt()
    graph.output(norm.abs().max(), "largest")
    graph.output(norm.transpose(), "turned")
    graph.output(graph.matmul(norm, graph.input("w", ("H", 3))).silu() @ weight, "y")
    live = [i for i in graph.operators if i in graph.live()]
    product = next(n.index for n in graph.nodes if n.op == "matmul")
    return graph, [[i for i in live if i < product], [i for i in live if i >= product]]


def mixed_inputs(tokens, hidden):
    rng = np.random.default_rng(0)
    return {
        "x": rng.random((tokens, hidden), np.float32),
        "index": rng.integers(0, tokens, tokens),
        "w": rng.random((hidden, 3), np.float32),
    }


@settings(QUIET, max_examples=100)
@given(st.data())
def test_what_is_packed_is_what_is_read(data):
    graph, _, _ = data.draw(cases())
    program = encode(graph, data.draw(partitions(graph)))
    assert _pack(program.decoded) == program.code


@pytest.mark.parametrize("fusion", ["none", "two kernels"])
def test_one_encoding_for_every_shape(fusion):
    graph, groups = mixed()
    program = encode(graph, Fusion.none(graph) if fusion == "none" else groups)
    for tokens, hidden in [(1, 1), (7, 5), (300, 33), (2, 1000)]:
        inputs = mixed_inputs(tokens, hidden)
        expected = run_unfused(graph, inputs)
        for name, array in run(program, inputs).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


def test_constants_are_checked_against_the_program():
    graph, groups = mixed()
    program = encode(graph, groups)
    (weight,) = program.constants
    assert not weight.flags.writeable
    for table in ((), (weight, weight), (weight.T,), (weight.astype(float),), ("weight",)):
        with pytest.raises(InputError, match="constants"):
            run(Program(program.code, table), mixed_inputs(3, 4))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda code: b"", "starts with"),
        (lambda code: b"ELF" + code[3:], "starts with"),
        (lambda code: code[:4] + b"\x02" + code[5:], "reads version 1"),
        (lambda code: code[:-1], "the header says"),
        (lambda code: code + b"\0", "the header says"),
        (lambda code: code[:40] + bytes([code[40] ^ 1]) + code[41:], "were changed"),
        (lambda code: seal(code[HEADER:-1]), "breaks off"),
        (lambda code: seal(code[HEADER:] + b"\0"), "left over"),
        (lambda code: seal(b"\x01\x00\x02\xff\xff" + code[20:]), "breaks off"),
    ],
)
def test_damage_is_named(change, said):
    with pytest.raises(InputError, match=said):
        decode(change(encode(*mixed()).code))


def attempt(code, constants, tokens=5, hidden=4):
    """A forged program either is refused or does some work within its bounds."""
    try:
        return run(Program(code, constants), mixed_inputs(tokens, hidden), machine=BOUNDED)
    except InputError:
        return None


@settings(QUIET, max_examples=300)
@given(st.data())
def test_damaged_bytes_are_refused(data):
    program = encode(*mixed())
    code = bytearray(program.code)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(code) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip":
                code[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del code[at : at + data.draw(st.integers(1, 20))]
            case _:
                code[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        if not code:
            break
    if bytes(code) != program.code:
        with pytest.raises(InputError):
            decode(bytes(code))


@settings(QUIET, max_examples=1000)
@given(st.data())
def test_forged_bytes_with_a_right_checksum_do_no_harm(data):
    program = encode(*mixed())
    payload = bytearray(program.code[HEADER:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        match data.draw(st.sampled_from(["flip", "set", "cut", "insert", "size"])):
            case "flip":
                payload[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set":
                payload[at] = data.draw(st.integers(0, 255))
            case "cut":
                del payload[at : at + data.draw(st.integers(1, 9))]
            case "insert":
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case _:
                size = data.draw(st.sampled_from([-3, -1, 0, 1, 2**31, 2**40, 2**62]))
                payload[at : at + 8] = struct.pack("<q", size)
        if not payload:
            break
    attempt(seal(bytes(payload)), program.constants)


@settings(QUIET, max_examples=600)
@given(st.data())
def test_forged_instructions_do_no_harm(data):
    """Changes of meaning, which a change of bytes seldom hits: operands, opcodes, axes, loops, roles."""
    program = encode(*mixed())
    made = program.decoded
    place = data.draw(st.sampled_from(range(len(made.kernels))))
    kernel = made.kernels[place]
    number = st.integers(0, len(kernel.slots))
    match data.draw(st.sampled_from(["instruction", "slot", "loop", "drop", "swap", "axes"])):
        case "instruction":
            body = list(kernel.body)
            i = data.draw(st.integers(0, len(body) - 1))
            like = data.draw(st.sampled_from(body))
            sources = tuple(data.draw(number) for _ in like.sources)
            body[i] = Instruction(like.op, data.draw(number), sources, data.draw(st.integers(0, 255)))
            kernel = kernel._replace(body=tuple(body))
        case "slot":
            slots = list(kernel.slots)
            i = data.draw(st.integers(0, len(slots) - 1))
            other = data.draw(st.sampled_from(slots))
            fields = data.draw(st.sets(st.sampled_from(Slot._fields)))
            slots[i] = slots[i]._replace(**{field: getattr(other, field) for field in fields})
            kernel = kernel._replace(slots=tuple(slots))
        case "loop":
            kernel = kernel._replace(loop=tuple(data.draw(st.lists(st.integers(0, 4), max_size=4))))
        case "axes":
            dims = st.sampled_from([*kernel.axes, 0, 1, 5, 2**40])
            kernel = kernel._replace(axes=tuple(data.draw(dims) for _ in kernel.axes))
        case "drop":
            i = data.draw(st.integers(0, len(kernel.body) - 1))
            kernel = kernel._replace(body=kernel.body[:i] + kernel.body[i + 1 :])
        case _:
            body = list(kernel.body)
            a, b = (data.draw(st.integers(0, len(body) - 1)) for _ in range(2))
            body[a], body[b] = body[b], body[a]
            kernel = kernel._replace(body=tuple(body))
    kernels = (*made.kernels[:place], kernel, *made.kernels[place + 1 :])
    try:
        code = _pack(made._replace(kernels=kernels))
    except (ValueError, struct.error):
        return  # a permutation of the wrong length cannot even be written
    for array in (attempt(code, program.constants) or {}).values():
        assert np.isfinite(array).all() or array.size  # it ran, to the end


def test_nothing_is_read_before_it_is_written():
    """Uninitialised memory never leaves the machine: dropping any instruction of the body is noticed."""
    graph, groups = mixed()
    made = encode(graph, groups).decoded
    for place, kernel in enumerate(made.kernels):
        for i in range(len(kernel.body)):
            shorter = kernel._replace(body=kernel.body[:i] + kernel.body[i + 1 :])
            kernels = (*made.kernels[:place], shorter, *made.kernels[place + 1 :])
            with pytest.raises(InputError):
                verify(made._replace(kernels=kernels), encode(graph, groups).constants)


def test_sizes_are_bounded_before_anything_is_allocated():
    graph = Graph("wide")
    graph.output(graph.input("x", (1,)).broadcast((2**40,)).sum(), "y")
    program = encode(graph, Fusion.none(graph))
    with pytest.raises(InputError, match="results take at most"):
        run(program, {"x": np.ones(1, np.float32)})
    graph = Graph("long")
    graph.output(graph.input("x", (1,)).broadcast((2**40,)).exp().sum(), "y")
    with pytest.raises(InputError, match="handles at most"):
        run(
            encode(graph, Fusion.whole(graph)), {"x": np.ones(1, np.float32)}, machine=Machine(elements=2**40)
        )
    graph = Graph("held")
    wide = graph.input("x", (1,)).broadcast((2**40,))
    e = wide.exp()
    graph.output(((e / e.sum()) * e).sum(), "y")
    with pytest.raises(InputError, match="registers and accumulators take at most"):
        run(
            encode(graph, Fusion.whole(graph)),
            {"x": np.ones(1, np.float32)},
            machine=Machine(memory_bytes=2**43, elements=2**60),
        )


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([(1,), (2,)], "are in no group"),
        ([(1,), (2,), (2, 3)], "in two groups"),
        ([(1,), (3,), (2,)], "reads what no earlier group makes"),
        ([(1, 3), (2,)], "reads what no earlier group makes"),
        ([(0, 1, 2, 3)], "names operators"),
        ([(1, 2, 3, 9)], "names operators"),
        ([(1, 2, 3, -1)], "names operators"),
    ],
)
def test_a_partition_that_cannot_run_is_refused(groups, said):
    graph = Graph("line")
    a = graph.input("x", (4,)).exp()
    graph.output(a + a.log(), "y")
    with pytest.raises(InputError, match=said):
        encode(graph, groups)


def test_an_operator_that_no_output_needs_may_be_left_out():
    graph = Graph("idle")
    x = graph.input("x", (4,))
    x.tanh()
    graph.output(x.exp(), "y")
    for groups in ([(2,)], [(1, 2)], [(1,), (2,)]):
        assert len(encode(graph, groups).decoded.kernels) == 1


def test_a_program_of_no_kernel_gives_its_inputs():
    graph = Graph("through")
    graph.output(graph.input("x", ("N",)), "y")
    x = np.arange(3, dtype=np.float32)
    got = run(encode(graph, []), {"x": x})["y"]
    assert got.tolist() == x.tolist() and not np.shares_memory(got, x)
    assert isinstance(encode(graph, []).decoded, Decoded)
