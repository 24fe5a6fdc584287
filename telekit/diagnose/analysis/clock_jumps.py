"""Clocks that were set during a trace: of a whole node, which has one clock, or of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.collectives import Collectives
from telekit.diagnose.trace import Floats, Ints, Trace

JUMP_S = 1e-3
"""A clock's step below this does not matter to any verdict."""
AGREE = 0.75
"""Share of a node's ranks that must show the same step."""
MOST_JUMPS = 8
"""Nodes whose clock is found to be set in one run; more is no clock."""


@dataclass(frozen=True)
class Jump:
    """A rank's clock was set: by how much, and between which moments of its own time (seconds)."""

    trace: int
    by_s: float
    after_s: float
    before_s: float


@dataclass(frozen=True)
class _Step:
    """A node's ends of collectives move against all others'.

    Attributes
    ----------
    node : int
        Which.
    by_s, level_s : float
        By how much, and how far they were before.
    last, first : int
        The last event before and the first after, of any of its ranks.
    """

    node: int
    by_s: float
    level_s: float
    last: int
    first: int


@dataclass(frozen=True, eq=False)
class _Job:
    """Traces, their collectives with ends by the common clock, node of each trace, what to add for its own time."""

    traces: Sequence[Trace]
    matched: Collectives
    end_s: Floats
    node: Ints
    zero_s: Floats

    def own_s(self, event: int, trace: int) -> float:
        """Return an event's end by the clock of another trace of its node: clocks are one, zeros differ."""
        there = self.zero_s[trace] - self.zero_s[self.matched.rank[event]]
        return float(self.matched.end_s[event] + there)


def node_jumps(
    traces: Sequence[Trace], matched: Collectives, end_s: Floats, node: NDArray[np.int64], zero_s: Floats
) -> tuple[tuple[Jump, ...], Floats]:
    """Find nodes whose clock was set, by collectives over nodes, which end together.

    Of two nodes that step apart one was set ahead or the other back: what was set back repeats a time, so that launches
    of one thread, and work of one stream, begin before earlier ones.

    Parameters
    ----------
    traces : sequence of Trace
        All ranks.
    matched : Collectives
        Their collectives.
    end_s : (events,) array
        Ends by the common clock, as far as offsets and drifts give it.
    node : (ranks,) int array
        Node of each trace.
    zero_s : (ranks,) array
        What to add to a common time for a trace's own.

    Returns
    -------
    jumps, level_s : tuple of Jump, (ranks,) array
        Of each rank of such a node; how far each trace was from the others before.
    """
    found: list[Jump] = []
    level = np.zeros(len(traces))
    job = _Job(traces, matched, end_s.copy(), node, zero_s)
    domain = node[matched.rank] if len(matched) else matched.rank
    for _ in range(min(MOST_JUMPS, len(np.unique(node)) - 1)):
        reference = _others(matched, job.end_s, domain)
        steps = _steps(job, domain, reference)
        if not steps:
            break
        step, back = _culprit(job, steps)
        rows = np.flatnonzero(node == step.node)
        found += _jumps_of(job, step, rows, back)
        level[rows] += step.level_s
        mine = domain == step.node
        job.end_s[mine & (reference > reference[step.last])] -= step.by_s
        job.end_s[mine] -= step.level_s
    return tuple(found), level


def _jumps_of(job: _Job, step: _Step, rows: NDArray[np.intp], back: bool) -> list[Jump]:
    hole = None if back or step.by_s < 0 else _hole(job, step, rows)
    found = []
    for row in rows.tolist():
        after, before = job.own_s(step.last, row), job.own_s(step.first, row)
        if hole is not None:
            after, before = after + hole[0], after + hole[1]
        elif step.by_s < 0:  # set back, it shows a time twice
            after, before = after + step.by_s, before - step.by_s
        found.append(Jump(row, step.by_s, after, before))
    return found


