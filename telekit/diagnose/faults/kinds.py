"""Kinds of fault: what each does to a job, how one is drawn from a seed, and what is true of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from telekit.diagnose.faults.effects import Effects, Stall
from telekit.diagnose.faults.job import TracedJob
from telekit.errors import InputError, Problem, bad


class Kind(NamedTuple):
    """What is known of a kind of fault.

    Attributes
    ----------
    finding : str
        What a diagnosis should call it.
    cause : str
        ``device``, ``link``, ``host``, ``data`` or ``load``; nothing where it is no fault.
    scope : str
        Whom it hits: ``rank``, ``node``, ``pair``, ``several`` or ``all``.
    size : (float, float)
        From where to where sizes are drawn.
    unit : str
        ``times`` (as long) or ``s``.
    recurs : str
        ``all`` steps, ``some`` in a row, ``one``.
    """

    finding: str
    cause: str
    scope: str
    size: tuple[float, float]
    unit: str
    recurs: str = "all"


FAULT_KINDS = {
    "slow-device": Kind("slow device", "device", "rank", (1.15, 1.7), "times"),
    "slow-device-in-some-steps": Kind(
        "slow device in some steps", "device", "rank", (1.3, 2.0), "times", "some"
    ),
    "slow-node": Kind("slow device", "device", "node", (1.15, 1.6), "times"),
    "frequency-drop": Kind("frequency drop after idle", "device", "rank", (1.4, 2.0), "times"),
    "frequency-drop-everywhere": Kind("frequency drop after idle", "device", "all", (1.4, 2.0), "times"),
    "slow-link": Kind("slow link", "link", "rank", (2.0, 6.0), "times"),
    "slow-network-of-node": Kind("slow link", "link", "node", (2.0, 5.0), "times"),
    "slow-pair": Kind("slow point-to-point", "link", "pair", (6.0, 20.0), "times"),
    "slow-launch": Kind("slow launch", "host", "rank", (8.0, 14.0), "times"),
    "slow-launch-everywhere": Kind("slow launch", "host", "all", (8.0, 14.0), "times"),
    "garbage-collection": Kind("pause", "host", "several", (0.03, 0.08), "s"),
    "monitoring": Kind("pause", "host", "node", (0.012, 0.02), "s"),
    "late-rank": Kind("late", "host", "rank", (0.15, 0.6), "s", "one"),
    "stuck-rank": Kind("stuck", "host", "rank", (1e4, 2e4), "s", "one"),
    "memory-stalls": Kind("memory", "host", "rank", (0.002, 0.006), "s"),
    "checkpoint": Kind("checkpoint", "host", "several", (0.1, 0.5), "s", "one"),
    "slow-data": Kind("slow data loading", "data", "rank", (0.015, 0.05), "s"),
    "slow-data-everywhere": Kind("slow data loading", "data", "all", (0.015, 0.05), "s"),
    "expert-imbalance": Kind("expert imbalance", "load", "several", (1.4, 2.2), "times"),
    "clock-jump": Kind("", "", "rank", (0.005, 0.04), "s", "one"),
}
"""Every kind of fault by name; the last is none: only a clock is set."""
HEALTHY = "healthy"
IDLE_S, IDLE_WINDOW_S = (3e-4, 4.5e-4), (2e-3, 4e-3)
"""Idle mode of the frequency drop: idle time that starts it, and how long kernels stay slow."""
MONITOR_PERIOD_S = (0.025, 0.04)
MONITOR_FACTOR = 150.0
"""A monitor's bursts come with such a period; within them a host hardly gets on."""
MALLOCS = 5
"""Places of a step where memory is given back and taken again."""


@dataclass(frozen=True)
class Fault:
    """A fault put into a job.

    Parameters
    ----------
    kind : str
        One of :data:`FAULT_KINDS`.
    ranks : tuple of int
        Whom it hits; of ``garbage-collection`` one a step, in turn.
    steps : tuple of int
        When.
    size : float
        Factor, or seconds, as the kind's ``unit`` says: time of kernels, transfers or launches over the usual; length
        of each pause, each stall, of loading, of the checkpoint, of the jump (which may be negative). A stuck rank's is
        longer than the recording.
    seed : int
        Chance inside the fault: places in the step, phases.
    """

    kind: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    size: float
    seed: int = 0


