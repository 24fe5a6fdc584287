"""Run notebooks in a real kernel and store the outputs that nbval compares; strip all others.

    python tests/notebooks/write_outputs.py notebooks/08_parallelization_framework.ipynb

Do this after a change that is meant to move numbers, and read the diff: it is the change.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from notebook_tools import NOTEBOOKS, code_cells, read, stored


def write(path: Path) -> None:
    """Run one notebook in its own folder; copy the outputs that are compared, as text, into the file."""
    notebook = read(path)
    ran = copy.deepcopy(notebook)
    NotebookClient(ran, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell, after in zip(code_cells(notebook), code_cells(ran), strict=True):
        cell.outputs, cell.execution_count = [], None
        if stored(cell):
            cell.outputs, cell.execution_count = after.outputs, after.execution_count
        for output in cell.outputs:
            if "data" in output:
                output.data = {"text/plain": output.data["text/plain"]}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in [Path(a) for a in sys.argv[1:]] or NOTEBOOKS:
        write(name)
