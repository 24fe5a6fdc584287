"""Charts of what models are made of: one model apart, many side by side, FLOPs against 6 N; beside each, its rows.

Parameters are shown in B (1e9), FLOPs in GFLOP (1e9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from telekit.model.count import Count
from telekit.ui import style
from telekit.ui.charts import Tables

Table = list[dict[str, Any]]

BILLION = 1e9
PARTS = {
    "routed experts": ("experts",),
    "shared experts": ("shared_experts",),
    "dense MLP": ("mlp",),
    "attention": ("attention",),
    "embedding": ("embedding",),
    "head": ("head",),
    "router, norms": ("latent", "router", "norms", "residual"),
}
"""What a reader sees, and the components of a count that it holds."""


def parts_of(counted: Count) -> dict[str, tuple[int, int]]:
    """Parameters by part: those stored, and those of them that one token meets."""
    idle = counted.total - counted.active
    stored = {part: sum(counted.by_component.get(n, 0) for n in names) for part, names in PARTS.items()}
    return {part: (size, size - idle * (part == "routed experts")) for part, size in stored.items()}


def part_rows(now: Count, was: Count) -> Tables:
    """Make tables ``parts`` (part; stored and met, each with its text and the place of that) and ``before``.

    ``before`` has those parts that changed, as they were.
    """
    old, parts, before = parts_of(was), [], []
    for part, (stored, met) in parts_of(now).items():
        old_stored, old_met = old[part]
        parts.append(
            {
                "part": part,
                "stored": stored / BILLION,
                "stored_end": max(stored, old_stored) / BILLION,
                "stored_text": _amount(stored, now.total),
                "met": met / BILLION,
                "met_end": max(met, old_met) / BILLION,
                "met_text": _amount(met, now.active),
            }
        )
        if old[part] != (stored, met):
            before.append({"part": part, "stored": old_stored / BILLION, "met": old_met / BILLION})
    return {"parts": parts, "before": before}


def _amount(size: int, total: int) -> str:
    return f"{billions(size)} · {share(size / total)}" if size else ""


def billions(size: float) -> str:
    """Write parameters in B (1e9), or M (1e6) where they are few, with about three figures."""
    value = size / BILLION
    if value < 0.1:
        return f"{size / 1e6:.3g} M"
    return f"{value:,.0f} B" if value >= 999.5 else f"{value:.3g} B"


def share(part: float) -> str:
    """Write a share in per cent; what rounds to 0 or to 100 is said to be near it."""
    if 0 < part < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= part < 1 else f"{part:.0%}"


def parts(what: str, title: str, width: int = 270, height: int = 210) -> alt.TopLevelMixin:
    """Draw the parameters of each part: ``what`` is ``"stored"`` or ``"met"``; a tick is where the bar stood before."""
    y = alt.Y("part:N", title=None, sort=list(PARTS), axis=alt.Axis(labelLimit=150, grid=False))
    axis = alt.Axis(tickCount=4, grid=False)
    scale = alt.Scale(range=[0, width - 92])  # the text beside the longest bar needs the rest
    x, end = (alt.X(f"{what}{name}:Q", title=title, axis=axis, scale=scale) for name in ("", "_end"))
    base = alt.Chart(alt.NamedData("parts"))
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        x=x,
        y=y,
        color=alt.Color("part:N", scale=style.scale(style.COMPONENTS), legend=None),
        tooltip=["part:N", alt.Tooltip("stored:Q", format=",.3f"), alt.Tooltip("met:Q", format=",.3f")],
    )
    text = base.mark_text(align="left", dx=7).encode(x=end, y=y, text=f"{what}_text:N")
    before = alt.Chart(alt.NamedData("before")).encode(x=x, y=y)
    tick = before.mark_tick(color=style.LIMIT, thickness=2, size=24)
    return alt.layer(bars, text, tick).properties(
        width=width, height=height, description=f"Parameters by part, {what}."
    )


# --- side by side -------------------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 640, 360, 14
ROUND = [c * 10.0**power for power in range(-3, 6) for c in (1, 2, 5)]
PLACES = {"above": -6, "below": 9}
"""Where a name may stand, to the right of its point, and how far down [px]."""


def side_by_side() -> alt.TopLevelMixin:
    """Draw models as points of two logarithmic axes, with guides of one ratio, and names of some.

    Tables ``models`` (model, kind, x, y, text), ``named`` (the same, with ring and place), ``guides`` (guide, x, y,
    end) and ``axes`` (x_title, y_title), which may change with the rows.
    """
    colour = alt.Color("kind:N", scale=style.scale(style.MODELS), legend=alt.Legend(symbolType="circle"))
    axis = alt.Axis(values=ROUND, labelExpr="format(datum.value, ',.4~r')", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False, padding=MARGIN)
    x, y = (
        alt.X("x:Q", title=None, axis=axis, scale=scale),
        alt.Y("y:Q", title=None, axis=axis, scale=scale),
    )
    guides = alt.Chart(alt.NamedData("guides")).encode(x=x, y=y)
    lines = guides.mark_line(color=style.TIME["bubble"], strokeDash=[3, 3], strokeWidth=1)
    ends = guides.transform_filter("datum.end").mark_text(align="left", dx=10, fontStyle="italic")
    points = (
        alt.Chart(alt.NamedData("models")).mark_circle(size=64, opacity=0.85).encode(x=x, y=y, color=colour)
    )
    named = alt.Chart(alt.NamedData("named")).encode(x=x, y=y)
    rings = named.transform_filter("datum.ring").mark_point(size=130, strokeWidth=1.6, color=style.LIMIT)
    names = [
        named.transform_filter(f"datum.place === '{place}'")
        .mark_text(align="left", dx=9, dy=dy)
        .encode(text="model:N")
        for place, dy in PLACES.items()
    ]
    axes = alt.Chart(alt.NamedData("axes"))
    across = axes.mark_text(dy=34).encode(x=alt.value(WIDTH / 2), y=alt.value(HEIGHT), text="x_title:N")
    up = axes.mark_text(angle=270, dy=-52).encode(x=alt.value(0), y=alt.value(HEIGHT / 2), text="y_title:N")
    return alt.layer(
        lines.encode(detail="guide:N"),
        ends.encode(text="guide:N"),
        points.encode(tooltip=["model:N", "text:N"]),
        rings,
        *names,
        across,
        up,
    ).properties(width=WIDTH, height=HEIGHT, description="Models as points of two measures.")


def named_rows(points: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> Table:
    """Give each wanted point a place for its name, or none where every place would cover another name.

    Parameters
    ----------
    points, wanted : sequences of mapping
        All points shown (x, y), and those to be named, the most important first.
    """
    if not wanted:
        return []
    across, up = _pixels([p["x"] for p in points], WIDTH), _pixels([p["y"] for p in points], HEIGHT)
    taken: list[tuple[float, float, float]] = []
    rows = []
    for p in wanted:
        left, middle = across(p["x"]), HEIGHT - up(p["y"])
        right = left + 7.0 * len(p["model"])
        free = (
            place
            for place, dy in PLACES.items()
            if all(abs(middle + dy - y) >= 12 or right < a or b < left for a, b, y in taken)
        )
        place = next(free, "")
        if place:
            taken.append((left, right, middle + PLACES[place]))
        rows.append(dict(p) | {"place": place})
    return rows


def _pixels(values: Sequence[float], length: int) -> Callable[[float], float]:
    """Return the logarithmic scale that the chart will have."""
    low, high = math.log(min(values)), math.log(max(values))
    per = (length - 2 * MARGIN) / (high - low) if high > low else 0.0
    return lambda value: MARGIN + (math.log(value) - low) * per


def guide_rows(points: Sequence[Mapping[str, Any]], guides: Mapping[str, tuple[float, int]]) -> Table:
    """Cut lines ``y = c * x ** power`` to the rectangle that the points fill.

    Parameters
    ----------
    points : sequence of mapping
        With ``x`` and ``y``, positive.
    guides : mapping of str to (float, int)
        By name: c, and the power, 1 or -1.
    """
    if not points:
        return []
    xs, ys = [p["x"] for p in points], [p["y"] for p in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    rows = []
    for name, (c, power) in guides.items():
        crossings = sorted((y / c) ** power for y in (low, high))
        begin, end = max(left, crossings[0]), min(right, crossings[1])
        if begin < end:
            rows += [{"guide": name, "x": x, "y": c * x**power, "end": x == end} for x in (begin, end)]
    return rows


# --- where 6 N goes wrong -----------------------------------------------------------------------------------

LENGTHS = [2**i for i in range(9, 21)]
BINARY = "datum.value < 1024 ? datum.value : datum.value < 1048576 ? datum.value / 1024 + ' Ki' : '1 Mi'"


def against_six_n(width: int = 640, height: int = 280) -> alt.TopLevelMixin:
    """Draw FLOPs over 6 N by length of the sequence, one line for each meaning of N.

    Tables ``ratio`` (tokens, ratio, size) and ``here`` (the same at one length, with text and its place).
    """
    x = alt.X(
        "tokens:Q",
        title="tokens of a sequence",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=LENGTHS, labelExpr=BINARY, grid=False),
    )
    y = alt.Y(
        "ratio:Q",
        title="FLOPs of a token over 6 N",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(values=ROUND, labelExpr="format(datum.value, ',.3~r')", labelOverlap=True),
    )
    colour = alt.Color(
        "size:N", scale=style.scale(style.SIZES), legend=alt.Legend(symbolType="stroke", columns=3)
    )
    lines = alt.Chart(alt.NamedData("ratio")).mark_line(strokeWidth=2.2).encode(x=x, y=y, color=colour)
    here = alt.Chart(alt.NamedData("here"))
    exact = here.mark_rule(strokeDash=[5, 3], color=style.LIMIT).encode(y=alt.datum(1.0))
    at = here.mark_rule(color=style.TIME["bubble"], strokeWidth=1).encode(x=x)
    dots = here.mark_circle(size=70, opacity=1).encode(
        x=x, y=y, color=colour, tooltip=["size:N", "tokens:Q", alt.Tooltip("ratio:Q", format=".3f")]
    )
    texts = [
        here.transform_filter(f"datum.place === '{place}'")
        .mark_text(align="left", dx=7, dy=dy, fontWeight=600)
        .encode(x=x, y=y, text="text:N", color=colour)
        for place, dy in (("above", -9), ("below", 11))
    ]
    return alt.layer(at, exact, lines, dots, *texts).properties(
        width=width, height=height, description="Training FLOPs of a token over 6 N, by sequence length."
    )


# --- how far the count is off -------------------------------------------------------------------------------


def error_bands(width: int = 420, height: int = 150) -> alt.TopLevelMixin:
    """Draw how many models are counted how far from their published total. Table ``errors`` (band, models, text)."""
    base = alt.Chart(alt.NamedData("errors")).encode(
        x=alt.X(
            "models:Q",
            title="models",
            axis=alt.Axis(tickCount=4, grid=False),
            scale=alt.Scale(range=[0, width - 200]),
        ),
        y=alt.Y("band:N", title=None, sort=None, axis=alt.Axis(grid=False, labelLimit=150)),
    )
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7), color=style.TIME["compute"])
    text = base.mark_text(align="left", dx=5).encode(text="text:N")
    return alt.layer(bars, text).properties(
        width=width, height=height, description="Models by distance of the count from the published total."
    )
