"""Charts of what ranks do in steps of unequal micro-batches, and of what balancing gains where.

Each chart is drawn once over named tables; beside it stands the function that makes its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import NDArray

from telekit.ui import style
from telekit.ui.charts import Tables

Floats = NDArray[np.float64]
Table = list[dict[str, object]]

COMPUTING, PIPE, LAYER = "computing", "own pipeline's bubble", "waiting in layers"
REDUCE, FIXED = "waiting for the slowest", "gradients, optimizer"
STEP = {
    COMPUTING: style.TIME["compute"],
    PIPE: style.TIME["waiting"],
    LAYER: style.COMPONENTS["embedding"],
    REDUCE: style.COMPONENTS["head"],
    FIXED: style.TIME["optimizer"],
}
PARTS = {
    "busy_s": COMPUTING,
    "bubble_s": PIPE,
    "layer_wait_s": LAYER,
    "reduce_wait_s": REDUCE,
    "fixed_s": FIXED,
}
"""What a rank does, by the names of :class:`telekit.packing.step.Step`."""
SIDES = {2048: "#1d5a9f", 4096: "#5c93d3", 8192: "#cf6a17"}
"""Colours of hidden sizes."""
_TICK = "#828a93"


def waiting_rows(busy: Floats, layer: Floats, bubble: Floats, reduce: Floats, fixed_s: float) -> Tables:
    """Make table ``step`` of one step, rank by rank.

    Parameters
    ----------
    busy, layer : (ranks, micro_batches) arrays
        Computing of each micro-batch, and the wait in its layers; seconds.
    bubble, reduce : (ranks,) arrays
        Idle in the rank's own pipeline, the mean of its stages; waiting for the slowest rank.
    fixed_s : float
        What is the same for all: gradients and optimizer.
    """
    step: Table = []
    for rank in range(busy.shape[0]):
        at = 0.0
        spans = [
            (kind, str(number), float(seconds))
            for number, pair in enumerate(zip(busy[rank], layer[rank], strict=True))
            for kind, seconds in zip((COMPUTING, LAYER), pair, strict=True)
        ]
        last = ((PIPE, bubble[rank]), (REDUCE, reduce[rank]), (FIXED, fixed_s))
        spans += [(kind, "", float(seconds)) for kind, seconds in last]
        for kind, number, seconds in spans:
            if seconds > 1e-12:
                step.append(
                    {"rank": rank, "kind": kind, "micro_batch": number, "start": at, "end": at + seconds,
                     "seconds": seconds, "top": rank - 0.42, "bottom": rank + 0.42}
                )  # fmt: skip
            at += seconds
    return {"step": step}


def waiting(width: int = 340, height: int = 250) -> alt.TopLevelMixin:
    """Draw the micro-batches of every rank, and what it waits for; table ``step``."""
    chart: alt.TopLevelMixin = (
        alt.Chart(alt.NamedData("step"))
        .mark_rect(stroke="white", strokeWidth=0.6)
        .encode(
            x=alt.X(
                "start:Q", title="time of a step [s]", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=5)
            ),
            x2="end:Q",
            y=alt.Y(
                "top:Q",
                title="data-parallel rank",
                scale=alt.Scale(reverse=True, zero=False, nice=False),
                axis=alt.Axis(format="d", tickMinStep=1, grid=False),
            ),
            y2="bottom:Q",
            color=alt.Color(
                "kind:N", scale=style.scale(STEP), legend=alt.Legend(columns=2, symbolStrokeWidth=0)
            ),
            tooltip=["rank:O", "kind:N", "micro_batch:N", alt.Tooltip("seconds:Q", format=".3f")],
        )
        .properties(width=width, height=height, description="What each rank does in a step, and waits for.")
    )
    return chart


class Standing(NamedTuple):
    """A policy over batches, steps as given being 1.

    Attributes
    ----------
    parts : mapping of str to float
        Shares of :data:`PARTS`, the mean over batches; they sum to the step.
    low, high, unordered : float
        5 and 95 % of batches; the mean with micro-batches in the order that they came in.
    speedup : float
        Tokens a second, the mean.
    """

    parts: Mapping[str, float]
    low: float
    high: float
    unordered: float
    speedup: float


def policy_rows(found: Mapping[str, Standing], even: float) -> Tables:
    """Make tables ``policies``, ``spread``, ``unordered`` and ``even`` (where all samples are alike)."""
    policies: Table = []
    spread: Table = []
    unordered: Table = []
    for rank, (name, it) in enumerate(found.items()):
        at: dict[str, object] = {"policy": name, "rank": rank}
        policies += [
            at | {"kind": kind, "share": it.parts[part], "order": order}
            for order, (part, kind) in enumerate(PARTS.items())
            if it.parts[part] > 0
        ]
        top = max(it.high, it.unordered)
        spread.append(at | {"low": it.low, "high": it.high, "top": top, "text": f"{it.speedup:.2f}×"})
        if it.unordered > sum(it.parts.values()) * 1.002:
            unordered.append(at | {"share": it.unordered, "text": "before ordering"})
    dashed: Table = [{"share": even, "text": "if all samples were alike"}]
    return {"policies": policies, "spread": spread, "unordered": unordered, "even": dashed}


def policy_bars(width: int = 250, height: int = 215) -> alt.TopLevelMixin:
    """Draw steps by policy; tables ``policies``, ``spread``, ``unordered``, ``even``."""
    y = alt.Y(
        "policy:N",
        title=None,
        sort=alt.EncodingSortField("rank", op="min"),
        axis=alt.Axis(labelLimit=130, grid=False),
    )
    x = alt.X(
        "share:Q",
        title="step, as given = 1 (red: 5 to 95 % of batches)",
        axis=alt.Axis(tickCount=5),
        scale=alt.Scale(range=[0, width - 48]),
    )
    bars = (
        alt.Chart(alt.NamedData("policies"))
        .mark_bar(height=alt.RelativeBandSize(0.66))
        .encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", scale=style.scale(STEP), legend=None),
            order="order:Q",
            tooltip=["policy:N", "kind:N", alt.Tooltip("share:Q", format=".3f")],
        )
    )
    spread = alt.Chart(alt.NamedData("spread")).encode(y=y)
    line = spread.mark_rule(strokeWidth=2.5, color=style.LIMIT).encode(x="low:Q", x2="high:Q")
    text = spread.mark_text(align="left", dx=6).encode(x="top:Q", text="text:N")
    before = alt.Chart(alt.NamedData("unordered")).encode(y=y)
    tick = before.mark_tick(thickness=2.5, bandSize=15, color=_TICK).encode(x="share:Q", tooltip="text:N")
    even = alt.Chart(alt.NamedData("even"))
    rule = even.mark_rule(strokeDash=[5, 3], color=style.LIMIT).encode(x="share:Q", tooltip="text:N")
    return alt.layer(bars, rule, tick, line, text).properties(
        width=width, height=height, description="Time of a step by policy, over many batches."
    )


# --- when it matters ----------------------------------------------------------------------------------------


def _log(field: str, title: str, values: Sequence[int]) -> alt.X:
    scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    short = "datum.value >= 1024 ? format(datum.value / 1024, 'd') + ' Ki' : format(datum.value, 'd')"
    return alt.X(
        f"{field}:Q",
        title=title,
        scale=scale,
        axis=alt.Axis(values=list(values), labelExpr=short, grid=False),
    )


def beside(value: int, number: int, step: float) -> float:
    """Move the ``number``-th of three points a little on a log axis, so that its bar is not under another's."""
    return float(value * step ** (number - 1))


