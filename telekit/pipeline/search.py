"""Better orders under a memory cap: rules that write an order, named orders, and moves that mend the best.

Some dozens of rules (:mod:`telekit.pipeline.rule_orders`) write an order each; the best of these and of all named
ones that fit are mended by moving operations on their longest way. What comes back is never worse than the best
that went in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from time import monotonic

import numpy as np
from numpy.typing import ArrayLike

from telekit.errors import InputError, bad
from telekit.pipeline.case import ROUNDING, SAME, Case, Lines, make_case
from telekit.pipeline.numbers import numbers, wrong_numbers
from telekit.pipeline.order import Order
from telekit.pipeline.rule_orders import by_rules
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times

_MENDED = 6
_OPERATIONS_TIMED = 400_000
_FARTHEST_MOVE = 8
_MEMORY = 10
_ON_THE_WAY = 0.9
_LEAST_S = 1e-3


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes
    ----------
    order : Order
        The best order; called ``searched`` unless a named one was best as it is.
    makespan, bound : float
        When it ends; no order of the same placement ends before the bound.
    start : str
        The named schedule it was mended from, or ``rules``.
    """

    order: Order
    makespan: float
    bound: float
    start: str

    @property
    def proved(self) -> bool:
        """Whether no order of the same placement is shorter."""
        return self.makespan <= self.bound * (1 + SAME)


def best_order(
    named: Sequence[Order],
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
    pair: ArrayLike | None = None,
    comm: float = 0.0,
    cap: ArrayLike | None = None,
    effort: float = 1.0,
    time_limit_s: float = 60.0,
) -> Found:
    """Best order that fits, over all placements that some named orders have.

    Parameters
    ----------
    named : sequence of Order
        Orders of the same stages and micro-batches, on any placement (one chunk, a ring, a V, DualPipe's).
        Those without pairs and pieces are also mended.
    forward, backward_input, backward_weight, pair : floats or arrays (stages,)
        Time of one micro-batch through one stage, which its chunks share evenly.
    comm : float
        Between neighbouring parts on different devices.
    cap : float or array (stages,), optional
        Most micro-batches of a full stage that a device may hold.
    effort, time_limit_s : float
        As in :func:`search`; the time is that of all placements together.

    Returns
    -------
    Found
        Never worse than the best named order that fits.

    Raises
    ------
    InputError
        For times that are none, no orders, or a cap that nothing keeps.
    """
    found: list[Found] = []
    faults: list[InputError] = []
    until = _until(effort, time_limit_s)
    _check_named(named, cap)
    groups: dict[tuple[int, ...], list[Order]] = {}
    for order in named:
        groups.setdefault((*order.part.shape, *order.part.ravel().tolist()), []).append(order)
    for group in groups.values():
        part = group[0].part
        times = Times.of_stages(part, forward, backward_input, backward_weight, pair, comm)
        found += [_as_it_is(order, times) for order in group if _fits(order, times, cap)]
        if len(np.unique(part)) == part.size:
            try:
                left = max(until - monotonic(), _LEAST_S)
                size = group[0].micro_batches
                found.append(search(part, size, times, cap, named=group, effort=effort, time_limit_s=left))
            except InputError as fault:
                faults.append(fault)
    if not found:
        raise faults[0] if faults else bad("cap", cap, "no order fits", "a larger one works")
    return min(found, key=lambda one: (one.makespan, -one.bound))


def _until(effort: float, time_limit_s: float) -> float:
    """Check how long a search may take; the moment it ends on the monotonic clock."""
    problems = [
        *wrong_numbers("effort", effort, zero=True, single=True),
        *wrong_numbers("time_limit_s", time_limit_s, single=True),
    ]
    if problems:
        raise InputError(problems)
    return monotonic() + time_limit_s


def _check_named(named: Sequence[Order], cap: ArrayLike | None) -> None:
    if not named:
        raise bad("named", "nothing", "a search starts from at least one order", "1F1B's works")
    sizes = sorted({(order.stages, order.micro_batches) for order in named})
    if len(sizes) > 1:
        stages, micro_batches = sizes[0]
        rule = f"orders must be of the same stages and micro-batches, not {sizes}"
        near = f"those of {stages} stages and {micro_batches} micro-batches work"
        raise bad("named", [order.schedule for order in named], rule, near)
    stages = sizes[0][0]
    if cap is not None and numbers("cap", cap).shape not in ((), (1,), (stages,)):
        raise bad("cap", cap, f"must be one number, or {stages}", "one number works")


def _fits(order: Order, times: Times, cap: ArrayLike | None) -> bool:
    peak = run(order, times).peak_activations
    return cap is None or bool((peak <= np.asarray(cap, dtype=np.float64) + ROUNDING).all())


def _as_it_is(order: Order, times: Times) -> Found:
    return Found(order, float(run(order, times).makespan_s), 0.0, order.schedule)


