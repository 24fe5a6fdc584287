"""Charts of expert traffic: what a token sends by tier, time over the group's size, and who wins where.

Each chart is drawn once over named tables; beside it stands the function that makes its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from telekit.comm.dispatch import Dispatch
from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.units import format_seconds

COLOURS = {
    "alltoall": "#b0b6bc",
    "alltoall_deredundency": "#e08a1e",
    "hybridep": "#1d5a9f",
    "deepep": "#5c93d3",
    "allgather": "#8f3f6f",
}
"""Dispatchers; the flat one is grey, as what the others are held against."""
TIERS = {"in the node": style.TIME["compute"], "between nodes": style.TIME["communication"]}
FORMS = {"alltoall": "all-to-all", "alltoall_deredundency": "AllGather form", "hybridep": "once a node"}
WIDTH_PX = 290
ROUND = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
"""Ticks of a logarithmic axis."""

_BY_RANK = alt.EncodingSortField("rank", op="min")


# --- one case -----------------------------------------------------------------------------------------------


def traffic_rows(found: Mapping[str, Dispatch]) -> Tables:
    """Make table ``traffic`` (dispatcher, rank, tier, rows, KiB, text): what a token of a rank sends, one way."""
    rows: list[dict[str, object]] = []
    for rank, (name, it) in enumerate(found.items()):
        for tier, sent in zip(TIERS, (it.rows.inner, it.rows.outer), strict=True):
            text = f"{float(sent):.3g} row{'' if round(float(sent), 3) == 1 else 's'}"
            kib = float(sent) * float(it.dispatch_row_bytes) / 1024
            rows.append({"dispatcher": name, "rank": rank, "tier": tier, "KiB": kib, "text": text})
    return {"traffic": rows}


def traffic_bars(width: int = WIDTH_PX, height: int = 250) -> alt.TopLevelMixin:
    """Draw what a token sends over each tier, a pair of bars a dispatcher; table ``traffic``."""
    base = alt.Chart(alt.NamedData("traffic")).encode(
        x=alt.X(
            "KiB:Q",
            title="a token sends, one way [KiB]",
            axis=alt.Axis(tickCount=4),
            scale=alt.Scale(range=[0, width - 70]),  # the text beside the longest bar needs the rest
        ),
        y=alt.Y("dispatcher:N", title=None, sort=_BY_RANK, axis=alt.Axis(labelLimit=150, grid=False)),
        yOffset=alt.YOffset("tier:N", sort=list(TIERS)),
    )
    bars = base.mark_bar().encode(
        color=alt.Color("tier:N", scale=style.scale(TIERS), legend=alt.Legend(columns=2)),
        tooltip=["dispatcher:N", "tier:N", "text:N", alt.Tooltip("KiB:Q", format=".3g")],
    )
    text = base.mark_text(align="left", dx=5).encode(text="text:N")
    return alt.layer(bars, text).properties(
        width=width, height=height, description="Bytes that a token sends inside a node and between nodes."
    )


def time_rows(by_ep: Mapping[int, Mapping[str, Dispatch]], ep: int) -> Tables:
    """Make tables ``times`` (dispatcher, ep, ms) and ``here`` (ep)."""
    rows: list[dict[str, object]] = [
        {"dispatcher": name, "ep": size, "ms": 1e3 * float(it.time_s)}
        for size, found in by_ep.items()
        for name, it in found.items()
    ]
    return {"times": rows, "here": [{"ep": ep}]}


def time_curves(names: Iterable[str], width: int = WIDTH_PX, height: int = 250) -> alt.TopLevelMixin:
    """Draw the time of dispatch and combine over EP, a line a dispatcher; tables ``times`` and ``here``."""
    x = alt.X(
        "ep:Q",
        title="ranks that share the experts (EP)",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=[2**i for i in range(1, 10)], format="d", grid=False),
    )
    y = alt.Y(
        "ms:Q",
        title="dispatch and combine [ms]",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(values=ROUND, format="~g", minExtent=34),
    )
    lines = (
        alt.Chart(alt.NamedData("times"))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=26))
        .encode(
            x=x,
            y=y,
            color=alt.Color("dispatcher:N", scale=style.scale(COLOURS, names), legend=alt.Legend(columns=3)),
            tooltip=["dispatcher:N", "ep:Q", alt.Tooltip("ms:Q", format=".3g")],
        )
    )
    here = alt.Chart(alt.NamedData("here")).mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(x="ep:Q")
    return alt.layer(here, lines).properties(
        width=width, height=height, description="Time of dispatch and combine over the expert-parallel ranks."
    )


# --- who wins where -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One case of a map: the quickest dispatcher, and by which factor it beats the flat one (1: it is the flat one)."""

    nodes: int
    level: float
    winner: str
    gain: float


