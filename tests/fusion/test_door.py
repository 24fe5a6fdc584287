"""What a caller may hand in wrongly is one message, never a traceback or a silent answer."""

import numpy as np
import pytest

from telekit.errors import InputError
from telekit.fusion.bytecode import encode
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import run
from telekit.fusion.reference import run_unfused
from telekit.fusion.subgraphs import (
    cross_entropy,
    cross_entropy_end,
    cross_entropy_largest,
    cross_entropy_sum,
)


def squared():
    graph = Graph("squared")
    graph.output(graph.input("x", ("N",)).square(), "y")
    return graph


@pytest.mark.parametrize(
    "sizes", [{"N": "abc"}, {"N": None}, {"N": [3]}, {"N": -1}, {"N": 4.7}, {"M": 3}, 5, [3]]
)
def test_sizes_are_checked_by_both_runs(sizes):
    graph, inputs = squared(), {"x": np.ones(3, np.float32)}
    program = encode(graph, Fusion.whole(graph))
    for call in (lambda: run(program, inputs, sizes), lambda: run_unfused(graph, inputs, sizes)):
        with pytest.raises(InputError, match="size"):
            call()


@pytest.mark.parametrize("name", [5, "\ud800", "", "ä" * 101, "x\n"])
def test_names_that_would_not_survive_the_bytes_are_refused(name):
    graph = squared()
    with pytest.raises(InputError, match="printable UTF-8"):
        graph.output(graph.value("x"), name)
    with pytest.raises(InputError, match="printable UTF-8"):
        graph.input(name, ())


@pytest.mark.parametrize("fusion", [5, None, [5]])
def test_groups_that_are_none(fusion):
    with pytest.raises(InputError, match="groups of node indices"):
        encode(squared(), fusion)


def test_a_number_beyond_a_double():
    with pytest.raises(InputError, match="at most that of a double"):
        squared().value("x") + 10**400


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("1.5", "fp32"), ("nan", "fp32"), (None, "fp32"), (True, "fp32"), (1j, "fp32"), ([1.0, None], None),
        (float("nan"), "int32"), (1e300, "int32"), (1.7, "int32"), (2**31, "int32"), (2**63, "int64"),
        (np.zeros((1,) * 9), "fp32"), (1.0, "fp8"), (np.zeros(2, np.uint8), None),
    ],
)  # fmt: skip
def test_constants_that_are_no_numbers_of_their_dtype(value, dtype):
    with pytest.raises(InputError):
        Graph("g").constant("c", value, dtype)


def test_constants_that_are():
    graph = Graph("g")
    for i, (value, dtype) in enumerate(
        [(3.0, "int32"), (-(2**63), "int64"), (float("nan"), "bf16"), ([], "fp32")]
    ):
        assert graph.constant(f"c{i}", value, dtype).dtype == dtype


def test_a_gather_is_along_one_axis():
    records = [
        {"name": "x", "op": "input", "shape": [3], "dtype": "fp32"},
        {"name": "i", "op": "input", "shape": [2], "dtype": "int64"},
        {"name": "y", "op": "gather", "inputs": ["x", "i"], "axis": []},
    ]
    with pytest.raises(InputError, match="along one axis"):
        Graph.from_records(records)


def test_rows_of_nothing_are_the_same_fused_and_unfused():
    graph = Graph("rows")
    x, index = graph.input("x", ("N", "H")), graph.input("index", ("M",), "int64")
    graph.output(graph.gather(x, index).exp(), "y")
    inputs = {"x": np.empty((3, 0), np.float32), "index": np.array([7])}
    assert run(encode(graph, Fusion.whole(graph)), inputs)["y"].shape == (1, 0)
    assert run_unfused(graph, inputs)["y"].shape == (1, 0)


def test_results_need_a_place_each():
    program = encode(squared(), Fusion.whole(squared()))
    inputs = {"x": np.ones(4, np.float32)}
    buffer = np.zeros(8, np.float32)
    for stride in (0, 2):
        with pytest.raises(InputError, match="memory of its own"):
            run(program, inputs, out={"y": np.lib.stride_tricks.as_strided(buffer, (4,), (stride,))})
    assert run(program, inputs, out={"y": buffer[::-2]})["y"].tolist() == [1.0] * 4


def test_cross_entropy_of_a_split_vocabulary_is_that_of_the_whole():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 8)).astype(np.float32)
    target = logits[:, :1]
    whole = run_unfused(cross_entropy("fp32"), {"logits": logits, "target": target})
    halves = [np.ascontiguousarray(logits[:, :4]), np.ascontiguousarray(logits[:, 4:])]
    largest = np.max(
        [run_unfused(cross_entropy_largest("fp32"), {"logits": h})["largest"] for h in halves], axis=0
    )
    sums = [run_unfused(cross_entropy_sum("fp32"), {"logits": h, "largest": largest}) for h in halves]
    total = sums[0]["total"] + sums[1]["total"]
    ends = [
        run_unfused(
            cross_entropy_end("fp32"), {"raised": s["raised"], "total": total, "target": target - largest}
        )
        for s in sums
    ]
    np.testing.assert_allclose(ends[0]["loss"], whole["loss"], rtol=1e-5)
    np.testing.assert_allclose(np.hstack([e["softmax"] for e in ends]), whole["softmax"], rtol=1e-5)
