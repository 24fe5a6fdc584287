"""Writing an order and timing it in one go: what the generators of zero-bubble orders share.

A generator asks when a pass could start, and runs it or another; whatever it has run is already timed. That
makes one trial order cost a few microseconds an operation, so that generators can try several and keep the
best.

Micro-batches pass each model part in turn (0, 1, 2, ...), which loses nothing while they are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from telekit.errors import InputError, Problem
from telekit.pipeline.order import FORWARD, INPUT, WEIGHT, Ints, Op, Order
from telekit.pipeline.sizes import MAX_SEARCHED, check_sizes
from telekit.pipeline.times import Times

ROUNDING = 1e-9
"""Relative difference up to which two times or two amounts are the same: rounding of sums."""

KINDS = (FORWARD, INPUT, WEIGHT)
F, B, W = range(3)
"""Forward, input-gradient half, weight-gradient half."""

Pass = tuple[int, int, int]
"""F, B or W; model part; micro-batch."""
Score = tuple[float, float, float]
"""Makespan; longest span of a device, from its first start to its last end; most forwards on a device whose
weight half has not run."""


@dataclass(frozen=True)
class Work:
    """Passes to be put in order, as plain lists; made by :func:`make_work`.

    Attributes
    ----------
    part : list (chunks,) of list (stages,)
        Model part of each chunk of each device.
    micro_batches : int
        Micro-batches of a step.
    device, chunk : lists (parts,)
        Where each model part is.
    duration : list (3,) of list (parts,) of list (micro_batches,)
        Time of each F, B and W.
    lag : list (parts + 1,)
        Communication before each part, 0 where both parts are on one device and at both ends of the model.
    """

    part: list[list[int]]
    micro_batches: int
    device: list[int]
    chunk: list[int]
    duration: list[list[list[float]]]
    lag: list[float]

    @property
    def stages(self) -> int:
        """Devices."""
        return len(self.part[0])

    def bound(self) -> tuple[float, float]:
        """Least makespan and least span of any order, from each device's own passes."""
        busy, reach = [0.0] * self.stages, [math.inf] * self.stages
        for half in self.duration:
            for part, times in enumerate(half):
                busy[self.device[part]] += sum(times)
        first = 0.0
        for part, device in enumerate(self.device):
            first += self.lag[part]
            reach[device] = min(reach[device], first)
            first += min(self.duration[F][part])
        return max(a + b for a, b in zip(reach, busy, strict=True)), max(busy)


def line_parts(stages: int) -> Ints:
    """Model part of each device where it holds one, (1, stages)."""
    return np.arange(stages)[None]


def v_parts(stages: int) -> Ints:
    """Model parts of each device in the shape of a V, d and ``2 stages - 1 - d``, (2, stages)."""
    return np.stack([np.arange(stages), 2 * stages - 1 - np.arange(stages)])


def make_work(
    parts: Callable[[int], Ints],
    stages: int,
    micro_batches: int,
    times: Times | None = None,
    most: int = MAX_SEARCHED,
) -> Work:
    """Read durations out of ``times``; without any, each half takes 1 / chunks, and communication no time.

    Raises
    ------
    InputError
        For sizes that are no counts, times that do not fit them, or more than one duration set.
    """
    problems = check_sizes(stages, micro_batches, 1 if parts is line_parts else 2, most=most)
    if problems:
        raise InputError(problems)
    part = parts(stages)
    where = np.argsort(part, axis=None)
    chunk, device = np.divmod(where, stages)
    places = part.tolist(), int(micro_batches), device.tolist(), chunk.tolist()
    if times is None:
        even = [[[1 / len(part)] * micro_batches] * part.size] * 3
        return Work(*places, even, [0.0] * (part.size + 1))
    order = _every_pass(part, micro_batches)
    problems = times.problems(order)
    if not problems and times.sets:
        rule = "an order is made for one duration set"
        problems = [Problem("times", times.sets, rule, "no leading axes work")]
    if problems:
        raise InputError(problems)
    each = times.durations(order, np.arange(order.kind.size)).reshape(stages, 3, len(part), micro_batches)
    duration = each.transpose(1, 2, 0, 3).reshape(3, -1, micro_batches)[:, where]
    lag = np.append(np.where(device == np.roll(device, 1), 0.0, times.lags(order)), 0.0)
    return Work(*places, duration.tolist(), lag.tolist())


def _every_pass(part: Ints, micro_batches: int) -> Order:
    """Return an order that no device can run, to ask for durations: all F, then all B, then all W."""
    chunks, stages = part.shape
    device, kind, chunk, micro_batch = (
        axis.ravel() for axis in np.indices((stages, 3, chunks, micro_batches))
    )
    return Order(
        "passes", stages, chunks, micro_batches, device, np.array(KINDS)[kind], micro_batch, chunk, part
    )


