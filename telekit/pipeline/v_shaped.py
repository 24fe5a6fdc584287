"""V-shaped orders: device d holds parts d and ``2 p - 1 - d``, so that the last part is where the loss starts.

ZB-V has no bubble but the start's, for the activations of 1F1B. V-Half and V-Min hold about a half and a third
of them, and pay with bubbles. There a *building block* says when each device runs the two forwards and the two
input halves of one micro-batch; the blocks of all micro-batches, one every six passes, fit together without
overlap, and that sets both what is held and the steady phase. Before and after it there is room, into which
later passes move as far as they may.

Sources: arXiv 2401.10241 (ZB-V); arXiv 2405.15362 and github.com/sail-sg/zero-bubble-pipeline-parallelism
``zerobubble/scheduler/zbv_greedy.py`` (the blocks of V-Half and V-Min; V-Min's second ones, which wait
elsewhere, and the way passes move are our own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np

from telekit.pipeline.order import Ints, Op
from telekit.pipeline.rounds import best_by_rounds
from telekit.pipeline.times import Times
from telekit.pipeline.writing import ROUNDING, B, F, Pass, Score, Work, Writer, better, make_work, v_parts

_PERIOD = 6
"""Passes of one micro-batch on a device: two forwards, two input halves, two weight halves."""

_NOTHING, _WEIGHT = -1, -2


@dataclass(frozen=True)
class Shape:
    """A family of building blocks.

    Attributes
    ----------
    steps : (int, int, int, int)
        Passes from a device to the next on the way down and up in the forward, and in the backward.
    waits : tuple of tuples of (int, int, int)
        Passes between one way and the next: the blocks to try, by stages modulo their number. Of all with
        waits up to 3 these hold least.
    held : (int, int, int)
        a, b, c: ``(stages + a) // b + c`` micro-batches are held at most.
    """

    steps: tuple[int, int, int, int]
    waits: tuple[tuple[tuple[int, int, int], ...], ...]
    held: tuple[int, int, int]

    def most_held(self, stages: int) -> int:
        """Most micro-batches of a full stage that a device holds."""
        a, b, c = self.held
        return (stages + a) // b + c


V_HALF = Shape((2, 1, 2, 1), (((0, 3, 1),), ((0, 0, 1),)), (0, 2, 1))
V_MIN = Shape((1, 1, 1, 1), (((0, 2, 0), (2, 0, 2)), ((0, 0, 0),), ((0, 0, 0), (2, 2, 2))), (1, 3, 1))


def zb_v(stages: int, micro_batches: int, times: Times | None = None) -> tuple[list[list[Op]], Ints]:
    """ZB-V: no bubble but the start's where all halves take equally long; holds ``stages`` micro-batches.

    Parameters
    ----------
    stages, micro_batches : int
        Devices, micro-batches of a step; any numbers from 1. The paper has twice as many micro-batches as
        stages; with fewer the order is as good as the search finds.
    times : Times, optional
        One duration set, ``(2, stages)``, for which the order is made. All halves equal when nothing is said.

    Returns
    -------
    operations : list (stages,) of list of Op
        What each device runs.
    part : array (2, stages)
        Device d is part d and, as chunk 1, part ``2 * stages - 1 - d``.

    Raises
    ------
    InputError
        For sizes below 1, or times that do not fit.
    """
    work = make_work(v_parts, stages, micro_batches, times)
    best = best_by_rounds(work, [2 * stages] * stages, 1.0, [_warm_up(stages, micro_batches)])
    return best.operations(), v_parts(stages)


def v_half(stages: int, micro_batches: int, times: Times | None = None) -> tuple[list[list[Op]], Ints]:
    """V-Half: holds ``stages // 2 + 1`` micro-batches. Else as :func:`zb_v`."""
    return _by_blocks(V_HALF, stages, micro_batches, times)


def v_min(stages: int, micro_batches: int, times: Times | None = None) -> tuple[list[list[Op]], Ints]:
    """V-Min: holds ``(stages + 1) // 3 + 1`` micro-batches. Else as :func:`zb_v`."""
    return _by_blocks(V_MIN, stages, micro_batches, times)


def _warm_up(stages: int, micro_batches: int) -> list[list[int]]:
    """Chunks of the forwards before the first backward: ``2 stages`` of them fill every device.

    Chunk 0 alone until the first micro-batch is back from the turn, then both in turn.
    """
    lines = []
    for s in range(stages):
        line, left = [], [micro_batches, micro_batches]
        for chunk in [0] * 2 * (stages - 1 - s) + [0, 1] * (s + 1):
            if left[chunk]:
                left[chunk] -= 1
                line.append(chunk)
        lines.append(line)
    return lines


def _by_blocks(
    shape: Shape, stages: int, micro_batches: int, times: Times | None
) -> tuple[list[list[Op]], Ints]:
    work = make_work(v_parts, stages, micro_batches, times)
    limit = 2 * shape.most_held(stages)
    best: tuple[Score, Writer] | None = None
    for writer in _trials(shape, work, limit):
        score = writer.score()
        if best is None or better(score, best[0]):
            best = score, writer
    assert best is not None
    return best[1].operations(), v_parts(stages)


def _trials(shape: Shape, work: Work, limit: int) -> Iterator[Writer]:
    """Each block's order made for equal halves; where halves are unequal, also one made for these."""
    even = not any(work.lag) and np.ptp(work.duration) == 0.0
    plain_work = work if even else make_work(v_parts, work.stages, work.micro_batches)
    for waits in shape.waits[work.stages % len(shape.waits)]:
        plan = _plan(shape.steps, waits, work.stages, work.micro_batches)
        plain = Planned(plain_work, limit, plan)
        plain.write()
        if even:
            yield plain
            continue
        again = Writer(work, [limit] * work.stages)
        again.follow(plain.lines)
        yield again
        planned = Planned(work, limit, plan)
        planned.write()
        yield planned


