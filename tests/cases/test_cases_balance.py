"""Faults of public tools in balancing micro-batches, each with its right answer and the whole kind of it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.cluster.config import load_cluster
from telekit.errors import InputError
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.packing.balance import balanced, longest_first, micro_batches
from telekit.packing.exact import optimal
from telekit.packing.work import WorkModel
from telekit.training.config import TrainConfig


def fewest_by_force(tokens, cap):
    """Smallest count of bins over every assignment."""
    for bins in range(1, len(tokens) + 1):
        for rest in product(range(bins), repeat=len(tokens) - 1):
            if np.bincount((0, *rest), weights=tokens, minlength=bins).max() <= cap:
                return bins
    raise AssertionError("each fits alone")


def test_pk03_tokens_over_cap_is_too_few_micro_batches():
    """Eight of 7 under a cap of 8: 56 / 8 = 7 micro-batches hold them in sum, and never one by one."""
    tokens = np.full(8, 7.0)
    found = micro_batches(tokens, tokens, None, 8)
    assert found.loads.tolist() == [7.0] * 8
    with pytest.raises(InputError, match="no assignment keeps it with 7 bins") as caught:
        micro_batches(tokens, tokens, 7, 8)
    assert "8 bins" in caught.value.problems[0].suggestion


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(12, 20))
def test_pk03_the_fewest_micro_batches_are_proved(tokens, cap):
    size = np.array(tokens, float)
    best = fewest_by_force(size, cap)
    found = micro_batches(size, size, None, cap)
    assert found.loads.size == best
    assert found.loads.max() <= cap
    if best > 1:
        with pytest.raises(InputError):
            micro_batches(size, size, best - 1, cap)


def test_pk09_balancing_work_keeps_the_cap():
    """By squares alone {6} | {2 2 2 2 2} is best, and holds 10 tokens; within 8 it is {6 2} | {2 2 2 2}."""
    tokens = np.array([6.0, 2, 2, 2, 2, 2])
    free = balanced(tokens**2, 2)
    assert np.bincount(free.rank, weights=tokens).max() == 10
    found = micro_batches(tokens**2, tokens, 2, 8)
    assert sorted(found.loads) == [16, 40]
    assert np.bincount(found.rank, weights=tokens).tolist() == [8, 8]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 16), st.floats(0, 1e3)), min_size=1, max_size=40),
    st.integers(16, 40),
    st.none() | st.integers(1, 40),
)
def test_pk09_no_micro_batch_ever_exceeds_the_cap(samples, cap, count):
    tokens, work = (np.array(x, float) for x in zip(*samples, strict=True))
    try:
        found = micro_batches(work, tokens, count, cap)
    except InputError:
        assert count is not None  # without a count there is always an answer
        return
    assert np.bincount(found.rank, weights=tokens).max() <= cap
    assert count is None or found.loads.size == count
    assert found.loads.sum() == pytest.approx(work.sum())


def spread(values):
    return values.max() / values.mean() - 1


def test_pk13_short_batches_balance_tokens_and_long_ones_squares():
    """c * length + length^2, with c read off the config: 63,000 tokens for TeleChat3-36B."""
    cluster = load_cluster({"device": "ascend-910b", "nodes": 256})
    layout = ParallelConfig(tp=8, pp=2)
    work = WorkModel.of(Job(load_model("telechat3-36b"), cluster, TrainConfig(seq_len=8192), layout))
    rng = np.random.default_rng(0)
    for scale, levels, ignores in ((64, 1, 2), (2**22, 2, 1)):
        lengths = rng.integers(scale, 16 * scale, 12)
        found, proof = optimal(work.seconds(lengths), 3)
        assert proof.status == "optimal"
        by_power = {p: np.bincount(found.rank, weights=lengths.astype(float) ** p) for p in (1, 2)}
        assert spread(by_power[levels]) < 0.02
        assert spread(by_power[ignores]) > 2 * spread(by_power[levels])
    c = work.coefficient
    assert f"c = {c:,.0f} tokens" in work.text()
    # by hand: a token's linear seconds over those of a squared token, half a pair's
    pair = float(sum(work.mixing_s([8192]))[0]) / (8192 * 8193 / 2)
    assert c == pytest.approx(2 * work.token_s / pair, rel=1e-3)


def test_pk13_without_a_linear_part_and_with_a_large_one():
    """Lengths 6 and five of 2, two ranks: squares ask for {6}, tokens for {6 2}."""
    lengths = np.array([6.0, 2, 2, 2, 2, 2])
    for c, with_six in ((0.0, 1), (1e6, 2)):
        found, _ = optimal(c * lengths + lengths**2, 2)
        assert found.counts[found.rank[0]] == with_six
        assert longest_first(c * lengths + lengths**2, 2).counts[0] in (1, 2)
