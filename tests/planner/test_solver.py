"""The door to PuLP: true statuses, bounds from the solver, answers checked against the rows."""

import math
import random
import threading

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.planner import cbc, solver
from telekit.planner.solver import Relaxation, solve

BOTH = pytest.mark.parametrize("name", ["highs", "cbc"])


def machines(jobs, count, seed=3):
    """Jobs on machines, the longest machine least: hard to prove for many jobs."""
    draw = random.Random(seed)
    weights = [draw.randint(10**5, 10**6) for _ in range(jobs)]
    problem = pulp.LpProblem("machines", pulp.LpMinimize)
    longest = problem.add_variable("longest", 0)
    problem += longest
    on = [[problem.add_variable(f"x{j}_{m}", cat="Binary") for m in range(count)] for j in range(jobs)]
    for job in on:
        problem += pulp.lpSum(job) == 1
    for m in range(count):
        problem += pulp.lpSum(w * job[m] for w, job in zip(weights, on, strict=True)) <= longest
    return problem, weights


def knapsack(weights, values, room):
    problem = pulp.LpProblem("knapsack", pulp.LpMaximize)
    take = [problem.add_variable(f"x{i}", 0, 1, "Integer") for i in range(len(weights))]
    problem += pulp.lpSum(v * x for v, x in zip(values, take, strict=True)) + 7
    problem += pulp.lpSum(w * x for w, x in zip(weights, take, strict=True)) <= room
    return problem


def best_subset(weights, values, room):
    subsets = range(2 ** len(weights))
    picks = [[i for i in range(len(weights)) if s >> i & 1] for s in subsets]
    return max(sum(values[i] for i in p) for p in picks if sum(weights[i] for i in p) <= room) + 7


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 50)), min_size=1, max_size=8),
    st.integers(0, 90),
    st.sampled_from(["highs", "cbc"]),
)
def test_optimum_of_a_maximisation_with_a_constant(items, room, name):
    weights, values = zip(*items, strict=True)
    found = solve(knapsack(weights, values, room), name)
    assert (found.status, found.solver) == ("optimal", name)
    assert found.objective == pytest.approx(best_subset(weights, values, room))
    assert found.bound == pytest.approx(found.objective)
    assert found.gap == pytest.approx(0, abs=1e-9)
    assert set(found.values.values()) <= {0.0, 1.0}


@BOTH
def test_infeasible_and_unbounded_are_told_apart(name):
    problem = pulp.LpProblem("none", pulp.LpMinimize)
    x, y = problem.add_variable("x", 0, 3, "Integer"), problem.add_variable("y", 0, 3, "Integer")
    problem += x + y
    problem += 2 * x + 2 * y == 3
    found = solve(problem, name)
    assert (found.status, found.objective, dict(found.values)) == ("infeasible", None, {})

    endless = pulp.LpProblem("endless", pulp.LpMaximize)
    z, whole = endless.add_variable("z", 0), endless.add_variable("whole", 0, None, "Integer")
    endless += z
    endless += z - whole <= 1
    assert solve(endless, name).status == "unbounded"


@BOTH
def test_linear_program_without_whole_numbers(name):
    problem = pulp.LpProblem("linear", pulp.LpMinimize)
    x, y = problem.add_variable("x", 0), problem.add_variable("y", 0)
    problem += 3 * x + 2 * y
    problem += x + y >= 1
    problem += x >= 0.25
    found = solve(problem, name)
    assert (found.status, found.objective, found.bound) == ("optimal", 2.25, 2.25)


@BOTH
def test_a_gap_that_was_asked_for_is_not_a_proof(name):
    problem, _ = machines(16, 4)
    found = solve(problem, name, 30, gap=0.2)
    assert found.status in ("feasible", "optimal")
    assert (found.status == "optimal") == (found.gap <= solver.PROVED_GAP)
    assert found.bound <= found.objective
    assert found.gap <= 0.2


@pytest.mark.parametrize("liar", ["_highs", "run"])
def test_infeasible_is_believed_only_when_a_second_solver_agrees(monkeypatch, liar):
    """A solver that wrongly says infeasible is overruled by the other's solution."""
    home, name = (solver, "highs") if liar == "_highs" else (cbc, "cbc")
    monkeypatch.setattr(home, liar, lambda *a, **k: ("infeasible", {}, None))
    found = solve(knapsack([3, 4], [5, 6], 7), name)
    assert (found.status, found.objective) == ("optimal", 18)
    assert found.solver != name


def test_infeasible_stays_unknown_when_the_second_solver_cannot_say(monkeypatch):
    monkeypatch.setattr(solver, "_highs", lambda *a, **k: ("infeasible", {}, None))
    monkeypatch.setattr(cbc, "run", lambda *a, **k: ("unknown", {}, None))
    assert solve(knapsack([3, 4], [5, 6], 7)).status == "unknown"


def test_values_that_break_a_row_are_never_returned(monkeypatch):
    monkeypatch.setattr(solver, "_highs", lambda *a, **k: ("optimal", {"x0": 1.0, "x1": 1.0}, -11.0))
    found = solve(knapsack([3, 4], [5, 6], 5))
    assert (found.status, found.objective, dict(found.values)) == ("unknown", None, {})


def test_nothing_found_has_no_values_but_keeps_the_bound(monkeypatch):
    monkeypatch.setattr(solver, "_highs", lambda *a, **k: ("unknown", {}, -2.0))
    found = solve(knapsack([3, 4], [5, 6], 7))
    assert (found.status, dict(found.values), found.gap) == ("unknown", {}, None)
    assert found.bound == pytest.approx(2.0 * 6 + 7)  # scaled by the largest coefficient, turned, shifted


def test_the_problem_is_not_changed():
    problem = knapsack([3, 4], [5, 6], 7)
    before = str(problem)
    solve(problem)
    assert str(problem) == before


def test_a_start_is_used():
    problem, _ = machines(12, 3)
    best = solve(problem)
    whole = {n: v for n, v in best.values.items() if n != "longest"}
    again = solve(problem, start=whole)
    assert again.objective == pytest.approx(best.objective)


@pytest.mark.parametrize(
    "wrong",
    [{"solver": "gurobi"}, {"time_limit_s": 0}, {"time_limit_s": math.nan}, {"gap": -1}, {"gap": 1.0}],
)
def test_arguments_are_checked(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        solve(knapsack([1], [1], 1), **wrong)


def test_solves_in_many_threads_at_once():
    answers = {}

    def work(i):
        answers[i] = solve(knapsack([3, 4, 2], [5, 6, i], 7), "cbc" if i % 2 else "highs").objective

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: best_subset([3, 4, 2], [5, 6, i], 7) for i in range(6)}


def test_relaxation_with_added_rows_equals_a_fresh_solve():
    problem = pulp.LpProblem("grows", pulp.LpMinimize)
    x, y = (problem.add_variable(name, 0, 10, "Integer") for name in "xy")
    problem += 2 * x + 3 * y + 1
    problem += x + y >= 3.5
    with Relaxation(problem) as relaxation:
        assert relaxation.solve(10).objective == pytest.approx(8)
        relaxation.add({"x": 4.0, "y": -2.0}, at_most=2.0)
        found = relaxation.solve(10)
        assert found.objective == pytest.approx(2 * 1.5 + 3 * 2 + 1)
        assert found.values == pytest.approx({"x": 1.5, "y": 2.0})
        relaxation.add({"x": -1.0, "y": -1.0}, at_most=-30.0)
        assert relaxation.solve(10).status == "infeasible"
