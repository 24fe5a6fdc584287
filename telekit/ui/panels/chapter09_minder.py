"""Panel of chapter 9: Minder at work on machines whose faults, glitches and slow-downs the reader chooses."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any, NamedTuple

from telekit.diagnose.minder.detect import MetricScores, MinderReport, Rules, detect, scores
from telekit.diagnose.minder.generate import (
    FAULT_KINDS,
    METRICS,
    MachineFault,
    MachineRun,
    draw_fault,
    generate,
)
from telekit.diagnose.minder.model import MinderModel, train
from telekit.ui import minder_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.minder_charts import FAULTY, MINUTE_S, NAMED
from telekit.ui.panels.apart import figures_line

MACHINES, RUN_S, START_S = 16, 900, 240
SLOW_FROM_S = 300
STRIDE = 4
FAULTY_MACHINES = (5, 11, 2)
AS_MINDER = "where it stands out"
CONTINUITY = {"4 minutes, as Minder": 240.0, "2 minutes": 120.0, "1 minute": 60.0, "off: one window": 0.0}
PACES = {"none": 1.0, "to 75 %": 0.75, "to 50 %": 0.5}


class Look(NamedTuple):
    """One run, Minder's answer, and the metric that is shown."""

    run: MachineRun
    report: MinderReport
    metric: str
    scores: MetricScores
    rules: Rules


@lru_cache(maxsize=1)
def model() -> MinderModel:
    """Learn from 6 healthy runs and 20 with a fault, none of which is shown."""
    healthy = [generate(MACHINES, RUN_S, glitches_per_hour=0, seed=1000 + i).metrics for i in range(6)]
    labelled = [generate(MACHINES, RUN_S, draw_fault(2000 + i), seed=2000 + i) for i in range(20)]
    return train(healthy, labelled)


def minder_explorer() -> Explorer:
    """Plant faults, glitches and a slow-down of all, and see whom Minder names, and when."""
    controls = {
        "kind": pick("fault", list(FAULT_KINDS), "gpu-ecc"),
        "minutes": slide("lasts [min]", [0.5, 1, 2, 3, 4, 5, 6, 8, 10], 6),
        "faulty": slide("faulty", [0, 1, 2, 3], 1),
        "continuity_s": pick("continuity", CONTINUITY, 240.0),
        "glitches": slide("glitches/h", [0, 8, 20, 40, 80], 8),
        "pace": pick("all slow down", PACES, 1.0),
        "goes_on": pick("after an alert", {"stop, as Minder": False, "all metrics": True}, False),
        "metric": pick("shows", [AS_MINDER, *METRICS], AS_MINDER),
        "seed": slide("run", list(range(1, 13)), 1),
    }
    views = [charts.heat_map(), charts.score_chart()]
    return Explorer(controls, views, _rows, _text, _titles, title="Minder at work")


@lru_cache(maxsize=64)
def _run(kind: str, minutes: float, faulty: int, glitches: float, pace: float, seed: int) -> MachineRun:
    end_s = START_S + minutes * MINUTE_S
    faults = [MachineFault(kind, machine, START_S, end_s) for machine in FAULTY_MACHINES[:faulty]]
    slow = None if pace == 1 else (SLOW_FROM_S, pace)
    return generate(MACHINES, RUN_S, faults, glitches_per_hour=glitches, slow_down=slow, seed=seed)


@lru_cache(maxsize=64)
def look(continuity_s: float, goes_on: bool, metric: str, **planted: Any) -> Look:
    """Generate a run, call Minder on it, and choose the metric to show: the alert's, else the most telling one."""
    run, rules = _run(**planted), Rules(continuity_s=continuity_s, all_metrics=goes_on)
    report = detect(model(), run.metrics, rules, stride=STRIDE)
    if metric != AS_MINDER:
        return Look(run, report, metric, scores(model(), run.metrics, metric, rules, STRIDE), rules)
    named = [alert.metric for alert in report.alerts]
    compared = {name: scores(model(), run.metrics, name, rules, STRIDE) for name in named[:1] or METRICS}
    told = {name: _longest_share(each, run.faulty) for name, each in compared.items()}
    best = max(told, key=lambda name: told[name])
    return Look(run, report, best, compared[best], rules)


