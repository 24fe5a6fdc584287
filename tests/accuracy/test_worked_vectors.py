"""Every worked vector and threshold of the written facts on msprobe, its checker and the libraries, to the digit."""

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.measures.operator_errors import ACCUMULATIVE, LIMITS, MINIMUM_ERROR, operator_errors
from telekit.accuracy.measures.pairs import FORMATS
from telekit.accuracy.measures.summaries import checksum, compare_summaries
from telekit.accuracy.measures.ulp import ulp_errors
from telekit.accuracy.standards import msprobe
from telekit.accuracy.standards.depth import depth_bound, in_epsilons
from telekit.accuracy.standards.judge import LEVEL_1, LEVEL_2, double_benchmark_for
from telekit.accuracy.standards.operator_rules import (
    ASCEND_CASES,
    ASCEND_MIXED,
    ASCEND_RATIOS,
    ASCEND_SINGLE,
    FREE,
    RATIOS,
    SHARES,
    ratio,
)
from telekit.accuracy.standards.tolerances import tolerance

BF16 = ml_dtypes.bfloat16
TARGET, GOLDEN = np.array([1, 2, 3, 4.005]), np.array([1.0, 2, 3, 4])


def test_tensor_metrics():
    found = compare_arrays(TARGET, GOLDEN)
    assert round(found.cosine, 10) == 0.9999998058
    assert found.euclidean_distance == pytest.approx(0.005, abs=1e-12)
    assert found.max_abs_error == pytest.approx(0.005, abs=1e-12)
    assert found.max_relative_error == pytest.approx(0.00125, abs=1e-12)
    assert (found.one_thousandth_ratio, found.five_thousandths_ratio) == (0.75, 1.0)


def test_columns_in_msprobes_order():
    assert list(compare_arrays(TARGET, GOLDEN).columns()) == [
        *("Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr"),
        *("One Thousandth Err Ratio", "Five Thousandths Err Ratio"),
        *("NPU max", "NPU min", "NPU mean", "NPU l2norm"),
        *("Bench max", "Bench min", "Bench mean", "Bench l2norm"),
    ]


@pytest.mark.parametrize(
    ("cosine", "shown"), [(0.99995, 0.99995), (0.99995555555, 0.999956), (0.98765432, None)]
)
def test_cosine_is_rounded_only_above_0_9999(cosine, shown):
    x = np.array([cosine, np.sqrt(1 - cosine**2)])
    found = compare_arrays(x, np.array([1.0, 0.0]))
    assert found.columns()["Cosine"] == (found.cosine if shown is None else shown)


def summary(array):
    return compare_arrays(array, array).target


def test_statistics():
    found = compare_summaries(summary(TARGET), summary(GOLDEN))
    assert found.difference["Max"] == pytest.approx(0.005, abs=1e-12)
    assert found.difference["Min"] == 0 and found.relative["Min"] == 0
    assert found.difference["Mean"] == pytest.approx(0.00125, abs=1e-12)
    assert round(found.difference["Norm"], 9) == 0.003652548
    assert [round(found.relative[k] * 100, 6) for k in ("Max", "Mean", "Norm")] == [0.125, 0.05, 0.066686]
    assert list(found.columns()) == [
        *("Max diff", "Min diff", "Mean diff", "L2norm diff"),
        *("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr"),
        *(
            "NPU max",
            "NPU min",
            "NPU mean",
            "NPU l2norm",
            "Bench max",
            "Bench min",
            "Bench mean",
            "Bench l2norm",
        ),
    ]
    assert found.columns()["MinRelativeErr"] == "0%" and found.columns()["MaxRelativeErr"].startswith("0.125")


def test_difference_is_signed():
    assert compare_summaries({"Max": 1.0}, {"Max": 3.0}).difference["Max"] == -2.0


@pytest.mark.parametrize("golden", [0, 0.0, "0", "0.0", None, "", "N/A"])
def test_statistics_that_cannot_be_divided_by(golden):
    """Zero, also as a string, and None or nothing (mstt 35a6d1227, e53d9aae1; msprobe c4738039)."""
    found = compare_summaries({"Max": 1.0, "Mean": None, "Norm": None}, {"Max": golden, "Min": golden})
    assert found.relative["Max"] is None and found.columns()["MaxRelativeErr"] == "N/A"
    assert found.columns()["Mean diff"] == "N/A"


@pytest.mark.parametrize(
    ("array", "digits"),
    [
        (np.float32([1, 2, 3]), "b20e96b1"),
        (np.array([1, 2, 3], BF16), "7a3c1979"),
        (np.float32(0.0), "2144df1c"),
        (np.float32(-0.0), "ccfc5c3c"),
    ],
)
def test_checksums(array, digits):
    assert checksum(array) == digits


