"""Least makespan as a sequence of integer programs, each with more critical paths: the proof of a placement.

The program's optimum over some paths bounds every placement's makespan from below. Its solution is simulated;
the path that turns out longest becomes a new row. When the bound meets a simulated makespan, that placement is
optimal. Most paths are found cheaply on the linear relaxation, before any branching.
"""

from __future__ import annotations

import math
import time

import numpy as np

from telekit.pipeline.simulate import makespan
from telekit.planner.critical_paths import Path, critical_paths, one_slow_part
from telekit.planner.integer_program import makespan_program, time_names
from telekit.planner.solver import Outcome, Relaxation, solve
from telekit.planner.stage_problem import Floats, Ints, Placement, StageProblem

ENOUGH = 1e-4
"""Relative distance from the relaxation's bound to its own simulated makespan at which it is left."""


class PathProgram:
    """The rows ``makespan >= path`` found so far for one problem, and the bound they prove.

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    most_bottleneck : float
        Only placements whose bottleneck does not exceed this; the bound is then for these.
    """

    def __init__(self, problem: StageProblem, most_bottleneck: float = math.inf) -> None:
        self.problem = problem
        self.most_bottleneck = most_bottleneck
        self.paths: dict[Path, None] = dict.fromkeys(one_slow_part(problem))
        self.bound_s = 0.0

    def learn(self, forward_s: Floats, backward_s: Floats) -> list[Path]:
        """Add the critical paths of these times, each of shape (chunks, stages); return the new ones."""
        found = critical_paths(self.problem, forward_s, backward_s)
        new = [path for path in found if path not in self.paths]
        self.paths.update(dict.fromkeys(new))
        return new

    def relax(self, inner_s: Floats, deadline: float) -> Ints | None:
        """Add the paths that matter to the linear relaxation, and raise the bound to its optimum.

        A path is sought half way between the relaxation's times and ``inner_s`` (2, chunks, stages), times of
        a real placement: such paths cut deeper. Returns the relaxation's layers of each part, rounded.
        """
        problem = self.problem
        program = makespan_program(problem, self.paths, most_bottleneck=self.most_bottleneck)
        relaxation = Relaxation(program.lp)
        names, unit = time_names(problem), program.time_unit
        outcome = Outcome("unknown")
        while time.monotonic() < deadline:
            latest = relaxation.solve(max(0.1, deadline - time.monotonic()))
            if latest.objective is None or latest.bound is None:
                break
            outcome, bound_s = latest, latest.bound * unit
            self.bound_s = max(self.bound_s, bound_s)
            times = np.array([outcome.values[name] for name in names]).reshape(inner_s.shape) * unit
            times = np.maximum(times, 0.0)
            if float(makespan(problem.schedule, *times, problem.micro_batches, problem.comm_s)) <= bound_s * (
                1 + ENOUGH
            ):
                break
            new = self.learn(*(0.5 * (times + inner_s)))
            if not any(path.length_s(*times, problem.comm_s) > bound_s * (1 + ENOUGH) for path in new):
                new += self.learn(*times)
            if not new:
                break
            for path in new:
                terms = {name: float(n) for name, n in zip(names, path.passes, strict=True) if n}
                relaxation.add(terms | {"makespan": -1.0}, -path.crossings * problem.comm_s / unit)
        if not outcome.values:
            return None
        layers = np.vectorize(lambda v: outcome.values[v.name], otypes=[float])(program.counts).sum(axis=0)
        return rounded(problem, np.array([layers[v, s] for v, s in problem.positions]))

    def _violated(self, times_s: Floats, inner_s: Floats, above_s: float) -> list[Path]:
        """New paths longer than ``above_s`` under a relaxation's times; none when its makespan is not."""
        forward, backward = times_s
        problem = self.problem
        if (
            float(makespan(problem.schedule, forward, backward, problem.micro_batches, problem.comm_s))
            <= above_s
        ):
            return []
        between = 0.5 * (times_s + inner_s)
        new = self.learn(between[0], between[1])
        if any(path.length_s(forward, backward, problem.comm_s) > above_s for path in new):
            return new
        return new + self.learn(forward, backward)

    def branch(self, at_most: float, solver: str, time_limit_s: float) -> tuple[Outcome, Placement | None]:
        """Solve the integer program over the paths known; raise the bound; return what it found."""
        program = makespan_program(
            self.problem, self.paths, at_most=at_most, most_bottleneck=self.most_bottleneck
        )
        outcome = solve(program.lp, solver, time_limit_s)
        if outcome.bound is not None:
            self.bound_s = max(self.bound_s, outcome.bound * program.time_unit)
        return outcome, program.placement(self.problem, outcome.values) if outcome.values else None


def rounded(problem: StageProblem, sizes: Floats) -> Ints:
    """Whole layers of each part near fractional ones: cuts are rounded, then empty parts filled."""
    cuts = np.rint(np.concatenate([[0.0], sizes.cumsum()])).astype(np.int64)
    cuts[-1] = problem.total_layers
    whole = np.diff(cuts)
    while whole.min() < problem.min_layers:
        whole[np.argmax(whole)] -= 1
        whole[np.argmin(whole)] += 1
    return np.asarray(whole)