def _longest_share(found: MetricScores, faulty: frozenset[str]) -> float:
    """Largest share of four minutes that a faulty machine, or any where none is faulty, is a candidate."""
    columns = [c for c, name in enumerate(found.machines) if name in faulty or not faulty]
    return float(charts.shares(found, Rules(), STRIDE)[1][:, columns].max())


def _kinds(seen: Look) -> dict[str, str]:
    """Machines with a line of their own."""
    named = {alert.machine: NAMED for alert in seen.report.alerts[:1]}
    return named | dict.fromkeys(sorted(seen.run.faulty), FAULTY)


def _rows(**values: Any) -> Tables:
    seen = look(**values)
    shown = [alert for alert in seen.report.alerts if alert.metric == seen.metric]
    return charts.heat_rows(seen.run, seen.metric) | charts.score_rows(
        seen.scores, seen.rules, STRIDE, _kinds(seen), shown
    )


def _titles(**values: Any) -> list[str]:
    seen = look(**values)
    first = f"{_who(seen.run)}: {seen.metric}"
    alerts = seen.report.alerts
    if alerts:
        names = ", ".join(alert.machine for alert in alerts) if len(alerts) < 4 else f"{len(alerts)} machines"
        return [first, f"Alert: {names}, {_after(seen)}"]
    if not seen.run.faults:
        return [first, "No alert, and rightly so"]
    longest, needed = _longest_s(seen) / MINUTE_S, seen.rules.continuity_s / MINUTE_S
    if longest >= needed:
        return [
            first,
            "No alert: above the threshold long enough, but no further away than healthy machines get",
        ]
    return [first, f"No alert: {longest:.1f} min in a row above the threshold, {needed:g} are needed"]


def _who(run: MachineRun) -> str:
    if not run.faults:
        return "No machine is faulty"
    machines = ", ".join(str(fault.machine) for fault in run.faults)
    fault = run.faults[0]
    until = min(fault.end_s, RUN_S) / MINUTE_S
    plural = "s" if len(run.faults) > 1 else ""
    verb = "are" if plural else "is"
    return f"Machine{plural} {machines} {verb} faulty, minutes {START_S / MINUTE_S:g} to {until:g}"


def _after(seen: Look) -> str:
    """Say how long after the fault's start the alert came, or that nothing is wrong with the machine."""
    alert = min(seen.report.alerts, key=lambda each: each.alert_s)
    if alert.machine not in seen.run.faulty:
        return f"at minute {alert.alert_s / MINUTE_S:.1f}, and wrongly"
    return f"{(alert.alert_s - START_S) / MINUTE_S:.1f} min after the fault began"


def _longest_s(seen: Look) -> float:
    """Longest time in a row that a faulty machine is a candidate in the metric shown."""
    best = 0
    for column, name in enumerate(seen.scores.machines):
        if name in seen.run.faulty:
            streak = 0
            for candidate in seen.scores.candidate[:, column].tolist():
                streak = streak + 1 if candidate else 0
                best = max(best, streak)
    return (best - 1) * STRIDE + 8.0 if best else 0.0


def _text(**values: Any) -> str:
    seen = look(**values)
    named, faulty = seen.report.machines, seen.run.faulty
    cells = [
        (str(len(named & faulty)), f"of {len(faulty)} faulty named"),
        (str(len(named - faulty)), "healthy named"),
        (f"{len(seen.report.looked_at)} of {len(METRICS)}", "metrics looked at"),
        (str(seen.rules.windows(STRIDE)), "windows in a row"),
    ]
    said = (
        f"Red frame: the fault. Dashes: z-score {seen.rules.threshold_of(MACHINES):.2f}, and 95 % of the time asked "
        "for. "
        "Metrics, effects and noise are made up. A linear embedding (principal axes of healthy windows) stands in for "
        "Minder's LSTM-VAE."
    )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
