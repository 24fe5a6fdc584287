"""Tables of the chapter: what Minder's continuity is worth, what Mycroft finds of seven kinds, and two exercises."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median

from telekit.diagnose.minder.detect import Rules
from telekit.diagnose.minder.evaluate import evaluate
from telekit.diagnose.minder.generate import MachineRun, generate
from telekit.diagnose.minder.generate import draw_fault as draw_machine_fault
from telekit.diagnose.mycroft.faults import FAULT_KINDS, draw_fault
from telekit.diagnose.mycroft.job import RingJob
from telekit.diagnose.mycroft.rootcause import find_root_cause
from telekit.diagnose.mycroft.telemetry import simulate
from telekit.exercises.chapter09 import FLOWS_AT_S, ranks_to_compare, ring_of_flows
from telekit.ui.panels.chapter09_minder import MACHINES, RUN_S, STRIDE, model
from telekit.ui.tables import Table

RUNS = 20
"""Faulty runs, and as many healthy ones, that Minder is scored on."""
PAPER = Rules(top_only=True, healthy_distance=False, steadiness=1.0)
"""Minder's own rules: the top machine only, in every window, whatever its distance."""
SCORED = (
    *(("ours", Rules(), seconds) for seconds in (0.0, 60.0, 120.0, 240.0)),
    *(("paper's", PAPER, seconds) for seconds in (0.0, 240.0)),
)
PUBLISHED = {"without continuity": (0.757, None, None), "4 minutes": (0.904, 0.883, 0.893)}
"""Precision, recall and F1 in production, arXiv 2411.01791; the recall without continuity is not given here."""
SEEDS = 6
"""Seeds of each of Mycroft's kinds."""


@cache
def runs() -> tuple[MachineRun, ...]:
    """Generate runs that Minder was not trained on, half of them healthy."""
    faulty = [generate(MACHINES, RUN_S, draw_machine_fault(3000 + i), seed=3000 + i) for i in range(RUNS)]
    return (*faulty, *(generate(MACHINES, RUN_S, seed=4000 + i) for i in range(RUNS)))


def continuity() -> Table:
    """Score Minder with less and less continuity, by the package's rules and by the paper's."""
    rows: list[tuple[str, ...]] = []
    for name, rules, seconds in SCORED:
        got = evaluate(model(), runs(), replace(rules, continuity_s=seconds), stride=STRIDE)
        counts = (str(got.right), str(got.wrong), str(got.missed))
        shares = (f"{got.precision:.2f}", f"{got.recall:.2f}", f"{got.f1:.2f}")
        rows.append((f"{name}, {_minutes(seconds)}", *counts, *shares))
    for name, published in PUBLISHED.items():
        told = tuple("" if share is None else f"{share:.3f}" for share in published)
        rows.append((f"published, {name}", "", "", "", *told))
    header = ("rules, continuity", "right", "wrong", "missed", "precision", "recall", "F1")
    title = (
        f"{RUNS} runs with a fault of 5 to 10 minutes, {RUNS} healthy ones with glitches; {MACHINES} machines"
    )
    return Table(title, header, tuple(rows))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds else "one window"


def seven_faults() -> Table:
    """Count how often Mycroft finds rank and cause of each kind, and after how many seconds."""
    job, rows = RingJob(), []
    every: list[float] = []
    for name, kind in FAULT_KINDS.items():
        right, alarms, located = 0, [], []
        for seed in range(SEEDS):
            fault = draw_fault(name, job, seed)
            found = find_root_cause(simulate(job, fault, seed))
            if found:
                right += (found.rank, found.cause) == (fault.rank, fault.cause)
                alarms.append(found.trigger.at_s - fault.start_s)
                located.append(found.located_s - fault.start_s)
        every += alarms
        times = (
            (f"{median(alarms):.1f}", f"{max(alarms):.1f}", f"{max(located):.1f}") if alarms else ("", "", "")
        )
        rows.append((name, kind.cause, f"{right} of {SEEDS}", *times))
    within = sum(seconds <= 15 for seconds in every)
    header = ("fault", "cause", "rank and cause", "alarm [s], median", "alarm, longest", "cause, longest")
    title = f"{job.ranks} ranks; alarm within 15 s: {within} of {len(FAULT_KINDS) * SEEDS}"
    return Table(title, header, tuple(rows))


def compared_ranks() -> Table:
    """Lay out eight ranks' mean step for an exercise."""
    rows = tuple(
        (str(row.rank), *(f"{1e3 * row.seconds[name]:.1f}" for name in ("compute", "overlap", "transfer", "waiting")),
         f"{1e3 * row.step_s:.1f}")
        for row in ranks_to_compare()
    )  # fmt: skip
    return Table(
        "mean step of 8 ranks, ms",
        ("rank", "computing", "overlapped", "moving data", "waiting", "step"),
        rows,
    )


def counted_flows() -> Table:
    """Lay out the flows of one ring for an exercise."""
    rows = tuple(
        (f"{source} -> {target}", str(c.ready), str(c.transmitted), str(c.done), str(c.chunks))
        for source, target, c in ring_of_flows()
    )
    header = ("flow", "ready", "transmitted", "done", "of")
    return Table(f"one data-parallel all-reduce, {FLOWS_AT_S:g} s into the run", header, rows)
