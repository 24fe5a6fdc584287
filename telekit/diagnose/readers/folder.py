"""Read whatever a path holds: told by content, a file or a whole folder; one bad file never stops the rest."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.readers.chrome import read_chrome
from telekit.diagnose.readers.event_rows import is_event_header, read_event_rows
from telekit.diagnose.readers.finish import BY_DEVICE, GUESSED, by_device
from telekit.diagnose.readers.nsys import read_nsys
from telekit.diagnose.readers.rocprof import MARK, read_rocprof
from telekit.diagnose.readers.rows import split
from telekit.diagnose.readers.source import Progress, head
from telekit.diagnose.readers.summaries import (
    is_metric_header,
    is_operator_header,
    is_step_header,
    read_metrics,
    read_operators,
    read_steps,
)
from telekit.diagnose.readers.timers import HEADS, read_timers
from telekit.diagnose.trace import Table, Trace, TraceSet
from telekit.errors import InputError, bad

MAX_FILES = 100_000
FORMATS = (
    "traces of Kineto (torch.profiler), Ascend, nsys or rocprof, logs of Megatron-LM's timers, Ascend's "
    "step_trace_time.csv and op_statistic.csv, or CSV of metrics (columns: time, machine or rank, one a metric)"
)
HELP = "`telekit diagnose --help` says more"
_ENDINGS = (".json", ".csv", ".tsv", ".sqlite", ".db", ".log", ".txt", ".out", ".gz", ".trace")
_CHROME = ('"traceEvents"', '"ph"', '"schemaVersion"', '"deviceProperties"', '"distributedInfo"',
           '"baseTimeNanoseconds"', '"displayTimeUnit"')  # fmt: skip
_PART = re.compile(
    r"^(.*?)[_-]?(?:(?:kernel|(?:hip|hsa|rccl|marker|rocdecode|rocjpeg)(?:_[a-z]+)?|memory_copy|memory_allocation"
    r"|scratch_memory|cuda_gpu|cuda_api|nvtx_pushpop|nvtx_startend|osrt)_trace|gputrace|cudaapitrace|nvtxpptrace"
    r"|osrttrace)$"
)
"""Tables of events that one run of rocprof or nsys writes beside each other."""
_AGAIN = re.compile(
    r"^(.*?)[_-]?(?:counter_collection|nvtx_gpu_proj_trace|nvtx_kern_sum|cuda_kern_exec_trace)$"
)
"""Tables with the same events once more: read only where they are alone."""
_ITERATION = re.compile(
    r"\biteration[\s=]\s{0,20}\d{1,15}\s{0,20}/.*elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms"
)


def read(path: str | Path, *, rank: int | None = None, progress: Progress | None = None) -> TraceSet:
    """Read traces and tables from a file or a folder, of any format telekit knows.

    Parameters
    ----------
    path : str or Path
        A file, or a folder that is searched with those below it.
    rank : int, optional
        Whose the file is, where neither it nor its name says.
    progress : callable, optional
        Told how much is done, of how much, and a text.

    Returns
    -------
    TraceSet
        Traces by rank, and tables. ``all_problems`` has what could not be used, with counts and places.

    Raises
    ------
    InputError
        The path does not exist, or nothing in it can be read.
    """
    path = Path(path)
    try:
        folder = path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero in it
        reason = getattr(error, "strerror", None) or str(error)
        raise bad("path", f"{str(path)[:60]} ...", f"cannot be looked up: {reason}", HELP) from None
    if folder:
        return _folder(path, progress)
    kind = _sniffed(path)
    if not kind:
        raise bad(
            "file", path.name, f"is none of the formats that are read: {FORMATS}", HELP, source=str(path)
        )
    return _set(_read_as(kind, [path], rank, progress), (), ())


def _sniffed(path: Path) -> str:
    """Tell a file's format from its beginning; empty where it is none of ours."""
    text = head(path)
    if text.startswith("SQLite format 3\0"):
        return "nsys"
    start = text.lstrip()
    if start.startswith(("{", "[")):
        if MARK in text:
            return "rocprof"
        listed = start.startswith("[") and start[1:].lstrip()[:1] in ("{", "]", "")
        if listed or any(mark in text for mark in _CHROME):
            return "chrome"
    if any(mark in text for mark in HEADS) or _ITERATION.search(text):
        return "timers"
    kinds = (("steps", is_step_header), ("operators", is_operator_header), ("events", is_event_header),
             ("metrics", is_metric_header))  # fmt: skip
    for line in text.split("\n")[:100]:
        header = [cell.strip().lower() for cell in split(line)]
        for kind, fits in kinds:
            if len(header) > 1 and fits(header):
                return kind
    return ""


def _read_as(
    kind: str, paths: Sequence[Path], rank: int | None, progress: Progress | None
) -> list[Trace | Table]:
    """Read files of one format and one rank."""
    path = paths[0]
    if kind == "events":
        return [read_event_rows(paths, rank, progress)]
    if kind == "chrome":
        return [read_chrome(path, rank, progress)]
    if kind in ("nsys", "rocprof"):
        return list((read_nsys if kind == "nsys" else read_rocprof)(path, rank, progress))
    tables: dict[str, Callable[..., Table]] = {
        "steps": read_steps,
        "operators": read_operators,
        "metrics": read_metrics,
        "timers": read_timers,
    }
    return [tables[kind](path, rank, progress)]


