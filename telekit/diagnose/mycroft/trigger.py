"""When Mycroft looks closer: a few ranks are watched for a standstill, halved throughput or doubled intervals.

Source: arXiv 2509.03018. Throughput is taken over the time inside calls, intervals by kind of group. The window, the
warm-up and the period of the checks are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from telekit.diagnose.mycroft.job import KIND_NAMES, RingJob, groups_of
from telekit.diagnose.mycroft.telemetry import Telemetry
from telekit.errors import InputError, Problem

MOST_WATCHED = 10
STUCK, SLOW = "stuck", "slow"


@dataclass(frozen=True)
class Watch:
    """How the watching is done.

    Parameters
    ----------
    window_s : float
        What is looked at: the last so many seconds. The first window of a run is its reference.
    period_s : float
        Seconds between checks.
    slow_ratio : float
        Throughput that many times lower, or an interval that many times longer, is slow.
    straggler_s : float
        What stands still, costs or keeps others waiting for less, in a window, is no straggler.
    """

    window_s: float = 5.0
    period_s: float = 0.5
    slow_ratio: float = 2.0
    straggler_s: float = 1.0

    def __post_init__(self) -> None:
        problems = [
            Problem(f"watch.{name}", getattr(self, name), f"must be more than {least}", f"{works} works")
            for name, least, works in (
                ("window_s", 0, 5), ("period_s", 0, 0.5), ("slow_ratio", 1, 2), ("straggler_s", 0, 1)
            )
            if not least < getattr(self, name) < float("inf")
        ]  # fmt: skip
        if problems:
            raise InputError(problems)


class Trigger(NamedTuple):
    """One alarm.

    Attributes
    ----------
    at_s : float
        When.
    kind : str
        ``stuck`` or ``slow``.
    rank : int
        The watched rank that showed it.
    reason : str
        What was seen, in words.
    """

    at_s: float
    kind: str
    rank: int
    reason: str


def watched_ranks(job: RingJob) -> tuple[int, ...]:
    """One rank of each data-parallel group and then further ones, :data:`MOST_WATCHED` at most, spread evenly."""
    groups = groups_of(job)["dp"]
    rows = np.unique(np.linspace(0, len(groups) - 1, min(len(groups), MOST_WATCHED)).round().astype(int))
    turns = [int(groups[row, turn]) for turn in range(groups.shape[1]) for row in rows]
    return tuple(sorted(turns[:MOST_WATCHED]))


def first_trigger(logs: Telemetry, watch: Watch | None = None, after_s: float = 0.0) -> Trigger | None:
    """Check again and again until a watched rank is stuck or slow.

    Parameters
    ----------
    logs : Telemetry
        What is seen.
    watch : Watch, optional
        How.
    after_s : float
        Checks up to then are passed over.

    Returns
    -------
    Trigger or None
        None when the logs end without one.
    """
    watch = watch or Watch()
    histories = [_History(logs, rank, watch) for rank in watched_ranks(logs.job)]
    for at_s in np.arange(2 * watch.window_s, logs.horizon_s, watch.period_s).tolist():
        if at_s <= after_s:
            continue
        for history in histories:
            found = history.check(at_s)
            if found:
                return found
    return None


class _Window(NamedTuple):
    """Calls of one kind that a rank completed in one window: how many, their bytes, and the time spent in them."""

    calls: int
    size_bytes: float
    inside_s: float


class _History:
    """Completions of one watched rank."""

    def __init__(self, logs: Telemetry, rank: int, watch: Watch) -> None:
        self.rank, self.logs, self.watch = rank, logs, watch
        calls, own = logs.program.calls, logs.blocking[rank]
        own = own[np.isfinite(logs.end_s[own])]
        self.columns = []
        for kind in range(len(KIND_NAMES)):
            some = own[calls.kind[own] == kind]
            inside_s, sizes = logs.end_s[some] - logs.start_s[some], calls.size_bytes[some]
            self.columns.append((logs.end_s[some], np.cumsum([0, *sizes]), np.cumsum([0.0, *inside_s])))
        self.usual = self._windows(watch.window_s)

    def _windows(self, at_s: float) -> list[_Window]:
        found = []
        for ends, sizes, inside in self.columns:
            first, last = np.searchsorted(ends, [at_s - self.watch.window_s, at_s], side="right").tolist()
            found.append(
                _Window(last - first, float(sizes[last] - sizes[first]), float(inside[last] - inside[first]))
            )
        return found

    def check(self, at_s: float) -> Trigger | None:
        """Look at the last window: stuck, or slow in one kind of call, or nothing."""
        call, windows = self.logs.current(self.rank, at_s), self._windows(at_s)
        if call is None:
            return None
        if not any(window.calls for window in windows):
            # A rank outside any call writes no state log: others, which wait for it, do.
            if self.logs.start_s[call] > at_s - self.watch.straggler_s:
                return None
            reason = f"in a call, and none completed for {self.watch.window_s:g} s"
            return Trigger(at_s, STUCK, self.rank, reason)
        reasons = (self._slow(*each) for each in zip(KIND_NAMES, windows, self.usual, strict=True))
        return next((Trigger(at_s, SLOW, self.rank, reason) for reason in reasons if reason), None)

    def _slow(self, name: str, now: _Window, usual: _Window) -> str:
        """Say how calls of one kind are slow, or nothing: too few a second, or each taking too long."""
        ratio, length_s = self.watch.slow_ratio, self.watch.window_s
        if now.calls * ratio < usual.calls:
            return f"{name} calls completed {now.calls} times in {length_s:g} s, were {usual.calls}"
        if now.inside_s * usual.size_bytes > ratio * usual.inside_s * now.size_bytes:
            extra_s = now.inside_s - usual.inside_s * now.calls / usual.calls
            if extra_s >= self.watch.straggler_s:
                rates = (window.size_bytes / max(window.inside_s, 1e-9) / 1e9 for window in (now, usual))
                return "{} throughput {:.3g} GB/s, was {:.3g}".format(name, *rates)
        return ""
