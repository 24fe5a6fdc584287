"""Tasks of chapter 9: right answers by hand, slips that are named, and a design with few answers."""

import math
from itertools import product

import numpy as np
import pytest

from telekit.exercises import chapter09 as tasks

CHECKS = [
    tasks.slow_rank,
    tasks.operators_left,
    tasks.slowest_of_many,
    tasks.windows_until_alert,
    tasks.flow_at_fault,
    tasks.quiet_cluster,
]


@pytest.mark.parametrize("check", CHECKS)
def test_silence_is_neither_right_nor_wrong(check):
    assert check(None).ok is None


def test_the_slow_rank_is_the_planted_one():
    planted = tasks.generate(tasks.SLOW[0], tasks.TracedJob.of(8), tasks.SLOW[1]).truth().ranks
    verdicts = {rank: tasks.slow_rank(rank).ok for rank in range(8)}
    assert verdicts == {rank: rank in planted for rank in range(8)} and len(planted) == 1
    assert tasks.slow_rank(str(planted[0])).ok
    assert "for somebody else" in tasks.slow_rank(0).message
    assert "kernels take longest" in tasks.slow_rank(3).message
    for odd in (8, -1, True, "rank 2", [2]):
        assert "write one of the ranks 0 to 7" in tasks.slow_rank(odd).message


def test_operators_left_by_hand():
    """18 ms of kernels at 12 µs a launch."""
    assert tasks.operators_left(18_000 / 12).ok
    assert "must go" in tasks.operators_left(500).message


def test_the_slowest_of_4096_by_simulation():
    draws = np.random.default_rng(1).standard_normal((400, tasks.DEVICES)).max(axis=1).mean()
    assert tasks.slowest_of_many(round(0.5 * draws, 2)).ok
    assert "overstates" in tasks.slowest_of_many(0.5 * math.sqrt(2 * math.log(4096))).message


def test_windows_by_counting():
    """The window that begins at 4 k seconds ends at 4 k + 8: the first that ends at 240 or later."""
    k = next(k for k in range(1000) if 4 * k + 8 >= 240)
    assert tasks.windows_until_alert(k + 1).ok
    for near in (k, k + 2):
        assert tasks.windows_until_alert(near).ok is False


def test_the_flow_at_fault_by_the_table():
    rows = tasks.ring_of_flows()
    source, receiver, counters = min(rows, key=lambda row: row[2].done)
    assert counters.ready == counters.transmitted > counters.done, "sent and not delivered"
    assert tasks.flow_at_fault({"rank": source, "cause": "Not delivered"}).ok
    assert "the receiver" in tasks.flow_at_fault({"rank": receiver, "cause": "not delivered"}).message
    assert "table has" in tasks.flow_at_fault({"rank": source, "cause": "bad luck"}).message
    assert "Write {" in tasks.flow_at_fault({"rank": source}).message


def test_losses_by_hand():
    """One second, unaligned: of 512 nodes one always takes a second burst; aligned, 1.2 bursts in the mean."""
    apart, at_once = tasks.loss_of(1.0, False, 0.4), tasks.loss_of(1.0, True, 0.4)
    assert apart.monitor == pytest.approx(2 * 6e-3 / 1.2) and at_once.monitor == pytest.approx(
        1.2 * 6e-3 / 1.2
    )
    assert at_once.slowest == pytest.approx(0.001 * 3.63, rel=0.01)
    issue_s = 0.7 * 24e-6 + 0.3 * 1e-6
    assert tasks.loss_of(1.0, True, 0.3).host == pytest.approx(issue_s / 15e-6 - 1, rel=1e-3)
    rare = tasks.loss_of(60.0, False, 0.4)
    assert rare.monitor == pytest.approx(6e-3 / 1.2, rel=1e-3), "some node is hit in every step all the same"


def test_few_plans_pass_and_each_choice_matters():
    tried = {
        plan: bool(tasks.quiet_cluster(dict(zip(tasks.FIELDS, plan, strict=True))))
        for plan in product((0.5, 1.0, 2.0, 60.0), (True, False), (0.0, 0.2, 0.4, 0.5, 0.6, 1.0))
    }
    assert {plan for plan, ok in tried.items() if ok} == {(1.0, True, 0.4), (1.0, True, 0.5)}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"period_s": 60, "together": False, "captured": 0.4}, "too rare"),
        ({"period_s": 1, "together": True, "captured": 1.0}, "whose shapes change"),
        ({"period_s": 1, "together": False, "captured": 0.4}, "it loses 1.36%"),
        ({"period_s": 1, "together": True}, "Write period_s"),
        ({"period_s": 0, "together": True, "captured": 0.4}, "period_s is a number"),
        ({"period_s": float("nan"), "together": True, "captured": 0.4}, "period_s is a number"),
        ({"period_s": 1, "together": 1, "captured": 0.4}, "True or False"),
        (7, "Write period_s"),
    ],
)
def test_a_plan_hears_what_it_misses(plan, said):
    verdict = tasks.quiet_cluster(plan)
    assert verdict.ok is False and said in verdict.message
