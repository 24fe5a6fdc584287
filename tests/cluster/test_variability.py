"""The slowest of many: order statistics against tables, closed forms and draws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.cluster.variability import PARETO_SHAPE, expected_largest, slowest, slowest_of_machines
from telekit.errors import InputError


@pytest.mark.parametrize(
    ("n", "want"),
    # closed forms for 2 to 3; the rest as tabled in Harter, Biometrika 48 (1961)
    [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (4, 1.02938), (5, 1.16296), (10, 1.53875),
     (50, 2.24907), (100, 2.50759)],
)  # fmt: skip
def test_normal_order_statistics_are_those_of_the_tables(n, want):
    assert expected_largest(n) == pytest.approx(want, abs=6e-6)


def test_exponential_is_the_harmonic_number():
    assert expected_largest(1, "exponential") == 0
    assert expected_largest(1000, "exponential") == pytest.approx(
        math.log(1000) + 0.5772156649 - 1 + 0.0005, abs=1e-6
    )


@pytest.mark.parametrize("spread", ["normal", "exponential", "pareto"])
@pytest.mark.parametrize("n", [3, 40])
def test_draws_agree(spread, n):
    rng = np.random.default_rng(7)
    a = PARETO_SHAPE
    drawn = {
        "normal": lambda size: rng.standard_normal(size),
        "exponential": lambda size: rng.exponential(size=size) - 1,
        "pareto": lambda size: (rng.pareto(a, size) + 1 - a / (a - 1)) / (math.sqrt(a / (a - 2)) / (a - 1)),
    }[spread]((200_000, n))
    largest = drawn.max(axis=1)
    assert expected_largest(n, spread) == pytest.approx(largest.mean(), abs=5 * largest.std() / 200_000**0.5)


@given(st.integers(1, 10**6), st.sampled_from(["normal", "exponential", "pareto"]))
def test_one_more_device_is_never_faster(n, spread):
    assert expected_largest(n + 1, spread) >= expected_largest(n, spread) - 1e-9


def test_jitter_scales_it():
    assert slowest(1, 0.3) == 1
    assert slowest(100, 0.01) == pytest.approx(1.0250759, abs=1e-6)
    assert slowest(100, 0.0, "pareto") == 1


@pytest.mark.parametrize(("machines", "share"), [(1, 0.3), (4, 0.25), (6, 0.005)])
def test_slow_machines_by_counting_every_case(machines, share):
    want = sum(
        math.prod(share if slow >> i & 1 else 1 - share for i in range(machines)) * (1.1 if slow else 1.0)
        for slow in range(2**machines)
    )
    assert slowest_of_machines(machines, share, 0.1) == pytest.approx(want)


@pytest.mark.parametrize(
    "call",
    [
        lambda: slowest(0, 0.1),
        lambda: slowest(8, 1.5),
        lambda: slowest(8, 0.1, "cauchy"),
        lambda: slowest_of_machines(0, 0.1, 0.1),
        lambda: slowest_of_machines(8, 1.1, 0.1),
    ],
)
def test_impossible_values_are_refused(call):
    with pytest.raises(InputError):
        call()
