"""Read logs of collective benchmarks: nccl-tests text, Ascend's hccl_test text, CSV.

Every row is checked against itself (time times bandwidth is the size; bus bandwidth is bandwidth times the factor of
its ranks), so a log whose units were mixed up is flagged by line instead of fitted. Formats: nccl-tests README and
doc/PERFORMANCE.md; hccl_test prints ``data_size(Bytes) | aveg_time(us) | alg_bandwidth(GB/s) | check_result``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from telekit.cluster.curves import MEASURED
from telekit.comm.log_csv import read_csv
from telekit.comm.log_rows import MAX_ROWS, NAMES, Measurement, Readings, State, add_row
from telekit.comm.row_checks import DTYPE_BYTES, Row
from telekit.errors import InputError, Problem, bad

__all__ = ["NAMES", "Measurement", "Readings", "read_measurements"]

MAX_LOG_BYTES = 64 * 2**20
MAX_LINE = 4096

_PROGRAM = re.compile(r"(?<![a-z])(" + "|".join(NAMES) + r")(?:_perf(?:_mpi)?|_test)(?![a-z])")


def read_measurements(
    path: str | Path,
    *,
    op: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    device: str = "",
) -> Readings:
    """Read one log.

    Parameters
    ----------
    path : str or Path
        Text of nccl-tests or hccl_test, or a CSV file with the columns op, ranks, size_bytes and time_s (or
        time_us, time_ms), and if it has them nodes, device, algbw_gb_per_s, busbw_gb_per_s.
    op, ranks, nodes, device : optional
        What the log does not say; where given, they win over what it says.

    Returns
    -------
    Readings
        Sound rows; one flagged line for each that is not.

    Raises
    ------
    InputError
        When the file cannot be read, is over 64 MiB, is of no known format, or holds no sound row (then with all
        flagged lines).
    """
    path = Path(path)
    if op is not None and op not in MEASURED:
        raise bad("op", op, "no such collective", f"known: {', '.join(MEASURED)}")
    for name, value in (("ranks", ranks), ("nodes", nodes)):
        if value is not None and not 1 <= value <= 2**20:
            raise bad(name, value, "must be a whole number from 1 to 2**20", "for example 8")
    found = _program(path.name)
    state = State(str(path), op or found, ranks, device, op is not None, ranks is not None)
    if path.suffix.lower() == ".csv":
        read_csv(path.name, _lines(path), state)
    else:
        _read_text(path, state)
    if nodes is not None:
        state.rows = [_with_nodes(row, nodes) for row in state.rows]
    if not state.rows:
        nothing = Problem("file", path.name, "holds no measurement that can be used")
        raise InputError([nothing, *state.problems], str(path))
    return Readings(tuple(state.rows), tuple(state.problems), tuple(state.notes))


def _with_nodes(row: Measurement, nodes: int) -> Measurement:
    return replace(row, nodes=nodes)


def _program(text: str) -> str | None:
    """Return the collective that a program's name in ``text`` stands for."""
    match = _PROGRAM.search(text.lower())
    return NAMES[match.group(1)] if match else None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, one at a time and of bounded length."""
    try:
        if not path.is_file():
            raise bad("file", str(path), "is not a regular file that can be read", source=str(path))
        if path.stat().st_size > MAX_LOG_BYTES:
            rule = f"is over {MAX_LOG_BYTES // 2**20} MiB"
            raise bad("file", path.name, rule, "cut it to the tables of results", str(path))
        with path.open(encoding=_encoding(path), errors="replace") as file:
            number = 0
            while text := file.readline(MAX_LINE):
                number += 1
                if len(text) == MAX_LINE and not text.endswith("\n"):
                    rule = f"has a line of {MAX_LINE} characters or more: no benchmark's log"
                    raise bad(f"line {number}", text[:20], rule, source=str(path))
                yield number, text.rstrip("\n")
    except OSError as error:
        raise bad("file", str(path), f"cannot be read: {error.strerror}", source=str(path)) from None


def _encoding(path: Path) -> str:
    """UTF-16 where the file begins with its mark (PowerShell writes so), else UTF-8."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


# --- text -------------------------------------------------------------------------------------------------------

_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+(.*)", re.I)
_SETTING = re.compile(r"#\s*nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)", re.I)
_MPI = re.compile(r"\bmpi(?:run|exec)\b.*?\s-(?:np?|-np)\s+(\d+)")
_PREFIX = re.compile(
    r"^\s*(?:\[[\w.,-]+\](?:<std(?:out|err)>)?:"  # Open MPI's, with job or host
    r"|\d+:(?=\s)"  # srun --label
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]*\]?(?=\s))\s?"  # a time
)
"""What launchers put before each line."""


