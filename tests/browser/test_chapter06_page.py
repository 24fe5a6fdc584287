"""Chapter 6 in a real page, offline: Run All, sliders that move bars and curves, a map, a Gantt chart, a pasted log."""

import pytest
from pages import captions, clean, drawn, pace, record, redrawn

pytestmark = pytest.mark.browser

NAME = "06_expert_parallel_communication.ipynb"


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
    one = panel("explorer", "What a token sends, and when")
    record("latency06", {"top-k": pace(chapter, one, "top-k")})
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
