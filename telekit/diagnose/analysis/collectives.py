"""The same collective on several ranks: who came last, how long it took, who waited."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.steps import Steps
from telekit.diagnose.trace import OPERATION, OPERATIONS, Floats, Ints, Trace

SEND, RECEIVE = (
    re.compile(r"send(?!.?recv)", re.IGNORECASE),
    re.compile(r"(?<!send)(?<!send.)recv", re.IGNORECASE),
)


@dataclass(frozen=True, eq=False)
class Collectives:
    """Events of communication of all ranks, those of one operation together.

    Parameters
    ----------
    rank : (n,) int array
        Index of the trace of each event.
    event : (n,) int array
        Index of the event in its trace.
    step : (n,) int array
        Index of its step in its trace.
    start_s, end_s : (n,) arrays
        By the rank's own clock.
    key : (n,) int array
        Which operation; events of one key ran together.
    group : (operations,) int array
        Index of each operation's group in ``groups``.
    groups : tuple of str
        Groups of ranks that meet: process groups, and pairs of point-to-point operations.
    members : (operations,) int array
        Events of each operation.
    transfer_s : (operations,) array
        The shortest duration: that of the rank that came last, so without waiting for others.
    kind : (operations,) int array
        Operations of one kind compare: same operation, size of group, bytes.
    """

    rank: Ints
    event: Ints
    step: Ints
    start_s: Floats
    end_s: Floats
    key: Ints
    group: Ints
    groups: tuple[str, ...]
    members: Ints
    transfer_s: Floats
    kind: Ints

    def __len__(self) -> int:
        """Count events."""
        return len(self.rank)

    @property
    def wait_s(self) -> Floats:
        """Seconds each event waited for the last rank, shape (n,); 0 where no other rank of it was seen."""
        spent = self.end_s - self.start_s - self.transfer_s[self.key]
        return np.where(self.members[self.key] > 1, spent, 0.0)

    def ranks_of(self) -> dict[int, NDArray[np.int64]]:
        """Return the indices of the traces of each group."""
        group = self.group[self.key]
        first = identify(group, self.rank)[1]
        order = first[np.lexsort((self.rank[first], group[first]))]
        parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []
        return {int(group[part[0]]): self.rank[part] for part in parts}


def communication_events(trace: Trace) -> NDArray[np.intp]:
    """Find a rank's communication: that on the device, else the calls of the host."""
    which = trace.is_kind("communication")
    device = which & trace.on_device
    return np.flatnonzero(device if device.any() else which)


def match(traces: Sequence[Trace], steps: Sequence[Steps]) -> Collectives:
    """Find the events of each operation on all ranks.

    Events belong together by group and sequence number where the trace has them, else by their place among those of
    their group and operation in their step. Point-to-point operations belong together by the pair and its direction.
    """
    groups: dict[str, int] = {}
    parts = [
        _keys(trace, found, i, groups) for i, (trace, found) in enumerate(zip(traces, steps, strict=True))
    ]
    columns = np.concatenate(parts) if parts else np.zeros((0, 9), np.int64)
    rank, event, step, group, operation, direction, place, again, size = columns.T
    key, first = identify(group, operation, direction, place, again)
    group_of = group[first]
    start = np.concatenate([[], *(t.start_s[communication_events(t)] for t in traces)])
    end = np.concatenate([[], *(t.end_s[communication_events(t)] for t in traces)])
    members = np.bincount(key, minlength=len(first))
    transfer = np.full(len(first), np.inf)
    np.minimum.at(transfer, key, end - start)
    largest = np.zeros(len(first), np.int64)
    np.maximum.at(largest, key, size)
    seats = _distinct(group, rank, len(groups))[group_of] if len(first) else group_of
    kind = identify(operation[first], seats, largest)[0]
    return Collectives(rank, event, step, start, end, key, group_of, tuple(groups), members, transfer, kind)


