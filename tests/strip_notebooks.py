"""Strip notebooks in place for git: outputs and counts stay only in cells tagged ``keep_output``.

nbstripout alone would keep every count or none, and nbval compares only cells with a count.
"""

import sys
from pathlib import Path

import nbformat
from nbstripout import strip_output


def stripped(text: str) -> str:
    """Return the notebook's text as git should hold it."""
    book = nbformat.reads(text, as_version=4)
    strip_output(book, keep_output=False, keep_count=True, keep_id=True)
    book.metadata.pop("widgets", None)
    for cell in book.cells:
        if cell.cell_type == "code" and "keep_output" not in cell.metadata.get("tags", []):
            cell.execution_count = None
    return nbformat.writes(book) + "\n"


if __name__ == "__main__":
    changed = False
    for path in map(Path, sys.argv[1:]):
        before = path.read_text(encoding="utf-8")
        after = stripped(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed = True
    sys.exit(changed)
