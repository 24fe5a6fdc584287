"""Global batches from a stream of documents, with a bounded look-ahead: pack, level, hand out, and forget.

Documents are held in the order they came. A batch takes the oldest that fill it; a few rules bound what waits:

- never more than ``look_ahead`` documents are held; those that are left fill the gaps that the oldest leave;
- an *outlier*, a document whose own work is more than a mean sample's, waits until there is one for each rank and
  room for all, so that no rank waits for another that has one (WLB-LLM's outlier queue, arXiv 2503.17924, section 4.2);
- no document lets more than ``most_delay`` batches with younger ones go before it: the late are placed first, and where
  one of them finds no room, nothing younger than it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from telekit.errors import InputError, Problem, bad
from telekit.packing.balance import Assignment, balanced
from telekit.packing.inputs import Floats, Ints, counts
from telekit.packing.pack import Packed
from telekit.training.documents import MAX_LENGTH, checked_lengths

AHEAD = 0.25
"""Batches that gaps are filled from, ahead of the oldest, for each that a document may be late; more makes all late."""
MOST_SAMPLES = 2**20
"""Samples of a global batch that are accepted."""


@dataclass(frozen=True)
class Batch:
    """One global batch.

    Parameters
    ----------
    packed : Packed
        Its samples; ``source`` counts documents from the start of the stream.
    assignment : Assignment
        Rank of each sample, ``per_rank`` on each.
    delay : (pieces,) int array
        Batches with younger documents that left before each piece did.
    held : int
        Documents (pieces, where one was cut) that were held when the batch was made, its own included.
    """

    packed: Packed
    assignment: Assignment
    delay: Ints
    held: int


@dataclass(frozen=True)
class _Rules:
    seq_len: int
    ranks: int
    per_rank: int
    look_ahead: int
    most_delay: int
    work: Callable[[Any], Any]

    @property
    def samples(self) -> int:
        return self.ranks * self.per_rank


def stream(
    documents: Iterable[ArrayLike],
    seq_len: int,
    ranks: int,
    look_ahead: int,
    work: Callable[[Any], Any],
    per_rank: int = 1,
    most_delay: int = 4,
    drop_last: bool = False,
) -> Iterator[Batch]:
    """Make global batches of a stream of documents.

    Its cost is by batch more than by document: 100,000 documents a second on one core with batches of hundreds of
    them and a look-ahead of thousands (64 ranks of 2 samples, 8,192 ahead); with 8 ranks and 64 ahead, 13,000.

    Parameters
    ----------
    documents : iterable of int, or of int arrays
        Lengths, one by one or (much faster) many at a time. Longer ones than ``seq_len`` are cut into pieces of it.
    seq_len, ranks, per_rank : int
        Tokens of a sample, data-parallel ranks, samples of each in a batch.
    look_ahead : int
        Documents held at most; at least ``ranks * per_rank``. Where those do not fill a batch, it leaves with padding.
    work : callable
        Work of documents of given lengths, for an array of them (:meth:`telekit.packing.work.WorkModel.seconds`).
    most_delay : int
        Batches with younger documents that a document lets go before it; 0: strictly in order of arrival.
    drop_last : bool
        Leave out what does not fill a batch at the end; else batches with padding, or with empty samples, hold it.

    Yields
    ------
    Batch

    Raises
    ------
    InputError
        At once, for sizes that cannot be; while reading, for lengths that are no positive whole numbers.
    """
    rules = _Rules(seq_len, ranks, per_rank, look_ahead, most_delay, work)
    _check(rules)
    if not isinstance(documents, Iterable) or isinstance(documents, str | bytes):
        raise bad(
            "documents", documents, "must be lengths one after the other, or arrays of them", "[8, 4] works"
        )
    return _batches(documents, rules, drop_last)


def _check(rules: _Rules) -> None:
    problems = []
    for name in ("seq_len", "ranks", "per_rank", "look_ahead", "most_delay"):
        value, least = getattr(rules, name), 0 if name == "most_delay" else 1
        if not (counts(value) or (least == 0 and value == 0 and counts(value + 1))) or value > MAX_LENGTH:
            works = f"{max(least, 1)} works"
            problems.append(
                Problem(name, value, f"must be a whole number from {least} to {MAX_LENGTH:,}", works)
            )
    if not callable(rules.work):
        problems.append(
            Problem("work", rules.work, "must be a function of lengths", "WorkModel.seconds works")
        )
    if not problems and rules.samples > MOST_SAMPLES:
        problems.append(Problem("per_rank", rules.per_rank, f"a batch has at most {MOST_SAMPLES:,} samples"))
    if not problems and rules.look_ahead < rules.samples:
        rule = f"a batch of {rules.samples} samples may take as many documents"
        problems.append(Problem("look_ahead", rules.look_ahead, rule, f"{4 * rules.samples} works"))
    if problems:
        raise InputError(problems)


@dataclass
class _Held:
    """Pieces that wait, oldest first."""

    length: Ints
    work: Floats
    source: Ints
    delay: Ints

    @classmethod
    def none(cls) -> _Held:
        whole = np.zeros(0, dtype=np.int64)
        return cls(whole, np.zeros(0), whole, whole)

    def keep(self, which: Any) -> _Held:
        return _Held(self.length[which], self.work[which], self.source[which], self.delay[which])

    def join(self, other: _Held) -> _Held:
        mine, theirs = vars(self).values(), vars(other).values()
        return _Held(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))


class _Source:
    """Reads documents in pieces of a sample's length, never more than are asked for; what an array has left waits."""

    def __init__(self, documents: Iterable[ArrayLike], rules: _Rules) -> None:
        self.documents = iter(documents)
        self.rules = rules
        self.read = 0
        self.behind: Ints | None = None  # an array that came after single lengths
        self.ready = _Held.none()

    def take(self, most: int) -> _Held:
        """Read up to ``most`` pieces; fewer only at the end."""
        parts = []
        while most > 0:
            if not self.ready.length.size and not self._more(most):
                break
            parts.append(self.ready.keep(slice(most)))
            self.ready = self.ready.keep(slice(most, None))
            most -= parts[-1].length.size
        found = _Held.none()
        for part in parts:
            found = found.join(part) if found.length.size else part
        return found

    def _more(self, most: int) -> bool:
        """Read the next array, or gather up to ``most`` single lengths."""
        found = self._next(most)
        while found is not None and not found.size:
            found = self._next(most)
        if found is None:
            return False
        whole, rest = np.divmod(found, self.rules.seq_len)
        pieces = whole + (rest > 0)
        source = np.repeat(np.arange(found.size), pieces)
        length = np.full(source.size, self.rules.seq_len)
        last = np.cumsum(pieces) - 1
        length[last[rest > 0]] = rest[rest > 0]
        work = np.asarray(self.rules.work(length), dtype=float)
        if work.shape != length.shape or not np.isfinite(work).all() or (work < 0).any():
            raise bad(
                "work", "its answer", "must be one finite number from 0 for each length", "lengths work"
            )
        self.ready = _Held(length, work, source + self.read, np.zeros(source.size, dtype=np.int64))
        self.read += found.size
        return True

    def _next(self, most: int) -> Ints | None:
        if self.behind is not None:
            found, self.behind = self.behind, None
            return found
        single: list[Any] = []
        for item in self.documents:
            if isinstance(item, list | tuple | np.ndarray) and np.ndim(item):
                if not single:
                    return checked_lengths(item)
                self.behind = checked_lengths(item)
                break
            single.append(item)
            if len(single) >= most:
                break
        return checked_lengths(single) if single else None


