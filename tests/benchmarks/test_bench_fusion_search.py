"""The model's speed-up beside the measured one, and the time of the search."""

import time

import pytest

from telekit.fusion.graph import Graph
from telekit.fusion.legality import on_chip
from telekit.fusion.machine import Machine
from telekit.fusion.measured import measure
from telekit.fusion.prediction import calls_of, measure_cpu, predict
from telekit.fusion.search import search
from telekit.fusion.subgraphs import SIZES, feed_forward
from telekit.fusion.traffic import Target

SIZE = {"N": 12 * 2**20}  # 48 MiB a tensor


def chain(steps, step):
    graph = Graph(f"chain-of-{steps}")
    x, y = graph.input("x", ("N",)), graph.input("y", ("N",))
    value = x
    for i in range(steps):
        value = step(value, x, y, i)
    graph.output(value, "z")
    return graph


CHAINS = {
    "5-cheap": lambda: chain(5, lambda v, x, y, i: v + y if i % 2 else v * x),
    "8-mixed": lambda: chain(
        8, lambda v, x, y, i: v.abs().sqrt() if i == 3 else v.exp() if i == 6 else v * 0.5 + y
    ),
    "12-cheap": lambda: chain(12, lambda v, x, y, i: v - y if i % 2 else v * 1.01),
    "5-costly": lambda: chain(5, lambda v, x, y, i: v.tanh() if i % 2 else v.sigmoid()),
}


@pytest.mark.parametrize("name", CHAINS)
def test_prediction_beside_measurement(benchmark, name):
    """In CPU time of one thread, which other processes change least; the speed-ups go to ``extra_info``."""
    graph, machine = CHAINS[name](), Machine(threads=1)

    def both():
        cpu = measure_cpu(calls_of(graph), threads=1, clock=time.thread_time)
        return predict(graph, SIZE, cpu), measure(
            graph, SIZE, machine=machine, repeats=5, clock=time.thread_time
        )

    predicted, measured = benchmark.pedantic(both, rounds=1)
    benchmark.extra_info |= {"predicted_gain": predicted.gain, "measured_gain": measured.gain}
    benchmark.extra_info["error"] = predicted.gain / measured.gain - 1
    assert predicted.gain > 1 and measured.gain > 0


def test_search_of_a_feed_forward_block(benchmark):
    target = Target(
        "device", 1.6e12, on_chip("ascend-910b"), {"element": 0.6}, gap_s=2e-6, host_launch_s=5e-6
    )
    found = benchmark(lambda: search(feed_forward(), SIZES, target))
    assert found.proved
