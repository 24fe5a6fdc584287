"""Faults that public tools had in packing documents, each with its right answer (recomputed by hand)."""

from __future__ import annotations

import numpy as np
import pytest

from telekit.packing.balance import longest_first
from telekit.packing.context import cu_seqlens, pad_to, split
from telekit.packing.pack import Packed, first_fit, next_fit
from telekit.packing.sampler import BalancedBatchSampler, even_counts


@pytest.mark.parametrize(
    ("how", "pairs"), [("contiguous", [20, 68]), ("document-major", [26, 62]), ("rank-major", [44, 44])]
)
def test_pk01_chunks_inside_documents_belong_to_their_ranks(how, pairs):
    found = split([4, 12], 2, how)
    assert found.pairs.tolist() == pairs and sum(pairs) == 88
    assert found.tokens.tolist() == [8, 8]


def test_pk02_equal_tokens_are_not_equal_work():
    one, two = Packed(1024, np.array([1024, 512, 512]), np.array([0, 1, 1]), np.arange(3), 2).rows()
    assert one.sum() == two.sum()
    assert split(one, 1).pairs.tolist() == [524_800]
    assert split(two, 1).pairs.tolist() == [262_656]
    assert round(524_800 / 262_656, 3) == 1.998


def test_pk05_no_rank_is_left_empty():
    assert even_counts(9, 4).tolist() == [3, 2, 2, 2]
    ranks = [BalancedBatchSampler(9, np.ones(9), 3, 4, rank, drop_last=False) for rank in range(4)]
    batches = [batch for sampler in ranks for batch in sampler]
    assert sorted(map(len, batches), reverse=True) == [3, 2, 2, 2]
    assert sorted(i for batch in batches for i in batch) == list(range(9))
    assert sorted(longest_first(np.ones(9), 4).counts, reverse=True) == [3, 2, 2, 2]


def test_pk06_an_odd_length_is_padded_and_loses_no_token():
    assert pad_to([7], 2).tolist() == [8]
    found = split([7], 2, "rank-major")
    assert found.tokens.tolist() == [3, 4] and found.padded_tokens.tolist() == [4, 4]
    assert found.positions(0).tolist() == [0, 1, 6, -1]
    assert found.positions(1).tolist() == [2, 3, 4, 5]
    plain, padded = cu_seqlens([7], 2)
    assert plain.tolist() == [0, 7] and padded.tolist() == [0, 8]


def test_pk10_next_fit_wastes_samples():
    assert next_fit([6, 5, 4, 5], 10).samples == 3
    assert first_fit([6, 5, 4, 5], 10, decreasing=True).samples == 2