def _others(matched: Collectives, end_s: Floats, domain: Ints) -> Floats:
    """Median end of each operation on the other nodes, by event; NaN where it met no other node.

    Of nodes' medians, one a node.
    """
    nodes = int(domain.max()) + 1 if len(domain) else 1
    cell, at = np.unique(matched.key * nodes + domain, return_inverse=True)
    at = at.ravel()
    order = np.lexsort((end_s, at))
    count = np.bincount(at)
    first = np.cumsum(count) - count
    level = (end_s[order][first + (count - 1) // 2] + end_s[order][first + count // 2]) / 2
    key = cell // nodes
    ranked = np.lexsort((level, key))
    begin = np.r_[0, np.flatnonzero(np.diff(key)) + 1]
    size = np.diff(np.r_[begin, len(key)])
    start, rest = np.repeat(begin, size), np.repeat(size, size) - 1
    place = np.empty(len(key), np.int64)
    place[ranked] = np.arange(len(key))
    place -= start
    low, high = (rest - 1) // 2, rest // 2
    sorted_level = level[ranked]
    picked = [
        sorted_level[np.minimum(start + i + (i >= place), len(key) - 1)] for i in (np.maximum(low, 0), high)
    ]
    return np.asarray(np.where(rest > 0, (picked[0] + picked[1]) / 2, np.nan)[at])


def _steps(job: _Job, domain: Ints, reference: Floats) -> list[_Step]:
    """Find steps of each node's ends against the other nodes', the largest first."""
    known = np.flatnonzero(~np.isnan(reference))
    known = known[np.argsort(reference[known], kind="stable")]
    apart = job.end_s - reference
    found = []
    for node in np.unique(domain[known]):
        mine = known[domain[known] == node]
        at = _where(apart[mine], job.matched.rank[mine])
        if at is not None:
            before, after = float(np.median(apart[mine[:at]])), float(np.median(apart[mine[at:]]))
            found.append(_Step(int(node), after - before, before, int(mine[at - 1]), int(mine[at])))
    return sorted(found, key=lambda s: -abs(s.by_s))


def _where(apart: Floats, rank: Ints) -> int | None:
    """Find where a node's series changes its level, if nearly all its ranks show it."""
    found = change(apart, JUMP_S) if len(apart) >= 4 else None
    if found is None:
        return None
    at, by = found
    agree, ranks = 0, np.unique(rank)
    for one in ranks:
        before, after = apart[:at][rank[:at] == one], apart[at:][rank[at:] == one]
        if len(before) and len(after):
            agree += abs(float(np.median(after) - np.median(before)) - by) < 0.25 * abs(by)
    return at if agree >= AGREE * len(ranks) else None


def change(values: Floats, least: float) -> tuple[int, float] | None:
    """Where a series changes its level most, if both sides are calm and the change exceeds ``least``.

    Calm is what differs from one to the next, so that a level that changed does not hide itself.
    """
    total = np.cumsum(values)
    n = np.arange(1, len(values))
    left, right = total[:-1] / n, (total[-1] - total[:-1]) / (len(values) - n)
    at = int(np.argmax((right - left) ** 2 * n * (len(values) - n))) + 1
    before, after = np.median(values[:at]), np.median(values[at:])
    noise = max(np.median(np.abs(values[:at] - before)), np.median(np.abs(values[at:] - after)))
    by = float(after - before)
    return (
        (at, by) if abs(by) > max(least, 8 * noise, 12 * float(np.median(np.abs(np.diff(values))))) else None
    )


def _culprit(job: _Job, steps: list[_Step]) -> tuple[_Step, bool]:
    """Of nodes that step alike take the one set back, else the one set ahead; tell if its order is broken."""
    alike = [s for s in steps if abs(s.by_s) > 0.75 * abs(steps[0].by_s)]
    for step in (s for s in alike if s.by_s < 0):
        rows = np.flatnonzero(job.node == step.node)
        broken = [
            _set_back(job.traces[r], job.own_s(step.last, r), job.own_s(step.first, r), step.by_s)
            for r in rows.tolist()
        ]
        if np.mean(broken) >= 0.5:
            return step, True
    ahead = [s for s in alike if s.by_s > 0]
    return (ahead or alike)[0], False


def _set_back(trace: Trace, after_s: float, before_s: float, by_s: float) -> bool:
    """Tell whether launches of a thread or work of a stream, by their ids, go back in time by about as much."""
    work = trace.on_device & trace.is_kind("kernel", "communication", "copy")
    at = np.flatnonzero((work | (trace.is_kind("launch") & ~trace.on_device)) & (trace.correlation >= 0))
    near = (trace.start_s[at] >= after_s + 3 * by_s) & (trace.start_s[at] <= before_s - 3 * by_s)
    at = at[near]
    at = at[np.lexsort((trace.correlation[at], trace.lane[at]))]
    if len(at) < 2:
        return False
    back = trace.start_s[at][:-1] - trace.start_s[at][1:]
    same = trace.lane[at][1:] == trace.lane[at][:-1]
    return bool((back[same].max(initial=0.0)) > 0.3 * abs(by_s))


def _hole(job: _Job, step: _Step, rows: NDArray[np.intp]) -> tuple[float, float] | None:
    """Seconds after the last event before, between which nothing of the node began or ended: what was skipped."""
    span = job.own_s(step.first, int(rows[0])) - job.own_s(step.last, int(rows[0]))
    parts = []
    for row in rows.tolist():
        trace = job.traces[row]
        times = np.concatenate([trace.start_s, trace.end_s]) - job.own_s(step.last, row)
        parts.append(times[(times >= 0) & (times <= span)])
    times = np.unique(np.concatenate([[0.0, span], *parts]))
    widest = int(np.argmax(np.diff(times)))
    if times[widest + 1] - times[widest] < 0.9 * step.by_s:
        return None
    return float(times[widest]), float(times[widest + 1])
