"""Speed of the overlap simulation; figures only, nothing is asserted of time."""

from fractions import Fraction

import numpy as np
import pytest

from telekit.comm.overlap import simulate
from telekit.comm.overlap_formulas import dp_buckets_s
from telekit.comm.overlap_plans import LayerTimes, dualpipe_pair

THOUSAND = 100  # layers, of ten tasks each


@pytest.mark.parametrize("rate", [0.85, Fraction(28, 33)])
def test_bench_1000_tasks(benchmark, rate):
    """Floats, and exact fractions."""
    one = 1.5 if isinstance(rate, float) else 2
    tasks = dualpipe_pair(LayerTimes(3, one, 5, 2), THOUSAND)
    assert len(benchmark(simulate, tasks, rate).tasks) == 1000


def test_bench_closed_form_of_100000_buckets(benchmark):
    compute, comm = 1 + np.random.default_rng(0).random((2, 100_000))
    assert benchmark(dp_buckets_s, compute, comm, 8, 0.01, 0.85, 0.9).shape == (100_000,)
