"""Which layout: every layout costed in tables, the best ones placed by the integer program and simulated."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telekit.cost.estimate import Estimate, estimate
from telekit.cost.interval import ranking_error
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.errors import InputError, Problem, bad
from telekit.job import Job, layout_dict
from telekit.launch import megatron, mindformers
from telekit.layout.config import ParallelConfig
from telekit.pipeline.simulate import SIMULATED
from telekit.planner.candidates import Shape, options, tables, valid_rows
from telekit.planner.explain import program_text
from telekit.planner.placing import NOT_PLACED, Placed, place_layers
from telekit.planner.solver import PROVED_GAP
from telekit.planner.stages import Proof

Progress = Callable[[int, int, str], None]

EVEN, EVEN_SHARE = 10, 0.2
"""For each plan asked for, so many layouts are first simulated with evenly spread layers, in this part of the time."""
LEEWAY = 0.9
"""A candidate may do better than the best of its kind by this factor."""
QUICK_S = 1.0
QUICK_SHARE = 0.6
"""Seconds of a first placement, and the part of the time that first placements may take."""


@dataclass(frozen=True)
class RankedPlan:
    """One layout that was placed and checked: its estimate is :func:`telekit.estimate` of the same layout."""

    layout: ParallelConfig
    estimate: Estimate
    proof: Proof

    @property
    def step_time_s(self) -> float:
        """Time of one step."""
        assert self.estimate.step_time_s is not None
        return self.estimate.step_time_s

    @property
    def makespan_s(self) -> float:
        """Time of the pipeline alone: what the placement decides and ``proof`` bounds."""
        parts = self.estimate.breakdown_s or {}
        return self.step_time_s - parts["dp_comm"] - parts["optimizer"] - parts["waiting"]

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest device."""
        return self.estimate.peak_bytes

    def to_megatron(self) -> str:
        """Return the plan as Megatron-LM arguments."""
        return megatron.arguments(self.estimate.job)

    def to_mindformers(self) -> str:
        """Return the plan as MindFormers YAML."""
        return mindformers.config(self.estimate.job)

    def program(self) -> str:
        """Return the integer program that placed this plan's layers, written out."""
        return program_text(self.estimate.job)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ``layout`` is accepted by :meth:`telekit.Job.read` and gives the same numbers."""
        return {
            "layout": layout_dict(self.layout),
            "step_time_s": self.step_time_s,
            "makespan_s": self.makespan_s,
            "peak_bytes": self.peak_bytes,
            "mfu": self.estimate.mfu,
            "stages": [stage.to_dict() for stage in self.estimate.stages],
            "proof": self.proof.to_dict(),
        }


@dataclass(frozen=True)
class Plan:
    """The answer of a search.

    Parameters
    ----------
    searched, valid : int
        Layouts looked at; those that break no rule and fit the memory in some recompute choice.
    rejected : dict
        Layouts that break each rule (one that breaks several is counted at each), and ``memory``.
    search_bound_s : float or None
        No layout of the search, however its layers are placed, has a shorter step in this model.
    plans : tuple of RankedPlan
        Best first.
    """

    searched: int
    valid: int
    rejected: dict[str, int]
    search_bound_s: float | None
    plans: tuple[RankedPlan, ...]

    @property
    def told_apart(self) -> bool | None:
        """Whether the first two plans differ by more than published rankings show the model to be wrong; None for one.

        :func:`telekit.cost.interval.ranking_error` says how much that is.
        """
        if len(self.plans) < 2:
            return None
        return self.plans[1].step_time_s > (1.0 + ranking_error()) * self.plans[0].step_time_s

    @property
    def best(self) -> RankedPlan:
        """The fastest plan that fits.

        Raises
        ------
        InputError
            When nothing fits; says what stood in the way.
        """
        if not self.plans:
            why = ", ".join(
                f"{name} {n}" for name, n in sorted(self.rejected.items(), key=lambda x: -x[1])[:4]
            )
            raise bad(
                "plan", "none", f"no layout is valid and fits ({why})", "more devices, or a smaller batch"
            )
        return self.plans[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the field names of ``telekit plan --json``."""
        return {
            "searched": self.searched,
            "valid": self.valid,
            "rejected": self.rejected,
            "search_bound_s": self.search_bound_s,
            "plans": [p.to_dict() for p in self.plans],
            "first_two_told_apart": self.told_apart,
            "ranking_error": ranking_error(),
        }


@dataclass(frozen=True)
class _Candidate:
    """A layout whose layers are still to be placed, and what that should take.

    ``even`` spreads them evenly with the best recompute choice that fits, in ``even_s`` (infinite when none does).
    """

    layout: ParallelConfig
    even: ParallelConfig
    even_s: float
    expected_s: float
    bound_s: float
    choices: tuple[str, ...]


