"""Overlap: every run is certified against the rules it must follow, and against ticks of a crude clock."""

import json
import math
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.comm.overlap import COMPUTE, Task, rate_of_efficiency, rate_of_units, simulate
from telekit.comm.overlap_formulas import pair_exposed_s, pair_s
from telekit.errors import InputError
from telekit.timeline import compile_order
from telekit.ui.gantt import gantt_rows

RATES = st.integers(1, 8).map(lambda n: Fraction(n, 8))
QUEUES = st.sampled_from([None, 1, 2])


@st.composite
def plans(draw, streams=(COMPUTE, "nvlink", "rdma"), most=8, scale=1):
    """Tasks that wait for some of those before them."""
    tasks = []
    for i in range(draw(st.integers(1, most))):
        after = draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else ()
        names = tuple(f"t{j}" for j in sorted(after))
        tasks.append(Task(f"t{i}", draw(st.sampled_from(streams)), scale * draw(st.integers(0, 6)), names))
    return tasks


def pair(compute, comm):
    return [Task("gemm", COMPUTE, compute), Task("reduce", "comm", comm)]


def certify(run, queues=None):
    """Starts are as early as the rules allow, and the work done between start and end is the task's.

    Both together leave one run only, so nothing of the simulation is repeated here.
    """
    at = {task.name: i for i, task in enumerate(run.tasks)}
    streams = list(dict.fromkeys(task.stream for task in run.tasks))
    for i, task in enumerate(run.tasks):
        ready = [run.end_s[at[name]] for name in task.after]
        ready += [run.end_s[j] for j in range(i) if run.tasks[j].stream == task.stream]
        if queues:
            mine = streams.index(task.stream) % queues
            same = [j for j in range(i) if streams.index(run.tasks[j].stream) % queues == mine]
            ready += [run.start_s[j] for j in same]
        assert run.start_s[i] == max(ready, default=0)
        assert work_done(run, i) == task.work_s


def running(run, computes, middle):
    spans = zip(run.tasks, run.start_s, run.end_s, strict=True)
    return any((task.stream == COMPUTE) == computes and a < middle < b for task, a, b in spans)


def work_done(run, i):
    """Rate times time between every two moments at which anything starts or ends."""
    computes = run.tasks[i].stream == COMPUTE
    slow = run.compute_rate if computes else run.comm_rate
    moments = sorted({*run.start_s, *run.end_s})
    done = 0
    for a, b in pairwise(moments):
        if run.start_s[i] <= a and b <= run.end_s[i]:
            done += (b - a) * (slow if running(run, not computes, (a + b) / 2) else 1)
    return done


def measured(run):
    """Exposed communication and time of both at once, read off starts and ends."""
    moments = sorted({*run.start_s, *run.end_s})
    exposed = together = 0
    for a, b in pairwise(moments):
        compute, comm = running(run, True, (a + b) / 2), running(run, False, (a + b) / 2)
        assert compute or comm
        exposed += (b - a) * (comm and not compute)
        together += (b - a) * (comm and compute)
    return exposed, together


def ticked(tasks, compute_rate, comm_rate, tick):
    """Brute force: each tick, everything that may run gets a tick's work done."""
    left = {task.name: float(task.work_s) for task in tasks}
    ended, now = set(), 0
    while len(ended) < len(tasks):
        heads = {}
        for task in tasks:
            if task.name not in ended:
                heads.setdefault(task.stream, task)
        active = [task for task in heads.values() if ended.issuperset(task.after)]
        both = len({task.stream == COMPUTE for task in active}) == 2
        for task in active:
            rate = (compute_rate if task.stream == COMPUTE else comm_rate) if both else 1.0
            left[task.name] -= rate * tick
            if left[task.name] <= 1e-12:
                ended.add(task.name)
        now += 1
    return now * tick


@settings(max_examples=150)
@given(plans(), RATES, RATES, QUEUES)
def test_every_run_keeps_the_rules_exactly(tasks, compute_rate, comm_rate, queues):
    run = simulate(tasks, compute_rate, comm_rate, queues)
    certify(run, queues)
    assert (run.exposed_s, run.together_s) == measured(run)


@settings(max_examples=25, deadline=None)
@given(plans(most=6), RATES, RATES)
def test_a_crude_clock_agrees(tasks, compute_rate, comm_rate):
    run = simulate(tasks, compute_rate, comm_rate)
    tick = 1 / 256
    slack = 2 * tick * len(tasks) / min(float(compute_rate), float(comm_rate)) ** 2
    assert ticked(tasks, float(compute_rate), float(comm_rate), tick) == pytest.approx(
        float(run.makespan_s), abs=slack
    )


