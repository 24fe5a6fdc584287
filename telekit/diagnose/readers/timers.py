"""Megatron-LM's timers in a training log (``megatron/core/timers.py``: the options max, minmax and all)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.readers.finish import ranked
from telekit.diagnose.readers.rows import ends_open, lines
from telekit.diagnose.readers.source import Progress
from telekit.diagnose.trace import Table
from telekit.errors import bad

HEADS = ("max time across ranks (ms):", "(min, max) time across ranks (ms):", "times across ranks (ms):")
_ITERATION = re.compile(r"\biteration[\s=]\s{0,20}(\d{1,15})\s{0,20}/")
_ELAPSED = re.compile(r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?ms\)?[:=]\s{0,20}([\d.eE+-]{1,30})")
_PREFIX = r"^(?:\[?[\w.:-]{1,40}\]?:?\s){0,3}?\s*"  # a launcher may put the rank before each line
_BOTH = re.compile(_PREFIX + r"([\w./-][\w./ -]{0,100}?) \.*:\s\(([^,()]{1,30}),\s?([^,()]{1,30})\)\s*$")
_ONE = re.compile(_PREFIX + r"([\w./-][\w./ -]{0,100}?) \.*:\s([\d.eE+naif-]{1,30})\s*$")
_TIMER = re.compile(_PREFIX + r"([\w./-]{1,100}):\s*$")
_RANK = re.compile(_PREFIX + r"rank\s{1,8}(\d{1,7}):\s(\S{1,30})\s*$")


def read_timers(path: Path, rank: int | None = None, progress: Progress | None = None) -> Table:
    """Read the timers of a Megatron-LM log.

    Returns
    -------
    Table
        Of kind ``timers``, a row a timer (with the option ``all`` a timer and rank) of each report: label ``timer``;
        columns ``iteration`` (the last one the log named; NaN before any), ``rank`` (NaN: over all ranks),
        ``min_s`` (NaN with the option ``max``) and ``max_s``. The time per iteration that the log prints is the timer
        ``iteration-time``.

    Raises
    ------
    InputError
        No timers are in it.
    """
    problems, log = ProblemCounter(), _Log()
    open_end = ends_open(path)
    for number, line in _known_last(lines(path, problems, progress)):
        if number < 0 and open_end:
            problems.add("the last line has no end, its value may be cut: left out", f"line {-number}")
            break
        try:
            log.line(line)
        except ValueError:
            problems.add("a timer's value is no number", f"line {abs(number)}")
    if not log.rows:
        raise bad("file", path.name, f"has no timers of Megatron-LM ({HEADS[1]} ...)", source=str(path))
    names, *numbers = zip(*log.rows, strict=True)
    columns = dict(
        zip(("iteration", "rank", "min_s", "max_s"), (np.array(c, float) for c in numbers), strict=True)
    )
    return Table(
        "timers",
        columns,
        {"timer": names},
        source=str(path),
        problems=problems.listed(),
        **ranked(path, rank),
    )


def _known_last(source: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, that of the last one negative."""
    held: tuple[int, str] | None = None
    for one in source:
        if held is not None:
            yield held
        held = one
    if held is not None:
        yield -held[0], held[1]


class _Log:
    """Follows a log line by line."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, float, float]] = []
        self._iteration = math.nan
        self._head, self._timer = -1, ""

    def line(self, line: str) -> None:
        """Take one line."""
        if found := _ITERATION.search(line):
            self._iteration, self._head = float(found[1]), -1
            if elapsed := _ELAPSED.search(line):
                self._row("iteration-time", math.nan, math.nan, elapsed[1])
            return
        for option, head in enumerate(HEADS):
            if head in line and (option != 0 or "min" not in line):
                self._head = option
                return
        if self._head >= 0 and not self._report(line):
            self._head = -1

    def _report(self, line: str) -> bool:
        """Take a line of a report; False where it is none."""
        if self._head == 1 and (found := _BOTH.match(line)):
            self._row(found[1], math.nan, _seconds(found[2]), found[3])
        elif self._head in (0, 1) and (found := _ONE.match(line)):  # older versions head both alike
            self._row(found[1], math.nan, math.nan, found[2])
        elif self._head == 2 and (found := _RANK.match(line)):
            if self._timer:
                self._row(self._timer, float(found[1]), _seconds(found[2]), found[2])
        elif self._head == 2 and (found := _TIMER.match(line)):
            self._timer = found[1]
        else:
            return False
        return True

    def _row(self, timer: str, rank: float, least_s: float, most_ms: str) -> None:
        self.rows.append((timer.strip(), self._iteration, rank, least_s, _seconds(most_ms)))


def _seconds(milliseconds: str) -> float:
    value = float(milliseconds) / 1000
    if not math.isfinite(value) or value < 0:
        raise ValueError("no time")
    return value
