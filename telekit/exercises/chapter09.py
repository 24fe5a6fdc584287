"""Tasks of chapter 9 and what they are checked against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from telekit.cluster.jitter import Jitter
from telekit.cluster.regimes import Monitor, bound_by
from telekit.cluster.variability import expected_largest
from telekit.diagnose.analysis.summary import RankSummary
from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.minder.detect import Rules
from telekit.diagnose.minder.model import WINDOW
from telekit.diagnose.mycroft.faults import (
    CAUSES,
    NOT_DELIVERED,
    NOT_STARTED,
    NOT_TRANSMITTED,
    WAITING,
    Fault,
)
from telekit.diagnose.mycroft.job import DP, RingJob
from telekit.diagnose.mycroft.telemetry import Counters, simulate
from telekit.exercises.check import Feedback, design, number

# --- one rank of eight --------------------------------------------------------------------------------------

SLOW = ("memory-stalls", 4)
"""Kind and seed of the run behind the table of exercise 1."""


@cache
def ranks_to_compare() -> tuple[RankSummary, ...]:
    """Return the ranks of a run with a fault on one of eight."""
    return diagnose(generate(SLOW[0], TracedJob.of(8), SLOW[1]).traces).ranks


def slow_rank(answer: int | None) -> Feedback:
    """Name the rank that holds up the other seven, from their step, their work and their waiting."""
    ranks = {str(row.rank): row for row in ranks_to_compare()}
    own = {name: row.own_s for name, row in ranks.items()}
    slow = max(own, key=lambda name: own[name])
    busiest = max(ranks, key=lambda name: ranks[name].seconds["compute"])

    def meant(it: Any) -> bool | str:
        return str(it) in ranks or f"write one of the ranks 0 to {len(ranks) - 1}"

    def right(it: Any) -> bool | str:
        if str(it) == slow:
            return True
        row = ranks[str(it)]
        waits = f"rank {it} waits {1e3 * row.seconds['waiting']:.1f} ms of its step, for somebody else"
        if str(it) == busiest:
            return f"its kernels take longest, but by little; {waits}"
        return f"{waits}; own time is the step less waiting, whatever is in it"

    hint = "Take waiting off the step: what is left is own time."
    return design(answer, (("A rank", meant), ("Who is waited for", right)), hint)


# --- host, device and the slowest of many -------------------------------------------------------------------

OPERATORS, LAUNCH_S, KERNELS_S = 2000, 12e-6, 18e-3
"""Exercise 2: what a step issues, host time of each, and device time of all kernels."""


def operators_left(answer: float | None) -> Feedback:
    """Count the operators that may stay for the device to be the limit; fused kernels take as long together."""
    want = KERNELS_S / LAUNCH_S
    assert bound_by(LAUNCH_S, KERNELS_S / (want * 0.99), int(want * 0.99))[0] == "device"
    return number(
        answer,
        want,
        unit="operators",
        hint="Host time of all launches against device time of all kernels.",
        slips={
            "that many must go": OPERATORS - want,
            "that many are there now: the host takes 24 ms for them, the device 18": OPERATORS,
            "the host takes 24 ms and the device 18: the other way round": OPERATORS
            * OPERATORS
            * LAUNCH_S
            / KERNELS_S,
        },
    )


DEVICES, DEVIATION = 4096, 0.005


def slowest_of_many(answer: float | None) -> Feedback:
    """Longer step of 4,096 devices than of one, in per cent: normal, 0.5 %, independent."""
    want = 100 * (Jitter(DEVIATION).slowest(DEVICES) - 1)
    return number(
        answer,
        want,
        unit="%",
        hint="telekit.cluster.variability.expected_largest gives the largest in standard deviations.",
        slips={
            "sqrt(2 ln N) is where it goes for huge N; here it overstates": 100
            * DEVIATION
            * math.sqrt(2 * math.log(DEVICES)),
            "that is one device's deviation; all wait for the slowest": 100 * DEVIATION,
            "that is in standard deviations": expected_largest(DEVICES),
            "of 64 devices, not of 4,096; a node of 64 is not 64 times as lucky": 100
            * DEVIATION
            * expected_largest(64),
            "averages shrink with the root of N, the slowest does not": 100 * DEVIATION / math.sqrt(DEVICES),
        },
    )


# --- Minder and Mycroft -------------------------------------------------------------------------------------

STRIDE_S = 4


def windows_until_alert(answer: float | None) -> Feedback:
    """Count windows of 8 s, one beginning every 4 s, that must name a machine in a row before 4 minutes are full."""
    rules = Rules()
    want = rules.windows(STRIDE_S)
    return number(
        answer,
        want,
        rel=1e-6,
        unit="windows",
        hint="From the first window's begin to the last one's end it must be 240 s.",
        slips={
            "the last one need not begin at 240 s: it must end there": rules.continuity_s / STRIDE_S,
            "and the first one counts too": want - 1,
            "windows overlap: one begins every 4 s": rules.continuity_s / WINDOW,
            "one begins every 4 s, not every second": rules.windows(1),
        },
    )


FLOWS_AT_S, LOST = 12.0, Fault("link-lost", 10, 8.0)


@cache
def ring_of_flows() -> tuple[tuple[int, int, Counters], ...]:
    """Return flows and counters of the all-reduce that a job with a hidden fault stands still in."""
    logs = simulate(RingJob(), LOST, seed=3)
    call = logs.current(LOST.rank, FLOWS_AT_S)
    calls, flows = logs.program.calls, logs.program.flows
    assert call is not None and calls.kind[call] == DP
    members = logs.members[calls.meeting[call]]
    each = sorted({int(calls.flow[m]) for m in members if m >= 0})
    return tuple((int(flows.source[f]), int(flows.target[f]), logs.counters(f, FLOWS_AT_S)) for f in each)


def flow_at_fault(answer: Mapping[str, Any] | None) -> Feedback:
    """Name the rank at fault in a ring, and the row of the cause table."""
    said = dict(answer) if isinstance(answer, Mapping) else answer
    hint = 'Write {"rank": 0, "cause": "..."}; causes: ' + ", ".join(CAUSES) + "."
    receiver = next(target for source, target, _ in ring_of_flows() if source == LOST.rank)

    def form(it: Any) -> bool | str:
        return (isinstance(it, dict) and set(it) == {"rank", "cause"}) or hint

    def rank(it: Any) -> bool | str:
        if str(it["rank"]) == str(LOST.rank):
            return True
        if str(it["rank"]) == str(receiver):
            return "it is the receiver; the flow with the fewest chunks done is named after its sender"
        return "its flow has more chunks done than another one: it waits for what that one should bring"

    def cause(it: Any) -> bool | str:
        named = str(it["cause"]).strip().casefold()
        why = {
            NOT_STARTED: "then all three were 0: its rank would not have come",
            NOT_TRANSMITTED: "all chunks that are ready have been transmitted",
            WAITING.casefold(): "then all three were equal: chunks are ready, and sent",
        }
        return named == NOT_DELIVERED or why.get(named, f"the table has {', '.join(CAUSES)}")

    return design(said, (("It must name both", form), ("The rank", rank), ("The cause", cause)), hint)


# --- the design ---------------------------------------------------------------------------------------------

NODES, STEP_OPERATORS, KERNEL_S, ISSUE_S, GRAPH_S = 512, 80_000, 15e-6, 24e-6, 1e-6
"""Nodes of eight devices; operators of a step, device time of one, host time of one alone and of one in a graph."""
BURST_S, STEP_DEVIATION = 6e-3, 0.001
"""Host time that one look of the monitor takes; spread of a device's step."""
MOST_LOSS, LONGEST_PERIOD_S, MOST_CAPTURED = 0.01, 1.0, 0.5
FIELDS = ("period_s", "together", "captured")


