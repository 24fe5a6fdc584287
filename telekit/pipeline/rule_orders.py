"""Orders that rules write: whenever a device is free, a rule says which of the operations that could start it runs.

A rule simulates the pipeline as it goes, about 15 microseconds an operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import monotonic

from telekit.pipeline.case import ROUNDING, SAME, Case, Lines

_NOTHING = (math.inf, 0, 0)


@dataclass(frozen=True)
class Rule:
    """How a free device chooses.

    Attributes
    ----------
    lead : list (parts,)
        Most micro-batches that may be held on each part. With a full device, a part far from the loss must not
        take the room that later ones need.
    rank : tuple of int, or None
        Of forward, backward or input half, weight half: the lowest goes first. None: forwards and backwards
        take turns, weight halves last.
    patience : float
        How long a device waits for an operation of a lower rank that is known to become free, as a share of
        what it could start at once.
    oldest : bool
        Among equals of two chunks, whether the oldest micro-batch goes first, or the latest part.
    """

    lead: list[float]
    rank: tuple[int, int, int] | None
    patience: float = 0.5
    oldest: bool = False


def by_rules(case: Case, most: float = math.inf, until: float = math.inf) -> list[Lines]:
    """Orders that the rules write, until one meets the case's bound.

    All leads and ranks are tried with one patience; then the best three with others. Leads are shares of the
    parts still to come, as in the named schedules: 1/3 is V-Min's, 1 is 1F1B's, 2 ZB-H2's. At least one order is
    written, then up to ``most``, none after ``until`` on the monotonic clock.
    """
    tried: list[tuple[float, int, Rule, Lines]] = []

    def build(some: Iterable[Rule]) -> bool:
        for rule in some:
            lines = Builder(case, rule).build()
            tried.append((case.makespan(lines), len(tried), rule, lines))
            if tried[-1][0] <= case.bound * (1 + SAME) or len(tried) >= most or monotonic() > until:
                return True
        return False

    shares = (math.inf, 2, 1.5, 1, 2 / 3, 1 / 2, 1 / 3) if len(case.part) > 1 else (math.inf, 2, 1, 2 / 3)
    leads = [
        [max(share * (case.parts - q), 1) + more for q in range(case.parts)]
        for share in shares
        for more in (0, 1)
    ][1:]
    if not build(Rule(lead, rank) for lead in leads for rank in (None, (1, 0, 2), (0, 1, 2))):
        best = sorted(tried)[:3]
        others = [
            replace(rule, patience=patience, oldest=oldest)
            for *_, rule, _ in best
            for patience in (0.0, 0.5, 1.0)
            for oldest in ((False, True) if len(case.part) > 1 else (False,))
        ]
        build(rule for rule in others if rule not in [entry[2] for entry in best])
    return [lines for *_, lines in tried]


class Builder:
    """One run of a rule: the next micro-batch of each half and part, and what has ended when."""

    def __init__(self, case: Case, rule: Rule) -> None:
        self.case, self.rule = case, rule
        self.next = [[0] * case.parts for _ in range(3)]
        self.end = [0.0] * len(case.duration)
        self.clock = [0.0] * case.stages
        self.held = [0.0] * case.stages
        self.last = [1] * case.stages
        self.mine: list[list[int]] = [[] for _ in range(case.stages)]
        for part, device in enumerate(case.device):
            self.mine[device].append(part)
        weights = [[case.weight[part] for part in parts] for parts in self.mine]
        self.rest = [sum(each) - min(each) for each in weights]

    def build(self) -> Lines:
        """Run to the end."""
        case = self.case
        lines: Lines = [[] for _ in range(case.stages)]
        choice = [self._choose(device) for device in range(case.stages)]
        for _ in range(len(case.duration)):
            start, half, part = first = min(choice)
            device = choice.index(first)
            operation = (half * case.parts + part) * case.micro_batches + self.next[half][part]
            self.next[half][part] += 1
            self.clock[device] = self.end[operation] = start + case.duration[operation]
            self.held[device] += case.holds[operation]
            if half < 2:
                self.last[device] = half
            lines[device].append(operation)
            choice[device] = self._choose(device)
            neighbour = part + 1 if half == 0 else part - 1
            if half < 2 and 0 <= neighbour < case.parts and case.device[neighbour] != device:
                other = case.device[neighbour]
                choice[other] = self._choose(other)
        return lines

    def _choose(self, device: int) -> tuple[float, int, int]:
        """(start, half, part) of what a device runs next, as far as is known; an infinite start for nothing."""
        free = self._free(device)
        if len(free) < 2:
            return free[0] if free else _NOTHING
        duration, size, parts = self.case.duration, self.case.micro_batches, len(self.next[0])
        now = min(free)[0]
        filler = min(duration[(half * parts + part) * size] for start, half, part in free if start == now)
        until = now + self.rule.patience * filler
        rank = self.rule.rank or ((0, 1, 2) if self.last[device] == 1 else (1, 0, 2))
        best, least = free[0], (math.inf, 0)
        for entry in free:
            start, half, part = entry
            if start <= until:
                turn = rank[half], -part
                if self.rule.oldest:
                    turn = rank[half], self.next[half][part] * parts + (-part if half else part)
                if turn < least:
                    best, least = entry, turn
        return best

    def _free(self, device: int) -> list[tuple[float, int, int]]:
        """Operations whose start is known: all that they wait for has been placed."""
        case, end, clock, free = self.case, self.end, self.clock[device], []
        forward, backward, _ = self.next
        size, parts = case.micro_batches, len(forward)
        for part in self.mine[device]:
            limits = (
                size if not part else forward[part - 1],
                forward[part] if part + 1 == parts else min(forward[part], backward[part + 1]),
                backward[part],
            )
            for half in range(case.halves):
                i = self.next[half][part]
                if i < limits[half] and (half or self._safe(device, part)):
                    start = clock
                    for before, lag in case.waits[(half * parts + part) * size + i]:
                        if end[before] + lag > start:
                            start = end[before] + lag
                    free.append((start, half, part))
        return free

    def _safe(self, device: int, part: int) -> bool:
        """Whether, with one more forward, all micro-batches of a device can still end, the oldest first.

        Otherwise chunks could fill the device with micro-batches that wait for their own next chunk.
        """
        forward, gone, weight = self.next[0], self.next[self.case.halves - 1], self.case.weight
        spare = self.case.cap[device] + ROUNDING - self.held[device] - weight[part]
        if spare < 0 or forward[part] - gone[part] >= self.rule.lead[part]:
            return False
        if spare >= self.rest[device]:  # room for all that one micro-batch can still need
            return True
        mine = [(gone[q], forward[q] + (q == part), weight[q]) for q in self.mine[device]]
        for i in range(min(mine)[0], max(begun for _, begun, _ in mine)):
            need = freed = 0.0
            for ended, begun, each in mine:
                if i >= begun:
                    need += each
                elif i >= ended:
                    freed += each
            if need > spare:
                return False
            spare += freed
        return True