@given(plans())
def test_without_interference_the_event_kernel_agrees(tasks):
    at = {task.name: i for i, task in enumerate(tasks)}
    lane = [(COMPUTE, "nvlink", "rdma").index(task.stream) for task in tasks]
    edges = [(at[name], i) for i, task in enumerate(tasks) for name in task.after]
    order = compile_order(lane, [a for a, _ in edges], [b for _, b in edges])
    ends = order.finish([float(task.work_s) for task in tasks])
    np.testing.assert_allclose([float(end) for end in simulate(tasks).end_s], ends)


@settings(max_examples=150)
@given(plans(), RATES, RATES, QUEUES)
def test_identities_and_bounds(tasks, compute_rate, comm_rate, queues):
    run = simulate(tasks, compute_rate, comm_rate, queues)
    assert 0 <= run.exposed_s <= run.comm_s
    assert run.makespan_s == run.compute_s + run.slowdown_s + run.exposed_s
    assert run.added_s == run.slowdown_s + run.exposed_s
    assert run.hidden_s == run.comm_s - run.added_s == run.serial_s - run.makespan_s
    assert run.makespan_s >= run.lower_bound_s >= max(run.work_s.values())
    if compute_rate + comm_rate >= 1:
        assert 0 <= run.added_s <= run.comm_s
        assert run.makespan_s <= run.serial_s
    if all(task.work_s == 0 for task in tasks if task.stream != COMPUTE):
        assert (run.makespan_s, run.exposed_s) == (run.compute_s, 0)


@settings(max_examples=25, deadline=None)
@given(plans(most=4), RATES, RATES)
def test_the_lower_bound_holds_for_every_order_of_launch(tasks, compute_rate, comm_rate):
    bounds = set()
    for order in permutations(tasks):
        try:
            run = simulate(order, compute_rate, comm_rate)
        except InputError:  # this order waits for itself
            continue
        bounds.add(run.lower_bound_s)
        assert run.makespan_s >= run.lower_bound_s
    assert len(bounds) == 1


@settings(max_examples=150)
@given(plans(streams=(COMPUTE, "comm")), RATES, RATES, RATES, RATES, QUEUES)
def test_more_interference_never_shortens_with_one_communication_stream(tasks, a, b, c, d, queues):
    quick = simulate(tasks, max(a, b), max(c, d), queues)
    slow = simulate(tasks, min(a, b), min(c, d), queues)
    assert all(x >= y for x, y in zip(slow.end_s, quick.end_s, strict=True))


@settings(max_examples=60)
@given(plans(), RATES, RATES, QUEUES)
def test_nothing_ends_before_it_would_without_interference(tasks, compute_rate, comm_rate, queues):
    free, run = simulate(tasks, queues=queues), simulate(tasks, compute_rate, comm_rate, queues)
    assert all(x >= y for x, y in zip(run.end_s, free.end_s, strict=True))
    assert all(x >= y for x, y in zip(free.end_s, simulate(tasks).end_s, strict=True))


def test_two_communication_streams_may_gain_from_a_slower_link():
    """The note of simulate: r is not urgent; a slower y keeps it from slowing x, on which w waits."""
    tasks = [
        Task("p", COMPUTE, 100), Task("y", "rdma", 50), Task("r", COMPUTE, 1, ("y",)),
        Task("x", "nvlink", Fraction(1, 2), ("p",)), Task("w", "nvlink", 50, ("x",)),
    ]  # fmt: skip
    quick, slow = simulate(tasks, 1, Fraction(1, 2)), simulate(tasks, 1, Fraction(2, 5))
    certify(quick)
    certify(slow)
    assert slow.end_s[3] < quick.end_s[3]


@given(plans(), RATES, RATES, QUEUES, st.integers(1, 9))
def test_scaling_all_times_scales_the_result(tasks, compute_rate, comm_rate, queues, factor):
    run = simulate(tasks, compute_rate, comm_rate, queues)
    scaled = [Task(t.name, t.stream, factor * t.work_s, t.after) for t in tasks]
    again = simulate(scaled, compute_rate, comm_rate, queues)
    assert again.start_s == tuple(factor * start for start in run.start_s)
    assert (again.exposed_s, again.lower_bound_s) == (factor * run.exposed_s, factor * run.lower_bound_s)
    assert again.efficiency == run.efficiency


@given(plans(), RATES, RATES, QUEUES)
def test_floats_give_what_fractions_give(tasks, compute_rate, comm_rate, queues):
    exact = simulate(tasks, compute_rate, comm_rate, queues)
    floats = [Task(t.name, t.stream, float(t.work_s), t.after) for t in tasks]
    run = simulate(floats, float(compute_rate), float(comm_rate), queues)
    assert isinstance(run.makespan_s, float)
    np.testing.assert_allclose(run.end_s, [float(end) for end in exact.end_s], atol=1e-9)
    assert run.exposed_s == pytest.approx(float(exact.exposed_s), abs=1e-9)


