"""Metrics of machines over time, by Minder's method: which machine stays unlike the others, in what, and since when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from telekit.diagnose.analysis.finding import Evidence, Finding
from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.minder.detect import FEWEST_MACHINES, Alert, Rules, detect
from telekit.diagnose.minder.metrics import MachineMetrics, align
from telekit.diagnose.minder.model import CONTINUITY_S, WINDOW, MinderModel
from telekit.diagnose.minder.untrained import untrained
from telekit.diagnose.tables.report import Cell, TableReport, plain, unusable
from telekit.diagnose.trace import Floats, Table
from telekit.errors import InputError

WHO = ("machine", "host", "hostname", "node", "instance", "rank", "device", "gpu", "npu")
"""Columns that say whose a sample is, from the outside in."""
ASIDE = ("time_s", "rank", "step", "iteration", "index", "id", "pid")
"""Columns that are no metrics."""
DISTANCES = 5e6
"""Distances between machines that a metric may cost, before windows overlap less."""
CALL_S, PULL_S = 480.0, 900.0
"""A long run is looked at every 8 minutes, 15 minutes each, as Minder's service does."""
FAR_S = 30 * 86_400.0
"""Samples this far from the middle one in time are of another clock, or damaged."""
DATES_S = 1e8
"""Times beyond this are seconds since 1970."""

UNTRAINED = "without metrics of healthy runs: a machine that always differs counts as unlike the others"

Sample = tuple[Floats, list[str], str, Floats]


def analyse_metrics(tables: Sequence[Table], ranks_per_node: int = 8) -> TableReport:
    """Name machines whose metrics stay unlike the others' for four minutes and more.

    Minder's ranges and distances are taken from the run itself (:mod:`telekit.diagnose.minder.untrained`): a model
    trained on other machines' metrics, with other names and levels, would say nothing about these.

    Parameters
    ----------
    tables : sequence of Table
        Of kind ``metrics``.
    ranks_per_node : int
        Not used: metrics name their machines.
    """
    problems, sources = ProblemCounter(), [t.source for t in tables]
    metrics = _together(tables, problems)
    if metrics is None:
        return unusable("metrics", sources, "no samples of named machines", problems)
    model = untrained(metrics)
    notes = [UNTRAINED]
    alerts: tuple[Alert, ...] = ()
    if len(metrics.machines) < FEWEST_MACHINES:
        notes.append(
            f"{len(metrics.machines)} machines: one unlike the others takes {FEWEST_MACHINES} at least"
        )
    elif metrics.samples < WINDOW:
        notes.append(f"{metrics.samples} samples: a window has {WINDOW}")
    else:
        alerts = _alerts(model, metrics)
    span_s = metrics.samples * metrics.period_s
    if span_s < CONTINUITY_S:
        notes.append(
            f"{span_s:.0f} s are shorter than the {CONTINUITY_S:.0f} s that a machine must be unlike the others"
        )
    ranks = all(m.startswith("rank ") for m in metrics.machines)
    findings = tuple(_finding(alert, metrics, ranks) for alert in alerts)
    says = f"{len(metrics.machines)} machines, {len(metrics.names)} metrics, {span_s:.0f} s by {metrics.period_s:g} s: "
    named = ", ".join(f"{a.machine} unlike the others in {a.metric}" for a in alerts[:3])
    return TableReport("metrics", tuple(sources), "unknown", says + (named or "no machine stays unlike the others"),
                       tuple(_row(metrics, name) for name in metrics.names), findings, tuple(notes),
                       problems.listed())  # fmt: skip


def _together(tables: Sequence[Table], problems: ProblemCounter) -> MachineMetrics | None:
    """Align all samples in time; None where there are none."""
    samples = [one for table in tables for one in _samples(table, problems)]
    if not samples:
        return None
    time = np.concatenate([s[0] for s in samples])
    machine = [name for s in samples for name in s[1]]
    metric = [s[2] for s in samples for _ in s[1]]
    value = np.concatenate([s[3] for s in samples])
    near = np.abs(time - np.median(time)) <= FAR_S
    if not near.all():
        problems.add("a sample is over 30 days from the others", count=int((~near).sum()))
    at = np.flatnonzero(near)
    try:
        return align(time[at], [machine[i] for i in at], [metric[i] for i in at], value[at], _period(samples))
    except InputError as error:
        problems.add(f"samples cannot be put side by side: {error.problems[0].rule}")
        return None


def _samples(table: Table, problems: ProblemCounter) -> Iterator[Sample]:
    """Time, machine, metric and value of a table, one column after the other."""
    time = table.columns.get("time_s", np.full(len(table), np.nan))
    who = _who(table)
    if who is None:
        problems.add("no column says whose the metrics are (machine, host, node, rank), nor does the file's name",
                     table.source)  # fmt: skip
        return
    known = np.isfinite(time) & np.array([bool(w) for w in who], bool)
    if not known.all():
        problems.add("a sample without a time or machine", table.source, count=int((~known).sum()))
    at = np.flatnonzero(known)
    owner = [who[i] for i in at]
    names = table.labels.get("metric")
    if names is not None and "value" in table.columns:
        for name in dict.fromkeys(names):
            mine = [k for k, i in enumerate(at) if names[i] == name]
            yield time[at[mine]], [owner[k] for k in mine], name, table.columns["value"][at[mine]]
        return
    columns = {name: c for name, c in table.columns.items() if name not in ASIDE and np.isfinite(c).any()}
    if not columns:
        problems.add("no column of numbers besides the time", table.source)
    for name, values in columns.items():
        yield time[at], owner, name, values[at]


