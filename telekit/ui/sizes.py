"""Charts of what models are made of: one model apart, many side by side, FLOPs against 6 N; beside each, its rows.

Parameters are shown in B (1e9), FLOPs in GFLOP (1e9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Write parameters in B (1e9), M (1e6) where they are few, T (1e12) from ten of those, with three figures."""
    value = size / BILLION
    if value < 0.1:
        return f"{size / 1e6:.3g} M"
    return f"{figures(value / 1e3)} T" if value >= 9999.5 else f"{figures(value)} B"


def figures(value: float) -> str:
    """Write a number with three figures, or all before the point; never with an exponent where it is above 1e-4."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def times(ratio: float) -> str:
    """Write a ratio: two decimals where it is near 1, so that what hardly moved can be compared."""
    return f"{ratio:.2f}" if 0.1 <= ratio < 9.995 else figures(ratio)


def byte_range(low_bytes: float, high_bytes: float) -> str:
    """Write two sizes in bytes with one decimal prefix (``9.41 to 10.6 TB``)."""
    prefixes = ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"))
    size, name = next((it for it in prefixes if high_bytes >= it[0]), (1e6, "MB"))
    return f"{figures(low_bytes / size)} to {figures(high_bytes / size)} {name}"


def duration(time_s: float) -> str:
    """Write how long a run takes, in days, or in what fits better where they are very few or many."""
    days = time_s / 86400
    if days >= 999.5:
        return f"{figures(days / 365.25)} years"
    if days >= 1:
        return f"{days:.1f} days" if days < 99.95 else f"{days:.0f} days"
    if days * 24 >= 1:
        return f"{days * 24:.1f} hours"
    return f"{figures(days * 1440)} minutes" if days * 1440 >= 1 else "under a minute"


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
PLACES = [
    ("left", 9, -6),
    ("left", 9, 8),
    ("right", -9, -6),
    ("right", -9, 8),
    ("center", 0, -14),
    ("center", 0, 15),
    ("left", 9, -17),
    ("left", 9, 19),
    ("right", -9, -17),
    ("right", -9, 19),
]
"""Where a text may stand, best first: its alignment, and how far right and down of its point it is [px]."""
CHARACTER, LINE, BESIDE = 6.8, 12, 60
"""Width and height of text, and how far it may reach beyond the picture's right edge [px]."""

Box = tuple[float, float, float, float]


def side_by_side() -> alt.TopLevelMixin:
    """Draw models as points of two logarithmic axes, with guides of one ratio, and names of some.

    Tables ``models`` (model, kind, x, y, text), ``named`` (the same, with ring, and where its name stands: name,
    align, dx, dy), ``guides`` (guide, x, y, and where its name stands) and ``axes`` (x_title, y_title), which may
    change with the rows.
    """
    colour = alt.Color("kind:N", scale=style.scale(style.MODELS), legend=alt.Legend(symbolType="circle"))
    axis = alt.Axis(values=ROUND, labelExpr="format(datum.value, ',.4~r')", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False, padding=MARGIN)
    x, y = (
        alt.X("x:Q", title=None, axis=axis, scale=scale),
        alt.Y("y:Q", title=None, axis=axis, scale=scale),
    )
    guides = alt.Chart(alt.NamedData("guides")).encode(x=x, y=y)
    lines = guides.mark_line(color=style.TIME["waiting"], strokeDash=[3, 3], strokeWidth=1)
    where: dict[str, Any] = {side: alt.expr(f"datum.{side}") for side in ("align", "dx", "dy")}
    points = (
        alt.Chart(alt.NamedData("models")).mark_circle(size=64, opacity=0.85).encode(x=x, y=y, color=colour)
    )
    named = alt.Chart(alt.NamedData("named")).encode(x=x, y=y)
    rings = named.transform_filter("datum.ring").mark_point(size=130, strokeWidth=1.6, color=style.LIMIT)
    axes = alt.Chart(alt.NamedData("axes"))
    across = axes.mark_text(dy=34).encode(x=alt.value(WIDTH / 2), y=alt.value(HEIGHT), text="x_title:N")
    up = axes.mark_text(angle=270, dy=-52).encode(x=alt.value(0), y=alt.value(HEIGHT / 2), text="y_title:N")
    return alt.layer(
        lines.encode(detail="guide:N"),
        guides.mark_text(fontStyle="italic", **where).encode(text="name:N"),
        points.encode(tooltip=["model:N", "text:N"]),
        rings,
        named.mark_text(**where).encode(text="name:N"),
        across,
        up,
    ).properties(width=WIDTH, height=HEIGHT, description="Models as points of two measures.")


