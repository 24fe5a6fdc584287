"""The slowest of N where devices of a node share luck: against closed forms and drawn runs."""

import itertools

import numpy as np
import pytest

from telekit.cluster.jitter import Jitter, standard_below, standard_draws
from telekit.cluster.variability import expected_largest
from telekit.errors import InputError

SPREADS = ("normal", "exponential", "pareto")


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("devices", [1, 2, 8, 100])
def test_independent_devices_and_whole_nodes_are_the_known_order_statistics(spread, devices):
    alone = Jitter(0.01, spread, 0.0).slowest(devices)
    assert alone == pytest.approx(1 + 0.01 * expected_largest(devices, spread), rel=1e-12)
    together = Jitter(0.01, spread, 1.0, 4).slowest(4 * devices)
    assert together == pytest.approx(1 + 0.01 * expected_largest(devices, spread), rel=1e-12)


@pytest.mark.parametrize(
    ("spread", "share", "devices"), list(itertools.product(SPREADS, (0.2, 0.7), (8, 20, 64)))
)
def test_a_shared_part_against_drawn_runs(spread, share, devices):
    jitter = Jitter(0.01, spread, share)
    largest = jitter.draw(np.random.default_rng(5), 40_000, devices).max(1)
    error = largest.std() / np.sqrt(len(largest))
    assert jitter.slowest(devices) == pytest.approx(largest.mean(), abs=4 * error)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("share", [0.01, 0.5])
def test_nodes_of_one_device_against_drawn_runs(spread, share):
    """Two exponentials added are no exponential: only of normal parts the sum has the shape of each."""
    jitter = Jitter(0.01, spread, share, 1)
    largest = jitter.draw(np.random.default_rng(7), 100_000, 9).max(1)
    error = largest.std() / np.sqrt(len(largest))
    assert jitter.slowest(9) == pytest.approx(largest.mean(), abs=4 * error)
    if spread == "normal":
        assert jitter.slowest(9) == pytest.approx(1 + 0.01 * expected_largest(9, spread), rel=1e-12)


def test_one_node_of_normal_devices_in_closed_form():
    # the common part shifts all of a node alike: only the own parts' largest is left
    share = 0.36
    expected = np.sqrt(1 - share) * expected_largest(8, "normal")
    assert Jitter(1.0, "normal", share).slowest(8) - 1 == pytest.approx(expected, abs=2e-4)


def test_one_device_is_its_mean_and_a_smaller_node_counts_for_less():
    for spread in SPREADS:
        assert Jitter(0.1, spread, 0.5).slowest(1) == pytest.approx(1, abs=1e-4)
        sizes = [Jitter(0.1, spread, 0.5).slowest(n) for n in (8, 9, 16, 512)]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize("spread", SPREADS)
def test_more_in_common_is_less_to_wait_for(spread):
    sizes = [Jitter(0.1, spread, share).slowest(64) for share in (0, 0.2, 0.5, 0.9, 1)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("spread", SPREADS)
def test_draws_have_mean_0_variance_1_and_their_distribution(spread):
    drawn = standard_draws(np.random.default_rng(1), spread, (400_000,))
    assert drawn.mean() == pytest.approx(0, abs=0.01)
    assert drawn.std() == pytest.approx(1, abs=0.01 if spread != "pareto" else 0.2)
    for point in (-0.5, 0.0, 1.0, 3.0):
        assert standard_below(point, spread) == pytest.approx((drawn <= point).mean(), abs=0.005)


def test_draws_of_a_node_correlate_as_told():
    drawn = Jitter(0.01, "normal", 0.4, 4).draw(np.random.default_rng(2), 50_000, 8)
    correlation = np.corrcoef(drawn.T)
    assert correlation[0, 1] == pytest.approx(0.4, abs=0.02)
    assert correlation[0, 4] == pytest.approx(0, abs=0.02)
    assert drawn.std() == pytest.approx(0.01, rel=0.02)


def test_quantiles_invert_the_power_of_the_distribution():
    # of independent devices F(x)^n = p exactly
    time = Jitter(1.0, "exponential").slowest_quantile(10, 0.9) - 1
    assert (1 - np.exp(-(time + 1))) ** 10 == pytest.approx(0.9, rel=1e-9)
    jitter = Jitter(0.01, "pareto", 0.5)
    drawn = jitter.draw(np.random.default_rng(3), 40_000, 24).max(1)
    assert (drawn <= jitter.slowest_quantile(24, 0.9)).mean() == pytest.approx(0.9, abs=0.01)


def test_all_bad_values_are_named_at_once():
    with pytest.raises(InputError) as caught:
        Jitter(-1, "cauchy", 2, 0)
    assert {p.field.split(".")[1] for p in caught.value.problems} == {
        "deviation", "spread", "node_share", "devices_per_node",
    }  # fmt: skip
    for devices, share in ((0, 0.5), (4, 0.0), (4, 1.0)):
        with pytest.raises(InputError):
            Jitter(0.1).slowest_quantile(devices, share)
    with pytest.raises(InputError):
        Jitter(0.1).slowest(0)
