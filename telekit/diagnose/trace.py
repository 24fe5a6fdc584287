"""What ran where and when: one rank's events as columns, whatever profiler wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import bad

KINDS = ("host", "launch", "kernel", "communication", "copy", "wait", "data", "other")
"""Kinds of event; the column ``kind`` holds indices into it.

``host``: a CPU operator, Python function, annotation or step. ``launch``: a runtime call that puts work on a device.
``kernel``, ``communication`` (a collective or point-to-point kernel) and ``copy`` run on the device (a collective of
gloo or MPI runs on the host). ``wait``: a synchronisation, of a thread or of a stream. ``data``: loading of a batch.
``other``: anything else (an annotation drawn over a device's lanes, the profiler's own overhead)."""
OPERATIONS = ("", "all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv", "reduce",
              "gather", "scatter", "barrier")  # fmt: skip
"""Collectives; the column ``operation`` holds indices into it, 0 where none is known."""
DEVICE_KINDS = ("kernel", "communication", "copy")
KIND = {name: index for index, name in enumerate(KINDS)}
OPERATION = {name: index for index, name in enumerate(OPERATIONS)}

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lane:
    """Where events run one after another or nested: a thread of a process, or a stream of a device.

    Parameters
    ----------
    process, thread : str
        As the trace names them; of a device the device and the stream.
    on_device : bool
        A device's stream.
    label : str
        The trace's own words for it.
    """

    process: str
    thread: str = ""
    on_device: bool = False
    label: str = ""

    def __str__(self) -> str:
        """Process and thread, or device and stream."""
        kind = ("device", "stream") if self.on_device else ("process", "thread")
        return f"{kind[0]} {self.process} {kind[1]} {self.thread}" if self.thread else self.process


@dataclass(frozen=True)
class Group:
    """A process group of collectives: its name, its size (0 unknown), its ranks (none: unknown), and what it is for."""

    name: str
    size: int = 0
    ranks: tuple[int, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class TraceProblem:
    """Events of one reason: unusable and left out, or repaired and kept.

    Parameters
    ----------
    reason : str
        What is wrong.
    count : int
        How many events (or lines, or files).
    places : tuple of str
        The first few: file with byte, line or event.
    lost : bool
        Left out; False: kept, after the repair the reason names.
    """

    reason: str
    count: int = 1
    places: tuple[str, ...] = ()
    lost: bool = True

    def __str__(self) -> str:
        """One line: how many, why, where."""
        where = f" ({', '.join(self.places)}{', …' if self.count > len(self.places) else ''})"
        return f"{self.count:,}: {self.reason}{where if self.places else ''}"


@dataclass(frozen=True, eq=False)
class Trace:
    """One rank's events, by start; every column has one entry an event.

    Parameters
    ----------
    name : int32 array
        Index into ``names``.
    kind : int8 array
        Index into :data:`KINDS`.
    start_s, end_s : float64 arrays
        Seconds from the trace's base; ``start_s`` ascends, ``end_s >= start_s``.
    lane : int32 array
        Index into ``lanes``.
    correlation : int64 array
        Ties a launch to what it put on the device; -1 none.
    step : int32 array
        Step number; -1 none.
    bytes : int64 array
        Bytes of a collective (the larger of what goes in and out) or of a copy; 0 unknown.
    group : int32 array
        Index into ``groups``; -1 none.
    sequence : int64 array
        Number of the collective in its group; -1 unknown.
    operation : int8 array
        Index into :data:`OPERATIONS`.
    peer : int32 array
        The other rank of a point-to-point operation; -1 none.
    names, lanes, groups : tuples
        What the indices mean.
    rank, world_size : int or None
        None where neither the trace nor its file name says.
    device : str
        The device's name, if the trace says.
    source : str
        The file.
    base_ns : int or None
        Nanoseconds since the epoch of the trace's time 0; None where the clock's zero is unknown. Clocks of two ranks
        differ all the same: align before comparing.
    seen : mapping
        Records of the file by kind of record (Chrome's phase letters), whether they made an event or not.
    notes, problems : tuples
        What a reader should know; what could not be used.
    streams : bool
        Its device lanes are streams, on which one event ends before the next begins.
    """

    name: NDArray[np.int32]
    kind: NDArray[np.int8]
    start_s: Floats
    end_s: Floats
    lane: NDArray[np.int32]
    correlation: Ints
    step: NDArray[np.int32]
    bytes: Ints
    group: NDArray[np.int32]
    sequence: Ints
    operation: NDArray[np.int8]
    peer: NDArray[np.int32]
    names: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = ()
    groups: tuple[Group, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    device: str = ""
    source: str = ""
    base_ns: int | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[TraceProblem, ...] = ()
    streams: bool = True

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], **metadata: Any) -> Trace:
        """Build a trace from Python records.

        Parameters
        ----------
        records : iterable of mapping
            ``name``, ``kind``, ``start_s`` and ``end_s``; further columns where known. ``lane`` is a :class:`Lane` or a
            text (a device's stream for kinds that run on a device, else a thread; default one of each), ``group`` a
            :class:`Group` or a name, ``operation`` one of :data:`OPERATIONS`.
        **metadata
            ``rank``, ``world_size``, ``device``, ``source``, ``base_ns``, ``notes``, ``problems``.

        Raises
        ------
        InputError
            A kind or operation that does not exist, a time that is no number, an end before its start.
        """
        names: dict[str, int] = {}
        lanes: dict[Lane, int] = {}
        groups: dict[Group, int] = {Group(""): -1}
        rows = []
        for number, record in enumerate(records):
            kind, operation = _checked(record, f"records.{number}")
            lane, group = record.get("lane", ""), record.get("group", "")
            if not isinstance(lane, Lane):
                device = record["kind"] in DEVICE_KINDS
                lane = Lane("0", str(lane or ("7" if device else "main")), device)
            group = group if isinstance(group, Group) else Group(str(group))
            rows.append((
                names.setdefault(str(record["name"]), len(names)), kind, record["start_s"], record["end_s"],
                lanes.setdefault(lane, len(lanes)), record.get("correlation", -1), record.get("step", -1),
                record.get("bytes", 0), groups.setdefault(group, len(groups) - 1), record.get("sequence", -1),
                operation, record.get("peer", -1),
            ))  # fmt: skip
        rows.sort(key=lambda row: (row[2], -row[3]))
        named = zip(COLUMNS.items(), zip(*rows, strict=True) if rows else [()] * len(COLUMNS), strict=True)
        columns: dict[str, Any] = {name: np.array(values, kind) for (name, kind), values in named}
        return cls(**columns, names=tuple(names), lanes=tuple(lanes), groups=tuple(groups)[1:], **metadata)

    def __len__(self) -> int:
        """Count events."""
        return len(self.start_s)

    @property
    def duration_s(self) -> Floats:
        """Length of each event, seconds."""
        return self.end_s - self.start_s

    @property
    def span_s(self) -> tuple[float, float]:
        """Start of the first event and end of the last; (0, 0) of an empty trace."""
        return (float(self.start_s[0]), float(self.end_s.max())) if len(self) else (0.0, 0.0)

    @property
    def on_device(self) -> NDArray[np.bool_]:
        """Which events ran on a device's stream."""
        return np.array([lane.on_device for lane in self.lanes] or [False])[self.lane]

    def is_kind(self, *kinds: str) -> NDArray[np.bool_]:
        """Which events are of one of the kinds."""
        return np.array([k in kinds for k in KINDS])[self.kind]

    def named(self, pattern: str) -> NDArray[np.bool_]:
        """Which events have a name that the regular expression finds, ignoring case."""
        import re

        found = re.compile(pattern, re.IGNORECASE)
        return np.array([bool(found.search(n)) for n in self.names] or [False])[self.name]

    def select(self, which: NDArray[Any]) -> Trace:
        """Return the events of a mask or of ascending indices; names, lanes and metadata stay."""
        return replace(self, **{c: getattr(self, c)[which] for c in COLUMNS})

    def overruns(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return events that last into the next one of their stream, and that next one, as indices.

        A stream runs its work in order, so these were measured wrongly (a lost end, a counter that ran over); not so
        kernels of one launch of a graph (one correlation), which may run side by side, nor events of one start.
        """
        rows = np.flatnonzero(self.on_device & self.is_kind(*DEVICE_KINDS) & self.streams)
        rows = rows[np.lexsort((self.start_s[rows], self.lane[rows]))]
        now, then = rows[:-1], rows[1:]
        over = (self.lane[now] == self.lane[then]) & (self.end_s[now] > self.start_s[then])
        over &= self.start_s[then] > self.start_s[now]
        over &= (self.correlation[now] != self.correlation[then]) | (self.correlation[now] < 0)
        return now[over], then[over]

    def shifted(self, by_s: float) -> Trace:
        """Return the same events ``by_s`` seconds later (an aligned clock)."""
        return replace(self, start_s=self.start_s + by_s, end_s=self.end_s + by_s)

    def event(self, index: int) -> dict[str, Any]:
        """Return one event as a dictionary of plain values, its indices resolved; fit to be shown as evidence."""
        i, group = int(index), int(self.group[index])
        return {
            "name": self.names[self.name[i]],
            "kind": KINDS[self.kind[i]],
            "start_s": float(self.start_s[i]),
            "end_s": float(self.end_s[i]),
            "lane": str(self.lanes[self.lane[i]]),
            "step": int(self.step[i]),
            "bytes": int(self.bytes[i]),
            "group": self.groups[group].name if group >= 0 else "",
            "operation": OPERATIONS[self.operation[i]],
            "rank": self.rank,
        }


def _checked(record: Mapping[str, Any], place: str) -> tuple[int, int]:
    """Check a record; return its kind and operation as indices."""
    missing = [key for key in ("name", "kind", "start_s", "end_s") if key not in record]
    if missing:
        raise bad(f"{place}.{missing[0]}", "missing", "this field is required")
    kind, operation = record["kind"], record.get("operation", "")
    if kind not in KIND:
        raise bad(f"{place}.kind", kind, f"must be one of {list(KIND)}")
    if operation not in OPERATION:
        raise bad(f"{place}.operation", operation, f"must be one of {list(OPERATION)}")
    start, end = float(record["start_s"]), float(record["end_s"])
    if not (math.isfinite(start) and math.isfinite(end) and start <= end):
        raise bad(f"{place}.end_s", end, f"must be a time at or after start_s = {start}")
    return KIND[kind], OPERATION[operation]


COLUMNS: dict[str, type[Any]] = {
    "name": np.int32, "kind": np.int8, "start_s": np.float64, "end_s": np.float64, "lane": np.int32,
    "correlation": np.int64, "step": np.int32, "bytes": np.int64, "group": np.int32, "sequence": np.int64,
    "operation": np.int8, "peer": np.int32,
}  # fmt: skip
"""Columns of a trace and their types."""


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers that come as a table instead of events: step times, operator totals, timers, metrics.

    Parameters
    ----------
    kind : str
        ``steps`` (one row a step), ``operators`` (one row an operator type), ``timers`` (one row a report of timers)
        or ``metrics`` (one row a sample of a machine's counters).
    columns : mapping of str to float64 array
        Numbers; NaN where missing; SI units in the names (``computing_s``).
    labels : mapping of str to tuple of str
        Text columns, as long as the others.
    rank : int or None
        Whose; None where each row says (``columns["rank"]``), or nothing does.
    source : str
        The file.
    notes, problems : tuples
        What a reader should know; what could not be used.
    """

    kind: str
    columns: Mapping[str, Floats]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rank: int | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    problems: tuple[TraceProblem, ...] = ()

    def __len__(self) -> int:
        """Count rows."""
        lengths = [len(c) for c in self.columns.values()] + [len(t) for t in self.labels.values()]
        return max(lengths, default=0)


@dataclass(frozen=True, eq=False)
class TraceSet:
    """Traces of several ranks, by rank, and the tables that came with them.

    Parameters
    ----------
    traces : tuple of Trace
        One a rank; those of unknown rank last.
    tables : tuple of Table
        Summaries of the same run.
    notes : tuple of str
        What a reader should know of the folder.
    problems : tuple of TraceProblem
        Files that could not be used; each trace and table has its own besides.
    """

    traces: tuple[Trace, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[TraceProblem, ...] = ()

    @classmethod
    def of(cls, traces: Iterable[Trace], **rest: Any) -> TraceSet:
        """Order traces by rank."""
        return cls(tuple(sorted(traces, key=lambda t: (t.rank is None, t.rank or 0, t.source))), **rest)

    def __len__(self) -> int:
        """Count traces."""
        return len(self.traces)

    def __iter__(self) -> Iterator[Trace]:
        """Go through the traces."""
        return iter(self.traces)

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """Rank of each trace."""
        return tuple(t.rank for t in self.traces)

    def rank(self, rank: int) -> Trace:
        """Return one rank's trace.

        Raises
        ------
        InputError
            No trace is of that rank.
        """
        for trace in self.traces:
            if trace.rank == rank:
                return trace
        raise bad("rank", rank, f"no trace is of this rank; there are {list(self.ranks)[:20]}")

    @property
    def all_problems(self) -> tuple[TraceProblem, ...]:
        """Problems of the folder, of each trace and of each table."""
        parts = (self.problems, *(t.problems for t in self.traces), *(t.problems for t in self.tables))
        return tuple(p for part in parts for p in part)
