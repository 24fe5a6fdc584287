"""Chapter 5 in a real page, offline: Run All, squares and triangles that follow sliders, nothing from outside.

Times are recorded in ``test-results/latency05.json``, not asserted: a busy machine is no fault of the code.
"""

import pytest
from pages import choose, clean, drawn, pace, record, redrawn

from telekit.ui.panels.chapter05 import mosaic_explorer

pytestmark = pytest.mark.browser

NAME = "05_attention_aware_data_scheduling.ipynb"


def test_a_batch_is_drawn_as_squares_and_triangles(chapter, panel):
    mosaic = panel("mosaic", "Equal tokens, unequal work")
    assert mosaic.locator("figcaption").all_inner_texts()[:2] == mosaic_explorer().titles
    squares = mosaic.locator(".telekit-chart").first.locator(".mark-rect path")
    assert squares.count() == 16
    triangles = mosaic.locator(".telekit-chart").first.locator(".mark-area path").count()
    assert triangles > 60
    choose(chapter, mosaic, "policy", "balanced")
    assert mosaic.locator("figcaption").all_inner_texts()[:2] == mosaic_explorer(policy="balanced").titles
    assert mosaic.locator(".telekit-chart").first.locator(".mark-area path").count() == triangles
    clean(chapter)


def test_a_slider_redraws_both_charts_and_its_latency_is_recorded(chapter, panel):
    mosaic = panel("mosaic", "Equal tokens, unequal work")
    record("latency05", {"mosaic": pace(chapter, mosaic, "hidden size")})
    clean(chapter)


def test_ranks_that_meet_in_layers_wait_in_them(chapter, panel):
    waits = panel("waiting", "Who waits for whom?")
    choose(chapter, waits, "ranks meet", "in every layer")
    assert "alike does best" in waits.locator("figcaption").nth(1).inner_text()
    assert waits.locator(".telekit-chart").nth(1).get_by_text("alike", exact=True).count() == 1
    clean(chapter)


def test_the_gain_follows_the_length(chapter, panel):
    matters = panel("matters", "When does it matter?")
    assert matters.get_by_text("TeleChat3-36B's layout", exact=True).count() == 1
    before = drawn(matters)
    matters.get_by_role("slider", name="sequence S").press("Home")
    redrawn(chapter, matters, before)
    assert "at 4,096 tokens" in matters.locator("figcaption").first.inner_text()
    clean(chapter)


def test_a_sample_is_split_in_four_ways(chapter, panel):
    context = panel("context", "One sample on several ranks")
    assert context.locator("figcaption").nth(1).inner_text().startswith("Balanced: rank-major;")
    choose(chapter, context, "documents", "one document")
    assert "per-sequence" in context.locator("figcaption").nth(1).inner_text().split(";")[0]
    clean(chapter)
