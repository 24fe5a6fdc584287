"""Panels of chapter 3: a fault against the rounding of a layout, rounding by depth and by sum, curves by parts."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)
import numpy as np

from telekit.accuracy.graph.graph_errors import GRADIENT
from telekit.accuracy.miniature.faults import FAULTS
from telekit.accuracy.numerics.parallel_numerics import linear_inputs, row_parallel
from telekit.accuracy.standards.depth import depth_bound, in_epsilons
from telekit.ui import alignment as runs
from telekit.ui import alignment_charts as charts
from telekit.ui import curve_shapes as shapes
from telekit.ui.alignment import CLEAN, FACTOR, LAYOUTS, LINE, ONE_RANK, SAME, Trial
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.panels.apart import figures_line

FIRST_LIMIT, NORM_LIMIT = 0.005, 0.10
"""MindFormers' limits on the first loss and on the norm, here also for the second loss."""
NETWORK = {f.title: name for name, f in FAULTS.items() if f.phase != "optimizer"}
PICKED = {"none: a clean change of layout": CLEAN, "linear_proj times 1 + s": FACTOR} | NETWORK
FACTORS = [0.0, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0]
ORDERS = ["ring", "tree", "sequential"]
SUMMED = (2, 4, 8, 16)
SHARES = [0.0, 0.0025, 0.004, 0.006, 0.01, 0.02]


# --- a fault against rounding -------------------------------------------------------------------------------


def graph_explorer(fault: str = "mask-sees-one-too-far", precision: str = "bf16") -> Explorer:
    """Plant a fault in a split run, and find the first operator that rounding does not explain."""
    controls: dict[str, W.Widget] = {
        "fault": pick("fault", PICKED, fault, columns=2),
        "size": slide("s", FACTORS, 0.1),
        "precision": pick("arithmetic", ["bf16", "fp32"], precision),
        "golden": pick("golden on", [ONE_RANK, SAME], ONE_RANK),
        "layers": slide("layers", [1, 2, 4, 8], 2, costly=True),
        "seed": slide("seed", [0, 1, 2, 3], 0, costly=True),
    }

    def able(_change: Any = None) -> None:
        free = controls["fault"].value == FACTOR
        controls["size"].disabled, controls["size"].readout = not free, free
        deep = (
            "layers.1." in FAULTS[controls["fault"].value].first
            if controls["fault"].value in FAULTS
            else False
        )
        if deep and controls["layers"].value == 1:
            controls["layers"].value = 2  # the fault is in the second layer

    able()
    for name in ("fault", "layers"):
        controls[name].observe(able, "value")
    return Explorer(
        controls,
        [charts.graph_errors_chart(charts.NETWORK), charts.log_chart()],
        _graph,
        _graph_text,
        _graph_titles,
        title="Error by operator, in the order of the graph",
    )


def _trial(fault: str, size: float, **values: Any) -> Trial:
    return Trial(fault, size=size if fault == FACTOR else 0.0, **values)


def _graph(**values: Any) -> Tables:
    trial = _trial(**values)
    dtype = trial.epsilon_format
    target, clean = (runs.network_errors(runs.errors(trial, clean=it)) for it in (False, True))
    first = runs.first_off(target, dtype)
    told = runs.told(trial)
    checks = (
        ("step-1 loss", told.first_loss, FIRST_LIMIT),
        ("step-1 norm", told.first_norm, NORM_LIMIT),
        ("step-2 loss", told.second_loss, FIRST_LIMIT),
    )
    return charts.graph_rows(target, clean, dtype, LINE[dtype], first) | charts.log_rows(checks)


