"""Charts of the scoreboard: every published row beside our estimate, one point each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.units import GIB

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Megatron-LM": (
        "#245fa8",
        ("megatron-sc21", "zero-3-of-2021", "korthikanti", "mt-nlg", "megascale", "megatron-lm"),
    ),
    "Megatron-Bridge": ("#e08a1e", ("megatron-bridge", "megatron-core-moe", "moe-model-zoo")),
    "vTrain": ("#8ab8e2", ("vtrain-multi-node", "vtrain-single-node")),
    "MPT, torchtitan": ("#1b8573", ("mpt", "torchtitan", "memory-torchtitan")),
    "SimuMax": ("#8f3f6f", ("simumax-b200", "memory-simumax-b200")),
    "Kwai": ("#b86f9b", ("kwai", "memory-kwai")),
    "Llama 3, DeepSeek-V3": ("#c8372d", ("llama-3", "deepseek-v3")),
    "others": ("#adb3ba", ()),
}
"""Where runs come from: a colour, and the groups of the scoreboard."""
HELD, FITTED = "held out", "for fitting"
EDGE = 0.6
"""Errors beyond are drawn here."""
UNITS = {
    "step_time": (1.0, "s", "step"),
    "memory": (GIB, "GiB", "memory"),
    "kernel": (1e-3, "ms", "kernel"),
}

_COLOURS = {name: colour for name, (colour, _) in FAMILIES.items()}


def family(group: str) -> str:
    """Where a group's runs come from."""
    return next((name for name, (_, groups) in FAMILIES.items() if group in groups), "others")


def run_rows(found: Sequence[Mapping[str, Any]], source: str | None) -> Tables:
    """Make tables ``runs`` (one a row), ``line`` (both ends of equality) and ``groups`` (mean sizes of errors)."""
    unit, _, _ = UNITS[found[0]["kind"]]
    ranked = by_error(found)
    rank = {group: place for place, group in enumerate(ranked)}
    runs: list[dict[str, object]] = [
        {
            "id": row["id"],
            "group": row["group"],
            "rank": rank[row["group"]],
            "family": family(row["group"]),
            "split": split_of(row),
            "measured": row["measured"] / unit,
            "estimated": row["estimated"] / unit,
            "error": error_of(row),
            "shown": min(max(error_of(row), -EDGE), EDGE),
            "chosen": source in (None, family(row["group"])),
        }
        for row in found
    ]
    values = [float(row[name]) for row in runs for name in ("measured", "estimated")]  # type: ignore[arg-type]
    ends: list[dict[str, object]] = [{"measured": x, "estimated": x} for x in (min(values), max(values))]
    groups: list[dict[str, object]] = [
        {"group": group, "rank": rank[group], "text": f"{size:.0%}"} for group, size in ranked.items()
    ]
    return {"runs": runs, "line": ends, "groups": groups}


def split_of(row: Mapping[str, Any]) -> str:
    """Whether constants may know of a row."""
    return FITTED if row["in_fit"] else HELD


def error_of(row: Mapping[str, Any]) -> float:
    """Estimated over measured, less one."""
    return float(row["estimated"] / row["measured"] - 1)


def by_error(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean size of errors by group, smallest first."""
    sizes: dict[str, list[float]] = {}
    for row in found:
        sizes.setdefault(row["group"], []).append(abs(error_of(row)))
    means = {group: float(np.mean(values)) for group, values in sizes.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


_BY_RANK = alt.EncodingSortField("rank", op="min")
_COLOUR = alt.Color("family:N", scale=style.scale(_COLOURS), legend=alt.Legend(columns=2))
_TOOLTIP = [
    "id:N",
    "group:N",
    "split:N",
    alt.Tooltip("measured:Q", format=".4g"),
    alt.Tooltip("estimated:Q", format=".4g"),
    alt.Tooltip("error:Q", format="+.1%"),
]


def _points(base: alt.Chart, colour: alt.Color, **places: Any) -> alt.Chart:
    points: alt.Chart = base.mark_point(size=26, strokeWidth=1.2).encode(
        **places,
        color=colour,
        fill=alt.Fill("family:N", scale=style.scale(_COLOURS), legend=None),
        fillOpacity=alt.FillOpacity(
            "split:N", scale=alt.Scale(domain=[HELD, FITTED], range=[0.75, 0.0]), legend=None
        ),
        opacity=alt.Opacity(
            "chosen:N", scale=alt.Scale(domain=[True, False], range=[0.9, 0.08]), legend=None
        ),
        tooltip=_TOOLTIP,
    )
    return points


def predicted_and_measured(width: int = 310, height: int = 340) -> alt.TopLevelMixin:
    """Draw estimated over measured values, both logarithmic; on the line they are equal."""
    scale = alt.Scale(type="log")
    ticks = alt.Axis(format="~g", values=[10.0**i for i in range(-4, 5)])
    places = {
        "x": alt.X("measured:Q", title="measured", scale=scale, axis=ticks),
        "y": alt.Y("estimated:Q", title="estimated", scale=scale, axis=ticks),
    }
    line = (
        alt.Chart(alt.NamedData("line"))
        .mark_line(color=style.TIME["waiting"], strokeDash=[5, 3])
        .encode(x=places["x"], y=places["y"])
    )
    points = _points(alt.Chart(alt.NamedData("runs")), _COLOUR, **places)
    return alt.layer(line, points).properties(
        width=width, height=height, description="Estimated over measured values, one point a published run."
    )


def errors_by_group(width: int = 250, height: int = 340) -> alt.TopLevelMixin:
    """Draw the error of every run, one line a group; the mean size of each group's errors at the end of its line."""
    y = alt.Y("group:N", title=None, sort=_BY_RANK, axis=alt.Axis(labelLimit=150, grid=True))
    x = alt.X(
        "shown:Q",
        title=f"estimated over measured, less 1 (most drawn: {EDGE:.0%})",
        scale=alt.Scale(domain=[-EDGE, EDGE]),
        axis=alt.Axis(format="+.0%", values=[-0.6, -0.3, 0, 0.3, 0.6]),
    )
    colour = alt.Color("family:N", scale=style.scale(_COLOURS), legend=None)
    points = _points(alt.Chart(alt.NamedData("runs")), colour, x=x, y=y)
    text = (
        alt.Chart(alt.NamedData("groups"))
        .mark_text(align="left", dx=4)
        .encode(x=alt.value(width), y=y, text="text:N")
    )
    zero = alt.Chart(alt.NamedData("groups")).mark_rule(color=style.TIME["waiting"]).encode(x=alt.datum(0))
    return alt.layer(zero, points, text).properties(
        width=width, height=height, description="Errors of every published run by group."
    )


def run_titles(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how near the points are to the line, and which group is farthest."""
    unit, name, what = UNITS[found[0]["kind"]]
    errors = [error_of(row) for row in found]
    values = [row["measured"] / unit for row in found]
    half = float(np.median(np.abs(errors)))
    low, high = (f"{x:,.0f}" if x >= 100 else f"{x:.2g}" for x in (min(values), max(values)))
    span = f"{low} to {high} {name}"
    worst = list(by_error(found).items())[-1]
    mean, bias = float(np.mean(np.abs(errors))), math.fsum(errors) / len(errors)
    return [
        f"{len(found)} rows, {what} from {span}: half are within {half:.1%}",
        f"Mean error {mean:.1%}, bias {bias:+.1%}; worst group {worst[0]} ({worst[1]:.0%})",
    ]
