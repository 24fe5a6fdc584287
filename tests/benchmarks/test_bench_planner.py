"""How long placements take; figures only, nothing is asserted of time."""

import numpy as np
import pytest

from telekit.planner.critical_paths import critical_paths
from telekit.planner.cutting_planes import PathProgram
from telekit.planner.dynamic_program import least_bottleneck
from telekit.planner.integer_program import bottleneck_program
from telekit.planner.makespan_search import Evaluator, even_sizes
from telekit.planner.recompute_mix import Mixer
from telekit.planner.solver import solve
from telekit.planner.stages import EndLoad, LayerType, RecomputeOption, StageProblem, place

NONE, FULL = RecomputeOption("none", 0.0, 826.0), RecomputeOption("full", 180.0, 32.0)


def sapp_t1(layers=96, stages=16, micro_batches=16, chunks=1):
    return StageProblem(
        layers=(LayerType("body", layers, 180.0, 360.0, 1583.0, (NONE, FULL)),),
        stages=stages,
        chunks=chunks,
        micro_batches=micro_batches,
        schedule="1f1b" if chunks == 1 else "interleaved-1f1b",
        head=EndLoad(30.0, 60.0, 11000.0),
        tail=EndLoad(90.0, 180.0, 2473.0),
        memory_cap_bytes=53_000.0 * max(1.0, layers / stages / 6) * (1 if chunks == 1 else 1.3),
    )


@pytest.mark.parametrize("objective", ["makespan", "bottleneck"])
def test_bench_place_t1(benchmark, objective):
    found = benchmark.pedantic(place, (sapp_t1(), objective, 60.0), rounds=3)
    assert found.proof.status == "optimal"


def test_bench_place_large(benchmark):
    found = benchmark.pedantic(place, (sapp_t1(200, 32, 64), "makespan", 60.0), rounds=2)
    assert found.proof.status == "optimal"


@pytest.mark.parametrize("name", ["highs", "cbc"])
def test_bench_bottleneck_program(benchmark, name):
    outcome = benchmark(lambda: solve(bottleneck_program(sapp_t1()).lp, name))
    assert outcome.status == "optimal"


def test_bench_dynamic_program(benchmark):
    problem = sapp_t1(200, 32, 64)
    found = benchmark(lambda: least_bottleneck(problem, Mixer(problem)))
    assert found.sizes.sum() == 200


@pytest.mark.parametrize("chunks", [1, 2])
def test_bench_relaxation(benchmark, chunks):
    problem = sapp_t1(96, 16, 32, chunks)
    evaluator = Evaluator(problem)
    forward, backward = evaluator.times(even_sizes(problem)[None])
    inner = np.stack([forward[0], np.where(np.isfinite(backward[0]), backward[0], 2 * forward[0])])

    def relax():
        rows = PathProgram(problem)
        rows.relax(inner, deadline=float("inf"))
        return rows

    assert benchmark.pedantic(relax, rounds=3).bound_s > 0


def test_bench_neighbourhood(benchmark):
    """All 240 moves of one layer, recompute chosen and simulated."""
    problem = sapp_t1()
    evaluator = Evaluator(problem)
    near = np.repeat(even_sizes(problem)[None], 240, axis=0)
    giver, taker = np.nonzero(~np.eye(16, dtype=bool))
    near[np.arange(240), giver] -= 1
    near[np.arange(240), taker] += 1
    assert len(benchmark(evaluator.makespans, near)) == 240


def test_bench_critical_path(benchmark):
    problem = sapp_t1(96, 16, 256)
    times = np.full((1, 16), 1000.0)
    assert benchmark(critical_paths, problem, times, 2 * times)
