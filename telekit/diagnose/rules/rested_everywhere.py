"""All ranks slow after every idle time: no rank and no step is left to compare with, only like kernels elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.collectives import identify
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.analysis.intervals import union
from telekit.diagnose.pairing import launch_of
from telekit.diagnose.trace import Floats, Ints

BEHIND, AHEAD = 2, 4
"""Kernels before and after, by which kernels of one name are told apart."""
GAPS = 16
"""Idle times tried as the least that matters, from two thousandths of a step to a fifth."""
MOST_ROWS = 24
NEVER_S = 1e9
LEAST_RATIO = 0.06
"""Least slowness of the slow kernels of a context against its fast ones."""
CLEAR = 2.0
"""The fast and the slow must lie apart by so many times the spread (first to ninth tenth) of either."""
FEWEST, FEWEST_NAMES = 20, 3
"""Slow kernels, and names among them, that a verdict takes."""
EXPLAINED = 0.85
"""Share of the slow kernels soon after idle times, and of the fast ones not, on average, that makes these the cause."""
SHOWN_BY = 0.4
"""Share of ranks that must show it; others may always rest, or never."""
MOST_STEPS = 0.6
"""Share of steps that must have slow kernels: what is slow in some steps only has another cause."""


@dataclass(frozen=True)
class Rested:
    """Like kernels soon after idle times against long after.

    Parameters
    ----------
    excess : float
        Median relative excess of the slow ones.
    share : float
        Time lost over the ranks' time.
    gap_s, window_s : float
        Least idle time, and how long after it kernels are slow.
    row, event : int
        Trace and event of the slowest.
    """

    excess: float
    share: float
    gap_s: float
    window_s: float
    row: int
    event: int


def like_kernels(run: Run, rows: list[int], valid: NDArray[np.bool_]) -> Rested | None:
    """Split like kernels into fast and slow, and tell whether those soon after idle times are the slow ones.

    Layers repeat: a kernel between the same kernels, launched by the same thread of the same rank, is the same work.
    Only contexts whose durations fall apart into two are looked at; in a healthy run hardly any does.

    Parameters
    ----------
    run : Run
        What was measured.
    rows : list of int
        Ranks looked at (some of them, where they are many).
    valid : (ranks, steps) bool array
        Steps that count.
    """
    rows = rows[:: -(-len(rows) // MOST_ROWS)] if rows else rows
    parts = [_kernels(run, row, valid[row]) for row in rows]
    owner = np.repeat(np.arange(len(rows)), [len(p.duration_s) for p in parts])
    if not len(owner):
        return None
    columns = [np.concatenate(column) for column in zip(*(p.context for p in parts), strict=True)]
    context, _ = identify(owner, *columns)
    duration = np.concatenate([p.duration_s for p in parts])
    slow, usual = _two_levels(context, duration)
    at = np.flatnonzero(slow >= 0)
    is_slow = slow[at] == 1
    showing = len(np.unique(owner[at[is_slow]]))
    few = is_slow.sum() < FEWEST or (~is_slow).sum() < FEWEST
    step = np.concatenate([p.step for p in parts])[at]
    steps = len(np.unique(step[is_slow])) < MOST_STEPS * len(np.unique(step))
    if (
        few
        or steps
        or len(np.unique(columns[0][at])) < FEWEST_NAMES
        or showing < max(SHOWN_BY * len(rows), min(3, len(rows)))
    ):
        return None
    cut = _best_cut(run, rows, parts, at, is_slow)
    if cut is None:
        return None
    excess = duration[at[is_slow]] / usual[context[at[is_slow]]] - 1
    lost = float((duration[at[is_slow]] - usual[context[at[is_slow]]]).sum()) / float(run.wall_s[rows].sum())
    top = int(at[is_slow][np.argmax(excess)])
    event = int(np.concatenate([p.event for p in parts])[top])
    return Rested(float(np.median(excess)), lost, *cut, rows[int(owner[top])], event)


@dataclass(frozen=True, eq=False)
class _Kernels:
    """Kernels of one rank: event, step, names of each and its neighbours and its thread, start, duration."""

    event: Ints
    step: Ints
    context: tuple[Ints, ...]
    start_s: Floats
    duration_s: Floats


def _kernels(run: Run, row: int, valid: NDArray[np.bool_]) -> _Kernels:
    """Take the kernels of a rank's steps that count."""
    trace, steps = run.traces[row], run.steps[row]
    at = np.flatnonzero(trace.is_kind("kernel"))
    index = {n: i for i, n in enumerate(run.names)}
    name = np.array([index.get(n, -1) for n in trace.names] or [-1], np.int64)[trace.name[at]]
    padded = np.pad(name, (BEHIND, AHEAD), constant_values=-1)
    around = [padded[k : k + len(name)] for k in range(BEHIND + AHEAD + 1)]
    around.insert(0, around.pop(BEHIND))
    launch = launch_of(trace, at)
    thread = np.where(launch >= 0, trace.lane[launch], -1).astype(np.int64)
    kept = np.isin(steps.of_event[at], run.column[row][valid])
    context = tuple(column[kept] for column in (*around, thread))
    at = at[kept]
    return _Kernels(at, steps.of_event[at], context, trace.start_s[at], trace.duration_s[at])


