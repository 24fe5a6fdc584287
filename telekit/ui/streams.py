"""Charts of communication beside computation: who runs when, what is exposed, and which plan hides what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import altair as alt

from telekit.comm.overlap import COMPUTE, Overlap
from telekit.ui import style
from telekit.ui.charts import Tables

KINDS = {
    "computes, forward": style.PASSES["forward"],
    "computes, backward": style.PASSES["weight gradient"],
    "communicates": style.TIME["communication"],
}
PLANS = {
    "one after the other": "#b0b6bc",
    "shared expert": "#e5a845",
    "chunked": "#5c93d3",
    "1F1B pair": "#1d5a9f",
    "DualPipe pair": "#8f3f6f",
}
LANES = {COMPUTE: "computing", "comm": "expert traffic"}
WIDTH = 760
ROOM_PX = 6.2
"""Width of a character in a block."""


def stream_rows(found: Overlap, end: float) -> Tables:
    """Make tables ``streams`` (lane, name, kind, start, end), ``named`` (lane, at, name), ``bare`` and ``ends``.

    ``bare`` (start, end, lane) is where something is on its way and nothing computes; ``ends`` (at, name, below) are
    the lower bound and the time of all tasks in a row.
    """
    rows: list[dict[str, object]] = []
    named: list[dict[str, object]] = []
    for task, start, stop in zip(found.tasks, found.start_s, found.end_s, strict=True):
        kind = "communicates"
        if task.stream == COMPUTE:
            kind = "computes, forward" if task.kind == "forward" else "computes, backward"
        row = {
            "lane": LANES[task.stream],
            "name": task.name,
            "kind": kind,
            "start": float(start),
            "end": float(stop),
        }
        rows.append(dict(row))
        room_px = (float(stop) - float(start)) / end * WIDTH
        text = next(
            (name for name in (task.name, short(task.name)) if room_px >= ROOM_PX * len(name) + 4), ""
        )
        if text:
            named.append({"lane": row["lane"], "at": (float(start) + float(stop)) / 2, "name": text})
    bare: list[dict[str, object]] = [
        {"start": a, "end": b, "lane": LANES[COMPUTE]} for a, b in exposed(found)
    ]
    marks = {"all in a row": found.serial_s, "lower bound": found.lower_bound_s}
    ends: list[dict[str, object]] = [
        {"at": float(at), "name": name, "below": name == "lower bound"} for name, at in marks.items()
    ]
    return {"streams": rows, "named": named, "bare": bare, "ends": ends}


def short(name: str) -> str:
    """Shorten a task's name to initials: D0 for «dispatch 0», M(B) for «MLP(B) 1»."""
    word, _, number = name.partition(" ")
    what, way, rest = word.partition("(")
    return f"{what[:1].upper()}{way}{rest}" + ("" if way else number)


def exposed(found: Overlap) -> list[tuple[float, float]]:
    """Spans in which something communicates and nothing computes."""
    spans = [
        (float(a), float(b), task.stream == COMPUTE)
        for task, a, b in zip(found.tasks, found.start_s, found.end_s, strict=True)
        if b > a
    ]
    edges = sorted({edge for a, b, _ in spans for edge in (a, b)})
    joined: list[tuple[float, float]] = []
    for low, high in pairwise(edges):
        running = {compute for a, b, compute in spans if a <= low and b >= high}
        if running == {False}:
            if joined and joined[-1][1] == low:
                joined[-1] = (joined[-1][0], high)
            else:
                joined.append((low, high))
    return joined


def stream_lanes(width: int = WIDTH, height: int = 150) -> alt.TopLevelMixin:
    """Draw computing above expert traffic over time, with what is exposed; tables of :func:`stream_rows`."""
    y = alt.Y(
        "lane:N",
        title=None,
        sort=list(LANES.values()),
        axis=alt.Axis(grid=False, labelLimit=120),
        scale=alt.Scale(paddingOuter=0.22),
    )
    x = alt.X("start:Q", title="time; all computing alone takes 1", scale=alt.Scale(nice=False))
    blocks = (
        alt.Chart(alt.NamedData("streams"))
        .mark_bar(stroke="white", strokeWidth=1, height=alt.RelativeBandSize(0.8))
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=alt.Color("kind:N", scale=style.scale(KINDS), legend=alt.Legend(columns=3)),
            tooltip=["name:N", alt.Tooltip("start:Q", format=".3f"), alt.Tooltip("end:Q", format=".3f")],
        )
    )
    bare = (
        alt.Chart(alt.NamedData("bare"))
        .mark_bar(color=style.LIMIT, opacity=0.28, height=alt.RelativeBandSize(0.8))
        .encode(x="start:Q", x2="end:Q", y=y)
    )
    named = alt.Chart(alt.NamedData("named")).mark_text(color="white", fontSize=10)
    ends = alt.Chart(alt.NamedData("ends")).mark_rule(strokeDash=[4, 3], color="#828a93", strokeWidth=1.5)
    texts = alt.Chart(alt.NamedData("ends")).mark_text(align="right", dx=-5, color="#828a93")
    above = texts.transform_filter("!datum.below").encode(y=alt.value(6))
    below = texts.transform_filter("datum.below").encode(y=alt.value(height - 6))
    at = alt.X("at:Q")
    return alt.layer(
        bare,
        blocks,
        named.encode(x=at, y=y, text="name:N"),
        ends.encode(x=at, tooltip=["name:N", alt.Tooltip("at:Q", format=".3f")]),
        *(part.encode(x=at, text="name:N") for part in (above, below)),
    ).properties(width=width, height=height, description="Computing and expert traffic over time.")


def plan_rows(by_plan: Mapping[str, Mapping[float, float]], ratio: float) -> Tables:
    """Make tables ``plans`` (plan, ratio, time) and ``ratio`` (ratio)."""
    rows: list[dict[str, object]] = [
        {"plan": plan, "ratio": at, "time": time}
        for plan, found in by_plan.items()
        for at, time in found.items()
    ]
    return {"plans": rows, "ratio": [{"ratio": ratio}]}


def plan_curves(values: Sequence[float], width: int = 480, height: int = 220) -> alt.TopLevelMixin:
    """Draw the time of each plan over communication per computing; tables ``plans`` and ``ratio``."""
    x = alt.X(
        "ratio:Q",
        title="communication over computing, both alone",
        scale=alt.Scale(nice=False, domain=[0, max(values)]),
        axis=alt.Axis(tickCount=6, grid=False),
    )
    y = alt.Y(
        "time:Q",
        title="time over computing alone",
        scale=alt.Scale(zero=False),
        axis=alt.Axis(tickCount=5, minExtent=34),
    )
    lines = (
        alt.Chart(alt.NamedData("plans"))
        .mark_line(strokeWidth=2)
        .encode(
            x=x,
            y=y,
            color=alt.Color("plan:N", scale=style.scale(PLANS), legend=alt.Legend(columns=3)),
            tooltip=["plan:N", "ratio:Q", alt.Tooltip("time:Q", format=".3f")],
        )
    )
    here = (
        alt.Chart(alt.NamedData("ratio")).mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(x="ratio:Q")
    )
    return alt.layer(here, lines).properties(
        width=width, height=height, description="Time of each overlap plan over the share of communication."
    )
