"""One clock for all ranks: offsets and drifts from collectives, which end together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.clock_jumps import JUMP_S, Jump, change, node_jumps
from telekit.diagnose.analysis.collectives import Collectives
from telekit.diagnose.trace import Floats, Trace
from telekit.errors import bad

MOST_DRIFT = 1e-3
"""Seconds a second; quartz errs by 1e-4, and NTP steers by 5e-4 at most. What is above is no drift but a jump."""
ENOUGH_FOR_DRIFT = 4
"""Collectives of a group that a slope needs; fewer give an offset only."""


Line = tuple[int, int, float, float, float, float, float]
"""Of a member of a group: group, rank, offset, drift, when; offset by the first and by the last third of operations."""


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


def align(traces: Sequence[Trace], matched: Collectives, node: NDArray[np.int64] | None = None) -> Clocks:
    """Fit each rank's offset and drift to the ends of collectives, robustly; else to the traces' base times.

    Parameters
    ----------
    traces : sequence of Trace
        One a rank.
    matched : Collectives
        Theirs.
    node : (ranks,) int array, optional
        Ranks of one node share a clock, so that it is set for all of them at once. Default: each has its own.

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
    drift = np.zeros(count)
    if sloped:
        drift = np.nan_to_num(_solve(sloped, [row[3] for row in sloped], count, part)[0])
    offset = _offsets(rows, drift, centre, part)
    first = Clocks(offset, drift, centre, 0.0, part)
    node = np.arange(count) if node is None else node
    found, level = node_jumps(traces, matched, _common_ends(first, matched), node, offset)
    first = replace(first, offset_s=offset + level, jumps=found)
    residual = _residuals(first, matched)
    middle = _common_ends(first, matched) - residual
    alone, level = _jumps(matched, residual, middle, set(range(count)) - {j.trace for j in found}, count)
    last = replace(first, offset_s=first.offset_s + level, jumps=(*found, *alone))
    spread = float(np.median(np.abs(_residuals(last, matched)))) if len(residual) else 0.0
    return replace(last, residual_s=spread)


def _offsets(rows: list[Line], drift: Floats, centre: Floats, part: NDArray[np.int64]) -> Floats:
    """Solve for offsets by all collectives; where a clock that was set makes groups differ, by the first or last."""
    best: tuple[float, Floats] | None = None
    for which in (2, 5, 6):
        at_centre = [row[which] - drift[row[1]] * (row[4] - centre[row[1]]) for row in rows]
        offset, off = _solve(rows, at_centre, len(centre), part)
        if best is None or off < 0.5 * best[0]:
            best = off, offset
        if best[0] < JUMP_S / 10:
            break
    assert best is not None
    return best[1]


def _lines(matched: Collectives, count: int) -> list[Line]:
    """Offset and drift of each member of each group against the group's middle."""
    rows: list[Line] = []
    full = matched.members > 1
    order = np.lexsort((matched.rank, matched.key))
    order = order[full[matched.key[order]]]
    group_of = matched.group[matched.key[order]]
    order = order[np.argsort(group_of, kind="stable")]
    group_of = matched.group[matched.key[order]]
    for part in np.split(order, np.flatnonzero(np.diff(group_of)) + 1):
        if len(part):
            rows += _group_lines(matched, part, count)
    return rows


def _group_lines(matched: Collectives, part: NDArray[np.intp], count: int) -> list[Line]:
    """Lines of a group's members by the operations that all are in; where these are few, by those that some are in."""
    ranks, column = np.unique(matched.rank[part], return_inverse=True)
    keys, row = np.unique(matched.key[part], return_inverse=True)
    if len(ranks) < 2:
        return []
    ends = np.full((len(keys), len(ranks)), np.nan)
    ends[row.ravel(), column.ravel()] = matched.end_s[part]
    step = np.zeros(len(keys), np.int64)
    np.maximum.at(step, row.ravel(), matched.step[part])
    group = int(matched.group[matched.key[part[0]]])
    whole = ~np.isnan(ends).any(axis=1)
    if 2 * whole.sum() >= len(keys):
        ends, step = ends[whole], step[whole]
        place = np.argsort(np.argsort(ends, axis=0), axis=0).mean(axis=1)
        ends = ends[np.lexsort((place, step))]  # a clock set back mixes times, not steps
        level = np.median(ends, axis=0)
        middle = np.median(ends - level, axis=1)
        return _lines_of(group * count + int(ranks[0]), ranks, ends, middle + level[0])
    rows: list[Line] = []
    for members, level in _tied(ends):
        some = (~np.isnan(ends[:, members])).sum(axis=1) > 1
        mine = ends[np.ix_(some, members)]
        middle = _middle(mine, level)
        order = np.lexsort((middle, step[some]))
        rows += _lines_of(group * count + int(ranks[members[0]]), ranks[members], mine[order], middle[order])
    return rows