@dataclass(frozen=True)
class Truth:
    """What a diagnosis should find.

    Parameters
    ----------
    kind : str
        One of :data:`FAULT_KINDS`, or ``healthy``.
    finding, cause, scope : str
        See :class:`Kind`; empty where nothing is wrong.
    ranks, steps, size, unit
        As of the fault.
    candidates : tuple of int
        Ranks that no trace tells apart from them: of a link, all that every slow transfer passes.
    """

    kind: str = HEALTHY
    finding: str = ""
    cause: str = ""
    scope: str = ""
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    size: float = 0.0
    unit: str = ""
    candidates: tuple[int, ...] = ()

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong."""
        return bool(self.cause)


def truth_of(fault: Fault, job: TracedJob) -> Truth:
    """Return what is true of a fault."""
    kind = FAULT_KINDS[fault.kind]
    candidates = fault.ranks
    if fault.kind == "slow-link":
        candidates = _passed_by_all(job, fault.ranks[0])
    return Truth(
        fault.kind, kind.finding, kind.cause, kind.scope if kind.cause else "", fault.ranks, fault.steps,
        fault.size, kind.unit, candidates,
    )  # fmt: skip


def _passed_by_all(job: TracedJob, rank: int) -> tuple[int, ...]:
    """Ranks in every group, and every pair of stages, that talks over a rank's network port."""
    found = set(range(job.ranks))
    for kind, rows in job.groups().items():
        if kind != "tp" and rows.shape[1] > 1:
            found &= set(rows[(rows == rank).any(1)][0].tolist())
    for other in (rank - job.stage_ranks, rank + job.stage_ranks):
        if 0 <= other < job.ranks:
            found &= {rank, other}
    return tuple(sorted(found))


def draw_fault(kind: str, job: TracedJob, seed: int) -> Fault:
    """Draw a fault of a kind: whom it hits, when and how hard.

    Raises
    ------
    InputError
        No such kind, or the job has nothing that it could hit.
    """
    if kind not in FAULT_KINDS:
        raise bad("kind", kind, "no such kind of fault", f"known: {', '.join(FAULT_KINDS)}")
    chance = np.random.default_rng([seed, list(FAULT_KINDS).index(kind)])
    low, high = FAULT_KINDS[kind].size
    size = float(chance.uniform(low, high))
    if kind == "clock-jump" and chance.random() < 0.5:
        size = -size
    steps = _draw_steps(FAULT_KINDS[kind].recurs, job, chance)
    return Fault(kind, _draw_ranks(kind, job, steps, chance), steps, size, int(chance.integers(2**31)))