def _graph_titles(**values: Any) -> list[str]:
    trial = _trial(**values)
    dtype = trial.epsilon_format
    target, clean = (runs.network_errors(runs.errors(trial, clean=it)) for it in (False, True))
    first = runs.first_off(target, dtype)
    usual = runs.worst(clean, dtype)
    below = (
        "all that is right is equal to the bit"
        if usual == 0
        else f"a clean change of layout stays below {_up(usual)} ε"
    )
    if trial.fault == CLEAN and first is None:
        said = f"Nothing is off: {below}"
    elif first is None:
        said = f"The fault hides in rounding: no operator is off by {LINE[dtype]:g} ε; {below}"
    else:
        said = f"First off is {first.label}, by {first.epsilons(dtype):.3g} ε; {below}"
    bad = [str(row["check"]) for row in _graph(**values)["log"] if row["result"] == "error"]
    log = "The log is out of limits: " + ", ".join(bad) if bad else "The log is within all limits"
    return [said, log]


def _up(value: float) -> str:
    """Round up to two figures, so that "below" is true."""
    digits = 1 - int(np.floor(np.log10(value)))
    return (
        f"{np.ceil(value * 10.0**digits) / 10.0**digits:.{max(digits, 0)}f}"
        if value < 1e4
        else f"{value:.1e}"
    )


def _graph_text(**values: Any) -> str:
    trial = _trial(**values)
    dtype = trial.epsilon_format
    found = runs.network_errors(runs.errors(trial))
    off = [e for e in found if runs.is_off(e, dtype)]
    cells = [
        (f"{runs.worst(found, dtype):.3g} ε", "largest error"),
        (str(len(off)), f"of {len(found)} outputs off"),
        (f"{in_epsilons(1, dtype) ** -1:.3g}", f"ε of {trial.precision}"),
    ]
    story = FAULTS[trial.fault].lesson if trial.fault in FAULTS else ""
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(story)}</span>"


# --- rounding by depth and by sum ---------------------------------------------------------------------------


def rounding_explorer(layers: int = 8) -> Explorer:
    """Follow rounding through the layers of a backward pass, and through the sum of a row-parallel layer."""
    controls = {
        "layout": pick("layout", list(LAYOUTS), "tp 4"),
        "order": pick("order", ORDERS, "ring"),
        "layers": slide("layers", [2, 4, 8, 12, 16], layers, costly=True),
        "precision": pick("arithmetic", ["bf16", "fp32"], "bf16"),
        "inner": slide("inner K", [256, 1024, 4096], 1024, costly=True),
    }
    views = [charts.depth_chart(), charts.sums_chart()]
    return Explorer(
        controls, views, _rounding, _rounding_text, _rounding_titles, title="What a layout does to rounding"
    )


def _gradients(layout: str, order: Any, layers: int, precision: Any) -> tuple[Any, str]:
    trial = Trial(layout=layout, order=order, layers=layers, precision=precision)
    found = tuple(
        e for e in runs.errors(trial, clean=True) if e.phase == GRADIENT and e.label.endswith("reduced")
    )
    return found, trial.epsilon_format


def _bound(layers: int, dtype: str) -> list[float]:
    return [in_epsilons(depth_bound(layer, dtype, layers=layers), dtype) for layer in range(layers)]


@lru_cache(maxsize=8)
def _sums(inner: int) -> list[dict[str, object]]:
    x, w = linear_inputs(32, inner, 32)
    rows: list[dict[str, object]] = []
    for how in charts.SUMS:
        order, kind = how.split(", ")
        for tp in SUMMED:
            found = row_parallel(x, w, tp, order=order, reduce=runs.FORMATS[kind])
            rows.append(
                {"how": how, "tp": tp, "epsilons": found.epsilons, "expected": found.expected_epsilons}
            )
    return rows


def _rounding(inner: int, **values: Any) -> Tables:
    found, dtype = _gradients(**values)
    return charts.depth_rows(found, dtype, _bound(values["layers"], dtype)) | {"sums": _sums(inner)}


