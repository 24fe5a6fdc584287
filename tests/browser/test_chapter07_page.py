"""Chapter 7 in a real page, offline: Run All, a roof and bars that follow sliders, a program, a measurement.

Times are recorded in ``test-results/latency07.json``, not asserted: a busy machine is no fault of the code.
"""

import pytest
from pages import captions, clean, drawn, pace, record, redrawn

pytestmark = pytest.mark.browser

NAME = "07_operator_fusion.ipynb"


def test_few_numbers_make_the_host_decide(chapter, panel):
    chain = panel("explorer", "A chain, before and after")
    assert captions(chain)[1] == "The device decides: 8 times as quick"
    before = drawn(chain)
    chain.get_by_role("slider", name="elements").press("Home")
    redrawn(chapter, chain, before)
    assert captions(chain)[1].startswith("The host decides: 8 times as quick")
    clean(chapter)


def test_sliders_redraw_both_charts_and_their_latency_is_recorded(chapter, panel):
    chain = panel("explorer", "A chain, before and after")
    record("latency07", {"operators a": pace(chapter, chain, "operators a")})
    clean(chapter)


def test_a_small_core_takes_the_block_apart(chapter, panel):
    layer = panel("layer-panel", "Which operators share a kernel")
    assert captions(layer)[0].startswith("14 kernels become 4")
    before = drawn(layer)
    layer.get_by_role("combobox", name="on chip").select_option("32 KiB")
    redrawn(chapter, layer, before)
    assert captions(layer)[0].startswith("14 kernels become 6")
    layer.get_by_text("Its kernels").click()
    assert layer.locator("details li").count() == 6
    clean(chapter)


def test_the_marked_line_follows_the_instruction(chapter, panel):
    program = panel("code-panel", "A program, step by step")
    assert "cast.fp32" in program.locator("mark").first.inner_text()
    program.get_by_role("slider", name="instruction").press("ArrowRight")
    program.locator("mark", has_text="square.fp32").first.wait_for()
    program.get_by_role("slider", name="tile").press("ArrowRight")
    program.get_by_text("Tile 1 of 125").wait_for()
    program.get_by_role("combobox", name="program").select_option("swiglu")
    program.get_by_text("243").first.wait_for()
    clean(chapter)


def test_a_measurement_stands_beside_what_bytes_alone_would_give(chapter, panel):
    measured = panel("measured", "Measured on this computer")
    measured.get_by_role("combobox", name="each tensor").select_option("64 KiB")
    measured.get_by_role("button", name="Measure").click()
    measured.get_by_text("done in").wait_for(timeout=120_000)
    assert captions(measured)[0].endswith("times as quick; in cache there are no bytes to save")
    assert measured.locator(".telekit-chart").first.locator(".mark-rect path").count() == 8
    clean(chapter)


def test_the_baseline_decides_what_a_step_saves(chapter, panel):
    step = panel("step-panel", "One step of TeleChat3-105B")
    assert captions(step)[1].endswith("the baseline decides")
    before = captions(step)[1]
    step.get_by_role("combobox", name="step, fused").select_option("3 s")
    step.get_by_text("the fused step is 3.00 s").wait_for()
    assert captions(step)[1] != before
    clean(chapter)