def _draw_steps(recurs: str, job: TracedJob, chance: np.random.Generator) -> tuple[int, ...]:
    if recurs == "all" or job.steps < 3:
        return tuple(range(job.steps))
    if recurs == "one":
        return (int(chance.integers(1, job.steps - 1)),)
    length = int(chance.integers(1, max(job.steps // 2, 2)))
    first = int(chance.integers(1, job.steps - length))
    return tuple(range(first, first + length))


def _draw_ranks(
    kind: str, job: TracedJob, steps: tuple[int, ...], chance: np.random.Generator
) -> tuple[int, ...]:
    every, rank = tuple(range(job.ranks)), int(chance.integers(job.ranks))
    scope = FAULT_KINDS[kind].scope
    if scope == "all":
        return every
    if scope == "node":
        return tuple(np.flatnonzero(job.node_of() == job.node_of()[rank]).tolist())
    if scope == "pair":
        if job.pp == 1:
            raise bad("job.pp", 1, f"{kind} needs a job of several stages", "2")
        first = int(chance.integers(job.ranks - job.stage_ranks))
        return first, first + job.stage_ranks
    if kind == "garbage-collection":
        return tuple(chance.permutation(np.resize(chance.permutation(job.ranks), len(steps))).tolist())
    if kind == "checkpoint":  # the first of each group of replicas writes
        return tuple(job.groups()["dp"][:, 0].tolist())
    if kind == "expert-imbalance":  # the same shard of experts on all replicas of a stage
        if job.ep == 1:
            raise bad("job.ep", 1, f"{kind} needs a job with expert parallelism", "2")
        return tuple(next(row for row in job.groups()["edp"].tolist() if rank in row))
    return (rank,)


def effects_of(faults: Iterable[Fault], job: TracedJob) -> Effects:
    """Return what faults change of a job, all together.

    Raises
    ------
    InputError
        All faults of an unknown kind, without a rank or step of the job, or of an impossible size.
    """
    faults, effects = list(faults), Effects.none(job)
    problems = [p for i, fault in enumerate(faults) for p in _problems(fault, job, f"faults.{i}")]
    if problems:
        raise InputError(problems)
    for fault in faults:
        _APPLY[fault.kind](effects, fault, job, np.random.default_rng(fault.seed))
    return effects


def _problems(fault: Fault, job: TracedJob, field: str) -> list[Problem]:
    if fault.kind not in FAULT_KINDS:
        known = ", ".join(FAULT_KINDS)
        return [Problem(f"{field}.kind", fault.kind, "no such kind of fault", f"known: {known}")]
    found = []
    for name, values, count in (("ranks", fault.ranks, job.ranks), ("steps", fault.steps, job.steps)):
        if not values or not all(0 <= v < count for v in values):
            found.append(Problem(f"{field}.{name}", values, f"must be some of 0 to {count - 1}", "(0,)"))
    unit = FAULT_KINDS[fault.kind].unit
    least = -1e3 if fault.kind == "clock-jump" else 0.1 if unit == "times" else 0.0
    if not least <= fault.size <= 1e5:
        found.append(
            Problem(f"{field}.size", fault.size, f"must be from {least:g} to 100000 ({unit})", "1.5")
        )
    if (
        fault.kind == "slow-pair"
        and len(fault.ranks) == 2
        and abs(np.diff(fault.ranks)[0]) != job.stage_ranks
    ):
        rule = f"must be a rank and the one {job.stage_ranks} further, of the next stage"
        found.append(Problem(f"{field}.ranks", fault.ranks, rule, f"(0, {job.stage_ranks})"))
    return found


_Apply = Callable[[Effects, Fault, TracedJob, np.random.Generator], None]


def _factor(name: str) -> _Apply:
    """Return what multiplies one of the factors."""

    def apply(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
        getattr(effects, name)[np.ix_(fault.steps, fault.ranks)] *= fault.size

    return apply


def _delay(name: str) -> _Apply:
    """Return what adds to one of the delays."""

    def apply(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
        getattr(effects, name)[np.ix_(fault.steps, fault.ranks)] += fault.size

    return apply


def _pair(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    effects.pair[list(fault.steps), min(fault.ranks)] *= fault.size


def _idle(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    ranks = list(fault.ranks)
    effects.idle_s[ranks] = chance.uniform(*IDLE_S)
    effects.idle_window_s[ranks] = chance.uniform(*IDLE_WINDOW_S)
    effects.idle_factor[ranks] = fault.size


def _experts(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    """More tokens for some are fewer for the others of their groups."""
    hot, steps = list(fault.ranks), list(fault.steps)
    for row in job.groups()["ep"]:
        inside = np.isin(row, hot)
        if inside.any() and not inside.all():
            rest = (len(row) - fault.size * inside.sum()) / (~inside).sum()
            effects.expert[np.ix_(steps, row[~inside])] *= max(rest, 0.1)
    effects.expert[np.ix_(steps, hot)] *= fault.size


def _collect(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    for i, step in enumerate(fault.steps):
        seconds = np.zeros(job.ranks)
        seconds[fault.ranks[i % len(fault.ranks)]] = fault.size * chance.uniform(0.8, 1.2)
        effects.stalls.append(Stall(step, chance.uniform(0.1, 0.6), seconds))


def _late(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    seconds = np.zeros(job.ranks)
    seconds[list(fault.ranks)] = fault.size
    for step in fault.steps:
        effects.stalls.append(Stall(step, chance.uniform(0.1, 0.8), seconds))


def _memory(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    for step in fault.steps:
        for place in chance.uniform(0.05, 0.9, MALLOCS):
            seconds = np.zeros(job.ranks)
            seconds[list(fault.ranks)] = fault.size * chance.uniform(0.7, 1.3)
            effects.stalls.append(Stall(step, place, seconds, ("cudaFree", "cudaMalloc")))


def _monitor(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    ranks = list(fault.ranks)
    effects.burst_period_s[ranks] = chance.uniform(*MONITOR_PERIOD_S)
    effects.burst_phase_s[ranks] = chance.uniform(0.0, effects.burst_period_s[ranks[0]])
    effects.burst_s[ranks] = fault.size
    effects.burst_factor[ranks] = MONITOR_FACTOR


def _jump(effects: Effects, fault: Fault, job: TracedJob, chance: np.random.Generator) -> None:
    effects.jump_s[list(fault.ranks)] = fault.size
    effects.jump_step[list(fault.ranks)] = fault.steps[0]


_APPLY: dict[str, _Apply] = {
    "slow-device": _factor("compute"),
    "slow-device-in-some-steps": _factor("compute"),
    "slow-node": _factor("compute"),
    "frequency-drop": _idle,
    "frequency-drop-everywhere": _idle,
    "slow-link": _factor("link"),
    "slow-network-of-node": _factor("link"),
    "slow-pair": _pair,
    "slow-launch": _factor("host"),
    "slow-launch-everywhere": _factor("host"),
    "garbage-collection": _collect,
    "monitoring": _monitor,
    "late-rank": _late,
    "stuck-rank": _late,
    "memory-stalls": _memory,
    "checkpoint": _delay("checkpoint_s"),
    "slow-data": _delay("data_s"),
    "slow-data-everywhere": _delay("data_s"),
    "expert-imbalance": _experts,
    "clock-jump": _jump,
}
