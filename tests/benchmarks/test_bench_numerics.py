"""How fast emulated arithmetic answers, for sliders; figures only, nothing is asserted of time."""

import numpy as np
import pytest

from telekit.accuracy.numerics.emulate import Precision, matmul
from telekit.accuracy.numerics.harness import run
from telekit.accuracy.numerics.operator_sweeps import error_sweep
from telekit.accuracy.numerics.parallel_numerics import linear_inputs, row_parallel
from telekit.accuracy.numerics.ring_attention import context_parallel
from telekit.accuracy.numerics.rounding import rounded


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_bench_rounding(benchmark, dtype):
    x = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)
    assert benchmark.pedantic(rounded, (x, dtype), rounds=5, warmup_rounds=1).shape == x.shape


@pytest.mark.parametrize("accumulate", ["float32", "bfloat16"])
@pytest.mark.parametrize("order", ["sequential", "blocked", "pairwise", "split-k", "mma", "native"])
def test_bench_matmul(benchmark, order, accumulate):
    """256 x 1024 x 256."""
    a, b = linear_inputs(256, 1024, 256)
    p = Precision(accumulate=accumulate, order=order)
    assert benchmark.pedantic(matmul, (a, b, p), rounds=5, warmup_rounds=1).shape == (256, 256)


def test_bench_a_row_of_the_harness(benchmark):
    assert benchmark.pedantic(run, ("matmul",), {"count": 25}, rounds=3, warmup_rounds=1).rows


def test_bench_a_sweep(benchmark):
    call = {"dtypes": ("bfloat16", "float16"), "orders": ("sequential", "tree"), "sizes": (64, 256, 1024)}
    assert benchmark.pedantic(error_sweep, ("matmul",), call, rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("order", ["native", "sequential"])
def test_bench_row_parallel_study(benchmark, order):
    x, w = linear_inputs()
    assert benchmark.pedantic(row_parallel, (x, w, 4, Precision(order=order)), rounds=2).max_abs > 0


def test_bench_ring_attention(benchmark):
    q, k, v = np.random.default_rng(0).standard_normal((3, 4, 256, 64))
    assert benchmark.pedantic(context_parallel, (q, k, v, 4), rounds=3, warmup_rounds=1).max_abs > 0
