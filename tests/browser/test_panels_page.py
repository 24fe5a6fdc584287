"""Panels in a real page: they redraw, say errors, stop work, follow the theme, and survive a lost kernel."""

from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.browser

CELLS = {
    "imports": "import sample_panels",
    "panel": "explorer = sample_panels.explorer()\nexplorer",
    "task": "sample_panels.long_task()",
}
FIGURE = ".telekit-chart"


@pytest.fixture(scope="module")
def page_of_panels(lab, open_notebook):
    """Open a notebook with a panel and a task."""
    source = Path(__file__).parent / "sample_panels.py"
    (lab.folder / source.name).write_bytes(source.read_bytes())
    cells = [nbformat.v4.new_code_cell(text, id=name) for name, text in CELLS.items()]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), lab.folder / "sample.ipynb")
    return open_notebook("sample.ipynb")


@pytest.fixture
def sample(page_of_panels):
    """Give the notebook freshly run, top to bottom, in a wide window."""
    page_of_panels.page.set_viewport_size({"width": 1280, "height": 1400})
    page_of_panels.run_all()
    page_of_panels.page.wait_for_selector(f"{FIGURE} svg .mark-rect path")
    return page_of_panels


def drawn(page) -> int:
    return int(page.locator(FIGURE).get_attribute("data-drawn"))


def redrawn(page, before: int) -> None:
    page.wait_for_function(f"n => +document.querySelector('{FIGURE}').dataset.drawn > n", arg=before)


def clean(notebook) -> None:
    assert notebook.errors() == [] and notebook.console == [] and notebook.outside == []


def test_a_hand_on_a_control_redraws_the_chart(sample):
    page, before = sample.page, drawn(sample.page)
    page.locator(".telekit-panel select").select_option("4")
    redrawn(page, before)
    assert page.locator(f"{FIGURE} .mark-rect path").count() == 4
    assert page.locator(f"{FIGURE} figcaption").inner_text() == "Each rank holds 2 of 8 experts"
    assert "2 experts on each of 4 ranks" in page.locator(".telekit-panel").inner_text()
    clean(sample)


def test_it_can_be_used_by_keyboard_and_is_named_for_a_screen_reader(sample):
    page, before = sample.page, drawn(sample.page)
    slider = page.get_by_role("slider", name="experts")
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    redrawn(page, before)
    page.get_by_text("Each rank holds 5 of 10 experts").wait_for()
    assert page.get_by_role("combobox", name="EP ranks").count() == 1
    assert page.get_by_role("group", name="Each rank holds 5 of 10 experts").count() == 1
    clean(sample)


def test_an_error_is_said_in_the_panel_and_the_next_move_recovers(sample):
    page = sample.page
    page.locator(".telekit-panel select").select_option("3")
    page.get_by_text("ep=3 does not divide experts=8").wait_for()
    page.wait_for_selector(f"{FIGURE}.stale")
    page.locator(".telekit-panel select").select_option("4")
    page.get_by_text("Each rank holds 2 of 8 experts").wait_for()
    page.wait_for_selector(f"{FIGURE}:not(.stale)")
    clean(sample)


def test_long_work_can_be_watched_and_stopped_while_panels_move(sample):
    page, before = sample.page, drawn(sample.page)
    page.locator(".sample-task").get_by_role("button", name="Work").click()
    page.locator(".sample-task").get_by_text("step ").wait_for()
    page.locator(".telekit-panel select").select_option("1")  # the kernel still answers
    redrawn(page, before)
    page.locator(".sample-task").get_by_role("button", name="Stop").click()
    page.locator(".sample-task").get_by_text("stopped after").wait_for()
    assert page.locator(".sample-task").get_by_role("button", name="Work").is_enabled()
    clean(sample)


def change_theme(page, name: str) -> None:
    before = drawn(page)
    page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name)
    redrawn(page, before)
    page.wait_for_selector(
        "#jupyterlab-splash", state="detached"
    )  # two splashes at once trip over each other


def test_charts_follow_the_theme(sample):
    page = sample.page
    ink = f"() => getComputedStyle(document.querySelector('{FIGURE} svg .role-axis-label text')).fill"
    light = page.evaluate(ink)
    change_theme(page, "JupyterLab Dark")
    dark = page.evaluate(ink)
    change_theme(page, "JupyterLab Light")
    assert brightness(light) < 128 < brightness(dark)
    clean(sample)


def brightness(colour: str) -> float:
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3


def test_nothing_is_cut_off_in_a_narrow_window(sample):
    page = sample.page
    page.set_viewport_size({"width": 560, "height": 1400})
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.wait_for_function(
        f"""() => {{ const area = document.querySelector('.telekit-panel').closest('.jp-OutputArea');
            const right = area.getBoundingClientRect().right + 1;
            return [...document.querySelectorAll('.telekit-panel .widget-inline-hbox, {FIGURE}')]
                .every(e => e.getBoundingClientRect().right <= right); }}"""
    )
    clean(sample)


def test_NB03_a_reopened_notebook_shows_a_picture_without_its_kernel(sample, open_notebook):  # noqa: N802
    page = sample.page
    still = ".jp-RenderedVegaCommon5"
    assert not page.locator(still).first.is_visible()  # while the panel lives, the picture beside it hides
    sample.command("docmanager:save")
    clean(sample)
    sample.command("kernelmenu:shutdown")
    again = open_notebook("sample.ipynb")
    again.page.wait_for_selector(f"{still} canvas, {still} svg", state="visible")
    assert again.page.locator(".telekit-panel").count() == 0
    assert "as first drawn" in again.page.evaluate(
        """() => JSON.stringify(window.jupyterapp.shell.currentWidget.content.model.toJSON())"""
    )
    assert again.outside == []