def _rounding_titles(inner: int, **values: Any) -> list[str]:
    found, dtype = _gradients(**values)
    bound = _bound(values["layers"], dtype)
    own = [e for e in found if e.layer is not None]
    most = max(own, key=lambda e: e.error)
    over = [e for e in own if e.layer is not None and e.epsilons(dtype) > bound[e.layer]]
    size = f"at most {most.epsilons(dtype):.2g} ε, in layer {most.layer}"
    if not most.error:
        said = "No gradient differs: this layout cuts no sum"
    elif over:
        said = f"{len(over)} of {len(own)} clean gradients are above the bound: {size}"
    else:
        said = f"Clean gradients stay below the bound: {size}"
    at = {str(r["how"]): float(str(r["epsilons"])) for r in _sums(inner) if r["tp"] == SUMMED[-1]}
    return [
        said,
        f"Over {SUMMED[-1]} ranks a ring in bf16 costs {at['ring, bf16']:.2f} ε, in fp32 {at['ring, fp32']:.2f}",
    ]


def _rounding_text(inner: int, **values: Any) -> str:
    found, dtype = _gradients(**values)
    layers = values["layers"]
    cells = [
        (f"{np.median([e.epsilons(dtype) for e in found]):.2g} ε", "median of all gradients"),
        (f"{_bound(layers, dtype)[0]:.3g} ε", "bound in layer 0"),
        (f"{in_epsilons(depth_bound(0)):.3g} ε", "bound of a model of 32 layers"),
    ]
    said = (
        "Dashed on the right: what independent roundings would give. Golden has one rank; nothing is a fault."
    )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- curves by parts ----------------------------------------------------------------------------------------


def curves_explorer() -> Explorer:
    """Shape a target's loss, and read the verdicts of several standards part by part."""
    controls = {
        "first": slide("first step", SHARES, 0.01),
        "drift": slide("drift", [0.0, 0.005, 0.01, 0.02, 0.03, 0.04], 0.0),
        "outliers": slide("outliers", [0, 1, 2, 5, 12], 0),
        "noise": slide("noise", [0.0, 0.0005, 0.001, 0.002, 0.005, 0.01], 0.001),
        "runs": slide("golden runs", [0, 1, 2, 3], 0),
    }
    for name in ("first", "drift", "noise"):
        control = controls[name]
        control.options = [(f"{100 * value:g} %", value) for _, value in control.options]
        control.value = {"first": 0.01, "drift": 0.0, "noise": 0.001}[name]
    views = [charts.curve_chart(230), charts.verdict_chart(320, 260)]
    return Explorer(
        controls, views, _curves, _curves_text, _curves_titles, title="Loss curves, judged by parts"
    )


def _curves(**values: Any) -> Tables:
    shape = shapes.Shape(**values)
    target, golden, _ = shapes.pair(shape)
    share = target.columns["lm loss"] / golden.columns["lm loss"] - 1
    limit = shapes.judged(shape).mean_limit
    every = slice(None, None, 2) if not shape.outliers else slice(None)
    series = {"loss": (target.steps[every].tolist(), share[every].tolist())}
    band = 0.01 if limit is None or limit.relative is None else limit.relative
    return charts.curve_rows(series, band) | charts.verdict_rows(shapes.parts(shape), 50)


def _curves_titles(**values: Any) -> list[str]:
    shape = shapes.Shape(**values)
    found = shapes.judged(shape)
    others = {name: shapes.judged(shape, name).result for name in shapes.STANDARDS}
    passing = [name for name, result in others.items() if result == "pass"]
    return [
        f"{found.shape[0].upper()}{found.shape[1:]}: mean error {found.mean['mre']:.2%}",
        f"MindFormers says {found.result}; {len(passing)} of {len(others)} others pass it",
    ]


def _curves_text(**values: Any) -> str:
    found = shapes.judged(shapes.Shape(**values))
    noise = found.self_noise
    own = "unknown" if noise is None else f"{noise['mre']:.2%}"
    said = f"Suspect: {found.suspect.cause}: {found.suspect.evidence}. Next: {found.suspect.next}."
    cells = [(found.result, "MindFormers' verdict"), (own, "golden's self-noise, in the mean")]
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
