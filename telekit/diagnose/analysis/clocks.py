"""One clock for all ranks: offsets and drifts from collectives, which end together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.collectives import Collectives
from telekit.diagnose.trace import Floats, Trace
from telekit.errors import bad

ENOUGH_FOR_DRIFT = 4
"""Collectives of a group that a slope needs; fewer give an offset only."""
JUMP_S = 1e-3
"""A clock's step below this does not matter to any verdict."""


@dataclass(frozen=True)
class Jump:
    """A rank's clock was set: by how much, and between which moments of its own time (seconds)."""

    trace: int
    by_s: float
    after_s: float
    before_s: float


@dataclass(frozen=True, eq=False)
class Clocks:
    """What each rank's clock shows against the first rank's.

    Parameters
    ----------
    offset_s : (ranks,) array
        What to subtract from a rank's time at ``centre_s``; NaN where no collective ties the rank to the others.
    drift : (ranks,) array
        Seconds a second.
    centre_s : (ranks,) array
        The rank's own time at which the offset holds.
    residual_s : float
        Median distance of a collective's end from the line.
    part : (ranks,) int array
        Ranks of one number are tied by collectives; times of different parts do not compare.
    jumps : tuple of Jump
        Clocks that were set during the trace.
    anchor : str
        What tied them: ``collectives`` or ``base time``.
    """

    offset_s: Floats
    drift: Floats
    centre_s: Floats
    residual_s: float
    part: NDArray[np.int64]
    jumps: tuple[Jump, ...] = ()
    anchor: str = "collectives"

    def common_s(self, trace: int, time_s: Any) -> Any:
        """Return a rank's own times by the common clock."""
        since = time_s - self.centre_s[trace]
        moved = time_s - self.offset_s[trace] - self.drift[trace] * since
        for jump in self.jumps:
            if jump.trace == trace:
                moved = np.where(np.asarray(time_s) >= jump.before_s, moved - jump.by_s, moved)
        return moved


def align(traces: Sequence[Trace], matched: Collectives) -> Clocks:
    """Fit each rank's offset and drift to the ends of collectives, robustly; else to the traces' base times.

    Raises
    ------
    InputError
        Neither collectives in common nor base times tie the ranks: their times must not be compared.
    """
    count = len(traces)
    rows = _lines(matched, count)
    if not rows:
        return _by_base(traces)
    centre = np.array([sum(t.span_s) / 2 for t in traces])
    part = _parts(rows, count)
    sloped = [row for row in rows if not np.isnan(row[3])]
    drift = (
        np.nan_to_num(_solve(sloped, [row[3] for row in sloped], count, part)) if sloped else np.zeros(count)
    )
    at_centre = [row[2] - drift[row[1]] * (row[4] - centre[row[1]]) for row in rows]
    offset = _solve(rows, at_centre, count, part)
    first = Clocks(offset, drift, centre, 0.0, part)
    residual = _residuals(first, matched)
    spread = float(np.median(np.abs(residual))) if len(residual) else 0.0
    jumps = _jumps(matched, residual, count, spread)
    return replace(first, residual_s=spread, jumps=jumps)


def _lines(matched: Collectives, count: int) -> list[tuple[int, int, float, float, float]]:
    """Offset and drift of each member of each group against the group's middle: (group, rank, offset, drift, when)."""
    rows: list[tuple[int, int, float, float, float]] = []
    full = matched.members > 1
    order = np.lexsort((matched.rank, matched.key))
    order = order[full[matched.key[order]]]
    group_of = matched.group[matched.key[order]]
    order = order[np.argsort(group_of, kind="stable")]
    group_of = matched.group[matched.key[order]]
    for part in np.split(order, np.flatnonzero(np.diff(group_of)) + 1):
        if len(part):
            rows += _group_lines(matched, part)
    return rows


def _group_lines(matched: Collectives, part: NDArray[np.intp]) -> list[tuple[int, int, float, float, float]]:
    ranks, column = np.unique(matched.rank[part], return_inverse=True)
    keys, row = np.unique(matched.key[part], return_inverse=True)
    ends = np.full((len(keys), len(ranks)), np.nan)
    ends[row.ravel(), column.ravel()] = matched.end_s[part]
    ends = ends[~np.isnan(ends).any(axis=1)]
    if len(ends) == 0 or len(ranks) < 2:
        return []
    ends = ends[np.argsort(ends[:, 0])]
    level = np.median(ends, axis=0)
    middle = np.median(ends - level, axis=1, keepdims=True)
    apart = ends - middle - level[:1].mean()
    offset = np.median(apart, axis=0)
    slope = _slopes(middle[:, 0], apart - offset)
    group = int(matched.group[matched.key[part[0]]])
    return [
        (group, int(r), float(o), float(s), float(v))
        for r, o, s, v in zip(ranks, offset, slope, level, strict=True)
    ]


