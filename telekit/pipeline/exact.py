"""The shortest order of a small pipeline under a memory cap, by an integer program: an oracle for all others.

One variable of the program is the start of each operation, and one, 0 or 1, which of two operations of a device
runs first. Micro-batches are taken in turn (:mod:`telekit.pipeline.case`), so most pairs are settled: what
follows from dependencies, turns and the cap on one-chunk devices is worked out first, and what lies too far
apart to change places within the best makespan known, next. Rows say that no device runs two operations at
once and that what is held before each forward leaves room for it.

A search (:mod:`telekit.pipeline.search`) goes first. Where it meets the bound nothing is left to prove; else
the program is asked for something shorter, and finding none is the proof. HiGHS solves it, through
``scipy.optimize.milp``, inside the process; its presolve, which has been seen to loop for ever, is off: it saves
nothing here. (HiGHS itself may, with two chunks and about once in a hundred times, write a line about a
solution it mended to standard output.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import bad
from telekit.pipeline.case import ROUNDING, SAME, Case, Floats, in_turn, make_case
from telekit.pipeline.order import Order
from telekit.pipeline.search import Found, searched
from telekit.pipeline.times import Times

MAX_OPERATIONS = 144
"""Four stages of two chunks, six micro-batches, three halves."""
TOLERANCE = 1e-6
"""Relative: HiGHS' own, within which a makespan counts as proved shortest."""
_INFEASIBLE = 2


def shortest_order(
    part: ArrayLike,
    micro_batches: int,
    times: Times,
    cap: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    split: bool = True,
    named: Sequence[Order] = (),
    time_limit_s: float = 60.0,
) -> Found:
    """Shortest order of a small case.

    Parameters
    ----------
    part, micro_batches, times, cap, weight, split
        As in :func:`telekit.pipeline.case.make_case`; micro-batches must be alike.
    named : sequence of Order
        Orders to start from, as in :func:`telekit.pipeline.search.search`.
    time_limit_s : float
        Wall time of the integer program. One chunk: of 3,154 random cases up to four stages and six
        micro-batches all were proved, 40 after more than a second, one after 33 s. Two chunks: up to three
        micro-batches nearly all within ten seconds, of more half.

    Returns
    -------
    Found
        Never worse than the best of ``named`` that fits. ``proved`` says whether no order is shorter (to one
        part in a million); if not, ``bound`` is what HiGHS could show within the limit.

    Raises
    ------
    InputError
        As ``make_case``; for more than :data:`MAX_OPERATIONS` operations; for micro-batches that differ.
    """
    if not (time_limit_s > 0 and math.isfinite(time_limit_s)):
        raise bad("time_limit_s", time_limit_s, "must be a positive number of seconds", "60 works")
    case = make_case(part, micro_batches, times, cap, weight, split)
    _check(case)
    lines, start = searched(case, named)
    makespan, bound = case.makespan(lines), case.bound
    if makespan > bound * (1 + SAME):
        better, bound = _Program(case, makespan).solve(time_limit_s)
        if better is not None and case.fits(better) and case.makespan(better) < makespan:
            lines, makespan, start = better, case.makespan(better), "integer program"
    if makespan <= bound * (1 + TOLERANCE):
        bound = makespan
    return Found(case.order("shortest", lines), makespan, bound, start)


