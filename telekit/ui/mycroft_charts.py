"""Charts of Mycroft at work: who waits for whom, the counters of the flows in question, and who is to blame.

Each chart is drawn once over named tables; beside it stands the function that makes its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import altair as alt

from telekit.diagnose.mycroft.faults import CAUSES, NOT_DELIVERED, NOT_STARTED, NOT_TRANSMITTED
from telekit.diagnose.mycroft.job import RingJob, groups_of
from telekit.diagnose.mycroft.telemetry import Counters
from telekit.diagnose.mycroft.walk import Step
from telekit.ui import style
from telekit.ui.charts import Tables

Table = list[dict[str, object]]
OUTSIDE, WAITS, SENDS = "computes: in no call", "in a call, others not yet", "all are in: data moves"
STATES = {OUTSIDE: style.TIME["compute"], WAITS: style.TIME["waiting"], SENDS: style.TIME["communication"]}
COUNTERS = {"ready": "#8ab8e2", "transmitted": "#5c93d3", "done": "#1d5a9f"}
CAUSE_COLOURS = dict(
    zip(CAUSES, (style.TIME["compute"], style.TIME["communication"], style.MEMORY["logits"], style.TIME["optimizer"]),
        strict=True)
)  # fmt: skip
WIDTH, HEIGHT = 405, 270
ACROSS, DOWN = (-0.25, 3.7), (-0.45, 2.75)
"""Where the graph's axes begin and end: replicas across; stages down, each with its tensor ranks."""
NODE = 13
"""Radius of a rank, pixels."""


class Place(NamedTuple):
    """Where a rank stands."""

    x: float
    y: float


def places(job: RingJob) -> dict[int, Place]:
    """Place ranks: replicas side by side, stages below each other, tensor ranks aslant."""
    groups = groups_of(job)
    at = {
        kind: {rank: i for row in rows.tolist() for i, rank in enumerate(row)}
        for kind, rows in groups.items()
    }
    return {
        rank: Place(at["dp"][rank] + 0.42 * at["tp"][rank], 1.7 * at["pp"][rank] + 0.62 * at["tp"][rank])
        for rank in range(job.ranks)
    }


def graph_rows(
    job: RingJob, states: Mapping[int, str], waits: Iterable[Step], path: Sequence[Step], root: int | None
) -> Tables:
    """Make tables ``links``, ``ranks``, ``waits`` and ``culprit``: the job, its state, and who waits for whom."""
    at = places(job)
    links: Table = [
        {"x": at[a].x, "y": at[a].y, "x2": at[b].x, "y2": at[b].y, "group": kind}
        for kind, rows in groups_of(job).items()
        for row in rows.tolist()
        for a, b in pairwise(row)
    ]
    bold = {(step.rank, step.waits_for) for step in path}
    others = {(step.rank, step.waits_for): step for step in waits if (step.rank, step.waits_for) not in bold}
    arrows: Table = [_arrow(at, step, "wait") for step in others.values() if step.rank != step.waits_for]
    arrows += [_arrow(at, step, "walk") for step in path if step.rank != step.waits_for]
    ranks: Table = [
        {"rank": rank, "x": place.x, "y": place.y, "state": states[rank]} for rank, place in at.items()
    ]
    ring: Table = [] if root is None else [{"x": at[root].x, "y": at[root].y}]
    return {"links": links, "waits": arrows, "ranks": ranks, "culprit": ring}


def _arrow(at: Mapping[int, Place], step: Step, kind: str) -> dict[str, object]:
    """One arrow from rim to rim, its head turned the way it points."""
    across, down = WIDTH / (ACROSS[1] - ACROSS[0]), HEIGHT / (DOWN[1] - DOWN[0])
    a, b = at[step.rank], at[step.waits_for]
    dx, dy = (b.x - a.x) * across, (b.y - a.y) * down
    length = math.hypot(dx, dy)
    first, last = (NODE + 1) / length, 1 - (NODE + 6) / length
    return {
        "x": a.x + (b.x - a.x) * first, "y": a.y + (b.y - a.y) * first,
        "x2": a.x + (b.x - a.x) * last, "y2": a.y + (b.y - a.y) * last,
        "angle": math.degrees(math.atan2(dx, -dy)) % 360, "kind": kind,
        "text": f"{step.rank} waits for {step.waits_for} ({step.group})",
    }  # fmt: skip


