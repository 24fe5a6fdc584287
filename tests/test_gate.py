"""What the test runner and the notebook stripper promise."""

import nbformat
import pytest
import run
import strip_notebooks

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="plain"/>
<testcase classname="tests.a" name="samples"><skipped message="TELEKIT_SAMPLES is not set"/></testcase>
<testcase classname="tests.b" name="other"><skipped message="needs torch"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("name", "surroundings", "unwanted"),
    [
        ("tests", {}, []),
        ("tests", {"CI": "true"}, []),
        ("tests", {"TELEKIT_SAMPLES": "somewhere"}, ["tests.a::samples"]),
        ("browser", {}, []),
        ("browser", {"CI": "true"}, ["tests.a::samples", "tests.b::other"]),
    ],
)
def test_only_excused_skips_pass(name, surroundings, unwanted, tmp_path, monkeypatch):
    for variable in ("CI", "TELEKIT_SAMPLES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in surroundings.items():
        monkeypatch.setenv(variable, value)
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert [fault.split()[1].rstrip(":") for fault in run.unwanted_skips(name, report)] == unwanted


def _code(tags):
    cell = nbformat.v4.new_code_cell("6 * 7", execution_count=3, metadata={"tags": tags} if tags else {})
    cell.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "42"}, execution_count=3)]
    return cell


def test_stripping_keeps_tagged_cells_ids_and_nothing_else():
    book = nbformat.v4.new_notebook(cells=[_code([]), _code(["keep_output"]), _code(["exercise"])])
    book.metadata.widgets = {"state": {}}
    after = nbformat.reads(strip_notebooks.stripped(nbformat.writes(book)), as_version=4)
    assert [cell.id for cell in after.cells] == [cell.id for cell in book.cells]
    assert [(len(cell.outputs), cell.execution_count) for cell in after.cells] == [
        (0, None),
        (1, 3),
        (0, None),
    ]
    assert after.cells[1] == book.cells[1]
    assert "widgets" not in after.metadata
    text = nbformat.writes(after) + "\n"
    assert strip_notebooks.stripped(text) == text
