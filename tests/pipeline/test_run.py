import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_oracle import evaluate, peaks
from order_cases import draw_lines, orders, placement, time_of

from telekit import catalog
from telekit.errors import InputError
from telekit.pipeline.order import (
    BACKWARD,
    FORWARD,
    INPUT,
    PAIR,
    WEIGHT,
    Op,
    dependencies,
    from_lists,
    split_pairs,
)
from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import run, simulate
from telekit.pipeline.times import Times

PUBLISHED = json.loads((catalog.root() / "measurements/pipeline.json").read_text())


def flat(lists):
    return [value for line in lists for value in line]


@given(orders())
@settings(max_examples=150, deadline=None)
def test_equals_an_evaluation_operation_by_operation(case):
    found, lines, times, _ = case
    starts, ends = evaluate(lines, found.part, time_of(times, found.pieces), times.comm, found.pieces)
    timed = run(found, times)
    np.testing.assert_allclose(timed.start_s, flat(starts), rtol=0, atol=1e-9)
    np.testing.assert_allclose(timed.end_s, flat(ends), rtol=0, atol=1e-9)
    assert timed.makespan_s == pytest.approx(max(flat(ends)), rel=1e-12)


@given(orders())
@settings(max_examples=100, deadline=None)
def test_keeps_dependencies_devices_and_bounds(case):
    found, _, times, _ = case
    timed = run(found, times)
    before, after = dependencies(found)
    lag = np.where(found.device[before] != found.device[after], times.comm, 0.0)
    assert (timed.start_s[after] >= timed.end_s[before] + lag - 1e-9).all()
    same = found.device[1:] == found.device[:-1]
    assert (timed.start_s[1:] >= timed.end_s[:-1] - 1e-9)[same].all()
    busy = [timed.duration_s[found.device == d].sum() for d in range(found.stages)]
    np.testing.assert_allclose(timed.busy_s, busy)
    assert timed.makespan_s >= max(busy) - 1e-9
    fractions = timed.bubble_fraction, timed.bubble_fraction_of_ideal
    idle = found.stages * timed.makespan_s - sum(busy)
    assert fractions == pytest.approx((idle / found.stages / timed.makespan_s, idle / sum(busy)))


def span_fraction(timed):
    """By the definition, from start and end times."""
    best = (-1.0, 0.0)
    for d in range(timed.order.stages):
        mine = timed.order.device == d
        span = timed.end_s[mine].max() - timed.start_s[mine].min()
        best = max(best, (span, -timed.duration_s[mine].sum()), key=lambda x: round(x[0], 9))
    return 1 + best[1] / best[0]


@given(orders())
@settings(max_examples=60, deadline=None)
def test_span_is_that_of_the_device_with_the_longest(case):
    found, _, times, _ = case
    timed = run(found, times)
    spans = [
        timed.end_s[found.device == d].max() - timed.start_s[found.device == d].min()
        for d in range(found.stages)
    ]
    if np.sum(np.isclose(spans, max(spans))) == 1:
        assert timed.bubble_fraction_of_span == pytest.approx(span_fraction(timed))


@given(orders())
@settings(max_examples=100, deadline=None)
def test_activations_equal_a_count_by_hand(case):
    found, lines, _, rng = case
    weight = rng.random(found.part.shape)
    by_hand = peaks(lines, lambda c, d: weight[c, d] / found.pieces)
    timed = run(found, Times(*[np.ones(found.part.shape)] * 3))
    np.testing.assert_allclose(timed.peak_held(weight), by_hand)
    share = found.stages / found.parts
    by_hand = peaks(lines, lambda c, d: share / found.pieces)
    np.testing.assert_allclose(timed.peak_activations, by_hand)


