"""Documents packed into samples of one length: concatenated and cut, or whole by next, first and best fit, or by work.

A *piece* is what one sample holds of one document; attention never crosses from piece to piece. Concatenation cuts
documents at the borders of samples, so that only the last sample has padding. The others keep a document whole,
except that one longer than a sample fills whole samples first and its rest is packed like any other.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import bad
from telekit.packing.inputs import MOST_SAMPLES, check_counts, checked_work
from telekit.training.documents import MAX_DOCUMENTS, MAX_LENGTH, checked_lengths

Int = NDArray[np.int64]

EOD_PAD_LENGTH = 128
"""Places of MindFormers' `actual_seq_len` by default."""


@dataclass(frozen=True)
class Packed:
    """Pieces of documents in their samples.

    Parameters
    ----------
    seq_len : int
        Tokens that a sample has room for.
    lengths : (pieces,) int64
        Tokens of each piece, sample by sample, in their order inside it.
    sample : (pieces,) int64
        Sample of each piece; never falls.
    source : (pieces,) int64
        Index of the document that each piece comes from.
    samples : int
        Samples in all, empty ones counted.
    left : (documents,) int64
        Documents that found no room and wait for a next batch (`by_work` with ``carry_over`` only).
    """

    seq_len: int
    lengths: Int
    sample: Int
    source: Int
    samples: int
    left: Int = field(default_factory=lambda: np.zeros(0, np.int64))

    @cached_property
    def _starts(self) -> Int:
        """First piece of each sample, and one past the last (samples + 1,)."""
        return np.searchsorted(self.sample, np.arange(self.samples + 1)).astype(np.int64)

    @cached_property
    def tokens(self) -> Int:
        """Tokens of each sample without padding (samples,)."""
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        return np.diff(ends[self._starts])

    @property
    def padding(self) -> Int:
        """Places of each sample that hold no token (samples,)."""
        return self.seq_len - self.tokens

    @property
    def padding_share(self) -> float:
        """Share of all places that hold no token; 0 when there is no sample."""
        return float(self.padding.sum() / (self.samples * self.seq_len)) if self.samples else 0.0

    @property
    def cut_documents(self) -> int:
        """Documents that lie in more than one piece."""
        return int((np.unique(self.source, return_counts=True)[1] > 1).sum())

    def pieces(self, i: int) -> Int:
        """Lengths of the pieces of sample ``i``, in order."""
        return self.lengths[self._span(i)]

    def rows(self) -> list[Int]:
        """Lengths of the pieces, one array a sample."""
        return [self.lengths[a:b] for a, b in pairwise(self._starts)]

    def per_sample(self, of_piece: ArrayLike) -> NDArray[np.float64]:
        """Add up what each piece costs, sample by sample: (pieces,) to (samples,)."""
        total: NDArray[np.float64] = np.zeros(self.samples)
        np.add.at(total, self.sample, np.asarray(of_piece, float))
        return total

    def cu_seqlens(self, i: int) -> NDArray[np.int32]:
        """Borders of sample ``i``'s pieces, from 0 to its tokens, as variable-length attention kernels take them."""
        return np.concatenate(([0], np.cumsum(self.pieces(i)))).astype(np.int32)

    def actual_seq_len(self, i: int, pad_length: int = EOD_PAD_LENGTH) -> NDArray[np.int32]:
        """Fill up the ends of sample ``i``'s pieces with `seq_len`: MindFormers' compressed end-of-document mask.

        Parameters
        ----------
        i : int
            The sample.
        pad_length : int
            Places of the vector (`eod_pad_length`).

        Raises
        ------
        InputError
            More ends than places. Padding ends at `seq_len` too, and takes a place.
        """
        ends = self.cu_seqlens(i)[1:]
        needed = len(ends) + (len(ends) == 0 or int(ends[-1]) < self.seq_len)
        if needed > pad_length:
            rule = (
                f"sample {i} has {needed:,} ends of documents, padding's included: more than there are places"
            )
            raise bad("pad_length", pad_length, rule, f"{needed} would do")
        filled = np.full(pad_length, self.seq_len, np.int32)
        filled[: len(ends)] = ends
        return filled

    def position_ids(self, i: int) -> Int:
        """Position of each place of sample ``i`` in its own piece (seq_len,); padding counts as a piece of its own."""
        borders = self.cu_seqlens(i).astype(np.int64)
        starts = np.repeat(borders, np.diff(borders, append=self.seq_len))
        return np.arange(self.seq_len, dtype=np.int64) - starts

    def _span(self, i: int) -> slice:
        if not 0 <= i < self.samples:
            raise bad("sample", i, f"must be one of the {self.samples} samples, counted from 0")
        return slice(int(self._starts[i]), int(self._starts[i + 1]))


