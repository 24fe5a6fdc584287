from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_oracle import LETTERS, evaluate, peaks
from order_cases import placement

from telekit.errors import InputError
from telekit.pipeline.exact import shortest_order
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, WEIGHT, Op
from telekit.pipeline.registry import SCHEDULES, build
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times


def merges(jobs):
    """Every way to run some jobs, each a list of operations with what must come before each, on one device."""
    if not any(jobs):
        yield []
        return
    seen = set()
    for n, job in enumerate(jobs):
        if job and (n, job[0]) not in seen:
            seen.add((n, job[0]))
            rest = [job[1:] if k == n else other for k, other in enumerate(jobs)]
            for tail in merges(rest):
                yield [job[0], *tail]


def brute_force(part, micro_batches, time_of, cap, split, comm):
    """Shortest makespan over all orders of labelled micro-batches that fit, tried one by one."""
    chunks, stages = part.shape
    choices = []
    for d in range(stages):
        inward = sorted(range(chunks), key=lambda c, d=d: part[c, d])
        jobs = []
        for i in range(micro_batches):
            way = [Op(FORWARD, i, c) for c in inward]
            if split:
                assert chunks == 1
                way += [Op(INPUT, i), Op(WEIGHT, i)]
            else:
                way += [Op(BACKWARD, i, c) for c in reversed(inward)]
            jobs.append(way)
        fit = [line for line in merges(jobs) if peaks([line], lambda c, d: 1 / chunks)[0] <= cap + 1e-9]
        choices.append(fit)
    best = np.inf
    for lines in product(*choices):
        try:
            _, ends = evaluate(list(lines), part, time_of, comm)
        except AssertionError:
            continue
        best = min(best, max(map(max, ends)))
    return best


TINY = [
    ("line", 2, 2, True),
    ("line", 3, 2, True),
    ("line", 2, 3, False),
    ("line", 3, 2, False),
    ("V", 2, 2, False),
    ("ring", 2, 2, False),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cap", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize(("name", "p", "m", "split"), TINY)
def test_equal_to_brute_force(name, p, m, split, cap, seed):
    """All orders of named micro-batches: that only orders in turn are tried costs nothing."""
    part, rng = placement(name, p), np.random.default_rng(seed)
    f, b, w = (rng.integers(1, 8, part.shape).astype(float) for _ in range(3))
    comm = float(rng.integers(0, 3))
    table = {"F": f, "B": b + w, "I": b, "W": w}
    best = brute_force(part, m, lambda k, c, d, op: table[k][c, d], cap, split, comm)
    found = shortest_order(part, m, Times(f, b, w, comm=comm), cap, split=split)
    assert found.proved
    assert found.makespan == best


@pytest.mark.parametrize(
    ("p", "m", "cap", "best"),
    [(2, 6, 2, 19), (3, 6, 3, 20), (4, 6, 4, 21), (4, 6, 3, 24), (4, 6, 2, 31), (4, 6, 1, 54)],
)
def test_equal_halves(p, m, cap, best):
    """ZB-1P's 3 m + p - 1 is optimal. With cap 1 a micro-batch goes there and back alone: m (2 p + 1)."""
    ones = np.ones((1, p))
    found = shortest_order([list(range(p))], m, Times(ones, ones, ones), cap)
    assert found.proved
    assert found.makespan == best == run(found.order, Times(ones, ones, ones)).makespan_s
    assert found.bound == found.makespan


def named_on(part, stages, micro_batches):
    """Every named schedule on one placement, in orders that hold no pairs and no pieces."""
    for name in SCHEDULES:
        if name in ("seq-1f1b", "seqsmartvpp", "dualpipe", "dualpipe-v"):
            continue
        try:
            order = build(name, stages, micro_batches)
        except InputError:
            continue
        if np.array_equal(order.part, part):
            yield order


@given(
    st.integers(2, 4),
    st.integers(1, 6),
    st.sampled_from([1.0, 2.0, 3.0, 4.0, 6.0]),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=20)
def test_never_worse_than_any_named_schedule(p, m, cap, comm, equal, seed):
    """They are not told to it: a proof alone must keep it below all of them that fit."""
    part, rng = placement("line", p), np.random.default_rng(seed)
    f, b, w = (np.full((1, p), rng.integers(3, 9)) if equal else rng.integers(3, 9, (1, p)) for _ in range(3))
    times = Times(f, b, w, comm=comm)
    found = shortest_order(part, m, times, cap, time_limit_s=20)
    assert (run(found.order, times).peak_activations <= cap + 1e-9).all()
    assert run(found.order, times).makespan_s == pytest.approx(found.makespan)
    assert found.bound <= found.makespan
    for order in named_on(part, p, m):
        timed = run(order, times)
        if (timed.peak_activations <= cap + 1e-9).all():
            assert timed.makespan_s >= found.bound * (1 - 1e-6)
            if found.proved:
                assert timed.makespan_s >= found.makespan * (1 - 1e-6)


@pytest.mark.parametrize(("p", "m", "cap"), [(2, 4, 2.0), (3, 3, 3.0), (4, 6, 4.0), (2, 2, 1.0)])
def test_two_chunks_in_a_v(p, m, cap):
    """ZB-V under its own cap cannot be shortened; nor is anything named shorter."""
    part = placement("V", p)
    halves = np.full((2, p), 0.5)
    times = Times(halves, halves, halves)
    found = shortest_order(part, m, times, cap, named=list(named_on(part, p, m)), time_limit_s=30)
    assert found.proved
    if cap == p:
        assert found.makespan == 3 * m + (p - 1) / 2
    for order in named_on(part, p, m):
        timed = run(order, times)
        if timed.peak_activations.max() <= cap + 1e-9:
            assert found.makespan <= timed.makespan_s


def test_a_named_start_is_kept_when_time_is_short():
    """0.001 s prove nothing: what comes back is no worse than the start, and does not say it is best."""
    part, rng = placement("V", 4), np.random.default_rng(3)
    times = Times(*(rng.uniform(0.3, 0.7, (2, 4)) for _ in range(3)))
    named = list(named_on(part, 4, 6))
    found = shortest_order(part, 6, times, 3.0, named=named, time_limit_s=0.001)
    fits = [timed for timed in (run(order, times) for order in named) if timed.peak_activations.max() <= 3]
    assert found.makespan <= min(timed.makespan_s for timed in fits)
    assert not found.proved and 0 < found.bound < found.makespan


@pytest.mark.parametrize(
    ("arguments", "field", "rule", "hint"),
    [
        ({"micro_batches": 40}, "micro_batches", "the integer program takes 144", "micro_batches 24 works"),
        ({"time_limit_s": 0.0}, "time_limit_s", "positive", "60 works"),
        ({"cap": 0.5}, "cap", "all are held", "cap 1 works"),
        ({"micro_batch": [1.0, 2.0]}, "times", "must be alike", "a search"),
    ],
)
def test_bad_input(arguments, field, rule, hint):
    ones = np.ones((1, 2))
    times = Times(ones, ones, ones, micro_batch=arguments.pop("micro_batch", None))
    good = {"part": [[0, 1]], "micro_batches": 2, "times": times}
    with pytest.raises(InputError) as caught:
        shortest_order(**good | arguments)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert rule in problem.rule and hint in problem.suggestion


def test_letters_are_the_orders():
    assert LETTERS == "FBIWP"
