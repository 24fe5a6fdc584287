"""Panel of chapter 9: Mycroft at work on a simulated job, from the alarm along the dependencies to the cause."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any, NamedTuple

from telekit.diagnose.mycroft.faults import CAUSES, FAULT_KINDS, Fault
from telekit.diagnose.mycroft.job import RingJob
from telekit.diagnose.mycroft.rootcause import RootCause, blame, find_root_cause
from telekit.diagnose.mycroft.telemetry import Counters, Telemetry, logged_s, simulate
from telekit.diagnose.mycroft.trigger import Trigger, Watch, first_trigger, watched_ranks
from telekit.diagnose.mycroft.walk import Origin, walk
from telekit.ui import mycroft_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.panels.apart import figures_line

START_S = 8.0
NOTHING = "nothing"
JOB, WATCH = RingJob(), Watch()
KINDS = {f"{name}: {kind.says}": name for name, kind in FAULT_KINDS.items()} | {NOTHING: NOTHING}
TIMES = [x / 2 for x in range(-6, 13)]
SIZES = {"a tenth": 0.1, "a quarter": 0.25, "as usual": 1.0, "twice": 2.0}


class Seen(NamedTuple):
    """One run, what Mycroft made of it, and how long ranks wait for each other while nothing is wrong."""

    logs: Telemetry
    trigger: Trigger | None
    found: RootCause | None
    usual: dict[tuple[int, str], Any]


class Moment(NamedTuple):
    """One moment: every rank's walk, the one that is drawn, and blame of the last seconds, most first."""

    at_s: float
    walks: dict[int, Origin]
    drawn: Origin | None
    blame: tuple[tuple[int, str, float], ...]


def mycroft_explorer() -> Explorer:
    """Choose a fault and a rank, and follow Mycroft through the seconds around its alarm."""
    controls = {
        "kind": pick("fault", KINDS, "nic-down", columns=2),
        "rank": slide("on rank", list(range(JOB.ranks)), 5),
        "at": slide("s after alarm", TIMES, 0.0),
        "size": pick("slow ones by", SIZES, 1.0),
        "seed": slide("run", list(range(1, 9)), 3),
    }
    views = [charts.graph_chart(), charts.flow_chart()]
    return Explorer(controls, views, _rows, _text, _titles, title="Mycroft at work")


@lru_cache(maxsize=128)
def seen(kind: str, rank: int, size: float, seed: int) -> Seen:
    """Simulate the run, and let Mycroft look for the cause."""
    faults: tuple[Fault, ...] = ()
    if kind != NOTHING:
        of = FAULT_KINDS[kind]
        middle = (of.slowest + of.fastest) / 2
        faults = (Fault(kind, rank, START_S, 1 + (middle - 1) * size),)
    logs = simulate(JOB, faults, seed)
    usual = blame(logs, WATCH.window_s, WATCH.window_s)[0]
    return Seen(logs, first_trigger(logs, WATCH), find_root_cause(logs, WATCH), usual)


@lru_cache(maxsize=256)
def moment(at: float, **planted: Any) -> Moment:
    """Walk from every rank at one time; of the watched ranks' walks draw one that ends at the cause, the longest."""
    run = seen(**planted)
    at_s = logged_s((run.trigger.at_s if run.trigger else START_S) + at)
    walks = {rank: origin for rank in range(JOB.ranks) if (origin := walk(run.logs, rank, at_s))}
    cause = run.found.rank if run.found else -1
    watched = [walks[rank] for rank in watched_ranks(JOB) if rank in walks]
    drawn = max(watched, key=lambda o: (o.rank == cause, len(o.path)), default=None)
    now = blame(run.logs, at_s, WATCH.window_s)[0]
    excess = [(*key, float((waits - run.usual.get(key, 0.0)).max())) for key, waits in now.items()]
    return Moment(at_s, walks, drawn, tuple(sorted(excess, key=lambda row: -row[2])))


