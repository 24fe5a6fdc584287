"""The JSON output of rocprofv3 (``--output-format json``).

Format: ROCprofiler-SDK's documentation, "Using rocprofv3": a list ``rocprofiler-sdk-tool`` with ``buffer_records``, the
names of kernels in ``kernel_symbols`` and those of API calls in ``strings``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from telekit.diagnose.builder import TraceBuilder, whole
from telekit.diagnose.readers.classify import is_outward, kind_of, operation
from telekit.diagnose.readers.finish import by_device, finished, rank_of, ranked
from telekit.diagnose.readers.source import Progress, text_pieces
from telekit.diagnose.readers.times import nanoseconds
from telekit.diagnose.trace import KIND, Lane, Trace
from telekit.documents import regular_size
from telekit.errors import bad

MARK = "rocprofiler-sdk-tool"
_NO_STREAM = "copies"
MAX_BYTES = 256_000_000
"""A larger file is refused: parsed whole it would take some 2 GB. The CSV files of the same tool are streamed."""


def read_rocprof(path: Path, rank: int | None = None, progress: Progress | None = None) -> tuple[Trace, ...]:
    """Read rocprofv3's JSON: one trace a process.

    Raises
    ------
    InputError
        Too large, no JSON (with line and column), or without the tool's list.
    """
    size = regular_size(path)
    builder = TraceBuilder()
    text, length = [], 0
    for piece in text_pieces(path, builder.problems, progress):
        text.append(piece)
        length += len(piece)
        if length > MAX_BYTES:
            rule = f"is too large: at most {MAX_BYTES:,} bytes of it are read; have rocprofv3 write csv"
            raise bad("file", f"{size:,} bytes", rule, source=str(path))
    try:
        whole_file = json.loads("".join(text), strict=False)
    except json.JSONDecodeError as error:
        raise bad("JSON", f"line {error.lineno}, column {error.colno}", error.msg, source=str(path)) from None
    except (RecursionError, ValueError) as error:
        raise bad("JSON", path.name, str(error)[:120], source=str(path)) from None
    tools = whole_file.get(MARK) if isinstance(whole_file, dict) else None
    tools = tools if isinstance(tools, list) else [tools]
    if not any(isinstance(tool, dict) for tool in tools):
        raise bad("file", path.name, f"has no list {MARK!r}", source=str(path))
    whose = ranked(path, rank)
    if len(tools) > 1:
        whose = {"rank": None, "notes": (f"{len(tools)} processes were recorded",)}
    found = [_trace(_dict(tool), path, whose) for tool in tools]
    return tuple(found if rank_of(path) is not None else by_device(found))


def _trace(tool: dict[str, Any], path: Path, whose: dict[str, Any]) -> Trace:
    """Trace of one process."""
    builder, seen = TraceBuilder(), 0
    names = _Names(tool)
    process = str(whole(_dict(tool.get("metadata")).get("pid"), 0))
    for table, records in _dict(tool.get("buffer_records")).items():
        if table not in ("kernel_dispatch", "memory_copy", "hip_api", "hsa_api", "marker_api", "rccl_api"):
            continue
        for number, record in enumerate(_list(records), 1):
            seen += 1
            try:
                _add(builder, table, _dict(record), names, process)
            except ValueError as error:
                builder.problems.add(f"a time is {error}", f"{table} record {number}")
    streams = not any(lane.on_device and lane.thread == _NO_STREAM for lane in builder.lanes)
    return finished(builder.build(**whose, source=str(path), seen={"records": seen}), streams)


def _add(builder: TraceBuilder, table: str, record: dict[str, Any], names: _Names, process: str) -> None:
    start = nanoseconds(record.get("start_timestamp"), 1)
    end = nanoseconds(record.get("end_timestamp"), 1)
    if end < start:
        raise ValueError("before the start")
    if table == "kernel_dispatch":
        info = _dict(record.get("dispatch_info"))
        name = names.kernel(info.get("kernel_id"))
        stream = _handle(record.get("stream_id")) or _handle(info.get("queue_id"))
        lane = Lane(_handle(info.get("agent_id")), stream, True)
        kind, _ = kind_of(name, "kernel", "", "", "")
    elif table == "memory_copy":
        name, kind = names.call(record), KIND["copy"]
        device = record.get("src_agent_id" if is_outward(name) else "dst_agent_id")
        lane = Lane(_handle(device), _handle(record.get("stream_id")) or _NO_STREAM, True)
    else:
        name = names.range(record) if table == "marker_api" else names.call(record)
        kind, _ = kind_of(name, "nvtx" if table == "marker_api" else "hip_api", "", "", "")
        lane = Lane(process, str(whole(record.get("thread_id"), 0)))
    correlation = _id(record)
    what = operation(name) if kind == KIND["communication"] else 0
    builder.add(builder.name(name), kind, start, end, builder.lane(lane), max(whole(correlation), -1),
                size_bytes=max(whole(record.get("bytes"), 0), 0), operation=what)  # fmt: skip


def _id(record: dict[str, Any]) -> Any:
    """Return what ties a record to others."""
    given = record.get("correlation_id")
    return _dict(given).get("internal", given)


class _Names:
    """Names of kernels and of API calls."""

    def __init__(self, tool: dict[str, Any]) -> None:
        self._kernels = {}
        for symbol in _items(tool.get("kernel_symbols")):
            text = next((symbol[k] for k in ("formatted_kernel_name", "truncated_kernel_name", "kernel_name")
                         if isinstance(symbol.get(k), str) and symbol[k]), "")  # fmt: skip
            self._kernels[whole(symbol.get("kernel_id"))] = text
        strings = _dict(tool.get("strings")).get("buffer_records")
        marks = _items(_dict(tool.get("strings")).get("marker_api"))
        self._ranges = {whole(m.get("key")): m["value"] for m in marks if isinstance(m.get("value"), str)}
        self._calls = [(_list(e.get("operations")), str(e.get("kind", ""))) for e in _items(strings)]

    def kernel(self, number: Any) -> str:
        """Name of a kernel."""
        return self._kernels.get(whole(number), "") or f"kernel {whole(number)}"

    def range(self, record: dict[str, Any]) -> str:
        """Name that a program gave to a range of its own; else the call that marked it."""
        given = self._ranges.get(whole(_id(record)), "")
        return given[:500] or self.call(record)

    def call(self, record: dict[str, Any]) -> str:
        """Name of an operation of a kind of record."""
        kind, what = whole(record.get("kind")), whole(record.get("operation"))
        if isinstance(record.get("operation"), str) and what < 0:
            return str(record["operation"])[:500]
        if not 0 <= kind < len(self._calls):
            return f"kind {kind} operation {what}"
        operations, label = self._calls[kind]
        return str(operations[what])[:500] if 0 <= what < len(operations) else f"{label} {what}"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _items(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, or of an object's values."""
    values = value.values() if isinstance(value, dict) else _list(value)
    return (v for v in values if isinstance(v, dict))


def _handle(value: Any) -> str:
    """Text of an id that is a number or an object with a handle."""
    handle = _dict(value).get("handle", value if not isinstance(value, dict) else None)
    return "" if handle is None else str(handle)
