"""Panels of chapter 7 on evidence: fusion measured on the reader's computer, and estimated for TeleChat3's step."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import Machine
from telekit.fusion.measured import Measured, measure
from telekit.fusion.prediction import calls_of, measure_cpu, predict
from telekit.fusion.traffic import cost
from telekit.ui import fusion_charts as charts
from telekit.ui import fusion_code as code
from telekit.ui import known_fusion as known
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer, Panel, panel
from telekit.ui.known_fusion import REPORTED, On
from telekit.ui.live import LiveChart
from telekit.ui.panels.apart import figures_line
from telekit.ui.task import Progress, Task
from telekit.units import MIB, format_seconds

# --- measured -----------------------------------------------------------------------------------------------

LENGTHS = (2, 5, 8, 12)
KINDS = {"arithmetic (×, +, |x|)": "arithmetic", "with exp, sqrt, tanh": "functions"}
SIZES = {"64 KiB": 2**14, "1 MiB": 2**18, "32 MiB": 2**23}
PREDICTED_FROM = 2**23
"""Numbers of a tensor from which the prediction is meant: several tensors are beyond the caches."""
ALONE = Machine(threads=1)
"""One thread, as NumPy's element-wise calls have."""


@dataclass(frozen=True)
class Row:
    """One chain: how it was measured, and the gain that was predicted for it; None where the model does not hold."""

    measured: Measured
    predicted: float | None


def cpu_chain(kind: str, operators: int) -> Graph:
    """Chain of element-wise operators as it is measured: of arithmetic alone, or with functions."""
    graph = Graph(f"{kind}-{operators}")
    value, other = graph.input("x", ("N",)), graph.input("y", ("N",))
    for step in range(operators):
        if kind == "arithmetic":
            value = (value * 1.01, value + other, value * other, value.abs())[step % 4]
        else:
            value = (value * 1.01, value.exp(), value + other, value.sqrt(), value.tanh())[step % 5]
    graph.output(value, "z")
    return graph


