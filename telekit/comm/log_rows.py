"""Rows of benchmarks' logs, whatever the format: what one holds, and what the lines read so far say of the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from telekit.comm.row_checks import Row, fault_of
from telekit.errors import Problem

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
class State:
    """What the lines read so far say of the rows that follow, and all that was found in them."""

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
        """Keep what is wrong with a line."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(f"line {line}", value, rule, hint))

    def note(self, text: str) -> None:
        """Keep a remark, once."""
        if text not in self.notes:
            self.notes.append(text)


def add_row(state: State, line: int, row: Row, dtype_bytes: int | None, in_place: bool) -> None:
    """Add a row that agrees with itself; flag one that does not."""
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
