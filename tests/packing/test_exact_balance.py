"""The integer program against brute force, and what it says of batches it cannot finish."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from telekit.errors import InputError
from telekit.packing.balance import balanced, lower_bound
from telekit.packing.exact import TOLERANCE, optimal


def brute(work, ranks, per_rank=None):
    """Smallest busiest rank over every assignment."""
    best = np.inf
    for rank in product(range(ranks), repeat=len(work) - 1):
        whole = (0, *rank)  # ranks are alike
        if per_rank is not None and any(whole.count(r) != per_rank for r in range(ranks)):
            continue
        best = min(best, np.bincount(whole, weights=work, minlength=ranks).max())
    return best


def instances(number, even):
    rng = np.random.default_rng(11 + even)
    for at in range(number):
        ranks = int(rng.integers(2, 4))
        size = ranks * int(rng.integers(1, 9 // ranks)) if even else int(rng.integers(ranks, 9))
        kind = at % 3
        work = (
            rng.random(size)
            if kind == 0
            else rng.integers(0, 9, size)
            if kind == 1
            else rng.lognormal(0, 2, size)
        )
        yield np.asarray(work, float), ranks, size // ranks if even else None


@pytest.mark.parametrize("even", [False, True])
def test_equals_brute_force(even):
    for work, ranks, per_rank in instances(100, even):
        found, proof = optimal(work, ranks, per_rank)
        best = brute(work, ranks, per_rank)
        assert found.largest == pytest.approx(best, rel=1e-9, abs=1e-12), (work, ranks)
        assert proof.status == "optimal"
        assert proof.bound <= best * (1 + 1e-12)
        assert proof.gap <= TOLERANCE
        assert found.loads.sum() == pytest.approx(work.sum())
        if per_rank is not None:
            assert (found.counts == per_rank).all()


@pytest.mark.parametrize("even", [False, True])
def test_the_lower_bound_is_below_brute_force_and_often_equal(even):
    met = 0
    for work, ranks, per_rank in instances(150, even):
        best, bound = brute(work, ranks, per_rank), lower_bound(work, ranks, per_rank)
        assert bound <= best * (1 + 1e-12)
        assert bound >= max(work.max(), work.sum() / ranks) * (1 - 1e-12)
        met += bound >= best * (1 - 1e-9)
    assert met > 30


def test_the_program_betters_the_fast_policy():
    work = np.array([7.0, 6.0, 5.0, 5.0, 4.0, 3.0, 3.0, 3.0, 2.0])
    found, proof = optimal(work, 3)
    assert found.largest == 13.0  # 38 over 3 ranks: 12 and two thirds, and all are whole
    assert proof.bound == pytest.approx(13.0)
    rng = np.random.default_rng(5)
    better = 0
    for _ in range(20):
        work = rng.integers(1, 1000, 12).astype(float)
        fast, (best, proof) = balanced(work, 4, 3), optimal(work, 4, 3)
        assert best.largest <= fast.largest
        assert proof.status == "optimal"
        better += best.largest < fast.largest
    assert better


def test_a_time_limit_is_kept_and_a_bound_said():
    import time

    work = np.random.default_rng(2).lognormal(0, 1.5, 60)
    start = time.monotonic()
    found, proof = optimal(work, 20, 3, time_limit_s=1.0)
    assert time.monotonic() - start < 20
    assert proof.bound <= found.largest
    assert proof.gap == pytest.approx(found.largest / proof.bound - 1)
    assert proof.status == ("optimal" if proof.gap <= TOLERANCE else "time limit")
    assert found.bound == proof.bound


def test_too_large_is_said():
    work = np.random.default_rng(0).random(512)
    found, proof = optimal(work, 128, 4)
    assert proof.status == "too large"
    assert proof.bound == lower_bound(work, 128, 4)
    assert TOLERANCE < proof.gap < 0.01
    assert found.largest == pytest.approx(proof.bound * (1 + proof.gap))
    assert optimal(np.ones(512), 128, 4)[1].status == "optimal"  # nothing is left to prove


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), "x"])
def test_refusals(limit):
    with pytest.raises(InputError, match="time_limit_s"):
        optimal([1.0, 2.0], 2, None, limit)
