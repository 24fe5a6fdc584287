"""Charts of operator fusion: roofline, times, choices of kernels, who decides, and what a step saves.

Each chart is drawn once over named tables; beside it stands the function that makes its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from telekit.cluster.config import Device
from telekit.fusion.search import Search
from telekit.fusion.traffic import FusionCost, Step, Target
from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.units import MIB, format_seconds

VARIANTS = {"unfused": "#adb3ba", "fused": style.TIME["compute"]}
TIMES = {
    "bytes": style.TIME["communication"],
    "start and end": style.TIME["recompute"],
    "issuing": "#8f3f6f",
}
"""Of kernels: moving their bytes; their gaps on the device; issuing them on the host."""
BASELINES = {"library": style.TIME["recompute"], "operators": "#adb3ba"}
WIDTH_PX = 320
TENS = [10.0**power for power in range(-4, 8)]
"""Ticks of a logarithmic axis."""
INTENSITIES = (0.03, 3000.0)


# --- roofline -----------------------------------------------------------------------------------------------


def roof_rows(device: Device, on: Target, both: Mapping[str, FusionCost]) -> Tables:
    """Make tables ``roofs`` (roof, intensity, rate) and ``points`` (variant, intensity, rate, text)."""
    share = on.efficiency["element"]
    memory = on.bandwidth_bytes_per_s * share
    peaks = {f"products, {device.peak('bf16') / 1e12:.0f} TFLOP/s": device.peak("bf16")}
    if "fp32" in device.peak_flops and not device.name.startswith("ascend"):  # there it is of products too
        peaks[f"vector units, {device.peak('fp32') / 1e12:.3g} TFLOP/s"] = device.peak("fp32")
    roofs: list[dict[str, object]] = []
    for roof, peak in peaks.items():
        for intensity in sorted((INTENSITIES[0], peak / memory, INTENSITIES[1])):
            rate = min(peak, intensity * memory) / 1e12
            roofs.append(
                {"roof": roof, "intensity": intensity, "rate": rate, "end": intensity == INTENSITIES[1]}
            )
    points: list[dict[str, object]] = []
    for variant, price in both.items():
        flops = sum(k.vector_flops for k in price.kernels)
        points.append(
            {
                "variant": variant,
                "intensity": flops / price.moved_bytes,
                "rate": flops / price.step_s / 1e12,
                "text": f"{variant}: {flops / price.moved_bytes:.2g} FLOP/byte",
            }
        )
    return {"roofs": roofs, "points": points}


def roofline(width: int = WIDTH_PX, height: int = 240) -> alt.TopLevelMixin:
    """Draw what a device can reach over arithmetic intensity, and where the variants lie; tables of ``roof_rows``."""
    x = alt.X(
        "intensity:Q",
        title="arithmetic intensity [FLOP/byte]",
        scale=alt.Scale(type="log", domain=list(INTENSITIES), nice=False),
        axis=alt.Axis(values=TENS, format="~g", grid=False),
    )
    y = alt.Y(
        "rate:Q",
        title="reached [TFLOP/s]",
        scale=alt.Scale(type="log", domain=[2e-5, 5000.0], nice=False),
        axis=alt.Axis(values=TENS[::2], format="~g"),
    )
    roofs = alt.Chart(alt.NamedData("roofs"))
    lines = roofs.mark_line(strokeWidth=2, color=style.TIME["waiting"]).encode(x=x, y=y, detail="roof:N")
    names = (
        roofs.transform_filter("datum.end").mark_text(align="right", dy=-8).encode(x=x, y=y, text="roof:N")
    )
    points = alt.Chart(alt.NamedData("points"))
    colour = alt.Color("variant:N", scale=style.scale(VARIANTS), legend=None)
    path = points.mark_line(strokeDash=[4, 3], color=style.LIMIT).encode(x=x, y=y)
    dots = points.mark_point(filled=True, size=130, opacity=1, stroke="white").encode(
        x=x, y=y, color=colour, tooltip=["variant:N", alt.Tooltip("intensity:Q", format=".3g"), "rate:Q"]
    )
    said = points.mark_text(align="left", dx=11, dy=5).encode(x=x, y=y, text="text:N")
    return alt.layer(lines, names, path, dots, said).properties(
        width=width,
        height=height,
        description="Roofline of the device, and the work before and after fusion.",
    )


# --- time of two variants -----------------------------------------------------------------------------------


def time_rows(on: Target, both: Mapping[str, FusionCost]) -> Tables:
    """Make tables ``time`` (bar, rank, part, order, us) and ``ends`` (bar, rank, us, text): device and host."""
    time: list[dict[str, object]] = []
    ends: list[dict[str, object]] = []
    for place, (variant, price) in enumerate(both.items()):
        gap_s = price.launches * on.gap_s
        device = {"bytes": price.device_s - gap_s, "start and end": gap_s}
        for rank, (side, parts) in enumerate((("device", device), ("host", {"issuing": price.host_s}))):
            bar = {"bar": f"{variant}, {side}", "rank": 2 * place + rank}
            time += [
                bar | {"part": part, "order": order, "us": 1e6 * spent}
                for order, (part, spent) in enumerate(parts.items())
            ]
            total = sum(parts.values())
            star = ", decides" if side == price.bound else ""
            ends.append(bar | {"us": 1e6 * total, "text": f"{format_seconds(total)}{star}"})
    return {"time": time, "ends": ends}


def time_bars(width: int = WIDTH_PX, height: int = 240) -> alt.TopLevelMixin:
    """Draw what device and host spend, unfused and fused; tables of ``time_rows``."""
    x = alt.X(
        "us:Q",
        title="time [µs]",
        axis=alt.Axis(tickCount=4),
        scale=alt.Scale(range=[0, width - 110]),  # the text beside the longest bar needs the rest
    )
    said = "Time of device and host before and after fusion."
    chart: alt.TopLevelMixin = stacked_bars("time", "ends", "bar", x, TIMES, ".3g").properties(
        width=width, height=height, description=said
    )
    return chart


def stacked_bars(parts: str, ends: str, name: str, x: alt.X, colours: Mapping[str, str], digits: str) -> Any:
    """Bars of ``part`` in ``order``, and a text at the end of each.

    Tables ``parts`` (``name``, rank, part, order, what ``x`` shows) and ``ends`` (``name``, rank, the same, text).
    """
    shown = str(x.shorthand)
    y = alt.Y(
        f"{name}:N",
        title=None,
        sort=alt.EncodingSortField("rank", op="min"),
        axis=alt.Axis(labelLimit=150, grid=False),
    )
    bars = (
        alt.Chart(alt.NamedData(parts))
        .mark_bar()
        .encode(
            x=x,
            y=y,
            color=alt.Color("part:N", scale=style.scale(colours), legend=alt.Legend(columns=3)),
            order="order:Q",
            tooltip=[f"{name}:N", "part:N", alt.Tooltip(shown, format=digits)],
        )
    )
    text = alt.Chart(alt.NamedData(ends)).mark_text(align="left", dx=5).encode(x=shown, y=y, text="text:N")
    return alt.layer(bars, text)


# --- choices of kernels -------------------------------------------------------------------------------------


def choice_rows(found: Mapping[str, Search]) -> Tables:
    """Make tables ``kernels`` (choice, rank, kernel, shade, MiB, operators) and ``sums`` (choice, rank, MiB, text)."""
    kernels: list[dict[str, object]] = []
    sums: list[dict[str, object]] = []
    for rank, (name, it) in enumerate(found.items()):
        for place, kernel in enumerate(it.cost.kernels):
            row = {"choice": name, "rank": rank, "kernel": place, "shade": "even" if place % 2 else "odd"}
            kernels.append(row | {"MiB": kernel.moved_bytes / MIB, "operators": len(kernel.group)})
        n, total = it.cost.launches, it.cost.moved_bytes / MIB
        size = f"{total:,.0f}" if total >= 100 else f"{total:.3g}"
        text = f"{n} launch{'es' * (n > 1)}, {size} MiB"
        sums.append({"choice": name, "rank": rank, "MiB": total, "text": text})
    return {"kernels": kernels, "sums": sums}


def choice_bars(width: int = WIDTH_PX, height: int = 200) -> alt.TopLevelMixin:
    """Draw the bytes of each choice, a piece of a bar a kernel; tables of ``choice_rows``."""
    x = alt.X(
        "MiB:Q",
        title="moved to and from memory [MiB]",
        axis=alt.Axis(tickCount=3),
        scale=alt.Scale(range=[0, width - 135]),
    )
    y = alt.Y("choice:N", title=None, sort=alt.EncodingSortField("rank", op="min"), axis=alt.Axis(grid=False))
    shades = {"odd": style.TIME["communication"], "even": style.MEMORY["workspace"]}
    bars = (
        alt.Chart(alt.NamedData("kernels"))
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color("shade:N", scale=style.scale(shades), legend=None),
            order="kernel:Q",
            tooltip=["choice:N", "kernel:O", "operators:Q", alt.Tooltip("MiB:Q", format=",.4g")],
        )
    )
    text = (
        alt.Chart(alt.NamedData("sums")).mark_text(align="left", dx=5).encode(x="MiB:Q", y=y, text="text:N")
    )
    return alt.layer(bars, text).properties(
        width=width, height=height, description="Bytes moved by each choice of kernels."
    )


# --- who decides --------------------------------------------------------------------------------------------


def regime_rows(tokens: Sequence[int], both: Mapping[str, Sequence[Step]], here: int) -> Tables:
    """Make tables ``regimes`` (variant, side, tokens, us) and ``here`` (tokens)."""
    rows: list[dict[str, object]] = [
        {"variant": variant, "side": side, "tokens": n, "us": 1e6 * spent}
        for variant, steps in both.items()
        for n, step in zip(tokens, steps, strict=True)
        for side, spent in (("device", step.device_s), ("host", step.host_s))
    ]
    return {"regimes": rows, "here": [{"tokens": here}]}


def regime_curves(width: int = WIDTH_PX, height: int = 200) -> alt.TopLevelMixin:
    """Draw device and host time over tokens, unfused and fused; tables of ``regime_rows``."""
    x = alt.X(
        "tokens:Q",
        title="tokens on the device",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=[4**i for i in range(2, 9)], format=",d", grid=False, labelFlush=True),
    )
    y = alt.Y(
        "us:Q",
        title="time [µs]",
        scale=alt.Scale(type="log", nice=False, padding=10),
        axis=alt.Axis(values=TENS, format="~g", minExtent=40),
    )
    lines = (
        alt.Chart(alt.NamedData("regimes"))
        .mark_line(strokeWidth=2)
        .encode(
            x=x,
            y=y,
            color=alt.Color("variant:N", scale=style.scale(VARIANTS), legend=alt.Legend(columns=2)),
            strokeDash=alt.StrokeDash(
                "side:N",
                scale=alt.Scale(domain=["device", "host"], range=[[1, 0], [6, 4]]),
                legend=alt.Legend(columns=2, symbolType="stroke"),
            ),
            tooltip=["variant:N", "side:N", "tokens:Q", alt.Tooltip("us:Q", format=".3g")],
        )
    )
    here = (
        alt.Chart(alt.NamedData("here")).mark_rule(color=style.LIMIT, strokeDash=[5, 3]).encode(x="tokens:Q")
    )
    return alt.layer(here, lines).properties(
        width=width, height=height, description="Time of device and host over the number of tokens."
    )


# --- a step -------------------------------------------------------------------------------------------------


def part_rows(by_kind: Mapping[str, Mapping[str, float]]) -> Tables:
    """Make table ``parts`` (kind, rank, baseline, ms): device time saved a step, by kind of work and baseline."""
    rows: list[dict[str, object]] = [
        {"kind": kind, "rank": rank, "baseline": name, "ms": 1e3 * spent}
        for rank, (kind, saved) in enumerate(by_kind.items())
        for name, spent in saved.items()
    ]
    return {"parts": rows}


def part_bars(width: int = WIDTH_PX, height: int = 250) -> alt.TopLevelMixin:
    """Draw device time saved a step by kind of work, against both baselines; table ``parts``."""
    bars = (
        alt.Chart(alt.NamedData("parts"))
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="device time saved in a step [ms]", axis=alt.Axis(tickCount=5)),
            y=alt.Y(
                "kind:N", title=None, sort=alt.EncodingSortField("rank", op="min"), axis=alt.Axis(grid=False)
            ),
            yOffset=alt.YOffset("baseline:N", sort=list(BASELINES)),
            color=alt.Color("baseline:N", scale=style.scale(BASELINES), legend=alt.Legend(columns=2)),
            tooltip=["kind:N", "baseline:N", alt.Tooltip("ms:Q", format=".3g")],
        )
    )
    return alt.layer(bars).properties(
        width=width, height=height, description="Device time that fusion saves in a step, by kind of work."
    )


def share_rows(shares: Mapping[str, Mapping[str, float]]) -> Tables:
    """Make table ``shares`` (bar, rank, side, percent, text) from share by baseline and side."""
    rows: list[dict[str, object]] = []
    for place, (name, sides) in enumerate(shares.items()):
        for rank, (side, share) in enumerate(sides.items()):
            bar = {"bar": f"{name}, {side}", "rank": 2 * place + rank, "side": side}
            rows.append(bar | {"percent": 100 * share, "text": f"{share:.1%}"})
    return {"shares": rows}


def share_bars(width: int = WIDTH_PX - 40, height: int = 250) -> alt.TopLevelMixin:
    """Draw the share of the baseline's step that is saved, where the device and where the host decides."""
    sides = {"device": style.TIME["communication"], "host": TIMES["issuing"]}
    base = alt.Chart(alt.NamedData("shares")).encode(
        x=alt.X(
            "percent:Q",
            title="of the baseline's step [%]",
            axis=alt.Axis(tickCount=4),
            scale=alt.Scale(range=[0, width - 50]),
        ),
        y=alt.Y("bar:N", title=None, sort=alt.EncodingSortField("rank", op="min"), axis=alt.Axis(grid=False)),
    )
    bars = base.mark_bar().encode(
        color=alt.Color("side:N", scale=style.scale(sides), legend=alt.Legend(columns=2)),
        tooltip=["bar:N", alt.Tooltip("percent:Q", format=".3g")],
    )
    text = base.mark_text(align="left", dx=5).encode(text="text:N")
    return alt.layer(bars, text).properties(
        width=width, height=height, description="Share of a step that fusion saves, by baseline and side."
    )
