"""Context-parallel splits against masks that are really built, token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.packing.context import HOWS, Split, TileCost, choose, cu_seqlens, pad_to, split
from telekit.packing.pack import concatenate
from telekit.training.documents import distribution

DOCUMENTS = st.lists(st.integers(1, 40), max_size=8)
RANKS = st.integers(1, 6)


def order_of_ranks(cp):
    """Ranks of the chunks of one stretch that is cut head and tail."""
    return [0] if cp == 1 else [*range(cp), *reversed(range(cp))]


def places(lengths, cp, how):
    """Rank by rank, the (document, position) of each place, -1 for padding behind the last document."""
    inside = how in ("rank-major", "document-major")
    unit = len(order_of_ranks(cp)) if how != "contiguous" else cp
    whole = [[(d, p) for p in range(pad(n, unit) if inside else n)] for d, n in enumerate(lengths)]
    if not inside:
        joined = [place for document in whole for place in document]
        whole = [joined + [(-1, 0)] * (pad(len(joined), unit) - len(joined))]
    held = [[] for _ in range(cp)]
    if how == "contiguous":
        size = len(whole[0]) // cp
        return [whole[0][r * size : (r + 1) * size] for r in range(cp)]
    line = []
    for stretch in whole:
        size = len(stretch) // unit
        chunks = [stretch[i * size : (i + 1) * size] for i in range(unit)]
        for rank in range(cp):
            for owner, chunk in zip(order_of_ranks(cp), chunks, strict=True):
                if owner == rank:
                    held[rank] += chunk
                    line += chunk
    if how == "document-major":
        size = len(line) // cp
        return [line[r * size : (r + 1) * size] for r in range(cp)]
    return held


def pad(length, unit):
    return -(-length // unit) * unit


@given(lengths=DOCUMENTS, cp=RANKS, how=st.sampled_from(HOWS))
def test_equals_the_mask_of_every_token(lengths, cp, how):
    owner = [d for d, n in enumerate(lengths) for _ in range(n)]
    mask = np.tril(np.equal.outer(owner, owner)) if owner else np.zeros((0, 0))
    offset = np.cumsum([0, *lengths])
    found = split(lengths, cp, how)
    for rank, held in enumerate(places(lengths, cp, how)):
        positions = [int(offset[d]) + p if d >= 0 and p < lengths[d] else -1 for d, p in held]
        valid = [p for p in positions if p >= 0]
        assert found.positions(rank).tolist() == positions
        assert found.tokens[rank] == len(valid)
        assert found.padded_tokens[rank] == len(positions)
        assert found.pairs[rank] == mask[valid].sum()


@given(lengths=DOCUMENTS, cp=RANKS, how=st.sampled_from(HOWS))
def test_nothing_is_lost_and_all_ranks_hold_equally_much(lengths, cp, how):
    found = split(lengths, cp, how)
    assert found.tokens.sum() == sum(lengths)
    assert found.pairs.sum() == sum(n * (n + 1) // 2 for n in lengths)
    assert len(set(found.padded_tokens.tolist())) == 1
    assert found.imbalance >= 1
    if how == "rank-major":
        assert found.padded_tokens.sum() == pad_to(lengths, cp).sum()


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6), cp=RANKS)
def test_documents_of_whole_chunks_are_balanced_exactly(lengths, cp):
    assert split(np.array(lengths) * 2 * cp, cp, "rank-major").imbalance == 1


@given(length=st.integers(1, 50), cp=RANKS)
def test_one_document_is_balanced_by_either_zig_zag(length, cp):
    for how in ("per-sequence", "rank-major", "document-major"):
        assert split([length * 2 * cp], cp, how).imbalance == 1
    # the last of cp stretches alone: closed form of the plain split
    size = 2 * length
    last = split([length * 2 * cp], cp, "contiguous").pairs[-1]
    assert last == sum(range((cp - 1) * size + 1, cp * size + 1))


def test_neighbouring_chunks_are_one_stretch():
    assert split([16], 1, "rank-major").stretches.tolist() == [1]
    assert split([16], 2, "rank-major").stretches.tolist() == [2, 1]
    assert split([16], 4, "contiguous").stretches.tolist() == [1, 1, 1, 1]


def tiles(found, tile):
    """Tiles of each rank that hold a pair: queries are laid out from a stretch's first, keys from the document's."""
    count = np.zeros(found.cp, int)
    for rank, start, valid in zip(found.rank, found.start.tolist(), found.valid.tolist(), strict=True):
        pairs = ((query, key) for query in range(valid) for key in range(start + query + 1))
        count[rank] += len({(query // tile, key // tile) for query, key in pairs})
    return count


@given(
    lengths=st.lists(st.integers(1, 40), max_size=5),
    cp=st.integers(1, 3),
    how=st.sampled_from(HOWS),
    tile=st.integers(1, 9),
)
def test_tile_cost_counts_the_tiles_that_hold_a_pair(lengths, cp, how, tile):
    found = split(lengths, cp, how)
    assert (TileCost(tile=tile)(found) == tiles(found, tile) * tile**2).all()
    assert (TileCost(tile=1)(found) == found.pairs).all()
    with_tokens = TileCost(tile=1, pair_s=0.0, token_s=2.0)(found)
    assert (with_tokens == 2.0 * found.padded_tokens).all()


def test_tile_cost_by_hand():
    # queries 0..9 in tiles of 4: ends 4, 8, 10 meet 1, 2 and 3 tiles of keys
    assert TileCost(tile=4)(split([10], 1)).tolist() == [6 * 16]
    # rank 0 holds 0..2 and 9..11: 1 tile, and keys up to 12 in 3 tiles; rank 1 holds 3..8: ends 7, 9 meet 2 and 3
    assert TileCost(tile=4)(split([12], 2, "rank-major")).tolist() == [4 * 16, 5 * 16]


def test_short_documents_stay_by_sequence_and_long_ones_are_split():
    assert (
        choose([64] * 64, 4) == "per-sequence"
    )  # each document would become eight stretches of 8 in tiles of 128
    assert choose([32768, *[512] * 64], 4) == "rank-major"
    assert choose([64] * 64, 4, cost=lambda found: found.pairs) == "per-sequence"  # a tie: the first is taken
    assert choose([4, 12], 2, cost=lambda found: found.pairs) == "rank-major"
    assert choose([4, 12], 2, cost=lambda found: -found.tokens, among=("contiguous",)) == "contiguous"


def test_choosing_is_never_worse_than_either():
    cost = TileCost(tile=128)
    samples = concatenate(distribution("wlb-llm").sample(600, seed=5), 65536).rows()
    taken = []
    for lengths in samples:
        times = {how: cost(split(lengths, 4, how)).max() for how in ("per-sequence", "rank-major")}
        how = choose(lengths, 4, cost)
        assert times[how] == min(times.values())
        taken.append(how)
    assert set(taken) == {"per-sequence", "rank-major"}  # the choice is worth having: neither always wins


def test_padding_for_kernels():
    assert pad_to([7, 8, 1], 2).tolist() == [8, 8, 4]
    assert pad_to([7, 8, 1], 1).tolist() == [7, 8, 1]
    plain, padded = cu_seqlens([7, 8, 1], 2)
    assert plain.tolist() == [0, 7, 15, 16] and padded.tolist() == [0, 8, 16, 20]
    with pytest.raises(InputError, match="32-bit"):
        cu_seqlens([2**30] * 2, 2)


def test_large_samples_stay_exact():
    found = split([2**30, 2**30], 8, "rank-major")
    assert int(found.pairs.sum()) == 2**30 * (2**30 + 1)
    with pytest.raises(InputError, match="at most"):
        split([2**30] * 3, 8)


@pytest.mark.parametrize(
    ("lengths", "cp", "how", "said"),
    [
        ([0], 2, "contiguous", r"lengths\[0\] = 0"),
        ([4], 0, "contiguous", "cp = 0"),
        ([4], 2.0, "contiguous", "cp = 2.0"),
        ([4], 2, "zigzag", "must be one of contiguous"),
    ],
)
def test_bad_input(lengths, cp, how, said):
    with pytest.raises(InputError, match=said):
        split(lengths, cp, how)


def test_a_split_without_pairs_is_balanced():
    assert split([], 4, "rank-major").imbalance == 1.0
    assert isinstance(split([], 4), Split)


def test_a_choice_and_its_cost_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="among"):
        choose([4, 12], 2, among=())
    with pytest.raises(InputError, match="how"):
        choose([4, 12], 2, among=("sideways",))
    for wrong in ({"tile": 0}, {"tile": 1.5}, {"pair_s": -1.0}, {"token_s": float("nan")}, {"pair_s": "1"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            TileCost(**wrong)
