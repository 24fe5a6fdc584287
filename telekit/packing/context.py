"""Packed documents over context-parallel ranks: who holds which tokens, and how much causal work that is.

A token attends to itself and to all earlier ones of its own document, so work is counted in such pairs, exactly.
Four ways to split one packed sample over ``cp`` ranks:

- ``contiguous``: each rank takes one stretch of the sample;
- ``per-sequence``: the sample is cut into 2 cp chunks, and rank i takes chunks i and 2 cp - 1 - i (Megatron-Core's
  default; balanced for one document, not for many);
- ``rank-major``: the same inside each document (Transformer Engine's packed layout, WLB-LLM's per-document
  sharding; always balanced, but in many short stretches, and each document is padded to a multiple of 2 cp);
- ``document-major``: chunks are reordered inside each document, the documents are then laid end to end and cut into
  equal stretches. A mistake that was made: a rank's stretch no longer holds its own chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem, bad
from telekit.packing.inputs import counts
from telekit.training.documents import MAX_LENGTH, checked_lengths

Int = NDArray[np.int64]
How = Literal["contiguous", "document-major", "rank-major", "per-sequence"]
HOWS: tuple[How, ...] = get_args(How)


@dataclass(frozen=True)
class Split:
    """Stretches of documents on context-parallel ranks, rank by rank.

    Parameters
    ----------
    lengths : (documents,) int64
        Tokens of each document of the sample, without padding.
    cp : int
        Ranks.
    how : str
        One of `HOWS`.
    rank, document : (stretches,) int64
        Who holds a stretch, and of which document; a stretch behind the last document is padding, and has -1.
    start, places : (stretches,) int64
        Its first position in its document, and how many it covers, padding included.
    """

    lengths: Int
    cp: int
    how: How
    rank: Int
    document: Int
    start: Int
    places: Int

    @cached_property
    def valid(self) -> Int:
        """Tokens of each stretch without padding (stretches,)."""
        length = np.append(self.lengths, 0)[self.document]  # -1 meets the zero behind the last
        return np.clip(length - self.start, 0, self.places)

    @cached_property
    def tokens(self) -> Int:
        """Tokens of each rank without padding (cp,)."""
        return self._sum(self.valid)

    @cached_property
    def padded_tokens(self) -> Int:
        """Places of each rank, padding included (cp,): all alike."""
        return self._sum(self.places)

    @cached_property
    def pairs(self) -> Int:
        """Pairs of a token and one it attends to, of each rank (cp,)."""
        return self._sum(triangle(self.start + self.valid) - triangle(self.start))

    @property
    def imbalance(self) -> float:
        """Most pairs of a rank over the mean; 1 where there are none."""
        total = int(self.pairs.sum())
        return int(self.pairs.max()) * self.cp / total if total else 1.0

    @property
    def stretches(self) -> Int:
        """Stretches of documents that each rank's kernel goes through (cp,)."""
        return self._sum((self.valid > 0).astype(np.int64))

    def positions(self, rank: int) -> Int:
        """Places of a rank in the unpadded sample, in the order it holds them; -1 where it holds padding."""
        mine = self.rank == rank
        offsets = np.append(np.cumsum(self.lengths) - self.lengths, 0)[self.document[mine]]
        found = [
            np.where(np.arange(places) < valid, first + np.arange(places), -1)
            for first, places, valid in zip(
                offsets + self.start[mine], self.places[mine], self.valid[mine], strict=True
            )
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def _sum(self, of_stretch: Int) -> Int:
        total = np.zeros(self.cp, np.int64)
        np.add.at(total, self.rank, of_stretch)  # bincount would add up floats
        return total


@dataclass(frozen=True)
class TileCost:
    """What a rank's attention and its other work take, by a kernel that works in square tiles.

    A stretch of queries fills whole tiles, so that short ones waste most of theirs: the reason why balanced work is
    not always the quickest (WLB-LLM, arXiv 2503.17924, section 5).

    Parameters
    ----------
    tile : int
        Queries and keys of one tile.
    pair_s : float
        Seconds of one pair inside a tile, masked or not.
    token_s : float
        Seconds of one place, padding included, outside attention.

    Raises
    ------
    InputError
        A tile that is none, or a time that is negative or not finite.
    """

    tile: int = 128
    pair_s: float = 1.0
    token_s: float = 0.0

    def __post_init__(self) -> None:
        problems = []
        if not counts(self.tile):
            problems.append(Problem("tile", self.tile, "must be a whole number from 1", "128 works"))
        for name in ("pair_s", "token_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
                problems.append(Problem(name, value, "must be a time of 0 or more", "1.0 works"))
        if problems:
            raise InputError(problems)

    def __call__(self, split: Split) -> NDArray[np.float64]:
        """Seconds of each rank (cp,)."""
        held = split.valid > 0
        first, after = split.start[held], (split.start + split.valid)[held]
        rows = -(
            -(after - first) // self.tile
        )  # tiles of queries; each meets the tiles of keys up to its own end
        keys = (rows - 1) * -(-first // self.tile) + (rows - 1) * rows // 2 + -(-after // self.tile)
        tiles = np.bincount(split.rank[held], keys, minlength=split.cp)
        return tiles * self.tile**2 * self.pair_s + split.padded_tokens * self.token_s


def triangle(tokens: Int) -> Int:
    """Causal pairs of that many first tokens of a document: n (n + 1) / 2."""
    return tokens * (tokens + 1) // 2


def pad_to(lengths: ArrayLike, cp: int) -> Int:
    """Lengths (documents,) rounded up to a multiple of 2 cp, so that each rank holds two equal chunks of each.

    A rank that holds everything (cp 1) needs no padding.
    """
    chunks = _chunks(_checked_cp(cp))
    return -(-checked_lengths(lengths) // chunks) * chunks


def cu_seqlens(lengths: ArrayLike, cp: int = 1) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Borders of the documents without and with their padding (documents + 1,): `cu_seqlens`, `cu_seqlens_padded`."""
    plain, padded = checked_lengths(lengths), pad_to(lengths, cp)
    if int(padded.sum()) > np.iinfo(np.int32).max:
        raise bad("lengths", f"{int(padded.sum()):,} tokens", "must fit the 32-bit borders that kernels take")
    return (
        np.concatenate(([0], np.cumsum(plain))).astype(np.int32),
        np.concatenate(([0], np.cumsum(padded))).astype(np.int32),
    )


def split(lengths: ArrayLike, cp: int, how: How = "per-sequence") -> Split:
    """Split one packed sample over context-parallel ranks.

    Parameters
    ----------
    lengths : (documents,) int
        Tokens of each document of the sample, in order. The sample, or for the two ways inside documents each
        document, is padded behind so that all ranks hold equally many places.
    cp : int
        Context-parallel ranks.
    how : str
        One of `HOWS`.

    Raises
    ------
    InputError
        An unknown way, no ranks, or more tokens than a 64-bit count of pairs allows.
    """
    lengths, cp = checked_lengths(lengths), _checked_cp(cp)
    if how not in HOWS:
        raise bad("how", how, f"must be one of {', '.join(HOWS)}")
    inside = how in ("rank-major", "document-major")
    padded = pad_to(lengths, cp) if inside else lengths
    if int(padded.sum()) > 2 * MAX_LENGTH:
        raise bad(
            "lengths", f"{int(padded.sum()):,} tokens", f"a sample has at most {2 * MAX_LENGTH:,} tokens"
        )
    chunks = cp if how == "contiguous" else _chunks(cp)
    parts = _inside_documents(padded, cp, chunks, how) if inside else _over_the_sample(padded, cp, chunks)
    return Split(lengths, cp, how, *_joined(*parts))


def choose(
    lengths: ArrayLike,
    cp: int,
    cost: Callable[[Split], ArrayLike] | None = None,
    among: tuple[How, ...] = ("per-sequence", "rank-major"),
) -> How:
    """Name the way whose slowest rank is quickest: WLB-LLM's adaptive choice between sequence and documents.

    Parameters
    ----------
    lengths : (documents,) int
        Tokens of each document of the sample.
    cp : int
        Context-parallel ranks.
    cost : callable, optional
        Takes a `Split`, gives what each rank takes (cp,); a `TileCost` of attention alone by default.
    among : tuple of str
        Ways to choose from; the first of equals is taken.
    """
    if not among:
        raise bad("among", "none", "must name at least one way", f"{HOWS[-1]} works")
    price = TileCost() if cost is None else cost
    return min(among, key=lambda how: float(np.max(np.asarray(price(split(lengths, cp, how)), float))))


Parts = tuple[Int, Int, Int, Int]


def _inside_documents(padded: Int, cp: int, chunks: int, how: How) -> Parts:
    """Rank, document, start and places of each chunk of each document, in the order in which ranks hold them."""
    order = np.array(
        [c for r in range(cp) for c in sorted({r, chunks - 1 - r})], np.int64
    )  # head, tail, head, ...
    size = padded // chunks
    document = np.repeat(np.arange(len(padded), dtype=np.int64), chunks)
    chunk = np.tile(order, len(padded))
    places = size[document]
    start = chunk * places
    if how == "document-major":
        return _cut_evenly(document, start, places, cp)
    rank = np.minimum(chunk, chunks - 1 - chunk)
    by_rank = np.argsort(rank, kind="stable")
    return rank[by_rank], document[by_rank], start[by_rank], places[by_rank]


def _cut_evenly(document: Int, start: Int, places: Int, cp: int) -> Parts:
    """Lay stretches end to end and give each rank an equal share of the whole."""
    ends = np.cumsum(places)
    share = (int(ends[-1]) if len(ends) else 0) // cp
    cuts = np.union1d(ends, np.arange(1, cp + 1) * share)
    length = np.diff(cuts, prepend=0)
    first, length = (cuts - length)[length > 0], length[length > 0]
    at = np.searchsorted(ends, first, side="right")
    inner = first - (ends - places)[at]
    rank = first // max(share, 1)
    return rank, document[at], start[at] + inner, length


def _over_the_sample(lengths: Int, cp: int, chunks: int) -> Parts:
    """Cut the sample into equal chunks across documents, and deal them out."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    size = -(-total // chunks)
    cuts = np.union1d(ends, np.arange(1, chunks + 1) * size)
    places = np.diff(cuts, prepend=0)
    first, places = (cuts - places)[places > 0], places[places > 0]
    document = np.searchsorted(ends, first, side="right")
    start = first - np.append(ends - lengths, total)[document]
    document = np.where(document == len(lengths), -1, document)
    chunk = first // max(size, 1)
    rank = chunk if chunks == cp else np.minimum(chunk, chunks - 1 - chunk)
    by_rank = np.argsort(rank, kind="stable")
    return rank[by_rank], document[by_rank], start[by_rank], places[by_rank]


def _joined(rank: Int, document: Int, start: Int, places: Int) -> Parts:
    """Join neighbours that continue one another: a kernel sees them as one."""
    same = (rank[1:] == rank[:-1]) & (document[1:] == document[:-1]) & (start[1:] == (start + places)[:-1])
    new = np.concatenate((np.arange(min(len(rank), 1)), np.flatnonzero(~same) + 1))
    summed = np.add.reduceat(places, new) if len(new) else places
    return rank[new], document[new], start[new], summed


def _chunks(cp: int) -> int:
    return 2 * cp if cp > 1 else 1


def _checked_cp(cp: int) -> int:
    if isinstance(cp, bool) or not isinstance(cp, int | np.integer) or not 1 <= cp <= 2**16:
        raise bad("cp", cp, "must be a whole number from 1 to 65,536")
    return int(cp)
