"""How long generators of zero-bubble and V-shaped orders take; figures only, nothing is asserted of time."""

import numpy as np
import pytest

from telekit.pipeline.times import Times
from telekit.pipeline.v_shaped import v_half, v_min, zb_v
from telekit.pipeline.zero_bubble import zb_1p, zb_2p, zb_h1

ONE, TWO = (zb_1p, zb_2p), (zb_v, v_half, v_min)


@pytest.mark.parametrize("make", [zb_h1, *ONE, *TWO])
def test_bench_p16_m64(benchmark, make):
    lines, part = benchmark(make, 16, 64)
    assert sum(map(len, lines)) == 3 * part.size * 64


@pytest.mark.parametrize("make", [*ONE, *TWO])
def test_bench_p16_m64_unequal(benchmark, make):
    chunks = 1 if make in ONE else 2
    stages = np.ones((chunks, 16))
    times = Times(stages, 1.1 * stages, 0.7 * stages, comm=0.05)
    lines, part = benchmark(make, 16, 64, times)
    assert sum(map(len, lines)) == 3 * part.size * 64


def test_bench_zb_2p_of_the_papers_largest(benchmark):
    times = Times([[10.402] * 32], [[10.248] * 32], [[7.698] * 32], comm=0.46)
    lines, _ = benchmark.pedantic(zb_2p, (32, 256, times), {"weight_share": 32 / 74}, rounds=3)
    assert sum(map(len, lines)) == 3 * 32 * 256
