"""The integer program that puts layers and recompute onto stages, in aggregated counts.

One variable for each (run of layers, recompute option, chunk, stage), never one for each layer. Two objectives
share all other rows: the bottleneck (SAPP's), and the makespan over given critical paths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.planner.critical_paths import Path, one_slow_part
from telekit.planner.stage_problem import Floats, Placement, StageProblem, last_chunk_share

Terms = dict[Any, float]


@dataclass(frozen=True)
class Program:
    """A ``pulp.LpProblem`` and what its variables mean.

    ``counts[column, chunk, stage]`` are the variables in the order of ``StageProblem.columns``; times in the
    program are in ``time_unit`` and sizes in ``memory_unit`` of the problem's own units, so that no coefficient
    is far from 1.
    """

    lp: Any
    counts: Any
    time_unit: float
    memory_unit: float

    def placement(self, problem: StageProblem, values: Mapping[str, float]) -> Placement:
        """Read a solver's values."""
        whole = [round(values.get(v.name, 0.0)) for v in self.counts.ravel()]
        return Placement.from_array(problem, np.array(whole).reshape(self.counts.shape))

    def start(self, placement: Placement) -> dict[str, float]:
        """Return a placement as values of the counts, for a solver to start from."""
        return {v.name: float(n) for v, n in zip(self.counts.ravel(), placement.array.ravel(), strict=True)}

    def text(self, rows: int = 12) -> str:
        """Write the program for a reader: each group of rows by name, at most ``rows`` of each."""
        return _text(self, rows)


def bottleneck_program(
    problem: StageProblem, at_most: float = math.inf, whole_stages: bool = False
) -> Program:
    """Least bottleneck; the rows of SAPP (:func:`telekit.planner.stage_problem.bottleneck`).

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    at_most : float
        A bottleneck known to be reachable; cuts the search short.
    whole_stages : bool
        Minimise instead the longest stage with all its chunks: times the micro-batches it bounds a makespan.
    """
    program = _layers(problem, "bottleneck")
    rows = _whole_stage_rows if whole_stages else _bottleneck_rows
    objective = rows(problem, program)
    program.lp.setObjective(objective)
    if math.isfinite(at_most):
        _row(program.lp, "known", dict(objective.items()), "<=", at_most / program.time_unit * (1 + 1e-7))
    return program


def makespan_program(
    problem: StageProblem,
    paths: Iterable[Path],
    at_least: float = 0.0,
    at_most: float = math.inf,
    most_bottleneck: float = math.inf,
) -> Program:
    """Least makespan over the given paths: its optimum is a lower bound on the makespan of every placement.

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    paths : iterable of Path
        Paths through the schedule; the more of them are critical somewhere, the closer the bound.
    at_least, at_most : float
        A bound that every makespan keeps, and a makespan known to be reachable.
    most_bottleneck : float
        Only placements whose bottleneck does not exceed this.
    """
    program = _layers(problem, "makespan")
    lp, unit = program.lp, program.time_unit
    upper = at_most / unit * (1 + 1e-7) if math.isfinite(at_most) else None
    total = lp.add_variable("makespan", at_least / unit * (1 - 1e-9), upper)
    lp.setObjective(_sum({total: 1.0}))
    if math.isfinite(most_bottleneck):
        longest = _bottleneck_rows(problem, program)
        _row(lp, "no_longer", dict(longest.items()), "<=", most_bottleneck / unit * (1 + 1e-9))
    times = _pass_times(problem, program)
    for i, path in enumerate(paths):
        terms = {v: float(n) for v, n in zip(times, path.passes, strict=True) if n}
        terms[total] = -1.0
        _row(lp, f"path_{i}", terms, "<=", -path.crossings * problem.comm_s / unit)
    return program


def capacity_program(problem: StageProblem) -> Program:
    """Least overshoot: by how much every stage's cap must grow for a placement to exist; 0 when one does."""
    return _layers(problem, "overshoot", overshoot=True)


def program_text(problem: StageProblem, objective: str = "makespan", rows: int = 6) -> str:
    """Write the very program that is solved, bounded in length.

    Parameters
    ----------
    problem : StageProblem
        What is placed.
    objective : {"makespan", "bottleneck"}
        The makespan's program is shown with its first paths; more are added while it is solved.
    rows : int
        Rows shown of each group.
    """
    if objective == "bottleneck":
        return bottleneck_program(problem).text(rows)
    return makespan_program(problem, one_slow_part(problem)).text(rows)


def time_names(problem: StageProblem) -> list[str]:
    """Names of the variables that hold pass times, flat as in :class:`Path`."""
    parts = [(v, s) for v in range(problem.chunks) for s in range(problem.stages)]
    return [f"{kind}_c{v}_s{s}" for kind in "FB" for v, s in parts]


