"""Ascend's operator totals (``op_statistic.csv``): which operators take the time, on which unit, on which rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.classes import EXPERTS
from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.outliers import Outlier
from telekit.diagnose.tables.alike import FEWEST, UNEVEN, above, blocks_of
from telekit.diagnose.tables.report import Cell, TableReport, unusable
from telekit.diagnose.trace import Floats, Table

AI_CPU = re.compile(r"ai[_ ]?cpu", re.IGNORECASE)
AI_CPU_SHARE = 0.02
"""AI CPU operators that cost less than this share of the operators' time do not matter."""
SHORT_S = 15e-6
"""Operators that take less than this on average are issued hardly faster than they run."""
MOSTLY = 0.6
"""One kind of operator explains an excess when it has this share of it."""
EVEN = 0.5
"""All operators are slower alike when the middle half of their ratios lies within this share of the median excess."""


@dataclass(frozen=True, eq=False)
class Operators:
    """Operator totals: arrays of (ranks, operators).

    Parameters
    ----------
    rank : (ranks,) array
        Their numbers.
    known : bool
        The tables say the ranks.
    names : tuple of (str, str)
        Type of operator, and the unit it runs on (``AI_CORE``, ``AI_CPU``...).
    count, total_s : arrays
        How often, and seconds of all; 0 where a rank has none.
    """

    rank: NDArray[np.int64]
    known: bool
    names: tuple[tuple[str, str], ...]
    count: Floats
    total_s: Floats


def analyse_operators(tables: Sequence[Table], ranks_per_node: int = 8) -> TableReport:
    """Say which operators take the time, which run on the AI CPU, and on which rank they take longer.

    Parameters
    ----------
    tables : sequence of Table
        Of kind ``operators``, one a rank.
    ranks_per_node : int
        Not used: operators say nothing of nodes.
    """
    problems, sources = ProblemCounter(), [t.source for t in tables]
    found = _together(tables, problems)
    whole = float(found.total_s.sum())
    if not whole > 0:
        return unusable("operators", sources, "no operator has a time", problems)
    order = np.argsort(-found.total_s.sum(axis=0), kind="stable")
    rows = tuple(_row(found, int(i), whole) for i in order)
    count = float(found.count.sum())
    mean_s = whole / count if count else np.nan
    top = rows[0]
    says = f"{len(found.rank)} ranks: {top['operator']} takes {top['share']:.0%} of the operators' time"
    says += f"; {count:,.0f} operators of {mean_s * 1e6:.1f} us on average" if count else ""
    notes = (
        [] if found.known else ["the tables do not say their ranks: they are numbered in the order of files"]
    )
    if mean_s < SHORT_S:
        notes.append(
            f"operators take {mean_s * 1e6:.1f} us on average, hardly longer than a host takes to issue one"
        )
    findings = tuple(sorted([*_ai_cpu(found, whole), *_slow(found)], key=lambda f: -f.share))
    return TableReport(
        "operators", tuple(sources), "unknown", says, rows, findings, tuple(notes), problems.listed()
    )


def _together(tables: Sequence[Table], problems: ProblemCounter) -> Operators:
    """Sum operators of each rank by type and unit; a rank that two tables are of keeps the first."""
    known = len(tables) == 1 or all(t.rank is not None for t in tables)
    cells: dict[tuple[int, tuple[str, str]], list[float]] = {}
    ranks: list[int] = []
    for place, table in enumerate(tables):
        rank = place if table.rank is None or not known else table.rank
        if rank in ranks:
            problems.add(f"a second table of rank {rank} is left out", table.source)
            continue
        ranks.append(rank)
        nothing = ("",) * len(table)
        total = table.columns.get("total_time_s", np.full(len(table), np.nan))
        count = table.columns.get("count", np.full(len(table), np.nan))
        units = table.labels.get("core_type", nothing)
        for name, unit, n, seconds in zip(table.labels["op_type"], units, count, total, strict=True):
            if not np.isfinite(seconds) or seconds < 0:
                problems.add("an operator without a time", f"{table.source}: {name}"[:200])
                continue
            cell = cells.setdefault((rank, (name, unit)), [0.0, 0.0])
            cell[0] += float(np.nan_to_num(n))
            cell[1] += float(seconds)
    names = tuple(dict.fromkeys(name for _, name in cells))
    row = {rank: i for i, rank in enumerate(ranks)}
    column = {name: i for i, name in enumerate(names)}
    values = np.zeros((2, len(ranks), len(names)))
    for (rank, both), cell in cells.items():
        values[:, row[rank], column[both]] = cell
    return Operators(np.array(ranks, np.int64), known, names, values[0], values[1])


