"""Chapter 1 in a real page, offline: Run All, sliders that redraw, another model, nothing from outside."""

import pytest

pytestmark = pytest.mark.browser

NAME = "01_introduction.ipynb"


@pytest.fixture(scope="module")
def chapter(open_notebook):
    """The chapter, run top to bottom."""
    notebook = open_notebook(NAME, height=1300)
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
    assert chapter.errors() == [] and chapter.console == [] and chapter.outside == []


def test_more_experts_lengthen_one_bar_and_the_text_says_so(chapter, panel):
    apart = panel("explorer", "Take a model apart")
    captions, before = apart.locator("figcaption").all_inner_texts(), drawn(apart)
    assert captions[0] == "97% of the 102 B parameters are routed experts"
    slider = apart.get_by_role("slider", name="experts")
    slider.press("ArrowRight")  # 192 to 256
    redrawn(chapter, apart, before)
    apart.get_by_text("stored × 1.32, met by a token × 1.00, FLOPs × 1.00").wait_for()
    assert apart.locator("figcaption").first.inner_text() == "98% of the 135 B parameters are routed experts"
    assert apart.locator(".telekit-chart").first.locator(".mark-rect path[fill='#c8372d']").count() == 2
    clean(chapter)


def test_another_model_brings_its_own_sliders(chapter, panel):
    apart = panel("explorer", "Take a model apart")
    before = drawn(apart)
    apart.get_by_role("combobox", name="model").select_option("llama-3.1-8b")
    redrawn(chapter, apart, before)
    apart.get_by_text("One token meets all of them: the model is dense").wait_for()
    assert apart.locator(".noUi-target[disabled]").count() == 3
    clean(chapter)


def test_models_stand_side_by_side_by_the_measures_asked_for(chapter, panel):
    beside = panel("side-by-side", "Models side by side")
    before = drawn(beside)
    beside.get_by_role("combobox", name="show").select_option("layers against width")
    redrawn(chapter, beside, before)
    beside.get_by_text("hidden size").wait_for()
    assert beside.locator(".mark-symbol path").count() > 40
    clean(chapter)


def test_a_longer_sequence_moves_the_mark_along_the_curve(chapter, panel):
    six_n = panel("six-n", "Where 6 N goes wrong")
    before = drawn(six_n)
    six_n.get_by_role("slider", name="sequence").press("ArrowRight")
    redrawn(chapter, six_n, before)
    assert six_n.locator("figcaption").inner_text().startswith("At 8,192 tokens 6 N is ")
    clean(chapter)
