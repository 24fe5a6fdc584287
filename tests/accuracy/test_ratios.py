"""Names of constant ratios, and the mean of micro-batches' means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.accuracy.curves.ratios import constant_ratio, micro_batch_means, name_ratio
from telekit.errors import InputError


@pytest.mark.parametrize(
    ("ratio", "sizes", "quantity", "what"),
    [
        (2.0, {"tp": 8, "cp": 2}, "loss", "cp"),
        (0.5, {"tp": 8, "cp": 2}, "loss", "cp"),
        (8.0, {"tp": 8, "cp": 2}, "gradient", "tp"),
        (0.125, {"tp": 8, "dp": 16}, "gradient", "tp"),
        (16.0, {"tp": 8, "cp": 2}, "value", "tp*cp"),
        (4096.0, {"tp": 8, "tokens": 4096}, "gradient", "tokens"),
        (1 / 32, {"tp": 8, "micro_batches": 32}, "gradient", "micro_batches"),
        (math.sqrt(8), {"tp": 8}, "norm", "tp"),
        (0.75, {"dp": 4}, "gradient", "dp"),
        (1.25, {"dp": 4}, "gradient", "dp"),
        (1 / math.log(2), {"tp": 8}, "loss", "bits"),
        (3.0, {"tp": 8}, "gradient", "group"),
        (1 / 16, None, "gradient", "group"),
        (65536.0, None, "gradient", "loss_scale"),
        (3168.0, None, "gradient", "tokens"),
    ],
)
def test_a_ratio_is_named(ratio, sizes, quantity, what):
    best = name_ratio(ratio, sizes, quantity=quantity)[0]
    assert best.what == what and 0 < best.confidence <= 0.95
    assert best.expected == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("ratio", [1.0, 1.005, 0.995, 0.0, -2.0, math.inf, 1.3, 33.5])
def test_nothing_is_named_without_reason(ratio):
    assert name_ratio(ratio, {"tp": 8}) == ()
    assert name_ratio(ratio) == ()


def test_sizes_that_are_alike_share_the_confidence():
    both = name_ratio(2.0, {"tp": 2, "cp": 2, "dp": 4})
    assert {n.what for n in both} == {"tp", "cp"}
    assert both[0].confidence == both[1].confidence == pytest.approx(0.475)
    assert name_ratio(2.0, {"tp": 2})[0].confidence == 0.95


def test_a_ratio_further_off_is_less_sure_and_scatter_widens_the_search():
    sure = [name_ratio(2 * (1 + off), {"cp": 2})[0].confidence for off in (0, 0.004, 0.009)]
    assert sure == sorted(sure, reverse=True) and sure[2] < 0.6 * sure[0]
    assert name_ratio(2.06, {"cp": 2}) == ()
    assert name_ratio(2.06, {"cp": 2}, spread=0.02)[0].what == "cp"


def test_part_of_a_norm_counted_for_each_rank():
    """Golden's squares 3 + 1, the second part replicated on 4 ranks: norm sqrt(3 + 4) instead of 2."""
    (found,) = name_ratio(math.sqrt(7) / 2, {"tp": 4}, quantity="norm")
    assert found.what == "tp" and "25% of the squared norm counted 4 times" in found.text
    (found,) = name_ratio(math.sqrt(3 + 16) / 2, {"tp": 4, "dp": 128}, quantity="norm")
    assert "25% of the squared norm summed 4 times" in found.text
    assert name_ratio(math.sqrt(7) / 2, {"tp": 4}, quantity="gradient") == ()


@given(st.integers(2, 512), st.floats(-0.002, 0.002), st.booleans())
def test_a_known_size_is_always_found(size, off, inverse):
    ratio = size * (1 + off)
    found = name_ratio(1 / ratio if inverse else ratio, {"ep": size})
    assert found[0].what == "ep"


def test_bad_questions_are_refused():
    with pytest.raises(InputError) as error:
        name_ratio(math.nan, quantity="size", tolerance=2)
    assert [p.field for p in error.value.problems] == ["ratio", "quantity", "tolerance"]


@given(st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_the_fit_of_a_ratio(ratio, seed):
    golden = np.random.default_rng(seed).normal(size=(7, 5))
    found = constant_ratio(ratio * golden, golden)
    assert found.ratio == pytest.approx(ratio) and found.spread < 1e-12


def test_a_fit_says_what_it_leaves():
    golden = np.array([1.0, 1.0])
    found = constant_ratio([1.0, 3.0], golden)  # slope 4 / 2; left (-1, 1) of (1, 3)
    assert found.ratio == 2 and found.spread == pytest.approx(math.sqrt(2 / 10))
    assert not found.constant() and constant_ratio(2 * golden, golden).constant()
    assert not constant_ratio(golden, golden).constant()
    tiny = constant_ratio(np.array([2e-200, math.nan]), np.array([1e-200, 1.0]))
    assert tiny.ratio == pytest.approx(2)
    assert constant_ratio([0.0, 0.0], [1.0, 2.0]) is None
    assert constant_ratio([math.nan], [1.0]) is None


def test_means_of_micro_batches():
    found = micro_batch_means([4.0, 2.0], [10, 100])
    assert found.token_mean == pytest.approx((10 * 4 + 100 * 2) / 110) and found.mean_of_means == 3
    assert found.offset == pytest.approx(3 - 240 / 110)
    assert micro_batch_means([4.0, 2.0], [7, 7]).offset == 0
    for means, tokens in (([], []), ([1.0], [1, 2]), ([1.0], [0]), ([1.0, 2.0], [3, -1])):
        with pytest.raises(InputError):
            micro_batch_means(means, tokens)