@pytest.mark.parametrize(
    ("target", "golden", "ulp"),
    [
        (np.float16([1 + 2.0**-10]), np.float16([1]), 1),
        (np.array([3.015625], BF16), np.array([3], BF16), 1),
        (np.float32([8.00001]), np.float32([8]), 10),
    ],
)
def test_ulp(target, golden, ulp):
    assert ulp_errors(target, golden).maximum == ulp


def test_error_balance():
    found = operator_errors(
        np.float32([1, 2.1, 3.2, 3.9, 5]), np.float32([1, 2, 3, 4, 5]), LIMITS["benchmark"]["float32"]
    )
    assert found.balance == 0.2


@pytest.mark.parametrize(
    ("level", "limits"), [(0, (2, 2, 10, 2, 2)), (1, (2, 1.5, 5, 1.5, 2)), (2, (2, 1.2, 2, 1.2, 2))]
)
def test_double_benchmark_ratios(level, limits):
    assert RATIOS[level] == limits


def test_double_benchmark_levels():
    assert {
        "embedding",
        "npu_fusion_attention",
        "npu_fusion_attention_grad",
        "scatter_",
        "scatter_add_",
    } == LEVEL_1
    for api in ("addmm", "npu_cross_entropy_loss", "GELU", "layer_norm", "matmul", "mm", "index", "one_hot"):
        assert double_benchmark_for(api) == "double-benchmark-l2"
    assert {
        "sum",
        "npu_rms_norm",
        "npu_rms_norm_backward",
        "nonzero",
        "npu_cross_entropy_loss_backward",
    } < LEVEL_2
    assert double_benchmark_for("scatter_") == "double-benchmark-l1"
    assert double_benchmark_for("softmax") == "double-benchmark-l0"


def test_least_errors_of_the_double_benchmark():
    assert MINIMUM_ERROR == {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-14}
    assert ratio(-(2.0**-7), 2.0**-9, MINIMUM_ERROR["bfloat16"]) == 2


@pytest.mark.parametrize(
    ("profile", "dtype", "row"),
    [
        ("absolute", "float16", (2**-10, 2**-10, 2**-16)),
        ("absolute", "bfloat16", (2**-10, 2**-8, 1e-16)),
        ("absolute", "float32", (2**-20, 2**-20, 2**-30)),
        ("absolute-documented", "float16", (2**-11, 2**-10, 2**-16)),
        ("absolute-documented", "bfloat16", (2**-8, 2**-8, 2**-16)),
        ("absolute-documented", "float32", (2**-14, 2**-20, 2**-30)),
        ("benchmark", "float16", (2**-10, 2**-10, 1e-16)),
        ("benchmark", "bfloat16", (2**-10, 2**-8, 1e-16)),
        ("benchmark", "float32", (2**-20, 2**-20, 2**-30)),
        ("legacy", "float16", (1e-3, 1e-3, 1e-5)),
        ("legacy", "bfloat16", (1e-3, 4e-3, 1e-5)),
        ("legacy", "float32", (1e-6, 1e-6, 1e-9)),
    ],
)
def test_limits_by_type(profile, dtype, row):
    limits = LIMITS[profile][dtype]
    assert (limits.small_value, limits.rtol, limits.small_atol) == row


def test_parameters_of_ulp():
    assert [(FORMATS[d].min_exponent, FORMATS[d].mantissa) for d in ("float16", "bfloat16", "float32")] == [
        (-14, 10),
        (-126, 7),
        (-126, 23),
    ]
    assert [ulp_errors(np.ones(1, d), np.ones(1)).threshold for d in (np.float16, BF16, np.float32)] == [
        1,
        1,
        32,
    ]


def test_bounds_of_accumulation():
    assert ACCUMULATIVE == {
        "float16": (2**-8, 2**-20),
        "bfloat16": (2**-7, 2**-7),
        "float32": (2**-11, 2**-14),
    }


def test_shares_of_the_single_benchmark():
    hundred, thousand, ten = (1e-2, 0.99), (1e-3, 0.999), (1e-4, 0.9999)
    for dtype, (hard, soft) in SHARES.items():
        expected = (hundred, thousand) if dtype in ("float16", "bfloat16") else (thousand, ten)
        assert (hard[1:], soft[1:]) == expected


def test_free_benchmark():
    assert FREE == {"float16": (1.002, 1e-6), "bfloat16": (1.004, 1e-4), "float32": (1.0002, 1e-8)}


