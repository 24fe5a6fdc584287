"""Charts of the chapter: errors in the order of the graph, what a log tells, rounding by depth, verdicts by part.

Each chart is drawn once over named tables; beside it stands the function that makes its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Literal

import altair as alt

from telekit.accuracy.compared import BACKWARD, FORWARD, OPTIMIZER
from telekit.accuracy.graph.graph_errors import GRADIENT, GraphError
from telekit.ui import style
from telekit.ui.charts import Tables

Table = list[dict[str, object]]
CLEAN_RUN = "clean change of layout"
PHASES = {
    FORWARD: style.PASSES["forward"],
    BACKWARD: style.PASSES["backward"],
    GRADIENT: style.PASSES["weight gradient"],
    OPTIMIZER: style.COMPONENTS["embedding"],
    CLEAN_RUN: style.SCHEDULES["1f1b"],
}
NETWORK = (FORWARD, BACKWARD, GRADIENT, CLEAN_RUN)
RESULTS = {
    "pass": style.TIME["optimizer"],
    "warning": style.MEMORY["workspace"],
    "error": style.LIMIT,
    "open": style.TIME["waiting"],
}
"""Colours of verdicts; what was not judged is open."""
SERIES = {"gradient of a weight": style.PASSES["weight gradient"], "bound": style.LIMIT}
SUMS = {
    "ring, bf16": style.TIME["communication"],
    "sequential, bf16": style.COMPONENTS["embedding"],
    "tree, bf16": style.MEMORY["optimizer"],
    "ring, fp32": style.TIME["optimizer"],
}
CURVES = {"loss": style.PASSES["forward"], "gradient norm": style.PASSES["backward"]}
LEAST, MOST = 0.01, 1e8
"""Epsilons at which the axis ends: equal to the bit is drawn at the least."""
_SHARE = "datum.value >= 1e-4 ? format(datum.value, '~%') : format(datum.value, '.0e')"
_LOG = alt.Scale(type="log")


def shown(epsilons: float) -> float:
    """Keep a figure on a logarithmic axis."""
    return min(max(epsilons, LEAST), MOST)


def graph_rows(
    target: Sequence[GraphError],
    clean: Sequence[GraphError],
    dtype: str,
    line: float,
    first: GraphError | None,
) -> Tables:
    """Make tables ``graph`` (place, epsilons, kind, operator, text), ``line`` and ``first``."""
    rows: Table = []
    for kind, errors in ((CLEAN_RUN, clean), ("", target)):
        for place, e in enumerate(errors):
            found = e.epsilons(dtype)
            rows.append(
                {"place": place, "epsilons": shown(found), "kind": kind or e.phase, "operator": e.label,
                 "phase": e.phase, "text": "equal" if found == 0 else f"{found:.3g} ε"}
            )  # fmt: skip
    mark: Table = []
    if first is not None:
        at = next(i for i, e in enumerate(target) if e is first)
        left = at < len(target) / 2
        text = f"first off: {first.label}"
        mark = [{"place": at, "epsilons": shown(first.epsilons(dtype)), "left": text if left else "",
                 "right": "" if left else text}]  # fmt: skip
    return {"graph": rows, "line": [{"epsilons": line, "text": f"{line:g} ε"}], "first": mark}


def graph_errors_chart(
    kinds: Sequence[str] = tuple(PHASES), width: int = 480, height: int = 270
) -> alt.TopLevelMixin:
    """Draw the error of every operator in the order of the graph, on a logarithmic axis of epsilons."""
    title = "operator, in the order of the graph: forward, then backward"
    x = alt.X("place:Q", title=title, axis=alt.Axis(grid=False, labels=False), scale=alt.Scale(nice=False))
    said = "datum.value >= 1e4 ? format(datum.value, '.0e') : format(datum.value, '~g')"
    axis = alt.Axis(values=[10.0**i for i in range(-2, 9)], labelExpr=said, labelOverlap=True)
    y = alt.Y("epsilons:Q", title="error [ε]: |target - golden| / |golden|", scale=_LOG, axis=axis)
    points = (
        alt.Chart(alt.NamedData("graph"))
        .mark_circle(size=26, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", scale=style.scale(PHASES, kinds), legend=alt.Legend(columns=5)),
            tooltip=["operator:N", "phase:N", alt.Tooltip("text:N", title="error")],
        )
    )
    limit = alt.Chart(alt.NamedData("line"))
    rule = limit.mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(y="epsilons:Q")
    said = limit.mark_text(align="right", baseline="bottom", dx=-2, dy=-2, color=style.LIMIT).encode(
        x=alt.value(width), y="epsilons:Q", text="text:N"
    )
    mark = alt.Chart(alt.NamedData("first"))
    upright = mark.mark_rule(color=style.LIMIT, strokeWidth=1.2).encode(x="place:Q")
    ring = mark.mark_point(size=120, color=style.LIMIT, strokeWidth=2).encode(x="place:Q", y="epsilons:Q")
    sides: tuple[tuple[str, Literal["left", "right"], int], ...] = (
        ("left", "left", 6),
        ("right", "right", -6),
    )
    names = [
        mark.mark_text(
            align=align, dx=dx, baseline="top", fontWeight=600, fontSize=12, color=style.LIMIT
        ).encode(x="place:Q", y=alt.value(2), text=f"{side}:N")
        for side, align, dx in sides
    ]
    return alt.layer(points, rule, said, upright, ring, *names).properties(
        width=width, height=height, description="Error of every operator of a step, in graph order."
    )


def log_rows(checks: Iterable[tuple[str, float, float]]) -> Tables:
    """Make table ``log`` (check, share, limit, result, text) of figures of a training log and their limits."""
    rows: Table = []
    for order, (name, share, limit) in enumerate(checks):
        result = "pass" if share <= limit else "error"
        text = "equal" if share == 0 else f"{share:.2%}" if share >= 1e-4 else f"{share:.1e}"
        rows.append({"check": name, "order": order, "share": min(max(share, 1e-7), 10.0), "limit": limit,
                     "result": result, "text": text})  # fmt: skip
    return {"log": rows}


def log_chart(width: int = 170, height: int = 150) -> alt.TopLevelMixin:
    """Draw what a log tells of a step or two, each beside its limit."""
    base = alt.Chart(alt.NamedData("log")).encode(
        y=alt.Y("check:N", title=None, sort=alt.EncodingSortField("order", op="min"),
                axis=alt.Axis(labelLimit=150, grid=False)),
    )  # fmt: skip
    scale = alt.Scale(type="log", domain=[3e-8, 10], nice=False)
    x = alt.X("share:Q", title="relative difference", scale=scale,
              axis=alt.Axis(values=[1e-6, 1e-4, 1e-2, 1], labelExpr=_SHARE))  # fmt: skip
    dots = base.mark_circle(size=110).encode(
        x=x,
        color=alt.Color(
            "result:N", scale=style.scale(RESULTS, ("pass", "error")), legend=alt.Legend(columns=2)
        ),
        tooltip=["check:N", "text:N", alt.Tooltip("limit:Q", format=".1%")],
    )
    ticks = base.mark_tick(color=style.LIMIT, thickness=2, size=26).encode(x="limit:Q")
    text = base.mark_text(dy=-13).encode(x="share:Q", text="text:N")
    return alt.layer(ticks, dots, text).properties(
        width=width, height=height, description="Loss and norm of the first steps beside their limits."
    )


def depth_rows(errors: Iterable[GraphError], dtype: str, bound: Sequence[float]) -> Tables:
    """Make tables ``depth`` (layer, epsilons, operator, text) and ``bound`` (layer, epsilons)."""
    rows: Table = [
        {"layer": e.layer, "epsilons": shown(e.epsilons(dtype)), "kind": "gradient of a weight",
         "operator": e.label, "text": f"{e.epsilons(dtype):.3g} ε"}
        for e in errors
        if e.phase == GRADIENT and e.layer is not None and e.label.endswith("reduced")
    ]  # fmt: skip
    return {
        "depth": rows,
        "bound": [{"layer": i, "epsilons": b, "kind": "bound"} for i, b in enumerate(bound)],
    }


def depth_chart(width: int = 370, height: int = 250) -> alt.TopLevelMixin:
    """Draw the errors of weights' gradients by layer, and the bound that grows with depth."""
    x = alt.X("layer:Q", title="layer of the weight (the last comes first in the backward pass)",
              axis=alt.Axis(tickMinStep=1, format="d", grid=False))  # fmt: skip
    y = alt.Y(
        "epsilons:Q", title="error of the gradient [ε]", scale=_LOG, axis=alt.Axis(tickCount=5, format="~g")
    )
    colour = alt.Color("kind:N", scale=style.scale(SERIES), legend=alt.Legend(columns=2))
    points = (
        alt.Chart(alt.NamedData("depth"))
        .mark_circle(size=40, opacity=0.75)
        .encode(x=x, y=y, color=colour, tooltip=["operator:N", "text:N"])
    )
    line = (
        alt.Chart(alt.NamedData("bound"))
        .mark_line(strokeDash=[5, 3])
        .encode(x="layer:Q", y="epsilons:Q", color=colour)
    )
    return alt.layer(points, line).properties(
        width=width, height=height, description="Errors of gradients by layer against a bound."
    )


