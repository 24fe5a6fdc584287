"""Charts of pipeline schedules: what one device holds over time, schedules beside each other, what a bubble is of.

Each chart is drawn once over named tables; beside it stands the function that makes its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import NDArray

from telekit.pipeline.simulate import Simulation
from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.ui.gantt import AXIS_PX, WIDTH, gantt_rows

Floats = NDArray[np.float64]
Table = list[dict[str, object]]

SAME = 1e-9
WHOLE = "datum.value == floor(datum.value) ? format(datum.value, 'd') : ''"
"""Labels of an axis that counts: no «1» beside a half."""
PALER = 0.35
"""By how much the colour of a device's last chunk is weaker than that of its first."""
SPLIT = tuple(kind for kind in style.PASSES if kind != "recompute")
"""Kinds of the chapter's schedules."""
MAX_MARKS, MAX_STEPS = 900, 1600
"""Marks of a Gantt chart, and steps of all devices' memory, that a page redraws at a slider's pace."""

FRONT = {"nothing beats it": style.TIME["compute"], "another beats it": style.TIME["waiting"]}
"""Colours of schedules by whether another one idles less and holds less."""
OWN, COMM = "the schedule's own", "communication"
IDLE = {OWN: style.TIME["waiting"], COMM: style.TIME["communication"]}


# --- one schedule over time ---------------------------------------------------------------------------------


def timeline_rows(found: Simulation) -> Tables:
    """Make tables ``gantt`` and ``written`` of a simulation of one duration set.

    A block carries its micro-batch; later chunks of a device are paler.
    """
    order = found.order
    text = order.micro_batch.astype(str)
    if order.other_micro_batch is not None:
        other = np.where(order.other_micro_batch < 0, "", order.other_micro_batch.astype(str))
        text = np.char.add(np.char.add(text, np.where(other == "", "", "&")), other)
    columns = found.marks()
    again = columns["kind"].size - text.size  # a recompute is a mark of its own, at the end
    behind = order.chunk if order.other_chunk is None else order.other_chunk
    shade = 1 - PALER * np.stack([order.chunk, behind], axis=1) / max(order.chunks - 1, 1)
    columns["text"] = np.append(text, np.full(again, ""))
    columns["shade"] = np.append(shade, np.ones((again, 2)), axis=0)
    return gantt_rows(**columns, max_marks=MAX_MARKS)


def held_rows(found: Simulation, device: int) -> Tables:
    """Make tables ``held`` (device, time, held, chosen) and ``most`` (held, time, text).

    In micro-batches of a full stage. With more steps than a page can draw, each slice of time shows its most.
    """
    stages, makespan = found.order.stages, float(found.makespan_s)
    share = np.full(found.order.part.shape, stages / found.order.parts)
    rows: Table = []
    for i, (times, held) in enumerate(found.memory(share)):
        at, level = _fewer(times, held, makespan, MAX_STEPS // stages)
        rows += [
            {"device": i, "time": t, "held": h, "chosen": i == device}
            for t, h in zip(at.tolist(), level.tolist(), strict=True)
        ]
    peak = float(found.peak_activations[device])
    most: Table = [{"held": peak, "time": makespan, "text": f"device {device}: {peak:g} at most"}]
    return {"held": rows, "most": most}


def _fewer(times: Floats, held: Floats, end: float, most: int) -> tuple[Floats, Floats]:
    """Return one device's steps from 0 to the end; more than ``most`` are cut to slices of time, each at its most."""
    last = np.append(times[1:] > times[:-1], True)
    at, level = np.append(0.0, times[last]), np.append(0.0, held[last])
    if at.size > most:
        edges = np.linspace(0.0, end, most)
        begin = np.searchsorted(at, edges, side="right") - 1
        slices = np.stack([begin, np.append(begin[1:] + 1, at.size)], axis=1)
        level = np.array([level[a:b].max() for a, b in slices])
        at = edges
    kept = np.append(True, level[1:] != level[:-1])
    return np.append(at[kept], end), np.append(level[kept], level[-1])


def held_over_time(width: int = WIDTH, height: int = 120) -> alt.TopLevelMixin:
    """Draw what every device holds over time, one of them in colour. Tables ``held`` and ``most``."""
    x = alt.X("time:Q", title="time", scale=alt.Scale(nice=False))
    y = alt.Y(
        "held:Q",
        title="micro-batches held",
        axis=alt.Axis(tickCount=4, minExtent=AXIS_PX),
    )
    base = alt.Chart(alt.NamedData("held")).encode(x=x, y=y)
    step: dict[str, Any] = {"interpolate": "step-after"}
    chosen = base.transform_filter("datum.chosen")
    area = chosen.mark_area(**step, color=style.MEMORY["activations"], opacity=0.3)
    edge = chosen.mark_line(**step, color=style.MEMORY["activations"], strokeWidth=2)
    others = base.transform_filter("!datum.chosen").mark_line(
        **step, color=style.TIME["waiting"], strokeWidth=1, opacity=0.8
    )
    most = alt.Chart(alt.NamedData("most"))
    rule = most.mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(y="held:Q")
    text = most.mark_text(align="right", baseline="bottom", dy=-3, color=style.LIMIT).encode(
        x="time:Q", y="held:Q", text="text:N"
    )
    return alt.layer(area, others.encode(detail="device:N"), edge, rule, text).properties(
        width=width, height=height, description="Activations that each device holds over time."
    )


# --- schedules beside each other ----------------------------------------------------------------------------


def basis_rows(schedules: Mapping[str, tuple[float, float, int]]) -> Tables:
    """Make table ``basis`` (schedule, rank, bubble, bubble_text, held, held_text, kind), the least idle first.

    Parameters
    ----------
    schedules : mapping of str to (float, float, int)
        By name: bubble of total, most micro-batches of a stage that a device holds, copies of the model.
    """
    rows: Table = []
    for rank, name in enumerate(sorted(schedules, key=lambda name: schedules[name][:2])):
        bubble, held, copies = schedules[name]
        twice = " · weights twice" if copies == 2 else ""
        rows.append(
            {
                "schedule": name,
                "rank": rank,
                "bubble": bubble,
                "bubble_text": f"{bubble:.1%}",
                "held": held,
                "held_text": f"{held:.3g}{twice}",
                "kind": list(FRONT)[beaten(name, schedules)],
            }
        )
    return {"basis": rows}


def beaten(name: str, schedules: Mapping[str, tuple[float, float, int]]) -> bool:
    """Whether another schedule neither idles nor holds more, and one of the two less."""
    bubble, held, _ = schedules[name]
    return any(
        b <= bubble + SAME and h <= held + SAME and (b < bubble - SAME or h < held - SAME)
        for b, h, _ in schedules.values()
    )


def basis_bars(what: str, title: str, width: int, names: bool) -> alt.TopLevelMixin:
    """Draw ``"bubble"`` or ``"held"`` of each schedule, the least idle on top; table ``basis``."""
    axis = alt.Axis(labelLimit=150, grid=False) if names else alt.Axis(labels=False, grid=False)
    base = alt.Chart(alt.NamedData("basis")).encode(
        x=alt.X(
            f"{what}:Q",
            title=title,
            axis=alt.Axis(tickCount=4, format=".0%")
            if what == "bubble"
            else alt.Axis(tickCount=4, labelExpr=WHOLE),
            scale=alt.Scale(range=[0, width - 96]),  # the text beside the longest bar needs the rest
        ),
        y=alt.Y("schedule:N", title=None, sort=alt.EncodingSortField("rank", op="min"), axis=axis),
    )
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        color=alt.Color("kind:N", scale=style.scale(FRONT), legend=alt.Legend(columns=2)),
        tooltip=["schedule:N", "bubble_text:N", "held_text:N"],
    )
    text = base.mark_text(align="left", dx=5).encode(text=f"{what}_text:N")
    return alt.layer(bars, text).properties(
        width=width, height=alt.Step(21), description=f"Schedules on one basis: {title}."
    )


