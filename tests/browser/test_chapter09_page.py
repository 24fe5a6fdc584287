"""Chapter 9 in a real page, offline: past the knee, ranks aligned, over the threshold, many devices, planted faults."""

import pytest
from pages import captions, choose, clean, drawn, pace, record, redrawn

pytestmark = pytest.mark.browser

NAME = "09_cluster_optimization.ipynb"


def test_a_slider_moves_the_job_past_the_knee(chapter, panel):
    bound = panel("explorer", "Host-bound or device-bound")
    assert captions(bound)[1].startswith("Device-bound")
    before = drawn(bound)
    bound.get_by_role("slider", name="launch [µs]", exact=True).press("End")
    redrawn(chapter, bound, before)
    assert captions(bound)[1].startswith("Host-bound")
    assert captions(bound)[0].startswith("The device idles 60%")
    clean(chapter)


def test_ranks_line_up_and_a_fault_is_named_with_its_evidence(chapter, panel):
    ranks = panel("ranks", "Ranks beside each other")
    assert ranks.locator(".telekit-chart").first.locator(".mark-rect path").count() > 300
    assert "seem up to" in captions(ranks)[0]
    ranks.get_by_role("combobox", name="clocks", exact=True).select_option("aligned")
    ranks.get_by_text("leave a collective within").wait_for()
    choose(chapter, ranks, "planted", "slow-link")
    ranks.get_by_text("Verdict: slow link").first.wait_for()  # the text may come after the charts
    ranks.get_by_text("transfers of group").first.wait_for()
    clean(chapter)


def test_waiting_over_the_threshold_costs_more_and_its_latency_is_recorded(chapter, panel):
    idle = panel("idle", "The idle-frequency trap")
    assert captions(idle)[1].startswith("The wait is below")
    record("latency09", {"wait": pace(chapter, idle, "wait [µs]")})
    before = drawn(idle)
    idle.get_by_role("slider", name="wait [µs]", exact=True).press("End")
    redrawn(chapter, idle, before)
    assert captions(idle)[1].startswith("Each wait of 1,000 µs costs")
    clean(chapter)


def test_more_devices_lose_more(chapter, panel):
    slowest = panel("slowest", "The slowest of many")
    assert captions(slowest)[0].startswith("4,096 devices lose 1.8% to normal jitter")
    slowest.get_by_role("slider", name="jitter [%]", exact=True).press("End")
    slowest.get_by_text("4,096 devices lose 10.9% to normal jitter").wait_for()
    clean(chapter)


def test_planted_faults_and_their_answers_are_a_matrix(chapter, panel):
    confusion = panel("confusion", "Planted and found")
    assert confusion.locator(".telekit-chart").first.locator(".mark-rect path").count() >= 20
    choose(chapter, confusion, "show", "wrong answers")
    assert "named wrongly" in captions(confusion)[0]
    clean(chapter)
