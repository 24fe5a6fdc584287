"""Orders in which every device takes turns: one backward, one forward, and weight halves wherever they fit.

This is the automatic scheduling of the zero-bubble papers: a warm-up of forwards; then rounds, in which each
device runs the input half of one backward and one forward; weight halves in between where a device would wait,
or has to let go of activations before it may begin a forward. What is open is how many forwards the warm-up
has and which waits a weight half may lengthen; several answers are tried and the best order is kept.

Sources: arXiv 2401.10241 section 3.1 (one chunk) and section 6 (ZB-V). Where this differs: both are one
procedure here, a round's forward runs only if its input was there when the round began, and no forward of the
steady phase is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from telekit.pipeline.writing import ROUNDING, B, F, Pass, Score, W, Work, Writer, better


class Filling(Enum):
    """When a device that waits runs a weight half.

    FITS: only if it ends before the wait does. LEVEL: also if the device would else have idled longer than any
    other so far, for that is what the step waits for. ALWAYS.
    """

    FITS, LEVEL, ALWAYS = range(3)


FILLINGS = (
    (Filling.LEVEL, Filling.LEVEL),
    (Filling.LEVEL, Filling.ALWAYS),
    (Filling.ALWAYS, Filling.ALWAYS),
    (Filling.FITS, Filling.LEVEL),
    (Filling.ALWAYS, Filling.LEVEL),
)
"""Before a forward and before a backward; of all nine pairs, these win nearly always."""


def best_by_rounds(
    work: Work,
    limit: Sequence[float],
    weight_share: float,
    warm_ups: Iterable[list[list[int]]],
    known: Iterable[list[list[Pass]]] = (),
) -> Writer:
    """Best of some known orders and of rounds after some warm-ups.

    Parameters
    ----------
    work, limit, weight_share
        As for :class:`~telekit.pipeline.writing.Writer`.
    warm_ups : iterable of lists (stages,) of list of int
        Chunks whose forwards each device runs before its first backward, in order. They must fit the limit.
    known : iterable of lists (stages,) of list of passes
        Orders that are better than nothing; those that do not fit the limit are left out.
    """
    goal = (*work.bound(), 0.0)
    best: tuple[Score, Writer] | None = None
    for writer in _trials(work, limit, weight_share, warm_ups, known):
        score = writer.score()
        if best is None or better(score, best[0]):
            best = score, writer
        if not better((*goal[:2], score[2]), score):
            break
    assert best is not None
    return best[1]


def _trials(
    work: Work,
    limit: Sequence[float],
    weight_share: float,
    warm_ups: Iterable[list[list[int]]],
    known: Iterable[list[list[Pass]]],
) -> Iterable[Writer]:
    for lines in known:
        if _fits(lines, limit, weight_share):
            writer = Writer(work, limit, weight_share)
            writer.follow(lines)
            yield writer
    tried = []
    for warm_up in warm_ups:
        if warm_up in tried:
            continue
        tried.append(warm_up)
        for filling in FILLINGS:
            rounds = Rounds(work, limit, weight_share, filling)
            rounds.write(warm_up)
            yield rounds


def _fits(lines: list[list[Pass]], limit: Sequence[float], weight_share: float) -> bool:
    change = {F: 1.0, B: weight_share - 1.0, W: -weight_share}
    for line, most in zip(lines, limit, strict=True):
        held = 0.0
        for half, _, _ in line:
            held += change[half]
            if held > most * (1 + ROUNDING):
                return False
    return True


class Rounds(Writer):
    """A writer that goes by rounds; ``filling`` is for the waits before forwards and before backwards."""

    def __init__(
        self, work: Work, limit: Sequence[float], weight_share: float, filling: tuple[Filling, Filling]
    ) -> None:
        super().__init__(work, limit, weight_share)
        self.filling = filling

    def write(self, warm_up: list[list[int]]) -> None:
        """Write the whole order."""
        work = self.work
        self.follow([[(F, work.part[c][s], -1) for c in line] for s, line in enumerate(warm_up)])
        left = 2 * len(work.device) * work.micro_batches - sum(map(len, warm_up))
        while left:
            done = self._turn(B) + self._turn(F)
            assert done, "no device could run anything in a round"
            left -= done
        for device in range(work.stages):
            while self.owes(device):
                self.weight(device)

    def _turn(self, half: int) -> int:
        """One forward, or one input half, on each device that can; return how many ran."""
        parts = len(self.work.device)
        chosen = [self._choice(half, device) for device in range(self.work.stages)]
        done = 0
        for part in range(parts) if half == F else range(parts - 1, -1, -1):
            device = self.work.device[part]
            if chosen[device] != part:
                continue
            ready = self.ready(half, part)
            if ready < float("inf") and (half == B or self._make_room(device)):
                self._fill(device, ready, self.filling[half])
                self.run(half, part, ready)
                done += 1
        return done

    def _choice(self, half: int, device: int) -> int:
        """Part that a device works on in a round; -1 for none.

        The chunk furthest on its way whose input is there. Else the chunk first on its way, whose input may
        come in this very round; only a forward of a later chunk is not worth waiting for.
        """
        ends, most = self.ends[half], self.work.micro_batches
        mine = [chunk[device] for chunk in self.work.part]
        if half == F:
            mine.reverse()
        left = [part for part in mine if len(ends[part]) < most]
        for part in left:
            if self.ready(half, part) < float("inf"):
                return part
        if not left or (half == F and left[-1] != self.work.part[0][device]):
            return -1
        return left[-1]

    def _make_room(self, device: int) -> bool:
        """Run weight halves until one more forward may be held; whether that can be."""
        while self.held[device] > self.room[device]:
            if not self.owes(device):
                return False
            self.weight(device)
        return True

    def _fill(self, device: int, ready: float, filling: Filling) -> None:
        """Run weight halves while a device waits."""
        while self.clock[device] < ready and self.owes(device):
            wait = ready - self.clock[device]
            lengthens = self.next_weight(device) > wait * (1 + ROUNDING)
            level = filling is Filling.LEVEL and self.idle[device] + wait > self.longest_idle
            if lengthens and not level and filling is not Filling.ALWAYS:
                break
            self.weight(device)
