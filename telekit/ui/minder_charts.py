"""Charts of Minder at work: a metric of all machines over time, and how far each stands out, for how long.

Each chart is drawn once over named tables; beside it stands the function that makes its rows. Times are in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import altair as alt
import numpy as np

from telekit.diagnose.minder.detect import Alert, MetricScores, Rules
from telekit.diagnose.minder.generate import MachineRun
from telekit.diagnose.minder.model import WINDOW, moving_mean
from telekit.ui import style
from telekit.ui.charts import Tables

Table = list[dict[str, object]]
MINUTE_S = 60.0
CELL_S = 20
"""Seconds of one cell of the heat map."""
FAULTY, NAMED, OTHERS = "faulty", "named, not faulty", "highest of others"
LINES = {FAULTY: style.LIMIT, NAMED: style.TIME["communication"], OTHERS: style.TIME["waiting"]}


def number_of(machine: str) -> int:
    """Return the number in a generated machine's name."""
    return int(machine.rpartition("-")[2])


def heat_rows(run: MachineRun, metric: str) -> Tables:
    """Make tables ``heat`` (machine, from, to, value, text) and ``faults`` (machine, from, to)."""
    values = run.metrics.filled(metric)
    count = values.shape[1] // CELL_S
    parts = values[:, : count * CELL_S].reshape(len(values), count, CELL_S)
    known = np.isfinite(parts).sum(axis=2)
    cells = parts.sum(axis=2, where=np.isfinite(parts)) / np.maximum(known, 1)
    heat: Table = [
        {"machine": number_of(name), "from": column * CELL_S / MINUTE_S, "to": (column + 1) * CELL_S / MINUTE_S,
         "value": float(f"{value:.4g}"), "text": f"{value:.3g} {metric.rpartition(' ')[2]}"}
        for row, (name, line) in enumerate(zip(run.metrics.machines, cells.tolist(), strict=True))
        for column, value in enumerate(line)
        if known[row, column]
    ]  # fmt: skip
    faults: Table = [
        {"machine": f.machine, "from": f.start_s / MINUTE_S, "to": f.end_s / MINUTE_S} for f in run.faults
    ]
    return {"heat": heat, "faults": faults}


def heat_map(width: int = 310, height: int = 300) -> alt.TopLevelMixin:
    """Draw one metric of every machine over time; a planted fault is framed."""
    time = alt.X(
        "from:Q", title="time [min]", axis=alt.Axis(grid=False, tickCount=8), scale=alt.Scale(nice=False)
    )
    machine = alt.Y("machine:O", title="machine", axis=alt.Axis(grid=False))
    shade = alt.Color(
        "value:Q",
        scale=alt.Scale(scheme="blues"),
        legend=alt.Legend(orient="right", gradientLength=height - 40, gradientThickness=10, tickCount=5),
    )
    said = [
        alt.Tooltip("machine:O"),
        alt.Tooltip("from:Q", format=".1f", title="minute"),
        alt.Tooltip("text:N", title="mean"),
    ]
    cells = (
        alt.Chart(alt.NamedData("heat"))
        .mark_rect()
        .encode(x=time, x2="to:Q", y=machine, color=shade, tooltip=said)
    )
    frame = (
        alt.Chart(alt.NamedData("faults"))
        .mark_rect(fill=None, stroke=style.LIMIT, strokeWidth=2)
        .encode(x="from:Q", x2="to:Q", y="machine:O")
    )
    return alt.layer(cells, frame).properties(
        width=width, height=height, description="One metric of every machine over time."
    )


