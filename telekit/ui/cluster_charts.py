"""Charts of what holds a cluster up: hosts against devices, idle mode, the slowest of many, a monitor's bursts."""

from __future__ import annotations

import altair as alt
import numpy as np
from numpy.typing import NDArray

from telekit.cluster.regimes import IdleFrequency, Issued
from telekit.ui import style
from telekit.ui.charts import Tables

WAITING, HOST, COMPUTE = style.TIME["waiting"], "#8f3f6f", style.TIME["compute"]
LANES = {"host issues": HOST, "kernel runs": COMPUTE, "device idles": WAITING}
CLOCKS = {"idle": WAITING, "work": COMPUTE, "work, slowly": "#cf6a17"}
HELD, LOWERED = "frequency held", "lowered when idle"
MODES = {HELD: COMPUTE, LOWERED: "#cf6a17"}
SPREADS = {"normal": COMPUTE, "exponential tail": "#e08a1e", "heavy tail": "#c8372d"}
BURSTS = {"each at its own time": "#cf6a17", "all at once": COMPUTE}
SHOWN_S = 400e-6
"""Time from the start that the two lanes show."""

_DEVICES = alt.X(
    "devices:Q",
    title="devices",
    scale=alt.Scale(type="log", nice=False, padding=12),
    axis=alt.Axis(format=",", values=[8, 64, 512, 4096, 8192], grid=False, labelOverlap="greedy"),
)


# --- host and device ----------------------------------------------------------------------------------------


def lane_rows(issued: Issued, host_s: float, shown_s: float = SHOWN_S) -> Tables:
    """Make tables ``lanes`` (lane, what, start, end in µs) and ``links`` (from a launch to its kernel).

    Parameters
    ----------
    issued : Issued
        What ran.
    host_s : float
        Time of one launch.
    shown_s : float
        What is drawn, from the first launch on.
    """
    begin = issued.launched_s - host_s
    lanes = [
        ("host", "host issues", begin, issued.launched_s),
        ("device", "kernel runs", issued.start_s, issued.end_s),
    ]
    gaps = np.append(0.0, issued.end_s[:-1]), issued.start_s
    lanes.append(("device", "device idles", *gaps))
    rows: list[dict[str, object]] = [
        {"lane": lane, "what": what, "start": 1e6 * a, "end": 1e6 * min(b, shown_s)}
        for lane, what, starts, ends in lanes
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        if b - a > 1e-9 and a < shown_s
    ]
    links: list[dict[str, object]] = [
        {"from": 1e6 * a, "to": 1e6 * b, "host": "host", "device": "device"}
        for a, b in zip(issued.launched_s.tolist(), issued.start_s.tolist(), strict=True)
        if b <= shown_s
    ]
    return {"lanes": rows, "links": links}


def two_lanes(width: int = 640, height: int = 96) -> alt.TopLevelMixin:
    """Draw the host's launches above the device's kernels; tables ``lanes`` and ``links``."""
    x = alt.X(
        "start:Q",
        title="time from the start of the step [µs]",
        scale=alt.Scale(domain=[0, 1e6 * SHOWN_S], nice=False),
        axis=alt.Axis(tickCount=8, grid=False),
    )
    order = alt.Scale(domain=["host", "device"], paddingInner=0.5, paddingOuter=0.1)
    bars = (
        alt.Chart(alt.NamedData("lanes"))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=x,
            x2="end:Q",
            y=alt.Y("lane:N", title=None, scale=order),
            color=alt.Color("what:N", scale=style.scale(LANES), legend=alt.Legend(columns=3)),
            tooltip=["what:N", alt.Tooltip("start:Q", format=".1f"), alt.Tooltip("end:Q", format=".1f")],
        )
    )
    links = (
        alt.Chart(alt.NamedData("links"))
        .mark_rule(color=HOST, strokeWidth=0.8, opacity=0.55)
        .encode(x=alt.X("from:Q"), x2="to:Q", y=alt.Y("host:N", scale=order), y2="device:N")
    )
    return alt.layer(links, bars).properties(
        width=width, height=height, description="Launches of the host above, kernels of the device below."
    )


def knee(width: int = 290, height: int = 210) -> alt.TopLevelMixin:
    """Draw the step over the launch time; tables ``curve`` (launch µs, step ms, line) and ``now``."""
    x = alt.X(
        "launch:Q", title="host time to issue one operator [µs]", axis=alt.Axis(tickCount=6, grid=False)
    )
    y = alt.Y("step:Q", title="time of the step [ms]", axis=alt.Axis(tickCount=5))
    base = alt.Chart(alt.NamedData("curve"))
    bounds = base.transform_filter("datum.line != 'step'").mark_line(
        strokeDash=[5, 3], strokeWidth=1.2, color=WAITING
    )
    line = base.transform_filter("datum.line == 'step'").mark_line(strokeWidth=2.5, color=COMPUTE)
    now = alt.Chart(alt.NamedData("now"))
    dot = now.mark_point(filled=True, size=110, opacity=1, color=style.LIMIT).encode(x=x, y=y)
    said = now.mark_text(align="right", dx=-10, dy=-10, fontWeight=600).encode(x=x, y=y, text="text:N")
    return alt.layer(bounds.encode(x=x, y=y, detail="line:N"), line.encode(x=x, y=y), dot, said).properties(
        width=width, height=height, description="Time of a step over the host's time to issue one operator."
    )