# --- what a bubble is worth ---------------------------------------------------------------------------------


def bubble_over_micro_batches(width: int = 390, height: int = 240) -> alt.TopLevelMixin:
    """Draw bubbles over the number of micro-batches, a line a schedule; tables ``curves`` and ``here``."""
    x = alt.X(
        "micro_batches:Q",
        title="micro-batches of a step",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=[2**i for i in range(1, 11)], format="d", grid=False),
    )
    y = alt.Y(
        "bubble:Q", title="bubble, of all time", axis=alt.Axis(format=".0%", tickCount=5, minExtent=AXIS_PX)
    )
    base = alt.Chart(alt.NamedData("curves")).encode(x=x, y=y)
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=22)).encode(
        color=alt.Color("schedule:N", scale=style.scale(style.SCHEDULES), legend=alt.Legend(columns=3)),
        tooltip=["schedule:N", "micro_batches:Q", alt.Tooltip("bubble:Q", format=".2%")],
    )
    here = alt.Chart(alt.NamedData("here")).mark_rule(color=style.LIMIT, strokeDash=[5, 3])
    return alt.layer(here.encode(x="micro_batches:Q"), lines).properties(
        width=width, height=height, description="Bubble of each schedule over the number of micro-batches."
    )


class Trade(NamedTuple):
    """What interleaving with some number of chunks costs: idle time by cause, micro-batches held."""

    own: float
    comm: float
    held: float


def trade_rows(by_chunks: Mapping[int, Trade]) -> Tables:
    """Make tables ``trade`` (chunks, cause, idle, order) and ``on_top`` (chunks, idle, top, text)."""
    trade: Table = []
    on_top: Table = []
    for chunks, it in by_chunks.items():
        for order, (cause, idle) in enumerate(((OWN, it.own), (COMM, it.comm))):
            trade.append({"chunks": chunks, "cause": cause, "idle": idle, "order": order})
        total = it.own + it.comm
        on_top.append({"chunks": chunks, "idle": total, "top": 1.1 * total, "text": f"holds {it.held:.3g}"})
    return {"trade": trade, "on_top": on_top}


def interleaving_trade(width: int = 300, height: int = 240) -> alt.TopLevelMixin:
    """Draw the idle time of a device over chunks a device; tables ``trade`` and ``on_top``."""
    x = alt.X("chunks:O", title="chunks a device", axis=alt.Axis(labelAngle=0))
    y = alt.Y("idle:Q", title="idle time of a device", axis=alt.Axis(tickCount=5))
    bars = (
        alt.Chart(alt.NamedData("trade"))
        .mark_bar(width=alt.RelativeBandSize(0.7))
        .encode(
            x=x,
            y=y,
            color=alt.Color("cause:N", scale=style.scale(IDLE)),
            order="order:Q",
            tooltip=["chunks:O", "cause:N", alt.Tooltip("idle:Q", format=".3g")],
        )
    )
    on_top = alt.Chart(alt.NamedData("on_top")).encode(x=x)
    text = on_top.mark_text(baseline="bottom", dy=-4).encode(y=y, text="text:N")
    room = on_top.mark_point(opacity=0).encode(y="top:Q")
    return alt.layer(bars, text, room).properties(
        width=width, height=height, description="Idle time of interleaved 1F1B by chunks a device."
    )
