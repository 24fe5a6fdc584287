"""One door to PuLP: a status that is true, a bound from the solver itself, and nothing left behind.

PuLP alone calls a solution found within the time limit ``Optimal``, keeps values of the linear relaxation
when nothing was found, prints HiGHS' banner although messages are off, and leaves CBC's files in the
temporary folder when a solve is interrupted. Here every answer is read from the solver, checked against the
rows of the problem, and an ``infeasible`` is believed only when a second solver agrees.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from telekit.errors import bad
from telekit.planner import cbc
from telekit.planner.cbc import Status

SOLVERS = ("highs", "cbc")
PROVED_GAP = 1e-6
"""Relative gap up to which an answer counts as proved: the solvers' own feasibility tolerance."""
_TOLERANCE = 1e-5
_FEASIBLE_POINT = 2
"""HiGHS' ``kSolutionStatusFeasible``."""

_stdout_lock = threading.Lock()
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
    """The problem as given, and the same one minimised, without constant, every row's largest number 1."""

    original: Any
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
    return _Scaled(problem, copy, sign, unit, constant)


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
    """Run HiGHS through PuLP and read status, values and bound from its own model, not from PuLP."""
    import highspy

    options = {"mip_abs_gap": 1e-9, "presolve": "choose" if presolve else "off"}
    problem.solve(_quiet_highs(start, timeLimit=time_limit_s, gapRel=gap, **options))
    model = problem.solverModel
    info, state = model.getInfo(), model.getModelStatus()
    if state == highspy.HighsModelStatus.kUnboundedOrInfeasible and presolve:
        return _highs(problem, time_limit_s, gap, presolve=False, start=start)
    stopped: dict[Any, Status] = {
        highspy.HighsModelStatus.kOptimal: "optimal",
        highspy.HighsModelStatus.kInfeasible: "infeasible",
        highspy.HighsModelStatus.kUnbounded: "unbounded",
    }
    status = stopped.get(state, "feasible")
    bound = float(info.mip_dual_bound) if problem.isMIP() else math.inf
    proved = bound if math.isfinite(bound) else None
    if status in ("infeasible", "unbounded"):
        return status, {}, None
    if info.primal_solution_status != _FEASIBLE_POINT:
        return "unknown", {}, proved
    columns = model.getSolution().col_value
    return status, {v.name: float(columns[v.index]) for v in problem.variables()}, proved


def _quiet_highs(start: Mapping[str, float] | None = None, **options: Any) -> Any:
    """PuLP's interface to HiGHS without the banner, interruptible, and with a start."""
    import numpy as np
    import pulp

    class Quiet(pulp.HiGHS):  # type: ignore[misc]
        def createAndConfigureSolver(self, lp: Any) -> None:  # noqa: N802
            with _banner_held_back():
                super().createAndConfigureSolver(lp)

        def callSolver(self, lp: Any) -> None:  # noqa: N802
            if start:
                index = {v.name: v.index for v in lp.variables()}
                columns = np.array([index[name] for name in start], dtype=np.int32)
                lp.solverModel.setSolution(len(start), columns, np.array(list(start.values()), dtype=float))
            _run_interruptibly(lp.solverModel)

        def findSolutionValues(self, lp: Any) -> tuple[int, int]:  # noqa: N802
            return 0, 0

    return Quiet(msg=False, **options)


def _run_interruptibly(model: Any) -> None:
    """Solve in a thread of its own, so that Ctrl-C or a stopped cell ends the solve at once.

    (highspy's own ``startSolve`` holds one lock for all models: two solves at once would fail.)
    """
    stop = threading.Event()
    failed: list[BaseException] = []

    def interrupt(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def run() -> None:
        try:
            model.run()
        except BaseException as error:
            failed.append(error)

    model.cbMipInterrupt += interrupt
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    finally:
        stop.set()
        thread.join()
        model.cbMipInterrupt -= interrupt
    if failed:
        raise failed[0]


class Relaxation:
    """Linear relaxation of a problem, kept in HiGHS: rows are added and it is solved again from where it was.

    Parameters
    ----------
    problem : pulp.LpProblem
        A minimisation; whole variables may take any value between.
    """

    def __init__(self, problem: Any) -> None:
        self._scaled = _scaled(problem)
        lp = self._scaled.problem
        adapter = _quiet_highs(mip=False)
        adapter.createAndConfigureSolver(lp)
        adapter.buildSolverModel(lp)
        self._model = lp.solverModel
        self._columns = {v.name: v.index for v in lp.variables()}

    def add(self, terms: Mapping[str, float], at_most: float) -> None:
        """Add the row ``sum of coefficient * variable <= at_most``, by names of variables."""
        import highspy

        largest = max(abs(c) for c in terms.values())
        index = [self._columns[name] for name in terms]
        values = [c / largest for c in terms.values()]
        self._model.addRow(-highspy.kHighsInf, at_most / largest, len(index), index, values)

    def solve(self, time_limit_s: float) -> Outcome:
        """Status ``optimal`` (objective and bound are then the relaxation's), ``infeasible`` or ``unknown``."""
        import highspy

        began = time.perf_counter()
        self._model.setOptionValue("time_limit", self._model.getRunTime() + time_limit_s)
        self._model.run()
        seconds = time.perf_counter() - began
        state = self._model.getModelStatus()
        if state != highspy.HighsModelStatus.kOptimal:
            no = state == highspy.HighsModelStatus.kInfeasible
            return Outcome("infeasible" if no else "unknown", seconds=seconds)
        columns = self._model.getSolution().col_value
        back = self._scaled.sign * self._scaled.unit
        objective = back * self._model.getObjectiveValue() + self._scaled.constant
        values = {name: float(columns[i]) for name, i in self._columns.items()}
        return Outcome("optimal", objective, objective, 0.0, values, seconds=seconds)


@contextlib.contextmanager
def _banner_held_back() -> Iterator[None]:
    """Keep what C code writes to standard output, and pass on all lines but the banner.

    HiGHS greets from its constructor, below Python's ``sys.stdout`` and before any option can be set, so the
    file descriptor itself is turned for that moment. Lines of other threads are passed on, not lost.
    """
    with _stdout_lock, tempfile.TemporaryFile() as held:
        try:
            saved = os.dup(1)
        except OSError:
            yield
            return
        flush = _flush_c()
        flush()
        os.dup2(held.fileno(), 1)
        try:
            yield
        finally:
            flush()
            os.dup2(saved, 1)
            os.close(saved)
            held.seek(0)
            others = [line for line in held if not _is_banner(line)]
            if others:
                os.write(1, b"".join(others))


def _is_banner(line: bytes) -> bool:
    return line.startswith((b"Running HiGHS", b"Copyright (c)", b"Includes third-party"))


def _flush_c() -> Callable[[], object]:
    """Flush of the C library's own buffers, and of Python's."""
    try:
        c_flush = ctypes.CDLL(None).fflush
    except (OSError, TypeError, AttributeError):
        return lambda: None

    def flush() -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        c_flush(None)

    return flush
