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

ATTENTION, REST, REDUCE = "attention", "all else", "waiting for the slowest"
WORK = {
    ATTENTION: style.COMPONENTS["attention"],
    REST: style.COMPONENTS["dense MLP"],
    REDUCE: style.COMPONENTS["head"],
}

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
        .mark_rect(color=style.TIME["waiting"], opacity=0.28)
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
