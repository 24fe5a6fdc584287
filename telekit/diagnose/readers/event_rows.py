"""Events as rows of CSV: Ascend's kernel_details.csv and op_summary, traces of ``nsys stats`` and of rocprof.

Formats: Ascend PyTorch Profiler's and msprof's file references; the Nsight Systems analysis guide (``cuda_gpu_trace``,
``cuda_api_trace``, ``nvtx_pushpop_trace``); ROCprofiler-SDK, "Using rocprofv3" (``*_kernel_trace.csv`` and others).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from telekit.diagnose.builder import TraceBuilder, whole
from telekit.diagnose.readers.classify import ascend_task, is_outward, kind_of, operation
from telekit.diagnose.readers.finish import finished, median_place, ranked
from telekit.diagnose.readers.rows import find, table_rows
from telekit.diagnose.readers.source import Progress
from telekit.diagnose.readers.times import EPOCH_NS, nanoseconds
from telekit.diagnose.trace import KIND, Lane, Trace
from telekit.errors import bad

_UNITS = {"ns": 1, "us": 1000, "μs": 1000, "µs": 1000, "ms": 1_000_000, "s": 1_000_000_000, "nsec": 1, "usec": 1000,
          "msec": 1_000_000, "sec": 1_000_000_000}  # fmt: skip


def _named(*names: str) -> tuple[str, ...]:
    """Write each name of a time with each unit."""
    return tuple(f"{name}({unit})" for name in names for unit in _UNITS)


_START = ("start_timestamp", "beginns", *_named("start time", "task start time", "start"))
_END = ("end_timestamp", "endns", *_named("end time", "end"))
_DURATION = ("durationns", *_named("duration", "task duration"))
_NAME = ("kernel_name", "kernelname", "op name", "name", "function", "direction", "operation")
_SIZE = re.compile(r"^(?:bytes|size)\s*(?:\((\w+)\))?$")
_SIZE_UNITS = {"": 1.0, "b": 1.0, "byte": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10,
               "mib": 2.0**20, "gib": 2.0**30}  # fmt: skip


@dataclass(frozen=True)
class _Columns:
    """Which column holds what; -1 where none does."""

    name: int
    start: int
    end: int
    duration: int
    start_unit_ns: int
    end_unit_ns: int
    duration_unit_ns: int
    stream: int
    device: int
    correlation: int
    process: int
    thread: int
    task: int
    domain: int
    size: int
    size_unit: float
    step: int
    direction: int
    target: int
    call: int

    @classmethod
    def of(cls, header: list[str]) -> _Columns:
        """Find the columns of a header."""
        start, end, duration = find(header, *_START), find(header, *_END), find(header, *_DURATION)
        size, unit = _size(header)
        return cls(
            name=find(header, *_NAME),
            start=start,
            end=end,
            duration=duration,
            start_unit_ns=_unit(header, start),
            end_unit_ns=_unit(header, end),
            duration_unit_ns=_unit(header, duration),
            stream=find(header, "stream id", "strm", "stream", "stream_id", "queue_id", "queue-id"),
            device=find(header, "device_id", "device", "agent_id", "gpu-id", "gpu_id", "source_agent_id"),
            correlation=find(header, "corrid", "correlation_id", "correlation id"),
            process=find(header, "pid", "process_id"),
            thread=find(header, "tid", "thread_id"),
            task=find(header, "accelerator core", "task type"),
            domain=find(header, "domain", "kind"),
            size=size,
            size_unit=unit,
            step=find(header, "step id"),
            direction=find(header, "direction"),
            target=find(header, "destination_agent_id"),
            call=find(header, "function"),
        )

    @property
    def usable(self) -> bool:
        """Whether events can be read."""
        return self.name >= 0 and self.start >= 0 and (self.end >= 0 or self.duration >= 0)

    @property
    def on_device(self) -> bool:
        """Whether the rows are of a device, not of the host."""
        return max(self.stream, self.task, self.direction) >= 0 or (self.device >= 0 and self.thread < 0)


def _size(header: list[str]) -> tuple[int, float]:
    """Find the column of sizes, and its unit in bytes; -1 where none has a unit that is known."""
    for column, name in enumerate(header):
        found = _SIZE.match(name)
        if found and (found[1] or "") in _SIZE_UNITS:
            return column, _SIZE_UNITS[found[1] or ""]
    return -1, 1.0


_RULE = "has no columns of a name, a start and an end or a duration"


def _unit(header: list[str], column: int) -> int:
    name = header[column] if column >= 0 else ""
    for unit, size in _UNITS.items():
        if name.replace(" ", "").endswith(f"({unit})"):
            return size
    return 1


def is_event_header(header: list[str]) -> bool:
    """Whether a header is of a table of events."""
    return len(header) >= 3 and _Columns.of(header).usable


def read_event_rows(
    paths: Sequence[Path], rank: int | None = None, progress: Progress | None = None
) -> Trace:
    """Read CSV files with one event a row, all of one rank and one clock, into one trace.

    Parameters
    ----------
    paths : sequence of Path
        Such as the traces of kernels, of API calls and of copies that one run of rocprofv3 writes.
    rank : int, optional
        Default: what the first file's name says.
    progress : callable, optional
        Told bytes read of a file, its bytes in all and a text.

    Raises
    ------
    InputError
        One has no header with a name, a start and an end or duration.
    """
    builder, seen, streams = TraceBuilder(), 0, True
    for path in paths:
        header, rows = table_rows(path, is_event_header, builder.problems, progress)
        if not header:
            raise bad("header", path.name, _RULE, source=str(path))
        columns = _Columns.of(header)
        streams = streams and (columns.stream >= 0 or not columns.on_device)
        where = f"{path.name} " if len(paths) > 1 else ""
        for number, cells in rows:
            seen += 1
            try:
                _add(builder, columns, cells)
            except ValueError as error:
                builder.problems.add(f"a time, duration or size is {error}", f"{where}line {number}")
    _without_ids(builder)
    trace = builder.build(
        **ranked(paths[0], rank),
        source=str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more",
        base_ns=0 if median_place(builder.columns["start_s"]) > EPOCH_NS else None,
        seen={"rows": seen},
    )
    return finished(trace, streams)


def _without_ids(builder: TraceBuilder) -> None:
    """Drop what ties launches to kernels where rows of several processes stand together: each counts from its own 1."""
    processes = {lane.process for lane in builder.lanes if not lane.on_device}
    if len(processes) > 1:
        reason = "calls of several processes stand in one table: which kernel each launched is not told"
        builder.problems.add(reason, ", ".join(sorted(processes)[:5]), lost=False, count=len(processes))
        builder.columns["correlation"] = array("q", [-1]) * len(builder)


def _add(builder: TraceBuilder, columns: _Columns, cells: list[str]) -> None:
    """Add the event of one row."""

    def cell(column: int) -> str:
        return cells[column].strip() if column >= 0 else ""

    start = nanoseconds(cell(columns.start), columns.start_unit_ns)
    if columns.duration >= 0:
        end = start + nanoseconds(cell(columns.duration), columns.duration_unit_ns)
    else:
        end = nanoseconds(cell(columns.end), columns.end_unit_ns)
    if end < start:
        raise ValueError("before the start")
    name = cell(columns.name) or cell(columns.call) or "(no name)"
    task, domain = cell(columns.task), cell(columns.domain)
    kind, on_device = _kind(name, task, domain, columns)
    if on_device:
        thread = cell(columns.stream) or task or "all"
        inward = columns.target >= 0 and not is_outward(name)
        lane = Lane(cell(columns.target if inward else columns.device) or "0", thread, True)
    else:
        lane = Lane(cell(columns.process) or "0", cell(columns.thread) or "main", False)
    size = columns.size_unit * float(cell(columns.size) or 0) if columns.size >= 0 else 0.0
    step = whole(cell(columns.step), -1, 2**31 - 1) if columns.step >= 0 else -1
    what = operation(name) if kind == KIND["communication"] else 0
    builder.add(builder.name(name), kind, start, end, builder.lane(lane), max(whole(cell(columns.correlation)), -1),
                max(step, -1), int(size) if 0 <= size < 1 << 62 else 0, operation=what)  # fmt: skip


def _kind(name: str, task: str, domain: str, columns: _Columns) -> tuple[int, bool]:
    """Kind of a row's event, and whether it is on a device."""
    on_device = columns.on_device or domain.lower().endswith(("_ops", "_ops_domain"))
    if not on_device or domain.lower().startswith(("memory_alloc", "scratch")):
        return kind_of(name, "nvtx" if "marker" in domain.lower() else "runtime", "", "", "")
    lower = name.lower()
    if columns.direction >= 0 or "memcpy" in lower or "memset" in lower or "copybuffer" in lower:
        return KIND["copy"], True
    return KIND[ascend_task(name, "", task)], True
