"""Panels of chapter 10: predicted against measured, published curves, what bends a curve, and a whole run."""

from __future__ import annotations

import html
import math
from functools import cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)
import numpy as np

from telekit.cluster.variability import Spread, slowest
from telekit.cost.scaling import PARTS, Point, jittered
from telekit.cost.scaling_failures import (
    Failures,
    best_interval_s,
    effective_rate,
    first_order_rate,
    job_mtbf_s,
    time_shares,
)
from telekit.cost.scaling_run import BEYOND, HOUR_S, Run, whole_run
from telekit.errors import InputError, bad
from telekit.ui import known_scaling as known
from telekit.ui import results
from telekit.ui import scaling_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_scaling import DETECT_S, RECOVER_S
from telekit.ui.panels.apart import figures_line

# --- predicted against measured -----------------------------------------------------------------------------

KINDS = {"time of a step": "step_time", "memory of a device": "memory", "time of one kernel": "kernel"}
ALL = "all"
SPLITS = {"all rows": ALL, "held out": results.HELD, "for fitting": results.FITTED}


def errors_explorer() -> Explorer:
    """Put every published row of the scoreboard beside our estimate."""
    controls: dict[str, W.Widget] = {
        "kind": pick("what", KINDS, "step_time"),
        "split": pick("rows", SPLITS, ALL),
        "source": pick("highlight", [ALL, *results.FAMILIES], ALL),
    }
    views = [results.predicted_and_measured(), results.errors_by_group()]
    return Explorer(
        controls, views, _errors, _errors_text, _errors_titles, title="Predicted against measured"
    )


@cache
def _scored(kind: str, split: str) -> tuple[dict[str, Any], ...]:
    mine = (row for row in known.scoreboard()["rows"] if row["kind"] == kind and row["verified"])
    return tuple(row for row in mine if split in (ALL, results.split_of(row)))


def _found(kind: str, split: str) -> tuple[dict[str, Any], ...]:
    found = _scored(kind, split)
    if not found:
        raise bad("rows", "for fitting", "no memory constant was fitted: all these rows are held out")
    return found


def _errors(kind: str, split: str, source: str) -> Tables:
    return results.run_rows(_found(kind, split), None if source == ALL else source)


def _errors_titles(kind: str, split: str, source: str) -> list[str]:
    found = [row for row in _found(kind, split) if source in (ALL, results.family(row["group"]))]
    return results.run_titles(found or list(_found(kind, split)))


def _errors_text(kind: str, split: str, source: str) -> str:
    shown = {row["group"] for row in _found(kind, split) if source == results.family(row["group"])}
    said = "Filled: held out from every fit; hollow: constants may have been fitted on them."
    if source == ALL:
        return f"<span class='telekit-soft'>{said} Point at a dot for its run.</span>"
    items = [
        f"<li>{html.escape(group['name'])}: {html.escape(row['id'])} {row['error']:+.0%} "
        f"({html.escape(row['reason'])})</li>"
        for group in known.scoreboard()["groups"]
        if group["name"] in shown
        for row in group["worst"][:1]
    ]
    return f"<span class='telekit-soft'>{said} The worst of each group:<ul>{''.join(items)}</ul></span>"


# --- published curves ---------------------------------------------------------------------------------------

SHARES = {"speed of a device": "speed", "MFU": "mfu"}


def curves_explorer() -> Explorer:
    """Lay our estimates over published curves of strong scaling."""
    controls: dict[str, W.Widget] = {
        "run": pick("run", list(known.CURVES), next(iter(known.CURVES)), columns=2),
        "share": pick("right chart", SHARES, "speed"),
    }
    views = [charts.scaled(), charts.scaled(what="share")]
    return Explorer(controls, views, _curves, _curves_text, _curves_titles, title="Published curves")


def _ours(run: str) -> list[Point]:
    return [known.step(run, devices) for devices in known.curve(run).devices]


def _share(speed: float, first: float, run: str, share: str) -> float:
    """Speed of a device over that of the curve's first point, or as MFU by Megatron-LM's count."""
    if share == "speed":
        return speed / first
    job = known.curve(run).job
    return float(speed * known.megatron_flops(job) / job.cluster.device.peak("bf16"))