def plan(job: Job, top: int = 5, time_limit_s: float = 30.0, progress: Progress | None = None) -> Plan:
    """Search for the fastest layouts of a job that fit.

    Every product of degrees is costed with evenly spread layers, in tables. The most promising ones are then placed:
    the integer program and a search over simulated makespans choose layers and recompute for each stage. Layout fields
    that the job gives are kept.

    Parameters
    ----------
    job : Job
        Its layout's given fields stay fixed.
    top : int
        Plans to return.
    time_limit_s : float
        Time for placing; the tables come on top (seconds).
    progress : callable, optional
        Called with (done, total, what).
    """
    tell = progress or (lambda done, total, what: None)
    costed = _cost_all(job, tell)
    ordered = sorted(costed.candidates, key=lambda c: (c.expected_s, c.bound_s))
    placing = _Placing(job, top, time_limit_s, tell)
    plans = placing.run(ordered)
    bound = min(placing.bound_s(ordered), costed.bound_of_rest_s)
    return Plan(
        costed.searched, costed.valid, dict(costed.rejected), bound if np.isfinite(bound) else None, plans
    )


@dataclass
class _Costed:
    """What costing every table found; ``bound_of_rest_s`` covers layouts that only an uneven placement could fit."""

    searched: int
    valid: int
    rejected: Counter[str]
    candidates: list[_Candidate]
    bound_of_rest_s: float = np.inf


def _cost_all(job: Job, tell: Progress) -> _Costed:
    found = _Costed(0, 0, Counter(), [])
    choices = options(job)["recompute"]
    shapes = list(tables(job))
    for done, shape in enumerate(shapes):
        tell(done, len(shapes), f"costing pp {shape.base.pp}, vpp {shape.base.vpp}")
        found.searched += len(shape.table) * len(choices)
        shape = valid_rows(job, shape, found.rejected)
        if len(shape.table):
            _cost_shape(job, shape, choices, found)
    if not found.searched:
        raise InputError(job.problems() or [Problem("layout", "given fields", "leave no layout to search")])
    return found


def _cost_shape(job: Job, shape: Shape, choices: list[Any], found: _Costed) -> None:
    """Cost one table under each recompute choice, and keep the rows that fit or nearly do."""
    capacity = float(job.cluster.device.memory_bytes)
    costs = [step_cost(Site(job.model, job.cluster, job.train, shape.recomputing(c))) for c in choices]
    peak = np.stack([np.broadcast_to(c.peak_bytes, (len(shape.table), shape.base.pp)) for c in costs])
    work = np.stack([c.micro_batches * (c.forward_s + c.backward_s - c.hidden_s).sum(axis=0) for c in costs])
    step = np.stack([np.broadcast_to(c.step_s, peak.shape[1:2]) for c in costs])
    fits = peak.max(axis=-1) <= capacity
    found.valid += int(fits.sum())
    found.rejected["memory"] += int((~fits).sum())
    states = sum(costs[0].memory[name] for name in ("parameters", "gradients", "optimizer"))
    possible = np.mean(states, axis=-1) <= capacity  # whatever is moved, the states stay
    bound = work.min(axis=0).mean(axis=-1)
    placeable = shape.base.schedule in SIMULATED and shape.base.stages == "auto"
    even = np.where(fits, step, np.inf).min(axis=0)
    if placeable:
        expected = _mixed(work, peak, capacity).mean(axis=-1) + (step[0] - work[0].max(axis=-1))
        keep = peak.min(axis=0).mean(axis=-1) <= capacity
    else:
        expected = even
        keep = fits.any(axis=0)
    rest = bound[possible & ~keep]
    if rest.size:
        found.bound_of_rest_s = min(float(rest.min()), found.bound_of_rest_s)
    fitting = np.where(fits, step, np.inf).argmin(axis=0)
    names = tuple("selective" if isinstance(choice, tuple) else choice for choice in choices)
    for row in np.flatnonzero(keep):
        layout = shape.table.row(int(row), shape.base)
        layout = layout.model_copy(update={"dp": int(shape.table.dp[row, 0]), "recompute": choices[0]})
        evenly = layout.model_copy(update={"recompute": choices[int(fitting[row])]})
        found.candidates.append(
            _Candidate(layout, evenly, float(even[row]), float(expected[row]), float(bound[row]), names)
        )


def _mixed(work: Any, peak: Any, capacity: float) -> Any:
    """Work of each stage when it recomputes just as much as its memory asks for, shape (n, stages).

    Choices are in the order of falling memory; between two of them work and memory are interpolated.
    """
    mixed = work[-1]
    for lean in range(len(work) - 1, 0, -1):
        fat = lean - 1
        share = np.clip((peak[fat] - capacity) / np.maximum(peak[fat] - peak[lean], 1.0), 0.0, 1.0)
        mixed = np.where(peak[lean] <= capacity, work[fat] + share * (work[lean] - work[fat]), mixed)
    return np.where(peak[0] <= capacity, work[0], mixed)


