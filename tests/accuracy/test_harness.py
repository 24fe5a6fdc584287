"""The harness: trials that can be made again, verdicts that follow the arithmetic, callables that fail, sweeps."""

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.numerics.emulate import GOLDEN, Arithmetic, Precision
from telekit.accuracy.numerics.harness import (
    LEVELS,
    judge_outcome,
    precision_for,
    run,
    run_trial,
    trials,
    trusted_device,
)
from telekit.accuracy.numerics.operator_cases import OPERATORS, Operator
from telekit.accuracy.numerics.operator_sweeps import (
    error_sweep,
    expected_error,
    rounding_against,
    side_by_side,
)
from telekit.accuracy.numerics.rounding import rounded
from telekit.accuracy.numerics.value_ranges import draw
from telekit.accuracy.standards.judge import judge, standards
from telekit.errors import InputError


class TestTrials:
    def test_the_standards_counts(self):
        assert LEVELS == {"L0": 5_000, "L1": 10_000, "L2": 30_000}

    def test_the_same_again_whatever_the_count(self):
        few, many = list(trials("matmul", 5, seed=3)), list(trials("matmul", 50, seed=3))
        assert many[:5] == few and len({t.seed for t in many}) == 50
        assert {t.values for t in many} == {"uniform", "normal", "wide", "small", "outliers", "cancel"}
        assert list(trials("matmul", 5, seed=4)) != few

    def test_sizes_are_the_operators_or_fixed(self):
        sizes = OPERATORS["matmul"].sizes
        found = list(trials("matmul", 60, shape={"k": 77}))
        assert all(t.shape["k"] == 77 and t.shape["m"] in sizes["m"] for t in found)
        assert {t.shape["m"] for t in found} == set(sizes["m"])

    def test_refused(self):
        with pytest.raises(InputError) as error:
            trials("matmul", 0, values=("gauss",))
        assert [p.field for p in error.value.problems] == ["values", "count"]
        with pytest.raises(InputError, match="dimensions m, k, n"):
            trials("matmul", 1, shape={"depth": 2})


