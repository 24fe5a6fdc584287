"""Chapter 5 in a real page, offline: Run All, squares and triangles that follow sliders, nothing from outside.

Times are recorded in ``test-results/latency05.json``, not asserted: a busy machine is no fault of the code.
"""

import json
import statistics
from pathlib import Path

import pytest
from pages import clean, drawn, redrawn

pytestmark = pytest.mark.browser

RESULTS = Path(__file__).parents[2] / "test-results"
NAME = "05_attention_aware_data_scheduling.ipynb"
MOVES = 10
# from the key press to the moment when both charts of the first panel show the new rows
CLOCK = """(panel) => {
    window.latency = [];
    if (window.clocked) return;
    window.clocked = true; let pressed = null, left = 0;
    document.addEventListener('keydown', () => { pressed = performance.now(); left = 2; }, true);
    for (const figure of panel.querySelectorAll('.telekit-chart')) new MutationObserver(() => {
        if (pressed !== null && --left === 0) window.latency.push(performance.now() - pressed);
    }).observe(figure, { attributes: true, attributeFilter: ['data-drawn'] });
}"""


def choose(chapter, panel, control, option):
    before = drawn(panel)
    panel.get_by_role("combobox", name=control, exact=True).select_option(option)
    redrawn(chapter, panel, before)


def test_a_batch_is_drawn_as_squares_and_triangles(chapter, panel):
    mosaic = panel("mosaic", "Equal tokens, unequal work")
    left, right = mosaic.locator("figcaption").all_inner_texts()[:2]
    assert left == "The heaviest sample takes 2.05 × the lightest"
    assert right == "A rank waits 28.4% of the step"
    squares = mosaic.locator(".telekit-chart").first.locator(".mark-rect path")
    assert squares.count() == 16
    triangles = mosaic.locator(".telekit-chart").first.locator(".mark-area path").count()
    assert triangles > 60
    choose(chapter, mosaic, "policy", "balanced")
    assert mosaic.locator("figcaption").nth(1).inner_text() == "A rank waits 28.4%, balanced 0.4%"
    assert mosaic.locator(".telekit-chart").first.locator(".mark-area path").count() == triangles
    clean(chapter)


def test_a_slider_redraws_both_charts_and_its_latency_is_recorded(chapter, panel):
    mosaic, page = panel("mosaic", "Equal tokens, unequal work"), chapter.page
    page.evaluate(CLOCK, mosaic.element_handle())
    mosaic.get_by_role("slider", name="hidden size", exact=True).focus()
    for move in range(MOVES):
        page.keyboard.press("ArrowRight" if move // 2 % 2 == 0 else "ArrowLeft")
        page.wait_for_function("(n) => window.latency.length === n", arg=move + 1)
        page.wait_for_timeout(100)  # one move at a time: the clock is for a change, not for a queue of them
    median = statistics.median(page.evaluate("() => window.latency"))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latency05.json").write_text(json.dumps({"mosaic": median}, indent=1))
    print(f"slider to redraw, median ms: {median}")
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
