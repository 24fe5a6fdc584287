"""A step of unequal micro-batches: sums, closed forms and brute force as oracles."""

import tracemalloc
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.layout.config import ParallelConfig
from telekit.packing import ordering, timing
from telekit.packing.step import Plan, order_micro_batches, run_step, simulate
from telekit.pipeline.order import INPUT, PAIR, WEIGHT

TIMES = st.floats(0.1, 100.0)


def by_hand(forward, backward):
    """End of 1F1B, one micro-batch after the other, by its dependencies: written out, no shared code."""
    count, stages = forward.shape
    end = {}
    free = [0.0] * stages
    lists = []
    for s in range(stages):
        lead = min(stages - 1 - s, count)
        ops = [("f", k) for k in range(lead)]
        for k in range(count - lead):
            ops += [("f", k + lead), ("b", k)]
        lists.append(ops + [("b", k) for k in range(count - lead, count)])
    at = [0] * stages
    while any(at[s] < len(lists[s]) for s in range(stages)):
        for s in range(stages):
            if at[s] == len(lists[s]):
                continue
            kind, k = lists[s][at[s]]
            if kind == "f":
                needs = [("f", k, s - 1)] if s else []
            else:
                needs = [("b", k, s + 1)] if s + 1 < stages else [("f", k, s)]
            if all(need in end for need in needs):
                start = max([free[s], *(end[need] for need in needs)])
                free[s] = end[kind, k, s] = start + (forward if kind == "f" else backward)[k, s]
                at[s] += 1
    return max(free)


def test_one_stage_is_a_sum_and_a_maximum():
    forward = np.array([[1.0, 2.0, 3.0], [4.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    found = run_step(forward, 2 * forward, Plan(fixed_s=5.0))
    assert found.step_s == 18 + 5
    np.testing.assert_array_equal(found.busy_s, [18, 18, 9])
    np.testing.assert_array_equal(found.reduce_wait_s, [0, 0, 9])
    np.testing.assert_array_equal(found.bubble_s, 0)
    assert found.imbalance == pytest.approx(18 / 15)


def test_meeting_in_layers_is_the_sum_of_maxima():
    forward = np.array([[1.0, 2.0, 3.0], [4.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 5.0, 1.0]])
    found = run_step(forward, forward, Plan(meets="layer"))
    assert found.step_s == 2 * (4 + 5 + 3)
    np.testing.assert_array_equal(found.layer_wait_s, 24 - found.busy_s)
    pairs = run_step(forward, forward, Plan(meets="layer", group=2))
    assert pairs.step_s == 2 * max(4 + 2 + 3, 1 + 5 + 1)
    np.testing.assert_array_equal(pairs.reduce_wait_s, [0, 0, 4, 4])


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 4), (3, 7), (4, 2)])
def test_a_pipeline_of_unequal_micro_batches_ends_as_written_out(stages, count):
    rng = np.random.default_rng(stages * count)
    forward, backward = rng.uniform(1, 5, (2, 3, count, stages))
    found = run_step(forward[..., None, :], backward[..., None, :], Plan(stages), by_part=True)
    ends = [by_hand(f, b) for f, b in zip(forward, backward, strict=True)]
    assert found.step_s == pytest.approx(max(ends), rel=1e-12)
    np.testing.assert_allclose(found.reduce_wait_s, max(ends) - np.array(ends), atol=1e-9)


@pytest.mark.parametrize(
    ("schedule", "stages", "chunks", "count"), [("1f1b", 4, 1, 8), ("interleaved-1f1b", 4, 2, 8)]
)
def test_equal_micro_batches_give_the_closed_form(schedule, stages, chunks, count):
    found = run_step(np.full((2, count), 1.0), np.full((2, count), 2.0), Plan(stages, chunks, schedule))
    assert found.step_s == pytest.approx(3 * (count + (stages - 1) / chunks))
    np.testing.assert_allclose(found.bubble_s, 3 * (stages - 1) / chunks)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(TIMES, min_size=4, max_size=4), min_size=2, max_size=4),
    st.sampled_from(["gradients", "layer"]),
    st.sampled_from([(1, 1, "1f1b"), (3, 1, "1f1b"), (2, 2, "interleaved-1f1b")]),
)
def test_each_ranks_times_fill_the_step(rows, meets, pipeline):
    forward = np.array(rows)
    found = run_step(forward, 1.5 * forward, Plan(*pipeline, fixed_s=0.25, meets=meets))
    for part in (found.layer_wait_s, found.bubble_s, found.reduce_wait_s):
        assert (part >= -1e-9).all()
    np.testing.assert_allclose(found.busy_s + found.waiting_s + 0.25, found.step_s)
    np.testing.assert_allclose(found.busy_s, 2.5 * forward.sum(axis=1))
    alone = run_step(forward, 1.5 * forward, Plan(*pipeline, fixed_s=0.25))
    assert found.step_s >= alone.step_s * (1 - 1e-12)  # meeting more often never helps