def _layers(problem: StageProblem, name: str, overshoot: bool = False) -> Program:
    """Build counts and the rows every objective shares: all layers, least a chunk, model order, memory."""
    import pulp

    lp = pulp.LpProblem(name, pulp.LpMinimize)
    counts = np.empty((len(problem.columns), problem.chunks, problem.stages), dtype=object)
    for column, (t, o) in enumerate(problem.columns):
        run = problem.layers[t]
        stem = f"n_{_plain(run.name)}_{_plain(run.options[o].name)}"
        for v in range(problem.chunks):
            for s in range(problem.stages):
                counts[column, v, s] = lp.add_variable(f"{stem}_c{v}_s{s}", 0, run.count, "Integer")
    program = Program(lp, counts, _time_unit(problem), _memory_unit(problem))
    for t, run in enumerate(problem.layers):
        mine = _of_run(problem, counts, t)
        _row(lp, f"all_{_plain(run.name)}", dict.fromkeys(mine.ravel(), 1.0), "==", run.count)
    if problem.min_layers:
        for v, s in problem.positions:
            _row(lp, f"least_c{v}_s{s}", dict.fromkeys(counts[:, v, s], 1.0), ">=", problem.min_layers)
    if problem.ordered:
        _order_rows(problem, lp, counts)
    _memory_rows(problem, program, overshoot)
    return program


def _of_run(problem: StageProblem, counts: Any, run: int) -> Any:
    return counts[[i for i, (t, _) in enumerate(problem.columns) if t == run]]


def _order_rows(problem: StageProblem, lp: Any, counts: Any) -> None:
    """Keep runs in model order: ``done`` says that a run's last layer lies in or before a part.

    A later run may have layers in a part only if the earlier one is done there; the earlier one has none after.
    """
    positions = problem.positions
    for t, (run, following) in enumerate(zip(problem.layers, problem.layers[1:], strict=False)):
        mine, later = _of_run(problem, counts, t), _of_run(problem, counts, t + 1)
        done = [lp.add_variable(f"done_{_plain(run.name)}_c{v}_s{s}", 0, 1, "Integer") for v, s in positions]
        for k, (v, s) in enumerate(positions):
            where = f"{_plain(run.name)}_c{v}_s{s}"
            terms: Terms = dict.fromkeys(later[:, v, s], 1.0)
            _row(lp, f"starts_after_{where}", terms | {done[k]: -float(following.count)}, "<=", 0)
            if k:
                terms = dict.fromkeys(mine[:, v, s], 1.0)
                _row(lp, f"ended_{where}", terms | {done[k - 1]: float(run.count)}, "<=", run.count)
                _row(lp, f"stays_done_{where}", {done[k - 1]: 1.0, done[k]: -1.0}, "<=", 0)


def _memory_rows(problem: StageProblem, program: Program, overshoot: bool) -> None:
    """At each moment that can be a stage's fullest: parameters, activations in flight and the fixed part."""
    _, _, activation, parameter = problem.rates
    unit = program.memory_unit
    over = program.lp.add_variable("overshoot", 0) if overshoot else None
    if over is not None:
        program.lp.setObjective(_sum({over: 1.0}))
    for s in range(problem.stages):
        if not math.isfinite(problem.cap_bytes[s]):
            continue
        room = (problem.cap_bytes[s] - problem.fixed_bytes[s]) / unit
        for k, held in enumerate(np.unique(problem.profiles[:, :, s], axis=0)):
            size = (activation[:, None] * held + parameter[:, None]) / unit
            terms: Terms = dict(zip(program.counts[:, :, s].ravel(), size.ravel(), strict=True))
            if over is not None:
                terms[over] = -1.0
            _row(program.lp, f"memory_s{s}" + (f"_m{k}" if k else ""), terms, "<=", room)


def _pass_times(problem: StageProblem, program: Program) -> list[Any]:
    """Variables for the forward and backward time of each chunk, flat as in :class:`Path`."""
    forward, backward, _, _ = problem.rates
    variables = [program.lp.add_variable(name, 0) for name in time_names(problem)]
    left = iter(variables)
    for rate, end in ((forward, problem.end_times[0]), (backward, problem.end_times[1])):
        for v in range(problem.chunks):
            for s in range(problem.stages):
                time = next(left)
                terms = _times(program, rate, v, s) | {time: -1.0}
                _row(program.lp, f"time_{time.name}", terms, "==", -float(end[v, s]) / program.time_unit)
    return variables


def _times(program: Program, rate: Floats, v: int, s: int) -> Terms:
    unit = program.time_unit
    return {n: r / unit for n, r in zip(program.counts[:, v, s], rate, strict=True)}


def _whole_stage_rows(problem: StageProblem, program: Program) -> Any:
    """Rows of the longest stage, all its chunks together; returns it as an expression."""
    forward, backward, _, _ = problem.rates
    longest = program.lp.add_variable("longest_stage", 0)
    ends = (problem.end_times[0] + problem.end_times[1]).sum(axis=0) / program.time_unit
    for s in range(problem.stages):
        terms: Terms = {longest: -1.0}
        for v in range(problem.chunks):
            terms |= _times(program, forward + backward, v, s)
        _row(program.lp, f"whole_s{s}", terms, "<=", -float(ends[s]))
    return _sum({longest: 1.0})