def _states(logs: Telemetry, now: Moment) -> dict[int, str]:
    """Say what each rank does."""
    found = {}
    for rank in range(JOB.ranks):
        call = logs.current(rank, now.at_s)
        inside = call is not None and logs.start_s[call] <= now.at_s
        if not inside:
            found[rank] = charts.OUTSIDE
            continue
        members = logs.members[logs.program.calls.meeting[call]]
        here = all(logs.start_s[m] <= now.at_s for m in members if m >= 0)
        found[rank] = charts.SENDS if here else charts.WAITS
    return found


def _flows(logs: Telemetry, now: Moment) -> list[tuple[int, int, Counters]]:
    """Flows of the call that the drawn walk ends in; without a walk, of the first watched rank's call."""
    rank = now.drawn.path[-1].rank if now.drawn else watched_ranks(JOB)[0]
    call = logs.current(rank, now.at_s)
    if call is None:
        return []
    calls, flows = logs.program.calls, logs.program.flows
    members = logs.members[calls.meeting[call]]
    each = sorted({int(calls.flow[m]) for m in members if m >= 0})
    return [(int(flows.source[f]), int(flows.target[f]), logs.counters(f, now.at_s)) for f in each]


def _of(at: float, **planted: Any) -> tuple[Seen, Moment]:
    return seen(**planted), moment(at, **planted)


def _rows(**values: Any) -> Tables:
    run, now = _of(**values)
    steps = [step for origin in now.walks.values() for step in origin.path]
    path = now.drawn.path if now.drawn else ()
    root = now.drawn.rank if now.drawn else None
    return (
        charts.graph_rows(JOB, _states(run.logs, now), steps, path, root)
        | charts.flow_rows(_flows(run.logs, now))
        | charts.blame_rows(now.blame, WATCH.straggler_s)
    )


def _titles(**values: Any) -> list[str]:
    now = _of(**values)[1]
    when = f"{now.at_s:.1f} s"
    drawn = now.drawn
    if drawn is None:
        return [f"{when}: no watched rank is held up by one that is behind", _blamed(now)]
    hops = [(step.rank, step.waits_for) for step in drawn.path if step.rank != step.waits_for]
    said = ", ".join(f"{a}{' waits' if i == 0 else ''} for {b}" for i, (a, b) in enumerate(hops))
    return [f"{when}: {said or f'rank {drawn.rank} holds up its own ring'}: {drawn.cause}", _blamed(now)]


def _blamed(now: Moment) -> str:
    rank, cause, seconds = now.blame[0] if now.blame else (-1, "", 0.0)
    if seconds < 0.5:
        return "Nobody keeps others waiting longer than usual"
    return f"In the last 5 s others waited {seconds:.1f} s longer than usual for rank {rank}: {cause}"


def _text(kind: str, rank: int, **values: Any) -> str:
    run, now = _of(kind=kind, rank=rank, **values)
    cells = []
    if run.trigger:
        cells.append((f"{run.trigger.at_s - START_S:.1f} s", "from fault to alarm"))
    if run.found:
        cells.append((f"{run.found.located_s - START_S:.1f} s", "to the cause"))
        cells.append((f"rank {run.found.rank}: {run.found.cause}", "found"))
    if not cells:
        cells.append(("no alarm", f"in {run.logs.horizon_s:.0f} s"))
    why = f"Alarm of rank {run.trigger.rank}: {run.trigger.reason}. " if run.trigger else ""
    said = (
        f"{why}{len(watched_ranks(JOB))} of {JOB.ranks} ranks are watched; the fault begins at {START_S:g} s. Rows of "
        "ranks: data-parallel rings; aslant: tensor pairs; down: stages."
    )
    return f"{figures_line(cells)}{_cause_table(now)}<span class='telekit-soft'>{html.escape(said)}</span>"


def _cause_table(now: Moment) -> str:
    """Write the cause table, with the row that the drawn walk arrives at in bold."""
    rows = []
    for cause, says in CAUSES.items():
        cells = (charts.CONDITIONS[cause], cause, says.partition(": ")[2])
        mine = now.drawn is not None and now.drawn.cause == cause
        tag = "b" if mine else "span"
        written = "".join(
            f"<td style='padding-right: 14px'><{tag}>{html.escape(cell)}</{tag}></td>" for cell in cells
        )
        rows.append(f"<tr>{written}</tr>")
    return f"<table>{''.join(rows)}</table>"