def test_many_steps_at_once_are_the_same_as_one_by_one():
    forward = np.random.default_rng(1).uniform(1, 3, (5, 3, 4))
    plan = Plan(4, comm_s=0.1)  # as many micro-batches as stages: axes must not be mistaken
    together = run_step(forward, forward, plan)
    assert together.step_s.shape == (5,)
    np.testing.assert_array_equal(together.step_s, [run_step(f, f, plan).step_s for f in forward])


@pytest.mark.parametrize("plan", [Plan(2), Plan(4), Plan(2, 2, "interleaved-1f1b")])
def test_the_order_found_is_near_the_best_of_all(plan):
    rng = np.random.default_rng(plan.stages)
    count = 6 if plan.chunks == 1 else 4
    forward = rng.uniform(1, 8, (20, count))
    found = order_micro_batches(forward, 2 * forward, plan)
    np.testing.assert_array_equal(np.sort(found, axis=-1), np.tile(np.arange(count), (20, 1)))
    ratios = []
    every = np.array(list(permutations(range(count))))
    for row, order in zip(forward, found, strict=True):
        tried = row[every][:, None]
        best = run_step(tried, 2 * tried, plan).step_s.min()
        own = row[order][None]
        ratios.append(run_step(own, 2 * own, plan).step_s / best)
        assert run_step(own, 2 * own, plan).step_s <= run_step(row[None], 2 * row[None], plan).step_s * (
            1 + 1e-12
        )
    assert min(ratios) >= 1 - 1e-12
    assert np.mean(ratios) < 1.005
    assert max(ratios) < 1.05


def test_dualpipe_runs_the_same_parts_from_both_ends():
    forward = np.array([[1.0, 2.0, 1.5, 1.0, 1.0, 2.0, 3.0, 1.0]])
    plan = Plan(4, 1, "dualpipe")
    whole = run_step(forward, forward, plan)
    parts = run_step(*[np.tile(forward[..., None, None], (1, 1, 1, 4))] * 2, plan, by_part=True)
    assert whole.step_s == parts.step_s >= 2 * forward.sum()


def test_a_group_that_meets_in_layers_takes_one_order():
    forward = np.random.default_rng(3).uniform(1, 8, (4, 6))
    plan = Plan(3, meets="layer", group=2)
    order = order_micro_batches(forward, forward, plan)
    np.testing.assert_array_equal(order[0], order[1])
    np.testing.assert_array_equal(order[2], order[3])
    before, after = (
        run_step(x, x, plan).step_s for x in (forward, np.take_along_axis(forward, order, axis=-1))
    )
    assert after <= before


def test_a_layout_says_where_ranks_meet():
    dense = Plan.of(ParallelConfig(tp=8, pp=2, dp=16, schedule="1f1b"))
    assert (dense.meets, dense.group) == ("gradients", None)
    assert "once a step" in dense.why
    experts = Plan.of(ParallelConfig(tp=2, pp=2, dp=32, ep=16, schedule="1f1b"))
    assert (experts.meets, experts.group) == ("layer", 8)
    assert "8 ranks" in experts.why
    folded = Plan.of(ParallelConfig(tp=8, cp=2, pp=2, dp=32, ep=16))
    assert folded.meets == "gradients"  # the expert group lies inside one data-parallel rank
    assert Plan.of(ParallelConfig(vpp=1, schedule="zb-h1")).schedule == "1f1b"


@pytest.mark.parametrize(
    ("forward", "plan", "says"),
    [
        ([1.0, 2.0], Plan(), "forward_s"),
        ([[1.0, 0.0]], Plan(), r"at \(0, 1\)"),
        ([[1.0, np.nan]], Plan(), "must be a positive time"),
        ([[1.0]] * 6, Plan(meets="layer", group=4), "must divide the 6"),
        ([[1.0, 1.0, 1.0]], Plan(2, 2, "interleaved-1f1b"), "micro_batches"),
    ],
)
def test_bad_input_is_named(forward, plan, says):
    with pytest.raises(InputError, match=says):
        run_step(forward, forward, plan)


def test_both_passes_have_one_shape_and_all_faults_are_named():
    with pytest.raises(InputError, match="forward_s's shape"):
        run_step([[1.0, 1.0]], [[1.0]])
    with pytest.raises(InputError) as fault:
        run_step([[-1.0]], [1.0])
    assert [p.field for p in fault.value.problems] == ["forward_s", "backward_s"]
    with pytest.raises(InputError, match="3 stages"):
        run_step(np.ones((2, 4, 1, 2)), np.ones((2, 4, 1, 2)), Plan(3), by_part=True)


def test_a_pair_takes_its_share_of_the_two_micro_batches_that_meet():
    rng = np.random.default_rng(5)
    forward, backward = rng.uniform(1, 5, (2, 8, 1, 4))
    share = rng.uniform(0.5, 0.9, (1, 4))
    found = simulate(forward, backward, Plan(4, 1, "dualpipe", pair_share=share, weight_share=0.25))
    order, seconds = found.order, found.duration_s
    part = order.part[order.chunk, order.device]
    pairs = np.flatnonzero(order.kind == PAIR)
    assert pairs.size
    for i in pairs:
        other = order.other_micro_batch[i], 0, order.part[order.other_chunk[i], order.device[i]]
        mine = order.micro_batch[i], 0, part[i]
        same = order.micro_batch[i], *other[1:]
        alone = forward[mine] + backward[mine]
        ratio = (forward[mine] + backward[other]) / (forward[mine] + backward[same])
        assert seconds[i] == pytest.approx(share[0, part[i]] * alone * ratio)
    for kind, expected in ((WEIGHT, 0.25 * backward), (INPUT, 0.75 * backward)):
        at = np.flatnonzero(order.kind == kind)
        np.testing.assert_allclose(seconds[at], expected[order.micro_batch[at], 0, part[at]])