def queue(width: int = 270, height: int = 210) -> alt.TopLevelMixin:
    """Draw how far the host is ahead over the step; table ``queue`` (ms, ahead, top)."""
    base = alt.Chart(alt.NamedData("queue")).encode(
        x=alt.X("ms:Q", title="time of the launch [ms]", axis=alt.Axis(tickCount=5, grid=False))
    )
    y = alt.Y("ahead:Q", title="launches ahead of the device", axis=alt.Axis(tickCount=5, tickMinStep=1))
    area = base.mark_area(
        interpolate="step-after", color=HOST, opacity=0.35, line={"color": HOST, "strokeWidth": 1.5}
    ).encode(y=y)
    room = base.mark_point(opacity=0).encode(y="top:Q")
    return alt.layer(area, room).properties(
        width=width, height=height, description="Launches that are queued or run, over the step."
    )


# --- idle mode ----------------------------------------------------------------------------------------------


def clock_rows(mode: IdleFrequency, work_s: float, idle_s: float, periods: int = 4) -> Tables:
    """Make table ``clock`` (lane, what, start, end in ms): periods of idle time and work, held and lowered."""
    rows: list[dict[str, object]] = []
    for lane, taken in ((HELD, np.full(periods, work_s)), (LOWERED, mode.work_s([work_s] * periods, idle_s))):
        now = 0.0
        for work in taken.tolist():
            share = (work - work_s) / (1 - 1 / mode.factor) if mode.factor > 1 else 0.0  # of it, slowly
            for what, length in (("idle", idle_s), ("work, slowly", share), ("work", work - share)):
                if length > 1e-12:
                    rows.append({"lane": lane, "what": what, "start": 1e3 * now, "end": 1e3 * (now + length)})
                now += length
    return {"clock": rows}


def clock(width: int = 640, height: int = 86) -> alt.TopLevelMixin:
    """Draw periods at the held and at the lowered frequency; table ``clock``."""
    chart: alt.TopLevelMixin = (
        alt.Chart(alt.NamedData("clock"))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("start:Q", title="time [ms]", axis=alt.Axis(grid=False), scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=alt.Y("lane:N", title=None, sort=[HELD, LOWERED], axis=alt.Axis(labelLimit=140)),
            color=alt.Color("what:N", scale=style.scale(CLOCKS), legend=alt.Legend(columns=3)),
            tooltip=["what:N", alt.Tooltip("start:Q", format=".2f"), alt.Tooltip("end:Q", format=".2f")],
        )
        .properties(width=width, height=height, description="Idle time and work, at two ways to clock.")
    )
    return chart


def trap(width: int = 560, height: int = 200) -> alt.TopLevelMixin:
    """Draw a period over its idle time; tables ``trap`` (idle µs, ms, line), ``here`` and ``threshold``."""
    x = alt.X(
        "idle:Q",
        title="the device waits, before each stretch of work [µs]",
        axis=alt.Axis(grid=False, tickCount=8),
    )
    y = alt.Y(
        "ms:Q", title="wait and work [ms]", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=5)
    )
    lines = (
        alt.Chart(alt.NamedData("trap"))
        .mark_line(strokeWidth=2.2)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "line:N", scale=style.scale(MODES), legend=alt.Legend(columns=2, symbolType="stroke")
            ),
        )
    )
    at = alt.Chart(alt.NamedData("threshold"))
    rule = at.mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(x=x)
    name = at.mark_text(align="left", dx=5, baseline="top", color=style.LIMIT, text="threshold").encode(
        x=x, y=alt.value(2)
    )
    dot = alt.Chart(alt.NamedData("here")).mark_point(filled=True, size=110, opacity=1, color=style.LIMIT)
    return alt.layer(lines, rule, name, dot.encode(x=x, y=y)).properties(
        width=width, height=height, description="Time of wait and work over the wait."
    )


# --- the slowest of many ------------------------------------------------------------------------------------


def _over_devices(
    table: str, colours: dict[str, str], width: int, height: int, said: str
) -> alt.TopLevelMixin:
    base = alt.Chart(alt.NamedData(table)).encode(
        x=_DEVICES,
        y=alt.Y("loss:Q", title="longer step", axis=alt.Axis(format=".1~%", tickCount=5)),
        color=alt.Color("line:N", scale=style.scale(colours), legend=alt.Legend(columns=3)),
        tooltip=["line:N", alt.Tooltip("devices:Q", format=","), alt.Tooltip("loss:Q", format=".2%")],
    )
    layers = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=40, opacity=1))
    chart: alt.TopLevelMixin = layers.properties(width=width, height=height, description=said)
    return chart


def jitter(width: int = 290, height: int = 220) -> alt.TopLevelMixin:
    """Draw the loss to the slowest of the devices, by shape of spread; table ``jitter`` (devices, line, loss)."""
    return _over_devices("jitter", SPREADS, width, height, "What waiting for the slowest device costs.")


def bursts(width: int = 290, height: int = 220) -> alt.TopLevelMixin:
    """Draw the loss to a monitor's bursts; table ``bursts`` (devices, line, loss)."""
    return _over_devices("bursts", BURSTS, width, height, "What a monitor's bursts cost.")


def thinned(issued: Issued, most: int = 160) -> list[dict[str, object]]:
    """Make the rows of ``queue``: at most so many launches, evenly spread."""
    at: NDArray[np.int64] = np.unique(np.linspace(0, len(issued.launched_s) - 1, most).astype(np.int64))
    top = max(int(issued.ahead.max()), 4)
    pairs = zip((1e3 * issued.launched_s[at]).tolist(), issued.ahead[at].tolist(), strict=True)
    return [{"ms": ms, "ahead": ahead, "top": top} for ms, ahead in pairs]