def _curves(run: str, share: str) -> Tables:
    measured, ours = known.curve(run).measured, _ours(run)
    firsts = {m.method: m.tokens_per_s_per_device for m in reversed(measured)}
    published: list[dict[str, object]] = [
        {
            "method": m.method,
            "devices": m.devices,
            "total": m.tokens_per_s_per_device * m.devices,
            "share": _share(m.tokens_per_s_per_device, firsts[m.method], run, share),
        }
        for m in measured
    ]
    first = ours[0].tokens_per_s_per_device
    estimated: list[dict[str, object]] = [
        {
            "method": charts.OURS,
            "devices": p.devices,
            "total": p.tokens_per_s,
            "share": _share(p.tokens_per_s_per_device, first, run, share),
        }
        for p in ours
    ]
    begin = measured[0].tokens_per_s_per_device
    linear: list[dict[str, object]] = [
        {
            "devices": p.devices,
            "total": begin * p.devices,
            "share": _share(begin, begin, run, share),
            "last": p is ours[-1],
        }
        for p in ours
    ]
    return {"published": published, "ours": estimated, "linear": linear}


def _ends(run: str) -> dict[str, float]:
    """Speed of a device at the last point over that at the first, by method, and ours."""
    found: dict[str, list[float]] = {}
    for m in known.curve(run).measured:
        found.setdefault(m.method, []).append(m.tokens_per_s_per_device)
    found[charts.OURS] = [p.tokens_per_s_per_device for p in _ours(run)]
    return {method: speeds[-1] / speeds[0] for method, speeds in found.items()}


def _curves_titles(run: str, share: str) -> list[str]:
    ours, ends = _ours(run), _ends(run)
    times = ours[-1].devices / ours[0].devices
    first = known.curve(run).measured[0].method
    said = ", ".join(f"{method} {end:.0%}" for method, end in ends.items())
    return [
        f"{times:.2g} times the devices, {times * ends[first]:.2f} times the tokens ({first})",
        f"A device keeps of its speed: {said}",
    ]


def _curves_text(run: str, share: str) -> str:
    found = known.curve(run)
    pairs = zip(found.measured, _ours(run), strict=False)
    errors = [(p.devices, p.step_s / m.step_s - 1) for m, p in pairs]
    cells = [(f"{error:+.1%}", f"our step at {devices:,}") for devices, error in errors]
    layout = found.job.layout
    said = f"tp {layout.tp}, pp {layout.pp}, {layout.vpp} chunks a device; only dp grows. "
    if any(m.method == known.MEGASCALE for m in found.measured):
        said += (
            "MegaScale's own rows have attention and MLP side by side and windows whose width is not published: "
            "they are drawn, not estimated."
        )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- what bends the curve -----------------------------------------------------------------------------------

RUN = "GPT 175B, batch 6,144"
DEVICES = (256, 512, 1024, 3072, 6144, 12288)
BATCHES = [768, 1536, 3072, 6144, 12288]
JITTERS = [0.0, 0.25, 0.5, 1.0, 2.0, 5.0]
TAILS: dict[str, Spread] = {"normal": "normal", "exponential tail": "exponential", "heavy tail": "pareto"}
NETWORKS = [0.25, 0.5, 1.0, 2.0, 4.0]
NEVER = math.inf
MTBF_KH = {
    "10,000 h": 10.0,
    "25,000 h": 25.0,
    "50,000 h (Llama 3)": 50.677,
    "100,000 h": 100.0,
    "never": NEVER,
}
MINUTES = [2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 240]
STALLS = [1, 5, 10, 30, 60, 120]


def bends_explorer() -> Explorer:
    """Bend the curve of a 175B model on up to 12,288 A100."""
    controls: dict[str, W.Widget] = {
        "batch": slide("largest batch", BATCHES, 6144),
        "weak": pick("scaling", {"strong: batch fixed": False, "weak: batch grows": True}, False),
        "network": slide("network x", NETWORKS, 1.0),
        "jitter": slide("jitter [%]", JITTERS, 0.5),
        "spread": pick("its shape", TAILS, "normal"),
        "mtbf": pick("device fails", MTBF_KH, 50.677),
        "minutes": slide("save [min]", MINUTES, 30),
        "stall": slide("stall [s]", STALLS, 30),
    }
    views = [charts.efficiency(DEVICES), charts.spent()]
    return Explorer(controls, views, _bends, _bends_text, _bends_titles, title="What bends the curve")