_SOLID: dict[str, Any] = {"symbolOpacity": 1, "symbolStrokeWidth": 0}
_GAIN: dict[str, Any] = {"title": "tokens a second, as given = 1", "scale": alt.Scale(zero=False, nice=True)}


def over_length(values: Sequence[int], width: int = 380, height: int = 250) -> alt.TopLevelMixin:
    """Draw the gain over the sequence length, a line a hidden size; tables ``lengths``, ``here``, ``published``."""
    x = _log("seq_len", "tokens of a sample", values)
    legend = alt.Legend(labelExpr="'hidden size ' + datum.label", columnPadding=8, **_SOLID)
    colours = style.scale({f"{h:,}": c for h, c in SIDES.items()})
    base = alt.Chart(alt.NamedData("lengths")).encode(
        x=_log("at", "tokens of a sample", values), color=alt.Color("hidden:N", scale=colours, legend=legend)
    )
    y = alt.Y("gain:Q", axis=alt.Axis(tickCount=5, minExtent=30), **_GAIN)
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=26)).encode(
        y=y, tooltip=["hidden:N", "seq_len:Q", alt.Tooltip("gain:Q", format=".3f")]
    )
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(y="low:Q", y2="high:Q")
    here = alt.Chart(alt.NamedData("here")).mark_rule(color=style.TIME["waiting"], strokeDash=[5, 3])
    mark = alt.Chart(alt.NamedData("published")).encode(x=x, y=y)
    point = mark.mark_point(shape="diamond", size=110, filled=True, color=style.LIMIT, opacity=1)
    name = mark.mark_text(align="left", dx=9, dy=10, color=style.LIMIT).encode(text="text:N")
    return alt.layer(here.encode(x="seq_len:Q"), bars, lines, point, name).properties(
        width=width, height=height, description="Gain of balancing over the sequence length, by hidden size."
    )


def over_ranks(values: Sequence[int], width: int = 280, height: int = 250) -> alt.TopLevelMixin:
    """Draw the gain over the data-parallel ranks, a line a number of micro-batches; table ``ranks``."""
    colours = {"1": "#8f3f6f", "4": "#b86f9b", "16": "#adb3ba"}
    legend = alt.Legend(labelExpr="'m = ' + datum.label", **_SOLID)
    base = alt.Chart(alt.NamedData("ranks")).encode(
        x=_log("at", "data-parallel ranks", values),
        color=alt.Color("micro_batches:N", scale=style.scale(colours), legend=legend),
    )
    y = alt.Y("gain:Q", axis=alt.Axis(tickCount=5, minExtent=30), **_GAIN)
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=26)).encode(
        y=y, tooltip=["micro_batches:N", "dp:Q", alt.Tooltip("gain:Q", format=".3f")]
    )
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(y="low:Q", y2="high:Q")
    return alt.layer(bars, lines).properties(
        width=width, height=height, description="Gain of balancing over the number of ranks."
    )
