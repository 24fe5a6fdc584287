"""The kit's charts: each is drawn once over named tables; beside it stands the function that makes its rows.

Sizes are in GiB (2**30 bytes) and times in seconds where a reader sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import altair as alt

from telekit.ui import style
from telekit.units import format_seconds, gib

if TYPE_CHECKING:
    from telekit.cost.estimate import Estimate
    from telekit.layout.config import ParallelConfig

Tables = dict[str, list[dict[str, object]]]

# part of a step, as the estimate names it: how a reader knows it, and what it means
PARTS = {
    "compute": ("arithmetic", "compute"),
    "recompute": ("recomputation", "recompute"),
    "host": ("host launches", "waiting"),
    "offload": ("host memory", "communication"),
    "tp_comm": ("tensor parallel", "communication"),
    "cp_comm": ("context parallel", "communication"),
    "ep_comm": ("expert parallel", "communication"),
    "dp_comm": ("data parallel", "communication"),
    "bubble": ("pipeline bubble", "waiting"),
    "optimizer": ("optimizer", "optimizer"),
    "waiting": ("slowest device", "waiting"),
}

_BY_RANK = alt.EncodingSortField("rank", op="min")  # rows that are pushed later keep no order of their own


def memory_rows(estimate: Estimate) -> Tables:
    """Make tables ``memory`` (stage, part, order, GiB) and ``capacity`` (GiB, top, text).

    ``top`` is where the axis ends: above the bars and above the capacity's name.
    """
    order = {part: i for i, part in enumerate(style.MEMORY)}
    memory = [
        {"stage": i, "part": part, "order": order[part], "GiB": gib(size_bytes)}
        for i, stage in enumerate(estimate.stages)
        for part, size_bytes in ((k.removeprefix("recompute_"), v) for k, v in stage.memory_bytes.items())
        if size_bytes
    ]
    capacity, peak = gib(estimate.capacity_bytes), gib(estimate.peak_bytes)
    text = f"{capacity:.1f} GiB: all that {estimate.job.cluster.device.name} has"
    return {
        "memory": memory,
        "capacity": [{"GiB": capacity, "top": max(1.1 * capacity, 1.02 * peak), "text": text}],
    }


def memory_by_stage(width: int = 350, height: int = 250) -> alt.TopLevelMixin:
    """Draw the memory of each stage's device, stacked by what holds it, against its capacity."""
    bars = (
        alt.Chart(alt.NamedData("memory"))
        .mark_bar(stroke="white", strokeWidth=0.4, strokeOpacity=0.5)
        .encode(
            x=alt.X("stage:O", title="pipeline stage", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("GiB:Q", title="memory of one device [GiB]", axis=alt.Axis(tickCount=6, minExtent=34)),
            color=alt.Color("part:N", scale=style.scale(style.MEMORY), legend=alt.Legend(columns=4)),
            order="order:Q",
            tooltip=["stage:O", "part:N", alt.Tooltip("GiB:Q", format=".2f")],
        )
    )
    capacity = alt.Chart(alt.NamedData("capacity"))
    line = capacity.mark_rule(color=style.LIMIT, strokeWidth=1.5, strokeDash=[5, 3]).encode(y="GiB:Q")
    name = capacity.mark_text(align="right", baseline="bottom", dy=-3, color=style.LIMIT).encode(
        x=alt.value(width), y="GiB:Q", text="text:N"
    )
    room = capacity.mark_point(opacity=0).encode(y="top:Q")
    return alt.layer(bars, line, name, room).properties(
        width=width, height=height, description="Memory of each pipeline stage against the device's capacity."
    )


def memory_title(estimate: Estimate) -> str:
    """Say which stage is the fullest, and whether it fits."""
    peaks = [stage.peak_bytes for stage in estimate.stages]
    fullest = peaks.index(max(peaks))
    over = gib(max(peaks) - estimate.capacity_bytes)
    if over > 0:
        return f"Stage {fullest} needs {gib(peaks[fullest]):.1f} GiB: {over:.1f} GiB more than a device has"
    return (
        f"It fits: stage {fullest}, the fullest, takes {gib(peaks[fullest]):.1f} GiB and leaves {-over:.1f}"
    )


def step_rows(breakdown_s: Mapping[str, float]) -> Tables:
    """Make table ``step`` (part, meaning, seconds, text), in a fixed order."""
    total = sum(breakdown_s.values())
    return {
        "step": [
            {
                "part": name,
                "meaning": meaning,
                "seconds": seconds,
                "text": f"{format_seconds(seconds)} · {share:.0%}",
            }
            for key, (name, meaning) in PARTS.items()
            for seconds in [breakdown_s.get(key, 0.0)]
            for share in [seconds / total]
        ]
    }


def step_breakdown(width: int = 280, height: int = 250) -> alt.TopLevelMixin:
    """Draw where the time of a step goes: a bar a part, with its seconds and its share at the end."""
    base = alt.Chart(alt.NamedData("step")).encode(
        x=alt.X(
            "seconds:Q",
            title="time of one step [s]",
            axis=alt.Axis(tickCount=4),
            scale=alt.Scale(range=[0, width - 80]),  # the text beside the longest bar needs the rest
        ),
        y=alt.Y("part:N", title=None, sort=None, axis=alt.Axis(labelLimit=150, grid=False)),
    )
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        color=alt.Color("meaning:N", scale=style.scale(style.TIME), legend=alt.Legend(columns=3)),
        tooltip=["part:N", "meaning:N", alt.Tooltip("seconds:Q", format=".3f")],
    )
    text = base.mark_text(align="left", dx=5).encode(text="text:N")
    return alt.layer(bars, text).properties(
        width=width, height=height, description="Time of one training step by part."
    )


