"""The machine against the unfused run: to the last bit where only element-wise operators were, else to rounding."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from random_graphs import bounds, cases, legal, partitions

from telekit.errors import InputError
from telekit.fusion.bytecode import encode
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import Machine, run
from telekit.fusion.ops import numpy_dtype, scalar
from telekit.fusion.reference import run_unfused

SMALL = Machine(cache_bytes=256, threads=1, least_elements=4)  # many tiles even of small tensors
THREADS = Machine(cache_bytes=256, threads=3, least_elements=1)


def outcome(call):
    try:
        return call()
    except InputError as error:
        return error


def same(got, expected, error):
    """Equal to the last bit where nothing was reordered; within the bound elsewhere."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    got, expected = got.astype(float), expected.astype(float)
    exact = (got == expected) | (np.isnan(got) & np.isnan(expected))
    assert exact[error == 0].all()
    loose = np.isfinite(error) & (error > 0)
    with np.errstate(invalid="ignore"):
        assert (exact | (np.abs(got - expected) <= error))[loose].all()


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_fused_equals_unfused_on_random_graphs(data):
    graph, names, inputs = data.draw(cases())
    note(str(graph.to_records()))
    expected = outcome(lambda: run_unfused(graph, inputs, names))
    _, errors = bounds(graph, names, inputs) if isinstance(expected, dict) else (None, None)
    groups = data.draw(partitions(graph))
    everything = [i for group in groups for i in group]
    choices = [groups, Fusion.none(graph)] + (
        [[everything]] if everything and legal(graph, everything) else []
    )
    for fusion in choices:
        machine = data.draw(st.sampled_from([SMALL, THREADS, Machine()]))
        got = outcome(lambda f=fusion, m=machine: run(encode(graph, f), inputs, names, machine=m))
        if isinstance(expected, InputError):
            # the largest of nothing, or an index beyond an axis; a run without elements need not meet it
            assert isinstance(got, InputError) or 0 in names.values()
            continue
        assert isinstance(got, dict), got
        for name, index in graph.outputs.items():
            same(got[name], expected[name], errors[index])


def chain(length=20):
    graph = Graph("chain")
    x, y = graph.input("x", ("N",)), graph.input("y", ("N",))
    value = x
    for step in range(length):
        value = [value * 1.01, value + y, value.exp(), value - 0.5, value.tanh()][step % 5]
    graph.output(value, "z")
    return graph


def test_a_chain_in_many_tiles_and_threads_is_equal_to_the_last_bit():
    graph = chain()
    program = encode(graph, Fusion.whole(graph))
    rng = np.random.default_rng(0)
    for size in (0, 1, 4095, 300_001):
        inputs = {name: rng.random(size, np.float32) for name in "xy"}
        expected = run_unfused(graph, inputs)["z"]
        for machine in (Machine(threads=1), Machine(threads=2), Machine(cache_bytes=2**16, threads=3)):
            np.testing.assert_array_equal(run(program, inputs, machine=machine)["z"], expected)
        np.testing.assert_array_equal(run_unfused(graph, inputs, buffers={})["z"], expected)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("columns", [4, 8])
def test_a_sign_changes_in_columns_of_a_tile(dtype, columns):
    """NumPy 2.4's negative reads the wrong elements where operand and result both have a stride of 16 or 64 bytes."""
    graph = Graph("sign")
    x, one = graph.input("x", ("N", columns), dtype), graph.input("one", (columns,), dtype)
    graph.output(-x, "y")
    graph.output(one.exp(), "held")  # has no axis N: it is held, and the tiles are columns
    program = encode(graph, [(2, 3)])
    x = np.random.default_rng(0).normal(size=(50, columns)).astype(numpy_dtype(dtype))
    got = run(program, {"x": x, "one": x[0]}, machine=SMALL)["y"]
    assert (got + x == 0).all() and (np.signbit(got) != np.signbit(x)).all()


