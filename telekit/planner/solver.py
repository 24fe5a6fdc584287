"""One door to PuLP: a status that is true, a bound from the solver itself, and nothing left behind.

PuLP's own solver calls name a solution found within the time limit ``Optimal``, keep values of the linear
relaxation when nothing was found, let HiGHS' banner through although messages are off, and leave CBC's files in
the temporary folder when a solve is interrupted. So problems are written in PuLP, but solved here: every answer
is read from the solver, checked against the rows of the problem, and an ``infeasible`` is believed only when a
second solver agrees.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from telekit.errors import bad
from telekit.planner import cbc, highs
from telekit.planner.cbc import Status

SOLVERS = ("highs", "cbc")
PROVED_GAP = 1e-6
"""Relative gap up to which an answer counts as proved: the solvers' own feasibility tolerance."""
_TOLERANCE = 1e-5
_HIGHS_STATUS: dict[str, Status] = {
    "kOptimal": "optimal",
    "kInfeasible": "infeasible",
    "kUnboundedOrInfeasible": "infeasible",
    "kUnbounded": "unbounded",
}
_said_without_cbc = threading.Event()


@dataclass(frozen=True)
class Outcome:
    """What a solver found.

    Attributes
    ----------
    status : str
        ``optimal``: proved. ``feasible``: a solution, not proved best within the limit. ``infeasible`` and
        ``unbounded``: proved, and confirmed by a second solver. ``unknown``: nothing found in time.
    objective : float or None
        Objective of ``values``, recomputed from the problem; None without values.
    bound : float or None
        The solver's proved bound on the objective, also without a solution; None when it gave none.
    gap : float or None
        ``abs(objective - bound) / abs(objective)``; None when either is missing.
    values : mapping of str to float
        By variable name, whole where the variable is an integer; empty without a solution.
    solver : str
        Who found it.
    seconds : float
        Wall time of the call.
    """

    status: Status
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    solver: str = "highs"
    seconds: float = 0.0


def solve(
    problem: Any,
    solver: str = "highs",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    start: Mapping[str, float] | None = None,
) -> Outcome:
    """Solve a ``pulp.LpProblem``; the problem itself is not changed.

    Parameters
    ----------
    problem : pulp.LpProblem
        Linear, with or without integer variables.
    solver : {"highs", "cbc"}
        CBC falls back to HiGHS, with one warning, where it cannot run (the bundled one on Apple silicon).
    time_limit_s : float
        Wall time of one solve; confirming an infeasibility may take as long again.
    gap : float
        Relative gap at which to stop; the answer is then ``feasible``, with its gap.
    start : mapping of str to float, optional
        A known solution to start from: all whole variables, by name (HiGHS; CBC starts without).

    Returns
    -------
    Outcome
        See there; it never holds values that break a row.

    Raises
    ------
    InputError
        For an unknown solver, a time limit that is not positive or a negative gap.
    """
    _check_arguments(solver, time_limit_s, gap)
    began = time.perf_counter()
    if solver == "cbc" and not cbc.available():
        _warn_without_cbc()
        solver = "highs"
    scaled = _scaled(problem)
    found = _run(scaled, solver, time_limit_s, gap, start=start)
    if found.status in ("infeasible", "unbounded"):
        found = _confirmed(scaled, found, time_limit_s, gap)
    return replace(found, seconds=time.perf_counter() - began)


def _check_arguments(solver: str, time_limit_s: float, gap: float) -> None:
    if solver not in SOLVERS:
        raise bad("solver", solver, f"must be one of {', '.join(SOLVERS)}", "use highs")
    if not (time_limit_s > 0 and math.isfinite(time_limit_s)):
        raise bad("time_limit_s", time_limit_s, "must be a positive number of seconds", "use 60")
    if not (0 <= gap < 1):
        raise bad("gap", gap, "must be in [0, 1)", "use 0 to ask for a proof")


def _warn_without_cbc() -> None:
    if not _said_without_cbc.is_set():
        _said_without_cbc.set()
        warnings.warn("CBC cannot run on this machine; HiGHS solves instead", RuntimeWarning, stacklevel=3)


@dataclass(frozen=True)
class _Scaled:
    """The problem minimised, without constant, every row's largest number 1."""

    problem: Any
    sign: float
    unit: float
    constant: float