def step_title(breakdown_s: Mapping[str, float]) -> str:
    """Say how much of a step is arithmetic, and what takes most of the rest."""
    total = sum(breakdown_s.values())
    rest = {key: value for key, value in breakdown_s.items() if key != "compute"}
    worst = max(rest, key=lambda key: rest[key])
    useful, most = (value / total for value in (breakdown_s.get("compute", 0.0), rest[worst]))
    return f"{useful:.0%} of the step is arithmetic; most of the rest is {PARTS[worst][0]} ({most:.0%})"


def estimate_titles(estimate: Estimate) -> list[str]:
    """Say what the two charts of an estimate show: its memory by stage, and the breakdown of its step."""
    return [memory_title(estimate), step_title(estimate.breakdown_s or {})]


def ranking_rows(plans: Sequence[tuple[str, Estimate]]) -> Tables:
    """Make table ``ranking`` (plan, rank, part, meaning, order, seconds): the breakdown of each named plan."""
    order = {meaning: i for i, meaning in enumerate(style.TIME)}
    return {
        "ranking": [
            {"plan": name, "rank": rank, "order": order[str(row["meaning"])]} | row
            for rank, (name, estimate) in enumerate(plans)
            for row in step_rows(estimate.breakdown_s or {})["step"]
        ]
    }


def plan_ranking(width: int = 260, height: int = 180) -> alt.TopLevelMixin:
    """Draw the plans by the time of their step, split by what the time is spent on."""
    chart: alt.TopLevelMixin = (
        alt.Chart(alt.NamedData("ranking"))
        .mark_bar(size=18)
        .encode(
            x=alt.X("seconds:Q", title="time of one step [s]", axis=alt.Axis(tickCount=6)),
            y=alt.Y("plan:N", title=None, sort=_BY_RANK, axis=alt.Axis(labelLimit=260, grid=False)),
            color=alt.Color("meaning:N", scale=style.scale(style.TIME), legend=alt.Legend(columns=3)),
            order="order:Q",
            tooltip=["plan:N", "part:N", alt.Tooltip("seconds:Q", format=".3f")],
        )
        .properties(width=width, height=height, description="Plans by the time of their step.")
    )
    return chart


def rejection_rows(rejected: Mapping[str, int], most: int = 10) -> Tables:
    """Make table ``rejected`` (reason, rank, layouts, text): what stood in the way of most layouts."""
    ranked = sorted(rejected.items(), key=lambda item: -item[1])
    rows: list[dict[str, object]] = [
        {"reason": reason.split(": ")[-1], "rank": rank, "layouts": count, "text": f"{count:,}"}
        for rank, (reason, count) in enumerate(ranked[:most])
        if count
    ]
    return {"rejected": rows}


def rejections(width: int = 110, height: int = 180) -> alt.TopLevelMixin:
    """Draw how many layouts each rule rejected."""
    base = alt.Chart(alt.NamedData("rejected")).encode(
        x=alt.X("layouts:Q", title="layouts rejected", axis=alt.Axis(tickCount=3, format="~s")),
        y=alt.Y("reason:N", title=None, sort=_BY_RANK, axis=alt.Axis(labelLimit=190, grid=False)),
    )
    text = base.mark_text(align="left", dx=5).encode(text="text:N")
    bars = base.mark_bar(size=18, color=style.TIME["waiting"])
    return alt.layer(bars, text).properties(
        width=width, height=height, description="Layouts that each rule rejected."
    )


def stage_times(placements: Sequence[str], width: int = 520, height: int = 200) -> alt.TopLevelMixin:
    """Draw the time of each stage under two placements.

    Table ``stages`` (stage, time, placement).
    """
    colours = dict(zip(placements, (style.TIME["waiting"], style.TIME["compute"]), strict=True))
    chart: alt.TopLevelMixin = (
        alt.Chart(alt.NamedData("stages"))
        .mark_bar()
        .encode(
            x=alt.X("stage:O", title="pipeline stage", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("placement:N", sort=list(placements)),
            y=alt.Y("time:Q", title="time of one micro-batch"),
            color=alt.Color("placement:N", scale=style.scale(colours)),
            tooltip=["placement:N", "stage:O", alt.Tooltip("time:Q", format=",")],
        )
        .properties(width=width, height=height, description="Time of each stage under two placements.")
    )
    return chart


def layout_name(layout: ParallelConfig) -> str:
    """Name a layout by its degrees above 1 (``tp8 pp8 dp4``); ``mb`` is its micro-batch."""
    degrees = {name: getattr(layout, name) for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")}
    degrees["mb"] = layout.micro_batch
    return " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree != 1) or "one device"