def _two_levels(context: Ints, duration: Floats) -> tuple[Ints, Floats]:
    """Return 1 of each slow kernel, 0 of each fast, -1 where a context has one level; and each context's fast level."""
    order = np.lexsort((duration, context))
    count = np.bincount(context)
    first = np.cumsum(count) - count
    ranked = duration[order]
    low, high = (ranked[first + ((count - 1) * q).astype(np.int64)] for q in (0.05, 0.95))
    level, usual = np.full(len(context), -1, np.int64), np.full(len(count), np.nan)
    for one in np.flatnonzero((count >= 6) & (low > 0) & (high > (1 + LEAST_RATIO) * low)):
        mine = slice(first[one], first[one] + count[one])
        cut = _cut(np.log(ranked[mine]))
        if cut is not None:
            level[order[mine]] = np.arange(count[one]) >= cut
            usual[one] = float(np.median(ranked[mine][:cut]))
    return level, usual


def _cut(values: Floats) -> int | None:
    """Where ascending values fall apart into two groups, both calm; None where they do not."""
    gap, edge = np.diff(values), max(2, len(values) // 20)
    at = int(np.argmax(gap[edge - 1 : len(values) - edge])) + edge
    low, high = values[:at], values[at:]
    spread = max(float(np.quantile(part, 0.9) - np.quantile(part, 0.1)) for part in (low, high))
    apart = float(np.median(high) - np.median(low))
    if apart < np.log1p(LEAST_RATIO) or apart < CLEAR * spread or gap[at - 1] < 0.5 * spread:
        return None
    return at


def _best_cut(
    run: Run, rows: list[int], parts: list[_Kernels], at: NDArray[np.intp], slow: NDArray[np.bool_]
) -> tuple[float, float] | None:
    """Find the idle time and the time after it that tell the slow kernels from the fast; None where none do."""
    best = (EXPLAINED, 0.0, 0.0)
    for idle in ([_without_kernels(run, row) for row in rows], [_without_work(run, row) for row in rows]):
        for gap in (run.step_s * np.geomspace(0.002, 0.2, GAPS)).tolist():
            since = np.concatenate([_since(p, i, gap) for p, i in zip(parts, idle, strict=True)])[at]
            order = np.argsort(since, kind="stable")
            inside = np.cumsum(slow[order]) / slow.sum() + 1 - np.cumsum(~slow[order]) / (~slow).sum()
            inside[np.append(np.diff(since[order]) == 0, False)] = 0  # none between equals
            last = int(np.argmax(inside))
            if inside[last] / 2 >= best[0] and since[order[last]] < NEVER_S:
                best = (float(inside[last]) / 2, gap, float(since[order[last]]))
    return None if best[1] == 0 else best[1:]


def _without_kernels(run: Run, row: int) -> tuple[Floats, Floats]:
    """Find times without kernels; communication may run."""
    return run.breakdowns[row].gap_start_s, run.breakdowns[row].gap_end_s


def _without_work(run: Run, row: int) -> tuple[Floats, Floats]:
    """Find times in which the device does nothing at all."""
    trace = run.traces[row]
    work = trace.on_device & trace.is_kind("kernel", "communication", "copy")
    start, end = union(trace.start_s[work], trace.end_s[work])
    return end[:-1], start[1:]


def _since(kernels: _Kernels, idle: tuple[Floats, Floats], least_s: float) -> Floats:
    """Seconds since the last idle time of at least ``least_s`` ended; :data:`NEVER_S` before the first."""
    ends = idle[1][idle[1] - idle[0] >= least_s]
    before = np.searchsorted(ends, kernels.start_s + 1e-9, side="right") - 1
    since = np.full(len(kernels.start_s), NEVER_S)
    since[before >= 0] = kernels.start_s[before >= 0] - ends[before[before >= 0]]
    return since
