"""Read logs of collective benchmarks: nccl-tests text, Ascend's hccl_test text, CSV.

Every row is checked against itself (time times bandwidth is the size; bus bandwidth is bandwidth times the factor of
its ranks), so a log whose units were mixed up is flagged by line instead of fitted. Formats: nccl-tests README and
doc/PERFORMANCE.md; hccl_test prints ``data_size(Bytes) | aveg_time(us) | alg_bandwidth(GB/s) | check_result``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from telekit.cluster.curves import MEASURED
from telekit.comm.row_checks import DTYPE_BYTES, Row, fault_of
from telekit.errors import InputError, Problem, bad

MAX_LOG_BYTES = 64 * 2**20
MAX_LINE = 4096
MAX_ROWS = 100_000
MAX_PROBLEMS = 200

NAMES = {
    "all_reduce": "all-reduce",
    "allreduce": "all-reduce",
    "all_gather": "all-gather",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "broadcast": "broadcast",
    "sendrecv": "send-recv",
    "send_recv": "send-recv",
}
_PROGRAM = re.compile(r"(?<![a-z])(" + "|".join(NAMES) + r")(?:_perf(?:_mpi)?|_test)\b")


@dataclass(frozen=True)
class Measurement:
    """One measured time: whole buffer as nccl-tests counts it, seconds, and the line it stands on."""

    op: str
    ranks: int
    nodes: int
    size_bytes: int
    time_s: float
    device: str = ""
    source: str = ""
    line: int = 0
    in_place: bool = False
    busbw_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Readings:
    """What a log holds: sound rows, flagged lines (``field`` is ``line N``), and what was inferred."""

    rows: tuple[Measurement, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _State:
    """What the lines read so far say of the rows that follow."""

    path: str
    op: str | None
    ranks: int | None
    device: str
    given_op: bool = False
    given_ranks: bool = False
    nodes: int = 1
    listed: dict[int, int] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    columns: list[str] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def flag(self, line: int, value: object, rule: str, hint: str = "") -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(f"line {line}", value, rule, hint))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


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
    state = _State(str(path), op or found, ranks, device, op is not None, ranks is not None)
    (_read_csv if path.suffix.lower() == ".csv" else _read_text)(path, state)
    if nodes is not None:
        state.rows = [_with_nodes(row, nodes) for row in state.rows]
    if not state.rows:
        nothing = Problem("file", path.name, "holds no measurement that can be used")
        raise InputError([nothing, *state.problems], str(path))
    return Readings(tuple(state.rows), tuple(state.problems), tuple(state.notes))


def _with_nodes(row: Measurement, nodes: int) -> Measurement:
    from dataclasses import replace

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


def _read_text(path: Path, state: _State) -> None:
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


def _command(state: _State, line: str) -> None:
    """Take program and process count from a command line, where the log repeats it."""
    if not state.given_op and (found := _program(line)):
        state.op = found
    if not state.given_ranks and (match := _MPI.search(line)):
        state.ranks = int(match.group(1))


def _comment(state: _State, line: str) -> None:
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


def _nccl_row(state: _State, line: int, cells: list[str]) -> None:
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


def _nccl_half(state: _State, line: int, row: dict[str, str], prime: str) -> None:
    try:
        size, count = int(row["size"]), int(row["count"])
        time, algbw, busbw = (float(row[f"{name}{prime}"]) for name in ("time", "algbw", "busbw"))
    except ValueError:
        state.flag(line, " ".join(row.values()), "holds something that is not a number")
        return
    values = Row(size, time * 1e-6, algbw * 1e9, busbw * 1e9, 0.006e9, 6e-8 if time < 100 else 6e-7, count)
    _add(state, line, values, DTYPE_BYTES.get(row["type"]), bool(prime))


def _add(state: _State, line: int, row: Row, dtype_bytes: int | None, in_place: bool) -> None:
    if row.size_bytes == 0 and row.time_s > 0:
        state.note("rows of 0 bytes are left out")
        return
    if state.op is None or state.ranks is None:
        what = "the collective" if state.op is None else "the number of ranks"
        state.flag(
            line, row.size_bytes, f"the log does not say {what}", "give op and ranks to read_measurements"
        )
        return
    if fault := fault_of(row, state.op, state.ranks, dtype_bytes):
        state.flag(line, row.size_bytes, *fault)
        return
    state.rows.append(
        Measurement(
            state.op, state.ranks, state.nodes, row.size_bytes, row.time_s, state.device, state.path, line, in_place,
            row.busbw_bytes_per_s,
        )
    )  # fmt: skip


def _hccl_column(name: str) -> str:
    return "hccl " + name.strip().rstrip(":").split("(")[0]


def _hccl_row(state: _State, line: int, text: str) -> None:
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
    _add(state, line, Row(size, seconds, algbw * 1e9, None, 0.00001e9, 6e-9), None, False)


# --- CSV --------------------------------------------------------------------------------------------------------

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


def _read_csv(path: Path, state: _State) -> None:
    lines = _lines(path)
    header = [name.strip().lower() for name in next(csv.reader([next(lines, (0, ""))[1]]), [])]
    place = {
        key: next((header.index(a) for a in names if a in header), -1) for key, names in _ALIASES.items()
    }
    units = [name for name in _TIMES if name in header]
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

        def cell(name: str, cells: list[str] = cells) -> str:
            return cells[place[name]] if place[name] >= 0 else ""

        _csv_row(state, line, cell, cells[header.index(str(unit))], _TIMES[str(unit)])
        if len(state.rows) > MAX_ROWS:
            raise bad("file", path.name, f"has over {MAX_ROWS:,} rows", source=str(path))


def _require_columns(state: _State, place: dict[str, int], unit: str | None, header: list[str]) -> None:
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


def _check_columns(state: _State, units: list[str], header: list[str]) -> None:
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


def _csv_row(state: _State, line: int, cell: Callable[[str], str], time: str, unit_s: float) -> None:
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
        state.flag(line, size_text(cell), "holds something that is not a whole size, rank count or time")
        return
    state.ranks, state.device = ranks, cell("device") or state.device
    _add(state, line, Row(size, seconds, algbw, busbw, 0.006e9, 6e-8), None, False)


def size_text(cell: Callable[[str], str]) -> str:
    """Return what a flagged CSV row is known by."""
    return f"{cell('op')} {cell('ranks')} ranks {cell('size_bytes')} bytes"
