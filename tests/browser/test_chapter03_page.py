"""Chapter 3 in a real page, offline: Run All, a fault that stands out, curves by parts, a hidden case, a checklist.

Times are recorded in ``test-results/latency03.json``, not asserted: a busy machine is no fault of the code.
"""

import pytest
from pages import captions, choose, clean, drawn, pace, record, redrawn

pytestmark = pytest.mark.browser

NAME = "03_end_to_end_accuracy.ipynb"
GRAPH = "Error by operator, in the order of the graph"


def test_the_first_operator_off_is_marked_by_name(chapter, panel):
    graph = panel("explorer", GRAPH)
    assert captions(graph)[0].startswith("First off is layers.0.self_attention.core_attention, by 60.6 ε")
    assert captions(graph)[1] == "The log is within all limits"
    svg = graph.locator(".telekit-chart").first
    svg.get_by_text("first off: layers.0.self_attention.core_attention").wait_for()
    assert svg.locator(".mark-symbol path").count() >= 200
    choose(chapter, graph, "fault", "none: a clean change of layout")
    assert captions(graph)[0].startswith("Nothing is off: ")
    clean(chapter)


def test_a_factor_hides_in_rounding_and_the_latency_is_recorded(chapter, panel):
    graph = panel("explorer", GRAPH)
    choose(chapter, graph, "fault", "linear_proj times 1 + s")
    record("latency03", {"s": pace(chapter, graph, "s")})
    before = drawn(graph)
    graph.get_by_role("slider", name="s", exact=True).press("Home")
    redrawn(chapter, graph, before)
    graph.get_by_text("The fault hides in rounding").wait_for()
    clean(chapter)


def test_rounding_is_drawn_by_depth(chapter, panel):
    rounding = panel("rounding-panel", "What a layout does to rounding")
    assert "above the bound" in captions(rounding)[0]
    rounding.get_by_role("combobox", name="layout").select_option("dp 4")
    rounding.get_by_text("Clean gradients stay below the bound").wait_for()
    clean(chapter)


def test_golden_noise_becomes_the_limit(chapter, panel):
    curves = panel("curves-panel", "Loss curves, judged by parts")
    assert captions(curves)[0].startswith("Bad first, good mean")
    for name, key in (("first step", "Home"), ("noise", "End")):
        curves.get_by_role("slider", name=name, exact=True).press(key)
    curves.get_by_text("Good first, bad mean").wait_for()
    curves.get_by_role("slider", name="golden runs").press("End")
    curves.get_by_text("MindFormers says pass").wait_for()
    clean(chapter)


def test_a_hidden_case_is_guessed_and_answered(chapter, panel):
    game = panel("game", "Find the fault")
    guess = game.get_by_role("combobox", name="where?")
    guess.select_option("linear_fc2")
    game.get_by_text("its forward outputs are within rounding").wait_for()
    guess.select_option("mlp_bda")
    game.get_by_role("combobox", name="what?").select_option("missing term")
    game.get_by_text("the cause is right").wait_for()
    game.get_by_role("combobox", name="locator").select_option("answers")
    game.get_by_text("Planted:").wait_for()
    game.locator(".telekit-chart").first.get_by_text("first off: layers.1.mlp_bda").wait_for()
    clean(chapter)


def test_the_checklist_fills(chapter, panel):
    checklist = panel("checklist", "Three phases, one checklist")
    before = captions(checklist)[0]
    choose(chapter, checklist, "given up to", "golden's other runs")
    choose(chapter, checklist, "wrong is", "nothing")
    assert captions(checklist)[0] != before
    assert checklist.locator(".telekit-chart .mark-symbol path").count() >= 18
    clean(chapter)