def search(
    part: ArrayLike,
    micro_batches: int,
    times: Times,
    cap: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    split: bool = True,
    named: Sequence[Order] = (),
    effort: float = 1.0,
    time_limit_s: float = 60.0,
) -> Found:
    """Best order found on one placement; the same for the same arguments, unless time runs out.

    Parameters
    ----------
    part, micro_batches, times, cap, weight, split
        As in :func:`telekit.pipeline.case.make_case`.
    named : sequence of Order
        Orders to start from as well; those that are not of this case or do not fit are left out.
    effort : float
        Share of the usual number of moves: 0 for the rules and the named orders alone.
    time_limit_s : float
        Wall time after which no further order is tried: the best so far comes back.

    Raises
    ------
    InputError
        As :func:`telekit.pipeline.case.make_case`.
    """
    until = _until(effort, time_limit_s)
    case = make_case(part, micro_batches, times, cap, weight, split)
    lines, start = searched(case, named, effort, until)
    makespan = case.makespan(lines)
    for order in named:
        known = case.lines(order)
        if known is not None and case.fits(known):
            as_it_is = float(run(order, times).makespan_s)
            if as_it_is <= makespan * (1 + SAME):
                return Found(order, as_it_is, case.bound, order.schedule)
    return Found(case.order("searched", lines), makespan, case.bound, start)


def searched(
    case: Case, named: Sequence[Order] = (), effort: float = 1.0, until: float = math.inf
) -> tuple[Lines, str]:
    """Best order of a case that was found, and what it came from."""
    pool = [(case.makespan(lines), "rules", lines) for lines in by_rules(case, until=until)]
    for order in named:
        known = case.lines(order)
        if known is not None and case.fits(known):
            pool.append((case.makespan(known), order.schedule, known))
    pool.sort(key=lambda entry: entry[0])
    best, seen = pool[0], list[Lines]()
    for _, start, lines in pool:
        if best[0] <= case.bound * (1 + SAME) or len(seen) == _MENDED:
            break
        if lines not in seen:
            seen.append(lines)
            tries = max(_OPERATIONS_TIMED // (_MENDED * len(case.duration)), 50)
            mended = mend(case, lines, round(effort * tries), until)
            best = min(best, (case.makespan(mended), start, mended), key=lambda entry: entry[0])
    return best[2], best[1]


def mend(case: Case, lines: Lines, tries: int, until: float = math.inf) -> Lines:
    """Move operations of the longest way at random; ``tries`` orders are timed, the best comes back.

    A move is kept when it is no worse than now, or than some moves ago (late acceptance).
    """
    chance = Random(0)
    end = case.ends(lines)
    if end is None:
        return lines
    best = now = max(end)
    before, best_lines, way = [now] * _MEMORY, lines, _longest_way(case, lines, end)
    for turn in range(tries):
        if best <= case.bound * (1 + SAME) or monotonic() > until:
            break
        operation = chance.choice(way) if chance.random() < _ON_THE_WAY else chance.randrange(len(end))
        device = case.runs_on[operation]
        line = _moved(
            case, lines[device], operation, chance.randint(1, _FARTHEST_MOVE), chance.choice((-1, 1))
        )
        if line is None or not case.line_fits(device, line):
            continue
        other = [*lines[:device], line, *lines[device + 1 :]]
        other_end = case.ends(other)
        if other_end is not None and max(other_end) <= max(now, before[turn % _MEMORY]):
            lines, end, now = other, other_end, max(other_end)
            way = _longest_way(case, lines, end)
            if now < best:
                best, best_lines = now, lines
        before[turn % _MEMORY] = now
    return best_lines


def _moved(case: Case, line: list[int], operation: int, distance: int, step: int) -> list[int] | None:
    """Line with an operation moved by up to some places; None where it cannot leave its own.

    A micro-batch never overtakes another in the same half of the same part.
    """
    size = case.micro_batches
    here = place = line.index(operation)
    while abs(place - here) < distance:
        if not 0 <= place + step < len(line) or line[place + step] // size == operation // size:
            break
        place += step
    if place == here:
        return None
    moved = line[:here] + line[here + 1 :]
    moved.insert(place, operation)
    return moved


def _longest_way(case: Case, lines: Lines, end: list[float]) -> list[int]:
    """Operations that the makespan hangs on, the last first."""
    previous = {b: a for line in lines for a, b in pairwise(line)}
    way = [max(range(len(end)), key=end.__getitem__)]
    while True:
        operation = way[-1]
        waits = [*case.waits[operation]]
        if operation in previous:
            waits.append((previous[operation], 0.0))
        if not waits or end[operation] <= case.duration[operation]:
            return way
        way.append(max(waits, key=lambda edge: end[edge[0]] + edge[1])[0])
