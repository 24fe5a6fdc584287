"""Charts of packed batches: samples as squares with their documents' triangles, and ranks that work and wait.

Each chart is drawn once over named tables; beside it stands the function that makes its rows. In a square a query looks
across at the keys before it, so a document is a triangle under the diagonal, and its area is its attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import NDArray

from telekit.packing.pack import Packed
from telekit.ui import style
from telekit.ui.charts import Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Table = list[dict[str, object]]

ATTENTION, REST = "attention", "all else"
LAYER, PIPE, REDUCE = "waiting in layers", "own pipeline's bubble", "waiting for the slowest"
WORK = {
    ATTENTION: style.COMPONENTS["attention"],
    REST: style.COMPONENTS["dense MLP"],
    REDUCE: style.COMPONENTS["head"],
}
STEP = {
    "computing": style.TIME["compute"],
    PIPE: style.TIME["bubble"],
    LAYER: style.COMPONENTS["embedding"],
    REDUCE: style.COMPONENTS["head"],
}
SIDES = {2048: "#1d5a9f", 4096: "#5c93d3", 8192: "#cf6a17"}
"""Colours of hidden sizes."""

SIDE = 0.78
"""Side of a sample of full length, in cells; one packed by work may be a quarter longer."""
THIN = 1 / 100
"""Share of a sample below which documents are drawn together, as a band of their area."""


# --- samples as squares -------------------------------------------------------------------------------------


def mosaic_rows(packed: Packed, seq_len: int, rank: Ints, work: Floats) -> Tables:
    """Make tables ``squares``, ``triangles`` (two points or more a document) and ``labels``.

    Parameters
    ----------
    packed : Packed
        Samples.
    seq_len : int
        Tokens of a sample that is drawn with side :data:`SIDE`.
    rank : (ranks, micro_batches) array
        Samples of each rank.
    work : (samples,) array
        What each takes; labels say it over the mean.
    """
    squares: Table = []
    triangles: Table = []
    labels: Table = []
    unit, mean = SIDE / seq_len, float(work.mean())
    for (row, column), sample in np.ndenumerate(rank):
        lengths = packed.pieces(int(sample))
        side = unit * int(lengths.sum())
        squares.append({"x": column, "y": row, "x2": column + side, "y2": row + side})
        for number, shape in enumerate(_shapes(lengths, THIN * seq_len)):
            triangles += [
                {"document": f"{sample}.{number}", "tokens": shape.tokens, "x": column + unit * x,
                 "y": row + unit * y, "y2": row + unit * y2}
                for x, y, y2 in shape.points
            ]  # fmt: skip
        text = f"#{sample}  {work[sample] / mean:.2f}×"
        labels.append({"x": column + max(side, SIDE) - 0.02, "y": row + 0.09, "text": text})
    return {"squares": squares, "triangles": triangles, "labels": labels}


class _Shape(NamedTuple):
    tokens: str
    points: list[tuple[float, float, float]]


def _shapes(lengths: Ints, thin: float) -> Iterable[_Shape]:
    """Outline the documents of a sample: x, and what is filled between y and y2; short neighbours as one band."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    held: list[tuple[int, int]] = []
    for a, b in pairwise(ends):
        if b - a < thin:
            held.append((a, b))
            continue
        if held:
            yield _band(held)
            held = []
        yield _Shape(f"{b - a:,}", [(a, a, b), (b, b, b)])
    if held:
        yield _band(held)


def _band(held: Sequence[tuple[int, int]]) -> _Shape:
    """Documents too short to be seen, as a band along the diagonal with the area of their triangles."""
    first, last = held[0][0], held[-1][1]
    depth = sum((b - a) ** 2 for a, b in held) / 2 / (last - first)
    return _Shape(f"{len(held)} short documents", [(first, first, first + depth), (last, last, last + depth)])


def mosaic(cells: int, width: int = 376) -> alt.TopLevelMixin:
    """Draw ``cells`` ranks of as many samples; tables ``squares``, ``triangles``, ``labels``."""
    height = width
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, cells], nice=False), axis=None)
    y = alt.Y(
        "y:Q",
        title=None,
        scale=alt.Scale(domain=[0, cells], reverse=True, nice=False),
        axis=alt.Axis(
            values=[i + SIDE / 2 for i in range(cells)], labelExpr="'rank ' + floor(datum.value)", grid=False
        ),
    )
    squares = (
        alt.Chart(alt.NamedData("squares"))
        .mark_rect(color=style.TIME["bubble"], opacity=0.28)
        .encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
    )
    triangles = (
        alt.Chart(alt.NamedData("triangles"))
        .mark_area(color=WORK[ATTENTION], line=False, interpolate="linear")
        .encode(x=x, y=y, y2="y2:Q", detail="document:N", tooltip="tokens:N")
    )
    labels = (
        alt.Chart(alt.NamedData("labels"))
        .mark_text(align="right", baseline="middle", fontSize=10, style="ink")
        .encode(x=x, y=y, text="text:N")
    )
    return alt.layer(squares, triangles, labels).properties(
        width=width,
        height=height,
        description="Samples of each rank as squares; the triangles of their documents are attention.",
    )