@given(orders())
@settings(max_examples=100, deadline=None)
def test_memory_over_time_equals_a_sum_over_micro_batches(case):
    """At random moments: what is between forward and backward, and between the halves of a backward."""
    found, _, times, rng = case
    timed = run(found, times)
    weight, later = rng.random((2, *found.part.shape))
    curves = timed.memory(weight, later)
    assert len(curves) == found.stages
    begun, half, over = {}, {}, {}
    for n, kind in enumerate(found.kind.tolist()):
        piece = 0 if found.piece is None else found.piece[n]
        key = found.device[n], found.chunk[n], found.micro_batch[n], piece
        if kind in (FORWARD, PAIR):
            begun[key] = timed.start_s[n]
        if kind == PAIR:
            other = found.device[n], found.other_chunk[n], found.other_micro_batch[n], 0
            half[other] = over[other] = timed.end_s[n]
        if kind in (BACKWARD, INPUT):
            half[key] = timed.end_s[n]
        if kind in (BACKWARD, WEIGHT):
            over[key] = timed.end_s[n]
    for device, (moments, held) in enumerate(curves):
        assert (held >= 0).all()
        assert held[-1] == 0
        assert (np.diff(moments) >= -1e-9).all()
        assert moments.size == 2 * (found.device == device).sum()
        for t in rng.random(5) * timed.makespan_s:
            expected = 0.0
            for key in begun:
                d, c = key[:2]
                if d == device and begun[key] <= t < half[key]:
                    expected += weight[c, d]
                elif d == device and half[key] <= t < over[key]:
                    expected += later[c, d]
            at = np.searchsorted(moments, t, side="right") - 1
            shown = held[at] if at >= 0 else 0.0
            assert shown * found.pieces == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(timed.peak_held(weight, later), [held.max() for _, held in curves])


