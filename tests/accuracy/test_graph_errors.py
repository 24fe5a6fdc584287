"""Errors in the order of the graph: the same figures as a full comparison gives, and what statistics cannot see."""

from math import inf

import numpy as np
import pytest

from telekit.accuracy.compare import compare
from telekit.accuracy.graph.graph_errors import first_above, graph_errors
from telekit.accuracy.miniature import Config, Fault, Layout, dump, run, scaled
from telekit.accuracy.readers.named import NamedTensor

FAULT = Fault("decoder.layers.0.mlp.linear_fc2", scaled(1.25))


@pytest.fixture(scope="module")
def pair():
    config = Config(layers=1, precision="bf16")
    return dump(run(config, Layout(tp=2), 1, FAULT)), dump(run(config, Layout(), 1))


def test_every_error_is_the_comparisons(pair):
    by_name = {row.name: row for row in compare(*pair).rows}
    found = graph_errors(*pair)
    assert [e.tensor for e in found] == [t.name for t in pair[1] if t.name in {e.tensor for e in found}]
    outputs = [e for e in found if not e.tensor.endswith(".parameter")]
    assert len(outputs) > 50
    for e in outputs:
        assert e.error == pytest.approx(by_name[e.tensor].metrics.relative_norm_error, rel=1e-12), e.tensor


def test_an_update_is_judged_by_its_own_size(pair):
    """The parameters hardly move in one step; what the step did is told apart by subtracting what was there."""
    name = "Optimizer.output_layer.weight.Adam.step.0.{}.parameter"
    moved = [
        side.named(name.format("output"))[0].load() - side.named(name.format("input"))[0].load()
        for side in pair
    ]
    found = next(e for e in graph_errors(*pair) if e.tensor == name.format("output"))
    assert found.error == pytest.approx(np.linalg.norm(moved[0] - moved[1]) / np.linalg.norm(moved[1]))
    assert (found.phase, found.label) == ("optimizer", "output_layer.weight.parameter")


def test_iterators_are_as_good_as_dumps(pair):
    assert graph_errors(*map(iter, pair)) == graph_errors(*pair)


def test_the_first_above_the_line_is_where_the_fault_is(pair):
    first = first_above(graph_errors(*pair), 10 * 2**-7)
    assert (first.label, first.phase, first.layer) == ("layers.0.mlp.linear_fc2", "forward", 0)
    assert first.error == pytest.approx(0.25, rel=0.02) and first.epsilons("bfloat16") == first.error * 2**7
    assert first_above(graph_errors(pair[1], pair[1]), 0.0) is None


def _tensor(values, name="Module.a.A.forward.0.output.0"):
    array = np.asarray(values, np.float32)
    return NamedTensor(name, array.shape, "float32", name, api=name, part="output", loader=lambda: array)


@pytest.mark.parametrize(("target", "golden", "elements", "norm"), [
    ([3.0, 4.0], [4.0, 3.0], 2**0.5 / 5, 0.0),
    ([1.0, 0.0], [1.0, 0.0], 0.0, 0.0),
    ([1.0, 0.0], [0.0, 0.0], inf, inf),
    ([0.0, 0.0], [0.0, 0.0], 0.0, 0.0),
    ([2.0, 0.0], [1.0, 0.0], 1.0, 1.0),
    ([np.nan, 0.0], [1.0, 0.0], inf, inf),
    ([1.0, 2.0, 3.0], [1.0, 2.0], inf, inf),
])  # fmt: skip
def test_by_elements_and_by_norm(target, golden, elements, norm):
    sides = [_tensor(target)], [_tensor(golden)]
    assert graph_errors(*sides)[0].error == pytest.approx(elements)
    assert graph_errors(*sides, by="norm")[0].error == pytest.approx(norm)


def test_what_only_one_side_has_is_left_out():
    assert graph_errors([_tensor([1.0])], [_tensor([1.0], "Module.b.B.forward.0.output.0")]) == ()
