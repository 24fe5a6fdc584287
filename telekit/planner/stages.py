"""Layers and recompute onto pipeline stages: the best placement, and what is proved of it.

Two objectives. ``bottleneck`` is SAPP's: the shortest longest stage. ``makespan`` is what a step takes: the
smallest bottleneck is not the shortest step, because a slow early stage can hide behind its warm-up. The makespan
is bounded and proved by an integer program over critical paths (:mod:`telekit.planner.cutting_planes`) and sought
by simulation (:mod:`telekit.planner.makespan_search`); what is proved is said.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from telekit.errors import InputError, Problem, bad
from telekit.planner.cbc import Status
from telekit.planner.cutting_planes import PathProgram
from telekit.planner.dynamic_program import covers, least_bottleneck
from telekit.planner.integer_program import Program, bottleneck_program, capacity_program, program_text
from telekit.planner.makespan_search import Evaluator, even_sizes, part_sizes, search, uniform_sizes
from telekit.planner.recompute_mix import Mixer
from telekit.planner.solver import PROVED_GAP, SOLVERS, Outcome, solve
from telekit.planner.stage_problem import (
    CAP_SLACK,
    EndLoad,
    Ints,
    LayerType,
    Placement,
    RecomputeOption,
    StageProblem,
    bottleneck,
    by_kind,
    peak_memory,
    placed_by_kind,
    simulated_makespan,
    stage_times,
)

__all__ = [
    "EndLoad",
    "LayerType",
    "NoFitError",
    "Placement",
    "Proof",
    "RecomputeOption",
    "StagePlan",
    "StageProblem",
    "bottleneck",
    "peak_memory",
    "place",
    "program_text",
    "simulated_makespan",
    "stage_times",
]

Progress = Callable[[int, int, str], None]
OBJECTIVES = ("makespan", "bottleneck")
SEARCH_SHARE = 0.5
"""Part of the time that the search by simulation may take; the integer program has the rest."""
KICKS = 30


class NoFitError(InputError):
    """No placement fits the memory cap; ``smallest_cap`` would, where that was found."""

    def __init__(self, problem: Problem, smallest_cap: float | None) -> None:
        super().__init__([problem])
        self.smallest_cap = smallest_cap


@dataclass(frozen=True)
class Proof:
    """What is proved of a placement.

    Attributes
    ----------
    status : str
        ``optimal`` only when the bound meets the value; else ``feasible``.
    bound : float or None
        No placement has an objective below this.
    gap : float or None
        ``(value - bound) / value``.
    solver : str
        Whose bound it is.
    objective : str
        What is bounded: ``makespan`` or ``bottleneck``.
    """

    status: Status
    bound: float | None
    gap: float | None
    solver: str
    objective: str

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class StagePlan:
    """A placement, its longest stage, its simulated makespan, each stage's peak memory, and the proof."""

    placement: Placement
    bottleneck: float
    makespan: float
    peak_memory: tuple[float, ...]
    proof: Proof


def place(
    problem: StageProblem,
    objective: str = "makespan",
    time_limit_s: float = 10.0,
    solver: str = "highs",
    progress: Progress | None = None,
) -> StagePlan:
    """Place layers and recompute.

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    objective : {"makespan", "bottleneck"}
        Among placements of least bottleneck, too, a short makespan is sought.
    time_limit_s : float
        Wall time; it ends sooner when the proof is done. A search that is cut short keeps its best placement.
    solver : {"highs", "cbc"}
        Of the integer programs.
    progress : callable, optional
        Told (tenths of seconds spent, tenths allowed, what is done).

    Returns
    -------
    StagePlan
        Within the cap, at every moment of the schedule. In makespan mode never worse than the plan of least
        bottleneck that was found.

    Raises
    ------
    NoFitError
        When no placement fits; it names the smallest cap that would do.
    InputError
        For an unknown objective or solver, or a time limit that is not positive.
    """
    if objective not in OBJECTIVES:
        raise bad("objective", objective, f"must be one of {', '.join(OBJECTIVES)}", "use makespan")
    if solver not in SOLVERS:
        raise bad("solver", solver, f"must be one of {', '.join(SOLVERS)}", "use highs")
    if not (time_limit_s > 0 and math.isfinite(time_limit_s)):
        raise bad("time_limit_s", time_limit_s, "must be a positive number of seconds", "use 10")
    return _Placer(problem, solver, time_limit_s, progress).plan(objective)


