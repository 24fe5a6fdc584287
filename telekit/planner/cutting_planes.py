"""Least makespan as a sequence of integer programs, each with more critical paths: the proof of a placement.

The program's optimum over some paths bounds every placement's makespan from below. Its solution is simulated;
the path that turns out longest becomes a new row. When the bound meets a simulated makespan, that placement is
optimal. Most paths are found cheaply on the linear relaxation, before any branching.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import numpy as np

from telekit.pipeline.simulate import makespan
from telekit.planner.critical_paths import Path, critical_paths, one_slow_part
from telekit.planner.integer_program import Program, makespan_program, time_names
from telekit.planner.solver import Outcome, Relaxation, solve
from telekit.planner.stage_problem import Floats, Ints, Placement, StageProblem

ENOUGH = 1e-4
"""Relative distance from the relaxation's bound to its own simulated makespan at which it is left."""

MOST_S = 600.0
"""Time for one solve of the relaxation, whatever the deadline."""


class PathProgram:
    """The rows ``makespan >= path`` found so far for one problem, and the bound they prove.

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    floor_s : float
        A bound on every makespan that is known otherwise.
    most_bottleneck : float
        Only placements whose bottleneck does not exceed this; the bound is then for these.
    """

    def __init__(
        self, problem: StageProblem, floor_s: float = 0.0, most_bottleneck: float = math.inf
    ) -> None:
        self.problem = problem
        self.floor_s = self.bound_s = floor_s
        self.most_bottleneck = most_bottleneck
        self.paths: dict[Path, None] = dict.fromkeys(one_slow_part(problem))

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
        program = self._program()
        names, unit = time_names(self.problem), program.time_unit
        values: Mapping[str, float] = {}
        with Relaxation(program.lp) as relaxation:
            while time.monotonic() < deadline:
                outcome = relaxation.solve(max(0.1, min(MOST_S, deadline - time.monotonic())))
                if outcome.bound is None:
                    break
                values, bound_s = outcome.values, outcome.bound * unit
                self.bound_s = max(self.bound_s, bound_s)
                times = np.array([values[name] for name in names]).reshape(inner_s.shape) * unit
                new = self._violated(np.maximum(times, 0.0), inner_s, bound_s * (1 + ENOUGH))
                if not new:
                    break
                for path in new:
                    terms = {name: float(n) for name, n in zip(names, path.passes, strict=True) if n}
                    lag = path.crossings * self.problem.comm_s / unit
                    relaxation.add(terms | {"makespan": -1.0}, -lag)
        if not values:
            return None
        layers = np.vectorize(lambda v: values[v.name], otypes=[float])(program.counts).sum(axis=0)
        return rounded(self.problem, np.array([layers[v, s] for v, s in self.problem.positions]))

    def _program(self, at_most: float = math.inf) -> Program:
        return makespan_program(self.problem, self.paths, self.floor_s, at_most, self.most_bottleneck)

    def _violated(self, times_s: Floats, inner_s: Floats, above_s: float) -> list[Path]:
        """Learn paths longer than ``above_s`` under a relaxation's times; none when its makespan is not."""
        problem, (forward, backward) = self.problem, (times_s[0], times_s[1])
        longest = makespan(problem.schedule, forward, backward, problem.micro_batches, problem.comm_s)
        if float(longest) <= above_s:
            return []
        between = 0.5 * (times_s + inner_s)
        new = self.learn(between[0], between[1])
        if any(path.length_s(forward, backward, problem.comm_s) > above_s for path in new):
            return new
        return new + self.learn(forward, backward)

    def branch(
        self, known: Placement, known_s: float, solver: str, time_limit_s: float
    ) -> tuple[Outcome, Placement | None]:
        """Solve the integer program over the paths found, from a known placement; raise the bound."""
        program = self._program(known_s)
        outcome = solve(program.lp, solver, time_limit_s, start=program.start(known))
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
