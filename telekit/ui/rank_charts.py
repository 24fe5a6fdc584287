"""Charts of ranks beside each other: where each one's time goes, who waits, and what was planted against found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.breakdown import CATEGORIES, pieces
from telekit.diagnose.analysis.features import Run, transfers
from telekit.diagnose.diagnosis import Diagnosis
from telekit.diagnose.trace import Floats
from telekit.ui import style
from telekit.ui.charts import Tables

SPENT = {
    "computing": ("compute", "overlap"),
    "moving data": ("transfer", "copy"),
    "waiting for a rank": ("waiting",),
    "data loading": ("data",),
    "host (device idles)": (
        "checkpoint",
        "memory",
        "collector",
        "monitor",
        "sync",
        "launch",
        "host",
        "silent",
    ),
}
"""What a reader sees, and the analysis' categories that it holds."""
COLOURS = {
    "computing": style.TIME["compute"],
    "moving data": style.TIME["communication"],
    "waiting for a rank": style.TIME["waiting"],
    "data loading": style.TIME["optimizer"],
    "host (device idles)": "#8f3f6f",
}
GROUP = np.array([next(i for i, names in enumerate(SPENT.values()) if c in names) for c in CATEGORIES])
"""Index into :data:`SPENT` of each category."""
SLICES = 150
RIGHT, WRONG = "right", "wrong"
JUDGED = {RIGHT: style.TIME["compute"], WRONG: style.LIMIT}


# --- ranks over time ----------------------------------------------------------------------------------------


def timeline_rows(found: Diagnosis, step: int, aligned: bool, slices: int = SLICES) -> Tables:
    """Make table ``ranks`` (rank, what, start, end in ms): one step of every rank, in slices of time.

    A slice is what takes most of it; neighbours of one kind are one mark.

    Parameters
    ----------
    found : Diagnosis
        With the run's pieces of time and its clocks.
    step : int
        Number of the step; ranks without it have no rows.
    aligned : bool
        By the common clock; else each rank by its own, since the first trace's zero.
    slices : int
        Of the time from the first rank's start to the last one's end.
    """
    run = found.run
    moving = transfers(run.collectives, len(run.traces))
    lines: list[tuple[int, Floats, NDArray[np.int64]]] = []
    for i, (trace, steps) in enumerate(zip(run.traces, run.steps, strict=True)):
        at = np.flatnonzero(steps.number == step)
        if not len(at):
            continue
        cut, category = pieces(trace, steps, moving[i])
        begin, end = steps.edges_s[at[0] : at[0] + 2]
        inside = (cut.edges_s[:-1] >= begin - 1e-12) & (cut.edges_s[1:] <= end + 1e-12)
        edges = cut.edges_s[np.flatnonzero(np.append(inside, False) | np.append(False, inside))]
        if aligned and found.clocks is not None:
            edges = np.asarray(found.clocks.common_s(i, edges))
        else:
            edges = edges + since_s(run)[i]
        lines.append((int(run.ranks[i]), edges, GROUP[category[inside]]))
    if not lines:
        return {"ranks": []}
    low, high = min(e[0] for _, e, _ in lines), max(e[-1] for _, e, _ in lines)
    grid = np.linspace(low, high, slices + 1)
    rows = [row for rank, edges, group in lines for row in _sliced(rank, edges, group, grid)]
    return {"ranks": rows}


def since_s(run: Run) -> Floats:
    """Zeros of the traces by their ranks' own clocks, after the first trace's; 0 where they do not say."""
    base = [trace.base_ns for trace in run.traces]
    known = [b for b in base if b is not None]
    if len(known) < len(base):
        return np.zeros(len(base))
    return np.array([(b - known[0]) / 1e9 for b in known])


def _sliced(rank: int, edges: Floats, group: NDArray[np.int64], grid: Floats) -> list[dict[str, object]]:
    """Rows of one rank: neighbouring slices of one kind become one mark."""
    grid = np.unique(np.clip(grid, edges[0], edges[-1]))
    spent = np.stack([
        np.diff(np.interp(grid, edges, np.append(0.0, np.cumsum(np.diff(edges) * (group == g)))))
        for g in range(len(SPENT))
    ])  # fmt: skip
    most = spent.argmax(0)
    first = np.flatnonzero(np.append(True, most[1:] != most[:-1]))
    last = np.append(first[1:], len(most))
    names = list(SPENT)
    return [
        {"rank": rank, "what": names[most[a]], "start": 1e3 * float(grid[a]), "end": 1e3 * float(grid[b])}
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]


def _rank_axis(shown: bool = True) -> alt.Y:
    return alt.Y(
        "rank:O", title="rank" if shown else None, axis=alt.Axis(labels=shown), scale=alt.Scale(padding=0.12)
    )