def _lines_of(group: int, ranks: NDArray[np.int64], ends_s: Floats, middle_s: Floats) -> list[Line]:
    """Offset and slope of each member, from ends of operations in order (NaN: not in it) and their common times."""
    if not len(ends_s):
        return []
    apart = ends_s - middle_s[:, None]
    third = -(-len(ends_s) // 3)
    offset = np.nanmedian(apart, axis=0)
    begun, ended = (_median(a, offset) for a in (apart[:third], apart[-third:]))
    slope = _slopes(middle_s, apart - offset)
    when = np.nanmedian(ends_s, axis=0)
    if np.isnan(ends_s).any():  # medians of members lie at other times: move all to one
        middle = float(np.median(middle_s))
        offset = np.nanmedian(apart - np.nan_to_num(slope) * (middle_s - middle)[:, None], axis=0)
        when = middle + offset
    return [
        (group, int(r), float(o), float(s), float(v), float(b), float(e))
        for r, o, s, v, b, e in zip(ranks, offset, slope, when, begun, ended, strict=True)
    ]


def _median(values: Floats, default: Floats) -> Floats:
    """Median of each column's known values; the default where none is known."""
    known = ~np.isnan(values).all(axis=0)
    found = default.copy()
    found[known] = np.nanmedian(values[:, known], axis=0)
    return found


def _middle(ends_s: Floats, level_s: Floats) -> Floats:
    """Time of each operation by a clock amid the members', of which some lack it: fitted with all offsets and drifts.

    A median over those that are in it would move with who they are, as clocks drift.
    """
    from scipy.sparse import coo_matrix

    key, rank = np.nonzero(~np.isnan(ends_s))
    rough = np.nanmedian(ends_s - level_s, axis=1)
    since = (rough - rough.mean()) / max(float(np.ptp(rough)), 1e-9)
    keys, ranks = ends_s.shape
    at, one = np.arange(len(key)), np.ones(len(key))
    columns = np.r_[key, keys + rank, keys + ranks + rank]
    matrix = coo_matrix((np.r_[one, one, since[key]], (np.r_[at, at, at], columns)))
    found, _ = _robust(matrix.tocsr(), (ends_s - level_s - rough[:, None])[key, rank])
    return np.asarray(rough + found[:keys])


def _tied(ends_s: Floats) -> list[tuple[NDArray[np.intp], Floats]]:
    """Find members that operations tie, directly or through others, and roughly how far their clocks are apart.

    From the member with most operations on: who shares operations with those reached is placed by their median.
    """
    known = ~np.isnan(ends_s)
    left, found = known.any(axis=0), []
    while left.any():
        level = np.full(ends_s.shape[1], np.nan)
        level[np.argmax(known.sum(axis=0) * left)] = 0.0
        while True:
            reached = ~np.isnan(level)
            rows = known[:, reached].any(axis=1)
            middle = np.nanmedian(ends_s[np.ix_(rows, reached)] - level[reached], axis=1)
            shared = known[rows].sum(axis=0) * ~reached
            if not shared.any():
                break
            new = shared >= max(shared.max() / 2, 1)
            level[new] = np.nanmedian(ends_s[np.ix_(rows, new)] - middle[:, None], axis=0)
        level[reached] = np.nanmedian(ends_s[np.ix_(rows, reached)] - middle[:, None], axis=0)
        left &= ~reached
        if reached.sum() > 1:
            found.append((np.flatnonzero(reached), level[reached]))
    return found


def _slopes(when_s: Floats, apart_s: Floats) -> Floats:
    """Theil and Sen's slope of each column, from pairs a quarter of the series apart; NaN where the series is short.

    A quarter, so that a clock's jump lies inside a third of the pairs at most; what no drift explains is left out.
    """
    if len(when_s) < ENOUGH_FOR_DRIFT:
        return np.full(apart_s.shape[1], np.nan)
    lag = max(len(when_s) // 4, 1)
    gap = when_s[lag:] - when_s[:-lag]
    good = gap > 0
    if not good.any():
        return np.full(apart_s.shape[1], np.nan)
    slope = (apart_s[lag:] - apart_s[:-lag])[good] / gap[good, None]
    slope[np.abs(slope) > MOST_DRIFT] = np.nan
    found = np.full(apart_s.shape[1], np.nan)
    enough = (~np.isnan(slope)).sum(axis=0) >= max(len(slope) // 4, 1)
    found[enough] = np.nanmedian(slope[:, enough], axis=0)
    return found


def _parts(rows: list[Line], count: int) -> NDArray[np.int64]:
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
    rows: list[Line], values: list[float], count: int, part: NDArray[np.int64]
) -> tuple[Floats, float]:
    """Least squares of rank value minus group value, weighted down where far off; the first rank of a part has 0.

    Also returns how far values are off on average.
    """
    from scipy.sparse import coo_matrix

    groups = {g: i for i, g in enumerate(dict.fromkeys(row[0] for row in rows))}
    at = np.arange(len(rows))
    rank = np.array([row[1] for row in rows])
    other = count + np.array([groups[row[0]] for row in rows])
    target = np.array(values)
    shape = (len(rows), count + len(groups))
    one = np.ones(len(rows))
    matrix = coo_matrix((np.r_[one, -one], (np.r_[at, at], np.r_[rank, other])), shape=shape).tocsr()
    found, off = _robust(matrix, target)
    seen = np.isin(np.arange(count), rank)
    value_of = np.where(seen, found[:count], np.nan)
    zero = {p: value_of[np.flatnonzero((part == p) & seen)[:1]] for p in np.unique(part)}
    value = np.array(
        [v - zero[p][0] if len(zero[p]) else np.nan for v, p in zip(value_of, part, strict=True)]
    )
    return value, float(off.mean())


def _robust(matrix: Any, target: Floats) -> tuple[Floats, Floats]:
    """Solve a sparse system by least squares, weighted down where far off; also return how far each row is off."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import lsqr

    weight = np.ones(len(target))
    for _ in range(4):
        scaled = diags_array(weight) @ matrix
        found = lsqr(scaled, weight * target, atol=1e-14, btol=1e-14, iter_lim=8 * sum(matrix.shape))[0]
        off = np.abs(matrix @ found - target)
        scale = max(1.5 * float(np.median(off)), 1e-9)
        weight = np.sqrt(np.minimum(1.0, scale / np.maximum(off, 1e-30)))
    return found, off


def _common_ends(clocks: Clocks, matched: Collectives) -> Floats:
    """Return the ends of all events by the common clock."""
    end = np.empty(len(matched))
    order = np.argsort(matched.rank, kind="stable")
    rank = matched.rank[order]
    for mine in np.split(order, np.flatnonzero(np.diff(rank)) + 1):
        if len(mine):
            end[mine] = clocks.common_s(int(matched.rank[mine[0]]), matched.end_s[mine])
    return end


def _residuals(clocks: Clocks, matched: Collectives) -> Floats:
    """How far each event's end is from the middle of its operation, by the common clock."""
    end = _common_ends(clocks, matched)
    order = np.lexsort((end, matched.key))
    first = np.r_[0, np.flatnonzero(np.diff(matched.key[order])) + 1] if len(order) else np.zeros(0, np.int64)
    counts = matched.members
    low, high = end[order][first + (counts - 1) // 2], end[order][first + counts // 2]
    middle = (low + high) / 2
    return np.where(counts[matched.key] > 1, end - middle[matched.key], 0.0)


def _jumps(
    matched: Collectives, residual: Floats, when_s: Floats, ranks: set[int], count: int
) -> tuple[tuple[Jump, ...], Floats]:
    """Find steps in a rank's residuals, and its level before: only a clock that was set shifts all that follows."""
    found: list[Jump] = []
    level = np.zeros(count)
    order = np.argsort(matched.rank, kind="stable")
    order = order[matched.members[matched.key[order]] > 2]
    for mine in np.split(order, np.flatnonzero(np.diff(matched.rank[order])) + 1):
        if len(mine) < 4 or int(matched.rank[mine[0]]) not in ranks:
            continue
        mine = mine[np.argsort(when_s[mine])]
        jump = change(residual[mine], JUMP_S)
        if jump is not None:
            at, by = jump
            row = int(matched.rank[mine[0]])
            level[row] = float(np.median(residual[mine[:at]]))
            after, before = float(matched.end_s[mine[at - 1]]), float(matched.end_s[mine[at]])
            after, before = after + min(by, 0.0), before - min(by, 0.0)  # set back, it shows a time twice
            found.append(Jump(row, by, after, before))
    return tuple(found), level


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