def sums_chart(width: int = 300, height: int = 250) -> alt.TopLevelMixin:
    """Draw what a row-parallel layer is off by, over tensor-parallel sizes; table ``sums``."""
    base = alt.Chart(alt.NamedData("sums")).encode(
        x=alt.X(
            "tp:O", title="tensor-parallel ranks that are summed", axis=alt.Axis(labelAngle=0, grid=False)
        ),
        color=alt.Color("how:N", scale=style.scale(SUMS), legend=alt.Legend(columns=2)),
    )
    y = alt.Y(
        "epsilons:Q",
        title="difference of the output [ε]",
        scale=alt.Scale(zero=True),
        axis=alt.Axis(tickCount=5),
    )
    points = base.mark_point(filled=True, size=55).encode(
        y=y,
        tooltip=[
            "how:N",
            "tp:O",
            alt.Tooltip("epsilons:Q", format=".3f"),
            alt.Tooltip("expected:Q", format=".3f"),
        ],
    )
    lines = base.mark_line(strokeDash=[4, 3], opacity=0.7).encode(y="expected:Q")
    return alt.layer(lines, points).properties(
        width=width, height=height, description="Row-parallel sums against the whole product."
    )


def verdict_rows(items: Iterable[tuple[str, str, str, str]], limit: int = 76) -> Tables:
    """Make table ``verdicts`` (name, order, group, result, text) of judged parts or items of a checklist."""
    rows: Table = []
    for order, (group, name, result, text) in enumerate(items):
        known = result if result in RESULTS else "open"
        short = text if len(text) <= limit else f"{text[: limit - 1]}…"
        rows.append(
            {"name": name, "order": order, "group": group, "result": known, "text": short, "whole": text}
        )
    return {"verdicts": rows}


