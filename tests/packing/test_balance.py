"""Policies: what holds for every batch, and each against its own definition or known bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.packing.balance import (
    as_given,
    balanced,
    karmarkar_karp,
    longest_first,
    lower_bound,
    micro_batches,
)
from telekit.packing.pack import concatenate
from telekit.training.documents import distribution

WORK = st.floats(0, 1e6, allow_subnormal=False)


@st.composite
def batches(draw, most_ranks=6, most=5):
    ranks, per_rank = draw(st.integers(1, most_ranks)), draw(st.integers(1, most))
    return (
        np.array(draw(st.lists(WORK, min_size=ranks * per_rank, max_size=ranks * per_rank))),
        ranks,
        per_rank,
    )


@settings(deadline=None)
@given(batches(), st.booleans())
def test_every_policy_hands_out_every_sample_once(batch, even):
    work, ranks, per_rank = batch
    count = per_rank if even else None
    bound = lower_bound(work, ranks, count)
    for policy in (longest_first, karmarkar_karp, balanced):
        found = policy(work, ranks, count)
        assert found.rank.shape == work.shape
        assert found.loads == pytest.approx([work[found.rank == r].sum() for r in range(ranks)])
        assert found.bound == bound <= found.largest * (1 + 1e-12)
        assert [list(x) for x in found.per_rank()] == [
            list(np.flatnonzero(found.rank == r)) for r in range(ranks)
        ]
        assert found.imbalance >= 1 - 1e-12
        if even:
            assert (found.counts == per_rank).all()
    start = karmarkar_karp(work, ranks, count) if even else longest_first(work, ranks)
    assert balanced(work, ranks, count).largest <= start.largest * (1 + 1e-12)


@given(batches())
def test_longest_first_is_within_grahams_bound(batch):
    """At most 4/3 - 1/(3 ranks) of the best, so of any upper bound on it; and by hand, sample for sample."""
    work, ranks, _ = batch
    found = longest_first(work, ranks)
    loads = [0.0] * ranks
    for weight in sorted(work, reverse=True):
        loads[loads.index(min(loads))] += weight
    assert sorted(found.loads) == pytest.approx(sorted(loads))
    best = min(found.largest, karmarkar_karp(work, ranks).largest, balanced(work, ranks).largest)
    assert found.largest <= (4 / 3 - 1 / (3 * ranks)) * best * (1 + 1e-9)


def test_differencing_on_the_textbook_example():
    """8 7 6 5 4 over two: differencing leaves a difference of 2 (16 and 14), longest-first one of 4 (17 and 13)."""
    work = [8.0, 7.0, 6.0, 5.0, 4.0]
    assert sorted(karmarkar_karp(work, 2).loads) == [14, 16]
    assert sorted(longest_first(work, 2).loads) == [13, 17]


def differences(work):
    """Two-way differencing by its definition: put the difference of the two largest back until one is left."""
    left = sorted(work)
    while len(left) > 1:
        a, b = left.pop(), left.pop()
        left = sorted([*left, a - b])
    return left[0]


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=40))
def test_two_way_differencing_is_its_definition(work):
    found = karmarkar_karp(np.array(work, float), 2).loads
    assert abs(found[0] - found[1]) == differences(work)


def test_even_differencing_takes_one_of_every_tuple():
    work = np.random.default_rng(0).random(24)
    found = karmarkar_karp(work, 6, 4)
    for tuple_ in np.argsort(-work).reshape(4, 6):
        assert sorted(found.rank[tuple_]) == list(range(6))


def test_as_given_is_contiguous_and_even():
    assert as_given(np.arange(8.0), 4).rank.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert as_given(np.arange(9.0), 4).counts.tolist() == [3, 2, 2, 2]
    assert as_given([0.0, 0.0], 2).imbalance == 1.0


def test_the_bound_knows_the_largest_with_the_smallest_and_classes_of_samples():
    assert lower_bound([9.0, 1, 1, 1, 1, 1], 3, 2) == pytest.approx(10)
    assert lower_bound([9.0, 1, 1, 1, 1, 1], 3) == pytest.approx(9)
    # five of 3 on two ranks of three: one holds three of them
    assert lower_bound([3.0, 3, 3, 3, 3, 0], 2, 3) == pytest.approx(9)
    # eleven of 3 on five ranks of four: one rank holds three of them; its fourth is one of the smallest
    assert lower_bound([3.0] * 11 + [1.0] * 9, 5, 4) == pytest.approx(10)


def wlb(number, seq_len, seed, samples=512):
    packed = concatenate(distribution("wlb-llm").sample(number * samples * seq_len // 3000, seed), seq_len)
    for at in range(number):
        inside = (packed.sample >= at * samples) & (packed.sample < (at + 1) * samples)
        lengths = packed.lengths[inside].astype(float)
        yield packed.sample[inside] - at * samples, lengths


@pytest.mark.parametrize("seq_len", [8192, 32768, 131072])
@pytest.mark.parametrize("linear", [0.0, 63_000.0])
def test_real_batches_come_within_a_hundredth_of_the_bound(seq_len, linear):
    """512 samples of WLB-LLM's documents on 64 ranks of 8, by squares alone and beside what TeleChat3-36B adds."""
    gaps, others = [], []
    for sample, lengths in wlb(20, seq_len, seed=4):
        work = np.bincount(sample, weights=linear * lengths + lengths**2, minlength=512)
        gaps.append(balanced(work, 64, 8).gap)
        others.append(min(longest_first(work, 64, 8).gap, karmarkar_karp(work, 64, 8).gap))
    assert np.mean(gaps) < 0.01
    assert np.mean(gaps) < np.mean(others)


