"""Rounding against ml_dtypes and exact fractions; every order of summation against a naive loop that rounds by hand."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.accuracy.measures.pairs import FORMATS
from telekit.accuracy.numerics.emulate import GOLDEN, ORDERS, Arithmetic, Precision, matmul, reduce_terms
from telekit.accuracy.numerics.rounding import rounded
from telekit.errors import InputError

TYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float32": np.float32,
}
NARROW = [d for d in TYPES if d != "float32"]


def by_hand(x, dtype):
    """NumPy's or ml_dtypes' own cast, of float32 values."""
    with np.errstate(all="ignore"):
        return np.asarray(x, np.float32).astype(TYPES[dtype]).astype(np.float32)


def same(a, b):
    """Equal bit for bit, but for the payload of NaN."""
    nan = np.isnan(a) & np.isnan(b)
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | nan).all())


class TestRounding:
    @pytest.mark.parametrize("dtype", NARROW)
    def test_any_bits_as_ml_dtypes(self, dtype):
        bits = np.random.default_rng(0).integers(0, 2**32, 1 << 18, dtype=np.uint32)
        x = bits.view(np.float32)
        assert same(rounded(x, dtype), by_hand(x, dtype))

    @pytest.mark.parametrize("dtype", NARROW)
    def test_every_value_every_tie_and_their_neighbours(self, dtype):
        width = 8 * np.dtype(TYPES[dtype]).itemsize
        codes = np.arange(1 << width, dtype=f"uint{width}").view(TYPES[dtype]).astype(np.float32)
        values = np.unique(codes[np.isfinite(codes)])
        with np.errstate(over="ignore"):
            ties = ((values[1:].astype(float) + values[:-1]) / 2).astype(np.float32)
            limit = np.float32(FORMATS[dtype].maximum)
            edges = np.array([limit * (1 + 2.0**-k) for k in range(1, 14)], np.float32)
        x = np.concatenate([values, ties, edges, -edges, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(
            np.float32
        )
        x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
        assert same(rounded(x, dtype), by_hand(x, dtype))

    @given(st.floats(-1e5, 1e5), st.sampled_from(["float16", "bfloat16", "float8_e5m2"]))
    def test_float64_goes_directly_to_the_nearest(self, x, dtype):
        """By way of float32 it would be rounded twice."""
        form = FORMATS[dtype]
        got = float(rounded(np.float64(x), dtype))
        if abs(x) > form.maximum:
            return
        exponent = max(int(np.frexp(x)[1]) - 1, form.min_exponent)
        step = Fraction(2) ** (exponent - form.mantissa)
        exact = Fraction(x) / step
        assert Fraction(got) == round(exact) * step  # Python rounds halves to even

    def test_double_rounding_is_avoided(self):
        x = 1 + 2.0**-8 + 2.0**-40  # float32 sees the tie 1 + 2**-8, which goes to 1
        assert rounded(x, "bfloat16") == 1 + 2.0**-7 and rounded(np.float32(x), "bfloat16") == 1

    def test_saturation_and_no_infinity(self):
        assert np.isnan(rounded(500.0, "float8_e4m3fn")) and rounded(464.0, "float8_e4m3fn") == 448
        assert rounded(-500.0, "float8_e4m3fn", saturate=True) == -448
        assert rounded(1e9, "float8_e5m2") == np.inf and rounded(7.5, "float4_e2m1fn") == 6
        assert rounded(np.inf, "float16", saturate=True) == 65504

    def test_shapes_and_types(self):
        assert rounded(np.arange(3), "bfloat16").dtype == np.float32
        assert rounded(np.ones((2, 0)), "float16").shape == (2, 0) and rounded(2.0, "float64").shape == ()
        strided = np.ones((4, 6))[::2, ::3]
        assert rounded(strided, "bfloat16").shape == (2, 2)
        with pytest.raises(InputError, match="not a known floating format"):
            rounded(1.0, "int8")


def naive(terms, order, dtype, block=128, parts=4, seed=0):
    """One sum of scalars, rounded by a cast after every addition."""

    def add(a, b):
        return by_hand(np.float32(a) + np.float32(b), dtype)

    def line(some):
        total = some[0]
        for t in some[1:]:
            total = add(total, t)
        return total

    def halves(some, base):
        if len(some) <= base:
            return line(some)
        return add(halves(some[: len(some) // 2], base), halves(some[len(some) // 2 :], base))

    t = [by_hand(x, dtype) for x in terms]
    n = len(t)
    match order:
        case "sequential":
            return line(t)
        case "random":
            return line([t[i] for i in np.random.default_rng(seed).permutation(n)])
        case "tree":
            return halves(t, 1)
        case "pairwise":
            return halves(t, block)
        case "blocked" | "split-k":
            size = block if order == "blocked" else -(-n // parts)
            return line([line(t[i : i + size]) for i in range(0, n, size)])
        case "mma":
            return line(
                [by_hand(np.float32(sum(map(float, t[i : i + block]))), dtype) for i in range(0, n, block)]
            )


LOOPS = [o for o in ORDERS if o not in ("ring", "native")]


class TestOrders:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    @pytest.mark.parametrize("order", LOOPS)
    @pytest.mark.parametrize("n", [1, 2, 7, 40])
    def test_as_a_loop_would(self, order, dtype, n):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        got = reduce_terms(x, order=order, dtype=dtype, block=6, parts=3, seed=5)
        want = [naive(x[:, i], order, dtype, 6, 3, 5) for i in range(3)]
        assert got.tolist() == [float(w) for w in want]

    @pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
    def test_ring_starts_each_chunk_at_the_next_rank(self, ranks):
        x = by_hand(np.random.default_rng(0).standard_normal((ranks, 11)), "bfloat16")
        got = reduce_terms(x, order="ring", dtype="bfloat16")
        for c, chunk in enumerate(np.array_split(np.arange(11), ranks)):
            for i in chunk:
                terms = [x[(c + 1 + s) % ranks, i] for s in range(ranks)]
                assert got[i] == naive(terms, "sequential", "bfloat16")

    def test_order_matters_when_terms_are_lost(self):
        ones = np.ones(1000)
        assert (
            reduce_terms(ones, dtype="bfloat16") == 256
        )  # 257 is no bf16 number, and a tie goes back to 256
        assert reduce_terms(ones, dtype="bfloat16", order="tree") == 1000
        assert reduce_terms(ones, dtype="float16") == 1000

    @given(st.integers(1, 60), st.sampled_from(sorted(ORDERS)), st.integers(0, 10))
    def test_exact_sums_do_not_depend_on_the_order(self, n, order, seed):
        x = np.random.default_rng(seed).integers(-4, 5, (n, 4)).astype(float)
        got = reduce_terms(x, order=order, dtype="float16", block=5, parts=3, seed=seed)
        assert got.tolist() == x.sum(axis=0).tolist()

    def test_axes_and_nothing(self):
        x = np.arange(24.0).reshape(2, 3, 4)
        for axis in (0, 1, 2, -1):
            assert (reduce_terms(x, axis=axis) == x.sum(axis=axis)).all()
        assert reduce_terms(np.empty((0, 3))).tolist() == [0, 0, 0]
        assert reduce_terms([1.0, 2.0]).shape == ()

    def test_refused(self):
        with pytest.raises(InputError, match="order") as error:
            reduce_terms(1.0, order="backwards", parts=0)
        assert {p.field for p in error.value.problems} == {"order", "parts", "axis"}


class TestMatmul:
    @pytest.mark.parametrize("accumulate", ["float32", "bfloat16", "float16"])
    @pytest.mark.parametrize("order", [o for o in LOOPS if o != "mma"])
    def test_as_the_sum_of_rounded_products(self, order, accumulate):
        rng = np.random.default_rng(3)
        a, b = (by_hand(rng.standard_normal(s), "bfloat16") for s in ((3, 20), (20, 4)))
        p = Precision(accumulate=accumulate, order=order, block=6, parts=3, seed=2)
        got = matmul(a, b, p)
        for i in range(3):
            for j in range(4):
                products = [by_hand(x * y, accumulate) for x, y in zip(a[i], b[:, j], strict=True)]
                assert got[i, j] == naive(products, order, accumulate, 6, 3, 2)

    def test_a_wide_adder_rounds_once_a_block(self):
        rng = np.random.default_rng(4)
        a, b = (by_hand(rng.standard_normal(s), "bfloat16") for s in ((2, 40), (40, 3)))
        got = matmul(a, b, Precision(order="mma"))
        blocks = [np.float32(a[0, k : k + 16].astype(float) @ b[k : k + 16, 1]) for k in (0, 16, 32)]
        assert got[0, 1] == np.float32(np.float32(blocks[0] + blocks[1]) + blocks[2])

    @pytest.mark.parametrize("order", [o for o in ORDERS if o != "ring"])
    def test_batches(self, order):
        rng = np.random.default_rng(5)
        a, b = rng.standard_normal((2, 1, 3, 9)), rng.standard_normal((4, 9, 5))
        p = Precision("float64", "float64", "float64", order)
        np.testing.assert_allclose(matmul(a, b, p), a @ b, rtol=1e-13, atol=1e-14)

    def test_no_terms_and_refused_shapes(self):
        for order in (o for o in ORDERS if o != "ring"):
            p = Precision(order=order)
            assert (matmul(np.ones((2, 0)), np.ones((0, 3)), p) == np.zeros((2, 3))).all()
            assert matmul(np.ones((0, 5)), np.ones((5, 3)), p).shape == (0, 3)
            assert matmul(np.ones((2, 5)), np.ones((5, 0)), p).shape == (2, 0)
        with pytest.raises(InputError, match=r"\(\.\.\., k, n\)"):
            matmul(np.ones((2, 3)), np.ones((2, 3)), Precision())
        with pytest.raises(InputError, match="order of ranks"):
            matmul(np.ones((2, 2)), np.ones((2, 2)), Precision(order="ring"))

    def test_inputs_are_left_alone(self):
        a, b = np.ones((2, 3), np.float32), np.full((3, 2), 2.0, np.float32)
        for order in ORDERS:
            reduce_terms(a, order=order, dtype="bfloat16")
            if order != "ring":
                matmul(a, b, Precision(order=order))
        assert (a == 1).all() and (b == 2).all()


class TestPrecision:
    def test_all_problems_at_once(self):
        with pytest.raises(InputError) as error:
            Precision("bf16", "float33", order="up", block=-1, parts=0)
        assert [p.field for p in error.value.problems] == ["dtype", "accumulate", "order", "block", "parts"]

    def test_operation_by_operation_or_fused(self):
        x = by_hand(np.random.default_rng(0).standard_normal((8, 64)), "bfloat16")
        square = [Arithmetic(Precision(compute=c)).op(np.multiply, x, x) for c in ("bfloat16", "float32")]
        assert same(square[0], by_hand(x * x, "bfloat16")) and (square[1] == x * x).all()

    def test_golden_is_numpy_in_fp64(self):
        x = np.random.default_rng(0).standard_normal((8, 64))
        ar = Arithmetic(GOLDEN)
        assert (ar.sum(x)[:, 0] == np.ascontiguousarray(x.T).sum(axis=0)).all()
        assert (ar.matmul(x, x.T) == x @ x.T).all() and ar.mean(x).shape == (8, 1)
