"""Charts of what an answer hangs on (tornado, spread), and of curves fitted to a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from telekit.cost.dispatch_gain import Gain
from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.ui.own_log import Band
from telekit.ui.traffic import ROUND

LOW, HIGH = "at its first end", "at its last"
ENDS = {LOW: "#8ab8e2", HIGH: style.TIME["compute"]}
RULES = {"claim": style.LIMIT, "base": style.TIME["waiting"], "yours": style.TIME["communication"]}
WITHIN = {"middle 90 %": style.TIME["compute"], "the rest": style.TIME["waiting"]}
LINKS = {"as the catalog has it": style.TIME["waiting"], "as the log measured": style.TIME["communication"]}
BIN = 0.01

_BY_RANK = alt.EncodingSortField("rank", op="min")


def tornado_rows(found: Gain, yours: float) -> Tables:
    """Make tables ``bars`` (input, rank, end, from, to, text, side), ``answers`` (gain, what), ``draws``."""
    bars: list[dict[str, object]] = []
    for rank, bar in enumerate(found.bars):
        for end, value, gain in zip(ENDS, bar.input.ends, bar.gains, strict=True):
            said = f"{value:g}" if isinstance(value, float) else str(value).removeprefix("ascend-910b-")
            said = {"alltoall_deredundency": "AllGather form", "True": "yes", "False": "no"}.get(said, said)
            side = "left" if gain < found.base else "right"
            row = {"input": bar.input.name, "rank": rank, "end": end, "from": found.base, "to": gain}
            bars.append(row | {"text": said if abs(gain - found.base) > 1e-9 else "", "side": side})
    answers: list[dict[str, object]] = [
        {"gain": found.study.claim, "what": "claim"},
        {"gain": found.base, "what": "base"},
        {"gain": yours, "what": "yours"},
    ]
    low, _, high = found.interval
    bins = np.floor(found.samples / BIN + 1e-9).astype(int)
    values, counts = np.unique(bins, return_counts=True)
    draws: list[dict[str, object]] = [
        {
            "gain": BIN * v,
            "end": BIN * (v + 1),
            "count": n,
            "part": list(WITHIN)[not low - BIN / 2 <= BIN * (v + 0.5) <= high + BIN / 2],
        }
        for v, n in zip(values.tolist(), counts.tolist(), strict=True)
    ]
    return {"bars": bars, "answers": answers, "draws": draws}


def _rules(legend: bool) -> alt.Chart:
    rules: alt.Chart = (
        alt.Chart(alt.NamedData("answers"))
        .mark_rule(strokeWidth=2, strokeDash=[5, 3])
        .encode(
            x="gain:Q",
            color=alt.Color(
                "what:N", scale=style.scale(RULES), legend=alt.Legend(columns=3) if legend else None
            ),
            tooltip=["what:N", alt.Tooltip("gain:Q", format=".1%")],
        )
    )
    return rules


def tornado(width: int = 370, height: int = 330) -> alt.TopLevelMixin:
    """Draw how far each input moves the answer, all others at their base; tables ``bars`` and ``answers``."""
    y = alt.Y("input:N", title=None, sort=_BY_RANK, axis=alt.Axis(labelLimit=170, grid=False))
    base = alt.Chart(alt.NamedData("bars"))
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        x=alt.X(
            "from:Q",
            title="gain of throughput",
            axis=alt.Axis(format=".0%", tickCount=6),
            scale=alt.Scale(padding=34),
        ),
        x2="to:Q",
        y=y,
        color=alt.Color("end:N", scale=style.scale(ENDS), legend=alt.Legend(columns=2)),
        tooltip=["input:N", "text:N", alt.Tooltip("to:Q", format=".1%", title="gain")],
    )
    left = base.transform_filter("datum.side == 'left'").mark_text(align="right", dx=-4, fontSize=10)
    right = base.transform_filter("datum.side == 'right'").mark_text(align="left", dx=4, fontSize=10)
    texts = [part.encode(x="to:Q", y=y, text="text:N") for part in (left, right)]
    chart: alt.TopLevelMixin = (
        alt.layer(bars, _rules(True), *texts)
        .resolve_scale(color="independent")
        .properties(width=width, height=height, description="How far each assumption moves the answer.")
    )
    return chart


def spread(width: int = 210, height: int = 330) -> alt.TopLevelMixin:
    """Draw the answers with every input drawn from its range at once; tables ``draws`` and ``answers``."""
    bars = (
        alt.Chart(alt.NamedData("draws"))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X(
                "gain:Q", bin="binned", title="gain of throughput", axis=alt.Axis(format=".0%", tickCount=6)
            ),
            x2="end:Q",
            y=alt.Y("count:Q", title="draws", axis=alt.Axis(tickCount=5)),
            color=alt.Color("part:N", scale=style.scale(WITHIN), legend=alt.Legend(columns=2)),
            tooltip=[alt.Tooltip("gain:Q", format=".0%"), "count:Q"],
        )
    )
    chart: alt.TopLevelMixin = (
        alt.layer(bars, _rules(False))
        .resolve_scale(color="independent")
        .properties(width=width, height=height, description="Spread of the answer over all assumptions.")
    )
    return chart


# --- a curve fitted to a log --------------------------------------------------------------------------------


def fitted_rows(points: Sequence[tuple[float, float]], band: Band) -> Tables:
    """Make tables ``points`` (MiB, rate) and ``curve`` (MiB, rate, low, high), rates in GB/s; ``points`` in bytes."""
    scale = 2.0**20
    return {
        "points": [{"MiB": size / scale, "rate": rate / 1e9} for size, rate in points],
        "curve": [
            {"MiB": size / scale, "rate": middle / 1e9, "low": low / 1e9, "high": high / 1e9}
            for size, middle, low, high in zip(band.sizes, band.middle, band.low, band.high, strict=True)
        ],
    }


def fitted_curve(width: int = 310, height: int = 240) -> alt.TopLevelMixin:
    """Draw measured bus bandwidth over message size, the fitted curve and its band; tables ``points`` and ``curve``."""
    x: dict[str, Any] = {
        "title": "whole buffer [MiB]",
        "scale": alt.Scale(type="log", nice=False),
        "axis": alt.Axis(values=[4.0**i for i in range(-6, 8)], format="~g", grid=False),
    }
    y = alt.Y(
        "rate:Q",
        title="bus bandwidth [GB/s]",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(values=ROUND, format="~g"),
    )
    curve = alt.Chart(alt.NamedData("curve"))
    band = curve.mark_area(opacity=0.25, color=style.TIME["compute"]).encode(
        x=alt.X("MiB:Q", **x), y=alt.Y("low:Q"), y2="high:Q"
    )
    line = curve.mark_line(color=style.TIME["compute"], strokeWidth=2).encode(x=alt.X("MiB:Q", **x), y=y)
    points = (
        alt.Chart(alt.NamedData("points"))
        .mark_point(filled=True, size=40, color=style.TIME["communication"], opacity=1)
        .encode(
            x=alt.X("MiB:Q", **x),
            y=y,
            tooltip=[alt.Tooltip("MiB:Q", format=".4g"), alt.Tooltip("rate:Q", format=".4g")],
        )
    )
    return alt.layer(band, line, points).properties(
        width=width, height=height, description="Measured bus bandwidth and the curve fitted to it."
    )


def change_rows(before: Mapping[str, float], after: Mapping[str, float]) -> Tables:
    """Make table ``change`` (dispatcher, rank, links, ms, text): times by the catalog's links and by the log's."""
    rows: list[dict[str, object]] = [
        {
            "dispatcher": name,
            "rank": rank,
            "links": links,
            "ms": 1e3 * times[name],
            "text": f"{1e3 * times[name]:.2f}",
        }
        for rank, name in enumerate(before)
        for links, times in zip(LINKS, (before, after), strict=True)
    ]
    return {"change": rows}


def change_bars(width: int = 240, height: int = 240) -> alt.TopLevelMixin:
    """Draw each dispatcher's time by both sets of links; table ``change``."""
    base = alt.Chart(alt.NamedData("change")).encode(
        x=alt.X(
            "ms:Q",
            title="dispatch and combine [ms]",
            axis=alt.Axis(tickCount=4),
            scale=alt.Scale(range=[0, width - 50]),
        ),
        y=alt.Y("dispatcher:N", title=None, sort=_BY_RANK, axis=alt.Axis(labelLimit=150, grid=False)),
        yOffset=alt.YOffset("links:N", sort=list(LINKS)),
    )
    bars = base.mark_bar().encode(
        color=alt.Color("links:N", scale=style.scale(LINKS), legend=alt.Legend(columns=2)),
        tooltip=["dispatcher:N", "links:N", "text:N"],
    )
    return alt.layer(bars, base.mark_text(align="left", dx=4).encode(text="text:N")).properties(
        width=width,
        height=height,
        description="Time of each dispatcher by the catalog's links and by measured ones.",
    )