class TestVerdicts:
    def test_fp32_accumulation_passes_and_bf16_accumulation_fails(self):
        shape = {"m": 16, "k": 1024, "n": 16}
        good = run("matmul", count=3, shape=shape, values=("normal",))
        bad = run(
            "matmul", count=3, shape=shape, values=("normal",), precision=Precision(accumulate="bfloat16")
        )
        assert good.rows[0].result == "pass" and bad.rows[0].result == "error"
        assert bad.rows[0].part("MERE").failed == 3 and bad.rows[0].first_failed == 0

    def test_a_row_for_each_and_counts_add_up(self):
        names = ("ascend-single", "double-benchmark-l1", "torch")
        table = run(("softmax", "adam"), ("bfloat16", "float32"), names, count=7)
        assert [(r.operator, r.dtype, r.standard) for r in table] == list(
            itertools.product(("softmax", "adam"), ("bfloat16", "float32"), names)
        )
        for row in table:
            assert row.trials == 7 == row.passed + row.warned + row.failed + row.skipped
        assert {p.output for p in table.row("adam", "float32", "torch").parts} == {
            "parameter",
            "first",
            "second",
        }
        assert len(table.frame()) == 12 and {"failing", "enough"} <= set(table.frame().columns)
        assert len(table.parts_frame()) == sum(len(r.parts) for r in table)
        with pytest.raises(InputError, match="no such row"):
            table.row("adam", "float16", "torch")

    def test_as_judge_says_of_the_same_arrays(self):
        trial = next(trials("matmul", 1, seed=9))
        outcome = run_trial("matmul", trial, Precision("float16"))
        i = OPERATORS["matmul"].inputs(trial.shape, trial.values, trial.seed)
        a, b = (rounded(i[n], "float16").astype(np.float64) for n in "ab")
        np.testing.assert_allclose(outcome.golden["y"], a @ b, rtol=1e-13)
        target = outcome.target["y"].astype(np.float16)
        for name in ("ascend-single", "torch", "ulp", "single-benchmark"):
            assert (
                judge_outcome(outcome, name)["y"].parts == judge(target, a @ b, name, dtype="float16").parts
            )

    def test_the_trusted_device_sums_in_another_order(self):
        own = Precision(accumulate="bfloat16", order="sequential")
        device = trusted_device(own)
        assert (device.order, device.accumulate) == ("pairwise", "float32")
        assert trusted_device(Precision(order="pairwise")).order == "sequential"
        outcome = run_trial("matmul", next(trials("matmul", 1, shape={"k": 512})), own)
        verdict = judge_outcome(outcome, "double-benchmark-l2")["y"]
        assert verdict.result == "error" and verdict.part("RMSE").value > 1.2

    @pytest.mark.parametrize("name", [s.name for s in standards()])
    def test_every_standard_takes_every_operator(self, name):
        """Exactness is asked of fp64 against itself in the same order; a standard may have no row for a type."""
        wide = Precision("float64", "float64", "float64", "native")
        some = ("matmul", "router_topk", "cross_entropy")
        for row in run(some, ("float64", "float8_e4m3fn"), (name,), count=1, precision=wide, device=wide):
            assert row.result in (
                ("pass", "skip") if row.dtype == "float64" else ("pass", "warning", "error", "skip")
            )

    def test_no_row_for_the_type_skips_with_a_reason(self):
        row = run("softmax", ("float8_e4m3fn",), ("double-benchmark-l0",), count=2).rows[0]
        assert row.result == "skip" and row.skipped == 2 and "no row" in row.part("dtype").note

    def test_msprobe_is_not_misled_by_the_carrier(self):
        row = run("matmul", ("bfloat16",), ("msprobe",), count=3, values=("normal",)).rows[0]
        assert row.result == "pass" and not any(p.failed for p in row.parts)

    def test_msprobe_knows_that_the_inputs_were_equal(self):
        """Its rule for outputs looks at the inputs: alone, an output with the wrong sign would pass."""
        row = run(
            "matmul", standards="msprobe", count=2, values=("normal",), target=lambda a, b: -(a @ b)
        ).rows[0]
        assert row.failed == 2

    def test_integers_are_judged_bit_by_bit(self):
        """Probabilities that differ by less than a step of bf16 tie, and another expert is taken."""
        eager = Precision(compute="bfloat16")
        row = run("router_topk", standards="torch", count=4, values=("small",), precision=eager).rows[0]
        assert row.part("share different", "experts").failed > 0
        assert row.part("share outside", "weights").judged == 4

    def test_nan_and_inf_in_the_inputs_stay_where_they_are(self):
        row = run("matmul", standards="double-benchmark-l0", count=3, values=("special",)).rows[0]
        assert row.part("NaN or Inf").failed == 0

    def test_the_dual_benchmark_says_how_many_cases_it_wants(self):
        row = run("adam", standards="ascend-dual-l1", count=2).rows[0]
        assert not row.enough and row.required == 10_000 and row.part("cases").worst == 2
        assert row.part("cases").judged == 0 and "sample" in row.part("cases").note

    def test_a_level_runs_all_its_cases(self, monkeypatch):
        monkeypatch.setitem(LEVELS, "L0", 40)
        seen = []
        table = run("adam", standards="ascend-dual-l0", level="L0", progress=lambda *a: seen.append(a))
        assert table.rows[0].trials == 40 and len(seen) == 40 and seen[-1] == (40, 40)
        assert not table.rows[0].enough and replace(table.rows[0], trials=5_000).enough

    def test_the_worst_trial_is_the_worst(self):
        row = run("softmax", count=9).rows[0]
        part = row.part("MARE")
        values = []
        for trial in trials("softmax", 9):
            outcome = run_trial("softmax", trial)
            values.append(judge_outcome(outcome, "ascend-single")["y"].part("MARE").value)
        assert part.worst == max(values) and part.worst_trial == int(np.argmax(values))
        share = run("softmax", standards="thousandth", count=9).rows[0].part("share below 0.001")
        assert share.rule.startswith(">=") and share.worst < 0.6  # there the smallest is the worst

    def test_refused(self):
        with pytest.raises(InputError) as error:
            run(("matmul", "softmax"), level="L3", target=3)
        assert [p.field for p in error.value.problems] == ["level", "operators", "target"]
        with pytest.raises(InputError, match="standard"):
            run("matmul", standards="mine")
        with pytest.raises(InputError, match="dtype"):
            run("matmul", "bf16")


