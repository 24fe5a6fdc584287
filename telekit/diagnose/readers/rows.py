"""Rows of a CSV file: one bad line costs only itself, and a preamble before the header is passed over."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.readers.source import Progress, text_pieces

MAX_LINE = 1_000_000
PREAMBLE_LINES = 100
"""The header stands within so many lines."""
_UNIT = re.compile(
    r"[(\[]\s*(ns|us|μs|µs|ms|s|sec|%|B|KB|MB|GB|KiB|MiB|GiB|GB/s|MB/s|C|W|MHz)\s*[)\]]", re.IGNORECASE
)
_SCALE = {
    "ns": ("_s", 1e-9), "us": ("_s", 1e-6), "μs": ("_s", 1e-6), "µs": ("_s", 1e-6), "ms": ("_s", 1e-3),
    "s": ("_s", 1.0), "sec": ("_s", 1.0), "%": ("_share", 0.01), "b": ("_bytes", 1.0), "kb": ("_bytes", 1e3),
    "mb": ("_bytes", 1e6), "gb": ("_bytes", 1e9), "kib": ("_bytes", 2.0**10), "mib": ("_bytes", 2.0**20),
    "gib": ("_bytes", 2.0**30), "gb/s": ("_bytes_per_s", 1e9), "mb/s": ("_bytes_per_s", 1e6), "c": ("_celsius", 1.0),
    "w": ("_w", 1.0), "mhz": ("_hz", 1e6),
}  # fmt: skip
_EMPTY = {"", "n/a", "na", "nan", "none", "null", "-"}

Row = tuple[int, list[str]]


def lines(
    path: Path, problems: ProblemCounter, progress: Progress | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers; one that is too long is noted and left out."""
    rest, number, skipping = "", 0, False
    for piece in text_pieces(path, problems, progress):
        *whole, rest = (rest + piece).split("\n")
        for line in whole:
            number += 1
            if skipping or len(line) > MAX_LINE:
                problems.add(f"is over {MAX_LINE:,} characters long", f"line {number}")
            else:
                yield number, line
            skipping = False
        if len(rest) > MAX_LINE:
            rest, skipping = "", True
    if rest and not skipping:
        yield number + 1, rest


def ends_open(path: Path) -> bool:
    """Tell whether a file's last line has no end, as one cut off has none; not known of a compressed file."""
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def table_rows(
    path: Path,
    is_header: Callable[[list[str]], bool],
    problems: ProblemCounter,
    progress: Progress | None = None,
) -> tuple[list[str], Iterator[Row]]:
    """Return the header of a CSV file (plain names in lower case) and its rows with their line numbers.

    Each line is parsed alone: a quote that never closes costs one line, not the rest of the file.
    """
    source = lines(path, problems, progress)
    for number, line in source:
        header = [cell.strip().lower() for cell in split(line)]
        if is_header(header):
            return header, _body(header, source, problems, ends_open(path))
        if number >= PREAMBLE_LINES:
            break
    return [], iter(())


def split(line: str) -> list[str]:
    """Cells of one line; tabs separate where there is no comma."""
    mark = "\t" if "\t" in line and "," not in line else ","
    if '"' not in line and "\r" not in line and "\0" not in line:
        return line.split(mark) if line else []
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=mark), [])
    except csv.Error:
        return []


def _body(
    header: list[str], source: Iterator[tuple[int, str]], problems: ProblemCounter, open_end: bool
) -> Iterator[Row]:
    number, width = 0, len(header)
    for number, line in source:
        if not line.strip():
            continue
        cells = split(line)
        if len(cells) != width:
            if len(cells) == width + 1 and not cells[-1].strip():
                cells.pop()
            else:
                problems.add("has not as many cells as the header", f"line {number}")
                continue
        if cells[0].strip().lower() == header[0] and [c.strip().lower() for c in cells] == header:
            problems.add("is the header once more", f"line {number}")
        else:
            yield number, cells
    if open_end and number:
        problems.add("the last line has no end: its last cell may be cut", f"line {number}", lost=False)


def find(header: Sequence[str], *names: str) -> int:
    """Return the column of the first name that the header has; -1 where it has none."""
    plain = [re.sub(r"[\s_]+", "", h) for h in header]
    for name in names:
        wanted = name.replace("_", "").replace(" ", "").lower()
        if wanted in plain:
            return plain.index(wanted)
    return -1


def number(cell: str) -> float:
    """Return a cell's number; NaN of an empty one.

    Raises
    ------
    ValueError
        It is neither.
    """
    text = cell.strip()
    if text.lower() in _EMPTY:
        return math.nan
    if text.endswith("%"):
        return float(text[:-1]) / 100
    value = float(text)
    if math.isinf(value):
        raise ValueError("is infinite")
    return value


def column_name(header: str, default_unit: str = "") -> tuple[str, float]:
    """Return the name of a column in our units, and the factor to them.

    >>> column_name("Total Time(us)")
    ('total_time_s', 1e-06)
    """
    found = _UNIT.search(header)
    unit = found[1].lower() if found else default_unit
    plain = _UNIT.sub("", header) if found else header
    name = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")
    suffix, factor = _SCALE.get(unit, ("", 1.0))
    return (name if f"_{name}".endswith(suffix) else name + suffix), factor
