"""Panels of chapter 9 on traces: ranks beside each other with a diagnosis, and what was planted against found."""

from __future__ import annotations

import html
from functools import cache, lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)
import numpy as np

from telekit import catalog
from telekit.diagnose.analysis.critical import critical_step
from telekit.diagnose.diagnosis import Diagnosis, diagnose
from telekit.diagnose.faults import FAULT_KINDS, HEALTHY, TracedJob, generate
from telekit.diagnose.faults.kinds import Truth
from telekit.diagnose.rules.finding import KINDS
from telekit.ui import rank_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.panels.apart import figures_line
from telekit.units import format_seconds

# --- ranks beside each other --------------------------------------------------------------------------------

RANKS, STEPS = 16, 5
JOB = TracedJob.of(RANKS, steps=STEPS, devices_per_node=4, clock_offset_s=6e-3)
"""Four hosts, whose clocks differ enough to be seen."""
RAW, ALIGNED = "each rank's own", "aligned"
FAULTS = [HEALTHY, *FAULT_KINDS]


def ranks_explorer() -> Explorer:
    """Lay the ranks of a job with a fault beside each other, and diagnose it."""
    controls: dict[str, W.Widget] = {
        "fault": pick("planted", FAULTS, "slow-device"),
        "seed": slide("run", [1, 2, 3, 4, 5, 6], 3, costly=True),
        "step": slide("step", list(range(STEPS)), 2, costly=True),
        "clocks": pick("clocks", [ALIGNED, RAW], RAW),
    }
    views = [charts.timeline(), charts.shares()]
    return Explorer(controls, views, _ranks, _ranks_text, _ranks_titles, title="Ranks beside each other")


@lru_cache(maxsize=32)
def _diagnosed(fault: str, seed: int) -> tuple[Truth, Diagnosis]:
    run = generate(fault, JOB, seed)
    return run.truth(), diagnose(run.traces, ranks_per_node=JOB.devices_per_node)


def _ranks(fault: str, seed: int, step: int, clocks: str) -> Tables:
    found = _diagnosed(fault, seed)[1]
    named: list[dict[str, object]] = [{"rank": r} for f in found.stragglers[:1] for r in f.ranks]
    return (
        charts.timeline_rows(found, step, clocks == ALIGNED) | charts.share_rows(found.run) | {"named": named}
    )


def _ranks_titles(fault: str, seed: int, step: int, clocks: str) -> list[str]:
    found = _diagnosed(fault, seed)[1]
    said = "Clocks cannot be aligned"
    if found.clocks is not None:
        apart = float(np.ptp(found.clocks.offset_s + charts.since_s(found.run)))
        said = f"By their own clocks, ranks seem up to {1e3 * apart:.1f} ms apart"
        if clocks == ALIGNED:
            agree = format_seconds(max(found.clocks.residual_s, 1e-6))
            said = f"By one clock, all ranks leave a collective within {agree}"
    waits = found.run.category("waiting").mean(1)
    least = int(found.run.ranks[waits.argmin()])
    return [
        said,
        f"Rank {least} waits least: {1e3 * waits.min():.1f} ms (median {1e3 * np.median(waits):.1f})",
    ]


def _ranks_text(fault: str, seed: int, step: int, clocks: str) -> str:
    truth, found = _diagnosed(fault, seed)
    planted = "nothing" if not truth.is_fault else f"{truth.kind}, {_who(truth.ranks)}"
    if fault == "clock-jump":
        planted = f"a clock that is set, {_who(truth.ranks)}: no fault"
    said = [f"<b>Planted:</b> {html.escape(planted)}. <b>Verdict:</b> {html.escape(found.verdict)}"]
    for finding in found.findings[:2]:
        said.append(f"{html.escape(str(finding))}.")
        said += [f"<span class='telekit-soft'>{html.escape(e.text)}</span>" for e in finding.evidence[:3]]
        if finding.advice:
            said.append(f"<i>{html.escape(finding.advice)}</i>")
    said += [f"<span class='telekit-soft'>{html.escape(n)}</span>" for n in found.notes if "clock" in n]
    column = np.flatnonzero(found.run.number == step)
    path = critical_step(found.run, int(column[0])) if len(column) else None
    if path is not None:  # a stuck step has none
        said.append(f"<span class='telekit-soft'>{html.escape(str(path))}</span>")
    return "<br>".join(said)


