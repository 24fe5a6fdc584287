"""One pipeline to be put in order: model parts on devices, how long each pass takes, how much may be held.

:mod:`~telekit.pipeline.search` and :mod:`~telekit.pipeline.exact` try thousands of orders of one case, so it is
made of plain lists, and an operation is one number: ``(half * parts + part) * micro_batches + micro_batch``,
where half is 0 for a forward, 1 for a backward or its input half, 2 for the weight half.

Micro-batches that are alike may change names. Whatever order a device runs them in, calling the k-th forward,
backward and weight half of each part micro-batch k breaks no dependency and holds as much at any moment; so
only orders are tried in which each part takes its micro-batches in turn. Where they are not alike, their order
is taken as given, and the bound is one for all orders of them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem, bad
from telekit.pipeline.numbers import numbers
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, WEIGHT, Ints, Op, Order, from_lists
from telekit.pipeline.sizes import MAX_SEARCHED, check_sizes
from telekit.pipeline.times import Times
from telekit.timeline import compile_order

Floats = NDArray[np.float64]

ROUNDING = 1e-9
"""What is held may be this much above the cap: sums of thirds."""
SAME = 1e-9
"""Relative difference up to which two makespans are the same: rounding of sums."""

Lines = list[list[int]]
"""What each device runs, in order."""
Edge = tuple[int, float]
"""An operation that must have ended, and the time that then has to pass."""


@dataclass(frozen=True)
class Case:
    """A pipeline to be ordered; made by :func:`make_case`.

    Attributes
    ----------
    part : array (chunks, stages)
        Model part of each chunk of each device.
    micro_batches, halves : int
        Micro-batches of a step; 3 where backwards are split in two, else 2.
    device, chunk : lists (parts,)
        Where each model part is.
    weight, cap : lists (parts,) and (stages,)
        What one micro-batch on a part counts from the start of its forward to the end of its backward or weight
        half; the most that a device may hold.
    duration : list (operations,)
        Time of each operation.
    waits : list (operations,) of lists of (operation, lag)
        What each waits for.
    runs_on, holds : lists (operations,)
        Device of each; what it adds to, or takes from, what that device holds.
    head, tail : lists (operations,)
        Least time before its start, and between its end and the makespan, in any order.
    bound : float
        No order ends earlier.
    """

    part: Ints
    micro_batches: int
    halves: int
    device: list[int]
    chunk: list[int]
    weight: list[float]
    cap: list[float]
    duration: list[float]
    waits: list[list[Edge]]
    runs_on: list[int]
    holds: list[float]
    head: list[float]
    tail: list[float]
    bound: float

    @property
    def parts(self) -> int:
        """Model parts."""
        return len(self.device)

    @property
    def stages(self) -> int:
        """Devices."""
        return len(self.cap)

    def ends(self, lines: Sequence[Sequence[int]]) -> list[float] | None:
        """End of each operation when all start as early as they can; None for a deadlock."""
        end = [-1.0] * len(self.duration)
        waits, duration = self.waits, self.duration
        at, stuck = [0] * len(lines), dict[int, list[int]]()
        ready, left = list(range(len(lines))), len(end)
        while ready:
            device = ready.pop()
            line, k = lines[device], at[device]
            clock = end[line[k - 1]] if k else 0.0
            while k < len(line):
                operation = line[k]
                start = clock
                for before, lag in waits[operation]:
                    if end[before] < 0:
                        stuck.setdefault(before, []).append(device)
                        break
                    start = max(start, end[before] + lag)
                else:
                    end[operation] = clock = start + duration[operation]
                    k, left = k + 1, left - 1
                    ready += stuck.pop(operation, ())
                    continue
                break
            at[device] = k
        return None if left else end

    def makespan(self, lines: Sequence[Sequence[int]]) -> float:
        """Last end; infinite for a deadlock."""
        end = self.ends(lines)
        return math.inf if end is None else max(end)

    def fits(self, lines: Sequence[Sequence[int]]) -> bool:
        """Whether no device ever holds more than it may."""
        return all(self.line_fits(device, line) for device, line in enumerate(lines))

    def line_fits(self, device: int, line: Sequence[int]) -> bool:
        """Whether one device never holds more than it may."""
        held, most = 0.0, self.cap[device] + ROUNDING
        for operation in line:
            held += self.holds[operation]
            if held > most:
                return False
        return True

    def lines(self, order: Order) -> Lines | None:
        """Turn an order into lists of numbers; None where it is not one of this case.

        A whole backward is read as its input half with the weight half right after it. Pairs, pieces, other
        placements, and halves where the case does not split backwards are not of this case.
        """
        halves = self.halves == 3
        known = (FORWARD, BACKWARD, INPUT, WEIGHT) if halves else (FORWARD, BACKWARD)
        same = np.array_equal(order.part, self.part) and order.micro_batches == self.micro_batches
        if not same or order.pieces > 1 or not np.isin(order.kind, known).all():
            return None
        copies = np.where(halves & (order.kind == BACKWARD), 2, 1)
        half = np.select([order.kind == FORWARD, order.kind == WEIGHT], [0, 2], 1)
        key = (half * self.parts + self.part[order.chunk, order.device]) * self.micro_batches
        number = np.repeat(key + order.micro_batch, copies)
        end = copies.cumsum()
        number[end[copies == 2] - 1] += self.parts * self.micro_batches
        return [line.tolist() for line in np.split(number, end[order.first[1:-1] - 1])]

    def order(self, name: str, lines: Sequence[Sequence[int]]) -> Order:
        """Turn lists of numbers into an order."""
        kinds = (FORWARD, INPUT, WEIGHT) if self.halves == 3 else (FORWARD, BACKWARD)
        operations = []
        for line in lines:
            keys = [(*divmod(n // self.micro_batches, self.parts), n % self.micro_batches) for n in line]
            operations.append([Op(kinds[half], i, self.chunk[part]) for half, part, i in keys])
        return from_lists(name, operations, self.part, self.micro_batches)


def make_case(
    part: ArrayLike,
    micro_batches: int,
    times: Times,
    cap: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    split: bool = True,
) -> Case:
    """Put a case together.

    Parameters
    ----------
    part : array (chunks, stages)
        Model part of each chunk of each device, each part once (DualPipe has them twice: not searched).
    micro_batches : int
        Micro-batches of a step.
    times : Times
        One duration set.
    cap : float or array (stages,), optional
        Most that a device may hold, in units of ``weight``; no limit when nothing is said.
    weight : array (chunks, stages), optional
        What one micro-batch on a chunk counts. Its share of a whole stage when nothing is said, so that
        ``cap`` counts micro-batches of a full stage.
    split : bool
        Whether the weight half of a backward may run later than the input half.

    Raises
    ------
    InputError
        For parts that are not each on one device, times that do not fit or are more than one set, and a cap
        under which not even one micro-batch passes; the least that works is named.
    """
    parts = _parts(part)
    chunks, stages = parts.shape
    sizes = check_sizes(stages, micro_batches, chunks, most=MAX_SEARCHED)
    if sizes:
        raise InputError(sizes)
    order = from_lists("case", _one_by_one(chunks, stages, micro_batches, split), parts, micro_batches)
    problems = times.problems(order)
    if not problems and times.sets:
        problems = [Problem("times", times.sets, "a search takes one duration set", "no leading axes work")]
    share = np.full(parts.shape, 1 / chunks) if weight is None else numbers("weight", weight)
    limit = np.full(stages, np.inf) if cap is None else numbers("cap", cap)
    problems += _wrong_limits(share, limit, parts.shape)
    if problems:
        raise InputError(problems)
    where = np.argsort(parts, axis=None)
    chunk, device = np.divmod(where, stages)
    half = np.select([order.kind == FORWARD, order.kind == WEIGHT], [0, 2], 1)
    duration = np.empty((2 + split, parts.size, micro_batches))
    duration[half, parts[order.chunk, order.device], order.micro_batch] = times.durations(
        order, np.arange(order.kind.size)
    )
    lag = np.where(device == np.roll(device, 1), 0.0, times.lags(order))
    limits = np.broadcast_to(limit, (stages,))
    return _bounded(parts, device, chunk, share.ravel()[where], limits, duration, lag)


def _parts(part: ArrayLike) -> Ints:
    """Read model parts, each on one chunk of one device."""
    read = np.array(numbers("part", part), ndmin=2)
    if read.ndim > 2 or not read.size or sorted(read.ravel().tolist()) != list(range(read.size)):
        rule = "each model part must be on one chunk of one device, (chunks, stages)"
        raise bad("part", part, rule, "1F1B's works")
    return read.astype(np.int64)


def _one_by_one(chunks: int, stages: int, micro_batches: int, split: bool) -> list[list[Op]]:
    kinds = (FORWARD, INPUT, WEIGHT) if split else (FORWARD, BACKWARD)
    return [[Op(k, i, c) for k in kinds for c in range(chunks) for i in range(micro_batches)]] * stages


def _wrong_limits(weight: Floats, cap: Floats, shape: tuple[int, ...]) -> list[Problem]:
    if weight.shape != shape or not (np.isfinite(weight) & (weight >= 0)).all():
        rule = f"must be finite, not negative, of shape {shape}"
        return [Problem("weight", weight.tolist(), rule, "leave it out to count micro-batches")]
    if cap.shape not in ((), (1,), shape[1:]):
        return [Problem("cap", cap.shape, f"must be one number, or {shape[1]}", "one number works")]
    least = weight.sum(axis=0)
    if not (cap + ROUNDING >= least).all():
        rule = "a micro-batch passes all chunks of a device before its first backward there, and all are held"
        return [Problem("cap", cap.tolist(), rule, f"cap {float(least.max()):g} works")]
    return []


def _bounded(
    part: Ints, device: Ints, chunk: Ints, weight: Floats, cap: Floats, duration: Floats, lag: Floats
) -> Case:
    """Work out what waits for what, and the bounds that follow; ``duration`` is (halves, parts, micro-batches)."""
    at = np.arange(duration.size).reshape(duration.shape)
    edges = _edges(at, lag)
    waits: list[list[Edge]] = [[] for _ in range(duration.size)]
    for before, after, time in edges:
        for a, b in zip(before.ravel().tolist(), after.ravel().tolist(), strict=True):
            waits[b].append((a, time))
    runs_on = np.broadcast_to(device[:, None], duration.shape)
    holds = np.zeros(duration.shape)
    holds[0] += weight[:, None]
    holds[-1] -= weight[:, None]
    alike = bool((duration == duration[..., :1]).all())
    head, tail = _ways(duration, edges + (in_turn(at, device, weight, cap) if alike else []))
    bound = float((head + duration + tail).max())
    for d in range(cap.size):
        mine = runs_on == d
        bound = max(bound, _alone(head[mine].tolist(), duration[mine].tolist(), tail[mine].tolist()))
    return Case(
        part=part,
        micro_batches=duration.shape[2],
        halves=duration.shape[0],
        device=device.tolist(),
        chunk=chunk.tolist(),
        weight=weight.tolist(),
        cap=cap.tolist(),
        duration=duration.ravel().tolist(),
        waits=waits,
        runs_on=runs_on.ravel().tolist(),
        holds=holds.ravel().tolist(),
        head=head.ravel().tolist(),
        tail=tail.ravel().tolist(),
        bound=bound,
    )


def _edges(at: Ints, lag: Floats) -> list[tuple[Ints, Ints, float]]:
    """Operations (before, after, time between them) that wait for each other, whole model parts at once."""
    forward, backward = at[0], at[1]
    edges = [(forward, backward, 0.0), *((backward, weights, 0.0) for weights in at[2:])]
    for q in range(1, at.shape[1]):
        edges += [(forward[q - 1], forward[q], float(lag[q])), (backward[q], backward[q - 1], float(lag[q]))]
    return edges


def in_turn(at: Ints, device: Ints, weight: Floats, cap: Floats) -> list[tuple[Ints, Ints, float]]:
    """Edges that follow from taking micro-batches in turn; on a device of one chunk, also from its cap.

    ``at`` are the operations (halves, parts, micro-batches). Where n micro-batches may be held, the forward
    of the n-th after one waits for that one's backward or weight half.
    """
    turns = [(at[..., :-1], at[..., 1:], 0.0)]
    for q in np.flatnonzero(np.bincount(device)[device] == 1).tolist():
        if weight[q] and cap[device[q]] < weight[q] * at.shape[2]:
            most = math.floor((cap[device[q]] + ROUNDING) / weight[q])
            turns.append((at[-1, q, :-most], at[0, q, most:], 0.0))
    return turns


def _ways(duration: Floats, edges: list[tuple[Ints, Ints, float]]) -> tuple[Floats, Floats]:
    """Longest way to the start of each operation, and from its end, when each has a device of its own."""
    before = np.concatenate([edge[0].ravel() for edge in edges])
    after = np.concatenate([edge[1].ravel() for edge in edges])
    lag = np.concatenate([np.full(edge[0].size, edge[2]) for edge in edges])
    alone, time = np.full(duration.size, -1), duration.ravel()
    there = compile_order(alone, before, after).finish(time, lag) - time
    back = compile_order(alone, after, before).finish(time, lag) - time
    return there.reshape(duration.shape), back.reshape(duration.shape)


def _alone(head: list[float], duration: list[float], tail: list[float]) -> float:
    """Least makespan for one device's operations by themselves, which may be interrupted (Jackson).

    Whatever has the longest way to go runs first; each becomes free at its head.
    """
    free = sorted(range(len(head)), key=head.__getitem__, reverse=True)
    waiting: list[tuple[float, int]] = []
    rest, now, last = list(duration), 0.0, 0.0
    while free or waiting:
        if not waiting:
            now = max(now, head[free[-1]])
        while free and head[free[-1]] <= now:
            operation = free.pop()
            heapq.heappush(waiting, (-tail[operation], operation))
        operation, gap = waiting[0][1], head[free[-1]] - now if free else math.inf
        if rest[operation] > gap:
            rest[operation] -= gap
            now = head[free[-1]]
            continue
        now += rest[operation]
        heapq.heappop(waiting)
        last = max(last, now + tail[operation])
    return last