def timeline(width: int = 480, height: int = 290) -> alt.TopLevelMixin:
    """Draw one step of every rank; tables ``ranks`` and ``named`` (rank: those the diagnosis names)."""
    chart = alt.Chart(alt.NamedData("ranks")).mark_bar()
    bars = chart.encode(
        x=alt.X(
            "start:Q", title="time [ms]", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(grid=False)
        ),
        x2="end:Q",
        y=_rank_axis(),
        color=alt.Color("what:N", scale=style.scale(COLOURS), legend=alt.Legend(columns=5)),
        tooltip=[
            "rank:O",
            "what:N",
            alt.Tooltip("start:Q", format=".2f"),
            alt.Tooltip("end:Q", format=".2f"),
        ],
    )
    return alt.layer(bars, _named()).properties(
        width=width, height=height, description="One step of every rank."
    )


def _named() -> Any:
    """Mark the ranks that the diagnosis names, left of their lane."""
    mark = alt.Chart(alt.NamedData("named")).mark_point(
        shape="triangle-right", filled=True, size=70, opacity=1, color=style.LIMIT
    )
    return mark.encode(x=alt.value(-3), y=_rank_axis())


def share_rows(run: Run) -> Tables:
    """Make table ``spent`` (rank, what, order, ms): mean time of a step by what it is spent on."""
    mean_s = run.seconds.mean(1)  # (ranks, categories)
    rows: list[dict[str, object]] = [
        {"rank": int(rank), "what": name, "order": order, "ms": 1e3 * float(mean_s[i, order == GROUP].sum())}
        for i, rank in enumerate(run.ranks)
        for order, name in enumerate(SPENT)
    ]
    return {"spent": rows}


def shares(width: int = 170, height: int = 290) -> alt.TopLevelMixin:
    """Draw each rank's mean step, stacked: own time and waiting; table ``spent`` and ``named``."""
    bars = (
        alt.Chart(alt.NamedData("spent"))
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="mean step [ms]", axis=alt.Axis(tickCount=4, grid=False)),
            y=_rank_axis(),
            color=alt.Color("what:N", scale=style.scale(COLOURS), legend=None),
            order="order:Q",
            tooltip=["rank:O", "what:N", alt.Tooltip("ms:Q", format=".2f")],
        )
    )
    return alt.layer(bars, _named()).properties(
        width=width, height=height, description="Mean time of a step of every rank, by what it is spent on."
    )


# --- planted against found ----------------------------------------------------------------------------------


def confusion_rows(
    rows: Sequence[Mapping[str, Any]],
    planted: Sequence[str],
    answered: Sequence[str],
    right: Mapping[str, str],
) -> Tables:
    """Make table ``confusion`` (planted, answered, runs, share, judged, text): one row a cell that has runs.

    Parameters
    ----------
    rows : sequence of mapping
        ``planted``, ``answered``, ``runs``.
    planted, answered : sequences of str
        In the order of the axes.
    right : mapping
        The right answer to each kind.
    """
    total = {kind: sum(r["runs"] for r in rows if r["planted"] == kind) for kind in planted}
    cells: list[dict[str, object]] = [
        {
            "planted": r["planted"],
            "answered": r["answered"],
            "y": planted.index(r["planted"]),
            "x": answered.index(r["answered"]),
            "runs": r["runs"],
            "share": r["runs"] / total[r["planted"]],
            "judged": RIGHT if right[r["planted"]] == r["answered"] else WRONG,
            "text": f"{r['runs']:,}",
        }
        for r in rows
        if r["runs"]
    ]
    return {"confusion": cells}


def confusion(
    planted: Sequence[str], answered: Sequence[str], cell: tuple[int, int] = (31, 17)
) -> alt.TopLevelMixin:
    """Draw how often each planted kind got each answer; table ``confusion``."""
    base = alt.Chart(alt.NamedData("confusion")).encode(
        x=alt.X(
            "answered:N",
            title="answered",
            scale=alt.Scale(domain=list(answered)),
            axis=alt.Axis(
                orient="top", labelAngle=-40, labelLimit=190, grid=False, labelOverlap=False, zindex=0
            ),
        ),
        y=alt.Y(
            "planted:N",
            title="planted",
            scale=alt.Scale(domain=list(planted)),
            axis=alt.Axis(labelLimit=210, grid=True, labelOverlap=False, zindex=0),
        ),
        tooltip=["planted:N", "answered:N", "runs:Q", alt.Tooltip("share:Q", format=".0%")],
    )
    cells = base.mark_rect(stroke="white", strokeWidth=1).encode(
        color=alt.Color("judged:N", scale=style.scale(JUDGED), legend=alt.Legend(columns=2, orient="bottom")),
        opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.35, 1]), legend=None),
    )
    text = base.mark_text(color="white", fontWeight=600)
    return alt.layer(cells, text.encode(text="text:N")).properties(
        width=cell[0] * len(answered),
        height=cell[1] * len(planted),
        description="Planted kinds against answers.",
    )
