"""Numbers that come as tables: Ascend's step times and operator totals, and metrics of machines.

Formats: Ascend PyTorch Profiler's documentation (``step_trace_time.csv``, ``op_statistic.csv``) and msprof-analyze's
(``cluster_step_trace_time.csv``); metrics: a column of time, one that names the machine or rank, numbers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.readers.finish import ranked
from telekit.diagnose.readers.rows import column_name, find, number, table_rows
from telekit.diagnose.readers.source import Progress
from telekit.diagnose.trace import Table
from telekit.errors import bad

MAX_CELLS = 2**27
"""Cells of a table that are kept (1 GiB)."""
CHUNK_ROWS = 4096
_SECONDS = 1e11
"""A time beyond this is no number of seconds (the year 5138)."""
_STEP_TEXTS = ("type", "device_id")
_TIME = ("timestamp", "time", "time_s", "timestamp_s", "datetime", "date", "ts")
WHO = ("machine", "host", "hostname", "node", "instance", "rank", "device", "gpu", "npu")
"""Columns that say whose a sample is, from the outside in."""


def is_step_header(header: list[str]) -> bool:
    """Whether a header is of Ascend's step times."""
    return find(header, "computing") >= 0 and find(header, "free") >= 0


def is_operator_header(header: list[str]) -> bool:
    """Whether a header is of Ascend's operator totals."""
    return find(header, "op type") >= 0 and find(header, "total time(us)") >= 0 and find(header, "count") >= 0


def is_metric_header(header: list[str]) -> bool:
    """Whether a header is of metrics over time."""
    return (
        len(header) >= 2
        and find(header, *_TIME) >= 0
        and not any(h.startswith(("start", "duration")) for h in header)
    )


def read_steps(path: Path, rank: int | None = None, progress: Progress | None = None) -> Table:
    """Read Ascend's step times: one row a step (of the cluster's file one a step and rank), times in seconds."""

    def place(name: str) -> tuple[str, float] | None:
        if name in _STEP_TEXTS:
            return None
        if name in ("step", "index"):
            return ("step" if name == "step" else "rank"), 1.0
        return ("index_" + name.split()[0], 1.0) if name.endswith(" index") else column_name(name, "us")

    return _read("steps", path, is_step_header, place, rank, progress)


def read_operators(path: Path, rank: int | None = None, progress: Progress | None = None) -> Table:
    """Read Ascend's operator totals: one row an operator type; ``ratio_share`` is its share of the time."""

    def place(name: str) -> tuple[str, float] | None:
        return None if name in ("op type", "core type", "device_id", "model name") else column_name(name)

    return _read("operators", path, is_operator_header, place, rank, progress)


def read_metrics(path: Path, rank: int | None = None, progress: Progress | None = None) -> Table:
    """Read metrics over time: ``time_s`` (of dates: since 1970), labels that say whose, and one column a metric."""

    def place(name: str) -> tuple[str, float] | None:
        if name in _TIME:
            return "time_s", 1.0
        return None if (name in WHO and name != "rank") or name == "metric" else column_name(name)

    return _read("metrics", path, is_metric_header, place, rank, progress)


def _read(
    kind: str,
    path: Path,
    is_header: Callable[[list[str]], bool],
    place: Callable[[str], tuple[str, float] | None],
    rank: int | None,
    progress: Progress | None,
) -> Table:
    """Read a table; a cell that is no number is noted, and missing (NaN) in the table."""
    problems = ProblemCounter()
    header, rows = table_rows(path, is_header, problems, progress)
    if not header:
        raise bad("header", path.name, f"is not that of a table of {kind}", source=str(path))
    places = [place(name) for name in header]
    names = _distinct(
        [p[0] if p else h.replace(" ", "_") for p, h in zip(places, header, strict=True)], problems
    )
    numbers: dict[int, array[float]] = {i: array("d") for i, p in enumerate(places) if p}
    texts: dict[int, list[str]] = {i: [] for i, p in enumerate(places) if not p}
    known: dict[str, str] = {}  # a word that stands in many cells is held once
    left = MAX_CELLS // len(header)
    while chunk := list(islice(rows, min(CHUNK_ROWS, max(left, 1)))):
        if left <= 0:
            problems.add(f"stands after {MAX_CELLS:,} cells, more are not read", f"line {chunk[0][0]}")
            break
        left -= len(chunk)
        lines, cells = zip(*chunk, strict=True)
        for i, column in enumerate(zip(*cells, strict=True)):
            if i in numbers:
                numbers[i].extend(_numbers(column, header[i], lines, problems))
            else:
                texts[i] += [known.setdefault(word, word) for word in map(str.strip, column)]
    columns = {names[i]: np.frombuffer(numbers[i], float) * p[1] for i, p in enumerate(places) if p}
    if kind in ("steps", "operators"):
        _without_negative(columns, problems)
    labels = {names[i]: tuple(words) for i, words in texts.items()}
    return Table(kind, columns, labels, source=str(path), problems=problems.listed(), **ranked(path, rank))


def _distinct(names: list[str], problems: ProblemCounter) -> list[str]:
    """Give a number to names that several columns would have."""
    found: list[str] = []
    for name in names:
        other, again = name, 2
        while other in found:
            other, again = f"{name}_{again}", again + 1
        if other != name:
            problems.add(
                f"several columns are called {name[:60]!r}: one is taken as {other[:64]!r}", lost=False
            )
        found.append(other)
    return found


def _without_negative(columns: dict[str, NDArray[np.float64]], problems: ProblemCounter) -> None:
    """Take times and counts below 0 as missing."""
    for name, values in columns.items():
        below = np.flatnonzero(values < 0)
        if len(below) and name.endswith(("_s", "count")):
            problems.add(
                f"a value of {name[:60]!r} is below 0: missing",
                f"row {below[0] + 1}",
                lost=False,
                count=len(below),
            )
            columns[name] = np.where(values < 0, np.nan, values)


def _numbers(
    cells: Sequence[str], name: str, lines: Sequence[int], problems: ProblemCounter
) -> NDArray[np.float64]:
    """Return a column's numbers, of a time in seconds; all at once where nothing is odd about them."""
    try:
        found = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        found = np.full(1, np.inf)
    if np.isinf(found).any() or (name in _TIME and (found > _SECONDS).any()):
        found = np.array(
            [_cell(c, name, line, problems) for c, line in zip(cells, lines, strict=True)], float
        )
    return found


def _cell(cell: str, name: str, line: int, problems: ProblemCounter) -> float:
    """Return a cell's number, of a time in seconds; NaN, noted, where it has none."""
    try:
        if name in _TIME:
            return _time_s(cell.strip())
        return number(cell)
    except (ValueError, OverflowError):
        problems.add(f"a cell of {name[:60]!r} is no number: missing", f"line {line}", lost=False)
        return math.nan


def _time_s(text: str) -> float:
    """Seconds of a time: a number (of ms, us or ns, told by its size, where it is too large for seconds) or a date."""
    try:
        value = number(text)
    except ValueError:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    for limit, unit in ((1e17, 1e-9), (1e14, 1e-6), (_SECONDS, 1e-3)):
        if value > limit:
            return value * unit
    return value