def _scaled(problem: Any) -> _Scaled:
    import pulp

    sign = -1.0 if problem.sense == pulp.LpMaximize else 1.0
    terms = dict(problem.objective.items()) if problem.objective is not None else {}
    constant = float(problem.objective.constant) if problem.objective is not None else 0.0
    unit = max((abs(c) for c in terms.values()), default=0.0) or 1.0
    copy = pulp.LpProblem("scaled", pulp.LpMinimize)
    copy.setObjective(pulp.LpAffineExpression({v: sign * c / unit for v, c in terms.items()}))
    for row in problem.constraints():
        largest = max((abs(c) for c in row.values()), default=0.0) or 1.0
        expression = pulp.LpAffineExpression({v: c / largest for v, c in row.items()})
        copy.addConstraint(pulp.LpConstraint(expression, row.sense, rhs=-row.constant / largest))
    return _Scaled(copy, sign, unit, constant)


def _run(
    scaled: _Scaled,
    solver: str,
    time_limit_s: float,
    gap: float,
    presolve: bool = True,
    start: Mapping[str, float] | None = None,
) -> Outcome:
    """Solve the scaled problem; bring the answer back to the problem's units, and check it."""
    if solver == "highs":
        status, values, bound = _highs(scaled.problem, time_limit_s, gap, presolve, start)
    else:
        status, values, bound = cbc.run(scaled.problem, time_limit_s, gap, presolve)
    values = _whole(scaled.problem, values)
    back = scaled.sign * scaled.unit
    if not values or not _satisfies(scaled.problem, values):
        final: Status = status if status in ("infeasible", "unbounded") and not values else "unknown"
        return Outcome(final, bound=None if bound is None else back * bound + scaled.constant, solver=solver)
    objective = sum(c * values[v.name] for v, c in scaled.problem.objective.items())
    if status == "optimal":
        proved = bound is None or objective - bound <= PROVED_GAP * max(1e-3, abs(objective))
        status, bound = ("optimal", objective) if proved else ("feasible", bound)
    objective = back * objective + scaled.constant
    bound = None if bound is None else back * bound + scaled.constant
    return Outcome(status, objective, bound, _gap(objective, bound), values, solver)


def _gap(objective: float, bound: float | None) -> float | None:
    if bound is None:
        return None
    return 0.0 if objective == bound else abs(objective - bound) / max(abs(objective), 1e-12)


def _confirmed(scaled: _Scaled, found: Outcome, time_limit_s: float, gap: float) -> Outcome:
    """Ask a second solver (or the same one without its preprocessing) before believing a 'no'."""
    other = "cbc" if found.solver == "highs" and cbc.available() else "highs"
    second = _run(scaled, other, time_limit_s, gap, presolve=other != found.solver)
    if second.values or second.status == found.status:
        return second if second.values else found
    return Outcome("unknown", solver=found.solver)


