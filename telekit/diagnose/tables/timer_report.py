"""What Megatron-LM's timers say, as a report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from telekit.diagnose.analysis.summary import bound_of
from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.tables.report import Cell, TableReport, middle, plain, unusable
from telekit.diagnose.tables.timer_rules import timer_findings
from telekit.diagnose.tables.timers import Timer, iteration_s, timers_of
from telekit.diagnose.trace import Table


def analyse_timers(tables: Sequence[Table], ranks_per_node: int = 8) -> TableReport:
    """Say which timers take the step, which are out of line between ranks, and which only wait.

    Parameters
    ----------
    tables : sequence of Table
        Of kind ``timers``.
    ranks_per_node : int
        Ranks that share a node, in order.
    """
    problems, sources = ProblemCounter(), [t.source for t in tables]
    timers = timers_of(tables, problems)
    step_s = iteration_s(timers)
    if not timers or not step_s > 0:
        return unusable("timers", sources, "no timer of an iteration can be used", problems)
    bound = _bound(timers, step_s)
    rows = tuple(_row(t, step_s) for t in sorted(timers.values(), key=lambda t: -t.usual_s[1]))
    notes = [
        "a timer of own work holds the collectives inside a layer: members of one group look alike in it"
    ]
    if not any(len(t.rank) > 1 for t in timers.values()):
        notes.append("the log has extremes over ranks only: --timing-log-option all tells which rank it is")
    if not any(t.role in ("work", "data", "wait") for t in timers.values()):
        notes.append("the log has no timers of parts of a step: --timing-log-level 2 writes them")
    findings = timer_findings(timers, step_s, ranks_per_node)
    return TableReport("timers", tuple(sources), bound, _says(timers, step_s), rows, findings, tuple(notes),
                       problems.listed())  # fmt: skip


def _bound(timers: dict[str, Timer], step_s: float) -> str:
    """Tell what bounds the run, exchange by what the rank with least of it spends; unknown without work."""
    parts = {role: [t for t in timers.values() if t.role == role] for role in ("data", "wait", "work")}
    if not parts["work"]:
        return "unknown"
    loading = sum(t.usual_s[1] for t in parts["data"])
    waits = sum(float(np.nan_to_num(t.usual_s[0])) for t in parts["wait"])
    return bound_of(step_s, data_s=loading, communication_s=waits)


def _row(timer: Timer, step_s: float) -> dict[str, Cell]:
    least, most = timer.usual_s
    level = middle(timer.by_rank_s) if len(timer.rank) > 1 else np.zeros(0)
    inside = timer.role != "aside"
    return {
        "timer": timer.name,
        "role": timer.role,
        "min_s": plain(least),
        "max_s": plain(most),
        "share": plain(most / step_s) if inside else None,
        "spread_share": plain((most - least) / step_s) if inside else None,
        "slowest_rank": int(timer.rank[int(np.nanargmax(level))]) if np.isfinite(level).any() else None,
    }


def _says(timers: dict[str, Timer], step_s: float) -> str:
    """Name the timer of parts that takes most, and what the frames take."""
    said = f"an iteration takes {step_s * 1e3:.1f} ms"
    frames = [t for t in timers.values() if t.role == "frame"]
    frames.sort(key=lambda t: -t.usual_s[1])
    said += "".join(f", {t.name} {t.usual_s[1] / step_s:.0%}" for t in frames)
    parts = [t for t in timers.values() if t.role in ("work", "data", "mixed", "wait")]
    if not any(t.role == "work" for t in parts):
        return said
    most = max(parts, key=lambda t: t.usual_s[1])
    return f"{said}; most of it: {most.name} ({most.usual_s[1] / step_s:.0%}, {most.role})"