# --- ranks that work and wait -------------------------------------------------------------------------------


def rank_rows(named: Mapping[str, tuple[Floats, Floats]]) -> Tables:
    """Make tables ``parts`` and ``ends`` of ranks under one policy or two.

    Parameters
    ----------
    named : mapping of str to (attention, rest)
        By policy: seconds of each rank (ranks,).
    """
    parts: Table = []
    ends: Table = []
    high = SIDE / len(named)
    furthest = max(float((a + r).max()) for a, r in named.values())
    for at, (name, (attention, rest)) in enumerate(named.items()):
        total = attention + rest
        slowest, mean = float(total.max()), float(total.mean())
        for rank in range(total.size):
            top, bottom = rank + at * high, rank + (at + 1) * high - 0.04
            edges = (0.0, float(rest[rank]), float(total[rank]), slowest)
            for part, (start, end) in zip((REST, ATTENTION, REDUCE), pairwise(edges), strict=True):
                if end > start:
                    parts.append(
                        {"rank": rank, "policy": name, "part": part, "start": start, "end": end,
                         "seconds": end - start, "top": top, "bottom": bottom}
                    )  # fmt: skip
            ends.append(
                {"policy": name, "at": (top + bottom) / 2, "zero": 0.0, "end": furthest,
                 "text": f"{total[rank] / mean:.2f}×"}
            )  # fmt: skip
    return {"parts": parts, "ends": ends}


def rank_bars(cells: int, width: int = 300, height: int = 376) -> alt.TopLevelMixin:
    """Draw what each rank does in a step, beside its samples; tables ``parts`` and ``ends``."""
    y: dict[str, Any] = {"scale": alt.Scale(domain=[0, cells], reverse=True, nice=False), "axis": None}
    x = alt.X(
        "start:Q",
        title="time of a step [s]",
        axis=alt.Axis(tickCount=4),
        scale=alt.Scale(range=[0, width - 46], nice=False),
    )
    bars = (
        alt.Chart(alt.NamedData("parts"))
        .mark_rect()
        .encode(
            x=x,
            x2="end:Q",
            y=alt.Y("top:Q", **y),
            y2="bottom:Q",
            color=alt.Color("part:N", scale=style.scale(WORK), legend=alt.Legend(columns=3, orient="bottom")),
            tooltip=["rank:O", "policy:N", "part:N", alt.Tooltip("seconds:Q", format=".3f")],
        )
    )
    ends = alt.Chart(alt.NamedData("ends")).encode(y=alt.Y("at:Q", **y))
    texts = ends.mark_text(align="left", dx=5).encode(x="end:Q", text="text:N")
    names = ends.mark_text(align="left", dx=5, color="white").encode(x="zero:Q", text="policy:N")
    return alt.layer(bars, texts, names).properties(
        width=width, height=height, description="What each rank computes, and how long it waits."
    )


def waiting_rows(busy: Floats, layer: Floats, bubble: Floats, reduce: Floats) -> Tables:
    """Make table ``step`` of one step, rank by rank.

    Parameters
    ----------
    busy, layer : (ranks, micro_batches) arrays
        Computing of each micro-batch, and the wait in its layers; seconds.
    bubble, reduce : (ranks,) arrays
        Idle in the rank's own pipeline, the mean of its stages; waiting for the slowest rank.
    """
    step: Table = []
    for rank in range(busy.shape[0]):
        at = 0.0
        spans = [
            (kind, number, float(seconds))
            for number, pair in enumerate(zip(busy[rank], layer[rank], strict=True))
            for kind, seconds in zip(("computing", LAYER), pair, strict=True)
        ]
        for kind, number, seconds in [
            *spans,
            (PIPE, -1, float(bubble[rank])),
            (REDUCE, -1, float(reduce[rank])),
        ]:
            if seconds > 1e-12:
                step.append(
                    {"rank": rank, "kind": kind, "micro_batch": "" if number < 0 else str(number), "start": at,
                     "end": at + seconds, "seconds": seconds, "top": rank - 0.42, "bottom": rank + 0.42}
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
            color=alt.Color("kind:N", scale=style.scale(STEP), legend=alt.Legend(columns=2)),
            tooltip=["rank:O", "kind:N", "micro_batch:N", alt.Tooltip("seconds:Q", format=".3f")],
        )
        .properties(width=width, height=height, description="What each rank does in a step, and waits for.")
    )
    return chart


