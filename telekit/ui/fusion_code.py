"""Charts of a fused program: its registers over instructions, its tiles, and what it brings when it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import altair as alt

from telekit.fusion.bytecode import Program
from telekit.fusion.instructions import Kernel, Slot
from telekit.fusion.listing import Step
from telekit.fusion.machine import Machine, Tiling, tiling
from telekit.fusion.ops import numpy_dtype
from telekit.ui import style
from telekit.ui.charts import Tables
from telekit.ui.fusion_charts import stacked_bars
from telekit.units import format_bytes

TOUCHES = {
    "read": style.TIME["compute"],
    "written": style.TIME["communication"],
    "read and written": "#8f3f6f",
    "holds a value": "#c9d9ea",
}
TILES = {"done": style.TIME["recompute"], "this tile": style.TIME["communication"], "to come": "#d9dce0"}
SOURCES = {"bytes alone": "#adb3ba", "predicted": style.TIME["recompute"], "measured": style.TIME["compute"]}
WIDTH_PX = 330
MAX_SHOWN = 24


@dataclass(frozen=True)
class Walk:
    """One kernel of a program, its tiles at some sizes, and its steps without the loop's line."""

    kernel: Kernel
    names: tuple[str, ...]
    cut: Tiling
    whole: tuple[int, ...]
    code: tuple[Step, ...]


def walk(program: Program, steps: Sequence[Step], kernel: int, sizes: Mapping[str, int], on: Machine) -> Walk:
    """Take one kernel out of a program's steps."""
    decoded = program.decoded
    found = decoded.kernels[kernel]
    whole = tuple(sizes[d] if isinstance(d, str) else d for d in found.axes)
    code = tuple(step for step in steps if step.kernel == kernel and step.phase != "loop")
    return Walk(found, tuple(t.name for t in decoded.tensors), tiling(found, list(whole), on), whole, code)


def plain(operand: str) -> str:
    """Name of the tensor, register or accumulator of an operand; nothing for a number."""
    return operand.split("[")[0].split("^")[0] if "[" in operand else ""


def operands(it: Walk) -> list[str]:
    """Tensors that are read, registers, accumulators, and tensors that are written, in this order."""
    read = dict.fromkeys(name for step in it.code for operand in step.reads if (name := plain(operand)))
    written = dict.fromkeys(plain(operand) for step in it.code for operand in step.writes)
    tensors = [name for name in read if name.startswith("t") and name not in written]
    inner = sorted(n for n in {*read, *written} if not n.startswith("t"))
    return [*tensors, *inner, *(name for name in written if name.startswith("t"))]


def register_rows(it: Walk, at: int) -> Tables:
    """Make tables ``touches`` (operand, rank, step, what) and ``now`` (step): who is read, written, or kept."""
    rank = {name: i for i, name in enumerate(operands(it))}
    rows: list[dict[str, object]] = []
    for place, step in enumerate(it.code):
        read, written = ({plain(o) for o in side} for side in (step.reads, step.writes))
        for name in rank:
            if name in read or name in written:
                both = name in read and name in written
                what = "read and written" if both else ("read" if name in read else "written")
            elif name in step.registers:
                what = "holds a value"
            else:
                continue
            rows.append({"operand": name, "rank": rank[name], "step": place + 1, "what": what})
    return {"touches": rows, "now": [{"step": at + 1}]}