class _Placer:
    """One call of :func:`place`: its clock, and the best placement so far."""

    def __init__(
        self, problem: StageProblem, solver: str, time_limit_s: float, progress: Progress | None
    ) -> None:
        self.problem, self.solver = problem, solver
        self.stated = by_kind(problem)  # as integer programs state it
        self.began, self.limit_s = time.monotonic(), time_limit_s
        self.progress = progress or (lambda done, total, what: None)
        self.mixer = Mixer(problem)
        self.most_bottleneck = math.inf
        self.best: tuple[float, Placement] | None = None

    def plan(self, objective: str) -> StagePlan:
        """Find the least bottleneck, then a short makespan: of all placements, or of those of that bottleneck."""
        only_shortest = objective == "bottleneck"
        candidates, least_s, bound, name = self._least_bottleneck(0.6 if only_shortest else 0.1)
        if only_shortest:
            self.most_bottleneck = least_s * (1 + PROVED_GAP)
        for placement in candidates:
            self._keep(placement)
        proof = self._least_makespan(self.problem.micro_batches * self._longest_stage_bound(bound))
        assert self.best is not None
        makespan, placement = self.best
        longest = self._bottleneck_of(placement)
        if only_shortest:
            proof = _proof(longest, bound, name, objective)
        peak = tuple(float(b) for b in peak_memory(self.problem, placement))
        self._tell("done")
        return StagePlan(placement, longest, makespan, peak, proof)

    def _least_bottleneck(self, share: float) -> tuple[list[Placement], float, float | None, str]:
        """Placements, the least bottleneck among them, and whose bound on it holds."""
        self._tell("shortest longest stage")
        start, proved = self._start()
        found = [start]
        least_s = self._bottleneck_of(start)
        program = bottleneck_program(self.stated, at_most=least_s)
        limit_s = max(1.0, self._left_s(share))
        known = program.start(placed_by_kind(self.problem, start))
        outcome = solve(program.lp, self.solver, limit_s, start=known)
        solved = self._read(program, outcome) or start
        if self._fits(solved):
            found.append(solved)
            least_s = min(least_s, self._bottleneck_of(solved))
        bound = None if outcome.bound is None else outcome.bound * program.time_unit
        if proved and outcome.status != "optimal":
            return found, least_s, least_s, "dynamic program"
        return found, least_s, bound, outcome.solver

    def _start(self) -> tuple[Placement, bool]:
        """Return a placement that fits, and whether its bottleneck is proved least."""
        evaluator = Evaluator(self.problem, self.mixer)
        if covers(self.problem):
            split = least_bottleneck(self.problem, self.mixer)
            if split is not None:
                return evaluator.placement(split.sizes), self.mixer.exact
        else:
            even = even_sizes(self.problem)
            if np.isfinite(evaluator.makespans(even[None])[0]):
                return evaluator.placement(even), False
        program = capacity_program(self.stated)
        outcome = solve(program.lp, self.solver, max(1.0, self._left_s()))
        proved = covers(self.problem) or (outcome.bound or 0.0) > 0
        placement = self._read(program, outcome)
        if placement is None:
            raise self._no_fit(None, proved)
        # The solver's tolerance is no byte more: the placement itself says what it holds.
        if not self._fits(placement):
            over = peak_memory(self.problem, placement) - self.problem.cap_bytes
            raise self._no_fit(float(over.max()), proved)
        return placement, False

    def _read(self, program: Program, outcome: Outcome) -> Placement | None:
        """Read a solver's answer, its layers in the model's order; None where it has none, or none that fits."""
        if not outcome.values:
            return None
        return self._in_order(program.placement(self.stated, outcome.values))

    def _in_order(self, solved: Placement) -> Placement | None:
        """Keep the sizes of a placement in no order: which layers a part then has follows, and what it recomputes."""
        if self.stated.ordered:
            return solved
        sizes = part_sizes(self.stated, solved)
        evaluator = Evaluator(self.problem, self.mixer)
        fits = np.isfinite(evaluator.makespans(sizes[None])[0])
        return evaluator.placement(sizes) if fits else None

    def _no_fit(self, over: float | None, proved: bool) -> NoFitError:
        cap = self.problem.cap_bytes.tolist()
        smallest, hint = None, ""
        if over is not None:
            hint = f"{over:.6g} more on each stage would do"
            if len(set(cap)) == 1:
                smallest = math.ceil((cap[0] + over) * (1 - CAP_SLACK))
                hint = f"{smallest} would do"
        rule = "no placement fits, even with all the recomputation allowed"
        rule = rule if proved else "no placement that fits was found in time"
        shown = cap[0] if len(set(cap)) == 1 else cap
        return NoFitError(Problem("memory_cap_bytes", shown, rule, hint), smallest)

    def _longest_stage_bound(self, bottleneck_bound: float | None) -> float:
        """Bound on the longest stage's work for one micro-batch, all its chunks together."""
        if self.problem.chunks == 1:
            return bottleneck_bound or 0.0
        self._tell("bound on the longest stage")
        program = bottleneck_program(self.stated, whole_stages=True)
        outcome = solve(program.lp, self.solver, max(1.0, self._left_s(0.15)))
        placement = self._read(program, outcome)
        if placement is not None:
            self._keep(placement)
        return (outcome.bound or 0.0) * program.time_unit

    def _least_makespan(self, floor_s: float) -> Proof:
        """Bound by the relaxation, search by simulation, then branch until proved or out of time."""
        assert self.best is not None
        self._tell("bound on the makespan")
        rows = PathProgram(self.stated, floor_s, self.most_bottleneck)
        times = stage_times(self.problem, self.best[1])
        rows.learn(*times)
        near = rows.relax(np.stack(times), time.monotonic() + self._left_s(0.3))
        self._tell("search by simulation")
        evaluator = Evaluator(self.problem, self.mixer, self.most_bottleneck)
        seeds = [part_sizes(self.problem, self.best[1]), even_sizes(self.problem)]
        seeds += [] if near is None else [near]
        seeds += self._uniform(evaluator)
        self._improve(evaluator, seeds, KICKS if self.problem.chunks == 1 else 10 * KICKS, SEARCH_SHARE)
        name = "highs"
        while not self._proved(rows.bound_s) and self._left_s() > 0.5:
            self._tell("proof by branching")
            name = self._branch(rows, evaluator)
        return _proof(self.best[0], rows.bound_s, name, "makespan")

    def _uniform(self, evaluator: Evaluator) -> list[Ints]:
        """Return the two best of the sizes that are alike on all stages."""
        found = uniform_sizes(self.problem) if self.problem.chunks > 1 else []
        order: Any = np.argsort(evaluator.makespans(np.stack(found))) if found else []
        return [found[int(i)] for i in order[:2]]

    def _branch(self, rows: PathProgram, evaluator: Evaluator) -> str:
        """One integer program; simulate, improve and learn from what it finds."""
        assert self.best is not None
        limit_s = self._left_s(0.8) if self._left_s() > 2 else self._left_s()
        known = placed_by_kind(self.problem, self.best[1])
        outcome, solved = rows.branch(known, self.best[0], self.solver, limit_s)
        placement = None if solved is None else self._in_order(solved)
        if placement is not None:
            self._keep(placement)
            rows.learn(*stage_times(self.problem, placement))
            self._improve(evaluator, [part_sizes(self.problem, placement)], 0, SEARCH_SHARE)
            rows.learn(*stage_times(self.problem, self.best[1]))
        return outcome.solver

    def _improve(self, evaluator: Evaluator, seeds: list[Ints], kicks: int, share: float) -> None:
        found = search(evaluator, seeds, kicks, time.monotonic() + self._left_s(share))
        if found is not None:
            self._keep(evaluator.placement(found[0]))

    def _proved(self, bound_s: float) -> bool:
        return self.best is not None and bound_s >= self.best[0] * (1 - PROVED_GAP)

    def _keep(self, placement: Placement) -> None:
        """Simulate a placement, and keep it when it is allowed and the best."""
        makespan = simulated_makespan(self.problem, placement)
        better = self.best is None or makespan < self.best[0]
        if better and self._bottleneck_of(placement) <= self.most_bottleneck and self._fits(placement):
            self.best = (makespan, placement)

    def _fits(self, placement: Placement) -> bool:
        peak, cap = peak_memory(self.problem, placement), self.problem.cap_bytes
        return bool((peak <= cap * (1 + CAP_SLACK)).all())

    def _bottleneck_of(self, placement: Placement) -> float:
        return float(bottleneck(self.problem, *stage_times(self.problem, placement)))

    def _left_s(self, share: float = 1.0) -> float:
        return share * (self.began + self.limit_s - time.monotonic())

    def _tell(self, what: str) -> None:
        spent_s = min(time.monotonic() - self.began, self.limit_s)
        self.progress(int(10 * spent_s), max(1, int(10 * self.limit_s)), what)


def _proof(value: float, bound: float | None, solver: str, objective: str) -> Proof:
    if bound is None:
        return Proof("feasible", None, None, solver, objective)
    gap = (value - bound) / value if value > 0 else 0.0
    if gap <= PROVED_GAP:
        return Proof("optimal", value, 0.0, solver, objective)
    return Proof("feasible", bound, gap, solver, objective)