def _read_text(path: Path, state: State) -> None:
    last = 0
    for last, raw in _lines(path):
        line = raw
        while (shorter := _PREFIX.sub("", line)) != line:
            line = shorter
        if "data_size" in line and "alg_bandwidth" in line:
            state.columns = [_hccl_column(name) for name in line.split("|")]
        elif "|" in line and state.columns and state.columns[0].startswith("hccl"):
            _hccl_row(state, last, line)
        elif line.lstrip().startswith("#"):
            _comment(state, line.strip())
        elif re.match(r"\s*-?\d+\s+-?\d+\s+[a-z]", line):
            _nccl_row(state, last, line.split())
        elif state.columns and re.match(r"\s*\d+\s*$|\s*\d+\s+\d+\s*$", line):
            state.flag(last, line.strip(), "is cut off: the row has no time")
        else:
            _command(state, line)
        if len(state.rows) > MAX_ROWS:
            raise bad("file", path.name, f"has over {MAX_ROWS:,} rows", source=str(path))
    if not state.columns:
        rule = "has no table of nccl-tests or hccl_test"
        raise bad("file", path.name, rule, "a CSV file must end in .csv", str(path))


def _command(state: State, line: str) -> None:
    """Take program and process count from a command line, where the log repeats it."""
    if not state.given_op and (found := _program(line)):
        state.op = found
    if not state.given_ranks and (match := _MPI.search(line)):
        state.ranks = int(match.group(1))


def _comment(state: State, line: str) -> None:
    if match := _RANK.match(line):
        group = int(match.group(2) or 0)
        state.listed[group] = state.listed.get(group, 0) + 1
        if group == 0:
            state.hosts.add(match.group(3))
        if not state.given_ranks:
            state.ranks = state.listed.get(0)
        state.nodes = max(1, len(state.hosts))
        name = re.sub(r"^\s*\[[^\]]*\]\s*", "", match.group(4)).strip()
        state.device = state.device or name
    elif match := _SETTING.match(line):  # a new test begins
        state.listed, state.hosts, state.nodes, state.columns = {}, set(), 1, []
        if not state.given_ranks:
            state.ranks = state.ranks if _one_each(match) else int(match.group(1)) * int(match.group(2))
    elif re.match(r"#\s+size\s+count\s+type", line):
        state.columns = _nccl_columns(line.lstrip("# ").split())
    elif not state.given_op and (found := _program(line)):
        state.op = found


def _one_each(match: re.Match[str]) -> bool:
    """One GPU a process says nothing of the group: the processes are counted elsewhere."""
    return match.group(1) == match.group(2) == "1"


def _nccl_columns(names: list[str]) -> list[str]:
    """Column names; those of the second half, measured in place, get a prime."""
    seen: set[str] = set()
    out = []
    for name in names:
        name = name.split("(")[0].lstrip("#")
        out.append(f"{name}'" if name in seen else name)
        seen.add(name)
    return out


def _nccl_row(state: State, line: int, cells: list[str]) -> None:
    if not state.columns:
        state.flag(line, cells[0], "a row before any header: its columns are not known")
        return
    if len(cells) != len(state.columns):
        rule = f"is cut off or has columns too many: {len(cells)} of {len(state.columns)}"
        state.flag(line, " ".join(cells), rule)
    row = dict(zip(state.columns, cells, strict=False))
    for prime in ("", "'"):
        if row.get(f"busbw{prime}") is None or row[f"time{prime}"] == "N/A":
            continue
        wrong = row.get(f"wrong{prime}", row.get(f"error{prime}", "0"))
        if "wrong" in state.columns and wrong not in ("N/A", "0"):
            state.flag(line, wrong, "wrong elements: the result of this row is not right")
            continue
        _nccl_half(state, line, row, prime)


def _nccl_half(state: State, line: int, row: dict[str, str], prime: str) -> None:
    try:
        size, count = int(row["size"]), int(row["count"])
        time, algbw, busbw = (float(row[f"{name}{prime}"]) for name in ("time", "algbw", "busbw"))
    except ValueError:
        state.flag(line, " ".join(row.values()), "holds something that is not a number")
        return
    values = Row(size, time * 1e-6, algbw * 1e9, busbw * 1e9, 0.006e9, 6e-8 if time < 100 else 6e-7, count)
    add_row(state, line, values, DTYPE_BYTES.get(row["type"]), bool(prime))


def _hccl_column(name: str) -> str:
    return "hccl " + name.strip().rstrip(":").split("(")[0]


def _hccl_row(state: State, line: int, text: str) -> None:
    cells = [cell.strip() for cell in text.split("|")]
    row = dict(zip(state.columns, cells, strict=False))
    if len(cells) != len(state.columns) or not all(cells):
        state.flag(line, text.strip(), "is cut off: a row has size, time, bandwidth and check result")
        return
    if row["hccl check_result"].lower() not in ("success", "null"):
        state.flag(line, row["hccl check_result"], "wrong elements: the result of this row is not right")
        return
    time = row.get("hccl aveg_time", row.get("hccl avg_time", ""))
    try:
        size, seconds, algbw = (
            int(row["hccl data_size"]),
            float(time) * 1e-6,
            float(row["hccl alg_bandwidth"]),
        )
    except ValueError:
        state.flag(line, text.strip(), "holds something that is not a number")
        return
    state.note("hccl_test's data_size is taken as the whole buffer, to which it aligns the ranks' shares")
    add_row(state, line, Row(size, seconds, algbw * 1e9, None, 0.00001e9, 6e-9), None, False)