def _check(case: Case) -> None:
    operations, size = len(case.duration), case.micro_batches
    if operations > MAX_OPERATIONS:
        fits = max(MAX_OPERATIONS * size // operations, 1)
        rule = f"{operations} operations; the integer program takes {MAX_OPERATIONS}"
        raise bad("micro_batches", size, rule, f"micro_batches {fits} works, or a search")
    table = np.array(case.duration).reshape(-1, size)
    if (table != table[:, :1]).any():
        raise bad(
            "times", "micro_batch", "micro-batches must be alike, for they are taken in turn", "a search"
        )


class _Program:
    """Variables: starts of all operations, the makespan, and which of two runs first; lengths in the longest's."""

    def __init__(self, case: Case, makespan: float) -> None:
        self.case, self.unit = case, max(case.duration)
        self.count, size = len(case.duration), case.micro_batches
        self.duration = np.array(case.duration) / self.unit
        self.head, tail = np.array(case.head) / self.unit, np.array(case.tail) / self.unit
        self.most = makespan / self.unit * (1 - TOLERANCE / 10)
        self.latest = self.most - tail - self.duration
        self.rows: list[tuple[list[int], list[float], float, float]] = []
        self.columns = self.count + 1
        self.first = self._settled()
        late = self.latest < self.head - ROUNDING
        self.possible = not bool((self.first & self.first.T).any() or late.any())
        self.free: dict[tuple[int, int], int] = {}
        for operation, edges in enumerate(case.waits):
            for before, lag in edges:
                self._after(before, operation, lag / self.unit)
            if operation % size:
                self._after(operation - 1, operation)
            self._row([self.count, operation], [1.0, -1.0], self.duration[operation])
        self.pairs: list[tuple[int, int]] = []
        for device in range(case.stages):
            mine = [operation for operation in range(self.count) if case.runs_on[operation] == device]
            for a, b in combinations(mine, 2):
                self._one_at_a_time(a, b)
            self._hold(device, mine)
        self._in_turn()

    def _row(self, columns: list[int], values: list[float], least: float, most: float = np.inf) -> None:
        self.rows.append((columns, values, least, most))

    def _after(self, before: int, operation: int, lag: float = 0.0) -> None:
        self._row([operation, before], [1.0, -1.0], self.duration[before] + lag)

    def _settled(self) -> NDArray[np.bool_]:
        """Whether the first operation ends before the second starts in every order worth having."""
        case = self.case
        at = np.arange(self.count).reshape(case.halves, case.parts, case.micro_batches)
        known = np.zeros((self.count, self.count), dtype=bool)
        for operation, edges in enumerate(case.waits):
            known[[before for before, _ in edges], operation] = True
        arrays = (np.array(x) for x in (case.device, case.weight, case.cap))
        for before, after, _ in in_turn(at, *arrays):
            known[before.ravel(), after.ravel()] = True
        # The other way round, even the earliest would be too late.
        together = np.equal.outer(case.runs_on, case.runs_on)
        known |= together & ((self.head + self.duration)[None, :] > self.latest[:, None] + ROUNDING)
        np.fill_diagonal(known, False)
        for middle in range(self.count):
            known |= known[:, middle, None] & known[None, middle]
        return known

    def _one_at_a_time(self, a: int, b: int) -> None:
        """Rows so that a device runs a and b one after the other; a free pair gets a column, 1 for a first."""
        self.pairs.append((a, b))
        if self.first[a, b]:
            self._after(a, b)
        elif self.first[b, a]:
            self._after(b, a)
        else:
            self.free[a, b] = column = self.columns
            self.columns += 1
            slack = self.latest[a] + self.duration[a] - self.head[b]
            self._row([b, a, column], [1.0, -1.0, -slack], self.duration[a] - slack)
            slack = self.latest[b] + self.duration[b] - self.head[a]
            self._row([a, b, column], [1.0, -1.0, slack], self.duration[b])

    def _in_turn(self) -> None:
        """Let what runs before an operation run before the next micro-batch's of the same half and part."""
        size = self.case.micro_batches
        for (a, b), column in self.free.items():
            later = self.free.get((a, b + 1)) if (b + 1) % size else None
            if later is not None:
                self._row([later, column], [1.0, -1.0], 0.0)
            earlier = self.free.get((a - 1, b)) if a % size else None
            if earlier is not None:
                self._row([earlier, column], [1.0, -1.0], 0.0)

    def _hold(self, device: int, mine: list[int]) -> None:
        """Leave room for what a forward adds to all that ran before it."""
        case = self.case
        for operation in mine:
            room = case.cap[device] + ROUNDING - case.holds[operation]
            if case.holds[operation] <= 0 or not math.isfinite(room):
                continue
            columns, values = [], []
            for other in mine:
                held = case.holds[other]
                if self.first[other, operation]:
                    room -= held
                elif (other, operation) in self.free:
                    columns.append(self.free[other, operation])
                    values.append(held)
                elif (operation, other) in self.free:
                    room -= held
                    columns.append(self.free[operation, other])
                    values.append(-held)
            if columns:
                self._row(columns, values, -np.inf, room)
            self.possible &= bool(columns) or room >= 0

    def solve(self, time_limit_s: float) -> tuple[list[list[int]] | None, float]:
        """Order shorter than the makespan known, or None; and a bound on all orders."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        if not self.possible:
            return None, self.most * self.unit
        columns, values, least, most = zip(*self.rows, strict=True)
        first = np.cumsum([0, *map(len, columns)])
        shape = (len(first) - 1, self.columns)
        matrix = csr_array((np.concatenate(values), np.concatenate(columns), first), shape=shape)
        lower, upper = np.zeros(self.columns), np.ones(self.columns)
        lower[: self.count], upper[: self.count] = self.head, np.maximum(self.latest, self.head)
        lower[self.count], upper[self.count] = min(self.case.bound / self.unit, self.most), self.most
        answer = milp(
            np.arange(self.columns) == self.count,
            integrality=np.arange(self.columns) > self.count,
            bounds=Bounds(lower, upper),
            constraints=LinearConstraint(matrix, least, most),
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0, "presolve": False},
        )
        if answer.status == _INFEASIBLE:
            return None, self.most * self.unit
        dual = answer.mip_dual_bound
        shown = dual * self.unit if dual is not None and math.isfinite(dual) else 0.0
        found = None if answer.x is None else self._lines(answer.x)
        return found, max(min(shown, self.most * self.unit), self.case.bound)

    def _lines(self, answer: Floats) -> list[list[int]]:
        """Operations of each device, by how many of the device's run before each."""
        rank = [0] * self.count
        for a, b in self.pairs:
            column = self.free.get((a, b))
            ahead = self.first[a, b] if column is None else answer[column] > 0.5
            rank[b if ahead else a] += 1
        lines: list[list[int]] = [[] for _ in range(self.case.stages)]
        for operation in sorted(range(self.count), key=rank.__getitem__):
            lines[self.case.runs_on[operation]].append(operation)
        return lines