def register_chart(width: int = WIDTH_PX, height: int = 250) -> alt.TopLevelMixin:
    """Draw what each instruction reads, writes and keeps; tables of ``register_rows``."""
    x = alt.X("step:O", title="instruction of the kernel", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    y = alt.Y(
        "operand:N", title=None, sort=alt.EncodingSortField("rank", op="min"), axis=alt.Axis(grid=False)
    )
    cells = (
        alt.Chart(alt.NamedData("touches"))
        .mark_rect(stroke="white", strokeWidth=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color("what:N", scale=style.scale(TOUCHES), legend=alt.Legend(columns=2)),
            tooltip=["operand:N", "step:O", "what:N"],
        )
    )
    now = (
        alt.Chart(alt.NamedData("now"))
        .mark_rect(filled=False, stroke=style.LIMIT, strokeWidth=2.5)
        .encode(x=x, y=alt.value(0), y2=alt.value(height))
    )
    return alt.layer(cells, now).properties(
        width=width, height=height, description="Registers and tensors over the instructions of a kernel."
    )


def tile_rows(it: Walk, tile: int) -> Tables:
    """Make tables ``tiles`` (tensor, rank, part, order, percent) and ``sizes`` (tensor, rank, percent, text)."""
    slots: dict[str, Slot] = {}
    for slot in it.kernel.slots:
        if slot.kind == "view":
            slots.setdefault(f"t{slot.ref}", slot)
    rows: list[dict[str, object]] = []
    sizes: list[dict[str, object]] = []
    order = [name for name in operands(it) if name in slots]
    for rank, name in enumerate(order):
        slot, label = slots[name], f"{name} {it.names[slots[name].ref]}"
        whole, part = (
            prod(of[a] for a in slot.axes if a >= 0) * numpy_dtype(slot.dtype).itemsize
            for of in (it.whole, it.cut.block)
        )
        share = part / whole if whole else 1.0
        looped = any(a in it.kernel.loop for a in slot.axes)
        done = min(tile * share, 1.0) if looped else 0.0
        here = min(share, 1.0 - done)
        bar = {"tensor": label, "rank": rank}
        for place, (what, width) in enumerate(zip(TILES, (done, here, 1 - done - here), strict=True)):
            rows.append(bar | {"part": what, "order": place, "percent": 100 * width})
        sizes.append(bar | {"percent": 100, "text": format_bytes(whole)})
    return {"tiles": rows, "sizes": sizes}


def tile_chart(width: int = WIDTH_PX, height: int = 250) -> alt.TopLevelMixin:
    """Draw how far the loop over tiles has come in each tensor; tables of ``tile_rows``."""
    x = alt.X(
        "percent:Q",
        title="of the tensor in memory [%]",
        scale=alt.Scale(domain=[0, 100], range=[0, width - 80]),
        axis=alt.Axis(tickCount=5),
    )
    said = "How far the loop over tiles has come in each tensor."
    chart: alt.TopLevelMixin = stacked_bars("tiles", "sizes", "tensor", x, TILES, ".2f").properties(
        width=width, height=height, description=said
    )
    return chart


# --- measured -----------------------------------------------------------------------------------------------


def gain_rows(gains: Mapping[int, Mapping[str, float]]) -> Tables:
    """Make table ``gains`` (operators, source, gain, text) from gain by length of the chain and source."""
    rows: list[dict[str, object]] = [
        {"operators": n, "source": source, "gain": gain, "text": f"{gain:.1f}"}
        for n, found in gains.items()
        for source, gain in found.items()
    ]
    return {"gains": rows}


def gain_bars(width: int = WIDTH_PX, height: int = 240) -> alt.TopLevelMixin:
    """Draw the gain of fusing a chain on this computer, measured beside predicted; table ``gains``."""
    base = alt.Chart(alt.NamedData("gains")).encode(
        x=alt.X("operators:O", title="operators of the chain", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("gain:Q", title="times as quick as unfused", axis=alt.Axis(tickCount=5)),
        xOffset=alt.XOffset("source:N", sort=list(SOURCES)),
    )
    bars = base.mark_bar().encode(
        color=alt.Color("source:N", scale=style.scale(SOURCES), legend=alt.Legend(columns=3, offset=20)),
        tooltip=["operators:O", "source:N", alt.Tooltip("gain:Q", format=".3g")],
    )
    text = base.mark_text(dy=-6).encode(text="text:N")
    return alt.layer(bars, text).properties(
        width=width, height=height, description="Gain of fusion on this computer, measured and predicted."
    )


def spent_rows(times: Mapping[int, Mapping[str, float]]) -> Tables:
    """Make table ``spent`` (operators, what, ms) from seconds by length of the chain and by what was run."""
    rows: list[dict[str, object]] = [
        {"operators": n, "what": what, "ms": 1e3 * spent}
        for n, found in times.items()
        for what, spent in found.items()
    ]
    return {"spent": rows}


RUNS = {"unfused": "#adb3ba", "unfused, out=": "#b86f9b", "fused": style.TIME["compute"]}


def spent_lines(width: int = WIDTH_PX - 30, height: int = 240) -> alt.TopLevelMixin:
    """Draw measured times over the length of the chain; table ``spent``."""
    lines = (
        alt.Chart(alt.NamedData("spent"))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=40))
        .encode(
            x=alt.X("operators:Q", title="operators of the chain", axis=alt.Axis(tickCount=6)),
            y=alt.Y("ms:Q", title="measured [ms]", axis=alt.Axis(tickCount=5)),
            color=alt.Color("what:N", scale=style.scale(RUNS), legend=alt.Legend(columns=3)),
            tooltip=["operators:Q", "what:N", alt.Tooltip("ms:Q", format=".3g")],
        )
    )
    return alt.layer(lines).properties(
        width=width, height=height, description="Measured times of unfused and fused chains."
    )