class TestCallable:
    def mine(self, a, b):
        assert a.dtype.name == "bfloat16"
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)

    def test_a_right_one_passes_and_a_wrong_one_fails(self):
        standards = ("ascend-single", "msprobe", "torch", "double-benchmark-l0")
        right = run("matmul", standards=standards, count=6, values=("normal",), target=self.mine)
        wrong = run(
            "matmul", standards=standards, count=6, values=("normal",), target=lambda a, b: self.mine(a, -b)
        )
        assert {r.result for r in right} == {"pass"} and {r.result for r in wrong} == {"error"}

    def test_several_outputs_as_tuple_or_by_name(self):
        def step(parameter, grad, first, second):
            given = {"parameter": parameter, "grad": grad, "first": first, "second": second}
            wide = {n: x.astype(np.float64) for n, x in given.items()}
            return OPERATORS["adam"].outputs(wide, Arithmetic(GOLDEN))

        for form in (step, lambda **i: tuple(step(**i).values())):
            row = run("adam", ("float32",), "torch", count=3, target=form).rows[0]
            assert row.result == "pass" and row.passed == 3

    def test_what_it_raises_or_forgets_is_an_answer(self):
        def raises(a, b):
            raise ZeroDivisionError("no")

        for target, text in (
            (raises, "ZeroDivisionError: no"),
            (lambda a, b: {}, "did not return y"),
            (lambda a, b: (), "did not return y"),
        ):
            row = run("matmul", standards=("torch", "msprobe"), count=2, target=target).rows[0]
            assert row.failed == 2 and row.part("target").worst == text

    @pytest.mark.parametrize("answer", [None, "text", np.ones(3), object(), [[1], [1, 2]]])
    def test_nonsense_is_an_answer_too(self, answer):
        for name in ("torch", "msprobe", "double-benchmark-l0"):
            row = run("matmul", standards=name, count=1, target=lambda a, b: answer).rows[0]
            assert row.failed == 1

    def test_it_cannot_spoil_the_golden(self):
        def spoils(logits, labels):
            logits[:] = 0
            labels[:] = 0
            return np.zeros(len(labels)), np.zeros(logits.shape)

        trial = next(trials("cross_entropy", 1, shape={"tokens": 8, "vocabulary": 20}))
        outcome = run_trial("cross_entropy", trial, target=spoils)
        clean = run_trial("cross_entropy", trial)
        assert (outcome.golden["grad"] == clean.golden["grad"]).all()

    def test_an_operator_of_ones_own(self):
        own = Operator(
            "scaled_sum",
            "twice the sum of a row",
            {"rows": (2, 5), "width": (3, 50)},
            lambda s, values, rng: {"x": draw(values, (s["rows"], s["width"]), rng)},
            lambda ar, x: {"y": ar.store(ar.op(np.multiply, ar.sum(x), 2))},
            terms="width",
        )
        assert run(own, count=4, values=("positive",)).rows[0].result == "pass"
        row = run(own, count=4, values=("positive",), target=lambda x: x.sum(-1, keepdims=True)).rows[0]
        assert row.result == "error" and row.operator == "scaled_sum"


class TestPrecisions:
    def test_formats_follow_the_dtype_where_they_were_the_dtype(self):
        eager = Precision("bfloat16", "float32", "bfloat16")
        assert precision_for(eager, "float16") == Precision("float16", "float32", "float16")
        assert precision_for(None, "float16") == Precision("float16")
        assert precision_for(eager, "float64").accumulate == "float64"


