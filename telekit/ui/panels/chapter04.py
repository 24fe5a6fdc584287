"""Panels of chapter 4: one schedule over time, schedules on one basis, and when a better one pays."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)
import numpy as np

from telekit.errors import InputError
from telekit.pipeline.bubbles import Bubbles, bubbles
from telekit.pipeline.registry import EVERY, get
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times
from telekit.ui import schedules as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.gantt import gantt
from telekit.ui.known_schedules import PAIRED, Case, Standing, by_formula, compare, order_of, takes, timed
from telekit.ui.panels.apart import figures_line

STAGES = [2, 4, 6, 8, 12, 16]
MICRO_BATCHES = [2, 4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 256]
TIMES = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0]
COMM = [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0]
CHUNKS = [2, 3, 4, 6, 8]
SLOWER = {"as the others": 0.0} | {f"{x:.0%} slower": x for x in (0.1, 0.25, 0.5, 1.0)}
OVERLAP = {"one block, no gain": 1.0, "one block, 5/6": 5 / 6, "one block, 2/3": 2 / 3, "F, then B": 0.0}
DEVICES = {"the first": 0.0, "the middle one": 0.5, "the last": 1.0}

CURVES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe")
MOST = 256
LARGE, SEARCHED = 40_000, 8_000
"""Operations from which a schedule is not redrawn while a slider is held: of a fixed order, of a searched one."""
TRADE = (1, 2, 4, 8)


# --- one schedule over time ---------------------------------------------------------------------------------


def schedule_explorer(schedule: str = "1f1b", stages: int = 4, micro_batches: int = 8) -> Explorer:
    """Run one schedule: who does what when, and what a device holds meanwhile."""
    controls: dict[str, W.Widget] = {
        "schedule": pick("schedule", list(EVERY), schedule),
        "stages": slide("stages p", STAGES, stages),
        "micro_batches": slide("batches m", MICRO_BATCHES, micro_batches),
        "forward": slide("F", TIMES, 1.0),
        "input": slide("B (inputs)", TIMES, 1.0),
        "weight": slide("W (weights)", TIMES, 1.0),
        "comm": slide("comm", COMM, 0.0),
        "slower": pick("last device", SLOWER, 0.0),
        "device": pick("memory of", DEVICES, 0.0),
        "chunks": slide("chunks v", [1, *CHUNKS], 2),
        "pieces": slide("pieces", [1, 2, 4, 8], 2),
        "overlap": pick("F with B", OVERLAP, 1.0),
    }

    def able(_change: Any = None) -> None:
        values = {name: control.value for name, control in controls.items()}
        name = values["schedule"]
        for option, has in (("chunks", takes(name, "chunks")), ("pieces", takes(name, "sequence_chunks"))):
            controls[option].disabled, controls[option].readout = (
                not has,
                has,
            )  # no number that does not count
        controls["overlap"].disabled = name not in PAIRED
        del values["device"]
        fluid = not costly(Case(**values))
        for control in controls.values():
            if isinstance(control, W.SelectionSlider):
                control.continuous_update = fluid

    able()
    for name in ("schedule", "stages", "micro_batches", "chunks", "pieces"):
        controls[name].observe(able, "value")
    return Explorer(
        controls,
        [gantt(height=220, time="time", kinds=charts.SPLIT), charts.held_over_time()],
        _timeline,
        _timeline_text,
        _timeline_titles,
        title="One schedule, step by step",
    )


def costly(case: Case) -> bool:
    """Whether a case takes long: it is redrawn when the hand lets go, not on the way."""
    chunks = case.chunks if takes(case.schedule, "chunks") else get(case.schedule).chunks
    pieces = case.pieces if takes(case.schedule, "sequence_chunks") else 1
    size = 2 * case.stages * case.micro_batches * chunks * pieces
    return size >= (SEARCHED if takes(case.schedule, "passes") else LARGE)


def _timeline(device: float, **values: Any) -> Tables:
    found = timed(Case(**values))
    chosen = round(device * (found.order.stages - 1))
    return charts.timeline_rows(found) | charts.held_rows(found, chosen)


def _timeline_titles(device: float, **values: Any) -> list[str]:
    found = timed(Case(**values))
    end, peaks = float(found.makespan_s), found.peak_activations
    idle = f"a device idles {found.bubble_fraction:.1%} of it"
    most, least = int(peaks.argmax()), int(peaks.argmin())
    held = (
        f"Device {most} holds most, {peaks[most]:.3g} micro-batches; device {least} least, {peaks[least]:.3g}"
    )
    if peaks[most] == peaks[least]:
        held = f"Every device holds up to {peaks[most]:.3g} micro-batches"
    return [f"{found.order.schedule} ends after {end:.5g}; {idle}", held]


def _timeline_text(device: float, **values: Any) -> str:
    case = Case(**values)
    found = timed(case)
    cells = [
        (f"{found.makespan_s:.5g}", "makespan"),
        (f"{found.bubble_fraction:.1%}", "idle, of all time"),
        (f"{found.bubble_fraction_of_ideal:.1%}", "of work"),
        (f"{found.bubble_fraction_of_span:.1%}", "of the longest span"),
        (f"{found.peak_activations.max():.3g}", "held at most"),
    ]
    said = f"{_causes(bubbles(found))} {by_formula(case)}"
    if costly(case):
        said += " So large a case is drawn anew when you let go of a slider."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


def _causes(idle: Bubbles) -> str:
    """Say what the idle time of a device, on average, is made of."""
    parts = {
        "before its first start": idle.warm_up,
        "after its last end": idle.drain,
        "in between": idle.gaps,
        "for communication": idle.communication,
        "for unequal devices": idle.imbalance,
    }
    means = {name: float(np.mean(values)) for name, values in parts.items()}
    listed = ", ".join(f"{value:.3g} {name}" for name, value in means.items() if abs(value) > 1e-9)
    return f"A device idles {float(np.mean(idle.total)):.4g} on average: {listed or 'never'}."


# --- schedules on one basis ---------------------------------------------------------------------------------


def basis_explorer(stages: int = 8, micro_batches: int = 16) -> Explorer:
    """Run every schedule on the same devices, micro-batches and times."""
    controls = {
        "stages": slide("stages p", STAGES, stages, costly=True),
        "micro_batches": slide("batches m", MICRO_BATCHES[:-3], micro_batches, costly=True),
        "chunks": slide("chunks v", CHUNKS, 2, costly=True),
        "forward": slide("F", TIMES, 1.0, costly=True),
        "input": slide("B (inputs)", TIMES, 1.0, costly=True),
        "weight": slide("W (weights)", TIMES, 1.0, costly=True),
        "comm": slide("comm", COMM, 0.0, costly=True),
        "overlap": pick("F with B", OVERLAP, 1.0),
    }
    views = [
        charts.basis_bars("bubble", "bubble, of all time", 310, names=True),
        charts.basis_bars("held", "most micro-batches held by a device", 310, names=False),
    ]
    return Explorer(controls, views, _basis, _basis_text, _basis_titles, title="Schedules on one basis")


def _basis(**values: Any) -> Tables:
    found = compare(Case("1f1b", **values))
    return charts.basis_rows({name: it for name, it in found.items() if isinstance(it, Standing)})


def _basis_titles(**values: Any) -> list[str]:
    rows = _basis(**values)["basis"]
    least: Any = min(rows, key=lambda row: (row["bubble"], row["held"]))
    lean: Any = min(rows, key=lambda row: (row["held"], row["bubble"]))
    alike = sum(row["held"] <= lean["held"] + charts.SAME for row in rows)
    holds = f"{lean['schedule']} holds least, {lean['held']:.3g}, and idles {lean['bubble']:.1%}"
    if alike > 1:
        who = "All" if alike == len(rows) else f"{alike} schedules"
        few = "" if alike == len(rows) else ", the least"
        holds = f"{who} hold {lean['held']:.3g}{few}; of these {lean['schedule']} idles least, {lean['bubble']:.1%}"
    return [f"{least['schedule']} idles least, {least['bubble']:.1%}", holds]


def _basis_text(**values: Any) -> str:
    found = compare(Case("1f1b", **values))
    refused = [(name, it) for name, it in found.items() if isinstance(it, InputError)]
    said = "".join(
        f"<li>{html.escape(name)}: {html.escape('; '.join(p.rule for p in it.problems))}</li>"
        for name, it in refused
    )
    return f"<span class='telekit-soft'>Not at these sizes:<ul>{said}</ul></span>" if said else ""


# --- when it pays -------------------------------------------------------------------------------------------


def pays_explorer(stages: int = 8) -> Explorer:
    """Follow the bubble over micro-batches, and the idle time of interleaving over chunks."""
    controls = {
        "stages": slide("stages p", [2, 4, 8, 16], stages, costly=True),
        "micro_batches": slide("batches m", [16, 32, 64, 128, MOST], 16, costly=True),
        "chunks": slide("chunks v", CHUNKS, 2),
        "comm": slide("comm", COMM, 0.0),
    }
    views = [charts.bubble_over_micro_batches(), charts.interleaving_trade()]
    return Explorer(controls, views, _pays, _pays_text, _pays_titles, title="When does it pay?")


@lru_cache(maxsize=256)
def _over_comm(case: Case) -> tuple[float, ...] | None:
    """Bubbles of all time of a case's order at every setting of ``comm``; None where it does not run.

    All at once: timing an order for many settings costs hardly more than for one.
    """
    try:
        order = order_of(case)
    except InputError:
        return None
    forward, backward_input, weight, pair, _ = case.passes
    comm = np.array(COMM)[:, None]
    found = run(order, Times.of_stages(order.part, forward, backward_input, weight, pair, comm))
    return tuple(np.asarray(found.bubble_fraction).tolist())


def _curves(stages: int, chunks: int, comm: float) -> dict[str, dict[int, float]]:
    """Bubble of all time by schedule and micro-batches, where the schedule allows their number."""
    curves: dict[str, dict[int, float]] = {}
    for name in CURVES:
        sizes = [2**i for i in range(1, MOST.bit_length()) if stages <= 2**i]
        free = {
            m: _over_comm(Case(name, stages, m, chunks=chunks if takes(name, "chunks") else 2)) for m in sizes
        }
        curves[name] = {m: found[COMM.index(comm)] for m, found in free.items() if found}
    return curves


@lru_cache(maxsize=64)
def _interleaved(stages: int, micro_batches: int, chunks: int) -> tuple[Bubbles, float]:
    """Idle time at every setting of ``comm``, and peak activations, of interleaved 1F1B; one chunk is 1F1B."""
    order = order_of(
        Case("1f1b" if chunks == 1 else "interleaved-1f1b", stages, micro_batches, chunks=chunks)
    )
    found = run(order, Times.of_stages(order.part, 1.0, 1.0, 1.0, None, np.array(COMM)[:, None]))
    return bubbles(found), float(found.peak_activations.max())


def _trade(stages: int, micro_batches: int, comm: float) -> dict[int, charts.Trade]:
    """Idle time and peak activations of interleaved 1F1B by chunks."""
    at, trade = COMM.index(comm), {}
    for chunks in TRADE:
        idle, held = _interleaved(stages, micro_batches, chunks)
        total, waits = (float(np.mean(values[at])) for values in (idle.total, idle.communication))
        trade[chunks] = charts.Trade(total - waits, waits, held)
    return trade


def _pays(stages: int, micro_batches: int, chunks: int, comm: float) -> Tables:
    rows: list[dict[str, object]] = [
        {"schedule": name, "micro_batches": n, "bubble": bubble}
        for name, curve in _curves(stages, chunks, comm).items()
        for n, bubble in curve.items()
    ]
    here: Tables = {"curves": rows, "here": [{"micro_batches": micro_batches}]}
    return here | charts.trade_rows(_trade(stages, micro_batches, comm))


def _at(stages: int, micro_batches: int, chunks: int, comm: float) -> dict[str, float]:
    """Bubbles at one number of micro-batches."""
    curves = _curves(stages, chunks, comm)
    return {name: curve[micro_batches] for name, curve in curves.items() if micro_batches in curve}


def _pays_titles(stages: int, micro_batches: int, chunks: int, comm: float) -> list[str]:
    here = _at(stages, micro_batches, chunks, comm)
    best = min(here, key=lambda name: here[name])
    saved = 1 - (1 - here["1f1b"]) / (1 - here[best])
    totals = {v: it.own + it.comm for v, it in _trade(stages, micro_batches, comm).items()}
    fewest = min(totals, key=lambda v: (totals[v], v))
    chunk = f"{fewest} chunk{'s' * (fewest > 1)} a device"
    return [
        f"At {micro_batches} micro-batches {best} shortens 1F1B's step by {saved:.1%}",
        f"Interleaved, {chunk} idle{'s' * (fewest == 1)} least: {totals[fewest]:.3g} instead of {totals[1]:.3g}",
    ]


def _pays_text(stages: int, micro_batches: int, chunks: int, comm: float) -> str:
    here = _at(stages, micro_batches, chunks, comm)
    cells = [(f"{bubble:.1%}", name) for name, bubble in here.items()]
    said = "F = B = W = 1 on every device. Orders are those for free communication. "
    said += "DualPipe needs at least 2 p micro-batches; its pairs are one block of 3."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
