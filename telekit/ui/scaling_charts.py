"""Charts of scaling: speed over devices, what the time of a device goes into, intervals between checkpoints, hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from telekit.ui import style
from telekit.ui.charts import Tables

SPENT = {
    "computing": ("work",),
    "traffic in a replica": ("traffic",),
    "bubble": ("bubble",),
    "data-parallel traffic": ("dp_comm", "optimizer"),
    "waiting for the slowest": ("waiting",),
    "checkpoints": ("checkpoints",),
    "work lost": ("lost",),
    "downtime": ("down",),
}
"""What a reader sees, and the parts of a step and of a run that it holds."""
SPENT_COLOURS = {
    "computing": "#245fa8",
    "traffic in a replica": "#e5a845",
    "bubble": "#adb3ba",
    "data-parallel traffic": "#cf6a17",
    "waiting for the slowest": "#8f3f6f",
    "checkpoints": "#5c93d3",
    "work lost": "#c8372d",
    "downtime": "#e3a19b",
}
LINES = {"steps alone": "#245fa8", "with failures": "#c8372d"}
OURS, LINEAR = "ours", "linear"
METHODS = {"Megatron-LM": "#e08a1e", "MegaScale": "#8f3f6f", "Llama 3": "#1b8573", OURS: "#245fa8"}
RATES = {"exact": "#245fa8", "first order": "#e08a1e"}

_LOG = alt.Scale(type="log", nice=False, padding=12)


TICKS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)


def _devices(values: Sequence[int] = TICKS) -> alt.X:
    axis = alt.Axis(format=",", values=list(values), grid=False, labelOverlap="greedy", labelSeparation=6)
    return alt.X("devices:Q", title="devices", scale=_LOG, axis=axis)


def _methods(legend: bool) -> alt.Color:
    shown = alt.Legend(columns=4) if legend else None
    return alt.Color("method:N", scale=style.scale(METHODS), legend=shown)


def scaled(width: int = 290, height: int = 250, what: str = "total") -> alt.TopLevelMixin:
    """Draw published points and our line over devices; tables ``published``, ``ours``, ``linear``.

    ``what`` is the column: ``total`` (tokens a second, logarithmic) or ``share``.
    """
    total = what == "total"
    title = "tokens a second, all devices" if total else "speed of a device, or MFU"
    scale = _LOG if total else alt.Scale(zero=False, padding=12)
    y = alt.Y(
        f"{what}:Q", title=title, scale=scale, axis=alt.Axis(format="~s" if total else ".0%", tickCount=5)
    )
    linear = alt.Chart(alt.NamedData("linear"))
    line = linear.mark_line(color=style.TIME["waiting"], strokeDash=[5, 3]).encode(x=_devices(), y=y)
    name = linear.transform_filter("datum.last").mark_text(align="right", dy=-8, text=LINEAR)
    ours = alt.Chart(alt.NamedData("ours")).mark_line(strokeWidth=2)
    points = (
        alt.Chart(alt.NamedData("published"))
        .mark_point(filled=True, size=60, opacity=1)
        .encode(
            x=_devices(),
            y=y,
            color=_methods(total),
            tooltip=[
                "method:N",
                alt.Tooltip("devices:Q", format=","),
                alt.Tooltip(f"{what}:Q", format=".4g"),
            ],
        )
    )
    drawn = alt.layer(
        line, name.encode(x=_devices(), y=y), ours.encode(x=_devices(), y=y, color=_methods(total)), points
    )
    chart: alt.TopLevelMixin = drawn.properties(
        width=width, height=height, description=f"Published and estimated scaling: {title}."
    )
    return chart


def efficiency(devices: Sequence[int], width: int = 270, height: int = 260) -> alt.TopLevelMixin:
    """Draw the share of linear scaling over devices, of steps alone and with failures; table ``efficiency``."""
    y = alt.Y(
        "share:Q",
        title="share of linear scaling",
        axis=alt.Axis(format=".0%", tickCount=6),
        scale=alt.Scale(domainMax=1.0, nice=False, zero=False, padding=8),
    )
    base = alt.Chart(alt.NamedData("efficiency")).encode(
        x=_devices(devices),
        y=y,
        color=alt.Color("line:N", scale=style.scale(LINES), legend=alt.Legend(columns=2)),
        tooltip=["line:N", alt.Tooltip("devices:Q", format=","), alt.Tooltip("share:Q", format=".1%")],
    )
    layers = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=40, opacity=1))
    chart: alt.TopLevelMixin = layers.properties(
        width=width, height=height, description="Share of linear scaling over the number of devices."
    )
    return chart


def spent(width: int = 300, height: int = 260) -> alt.TopLevelMixin:
    """Draw what the time of a device goes into, by number of devices; table ``spent``."""
    chart: alt.TopLevelMixin = (
        alt.Chart(alt.NamedData("spent"))
        .mark_bar(size=26)
        .encode(
            x=alt.X(
                "name:N", title="devices", sort=alt.EncodingSortField("devices"), axis=alt.Axis(labelAngle=0)
            ),
            y=alt.Y(
                "share:Q",
                title="of a device's time",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", tickCount=6),
            ),
            color=alt.Color("part:N", scale=style.scale(SPENT_COLOURS), legend=alt.Legend(columns=3)),
            order="order:Q",
            tooltip=["part:N", "name:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=width, height=height, description="Parts of a device's time by number of devices.")
    )
    return chart


def spent_rows(shares: Mapping[int, Mapping[str, float]]) -> list[dict[str, object]]:
    """Rows of table ``spent``: shares of the whole time by part of a run, by devices."""
    return [
        {
            "devices": devices,
            "name": f"{devices:,}",
            "part": part,
            "order": order,
            "share": sum(parts[name] for name in names),
        }
        for devices, parts in shares.items()
        for order, (part, names) in enumerate(SPENT.items())
    ]


def intervals(width: int = 290, height: int = 230) -> alt.TopLevelMixin:
    """Draw the useful share of time over the interval between checkpoints; tables ``rates`` and ``marks``."""
    x = alt.X(
        "minutes:Q",
        title="from one checkpoint to the next [min]",
        scale=_LOG,
        axis=alt.Axis(values=[1, 3, 10, 30, 100, 300, 1000], format=",", grid=False),
    )
    y = alt.Y(
        "rate:Q",
        title="useful share of the time",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%"),
    )
    lines = (
        alt.Chart(alt.NamedData("rates"))
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("formula:N", scale=style.scale(RATES), legend=alt.Legend(columns=2)),
            strokeDash=alt.StrokeDash(
                "formula:N", scale=alt.Scale(domain=list(RATES), range=[[1, 0], [5, 3]]), legend=None
            ),
        )
    )
    marks = alt.Chart(alt.NamedData("marks"))
    point = marks.mark_point(filled=True, size=70, opacity=1, color=style.LIMIT).encode(x=x, y=y)
    texts = [
        marks.transform_filter(f"{'' if up else '!'}datum.above")
        .mark_text(dy=-11 if up else 15, color=style.LIMIT)
        .encode(x=x, y=y, text="text:N")
        for up in (True, False)
    ]
    chart: alt.TopLevelMixin = alt.layer(lines, point, *texts).properties(
        width=width, height=height, description="Useful share of time over the interval between checkpoints."
    )
    return chart


def interval_rows(
    curve: Sequence[tuple[float, float, float | None]], marks: Mapping[str, tuple[float, float]]
) -> Tables:
    """Make tables ``rates`` (minutes, formula, rate) of (minutes, exact, first order), and ``marks``."""
    rates: list[dict[str, object]] = [
        {"minutes": minutes, "formula": name, "rate": rate}
        for minutes, *both in curve
        for name, rate in zip(RATES, both, strict=True)
        if rate is not None
    ]
    named: list[dict[str, object]] = [
        {"minutes": minutes, "rate": rate, "text": text, "above": text.startswith("yours")}
        for text, (minutes, rate) in marks.items()
    ]
    return {"rates": rates, "marks": named}


def hours(width: int = 250, height: int = 230) -> alt.TopLevelMixin:
    """Draw the device-hours of a run by what they go into; table ``hours``."""
    base = alt.Chart(alt.NamedData("hours")).encode(
        x=alt.X(
            "hours:Q",
            title="device-hours [M]",
            axis=alt.Axis(tickCount=4),
            scale=alt.Scale(range=[0, width - 92]),
        ),
        y=alt.Y("part:N", title=None, sort=list(SPENT), axis=alt.Axis(labelLimit=160, grid=False)),
    )
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        color=alt.Color("part:N", scale=style.scale(SPENT_COLOURS), legend=None),
        tooltip=["part:N", alt.Tooltip("hours:Q", format=".3f")],
    )
    chart: alt.TopLevelMixin = alt.layer(
        bars, base.mark_text(align="left", dx=5).encode(text="text:N")
    ).properties(width=width, height=height, description="Device-hours of a whole run by what they go into.")
    return chart


def hour_rows(found: Mapping[str, float]) -> list[dict[str, object]]:
    """Rows of table ``hours`` from device-hours by part of a run."""
    whole = sum(found.values())
    sums: dict[str, Any] = {part: sum(found[name] for name in names) for part, names in SPENT.items()}
    return [
        {"part": part, "hours": value / 1e6, "text": f"{value / 1e6:.3g} M · {value / whole:.1%}"}
        for part, value in sums.items()
    ]
