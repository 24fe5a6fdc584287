"""Placements: within the cap, never better than possible, and proved only when they are best."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_oracle import best_of_all, in_units, random_problem

from telekit.errors import InputError
from telekit.planner import stages
from telekit.planner.cutting_planes import PathProgram, rounded
from telekit.planner.makespan_search import Evaluator, even_sizes, part_sizes
from telekit.planner.stages import (
    EndLoad,
    LayerType,
    NoFitError,
    Placement,
    RecomputeOption,
    StageProblem,
    bottleneck,
    peak_memory,
    place,
    simulated_makespan,
    stage_times,
)

NONE = RecomputeOption("none", 0.0, 826.0)
FULL = RecomputeOption("full", 180.0, 32.0)


def sapp_t1(**changes):
    """SAPP's own test case: 96 layers on 16 stages under 53,000 MB."""
    problem = StageProblem(
        layers=(LayerType("body", 96, 180.0, 360.0, 1583.0, (NONE, FULL)),),
        stages=16,
        micro_batches=16,
        head=EndLoad(30.0, 60.0, 11000.0),
        tail=EndLoad(90.0, 180.0, 2473.0),
        memory_cap_bytes=53000.0,
    )
    return replace(problem, **changes)


def given_placement(problem, layers, full):
    return Placement.from_array(problem, np.array([[np.subtract(layers, full)], [full]]))


def test_published_placements_of_t1():
    """TeleChat3's own answer, the toolkits' answer, and one of longer bottleneck but shorter step."""
    problem = sapp_t1()
    none = [0] * 8
    for layers, full, longest, makespan in (
        ([5, 6, 4, 4, 6, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 6], [3, 3, 0, 0, 2, 1, 1, 1, *none], 3780, 110_610),
        ([5, 6, 5, 5, 6, 6, 6, 6, 6, 6, 7, 7, 6, 6, 7, 6], [3, 3, 2, 2, 2, 2, 1, 1, *none], 3780, 111_510),
        ([6, 6, 6, 6, 7, 7, 5, 5, 6, 7, 6, 6, 6, 6, 5, 6], [4, 3, 3, 3, 3, 3, 0, 0, *none], 4320, 108_810),
    ):
        placement = given_placement(problem, layers, full)
        assert float(bottleneck(problem, *stage_times(problem, placement))) == longest
        assert simulated_makespan(problem, placement) == makespan
        assert peak_memory(problem, placement).max() <= 53_000


def test_t1_by_bottleneck():
    found = place(sapp_t1(), objective="bottleneck", time_limit_s=60)
    assert (found.bottleneck, found.proof.status, found.proof.bound) == (3780, "optimal", 3780)
    assert found.proof.objective == "bottleneck"
    assert found.makespan <= 110_610
    assert max(found.peak_memory) <= 53_000


