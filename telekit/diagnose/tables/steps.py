"""Ascend's step times (``step_trace_time.csv``): what bounds the run, who is slow, who idles.

Fields, by msprof-analyze's documentation: a step is ``Computing``, ``Communication(Not Overlapped)`` and ``Free``, the
device's idle time; ``Preparing``, the time before a step's first operator, is part of ``Free``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.summary import bound_of
from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.outliers import Outlier
from telekit.diagnose.tables.alike import (
    FEWEST,
    UNEVEN,
    above,
    blocks_of,
    table_of,
    uneven,
    waits_less,
)
from telekit.diagnose.tables.report import Cell, TableReport, middle, unusable
from telekit.diagnose.trace import Floats, Table

PARTS = ("computing_s", "exposed_s", "overlapped_s", "free_s", "preparing_s")
SLOW = "a slow device, or more work than the others': compare its operators (op_statistic.csv) and its trace"


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Step times of ranks, arrays of (ranks, steps); NaN where unknown.

    Parameters
    ----------
    rank : (ranks,) array
        Their numbers.
    known : bool
        The tables say the ranks.
    step : (steps,) array
        Numbers of the steps.
    computing_s, exposed_s, overlapped_s, free_s, preparing_s : arrays
        Seconds; exposed is communication not overlapped, preparing is part of free.
    """

    rank: NDArray[np.int64]
    known: bool
    step: NDArray[np.int64]
    computing_s: Floats
    exposed_s: Floats
    overlapped_s: Floats
    free_s: Floats
    preparing_s: Floats

    @property
    def wall_s(self) -> Floats:
        """Length of each step on each rank."""
        return np.asarray(self.computing_s + np.nan_to_num(self.exposed_s) + self.free_s)

    @property
    def step_s(self) -> float:
        """Median length of a step."""
        return float(np.nanmedian(self.wall_s))


def analyse_steps(tables: Sequence[Table], ranks_per_node: int = 8) -> TableReport:
    """Say what bounds a run, and which ranks are slow, by Ascend's step times.

    Parameters
    ----------
    tables : sequence of Table
        Of kind ``steps``: one a rank, or the cluster's.
    ranks_per_node : int
        Ranks that share a node, in order.
    """
    problems, sources = ProblemCounter(), [t.source for t in tables]
    times = _times(tables, problems)
    if times is None:
        return unusable("steps", sources, "no step has computing and free time", problems)
    rows = tuple(_row(times, i) for i in range(len(times.rank)))
    bound = Counter(str(r["bound"]) for r in rows).most_common(1)[0][0]
    findings = (*_slow(times, ranks_per_node), *_idle(times, rows, bound))
    notes = []
    if not times.known:
        notes.append("the tables do not say their ranks: they are numbered in the order of files")
    if 1 < len(times.rank) < FEWEST:
        notes.append("two ranks: who is slow cannot be told from who is normal; three or more can")
    return TableReport("steps", tuple(sources), bound, _says(times, bound), rows,
                       tuple(sorted(findings, key=lambda f: -f.share)), tuple(notes), problems.listed())  # fmt: skip


def _times(tables: Sequence[Table], problems: ProblemCounter) -> StepTimes | None:
    """Put tables together; None where no row can be used."""
    known = len(tables) == 1 or all(t.rank is not None or "rank" in t.columns for t in tables)
    parts = [_columns(t, place, problems) for place, t in enumerate(tables)]
    joined = np.concatenate(parts, axis=1) if parts else np.zeros((7, 0))
    usable = np.isfinite(joined[[0, 2, 5]]).all(axis=0) & (joined[2] + joined[5] > 0)
    if (~usable).any():
        problems.add("a step without computing or free time, or of no rank", count=int((~usable).sum()))
    joined = joined[:, usable]
    if not joined.shape[1]:
        return None
    rank, step = joined[0].astype(np.int64), joined[1].astype(np.int64)
    twice = len(rank) - len(np.unique(np.column_stack([rank, step]), axis=0))
    if twice:
        problems.add("a step of a rank stands twice (the first counts)", count=twice, lost=False)
    spread = [table_of(rank, step, values) for values in joined[2:]]
    return StepTimes(spread[0][0], known, spread[0][1], *(values for _, _, values in spread))


def _columns(table: Table, place: int, problems: ProblemCounter) -> Floats:
    """Rank, step and :data:`PARTS` of each row; rows of whole stages are left out."""
    count, nothing = len(table), np.full(len(table), np.nan)
    column = table.columns
    rank = column.get("rank", np.full(count, place if table.rank is None else table.rank, np.float64))
    step = column.get("step", nothing)
    step = np.where(np.isfinite(step), step, np.arange(count))
    computing, free = column.get("computing_s", nothing), column.get("free_s", nothing)
    exposed = column.get("communication_not_overlapped_s", nothing)
    if not np.isfinite(exposed).any():
        whole = column.get("stage_s", nothing) + np.nan_to_num(column.get("bubble_s", nothing))
        exposed = np.where(np.isfinite(whole), np.maximum(whole - computing - free, 0.0), np.nan)
        how = "taken from Stage" if np.isfinite(whole).any() else "taken for 0"
        problems.add(f"no column Communication(Not Overlapped): {how}", table.source, lost=False)
    preparing = column.get("preparing_s", nothing)
    wrong = preparing > free * 1.001 + 1e-6
    if wrong.any():  # some versions write a date there
        problems.add("Preparing is longer than Free, of which it is a part: left out", table.source,
                     lost=False, count=int(wrong.sum()))  # fmt: skip
    preparing = np.where(wrong, np.nan, preparing)
    found = np.array([rank, step, computing, exposed, column.get("overlapped_s", nothing), free, preparing])
    kind = table.labels.get("type")
    return found if kind is None else found[:, [k.lower() == "rank" for k in kind]]


