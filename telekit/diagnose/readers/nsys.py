"""Nsight Systems reports exported to SQLite (``nsys export --type sqlite``): one trace a process.

Format: the Nsight Systems export documentation, "SQLite Export Schema Reference". Tables are there only when something
was recorded, and columns differ between versions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from telekit.diagnose.builder import ProblemCounter, TraceBuilder, whole
from telekit.diagnose.readers.classify import is_communication, kind_of, operation
from telekit.diagnose.readers.finish import by_device, finished, rank_of, ranked
from telekit.diagnose.readers.source import Progress
from telekit.diagnose.readers.times import MAX_NS
from telekit.diagnose.trace import KIND, Lane, Trace
from telekit.documents import regular_size
from telekit.errors import bad

_RANGES = (59, 60, 70, 71)
"""Types of NVTX's events that have a length; others are marks and names."""
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_DEVICE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "gpu_memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "gpu_memset",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "kernel",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "cuda_sync",
}
_HOST = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": "cuda_runtime",
    "CUPTI_ACTIVITY_KIND_DRIVER": "cuda_driver",
    "NVTX_EVENTS": "nvtx",
    "OSRT_API": "osrt",
}
_NAMES = (
    "graphId",
    "graphExecId",
    "demangledName",
    "shortName",
    "nameId",
    "textId",
    "text",
    "copyKind",
    "syncType",
)


def read_nsys(path: Path, rank: int | None = None, progress: Progress | None = None) -> tuple[Trace, ...]:
    """Read an SQLite export of Nsight Systems.

    Parameters
    ----------
    path : Path
        The file; it is opened read-only and nothing in it is run.
    rank : int, optional
        Whose it is, if one process was recorded; default what the file's name says.
    progress : callable, optional
        Told tables read, tables in all and a text.

    Returns
    -------
    tuple of Trace
        One a process; of several the ranks are not known.

    Raises
    ------
    InputError
        It is no SQLite file, or has none of the tables.
    """
    regular_size(path)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            base.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            base.execute("PRAGMA trusted_schema = OFF")
            return _Export(base, path).traces(rank, progress)
    except sqlite3.Error as error:
        raise bad("file", path.name, f"is no readable SQLite export: {error}", source=str(path)) from None