def test_t1_by_makespan_is_proved_and_beats_the_published_ones():
    found = place(sapp_t1(), time_limit_s=60)
    assert (found.makespan, found.proof.status, found.proof.gap) == (107_460, "optimal", 0)
    assert simulated_makespan(sapp_t1(), found.placement) == found.makespan
    assert max(found.peak_memory) <= 53_000


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 1, 2]), st.sampled_from(["makespan", "bottleneck"]))
def test_place_equals_all_placements(seed, chunks, objective):
    problem = random_problem(seed, layers=(4, 6), stages=(2, 3 - (chunks - 1)), chunks=chunks)
    problem = replace(problem, comm_s=float(seed % 3))
    least = dict(zip(("makespan", "bottleneck"), best_of_all(problem), strict=True))
    try:
        found = place(problem, objective, time_limit_s=20)
    except NoFitError as error:
        assert np.isinf(least["makespan"])
        place(replace(problem, memory_cap_bytes=error.smallest_cap), time_limit_s=20)
        with pytest.raises(NoFitError):
            place(replace(problem, memory_cap_bytes=error.smallest_cap - 2.0))
        return
    assert found.proof.status == "optimal"
    assert getattr(found, objective) == pytest.approx(least[objective], rel=2e-6)
    assert (peak_memory(problem, found.placement) <= problem.cap_bytes * (1 + 1e-9)).all()


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2]))
def test_what_holds_for_larger_problems(seed, chunks):
    problem = random_problem(seed, layers=(20, 40), stages=(3, 6), chunks=chunks)
    try:
        found = place(problem, time_limit_s=3)
    except NoFitError:
        return
    counts = found.placement.array
    assert counts.min() >= 0
    assert found.placement.layers.min() >= problem.min_layers
    for t, run in enumerate(problem.layers):
        assert counts[[i for i, (r, _) in enumerate(problem.columns) if r == t]].sum() == run.count
    assert tuple(peak_memory(problem, found.placement)) == found.peak_memory
    assert simulated_makespan(problem, found.placement) == found.makespan
    assert found.proof.bound <= found.makespan
    assert found.proof.gap == pytest.approx(1 - found.proof.bound / found.makespan)
    assert (found.proof.status == "optimal") == (found.proof.gap <= 1e-6)
    by_bottleneck = place(problem, "bottleneck", time_limit_s=3)
    if by_bottleneck.proof.status == found.proof.status == "optimal":
        assert by_bottleneck.bottleneck <= found.bottleneck * (1 + 1e-6)
        assert found.makespan <= by_bottleneck.makespan * (1 + 1e-6)


def test_a_bound_is_never_above_a_makespan_that_exists():
    """The relaxation's bound against 200 random placements of each of five problems."""
    random = np.random.default_rng(0)
    for seed in range(5):
        problem = random_problem(seed, layers=(20, 30), capped=False, chunks=1 + seed % 2)
        rows = PathProgram(problem)
        evaluator = Evaluator(problem)
        start = even_sizes(problem)
        forward, backward = evaluator.times(start[None])
        rows.relax(np.stack([forward[0], backward[0]]), deadline=float("inf"))
        assert 0 < rows.bound_s <= evaluator.makespans(start[None])[0]
        weights = random.dirichlet(np.ones(len(start)), 200) * problem.total_layers
        others = np.array([rounded(problem, row) for row in weights])
        assert (evaluator.makespans(others) >= rows.bound_s * (1 - 1e-9)).all()


def test_a_search_cut_short_is_feasible_with_its_gap(monkeypatch):
    """No time for branching: the plan stands, and is not called optimal."""
    monkeypatch.setattr(stages._Placer, "_left_s", lambda self, share=1.0: 0.4)
    found = place(sapp_t1(), time_limit_s=60)
    assert found.proof.status == "feasible"
    assert 104_632 <= found.proof.bound < 107_460 <= found.makespan
    assert found.proof.gap == pytest.approx(1 - found.proof.bound / found.makespan)


def test_units_do_not_matter():
    problem = random_problem(3)
    here, there = place(problem), place(in_units(problem, 1e-6, 1e12))
    assert there.makespan == pytest.approx(1e-6 * here.makespan, rel=2e-6)
    assert there.proof.status == here.proof.status == "optimal"


def test_caps_and_constants_of_their_own_for_each_stage():
    caps = np.linspace(60_000.0, 30_000.0, 16)
    constant = np.linspace(0.0, 3_000.0, 16)
    problem = sapp_t1(memory_cap_bytes=caps, constant_bytes=constant)
    found = place(problem, time_limit_s=30)
    assert (np.array(found.peak_memory) <= caps).all()
    with pytest.raises(NoFitError, match="more on each stage would do") as error:
        place(sapp_t1(memory_cap_bytes=caps / 10))
    assert error.value.smallest_cap is None


def test_infeasible_names_the_smallest_cap():
    """Stage 0 with one recomputed layer: 11,000 + 1,583 + 16 * 32."""
    with pytest.raises(NoFitError, match="13095 would do") as error:
        place(sapp_t1(memory_cap_bytes=9000.0))
    assert error.value.smallest_cap == 13_095
    assert place(sapp_t1(memory_cap_bytes=13_095.0), time_limit_s=5).peak_memory[0] == 13_095


