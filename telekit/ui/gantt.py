"""Timelines of operations, aggregated before they are drawn: a page holds thousands of marks at most."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import bad
from telekit.ui import style

Floats = NDArray[np.float64]
Table = list[dict[str, object]]


def gantt_rows(
    lane: ArrayLike, kind: ArrayLike, start_s: ArrayLike, end_s: ArrayLike, max_marks: int = 1500
) -> dict[str, Table]:
    """Turn operations into at most ``max_marks`` marks for :func:`gantt`.

    Few operations are drawn as they are. Many are cut into equal slices of time, and a slice shows, as
    heights, which share of it each kind of operation takes; neighbouring slices that look alike become one.
    Busy time a lane and kind is kept exactly.

    Parameters
    ----------
    lane, kind : arrays (n,) of int and of str
        Where each operation runs, one at a time, and what it is (a name of :data:`telekit.ui.style.PASSES`).
    start_s, end_s : arrays (n,)
        When it runs, in seconds.
    max_marks : int
        Most marks to draw.

    Returns
    -------
    dict
        Table ``gantt`` (lane, kind, start, end in s, share, top, bottom).

    Raises
    ------
    InputError
        When a kind has no colour.
    """
    lanes, kinds = np.asarray(lane, dtype=np.int64), np.asarray(kind, dtype=str)
    start, end = np.asarray(start_s, dtype=np.float64), np.asarray(end_s, dtype=np.float64)
    found = set(kinds.tolist())
    if not found <= set(style.PASSES):
        unknown = ", ".join(sorted(found - set(style.PASSES)))
        raise bad("kind", unknown, "has no colour", f"known: {', '.join(style.PASSES)}")
    if lanes.size <= max_marks:
        zipped = zip(lanes.tolist(), kinds.tolist(), start.tolist(), end.tolist(), strict=True)
        return {"gantt": [_mark(i, k, a, b, 0.0, 1.0) for i, k, a, b in zipped]}
    names = [name for name in style.PASSES if name in found]
    begin, finish, slices = float(start.min()), float(end.max()), 1024
    while True:
        edges = np.linspace(begin, finish, slices + 1)
        table: Table = []
        for i in np.unique(lanes):
            mine = [(lanes == i) & (kinds == name) for name in names]
            table += _lane(int(i), names, np.stack([_busy(start[m], end[m], edges) for m in mine]), edges)
        if len(table) <= max_marks or slices == 1:
            return {"gantt": table}
        slices //= 2


def _lane(lane: int, names: Sequence[str], busy_s: Floats, edges: Floats) -> Table:
    """Return the marks of one lane: shares of each slice, neighbours that look alike joined."""
    looks = np.round(16 * busy_s / (edges[1] - edges[0])).astype(np.int64)
    cuts = np.flatnonzero((looks[:, 1:] != looks[:, :-1]).any(axis=0)) + 1
    table: Table = []
    for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), busy_s.shape[1]], strict=True):
        low = 0.0
        for name, share in zip(names, busy_s[:, a:b].sum(axis=1) / (edges[b] - edges[a]), strict=True):
            if share > 0:
                table.append(_mark(lane, name, float(edges[a]), float(edges[b]), low, low + float(share)))
                low += float(share)
    return table


def _busy(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Seconds of each slice that operations which never overlap take."""
    order = np.argsort(start)
    begun, over = start[order], end[order]
    total = np.cumsum(over - begun)
    times = np.stack([begun, over], axis=1).ravel()
    passed = np.stack([total - (over - begun), total], axis=1).ravel()
    return np.diff(np.interp(edges, times, passed)) if times.size else np.zeros(edges.size - 1)


def _mark(lane: int, kind: str, start: float, end: float, low: float, high: float) -> dict[str, object]:
    height = 0.84  # of a lane, centred on its number; the rest is the gap to the next one
    top, bottom = (round(lane - height / 2 + height * part, 4) for part in (low, high))
    times = {"start": float(f"{start:.7g}"), "end": float(f"{end:.7g}")}
    return {"lane": lane, "kind": kind, **times, "share": round(high - low, 4), "top": top, "bottom": bottom}


def gantt(width: int = 760, height: int = 260, lane: str = "device") -> alt.TopLevelMixin:
    """Draw who does what when: one lane a device, time to the right.

    Table ``gantt``, as :func:`gantt_rows` makes it.
    """
    chart: alt.TopLevelMixin = (
        alt.Chart(alt.NamedData("gantt"))
        .mark_rect()
        .encode(
            x=alt.X("start:Q", title="time [s]", scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=alt.Y(
                "top:Q",
                title=lane,
                scale=alt.Scale(reverse=True, zero=False, nice=False),
                axis=alt.Axis(format="d", tickMinStep=1, grid=False),
            ),
            y2="bottom:Q",
            color=alt.Color("kind:N", scale=style.scale(style.PASSES)),
            tooltip=[
                "lane:Q",
                "kind:N",
                alt.Tooltip("start:Q", format=".4g"),
                alt.Tooltip("end:Q", format=".4g"),
                alt.Tooltip("share:Q", format=".0%"),
            ],
        )
        .properties(width=width, height=height, description=f"What each {lane} does over time.")
    )
    return chart
