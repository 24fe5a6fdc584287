"""The integer program against the dynamic program, and both against all placements."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_oracle import best_of_all, in_units, random_problem

from telekit.planner.dynamic_program import covers, least_bottleneck
from telekit.planner.integer_program import (
    bottleneck_program,
    capacity_program,
    makespan_program,
    program_text,
)
from telekit.planner.makespan_search import Evaluator
from telekit.planner.recompute_mix import Mixer
from telekit.planner.solver import solve
from telekit.planner.stage_problem import bottleneck, peak_memory, stage_times

INSTANCES = 200


def dynamic(problem):
    mixer = Mixer(problem)
    found = least_bottleneck(problem, mixer)
    assert mixer.exact
    return found


def uncapped(seed):
    return random_problem(seed, capped=False)


def test_integer_program_equals_dynamic_program():
    binding = infeasible = 0
    for seed in range(INSTANCES):
        problem = random_problem(seed)
        oracle = dynamic(problem)
        outcome = solve(bottleneck_program(problem).lp, "highs", 30)
        if oracle is None:
            infeasible += 1
            assert outcome.status == "infeasible", seed
            continue
        program = bottleneck_program(problem)
        assert outcome.status == "optimal"
        assert outcome.objective * program.time_unit == pytest.approx(oracle.bottleneck_s, rel=1e-6), seed
        binding += oracle.bottleneck_s > dynamic(uncapped(seed)).bottleneck_s * (1 + 1e-9)
    assert binding >= 0.30 * INSTANCES
    assert infeasible >= 0.10 * INSTANCES


@pytest.mark.parametrize("seed", range(30))
def test_cbc_gives_the_same(seed):
    problem = random_problem(seed)
    oracle, program = dynamic(problem), bottleneck_program(problem)
    outcome = solve(program.lp, "cbc", 30)
    if oracle is None:
        assert outcome.status == "infeasible"
    else:
        assert (outcome.status, outcome.solver) == ("optimal", "cbc")
        assert outcome.objective * program.time_unit == pytest.approx(oracle.bottleneck_s, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2]))
def test_programs_equal_all_placements(seed, chunks):
    problem = random_problem(seed, layers=(4, 6), stages=(2, 3 - (chunks - 1)), chunks=chunks)
    _, least = best_of_all(problem)
    program = bottleneck_program(problem)
    outcome = solve(program.lp, "highs", 30)
    if np.isinf(least):
        assert outcome.status == "infeasible"
        assert solve(capacity_program(problem).lp, "highs", 30).objective > 0
        return
    assert outcome.objective * program.time_unit == pytest.approx(least, rel=1e-6)
    placement = program.placement(problem, outcome.values)
    assert bottleneck(problem, *stage_times(problem, placement)) == pytest.approx(least, rel=1e-6)
    assert (peak_memory(problem, placement) <= problem.cap_bytes * (1 + 1e-6)).all()
    assert placement.layers.sum() == problem.total_layers
    if covers(problem):
        split = dynamic(problem)
        assert split.bottleneck_s == pytest.approx(least, rel=1e-9)
        again = Evaluator(problem).placement(split.sizes)
        assert bottleneck(problem, *stage_times(problem, again)) == pytest.approx(least, rel=1e-9)


def test_runs_stay_in_model_order():
    problem = next(p for p in map(uncapped, range(50)) if len(p.layers) == 3)
    program = bottleneck_program(problem)
    placement = program.placement(problem, solve(program.lp).values)
    runs = [
        placement.array[[i for i, (t, _) in enumerate(problem.columns) if t == r]].sum(axis=0)
        for r in range(3)
    ]
    order = [t for v, s in problem.positions for t in range(3) for _ in range(int(runs[t][v, s]))]
    assert order == sorted(order)


def test_dynamic_program_says_what_it_does_not_cover():
    problem = random_problem(1, chunks=2)
    assert not covers(problem)
    with pytest.raises(ValueError, match="does not cover"):
        least_bottleneck(problem, Mixer(problem))


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_units_do_not_matter(solver):
    """In microseconds and terabytes the same program has the same answer: rows are scaled."""
    problem = random_problem(3)
    least = dynamic(problem).bottleneck_s
    program = bottleneck_program(in_units(problem, 1e-6, 1e12))
    outcome = solve(program.lp, solver)
    assert outcome.objective * program.time_unit == pytest.approx(1e-6 * least, rel=1e-6)
    coefficients = [abs(c) for row in program.lp.constraints() for c in row.values()]
    assert max(coefficients) < 1e4 and min(coefficients) > 1e-4


def test_text_is_the_program_and_bounded():
    problem = random_problem(4)
    text = program_text(problem, "bottleneck", rows=2)
    program = bottleneck_program(problem)
    assert text.startswith("minimise bottleneck\nsubject to\n")
    assert f"{len(program.lp.constraints())} rows" in text
    assert "n_run0_none_c0_s0" in text and "memory_s0" in text and "longest_s0_f0_b0" in text
    assert f"and {problem.stages - 2} more rows memory" in text
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) < 400
    assert "path_0" in program_text(problem, "makespan")
    assert makespan_program(problem, []).lp.objective is not None