def _bottleneck_rows(problem: StageProblem, program: Program) -> Any:
    """Rows of SAPP's objective; returns it as an expression."""
    lp, unit = program.lp, program.time_unit
    ends_f, ends_b = (end / unit for end in problem.end_times)
    forward, backward, _, _ = problem.rates
    longest = lp.add_variable("bottleneck", 0)
    if problem.chunks > 1 and problem.micro_batches == problem.stages:
        return _last_chunk_rows(problem, program, longest)
    for s in range(problem.stages):
        for vf in range(problem.chunks):
            for vb in range(problem.chunks):
                terms = _merged(_times(program, forward, vf, s), _times(program, backward, vb, s))
                rhs = -float(ends_f[vf, s] + ends_b[vb, s])
                _row(lp, f"longest_s{s}_f{vf}_b{vb}", terms | {longest: -1.0}, "<=", rhs)
    return _sum({longest: 1.0})


def _last_chunk_rows(problem: StageProblem, program: Program, longest: Any) -> Any:
    """SAPP's rows where micro-batches equal stages: slowest backward, plus slowest last chunk."""
    lp, unit, last = program.lp, program.time_unit, problem.chunks - 1
    ends_f, ends_b = (end / unit for end in problem.end_times)
    forward, backward, _, _ = problem.rates
    slowest_last = lp.add_variable("slowest_last", 0)
    share = last_chunk_share(problem)
    for s in range(problem.stages):
        for v in range(last):
            terms = _times(program, backward, v, s) | {longest: -1.0}
            _row(lp, f"slowest_c{v}_s{s}", terms, "<=", -float(ends_b[v, s]))
        part = {n: share[s] * c for n, c in _times(program, forward, last, s).items()}
        terms = _merged(_times(program, backward, last, s), part) | {slowest_last: -1.0}
        _row(lp, f"slowest_last_s{s}", terms, "<=", -float(ends_b[last, s] + ends_f[last, s]))
    _row(lp, "last_no_less", {longest: 1.0, slowest_last: -1.0}, "<=", 0)
    return _sum({longest: 1.0, slowest_last: 1.0})


def _merged(first: Terms, second: Terms) -> Terms:
    """Sum of two expressions."""
    return {v: first.get(v, 0.0) + second.get(v, 0.0) for v in dict.fromkeys([*first, *second])}


def _sum(terms: Terms) -> Any:
    import pulp

    return pulp.LpAffineExpression(terms)


def _row(lp: Any, name: str, terms: Terms, sense: str, rhs: float) -> None:
    import pulp

    senses = {"<=": pulp.LpConstraintLE, ">=": pulp.LpConstraintGE, "==": pulp.LpConstraintEQ}
    lp.addConstraint(pulp.LpConstraint(_sum(terms), senses[sense], rhs=rhs), name)


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_") or "layer"


def _time_unit(problem: StageProblem) -> float:
    """Power of 1000 near a layer's time, so that the program reads in s, ms or µs."""
    forward, backward, _, _ = problem.rates
    return _thousands(float((forward + backward).max()))


def _memory_unit(problem: StageProblem) -> float:
    _, _, activation, parameter = problem.rates
    return _thousands(float((activation + parameter).max()))


def _thousands(size: float) -> float:
    return 1.0 if size <= 0 else 1000.0 ** math.floor(math.log(size, 1000.0))


def _text(program: Program, rows: int) -> str:
    lp = program.lp
    lines = [f"minimise {_linear(lp.objective)}", "subject to"]
    groups: dict[str, list[Any]] = {}
    for row in lp.constraints():
        groups.setdefault(re.sub(r"(_[csfbm]?\d+)+$", "", row.name), []).append(row)
    for group, members in groups.items():
        signs = {-1: "<=", 0: "=", 1: ">="}
        lines += [f"  {r.name}: {_linear(r)} {signs[r.sense]} {0.0 - r.constant:.6g}" for r in members[:rows]]
        if len(members) > rows:
            lines.append(f"  … and {len(members) - rows} more rows {group}")
    variables = lp.variables()
    whole = sum(v.cat == "Integer" for v in variables)
    units = f"times in units of {program.time_unit:g}, sizes of {program.memory_unit:g}"
    lines.append(
        f"{whole} whole numbers, {len(variables) - whole} others, {len(lp.constraints())} rows; {units}"
    )
    return "\n".join(lines)


def _linear(expression: Any, shown: int = 6) -> str:
    """Sum of terms, its middle left out when it is long."""
    terms = [
        f"{'+' if c >= 0 else '-'} {'' if abs(c) == 1 else f'{abs(c):.6g} '}{v.name}"
        for v, c in expression.items()
    ]
    if len(terms) > shown + 2:
        terms = [*terms[: shown - 2], f"… ({len(terms) - shown} terms)", *terms[-2:]]
    return " ".join(terms).removeprefix("+ ")