def _slopes(when_s: Floats, apart_s: Floats) -> Floats:
    """Theil and Sen's slope of each column, from pairs a quarter of the series apart; NaN where the series is short.

    A quarter, so that a clock's jump lies inside a third of the pairs at most and the median does not see it.
    """
    if len(when_s) < ENOUGH_FOR_DRIFT:
        return np.full(apart_s.shape[1], np.nan)
    lag = max(len(when_s) // 4, 1)
    gap = when_s[lag:] - when_s[:-lag]
    good = gap > 0
    if not good.any():
        return np.full(apart_s.shape[1], np.nan)
    return np.asarray(np.median((apart_s[lag:] - apart_s[:-lag])[good] / gap[good, None], axis=0))


def _parts(rows: list[tuple[int, int, float, float, float]], count: int) -> NDArray[np.int64]:
    """Give ranks that groups connect the same number."""
    part = np.arange(count)
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row[1])
    changed = True
    while changed:  # few rounds: groups overlap much
        changed = False
        for members in groups.values():
            least = part[members].min()
            changed |= bool((part[members] != least).any())
            part[members] = least
    return part


def _solve(
    rows: list[tuple[int, int, float, float, float]], values: list[float], count: int, part: NDArray[np.int64]
) -> Floats:
    """Least squares of rank value minus group value, weighted down where far off; the first rank of a part has 0."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import lsqr

    groups = {g: i for i, g in enumerate(dict.fromkeys(row[0] for row in rows))}
    at = np.arange(len(rows))
    rank = np.array([row[1] for row in rows])
    other = count + np.array([groups[row[0]] for row in rows])
    target = np.array(values)
    shape = (len(rows), count + len(groups))
    weight = np.ones(len(rows))
    found = np.zeros(shape[1])
    for _ in range(4):
        data = np.r_[weight, -weight]
        matrix = coo_matrix((data, (np.r_[at, at], np.r_[rank, other])), shape=shape).tocsr()
        found = lsqr(matrix, weight * target, atol=1e-14, btol=1e-14, iter_lim=8 * sum(shape))[0]
        off = np.abs(found[rank] - found[other] - target)
        scale = max(1.5 * float(np.median(off)), 1e-9)
        weight = np.sqrt(np.minimum(1.0, scale / np.maximum(off, 1e-30)))
    seen = np.isin(np.arange(count), rank)
    value_of = np.where(seen, found[:count], np.nan)
    zero = {p: value_of[np.flatnonzero((part == p) & seen)[:1]] for p in np.unique(part)}
    return np.array([v - zero[p][0] if len(zero[p]) else np.nan for v, p in zip(value_of, part, strict=True)])


def _residuals(clocks: Clocks, matched: Collectives) -> Floats:
    """How far each event's end is from the middle of its operation, by the common clock."""
    end = np.empty(len(matched))
    for rank in np.unique(matched.rank):
        mine = matched.rank == rank
        end[mine] = clocks.common_s(int(rank), matched.end_s[mine])
    order = np.lexsort((end, matched.key))
    first = np.r_[0, np.flatnonzero(np.diff(matched.key[order])) + 1] if len(order) else np.zeros(0, np.int64)
    counts = matched.members
    low, high = end[order][first + (counts - 1) // 2], end[order][first + counts // 2]
    middle = (low + high) / 2
    return np.where(counts[matched.key] > 1, end - middle[matched.key], 0.0)


def _jumps(matched: Collectives, residual: Floats, count: int, spread: float) -> tuple[Jump, ...]:
    """Find steps in a rank's residuals: nothing but a clock that was set shifts all that follows."""
    found: list[Jump] = []
    floor = max(JUMP_S, 12 * spread)
    for rank in range(count):
        mine = matched.of_rank(rank)
        mine = mine[matched.members[matched.key[mine]] > 2]
        mine = mine[np.argsort(matched.end_s[mine])]
        if len(mine) < 4:
            continue
        jump = _one_jump(residual[mine], floor)
        if jump is not None:
            at, by = jump
            found.append(Jump(rank, by, float(matched.end_s[mine[at - 1]]), float(matched.end_s[mine[at]])))
    return tuple(found)


def _one_jump(values: Floats, floor: float) -> tuple[int, float] | None:
    """Where a series changes its level most, if both sides are calm and the change exceeds ``floor``."""
    total = np.cumsum(values)
    n = np.arange(1, len(values))
    left, right = total[:-1] / n, (total[-1] - total[:-1]) / (len(values) - n)
    at = int(np.argmax((right - left) ** 2 * n * (len(values) - n))) + 1
    before, after = np.median(values[:at]), np.median(values[at:])
    noise = max(np.median(np.abs(values[:at] - before)), np.median(np.abs(values[at:] - after)))
    by = float(after - before)
    return (at, by) if abs(by) > max(floor, 8 * noise) else None


def _by_base(traces: Sequence[Trace]) -> Clocks:
    """Offsets by the base times, where each trace has one."""
    if any(t.base_ns is None for t in traces):
        lacking = [t.rank for t in traces if t.base_ns is None][:8]
        raise bad(
            "traces", lacking, "no collective in common and no base time: clocks of these ranks cannot be aligned",
            "record the process groups, or compare durations only",
        )  # fmt: skip
    base = [int(t.base_ns or 0) for t in traces]
    offset = np.array([(base[0] - b) / 1e9 for b in base])
    zero = np.zeros(len(traces))
    return Clocks(offset, zero, zero, float("nan"), np.zeros(len(traces), np.int64), (), "base time")