class Room:
    """Where text can stand beside points without covering one, or other text."""

    def __init__(self, points: Sequence[Mapping[str, Any]]) -> None:
        self._across = _pixels([p["x"] for p in points], WIDTH)
        self._up = _pixels([p["y"] for p in points], HEIGHT)
        spots = (self._at(p) for p in points)
        self._taken: list[Box] = [(x - 6, x + 6, y - 6, y + 6) for x, y in spots]

    def name(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Return the row with its name and where that stands; with no name where each place would cover something."""
        x, y = self._at(row)
        for align, dx, dy in PLACES:
            width = CHARACTER * len(text)
            left = x + dx - {"left": 0.0, "center": width / 2, "right": width}[align]
            box = (left, left + width, y + dy - LINE / 2, y + dy + LINE / 2)
            if self._is_free(box):
                self._taken.append(box)
                return dict(row) | {"name": text, "align": align, "dx": dx, "dy": dy}
        return dict(row) | {"name": "", "align": "left", "dx": 0, "dy": 0}

    def _at(self, p: Mapping[str, Any]) -> tuple[float, float]:
        return self._across(p["x"]), HEIGHT - self._up(p["y"])

    def _is_free(self, box: Box) -> bool:
        left, right, top, bottom = box
        inside = left >= 0 and right <= WIDTH + BESIDE and top >= -LINE and bottom <= HEIGHT
        return inside and all(
            right <= a or b <= left or bottom <= c or d <= top for a, b, c, d in self._taken
        )


def named_rows(room: Room, wanted: Iterable[Mapping[str, Any]]) -> Table:
    """Name as many of the wanted points as have room, the most important first."""
    return [room.name(p, p["model"]) for p in wanted]


def _pixels(values: Sequence[float], length: int) -> Callable[[float], float]:
    """Return the logarithmic scale that the chart will have."""
    low, high = math.log(min(values)), math.log(max(values))
    per = (length - 2 * MARGIN) / (high - low) if high > low else 0.0
    return lambda value: MARGIN + (math.log(value) - low) * per


def guide_rows(
    room: Room, points: Sequence[Mapping[str, Any]], guides: Mapping[str, tuple[float, int]]
) -> Table:
    """Cut lines ``y = c * x ** power`` to the rectangle that the points fill, and name each at its right end.

    Parameters
    ----------
    room : Room
        Where the names can stand.
    points : sequence of mapping
        With ``x`` and ``y``, positive.
    guides : mapping of str to (float, int)
        By name: c, and the power, 1 or -1.
    """
    xs, ys = [p["x"] for p in points], [p["y"] for p in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    rows = []
    for name, (c, power) in guides.items():
        crossings = sorted((y / c) ** power for y in (low, high))
        ends = max(left, crossings[0]), min(right, crossings[1])
        if ends[0] < ends[1]:
            begin, end = ({"guide": name, "x": x, "y": c * x**power} for x in ends)
            rows += [begin | {"name": "", "align": "left", "dx": 0, "dy": 0}, room.name(end, name)]
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
    at = here.mark_rule(color=style.TIME["waiting"], strokeWidth=1).encode(x=x)
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