def _whole(problem: Any, values: dict[str, float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        v.name: float(round(values[v.name])) if v.cat == "Integer" else values[v.name]
        for v in problem.variables()
        if v.name in values
    }


def _satisfies(problem: Any, values: Mapping[str, float]) -> bool:
    """Whether the values keep every bound and row, to the tolerance of the solvers."""
    for v in problem.variables():
        slack = _TOLERANCE * max(1.0, abs(values[v.name]))
        if (v.lowBound is not None and values[v.name] < v.lowBound - slack) or (
            v.upBound is not None and values[v.name] > v.upBound + slack
        ):
            return False
    for row in problem.constraints():
        terms = [c * values[v.name] for v, c in row.items()]
        off = sum(terms) + row.constant
        slack = _TOLERANCE * max(1.0, abs(row.constant), *(abs(t) for t in terms))
        if (row.sense <= 0 and off > slack) or (row.sense >= 0 and off < -slack):
            return False
    return True


def _highs(
    problem: Any, time_limit_s: float, gap: float, presolve: bool, start: Mapping[str, float] | None = None
) -> tuple[Status, dict[str, float], float | None]:
    """Run HiGHS and read status, values and bound from its own words."""
    columns = {v.name: i for i, v in enumerate(problem.variables())}
    options = {"mip_rel_gap": gap, "mip_abs_gap": 1e-9, "presolve": "choose" if presolve else "off"}
    known = {"index": [columns[n] for n in start], "value": list(start.values())} if start else None
    with highs.process() as process:
        answer = process.ask(time_limit_s, model=_arrays(problem, columns), start=known, options=options)
    if answer is None:
        return "unknown", {}, None
    if answer["status"] == "kUnboundedOrInfeasible" and presolve:
        return _highs(problem, time_limit_s, gap, presolve=False, start=start)
    status = _HIGHS_STATUS.get(answer["status"], "feasible")
    bound = float(answer["bound"]) if problem.isMIP() else math.inf
    proved = bound if math.isfinite(bound) else None
    if status in ("infeasible", "unbounded"):
        return status, {}, None
    if not answer["has_point"]:
        return "unknown", {}, proved
    return status, {name: answer["values"][i] for name, i in columns.items()}, proved


def _arrays(problem: Any, columns: Mapping[str, int], whole: bool = True) -> dict[str, Any]:
    """Turn a minimisation without constant into the arrays that HiGHS takes, rows one after the other."""
    variables = problem.variables()
    cost = {v.name: float(c) for v, c in problem.objective.items()}
    found: dict[str, Any] = {
        "cost": [cost.get(v.name, 0.0) for v in variables],
        "lower": [-math.inf if v.lowBound is None else float(v.lowBound) for v in variables],
        "upper": [math.inf if v.upBound is None else float(v.upBound) for v in variables],
        "whole": [int(whole and v.cat == "Integer") for v in variables],
        "row_lower": [],
        "row_upper": [],
        "start": [0],
        "index": [],
        "value": [],
    }
    for row in problem.constraints():
        found["row_lower"].append(-row.constant if row.sense >= 0 else -math.inf)
        found["row_upper"].append(-row.constant if row.sense <= 0 else math.inf)
        found["index"] += [columns[v.name] for v in row]
        found["value"] += [float(c) for c in row.values()]
        found["start"].append(len(found["index"]))
    return found


class Relaxation:
    """Linear relaxation of a problem, kept in HiGHS: rows are added and it is solved again from where it was.

    Use it in a ``with`` statement.

    Parameters
    ----------
    problem : pulp.LpProblem
        A minimisation; whole variables may take any value between.
    """

    def __init__(self, problem: Any) -> None:
        self._scaled = _scaled(problem)
        self._columns = {v.name: i for i, v in enumerate(self._scaled.problem.variables())}
        self._model: dict[str, Any] | None = _arrays(self._scaled.problem, self._columns, whole=False)
        self._rows: list[dict[str, Any]] = []
        self._borrowed = contextlib.ExitStack()

    def __enter__(self) -> Relaxation:
        """Take a HiGHS process."""
        self._process = self._borrowed.enter_context(highs.process())
        return self

    def __exit__(self, *exception: Any) -> None:
        """Give it back."""
        self._borrowed.__exit__(*exception)

    def add(self, terms: Mapping[str, float], at_most: float) -> None:
        """Add the row ``sum of coefficient * variable <= at_most``, by names of variables."""
        largest = max(abs(c) for c in terms.values())
        index = [self._columns[name] for name in terms]
        values = [c / largest for c in terms.values()]
        self._rows.append({"at_most": at_most / largest, "index": index, "value": values})

    def solve(self, time_limit_s: float) -> Outcome:
        """Status ``optimal`` (objective and bound are then the relaxation's), ``infeasible`` or ``unknown``."""
        began = time.perf_counter()
        answer = self._process.ask(time_limit_s, model=self._model, rows=self._rows)
        self._model, self._rows = None, []
        seconds = time.perf_counter() - began
        if answer is None or answer["status"] != "kOptimal":
            no = answer is not None and answer["status"] == "kInfeasible"
            return Outcome("infeasible" if no else "unknown", seconds=seconds)
        back = self._scaled.sign * self._scaled.unit
        objective = back * float(answer["objective"]) + self._scaled.constant
        values = {name: answer["values"][i] for name, i in self._columns.items()}
        return Outcome("optimal", objective, objective, 0.0, values, seconds=seconds)
