"""Chapters in a real kernel: what they leave in a notebook, and that nbval compares it."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import nbformat
import pytest
from nbclient import NotebookClient
from notebook_tools import CHAPTERS, KEEP, code_cells, read, stored

WIDGET = "application/vnd.jupyter.widget-view+json"
STILL = "application/vnd.vegalite.v5+json"
PLAN = """import telekit
job = telekit.load_job({"model": "mixtral-8x7b", "cluster": {"device": "h100", "nodes": 2},
                        "train": {"seq_len": 4096, "global_batch": 128}, "layout": {"pp": 2}})
len(telekit.plan(job, top=1, time_limit_s=3).plans)"""


def execute(notebook, folder):
    """Run a notebook in a kernel of its own; return the cells' outputs."""
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda p: p.stem)
def executed(request):
    return execute(read(request.param), request.param.parent)


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def test_NB01_no_output_names_a_web_address(executed):  # noqa: N802
    found = re.findall(r"https?://[^\s\"']+", json.dumps(outputs(executed)))
    assert found == []


def test_NB03_beside_every_widget_stands_something_that_needs_no_kernel(executed):  # noqa: N802
    widgets = 0
    for cell in code_cells(executed):
        for i, output in enumerate(cell.outputs):
            data = output.get("data", {})
            if WIDGET not in data:
                continue
            widgets += 1
            assert len(re.sub(r"<[^>]*>", "", data["text/html"]).split()) > 5, f"{cell.id}: an empty fallback"
            assert data["text/plain"].startswith("<panel:")
            assert STILL in cell.outputs[i + 1].data, f"{cell.id}: no still picture follows"
    assert widgets


def test_NB07_nothing_prints_that_was_not_asked_to(executed):  # noqa: N802
    for cell in code_cells(executed):
        if not stored(cell):
            assert not [o for o in cell.outputs if o.output_type == "stream"], cell.id


def test_NB07_a_plan_prints_no_solver_banner(tmp_path):  # noqa: N802
    cell = nbformat.v4.new_code_cell(PLAN)
    found = execute(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
    assert [(o.output_type, o.data["text/plain"]) for o in outputs(found)] == [("execute_result", "1")]


def test_a_notebook_stays_small(executed):
    assert len(json.dumps(outputs(executed))) < 500_000


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Run nbval over a chapter twice, and over a copy with one number changed; outcome by file and cell."""
    folder = tmp_path_factory.mktemp("nbval")
    chapter = read(CHAPTERS[0])
    nbformat.write(chapter, folder / "first.ipynb")
    nbformat.write(chapter, folder / "second.ipynb")
    changed = next(cell for cell in code_cells(chapter) if KEEP in cell.metadata.get("tags", []))
    text = changed.outputs[0].text
    digit = re.search(r"[1-9]", text)
    changed.outputs[0].text = text[: digit.start()] + str(int(digit[0]) - 1) + text[digit.end() :]
    nbformat.write(chapter, folder / "changed.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=result.xml"]
    command += ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]
    subprocess.run(
        [*command, "first.ipynb", "second.ipynb", "changed.ipynb"], cwd=folder, capture_output=True
    )
    cases = ET.parse(folder / "result.xml").iter("testcase")
    found = {}
    for case in cases:
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        found.setdefault(case.get("classname"), []).append((case.get("name"), bad is None))
    return found


def test_NB06_nbval_is_green_twice_in_a_row(compared):  # noqa: N802
    for name in ("first.ipynb", "second.ipynb"):
        cells = compared[name]
        assert len(cells) == len(code_cells(read(CHAPTERS[0])))
        assert [cell for cell, green in cells if not green] == []


def test_a_changed_number_fails_and_only_it(compared):
    assert [green for _, green in compared["changed.ipynb"]].count(False) == 1
