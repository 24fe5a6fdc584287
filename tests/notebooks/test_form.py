"""The form every chapter keeps: parts in order, thin cells, stable ids, outputs only where compared."""

import ast
import re

import nbformat
import pytest
from notebook_tools import CHAPTERS, CHECK, FOLDER, NOTEBOOKS, code_cells, read, stored, tags

SECTIONS = [
    "What the report says",
    "The idea",
    "The formula",
    "On a real case",
    "Try it",
    "Exercises",
    "Where the model ends",
    "Take away",
    "References",
]
BANNED = {
    "Output",
    "interact",
    "interactive",
    "interactive_output",
}  # nbval cannot compare them, nbclient hangs
NETWORK = {"requests", "urllib", "httpx", "socket", "http"}

every = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)


def headings(notebook, level):
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    return re.findall(rf"^{'#' * level} (.+)$", text, re.MULTILINE)


def test_there_are_chapters():
    assert CHAPTERS and FOLDER / "index.ipynb" in NOTEBOOKS


@every
def test_it_is_a_valid_notebook_without_anyones_state(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    assert not any(re.fullmatch(r"[0-9a-f-]{8,}", i) for i in ids), "give cells names, not random ids"


@chapter
def test_it_has_the_parts_of_a_chapter_in_order(path):
    notebook = read(path)
    first = notebook.cells[0].source
    assert re.match(rf"# {int(path.stem[:2])}\. .+\?\n", first), "the title is a question, with its number"
    for part in ("**Goal.**", "**You need.**", "**Time.**"):
        assert part in first
    assert headings(notebook, 2) == SECTIONS
    found = [tag for cell in notebook.cells for tag in tags(cell)]
    assert {"explorer", "exercise"} <= set(found)


@chapter
def test_a_question_stands_before_the_panel(path):
    cells = read(path).cells
    for i, cell in enumerate(cells):
        if "explorer" in tags(cell):
            assert cells[i - 1].cell_type == "markdown" and "?" in cells[i - 1].source


@every
def test_cells_are_calls(path):
    for cell in code_cells(read(path)):
        assert len(cell.source.splitlines()) <= 12, f"{cell.id}: move code to the package"
        nodes = list(ast.walk(ast.parse(cell.source)))
        defines = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Global)
        assert not any(isinstance(n, defines) for n in nodes), f"{cell.id}: a definition"
        assert not {n.id for n in nodes if isinstance(n, ast.Name)} & BANNED, f"{cell.id}: see BANNED"
        names = {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        names |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
        assert not {name.split(".")[0] for name in names} & NETWORK, f"{cell.id}: the network"


@every
def test_nothing_is_loaded_from_outside(path):
    for cell in read(path).cells:
        assert not re.search(r"!\[[^\]]*\]\(https?:|<(img|script|link|iframe)[^>]+https?:", cell.source), (
            cell.id
        )


@every
def test_outputs_are_stored_only_where_they_are_compared(path):
    for cell in code_cells(read(path)):
        checked = cell.source.startswith(CHECK)
        assert checked == stored(cell), f"{cell.id}: {CHECK} and the tag keep_output go together"
        if not checked:
            assert not cell.outputs and cell.execution_count is None, f"{cell.id}: run write_outputs.py"
            continue
        assert cell.outputs and cell.execution_count, f"{cell.id}: run write_outputs.py"
        for output in cell.outputs:
            assert output.output_type in ("stream", "execute_result"), cell.id
            text = output.get("text") or output.data["text/plain"]
            assert set(output.get("data", {})) <= {"text/plain"} and "0x" not in text, cell.id


@chapter
def test_the_numbers_it_stands_on_are_compared(path):
    assert sum(stored(cell) for cell in code_cells(read(path))) >= 3


@every
def test_links_to_other_notebooks_lead_somewhere(path):
    for cell in read(path).cells:
        for target in re.findall(r"\]\(([^)#]+\.ipynb)[^)]*\)", cell.source):
            assert (path.parent / target).is_file(), f"{cell.id}: {target}"


@chapter
def test_its_symbols_are_those_of_the_one_table(path):
    index = symbols(read(FOLDER / "index.ipynb"))
    mine = symbols(read(path))
    assert mine, "the formula comes with its symbols"
    for symbol, meaning in mine.items():
        assert index.get(symbol) == meaning, f"{symbol} is not said as in the index"


def symbols(notebook):
    """Rows of Markdown tables that begin with a symbol: | $p$ | meaning | unit |."""
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    return dict(re.findall(r"^\| (\$[^|]+\$) \| (.+) \|$", text, re.MULTILINE))
