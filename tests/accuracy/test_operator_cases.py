"""Each operator's fp64 golden against an independent reference: scipy, naive loops, finite differences."""

import math

import numpy as np
import pytest
import scipy.special

from telekit.accuracy.numerics.emulate import GOLDEN, Arithmetic, Precision
from telekit.accuracy.numerics.operator_cases import OPERATORS, as_dtype, operator
from telekit.accuracy.numerics.value_ranges import RANGES, draw
from telekit.errors import InputError

CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def golden(name, shape=None, seed=0, values="normal", **replaced):
    """Inputs and golden outputs; inputs may be replaced."""
    inputs = operator(name).inputs(shape, values, seed) | replaced
    return inputs, operator(name).outputs(inputs, Arithmetic(GOLDEN))


class TestGoldens:
    def test_matmul(self):
        i, out = golden("matmul", {"m": 3, "k": 5, "n": 4})
        a, b = i["a"], i["b"]
        want = [[math.fsum(a[r, k] * b[k, c] for k in range(5)) for c in range(4)] for r in range(3)]
        np.testing.assert_allclose(out["y"], want, **CLOSE)

    def test_grouped_matmul(self):
        i, out = golden(
            "grouped_matmul", {"tokens": 9, "k": 5, "n": 4, "experts": 3}, counts=np.array([4, 0, 5])
        )
        for t in range(9):
            np.testing.assert_allclose(out["y"][t], i["x"][t] @ i["w"][0 if t < 4 else 2], **CLOSE)

    def test_softmax(self):
        i, out = golden("softmax", {"rows": 4, "width": 30}, values="wide")
        np.testing.assert_allclose(out["y"], scipy.special.softmax(i["x"], axis=-1), **CLOSE)

    def test_layer_norm(self):
        i, out = golden("layer_norm", {"rows": 3, "width": 6})
        for x, y in zip(i["x"], out["y"], strict=True):
            mean = math.fsum(x) / 6
            variance = math.fsum((v - mean) ** 2 for v in x) / 6
            want = [
                (v - mean) / math.sqrt(variance + 1e-5) * w + b
                for v, w, b in zip(x, i["weight"], i["bias"], strict=True)
            ]
            np.testing.assert_allclose(y, want, **CLOSE)

    def test_rms_norm(self):
        i, out = golden("rms_norm", {"rows": 3, "width": 6})
        for x, y in zip(i["x"], out["y"], strict=True):
            root = math.sqrt(math.fsum(v * v for v in x) / 6 + 1e-6)
            np.testing.assert_allclose(y, x / root * i["weight"], **CLOSE)

    def test_rotary_turns_complex_numbers(self):
        i, out = golden("rotary", {"tokens": 5, "heads": 2, "half": 3})
        x = i["x"][..., :3] + 1j * i["x"][..., 3:]
        turned = x * np.exp(1j * i["positions"][:, None, None] / 10000.0 ** (np.arange(3) / 3))
        np.testing.assert_allclose(
            out["y"], np.concatenate([turned.real, turned.imag], -1), rtol=1e-9, atol=1e-9
        )

    def test_attention(self):
        i, out = golden("attention", {"heads": 2, "tokens": 6, "head_dim": 4})
        for h in range(2):
            for t in range(6):
                s = i["k"][h, : t + 1] @ i["q"][h, t] / 2
                np.testing.assert_allclose(
                    out["y"][h, t], scipy.special.softmax(s) @ i["v"][h, : t + 1], **CLOSE
                )

    def test_swiglu(self):
        i, out = golden("swiglu", {"rows": 4, "width": 9})
        np.testing.assert_allclose(out["y"], i["gate"] * scipy.special.expit(i["gate"]) * i["up"], **CLOSE)

    def test_router(self):
        i, out = golden("router_topk", {"tokens": 6, "experts": 8, "top_k": 2})
        for logits, weights, taken in zip(i["logits"], out["weights"], out["experts"], strict=True):
            best = sorted(range(8), key=lambda e: (-logits[e], e))[:2]
            assert set(np.flatnonzero(taken)) == set(best)
            exponentials = [math.exp(logits[e]) for e in best]
            np.testing.assert_allclose(weights[best], np.array(exponentials) / sum(exponentials), **CLOSE)
            assert np.count_nonzero(weights) == 2

    def test_router_takes_the_first_of_equals(self):
        _, out = golden("router_topk", logits=np.ones((2, 8)), top_k=np.array(3))
        assert out["experts"].tolist() == [[True] * 3 + [False] * 5] * 2

    def test_cross_entropy(self):
        i, out = golden("cross_entropy", {"tokens": 5, "vocabulary": 7})
        logp = scipy.special.log_softmax(i["logits"], axis=-1)
        np.testing.assert_allclose(out["loss"], -logp[np.arange(5), i["labels"]], **CLOSE)

        def mean(logits):
            return golden("cross_entropy", logits=logits, labels=i["labels"])[1]["loss"].mean()

        np.testing.assert_allclose(out["grad"], finite_differences(mean, i["logits"]), rtol=1e-6, atol=1e-9)

    def test_embedding_gradient(self):
        i, out = golden("embedding_grad", {"tokens": 9, "vocabulary": 4, "width": 3})
        table = np.random.default_rng(1).standard_normal((4, 3))

        def product(t):
            """Sum of what each token looks up, weighted by the gradient that comes back."""
            return (t[i["words"]] * i["grad"]).sum()

        np.testing.assert_allclose(out["y"], finite_differences(product, table), rtol=1e-6, atol=1e-8)

    def test_adam(self):
        i, out = golden("adam", {"elements": 5})
        for j in range(5):
            g = i["grad"][j]
            m = 0.9 * i["first"][j] + 0.1 * g
            v = 0.95 * i["second"][j] + 0.05 * g * g
            update = (m / (1 - 0.9**10)) / (math.sqrt(v / (1 - 0.95**10)) + 1e-8)
            after = i["parameter"][j] - 1e-3 * (update + 0.1 * i["parameter"][j])
            np.testing.assert_allclose(
                [out[n][j] for n in ("parameter", "first", "second")], [after, m, v], rtol=1e-12
            )