def _row(found: Operators, column: int, whole: float) -> dict[str, Cell]:
    name, unit = found.names[column]
    total, count = float(found.total_s[:, column].sum()), float(found.count[:, column].sum())
    return {
        "operator": name,
        "unit": unit,
        "count": int(count),
        "total_s": total,
        "mean_s": total / count if count else None,
        "share": total / whole,
        "longest_rank": int(found.rank[int(found.total_s[:, column].argmax())])
        if len(found.rank) > 1
        else None,
    }


def _ai_cpu(found: Operators, whole: float) -> list[Finding]:
    """Operators that no core of the device has a kernel for run on its slow CPU."""
    columns = [i for i, (_, unit) in enumerate(found.names) if AI_CPU.search(unit)]
    share = float(found.total_s[:, columns].sum()) / whole
    if share < AI_CPU_SHARE:
        return []
    columns.sort(key=lambda i: -found.total_s[:, i].sum())
    evidence = []
    for i in columns[:8]:
        total, count = float(found.total_s[:, i].sum()), int(found.count[:, i].sum())
        evidence.append(
            Evidence(f"{found.names[i][0]}: {count:,} times, {total * 1e3:.3f} ms, {total / whole:.1%}")
        )
    here = found.total_s[:, columns].sum(axis=1) > 0
    names = ", ".join(found.names[i][0] for i in columns[:4])
    return [Finding("AI CPU operators", "all" if here.all() else "several", tuple(found.rank[here].tolist()), (), share,
                    0.0, tuple(evidence), names,
                    "use a type or shape that the cores have a kernel for (often: not int64 or float64), "
                    "or another operator")]  # fmt: skip


def _slow(found: Operators) -> list[Finding]:
    """Ranks whose operators take longer: all of them (the device), experts' (the load), or some."""
    own = [i for i, (_, unit) in enumerate(found.names) if not re.search("comm|hccl", unit, re.IGNORECASE)]
    if len(found.rank) < FEWEST or not own:
        return []
    time = found.total_s[:, own]
    total = time.sum(axis=1, keepdims=True)
    usual = float(np.median(total))
    blocks = blocks_of(total[:, 0], UNEVEN * usual)
    findings = []
    for one in above(total, usual, blocks):
        findings.append(_explained(found, one, own, usual))
    return findings


def _explained(found: Operators, one: Outlier, own: list[int], usual_s: float) -> Finding:
    """Say which operators make the excess of a rank."""
    others = np.delete(found.total_s[:, own], one.row, axis=0)
    mine, base = found.total_s[one.row, own], np.median(others, axis=0)
    excess = mine - base
    order = np.argsort(-excess, kind="stable")[:4]
    kind, advice = "slow rank", "these operators take longer on this rank only: more work, or a slow device"
    experts = np.array([bool(EXPERTS.search(found.names[i][0])) for i in own])
    if excess[experts].sum() >= MOSTLY * excess.sum():
        kind, advice = (
            "expert imbalance",
            "its experts get more tokens: balance the router, or place experts anew",
        )
    elif _alike(found, one.row, own, excess / np.where(base > 0, base, np.inf), base):
        kind, advice = "slow device", "look at its clock, temperature and power; swap it"
    evidence = tuple(
        Evidence(f"{found.names[own[i]][0]}: {mine[i] * 1e3:.3f} ms on rank {found.rank[one.row]}, "
                 f"{base[i] * 1e3:.3f} ms on the median rank", int(found.rank[one.row]))
        for i in order if excess[i] > 0
    )  # fmt: skip
    return Finding(kind, "rank", (int(found.rank[one.row]),), (), min(one.excess / usual_s, 1.0), one.score, evidence,
                   "operators' time", advice)  # fmt: skip


def _alike(found: Operators, row: int, own: list[int], ratio: Floats, base: Floats) -> bool:
    """As many operators as elsewhere, of several types, and all slower by about the same share."""
    count = found.count[:, own]
    usual = np.median(np.delete(count, row, axis=0), axis=0)
    large = base >= 0.01 * base.sum()
    if large.sum() < 3 or not np.array_equal(count[row, large], usual[large]):
        return False
    low, mid, high = np.quantile(ratio[large], [0.25, 0.5, 0.75])
    return bool(mid > 0 and high - low <= EVEN * mid)
