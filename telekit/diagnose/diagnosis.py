"""From traces and tables to a verdict: what is wrong, on which ranks, and what shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.clocks import Clocks, align
from telekit.diagnose.analysis.critical import CriticalStep, critical_step
from telekit.diagnose.analysis.features import Progress, Run, measure
from telekit.diagnose.analysis.summary import RankSummary, summarise
from telekit.diagnose.rules.compute_rules import device_findings
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.host_rules import host_findings, launch_notes
from telekit.diagnose.rules.link_rules import link_findings
from telekit.diagnose.rules.stuck_rules import stuck_findings
from telekit.diagnose.tables.analyse import analyse_tables
from telekit.diagnose.tables.report import TableReport
from telekit.diagnose.trace import Trace, TraceProblem, TraceSet
from telekit.errors import InputError, bad

MINOR = 0.4
"""A further finding must cost this share of the first's loss; less is taken for its consequence."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What traces and tables of a run say.

    Parameters
    ----------
    verdict : str
        ``healthy``, or the kind of the first finding.
    bound : str
        What bounds most ranks: ``compute``, ``communication``, ``host``, ``data``, ``unknown``. By the traces; without
        any by the first table that says it.
    ranks : tuple of RankSummary
        One a trace.
    findings : tuple of Finding
        The costliest first; those of traces, then those of tables that say something else.
    notes : tuple of str
        Assumptions, and what is no fault though it looks like one.
    problems : tuple of TraceProblem
        What could not be used or was repaired.
    clocks : Clocks or None
        How the ranks' clocks compare; None where nothing ties them.
    run : Run
        What was measured on the traces.
    tables : tuple of TableReport
        What tables say, one a kind.
    """

    verdict: str
    bound: str
    ranks: tuple[RankSummary, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    problems: tuple[TraceProblem, ...]
    clocks: Clocks | None
    run: Run
    tables: tuple[TableReport, ...] = ()

    @cached_property
    def critical(self) -> CriticalStep | None:
        """The critical path, over host and device, of the usual step of the rank that the others wait for."""
        return critical_step(self.run)

    @property
    def healthy(self) -> bool:
        """Nothing was found."""
        return not self.findings

    @property
    def untold(self) -> tuple[str, ...]:
        """What these files do not show, so that nothing found does not mean healthy."""
        found = []
        traces = self.run.traces
        if not traces:
            found.append("what kernels, launches and links do (no trace)")
        elif not any(t.on_device.any() for t in traces):
            found.append("what kernels do (no device was traced)")
        if len(traces) < 3 and not any(t.tells_ranks for t in self.tables):
            found.append(f"who is slower than the others ({len(traces)} ranks traced)")
        return tuple(found)

    @property
    def says(self) -> str:
        """The verdict in words: where nothing was found, what could not be."""
        if self.findings or not self.untold:
            return self.verdict
        return f"nothing found; not told: {', '.join(self.untold)}"

    @property
    def stragglers(self) -> tuple[Finding, ...]:
        """Findings that name some of the ranks."""
        return tuple(f for f in self.findings if f.scope != "all")

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Evidence of all findings."""
        return tuple(e for f in self.findings for e in f.evidence)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for strict JSON."""
        stragglers = [
            {"rank": rank, "cause": f.cause, "kind": f.kind, "scope": f.scope, "share": f.share}
            for f in self.stragglers
            for rank in f.ranks
        ]
        stragglers += [
            {"rank": None, "machine": m, "cause": f.cause, "kind": f.kind, "scope": f.scope, "share": f.share}
            for f in self.stragglers
            for m in f.machines
        ]
        return {
            "verdict": self.verdict,
            "untold": list(self.untold),
            "bound": self.bound,
            "findings": [f.to_dict() for f in self.findings],
            "stragglers": stragglers,
            "ranks": [r.to_dict() for r in self.ranks],
            "tables": [t.to_dict() for t in self.tables],
            "critical_path": self.critical.to_dict() if self.critical else None,
            "evidence": [e.to_dict() for e in self.evidence],
            "notes": list(self.notes),
            "problems": [str(p) for p in self.problems],
        }


def diagnose(
    source: str | Path | TraceSet | Trace | Iterable[Trace],
    *,
    ranks_per_node: int = 8,
    progress: Progress | None = None,
) -> Diagnosis:
    """Say what is wrong with a run, from its traces and tables.

    Formats of traces: Chrome trace JSON of PyTorch (Kineto) and of Ascend's profilers, also compressed;
    ``kernel_details.csv``; SQLite and CSV of nsys; JSON and CSV of rocprof. Of tables: logs with Megatron-LM's timers,
    Ascend's ``step_trace_time.csv`` (of ranks or of the cluster) and ``op_statistic.csv``, and CSV of metrics over time
    with a column that names the machine or rank. A folder may mix them: each is analysed by itself.

    Parameters
    ----------
    source : path, TraceSet, Trace or traces
        A file, a folder of one file a rank, or traces already read.
    ranks_per_node : int
        Ranks 0 to n - 1 share a node, and so on.
    progress : callable, optional
        Called with (done, total, what).

    Raises
    ------
    InputError
        Nothing can be used, or, without tables, two traces are of one rank.
    """
    if ranks_per_node < 1:
        raise bad("ranks_per_node", ranks_per_node, "must be 1 or more", "8 is usual")
    given = _traces(source, progress)
    tables = analyse_tables(given.tables, ranks_per_node)
    traces, unusable = _usable(given, tables)
    run = measure(traces, ranks_per_node, progress)
    clocks, notes = _clocks(run)
    findings = _with_tables(_findings(run, _valid(run, clocks)) if traces else (), tables)
    summaries = summarise(run)
    notes += _notes(run, given, summaries) + (launch_notes(run, findings) if traces else [])
    problems = (*given.problems, *unusable, *(p for t in run.traces for p in t.problems),
                *(p for t in given.tables for p in t.problems), *(p for t in tables for p in t.problems))  # fmt: skip
    verdict = findings[0].kind if findings else "healthy"
    return Diagnosis(
        verdict, _bound(summaries, tables), summaries, findings, tuple(notes), problems, clocks, run, tables
    )


def _usable(given: TraceSet, tables: Sequence[TableReport]) -> tuple[list[Trace], list[TraceProblem]]:
    """Return traces with events, and why none can be compared; that is refused where no table can be used either."""
    has_tables = any(t.rows for t in tables)
    traces = [t for t in given.traces if len(t)]
    empty = [
        TraceProblem("a trace has no event that can be used", 1, (t.source,))
        for t in given.traces
        if not len(t)
    ]
    try:
        if not traces and not has_tables:
            raise _nothing(given, tables)
        _check_ranks(traces)
    except InputError as error:
        if not has_tables:
            raise
        return [], [*empty, TraceProblem(f"traces are not analysed: {error}"[:300], len(traces))]
    return traces, empty


def _with_tables(found: tuple[Finding, ...], tables: Sequence[TableReport]) -> tuple[Finding, ...]:
    """Add findings of tables whose ranks, or where all ranks have it whose cause, no earlier finding has."""
    kept = list(found)
    for finding in sorted((f for t in tables for f in t.findings), key=lambda f: -f.share):
        same = [k for k in kept if k.cause == finding.cause and "all" in (k.scope, finding.scope)]
        some = set(finding.ranks) if finding.scope != "all" else set()
        if not same and not any(some and some <= set(k.ranks) and k.scope != "all" for k in kept):
            kept.append(finding)
    return tuple(kept)


def _bound(summaries: Sequence[RankSummary], tables: Sequence[TableReport]) -> str:
    """Tell what bounds most ranks; without traces, what the first table that knows it says."""
    if summaries:
        return Counter(r.bound for r in summaries).most_common(1)[0][0]
    return next((t.bound for t in tables if t.bound != "unknown"), "unknown")


def _traces(source: Any, progress: Progress | None) -> TraceSet:
    if isinstance(source, TraceSet):
        return source
    if isinstance(source, Trace):
        return TraceSet.of([source])
    if isinstance(source, str | Path):
        from telekit.diagnose.readers import read

        found: TraceSet = read(source, progress=progress)
        return found
    return TraceSet.of(source)


def _nothing(given: TraceSet, tables: Sequence[TableReport]) -> InputError:
    problems = "; ".join(str(p) for p in [*given.all_problems, *(p for t in tables for p in t.problems)][:4])
    if tables and not given.traces:
        says = "; ".join(f"{t.kind}: {t.says}" for t in tables)
        return bad(
            "tables", len(given.tables), f"cannot be used: {says}{': ' + problems if problems else ''}"
        )
    return bad("traces", len(given.traces), f"no event can be used{': ' + problems if problems else ''}",
               "give a trace with complete events")  # fmt: skip


def _check_ranks(traces: Sequence[Trace]) -> None:
    """Two traces of one rank, or several of unknown rank, cannot be compared."""
    known = Counter(t.rank for t in traces if t.rank is not None)
    twice = [rank for rank, count in known.items() if count > 1]
    if twice:
        files = [t.source for t in traces if t.rank == twice[0]]
        raise bad("rank", twice[0], f"is the rank of {len(files)} traces: {', '.join(files[:3])}",
                  "put each run into a folder of its own")  # fmt: skip
    unknown = [t.source or "a trace" for t in traces if t.rank is None]
    if unknown and len(traces) > 1:
        raise bad("rank", unknown[0], "the trace does not say its rank, and so cannot be compared with others",
                  "write the rank into the file's name (rank3.json)")  # fmt: skip


def _clocks(run: Run) -> tuple[Clocks | None, list[str]]:
    """Align clocks; say so where that is impossible, and which clocks were set during the trace."""
    if len(run.traces) < 2:
        return None, []
    try:
        clocks = align(run.traces, run.collectives, run.node)
    except InputError as error:
        return None, [f"times of different ranks are not compared: {error.problems[0].rule}"]
    return clocks, _clock_notes(run, clocks)


def _clock_notes(run: Run, clocks: Clocks) -> list[str]:
    """Say which clocks were set during the trace; of a node once."""
    notes: dict[tuple[int, float], str] = {}
    for jump in clocks.jumps:
        fellows = [
            j for j in clocks.jumps if run.node[j.trace] == run.node[jump.trace] and j.by_s == jump.by_s
        ]
        ranks = [int(run.ranks[j.trace]) for j in fellows]
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}, one node,"
        notes[int(run.node[jump.trace]), jump.by_s] = (
            f"the clock of {who} was set by {jump.by_s * 1e3:+.3f} ms between {fellows[0].after_s:.6f} s and "
            f"{fellows[0].before_s:.6f} s of the trace of rank {ranks[0]}; not a fault"
        )
    return list(notes.values())


def _valid(run: Run, clocks: Clocks | None) -> NDArray[np.bool_]:
    """Ranks and steps whose durations count: those that the rank has, and in which no clock was set."""
    valid = run.present.copy()
    for jump in clocks.jumps if clocks else ():
        edges = run.breakdowns[jump.trace].edges_s
        touched = (edges[:-1] < jump.before_s) & (edges[1:] > jump.after_s)
        if jump.by_s < 0:  # a clock set back mixes neighbouring steps
            touched = np.convolve(touched, np.ones(3), "same") > 0
        valid[jump.trace] &= ~touched[run.column[jump.trace]]
    return valid


def _findings(run: Run, valid: NDArray[np.bool_]) -> tuple[Finding, ...]:
    """Apply all rules; drop what only follows from a costlier finding."""
    if not run.number.size or run.step_s <= 0 or not any(t.on_device.any() for t in run.traces):
        return tuple(stuck_findings(run))
    found = stuck_findings(run)
    found += device_findings(run, valid) + host_findings(run, valid) + link_findings(run, valid)
    found.sort(key=lambda f: (f.kind != "stuck", -f.share))
    kept: list[Finding] = []
    for finding in found:
        if not any(_follows(finding, first) for first in kept):
            kept.append(finding)
    return tuple(kept)


def _follows(finding: Finding, first: Finding) -> bool:
    """Tell whether a finding may be a consequence of a costlier one."""
    return finding.share < MINOR * first.share or set(finding.ranks) <= set(first.ranks)


def _notes(run: Run, given: TraceSet, summaries: Sequence[RankSummary]) -> list[str]:
    notes = [*given.notes, *dict.fromkeys(n for t in run.traces for n in t.notes), *run.notes]
    if not run.traces:
        return [*notes, "no trace: the tables alone are judged"]
    if len(run.traces) > run.ranks_per_node:
        notes.append(f"ranks are taken to fill nodes of {run.ranks_per_node} in order")
    incomplete = [(r.rank, r.incomplete, r.steps) for r in summaries if r.incomplete]
    notes += [
        f"rank {rank}: {len(steps)} of {count} steps have no kernels and are left out"
        for rank, steps, count in incomplete[:5]
    ]
    device = any(t.on_device.any() for t in run.traces)
    if not device:
        notes.append("no device was traced: nothing is said about kernels")
    elif len(run.traces) > 1 or (given.traces[0].world_size or 1) > 1:
        silent = [t.rank for t in run.traces if not t.is_kind("communication").any()]
        if silent:
            notes.append(
                f"no communication kernel in the traces of ranks {silent[:8]}: names may be unknown ones"
            )
    if 1 < len(run.traces) < 3:
        notes.append("two ranks: who is slow cannot be told from who is normal; three or more can")
    return notes
