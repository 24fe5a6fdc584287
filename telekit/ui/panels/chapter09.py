"""Panels of chapter 9 on models: host-bound and device-bound, the idle mode, the slowest of many."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)
import numpy as np

from telekit.cluster.jitter import Jitter
from telekit.cluster.regimes import IdleFrequency, Issued, Monitor, bound_by, issue
from telekit.cluster.variability import Spread
from telekit.ui import cluster_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.panels.apart import figures_line
from telekit.units import format_seconds

# --- host-bound and device-bound ----------------------------------------------------------------------------

OPERATORS = 800
LAUNCHES_US = [2, 4, 6, 8, 10, 12, 14, 15, 16, 18, 19, 20, 21, 22, 24, 26, 28, 30, 34, 38, 42, 46, 50]
KERNELS_US = [6, 8, 10, 12, 16, 20, 24, 28, 32, 40]
ALIKE, LAYER = "all alike", "long and short"
LENGTHS = {ALIKE: (1.0,), LAYER: (3.0, 0.2, 0.2, 1.6, 0.2, 0.2, 2.4, 0.2)}
"""Kernels over their mean: products of matrices between what is short."""
DEPTHS = [1, 2, 4, 8, 32, 1024]


def bound_explorer() -> Explorer:
    """Move a step from device-bound to host-bound."""
    controls: dict[str, W.Widget] = {
        "launch": slide("launch [µs]", LAUNCHES_US, 10),
        "kernel": slide("kernel [µs]", KERNELS_US, 20),
        "lengths": pick("kernels", list(LENGTHS), ALIKE),
        "depth": slide("queue", DEPTHS, 1024),
    }
    views = [charts.two_lanes(), charts.knee(), charts.queue()]
    return Explorer(controls, views, _bound, _bound_text, _bound_titles, title="Host-bound or device-bound")


@lru_cache(maxsize=4096)
def _issued(launch: float, kernel: float, lengths: str, depth: int) -> Issued:
    pattern = np.resize(LENGTHS[lengths], OPERATORS) * kernel * 1e-6
    return issue(launch * 1e-6, pattern, depth)


def _step_ms(launch: float, kernel: float, lengths: str, depth: int) -> float:
    return 1e3 * float(_issued(launch, kernel, lengths, depth).end_s[-1])


def _bound(launch: float, kernel: float, lengths: str, depth: int) -> Tables:
    issued = _issued(launch, kernel, lengths, depth)
    step = _step_ms(launch, kernel, lengths, depth)
    curve: list[dict[str, object]] = [
        {"line": "step", "launch": x, "step": _step_ms(x, kernel, lengths, depth)} for x in LAUNCHES_US
    ]
    for x in (LAUNCHES_US[0], LAUNCHES_US[-1]):
        curve.append({"line": "kernels alone", "launch": x, "step": kernel * OPERATORS / 1e3})
        curve.append({"line": "launches alone", "launch": x, "step": x * OPERATORS / 1e3})
    now: list[dict[str, object]] = [{"launch": launch, "step": step, "text": f"{step:.1f} ms"}]
    tables = {"curve": curve, "now": now, "queue": charts.thinned(issued)}
    return tables | charts.lane_rows(issued, launch * 1e-6)


def _limit(launch: float, kernel: float) -> str:
    return bound_by(launch * 1e-6, kernel * 1e-6, OPERATORS)[0]


def _uneven(launch: float, kernel: float, lengths: str, depth: int) -> bool:
    """Tell whether the queue is too short for the quicker side to work ahead."""
    return _step_ms(launch, kernel, lengths, depth) > 1.02 * max(launch, kernel) * OPERATORS / 1e3


def _bound_titles(launch: float, kernel: float, lengths: str, depth: int) -> list[str]:
    issued = _issued(launch, kernel, lengths, depth)
    idle = 1 - issued.busy_share
    first = f"The device idles {idle:.0%} of the time: " if idle >= 0.005 else "The device never waits: "
    first += f"launches of {launch} µs for kernels of {kernel} µs"
    half = issued.ahead[OPERATORS // 2 :]
    ahead = f"The host is {issued.ahead.max():,} launches ahead at most"
    if half.max() <= 1 and depth > 1:
        ahead = "The queue is empty all along"
    elif depth <= issued.ahead.max():
        ahead = f"The queue is full: {depth:,} launch{'es' if depth > 1 else ''}, then the host waits"
    knee = f"{_limit(launch, kernel).capitalize()}-bound; the knee is at {kernel} µs"
    if launch == kernel:
        knee = "Just at the knee: one more µs a launch, and the host decides"
    if _uneven(launch, kernel, lengths, depth):
        knee = f"No sharp knee: a queue of {depth} makes host and device wait for each other"
    return [first, knee, ahead]


def _short(time_s: float) -> str:
    return format_seconds(time_s) if time_s > 1e-9 else "0 µs"


def _bound_text(launch: float, kernel: float, lengths: str, depth: int) -> str:
    issued = _issued(launch, kernel, lengths, depth)
    step = _step_ms(launch, kernel, lengths, depth)
    cells = [
        (f"{step:.1f} ms", f"step of {OPERATORS} operators"),
        (f"{issued.busy_share:.0%}", "of the time kernels run"),
        (_short(float(np.median(issued.queued_s))), "from launch to start (median)"),
    ]
    said = "Slanted lines lead from a launch to its kernel: the flatter, the longer it queues."
    if _uneven(launch, kernel, lengths, depth):
        alone = max(launch, kernel) * OPERATORS / 1e3
        said = f"Neither side alone needs more than {alone:.1f} ms: the queue is too short to even them out."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- the idle-mode trap -------------------------------------------------------------------------------------

IDLES_US = [0, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600, 700, 800, 900, 1000]
THRESHOLDS_US = [100, 200, 300, 500, 800, 5000]
FACTORS = [1.2, 1.4, 1.6, 1.8, 2.0]
WINDOWS_MS = [0.5, 1.0, 2.0, 3.0, 5.0, 10.0]
WORKS_MS = [0.5, 1.0, 2.0, 5.0, 10.0]
_PERIODS = 8


def idle_explorer() -> Explorer:
    """Let a device wait until it lowers its frequency."""
    controls: dict[str, W.Widget] = {
        "idle": slide("wait [µs]", IDLES_US, 250),
        "threshold": slide("threshold", THRESHOLDS_US, 300),
        "factor": slide("slower by", FACTORS, 1.6),
        "window": slide("slow for [ms]", WINDOWS_MS, 3.0),
        "work": slide("work [ms]", WORKS_MS, 5.0),
    }
    views = [charts.trap(), charts.clock()]
    return Explorer(controls, views, _idle, _idle_text, _idle_titles, title="The idle-frequency trap")


def _period_ms(idle: float, threshold: float, factor: float, window: float, work: float) -> float:
    """Time of one wait and one stretch of work, after many of them."""
    mode = IdleFrequency(threshold * 1e-6, factor, window * 1e-3)
    return idle / 1e3 + 1e3 * float(mode.work_s([work * 1e-3] * _PERIODS, idle * 1e-6)[-1])


def _idle(idle: float, threshold: float, factor: float, window: float, work: float) -> Tables:
    rest = (threshold, factor, window, work)
    points = sorted({*IDLES_US, *(t for t in (threshold, threshold + 0.01) if t < IDLES_US[-1])})
    rows: list[dict[str, object]] = [
        {"line": line, "idle": x, "ms": x / 1e3 + work if line == charts.HELD else _period_ms(x, *rest)}
        for line in charts.MODES
        for x in points
    ]
    mode = IdleFrequency(threshold * 1e-6, factor, window * 1e-3)
    tables: Tables = {
        "trap": rows,
        "here": [{"idle": idle, "ms": _period_ms(idle, *rest)}],
        "threshold": [{"idle": threshold}] if threshold < IDLES_US[-1] else [],
    }
    return tables | charts.clock_rows(mode, work * 1e-3, idle * 1e-6)


def _idle_titles(idle: float, threshold: float, factor: float, window: float, work: float) -> list[str]:
    jump = _period_ms(threshold + 1e-3, threshold, factor, window, work) - threshold / 1e3 - work
    held = idle / 1e3 + work
    lost = _period_ms(idle, threshold, factor, window, work) - held
    second = "The wait is below the threshold: the two are alike"
    if idle > threshold:
        second = f"Each wait of {idle:,} µs costs {1e3 * lost:,.0f} µs more: {lost / held:.0%} of the period"
    return [f"At the threshold, one more µs of waiting costs {1e3 * jump:,.0f} µs", second]


def _idle_text(idle: float, threshold: float, factor: float, window: float, work: float) -> str:
    now = _period_ms(idle, threshold, factor, window, work)
    cells = [
        (f"{now:.2f} ms", "wait and work"),
        (f"{now / work - 1:.1%}", "longer than the work alone"),
        (f"{idle / 1e3 / work:.1%}", "is the wait itself"),
    ]
    return figures_line(cells)


# --- the slowest of many ------------------------------------------------------------------------------------

DEVICES = (8, 64, 512, 4096, 8192)
PER_NODE = 8
DEVIATIONS = [0.1, 0.25, 0.5, 1.0, 2.0, 3.0]
SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]
SHAPES: dict[str, Spread] = dict(zip(charts.SPREADS, ("normal", "exponential", "pareto"), strict=True))
STEPS_S = [0.5, 1, 2, 5, 10, 20]
PERIODS_S = [1, 5, 10, 15, 30, 60]
BURSTS_MS = [5, 10, 20, 50, 100, 200]


def slowest_explorer() -> Explorer:
    """Wait for the slowest of many devices, and for a monitor on many hosts."""
    controls: dict[str, W.Widget] = {
        "deviation": slide("jitter [%]", DEVIATIONS, 0.5),
        "share": slide("node's share", SHARES, 0.0, costly=True),
        "step": slide("step [s]", STEPS_S, 2),
        "period": slide("monitor [s]", PERIODS_S, 15),
        "burst": slide("burst [ms]", BURSTS_MS, 50),
    }
    views = [charts.jitter(), charts.bursts()]
    return Explorer(controls, views, _slowest, _slowest_text, _slowest_titles, title="The slowest of many")


@lru_cache(maxsize=256)
def _largest(devices: int, spread: Spread, share: float) -> float:
    return Jitter(1.0, spread, share, PER_NODE).slowest(devices) - 1


def _loss(devices: int, shape: str, deviation: float, share: float) -> float:
    return deviation / 100 * _largest(devices, SHAPES[shape], share)


def _burst_loss(devices: int, step: float, period: float, burst: float, together: bool) -> float:
    return Monitor(period, burst / 1e3).delay_s(step, max(devices // PER_NODE, 1), together) / step


def _slowest(deviation: float, share: float, step: float, period: float, burst: float) -> Tables:
    lost: list[dict[str, object]] = [
        {"line": shape, "devices": n, "loss": _loss(n, shape, deviation, share)}
        for shape in SHAPES
        for n in DEVICES
    ]
    bursts: list[dict[str, object]] = [
        {"line": line, "devices": n, "loss": _burst_loss(n, step, period, burst, line == "all at once")}
        for line in charts.BURSTS
        for n in DEVICES
    ]
    return {"jitter": lost, "bursts": bursts}


def _slowest_titles(**values: Any) -> list[str]:
    mine = {k: values[k] for k in ("deviation", "share")}
    normal, heavy = (_loss(4096, shape, **mine) for shape in ("normal", "heavy tail"))
    beats = {k: values[k] for k in ("step", "period", "burst")}
    apart, once = (_burst_loss(4096, **beats, together=together) for together in (False, True))
    return [
        f"4,096 devices lose {normal:.1%} to normal jitter, {heavy:.1%} to a heavy tail",
        f"Bursts cost 4,096 devices {apart:.2%}, or {once:.2%} all at once",
    ]


def _slowest_text(**values: Any) -> str:
    share = values["burst"] / 1e3 / values["period"]
    hit = min(values["step"] / values["period"], 1.0)
    cells = [
        (f"{share:.2%}", "of one host is the monitor's"),
        (f"{hit:.0%}", "of steps meet a burst on one host"),
        (f"{1 - (1 - hit) ** (4096 // PER_NODE):.0%}", f"meet one on some of {4096 // PER_NODE}"),
    ]
    said = f"{PER_NODE} devices a host. A node's share: what part of the jitter's variance its devices have in common."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