def _step(devices: int, batch: int, weak: bool, network: float) -> Point | None:
    """One point; None where the batch does not go onto so many ranks. Weak scaling ends at the batch."""
    try:
        return known.step(RUN, devices, batch * devices // DEVICES[-1] if weak else batch, network)
    except InputError:
        return None


def _failures(mtbf: float, devices: int, stall: float) -> Failures | None:
    if math.isinf(mtbf):
        return None
    return Failures(job_mtbf_s(mtbf * 1e3 * HOUR_S, devices), DETECT_S, RECOVER_S, stall)


def _spent_at(
    devices: int,
    *,
    batch: int,
    weak: bool,
    network: float,
    jitter: float,
    spread: Spread,
    mtbf: float,
    minutes: float,
    stall: float,
) -> tuple[Point, dict[str, float]] | None:
    """One point with its jitter, and shares of a device's time by part of a run."""
    point = _step(devices, batch, weak, network)
    if point is None:
        return None
    point = jittered(point, jitter / 100, spread)
    failures = _failures(mtbf, devices, stall)
    useful, beyond = 1.0, dict.fromkeys(BEYOND, 0.0)
    if failures is not None:
        shares = time_shares(minutes * 60.0, failures)
        useful, beyond = shares.useful, {name: getattr(shares, name) for name in BEYOND}
    return point, {name: useful * point.parts[name] / point.step_s for name in PARTS} | beyond


def _points(**values: Any) -> dict[int, tuple[Point, dict[str, float]]]:
    found = {devices: _spent_at(devices, **values) for devices in DEVICES}
    kept = {devices: it for devices, it in found.items() if it is not None}
    if len(kept) < 2:
        raise bad("batch", values["batch"], "leaves a rank fewer micro-batches than the pipeline has stages")
    return kept


def _useful(parts: dict[str, float]) -> float:
    return sum(parts[name] for name in PARTS)


def _shares(points: dict[int, tuple[Point, dict[str, float]]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    first, parts = next(iter(points.values()))
    for name, count in (("steps alone", False), ("with failures", True)):
        base = first.tokens_per_s_per_device * (_useful(parts) if count else 1.0)
        for devices, (point, spent) in points.items():
            speed = point.tokens_per_s_per_device * (_useful(spent) if count else 1.0)
            rows.append({"line": name, "devices": devices, "share": speed / base})
    return rows


def _bends(**values: Any) -> Tables:
    points = _points(**values)
    spent = charts.spent_rows({devices: parts for devices, (_, parts) in points.items()})
    return {"efficiency": _shares(points), "spent": spent}


def _bends_titles(**values: Any) -> list[str]:
    points = _points(**values)
    rows = {(row["line"], row["devices"]): row["share"] for row in _shares(points)}
    first, last = (list(points)[i] for i in (0, -1))
    alone, whole = (rows[name, last] for name in charts.LINES)
    grown = {
        part: sum(points[last][1][n] - points[first][1][n] for n in names)
        for part, names in charts.SPENT.items()
        if part != "computing"
    }
    most = max(grown, key=lambda part: grown[part])
    return [
        f"{last:,} devices keep {alone:.0%} of {first:,}'s speed each, {whole:.0%} with failures",
        f"Computing takes {points[last][1]['work']:.0%} at {last:,}; {most} grew most ({grown[most]:+.1%})",
    ]


def _bends_text(**values: Any) -> str:
    points = _points(**values)
    last = list(points)[-1]
    point, parts = points[last]
    cells = [
        (f"{point.step_s:.2f} s", f"step at {last:,}"),
        (f"{point.micro_batches}", "micro-batches a rank"),
        (f"{point.global_batch:,}", "sequences a step"),
        (f"{_useful(parts):.1%}", "of the time are steps that count"),
    ]
    failures = _failures(values["mtbf"], last, values["stall"])
    said = f"{values['jitter']:g} % of jitter: the slowest of {last:,} takes "
    said += f"{slowest(last, values['jitter'] / 100, values['spread']) - 1:.1%} longer than the mean. "
    if failures is not None:
        best = best_interval_s(failures) / 60
        said += f"The job fails every {failures.mtbf_s / HOUR_S:.1f} h; the best interval there is {best:.0f} min. "
    if last != DEVICES[-1]:
        stages = known.gpt_175b().layout.pp
        said += f"Beyond {last:,} devices a rank would have too few micro-batches for {stages} stages."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- a whole run --------------------------------------------------------------------------------------------

PLACES = {"as published": 1.0, "half": 0.5, "twice": 2.0}
PRICES = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]


def run_explorer() -> Explorer:
    """Pay for a whole run: steps, checkpoints, failures."""
    controls: dict[str, W.Widget] = {
        "run": pick("run", list(known.RUNS), "DeepSeek-V3"),
        "place": pick("devices", PLACES, 1.0),
        "mtbf": pick("device fails", MTBF_KH, 50.677),
        "minutes": slide("save [min]", MINUTES, 30),
        "stall": slide("stall [s]", STALLS, 30),
        "price": slide("$ an hour", PRICES, 2.0),
    }
    views = [charts.intervals(), charts.hours()]
    return Explorer(controls, views, _run, _run_text, _run_titles, title="A whole run")


def _whole(run: str, place: float, mtbf: float, minutes: float, stall: float) -> tuple[Run, Failures | None]:
    _, row = known.run_of(run)
    point = known.run_step(run, place)
    failures = _failures(mtbf, point.devices, stall)
    return whole_run(point, row["train_tokens"], failures, minutes * 60.0), failures


def _run(run: str, place: float, mtbf: float, minutes: float, stall: float, price: float) -> Tables:
    found, failures = _whole(run, place, mtbf, minutes, stall)
    tables: Tables = {"hours": charts.hour_rows(found.hours)}
    if failures is None:
        return tables | {"rates": [], "marks": []}
    grid = np.geomspace(max(1.0, 1.05 * stall / 60), 1000, 60)
    curve = [
        (m, effective_rate(60 * m, failures), max(first, 0.0) if first > -0.2 else None)
        for m in grid.tolist()
        for first in [first_order_rate(60 * m, failures)]
    ]
    best = best_interval_s(failures)
    marks = {"yours": (float(minutes), effective_rate(60.0 * minutes, failures))}
    marks["best"] = (best / 60, effective_rate(best, failures))
    if abs(math.log(best / 60 / minutes)) < 0.1:
        marks = {"yours, best": marks["yours"]}
    return tables | charts.interval_rows(curve, marks)


def _run_titles(run: str, place: float, mtbf: float, minutes: float, stall: float, price: float) -> list[str]:
    found, failures = _whole(run, place, mtbf, minutes, stall)
    _, row = known.run_of(run)
    first = "It never fails: every hour is a step"
    if failures is not None:
        best = best_interval_s(failures)
        first = f"Every {minutes} min {found.effective_rate:.1%} is useful; every {best / 60:.0f} min, "
        first += f"the best, {effective_rate(best, failures):.1%}"
    total = f"{found.device_hours / 1e6:.2f} M device-hours; published {row['device_hours'] / 1e6:.3f} M"
    return [first, total]


def _run_text(run: str, place: float, mtbf: float, minutes: float, stall: float, price: float) -> str:
    found, _ = _whole(run, place, mtbf, minutes, stall)
    published, row = known.run_of(run)
    cells = [
        (f"{found.devices:,}", f"{row['gpu']} devices"),
        (f"{found.days:.0f} days", f"for {row['train_tokens'] / 1e12:g} T tokens"),
        (f"{found.effective_rate:.1%}", "effective"),
        (f"$ {found.price(price) / 1e6:.2f} M", f"at $ {price:g} an hour"),
    ]
    said = f"Published: {row['notes']}. Ours: every step as long as the estimated one ({published.id})."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