class _Placing:
    """Places candidates while time lasts: quickly first, one after the other, then the best ones at length."""

    def __init__(self, job: Job, top: int, time_limit_s: float, tell: Progress) -> None:
        self.job, self.top, self.limit_s, self.tell = job, top, time_limit_s, tell
        self.began = time.monotonic()
        self.plans: dict[int, RankedPlan] = {}
        self.bounds: dict[int, float] = {}
        self.ratios: dict[tuple[int, bool], float] = {}

    def run(self, candidates: list[_Candidate]) -> tuple[RankedPlan, ...]:
        """Place candidates; return the plans, best first."""
        evenly = sorted((c.even_s, i) for i, c in enumerate(candidates) if np.isfinite(c.even_s))
        for _, index in evenly[: EVEN * self.top]:
            if self._left_s() < (1 - EVEN_SHARE) * self.limit_s and self.plans:
                break
            self._keep(index, Placed(candidates[index].even, NOT_PLACED, 0.0))
        quick_s = min(QUICK_S, self.limit_s / 10)
        for index in _by_turns(candidates):
            if self._left_s() < (1 - QUICK_SHARE) * self.limit_s and self.plans:
                break
            if self._left_s() < 0:
                break
            if self._promises(candidates[index]):
                self._place(index, candidates[index], quick_s)
        for rank, index in enumerate(self._ranking()[: self.top]):
            share = self._left_s() / (2 if rank + 1 < self.top else 1)
            proof = self.plans[index].proof
            if proof.bound is None or (share > quick_s and proof.status != "optimal"):
                self._place(index, candidates[index], max(share, quick_s))
        return tuple(self.plans[i] for i in self._ranking()[: self.top])

    def bound_s(self, candidates: list[_Candidate]) -> float:
        """Shortest step that any placement of any candidate could take."""
        return min(
            (max(c.bound_s, self.bounds.get(i, 0.0)) for i, c in enumerate(candidates)), default=np.inf
        )

    def _promises(self, candidate: _Candidate) -> bool:
        """Tell whether a candidate could enter the plans, going by what others of its kind took."""
        if len(self.plans) < self.top:
            return True
        usual = self.ratios.get(_kind(candidate), 1.0)
        return candidate.expected_s * max(1.0, LEEWAY * usual) <= self._worst_s()

    def _place(self, index: int, candidate: _Candidate, time_limit_s: float) -> None:
        done = self.limit_s - self._left_s()
        self.tell(int(10 * done), int(10 * self.limit_s), f"placing layers, candidate {index + 1}")
        if candidate.layout.schedule not in SIMULATED or time_limit_s <= 0:
            return
        worth_s = self._worst_s() if len(self.plans) >= self.top else np.inf
        layout = self.job.with_layout(candidate.layout)
        placed = place_layers(layout, candidate.choices, time_limit_s, worth_s)
        if placed is not None:
            self.bounds[index] = max(placed.bound_s, self.bounds.get(index, 0.0))
            self._keep(index, placed)
            if index in self.plans:
                ratio = self.plans[index].step_time_s / candidate.expected_s
                self.ratios[_kind(candidate)] = min(ratio, self.ratios.get(_kind(candidate), ratio))

    def _keep(self, index: int, placed: Placed) -> None:
        """Estimate a placed layout afresh; only what fits is a plan, and the faster of two placements stays."""
        found = estimate(self.job.with_layout(placed.layout))
        plan = RankedPlan(placed.layout, found, placed.proof)
        old = self.plans.get(index)
        if old is not None and (not found.fits or old.step_time_s < plan.step_time_s):
            old, plan = plan, old
        if plan.estimate.fits:  # a bound holds for every placement of the layout
            self.plans[index] = plan if old is None else replace(plan, proof=_better_bound(plan, old.proof))

    def _ranking(self) -> list[int]:
        return sorted(self.plans, key=lambda i: self.plans[i].step_time_s)

    def _worst_s(self) -> float:
        return self.plans[self._ranking()[self.top - 1]].step_time_s

    def _left_s(self) -> float:
        return self.began + self.limit_s - time.monotonic()


def _kind(candidate: _Candidate) -> tuple[int, bool]:
    """Group candidates whose placements do alike: by stages, and interleaved or not."""
    return (candidate.layout.pp, candidate.layout.vpp > 1)


def _by_turns(candidates: list[_Candidate]) -> list[int]:
    """Order candidates by what they should take, but let every number of stages have its best one tried first.

    Plain and interleaved pipelines take turns apart: uneven stages help the plain ones more than is expected.
    """
    turn: Counter[tuple[int, bool]] = Counter()
    order = []
    for index, candidate in enumerate(candidates):
        order.append((turn[_kind(candidate)], index))
        turn[_kind(candidate)] += 1
    return [index for _, index in sorted(order)]


def _better_bound(plan: RankedPlan, proof: Proof) -> Proof:
    """Return what a bound from another placement of the same layout says of this one."""
    if proof.bound is None or (plan.proof.bound is not None and plan.proof.bound >= proof.bound):
        return plan.proof
    gap = max(0.0, 1.0 - proof.bound / plan.makespan_s)
    return replace(proof, status="optimal" if gap <= PROVED_GAP else "feasible", gap=gap)