@given(st.integers(0, 20), st.integers(0, 20), RATES, RATES)
def test_pair_in_closed_form(compute, comm, compute_rate, comm_rate):
    run = simulate(pair(compute, comm), compute_rate, comm_rate)
    args = compute, comm, float(compute_rate), float(comm_rate)
    assert float(run.makespan_s) == pytest.approx(pair_s(*args), abs=1e-12)
    assert float(run.exposed_s) == pytest.approx(pair_exposed_s(*args), abs=1e-12)
    assert run.makespan_s == run.sharing_bound_s or compute_rate + comm_rate < 1
    free = simulate(pair(compute, comm))
    assert (free.exposed_s, free.makespan_s) == (max(0, comm - compute), max(comm, compute))


def test_pair_by_hand():
    """Both run for 4 s at rates 3/4 and 1/2; then 5 - 2 = 3 s of the transfer are left."""
    run = simulate(pair(3, 5), Fraction(3, 4), Fraction(1, 2))
    assert (run.end_s, run.exposed_s, run.slowdown_s, run.together_s) == ((4, 7), 3, 1, 4)
    assert (run.added_s, run.hidden_s, run.serial_s) == (4, 1, 8)
    assert run.efficiency == Fraction(1, 3)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 10).map(lambda n: Fraction(n, 10)))
def test_a_rate_of_an_efficiency_hides_that_share(compute, comm, efficiency):
    rate = rate_of_efficiency(efficiency)
    run = simulate(pair(compute, comm), rate, rate)
    assert run.makespan_s == max(compute, comm) + (1 - efficiency) * min(compute, comm)
    assert run.hidden_s == efficiency * min(compute, comm)


def test_units_that_communication_holds():
    assert rate_of_units(20, 132) == Fraction(28, 33)
    with pytest.raises(InputError, match="below the 132 units"):
        rate_of_units(132, 132)
    with pytest.raises(InputError, match=r"efficiency = 1\.5"):
        rate_of_efficiency(1.5)


def test_one_hardware_queue_keeps_what_is_ready_from_starting():
    tasks = [Task("a", COMPUTE, 2), Task("x", "nvlink", 1, ("a",)), Task("y", "rdma", 2)]
    assert simulate(tasks).start_s == (0, 2, 0)
    assert simulate(tasks, queues=1).start_s == (0, 2, 2)
    assert simulate(tasks, queues=2).start_s == (0, 2, 0)


def test_nothing_to_do():
    run = simulate([])
    assert (run.makespan_s, run.exposed_s, run.lower_bound_s, run.efficiency) == (0, 0, 0, 1)


def test_charts_and_traces():
    run = simulate([Task("reduce", "comm", 3.0, kind="backward"), Task("gemm", COMPUTE, 2.0)], 0.5, 1.0)
    assert run.streams == [COMPUTE, "comm"]
    marks = run.marks()
    assert (marks["lane"], marks["text"], marks["end_s"]) == ([1, 0], ["reduce", "gemm"], [3.0, 3.5])
    drawn = gantt_rows(**marks)["gantt"]
    assert [(row["lane"], row["kind"], row["end"]) for row in drawn] == [
        (1, "backward", 3.0),
        (0, "forward", 3.5),
    ]
    events = [event for event in run.to_chrome_trace()["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["tid"], event["dur"]) for event in events] == [
        ("reduce", 1, 3e6),
        ("gemm", 0, 3.5e6),
    ]
    plain = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert (plain["makespan_s"], plain["slowdown_s"], plain["exposed_s"]) == (3.5, 1.5, 0.0)


@pytest.mark.parametrize("work", [-1, math.nan, math.inf, "2", None, True])
def test_wrong_times_are_named(work):
    with pytest.raises(InputError, match=r"gemm\.work_s = .*finite number of seconds, 0 or more"):
        simulate([Task("gemm", COMPUTE, work)])


@pytest.mark.parametrize("rate", [0, -0.5, 1.01, math.nan, None])
def test_wrong_rates_are_named(rate):
    for field in ("compute_rate", "comm_rate"):
        with pytest.raises(InputError, match=f"{field} = .*above 0 and at most 1"):
            simulate([], **{field: rate})


def test_all_problems_at_once():
    tasks = [Task("a", COMPUTE, -1), Task("a", "comm", 1), Task("b", "comm", 1, ("c",))]
    with pytest.raises(InputError) as error:
        simulate(tasks, 2, 1, queues=0)
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["compute_rate", "queues", "tasks", "a.work_s", "b.after"]


def test_circles_are_named():
    crossed = [Task("a", COMPUTE, 1, ("x",)), Task("b", COMPUTE, 1), Task("x", "comm", 1, ("b",))]
    with pytest.raises(InputError, match=r"circle \(.*a waits for x"):
        simulate(crossed)  # by the order of the compute stream
    behind = [Task("x", "comm", 1, ("a",)), Task("a", COMPUTE, 1)]
    assert simulate(behind).makespan_s == 2
    with pytest.raises(InputError, match="circle"):
        simulate(behind, queues=1)  # by the order of launch
    with pytest.raises(InputError, match="circle"):
        simulate([Task("a", COMPUTE, 1, ("a",))])
