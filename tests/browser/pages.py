"""What browser tests ask of a page: panels drawn anew, and nothing gone wrong."""

from __future__ import annotations


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