def _plan(
    steps: tuple[int, int, int, int], waits: tuple[int, int, int], stages: int, micro_batches: int
) -> list[list[Pass]]:
    """List forwards and input halves of each device by the time that the building blocks give them."""
    begin, blocks = 0, []
    for way, step in enumerate(steps):
        down = way % 2 == 0
        hops = np.arange(stages) if down else np.arange(stages)[::-1]
        blocks.append(begin + step * hops)
        begin += step * (stages - 1) + 1 + (waits[way] if way < 3 else 0)
    lines = []
    for s in range(stages):
        first, second = s, 2 * stages - 1 - s
        ways = zip(((F, first), (F, second), (B, second), (B, first)), blocks, strict=True)
        dated = (
            (int(block[s]) + _PERIOD * i, half, part, i)
            for (half, part), block in ways
            for i in range(micro_batches)
        )
        lines.append([(half, part, i) for _, half, part, i in sorted(dated)])
    return lines


class Planned(Writer):
    """A writer that follows a plan of forwards and input halves, and runs what can run in the meantime.

    A device whose next pass in the plan cannot start yet runs a later one that ends before the next one's input
    can come, and that it can hold until its own place in the plan whatever else is held; else a weight half.
    It runs weight halves first where it holds as much as it may, or nearly.

    Parameters
    ----------
    limit : int
        Most chunks' activations that a device may hold; the plan itself must keep to it.
    plan : list (stages,) of list of passes
        F and B in the preferred order.
    """

    def __init__(self, work: Work, limit: int, plan: list[list[Pass]]) -> None:
        super().__init__(work, [limit] * work.stages)
        self.limit, self.plan = limit, plan
        self.at = [0] * work.stages
        self.ran = [bytearray(len(line) + 1) for line in plan]
        self.place: list[list[list[int]]] = [[[] for _ in work.device] for _ in (F, B)]
        for line in plan:
            for n, (half, part, _) in enumerate(line):
                self.place[half][part].append(n)

    def write(self) -> None:
        """Write the whole order, device by device as they become free."""
        work, asleep = self.work, [False] * self.work.stages
        events = [(0.0, device) for device in range(work.stages)]
        while events:
            now, device = heappop(events)
            if now < self.clock[device]:
                continue
            choice, wake = self._choose(device, now)
            asleep[device] = choice == _NOTHING
            if choice == _WEIGHT:
                wake = self.weight(device)
            elif choice != _NOTHING:
                half, part, _ = self.plan[device][choice]
                self.ran[device][choice] = 1
                wake = self.run(half, part, self.ready(half, part))
                after = part + 1 if half == F else part - 1
                if 0 <= after < len(work.device) and asleep[work.device[after]]:
                    heappush(events, (wake + work.lag[max(part, after)], work.device[after]))
            if wake < inf:
                heappush(events, (wake, device))
        assert all(self.whole[d] == 0 and self.at[d] == len(line) for d, line in enumerate(self.plan))

    def _choose(self, device: int, now: float) -> tuple[int, float]:
        """Return what a free device runs, a place in its plan or other, and when to look again after nothing."""
        line, ran, n = self.plan[device], self.ran[device], self.at[device]
        while ran[n]:
            n += 1
        self.at[device] = n
        owes, held = self.owes(device), self.held[device]
        if n == len(line) or (line[n][0] == F and held >= self.limit):
            return (_WEIGHT if owes else _NOTHING), inf
        half, part, _ = line[n]
        ready = self.ready(half, part)
        if ready <= now:
            return n, ready
        wait = (ready - now if ready < inf else self._least_wait(half, part)) * (1 + ROUNDING)
        if not owes or held < self.limit - 1:
            other = self._in_the_meantime(device, now, wait)
            if other != _NOTHING:
                return other, ready
        return (_WEIGHT if owes else _NOTHING), ready

    def _least_wait(self, half: int, part: int) -> float:
        """Least time to come until a pass can start whose input nobody has begun."""
        work, i = self.work, len(self.ends[half][part])
        if half == F:
            return work.duration[F][part - 1][i] + work.lag[part]
        if part == len(work.device) - 1:
            return work.duration[F][part][i]
        return work.duration[B][part + 1][i] + work.lag[part + 1]

    def _in_the_meantime(self, device: int, now: float, wait: float) -> int:
        """Place of the first later pass of the plan that can run within ``wait``."""
        work, n, best = self.work, self.at[device], _NOTHING
        for half, chunk in ((F, 0), (F, 1), (B, 1), (B, 0)):
            part = work.part[chunk][device]
            i = len(self.ends[half][part])
            if i == work.micro_batches:
                continue
            x = self.place[half][part][i]
            if x == n or (best != _NOTHING and x > best):
                continue
            if self.ready(half, part) > now or work.duration[half][part][i] > wait:
                continue
            if half == B or self._holds(device, x):
                best = x
        return best

    def _holds(self, device: int, place: int) -> bool:
        """Whether a forward may run before its place, even if nothing is let go until then."""
        line, ran, n = self.plan[device], self.ran[device], self.at[device]
        between = sum(line[y][0] == F and not ran[y] for y in range(n, place))
        return self.held[device] + 1 + between <= self.limit
