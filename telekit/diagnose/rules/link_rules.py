"""Collectives that move data slower in some groups, and the rank, node or pair that all of these share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.collectives import identify
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.outliers import Outlier, persistent, transient
from telekit.diagnose.trace import OPERATION, Floats

LEAST_RATIO = 0.2
"""Least slowness of a group's transfers against those of its kind."""
LEAST_SHARE = 0.005
"""Least loss over the step."""
NOISE_RATIO = 0.02
ONE_PLACE = 0.7
"""Jaccard index from which one place explains slow collectives and slow point-to-point operations together."""
ADVICE = "check the link's errors, its port and cable, and what else crosses it"


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers of groups, by step, against groups of their kind.

    Parameters
    ----------
    group : (n,) int array
        Index of each row's group in ``Collectives.groups``.
    ratio : (n, steps) array
        Median over the step's operations of transfer time over the normal, minus 1; NaN where there are none.
    lost_s : (n, steps) array
        Seconds above the normal.
    members : tuple of int arrays
        Traces of each group.
    pair : (n,) bool array
        Point-to-point.
    peers : (n,) int array
        Groups it was compared with, itself counted.
    """

    group: NDArray[np.int64]
    ratio: Floats
    lost_s: Floats
    members: tuple[NDArray[np.int64], ...]
    pair: NDArray[np.bool_]
    peers: NDArray[np.int64]


def transfers(run: Run, valid: NDArray[np.bool_]) -> Transfers | None:
    """Compare the transfer times of groups of one kind (operation, size, bytes, nodes crossed); None without any.

    Operations in which a member's step is not ``valid`` (ranks by steps; a clock was set) do not count.
    """
    found = run.collectives
    if not len(found):
        return None
    of_group = found.ranks_of()
    key_first = np.unique(found.key, return_index=True)[1]
    column = _common_step(run, found.rank[key_first], found.step[key_first])
    spans = np.zeros(len(found.groups), np.int64)
    for group, members in of_group.items():
        spans[group] = min(len(np.unique(run.node[members])), 2)
    seats = np.zeros(len(found.groups), np.int64)
    for group, members in of_group.items():
        seats[group] = len(members)
    where = _common_step(run, found.rank, found.step)
    bad = (where >= 0) & ~valid[found.rank, where]
    column[found.key[bad]] = -1
    use = (found.members > 1) & (found.members == seats[found.group]) & (column >= 0)
    if not use.any():
        return None
    span = spans[found.group]
    kind = identify(found.kind, span)[0]
    normal, peers = _normal(kind, found.group, found.transfer_s, use)
    groups = np.unique(found.group[use])
    row = np.searchsorted(groups, found.group)
    shape = (len(groups), len(run.number))
    excess = found.transfer_s / np.where(normal[kind] > 0, normal[kind], np.nan) - 1
    good = use & ~np.isnan(excess)
    cell = row[good] * shape[1] + column[good]
    flat = np.bincount(cell, weights=(excess * normal[kind])[good], minlength=shape[0] * shape[1])
    base = np.bincount(cell, weights=normal[kind][good], minlength=shape[0] * shape[1])
    lost = np.asarray(flat, float).reshape(shape)
    ratio = (flat / np.where(base > 0, base, np.nan)).reshape(shape)
    paired = np.zeros(len(groups), bool)
    operation = [run.traces[found.rank[i]].operation[found.event[i]] for i in key_first]
    paired[row[np.array(operation) == OPERATION["send-recv"]].clip(max=len(groups) - 1)] = True
    fellows = np.zeros(len(groups), np.int64)
    np.maximum.at(fellows, row[good], peers[kind][good])
    return Transfers(groups, ratio, lost, tuple(of_group[int(g)] for g in groups), paired, fellows)


def _common_step(run: Run, rank: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the common step of each event; -1 outside."""
    size = max((len(s.number) for s in run.steps), default=0) + 1
    place = np.full((len(run.traces), size), -1)
    for r, (column, present) in enumerate(zip(run.column, run.present, strict=True)):
        place[r, column[present]] = np.flatnonzero(present)
    return np.asarray(place[rank, step])  # step -1 reads the last column, which stays -1


