"""The design problem: a layout is judged by the estimate and by the planner, with its own words."""

import pytest

import telekit
from telekit.exercises import planning

JOB = telekit.load_job(
    {
        "model": "mixtral-8x7b",
        "cluster": {"device": "h100", "devices": 64},
        "train": {"seq_len": 4096, "global_batch": 512},
    }
)


def test_silence_is_neither_right_nor_wrong():
    assert planning.layout(None, JOB).ok is None


def test_a_broken_layout_hears_every_rule():
    feedback = planning.layout({"tp": 3, "ep": 5}, JOB)
    assert (
        feedback.ok is False and "layout.tp = 3" in feedback.message and "layout.ep = 5" in feedback.message
    )


def test_an_unknown_field_is_said():
    assert "layout.tpp" in planning.layout({"tpp": 2}, JOB).message


def test_one_that_does_not_fit_hears_by_how_much():
    over = planning.estimated({"tp": 1}, JOB)
    feedback = planning.layout({"tp": 1}, JOB)
    gib = (over.peak_bytes - over.capacity_bytes) / 2**30
    assert feedback.ok is False and f"misses {gib:.1f} GiB" in feedback.message


def test_speed_is_compared_with_the_planner():
    best = telekit.plan(JOB, top=1, time_limit_s=2).best
    mine = planning.estimated({"tp": 8, "ep": 8}, JOB)
    ratio = mine.step_time_s / best.step_time_s
    assert ratio > 1.1  # eight-way tensor parallelism of a model this small costs more than it gives
    said = planning.layout({"tp": 8, "ep": 8}, JOB, time_limit_s=2)
    assert said.ok is False and "times the planner's best" in said.message
    assert planning.layout({"tp": 8, "ep": 8}, JOB, within=1.05 * ratio, time_limit_s=2).ok


@pytest.mark.parametrize("layout", [{"pp": 2, "vpp": 4, "ep": 8}, {"pp": 2, "ep": 8}])
def test_a_good_layout_passes(layout):
    assert planning.layout(layout, JOB, time_limit_s=2).ok
