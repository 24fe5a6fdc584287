"""Charts of chapter 2: where errors lie, what standards say of them, how errors grow, who sees which fault."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING
from telekit.exercises.operator_faults import METRICS, PLANTS, STANDARDS
from telekit.ui import style
from telekit.ui.accuracy_report import VERDICTS
from telekit.ui.charts import Tables
from telekit.ui.known_operators import Point, Spread

LOWEST, HIGHEST = -10, 15
"""Powers of two of an epsilon between which errors are drawn; what lies beyond is drawn at the edge."""
_WRITTEN_LEFT = 300
WITHIN, ABOVE = "within 1e-3", "above"
SIDES = {WITHIN: style.PASSES["forward"], ABOVE: style.PASSES["input gradient"]}
ORDERS = {
    "sequential": style.PASSES["backward"],
    "split-k": style.PASSES["input gradient"],
    "mma": style.PASSES["forward"],
    "tree": style.PASSES["weight gradient"],
}
SAID = {PASS: "pass", WARNING: "warning", ERROR: "error", SKIP: "no row"}
RIGHT, WARNS, MISSED, FALSE_ALARM, NOTHING = "right", "only warns", "missed", "false alarm", "says nothing"
OUTCOMES = {
    RIGHT: VERDICTS[PASS],
    WARNS: VERDICTS[WARNING],
    MISSED: style.LIMIT,
    FALSE_ALARM: "#8f3f6f",
    NOTHING: VERDICTS[SKIP],
}
MARKS = {RIGHT: "", WARNS: "w", MISSED: "M", FALSE_ALARM: "F", NOTHING: "–"}
"""Nothing is said by a standard without a row for the dtype, by one that says the same of the healthy product, and
where the dtype rounds a fault away."""


# --- where errors lie ---------------------------------------------------------------------------------------


def spread_rows(found: Spread, threshold: float, lines: Mapping[str, float]) -> Tables:
    """Make tables ``errors``, ``lines`` and ``room`` (what keeps place for the lines' names).

    Parameters
    ----------
    found : Spread
        Errors in epsilons.
    threshold : float
        1e-3 in epsilons.
    lines : mapping of str to float
        Tolerances in epsilons.
    """
    edges = 2.0 ** np.arange(LOWEST, HIGHEST + 1)
    held = np.clip(found.errors, edges[0], edges[-1] * (1 - 1e-9))
    total = max(found.errors.size, 1)
    below = found.errors < threshold
    counts = [np.histogram(held[part], edges)[0] / total for part in (below, ~below)]
    rows: list[dict[str, object]] = []
    for i, (low, high) in enumerate(pairwise(edges.tolist())):
        base = 0.0
        for side, share in zip(SIDES, counts, strict=True):
            if share[i]:
                top = base + float(share[i])
                rows.append(
                    {"low": low, "high": high, "base": base, "top": top, "side": side, "share": top - base}
                )
                base = top
    height = max((float(row["top"]) for row in rows), default=1.0)  # type: ignore[arg-type]
    marked: list[dict[str, object]] = [
        {
            "name": name,
            "at": at,
            "zero": 0.0,
            "lane": height * (1.62 - 0.13 * i),
            "side": "left" if at > _WRITTEN_LEFT else "right",
            "kind": "1e-3" if name == "1e-3" else "other",
        }
        for i, (name, at) in enumerate(sorted(lines.items(), key=_lane))
    ]
    return {"errors": rows, "lines": marked, "room": [{"high": 1.0, "top": 1.7 * height}]}


def _lane(line: tuple[str, float]) -> tuple[bool, float]:
    """Order lines from the highest to the lowest, so that no name is written across a higher one."""
    at = line[1]
    return at > _WRITTEN_LEFT, -at if at > _WRITTEN_LEFT else at


def spread_chart(width: int = 310, height: int = 290) -> alt.TopLevelMixin:
    """Draw how relative errors are spread, in epsilons of the dtype, and where tolerances stand."""
    scale = alt.Scale(type="log", base=10, domain=[2.0**LOWEST, 2.0**HIGHEST])
    axis = alt.Axis(values=[0.001, 0.01, 0.1, 1, 10, 100, 1000, 10000], format="~r", grid=False)
    x = alt.X("low:Q", scale=scale, title="relative error [epsilons of the dtype]", axis=axis)
    bars = (
        alt.Chart(alt.NamedData("errors"))
        .mark_bar()
        .encode(
            x=x,
            x2="high:Q",
            y=alt.Y(
                "base:Q", title="share of elements", axis=alt.Axis(format=".0%", tickCount=5, minExtent=34)
            ),
            y2="top:Q",
            color=alt.Color("side:N", scale=style.scale(SIDES)),
            tooltip=[
                alt.Tooltip("low:Q", format=".3g"),
                alt.Tooltip("high:Q", format=".3g"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )
    lines = alt.Chart(alt.NamedData("lines")).encode(
        x=alt.X("at:Q", scale=scale),
        color=alt.condition(alt.datum.kind == "1e-3", alt.value(style.LIMIT), alt.value("#828a93")),
    )
    rules = lines.mark_rule(strokeWidth=1.5).encode(y="zero:Q", y2="lane:Q")
    names = [
        lines.transform_filter(alt.datum.side == side)
        .mark_text(align="left" if side == "right" else "right", dx=4 if side == "right" else -4)
        .encode(y="lane:Q", text="name:N")
        for side in ("right", "left")
    ]
    room = (
        alt.Chart(alt.NamedData("room"))
        .mark_point(opacity=0)
        .encode(x=alt.X("high:Q", scale=scale), y="top:Q")
    )
    return alt.layer(bars, rules, *names, room).properties(
        width=width, height=height, description="Relative errors in epsilons, and tolerances of standards."
    )


# --- what standards say -------------------------------------------------------------------------------------


def verdict_rows(found: Mapping[str, tuple[str, str]]) -> Tables:
    """Make table ``verdicts`` (standard, rank, said, why)."""
    return {
        "verdicts": [
            {"standard": name, "rank": i, "said": SAID[result], "why": why}
            for i, (name, (result, why)) in enumerate(found.items())
        ]
    }


def verdict_chart(width: int = 300, height: int = 310) -> alt.TopLevelMixin:
    """Draw the verdict of each standard as a colour, with what decided it beside it."""
    base = alt.Chart(alt.NamedData("verdicts")).encode(
        y=alt.Y(
            "standard:N",
            title=None,
            sort=alt.EncodingSortField("rank", op="min"),
            axis=alt.Axis(grid=False, labelLimit=150),
        )
    )
    colours = {SAID[name]: colour for name, colour in VERDICTS.items()}
    marks = base.mark_square(size=190, opacity=1).encode(
        x=alt.value(9),
        color=alt.Color("said:N", scale=style.scale(colours)),
        tooltip=["standard:N", "said:N", "why:N"],
    )
    text = base.mark_text(align="left", limit=width - 24).encode(x=alt.value(24), text="why:N")
    return alt.layer(marks, text).properties(
        width=width, height=height, description="Verdict of each standard on the same result."
    )


# --- how errors grow ----------------------------------------------------------------------------------------


def length_rows(points: tuple[Point, ...], length: int, lines: Mapping[str, float]) -> Tables:
    """Make tables ``measured`` and ``expected``, ``here``, ``levels``, and ``room`` that keeps a decade for them."""

    def rows(key: str) -> list[dict[str, object]]:
        return [
            {"length": it.length, "order": it.order, "error": value}
            for it in points
            if (value := getattr(it, key))
        ]

    levels: list[dict[str, object]] = [
        {"name": name, "error": value, "length": points[0].length} for name, value in lines.items()
    ]
    return {
        "measured": rows("error"),
        "expected": rows("expected"),
        "here": [{"length": length}],
        "levels": levels,
        "room": [{"length": points[0].length, "error": 8 * max(lines.values())}],
    }


def length_chart(width: int = 350, height: int = 250) -> alt.TopLevelMixin:
    """Draw the error of a product over the length of its sums, by the order they are taken in."""
    x = alt.X(
        "length:Q",
        scale=alt.Scale(type="log", base=2),
        title="terms of each sum",
        axis=alt.Axis(values=[2**i for i in range(4, 12)], format="d", grid=False),
    )
    y = alt.Y(
        "error:Q",
        scale=alt.Scale(type="log", nice=False),
        title="relative error (norms)",
        axis=alt.Axis(format=".1~e", tickCount=5, minExtent=42),
    )
    colour = alt.Color("order:N", scale=style.scale(ORDERS))
    measured = alt.Chart(alt.NamedData("measured")).mark_point(filled=True, size=45, opacity=1)
    measured = measured.encode(
        x=x, y=y, color=colour, tooltip=["order:N", "length:Q", alt.Tooltip("error:Q", format=".3g")]
    )
    expected = alt.Chart(alt.NamedData("expected")).mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour)
    here = alt.Chart(alt.NamedData("here")).mark_rule(color="#828a93").encode(x=x)
    levels = alt.Chart(alt.NamedData("levels"))
    flat = levels.mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(y=y)
    names = levels.mark_text(align="left", baseline="bottom", dy=-8, color=style.LIMIT).encode(
        x=alt.value(4), y=y, text="name:N"
    )
    room = alt.Chart(alt.NamedData("room")).mark_point(opacity=0).encode(x=x, y=y)
    return alt.layer(here, flat, expected, measured, names, room).properties(
        width=width,
        height=height,
        description="Error of a matrix product over the length of its sums, by order.",
    )


def depth_rows(found: Mapping[int, tuple[float | None, float]]) -> Tables:
    """Make tables ``depth``, ``bound`` (layers, error) and ``bound_name`` (layers, error, text)."""
    return {
        "depth": [{"layers": n, "error": error} for n, (error, _) in found.items() if error],
        "bound": [{"layers": n, "error": bound} for n, (_, bound) in found.items()],
        "bound_name": [
            {"layers": n, "error": bound, "text": "TTrace's bound"}
            for n, (_, bound) in found.items()
            if n == 8
        ],
    }


def depth_chart(width: int = 250, height: int = 250) -> alt.TopLevelMixin:
    """Draw the error after so many layers, and the bound for as many."""
    axis = alt.Axis(values=[1, 8, 16, 24, 32], grid=False)
    x = alt.X("layers:Q", title="layers", axis=axis, scale=alt.Scale(domain=[0, 33], nice=False))
    y = alt.Y(
        "error:Q",
        scale=alt.Scale(type="log", nice=False),
        title="relative error (norms)",
        axis=alt.Axis(format=".1~e", tickCount=5, minExtent=42),
    )
    own = alt.Chart(alt.NamedData("depth")).encode(
        x=x, y=y, tooltip=["layers:Q", alt.Tooltip("error:Q", format=".3g")]
    )
    bound = alt.Chart(alt.NamedData("bound")).mark_line(color=style.LIMIT, strokeDash=[5, 3]).encode(x=x, y=y)
    name = (
        alt.Chart(alt.NamedData("bound_name"))
        .mark_text(align="center", baseline="bottom", dy=-16, color=style.LIMIT)
        .encode(x=x, y=y, text="text:N")
    )
    line = own.mark_line(color=style.PASSES["forward"])
    dots = own.mark_point(filled=True, size=45, opacity=1, color=style.PASSES["forward"])
    return alt.layer(bound, name, line, dots).properties(
        width=width, height=height, description="Error after so many layers against TTrace's bound."
    )


# --- who sees which fault -----------------------------------------------------------------------------------


def fault_rows(outcomes: Mapping[tuple[str, str], str], chosen: str) -> Tables:
    """Make tables ``seen`` (plant, row, check, column, outcome, mark) and ``chosen`` (plant).

    Parameters
    ----------
    outcomes : mapping of (str, str) to str
        One of ``OUTCOMES`` by plant and check.
    chosen : str
        Plant that is looked at.
    """
    checks = {**{name: name for name in METRICS}, **STANDARDS}
    rank = {name: i for i, name in enumerate(checks)}
    row = {it.name: i for i, it in enumerate(PLANTS)}
    rows: list[dict[str, object]] = [
        {
            "plant": plant,
            "row": row[plant],
            "check": checks[check],
            "column": rank[check],
            "outcome": outcome,
            "mark": MARKS[outcome],
        }
        for (plant, check), outcome in outcomes.items()
    ]
    return {"seen": rows, "chosen": [r for r in rows if r["plant"] == chosen]}


def fault_chart(step: int = 25) -> alt.TopLevelMixin:
    """Draw a table of plants and checks, coloured by whether the check was right."""

    def encoded(table: str) -> Any:
        return alt.Chart(alt.NamedData(table)).encode(
            x=alt.X(
                "check:N",
                title=None,
                sort=alt.EncodingSortField("column", op="min"),
                axis=alt.Axis(labelAngle=-50, labelLimit=170, grid=False),
            ),
            y=alt.Y(
                "plant:N",
                title=None,
                sort=alt.EncodingSortField("row", op="min"),
                axis=alt.Axis(labelLimit=170, grid=False),
            ),
        )

    base = encoded("seen")
    cells = base.mark_rect(stroke="white", strokeWidth=1, strokeOpacity=0.7).encode(
        color=alt.Color("outcome:N", scale=style.scale(OUTCOMES)),
        tooltip=["plant:N", "check:N", "outcome:N"],
    )
    written = base.transform_filter(alt.datum.mark != "")
    marks = written.mark_text(color="white", fontWeight="bold").encode(text="mark:N")
    frame = encoded("chosen").mark_rect(filled=False, stroke="#24292f", strokeWidth=2)
    return alt.layer(cells, marks, frame).properties(
        width=step * (len(METRICS) + len(STANDARDS)),
        height=step * len(PLANTS),
        description="Which check sees which planted fault, and which raises a false alarm.",
    )
