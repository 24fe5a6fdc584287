"""Charts of one packed sample over context ranks: whose queries are where, and how much work that is."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt

from telekit.packing.context import HOWS, Split
from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.ui.mosaic import Table

RANKS = {f"rank {i}": colour for i, colour in enumerate(("#245fa8", "#e08a1e", "#1b8573", "#b86f9b"))}
GAP = 0.12


def split_rows(splits: Mapping[str, Split]) -> Tables:
    """Make tables ``stripes``, ``names``, ``shares`` and ``totals`` of one sample under several ways.

    A stretch of queries is a stripe: it reaches from the start of its document to the query itself.
    """
    stripes: Table = []
    names: Table = []
    shares: Table = []
    totals: Table = []
    for at, (how, found) in enumerate(splits.items()):
        left, size = at * (1 + GAP), float(found.lengths.sum())
        offsets = (found.lengths.cumsum() - found.lengths).tolist()
        columns = (found.rank, found.document, found.start, found.valid)
        for number, (rank, document, start, held) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            if held:
                first = offsets[document]
                stripes += [
                    {"stretch": f"{how}.{number}", "rank": f"rank {rank}", "y": q / size, "x": left + first / size,
                     "x2": left + q / size}
                    for q in (first + start, first + start + held)
                ]  # fmt: skip
        names.append({"x": left + 1, "y": 0.06, "text": how})
        mean = float(found.pairs.mean())
        shares += [
            {"how": how, "order": at, "rank": f"rank {rank}", "share": pairs / mean, "pairs": pairs}
            for rank, pairs in enumerate(found.pairs.tolist())
        ]
        totals.append({"how": how, "order": at, "share": found.imbalance, "text": f"{found.imbalance:.2f}×"})
    return {"stripes": stripes, "names": names, "shares": shares, "totals": totals}


def stripes(width: int = 720) -> alt.TopLevelMixin:
    """Draw a sample once for each way, its queries coloured by context rank; tables ``stripes`` and ``names``."""
    ends = [0, len(HOWS) * (1 + GAP) - GAP]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=ends, nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, 1], reverse=True, nice=False))
    drawn = (
        alt.Chart(alt.NamedData("stripes"))
        .mark_area(orient="horizontal")
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            detail="stretch:N",
            color=alt.Color("rank:N", scale=style.scale(RANKS), legend=alt.Legend(columns=4)),
            tooltip="rank:N",
        )
    )
    names = (
        alt.Chart(alt.NamedData("names"))
        .mark_text(align="right", fontSize=12, style="ink")
        .encode(x=x, y=y, text="text:N")
    )
    return alt.layer(drawn, names).properties(
        width=width,
        height=int(width / ends[1]),
        description="One packed sample, the queries of each context rank in its colour, under four ways to split it.",
    )


def split_bars(width: int = 640, height: int = 130) -> alt.TopLevelMixin:
    """Draw the work of each context rank over the mean; tables ``shares`` and ``totals``."""
    sort = alt.EncodingSortField("order", op="min")
    y = alt.Y("how:N", title=None, sort=sort, axis=alt.Axis(grid=False, labelLimit=140))
    x = alt.X(
        "share:Q", title="causal pairs of a context rank, mean = 1", axis=alt.Axis(tickCount=5),
        scale=alt.Scale(range=[0, width - 50]),
    )  # fmt: skip
    bars = (
        alt.Chart(alt.NamedData("shares"))
        .mark_bar()
        .encode(
            x=x,
            y=y,
            yOffset=alt.YOffset("rank:N", sort=list(RANKS)),
            color=alt.Color("rank:N", scale=style.scale(RANKS), legend=None),
            tooltip=["how:N", "rank:N", alt.Tooltip("pairs:Q", format=",")],
        )
    )
    most = alt.Chart(alt.NamedData("totals")).mark_text(align="left", dx=6).encode(x=x, y=y, text="text:N")
    return alt.layer(bars, most).properties(
        width=width, height=height, description="Work of context ranks under four ways to split a sample."
    )