def _row(times: StepTimes, row: int) -> dict[str, Cell]:
    """Mean seconds of a rank, and what bounds it."""
    steps = np.isfinite(times.wall_s[row])
    mean = {name: _mean(getattr(times, name)[row, steps]) for name in PARTS}
    step_s, free, preparing = (
        float(times.wall_s[row, steps].mean()),
        mean["free_s"] or 0.0,
        mean["preparing_s"] or 0.0,
    )
    bound = bound_of(
        step_s, data_s=preparing, host_s=free - preparing, communication_s=mean["exposed_s"] or 0.0
    )
    return {"rank": int(times.rank[row]), "steps": int(steps.sum()), "bound": bound, "step_s": step_s, **mean}


def _mean(values: Floats) -> float | None:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else None


def _says(times: StepTimes, bound: str) -> str:
    wall = float(np.nanmean(times.wall_s))
    shares = [
        float(np.nanmean(np.nan_to_num(v))) / wall for v in (times.computing_s, times.exposed_s, times.free_s)
    ]
    return (
        f"{len(times.rank)} ranks, {len(times.step)} steps of {times.step_s * 1e3:.1f} ms: computing {shares[0]:.0%}, "
        f"communication not overlapped {shares[1]:.0%}, device idle {shares[2]:.0%}; most are bound by {bound}"
    )


def _slow(times: StepTimes, ranks_per_node: int) -> list[Finding]:
    """Ranks, or blocks of them, that compute longer while the others wait; and ranks whose device idles longer."""
    step_s, found = times.step_s, []
    level = middle(times.computing_s)
    blocks = blocks_of(level, UNEVEN * step_s)
    if blocks is not None:
        found.append(uneven(times.rank, blocks, step_s, "computing", ranks_per_node))
    slow = [o for o in above(times.computing_s, step_s, blocks) if _holds_up(times, o)]
    if slow:
        found.append(_of_ranks("slow rank", times, slow, times.computing_s, "computing", SLOW))
    known = {o.row for o in slow}
    late = [o for o in above(times.free_s, step_s) if o.row not in known and _holds_up(times, o)]
    if not late:
        return found
    early = middle(np.nan_to_num(times.preparing_s))
    first = late[0]
    before = early[first.row] - float(np.median(early)) > first.excess / 2
    kind = "slow data loading" if before else "late"
    what = "idle before a step's first operator" if before else "idle"
    advice = "look at its host: loading of data, other processes, CPU binding; a trace shows what it does meanwhile"
    return [*found, _of_ranks(kind, times, late, times.preparing_s if before else times.free_s, what, advice)]


def _holds_up(times: StepTimes, outlier: Outlier) -> bool:
    """Others wait for it, or its own step is longer."""
    row, wall = outlier.row, middle(times.wall_s)
    longer = wall[row] - float(np.nanmedian(wall)) >= 0.5 * outlier.excess
    return longer or waits_less(middle(times.exposed_s), row, outlier.excess)


def _of_ranks(
    kind: str, times: StepTimes, slow: Sequence[Outlier], values: Floats, what: str, advice: str
) -> Finding:
    level, wait = middle(np.nan_to_num(values)), middle(times.exposed_s)
    usual, usual_wait = (
        float(np.median(level)),
        float(np.nanmedian(wait)) if np.isfinite(wait).any() else np.nan,
    )
    evidence = []
    for one in slow[:8]:
        text = f"rank {times.rank[one.row]}: {what} {level[one.row] * 1e3:.2f} ms a step"
        text += f", the median rank {usual * 1e3:.2f} ms"
        if np.isfinite(wait[one.row]):
            text += f"; communication not overlapped {wait[one.row] * 1e3:.2f} ms"
            text += f", the median rank {usual_wait * 1e3:.2f} ms"
        evidence.append(Evidence(text, int(times.rank[one.row])))
    return Finding(
        kind, "rank" if len(slow) == 1 else "several", tuple(int(times.rank[o.row]) for o in slow),
        tuple(int(times.step[i]) for i in slow[0].steps), min(slow[0].excess / times.step_s, 1.0), slow[0].score,
        tuple(evidence), "", advice,
    )  # fmt: skip


def _idle(times: StepTimes, rows: Sequence[dict[str, Cell]], bound: str) -> list[Finding]:
    """Devices idle on most ranks: they wait for the host, or for data."""
    if bound not in ("host", "data"):
        return []
    here = np.array([r["bound"] == bound for r in rows])
    idle = times.preparing_s if bound == "data" else times.free_s - np.nan_to_num(times.preparing_s)
    share = middle(idle[here] / times.wall_s[here])
    least, most = float(share.min()), float(share.max())
    what = "before a step's first operator" if bound == "data" else "inside steps"
    text = (
        f"devices idle {what} for {least:.0%} to {most:.0%} of the step on {len(share)} of {len(here)} ranks"
    )
    kind, advice = (
        "host bound",
        "let the host issue less: fused operators, graphs, bound CPUs, less monitoring",
    )
    if bound == "data":
        kind = "slow data loading"
        advice = (
            "load ahead (more workers, pinned memory), or find what the host does before its first launch"
        )
    ranks, steps = times.rank[here].tolist(), times.step.tolist()
    return [Finding(kind, "all" if here.all() else "several", tuple(ranks), tuple(steps), float(np.median(share)), 0.0,
                    (Evidence(text),), "", advice)]  # fmt: skip