def test_an_error_in_a_thread_is_raised():
    graph = Graph("rows")
    x, index = graph.input("x", (8, 64)), graph.input("index", ("N",), "int64")
    graph.output(graph.gather(x, index).exp(), "y")
    index = np.zeros(4000, np.int64)
    index[3999] = 8
    with pytest.raises(InputError, match="an index is from 0 to 7"):
        run(
            encode(graph, Fusion.whole(graph)),
            {"x": np.ones((8, 64), np.float32), "index": index},
            machine=THREADS,
        )


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("rows", [1, 257, 4096])
def test_sums_over_tiles_are_within_their_bound(dtype, rows):
    """Sums by rows, by columns and of everything, against fp64: n eps sum|x| and one rounding of the result."""
    graph = Graph("sums")
    x = graph.input("x", ("T", "H"), dtype)
    for name, axes in (("rows", -1), ("columns", 0), ("all", None)):
        graph.output((x * 1.0).sum(axes), name)
        graph.output(x.mean(axes, keepdims=True), f"mean_{name}")
    array = np.random.default_rng(1).normal(size=(rows, 300)).astype(np.float32)
    array = array.astype(run_unfused(graph, {"x": _of(dtype, array)})["rows"].dtype)
    wide, size = array.astype(float), np.abs(array.astype(float))
    limits = bound_eps(dtype)
    for machine in (SMALL, Machine(cache_bytes=2**16, threads=2, least_elements=64), Machine()):
        got = run(encode(graph, Fusion.whole(graph)), {"x": array}, machine=machine)
        for name, axes in (("rows", -1), ("columns", 0), ("all", None)):
            exact, most = wide.sum(axes), size.sum(axes)
            count = wide.size / exact.size
            slack = count * limits[0] * most + limits[1] * np.abs(exact)
            assert (np.abs(got[name].astype(float) - exact) <= slack).all()
            mean = got[f"mean_{name}"].astype(float).reshape(np.shape(exact))
            assert (np.abs(mean - exact / count) <= slack / count + limits[1] * np.abs(exact / count)).all()


def _of(dtype, array):
    graph = Graph()
    graph.output(graph.input("x", ("T", "H")).cast(dtype), "y")
    return run(encode(graph, Fusion.whole(graph)), {"x": array})["y"]


def bound_eps(dtype):
    """eps of the sums (fp32 for 16 bits), and of the result."""
    return {
        "fp16": (2**-23, 2**-10),
        "bf16": (2**-23, 2**-7),
        "fp32": (2**-23, 2**-23),
        "fp64": (2**-52, 2**-52),
    }[dtype]


