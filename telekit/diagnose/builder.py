"""Build a trace event by event: names and lanes interned, columns in compact arrays, problems counted by reason."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

from telekit.diagnose.trace import (
    COLUMNS,
    Group,
    Lane,
    Trace,
    TraceProblem,
)

MAX_PLACES = 5
"""Places listed of one reason; further ones are only counted."""
MAX_REASONS = 200
"""Reasons told apart; what comes after is counted as one."""
_CODES = {np.int8: "b", np.int32: "i", np.int64: "q", np.float64: "d"}


class ProblemCounter:
    """Counts what could not be used, by reason, with the first few places of each."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bool], tuple[list[int], list[str]]] = {}

    def add(self, reason: str, place: str = "", *, lost: bool = True, count: int = 1) -> None:
        """Count ``count`` more of a reason."""
        key = (reason, lost)
        if key not in self._found and len(self._found) >= MAX_REASONS:
            key = ("further kinds of problem", lost)
        total, places = self._found.setdefault(key, ([0], []))
        total[0] += count
        if place and len(places) < MAX_PLACES:
            places.append(place)

    def __len__(self) -> int:
        """Count reasons."""
        return len(self._found)

    def listed(self) -> tuple[TraceProblem, ...]:
        """Return one problem a reason."""
        return tuple(
            TraceProblem(reason, total[0], tuple(places), lost)
            for (reason, lost), (total, places) in self._found.items()
        )


class TraceBuilder:
    """Collects one rank's events.

    Times are whole nanoseconds from any base, which keeps each: seconds since 1970 as a float lose 0.2 us.
    """

    def __init__(self) -> None:
        self.problems = ProblemCounter()
        self.columns: dict[str, array[Any]] = {name: array(_CODES[kind]) for name, kind in COLUMNS.items()}
        self.columns |= {"start_s": array("q"), "end_s": array("q")}
        self._names: dict[str, int] = {}
        self._lanes: dict[Lane, int] = {}
        self._groups: dict[str, tuple[int, Group]] = {}
        self._append = tuple(c.append for c in self.columns.values())

    def __len__(self) -> int:
        """Count events."""
        return len(self.columns["name"])

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Lanes so far."""
        return tuple(self._lanes)

    def name(self, text: str) -> int:
        """Intern a name."""
        return self._names.setdefault(text, len(self._names))

    def lane(self, lane: Lane) -> int:
        """Intern a lane."""
        return self._lanes.setdefault(lane, len(self._lanes))

    def group(self, group: Group) -> int:
        """Intern a process group by its name; what was not known of it before is added."""
        if not group.name:
            return -1
        index, old = self._groups.get(group.name, (len(self._groups), group))
        merged = Group(
            group.name, old.size or group.size, old.ranks or group.ranks, old.description or group.description
        )
        self._groups[group.name] = (index, merged)
        return index

    def add(
        self,
        name: int,
        kind: int,
        start_ns: int,
        end_ns: int,
        lane: int,
        correlation: int = -1,
        step: int = -1,
        size_bytes: int = 0,
        group: int = -1,
        sequence: int = -1,
        operation: int = 0,
        peer: int = -1,
    ) -> None:
        """Add one event; every index comes from this builder."""
        a = self._append
        a[0](name)
        a[1](kind)
        a[2](start_ns)
        a[3](end_ns)
        a[4](lane)
        a[5](correlation)
        a[6](step)
        a[7](size_bytes)
        a[8](group)
        a[9](sequence)
        a[10](operation)
        a[11](peer)

    def build(self, **metadata: Any) -> Trace:
        """Return the trace, its events by start (of one start the longest first: the outer one).

        The first start becomes time 0, and ``base_ns`` (that of the times given) moves with it.
        """
        columns: dict[str, Any] = {}
        for name, column in self.columns.items():
            columns[name] = (
                np.frombuffer(column, column.typecode) if len(column) else np.empty(0, column.typecode)
            )
        if _unordered(columns["start_s"], columns["end_s"]):
            order = np.lexsort((-columns["end_s"], columns["start_s"]))
            for name in columns:
                columns[name] = columns[name][order]
                self.columns[name] = array("b")  # what was sorted need not be held twice
        zero = int(columns["start_s"][0]) if len(columns["start_s"]) else 0
        columns |= {name: (columns[name] - zero) / 1e9 for name in ("start_s", "end_s")}
        base = metadata.get("base_ns")
        metadata["base_ns"] = None if base is None else base + zero
        problems = (*metadata.pop("problems", ()), *self.problems.listed())
        groups = tuple(group for _, group in self._groups.values())
        return Trace(**columns, names=tuple(self._names), lanes=tuple(self._lanes), groups=groups,
                     problems=problems, **metadata)  # fmt: skip


def _unordered(start: Any, end: Any) -> bool:
    """Whether the events are not by start yet, or of one start not by end, longest first."""
    later, same = np.diff(start), np.diff(end)
    return bool(((later < 0) | ((later == 0) & (same > 0))).any())


def whole(value: Any, default: int = -1, limit: int = 2**63 - 1) -> int:
    """Return an integer that a trace gives as a number or a text, or the default where it is neither."""
    if type(value) is int:
        return value if -limit <= value <= limit else default
    if isinstance(value, str) and len(value) < 40:
        try:
            number = int(value, 16) if value[:2] in ("0x", "0X") else int(value)
        except ValueError:
            try:
                number = int(float(value))
            except (ValueError, OverflowError):
                return default
        return number if -limit <= number <= limit else default
    if isinstance(value, float) and math.isfinite(value) and abs(value) < limit:
        return int(value)
    return default
