from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from order_cases import orders

from telekit.pipeline.bubbles import bubbles
from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times


@given(orders())
@settings(max_examples=80, deadline=None)
def test_causes_sum_to_the_idle_time_of_each_device(case):
    found, _, times, rng = case
    times = replace(
        times,
        recompute=rng.random(found.part.shape),
        micro_batch=0.5 + rng.random((3, found.micro_batches)),
        piece=rng.dirichlet(np.full(found.pieces, 5.0)),
    )
    timed = run(found, times)
    split = bubbles(timed)
    assert split.total.shape == (3, found.stages)
    idle = [
        timed.makespan_s - timed.duration_s[:, found.device == d].sum(axis=1) for d in range(found.stages)
    ]
    np.testing.assert_allclose(split.total, np.transpose(idle), atol=1e-9)
    assert (split.communication >= -1e-9).all()  # less waiting never makes a fixed order longer
    assert (split.warm_up >= -1e-9).all()
    assert (split.drain >= -1e-9).all()
    assert (split.gaps >= -1e-9).all()


def test_causes_of_1f1b_one_by_one():
    """p 4, m 8, F 1, B 2: device s starts after s, ends s B before the end, and waits (p - 1 - s) 3 in between."""
    one, found = np.ones((1, 4)), order("1f1b", 4, 8)
    plain = bubbles(run(found, Times(one, one, one)))
    assert plain.warm_up.tolist() == [0, 1, 2, 3]
    assert plain.drain.tolist() == [0, 2, 4, 6]
    assert plain.gaps.tolist() == [9, 6, 3, 0]
    assert plain.ideal.tolist() == [9] * 4
    for cause in (plain.communication, plain.recompute, plain.uneven_micro_batches, plain.imbalance):
        assert cause.tolist() == [0] * 4


def test_communication_of_gpipe_is_its_way_there_and_back():
    one, found = np.ones((1, 4)), order("gpipe", 4, 8)
    split = bubbles(run(found, Times(one, one, one, comm=0.25)))
    np.testing.assert_allclose(split.communication, 2 * 3 * 0.25)
    np.testing.assert_allclose(split.ideal, 9)


def test_a_slow_stage_makes_the_others_wait():
    """GPipe, stages of 3, 3, 3 and 6: 9 m of the slow one, and the way; even stages would take 3.75 each."""
    one, found = np.array([[1.0, 1.0, 1.0, 2.0]]), order("gpipe", 4, 8)
    split = bubbles(run(found, Times(one, one, one)))
    makespan, even = 3 * 3 + 8 * 6, (8 + 3) * 3.75
    expected = [makespan - even - 8 * (own - 3.75) for own in (3, 3, 3, 6)]
    np.testing.assert_allclose(split.imbalance, expected)
    assert expected[3] < 0 < expected[0]


def test_recompute_makes_others_wait_and_is_work_itself():
    """GPipe: each of p - 1 devices that a device waits for takes 1 more in the drain; the rest is work."""
    one, found = np.ones((1, 4)), order("gpipe", 4, 8)
    timed = run(found, Times(one, one, one, recompute=1.0))
    split = bubbles(timed)
    assert split.recompute.tolist() == pytest.approx([3] * 4)
    assert timed.busy_s.tolist() == [8 * 4] * 4


def test_one_long_micro_batch_makes_all_devices_wait():
    """GPipe, p 3, F 1, B 2, micro-batches of 1 and 3 times that: forwards end at 10 and backwards 20 later,
    for the long one comes last; of 2 times each, 4 rounds of 6."""
    one, found = np.ones((1, 3)), order("gpipe", 3, 2)
    timed = run(found, Times(one, one, one, micro_batch=[1.0, 3.0]))
    assert timed.makespan_s == 30
    np.testing.assert_allclose(bubbles(timed).uneven_micro_batches, 30 - 24)
