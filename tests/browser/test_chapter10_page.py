"""Chapter 10 in a real page, offline: Run All, a source highlighted, a curve chosen, a curve bent, a run paid for."""

import pytest
from pages import captions, choose, clean, drawn, pace, record, redrawn

pytestmark = pytest.mark.browser

NAME = "10_results_and_scaling.ipynb"


def test_every_run_is_a_point_and_a_source_stands_out(chapter, panel):
    errors = panel("explorer", "Predicted against measured")
    first = errors.locator(".telekit-chart").first
    assert first.locator(".mark-symbol path").count() >= 600
    assert "half are within" in captions(errors)[0]
    choose(chapter, errors, "highlight", "Llama 3, DeepSeek-V3")
    assert captions(errors)[0].startswith("3 rows") and "dsv3_isca_mpft" in errors.inner_text()
    choose(chapter, errors, "highlight", "all")
    clean(chapter)


def test_rows_that_are_not_there_are_said_in_the_panel(chapter, panel):
    errors = panel("explorer", "Predicted against measured")
    choose(chapter, errors, "what", "memory of a device")
    errors.get_by_role("combobox", name="rows", exact=True).select_option("for fitting")
    errors.locator(".telekit-bad").wait_for()
    assert "held out" in errors.locator(".telekit-bad").inner_text()
    errors.get_by_role("combobox", name="rows", exact=True).select_option("all rows")
    errors.locator(".telekit-bad").wait_for(state="detached")
    clean(chapter)


def test_a_published_curve_is_chosen(chapter, panel):
    curves = panel("curves", "Published curves")
    assert captions(curves)[0].startswith("4 times the devices, 3.39 times the tokens")
    choose(chapter, curves, "run", "Llama-3 405B, batch 2,048")
    assert captions(curves)[0].startswith("2 times the devices")
    clean(chapter)


def test_the_curve_bends_and_its_latency_is_recorded(chapter, panel):
    bends = panel("bends", "What bends the curve")
    assert bends.locator(".telekit-chart").nth(1).locator(".mark-rect path").count() == 48
    record("latency10", {"jitter": pace(chapter, bends, "jitter [%]")})
    before = drawn(bends)
    bends.get_by_role("slider", name="largest batch").press("Home")
    redrawn(chapter, bends, before)
    bends.get_by_text("too few micro-batches").wait_for()
    clean(chapter)


def test_a_run_costs_more_hours_on_more_devices(chapter, panel):
    run = panel("run", "A whole run")
    hours = float(captions(run)[1].split()[0])
    choose(chapter, run, "devices", "twice")
    assert float(captions(run)[1].split()[0]) > hours
    clean(chapter)
