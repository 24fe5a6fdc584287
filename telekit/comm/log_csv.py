"""CSV files of measured collectives: one row a line, columns by name."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator

from telekit.cluster.curves import MEASURED
from telekit.comm.log_rows import MAX_ROWS, NAMES, State, add_row
from telekit.comm.row_checks import Row
from telekit.errors import InputError, Problem, bad

_ALIASES = {
    "op": ("op", "operation", "collective", "op_name"),
    "ranks": ("ranks", "n_gpus", "num_gpus", "nranks", "n_ranks", "world_size"),
    "size_bytes": ("size_bytes", "bytes", "total_bytes", "size_b"),
    "nodes": ("nodes", "num_nodes"),
    "device": ("device", "gpu"),
    "algbw": ("algbw_gb_per_s", "algbw_gbs", "algbw"),
    "busbw": ("busbw_gb_per_s", "busbw_gbs", "busbw"),
}
_TIMES = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "latency_us": 1e-6, "latency_ms": 1e-3}


def read_csv(name: str, lines: Iterator[tuple[int, str]], state: State) -> None:
    """Read the numbered lines of a file called ``name`` into ``state``.

    Raises
    ------
    InputError
        When the header does not name the columns that are needed, or says one thing twice.
    """
    header = [text.strip().lower() for text in next(csv.reader([next(lines, (0, ""))[1]]), [])]
    place = {
        key: next((header.index(a) for a in names if a in header), -1) for key, names in _ALIASES.items()
    }
    units = [one for one in _TIMES if one in header]
    unit = units[0] if units else None
    _require_columns(state, place, unit, header)
    _check_columns(state, units, header)
    for line, text in lines:
        cells = [cell.strip() for cell in next(csv.reader([text]), [])]
        if not any(cells):
            continue
        if len(cells) != len(header):
            state.flag(line, text, f"is cut off or has columns too many: {len(cells)} of {len(header)}")
            continue

        def cell(key: str, cells: list[str] = cells) -> str:
            return cells[place[key]] if place[key] >= 0 else ""

        _csv_row(state, line, cell, cells[header.index(str(unit))], _TIMES[str(unit)])
        if len(state.rows) > MAX_ROWS:
            raise bad("file", name, f"has over {MAX_ROWS:,} rows", source=state.path)


def _require_columns(state: State, place: dict[str, int], unit: str | None, header: list[str]) -> None:
    needed = {"size_bytes": place["size_bytes"] >= 0, "time_s or time_us": unit is not None}
    needed["op"] = place["op"] >= 0 or state.op is not None
    needed["ranks"] = place["ranks"] >= 0 or state.ranks is not None
    problems = [
        Problem("line 1", ", ".join(header), f"no column {name}", "columns: op, ranks, size_bytes, time_us")
        for name, there in needed.items()
        if not there
    ]
    if problems:
        raise InputError(problems, state.path)


def _check_columns(state: State, units: list[str], header: list[str]) -> None:
    """Refuse columns that say one thing twice, and bandwidths in a unit that is not read."""
    problems = []
    if len(units) > 1:
        rule = "more than one column of time: which one counts is not clear"
        problems.append(Problem("line 1", ", ".join(units), rule, f"keep {units[0]}"))
    known = {alias for name in ("algbw", "busbw") for alias in _ALIASES[name]}
    for name in header:
        if "bw" in name and name not in known:
            hint = "algbw_gbs and busbw_gbs are 1e9 bytes a second"
            problems.append(Problem("line 1", name, "a bandwidth in a unit that is not read", hint))
    if problems:
        raise InputError(problems, state.path)


def _csv_row(state: State, line: int, cell: Callable[[str], str], time: str, unit_s: float) -> None:
    name = cell("op").lower()
    op = NAMES.get(name.replace("-", "_"), name)
    if not state.given_op and name:
        state.op = op
    if state.op not in MEASURED:
        state.flag(line, name, "no such collective", f"known: {', '.join(MEASURED)}")
        return
    try:
        size, seconds = int(cell("size_bytes")), float(time) * unit_s
        ranks = int(cell("ranks")) if cell("ranks") and not state.given_ranks else state.ranks
        state.nodes = int(cell("nodes") or 1)
        algbw, busbw = (float(text) * 1e9 if (text := cell(n)) else None for n in ("algbw", "busbw"))
    except ValueError:
        state.flag(line, _size_text(cell), "holds something that is not a whole size, rank count or time")
        return
    state.ranks, state.device = ranks, cell("device") or state.device
    add_row(state, line, Row(size, seconds, algbw, busbw, 0.006e9, 6e-8), None, False)


def _size_text(cell: Callable[[str], str]) -> str:
    """Return what a flagged CSV row is known by."""
    return f"{cell('op')} {cell('ranks')} ranks {cell('size_bytes')} bytes"
