"""Models whose kinds of layers alternate: too many runs to keep in order, so programs count them by kind.

The oracle is every cut of a small model, simulated one by one.
"""

from itertools import combinations

import numpy as np
import pytest

from telekit.cost.estimate import estimate
from telekit.job import load_job
from telekit.layout.stages import assign
from telekit.planner.explain import program_text
from telekit.planner.integer_program import bottleneck_program, capacity_program
from telekit.planner.placing import place_layers, stage_problem
from telekit.planner.search import plan
from telekit.planner.solver import solve
from telekit.planner.stage_problem import (
    MOST_RUNS,
    EndLoad,
    LayerType,
    Placement,
    RecomputeOption,
    StageProblem,
    by_kind,
    peak_memory,
    placed_by_kind,
    simulated_makespan,
)
from telekit.planner.stages import NoFitError, place

RUNS = MOST_RUNS + 2


def alternating(stages=3, chunks=1, schedule="1f1b", cap=None, runs=RUNS):
    """Heavy and light layers in turn; the heavy ones can recompute."""
    kinds = [
        (3.0, 6.0, 5.0, (RecomputeOption("none", 0.0, 4.0), RecomputeOption("full", 3.0, 1.0))),
        (1.0, 2.5, 2.0, (RecomputeOption("none", 0.0, 2.0), RecomputeOption("full", 1.0, 0.5))),
    ]
    layers = tuple(LayerType(f"run{i}", 1, *kinds[i % 2]) for i in range(runs))
    return StageProblem(layers, stages, chunks, 2 * stages, schedule, tail=EndLoad(2.0, 4.0, 10.0), comm_s=0.1,
                        memory_cap_bytes=cap)  # fmt: skip


def placements(problem):
    """Every way to cut the model into parts, nothing recomputed."""
    parts, total = len(problem.positions), problem.total_layers
    for cuts in combinations(range(1, total), parts - 1):
        edges = (0, *cuts, total)
        whole = np.zeros((len(problem.columns), problem.chunks, problem.stages), np.int64)
        for part, (v, s) in enumerate(problem.positions):
            for run in range(edges[part], edges[part + 1]):
                whole[problem.columns.index((run, 0)), v, s] = 1
        yield Placement.from_array(problem, whole)


def in_order(problem, placement):
    """Whether the layers, one a run, stand in parts that never go back."""
    held = [[] for _ in problem.layers]
    for (run, _), matrix in zip(problem.columns, placement.array, strict=True):
        held[run] += problem.part[matrix > 0].tolist()
    return all(len(parts) == 1 for parts in held) and held == sorted(held)


def test_few_runs_stay_in_order():
    problem = alternating(runs=MOST_RUNS)
    assert by_kind(problem) is problem and by_kind(problem).ordered
    stated = by_kind(alternating())
    assert [run.count for run in stated.layers] == [RUNS // 2, RUNS // 2] and not stated.ordered
    assert stated.total_layers == RUNS


def test_a_placement_counted_by_kind_has_the_same_memory_and_makespan():
    problem = alternating(cap=1000.0)
    for placement in list(placements(problem))[::97]:
        stated = placed_by_kind(problem, placement)
        assert (stated.layers == placement.layers).all()
        np.testing.assert_allclose(peak_memory(by_kind(problem), stated), peak_memory(problem, placement))
        makespan = simulated_makespan(by_kind(problem), stated)
        assert makespan == pytest.approx(simulated_makespan(problem, placement), rel=1e-12)


@pytest.mark.parametrize("stages, chunks, schedule", [(3, 1, "1f1b"), (2, 2, "interleaved-1f1b")])
def test_the_best_cut_is_found_and_no_bound_is_above_it(stages, chunks, schedule):
    problem = alternating(stages, chunks, schedule)
    step = 1 if chunks == 1 else 7  # of 11,480 cuts into four parts every seventh
    best = min(simulated_makespan(problem, one) for one in list(placements(problem))[::step])
    found = place(problem, time_limit_s=3)
    assert in_order(problem, found.placement)
    assert found.makespan <= 1.02 * best
    assert 0.9 * best < found.proof.bound <= best * (1 + 1e-9)


def test_the_shortest_longest_stage_is_the_dynamic_programs():
    problem = alternating()
    found = place(problem, "bottleneck", time_limit_s=3)
    longest = min(
        float(
            (np.tensordot(problem.rates[0] + problem.rates[1], one.array, 1) + sum(problem.end_times)).max()
        )
        for one in placements(problem)
    )
    assert found.bottleneck == pytest.approx(longest, rel=1e-9)
    assert found.proof.bound <= longest * (1 + 1e-9)


def test_memory_is_kept_in_order_too():
    free = place(alternating(), time_limit_s=3)
    peak = max(peak_memory(alternating(cap=1e6), free.placement))
    tight = alternating(cap=0.8 * peak)
    found = place(tight, time_limit_s=3)
    assert in_order(tight, found.placement)
    assert (np.array(found.peak_memory) <= 0.8 * peak * (1 + 1e-9)).all()
    assert found.makespan > free.makespan


def test_what_no_order_fits_is_refused():
    problem = alternating(cap=60.0)
    program = capacity_program(by_kind(problem))
    assert (solve(program.lp, "highs", 5.0).bound or 0.0) > 0
    with pytest.raises(NoFitError, match="memory_cap_bytes"):
        place(problem, time_limit_s=3)


def test_a_program_by_kind_has_no_rows_of_order():
    text = bottleneck_program(by_kind(alternating())).text()
    assert "starts_after" not in text and "all_run0" in text
    assert "starts_after" in bottleneck_program(alternating(runs=4)).text()


HYBRID = {
    "model": "nemotron-h-56b",
    "cluster": {"device": "h100", "nodes": 4},
    "train": {"seq_len": 4096, "global_batch": 64},
    "layout": {"tp": 4, "pp": 8, "dp": 1},
}


def test_a_hybrid_models_layers_are_placed_and_its_estimate_agrees():
    job = load_job(HYBRID)
    problem = stage_problem(job)
    assert len(problem.layers) == 118 and len(by_kind(problem).layers) == 3
    placed = place_layers(job, ("none", "selective", "full"), 4.0)
    found = estimate(job.with_layout(placed.layout))
    assert found.fits and sum(stage.layers for stage in found.stages) == 118
    kinds = assign(job.model, placed.layout).counts.sum(axis=(1, 2, 3))
    assert kinds.tolist() == [job.model.pattern.count(kind) for kind in range(3)]
    pipeline = sum(v for k, v in found.breakdown_s.items() if k not in ("dp_comm", "optimizer"))
    assert 0.8 * pipeline < placed.bound_s <= pipeline * (1 + 1e-9)
    assert "mamba2" in program_text(job)


@pytest.mark.parametrize(
    "model, nodes, fixed",
    [("nemotron-h-56b", 4, {"tp": 8}), ("deepseek-v4-flash", 32, {"tp": 2, "ep": 8, "pp": 8})],
)
def test_alternating_models_are_planned(model, nodes, fixed):
    job = load_job({"model": model, "cluster": {"device": "h100", "nodes": nodes},
                    "train": {"seq_len": 4096, "global_batch": 512}, "layout": fixed})  # fmt: skip
    found = plan(job, top=1, time_limit_s=4)
    best = found.best
    assert best.estimate.fits and found.search_bound_s <= best.step_time_s * (1 + 1e-9)
    assert estimate(job.with_layout(best.layout)).step_time_s == best.step_time_s
    assert f"--num-layers {job.model.num_layers}" in best.to_megatron()
    assert f"num_hidden_layers: {job.model.num_layers}" in best.to_mindformers()