def _who(ranks: tuple[int, ...]) -> str:
    if len(ranks) == RANKS:
        return "all ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(set(ranks))))}"


# --- planted against found ----------------------------------------------------------------------------------

EVERYTHING, MISTAKES = "all answers", "wrong answers"
NOTHING = HEALTHY


def confusion_explorer() -> Explorer:
    """Show what was answered to each planted kind of fault."""
    controls: dict[str, W.Widget] = {"show": pick("show", [EVERYTHING, MISTAKES], EVERYTHING)}
    views = [charts.confusion(planted_kinds(), answers())]
    return Explorer(
        controls, views, _confusion, _confusion_text, _confusion_titles, title="Planted and found"
    )


@cache
def injected() -> dict[str, Any]:
    """Return the record of runs with planted faults: ``source``, ``seeds``, ``rows``."""
    return dict(catalog.record("measurements", "fault_injection"))


def right_answer(planted: str) -> str:
    """Say what a diagnosis should call a planted kind."""
    if planted not in FAULT_KINDS:
        return planted
    return FAULT_KINDS[planted].finding or NOTHING


def planted_kinds() -> list[str]:
    """Kinds that were planted, as the generator lists them."""
    there = {row["planted"] for row in injected()["rows"]}
    known = [kind for kind in (*FAULT_KINDS, HEALTHY) if kind in there]
    return known + sorted(there - set(known))


def answers() -> list[str]:
    """Answers given, and those that should have been."""
    rows = injected()["rows"]
    there = {row["answered"] for row in rows} | {right_answer(row["planted"]) for row in rows}
    known = [kind for kind in (*KINDS, NOTHING) if kind in there]
    return known + sorted(there - set(known))


def _chosen(show: str) -> list[dict[str, Any]]:
    rows = injected()["rows"]
    return [r for r in rows if show == EVERYTHING or right_answer(r["planted"]) != r["answered"]]


def _confusion(show: str) -> Tables:
    right = {kind: right_answer(kind) for kind in planted_kinds()}
    cells = charts.confusion_rows(injected()["rows"], planted_kinds(), answers(), right)["confusion"]
    return {"confusion": [c for c in cells if show == EVERYTHING or c["judged"] == charts.WRONG]}


def counts() -> tuple[int, int, int, int, int]:
    """Count runs with a fault, right causes, right ranks among those; runs without a fault, alarms among them.

    A clock that is set is no fault; its runs are among the healthy ones.
    """
    faulty = right = ranks = healthy = alarms = 0
    for row in injected()["rows"]:
        wanted = right_answer(row["planted"])
        if wanted == NOTHING:
            healthy += row["runs"]
            alarms += row["runs"] * (row["answered"] != NOTHING)
        else:
            faulty += row["runs"]
            right += row["runs"] * (row["answered"] == wanted)
            ranks += row["right_rank"] * (row["answered"] == wanted)
    return faulty, right, ranks, healthy, alarms


def _confusion_titles(show: str) -> list[str]:
    faulty, right, _, healthy, alarms = counts()
    if show == MISTAKES:
        return [
            f"{faulty - right} of {faulty:,} faults are named wrongly; {alarms} of {healthy:,} healthy runs alarm"
        ]
    return [f"{right / faulty:.1%} of {faulty:,} planted faults are named rightly"]


def _confusion_text(show: str) -> str:
    faulty, right, ranks, healthy, alarms = counts()
    cells = [
        (f"{right:,} of {faulty:,}", "right cause"),
        (f"{ranks:,}", "of them right rank too"),
        (f"{alarms} of {healthy:,}", "alarms without a fault"),
    ]
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(str(injected()['source']))}</span>"