def _batches(documents: Iterable[ArrayLike], rules: _Rules, drop_last: bool) -> Iterator[Batch]:
    source, held = _Source(documents, rules), _Held.none()
    while True:
        fresh = source.take(rules.look_ahead - held.length.size)
        held = held.join(fresh) if held.length.size else fresh
        over = held.length.size < rules.look_ahead  # there is nothing more to read
        last = over and held.length.sum() < rules.samples * rules.seq_len
        if not held.length.size or (last and drop_last):
            return
        place = _choose(held, rules, over)
        taken = np.flatnonzero(place >= 0)
        yield _made(held.keep(taken), place[taken], rules, held.length.size)
        passed = (place < 0) & (np.arange(place.size) < taken[-1])
        held.delay = held.delay + passed
        held = held.keep(place < 0)


def _made(taken: _Held, place: Ints, rules: _Rules, held: int) -> Batch:
    order = np.argsort(place, kind="stable")
    packed = Packed(
        seq_len=rules.seq_len,
        lengths=taken.length[order],
        sample=place[order],
        source=taken.source[order],
        samples=rules.samples,
    )
    work = np.bincount(place, weights=taken.work, minlength=rules.samples)
    return Batch(packed, balanced(work, rules.ranks, rules.per_rank), taken.delay[order], held)


