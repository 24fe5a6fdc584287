"""Packing: hand examples, plain slow packers, the fewest samples by brute force, and every token exactly once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.packing.pack import Packed, best_fit, by_work, concatenate, first_fit, next_fit
from telekit.training.documents import distribution

LENGTHS = st.lists(st.integers(1, 40), max_size=30)
WAYS = {
    "concatenate": concatenate,
    "next-fit": next_fit,
    "first-fit": first_fit,
    "first-fit-decreasing": lambda lengths, seq_len: first_fit(lengths, seq_len, decreasing=True),
    "best-fit": best_fit,
    "by-work": lambda lengths, seq_len: by_work(lengths, seq_len, max(len(lengths) * 40, 1), np.square),
}


def rows(packed):
    return [row.tolist() for row in packed.rows()]


@pytest.mark.parametrize("way", WAYS)
@given(lengths=LENGTHS, seq_len=st.integers(1, 50))
def test_every_token_lies_in_exactly_one_place(way, lengths, seq_len):
    packed = WAYS[way](lengths, seq_len)
    back = np.bincount(packed.source, packed.lengths, minlength=len(lengths))
    assert back.tolist() == lengths and packed.left.size == 0
    assert (packed.lengths >= 1).all() and (np.diff(packed.sample) >= 0).all()
    assert (packed.tokens <= seq_len).all() and len(packed.tokens) == packed.samples
    assert packed.tokens.sum() == sum(lengths)
    assert [sum(row) for row in rows(packed)] == packed.tokens.tolist()
    assert [packed.pieces(i).tolist() for i in range(packed.samples)] == rows(packed)


@given(lengths=LENGTHS, seq_len=st.integers(1, 50))
def test_concatenation_equals_cutting_the_tokens_themselves(lengths, seq_len):
    tokens = [document for document, length in enumerate(lengths) for _ in range(length)]
    samples = [tokens[i : i + seq_len] for i in range(0, len(tokens), seq_len)]
    expected = [(i, d, s.count(d)) for i, s in enumerate(samples) for d in sorted(set(s))]
    packed = concatenate(lengths, seq_len)
    columns = (packed.sample, packed.source, packed.lengths)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected
    full = concatenate(lengths, seq_len, drop_last=True)
    assert rows(full) == [row for row in rows(packed) if sum(row) == seq_len]


@given(lengths=LENGTHS, seq_len=st.integers(1, 50))
def test_only_concatenation_cuts_what_fits_into_a_sample(lengths, seq_len):
    for name, way in WAYS.items():
        if name == "concatenate":
            continue
        packed = way(lengths, seq_len)
        for document, length in enumerate(lengths):
            pieces = packed.lengths[packed.source == document]
            whole = [seq_len] * (length // seq_len) + [length % seq_len] * (length % seq_len > 0)
            assert sorted(pieces.tolist()) == sorted(whole)


def slow(pieces, seq_len, choose):
    """Any-fit packing one document at a time, by a rule over (room, index)."""
    room = []
    for length in pieces:
        fitting = [(left, i) for i, left in enumerate(room) if left >= length]
        if fitting:
            room[choose(fitting)[1]] -= length
        else:
            room.append(seq_len - length)
    return room


@given(lengths=st.lists(st.integers(1, 50), max_size=40))
def test_fits_equal_the_plain_rules(lengths):
    def first(fitting):
        return min(fitting, key=lambda pair: pair[1])

    longest = sorted(lengths, reverse=True)
    assert (first_fit(lengths, 50).padding == slow(lengths, 50, first)).all()
    assert (first_fit(lengths, 50, decreasing=True).padding == slow(longest, 50, first)).all()
    assert (next_fit(lengths, 50).padding == slow_next(lengths, 50)).all()
    # which of two samples with equal room is taken changes nothing about the rooms
    assert sorted(best_fit(lengths, 50).padding) == sorted(slow(longest, 50, min))


def slow_next(lengths, seq_len):
    room = []
    for length in lengths:
        if not room or room[-1] < length:
            room.append(seq_len)
        room[-1] -= length
    return room


def fewest(lengths, seq_len):
    """Fewest samples, by trying every set of documents as the last one."""
    count = len(lengths)
    fits = [sum(n for i, n in enumerate(lengths) if s >> i & 1) <= seq_len for s in range(1 << count)]
    best = [0] + [count] * ((1 << count) - 1)
    for chosen in range(1, 1 << count):
        part = chosen
        while part:
            if fits[part]:
                best[chosen] = min(best[chosen], best[chosen ^ part] + 1)
            part = (part - 1) & chosen
    return best[-1]


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(1, 12), max_size=8), seq_len=st.integers(12, 20))
def test_against_the_fewest_samples(lengths, seq_len):
    least = fewest(lengths, seq_len)
    for way in (best_fit, WAYS["first-fit-decreasing"]):
        assert least <= way(lengths, seq_len).samples <= 11 / 9 * least + 6 / 9  # Dosa 2007, tight
    assert least <= first_fit(lengths, seq_len).samples <= 1.7 * least  # Dosa and Sgall 2013
    assert least <= next_fit(lengths, seq_len).samples <= max(2 * least - 1, 0)


def slow_by_work(lengths, seq_len, samples, work_of):
    load, room, left = [0.0] * samples, [seq_len] * samples, 0
    for length in sorted(lengths, reverse=True):
        fitting = [(load[i], i) for i in range(samples) if room[i] >= length]
        if fitting:
            i = min(fitting)[1]
            load[i] += work_of(length)
            room[i] -= length
        else:
            left += 1
    return load, left


@given(lengths=st.lists(st.integers(1, 30), max_size=40), samples=st.integers(1, 8))
def test_by_work_fills_the_least_loaded_sample_with_room(lengths, samples):
    def work(length):
        return 3.0 * length + length * length

    packed = by_work(lengths, 30, samples, work, carry_over=True)
    load, left = slow_by_work(lengths, 30, samples, work)
    assert sorted(packed.per_sample(work(packed.lengths))) == sorted(load)
    assert len(packed.left) == left and packed.samples == samples
    assert sorted([*packed.source.tolist(), *packed.left.tolist()]) == list(range(len(lengths)))


def test_by_work_balances_squares_where_tokens_would_mislead():
    packed = by_work([8, 4, 4, 4, 4, 4], 20, 2, np.square)
    assert sorted(map(sorted, rows(packed))) == [[4, 4, 4, 4], [4, 8]]
    assert sorted(packed.per_sample(packed.lengths**2)) == [64, 80]


def test_documents_without_room_are_named_or_carried_over_whole():
    with pytest.raises(InputError, match=r"1 documents of 6 tokens find no room.*carry_over"):
        by_work([6, 6, 6], 10, 2, np.square)
    packed = by_work([6, 6, 6], 10, 2, np.square, carry_over=True)
    assert rows(packed) == [[6], [6]] and packed.left.tolist() == [2]
    cut = by_work([25, 9], 10, 3, np.square, carry_over=True)  # 25 is 10 + 10 + 5: its 5 finds no room
    assert cut.left.tolist() == [0] and rows(cut) == [[], [], [9]]


def test_long_documents_fill_whole_samples_first():
    packed = best_fit([23, 7, 2], 10)
    assert rows(packed) == [[10], [10], [7, 3], [2]]
    assert packed.cut_documents == 1
    assert rows(concatenate([23, 7, 2], 10)) == [[10], [10], [3, 7], [2]]


def test_padding():
    packed = next_fit([6, 5, 4, 5], 10)
    assert packed.tokens.tolist() == [6, 9, 5] and packed.padding.tolist() == [4, 1, 5]
    assert packed.padding_share == pytest.approx(1 / 3)
    assert concatenate([], 10).padding_share == 0.0


def test_kernels_borders_and_positions():
    packed = concatenate([3, 4, 9], 8)
    assert rows(packed) == [[3, 4, 1], [8]]
    assert packed.cu_seqlens(0).tolist() == [0, 3, 7, 8] and packed.cu_seqlens(0).dtype == np.int32
    assert packed.position_ids(0).tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
    padded = next_fit([3, 2, 5], 8)
    assert padded.position_ids(0).tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert padded.position_ids(1).tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_actual_seq_len_as_mindformers_pads_it():
    full = concatenate([3, 4, 1], 8).actual_seq_len(0)
    assert len(full) == 128 and full[:3].tolist() == [3, 7, 8] and (full[3:] == 8).all()
    assert next_fit([3, 2], 8).actual_seq_len(0, pad_length=4).tolist() == [3, 5, 8, 8]


def test_more_documents_than_places_is_an_error():
    assert concatenate([1] * 128, 128).actual_seq_len(0).tolist() == list(range(1, 129))
    with pytest.raises(InputError, match="129 ends of documents"):
        concatenate([1] * 129, 129).actual_seq_len(0)
    with pytest.raises(InputError, match="129 would do"):  # the padding's own end is one too many
        concatenate([1] * 128, 129).actual_seq_len(0)


@given(lengths=LENGTHS, seq_len=st.integers(1, 50))
def test_borders_and_positions_agree_with_the_pieces(lengths, seq_len):
    packed = best_fit(lengths, seq_len)
    for i in range(packed.samples):
        borders = packed.cu_seqlens(i).tolist()
        assert [b - a for a, b in pairwise(borders)] == packed.pieces(i).tolist()
        ends = packed.actual_seq_len(i, pad_length=60).tolist()
        assert ends == sorted(ends) and ends[-1] == seq_len
        starts = {0, *ends} - {seq_len}
        assert set(np.flatnonzero(packed.position_ids(i) == 0).tolist()) == starts


@pytest.mark.parametrize("way", WAYS)
def test_bad_input_is_refused_by_each(way):
    with pytest.raises(InputError, match=r"lengths\[1\] = 0"):
        WAYS[way]([3, 0], 8)
    for seq_len in (0, -1, 2.5, True, 2**40):
        with pytest.raises(InputError, match="seq_len"):
            WAYS[way]([3], seq_len)
    with pytest.raises(InputError, match="pieces"):
        WAYS[way]([2**30], 1)


def test_bad_samples_are_refused():
    packed = concatenate([3], 2)
    for i in (-1, 2):
        with pytest.raises(InputError, match="one of the 2 samples"):
            packed.pieces(i)
    for samples in (0, 1.5):
        with pytest.raises(InputError, match="samples"):
            by_work([3], 8, samples, np.square)


def test_five_columns_make_a_packing():
    packed = Packed(8, np.array([3, 4]), np.array([0, 2]), np.array([1, 0]), 3)
    assert packed.tokens.tolist() == [3, 0, 4] and packed.left.size == 0


def test_a_hundred_thousand_documents_by_every_way():
    lengths = distribution("wlb-llm").sample(100_000, seed=1)
    total = int(lengths.sum())
    least = -(-total // 8192)
    for way in (concatenate, first_fit, next_fit, best_fit):
        packed = way(lengths, 8192)
        assert packed.tokens.sum() == total and packed.samples >= least
    assert concatenate(lengths, 8192).samples == least
    assert best_fit(lengths, 8192).samples <= 1.001 * least  # best fit loses next to nothing on real lengths
    assert next_fit(lengths, 8192).samples > 1.2 * least


@pytest.mark.parametrize(
    "work_of",
    [
        lambda n: np.full(n.shape, np.nan),
        lambda n: -1.0 * n,
        lambda n: np.ones(n.size + 1),
        lambda n: 1.0,
        lambda n: n * 1j,
        lambda n: ["a"] * n.size,
    ],
)
def test_work_that_is_none_is_refused(work_of):
    with pytest.raises(InputError, match="work_of"):
        by_work([4, 2], 8, 2, work_of)


def test_more_samples_than_documents_stay_empty_and_are_bounded():
    found = by_work([4, 2], 8, 10**6, lambda n: n)
    assert found.sample.tolist() == [0, 1]
    assert found.samples == 10**6
    with pytest.raises(InputError, match="samples"):
        by_work([4, 2], 8, 10**8, lambda n: n)
