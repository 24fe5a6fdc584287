"""A chapter run once for its module's tests, and its panels by title."""

from __future__ import annotations

import pytest

TRIES, LOOKS, APART_MS = 6, 4, 100


@pytest.fixture(scope="module")
def chapter(open_notebook, request):
    """Run the notebook that the test module names, top to bottom."""
    notebook = open_notebook(request.module.NAME, height=1300)
    notebook.run_all()
    return notebook


@pytest.fixture
def panel(chapter):
    """Give a panel by its cell and title, scrolled into view (JupyterLab takes far cells out of the page)."""

    def go(cell, title):
        chapter.idle()  # what still answers may move what stands below it
        found = chapter.page.locator(".telekit-panel", has=chapter.page.locator("h4", has_text=title))
        for _ in range(TRIES):
            chapter.page.evaluate(
                """(id) => { const notebook = window.jupyterapp.shell.currentWidget.content;
                    const at = notebook.widgets.findIndex(c => c.model.id === id);
                    notebook.activeCellIndex = at; return notebook.scrollToItem(at, 'start'); }""",
                cell,
            )
            found.locator(".telekit-chart svg .mark-text text").first.wait_for()
            if rests(found):
                break
        return found

    return go


def rests(panel) -> bool:
    """Whether a panel stays where it is for a while: cells above that grow late take it out of the page again."""
    return panel.evaluate(
        """async (panel, [looks, apart_ms]) => {
            const top = panel.getBoundingClientRect().top;
            for (let i = 0; i < looks; i++) {
                await new Promise(go => setTimeout(go, apart_ms));
                if (!panel.isConnected || panel.getBoundingClientRect().top !== top) return false;
            }
            return top < window.innerHeight; }""",
        [LOOKS, APART_MS],
    )
