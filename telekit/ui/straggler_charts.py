"""Charts of a hidden fault: where each rank's step goes, and evidence laid out by rank.

Each chart is drawn once over named tables; beside it stands the function that makes its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from telekit.diagnose.analysis.breakdown import CATEGORIES
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.faults.job import TracedJob
from telekit.diagnose.rules.compute_rules import excess
from telekit.diagnose.rules.link_rules import transfers
from telekit.diagnose.trace import Floats
from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.ui.rank_charts import COLOURS, SPENT, share_rows

Table = list[dict[str, object]]
OWN, KERNELS, TRANSFERS, HOST = "own time by step", "kernels", "transfers", "the host"
LOOKS = (OWN, KERNELS, TRANSFERS, HOST)
UNITS = {OWN: "ms", KERNELS: "%", TRANSFERS: "%", HOST: "ms"}
ABOUT = {
    OWN: "Own time of each step [ms]: its length less waiting",
    KERNELS: "Kernel times over those of ranks that run the same [% more]",
    TRANSFERS: "Transfer times over those of groups alike [% more]",
    HOST: "What the host does while its device idles [ms a step]",
}
IDLING = ("data", "launch", "host", "memory", "sync", "silent")
"""Categories of the host that have a column."""


def evidence_rows(run: Run, job: TracedJob, look: str) -> Tables:
    """Make table ``evidence`` (rank, column, order, value, shade, text).

    ``shade`` is how far a cell lies above its column's median, over the largest such distance in the table.

    Parameters
    ----------
    run : Run
        What was measured.
    job : TracedJob
        Its groups.
    look : str
        One of :data:`LOOKS`.
    """
    columns, values = _LOOK[look](run, job)
    known = np.isfinite(values).any(axis=0)
    columns, values = [name for name, kept in zip(columns, known, strict=True) if kept], values[:, known]
    above = np.clip(values - np.nanmedian(values, axis=0), 0.0, None)
    top = max(float(np.nanmax(above, initial=0.0)), _LEAST[look])
    rows: Table = [
        {"rank": int(rank), "column": column, "order": order, "value": round(value, 2),
         "shade": round(above[i, order] / top, 3), "text": f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"}
        for i, rank in enumerate(run.ranks)
        for order, column in enumerate(columns)
        if np.isfinite(value := float(values[i, order]))
    ]  # fmt: skip
    return {"evidence": rows}


_LEAST = {OWN: 2.0, KERNELS: 10.0, TRANSFERS: 30.0, HOST: 2.0}
"""Distances that look dark at the least: noise stays pale."""


def _own(run: Run, job: TracedJob) -> tuple[list[str], Floats]:
    return [f"step {n}" for n in run.number.tolist()], 1e3 * (run.wall_s - run.category("waiting"))


def _kernels(run: Run, job: TracedJob) -> tuple[list[str], Floats]:
    found = excess(run)
    both = [100 * np.nanmean(part, axis=1) for part in (found.dense, found.expert)]
    return ["all but experts", "experts"], np.stack(both, axis=1)


def _transfers(run: Run, job: TracedJob) -> tuple[list[str], Floats]:
    """Mean slowness of the transfers of a rank's groups, by kind; of several of one kind the slowest."""
    kinds = [*job.groups(), "stages"]
    values = np.full((len(run.ranks), len(kinds)), np.nan)
    found = transfers(run, np.ones(run.wall_s.shape, bool))
    if found is None:
        return kinds, values
    rows = {tuple(sorted(row)): kind for kind, all_rows in job.groups().items() for row in all_rows.tolist()}
    ratio = 100 * np.nanmean(found.ratio, axis=1)
    for members, pair, percent in zip(found.members, found.pair, ratio, strict=True):
        kind = "stages" if pair else rows.get(tuple(sorted(run.ranks[members].tolist())))
        if kind is not None and np.isfinite(percent):
            column = kinds.index(kind)
            values[members, column] = np.fmax(values[members, column], percent)
    return kinds, values


def _host(run: Run, job: TracedJob) -> tuple[list[str], Floats]:
    columns = [CATEGORIES.index(name) for name in IDLING]
    return list(IDLING), 1e3 * run.seconds.mean(axis=1)[:, columns]


_LOOK = {OWN: _own, KERNELS: _kernels, TRANSFERS: _transfers, HOST: _host}


def spent_rows(run: Run) -> Tables:
    """Make table ``spent`` with waiting last, so that a rank's own time begins at 0."""
    last = {"waiting for a rank": len(SPENT)}
    return {
        "spent": [
            row | {"order": last.get(str(row["what"]), row["order"])} for row in share_rows(run)["spent"]
        ]
    }


def spent_chart(width: int = 320, height: int = 300) -> alt.TopLevelMixin:
    """Draw each rank's mean step by what it is spent on; a rank that is given away is marked.

    Tables ``spent`` (:func:`spent_rows`) and ``named`` (rank).
    """
    rank = alt.Y("rank:O", title="rank", scale=alt.Scale(padding=0.12))
    bars = (
        alt.Chart(alt.NamedData("spent"))
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="mean step [ms]", axis=alt.Axis(tickCount=6)),
            y=rank,
            color=alt.Color("what:N", scale=style.scale(COLOURS), legend=alt.Legend(columns=3)),
            order="order:Q",
            tooltip=["rank:O", "what:N", alt.Tooltip("ms:Q", format=".2f")],
        )
    )
    mark = (
        alt.Chart(alt.NamedData("named"))
        .mark_point(shape="triangle-left", filled=True, size=70, opacity=1, color=style.LIMIT)
        .encode(x=alt.value(width + 6), y=rank)
    )
    return alt.layer(bars, mark).properties(
        width=width, height=height, description="Mean time of a step of every rank, by what it is spent on."
    )


def evidence_chart(width: int = 370, height: int = 300) -> alt.TopLevelMixin:
    """Draw evidence as cells by rank, the darker the further above the column's median."""
    base = alt.Chart(alt.NamedData("evidence")).encode(
        x=alt.X("column:N", title=None, sort=alt.EncodingSortField("order", op="min"),
                axis=alt.Axis(orient="top", labelAngle=0, grid=False, labelLimit=90)),
        y=alt.Y("rank:O", title="rank", axis=alt.Axis(grid=False)),
        tooltip=["rank:O", "column:N", "value:Q"],
    )  # fmt: skip
    cells = base.mark_rect().encode(
        color=alt.Color("shade:Q", scale=alt.Scale(scheme="blues", domain=[0, 1]), legend=None)
    )
    dark = alt.condition("datum.shade > 0.55", alt.value("white"), alt.value("#24292f"))
    text = base.mark_text(fontSize=10).encode(text="text:N", color=dark)
    return alt.layer(cells, text).properties(
        width=width, height=height, description="Evidence by rank; darker cells lie further above the others."
    )


def marks(ranks: Sequence[int]) -> Tables:
    """Make table ``named`` (rank)."""
    return {"named": [{"rank": rank} for rank in sorted(set(ranks))]}
