"""The report of a comparison: one file, nothing from outside, text stays text; brush and search lead the table."""

import re

import numpy as np
import pytest

from telekit.accuracy.compare import compare
from telekit.accuracy.readers import NamedTensor, Tensors
from telekit.ui.accuracy_report import MOST_ROWS, report_rows, write_report

EVIL = "</script><img src=x onerror=alert(1)>"


def side(factor, extra=()):
    rng = np.random.default_rng(1)
    items = []
    for i in range(6):
        x = rng.normal(size=(4, 4)).astype(np.float32)
        api = f"Torch.mm.{i}.forward"
        for part, array in (("input", x), ("output", x * (factor if i == 3 else 1))):
            items.append(
                NamedTensor(
                    f"{api}.{part}.0", (4, 4), "float32", "x", api=api, part=part, loader=lambda a=array: a
                )
            )
    return Tensors("made", "dump", (*items, *extra))


@pytest.fixture
def page(tmp_path):
    evil = NamedTensor(EVIL, (1,), "float32", EVIL, loader=lambda: np.ones(1, np.float32))
    return write_report(compare(side(2.0, (evil,)), side(1.0)), tmp_path / "r.html")


def test_one_file_that_loads_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link)[^>]+(src|href)=", text)
    assert EVIL not in text and text.count("</script>") == 2


def test_rows_say_what_is_drawn():
    rows = report_rows(compare(side(2.0), side(1.0)))
    (bad,) = [r for r in rows if r["result"] == "error"]
    assert bad["name"] == "Torch.mm.3.forward.output.0" and bad["error"] == pytest.approx(1.0)
    assert bad["operator"] == "mm" and "norm of the difference" in bad["measure"]
    assert all(r["drawn"] == 1e-9 for r in rows if r is not bad), (
        "equal tensors stand at the foot of the axis"
    )


def test_of_too_many_rows_all_that_fail_are_kept():
    count = MOST_ROWS + 500
    ones = np.ones(2, np.float32)

    def many(last):
        return Tensors(
            "made",
            "npz",
            tuple(
                NamedTensor(
                    str(i), (2,), "float32", "x", loader=lambda v=(last if i == count - 1 else ones): v
                )
                for i in range(count)
            ),
        )

    rows = report_rows(compare(many(5 * ones), many(ones)))
    assert len(rows) <= MOST_ROWS and rows[-1]["result"] == "error" and rows[-1]["name"] == str(count - 1)


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_the_table_follows_brush_search_and_click(page, chromium):
    view = chromium.new_page(viewport={"width": 1250, "height": 1400})
    wrong, outside = [], []
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    view.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else outside.append(r.url)
    )
    view.goto(page.as_uri())
    view.wait_for_function("() => globalThis.report")
    assert view.inner_text("#count") == "13 of 13 rows"
    assert view.inner_text("#rows tr:first-child td:nth-child(2)") == "error", "what fails stands first"
    box = view.query_selector("#chart canvas, #chart svg").bounding_box()
    view.mouse.move(box["x"] + 120, box["y"] + 80)
    view.mouse.down()
    view.mouse.move(box["x"] + 300, box["y"] + 160, steps=5)
    view.mouse.up()
    view.wait_for_function("() => !document.getElementById('count').textContent.startsWith('13 of')")
    assert 0 < int(view.inner_text("#count").split()[0]) < 13
    view.fill("#search", "nothing like it")
    assert view.inner_text("#count") == "0 of 13 rows"
    assert not wrong and not outside
    view.close()
