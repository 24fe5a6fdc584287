"""Chains of element-wise operators over 64 MB: NumPy operator by operator, the machine, numexpr; encoding, compiling.

Figures only, nothing is asserted of time. numexpr evaluates one expression in blocks, as the machine does, so it is the
peer: both with one thread, and with as many as numexpr takes by itself. A C compiler is what encoding saves.
"""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from telekit.fusion.bytecode import Program, encode
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import Machine, run
from telekit.fusion.reference import run_unfused

ELEMENTS = 16 * 2**20  # 64 MiB of fp32, twice the L3 of a common server core
SCALE = np.float32(1.01)
# each: what is done to a value, and how numexpr and C write it
ARITHMETIC = {
    "scale": (lambda v, y: v * 1.01, "({}*a)", "({}*a)"),
    "add": (lambda v, y: v + y, "({}+y)", "({}+y[i])"),
    "multiply": (lambda v, y: v * y, "({}*y)", "({}*y[i])"),
    "abs": (lambda v, y: v.abs(), "abs({})", "fabsf({})"),
}
FUNCTIONS = {
    "scale": ARITHMETIC["scale"],
    "exp": (lambda v, y: v.exp(), "exp({})", "expf({})"),
    "add": ARITHMETIC["add"],
    "sqrt": (lambda v, y: v.sqrt(), "sqrt({})", "sqrtf({})"),
    "tanh": (lambda v, y: v.tanh(), "tanh({})", "tanhf({})"),
}
KINDS = {"arithmetic": ARITHMETIC, "functions": FUNCTIONS}


def chain(kind, length):
    """A graph, and the same expression for numexpr and for C."""
    graph = Graph(f"{kind}-{length}")
    x, y = graph.input("x", ("N",)), graph.input("y", ("N",))
    value, peer, c = x, "x", "x[i]"
    steps = list(KINDS[kind].values())
    for step in range(length):
        apply, in_numexpr, in_c = steps[step % len(steps)]
        value, peer, c = apply(value, y), in_numexpr.format(peer), in_c.format(c)
    graph.output(value, "z")
    return graph, peer, c


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    return {name: rng.random(ELEMENTS, np.float32) + np.float32(0.5) for name in "xy"}


CHAINS = [(kind, length) for kind in KINDS for length in (5, 8, 12)]
SLOW = {"rounds": 5, "warmup_rounds": 1}


@pytest.mark.parametrize("out", [False, True], ids=["fresh", "out"])
@pytest.mark.parametrize(("kind", "length"), CHAINS)
def test_bench_unfused(benchmark, arrays, kind, length, out):
    graph, _, _ = chain(kind, length)
    buffers = {} if out else None
    found = benchmark.pedantic(run_unfused, (graph, arrays), {"buffers": buffers}, **SLOW)
    assert np.isfinite(found["z"]).all()


@pytest.mark.parametrize("threads", [1, 0], ids=["one-thread", "all-threads"])
@pytest.mark.parametrize(("kind", "length"), CHAINS)
def test_bench_fused(benchmark, arrays, kind, length, threads):
    graph, _, _ = chain(kind, length)
    program = encode(graph, Fusion.whole(graph))
    machine = Machine(threads=threads)
    found = benchmark.pedantic(run, (program, arrays), {"machine": machine}, **SLOW)
    np.testing.assert_array_equal(found["z"], run_unfused(graph, arrays)["z"])


@pytest.mark.parametrize("threads", [1, 0], ids=["one-thread", "all-threads"])
@pytest.mark.parametrize(("kind", "length"), CHAINS)
def test_bench_numexpr(benchmark, arrays, kind, length, threads):
    numexpr = pytest.importorskip("numexpr", reason="numexpr is the peer, in the extra `test`")
    graph, expression, _ = chain(kind, length)
    before = numexpr.set_num_threads(threads or Machine().workers)
    names = arrays | {"a": SCALE}
    found = benchmark.pedantic(numexpr.evaluate, (expression, names), **SLOW)
    numexpr.set_num_threads(before)
    np.testing.assert_allclose(found, run_unfused(graph, arrays)["z"], rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_bench_encode_20_operators(benchmark, kind):
    graph, _, _ = chain(kind, 20)
    program = benchmark(encode, graph, Fusion.whole(graph))
    assert len(program.decoded.kernels) == 1


def test_bench_decode_and_check_20_operators(benchmark):
    graph, _, _ = chain("functions", 20)
    program = encode(graph, Fusion.whole(graph))
    assert benchmark(lambda: Program(program.code).decoded).kernels == program.decoded.kernels


@pytest.mark.parametrize("shapes", ["the same shape", "a new shape each time"])
def test_bench_a_new_shape(benchmark, shapes):
    graph, _, _ = chain("functions", 20)
    program = encode(graph, Fusion.whole(graph))
    one = np.ones(2000, np.float32)
    sizes = iter(range(1000, 10**9))

    def once():
        part = one[: 1000 + next(sizes) % 1000] if shapes != "the same shape" else one[:1500]
        return run(program, {"x": part, "y": part})

    assert benchmark(once)["z"].size


@pytest.mark.parametrize("kind", KINDS)
def test_bench_compile_20_operators_in_c(benchmark, tmp_path, kind):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH to compare the encoder with")
    graph, _, expression = chain(kind, 20)
    source, library = tmp_path / "chain.c", tmp_path / "chain.so"
    source.write_text(
        "#include <math.h>\nvoid chain(long n, const float *x, const float *y, float a, float *z) {\n"
        f"  for (long i = 0; i < n; i++) z[i] = {expression};\n}}\n",
        encoding="ascii",
    )
    command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
    benchmark.pedantic(subprocess.run, (command,), {"check": True}, rounds=5)
    x = np.linspace(0.5, 1.5, 1000, dtype=np.float32)
    z = np.empty_like(x)
    pointer = ctypes.POINTER(ctypes.c_float)
    call = ctypes.CDLL(str(library)).chain
    call(
        ctypes.c_long(x.size),
        *[a.ctypes.data_as(pointer) for a in (x, x)],
        ctypes.c_float(SCALE),
        z.ctypes.data_as(pointer),
    )
    np.testing.assert_allclose(z, run_unfused(graph, {"x": x, "y": x})["z"], rtol=1e-3)