@given(orders(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_many_sets_are_one_set_each(case, more):
    found, _, _, rng = case
    shape, boundaries = (more, 2, *found.part.shape), found.parts - 1
    values = {name: 0.1 + rng.random(shape) for name in ("forward", "backward_input", "backward_weight")}
    values |= {"pair": 0.1 + rng.random(found.part.shape), "recompute": rng.random((2, *found.part.shape))}
    values |= {"micro_batch": 0.5 + rng.random((more, 1, found.micro_batches)), "comm": rng.random((2, 1))}
    if boundaries:
        values["comm"] = rng.random((2, boundaries))
    whole = run(found, Times(**values))
    assert whole.end_s.shape == (more, 2, found.kind.size)
    assert whole.makespan_s.shape == whole.bubble_fraction_of_span.shape == (more, 2)
    for a in range(more):
        for b in range(2):
            one = {name: values[name][a, b] for name in ("forward", "backward_input", "backward_weight")}
            one |= {"pair": values["pair"], "recompute": values["recompute"][b], "comm": values["comm"][b]}
            single = run(found, Times(**one, micro_batch=values["micro_batch"][a, 0]))
            for name in (
                "end_s",
                "start_s",
                "busy_s",
                "makespan_s",
                "bubble_fraction",
                "bubble_fraction_of_span",
            ):
                np.testing.assert_allclose(
                    getattr(whole, name)[a, b], getattr(single, name), rtol=1e-12, atol=1e-12
                )


@given(orders(most_pieces=1))
@settings(max_examples=60, deadline=None)
def test_factors_of_micro_batches_equal_full_times(case):
    found, lines, times, rng = case
    factor = 0.5 + rng.random(found.micro_batches)
    scaled = {
        name: getattr(times, name) * factor[:, None, None]
        for name in ("forward", "backward_input", "backward_weight")
    }
    by_factor = run(
        found, Times(times.forward, times.backward_input, times.backward_weight, micro_batch=factor)
    )
    by_table = run(found, Times(**scaled, by_micro_batch=True))
    np.testing.assert_allclose(by_factor.end_s, by_table.end_s, rtol=1e-12)

    def of(letter, chunk, device, op):
        plain = time_of(times)
        if letter == "P":
            back = plain("B", op.other_chunk, device, op) * factor[op.other_micro_batch]
            return plain("F", chunk, device, op) * factor[op.micro_batch] + back
        return plain(letter, chunk, device, op) * factor[op.micro_batch]

    np.testing.assert_allclose(by_table.end_s, flat(evaluate(lines, found.part, of)[1]), rtol=1e-12)


def test_a_pair_of_uneven_micro_batches_keeps_its_saving():
    """F 1, B 2, together 2.4 instead of 3: four fifths; micro-batches of 1 and 2 times that take 0.8 (1 + 4)."""
    lines = [[Op(FORWARD, 1), Op(PAIR, 0, 0, 0, 1, 0), Op(BACKWARD, 0)]]
    found = from_lists("pair", lines, [[0]], 2)
    one = np.ones((1, 1))
    timed = run(found, Times(one, one, one, pair=2.4 * one, micro_batch=[1.0, 2.0]))
    assert timed.duration_s.tolist() == pytest.approx([2, 4, 2])


def test_recompute_runs_before_the_backward():
    lines = [[Op(FORWARD, 0), Op(INPUT, 0), Op(WEIGHT, 0), Op(FORWARD, 1), Op(BACKWARD, 1)]]
    found = from_lists("one", lines, [[0]], 2)
    one = np.ones((1, 1))
    timed = run(found, Times(one, 2 * one, 3 * one, recompute=0.5))
    assert timed.duration_s.tolist() == [1, 2.5, 3, 1, 5.5]
    marks = timed.marks()
    rows = sorted(zip(marks["start_s"], marks["end_s"], marks["kind"], strict=True))
    assert rows == [
        (0, 1, "forward"),
        (1, 1.5, "recompute"),
        (1.5, 3.5, "input gradient"),
        (3.5, 6.5, "weight gradient"),
        (6.5, 7.5, "forward"),
        (7.5, 8.0, "recompute"),
        (8.0, 13.0, "backward"),
    ]


def test_marks_and_trace_hold_every_operation_once():
    rng = np.random.default_rng(3)
    lines = draw_lines(rng, placement("both ways", 3), 4, pairs=0.9)
    found = from_lists("both ways", lines, placement("both ways", 3), 4)
    timed = run(found, Times(*[np.ones((2, 3))] * 3))
    marks = timed.marks()
    assert {len(column) for column in marks.values()} == {found.kind.size}
    events = [e for e in json.loads(json.dumps(timed.to_chrome_trace()))["traceEvents"] if e["ph"] == "X"]
    assert len(events) == found.kind.size
    assert "forward and backward" in {e["cat"] for e in events}
    assert {e["name"] for e in events if e["cat"] == "forward and backward"} == {
        found.describe(n).partition(" on ")[0] for n in np.flatnonzero(found.kind == PAIR)
    }


def test_communication_is_of_the_boundary_it_crosses():
    """Three stages, one micro-batch: each boundary is crossed forwards and backwards."""
    found = order("1f1b", 3, 1)
    one = np.ones((1, 3))
    assert run(found, Times(one, one, one, comm=[0.5, 10.0])).makespan_s == 9 + 2 * 10.5
    assert run(found, Times(one, one, one, comm=1.0)).makespan_s == 9 + 4


def test_no_communication_where_a_v_turns():
    """Parts 0 1 | 2 3 on devices 0 1 | 1 0: of three boundaries the middle one is inside device 1."""
    part = placement("V", 2)
    lines = [[Op(FORWARD, 0, 0), Op(FORWARD, 0, 1), Op(BACKWARD, 0, 1), Op(BACKWARD, 0, 0)] for _ in range(2)]
    one = np.ones((2, 2))
    found = from_lists("V", lines, part, 1)
    assert run(found, Times(one, one, one, comm=[1.0, 100.0, 7.0])).makespan_s == 4 + 8 + 2 * 8


def test_ends_of_the_model_take_more():
    part = placement("V", 2)
    one = np.ones((2, 2))
    times = Times(one, one, one).with_ends(part, embedding=(0.5, 0.0, 0.25), loss=(3.0, 2.0, 1.0))
    assert times.forward.tolist() == [[1.5, 1], [4, 1]]
    assert times.backward_input.tolist() == [[1, 1], [3, 1]]
    assert times.backward_weight.tolist() == [[1.25, 1], [2, 1]]


def test_of_stages_shares_a_stage_among_its_chunks():
    assert Times.of_stages(placement("V", 2), 1.0, [2.0, 4.0], 3.0, comm=0.5).backward_input.tolist() == [
        [1, 2],
        [1, 2],
    ]
    both_ways = Times.of_stages(placement("both ways", 2), 1.0, 2.0, 3.0, pair=5.0)
    assert both_ways.pair.tolist() == [[5, 5], [5, 5]]
    assert Times.of_stages(placement("V", 3), np.ones((7, 3)), 1.0, 1.0).sets == (7,)


def test_split_pairs_runs_the_forward_first():
    assert split_pairs([[Op(PAIR, 3, 1, 0, 2, 0), Op(WEIGHT, 1)]]) == [
        [Op(FORWARD, 3, 1), Op(BACKWARD, 2, 0), Op(WEIGHT, 1)]
    ]


@given(orders(most_pieces=1))
@settings(max_examples=60, deadline=None)
def test_split_pairs_run_as_long_as_without_overlap_or_less(case):
    """What waits for the forward half need not wait for the backward half."""
    found, lines, times, _ = case
    apart = from_lists("apart", split_pairs(lines), found.part, found.micro_batches)
    plain = Times(times.forward, times.backward_input, times.backward_weight, comm=times.comm)
    assert run(apart, plain).makespan_s <= run(found, plain).makespan_s + 1e-9
    assert not (apart.kind == PAIR).any()


def test_equals_simulate_by_name():
    rng = np.random.default_rng(0)
    forward, backward = 1 + rng.random((2, 2, 4))
    named = simulate("interleaved-1f1b", forward, backward, 8, 0.1)
    times = Times(forward, 0.25 * backward, 0.75 * backward, comm=0.1)
    np.testing.assert_allclose(run(order("interleaved-1f1b", 4, 8, 2), times).end_s, named.end_s)


def test_activations_of_another_shape_are_refused():
    timed = simulate("1f1b", np.ones((1, 3)), np.ones((1, 3)), 4)
    with pytest.raises(InputError, match="weight = "):
        timed.peak_held(np.ones((2, 3)))
    with pytest.raises(InputError, match="for_weights = "):
        timed.memory(np.ones((1, 3)), np.ones(3))


def test_chunkflows_example_of_uneven_sequences():
    """arXiv 2503.02356: four sequences on PP 4. Equal ones idle 3/7. Of lengths 4, 2, 1, 1 (our reading of its
    figure: the order that gives its rate) they idle 4/7. Its state-aware order is not in the text we read."""
    rows = {row["id"]: row["bubble_rate_pct"] for row in PUBLISHED if row["kind"] == "bubble_rate_pct"}
    one, found = np.ones((1, 4)), order("1f1b", 4, 4)
    for key, lengths, digits in (
        ("chunkflow_bubble_equal_length_1f1b", [2, 2, 2, 2], 0.06),
        ("chunkflow_bubble_1f1b_variable_length_example", [4, 2, 1, 1], 0.006),
    ):
        timed = run(found, Times(one, one, one, micro_batch=lengths))
        assert 100 * timed.bubble_fraction == pytest.approx(rows[key], abs=digits)


ONE = np.ones((1, 3))


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"forward": 0 * ONE}, ["forward"]),
        (
            {"forward": np.array([[1.0, -2.0, 1.0]]), "backward_weight": np.nan * ONE},
            ["forward", "backward_weight"],
        ),
        ({"backward_input": np.ones((1, 2))}, ["backward_input"]),
        ({"backward_input": np.ones(3)}, ["backward_input"]),
        ({"pair": np.inf * ONE}, ["pair"]),
        ({"comm": -0.1}, ["comm"]),
        ({"comm": [0.1, 0.1, 0.1]}, ["comm"]),
        ({"recompute": -ONE}, ["recompute"]),
        ({"micro_batch": np.ones(3)}, ["micro_batch"]),
        ({"micro_batch": np.zeros(4)}, ["micro_batch"]),
        ({"piece": [0.5, 0.5]}, ["piece"]),
        ({"by_micro_batch": True}, ["forward", "backward_input", "backward_weight"]),
        ({"forward": np.ones((2, 1, 3)), "backward_input": np.ones((5, 1, 3))}, ["times"]),
        ({"forward": np.broadcast_to(ONE, (10**8, 1, 3))}, ["times"]),
    ],
)
def test_times_that_do_not_fit_are_named(values, fields):
    usual = {"forward": ONE, "backward_input": ONE, "backward_weight": ONE}
    with pytest.raises(InputError) as caught:
        run(order("1f1b", 3, 4), Times(**usual | values))
    assert [problem.field for problem in caught.value.problems] == fields
    assert all(problem.suggestion.endswith(("work", "works")) for problem in caught.value.problems)
