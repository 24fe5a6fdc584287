"""Measuring measures what it says: the runs happen at the sizes that were asked for, the best of them counts."""

import itertools

import numpy as np
import pytest

from telekit.errors import InputError
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import Machine
from telekit.fusion.measured import Measured, measure, random_inputs


def gathered():
    graph = Graph("gathered")
    x, index = graph.input("x", ("N", "H"), "bf16"), graph.input("index", ("M",), "int32")
    graph.output(graph.gather(x, index).exp(), "y")
    return graph


def test_each_time_is_the_shortest_of_its_runs():
    ticks = itertools.accumulate(
        itertools.cycle([3.0, 0.0, 2.0, 0.0, 5.0, 0.0])
    )  # runs of 0 s, with waits between
    found = measure(gathered(), {"N": 3, "H": 4, "M": 5}, repeats=3, clock=lambda: next(ticks))
    assert (found.unfused_s, found.fused_s, found.encode_s) == (0.0, 0.0, 0.0)
    ticks = itertools.accumulate(itertools.cycle([1.0, 3.0, 1.0, 2.0, 1.0, 5.0]))
    found = measure(gathered(), {"N": 3, "H": 4, "M": 5}, repeats=3, clock=lambda: next(ticks))
    assert (found.unfused_s, found.unfused_out_s, found.fused_s, found.fused_out_s) == (2.0,) * 4
    assert found.other_shape_s == 2.0
    assert found.gain == found.gain_over_out == 1.0


def test_threads_are_those_of_the_machine():
    sizes = {"N": 3, "H": 4, "M": 5}
    assert measure(gathered(), sizes, machine=Machine(threads=2), repeats=1).threads == 2
    with pytest.raises(InputError, match="in no group"):
        measure(gathered(), sizes, Fusion(()))


def test_random_inputs_fit_the_graph():
    made = random_inputs(gathered(), {"N": 3, "H": 4, "M": 50})
    assert made["x"].shape == (3, 4) and made["x"].dtype.name == "bfloat16"
    assert made["index"].dtype == np.int32 and set(made["index"]) == {0, 1, 2}
    assert (made["x"].astype(float) >= 0.5).all() and (made["x"].astype(float) <= 1.5).all()


def test_a_gain_is_of_two_times_of_one_kind():
    found = Measured(6.0, 4.0, 2.0, 1.0, 0.1, 0.1, 0.1, 1)
    assert (found.gain, found.gain_over_out) == (6.0 / 2.0, 4.0 / 1.0)
