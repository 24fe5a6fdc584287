"""A chapter run once for its module's tests, and its panels by title."""

from __future__ import annotations

import pytest


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
        chapter.page.evaluate(
            """(id) => { const notebook = window.jupyterapp.shell.currentWidget.content;
                const at = notebook.widgets.findIndex(c => c.model.id === id);
                notebook.activeCellIndex = at; return notebook.scrollToItem(at, 'start'); }""",
            cell,
        )
        found = chapter.page.locator(".telekit-panel", has=chapter.page.locator("h4", has_text=title))
        found.locator(".telekit-chart svg .mark-text text").first.wait_for()
        return found

    return go
