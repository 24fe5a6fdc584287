"""Timelines of operations, aggregated before they are drawn: a page holds thousands of marks at most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import bad
from telekit.ui import style

Floats = NDArray[np.float64]
Table = list[dict[str, object]]

BOTH = "forward and backward"
"""Kind of a block that runs a forward and the backward of another micro-batch at once."""
WIDTH, AXIS_PX = 760, 34
FINEST = 1024
"""Slices of time to begin with, where marks are too many; a power of 2."""
HEIGHT = 0.84
"""What a mark fills of its lane, centred on its number; the rest is the gap to the next one."""
PALE = ["input gradient", "recompute"]
"""Kinds whose colour asks for dark text."""
WEAK = "datum.shade < (datum.kind == 'forward' ? 0.78 : 0.95)"
"""Where a mark is so close to the page that white is hard to read on it; the page's own ink is not."""


def gantt_rows(
    lane: ArrayLike,
    kind: ArrayLike,
    start_s: ArrayLike,
    end_s: ArrayLike,
    max_marks: int = 1500,
    text: ArrayLike | None = None,
    shade: ArrayLike | None = None,
) -> dict[str, Table]:
    """Turn operations into at most ``max_marks`` marks for :func:`gantt`.

    Few operations are drawn as they are. Many are cut into equal slices of time, and a slice shows, as
    heights, which share of it each kind of operation takes; neighbouring slices that look alike become one.
    Busy time a lane and kind is kept exactly. A forward and a backward that run as one block are two marks,
    one above the other.

    Parameters
    ----------
    lane, kind : arrays (n,) of int and of str
        Where each operation runs, one at a time, and what it is (a name of :data:`telekit.ui.style.PASSES`, or
        :data:`BOTH`).
    start_s, end_s : arrays (n,)
        When it runs, in seconds.
    max_marks : int
        Most marks to draw.
    text : array (n,) of str, optional
        What to write on it, where few are drawn and it has the room; of a block of two, ``"a&b"``.
    shade : array (n,) or (n, 2), optional
        How strong its colour is, 0 to 1, where few are drawn; of a block of two, its forward and its backward.

    Returns
    -------
    dict
        Tables ``gantt`` (lane, kind, start, end in s, share, top, bottom, shade) and ``written`` (at, lane, text,
        kind, shade).

    Raises
    ------
    InputError
        When a kind has no colour.
    """
    marks = _marks(lane, kind, start_s, end_s, text, shade)
    found = set(marks.kind.tolist())
    if not found <= set(style.PASSES):
        unknown = ", ".join(sorted(found - set(style.PASSES)))
        raise bad("kind", unknown, "has no colour", f"known: {', '.join(style.PASSES)}")
    if marks.lane.size <= max_marks:
        return {"gantt": [_mark(*row) for row in marks.rows()], "written": _written(marks)}
    return {
        "gantt": _summed(marks, [name for name in style.PASSES if name in found], max_marks),
        "written": [],
    }


class _Marks(NamedTuple):
    """Columns of marks; ``low`` to ``high`` is what they fill of their lane."""

    lane: NDArray[np.int64]
    kind: NDArray[np.str_]
    start: Floats
    end: Floats
    low: Floats
    high: Floats
    shade: Floats
    text: NDArray[np.str_]

    def rows(self) -> Iterable[tuple[Any, ...]]:
        """Row by row, without the text."""
        return zip(*(column.tolist() for column in self[:-1]), strict=True)


def _marks(
    lane: ArrayLike,
    kind: ArrayLike,
    start_s: ArrayLike,
    end_s: ArrayLike,
    text: ArrayLike | None,
    shade: ArrayLike | None,
) -> _Marks:
    """Make columns, each block of a forward and a backward cut in two."""
    kinds = np.asarray(kind, dtype=str)
    size = kinds.size
    both = np.flatnonzero(kinds == BOTH)
    row = np.append(np.arange(size), both)
    second = np.arange(row.size) >= size
    halved = kinds[row] == BOTH
    words = np.full(size, "") if text is None else np.asarray(text, dtype=str)
    left, _, right = np.moveaxis(np.char.partition(words, "&"), -1, 0)
    strong = np.ones((size, 1)) if shade is None else np.asarray(shade, dtype=np.float64).reshape(size, -1)
    return _Marks(
        np.asarray(lane, dtype=np.int64)[row],
        np.where(halved, np.where(second, "backward", "forward"), kinds[row]),
        np.asarray(start_s, dtype=np.float64)[row],
        np.asarray(end_s, dtype=np.float64)[row],
        np.where(second, 0.5, 0.0),
        np.where(halved & ~second, 0.5, 1.0),
        np.where(second, strong[row, -1], strong[row, 0]),
        np.where(second, right[row], left[row]),
    )