class Standing(NamedTuple):
    """A policy over batches, steps as given being 1: mean, 5 and 95 %, and the part of it that waits for others."""

    mean: float
    low: float
    high: float
    waits: float
    speedup: float


def policy_rows(found: Mapping[str, Standing], even: float) -> Tables:
    """Make tables ``policies``, ``spread`` and ``even`` (where all samples are alike)."""
    policies: Table = []
    spread: Table = []
    for rank, (name, it) in enumerate(found.items()):
        for order, (kind, share) in enumerate((("computing", it.mean - it.waits), (REDUCE, it.waits))):
            policies.append({"policy": name, "rank": rank, "kind": kind, "share": share, "order": order})
        top = max(it.high, it.mean)
        spread.append(
            {
                "policy": name,
                "rank": rank,
                "low": it.low,
                "high": it.high,
                "top": top,
                "text": f"{it.speedup:.2f}×",
            }
        )
    return {
        "policies": policies,
        "spread": spread,
        "even": [{"share": even, "text": "if all samples were alike"}],
    }


def policy_bars(width: int = 250, height: int = 215) -> alt.TopLevelMixin:
    """Draw steps by policy; tables ``policies``, ``spread``, ``even``."""
    y = alt.Y(
        "policy:N",
        title=None,
        sort=alt.EncodingSortField("rank", op="min"),
        axis=alt.Axis(labelLimit=110, grid=False),
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
            color=alt.Color("kind:N", scale=style.scale(STEP, ("computing", REDUCE)), legend=None),
            order="order:Q",
            tooltip=["policy:N", "kind:N", alt.Tooltip("share:Q", format=".3f")],
        )
    )
    spread = alt.Chart(alt.NamedData("spread")).encode(y=y)
    line = spread.mark_rule(strokeWidth=2.5, color=style.LIMIT).encode(x="low:Q", x2="high:Q")
    text = spread.mark_text(align="left", dx=6).encode(x="top:Q", text="text:N")
    even = alt.Chart(alt.NamedData("even"))
    rule = even.mark_rule(strokeDash=[5, 3], color=style.LIMIT).encode(x="share:Q", tooltip="text:N")
    return alt.layer(bars, rule, line, text).properties(
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


_GAIN: dict[str, Any] = {"title": "tokens a second, as given = 1", "scale": alt.Scale(zero=False, nice=True)}


def over_length(values: Sequence[int], width: int = 380, height: int = 250) -> alt.TopLevelMixin:
    """Draw the gain over the sequence length, a line a hidden size; tables ``lengths``, ``here``, ``published``."""
    x = _log("seq_len", "tokens of a sample", values)
    base = alt.Chart(alt.NamedData("lengths")).encode(
        x=x, color=alt.Color("hidden:N", scale=style.scale({f"{h:,}": c for h, c in SIDES.items()}))
    )
    y = alt.Y("gain:Q", axis=alt.Axis(tickCount=5, minExtent=30), **_GAIN)
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=26)).encode(
        y=y, tooltip=["hidden:N", "seq_len:Q", alt.Tooltip("gain:Q", format=".3f")]
    )
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(y="low:Q", y2="high:Q")
    here = alt.Chart(alt.NamedData("here")).mark_rule(color=style.TIME["bubble"], strokeDash=[5, 3])
    mark = alt.Chart(alt.NamedData("published")).encode(x=x, y=y)
    point = mark.mark_point(shape="diamond", size=110, filled=True, color=style.LIMIT, opacity=1)
    name = mark.mark_text(align="left", dx=9, dy=10, color=style.LIMIT).encode(text="text:N")
    return alt.layer(here.encode(x="seq_len:Q"), bars, lines, point, name).properties(
        width=width, height=height, description="Gain of balancing over the sequence length, by hidden size."
    )


def over_ranks(values: Sequence[int], width: int = 280, height: int = 250) -> alt.TopLevelMixin:
    """Draw the gain over the data-parallel ranks, a line a number of micro-batches; table ``ranks``."""
    colours = {"1": "#8f3f6f", "4": "#b86f9b", "16": "#adb3ba"}
    base = alt.Chart(alt.NamedData("ranks")).encode(
        x=_log("dp", "data-parallel ranks", values),
        color=alt.Color(
            "micro_batches:N", scale=style.scale(colours), legend=alt.Legend(title="micro-batches of a rank")
        ),
    )
    y = alt.Y("gain:Q", axis=alt.Axis(tickCount=5, minExtent=30), **_GAIN)
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=26)).encode(
        y=y, tooltip=["micro_batches:N", "dp:Q", alt.Tooltip("gain:Q", format=".3f")]
    )
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(y="low:Q", y2="high:Q")
    return alt.layer(bars, lines).properties(
        width=width, height=height, description="Gain of balancing over the number of ranks."
    )