CAPPED = st.lists(st.integers(1, 20), min_size=1, max_size=14)


@settings(deadline=None)
@given(CAPPED, st.integers(20, 60), st.integers(1, 6))
def test_caps_are_kept_or_refused(tokens, cap, ranks):
    size = np.array(tokens, float)
    for policy in (longest_first, balanced):
        try:
            found = policy(size**2, min(ranks, size.size), None, size, cap)
        except InputError as error:
            assert "cap" in str(error)
            continue
        held = np.bincount(found.rank, weights=size, minlength=found.loads.size)
        assert held.max() <= cap


def test_caps_with_counts():
    tokens = np.array([6.0, 5, 4, 3, 2, 1])
    found = balanced(tokens**2, 3, 2, tokens, 7)
    assert np.bincount(found.rank, weights=tokens).tolist() == [7, 7, 7]
    assert (found.counts == 2).all()
    with pytest.raises(InputError, match="no assignment keeps it"):
        balanced(np.ones(4), 2, 2, [5.0, 5, 5, 1], 9)


BAD = [
    ({"work": []}, "1 to 10,000,000"),
    ({"work": [[1.0]]}, "1x1"),
    ({"work": "abc"}, "must be numbers"),
    ({"work": [1.0, float("nan"), -1.0, float("inf")]}, "3 problems"),
    ({"ranks": 0}, "whole number from 1"),
    ({"ranks": 2.0}, "whole number from 1"),
    ({"ranks": 9}, "every rank needs a sample"),
    ({"per_rank": 3}, "2 works"),
    ({"per_rank": 2, "ranks": 3}, "none works; give 3 samples"),
    ({"per_rank": True}, "whole number from 1"),
    ({"work": [1e308] * 4}, "its sum"),
]


@pytest.mark.parametrize(("changed", "said"), BAD)
@pytest.mark.parametrize("policy", [longest_first, karmarkar_karp, balanced, lower_bound])
def test_refusals(policy, changed, said):
    options = {"work": [1.0, 2.0, 3.0, 4.0], "ranks": 2, "per_rank": None} | changed
    with pytest.raises(InputError, match=said):
        policy(**options)


def test_many_bad_values_name_the_first_and_count_all():
    with pytest.raises(InputError, match="40 numbers") as caught:
        balanced([-1.0] * 40, 2)
    assert len(caught.value.problems) == 9


@pytest.mark.parametrize(
    ("tokens", "cap", "said"),
    [
        (None, 4, "needs the tokens"),
        ([1.0], 4, "one a sample"),
        ([1.0, 2, 3, 9], 8, "sample 3 alone has 9"),
        ([4.0, 4, 4, 4], 6, "hold less than all"),
        ([1.0, 2, 3, 4], float("nan"), "positive number"),
        ([1.0, 2, 3, 4], 0, "positive number"),
    ],
)
def test_caps_that_cannot_be_are_refused(tokens, cap, said):
    for policy in (longest_first, balanced):
        with pytest.raises(InputError, match=said):
            policy([1.0, 2.0, 3.0, 4.0], 2, None, tokens, cap)
    if tokens is not None:
        with pytest.raises(InputError, match=said):
            micro_batches([1.0, 2.0, 3.0, 4.0], tokens, 2, cap)


@pytest.mark.parametrize("work", [["1", "2"], [1j, 2], np.array([1j, 2]), [[1], [2, 3]], None, [object()]])
def test_work_that_is_no_number_is_refused(work):
    with pytest.raises(InputError, match="work"):
        balanced(work, 1)


def test_samples_without_tokens_take_one_micro_batch():
    found = micro_batches([1.0, 1.0], [0, 0], None, 5)
    assert found.loads.tolist() == [2.0]


def test_a_thousand_real_batches_come_within_a_percent_of_the_bound():
    packed = concatenate(distribution("wlb-llm").sample(1_100_000, 11), 8192, drop_last=True)
    work = packed.per_sample(packed.lengths * (30_000.0 + packed.lengths))  # half of it attention at 30,000
    gaps, others = [], []
    for batch in work[: 1000 * 512].reshape(1000, 512):
        found = balanced(batch, 64, 8)
        gaps.append(found.gap)
        others.append(longest_first(batch, 64, 8).largest / found.largest)
    assert np.mean(gaps) <= 0.01
    assert min(others) >= 1 - 1e-12
    assert np.mean(others) > 1.001