def _choose(held: _Held, rules: _Rules, over: bool) -> Ints:
    """Sample of each held piece, or -1 for those that wait."""
    bins = _Bins(held, rules)
    late = np.flatnonzero(held.delay >= rules.most_delay)
    bins.fill(_first(held, late, rules.samples * rules.seq_len), in_order=True)
    missed = late[bins.place[late] < 0]
    border = int(missed[0]) if missed.size else held.length.size
    bins.empty(border)  # nothing younger than a late one that waits
    outliers = _outliers(held, border, rules.seq_len)
    free = np.ones(border, dtype=bool)
    if not over:  # else nothing comes that they could wait for
        free[outliers] = False
        due = outliers[outliers < _first(held, np.arange(border), rules.samples * rules.seq_len).size]
        bins.fill_groups(due[bins.place[due] < 0], rules.ranks)
    others = np.flatnonzero(free & (bins.place[:border] < 0))
    bins.fill(_first(held, others, bins.room.sum()))
    bins.top_up(_first(held, others, (1 + AHEAD * rules.most_delay) * bins.samples * rules.seq_len))
    if not (bins.place >= 0).any():  # outliers only
        bins.fill(np.arange(min(held.length.size, rules.samples)), in_order=True)
    return bins.place


def _first(held: _Held, which: Ints, tokens: float) -> Ints:
    """Keep the oldest of these pieces that hold so many tokens, and one more."""
    ends = np.cumsum(held.length[which])
    return which[: int(np.searchsorted(ends, tokens)) + 1]


def _outliers(held: _Held, border: int, seq_len: int) -> Ints:
    """Pieces before the border whose own work is more than a mean sample's."""
    mean = held.work.sum() / held.length.sum() * seq_len
    return np.flatnonzero(held.work[:border] > mean)


class _Bins:
    """Samples that fill up; rounds of one piece a sample, many pieces at once."""

    def __init__(self, held: _Held, rules: _Rules) -> None:
        self.held, self.samples, self.seq_len = held, rules.samples, rules.seq_len
        self.place = np.full(held.length.size, -1)
        self.room = np.full(rules.samples, rules.seq_len)
        self.work = np.zeros(rules.samples)

    def empty(self, border: int) -> None:
        """Take out every piece from ``border`` on."""
        out = np.flatnonzero(self.place >= 0)
        out = out[out >= border]
        np.add.at(self.room, self.place[out], self.held.length[out])
        np.subtract.at(self.work, self.place[out], self.held.work[out])
        self.place[out] = -1

    def fill(self, which: Ints, in_order: bool = False) -> None:
        """Place pieces round by round, the largest first, or in order so that the oldest surely find room.

        In a round the largest piece goes to the sample of least work; those that do not fit there try the samples by
        room, the largest to the emptiest.
        """
        if not in_order:
            which = which[np.argsort(-self.held.length[which], kind="stable")]
        while which.size:
            which = which[self.held.length[which] <= self.room.max()]
            some, which = which[: self.samples], which[self.samples :]
            some = some[np.argsort(-self.held.work[some], kind="stable")]
            some = self._put(some, np.argsort(self.work, kind="stable"))
            before = some.size + 1
            while 0 < some.size < before:
                before = some.size
                some = some[np.argsort(-self.held.length[some], kind="stable")]
                some = self._put(some, np.argsort(-self.room, kind="stable"))

    def top_up(self, which: Ints) -> None:
        """Fill gaps with the largest pieces that fit them, of all that may leave."""
        which = which[self.place[which] < 0]
        which = which[np.argsort(self.held.length[which], kind="stable")]
        while which.size:
            bins = np.argsort(-self.room, kind="stable")
            fitting = np.searchsorted(self.held.length[which], self.room[bins], "right") - 1
            steps = np.arange(bins.size)
            each = np.minimum.accumulate(fitting + steps) - steps  # no piece twice
            bins, each = bins[each >= 0], each[each >= 0]
            if not bins.size:
                return
            self._put(which[each], bins)
            which = np.delete(which, each)

    def fill_groups(self, which: Ints, ranks: int) -> None:
        """Place pieces by groups of ``ranks``, the oldest first, a group only if there is room for all of it."""
        for first in range(0, which.size // ranks * ranks, ranks):
            group = which[first : first + ranks]
            before = self.place.copy(), self.room.copy(), self.work.copy()
            self.fill(group, in_order=True)
            if (self.place[group] < 0).any():
                self.place, self.room, self.work = before
                return

    def _put(self, some: Ints, bins: Ints) -> Ints:
        """Put each piece where it stands opposite if it fits; the others come back."""
        bins = bins[: some.size]
        fits = self.held.length[some] <= self.room[bins]
        into, put = bins[fits], some[fits]
        self.place[put] = into
        self.room[into] -= self.held.length[put]
        self.work[into] += self.held.work[put]
        return some[~fits]
