"""How long pipelines take to order, compile, time and re-time; figures only, nothing is asserted of time."""

import numpy as np
import pytest

from telekit.pipeline.bubbles import bubbles
from telekit.pipeline.closed_form import pipeline_time_s
from telekit.pipeline.lattice import lattice
from telekit.pipeline.order import from_lists
from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import makespan, run
from telekit.pipeline.times import Times
from telekit.pipeline.zero_bubble import zb_h1

LARGE = ("interleaved-1f1b", 64, 512, 2)  # 131,072 operations
SHAPE = (2, 64)


def times(*sets, comm=0.0):
    return Times(*(0.5 + np.random.default_rng(0).random((3, *sets, *SHAPE))), comm=comm)


def test_bench_order(benchmark):
    found = benchmark(order.__wrapped__, *LARGE)
    assert found.kind.size == 131_072


def test_bench_first_timing(benchmark):
    """The order is known, but never was timed."""
    half = np.full(SHAPE, 0.5)

    def fresh():
        return (order.__wrapped__(*LARGE), Times(half, half, half)), {}

    assert benchmark.pedantic(run, setup=fresh, rounds=10).makespan_s == 1630.5


@pytest.mark.parametrize("comm", [0.0, 0.1])
@pytest.mark.parametrize("sets", [(), (64,)])
def test_bench_retiming(benchmark, sets, comm):
    found = order(*LARGE)
    timed = times(*sets, comm=comm)
    assert benchmark(lambda: run(found, timed).makespan_s).shape == sets


def test_bench_start_times_and_bubbles_of_64_sets(benchmark):
    found, timed = order(*LARGE), times(64)

    def everything():
        one = run(found, timed)
        return one.start_s, one.bubble_fraction, one.bubble_fraction_of_span

    assert benchmark(everything)[0].shape == (64, 131_072)


def test_bench_activations(benchmark):
    one = run(order(*LARGE), times())
    assert benchmark(lambda: one.peak_activations).shape == (64,)


def test_bench_bubbles_by_cause(benchmark):
    one = run(order(*LARGE), times(comm=0.1))
    assert benchmark(bubbles, one).total.shape == (64,)


def test_bench_columns_of_lists(benchmark):
    lines, part = zb_h1(64, 512)
    found = benchmark(from_lists, "zb-h1", lines, part, 512)
    assert found.kind.size == 3 * 64 * 512


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