def _folder(folder: Path, progress: Progress | None) -> TraceSet:
    """Read every file of a folder that is of a format we know."""
    problems, notes = ProblemCounter(), []
    jobs, passed = _jobs(folder, problems)
    sizes = [sum(p.stat().st_size for p in paths) for _, paths in jobs]
    found: list[Trace | Table] = []
    rows: list[Trace] = []  # of tables of events: one a process
    for number, (kind, paths) in enumerate(jobs):
        before = sum(sizes[:number])

        def tell(done: int, total: int, text: str, before: int = before, size: int = sizes[number]) -> None:
            if progress:
                progress(before + (size * done // total if total else 0), sum(sizes), text)

        try:
            if kind == "events":
                rows.append(read_event_rows(paths, None, tell))
            else:
                found += _read_as(kind, paths, None, tell)
        except (InputError, OSError) as error:
            problems.add(f"a file cannot be read: {error}"[:300], paths[0].name)
    found += by_device(rows)
    if passed:
        notes.append(f"{passed:,} files of other formats were passed over")
    if not found:
        told = [str(p) for p in problems.listed()[:3]]
        if passed:
            told.append(f"{passed:,} files are of other formats")
        why = "; ".join(told) or f"no file's name ends in {' '.join(_ENDINGS)}"
        rule = f"holds no trace or table that can be read: {why}"
        raise bad(
            "folder", folder.name or str(folder), rule, f"it takes {FORMATS}; {HELP}", source=str(folder)
        )
    return _set(found, tuple(notes), problems.listed())


def _jobs(folder: Path, problems: ProblemCounter) -> tuple[list[tuple[str, list[Path]]], int]:
    """Return what to read: format and files (those of one run of one tool together), and how many were passed over."""
    groups: dict[tuple[str, Path, str], list[Path]] = {}
    passed = 0
    for path in _files(folder, problems):
        try:
            kind = _sniffed(path)
        except (InputError, OSError) as error:
            problems.add(f"a file cannot be read: {error}"[:300], path.name)
            continue
        if not kind:
            passed += 1
            continue
        part = _PART.match(_stem(path.name)) if kind == "events" else None
        name = part[1] + "*" if part else path.name
        groups.setdefault((kind, path.parent, name), []).append(path)
    traced = {(parent, name) for kind, parent, name in groups if kind == "events"}
    timelines = {
        parent for kind, parent, name in groups if kind == "chrome" and name.startswith("trace_view")
    }
    jobs = []
    for (kind, parent, name), paths in groups.items():
        if kind == "events" and parent in timelines and name.startswith(("kernel_details", "op_summary")):
            passed += 1  # the timeline beside it has the same kernels
        elif kind == "events" and (again := _AGAIN.match(_stem(name))) and (parent, again[1] + "*") in traced:
            passed += 1
        else:
            jobs.append((kind, paths))
    return jobs, passed


def _stem(name: str) -> str:
    """Return a file's name without its endings."""
    return name.removesuffix(".gz").removesuffix(".csv")


def _files(folder: Path, problems: ProblemCounter) -> list[Path]:
    """Files of a folder and those below it, by name; links out of it are not followed."""
    root = os.path.realpath(folder)
    found: list[Path] = []
    for where, below, names in os.walk(folder):
        below.sort()
        for name in sorted(names):
            path = Path(where) / name
            if not name.lower().endswith(_ENDINGS):
                continue
            if not Path(os.path.realpath(path)).is_relative_to(root):
                problems.add("is a link out of the folder and is not followed", name)
            elif len(found) >= MAX_FILES:
                problems.add(f"is beyond the {MAX_FILES:,} files that are read", name)
            else:
                found.append(path)
    return found


def _without_doubtful(traces: list[Trace], notes: list[str]) -> list[Trace]:
    """Take back ranks read from names or devices that another trace has too."""
    times = Counter(t.rank for t in traces if t.rank is not None)
    guesses = {GUESSED, BY_DEVICE}
    doubtful = [t for t in traces if guesses & {*t.notes} and t.rank is not None and times[t.rank] > 1]
    if not doubtful:
        return traces
    same = ", ".join(str(r) for r in sorted({t.rank for t in doubtful if t.rank is not None})[:10])
    notes.append(
        f"the names or devices of {len(doubtful)} traces give rank {same}, which others have too: their ranks are "
        "not known"
    )
    return [
        replace(t, rank=None, notes=tuple(n for n in t.notes if n not in guesses)) if t in doubtful else t
        for t in traces
    ]


def _set(found: Sequence[Trace | Table], notes: tuple[str, ...], problems: tuple[Any, ...]) -> TraceSet:
    """Put traces and tables together; say what is odd about their ranks."""
    traces = [t for t in found if isinstance(t, Trace)]
    said = list(notes)
    traces = _without_doubtful(traces, said)
    twice = sorted(r for r, n in Counter(t.rank for t in traces if t.rank is not None).items() if n > 1)
    if twice:
        said.append(f"several traces are of rank {', '.join(map(str, twice[:10]))}")
    unknown = sum(t.rank is None for t in traces)
    if unknown and len(traces) > 1:
        said.append(f"{unknown} of {len(traces)} traces do not say their rank")
    world = max((t.world_size or 0 for t in traces), default=0)
    present = len({t.rank for t in traces} - {None})
    if world > present > 0:
        said.append(f"{present} of {world} ranks have a trace")
    tables = tuple(t for t in found if isinstance(t, Table))
    return TraceSet.of(traces, tables=tables, notes=tuple(said), problems=problems)
