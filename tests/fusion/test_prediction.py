import numpy as np
import pytest

from telekit.errors import InputError
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion, plan
from telekit.fusion.machine import Machine, tiling
from telekit.fusion.prediction import Cpu, calls_of, measure_cpu, predict

CPU = Cpu(1e-6, {("exp", "fp32"): 5e-10, ("add", "fp32"): 1e-10}, 3e-11, 5e-11, 8e-11)
N = 10**7


def chain(steps):
    graph = Graph("chain")
    x, y = graph.input("x", ("N",)), graph.input("y", ("N",))
    value = x
    for _ in range(steps):
        value = value.exp() + y
    graph.output(value, "z")
    return graph


@pytest.mark.parametrize("fresh", [False, True])
def test_a_chain_by_hand(fresh):
    """Unfused: exp is bound by its arithmetic, add by its traffic. Fused: all arithmetic, two reads and a write."""
    page, size = (8e-11 if fresh else 0.0), 4 * N
    found = predict(chain(4), {"N": N}, CPU, fresh=fresh)
    exp, add = max(N * 5e-10, size * 8e-11), max(N * 1e-10, size * 11e-11)
    assert (exp, add) == (N * 5e-10, size * 11e-11)
    assert found.unfused_s == pytest.approx(4 * (2e-6 + exp + add + 2 * size * page))
    tiles = tiling(plan(chain(4), chain(4).operators), [N], Machine(threads=1)).tiles
    fused = 4 * N * 6e-10 + 8 * tiles * 1e-6 + size * (11e-11 + page)
    assert found.fused_s == pytest.approx(fused)
    assert found.gain == found.unfused_s / found.fused_s


def test_a_call_in_place_touches_one_array_less():
    """The first exp reads x and writes a register; everything else but the last writes where it reads."""
    graph = Graph("in-place")
    graph.output(graph.input("x", ("N",)).exp().exp().exp(), "y")
    cpu = Cpu(0.0, CPU.element_s, 0.0, 0.0, 0.0, cached_s_per_byte=1e-11)
    saved = (
        predict(graph, {"N": N}, Cpu(0.0, CPU.element_s, 0.0, 0.0, 0.0)).fused_s
        - predict(graph, {"N": N}, cpu).fused_s
    )
    assert saved == pytest.approx(N * 4 * 1e-11)


def test_threads_share_the_work_of_large_kernels_only():
    two = Cpu(CPU.call_s, CPU.element_s, 3e-11, 5e-11, 8e-11, 0.0, 2, 2.0, 2.0)
    large, small = {"N": N}, {"N": 1000}
    assert predict(chain(2), large, two).fused_s == pytest.approx(
        predict(chain(2), large, CPU).fused_s / 2, rel=0.02
    )
    assert predict(chain(2), small, two).fused_s == predict(chain(2), small, CPU).fused_s


def test_unfused_kernels_move_everything_between_them():
    graph = chain(3)
    apart = predict(graph, {"N": N}, CPU, fusion=Fusion.none(graph))
    assert apart.fused_s > 2 * predict(graph, {"N": N}, CPU).fused_s


def test_what_it_cannot_predict_is_refused():
    graph = Graph("sum")
    graph.output(graph.input("x", ("N",)).sum(), "y")
    with pytest.raises(InputError, match="element-wise"):
        predict(graph, {"N": 4}, CPU)
    graph = Graph("tanh")
    graph.output(graph.input("x", ("N",)).tanh(), "y")
    with pytest.raises(InputError, match="was not measured"):
        predict(graph, {"N": 4}, CPU)


def test_measured_numbers_are_possible_ones(monkeypatch):
    """No number is compared with another machine's: only that each is positive and every function is there."""
    monkeypatch.setattr("telekit.fusion.prediction.LARGE_ELEMENTS", 2**18)
    graph = chain(2)
    assert calls_of(graph) == ("exp", "add")
    cpu = measure_cpu(calls_of(graph), threads=2, repeats=2)
    assert set(cpu.element_s) == {("exp", "fp32"), ("add", "fp32")}
    numbers = [cpu.call_s, cpu.read_s_per_byte, cpu.write_s_per_byte, *cpu.element_s.values()]
    assert all(np.isfinite(v) and v >= 0 for v in numbers) and cpu.call_s > 0
    assert cpu.threads == 2 and cpu.fresh_s_per_byte >= 0
    assert predict(graph, {"N": 1000}, cpu).gain > 0
