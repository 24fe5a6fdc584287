"""Values on the grid of a narrower format."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.checks.grids import coarser_grid, share_on_grid

WIDE = np.random.default_rng(8).standard_normal(5000).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "bfloat16", "float16"])
def test_the_narrowest_format_that_holds_all_is_named(dtype):
    rounded = WIDE.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float32)
    found = coarser_grid(rounded, WIDE)
    assert found.dtype == dtype and found.target == 1.0 and found.golden < 0.02
    assert coarser_grid(rounded, rounded) is None


def test_one_in_65536_is_a_bfloat16_by_chance():
    many = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32)
    assert share_on_grid(many, "bfloat16") < 20 / 65536
    assert coarser_grid(WIDE, many) is None


def test_few_or_simple_values_say_nothing():
    assert coarser_grid(np.ones(100), WIDE) is None
    assert coarser_grid(np.array([0.5, 1, 2] * 30), WIDE) is None
    assert coarser_grid(np.zeros(4), WIDE) is None and np.isnan(share_on_grid([], "float16"))