def _written(marks: _Marks) -> Table:
    """Return the texts that fit on their marks."""
    unit_px = WIDTH / max(float(marks.end.max(initial=0.0)), 1e-300)
    room = (marks.end - marks.start) * unit_px >= 6.5 * np.char.str_len(marks.text) + 2
    fits = np.flatnonzero(room & (marks.text != ""))
    return [
        {"at": at, "lane": lane, "text": text, "kind": kind, "shade": shade}
        for at, lane, text, kind, shade in zip(
            ((marks.start + marks.end) / 2)[fits].tolist(),
            (marks.lane + HEIGHT * ((marks.low + marks.high) / 2 - 0.5))[fits].tolist(),
            marks.text[fits].tolist(),
            marks.kind[fits].tolist(),
            marks.shade[fits].tolist(),
            strict=True,
        )
    ]


def _summed(marks: _Marks, names: Sequence[str], max_marks: int) -> Table:
    """Cut time into slices, as fine as the marks allow; neighbours that look alike are joined."""
    slices = FINEST
    edges = np.linspace(float(marks.start.min()), float(marks.end.max()), slices + 1)
    lanes = np.unique(marks.lane)
    kinds = [marks.kind == name for name in names]
    busy = np.array([[_busy(marks, (marks.lane == i) & kind, edges) for i in lanes] for kind in kinds])
    while True:
        width = edges[1] - edges[0]
        looks = np.round(16 * busy / width)
        new = np.ones(busy.shape[1:], dtype=bool)
        new[:, 1:] = (looks[..., 1:] != looks[..., :-1]).any(axis=0)
        first = np.flatnonzero(new)
        length = np.diff(first, append=new.size)
        share = np.add.reduceat(busy.reshape(len(names), -1), first, axis=1) / (length * width)
        if (share > 0).sum() <= max_marks or slices == 1:
            break
        slices //= 2
        edges, busy = edges[::2], busy.reshape(*busy.shape[:2], slices, 2).sum(axis=-1)
    lane, begin = np.divmod(first, slices)
    spans = zip(lanes[lane].tolist(), edges[begin].tolist(), edges[begin + length].tolist(), strict=True)
    table: Table = []
    for (i, start, end), shares in zip(spans, share.T.tolist(), strict=True):
        low = 0.0
        for name, part in zip(names, shares, strict=True):
            if part > 0:
                table.append(_mark(i, name, start, end, low, low + part))
                low += part
    return table


def _busy(marks: _Marks, mine: NDArray[np.bool_], edges: Floats) -> Floats:
    """Seconds of each slice that some marks, which never overlap, take; a mark of half the height takes half."""
    order = np.argsort(marks.start[mine])
    begun, over = marks.start[mine][order], marks.end[mine][order]
    spent = (over - begun) * (marks.high - marks.low)[mine][order]
    total = np.cumsum(spent)
    times = np.stack([begun, over], axis=1).ravel()
    passed = np.stack([total - spent, total], axis=1).ravel()
    return np.diff(np.interp(edges, times, passed)) if times.size else np.zeros(edges.size - 1)


def _mark(
    lane: int, kind: str, start: float, end: float, low: float, high: float, shade: float = 1.0
) -> dict[str, object]:
    top, bottom = (round(lane + HEIGHT * (part - 0.5), 4) for part in (low, high))
    times = {"start": float(f"{start:.7g}"), "end": float(f"{end:.7g}")}
    share = round(high - low, 4)
    return {"lane": lane, "kind": kind, **times, "share": share, "top": top, "bottom": bottom, "shade": shade}


def gantt(
    width: int = WIDTH,
    height: int = 260,
    lane: str = "device",
    time: str = "time [s]",
    kinds: Iterable[str] = tuple(style.PASSES),
) -> alt.TopLevelMixin:
    """Draw who does what when: one lane a device, time to the right.

    Tables ``gantt`` and ``written``, as :func:`gantt_rows` makes them; ``kinds`` are those in the legend.
    """
    y = alt.Y(
        "top:Q",
        title=lane,
        scale=alt.Scale(reverse=True, zero=False, nice=False),
        axis=alt.Axis(format="d", tickMinStep=1, grid=False, minExtent=AXIS_PX),
    )
    marks = (
        alt.Chart(alt.NamedData("gantt"))
        .mark_rect()
        .encode(
            x=alt.X("start:Q", title=time, scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=y,
            y2="bottom:Q",
            color=alt.Color("kind:N", scale=style.scale(style.PASSES, kinds)),
            opacity=alt.Opacity("shade:Q", scale=None),
            tooltip=[
                "lane:Q",
                "kind:N",
                alt.Tooltip("start:Q", format=".4g"),
                alt.Tooltip("end:Q", format=".4g"),
                alt.Tooltip("share:Q", format=".0%"),
            ],
        )
    )
    written = alt.Chart(alt.NamedData("written"))
    looks: list[tuple[str, dict[str, Any]]] = [
        (f"indexof({PALE}, datum.kind) < 0 && !({WEAK})", {"color": "white"}),
        (f"indexof({PALE}, datum.kind) >= 0 && !({WEAK})", {"color": "#24292f"}),
        (WEAK, {"style": "ink"}),
    ]
    texts = [
        written.transform_filter(where)
        .mark_text(fontSize=10, **look)
        .encode(x="at:Q", y="lane:Q", text="text:N")
        for where, look in looks
    ]
    return alt.layer(marks, *texts).properties(
        width=width, height=height, description=f"What each {lane} does over time."
    )
