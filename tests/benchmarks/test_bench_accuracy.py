"""Throughput of the tensor metrics beside NumPy's barest comparison; figures only, nothing is asserted of time."""

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.standards.judge import judge

SIZE = 1 << 25


def pair(dtype, zeros=False):
    rng = np.random.default_rng(0)
    golden = rng.standard_normal(SIZE, dtype=np.float32)
    target = golden + np.float32(1e-3) * rng.standard_normal(SIZE, dtype=np.float32)
    if zeros:
        golden[::2] = 0
    return target.astype(dtype), golden.astype(dtype)


def test_bench_bare_numpy(benchmark):
    """The yardstick: the full metrics may take 2.5 times as long."""
    a, b = pair(np.float32)
    assert benchmark.pedantic(lambda: np.abs(a - b).max(), rounds=5, warmup_rounds=1) > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_bench_metrics(benchmark, dtype):
    a, b = pair(dtype)
    found = benchmark.pedantic(compare_arrays, (a, b), rounds=5, warmup_rounds=1)
    benchmark.extra_info["bytes"] = a.nbytes + b.nbytes
    assert found.max_abs_error > 0


def test_bench_half_the_goldens_zero(benchmark):
    a, b = pair(np.float32, zeros=True)
    assert benchmark.pedantic(compare_arrays, (a, b), rounds=3).max_relative_error > 1e5


@pytest.mark.parametrize(
    "name", ["msprobe", "single-benchmark", "double-benchmark-l1", "ulp", "torch", "binary"]
)
def test_bench_standards(benchmark, name):
    a, b = (x[: SIZE // 8] for x in pair(np.float32))
    assert benchmark.pedantic(judge, (a, b, name), {"device": a}, rounds=3).parts
