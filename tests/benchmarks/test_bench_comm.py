"""Speed of collective times over columns: figures only, nothing is asserted of time."""

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.comm.algorithms import algorithm_time_s, by_algorithm
from telekit.comm.collectives import COLLECTIVES, collective_time_s
from telekit.comm.groups import Group

SIZES = np.logspace(3, 10, 100_000)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_bench_sizes(benchmark, op):
    cluster = load_cluster("llama3-h100-16384")
    found = benchmark(collective_time_s, op, SIZES, 64.0, 1.0, cluster)
    assert found.shape == SIZES.shape


def test_bench_layouts(benchmark):
    cluster = load_cluster("llama3-h100-16384")
    ranks = 2.0 ** (np.arange(SIZES.size) % 12)
    stride = 2.0 ** (np.arange(SIZES.size) % 3)
    assert benchmark(collective_time_s, "all-reduce", SIZES, ranks, stride, cluster).min() >= 0


def test_bench_one_algorithm_over_sizes(benchmark):
    cluster = load_cluster("llama3-h100-16384")
    assert benchmark(algorithm_time_s, "all-reduce", "tree", SIZES, Group.strided(256), cluster).min() > 0


def test_bench_every_algorithm_of_a_large_group(benchmark):
    cluster = load_cluster("llama3-h100-16384")
    assert benchmark(by_algorithm, "all-reduce", 1e9, Group.strided(16384), cluster)["ring"] > 0
