"""Chapter 2 in a real page, offline: Run All, errors and verdicts that follow a hand, a table of faults.

Times are recorded in ``test-results/latency02.json``, not asserted: a busy machine is no fault of the code.
"""

import pytest
from pages import captions, choose, clean, drawn, pace, record, redrawn

pytestmark = pytest.mark.browser

NAME = "02_operator_accuracy.ipynb"


def test_one_result_stands_before_every_standard(chapter, panel):
    one = panel("explorer", "One result, every standard")
    assert captions(one) == [
        "38% of this bf16 result is within 1e-3",
        "3 of 16 standards call it an error, though bf16 can do no better",
    ]
    verdicts = one.locator(".telekit-chart").nth(1)
    assert verdicts.locator(".mark-symbol.role-mark path").count() == 16
    choose(chapter, one, "dtype", "fp16")
    assert captions(one)[0] == "100% of this fp16 result is within 1e-3"
    choose(chapter, one, "fault", "all 1 % too large")
    assert captions(one)[1] == "13 of 16 standards see that it is 1.0% too large"
    choose(chapter, one, "fault", "none")
    choose(chapter, one, "dtype", "bf16")
    clean(chapter)


def test_sliders_redraw_both_charts_and_their_latency_is_recorded(chapter, panel):
    one = panel("explorer", "One result, every standard")
    one.get_by_role("slider", name="terms").press("Home")
    record("latency02", {"terms": pace(chapter, one, "terms")})
    clean(chapter)


def test_errors_grow_and_a_wider_sum_stops_it(chapter, panel):
    growth = panel("growth", "How does it grow?")
    assert captions(growth)[0].endswith("11.0-fold error one after another, 1.7-fold as a tree")
    choose(chapter, growth, "sums in", "fp32")
    assert captions(growth)[0].endswith("1.0-fold error one after another, 1.0-fold as a tree")
    clean(chapter)


def test_faults_stand_in_a_table(chapter, panel):
    faults = panel("faults", "Who sees the fault?")
    assert captions(faults)[0].startswith("No check is right on all 10 cases")
    assert faults.locator(".mark-rect.role-mark path").count() == 10 * 21 + 21
    before = drawn(faults)
    faults.get_by_role("slider", name="too large by").press("End")
    redrawn(chapter, faults, before)
    faults.get_by_text("right on all 10 cases").wait_for()
    clean(chapter)
