"""CSV of a curve: a header, a column of steps, and columns of numbers (also TensorBoard's and W&B's exports)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from telekit.accuracy.readers.curve import CurveBuilder, LossCurve, as_number
from telekit.accuracy.readers.problems import Problems, shown
from telekit.errors import bad

MAX_COLUMNS = 1000
MAX_LINE = 100_000
_STEPS = (
    "step",
    "steps",
    "iteration",
    "iterations",
    "iter",
    "global_step",
    "global step",
    "_step",
    "train/step",
)
_SEPARATORS = ",\t;"


def is_table(head: bytes) -> bool:
    """Tell a table by its first line: two or more short cells, one of them a name of steps, or numbers only."""
    line = head.decode("utf-8-sig", "replace").splitlines()[:1]
    if not line or len(line[0]) >= 4000:
        return False
    cells = [cell.strip().strip('"').lower() for cell in line[0].split(_separator(line[0]))]
    return any(cell in _STEPS for cell in cells) or (len(cells) == 2 and None not in map(as_number, cells))


def _separator(line: str) -> str:
    return max(_SEPARATORS, key=line.count)


def read_table(path: Path, problems: Problems) -> LossCurve:
    """Read a CSV file; a cell that is no number is noted with its line, an empty one is a missing value.

    Raises
    ------
    InputError
        No column of steps, too many columns, or no value.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as text:
        lines = _lines(text, path, problems)
        first = next(lines, "")
        separator = _separator(first)
        header = [shown(cell.strip()) for cell in next(csv.reader([first], delimiter=separator), [])]
        builder = CurveBuilder(path, "csv", problems)
        if None not in map(as_number, header):
            problems.add(path, "line 1", "has no header: read as step and loss")
            header = ["step", "loss"]
            _row([cell.strip() for cell in first.split(separator)], 1, header, 0, builder)
        at = next((i for i, name in enumerate(header) if name.lower() in _STEPS), None)
        if at is None or len(header) > MAX_COLUMNS:
            raise bad("header", shown(header, 80), f"must name a column step or iteration, and {MAX_COLUMNS} columns "
                      "at most", source=str(path))  # fmt: skip
        _check_header(header, path, problems)
        rows = csv.reader(lines, delimiter=separator)
        try:
            for row in rows:
                _row([cell.strip() for cell in row], rows.line_num + 1, header, at, builder)
        except csv.Error as error:  # a quote that never closes
            problems.add(path, f"line {rows.line_num + 1}", f"{error}: the rest is not read", lost=True)
    return builder.curve()


def _lines(text: TextIO, path: Path, problems: Problems) -> Iterator[str]:
    """Yield lines of bounded length without NULs: csv would raise on either."""
    number = 0
    while line := text.readline(MAX_LINE):
        number += 1
        if len(line) >= MAX_LINE:
            what = f"is over {MAX_LINE:,} characters: the rest is not read"
            problems.add(path, f"line {number}", what, lost=True)
            return
        yield line.replace("\0", "")


def _check_header(header: list[str], path: Path, problems: Problems) -> None:
    for index, name in enumerate(header):
        if name in header[:index]:
            problems.add(path, f"column {index + 1}", f"the name {name} stands twice: the first is kept")
            header[index] = ""


def _row(row: list[str], number: int, header: list[str], at: int, builder: CurveBuilder) -> None:
    if not any(row):
        return
    place = f"line {number}"
    if len(row) != len(header):
        what = f"has {len(row)} cells, the header {len(header)}: read as far as it goes"
        builder.problems.add(builder.source, place, what, lost=True)
    step = _step(row[at]) if len(row) > at else None
    if step is None:
        builder.problems.add(builder.source, place, "has no step that is a count: left out", lost=True)
        return
    for index, (name, cell) in enumerate(zip(header, row, strict=False)):
        if index == at or not name or not cell or name.lower() == "wall time":
            continue
        value = as_number(cell)
        if value is not None:
            builder.add(name, step, value)
        else:
            builder.unread(name, f"{place}, column {name}", f"{shown(cell, 40)} is not a number")


def _step(cell: str) -> int | None:
    """Return a step written as 12 or 12.0."""
    value = as_number(cell)
    if value is None or not 0 <= value < 2**53:
        return None
    return int(value) if value == int(value) else None