def finite_differences(function, x, step=1e-5):
    """Central differences of a scalar function, element by element."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        moved = [x.copy() for _ in range(2)]
        moved[0][place] += step
        moved[1][place] -= step
        found[place] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return found


@pytest.mark.parametrize("name", OPERATORS)
class TestEveryOperator:
    @pytest.mark.parametrize("values", RANGES)
    def test_all_sizes_and_ranges_run(self, name, values):
        own = operator(name)
        for pick in (0, -1):
            shape = {n: c[pick] for n, c in own.sizes.items()}
            inputs = own.inputs(shape, values, 3)
            got = own.outputs(inputs, Arithmetic(Precision()))
            want = own.outputs(inputs, Arithmetic(GOLDEN))
            assert {n: x.shape for n, x in got.items()} == {n: x.shape for n, x in want.items()}

    def test_errors_are_those_of_the_dtype(self, name):
        own = operator(name)
        inputs = own.inputs(seed=1)
        for dtype in ("bfloat16", "float16"):
            ar = Arithmetic(Precision(dtype))
            given = {n: x if x.dtype.kind in "iub" else ar.store(x) for n, x in inputs.items()}
            got, want = own.outputs(given, ar), own.outputs(given, Arithmetic(GOLDEN))
            for n in want:
                error = np.linalg.norm(got[n].astype(float) - want[n]) / np.linalg.norm(want[n])
                assert error < 0.3 * 2.0 ** {"bfloat16": -7, "float16": -10}[dtype], n

    def test_outputs_are_values_of_the_dtype(self, name):
        own = operator(name)
        for x in own.outputs(own.inputs(seed=2), Arithmetic(Precision("float16"))).values():
            if x.dtype.kind == "f":
                assert (x == x.astype(np.float16)).all()

    def test_refused_shapes(self, name):
        with pytest.raises(InputError) as error:
            operator(name).inputs({"depth": 3, next(iter(operator(name).sizes)): 0})
        assert len(error.value.problems) == 2


def test_a_shape_is_bounded_before_it_is_drawn():
    with pytest.raises(InputError, match="elements"):
        operator("matmul").inputs({"m": 10**5, "k": 10**5, "n": 10**5})


class TestRanges:
    def test_what_they_promise(self):
        rng = np.random.default_rng(0)
        x = {v: draw(v, (200, 100), rng) for v in RANGES}
        assert abs(x["uniform"]).max() <= 1 and x["positive"].min() >= 0
        assert abs(x["small"]).max() < 2.0**-8 and abs(x["outliers"]).max() > 50
        assert np.log2(abs(x["wide"])).std() > 4
        assert np.isnan(x["special"]).sum() == 1 and np.isinf(x["special"]).sum() == 2

    def test_cancelling_sums_and_products(self):
        rng = np.random.default_rng(0)
        x = draw("cancel", (50, 64), rng)
        assert abs(x.sum(-1)).max() < 1 < abs(x).sum(-1).min()
        i = operator("matmul").inputs({"m": 8, "k": 64, "n": 8}, "cancel")
        assert abs(i["a"] @ i["b"]).max() < 1 < (abs(i["a"]) @ abs(i["b"])).min()

    def test_cancellation_makes_bf16_accumulation_fail(self):
        """Where large terms cancel, the error is that of the terms, not of the result."""
        own = operator("matmul")
        error = {}
        for values in ("normal", "cancel"):
            ar = Arithmetic(Precision(accumulate="bfloat16"))
            given = {n: ar.store(x) for n, x in own.inputs({"k": 256}, values).items()}
            want = own.outputs(given, Arithmetic(GOLDEN))["y"]
            error[values] = np.linalg.norm(own.outputs(given, ar)["y"] - want) / np.linalg.norm(want)
        assert error["cancel"] > 10 * error["normal"]

    def test_unknown(self):
        with pytest.raises(InputError, match="normal"):
            draw("gauss", (2,), np.random.default_rng(0))
        with pytest.raises(InputError, match="matmul"):
            operator("conv")


def test_own_types():
    x = np.array([1.5, -2.0])
    assert as_dtype(x, "bfloat16").dtype.name == "bfloat16" and as_dtype(x, "float16").dtype == np.float16
    assert as_dtype(np.arange(3), "bfloat16").dtype.kind == "i"