def test_one_stage_takes_everything():
    problem = sapp_t1(stages=1, memory_cap_bytes=None)
    found = place(problem)
    assert found.placement.layers.tolist() == [[96]]
    assert found.makespan == 16 * (96 * 540 + 90 + 270)
    assert found.proof.status == "optimal"


def test_gpipe_and_many_kinds():
    runs = tuple(
        LayerType(f"k{i}", 2, 10.0 + i, 20.0 + i, 5.0, (RecomputeOption("none", 0.0, 1.0),)) for i in range(9)
    )
    found = place(StageProblem(runs, stages=4, micro_batches=6, schedule="gpipe"), time_limit_s=30)
    assert found.proof.status == "optimal"
    assert found.placement.layers.sum() == 18


def test_views_of_a_placement():
    problem = sapp_t1(stages=4)
    placement = given_placement(problem, [23, 25, 25, 23], [3, 0, 0, 0])
    assert placement.layers.tolist() == [[23, 25, 25, 23]]
    assert placement.offset.tolist() == [[-1, 1, 1, -1]]
    assert placement.recompute(problem, "full").tolist() == [[3, 0, 0, 0]]
    assert placement.counts[0][1][0][0] == 3
    assert Placement.from_array(problem, placement.array) == placement


def test_placement_from_sizes_recomputes_the_least():
    problem = sapp_t1()
    sizes = np.array([5, 6, 4, 4, 6, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 6])
    found = Evaluator(problem).placement(sizes)
    assert found.recompute(problem, "full")[0].tolist() == [3, 3, 0, 0, 2, 1, 1, 1, *[0] * 8]
    assert part_sizes(problem, found).tolist() == sizes.tolist()


def test_progress_is_told_and_never_runs_backwards():
    told = []
    place(sapp_t1(), time_limit_s=60, progress=lambda *step: told.append(step))
    done = [d for d, _, _ in told]
    assert done == sorted(done)
    assert {total for _, total, _ in told} == {600}
    assert told[-1][2] == "done"
    assert len({what for _, _, what in told}) >= 4


def test_all_broken_rules_at_once():
    with pytest.raises(InputError) as error:
        StageProblem(
            layers=(
                LayerType("a", 0, -1.0, float("nan"), 1.0, ()),
                LayerType("a", 3, 1.0, 1.0, 1.0, (RecomputeOption("none", -1.0, float("inf")),)),
            ),
            stages=0,
            micro_batches=2.5,
            head=EndLoad(forward_s="3"),
        )
    fields = {problem.field for problem in error.value.problems}
    assert {"stages", "micro_batches", "layers.a.count", "layers.a.options", "head.forward_s"} <= fields
    assert {"layers.a.none.extra_backward_s", "layers.a.none.activation_bytes"} <= fields


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stages": 97}, "97 chunks of at least 1 layer need more than 96 layers; use at most 96 stages"),
        ({"memory_cap_bytes": [1.0, 2.0]}, r"must have shape \(\) or \(16,\)"),
        ({"memory_cap_bytes": -1.0}, "memory_cap_bytes"),
        ({"in_flight": np.ones((2, 16))}, r"must have shape \(1, 16\)"),
        ({"chunks": 2}, "1f1b"),
        ({"schedule": "none such"}, "schedule"),
        ({"stages": 2000}, "stages"),
    ],
)
def test_what_does_not_fit_together(changes, says):
    with pytest.raises(InputError, match=says):
        sapp_t1(**changes)


def test_given_multipliers_replace_the_schedule_s():
    problem = sapp_t1(in_flight=np.full((1, 16), 2.0))
    placement = given_placement(problem, [6] * 16, [0] * 16)
    assert peak_memory(problem, placement)[1] == 6 * (1583 + 2 * 826)


@pytest.mark.parametrize(
    "wrong",
    [{"objective": "speed"}, {"solver": "gurobi"}, {"time_limit_s": -1.0}, {"time_limit_s": float("inf")}],
)
def test_arguments_of_place(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        place(sapp_t1(), **wrong)
