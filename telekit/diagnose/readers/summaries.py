"""Numbers that come as tables: Ascend's step times and operator totals, and metrics of machines.

Formats: Ascend PyTorch Profiler's documentation (``step_trace_time.csv``, ``op_statistic.csv``) and msprof-analyze's
(``cluster_step_trace_time.csv``); metrics: a column of time, one that names the machine or rank, numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.readers.finish import rank_of
from telekit.diagnose.readers.rows import column_name, find, number, table_rows
from telekit.diagnose.readers.source import Progress
from telekit.diagnose.trace import Table
from telekit.errors import bad

MAX_ROWS = 20_000_000
_STEP_TEXTS = ("type", "device_id")
_TIME = ("timestamp", "time", "time_s", "timestamp_s", "datetime", "date", "ts")
_WHO = ("machine", "host", "hostname", "node", "instance", "rank", "device", "gpu", "npu")


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
        return None if (name in _WHO and name != "rank") or name == "metric" else column_name(name)

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
    numbers: dict[int, list[float]] = {i: [] for i, p in enumerate(places) if p}
    texts: dict[int, list[str]] = {i: [] for i, p in enumerate(places) if not p}
    for count, (line, cells) in enumerate(rows):
        if count >= MAX_ROWS:
            problems.add(f"stands after {MAX_ROWS:,} rows, more are not read", f"line {line}")
            break
        for i, values in numbers.items():
            values.append(_cell(cells[i], header[i], line, problems))
        for i, words in texts.items():
            words.append(cells[i].strip())
    columns = {p[0]: np.array(numbers[i], float) * p[1] for i, p in enumerate(places) if p}
    labels = {header[i].replace(" ", "_"): tuple(words) for i, words in texts.items()}
    return Table(
        kind, columns, labels, rank if rank is not None else rank_of(path), str(path), (), problems.listed()
    )


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
    for limit, unit in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)):
        if value > limit:
            return value * unit
    return value