class _Export:
    """One open export."""

    def __init__(self, base: sqlite3.Connection, path: Path) -> None:
        self._base, self._path = base, path
        self.problems = ProblemCounter()
        self._builders: dict[int, TraceBuilder] = {}
        found = base.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )  # a view could run anything
        self._tables = {str(name) for (name,) in found}
        self._strings = {
            i: str(v)[:2000] for i, v in self._all("SELECT id, value FROM StringIds", "StringIds")
        }

    def traces(self, rank: int | None, progress: Progress | None) -> tuple[Trace, ...]:
        """Read all tables of events."""
        wanted = [(t, c) for t, c in (_DEVICE | _HOST).items() if t in self._tables]
        wanted.sort(key=lambda one: not {"globalPid", "globalTid"} & {*self._columns(one[0])})
        if not wanted:
            rule = "has none of the tables of an nsys export (CUPTI_ACTIVITY_KIND_KERNEL, NVTX_EVENTS, ...)"
            raise bad("file", self._path.name, rule, source=str(self._path))
        for done, (table, category) in enumerate(wanted):
            self._table(table, category)
            if progress:
                progress(done + 1, len(wanted), f"reading {table}")
        starts = self._all(
            "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SESSION_START_TIME"
        )
        base = next((whole(s, 0) for (s,) in starts), 0)
        names = self._all("SELECT name FROM TARGET_INFO_GPU", "TARGET_INFO_GPU")
        device = next((str(n) for (n,) in names), "")
        builders = self._with_devices()
        whose = ranked(self._path, rank)
        if len(builders) > 1:
            note = f"{len(builders)} processes were recorded"
            whose = {"rank": None, "notes": (note,)}
        built = [
            finished(
                builder.build(
                    device=device,
                    source=f"{self._path} process {process}",
                    base_ns=base or None,
                    seen={"rows": len(builder)},
                    **whose,
                    problems=() if number else self.problems.listed(),
                )
            )
            for number, (process, builder) in enumerate(sorted(builders.items()))
        ]
        return tuple(built if rank_of(self._path) is not None else by_device(built))

    def _with_devices(self) -> dict[int, TraceBuilder]:
        """Leave out processes without work on a device (a launcher, loaders of data), where others have some."""
        if not self._builders:
            why = "; ".join(str(p) for p in self.problems.listed()) or "its tables are empty"
            raise bad(
                "file", self._path.name, f"has no event that can be used: {why}", source=str(self._path)
            )
        found = {p: b for p, b in self._builders.items() if any(lane.on_device for lane in b.lanes)}
        left = len(self._builders) - len(found)
        if found and left:
            events = sum(len(b) for p, b in self._builders.items() if p not in found)
            self.problems.add(
                f"an event of a process without work on a device ({left} of them)", count=events
            )
        return found or self._builders

    def _columns(self, table: str) -> list[str]:
        return [str(row[1]) for row in self._base.execute(f"PRAGMA table_info({table})")]

    def _all(self, query: str, table: str) -> Iterator[Any]:
        """Yield rows up to the first that cannot be read."""
        if table not in self._tables:
            return
        try:
            yield from self._base.execute(query)
        except sqlite3.Error as error:
            self.problems.add(f"the rest of table {table} cannot be read: {error}"[:160], table)

    def _table(self, table: str, category: str) -> None:
        """Read one table of events."""
        columns = self._columns(table)
        if not {"start", "end"} <= set(columns):
            self.problems.add(f"table {table} has no start and end", table)
            return
        wanted = (
            "start",
            "end",
            "globalPid",
            "globalTid",
            "deviceId",
            "streamId",
            "correlationId",
            "bytes",
            "eventType",
            *_NAMES,
        )
        kept = [c for c in wanted if c in columns]
        query = f"SELECT {', '.join(chr(34) + c + chr(34) for c in kept)} FROM {table}"  # names of ours only
        for number, row in enumerate(self._all(query, table), 1):
            event = dict(zip(kept, row, strict=True))
            start, end = event["start"], event["end"]
            if category == "nvtx" and (end is None or event.get("eventType", 59) not in _RANGES):
                if end is None and event.get("eventType") in _RANGES:
                    self.problems.add("a range began and never ended", f"{table} row {number}")
                continue  # a mark has no length
            if category in _DEVICE.values() and start == end == 0:
                self.problems.add("no time of it was recorded (0 to 0)", f"{table} row {number}")
                continue
            if type(start) is not int or type(end) is not int or not 0 <= start <= end < MAX_NS:
                self.problems.add("its start and end are no times in order", f"{table} row {number}")
                continue
            self._event(event, category)

    def _event(self, event: dict[str, Any], category: str) -> None:
        name = self._name(event, category)
        thread = max(whole(event.get("globalTid"), 0), 0)
        packed = thread or max(whole(event.get("globalPid"), 0), 0)
        process = (packed >> 24) & 0xFFFFFF  # a packed id: documented there
        if not packed and len(self._builders) == 1:
            process = next(iter(self._builders))  # a table that does not say it, of the only process
        builder = self._builders.setdefault(process, TraceBuilder())
        if category in _DEVICE.values():
            lane = Lane(str(event.get("deviceId", 0)), str(event.get("streamId", "")), True)
        else:
            lane = Lane(str(process), str(thread & 0xFFFFFF))
        kind, _ = kind_of(name, category, "", "", "")
        what = operation(name) if kind == KIND["communication"] and is_communication(name) else 0
        size = whole(event.get("bytes"), 0)
        builder.add(builder.name(name), kind, event["start"], event["end"], builder.lane(lane),
                    max(whole(event.get("correlationId")), -1), size_bytes=max(size, 0),
                    operation=what)  # fmt: skip

    def _name(self, event: dict[str, Any], category: str) -> str:
        """Name of an event: a text, or the number of one."""
        if category == "gpu_memcpy":
            return f"Memcpy {_COPIES.get(whole(event.get('copyKind'), 0), '')}".strip()
        if category == "gpu_memset":
            return "Memset"
        if category == "cuda_sync":
            return "Synchronize"
        if "graphExecId" in event or "graphId" in event:
            return "CUDA graph"
        for column in ("text", "textId", "demangledName", "shortName", "nameId"):
            value = event.get(column)
            if isinstance(value, str) and value:
                return value[:2000]
            if isinstance(value, int) and value in self._strings:
                return self._strings[value]
        return "(no name)"
