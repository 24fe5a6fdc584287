"""How long pipelines take to order, compile, time and re-time; figures only, nothing is asserted of time."""

import numpy as np
import pytest

from telekit.pipeline.closed_form import pipeline_time_s
from telekit.pipeline.lattice import lattice
from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import compiled_order, makespan, simulate

LARGE = ("interleaved-1f1b", 64, 512, 2)  # 131,072 operations


def test_bench_order(benchmark):
    found = benchmark(order.__wrapped__, *LARGE)
    assert found.kind.size == 131_072


def test_bench_compile(benchmark):
    compiled, _ = benchmark(compiled_order.__wrapped__, *LARGE)
    assert compiled.count == 131_072


@pytest.mark.parametrize("sets", [1, 64])
def test_bench_retime(benchmark, sets):
    compiled, _ = compiled_order(*LARGE)
    shape = (compiled.count, sets) if sets > 1 else compiled.count
    durations = np.random.default_rng(0).random(shape)
    ends = benchmark(compiled.finish, durations)
    assert ends.shape == durations.shape


def test_bench_first_simulation(benchmark):
    _, p, m, v = LARGE
    forward = np.full((v, p), 0.5)

    def first():
        order.cache_clear()
        compiled_order.cache_clear()
        return simulate("interleaved-1f1b", forward, 2 * forward, m)

    assert benchmark(first).makespan_s == 1630.5


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v"),
    [("1f1b", 16, 16, 1), ("1f1b", 16, 256, 1), ("1f1b", 64, 1000, 1), ("interleaved-1f1b", 16, 64, 2)],
)
def test_bench_makespans_of_1000_sets(benchmark, schedule, p, m, v):
    rng = np.random.default_rng(0)
    forward, backward = 1 + 0.1 * rng.random((1000, v, p)), 2 + 0.2 * rng.random((1000, v, p))
    lattice(schedule, p, m, v)
    assert benchmark(makespan, schedule, forward, backward, m).shape == (1000,)


@pytest.mark.parametrize(("schedule", "v"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_bench_closed_form_of_a_table(benchmark, schedule, v):
    rng = np.random.default_rng(0)
    forward, backward = rng.random((2, v, 10_000, 16))
    m = 16.0 * rng.integers(1, 20, (10_000, 1))
    assert benchmark(pipeline_time_s, schedule, forward, backward, m).shape == (10_000,)