def test_ascend_operator_standard():
    assert ASCEND_SINGLE == {
        "float16": 2**-10,
        "bfloat16": 2**-7,
        "float32": 2**-13,
        "float8_e4m3fn": 2**-3,
        "float8_e5m2": 2**-2,
    }
    assert ASCEND_RATIOS == ((10, 2, 2), (5, 1.5, 1.5), (2, 1.2, 1.2))
    assert ASCEND_CASES == (5000, 10000, 30000)
    assert ASCEND_MIXED["float16"] == (2**-9, 2**-9) and ASCEND_MIXED["bfloat16"] == (2**-6, 2**-6)
    assert set(ASCEND_MIXED["float32"]) == {2**-10, 2**-16}


@pytest.mark.parametrize(
    ("library", "dtype", "pair"),
    [
        ("torch", "float16", (1e-3, 1e-5)),
        ("torch", "bfloat16", (1.6e-2, 1e-5)),
        ("torch", "float32", (1.3e-6, 1e-5)),
        ("torch", "float64", (1e-7, 1e-7)),
        ("torch", "complex32", (1e-3, 1e-5)),
        ("torch", "complex64", (1.3e-6, 1e-5)),
        ("torch", "complex128", (1e-7, 1e-7)),
        ("torch", "int64", (0, 0)),
        ("numpy-allclose", "float32", (1e-5, 1e-8)),
        ("numpy-assert", "float32", (1e-7, 0)),
        ("tensorflow", "float32", (10 * 2**-23, 10 * 2**-23)),
        ("jax", "float8_e4m3fn", (1e-1, 1e-1)),
        ("jax", "bfloat16", (1e-2, 1e-2)),
        ("jax", "float16", (1e-3, 1e-3)),
        ("jax", "float32", (1e-6, 1e-6)),
        ("jax", "float64", (1e-15, 1e-15)),
        ("jax-gradient", "bfloat16", (1e-1, 1e-1)),
        ("jax-gradient", "float16", (1e-2, 1e-2)),
        ("jax-gradient", "float32", (2e-3, 2e-3)),
        ("jax-gradient", "float64", (1e-5, 1e-5)),
        ("transformer-engine", "bfloat16", (1.6e-2, 1e-5)),
        ("transformer-engine", "float8_e4m3fn", (0.125, 0.0675)),
        ("transformer-engine", "float8_e5m2", (0.25, 0.125)),
        ("transformer-engine", "float4_e2m1fn", (0.25, 0.125)),
        ("transformer-engine-tf32", "float32", (1e-3, 1e-5)),
    ],
)
def test_tolerances(library, dtype, pair):
    assert tolerance(library, dtype) == pair


def test_mixed_types_take_the_looser():
    assert tolerance("torch", "float32", "bfloat16") == (1.6e-2, 1e-5)
    assert tolerance("torch", "float64", "float32") == (1.3e-6, 1e-5)


@pytest.mark.parametrize(("layer", "bound"), [(0, 0.08289), (1, 0.08047), (16, 0.05165), (32, 0.03219)])
def test_depth_bound(layer, bound):
    assert round(depth_bound(layer), 5) == bound
    assert depth_bound(layer, "float8_e4m3fn") == depth_bound(layer)


def test_depth_bound_of_others():
    assert round(depth_bound(0, constant=5), 4) == 0.1036
    assert round(depth_bound(0, "float32") * 1e6, 3) == 1.265


@pytest.mark.parametrize(("error", "epsilons"), [(1.14, 146), (2.31, 296)])
def test_separation_of_broken_attention(error, epsilons):
    """The thread's 147 for 1.14 does not divide exactly (1.14 is 145.9); 2.31 is 295.7."""
    assert in_epsilons(error) == pytest.approx(epsilons, abs=0.5)
    assert error > depth_bound(0) and depth_bound(32) > 3 * 2**-7  # healthy ones are up to 3 epsilon


@pytest.mark.parametrize(
    ("score", "level", "colour"),
    [
        (0.0, "pass", "#FFFCF3"),
        (0.2999, "pass", "#FFFCF3"),
        (0.3, "warning", "#FFDC7F"),
        (0.6, "error", "#FF704D"),
        (1.0, "error", "#FF704D"),
        (None, "unmatched", "#C7C7C7"),
    ],
)
def test_colours_of_the_graph(score, level, colour):
    assert msprobe.node_colour(score) == (level, colour)


def test_exemptions():
    assert {
        "_reduce_scatter_base",
        "_all_gather_base",
        "all_to_all_single",
        "batch_isend_irecv",
    } == msprobe.INPUT_RULES_SKIPPED
    assert {
        *("empty", "empty_like", "numpy", "to", "setitem", "__setitem__", "empty_with_format", "new_empty"),
        *("new_empty_strided", "empty_strided"),
    } == msprobe.ALL_RULES_SKIPPED