def test_a_level_scales_the_pipeline_and_not_what_is_computed():
    forward = np.random.default_rng(6).uniform(1, 3, (2, 6))
    plain, scaled = (run_step(forward, forward, Plan(3, level=level, fixed_s=1.0)) for level in (1.0, 1.5))
    assert scaled.step_s - 1 == pytest.approx(1.5 * (plain.step_s - 1))
    np.testing.assert_array_equal(scaled.busy_s, plain.busy_s)


def test_what_is_timed_at_once_changes_nothing(monkeypatch):
    forward = np.random.default_rng(7).uniform(1, 8, (12, 9))
    plan = Plan(4, 1, "zb-h1")
    whole, order = run_step(forward, forward, plan), order_micro_batches(forward, forward, plan)
    monkeypatch.setattr(timing, "AT_ONCE", 1)
    monkeypatch.setattr(ordering, "AT_ONCE", 1)
    np.testing.assert_array_equal(run_step(forward, forward, plan).waiting_s, whole.waiting_s)
    np.testing.assert_array_equal(order_micro_batches(forward, forward, plan), order)


def test_effort_goes_to_the_slowest_ranks_first(monkeypatch):
    forward = np.random.default_rng(8).uniform(1, 8, (10, 7))
    plan = Plan(4)
    full = order_micro_batches(forward, forward, plan)
    rules = order_micro_batches(forward, forward, plan, exchanges=False)
    ends = [
        run_step(*[np.take_along_axis(forward, rules, axis=1)[r : r + 1]] * 2, plan).step_s for r in range(10)
    ]
    slowest = int(np.argmax(ends))
    assert (full[slowest] != rules[slowest]).any()
    monkeypatch.setattr(ordering, "EFFORT", 21 * timing.operations(plan, 7))  # one rank's round
    one = order_micro_batches(forward, forward, plan)
    changed = np.flatnonzero((one != rules).any(axis=1))
    np.testing.assert_array_equal(changed, [slowest])


def test_a_large_layout_is_ordered_in_little_memory(monkeypatch):
    monkeypatch.setattr(ordering, "EFFORT", 2**22)
    rng = np.random.default_rng(9)
    forward = np.broadcast_to(rng.uniform(1, 2, (128, 120))[..., None, None], (128, 120, 1, 16))
    plan = Plan(16, 1, "dualpipe", meets="layer", group=64, pair_share=0.8)
    tracemalloc.start()
    try:
        order = order_micro_batches(forward, forward, plan, by_part=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert order.shape == (128, 120)
    assert peak < 2**28
    assert (order[:64] == order[0]).all()


def test_waiting_in_layers_counts_what_pairs_hide():
    forward = np.random.default_rng(10).uniform(1, 3, (2, 8))
    plan = Plan(2, 1, "dualpipe", meets="layer", pair_share=0.7)
    found = run_step(forward, forward, plan)
    alone = [run_step(forward[r : r + 1], forward[r : r + 1], plan) for r in (0, 1)]
    np.testing.assert_allclose(found.busy_s, [float(x.busy_s[0]) for x in alone])
    assert (found.busy_s < 2 * forward.sum(axis=1)).all()
    assert (found.layer_wait_s > 0).all()
    np.testing.assert_allclose(found.busy_s + found.waiting_s, found.step_s)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"meets": "never"}, "meets"),
        ({"group": 1.0, "meets": "layer"}, "group"),
        ({"fixed_s": float("nan")}, "fixed_s"),
        ({"fixed_s": -1.0}, "fixed_s"),
        ({"comm_s": "soon"}, "comm_s"),
        ({"chunks": 0}, "chunks"),
        ({"stages": True}, "stages"),
        ({"schedule": "none"}, "schedule"),
        ({"schedule": ["1f1b"]}, "schedule"),
        ({"weight_share": 1.0}, "weight_share"),
        ({"pair_share": [[0.0]]}, "pair_share"),
        ({"pair_share": [[0.5], [0.5, 1]]}, "pair_share"),
        ({"level": [1.0]}, "level"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong, field):
    with pytest.raises(InputError) as fault:
        Plan(**wrong)
    assert [p.field for p in fault.value.problems] == [field]


def test_times_that_are_none_are_refused():
    for forward in ("a", [[1.0], [1.0, 2.0]], None, [["1.0"]], [[1j]]):
        with pytest.raises(InputError, match="forward_s"):
            run_step(forward, [[1.0]])
    with pytest.raises(InputError, match="weight_share"):
        run_step([[1.0]], [[1.0]], Plan(weight_share=((0.5, 0.5),)))