def _normal(
    kind: NDArray[np.int64], group: NDArray[np.int64], time_s: Floats, use: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.int64]]:
    """Return the normal time of each kind, the lower quartile over groups of medians, and how many groups there are."""
    count = int(kind.max()) + 1
    normal, peers = np.zeros(count), np.zeros(count, np.int64)
    at = np.flatnonzero(use)
    order = at[np.lexsort((time_s[at], group[at], kind[at]))]
    change = (np.diff(kind[order]) != 0) | (np.diff(group[order]) != 0)
    begin = np.r_[0, np.flatnonzero(change) + 1]
    end = np.r_[begin[1:], len(order)]
    middle = time_s[order[begin + (end - begin - 1) // 2]]
    of = kind[order[begin]]
    for k in np.unique(of):
        values = np.sort(middle[of == k])
        normal[k], peers[k] = values[(len(values) - 1) // 4], len(values)
    return normal, peers


def link_findings(run: Run, valid: NDArray[np.bool_]) -> list[Finding]:
    """Find links that are slow, by the groups that suffer; one place that explains all of them where there is one."""
    moved = transfers(run, valid)
    if moved is None or len(run.traces) < 3 or run.step_s <= 0:
        return []
    slow = {pair: _slow(moved, np.flatnonzero(moved.pair == pair), run.step_s) for pair in (True, False)}
    both = slow[True] | slow[False]
    if slow[True] and slow[False]:
        places = _places(run, moved, set(both))
        if max(_fit(rows, set(both)) for rows in places.values()) >= ONE_PLACE:
            return [_located(run, moved, both, False)]
    return [_located(run, moved, rows, pair) for pair, rows in slow.items() if rows]


def _slow(moved: Transfers, rows: NDArray[np.intp], step_s: float) -> dict[int, Outlier]:
    """Rows of slow groups: slower than their kind and than chance, and long enough to matter."""
    if not len(rows):
        return {}
    ratio, lost = moved.ratio[rows], moved.lost_s[rows] / step_s
    alone = moved.peers[rows] < 2
    marked = {o.row: o for o in transient(ratio, 2 * LEAST_RATIO, NOISE_RATIO)}
    marked |= {
        o.row: o for o in persistent(np.where(alone[:, None], np.nan, ratio), LEAST_RATIO, NOISE_RATIO)
    }
    found = {}
    for row, outlier in marked.items():
        share = float(np.nansum(lost[row, list(outlier.steps)])) / lost.shape[1]
        if share >= LEAST_SHARE:
            at = int(rows[row])
            found[at] = Outlier(at, outlier.persistent, share, outlier.steps, outlier.score)
    return found


def _located(run: Run, moved: Transfers, slow: dict[int, Outlier], pair: bool) -> Finding:
    """Say what the slow groups share: a rank, a node, or the group alone."""
    scope, ranks = _locate(run, moved, set(slow), pair)
    worst = max(slow.values(), key=lambda o: o.excess)
    steps = tuple(sorted({int(run.number[s]) for o in slow.values() for s in o.steps}))
    kind = "slow point-to-point" if pair else "slow link"
    evidence = tuple(
        _evidence(run, moved, slow[row]) for row in sorted(slow, key=lambda r: -slow[r].excess)[:3]
    )
    return Finding(kind, scope, ranks, steps, run.share(worst.excess), worst.score, evidence,
                   f"{len(slow)} groups move data slower", ADVICE)  # fmt: skip


def _locate(run: Run, moved: Transfers, slow: set[int], pair: bool) -> tuple[str, tuple[int, ...]]:
    """Find the smallest place whose groups are the slow ones: best Jaccard index of groups touched and groups slow.

    Of places that fit alike, the one whose other groups, of any kind over the same links, are slow too.
    """
    places = _places(run, moved, slow)
    score = {place: _fit(rows, slow) for place, rows in places.items()}
    best = max(score.values())
    top = [p for p, s in score.items() if s > best - 1e-9]
    wider = _places(run, moved, slow, any_kind=True)
    rest = {p: _fit(wider[p], slow) for p in top}
    order = {"rank": 0, "group": 1, "node": 2}
    top = sorted((p for p in top if rest[p] > max(rest.values()) - 1e-9), key=lambda p: (order[p[0]], p[1]))
    same = [p for p in top if p[0] == "rank"]
    if len(slow) == 1 and ("group", next(iter(slow))) in top:  # nothing tells its link from a member's port
        members = moved.members[next(iter(slow))]
        return "group", tuple(run.ranks[members].tolist())
    where, which = top[0]
    if where == "rank":
        rows = [p[1] for p in same]
        return ("rank" if len(rows) == 1 else "group"), tuple(run.ranks[rows].tolist())
    if where == "node":
        nodes = [p[1] for p in top]
        return ("node" if len(nodes) == 1 else "several"), tuple(run.ranks[np.isin(run.node, nodes)].tolist())
    return "group", tuple(run.ranks[moved.members[which]].tolist())


Place = tuple[str, int]


def _places(run: Run, moved: Transfers, slow: set[int], any_kind: bool = False) -> dict[Place, set[int]]:
    """Find groups that touch each rank, node and group, of the slow ones' kinds, or of any over the same links.

    Groups that nothing compares with say nothing, unless they are slow.
    """
    kinds = {_kind_of(run, moved, row) for row in slow}
    crossed = {kind[1] for kind in kinds}
    touched: dict[Place, set[int]] = {}
    for row in range(len(moved.group)):
        kind = _kind_of(run, moved, row)
        if row not in slow and not (kind in kinds or (any_kind and kind[1] in crossed)):
            continue
        if row not in slow and moved.peers[row] < 2:
            continue
        for member in moved.members[row]:
            touched.setdefault(("rank", int(member)), set()).add(row)
            touched.setdefault(("node", int(run.node[member])), set()).add(row)
        touched[("group", row)] = {row}
    return touched


def _fit(rows: set[int], slow: set[int]) -> float:
    """Jaccard index of the groups of a place and the slow ones."""
    return len(rows & slow) / len(rows | slow)


def _kind_of(run: Run, moved: Transfers, row: int) -> tuple[bool, int, int]:
    """Return what makes a kind of group: point-to-point or not, inside a node or not, and of one size."""
    members = moved.members[row]
    return bool(moved.pair[row]), min(len(np.unique(run.node[members])), 2), len(members)


def _evidence(run: Run, moved: Transfers, outlier: Outlier) -> Evidence:
    """Show the slowest transfer of a slow group, on the rank that came last."""
    found = run.collectives
    group = moved.group[outlier.row]
    keys = np.flatnonzero((found.group == group) & (found.members > 1))
    first = np.unique(found.key, return_index=True)[1]
    column = _common_step(run, found.rank[first], found.step[first])
    keys = keys[np.isin(column[keys], list(outlier.steps))]
    key = int(keys[np.argmax(found.transfer_s[keys])])
    mine = np.flatnonzero(found.key == key)
    last = int(mine[np.argmin(found.end_s[mine] - found.start_s[mine])])
    row, event = int(found.rank[last]), int(found.event[last])
    usual = float(np.nanmean(moved.ratio[outlier.row, list(outlier.steps)]))
    ranks = run.ranks[moved.members[outlier.row]].tolist()
    shown = f"{ranks[:8]}{' …' if len(ranks) > 8 else ''}"
    text = (
        f"transfers of group {found.groups[group]} (ranks {shown}) take {usual:+.0%} against groups of its kind; "
        f"the slowest {found.transfer_s[key] * 1e3:.3f} ms"
    )
    trace = run.traces[row]
    return Evidence(text, int(run.ranks[row]), trace.event(event), float(trace.start_s[event]),
                    float(trace.end_s[event]))  # fmt: skip
