"""Chapter 6 in a real page, offline: Run All, sliders that move bars and curves, a map, a Gantt chart, a pasted log."""

import json
import statistics
from pathlib import Path

import pytest
from pages import clean, drawn, redrawn

pytestmark = pytest.mark.browser

RESULTS = Path(__file__).parents[2] / "test-results"
NAME = "06_expert_parallel_communication.ipynb"
MOVES = 12
CLOCK = """(panel) => {
    window.latency = [];
    let pressed = null, left = 0;
    document.addEventListener('keydown', () => { pressed = performance.now(); left = 2; }, true);
    for (const figure of panel.querySelectorAll('.telekit-chart')) new MutationObserver(() => {
        if (pressed !== null && --left === 0) window.latency.push(performance.now() - pressed);
    }).observe(figure, { attributes: true, attributeFilter: ['data-drawn'] });
}"""


def captions(panel):
    return panel.locator("figcaption").all_inner_texts()


def test_a_larger_group_turns_the_gain_into_a_loss(chapter, panel):
    one = panel("explorer", "What a token sends, and when")
    assert captions(one)[0].startswith("Of 4 copies of a token, all-to-all sends 2 to other nodes")
    assert one.locator(".telekit-chart").first.locator(".mark-rect path").count() == 10
    assert "sends fewer rows than all-to-all" in one.inner_text()
    before = drawn(one)
    for _ in range(2):
        one.get_by_role("slider", name="EP", exact=True).press("ArrowRight")
    redrawn(chapter, one, before)
    one.get_by_text("8 nodes, top-4: the AllGather form sends more rows than all-to-all").wait_for()
    clean(chapter)


def test_sliders_redraw_both_charts_and_their_latency_is_recorded(chapter, panel):
    one, page = panel("explorer", "What a token sends, and when"), chapter.page
    page.evaluate(CLOCK, one.element_handle())
    one.get_by_role("slider", name="top-k", exact=True).focus()
    for move in range(MOVES):
        page.keyboard.press("ArrowRight" if move // 3 % 2 == 0 else "ArrowLeft")
        page.wait_for_function("(n) => window.latency.length >= n", arg=move + 1)
        page.wait_for_timeout(100)
    median = statistics.median(page.evaluate("() => window.latency"))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latency06.json").write_text(json.dumps({"top-k": median}, indent=1))
    print(f"slider to redraw, median ms: {median:.0f}")
    clean(chapter)


def test_a_group_that_does_not_divide_the_experts_is_said_in_the_panel(chapter, panel):
    one = panel("explorer", "What a token sends, and when")
    one.get_by_role("slider", name="EP", exact=True).press("End")
    one.locator(".telekit-bad").wait_for()
    assert "must divide the 192 experts" in one.locator(".telekit-bad").inner_text()
    assert one.locator(".telekit-chart.stale").count() == 2
    clean(chapter)


def test_the_map_gets_a_third_dispatcher(chapter, panel):
    winners = panel("map", "Which dispatcher wins where")
    assert "only where nodes < top-k" in captions(winners)[0]
    before = drawn(winners)
    winners.get_by_role("combobox", name="compare").select_option("and once a node")
    redrawn(chapter, winners, before)
    assert "once a node" in captions(winners)[0]
    clean(chapter)


def test_a_pair_of_micro_batches_exposes_nothing(chapter, panel):
    overlap = panel("overlap", "Communication beside computing")
    assert captions(overlap)[0].startswith("Chunked: 0.15 of 0.60")
    overlap.get_by_role("combobox", name="plan").select_option("DualPipe pair")
    overlap.get_by_text("DualPipe pair: 0.00 of 0.60").wait_for()
    assert overlap.locator(".telekit-chart").first.locator(".mark-rect path").count() >= 20
    clean(chapter)


def test_an_assumption_moves_the_readers_own_rule_alone(chapter, panel):
    gain = panel("gain", "What the 15 % hang on")
    bars = (
        gain.locator(".telekit-chart")
        .first.locator(".mark-rect path")
        .evaluate_all("all => all.map(b => b.outerHTML)")
    )
    before = drawn(gain)
    gain.get_by_role("slider", name="imbalance").press("End")
    redrawn(chapter, gain, before)
    after = (
        gain.locator(".telekit-chart")
        .first.locator(".mark-rect path")
        .evaluate_all("all => all.map(b => b.outerHTML)")
    )
    assert bars == after and len(bars) >= 20
    clean(chapter)


def test_a_log_with_mistakes_is_read_as_far_as_it_goes(chapter, panel):
    own = panel("log", "Your own measurements")
    before = drawn(own)
    own.get_by_role("combobox", name="fill in").select_option("synthetic, with mistakes in it")
    redrawn(chapter, own, before)
    own.locator(".telekit-bad").wait_for()
    assert "lines are not used" in own.locator(".telekit-bad").inner_text()
    own.get_by_role("textbox", name="log").fill("hello")
    own.get_by_role("combobox", name="device").focus()
    own.locator(".telekit-chart.stale").first.wait_for()
    assert "no table of nccl-tests or hccl_test" in own.locator(".telekit-bad").inner_text()
    clean(chapter)
