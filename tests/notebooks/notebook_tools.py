"""Run a chapter in this process, and say which outputs are stored; for the tests and write_outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.formatters import DisplayFormatter

FOLDER = Path(__file__).parents[2] / "notebooks"
CHAPTERS = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
NOTEBOOKS = sorted(FOLDER.glob("**/*.ipynb"))
CHECK = "# NBVAL_CHECK_OUTPUT"
KEEP = "keep_output"


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@dataclass
class Run:
    """What a chapter left behind: its names, and the last value of each cell that has one."""

    space: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    shown: list[tuple[nbformat.NotebookNode, Any]] = field(default_factory=list)

    def values(self, tag: str) -> list[Any]:
        """Last values of the cells with a tag."""
        return [value for cell, value in self.shown if tag in tags(cell)]

    @property
    def panels(self) -> Iterator[tuple[str, Any]]:
        """Everything in the chapter that has controls, by name."""
        return ((name, value) for name, value in self.space.items() if hasattr(value, "controls"))


def run(
    notebook: nbformat.NotebookNode,
    answers: Mapping[str, str] | None = None,
    space: dict[str, Any] | None = None,
) -> Run:
    """Run the code cells in one namespace; ``answers`` replaces ``answer = None`` by cell id."""
    found = Run() if space is None else Run(space)
    for cell in code_cells(notebook):
        tree = ast.parse(cell.source)
        if answers and cell.id in answers:
            _answer(tree, answers[cell.id])
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        name = f"<cell {cell.id}>"
        exec(compile(ast.fix_missing_locations(tree), name, "exec"), found.space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), found.space)
            found.shown.append((cell, value))
    return found


def _answer(tree: ast.Module, text: str) -> None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None:
            node.value = ast.parse(text, mode="eval").body
            return
    raise AssertionError("an exercise begins with `answer = None`")


def mime(value: Any) -> dict[str, Any]:
    """MIME bundle JupyterLab would get for a cell's last value."""
    if hasattr(value, "_repr_mimebundle_"):
        return dict(value._repr_mimebundle_())
    return DisplayFormatter().format(value)[0]


def settings(control: Any) -> list[Any]:
    """Values of a control worth trying: each option, or both ends and the middle of its range."""
    if hasattr(control, "options"):
        return [option[1] if isinstance(option, tuple) else option for option in control.options]
    if hasattr(control, "min"):
        middle = control.min + (control.max - control.min) // 2 // (control.step or 1) * (control.step or 1)
        return [control.min, type(control.value)(middle), control.max]
    return [False, True] if isinstance(control.value, bool) else [control.value]


def stored(cell: nbformat.NotebookNode) -> bool:
    """True for a cell whose text output is kept in the repository."""
    return KEEP in tags(cell)
