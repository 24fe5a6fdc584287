"""Chapter 4 in a real page, offline: Run All, a Gantt chart that follows sliders, large cases, nothing from outside.

Times are recorded in ``test-results/latency04.json``, not asserted: a busy machine is no fault of the code.
"""

import json

import pytest
from pages import choose, clean, drawn, pace, record, redrawn

from telekit.ui.known_schedules import Case, Standing, compare

pytestmark = pytest.mark.browser

NAME = "04_interleaved_pipeline.ipynb"


def test_a_schedule_is_drawn_block_by_block(chapter, panel):
    one = panel("explorer", "One schedule, step by step")
    assert one.locator("figcaption").first.inner_text() == "1f1b ends after 33; a device idles 27.3% of it"
    blocks = one.locator(".telekit-chart").first.locator(".mark-rect path")
    assert blocks.count() == 64
    choose(chapter, one, "schedule", "zb-v")
    assert one.locator("figcaption").first.inner_text() == "zb-v ends after 25.5; a device idles 5.9% of it"
    assert blocks.count() == 4 * 8 * 2 * 3
    assert one.locator(".noUi-target[disabled]").count() == 2  # no chunks to choose, no pieces
    choose(chapter, one, "schedule", "1f1b")
    clean(chapter)


def test_sliders_redraw_both_charts_and_their_latency_is_recorded(chapter, panel):
    one = panel("explorer", "One schedule, step by step")
    said = {"small": pace(chapter, one, "comm")}
    choose(chapter, one, "schedule", "zb-v")
    one.get_by_role("slider", name="stages p").press("End")
    one.get_by_role("slider", name="batches m").press("End")
    one.get_by_text("zb-v ends after 775.5").wait_for()
    assert one.locator(".telekit-chart").first.locator(".mark-rect path").count() <= 900
    said["zb-v, p 16, m 256"] = pace(chapter, one, "W (weights)")
    record("latency04", said)
    clean(chapter)


def test_sizes_that_do_not_run_are_said_in_the_panel(chapter, panel):
    one = panel("explorer", "One schedule, step by step")
    one.get_by_role("slider", name="batches m").press("Home")
    one.get_by_role("combobox", name="schedule").select_option("dualpipe")
    one.locator(".telekit-bad").wait_for()
    assert one.locator(".telekit-chart.stale").count() == 2
    clean(chapter)


def test_schedules_stand_on_one_basis(chapter, panel):
    basis = panel("basis", "Schedules on one basis")
    assert basis.locator("figcaption").first.inner_text() == "zb-v idles least, 6.8%"
    before = drawn(basis)
    basis.get_by_role("slider", name="W (weights)").press("ArrowLeft")
    redrawn(chapter, basis, before)
    assert basis.locator(".telekit-chart").first.locator(".mark-rect path").count() >= 12
    clean(chapter)


def test_moves_without_a_pause_end_in_bars_and_captions_of_one_state(chapter, panel):
    basis, page = panel("basis", "Schedules on one basis"), chapter.page
    chart = basis.locator(".telekit-chart").first
    for block, comm in (("F, then B", "End"), ("one block, 2/3", "Home"), ("F, then B", "ArrowRight")):
        basis.get_by_role("combobox", name="F with B").select_option(block)
        for key in (comm, "ArrowRight", "ArrowRight"):
            basis.get_by_role("slider", name="comm").press(key)
        basis.get_by_role("slider", name="B (inputs)").press("End" if comm == "End" else "Home")
        values = ("forward", "input", "weight", "comm", "overlap", "stages", "micro_batches", "chunks")
        page.wait_for_timeout(1500)
        chapter.idle()
        page.wait_for_timeout(500)
        shown = dict(zip(values, ask(page, "basis", values), strict=True))
        want = {
            name: f"{it.bubble:.1%}"
            for name, it in compare(Case("1f1b", **shown)).items()
            if isinstance(it, Standing)
        }
        texts = chart.locator(".mark-text.role-mark text").evaluate_all("all => all.map(t => t.textContent)")
        assert sorted(texts) == sorted(want.values())
        least = basis.locator("figcaption").first.inner_text()
        assert least.endswith(min(want.values(), key=lambda text: float(text.rstrip("%"))))
    clean(chapter)


def ask(page, name, controls):
    """Values of a panel's controls as the kernel has them."""
    code = f"import json; print(json.dumps([{name}.values[c] for c in {list(controls)}]))"
    said = page.evaluate(
        """async (code) => { let said = '';
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            const future = kernel.requestExecute({ code, store_history: false });
            future.onIOPub = m => { if (m.header.msg_type === 'stream') said += m.content.text; };
            await future.done; return said; }""",
        code,
    )
    return json.loads(said)


def test_more_communication_moves_curves_and_bars(chapter, panel):
    pays = panel("pays", "When does it pay?")
    before = drawn(pays)
    assert (
        pays.locator("figcaption").nth(1).inner_text().startswith("Interleaved, 8 chunks a device idle least")
    )
    slider = pays.get_by_role("slider", name="comm")
    for _ in range(2):  # to 0.1
        slider.press("ArrowRight")
    redrawn(chapter, pays, before)
    pays.get_by_text("4 chunks a device idle least").wait_for()
    clean(chapter)