def concatenate(lengths: ArrayLike, seq_len: int, drop_last: bool = False) -> Packed:
    """Lay all documents end to end and cut every `seq_len` tokens.

    Megatron-Core's GPTDataset does so, with ``drop_last`` (its samples also overlap by the one token that is only a
    label; it is not counted here).

    Parameters
    ----------
    lengths : (documents,) int
        Tokens of each document.
    seq_len : int
        Tokens of a sample.
    drop_last : bool
        Leave out the last sample when it is not full, and its tokens with it.
    """
    lengths, seq_len = checked_lengths(lengths), _checked_seq_len(seq_len)
    _check_pieces(lengths, seq_len)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    samples = total // seq_len if drop_last else -(-total // seq_len)
    borders = np.arange(1, samples + 1, dtype=np.int64) * seq_len
    cuts = np.union1d(ends, borders)
    cuts = cuts[cuts <= min(total, samples * seq_len)]
    starts = np.concatenate(([0], cuts[:-1])).astype(np.int64) if len(cuts) else cuts
    source = np.searchsorted(ends, starts, side="right")
    return Packed(seq_len, cuts - starts, starts // seq_len, source.astype(np.int64), samples)


def next_fit(lengths: ArrayLike, seq_len: int) -> Packed:
    """Close a sample as soon as the next document has no room in it: documents stay in their order."""
    pieces, source, seq_len = _cut(lengths, seq_len)
    ends = [0, *np.cumsum(pieces).tolist()]
    firsts, i = [0], 0
    while i < len(pieces):
        i = bisect_right(ends, ends[i] + seq_len) - 1
        firsts.append(i)
    sample = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
    return _packed(seq_len, pieces, source, sample, len(firsts) - 1)


def first_fit(lengths: ArrayLike, seq_len: int, decreasing: bool = False) -> Packed:
    """Put each document into the first sample that has room; ``decreasing`` takes the longest documents first."""
    pieces, source, seq_len = _cut(lengths, seq_len)
    if decreasing:
        order = _longest_first(pieces)
        pieces, source = pieces[order], source[order]
    # any two neighbours hold more than one sample's tokens together, so there are never more samples than this
    most = min(len(pieces), 2 * int(pieces.sum()) // seq_len + 1)
    leaves = 1 << max(most - 1, 0).bit_length()
    room = [seq_len] * (2 * leaves)  # each node holds the largest room below it; node 1 is the root
    sample = []
    for length in pieces.tolist():
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        sample.append(node - leaves)
        room[node] -= length
        while node > 1:
            left, right = room[node & ~1], room[node | 1]
            node >>= 1
            largest = left if left > right else right
            if room[node] == largest:
                break
            room[node] = largest
    placed = np.array(sample, np.int64)
    return _packed(seq_len, pieces, source, placed, int(placed.max(initial=-1)) + 1)


def best_fit(lengths: ArrayLike, seq_len: int) -> Packed:
    """Put each document, longest first, into the fullest sample that still has room: few samples, nothing cut.

    Documents of equal length are placed together: best fit goes on filling the sample it has just chosen until they
    no longer fit, so whole lists of samples with equal room are filled at once.
    """
    pieces, source, seq_len = _cut(lengths, seq_len)
    order = _longest_first(pieces)
    pieces, source = pieces[order], source[order]
    values, counts = np.unique(-pieces, return_counts=True)
    by_room: dict[int, list[int]] = {}  # samples by the room they have left
    rooms: list[int] = []  # the keys above, ascending
    filled: list[tuple[int, int]] = []  # sample and count, in the order of the pieces
    samples = 0
    for length, count in zip((-values).tolist(), counts.tolist(), strict=True):
        while count:
            at = bisect_left(rooms, length)
            if at == len(rooms):
                room, chosen = seq_len, samples
                samples += 1
            else:
                room = rooms[at]
                chosen = by_room[room].pop()
                if not by_room[room]:
                    del by_room[room], rooms[at]
            taken = min(count, room // length)
            filled.append((chosen, taken))
            count -= taken
            rest = room - taken * length
            if rest and rest not in by_room:
                insort(rooms, rest)
            if rest:
                by_room.setdefault(rest, []).append(chosen)
    placed = np.array(filled, np.int64).reshape(-1, 2)
    return _packed(seq_len, pieces, source, np.repeat(placed[:, 0], placed[:, 1]), samples)


def by_work(
    lengths: ArrayLike,
    seq_len: int,
    samples: int,
    work_of: Callable[[Int], ArrayLike],
    carry_over: bool = False,
) -> Packed:
    """Put each document, longest first, into the sample with the least work among those that have room.

    With `seq_len` at the mean tokens of a sample this is WLB-LLM's fixed-length packing; with a larger one, a cap,
    samples differ in tokens so that they can agree in work: its variable-length packing (arXiv 2503.17924).

    Parameters
    ----------
    lengths : (documents,) int
        Tokens of each document.
    seq_len : int
        Most tokens of a sample.
    samples : int
        Samples to fill.
    work_of : callable
        Takes lengths (pieces,) and gives the work of each (pieces,), in any one unit.
    carry_over : bool
        Leave documents that find no room to a next batch (`Packed.left`) and not raise.

    Raises
    ------
    InputError
        Documents find no room, and ``carry_over`` is not set; work that is negative, not finite or not one a piece; too
        many samples.
    """
    pieces, source, seq_len = _cut(lengths, seq_len)
    check_counts(MOST_SAMPLES, samples=samples)
    order = _longest_first(pieces)
    pieces, source = pieces[order], source[order]
    work = checked_work(work_of(pieces), "work_of") if pieces.size else np.zeros(0)
    if work.shape != pieces.shape:
        raise bad("work_of", f"{work.size} numbers", f"must give one for each of {pieces.size} pieces")
    # of empty samples the first is filled first: more than there are pieces never are
    placed = _least_work(pieces.tolist(), work.tolist(), min(int(samples), pieces.size), seq_len)
    left = placed < 0
    if left.any() and not carry_over:
        rule = f"{int(left.sum()):,} documents of {int(pieces[left].sum()):,} tokens find no room"
        raise bad("samples", samples, rule, "more samples, a larger seq_len, or carry_over=True")
    # a document is carried over whole: what was cut from it waits with it
    left = np.isin(source, source[left])
    kept = _packed(seq_len, pieces[~left], source[~left], placed[~left], int(samples))
    return replace(kept, left=np.unique(source[left]))


def _least_work(pieces: list[int], work: list[float], samples: int, seq_len: int) -> Int:
    """Sample of each piece, -1 where none has room; pieces come longest first.

    A sample without room for a piece waits aside, by its room, until pieces have become short enough: it changes
    sides at most once for each piece that it takes.
    """
    open_now = [(0.0, i) for i in range(samples)]  # by work: all of these have room for the piece at hand
    aside: list[tuple[int, float, int]] = []  # by room, largest first
    room = [seq_len] * samples
    placed = np.full(len(pieces), -1, np.int64)
    for at, length in enumerate(pieces):
        while aside and -aside[0][0] >= length:
            _, load, i = heapq.heappop(aside)
            heapq.heappush(open_now, (load, i))
        while open_now and room[open_now[0][1]] < length:
            load, i = heapq.heappop(open_now)
            heapq.heappush(aside, (-room[i], load, i))
        if open_now:
            load, i = open_now[0]
            placed[at] = i
            room[i] -= length
            heapq.heapreplace(open_now, (load + work[at], i))
    return placed


def _cut(lengths: ArrayLike, seq_len: int) -> tuple[Int, Int, int]:
    """Cut documents longer than a sample into whole samples and a rest: pieces, their documents, the length."""
    lengths, seq_len = checked_lengths(lengths), _checked_seq_len(seq_len)
    _check_pieces(lengths, seq_len)
    count = -(-lengths // seq_len)
    source = np.repeat(np.arange(len(lengths), dtype=np.int64), count)
    pieces = np.full(len(source), seq_len, np.int64)
    last = np.cumsum(count) - 1
    pieces[last] = lengths - (count - 1) * seq_len
    return pieces, source, seq_len


def _check_pieces(lengths: Int, seq_len: int) -> None:
    pieces = int((-(-lengths // seq_len)).sum())
    if pieces > MAX_DOCUMENTS:
        rule = f"would cut the documents into {pieces:,} pieces, and {MAX_DOCUMENTS:,} are the most"
        raise bad("seq_len", seq_len, rule, "a longer one, or fewer documents at a time")


def _longest_first(pieces: Int) -> Int:
    return np.argsort(-pieces, kind="stable")


def _packed(seq_len: int, pieces: Int, source: Int, sample: Int, samples: int) -> Packed:
    order = np.argsort(sample, kind="stable")
    return Packed(seq_len, pieces[order], sample[order].astype(np.int64), source[order], samples)


def _checked_seq_len(seq_len: int) -> int:
    if (
        isinstance(seq_len, bool)
        or not isinstance(seq_len, int | np.integer)
        or not 1 <= seq_len <= MAX_LENGTH
    ):
        raise bad("seq_len", seq_len, f"must be a whole number from 1 to {MAX_LENGTH:,}", "such as 8192")
    return int(seq_len)