def verdict_chart(width: int = 470, height: int = 290) -> alt.TopLevelMixin:
    """Draw a list of verdicts: a square for the result, and what was found beside it."""
    base = alt.Chart(alt.NamedData("verdicts")).encode(
        y=alt.Y("name:N", title=None, sort=alt.EncodingSortField("order", op="min"),
                axis=alt.Axis(labelLimit=290, grid=False)),
    )  # fmt: skip
    squares = base.mark_square(size=130, opacity=1).encode(
        x=alt.value(8),
        color=alt.Color("result:N", scale=style.scale(RESULTS), legend=alt.Legend(columns=4)),
        tooltip=["group:N", "name:N", "result:N", "whole:N"],
    )
    text = base.mark_text(align="left", baseline="middle").encode(x=alt.value(22), text="text:N")
    return alt.layer(squares, text).properties(
        width=width, height=height, description="Verdicts part by part, with what was found."
    )


def curve_rows(series: dict[str, tuple[Sequence[int], Sequence[float]]], band: float) -> Tables:
    """Make tables ``curves`` (step, share, what) and ``band`` (share, text)."""
    rows: Table = [
        {"step": int(step), "share": float(share) if abs(share) != inf else None, "what": what}
        for what, (steps, shares) in series.items()
        for step, share in zip(steps, shares, strict=True)
    ]
    edges: Table = [{"share": side * band, "text": f"{side * band:+.2%}"} for side in (1, -1)]
    return {"curves": rows, "band": edges}


def curve_chart(width: int = 250, height: int = 260, few: bool = False) -> alt.TopLevelMixin:
    """Draw relative differences of loss by step, and a limit on both sides of zero.

    ``few``: of few steps and with the gradient norm, on an axis that shows small and large differences.
    """
    scale = alt.Scale(type="symlog", constant=1e-3) if few else alt.Scale()
    axis = alt.Axis(format="~%", tickCount=6)
    if few:
        marks = [0.0, *(side * 10.0**i for i in range(-3, 2) for side in (-1, 1))]
        axis = alt.Axis(values=marks, labelExpr="format(datum.value, '.3~p')", labelOverlap=False)
    legend = alt.Legend(columns=2) if few else None
    lines = (
        alt.Chart(alt.NamedData("curves"))
        .mark_line(strokeWidth=1.3, point={"size": 22} if few else False)
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=6, tickMinStep=1, grid=False)),
            y=alt.Y("share:Q", title="target over golden, less 1", axis=axis, scale=scale),
            color=alt.Color("what:N", scale=style.scale(CURVES), legend=legend),
            tooltip=["what:N", "step:Q", alt.Tooltip("share:Q", format=".3%")],
        )
    )
    edge = alt.Chart(alt.NamedData("band"))
    rules = edge.mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(y="share:Q")
    return alt.layer(lines, rules).properties(
        width=width, height=height, description="Relative difference of two runs by step."
    )
