"""Graphs: shapes by NumPy's rules, records there and back, and what is refused."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import cases

from telekit.errors import InputError
from telekit.fusion.graph import Graph
from telekit.fusion.ops import OPS, scalar
from telekit.fusion.reference import run_unfused


def rms_norm():
    graph = Graph("rms-norm")
    x, weight = graph.input("x", ("T", "H"), "bf16"), graph.input("weight", ("H",), "bf16")
    graph.output(x * ((x * x).mean(-1, keepdims=True) + 1e-6).rsqrt() * weight, "y")
    return graph


def test_a_few_lines_make_a_graph():
    graph = rms_norm()
    assert [n.op for n in graph.nodes] == [
        "input",
        "input",
        "mul",
        "mean",
        "constant",
        "add",
        "rsqrt",
        "mul",
        "mul",
    ]
    assert graph.value("mean_3").shape == ("T", 1) and graph.value("mul_8").shape == ("T", "H")
    assert {n.dtype for n in graph.nodes} == {"bf16"}
    assert graph.consumers()[0] == (2, 7) and graph.live() == set(range(9))
    assert graph.bind({"T": 3, "H": 4})[3] == (3, 1)
    assert graph.node_bytes(2, {"T": 3, "H": 4}) == 24 and graph.node_flops(3, {"T": 3, "H": 4}) == 12
    assert [n.kind for n in graph.nodes[:4]] == ["input", "input", "element", "reduce"]


def test_flops_of_a_product():
    graph = Graph()
    a, b = graph.input("a", ("B", "M", "K")), graph.input("b", ("K", 5))
    c = graph.matmul(a, b)
    assert (
        c.shape == ("B", "M", 5) and graph.node_flops(c.index, {"B": 2, "M": 3, "K": 7}) == 2 * 2 * 3 * 5 * 7
    )


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.randoms())
def test_records_make_the_same_graph_in_any_order(case, rng):
    graph, names, inputs = case
    records = json.loads(json.dumps(graph.to_records()))
    assert Graph.from_records(records, graph.name).to_records() == records
    rng.shuffle(records)
    again = Graph.from_records(records)
    try:
        expected = run_unfused(graph, inputs, names)
    except InputError:
        return
    for name, array in run_unfused(again, inputs, names).items():
        np.testing.assert_array_equal(array.astype(float), expected[name].astype(float))


def record(name, op, *inputs, **attrs):
    return {"name": name, "op": op, "inputs": list(inputs), **attrs}


X = record("x", "input", shape=["N"])


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([X, record("a", "add", "x", "b"), record("b", "exp", "a")], "a cycle"),
        ([X, record("a", "exp", "a")], "a cycle"),
        ([X, record("a", "exp", "b")], r"a.inputs = b: no such node"),
        ([X, X], "a node of this name exists"),
        ([X, record("a", "fuse", "x")], r"a.op = fuse: no such operator"),
        ([X, record("a", "output", "x", "x")], "an output has one input"),
        ([X, record("a", "add", "x")], "a .add. = 1 operands: reads 2"),
        ([X, record("a", "exp", "x", axes=[0])], "no such attribute"),
        ([{**X, "color": "red"}], r"records\[0\].color"),
        ([{"op": "input"}], "this field is required"),
        (["x"], "a record is a mapping"),
        ("x", "a list of records"),
        (7, "a list of records"),
        ([X, record("a", "exp", 3)], "a list of names"),
        ([record("c", "constant")], "a constant has a value"),
        ([record("c", "constant", value="many")], "a constant is numbers"),
        ([record("c", "constant", value=1.0, dtype="fp8")], "no such dtype"),
        ([record("c", "constant", value=[[1.0], [1.0, 2.0]])], "a constant is numbers"),
        ([record("x", "input", shape=["N", -1])], "a size is a name or a whole number"),
        ([record("x", "input", shape=["a b"])], "a size is a name or a whole number"),
        ([record("x", "input", shape=[True])], "a size is a name or a whole number"),
        ([record("x", "input", shape="NH")], "a shape is a list of sizes"),
        ([record("x", "input", shape=[2**41])], "a size is a name or a whole number"),
        ([record("x", "input", shape=[1] * 9)], "at most 8 axes"),
        ([record("x", "input", shape=[1], dtype="float")], "no such dtype"),
        ([record("", "input", shape=[1])], "1 to 200 bytes of printable"),
    ],
)
def test_records_that_are_refused(records, said):
    with pytest.raises(InputError, match=said):
        Graph.from_records(records)


def test_all_bad_records_are_listed():
    with pytest.raises(InputError) as caught:
        Graph.from_records([X, X, record("a", "exp", "q"), {"name": 1}])
    assert len(caught.value.problems) == 4  # a name twice, a name that is no text, no op, no such node


@settings(max_examples=300, deadline=None)
@given(st.lists(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
       lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
           st.sampled_from(["name", "op", "inputs", "shape", "dtype", "value", "axes", "axis", "keepdims"]), inner),
       max_leaves=20), max_size=4))  # fmt: skip
def test_anything_at_all_is_a_graph_or_an_error(records):
    with contextlib.suppress(InputError):
        Graph.from_records(records)


ATTRS = st.fixed_dictionaries({}, optional={
    key: st.sampled_from([None, -1, 0, 1, 9, True, "x", (), (0,), [1, 0], ["N"], (0, 0), 1.5, "fp16"])
    for key in ("axes", "axis", "keepdims", "dtype", "shape", "value")
})  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(OPS)), ATTRS, st.lists(st.sampled_from(["x", "y", "i", "c"]), max_size=3))
def test_any_attributes_are_taken_or_refused(op, attrs, operands):
    graph = Graph()
    graph.input("x", ("N", 3))
    graph.input("y", (3, 3))
    graph.input("i", (2,), "int64")
    graph.constant("c", 1.5)
    try:
        made = graph.apply(op, *(graph.value(name) for name in operands), **attrs)
        assert made.shape is not None
    except InputError as error:
        assert graph.name in str(error)


def refuse(build, said):
    graph = Graph("g")
    with pytest.raises(InputError, match=said):
        build(graph, graph.input("x", ("N", "H")), graph.input("y", ("H", "N")))


def test_what_expressions_refuse():
    refuse(lambda g, x, y: x + y, r"add_2 .add. = \(N, H\) with \(H, N\): shapes do not broadcast")
    refuse(lambda g, x, y: x + g.input("z", (2, "H")), "shapes do not broadcast")
    refuse(lambda g, x, y: x @ x, "a product is of")
    refuse(lambda g, x, y: x + y.cast("fp16"), "fp32 with fp16: operands have one dtype")
    refuse(lambda g, x, y: x @ y.cast("fp16"), "floats of one dtype")
    refuse(lambda g, x, y: x.sum(2), "an axis is from -2 to 1")
    refuse(lambda g, x, y: x.sum((0, -2)), "an axis is named once")
    refuse(lambda g, x, y: x.transpose((0,)), "names every axis once")
    refuse(lambda g, x, y: x.broadcast((1, "H")), "does not stretch")
    refuse(lambda g, x, y: x.broadcast(("H", "H")), "do not broadcast")
    refuse(lambda g, x, y: g.gather(x, y), "an index is of whole numbers")
    refuse(lambda g, x, y: x.cast("int32") + x.cast("int32"), "arithmetic is on floats")
    refuse(lambda g, x, y: x + "1", "a value of the graph or a number")
    refuse(lambda g, x, y: x + True, "a value of the graph or a number")
    refuse(lambda g, x, y: x + Graph("h").input("x", ("N", "H")), "belongs to another graph")
    refuse(lambda g, x, y: g.output(Graph("h").input("x", ())), "belongs to another graph")
    refuse(lambda g, x, y: [g.output(x, "out"), g.output(y, "out")], "an output of this name exists")
    refuse(lambda g, x, y: g.input("x", ()), "a node of this name exists")
    refuse(lambda g, x, y: g.value("z"), "no such node")
    refuse(lambda g, x, y: g.bind({"N": 1}), "every named size needs a value")
    refuse(lambda g, x, y: g.bind({"N": 1, "H": -1}), "a whole number from 0")
    refuse(lambda g, x, y: g.bind({"N": 2**30, "H": 2**30}), "more than")


def test_numbers_take_the_dtype_of_what_they_meet():
    graph = Graph()
    x = graph.input("x", ("N",), "fp16")
    assert (1 + x).dtype == (x / 3).dtype == (2.5 - x).dtype == "fp16"
    assert (
        graph.constant("half", 0.5).dtype == "fp32"
        and graph.constant("double", np.float64(0.5)).dtype == "fp64"
    )
    assert float(scalar(0.1, "bf16")) == 0.10009765625
    assert (x**2).node.op == "square" and (x**3).node.op == "pow"
    assert np.signbit(graph.nodes[(x * -0.0).node.inputs[1]].attrs["value"])