class MeasurePanel(Panel):
    """Chains run on this computer behind a button: measured gain beside the model's prediction.

    ``start`` and ``wait`` measure, ``found`` holds the answer by length of the chain; before, only what bytes
    alone would give is shown.
    """

    def __init__(self, repeats: int = 5) -> None:
        controls: dict[str, W.Widget] = {
            "kind": pick("operators", KINDS, "arithmetic"),
            "elements": pick("each tensor", SIZES, 2**23),
        }
        super().__init__("Measured on this computer", controls)
        self.found: dict[int, Row] = {}
        self._repeats = repeats
        self._of = self._asked = self.values
        self.task = Task(self._measure, self._shown, "Measure")
        self.status = W.HTML()
        charts_ = (code.gain_bars(), code.spent_lines())
        self.views = tuple(LiveChart(chart, self._tables(), "") for chart in charts_)
        work = [self.task.button, self.task.halt, self.task.bar, self.task.note]
        self.box = panel(self.title, list(self.controls.values()), work, [self.status], list(self.views))
        self._draw()

    def start(self) -> MeasurePanel:
        """Press the button."""
        self.task.start()
        return self

    def wait(self, timeout_s: float | None = None) -> dict[int, Row] | None:
        """Wait for the end; return what was measured."""
        result: dict[int, Row] | None = self.task.wait(timeout_s)
        return result

    def _measure(self, progress: Progress) -> dict[int, Row]:
        self._asked = self.values  # the reader may move controls meanwhile
        kind, elements = (self._asked[name] for name in ("kind", "elements"))
        total = len(LENGTHS) + 1
        progress(0, total, "single NumPy calls")
        calls = calls_of(cpu_chain(kind, max(LENGTHS)))
        large = elements >= PREDICTED_FROM
        cpu = measure_cpu(calls, "fp32", 1, repeats=self._repeats + 2) if large else None
        rows = {}
        for done, length in enumerate(LENGTHS, 1):
            progress(done, total, f"{length} operators")
            graph, sizes = cpu_chain(kind, length), {"N": elements}
            measured = measure(graph, sizes, machine=ALONE, repeats=self._repeats)
            rows[length] = Row(measured, predict(graph, sizes, cpu, machine=ALONE).gain if cpu else None)
        return rows

    def _shown(self, rows: dict[int, Row]) -> None:
        self.found, self._of = rows, self._asked
        self._draw()

    def _follow(self) -> None:
        if not self.found:
            self._draw()
        self._fade()

    def _tables(self) -> Tables:
        kind = self._of["kind"] if self.found else self.values["kind"]
        gains: dict[int, dict[str, float]] = {}
        for length in LENGTHS:
            gains[length] = {"bytes alone": bytes_alone(kind, length)}
            if row := self.found.get(length):
                gains[length] |= {"predicted": row.predicted} if row.predicted else {}
                gains[length] |= {"measured": row.measured.gain}
        spent = {
            length: {
                "unfused": row.measured.unfused_s,
                "unfused, out=": row.measured.unfused_out_s,
                "fused": row.measured.fused_s,
            }
            for length, row in self.found.items()
        }
        return code.gain_rows(gains) | code.spent_rows(spent)

    def _draw(self) -> None:
        rows, said = self._tables(), self._said()
        for view, title in zip(self.views, said, strict=True):
            view.show(rows, title, lay_out=True)
        self.views[1].layout.display = "" if self.found else "none"
        self.status.value = self._text()
        self._fade()

    def _fade(self) -> None:
        """Fade answers that belong to other settings."""
        stale = bool(self.found) and self.values != self._of
        for view in self.views:
            view.stale = stale
        (self.status.add_class if stale else self.status.remove_class)("telekit-stale")

    def _said(self) -> list[str]:
        if not self.found:
            kind = self.values["kind"]
            return [f"By bytes alone: {bytes_alone(kind, 12):.3g} times for 12 operators; measure it", ""]
        last = self.found[LENGTHS[-1]]
        off = [abs(r.predicted / r.measured.gain - 1) for r in self.found.values() if r.predicted]
        said = f"predicted within {max(off):.0%}" if off else "in cache there are no bytes to save"
        return [
            f"{LENGTHS[-1]} operators: {last.measured.gain:.2g} times as quick; {said}",
            f"One more operator costs {_slope(self.found, 'fused_s'):.2g} ms fused, "
            f"{_slope(self.found, 'unfused_s'):.2g} unfused",
        ]

    def _text(self) -> str:
        said = (
            "NumPy operator by operator, each result a fresh array, against the same calls tile by tile in one kernel. "
            "Bytes alone: every operator reads its operands from memory and writes its result. All on one thread."
        )
        if not self.found:
            return f"<span class='telekit-soft'>{html.escape(said)}</span>"
        last = self.found[LENGTHS[-1]].measured
        cells = [
            (f"{last.gain:.2f}", f"gain, {LENGTHS[-1]} operators"),
            (f"{last.gain_over_out:.2f}", "over NumPy with out="),
            (format_seconds(last.encode_s), "to encode"),
            (format_seconds(last.other_shape_s), "first run at a new shape"),
        ]
        if self.found[LENGTHS[-1]].predicted is None:
            said += " Nothing is predicted for tensors that stay in cache: the model knows memory only."
        return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


def bytes_alone(kind: str, operators: int) -> float:
    """Bytes that a chain's operators move one by one, over those of one kernel."""
    graph, on = cpu_chain(kind, operators), known.target(REPORTED)
    one, whole = (cost(graph, make(graph), {"N": 2**20}, on) for make in (Fusion.none, Fusion.whole))
    return one.moved_bytes / whole.moved_bytes


def _slope(found: dict[int, Row], what: str) -> float:
    """Milliseconds that one more operator costs, between the shortest and the longest chain."""
    first, last = min(found), max(found)
    spent: list[float] = [getattr(found[n].measured, what) for n in (first, last)]
    return 1e3 * (spent[1] - spent[0]) / (last - first)