def _who(table: Table) -> list[str] | None:
    """Name each row's machine: all columns that say so together, else the file's rank; None where nothing does."""
    parts = [list(table.labels[name]) for name in WHO if name in table.labels]
    if "rank" in table.columns:
        parts.append([f"rank {int(r)}" if np.isfinite(r) else "" for r in table.columns["rank"]])
    if parts:
        return ["/".join(p for p in row if p) for row in zip(*parts, strict=True)]
    return None if table.rank is None else [f"rank {table.rank}"] * len(table)


def _period(samples: Sequence[Sample]) -> float:
    """Median time between two samples of one machine and metric."""
    gaps = []
    for time, machine, _, _ in samples:
        order = np.lexsort((time, np.array(machine)))
        same = np.array(machine)[order][1:] == np.array(machine)[order][:-1]
        step = np.diff(time[order])[same]
        gaps.append(step[step > 0])
    found = np.concatenate(gaps)
    return float(np.median(found)) if len(found) else 1.0


def _alerts(model: MinderModel, metrics: MachineMetrics) -> tuple[Alert, ...]:
    """Call Minder on the whole of a short run, or on pulls of a long one; the first alert of each machine."""
    continuity_s = max(CONTINUITY_S, 1.5 * WINDOW * metrics.period_s)  # of rare samples, more than one window
    rules = Rules(all_metrics=True, continuity_s=continuity_s)
    pull_s, every_s = max(PULL_S, 3 * continuity_s), max(CALL_S, 1.5 * continuity_s)
    begin, end = metrics.start_s, metrics.start_s + metrics.samples * metrics.period_s
    calls = np.arange(begin + pull_s, end + every_s, every_s) if end - begin > 2 * pull_s else [end]
    found: dict[str, Alert] = {}
    for at in calls:
        part = metrics if len(calls) == 1 else metrics.between(float(at) - pull_s, float(at))
        known = MinderModel({n: m for n, m in model.metrics.items() if n in part.names})
        if part.samples < WINDOW or not known.metrics:
            continue
        stride = min(max(round(part.samples * len(part.machines) ** 2 / DISTANCES), 1), WINDOW)
        for alert in detect(known, part, rules, stride=stride).alerts:
            found.setdefault(alert.machine, alert)
    return tuple(sorted(found.values(), key=lambda a: a.start_s))


def _finding(alert: Alert, metrics: MachineMetrics, ranks: bool) -> Finding:
    """Put an alert into words, with both levels over that time."""
    part = metrics.between(alert.start_s, alert.alert_s)
    values = part.filled(alert.metric)
    row = part.machines.index(alert.machine)
    mine, others = float(np.mean(values[row])), float(np.nanmedian(np.delete(values, row, axis=0)))
    text = (
        f"{alert.machine}: {alert.metric} {mine:.4g} on average, the other machines' median {others:.4g}, from "
        f"{_when(alert.start_s)} to {_when(alert.alert_s)} at least; z-score {alert.z_score:.1f}"
    )
    rank = int(alert.machine.removeprefix("rank ")) if ranks else None
    evidence = Evidence(text, rank, {}, alert.start_s, alert.alert_s)
    advice = "look at this machine's logs of that time, and take it out of the job if nothing explains it"
    found = Finding("unlike machine", "rank", () if rank is None else (rank,), (), 0.0, alert.z_score, (evidence,),
                    alert.metric, advice)  # fmt: skip
    return found if ranks else replace(found, machines=(alert.machine,))


def _when(time_s: float) -> str:
    """Show a date, or seconds of a clock that starts elsewhere."""
    if time_s < DATES_S:
        return f"{time_s:.0f} s"
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _row(metrics: MachineMetrics, name: str) -> dict[str, Cell]:
    """Median level of a metric over machines, and the machine whose own is furthest from it."""
    values = metrics.filled(name)
    level = np.median(values, axis=1)
    usual = float(np.nanmedian(level)) if np.isfinite(level).any() else np.nan
    away = np.abs(level - usual)
    known = bool(np.isfinite(away).any() and np.nanmax(away) > 0)
    furthest = int(np.nanargmax(away)) if known else 0
    missing = float(np.mean(~np.isfinite(metrics.values[metrics.names.index(name)])))
    return {
        "metric": name,
        "median": plain(usual),
        "furthest_machine": metrics.machines[furthest] if known else None,
        "its_median": plain(float(level[furthest])) if known else None,
        "missing_share": missing,
    }
