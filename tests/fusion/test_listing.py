"""The listing a person reads: every instruction, with the registers it needs, and the tiles of given sizes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import cases, partitions

from telekit.errors import InputError
from telekit.fusion.bytecode import Program, encode
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.listing import listing, steps
from telekit.fusion.machine import Machine


def rms_norm():
    graph = Graph("rms-norm")
    x, weight = graph.input("x", ("T", "H"), "bf16"), graph.input("weight", ("H",), "bf16")
    y = x * ((x * x).mean(-1, keepdims=True) + 1e-6).rsqrt() * weight
    graph.output(y, "y")
    graph.output(y.abs().max(), "largest")
    return encode(graph, Fusion.whole(graph))


def test_the_listing_of_rms_norm():
    text = listing(rms_norm(), {"T": 4096, "H": 2048}, Machine(threads=1))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:5] == [
        "tensor t0 input bf16 (T, H) x",
        "tensor t1 input bf16 (H,) weight",
        "tensor t2 output bf16 (T, H) mul_8",
        "tensor t3 output bf16 () max_10",
    ]
    # 3 rows of 4 KiB (x, y, a register) and 2 bytes of the mean a token, beside the 4 KiB of the weight, in 1 MiB:
    # 84 tokens a tile are 4096 / 84 = 49 tiles
    tile = (3 * 4096 + 2) * 84 + 4096
    assert tile <= 2**20 < tile + 3 * 4096 + 2
    assert lines[7] == f"loop i=T, held j=H; 49 tiles of i:84, {tile / 1024:.2f} KiB each"
    assert lines[8:] == [
        "multiply.bf16 r0[i,j] <- t0[i,j], t0[i,j]",
        "mean.bf16 r1[i,1] <- r0[i,j]",
        "add.bf16 r1[i,1] <- r1[i,1], 9.98377799987793e-07",
        "sqrt.bf16 r1[i,1] <- r1[i,1]",
        "reciprocal.bf16 r1[i,1] <- r1[i,1]",
        "multiply.bf16 r0[i,j] <- t0[i,j], r1[i,1]",
        "multiply.bf16 t2[i,j] <- r0[i,j], t1[j]",
        "absolute.bf16 r0[i,j] <- t2[i,j]",
        "acc_max.bf16 acc8[] <- r0[i,j]",
        "end",
        "finish.bf16 t3[] <- acc8[]",
        "",
        "output y = t2",
        "output largest = t3",
    ]


def test_steps_tell_which_registers_are_in_use():
    walk = steps(rms_norm())
    assert [s.phase for s in walk] == ["loop"] + ["body"] * 9 + ["tail"]
    assert walk[0].code == "loop i=T, held j=H"
    assert [s.registers for s in walk[1:4]] == [("r0",), ("r1",), ("r1",)]
    assert walk[2].reads == ("r0[i,j]",) and walk[2].writes == ("r1[i,1]",)
    assert walk[9].registers == ()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_instruction_is_listed_once_and_reads_what_is_there(data):
    graph, names, _ = data.draw(cases())
    program = encode(graph, data.draw(partitions(graph)))
    text, walk = listing(program, names), steps(program, names)
    code = [s for s in walk if s.phase != "loop"]
    assert len(code) == sum(len(k.body) + len(k.tail) for k in program.decoded.kernels)
    assert all(s.code in text for s in walk)
    held = {}
    for s in code:
        registers = {r.split("[")[0].removesuffix("^T") for r in s.reads if r.startswith("r")}
        assert registers <= held.get((s.kernel, s.phase), set())
        written = {w.split("[")[0] for w in s.writes if w.startswith("r")}
        assert written <= set(s.registers)
        held[s.kernel, s.phase] = set(s.registers)


def test_a_listing_of_what_is_no_program_is_refused():
    with pytest.raises(InputError, match="starts with"):
        listing(Program(b"\0" * 40))
    with pytest.raises(InputError, match="every named size needs a value"):
        listing(rms_norm(), {"T": 4096})