# --- a step of TeleChat3 ------------------------------------------------------------------------------------

STEPS = {"as estimated": 0.0, "1 s": 1.0, "1.5 s": 1.5, "2 s": 2.0, "3 s": 3.0}


def step_explorer() -> Explorer:
    """Estimate what fusion saves a step of TeleChat3-105B on 910B, against two baselines."""
    controls: dict[str, W.Widget] = {
        "share": slide("memory gets", [0.4, 0.5, 0.6, 0.7, 0.8, 1.0], 0.6, costly=True),
        "gap_us": slide("gap γ [µs]", [0.0, 1.0, 2.0, 3.0, 5.0], 2.0, costly=True),
        "launch_us": slide("host λ [µs]", [1.0, 2.0, 5.0, 10.0, 20.0, 50.0], 5.0),
        "step": pick("step, fused", STEPS, 0.0),
    }
    return Explorer(
        controls,
        [charts.part_bars(), charts.share_bars()],
        _step,
        _step_text,
        _step_titles,
        title="One step of TeleChat3-105B",
    )


def _shares(step: float, launch_us: float, **on: Any) -> dict[str, dict[str, float]]:
    """Share of the baseline's step by baseline and side; the host's time goes by its time a launch."""
    found, fused_s = known.saved(On(**on)), step or known.step_s()
    slower = launch_us / REPORTED.launch_us
    return {
        one.baseline: {
            side: spent / (fused_s + spent)
            for side, spent in (("device", one.device_s), ("host", one.host_s * slower))
        }
        for one in (found.low, found.high)
    }


def _by_kind(**on: Any) -> dict[str, dict[str, float]]:
    """Device time saved in a step by kind of work and baseline, the pipeline's bubble included."""
    found = known.saved(On(**on))
    saved = {kind: dict.fromkeys(charts.BASELINES, 0.0) for kind in known.KINDS}
    for part in found.parts:
        for name in charts.BASELINES:
            before = getattr(part, name)
            saved[known.kind_of(part)][name] += part.runs * (before.device_s - part.fused.device_s)
    for one in (found.low, found.high):
        adam = saved["AdamW"][one.baseline]  # runs once, and waits for nobody
        layers = sum(kind[one.baseline] for kind in saved.values()) - adam
        for name, kind in saved.items():
            if name != "AdamW" and layers:
                kind[one.baseline] *= (one.device_s - adam) / layers
    return saved


def _step(step: float, launch_us: float, **on: Any) -> Tables:
    return charts.part_rows(_by_kind(**on)) | charts.share_rows(_shares(step, launch_us, **on))


def _step_titles(step: float, launch_us: float, **on: Any) -> list[str]:
    by_kind, found = _by_kind(**on), known.saved(On(**on))
    most = max(by_kind, key=lambda kind: by_kind[kind]["operators"])
    part = by_kind[most]["operators"] / found.high.device_s
    shares = _shares(step, launch_us, **on)
    low, high = shares["library"]["device"], shares["operators"]["device"]
    return [
        f"Most is saved on {most}: {part:.0%} of {1e3 * found.high.device_s:.0f} ms",
        f"Between {low:.1%} and {high:.1%} of a step: the baseline decides",
    ]


def _step_text(step: float, launch_us: float, **on: Any) -> str:
    found = known.saved(On(**on))
    cells = []
    for one in (found.low, found.high):
        size = f"{one.moved_bytes / MIB / 1024:.3g} GiB"
        cells.append((f"{one.launches:,.0f} launches, {size}", f"fewer than {one.baseline}"))
    said = (
        f"256 x 910B, the average device, full recompute; the fused step is {step or known.step_s():.2f} s"
        f"{'' if step else ', as telekit estimates it'}, whatever else moves. Host time counts only where the "
        "host decides, and then instead of the device's. None of it is measured on 910B."
    )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