def graph_chart() -> alt.TopLevelMixin:
    """Draw ranks in their groups, what each does, and arrows from who waits to what it waits for."""
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=list(ACROSS), nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=list(DOWN), nice=False, reverse=True))
    ends = {"x": x, "y": y, "x2": "x2:Q", "y2": "y2:Q"}
    links = alt.Chart(alt.NamedData("links")).mark_rule(color="#828a93", opacity=0.35).encode(**ends)
    dots = alt.Chart(alt.NamedData("ranks"))
    nodes = dots.mark_circle(size=math.pi * NODE**2, opacity=1).encode(
        x=x,
        y=y,
        color=alt.Color("state:N", scale=style.scale(STATES), legend=alt.Legend(columns=3)),
        tooltip=["rank:O", "state:N"],
    )
    names = dots.mark_text(fontSize=11, fontWeight=600, color="white").encode(x=x, y=y, text="rank:N")
    ring = alt.Chart(alt.NamedData("culprit")).mark_point(
        size=math.pi * (NODE + 4) ** 2, color=style.LIMIT, strokeWidth=3, opacity=1
    )
    arrows = alt.Chart(alt.NamedData("waits"))
    kinds = alt.Scale(domain=["wait", "walk"], range=["#828a93", style.LIMIT])
    widths = alt.StrokeWidth(
        "kind:N", scale=alt.Scale(domain=["wait", "walk"], range=[1.1, 2.6]), legend=None
    )
    shade = alt.Color("kind:N", scale=kinds, legend=None)
    shafts = arrows.mark_rule(opacity=1).encode(**ends, color=shade, strokeWidth=widths, tooltip="text:N")
    heads = arrows.mark_point(shape="triangle", filled=True, size=62, opacity=1).encode(
        x=alt.X("x2:Q"), y=alt.Y("y2:Q"), angle=alt.Angle("angle:Q", scale=None), color=shade
    )
    drawn: alt.TopLevelMixin = (  # ranks over shafts: an arrow may pass behind one
        alt.layer(links, shafts, nodes, names, ring.encode(x=x, y=y), heads)
        .resolve_scale(color="independent")
        .properties(width=WIDTH, height=HEIGHT, description="Ranks of a job, and who waits for whom.")
    )
    return drawn


def flow_rows(flows: Iterable[tuple[int, int, Counters]]) -> Tables:
    """Make table ``flows`` (flow, order, counter, chunks, of) of a collective's flows: sender, receiver, counters."""
    return {
        "flows": [
            {"flow": f"{source} → {target}", "order": order, "counter": name, "chunks": value, "of": counters.chunks,
             "text": str(value)}
            for order, (source, target, counters) in enumerate(flows)
            for name, value in zip(COUNTERS, counters[:3], strict=True)
        ]
    }  # fmt: skip


def blame_rows(blame: Iterable[tuple[int, str, float]], straggler_s: float, most: int = 4) -> Tables:
    """Make tables ``blame`` (who, cause, seconds, order) and ``straggler``: most first."""
    rows: Table = [
        {"who": f"rank {rank}", "cause": cause, "seconds": round(seconds, 2), "order": order}
        for order, (rank, cause, seconds) in enumerate([row for row in blame if row[2] > 0.05][:most])
    ]
    return {"blame": rows, "straggler": [{"seconds": straggler_s, "top": 5.0}]}


def flow_chart(width: int = 310) -> alt.TopLevelMixin:
    """Draw the three counters of each flow of one collective, and below them who kept others waiting."""
    order = alt.EncodingSortField("order", op="min")
    base = alt.Chart(alt.NamedData("flows")).encode(
        x=alt.X(
            "chunks:Q",
            title="chunks of each flow, sender → receiver",
            axis=alt.Axis(tickMinStep=1, tickCount=6),
            scale=alt.Scale(domainMax=12),
        ),
        y=alt.Y("flow:N", title=None, sort=order, axis=alt.Axis(grid=False, minExtent=56)),
        yOffset=alt.YOffset("counter:N", sort=list(COUNTERS)),
    )
    bars = base.mark_bar().encode(
        color=alt.Color("counter:N", scale=style.scale(COUNTERS), legend=alt.Legend(columns=3)),
        tooltip=["flow:N", "counter:N", "chunks:Q", "of:Q"],
    )
    counts = base.mark_text(align="left", dx=4, fontSize=10).encode(text="text:N")
    above = alt.layer(bars, counts).properties(width=width, height=140)
    blame = (
        alt.Chart(alt.NamedData("blame"))
        .mark_bar(height=alt.RelativeBandSize(0.7))
        .encode(
            x=alt.X("seconds:Q", title="waited for it in the last 5 s, beyond the usual [s]",
                    scale=alt.Scale(domain=[0, 5]), axis=alt.Axis(tickCount=6)),
            y=alt.Y("who:N", title=None, sort=order, axis=alt.Axis(grid=False, minExtent=56)),
            color=alt.Color("cause:N", scale=style.scale(CAUSE_COLOURS), legend=alt.Legend(columns=2)),
            tooltip=["who:N", "cause:N", "seconds:Q"],
        )
    )  # fmt: skip
    limit = alt.Chart(alt.NamedData("straggler")).mark_rule(color=style.LIMIT, strokeDash=[5, 3])
    below = alt.layer(blame, limit.encode(x="seconds:Q")).properties(width=width, height=84)
    drawn: alt.TopLevelMixin = (
        alt.vconcat(above, below, spacing=10)
        .resolve_scale(color="independent", x="independent")
        .properties(
            description="Counters of the flows in question; ranks by how long others waited for them."
        )
    )
    return drawn


CONDITIONS = {
    NOT_STARTED: "all three 0",
    NOT_TRANSMITTED: "ready > transmitted",
    NOT_DELIVERED: "transmitted > done",
    "waiting for GPU data": "all equal, above 0",
}
"""How the cause table reads the counters."""
