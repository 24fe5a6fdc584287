"""Chrome trace JSON as PyTorch's Kineto and Ascend's profilers write it, streamed into columns.

Formats: the Trace Event Format of Chromium; pytorch/kineto ``libkineto/src/output_json.cpp``; the documentation of
Ascend PyTorch Profiler and msprof (``trace_view.json``, ``msprof_*.json``: a bare list, times as text).
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from telekit.diagnose.builder import ProblemCounter, TraceBuilder, whole
from telekit.diagnose.readers.classify import (
    is_call,
    is_device_category,
    kind_of,
    operation,
    size_of,
)
from telekit.diagnose.readers.finish import finished, median_place, ranked
from telekit.diagnose.readers.jsonstream import JsonEvents
from telekit.diagnose.readers.source import Progress, text_pieces
from telekit.diagnose.readers.times import EPOCH_NS, nanoseconds
from telekit.diagnose.trace import KIND, OPERATION, Group, Lane, Trace

_INT32 = 2**31 - 1
_DEVICE_LANE, _HOST_LANE = True, False
_UNUSED = frozenset("sftiICnNODPRc(),")
"""Phases of events without a length of their own: flows, instants, counters, objects, samples, contexts."""
_NO_ARGS: dict[str, Any] = {}


def read_chrome(path: Path, rank: int | None = None, progress: Progress | None = None) -> Trace:
    """Read a Chrome trace, plain or gzip, an object or a bare list, whole or cut off.

    Parameters
    ----------
    path : Path
        The file.
    rank : int, optional
        Whose it is; default what the trace says, else what its name says.
    progress : callable, optional
        Told bytes read, bytes in all and a text.

    Returns
    -------
    Trace
        Its ``problems`` name what was left out or repaired, by reason, with the number of the first few events.

    Raises
    ------
    InputError
        The file cannot be read at all.
    """
    reader = ChromeReader(ProblemCounter())
    events = JsonEvents(text_pieces(path, reader.problems, progress), reader.problems)
    for event in events:
        reader.add(event, events.count)
    return reader.trace(events.members, path, rank)


class ChromeReader:
    """Collects Chrome trace events; kinds are told at the end, when the names of the processes are known."""

    def __init__(self, problems: ProblemCounter) -> None:
        self.problems = problems
        self.builder = TraceBuilder()
        self.seen: dict[str, int] = {}
        self._tags: dict[tuple[str, str], int] = {}  # category and task type
        self._device_tags: list[bool] = []
        self._tag = array("i")
        self._lanes: dict[tuple[str, str, bool], int] = {}
        self._calls: dict[int, int] = {}  # names of host events that call a collective: which
        self._process_names: dict[str, str] = {}
        self._process_labels: dict[str, str] = {}
        self._thread_names: dict[tuple[str, str], str] = {}
        self._open: dict[Any, list[tuple[dict[str, Any], int]]] = {}

    def add(self, event: Any, number: int) -> None:
        """Take one event; ``number`` is its place in the list."""
        if type(event) is not dict:
            self.problems.add("is not an object", f"event {number}")
            return
        phase = event.get("ph")
        if type(phase) is not str:
            self.problems.add("has no phase (ph)", f"event {number}")
            return
        self.seen[phase] = self.seen.get(phase, 0) + 1
        if phase == "X":
            self._complete(event, number)
        elif phase in ("B", "b"):
            self._open.setdefault(_track(event, phase), []).append((event, number))
        elif phase in ("E", "e"):
            self._end(event, phase, number)
        elif phase == "M":
            self._metadata(event, number)
        elif phase not in _UNUSED:
            self.problems.add(f"has a phase that is not known: {phase[:20]!r}", f"event {number}")

    def _complete(self, event: dict[str, Any], number: int) -> None:
        """Take an event that has its start and duration."""
        try:
            start = nanoseconds(event.get("ts"))
        except ValueError as error:
            self.problems.add(f"its time (ts) is {error}", f"event {number}")
            return
        try:
            duration = nanoseconds(event["dur"])
        except KeyError:
            self.problems.add("has no duration (dur): taken as 0", f"event {number}", lost=False)
            duration = 0
        except ValueError as error:
            self.problems.add(f"its duration (dur) is {error}", f"event {number}")
            return
        if duration < 0:
            self.problems.add("has a negative duration", f"event {number}")
            return
        self._take(event, start, start + duration, number)

    def _take(self, event: dict[str, Any], start: int, end: int, number: int) -> None:
        """Store an event whose times are known."""
        builder = self.builder
        name = event.get("name")
        if type(name) is not str:
            if name is None:
                self.problems.add("has no name: called (no name)", f"event {number}", lost=False)
            name = "(no name)" if name is None else str(name)[:200]
        args = event.get("args", _NO_ARGS)
        if type(args) is not dict:
            args = _NO_ARGS
        category, task = event.get("cat", ""), args.get("Task Type", "")
        tag = self._tags.get((category, task)) if type(category) is str and type(task) is str else None
        if tag is None:
            tag = self._new_tag(str(category)[:100], str(task)[:100])
        key = (str(event.get("pid", "")), str(event.get("tid", "")), self._device_tags[tag])
        lane = self._lanes.setdefault(key, len(self._lanes))
        correlation = args.get("correlation", args.get("connection_id"))
        if correlation is None:  # what tells two host events apart stands there meanwhile, negative
            correlation = -2 - whole(args.get("Ev Idx", args.get("Profiler Event Index")), -1, 1 << 60)
        elif type(correlation) is not int or not -1 <= correlation < 1 << 62:
            correlation = max(whole(correlation), -1)
        index = builder.name(name)
        called = self._calls.get(index)
        if called is None:
            called = self._calls[index] = operation(name) if is_call(name) else 0
        self._tag.append(tag)
        if called or "Collective name" in args or "Group size" in args:
            builder.add(index, 0, start, end, lane, correlation, -1, *self._collective(args, called))
        else:
            size = args.get("bytes", args.get("size(Byte)", 0))
            builder.add(index, 0, start, end, lane, correlation, -1, size if type(size) is int and
                        0 <= size < 1 << 62 else max(whole(size, 0), 0))  # fmt: skip

    def _new_tag(self, category: str, task: str) -> int:
        """Intern a category with a task type."""
        tag = self._tags.setdefault((category, task), len(self._tags))
        if tag == len(self._device_tags):
            self._device_tags.append(_DEVICE_LANE if is_device_category(category) else _HOST_LANE)
        return tag

    def _collective(self, args: dict[str, Any], called: int) -> tuple[int, int, int, int, int]:
        """Bytes, group, sequence, operation and peer of a collective from an event's arguments."""
        name = str(args.get("Process Group Name", ""))
        ranks = _ranks(args.get("Process Group Ranks"))
        size, about = max(whole(args.get("Group size"), 0), 0), str(args.get("Process Group Description", ""))
        group = self.builder.group(Group(name, size or len(ranks), ranks, about))
        elements = max(whole(args.get("In msg nelems"), 0), whole(args.get("Out msg nelems"), 0))
        size_bytes = size_of(str(args.get("dtype", "")), elements) or _input_bytes(args)
        if "size(Byte)" in args:
            size_bytes = max(whole(args["size(Byte)"], 0), 0)
        peer = whole(args.get("Dst Rank", args.get("dst rank")), -1, _INT32)
        if peer < 0:
            peer = whole(args.get("Src Rank", args.get("src rank")), -1, _INT32)
        what = operation(str(args.get("Collective name", ""))) or called
        one_to_one = what in (OPERATION["send-recv"], 0)
        sequence = whole(args.get("Seq", args.get("seq", args.get("seq_num"))))
        return min(size_bytes, 1 << 62), group, sequence, what, peer if one_to_one else -1

    def _end(self, event: dict[str, Any], phase: str, number: int) -> None:
        """Join an end to its beginning: the last one on its track, of the same name if it gives one."""
        open_events = self._open.get(
            _track(event, phase.upper().replace("E", "B") if phase == "E" else "b"), []
        )
        name = event.get("name")
        for place in range(len(open_events) - 1, -1, -1):
            begun, first = open_events[place]
            if name is None or begun.get("name") in (name, None):
                break
        else:
            self.problems.add("ends what never began", f"event {number}")
            return
        del open_events[place]
        try:
            start, end = nanoseconds(begun.get("ts")), nanoseconds(event.get("ts"))
        except ValueError as error:
            self.problems.add(f"its time (ts) is {error}", f"event {first}")
            return
        if end < start:
            self.problems.add("ends before it begins", f"event {first}")
            return
        args = {**_dict(begun.get("args")), **_dict(event.get("args"))}
        self._take({**event, **begun, "args": args}, start, end, first)

    def _metadata(self, event: dict[str, Any], number: int) -> None:
        """Keep names of processes and threads."""
        args, what = _dict(event.get("args")), event.get("name")
        pid, tid = str(event.get("pid", "")), str(event.get("tid", ""))
        if what == "process_name":
            self._process_names[pid] = str(args.get("name", ""))
        elif what == "process_labels":
            self._process_labels[pid] = str(args.get("labels", ""))
        elif what == "thread_name":
            self._thread_names[pid, tid] = str(args.get("name", ""))
        elif type(what) is not str:
            self.problems.add("is metadata without a name", f"event {number}")

    def trace(self, members: dict[str, Any], path: Path, rank: int | None) -> Trace:
        """Return the trace of what was collected."""
        for left in self._open.values():
            for _, number in left:
                self.problems.add("begins and never ends", f"event {number}")
        kinds, lanes = self._kinds()
        columns = self.builder.columns
        columns["kind"], columns["lane"] = array("b", kinds.tobytes()), array("i", lanes.tobytes())
        info = _dict(members.get("distributedInfo"))
        self._groups(info)
        base = members.get("baseTimeNanoseconds")
        base_ns = base if type(base) is int and 0 < base < 1 << 62 else None
        if base_ns is None and median_place(columns["start_s"]) > EPOCH_NS:
            base_ns = 0
        said = whole(info.get("rank"), -1, _INT32)
        world = whole(info.get("world_size"), 0, _INT32)
        device = _device(members.get("deviceProperties"), self._lanes)
        trace = self.builder.build(
            **ranked(path, rank if rank is not None else said if said >= 0 else None),
            world_size=world if world > 0 else None,
            device=device,
            source=str(path),
            base_ns=base_ns,
            seen=self.seen,
            problems=self.problems.listed(),
        )
        return finished(trace)

    def _kinds(self) -> tuple[Any, Any]:
        """Kind and lane of each event, told once for each name, tag and lane that occur together."""
        columns, builder = self.builder.columns, self.builder
        if not len(builder):
            return np.empty(0, np.int8), np.empty(0, np.int32)
        raw = list(self._lanes)
        names, tags = list(builder._names), list(self._tags)
        name, lane = np.frombuffer(columns["name"], np.int32), np.frombuffer(columns["lane"], np.int32)
        tag = np.frombuffer(self._tag, np.int32)
        key = (name.astype(np.int64) * len(tags) + tag) * len(raw) + lane
        unique, inverse = np.unique(key, return_inverse=True)
        kinds, lanes = np.empty(len(unique), np.int8), np.empty(len(unique), np.int32)
        operations, groups = np.zeros(len(unique), np.int8), np.full(len(unique), -1, np.int32)
        for at, code in enumerate(unique.tolist()):
            rest, lane_index = divmod(code, len(raw))
            name_index, tag_index = divmod(rest, len(tags))
            pid, tid, _ = raw[lane_index]
            process, thread = self._process_names.get(pid, ""), self._thread_names.get((pid, tid), "")
            category, task = tags[tag_index]
            kinds[at], on_device = kind_of(names[name_index], category, process, thread, task)
            label = " ".join(t for t in (process, self._process_labels.get(pid, ""), thread) if t)
            lanes[at] = builder.lane(Lane(pid, tid, on_device, label[:200]))
            if kinds[at] == KIND["communication"]:
                operations[at] = operation(names[name_index])
                if process.startswith(("Communication", "HCCL")):  # Ascend draws each group as a thread
                    groups[at] = builder.group(Group(thread.removesuffix(" Communication")))
        told = operations[inverse]
        given = np.frombuffer(columns["operation"], np.int8)
        columns["operation"] = array("b", np.where(given > 0, given, told).astype(np.int8).tobytes())
        columns["group"] = array(
            "i", np.maximum(np.frombuffer(columns["group"], np.int32), groups[inverse]).tobytes()
        )
        return kinds[inverse], lanes[inverse].astype(np.int32)

    def _groups(self, info: dict[str, Any]) -> None:
        """Take the process groups that the trace's head lists."""
        listed = info.get("pg_config")
        for entry in listed if isinstance(listed, list) else []:
            entry = _dict(entry)
            ranks = _ranks(entry.get("ranks"))
            size = max(whole(entry.get("group_size", entry.get("pg_size")), 0), 0)
            name = str(entry.get("pg_name", ""))
            self.builder.group(Group(name, size or len(ranks), ranks, str(entry.get("pg_desc", ""))))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _track(event: dict[str, Any], phase: str) -> tuple[str, ...]:
    """Where a beginning and its end belong together."""
    pid = str(event.get("pid", ""))
    if phase == "b":
        return "b", pid, str(event.get("cat", "")), str(event.get("id", event.get("id2", "")))
    return "B", pid, str(event.get("tid", ""))


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group: a list, or its text (which Kineto shortens with dots)."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = [part for part in value.strip("[] ").split(",") if part.strip()]
    if not isinstance(value, list) or len(value) > 1_000_000:
        return ()
    ranks = tuple(whole(part.strip() if isinstance(part, str) else part, -1, _INT32) for part in value)
    return ranks if all(r >= 0 for r in ranks) else ()


def _input_bytes(args: dict[str, Any]) -> int:
    """Bytes of the first input of a call, from its shape and type."""
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(shapes, list) and isinstance(types, list) and shapes and types):
        return 0
    shape = shapes[0]
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape[:16]):
        return 0
    elements = 1
    for length in shape[:16]:
        elements *= length
    return size_of(str(types[0]), elements)


def _device(properties: Any, lanes: dict[tuple[str, str, bool], int]) -> str:
    """Name of the device the trace has events of, else of the first listed."""
    entries = [_dict(p) for p in properties] if isinstance(properties, list) else []
    names = {str(p.get("id")): str(p.get("name", "")) for p in entries}
    for pid, _, on_device in lanes:
        if on_device and pid in names:
            return names[pid]
    return next(iter(names.values()), "")
