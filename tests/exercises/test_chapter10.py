"""Tasks of chapter 10: right answers from first principles, and a design with few answers."""

import math
from itertools import product

import pytest

from telekit.errors import InputError
from telekit.exercises import chapter10 as tasks

CHECKS = [
    tasks.kept_speed,
    tasks.bubble_of_a_large_batch,
    tasks.slow_machines,
    tasks.time_to_recover,
    tasks.best_interval,
    tasks.run_plan,
]


@pytest.mark.parametrize("check", CHECKS)
def test_silence_is_neither_right_nor_wrong(check):
    assert check(None).ok is None


def test_right_answers_by_hand():
    assert tasks.kept_speed(100 * 1466.8 / (4 * 433.6)).ok
    p, v, m, micro_batch_s = 8, 6, 12, 1.0  # any: one step of 4 m micro-batches against four steps of m
    idle = (p - 1) / v * micro_batch_s
    assert tasks.bubble_of_a_large_batch(100 * (1 - idle / (4 * idle))).ok and m
    none_slow = math.prod([0.995] * 64)
    assert tasks.slow_machines(10 * (1 - none_slow)).ok
    mtbf = 54 * 24 * 60 / 419
    down = 4.41
    assert 30 / ((mtbf + down) * math.expm1(30 / mtbf)) == pytest.approx(0.9, abs=1e-4)
    assert tasks.time_to_recover(down).ok


@pytest.mark.parametrize("minutes", [31, 31.7, 33])
def test_exact_and_youngs_interval_both_pass(minutes):
    assert tasks.best_interval(minutes).ok


def test_the_papers_number_is_open_and_follows_from_neither():
    assert tasks.bubble_of_a_large_batch(87.5).ok is False
    assert tasks.bubble_of_a_large_batch(93.75).ok is False


def test_the_cheapest_plan_is_the_best_of_all():
    best = tasks.cheapest()
    assert best.run.days <= tasks.DAYS
    for devices, batch, minutes in product(tasks.DEVICES, tasks.BATCHES, (5, 10, 20, 30, 40, 60, 120)):
        try:
            plan = tasks.planned(devices, batch, minutes)
        except InputError:
            continue
        if batch <= tasks.LARGEST_BATCH and plan.run.days <= tasks.DAYS:
            assert plan.run.device_hours >= best.run.device_hours * (1 - 1e-12)


def test_one_pair_of_devices_and_batch_is_right():
    right = {
        (devices, batch)
        for devices, batch in product(tasks.DEVICES, tasks.BATCHES)
        if tasks.run_plan({"devices": devices, "global_batch": batch, "interval_min": 30}).ok
    }
    assert right == {(3072, 3072)}
    assert tasks.cheapest().interval_min == pytest.approx(math.sqrt(2 * 0.5 * 50_000 * 60 / 3072), rel=0.02)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (7, "Write devices, global_batch and interval_min"),
        ({"devices": 1000, "global_batch": 768, "interval_min": 30}, "devices is one of"),
        ({"devices": True, "global_batch": 768, "interval_min": 30}, "devices is one of"),
        ({"devices": [1024], "global_batch": 768, "interval_min": 30}, "devices is one of"),
        ({"devices": 1024, "global_batch": 768, "interval_min": "often"}, "number of minutes"),
        ({"devices": 1024, "global_batch": 768, "interval_min": 0.5}, "longer than the stall"),
    ],
)
def test_a_strange_plan_hears_what_is_wrong_with_it(answer, said):
    feedback = tasks.run_plan(answer)
    assert feedback.ok is False and said in feedback.message