def test_a_product_with_prologue_and_epilogue_is_one_kernel():
    graph = Graph("mlp")
    x, gate = graph.input("x", ("T", "H")), graph.input("gate", ("H", "F"))
    norm = x * ((x * x).mean(-1, keepdims=True) + 1e-6).rsqrt()
    graph.output((norm @ gate).silu() @ graph.input("down", ("F", "H")) + x, "y")
    program = encode(graph, Fusion.whole(graph))
    assert len(program.decoded.kernels) == 1
    rng = np.random.default_rng(2)
    shapes = {"x": (100, 64), "gate": (64, 96), "down": (96, 64)}
    inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    expected = run_unfused(graph, {k: v.astype(np.float32) for k, v in inputs.items()})["y"]
    got = run(program, inputs, machine=Machine(cache_bytes=2**16, least_elements=64))["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_softmax_holds_its_row():
    graph = Graph("softmax")
    x = graph.input("x", ("T", "V"), "fp64")
    e = (x - x.max(-1, keepdims=True)).exp()
    graph.output(e / e.sum(-1, keepdims=True), "p")
    program = encode(graph, Fusion.whole(graph))
    kernel = program.decoded.kernels[0]
    assert [kernel.axes[a] for a in kernel.loop] == ["T"] and not kernel.tail
    x = np.random.default_rng(3).normal(size=(50, 70))
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(
        run(program, {"x": x}, machine=SMALL)["p"], e / e.sum(-1, keepdims=True), rtol=1e-14
    )


def test_what_runs_refuse():
    graph = Graph("g")
    x, index = graph.input("x", ("N", "H")), graph.input("index", ("M",), "int64")
    graph.output(graph.gather(x, index).max(0) + 1.0, "y")
    program = encode(graph, Fusion.whole(graph))
    good = {"x": np.ones((3, 2), np.float32), "index": np.array([0, 2])}
    assert run(program, good)["y"].tolist() == [2.0, 2.0]

    def refuse(said, **changed):
        inputs = {k: v for k, v in (good | changed).items() if v is not None}
        for call in (lambda: run(program, inputs), lambda: run_unfused(graph, inputs)):
            with pytest.raises(InputError, match=said):
                call()

    refuse("inputs.x = missing", x=None)
    refuse("no such input", z=np.ones(1))
    refuse("an array of fp32", x=np.ones((3, 2)))
    refuse("an array of fp32", x=[[1.0, 2.0]])
    refuse("an array of fp32", x=np.ones((3, 2), ">f4"))
    refuse(r"shape is \(N, H\)", x=np.ones(3, np.float32))
    refuse("an index is from 0 to 2", index=np.array([0, 3]))
    refuse("an index is from 0 to 2", index=np.array([-1]))
    refuse("max of nothing", index=np.zeros(0, np.int64))
    with pytest.raises(InputError, match="no such output"):
        run(program, good, out={"z": np.empty(2, np.float32)})
    with pytest.raises(InputError, match="an array of float32"):
        run(program, good, out={"y": np.empty(3, np.float32)})
    with pytest.raises(InputError, match="memory of its own"):
        run(program, good, out={"y": good["x"][0]})


def test_shapes_that_disagree_are_all_listed():
    graph = Graph("g")
    names = ["a", "b", "c"]
    for name in names:
        graph.output(graph.input(name, ("N", 2)).exp(), name)
    arrays = [np.ones(shape, np.float32) for shape in ((3, 2), (4, 2), (3, 1))]
    with pytest.raises(InputError) as caught:
        run(encode(graph, Fusion.none(graph)), dict(zip(names, arrays, strict=True)))
    assert [p.field for p in caught.value.problems] == ["inputs.b", "inputs.c"]


def test_results_are_written_where_they_are_wanted():
    graph = chain(5)
    graph.output(graph.value("x"), "same")
    program = encode(graph, Fusion.whole(graph))
    inputs = {name: np.linspace(0, 1, 10_000, dtype=np.float32) for name in "xy"}
    out = {name: np.empty(10_000, np.float32) for name in ("z", "same")}
    got = run(program, inputs, out=out)
    assert got["z"] is out["z"] and got["same"] is out["same"]
    np.testing.assert_array_equal(out["z"], run_unfused(graph, inputs)["z"])
    np.testing.assert_array_equal(out["same"], inputs["x"])


def test_a_size_that_no_input_shows_is_asked_for():
    graph = Graph("wide")
    graph.output(graph.input("x", (1,)).broadcast(("N",)) * 2.0, "y")
    program = encode(graph, Fusion.whole(graph))
    one = np.ones(1, np.float32)
    assert run(program, {"x": one}, {"N": 3})["y"].tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(InputError, match="every named size needs a value"):
        run(program, {"x": one})
    with pytest.raises(InputError, match=r"here \(2,\)"):
        run(encode(chain(2), Fusion.whole(chain(2))), {"x": one, "y": one}, {"N": 2})


def test_minus_zero_stays_minus_zero_whatever_ran_before():
    """0.0 == -0.0, but x / -0.0 is minus infinity: a constant is known by its bits."""
    for first in (0.0, -0.0):
        graph = Graph("zeros")
        x = graph.input("x", ("N",))
        graph.output(x / first, "first")
        graph.output(x / -first, "second")
        graph.output(x.relu(), "third")
        got = run(encode(graph, Fusion.whole(graph)), {"x": np.ones(2, np.float32)})
        sign = np.copysign(1.0, first)
        assert (got["first"] == sign * np.inf).all() and (got["second"] == -sign * np.inf).all()
    assert scalar(float("nan"), "fp32") is scalar(float("nan"), "fp32")  # one entry, though NaN is not NaN


@pytest.mark.parametrize(
    "field", [{"threads": -1}, {"threads": 2.5}, {"cache_bytes": None}, {"elements": True}]
)
def test_a_machine_is_checked(field):
    with pytest.raises(InputError, match="must be a whole number from"):
        Machine(**field)
