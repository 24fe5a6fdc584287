"""What browser tests ask of a page: panels drawn anew, and nothing gone wrong."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "test-results"
MOVES = 12
# from the key press to the moment when both charts of the clocked panel show the new rows
CLOCK = """(panel) => {
    window.latency = [];
    if (window.clocked) return;
    window.clocked = true; let pressed = null, left = 0;
    document.addEventListener('keydown', () => { pressed = performance.now(); left = 2; }, true);
    for (const figure of panel.querySelectorAll('.telekit-chart')) new MutationObserver(() => {
        if (pressed !== null && --left === 0) window.latency.push(performance.now() - pressed);
    }).observe(figure, { attributes: true, attributeFilter: ['data-drawn'] });
}"""


def drawn(panel):
    """How often each chart of the panel was drawn."""
    return [int(figure.get_attribute("data-drawn")) for figure in panel.locator(".telekit-chart").all()]


def redrawn(chapter, panel, before):
    """Wait until every chart of the panel is drawn anew."""
    chapter.page.wait_for_function(
        "([panel, n]) => [...panel.querySelectorAll('.telekit-chart')].every((f, i) => +f.dataset.drawn > n[i])",
        arg=[panel.element_handle(), before],
    )


def clean(chapter) -> None:
    """No error output, no console error, no request to the outside."""
    assert chapter.errors() == [] and chapter.console == [] and chapter.outside == []


def captions(panel) -> list[str]:
    """Titles of the panel's charts."""
    return panel.locator("figcaption").all_inner_texts()


def choose(chapter, panel, control, option) -> None:
    """Choose from a list, and wait for the charts."""
    before = drawn(panel)
    panel.get_by_role("combobox", name=control, exact=True).select_option(option)
    redrawn(chapter, panel, before)


def pace(chapter, panel, slider) -> float:
    """Move a slider two steps to and fro; median of key to drawing, in ms. One panel of two charts a page."""
    page = chapter.page
    page.evaluate(CLOCK, panel.element_handle())
    panel.get_by_role("slider", name=slider, exact=True).focus()
    for move in range(MOVES):
        page.keyboard.press("ArrowRight" if move // 2 % 2 == 0 else "ArrowLeft")
        page.wait_for_function("(n) => window.latency.length === n", arg=move + 1)
        page.wait_for_timeout(100)  # one move at a time: the clock is for a change, not for a queue of them
    return statistics.median(page.evaluate("() => window.latency"))


def record(name, said) -> None:
    """Keep latencies in ``test-results``; they are not asserted: a busy machine is no fault of the code."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(said, indent=1))
    print(f"slider to redraw, median ms: {said}")