def better(score: Score, than: Score) -> bool:
    """Whether a score is lower: makespan first, then the longest span, then what was held."""
    for a, b in zip(score, than, strict=True):
        if abs(a - b) > ROUNDING * abs(b):
            return a < b
    return False


class Writer:
    """An order on its way: what each device has run, until when, and what it holds.

    Parameters
    ----------
    work : Work
        What is to be put in order.
    limit : sequence (stages,)
        Most chunks' activations that a device may hold, from a forward to the weight half.
    weight_share : float
        What of these it still holds between the two halves of the backward.
    """

    def __init__(self, work: Work, limit: Sequence[float], weight_share: float = 1.0) -> None:
        stages, parts = work.stages, len(work.device)
        self.work = work
        self.room = [most * (1 + ROUNDING) - 1 for most in limit]
        self.share = weight_share
        self.ends: list[list[list[float]]] = [[[] for _ in range(parts)] for _ in (F, B)]
        self.lines: list[list[Pass]] = [[] for _ in range(stages)]
        self.due: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
        self.paid = [0] * stages
        self.clock = [0.0] * stages
        self.begun = [0.0] * stages
        self.idle = [0.0] * stages
        self.longest_idle = 0.0
        self.held = [0.0] * stages
        self.whole = [0] * stages
        self.most_whole = 0

    def ready(self, half: int, part: int) -> float:
        """When the input of a part's next F or B arrives; infinite while that is not known."""
        i = len(self.ends[half][part])
        if half == F:
            if part == 0:
                return 0.0
            before, lag = self.ends[F][part - 1], self.work.lag[part]
        elif part == len(self.work.device) - 1:
            before, lag = self.ends[F][part], 0.0
        else:
            before, lag = self.ends[B][part + 1], self.work.lag[part + 1]
        return before[i] + lag if i < len(before) else math.inf

    def run(self, half: int, part: int, ready: float) -> float:
        """Run a part's next F or B, not before ``ready``; return its end."""
        device = self.work.device[part]
        now, line, ends = self.clock[device], self.lines[device], self.ends[half][part]
        if ready > now:
            if line:
                self.idle[device] += ready - now
                self.longest_idle = max(self.longest_idle, self.idle[device])
            else:
                self.begun[device] = ready
            now = ready
        i = len(ends)
        now += self.work.duration[half][part][i]
        ends.append(now)
        line.append((half, part, i))
        self.clock[device] = now
        if half == F:
            self.held[device] += 1.0
            self.whole[device] += 1
            if self.whole[device] > self.most_whole:
                self.most_whole = self.whole[device]
        else:
            self.held[device] -= 1.0 - self.share
            self.due[device].append((part, i))
        return now

    def owes(self, device: int) -> bool:
        """Whether a weight half waits there."""
        return self.paid[device] < len(self.due[device])

    def next_weight(self, device: int) -> float:
        """How long the weight half takes that waits longest."""
        part, i = self.due[device][self.paid[device]]
        return self.work.duration[W][part][i]

    def weight(self, device: int) -> float:
        """Run the weight half that waits longest; return its end."""
        part, i = self.due[device][self.paid[device]]
        self.paid[device] += 1
        self.clock[device] += self.work.duration[W][part][i]
        self.held[device] -= self.share
        self.whole[device] -= 1
        self.lines[device].append((W, part, i))
        return self.clock[device]

    def follow(self, lines: Sequence[Sequence[Pass]]) -> None:
        """Run given lists of passes, each list in its order."""
        at, left = [0] * len(lines), sum(map(len, lines))
        while left:
            before = left
            for device, line in enumerate(lines):
                while at[device] < len(line):
                    half, part, _ = line[at[device]]
                    if half == W:
                        self.weight(device)
                    else:
                        ready = self.ready(half, part)
                        if ready == math.inf:
                            break
                        self.run(half, part, ready)
                    at[device] += 1
                    left -= 1
            assert left < before, "the lists of a generator wait for each other"

    def score(self) -> Score:
        """Makespan, longest span, most forwards without their weight half on a device."""
        span = max(end - begin for begin, end in zip(self.begun, self.clock, strict=True))
        return max(self.clock), span, self.most_whole

    def operations(self) -> list[list[Op]]:
        """List what each device runs, as operations of an order."""
        chunk = self.work.chunk
        return [[Op(KINDS[half], i, chunk[part]) for half, part, i in line] for line in self.lines]
