"""Metrics of machines over time, by Minder's method: which machine stays unlike the others, in what, and since when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.minder.detect import CALL_S, FEWEST_MACHINES, PULL_S, Alert, Rules, detect, pulls
from telekit.diagnose.minder.metrics import MachineMetrics, Samples, Silence, spread_out
from telekit.diagnose.minder.model import CONTINUITY_S, WINDOW, MinderModel
from telekit.diagnose.minder.untrained import untrained
from telekit.diagnose.readers.summaries import WHO
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.tables.report import Cell, TableReport, plain, unusable
from telekit.diagnose.trace import Table
from telekit.errors import InputError

ASIDE = ("time_s", "rank", "step", "iteration", "index", "id", "pid")
"""Columns that are no metrics."""
DISTANCES = 5e6
"""Distances between machines that a metric may cost, before windows overlap less."""
FAR_S = 30 * 86_400.0
"""Samples this far from the middle one in time are of another clock, or damaged."""
MOST_SILENCES = 8
DATES_S = 1e8
"""Times beyond this are seconds since 1970."""

UNTRAINED = "without metrics of healthy runs: a machine that always differs counts as unlike the others"


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
    silent = metrics.silences()
    notes += [_silence(one) for one in silent[:MOST_SILENCES]]
    if len(silent) > MOST_SILENCES:
        notes.append(f"and {len(silent) - MOST_SILENCES} more times without samples of a machine")
    span_s = metrics.samples * metrics.period_s
    if span_s < CONTINUITY_S:
        notes.append(
            f"{span_s:.0f} s are shorter than the {CONTINUITY_S:.0f} s that a machine must be unlike the others"
        )
    ranks = all(m.startswith("rank ") for m in metrics.machines)
    findings = tuple(_finding(alert, metrics, ranks) for alert in alerts)
    says = f"{len(metrics.machines)} machines, {len(metrics.names)} metrics, {span_s:.0f} s by {metrics.period_s:g} s: "
    named = ", ".join(f"{a.machine} unlike the others in {a.metric}" for a in alerts[:3])
    gone = ", ".join(
        f"{one.machine} not reporting since {_when(one.begin_s)}" for one in silent if one.end_s is None
    )
    named = "; ".join(part for part in (named or "no machine stays unlike the others", gone[:200]) if part)
    return TableReport("metrics", tuple(sources), "unknown", says + named,
                       tuple(_row(metrics, name) for name in metrics.names), findings, tuple(notes),
                       problems.listed())  # fmt: skip


def _together(tables: Sequence[Table], problems: ProblemCounter) -> MachineMetrics | None:
    """Put all samples side by side in time; None where there are none."""
    samples = [one for table in tables for one in _samples(table, problems) if len(one.time_s)]
    if not samples:
        return None
    middle = float(np.median(np.concatenate([s.time_s for s in samples])))
    near = [np.abs(s.time_s - middle) <= FAR_S for s in samples]
    far = sum(int((~n).sum()) * len(s.values) for s, n in zip(samples, near, strict=True))
    if far:
        problems.add("a sample is over 30 days from the others", count=far)
        samples = [_picked(s, np.flatnonzero(n)) for s, n in zip(samples, near, strict=True) if n.any()]
    try:
        return spread_out(samples, _period(samples))
    except InputError as error:
        problems.add(f"samples cannot be put side by side: {error.problems[0].rule}")
        return None


def _picked(samples: Samples, at: NDArray[np.intp]) -> Samples:
    """Keep some samples."""
    return Samples(
        samples.time_s[at], samples.machines, samples.row[at], {n: v[at] for n, v in samples.values.items()}
    )


def _samples(table: Table, problems: ProblemCounter) -> Iterator[Samples]:
    """Yield samples of a table: all of it, or, where rows name their metrics, one metric after the other."""
    time = table.columns.get("time_s", np.full(len(table), np.nan))
    who = _who(table)
    if who is None:
        problems.add("no column says whose the metrics are (machine, host, node, rank), nor does the file's name",
                     table.source)  # fmt: skip
        return
    machines = {name: i for i, name in enumerate(dict.fromkeys(who))}
    row = np.array([machines[name] for name in who], np.int64)
    known = np.isfinite(time) & (row != machines.get("", -1))
    if not known.all():
        problems.add("a sample without a time or machine", table.source, count=int((~known).sum()))
    at = np.flatnonzero(known)
    names = table.labels.get("metric")
    if names is not None and "value" in table.columns:
        layers = {name: i for i, name in enumerate(dict.fromkeys(names))}
        layer = np.array([layers[name] for name in names], np.int64)[at]
        whole = Samples(time, tuple(machines), row, {"value": table.columns["value"]})
        for name, i in layers.items():
            mine = _picked(whole, at[layer == i])
            yield Samples(mine.time_s, mine.machines, mine.row, {name: mine.values["value"]})
        return
    columns = {name: c for name, c in table.columns.items() if name not in ASIDE and np.isfinite(c).any()}
    if not columns:
        problems.add("no column of numbers besides the time", table.source)
        return
    yield _picked(Samples(time, tuple(machines), row, columns), at)


def _who(table: Table) -> list[str] | None:
    """Name each row's machine: all columns that say so together, else the file's rank; None where nothing does."""
    parts = [list(table.labels[name]) for name in WHO if name in table.labels]
    if "rank" in table.columns:
        parts.append([f"rank {int(r)}" if np.isfinite(r) else "" for r in table.columns["rank"]])
    if parts:
        return ["/".join(p for p in row if p) for row in zip(*parts, strict=True)]
    return None if table.rank is None else [f"rank {table.rank}"] * len(table)


def _period(samples: Sequence[Samples]) -> float:
    """Median time between two samples of one machine and metric."""
    gaps = [np.zeros(0)]
    for one in samples:
        order = np.lexsort((one.time_s, one.row))
        step = np.diff(one.time_s[order])[np.diff(one.row[order]) == 0]
        gaps.append(step[step > 0])
    found = np.concatenate(gaps)
    return float(np.median(found)) if len(found) else 1.0


def _alerts(model: MinderModel, metrics: MachineMetrics) -> tuple[Alert, ...]:
    """Call Minder on the whole of a short run, or on pulls of a long one; the first alert of each machine."""
    continuity_s = max(CONTINUITY_S, 1.5 * WINDOW * metrics.period_s)  # of rare samples, more than one window
    rules = Rules(all_metrics=True, continuity_s=continuity_s)
    pull_s, every_s = max(PULL_S, 3 * continuity_s), max(CALL_S, 1.5 * continuity_s)
    long = metrics.samples * metrics.period_s > 2 * pull_s
    found: dict[str, Alert] = {}
    for part in pulls(metrics, every_s, pull_s) if long else [metrics]:
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
    values = part.values[part.names.index(alert.metric)]
    row = part.machines.index(alert.machine)
    mine, others = float(np.nanmean(values[row])), float(np.nanmedian(np.delete(values, row, axis=0)))
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


def _silence(silence: Silence) -> str:
    """Say when a machine did not report: its samples of that time are not made up."""
    if silence.end_s is None:
        return f"{silence.machine}: not reporting since {_when(silence.begin_s)}, so not judged after it"
    begin, end = _when(silence.begin_s), _when(silence.end_s)
    return f"{silence.machine}: not reporting from {begin} to {end}, so not judged then"


def _when(time_s: float) -> str:
    """Show a date, or seconds of a clock that starts elsewhere."""
    if time_s < DATES_S:
        return f"{time_s:.0f} s"
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _row(metrics: MachineMetrics, name: str) -> dict[str, Cell]:
    """Median level of a metric over machines, and the machine whose own is furthest from it."""
    values = metrics.values[metrics.names.index(name)]
    known = np.isfinite(values).any(axis=1)
    level = np.full(len(values), np.nan)
    level[known] = np.nanmedian(values[known], axis=1)
    usual = float(np.nanmedian(level)) if np.isfinite(level).any() else np.nan
    away = np.abs(level - usual)
    apart = bool(known.any() and np.nanmax(away) > 0)
    furthest = int(np.nanargmax(away)) if apart else 0
    missing = float(np.mean(~np.isfinite(values)))
    return {
        "metric": name,
        "median": plain(usual),
        "furthest_machine": metrics.machines[furthest] if apart else None,
        "its_median": plain(float(level[furthest])) if apart else None,
        "missing_share": missing,
    }
