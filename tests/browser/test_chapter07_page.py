"""Chapter 7 in a real page, offline: Run All, a roof and bars that follow sliders, a program, a measurement.

Times are recorded in ``test-results/latency07.json``, not asserted: a busy machine is no fault of the code.
"""

import json
import statistics
from pathlib import Path

import pytest
from pages import clean, drawn, redrawn

pytestmark = pytest.mark.browser

RESULTS = Path(__file__).parents[2] / "test-results"
NAME = "07_operator_fusion.ipynb"
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


def test_few_numbers_make_the_host_decide(chapter, panel):
    chain = panel("explorer", "A chain, before and after")
    assert captions(chain)[1] == "The device decides: 8 times as quick"
    before = drawn(chain)
    chain.get_by_role("slider", name="elements").press("Home")
    redrawn(chapter, chain, before)
    assert captions(chain)[1].startswith("The host decides: 8 times as quick")
    clean(chapter)


def test_sliders_redraw_both_charts_and_their_latency_is_recorded(chapter, panel):
    chain, page = panel("explorer", "A chain, before and after"), chapter.page
    page.evaluate(CLOCK, chain.element_handle())
    chain.get_by_role("slider", name="operators a").focus()
    for move in range(MOVES):
        page.keyboard.press("ArrowRight" if move // 3 % 2 == 0 else "ArrowLeft")
        page.wait_for_function("(n) => window.latency.length >= n", arg=move + 1)
        page.wait_for_timeout(100)
    median = statistics.median(page.evaluate("() => window.latency"))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latency07.json").write_text(json.dumps({"operators a": median}, indent=1))
    print(f"slider to redraw, median ms: {median:.0f}")
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