def shares(found: MetricScores, rules: Rules, stride_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Share of the last windows in which each machine is a candidate, and when each of those times ends, in seconds."""
    needed = min(rules.windows(stride_s), len(found.begin_s))
    return found.begin_s[needed - 1 :] + WINDOW, moving_mean(found.candidate.astype(np.float64), needed)


def score_rows(
    found: MetricScores, rules: Rules, stride_s: float, kinds: Mapping[str, str], alerts: Sequence[Alert]
) -> Tables:
    """Make tables ``scores``, ``shares`` (minute, line, kind, value), ``limits`` and ``alerts``.

    ``kinds`` says which machines have a line of their own, and of which kind.
    """
    ends, share = shares(found, rules, stride_s)
    limits: Table = [{"z": rules.threshold_of(len(found.machines)), "share": rules.steadiness, "top": 1.05}]
    marks: Table = [
        {"minute": a.alert_s / MINUTE_S, "from": a.start_s / MINUTE_S, **_beside(a)} for a in alerts[:1]
    ]
    return {
        "scores": _lines(found.begin_s + WINDOW, found.z_score, found.machines, kinds),
        "shares": _lines(ends, share, found.machines, kinds),
        "limits": limits,
        "alerts": marks,
    }


def _beside(alert: Alert) -> dict[str, object]:
    """Write an alert's name on the side of its rule where there is room."""
    text, early = f"alert: {alert.machine}", alert.alert_s < 540
    return {"right": text if early else "", "left": "" if early else text}


def _lines(
    times_s: np.ndarray, values: np.ndarray, machines: Sequence[str], kinds: Mapping[str, str]
) -> Table:
    """One line a machine that is followed, and one of the highest of all others."""
    rest = [column for column, name in enumerate(machines) if name not in kinds]
    values = np.where(np.isfinite(values), values, -np.inf)
    lines = [("others", OTHERS, values[:, rest].max(axis=1))] if rest else []
    lines += [(name, kinds[name], values[:, c]) for c, name in enumerate(machines) if name in kinds]
    return [
        {"minute": round(at / MINUTE_S, 3), "line": name, "kind": kind, "value": round(value, 3)}
        for name, kind, line in lines
        for at, value in zip(times_s.tolist(), line.tolist(), strict=True)
        if np.isfinite(value)
    ]


def score_chart(width: int = 335, heights: tuple[int, int] = (150, 80)) -> alt.TopLevelMixin:
    """Draw z-scores against the threshold, and below them the share of the last minutes spent above it."""
    whole = alt.Scale(domain=[0, 15], nice=False)
    time = alt.X("minute:Q", title=None, scale=whole, axis=alt.Axis(grid=False, labels=False))
    below = alt.X("minute:Q", title="time [min]", scale=whole, axis=alt.Axis(grid=False, tickCount=8))
    z = _line_layer(
        "scores", time, alt.Y("value:Q", title="z-score", axis=alt.Axis(tickCount=4, minExtent=30))
    )
    share = _line_layer(
        "shares",
        below,
        alt.Y(
            "value:Q",
            title="share of time",
            scale=alt.Scale(domain=[0, 1.05], nice=False),
            axis=alt.Axis(values=[0, 0.5, 1], format="%", minExtent=30),
        ),
    )
    parts = [
        alt.layer(*_marks(y, width), lines).properties(width=width, height=height)
        for lines, y, height in ((z, "z", heights[0]), (share, "share", heights[1]))
    ]
    return alt.vconcat(*parts, spacing=14).properties(
        description="Z-scores of machines over time, and the share of the last minutes that each spends above the "
        "threshold."
    )


def _line_layer(table: str, x: alt.X, y: alt.Y) -> alt.Chart:
    lines: alt.Chart = (
        alt.Chart(alt.NamedData(table))
        .mark_line(strokeWidth=1.6)
        .encode(
            x=x,
            y=y,
            detail="line:N",
            color=alt.Color(
                "kind:N", scale=style.scale(LINES), legend=alt.Legend(columns=3, symbolType="stroke")
            ),
            tooltip=["line:N", alt.Tooltip("minute:Q", format=".1f"), alt.Tooltip("value:Q", format=".2f")],
        )
    )
    return lines


def _marks(y: str, width: int) -> list[alt.Chart]:
    """Draw the limit, the time that led to an alert as a band, and the alert."""
    limit = alt.Chart(alt.NamedData("limits")).mark_rule(color=style.LIMIT, strokeDash=[5, 3])
    alert = alt.Chart(alt.NamedData("alerts"))
    band = alert.mark_rect(color=style.LIMIT, opacity=0.1).encode(x="from:Q", x2="minute:Q")
    rule = alert.mark_rule(color=style.LIMIT, strokeWidth=1.5).encode(x="minute:Q")
    marks = [band, limit.encode(y=f"{y}:Q"), rule]
    if y == "share":
        return marks
    names = [
        alert.mark_text(align=align, baseline="bottom", dx=dx, fontWeight=600, color=style.LIMIT).encode(
            x="minute:Q", y=alt.value(-2), text=f"{side}:N"
        )
        for side, align, dx in _SIDES
    ]
    return [*marks, *names]


_SIDES: tuple[tuple[str, Literal["left", "right"], int], ...] = (("right", "left", 3), ("left", "right", -3))