def map_rows(
    prefix: str, cells: Sequence[Cell], ties: Iterable[tuple[int, float]], mark: Cell | None
) -> Tables:
    """Make tables ``<prefix>`` (nodes, level, winner, text, gain), ``<prefix>_ties`` and ``<prefix>_mark``."""
    rows: list[dict[str, object]] = [
        {
            "nodes": cell.nodes,
            "level": cell.level,
            "winner": FORMS[cell.winner],
            "text": f"{cell.gain:.2f}" if cell.gain > 1.005 else "",
            "gain": f"{cell.gain:.3g} times as quick as all-to-all",
        }
        for cell in cells
    ]
    there = {(cell.nodes, cell.level) for cell in cells}
    return {
        prefix: rows,
        f"{prefix}_ties": [{"nodes": n, "level": level} for n, level in ties if (n, level) in there],
        f"{prefix}_mark": [{"nodes": mark.nodes, "level": mark.level}] if mark else [],
    }


def winner_map(
    prefix: str, level: str, forms: Sequence[str], width: int = 330, height: int = 270
) -> alt.TopLevelMixin:
    """Draw which dispatcher wins at each number of nodes and ``level``; tables of :func:`map_rows`."""
    x = alt.X("nodes:O", title="nodes of the group", axis=alt.Axis(labelAngle=0))
    y = alt.Y("level:O", title=level, sort="descending", axis=alt.Axis(minExtent=30))
    base = alt.Chart(alt.NamedData(prefix)).encode(x=x, y=y)
    colours = {FORMS[name]: COLOURS[name] for name in forms}
    cells = base.mark_rect(stroke="white", strokeOpacity=0.5, strokeWidth=0.5).encode(
        color=alt.Color("winner:N", scale=style.scale(colours), legend=alt.Legend(columns=3)),
        tooltip=["nodes:O", alt.Tooltip("level:O", title=level), "winner:N", "gain:N"],
    )
    said = "datum.text != ''"
    dark = f"datum.winner == '{FORMS['hybridep']}'"
    texts = [
        base.transform_filter(where).mark_text(fontSize=10, color=ink).encode(text="text:N")
        for where, ink in ((f"{said} && {dark}", "white"), (f"{said} && !({dark})", "#24292f"))
    ]
    ties = alt.Chart(alt.NamedData(f"{prefix}_ties")).mark_rect(
        filled=False, stroke="#24292f", strokeWidth=1.5, strokeDash=[3, 2]
    )
    mark = alt.Chart(alt.NamedData(f"{prefix}_mark")).mark_rect(
        filled=False, stroke=style.LIMIT, strokeWidth=3
    )
    return alt.layer(cells, *texts, ties.encode(x=x, y=y), mark.encode(x=x, y=y)).properties(
        width=width, height=height, description=f"Quickest dispatcher by nodes and {level}."
    )


def times_text(found: Mapping[str, Dispatch]) -> list[tuple[str, str]]:
    """Return the time of each dispatcher but the last resort with its name, as cells of a line of figures."""
    return [(format_seconds(float(it.time_s)), name) for name, it in found.items() if name != "allgather"]


def share_of(found: Mapping[str, Dispatch], name: str, flat: str = "alltoall") -> float:
    """Time of a dispatcher over that of the flat one."""
    whole: Any = found[flat].time_s
    return float(found[name].time_s / whole)
