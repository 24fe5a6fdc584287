import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.timeline import chrome_trace, compile_order


@st.composite
def orders(draw):
    """Resources, dependencies that keep some order of all operations, durations and lags."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, edges = draw(st.integers(1, 40)), draw(st.integers(0, 80))
    ends = rng.integers(0, count, (2, edges))
    ends = np.sort(ends[:, ends[0] != ends[1]], axis=0)
    return rng.integers(-1, 5, count), *ends, rng.random((count, 3)), rng.random(ends.shape[1])


def longest_paths(resource, before, after, duration, lag):
    """End times by the definition, operation by operation."""
    end, free = [], {}
    for i, held in enumerate(resource.tolist()):
        waits = [end[b] + gap for b, a, gap in zip(before, after, lag, strict=True) if a == i]
        end.append(max([free.get(held, 0.0) if held >= 0 else 0.0, 0.0, *waits]) + duration[i])
        free[held] = end[-1]
    return end


@given(orders())
@settings(max_examples=200, deadline=None)
def test_ends_are_longest_paths(case):
    resource, before, after, duration, lag = case
    compiled = compile_order(resource, before, after)
    sets = compiled.finish(duration, lag)
    for column in range(3):
        expected = longest_paths(resource, before, after, duration[:, column], lag)
        np.testing.assert_allclose(sets[:, column], expected, rtol=1e-12)
        np.testing.assert_array_equal(compiled.finish(duration[:, column], lag), sets[:, column])
    expected = longest_paths(resource, before, after, duration[:, 0], 0 * lag)
    np.testing.assert_allclose(compiled.finish(duration[:, 0]), expected, rtol=1e-12)


@given(orders(), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_rows_of_a_table_are_full_columns(case, rows):
    resource, before, after, duration, lag = case
    compiled = compile_order(resource, before, after)
    row, lag_row = np.arange(len(duration)) % rows, np.arange(len(lag)) % rows
    table, lags = duration[:1] * np.arange(1.0, rows + 1)[:, None], np.arange(rows) / 3
    expected = compiled.finish(table[row], lags[lag_row])
    np.testing.assert_array_equal(compiled.finish(table, lags, row, lag_row), expected)
    np.testing.assert_array_equal(compiled.finish(table[:, 0], lags, row, lag_row), expected[:, 0])
    by_set = np.stack([lags, 2 * lags, 0 * lags], axis=1)
    each = compiled.finish(table, by_set, row, lag_row)
    for column, factor in enumerate((1, 2, 0)):
        alone = compiled.finish(table[:, column], factor * lags, row, lag_row)
        np.testing.assert_array_equal(each[:, column], alone)


def test_one_lag_for_all_dependencies():
    compiled = compile_order([0, 1, 2], [0, 1], [1, 2])
    assert compiled.finish([1.0, 1.0, 1.0], 0.5).tolist() == [1, 2.5, 4]


def test_an_operation_may_wait_for_hundreds():
    n = 300
    compiled = compile_order(-np.ones(n + 1, dtype=int), np.arange(n), np.full(n, n))
    assert compiled.finish(np.append(np.arange(n), 1.0))[-1] == n


def test_numbers_need_not_follow_the_dependencies():
    """Operation 0 waits for operation 1, on another resource."""
    compiled = compile_order([0, 1], [1], [0])
    assert compiled.finish([2.0, 3.0], 0.5).tolist() == [5.5, 3.0]


def test_without_a_resource_operations_overlap():
    assert compile_order([-1, -1, -1], [], []).finish([1.0, 2.0, 3.0]).tolist() == [1, 2, 3]
    assert compile_order([7, 7, 7], [], []).finish([1.0, 2.0, 3.0]).tolist() == [1, 3, 6]


def test_nothing_to_do():
    assert compile_order([], [], []).finish([]).shape == (0,)


def test_a_deadlock_is_named():
    """Two devices that each receive first: a from 1, then b from 0."""
    names = ["recv a on 0", "send b on 0", "recv b on 1", "send a on 1"]
    with pytest.raises(InputError) as caught:
        compile_order([0, 0, 1, 1], [3, 1], [0, 2], names.__getitem__)
    (problem,) = caught.value.problems
    assert problem.field == "order"
    for name in names:
        assert name in problem.rule
    circle = problem.rule.split("(")[1].rstrip(")").split(" waits for ")
    assert circle[0] == circle[-1]
    waits = {("recv a on 0", "send a on 1"), ("send b on 0", "recv a on 0")}
    waits |= {("recv b on 1", "send b on 0"), ("send a on 1", "recv b on 1")}
    assert set(pairwise(circle)) == waits


def test_a_deadlock_names_the_circle_and_not_what_waits_behind_it():
    with pytest.raises(InputError, match=r"\((1 waits for 2 waits for 1|2 waits for 1 waits for 2)\)"):
        compile_order([0, 1, 2, 3], [0, 1, 2, 1], [1, 3, 1, 2])


def test_a_long_circle_is_cut_short():
    n = 1000
    with pytest.raises(InputError, match="…") as caught:
        compile_order(np.arange(n), np.arange(n), np.roll(np.arange(n), 1))
    assert len(str(caught.value)) < 400


def test_trace_is_what_viewers_expect():
    trace = chrome_trace(
        [0.0, 0.25], [0.25, 1.0], [1, 0], ["F0", "send"], ["forward", "comm"], ["gpu", "link"]
    )
    events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {0: "gpu", 1: "link"}
    drawn = [(e["name"], e["cat"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn == [("F0", "forward", 1, 0.0, 250_000.0), ("send", "comm", 0, 250_000.0, 750_000.0)]
