"""Times of operators against sums done by hand, and what must hold for all sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.cluster.config import load_cluster
from telekit.cluster.kernels import Kernels
from telekit.operators.efficiency import operator_times, product_flops_per_s, tiled_flops
from telekit.operators.fit import row_operator
from telekit.operators.shapes import Operator, Product
from telekit.training.config import TrainConfig

H100 = load_cluster({"device": "h100", "devices": 8}).device
BF16 = TrainConfig()


def device(**kernels):
    plain = Kernels(units=100, tile=128, wave_share=0.5, half_inner=256.0)
    return H100.model_copy(update={"kernels": plain.model_copy(update=kernels)})


def test_tiles_and_waves_by_hand():
    """300 x 1000 is 3 x 8 tiles; 24 of 100 units, and half of what is idle is lost: 62 tiles' time for 24."""
    found = tiled_flops(300.0, 1024.0, 1000.0, 1.0, device())
    assert found == pytest.approx(2 * 128 * 128 * 62 * (1024 + 256))
    whole = tiled_flops(128 * 100.0, 1024.0, 128.0, 1.0, device())
    assert whole == pytest.approx(2 * 12800 * 128 * (1024 + 256))  # one full wave: only the inner ramp


def test_groups_are_padded_each():
    """Ten groups of 13 rows fill ten row tiles, where 130 rows together fill two."""
    many = tiled_flops(13.0, 512.0, 1280.0, 10.0, device(wave_share=0.0))
    one = tiled_flops(130.0, 512.0, 1280.0, 1.0, device(wave_share=0.0))
    assert many == pytest.approx(5 * one)


@given(
    st.integers(1, 20000), st.integers(1, 20000), st.integers(1, 20000), st.integers(1, 64), st.floats(0, 1)
)
def test_no_product_beats_its_own_flops_and_columns_agree(rows, inner, outer, groups, share):
    which = device(wave_share=share)
    found = tiled_flops(float(rows), float(inner), float(outer), float(groups), which)
    assert found >= 2.0 * groups * rows * inner * outer * (1 - 1e-12)
    column = tiled_flops(np.array([[float(rows)]]), float(inner), float(outer), float(groups), which)
    assert float(column[0, 0]) == found


def test_a_product_is_three_products_with_casts():
    """fp8: forward and backward are bound by arithmetic here; casts and launches come on top, by hand."""
    which = device(launch_s=1e-6, half_inner=0.0, low_precision={"fp8": 0.5})
    m, k, n = 12800.0, 8192.0, 8192.0
    flops = 2 * m * k * n
    op = Operator("x", "gemm", (), flops, 2 * flops, 1.0, 3.0, 0.0, 0.0, 1e9, 2e9, 1.0, Product(m, k, n))
    found = operator_times(op, which, TrainConfig(precision="fp8"))
    rate = product_flops_per_s(which, "fp8")
    assert rate == which.peak("fp8") * which.gemm_efficiency * 0.5
    stream = which.memory_bandwidth_bytes_per_s * which.memory_efficiency
    assert found.forward_s == pytest.approx(flops / rate + 1e-6 + 1e9 / stream)
    weight = tiled_flops(k, m, n, 1.0, which) / rate + 1e-6
    assert found.weight_s == pytest.approx(weight)
    assert found.backward_s == pytest.approx(flops / rate + 1e-6 + weight + 2e9 / stream)
    wide = operator_times(
        Operator("x", "gemm", (), flops, 0.0, 1.0, 0.0, product=Product(m, k, n, 1.0, True)), which,
        TrainConfig(precision="fp8"),
    )  # fmt: skip
    assert wide.forward_s == pytest.approx(flops / product_flops_per_s(which, "bf16") + 1e-6)


def test_a_grouped_product_of_one_matrix_is_a_plain_one():
    """One expert a device: the same kernel; of two, each takes the grouped kernels' share of the peak."""
    which = device(half_inner=0.0, wave_share=0.0).model_copy(
        update={"gemm_efficiency": 0.8, "grouped_gemm_efficiency": 0.4}
    )

    def forward_s(kind, groups):
        m, k, n = 12800.0, 8192.0, 8192.0
        op = Operator("x", kind, (), 2 * m * k * n, 0.0, 1.0, 0.0, product=Product(m, k, n, groups))
        return float(operator_times(op, which, BF16).forward_s)

    launch = which.kernels.launch_s
    assert forward_s("grouped_gemm", 1.0) == forward_s("gemm", 1.0)
    assert forward_s("grouped_gemm", 2.0) - launch == pytest.approx(2 * (forward_s("gemm", 2.0) - launch))


def test_attention_is_half_as_fast_at_its_half_keys():
    row = {"kind": "attention", "tokens": 1e6, "heads": 8, "head_dim": 128}
    which = device(attention_half_keys=500.0, attention_backward=0.5)
    rate = which.peak("bf16") * which.attention_efficiency
    short, long = (row_operator(row | {"keys": keys}) for keys in (500.0, 5e6))
    half, full = (operator_times(op, which, BF16) for op in (short, long))
    assert half.forward_s == pytest.approx(2 * short.forward_flops / rate)
    assert full.forward_s == pytest.approx(long.forward_flops / rate, rel=2e-4)
    assert full.backward_s == pytest.approx(2.5 * long.forward_flops / (0.5 * rate), rel=2e-4)


def test_other_mixing_kernels_go_at_their_share():
    op = row_operator({"kind": "attention", "tokens": 8192, "keys": 8192, "heads": 8, "head_dim": 128})
    which = device(mixers={"flash-2": 0.5, "recurrence": 0.1})
    flash, second = (
        operator_times(op, which, TrainConfig(attention_kernel=name)).forward_s
        for name in ("flash", "flash-2")
    )
    assert second == pytest.approx(2 * flash)
    recurrence = Operator("recurrence", "attention", (), op.forward_flops, 0.0, 0.0, 0.0)
    assert operator_times(recurrence, which, BF16).forward_s == pytest.approx(10 * flash)