class Loss(NamedTuple):
    """Losses of a plan over the step of one undisturbed device."""

    host: float
    slowest: float
    monitor: float

    @property
    def total(self) -> float:
        """All together; they add up, as nobody works while anybody waits."""
        return self.host + self.slowest + self.monitor


def loss_of(period_s: float, together: bool, captured: float) -> Loss:
    """Price a plan: a period of monitoring, aligned over nodes or not, and a share of operators in graphs.

    Raises
    ------
    InputError
        A period shorter than a burst.
    """
    issue_s = (1 - captured) * ISSUE_S + captured * GRAPH_S
    ideal_s = STEP_OPERATORS * KERNEL_S
    bound_s = bound_by(issue_s, KERNEL_S, STEP_OPERATORS)[1]
    slowest_s = bound_s * (Jitter(STEP_DEVIATION).slowest(DEVICES) - 1)
    monitor_s = Monitor(period_s, BURST_S).delay_s(ideal_s, NODES, together)
    return Loss((bound_s - ideal_s) / ideal_s, slowest_s / ideal_s, monitor_s / ideal_s)


def quiet_cluster(answer: Mapping[str, Any] | None) -> Feedback:
    """Check a plan for 4,096 devices: monitored every second, and less than 1 % of the step lost."""

    def often(it: Mapping[str, Any]) -> bool | str:
        return (
            it["period_s"] <= LONGEST_PERIOD_S
            or f"every {it['period_s']:g} s is too rare for windows of 8 samples"
        )

    def dynamic(it: Mapping[str, Any]) -> bool | str:
        return (
            it["captured"] <= MOST_CAPTURED
            or f"{it['captured']:.0%} would take in experts, whose shapes change"
        )

    def small(it: Mapping[str, Any]) -> bool | str:
        loss = loss_of(float(it["period_s"]), it["together"], float(it["captured"]))
        parts = f"host {loss.host:.2%}, slowest device {loss.slowest:.2%}, monitor {loss.monitor:.2%}"
        return loss.total < MOST_LOSS or f"it loses {loss.total:.2%}: {parts}"

    if answer is None:
        return design(None, (), 'Such as {"period_s": 10, "together": False, "captured": 0.2}.')
    problem = _problem(answer)
    if problem:
        return Feedback(False, problem)
    demands: tuple[tuple[str, Callable[[Any], bool | str]], ...] = (
        ("Looked at once a second", often),
        (f"At most {MOST_CAPTURED:.0%} of the operators in graphs", dynamic),
        (f"Less than {MOST_LOSS:.0%} lost", small),
    )
    return design(answer, demands)


def _problem(answer: Any) -> str:
    """Say what is wrong with the form of a plan; nothing when it can be priced."""
    if not isinstance(answer, Mapping) or set(answer) != set(FIELDS):
        return "Write period_s, together and captured."
    if not isinstance(answer["together"], bool):
        return "together is True or False: all nodes look at the same moment, or each when it likes."
    for name, least, most in (("period_s", 2 * BURST_S, 3600.0), ("captured", 0.0, 1.0)):
        value = answer[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            return f"{name} is a number from {least:g} to {most:g}."
    return ""