class TestSweeps:
    def test_one_thousandth_by_dtype(self):
        """A perfect fp16 result is always below 1e-3, a perfect bf16 one mostly above; fp32 hides 8389 epsilons."""
        found = {d: rounding_against(d) for d in ("float16", "bfloat16", "float32")}
        assert found["float16"].share_below == 1 and found["float16"].largest < 1e-3
        # in [1, 2) the error is uniform up to 2**-8 and below 1e-3 x: the mean of min(1, 1e-3 x 2**8) is 0.384
        assert found["bfloat16"].share_below == pytest.approx(1.5e-3 * 2**8, abs=0.01)
        assert found["float32"].epsilons_hidden == pytest.approx(8388.6, rel=1e-4)
        for d in ("float16", "bfloat16"):
            # mean of u/2 * 1/x over [1, 2)
            assert found[d].mean == pytest.approx(found[d].epsilon / 4 * np.log(2), rel=0.02)
        with pytest.raises(InputError, match="threshold"):
            rounding_against("bfloat16", 0)

    @pytest.mark.parametrize("accumulate", ["float32", "bfloat16", "float16"])
    def test_errors_grow_as_the_model_expects(self, accumulate):
        """Independent roundings against the emulation, over lengths and orders: within 15 %."""
        orders = ("sequential", "tree", "pairwise", "blocked", "split-k", "mma", "random")
        p = Precision(accumulate, accumulate, accumulate)
        points = error_sweep(
            "matmul",
            dtypes=(accumulate,),
            orders=orders,
            sizes=(64, 256, 1024),
            shape={"m": 32, "n": 32},
            precision=p,
        )
        assert len(points) == 21
        for point in points:
            assert point.relative == pytest.approx(point.expected, rel=0.15), point
        long = {o: next(x.relative for x in points if x.order == o and x.terms == 1024) for o in orders}
        assert long["tree"] < long["pairwise"] < long["sequential"]

    def test_sqrt_n(self):
        errors = [expected_error(Precision("float32"), n) for n in (1000, 4000)]
        assert errors[1] / errors[0] == pytest.approx(2, rel=0.01)

    def test_points_of_other_operators_and_refused_sizes(self):
        points = error_sweep("cross_entropy", dtypes=("bfloat16", "float16"), sizes=(50,))
        assert [(p.output, p.dtype) for p in points] == [
            ("loss", "bfloat16"),
            ("grad", "bfloat16"),
            ("loss", "float16"),
            ("grad", "float16"),
        ]
        assert all(p.expected is None and 0 < p.epsilons < 1 for p in points)
        assert error_sweep("router_topk")[0].output == "weights"
        with pytest.raises(InputError, match="no sum"):
            error_sweep("swiglu", sizes=(3,))

    def test_standards_side_by_side(self):
        """A fault of 0.9e-3: below bf16's rounding, 7550 epsilons of fp32, and below any 1 per mille rule."""
        names = ("thousandth", "torch", "double-benchmark-l2", "msprobe")
        results = {
            (dtype, fault): {n: v["y"].result for n, v in verdicts.items()}
            for dtype in ("bfloat16", "float32")
            for fault in (0.0, 9e-4)
            for verdicts in [side_by_side("softmax", names, dtype=dtype, disturb=fault)]
        }
        assert results["bfloat16", 0.0] == {
            "thousandth": "error",  # a false alarm
            "torch": "pass",
            "double-benchmark-l2": "pass",
            "msprobe": "pass",
        }
        assert results["bfloat16", 9e-4]["torch"] == "pass"
        assert set(results["float32", 0.0].values()) == {"pass"}
        assert results["float32", 9e-4]["torch"] == results["float32", 9e-4]["double-benchmark-l2"] == "error"
        assert results["float32", 9e-4]["msprobe"] == results["float32", 9e-4]["thousandth"] == "pass"


class TestWhatACallableReturns:
    """Any real format is compared by value; what a conversion would drop a part of fails under every standard."""

    NAMES = (
        "msprobe-documented",
        "msprobe-coded",
        "msprobe-old",
        "ulp",
        "torch",
        "jax",
        "ascend-single",
        "depth-bound",
    )

    @staticmethod
    def product(a, b):
        return a.astype(np.float32) @ b.astype(np.float32)

    def results(self, target, **more):
        return {
            r.standard: r.result for r in run("matmul", standards=self.NAMES, count=6, target=target, **more)
        }

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble, ml_dtypes.bfloat16])
    def test_more_digits_than_asked_are_no_error(self, dtype):
        for own in ("bfloat16", "float16"):
            found = self.results(lambda a, b: self.product(a, b).astype(dtype), dtypes=own)
            if dtype is not ml_dtypes.bfloat16 or own == "bfloat16":
                assert set(found.values()) == {"pass"}, found

    def test_a_wider_answer_that_is_wrong_still_fails(self):
        found = self.results(lambda a, b: self.product(a, b) * np.float32(1.02))
        assert found["msprobe-documented"] == found["ulp"] == "error"

    @pytest.mark.parametrize("wrap", [
        lambda y: y + 1j, lambda y: y.astype(np.complex64), lambda y: np.ma.masked_array(y, mask=True),
        lambda y: np.ma.masked_array(y, mask=False), lambda y: y.astype(object), lambda y: y.astype(str),
        lambda y: y.astype("M8[s]"), lambda y: y.view("V4"), lambda y: y.view([("x", "f4")]),
    ])  # fmt: skip
    def test_what_is_no_array_of_real_numbers_fails_everywhere(self, wrap):
        table = run(
            "matmul",
            standards=[s.name for s in standards()],
            count=2,
            target=lambda a, b: wrap(self.product(a, b)),
        )
        assert {r.result for r in table} == {"error"}
        assert all("y: returned" in str(r.part("target").worst) for r in table)