def identify(*columns: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """Give distinct rows of integer columns numbers; return each row's, and the first row of each."""
    code = np.zeros(len(columns[0]), np.int64)
    if not len(code):
        return code, code.astype(np.intp)
    span = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if span * (high - low + 1) > 2**62:  # make room: numbers without holes
            code = np.unique(code, return_inverse=True)[1].ravel().astype(np.int64)
            span = int(code.max()) + 1
        if span * (high - low + 1) > 2**62:
            column = np.unique(column, return_inverse=True)[1].ravel()
            low, high = 0, int(column.max())
        code = code * (high - low + 1) + (column - low)
        span *= high - low + 1
    _, first, number = np.unique(code, return_index=True, return_inverse=True)
    return number.ravel().astype(np.int64), first


def _distinct(group: Ints, rank: Ints, groups: int) -> Ints:
    """Ranks seen in each group."""
    first = identify(group, rank)[1]
    return np.bincount(group[first], minlength=groups)


def _keys(trace: Trace, steps: Steps, index: int, groups: dict[str, int]) -> Ints:
    """Return what identifies each communication event of one rank: one row an event."""
    events = communication_events(trace)
    group = _groups(trace, events, groups)
    operation = trace.operation[events].astype(np.int64)
    unknown = operation == 0
    if unknown.any():  # then the name stands for the operation
        hashes = {n: _named(trace.names[n]) for n in np.unique(trace.name[events[unknown]])}
        operation[unknown] = [hashes[n] for n in trace.name[events[unknown]]]
    paired = (trace.peer[events] >= 0) & (trace.operation[events] == OPERATION["send-recv"])
    direction = np.where(paired, _direction(trace, events), 0)
    sequence = np.where(paired, -1, trace.sequence[events])
    step = steps.of_event[events]
    by_step = steps.number_of(events)
    place = places(group, operation, direction, by_step)
    place = np.where(sequence >= 0, sequence, -2 - (by_step + 1) * 1_000_000 - place)
    again = places(group, operation, direction, place)  # a call and what it calls carry one number
    columns = (
        np.full(len(events), index),
        events,
        step,
        group,
        operation,
        direction,
        place,
        again,
        trace.bytes[events],
    )
    return np.column_stack(columns).astype(np.int64)


def _named(name: str) -> int:
    """Return a number for an operation known by its name only; the same on every rank."""
    import zlib

    return len(OPERATIONS) + zlib.crc32(name.encode())


def _groups(trace: Trace, events: NDArray[np.intp], groups: dict[str, int]) -> Ints:
    """Index of the ranks that each event meets: its pair, else its process group."""
    peer = np.where(trace.operation[events] == OPERATION["send-recv"], trace.peer[events], -1)
    peer = peer if trace.rank is not None else np.full(len(events), -1)
    number, first = identify(np.where(peer >= 0, -1, trace.group[events]), peer)
    names = []
    for i in first:
        other, at = int(peer[i]), int(trace.group[events[i]])
        if other >= 0:
            low, high = sorted((int(trace.rank or 0), other))
            name = f"ranks {low} and {high}"
        elif at < 0:
            name = "?"
        else:
            group = trace.groups[at]
            name = f"{group.name} {group.ranks}" if group.ranks else group.name
        names.append(groups.setdefault(name, len(groups)))
    return np.array(names, np.int64)[number] if len(number) else number


def _direction(trace: Trace, events: NDArray[np.intp]) -> Ints:
    """1 from the lower rank to the higher, 2 the other way, 0 unknown."""
    sends = np.array([bool(SEND.search(n)) for n in trace.names] or [False])[trace.name[events]]
    receives = np.array([bool(RECEIVE.search(n)) for n in trace.names] or [False])[trace.name[events]]
    upward = sends == (trace.peer[events] > (trace.rank or 0))
    return np.where((sends == receives) | (trace.rank is None), 0, np.where(upward, 1, 2)).astype(np.int64)


def places(*columns: Ints) -> Ints:
    """Count each row's equals before it, in order."""
    same = identify(*columns)[0]
    if not len(same):
        return same
    order = np.argsort(same, kind="stable")
    first = np.r_[True, np.diff(same[order]) > 0]
    begin = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - begin
    return place
