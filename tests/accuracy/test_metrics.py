"""Metrics of two tensors: every guard, every type, every size, against plain NumPy that follows the same rules."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from telekit.accuracy.measures.metrics import EMPTY, POSITIONS_DIFFER, SHAPES_DIFFER, compare_arrays
from telekit.accuracy.measures.pairs import BLOCK, ROW
from telekit.errors import InputError

BF16 = ml_dtypes.bfloat16


def plain(target, golden, epsilon):
    """The rules of msprobe written down without blocks, buffers or short cuts."""
    with np.errstate(all="ignore"):
        x, y = (np.asarray(a).astype(np.float64).ravel() for a in (target, golden))
        x, y = (np.where(np.isfinite(a), a, 0.0) for a in (x, y))
        shift = np.where(y == 0, epsilon, 0.0)
        relative = np.abs(((x + shift) - (y + shift)) / (y + shift))
        norms = np.linalg.norm(x), np.linalg.norm(y)
        zero = [n <= np.finfo(float).eps for n in norms]
        cosine = 1.0 if all(zero) else None if any(zero) else x @ y / (norms[0] * norms[1])
        return {
            "cosine": None if x.size == 1 else cosine,
            "euclidean_distance": np.linalg.norm(x - y),
            "max_abs_error": np.abs(x - y).max(),
            "max_relative_error": relative.max(),
            "one_thousandth_ratio": np.mean(relative < 0.001),
            "five_thousandths_ratio": np.mean(relative < 0.005),
        }


def same_as_plain(target, golden, epsilon):
    found = compare_arrays(target, golden)
    for name, value in plain(target, golden, epsilon).items():
        mine, absolute = (
            getattr(found, name),
            {"cosine": 1e-12, "max_relative_error": 2.0**-53}.get(name, 0.0),
        )
        if name in ("cosine", "euclidean_distance", "max_relative_error") and value is not None:
            value = pytest.approx(value, rel=1e-12, abs=absolute)
        assert mine == value, name
    return found


floats = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, 1e-30, 3e38, -3e38])


@given(st.data(), st.sampled_from([np.float16, np.float32, np.float64]))
def test_as_plain_numpy(data, dtype):
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=6))
    values = floats if dtype != np.float16 else st.floats(-6e4, 6e4, width=16) | st.just(0.0)
    x, y = (data.draw(hnp.arrays(dtype, shape, elements=values)) for _ in range(2))
    special = data.draw(hnp.arrays(np.int8, shape, elements=st.sampled_from([0, 0, 0, 0, 1, 2])))
    for a in (x, y):
        a[special == 1], a[special == 2] = np.nan, np.inf
    epsilon = 2.0**-52 if dtype == np.float64 else 2.0**-23
    found = same_as_plain(x, y, epsilon)
    assert found.target.nan == found.golden.nan == np.count_nonzero(special == 1)
    assert found.target.infinite == np.count_nonzero(special == 2)
    finite = x[np.isfinite(x)].astype(np.float64)
    if finite.size:
        assert (found.target.maximum, found.target.minimum) == (finite.max(), finite.min())
        assert found.target.mean == pytest.approx(finite.mean(), rel=1e-12, abs=1e-9 * np.abs(finite).max())
        assert found.target.l2norm == pytest.approx(np.linalg.norm(finite), rel=1e-12)


@pytest.mark.parametrize("size", [1, 2, ROW - 1, ROW, ROW + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
@pytest.mark.parametrize("zeros", [False, True])
def test_sizes_around_a_block(size, zeros):
    rng = np.random.default_rng(size)
    y = rng.standard_normal(size).astype(np.float32)
    x = y + np.float32(2e-3) * y * rng.standard_normal(size).astype(np.float32)
    if zeros:
        y[-1] = 0.0
    found = same_as_plain(x, y, 2.0**-23)
    assert found.max_abs_place == (int(np.abs(x.astype(float) - y).argmax()),)


def test_specials_in_the_last_block_only():
    y = np.ones(BLOCK + 3, np.float32)
    y[-1], y[-2] = np.nan, np.inf
    x = y.copy()
    x[0] = 1.5
    found = same_as_plain(x, y, 2.0**-23)
    assert (found.target.nan, found.target.infinite, found.max_abs_error) == (1, 1, 0.5)
    x[-1] = 0
    assert compare_arrays(x, y).status == POSITIONS_DIFFER


@pytest.mark.parametrize(
    ("dtype", "epsilon"),
    [
        (np.bool_, 2.0**-23),
        (np.int8, 2.0**-23),
        (np.uint16, 2.0**-23),
        (np.int32, 2.0**-52),
        (np.uint64, 2.0**-52),
        (np.float16, 2.0**-23),
        (BF16, 2.0**-23),
        (ml_dtypes.float8_e4m3fn, 2.0**-23),
        (ml_dtypes.float8_e5m2, 2.0**-23),
        (ml_dtypes.float4_e2m1fn, 2.0**-23),
        (ml_dtypes.int4, 2.0**-23),
        (">f4", 2.0**-23),
        (">f8", 2.0**-52),
    ],
)
def test_every_type(dtype, epsilon):
    x = np.array([0, 1, 2, 1, 0, 3, 4]).astype(dtype)
    y = np.array([0, 1, 1, 2, 1, 3, 4]).astype(dtype)
    same_as_plain(x, y, epsilon)


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64])
def test_zero_against_zero_is_no_error(dtype):
    """An epsilon of float64 would vanish in fp16 and leave 0/0 (msprobe 78bf1bed)."""
    found = compare_arrays(np.zeros(8, dtype), np.zeros(8, dtype))
    assert found.max_relative_error == found.max_abs_error == 0 and found.one_thousandth_ratio == 1
    assert found.cosine == 1.0 and "not defined" in found.messages[0]


def test_golden_zero_takes_epsilon():
    found = compare_arrays(np.float32([0.5, 1]), np.float32([0, 1]))
    assert found.max_relative_error == 0.5 / 2.0**-23 and found.max_relative_place == (0,)


@pytest.mark.parametrize("scale", [2.0**600, 2.0**-600])
def test_squares_outside_float64(scale):
    x, y = np.array([3.0, -4.0, 0.0]), np.array([3.0, -4.0, 1.0])
    found = compare_arrays(x * scale, y * scale)
    assert found.target.l2norm == 5 * scale and found.euclidean_distance == scale
    if scale > 1:
        assert found.cosine == pytest.approx(25 / (5 * 26**0.5), rel=1e-15)
    else:
        assert found.cosine == 1.0 and "zero" in found.messages[0]


def test_sides_of_very_different_scale():
    x, y = np.array([3.0, 4.0]) * 2.0**600, np.array([3.0, 4.0]) * 2.0**-600
    found = compare_arrays(x, y)
    assert found.euclidean_distance == 5 * 2.0**600 and found.target.l2norm == 5 * 2.0**600


def test_integers_beyond_float64():
    found = compare_arrays(np.array([2**53 + 1, -(2**63)]), np.array([2**53, 2**63 - 1]))
    assert found.max_abs_error == float(2**64 - 1) and found.max_abs_place == (1,)
    assert not compare_arrays(np.array([2**53 + 1]), np.array([2**53])).identical


class TestGuards:
    def test_shape_before_scalar(self):
        """[] against [1] is a wrong shape, not a scalar (msprobe 0007cf2d)."""
        found = compare_arrays(np.float32(1), np.float32([1]))
        assert found.status == SHAPES_DIFFER and found.max_abs_error is None
        assert set(found.columns().values()) == {"shape unmatched", "N/A"}

    def test_shape_before_nan(self):
        assert compare_arrays([np.nan, 1.0], [1.0]).status == SHAPES_DIFFER

    def test_scalar(self):
        found = compare_arrays(np.float32(1.5), np.float32(1))
        assert (found.max_abs_error, found.max_relative_error) == (0.5, 0.5)
        assert found.cosine is found.euclidean_distance is found.one_thousandth_ratio is None
        assert found.columns()["Cosine"] == "unsupported"
        assert found.relative_norm_error == 0.5

    def test_one_element(self):
        found = compare_arrays([1.5], [1.0])
        assert found.cosine is None and found.euclidean_distance == 0.5
        assert found.columns()["Cosine"] == "unsupported"

    def test_both_empty(self):
        found = compare_arrays(np.empty((0, 3)), np.empty((0, 3)))
        assert found.status == EMPTY and found.identical and found.columns()["Cosine"] == "None"

    def test_one_empty(self):
        assert compare_arrays(np.empty(0), np.ones(1)).status == SHAPES_DIFFER

    @pytest.mark.parametrize(
        ("x", "y"), [([np.nan, 1], [np.inf, 1]), ([np.nan, 1], [1, np.nan]), ([np.inf, 1], [1, 1])]
    )
    def test_positions(self, x, y):
        found = compare_arrays(x, y)
        assert found.status == POSITIONS_DIFFER and found.cosine is None and not found.identical
        assert found.columns()["MaxAbsErr"] == "N/A"

    def test_infinities_of_opposite_signs(self):
        """msprobe sees equal positions; telekit says that the values are not equal."""
        found = compare_arrays([np.inf, 1], [-np.inf, 1])
        assert found.max_abs_error == 0 and found.opposite_infinities == 1 and not found.identical

    def test_one_side_zero(self):
        found = compare_arrays([0.0, 0.0], [1.0, 2.0])
        assert found.cosine is None and found.max_abs_error == 2 and found.columns()["Cosine"] == "Nan"

    def test_nothing_finite(self):
        found = compare_arrays([np.nan, np.inf], [np.nan, np.inf])
        assert found.target.maximum is None and found.identical

    @pytest.mark.parametrize(
        ("x", "y", "dtypes"),
        [
            (np.float32, np.float32, "same"),
            (np.float32, BF16, "accepted"),
            (np.float16, BF16, "accepted"),
            (np.float64, np.float32, "different"),
            (np.int32, np.float32, "different"),
        ],
    )
    def test_pairs_of_types(self, x, y, dtypes):
        found = compare_arrays(np.ones(3, x), np.ones(3, y))
        assert found.dtypes == dtypes and found.max_abs_error == 0
        assert any("types differ" in m for m in found.messages) == (dtypes != "same")


def test_not_rounded_to_zero():
    """An error of 3e-7 is reported (msprobe 56309bbf)."""
    assert compare_arrays([1.0, 1 + 3e-7], [1.0, 1.0]).max_abs_error == pytest.approx(3e-7, rel=1e-9)


def test_cosine_is_taken_in_float64():
    """0.9702 is 0.96875 in bf16, and would fail a threshold of 0.97."""
    angle = np.arccos(0.9702)
    found = compare_arrays(np.array([np.cos(angle), np.sin(angle)]), np.array([1.0, 0.0]))
    assert found.cosine == pytest.approx(0.9702, rel=1e-14)
    assert float(BF16(0.9702)) == 0.96875


def test_scale_shows_in_the_norms():
    y = np.arange(1.0, 9.0)
    found = compare_arrays(2 * y, y)
    assert found.cosine == pytest.approx(1.0) and found.norm_ratio == 2.0


def test_one_small_golden_dominates():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(4096)
    y[7] = 1e-8
    found = compare_arrays((y + 4e-3 * rng.standard_normal(4096)).astype(BF16), y)
    assert found.max_relative_place == (7,) and found.max_relative_error > 1e4 and found.cosine > 0.9999


@pytest.mark.parametrize("order", ["F", "strided"])
def test_memory_order(order):
    y = np.arange(60, dtype=np.float32).reshape(6, 10)
    x = y.copy()
    x[4, 6] += 1
    x, y = (np.asfortranarray(a) if order == "F" else np.repeat(a, 2, axis=1)[:, ::2] for a in (x, y))
    assert compare_arrays(x, y).max_abs_place == (4, 6)


def test_inputs_stay_as_they_are():
    x, y = np.float64([np.nan, -1, 0]), np.float64([np.nan, -2, 0])
    kept = x.copy(), y.copy()
    compare_arrays(x, y)
    assert np.array_equal(x, kept[0], equal_nan=True) and np.array_equal(y, kept[1], equal_nan=True)


def test_all_that_is_refused_is_listed():
    with pytest.raises(InputError, match=r"2 problems") as caught:
        compare_arrays(np.array(["a"]), np.ma.masked_array([1.0], [True]))
    assert [p.field for p in caught.value.problems] == ["target", "golden"]
    for wrong in (np.array([None]), np.ones(2, complex), np.ones(2, "M8[s]"), [[1, 2], [3]], np.ones(1, "g")):
        with pytest.raises(InputError, match="target"):
            compare_arrays(wrong, np.ones(2))


def test_memory_stays_bounded():
    import tracemalloc

    x = np.ones(8 * BLOCK, np.float32)
    tracemalloc.start()
    compare_arrays(x, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * BLOCK * 8
