"""Every standard on both sides of its thresholds; msprobe's rules on rows; what is refused."""

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.measures.operator_errors import (
    LIMITS,
    Limits,
    count_different,
    operator_errors,
    relative_errors,
)
from telekit.accuracy.measures.pairs import BLOCK
from telekit.accuracy.measures.summaries import checksum, compare_summaries
from telekit.accuracy.measures.ulp import ulp_errors
from telekit.accuracy.standards.comparators import checkpoint_row, judge_rollout, single_point
from telekit.accuracy.standards.judge import checker_standard, judge, standard, standards
from telekit.accuracy.standards.msprobe import (
    ALL_RULES_SKIPPED,
    INPUT,
    INPUT_RULES_SKIPPED,
    OUTPUT,
    PARAMETER,
    Row,
    accuracy_reached,
    first_diff,
    highlight,
    judge_rows,
    node_colour,
    summary_reached,
)
from telekit.accuracy.standards.tolerances import closeness, tolerance
from telekit.accuracy.standards.verdict import worst
from telekit.errors import InputError

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn


def shifted(share, by, size=10_000, dtype=np.float32):
    """Ones, and a target that is off by ``by`` in that share of its places."""
    golden = np.ones(size)
    target = golden.copy()
    target[: round(share * size)] += by
    return target.astype(dtype), golden.astype(dtype)


class TestEveryStandard:
    @pytest.mark.parametrize("name", [s.name for s in standards()])
    def test_equal_arrays_pass_and_say_why(self, name):
        x = np.linspace(-2, 2, 500, dtype=np.float32)
        verdict = judge(x, x, name, device=x)
        assert verdict.result == "pass" and verdict.parts and verdict.standard == name
        assert len(verdict.source) > 10 and all(p.rule or p.note for p in verdict.parts)

    @pytest.mark.parametrize("name", [s.name for s in standards() if s.name != "dropout"])
    def test_garbage_fails(self, name):
        rng = np.random.default_rng(0)
        golden = rng.standard_normal(500).astype(np.float32)
        wrong = -5 * golden
        wrong[3] = np.nan
        assert judge(wrong, golden, name, device=golden).result == "error"

    @pytest.mark.parametrize("name", [s.name for s in standards()])
    def test_shapes_before_all_else(self, name):
        x = np.full(3, np.nan, np.float32)
        verdict = judge(x, x[:2], name, device=x[:2])
        assert verdict.result == "error" and verdict.parts[0].name == "shape"

    @pytest.mark.parametrize("name", [s.name for s in standards()])
    def test_both_empty_is_skipped(self, name):
        x = np.empty((0, 2), np.float32)
        assert judge(x, x, name, device=x).result == "skip"

    @pytest.mark.parametrize("name", [s.name for s in standards() if s.name != "free-benchmark"])
    def test_zeros_against_zeros_pass(self, name):
        x = np.zeros(8, np.float32)
        assert judge(x, x, name, device=x).result == "pass"

    @pytest.mark.parametrize("name", [s.name for s in standards()])
    def test_scalars(self, name):
        assert judge(np.float32(2), np.float32(2), name, device=np.float32(2)).passed


class TestMsprobeOld:
    @pytest.mark.parametrize(
        ("cosine", "error", "passed"),
        [
            (0.995, 0.5, True),
            (0.995, 1.001, False),
            (0.985, 0.0009, True),
            (0.985, 0.0011, False),
            (0.899, 0.0001, False),
            (0.901, 0.0001, True),
        ],
    )
    def test_thresholds(self, cosine, error, passed):
        golden = np.array([1.0, 0.0])
        target = np.array([cosine, np.sqrt(1 - cosine**2)])
        distance = np.abs(target - golden).max()
        verdict = judge(target * error / distance, golden * error / distance, "msprobe-old")
        assert verdict.passed == passed
        assert verdict.part("MaxAbsErr").value == pytest.approx(error)

    def test_shape_is_unmatched(self):
        (part,) = accuracy_reached(compare_arrays([1.0], [1.0, 2.0]))
        assert part.note == "Unmatched" and part.result == "error"

    @pytest.mark.parametrize(("target", "result"), [(2.01, "warning"), (1.99, "pass"), (-1.0, "warning")])
    def test_statistics(self, target, result):
        (part, *rest) = summary_reached(compare_summaries({"Max": target}, {"Max": 1.0}))
        assert part.result == result and {p.result for p in rest} == {"skip"}

    @pytest.mark.parametrize(("target", "result"), [(1.51, "error"), (1.5, "pass")])
    def test_first_diff(self, target, result):
        assert first_diff(compare_summaries({"Norm": target}, {"Norm": 1.0}))[3].result == result


def tensors(input_share, output_share, cosine=None):
    """An input and an output with these 1 per mille shares."""
    rows = []
    for role, share in ((INPUT, input_share), (OUTPUT, output_share)):
        rows.append(Row(role, compare_arrays(*shifted(1 - share, 0.01))))
    return rows


class TestMsprobeRows:
    @pytest.mark.parametrize(
        ("input_share", "output_share", "documented", "coded"),
        [
            (0.95, 0.59, "error", "pass"),
            (0.95, 0.61, "pass", "pass"),
            (0.95, 0.09, "error", "error"),
            (0.95, 0.11, "error", "pass"),
            (0.89, 0.05, "pass", "pass"),
        ],
    )
    def test_document_and_code_differ(self, input_share, output_share, documented, coded):
        rows = tensors(input_share, output_share)
        for name, result in (("msprobe-documented", documented), ("msprobe-coded", coded)):
            verdicts = judge_rows(rows, name)
            assert verdicts[0].result == "pass" and verdicts[1].result == result
            assert worst(v.result for v in verdicts) == result

    def test_worst_of_inputs_and_parameters_counts(self):
        rows = [*tensors(0.95, 0.3), Row(PARAMETER, compare_arrays(*shifted(0.2, 0.01)))]
        assert worst(v.result for v in judge_rows(rows)) == "pass"

    @pytest.mark.parametrize("api", sorted(INPUT_RULES_SKIPPED))
    def test_communication_is_not_judged_by_its_inputs(self, api):
        verdict = judge_rows(tensors(0.95, 0.05), api=api)[1]
        assert verdict.result == "pass" and verdict.part("1 per mille share").result == "skip"

    @pytest.mark.parametrize("api", sorted(ALL_RULES_SKIPPED))
    def test_memory_is_not_judged(self, api):
        target, golden = np.float32([np.nan, 1]), np.float32([1, 1])
        (verdict,) = judge_rows([Row(OUTPUT, compare_arrays(target, golden))], api=api)
        assert verdict.result == "skip"

    @pytest.mark.parametrize(("drop", "result"), [(0.11, "warning"), (0.09, "pass")])
    def test_cosine_drop(self, drop, result):
        cosine = 1 - drop
        golden = np.array([1.0, 0.0])
        rows = [
            Row(INPUT, compare_arrays(golden, golden)),
            Row(OUTPUT, compare_arrays([cosine, np.sqrt(1 - cosine**2)], golden)),
        ]
        assert judge_rows(rows)[1].part("cosine drop").result == result

    @pytest.mark.parametrize(
        ("before", "after", "error", "growth"),
        [
            (0.09, 0.51, "error", "pass"),
            (0.09, 0.49, "pass", "pass"),
            (0.11, 0.51, "pass", "pass"),
            (0.01, 0.11, "pass", "warning"),
            (0.01, 0.099, "pass", "pass"),
            (0.0, 0.11, "pass", "warning"),
            (0.0, 0.09, "pass", "pass"),
        ],
    )
    def test_norms(self, before, after, error, growth):
        rows = [
            Row(role, summary=compare_summaries({"Norm": 1 + e}, {"Norm": 1.0}))
            for role, e in ((INPUT, before), (OUTPUT, after))
        ]
        verdict = judge_rows(rows)[1]
        assert (verdict.part("norm error").result, verdict.part("norm error growth").result) == (
            error,
            growth,
        )

    @pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
    def test_new_nan(self, special):
        target, golden = np.float32([special, 1]), np.float32([2, 1])
        (bad,) = judge_rows([Row(OUTPUT, compare_arrays(target, golden))])
        assert bad.part("new NaN or Inf").result == "error"
        (old,) = judge_rows([Row(OUTPUT, compare_arrays(target, target))])
        assert old.result == "pass"
        summary = compare_summaries({"Max": special}, {"Max": 1.0})
        assert judge_rows([Row(OUTPUT, summary=summary)])[0].result == "error"

    def test_different_positions_never_pass_silently(self):
        m = compare_arrays([np.nan, 1.0], [1.0, np.nan])
        assert judge(m).result == "warning"

    @pytest.mark.parametrize(
        "row",
        [
            Row(OUTPUT, requires_grad=(True, False)),
            Row(PARAMETER, scalars=(1, 2)),
            Row(OUTPUT, compare_arrays(np.ones(2), np.ones(2, np.float32))),
            Row(OUTPUT, compare_arrays(np.ones(2), np.ones(3))),
            Row(INPUT, checksums=("b20e96b1", "7a3c1979")),
        ],
    )
    def test_what_must_be_equal(self, row):
        assert judge_rows([row])[0].result == "error"

    def test_accepted_types_are_only_a_message(self):
        (verdict,) = judge_rows([Row(OUTPUT, compare_arrays(np.ones(2, BF16), np.ones(2, np.float32)))])
        assert verdict.result == "pass" and "types differ" in verdict.messages[0]

    def test_three_against_two_checksums(self):
        """2 compared and 1 warning (msprobe 4015ce87)."""
        sums = [("aa", "aa"), ("bb", "bb"), ("cc", "")]
        results = [v.result for v in judge_rows([Row(PARAMETER, checksums=s) for s in sums])]
        assert results == ["pass", "pass", "warning"]

    def test_all_wrong_arguments_are_named(self):
        with pytest.raises(InputError, match="2 problems"):
            judge_rows([Row("outptu")], "msprobe")

    @pytest.mark.parametrize(
        ("output", "inputs", "colour"),
        [
            (([np.nan], [1.0]), [], "red"),
            (([2e10], [1e10 - 1e9]), [], "red"),
            (([1.6], [1.0]), [], "red"),
            (([1.2, 1000], [1.0, 1000]), [([1.002, 1000], [1.0, 1000])], "yellow"),
            (([1.0, 1], [1.0, 1]), [([1.0, 1], [1.0, 1])], ""),
            (([1.2, 1], [1.0, 1]), [([1.0, 1], [1.0, 1])], "red"),
            (([120.0, 100], [100.0, 100]), [([101.5, 1000], [100.0, 1000])], "yellow"),
        ],
    )
    def test_highlight(self, output, inputs, colour):
        assert highlight(compare_arrays(*output), [compare_arrays(*i) for i in inputs]) == colour

    def test_score_outside(self):
        with pytest.raises(InputError, match="score"):
            node_colour(1.5)


class TestSingleBenchmark:
    @pytest.mark.parametrize(
        ("dtype", "share", "by", "result"),
        [
            (np.float16, 0.011, 0.02, "error"),
            (np.float16, 0.009, 0.02, "warning"),
            (np.float16, 0.0009, 0.02, "pass"),
            (np.float16, 0.002, 0.005, "warning"),
            (np.float32, 0.0011, 0.002, "error"),
            (np.float32, 0.0009, 0.002, "warning"),
            (np.float32, 0.00005, 0.002, "pass"),
            (np.float64, 0.0011, 0.002, "error"),
            (BF16, 0.011, 0.03, "error"),
            (BF16, 0.009, 0.03, "warning"),
        ],
    )
    def test_by_type(self, dtype, share, by, result):
        verdict = judge(*shifted(share, by, 20_000, dtype), "single-benchmark")
        assert verdict.result == result and verdict.part("MaxAbsErr").result == "skip"

    @pytest.mark.parametrize(("by", "decided"), [(0.0009, "pass"), (0.0011, "skip")])
    def test_largest_error_decides_first(self, by, decided):
        assert judge(*shifted(1, by), "single-benchmark").part("MaxAbsErr").result == decided

    def test_cosine_decides_before(self):
        x = np.float32([1e-4, 0])
        assert judge(x, x[::-1].copy(), "single-benchmark").result == "error"

    @pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
    def test_integers_exactly(self, dtype):
        x = np.array([0, 1, 1], dtype)
        assert judge(x, x, "single-benchmark").passed
        assert not judge(x, x[::-1].copy(), "single-benchmark").passed

    def test_bf16_takes_its_own_epsilon(self):
        """|err| / (|golden| + 2**-8): at golden 0 an error of 2**-8 is 1."""
        found = relative_errors(np.array([2.0**-8]), np.array([0.0]), 2.0**-8)
        assert found.maximum == 1.0


class TestDoubleBenchmark:
    @pytest.mark.parametrize(("level", "limit"), [(0, 10), (1, 5), (2, 2)])
    def test_largest_relative_error(self, level, limit):
        golden = np.ones(1000)
        device = golden.copy()
        device[0] += 0.01
        for factor, passed in ((0.98, True), (1.02, False)):
            target = golden.copy()
            target[0] += 0.01 * limit * factor
            verdict = judge(target, golden, f"double-benchmark-l{level}", device=device, dtype="bfloat16")
            assert (verdict.part("largest relative error").result == "pass") == passed

    @pytest.mark.parametrize(("level", "limit"), [(0, 2), (1, 1.5), (2, 1.2)])
    def test_mean_and_rmse(self, level, limit):
        golden = np.ones(1000)
        for factor, result in ((0.98, "pass"), (1.02, "error")):
            verdict = judge(
                golden + 0.02 * limit * factor,
                golden,
                f"double-benchmark-l{level}",
                device=golden - 0.02,
                dtype="bfloat16",
            )
            for name in ("RMSE", "mean relative error"):
                assert verdict.part(name).result == result
            assert verdict.part("balance").result == "skip"

    def test_small_values(self):
        golden = np.zeros(100)
        target, device = golden.copy(), golden.copy()
        target[:5], device[:2] = 1e-6, 1e-6
        verdict = judge(target, golden, "double-benchmark-l0", device=device, dtype="float16")
        assert verdict.part("small values").value == 2.5 and verdict.result == "error"

    def test_a_good_device_does_not_make_noise_an_error(self):
        """Below the type's least error the ratio's denominator is that."""
        golden = np.ones(100)
        verdict = judge(
            golden * (1 + 2.0**-13), golden, "double-benchmark-l2", device=golden, dtype="float16"
        )
        assert verdict.part("mean relative error").value == pytest.approx(0.25, rel=2e-3) and verdict.passed

    def test_device_is_needed(self):
        with pytest.raises(InputError, match="device"):
            judge([1.0], [1.0], "double-benchmark")


class TestOperatorErrors:
    def test_against_plain_numpy(self):
        rng = np.random.default_rng(1)
        golden = rng.standard_normal(BLOCK + 11) * rng.choice([1e-4, 1.0], BLOCK + 11)
        target = (golden + 1e-3 * rng.standard_normal(golden.size)).astype(np.float16)
        limits = LIMITS["absolute"]["float16"]
        found = operator_errors(target, golden, limits)
        x = target.astype(np.float64)
        error, small = np.abs(x - golden), np.abs(golden) <= 2**-10
        relative = (error / (np.abs(golden) + 2**-10))[~small]
        n, cut = golden.size, np.count_nonzero(small)
        correction = n / (n - cut + 0.0001) + 0.0001
        assert (found.small, found.normal) == (cut, n - cut)
        assert found.relative_share == np.mean(relative > 2**-10)
        assert found.absolute_share == np.mean(error[small] > 2**-16)
        assert found.max_relative == relative.max()
        assert found.mean_relative == pytest.approx(relative.mean(), rel=1e-12)
        assert found.rmse == pytest.approx(
            np.sqrt(np.mean(np.where(small, 0, error) ** 2) * correction), rel=1e-12
        )
        rounded = golden.astype(np.float16).astype(np.float64)
        assert found.balance == abs(np.sum(x > rounded) - np.sum(x < rounded)) / n

    @pytest.mark.parametrize(
        ("target", "golden", "share"),
        [
            (np.inf, np.inf, 0),
            (np.nan, np.nan, 0),
            (np.inf, -np.inf, 1),
            (np.nan, np.inf, 1),
            (65504, np.inf, 0),
            (np.inf, 65504, 0),
            (1, np.inf, 1),
            (np.nan, 1, 1),
            (np.inf, 1e6, 0),
        ],
    )
    def test_specials(self, target, golden, share):
        found = operator_errors(np.float16([target]), np.float64([golden]), LIMITS["absolute"]["float16"])
        assert found.special_share == share and found.special == 1

    def test_large_integers(self):
        assert count_different(np.array([2**53 + 1]), np.array([2**53])) == 1
        assert count_different([np.nan, -0.0, np.inf], [np.nan, 0.0, -np.inf]) == 1


class TestOtherOperatorStandards:
    @pytest.mark.parametrize(("share", "passed"), [(0.0009, True), (0.0011, False)])
    def test_thousandth(self, share, passed):
        assert judge(*shifted(share, 0.01, 20_000), "thousandth").passed == passed

    def test_binary(self):
        x = np.float32([1, 2, np.nan])
        assert judge(x, x, "binary").passed
        assert judge(np.nextafter(x, 9), x, "binary").part("share different").value == pytest.approx(2 / 3)

    @pytest.mark.parametrize(
        ("name", "golden", "error", "passed"),
        [
            ("absolute", 2.0**-9, 2.0**-19, True),
            ("absolute", 2.0**-10, 2.0**-16, True),
            ("absolute", 2.0**-10, 2.0**-15, False),
            ("absolute", 2.0**-1, 2.0**-11, True),
            ("absolute", 2.0**-1, 2.0**-10, False),
            ("absolute-documented", 2.0**-10 * 0.75, 2.0**-15, False),
        ],
    )
    def test_absolute(self, name, golden, error, passed):
        verdict = judge(np.array([golden + error]), np.array([golden]), name, dtype="float16")
        assert verdict.passed == passed

    def test_absolute_in_code_and_document(self):
        """bf16: 1e-16 in the code, 2**-16 in the document."""
        target, golden = np.array([2.0**-17]), np.array([0.0])
        assert not judge(target, golden, "absolute", dtype="bfloat16").passed
        assert judge(target, golden, "absolute-documented", dtype="bfloat16").passed

    @pytest.mark.parametrize(("error", "passed"), [(2.0**-8, True), (2.0**-7, False)])
    def test_accumulative(self, error, passed):
        golden = np.ones(4)
        target = golden + error * np.array([1, -1, 1, -1])
        assert judge(target, golden, "accumulative", dtype="float16").passed == passed
        assert not judge(golden + error, golden, "accumulative", dtype="float16").passed  # all on one side

    @pytest.mark.parametrize(("step", "passed"), [(1, True), (2, False)])
    def test_quantization(self, step, passed):
        assert judge(np.int8([5, 5 + step]), np.int8([5, 5]), "quantization").passed == passed

    @pytest.mark.parametrize(("size", "zeros", "passed"), [(100, 9, True), (100, 10, False), (99, 99, True)])
    def test_dropout(self, size, zeros, passed):
        golden = np.ones(size)
        target = golden * 2
        target[:zeros] = 0
        assert judge(target, golden, "dropout").passed == passed

    @pytest.mark.parametrize(
        ("dtype", "limit"), [("float16", 1.002), ("bfloat16", 1.004), ("float32", 1.0002)]
    )
    def test_free_benchmark(self, dtype, limit):
        x = np.array([1.0, -2.0])
        assert judge(x * (limit - 1e-6), x, "free-benchmark", dtype=dtype).passed
        assert not judge(x * (limit + 1e-6), x, "free-benchmark", dtype=dtype).passed
        assert judge(-x, x, "free-benchmark", dtype=dtype).part("sign flips").value == 2
        assert judge([1e-9], [-1e-8], "free-benchmark", dtype=dtype).passed  # below the floor


class TestUlp:
    def test_fp16_share(self):
        for share, passed in ((0.0009, True), (0.0011, False)):
            verdict = judge(*shifted(share, 2.0**-9, 20_000, np.float16), "ulp")
            assert verdict.passed == passed

    def test_fp32_one_of_three_is_enough(self):
        golden = np.ones(1000, np.float32)
        step = 2.0**-23
        mean_only = judge((golden.astype(float) + 60 * step).astype(np.float32), golden, "ulp")
        assert mean_only.passed and mean_only.part("share above 32 ulp").result == "skip"
        few = golden.copy()
        few[:49] += np.float32(2.0**-4)
        assert judge(few, golden, "ulp").part("mean ulp").result == "skip"
        assert judge(few, golden, "ulp").passed
        all_off = (golden.astype(float) + 70 * step).astype(np.float32)
        assert not judge(all_off, golden, "ulp").passed

    def test_ratio_to_a_device(self):
        target, golden = shifted(0.01, 2.0**-8, dtype=np.float16)
        worse, _ = shifted(0.02, 2.0**-8, dtype=np.float16)
        assert not judge(target, golden, "ulp", device=target).passed
        assert judge(target, golden, "ulp", device=worse).passed

    def test_subnormals_count_steps(self):
        tiny = np.float16([3 * 2.0**-24])
        assert ulp_errors(tiny, np.float16([2.0**-24])).maximum == 2
        assert ulp_errors(tiny, np.float16([0])).maximum == 3 * 2.0**-14  # msprobe's zero stands at 1
        assert ulp_errors(tiny, np.float16([0]), zero_exponent=None).maximum == 3

    @pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, E4M3, ml_dtypes.float8_e5m2])
    def test_neighbours_are_one_apart(self, dtype):
        bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]
        codes = np.random.default_rng(0).integers(
            1, 2 ** (8 * np.dtype(dtype).itemsize - 1) - 2, 200, dtype=np.uint32
        )
        a, b = codes.astype(bits).view(dtype), (codes + 1).astype(bits).view(dtype)
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(a.astype(float)) & np.isfinite(b.astype(float))
        assert ulp_errors(b, a).maximum == 1  # with the NaN there are, also signalling ones
        for x, y in zip(b[finite], a[finite], strict=True):
            assert ulp_errors(np.array([x]), np.array([y])).maximum == 1

    def test_nan_on_one_side(self):
        assert not judge(np.float16([np.nan, 1]), np.float16([1, 1]), "ulp").passed
        assert judge(np.float16([np.nan, 1]), np.float16([np.nan, 1]), "ulp").passed


class TestAscend:
    @pytest.mark.parametrize(
        ("dtype", "limit"),
        [
            ("float16", 2.0**-10),
            ("bfloat16", 2.0**-7),
            ("float32", 2.0**-13),
            ("float8_e4m3fn", 0.125),
            ("float8_e5m2", 0.25),
        ],
    )
    def test_single(self, dtype, limit):
        golden = np.ones(100)
        assert judge(golden * (1 + 0.99 * limit), golden, "ascend-single", dtype=dtype).passed
        assert not judge(golden * (1 + 1.01 * limit), golden, "ascend-single", dtype=dtype).passed
        one = golden.copy()
        one[0] += 10.1 * limit
        verdict = judge(one, golden, "ascend-single", dtype=dtype)
        assert (verdict.part("MERE").result, verdict.part("MARE").result) == ("pass", "error")

    @pytest.mark.parametrize(("level", "mare", "mean"), [(0, 10, 2), (1, 5, 1.5), (2, 2, 1.2)])
    def test_dual(self, level, mare, mean):
        golden = np.ones(10_000)
        device = golden + 1e-3
        for factor, result in ((0.99, "pass"), (1.01, "error")):
            verdict = judge(golden + 1e-3 * mean * factor, golden, f"ascend-dual-l{level}", device=device)
            assert verdict.part("MERE").result == verdict.part("RMSE").result == result
            target = device.copy()
            target[0] = 1 + 1e-3 * mare * factor
            verdict = judge(target, golden, f"ascend-dual-l{level}", device=device)
            assert verdict.part("MARE").result == result
        assert verdict.part("cases").result == "skip"

    @pytest.mark.parametrize(("share", "result"), [(0.009, "pass"), (0.011, "error")])
    def test_mixed(self, share, result):
        assert judge(*shifted(share, 0.1), "ascend-mixed", dtype="bfloat16").result == result

    def test_mixed_fp32_has_two_readings(self):
        """At golden 100 an error of 0.01 is within rtol 2**-10 but not within rtol 2**-16 + atol 2**-10."""
        golden = np.full(100, 100.0, np.float32)
        verdict = judge(golden + np.float32(0.01), golden, "ascend-mixed")
        assert verdict.result == "warning" and len(verdict.parts) == 2


class TestLibraries:
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_boundary(self, dtype):
        rtol, atol = tolerance("torch", np.dtype(dtype).name)
        golden = np.full(4, 3.0)
        inside = golden + (atol + 3 * rtol) * (1 - 1e-6)
        assert judge(inside, golden, "torch", dtype=np.dtype(dtype).name).passed
        outside = golden + (atol + 3 * rtol) * (1 + 1e-6)
        assert not judge(outside, golden, "torch", dtype=np.dtype(dtype).name).passed

    def test_as_numpy(self):
        rng = np.random.default_rng(0)
        for seed in range(50):
            y = rng.standard_normal(6) * 10.0 ** rng.integers(-9, 3)
            x = y + rng.standard_normal(6) * 10.0 ** rng.integers(-12, -4)
            if seed % 5 == 0:
                x[0] = y[0] = np.nan if seed % 2 else np.inf
            assert judge(x, y, "numpy-allclose").passed == np.allclose(x, y)
            assert judge(x, y, "numpy-assert").passed == np.allclose(x, y, 1e-7, 0, equal_nan=True)

    def test_not_symmetric(self):
        assert closeness([1.0], [1.1], 0.095, 0).outside == 0
        assert closeness([1.1], [1.0], 0.095, 0).outside == 1

    def test_nan_and_inf(self):
        nan = np.float32([np.nan])
        assert not judge(nan, nan, "torch").passed and judge(nan, nan, "numpy-assert").passed
        inf = np.float32([np.inf])
        assert judge(inf, inf, "torch").passed and not judge(-inf, inf, "torch").passed
        assert not judge(np.float32([1]), inf, "torch").passed

    def test_complex(self):
        x = np.array([3 + 4j], np.complex64)
        assert judge(x * (1 + 1e-6), x, "torch").passed
        assert not judge(x * (1 + 1e-5), x, "torch").passed

    def test_jax_gradients_grow_with_size(self):
        x = np.ones(100, np.float32)
        assert judge(x + np.float32(0.3), x, "jax-gradient").passed
        assert not judge(x[:1] + np.float32(0.3), x[:1], "jax-gradient").passed

    def test_worst_place_is_named(self):
        x = np.zeros((2, 3), np.float32)
        y = x.copy()
        y[1, 2], y[0, 1] = 5, 1
        assert closeness(y, x, 0, 0.5).worst_place == (1, 2) and closeness(y, x, 0, 0.5).worst_excess == 4.5
        assert "(1, 2)" in judge(y, x, "torch").parts[0].note

    def test_near_zero_gradient(self):
        """Fails atol 1e-5 though the norms agree to 6 % (TransformerEngine PR 3095); one ulp rule cannot say both."""
        golden = np.float32([3.68e-4, 1.0])
        target = golden + np.float32([2.27e-5, 0])
        assert not judge(target, golden, "torch").passed
        assert judge(target, golden, "depth-bound", dtype="bfloat16").passed

    def test_layer_norm_in_bf16_is_expected(self):
        golden = np.array([1.0, 2.0], BF16)
        assert judge(np.array([1.0078125, 2.015625], BF16), golden, "torch").passed

    def test_wrong_arguments(self):
        with pytest.raises(InputError, match="2 problems"):
            closeness([1.0], [1.0], -1, np.nan)
        with pytest.raises(InputError, match="library"):
            tolerance("pandas", "float32")
        with pytest.raises(InputError, match="no tolerance"):
            tolerance("tensorflow", "int8")


class TestMindspore:
    def test_code_and_document(self):
        target, golden = shifted(1, 0.0005)
        assert judge(target, golden, "mindspore-coded").passed
        assert not judge(target, golden, "mindspore-documented").passed

    def test_helper(self):
        x = np.arange(1.0, 100)
        assert judge(x * 1.009, x, "mindformers-helper").passed
        assert not judge(x * 1.011, x, "mindformers-helper").passed
        assert judge(x, x, "mindformers-helper").part("KL").result == "skip"


class TestDepthBound:
    def test_grows_towards_the_first_layer(self):
        golden = np.ones(100, np.float32)
        target = golden * np.float32(1.06)
        assert judge(target, golden, "depth-bound", dtype="bfloat16", layer=0).passed
        assert not judge(target, golden, "depth-bound", dtype="bfloat16", layer=32).passed
        assert not judge(target, golden, "depth-bound", dtype="float32").passed

    def test_bionemo_is_wider(self):
        golden = np.ones(100, np.float32)
        target = golden * np.float32(1.09)
        assert not judge(target, golden, "depth-bound", dtype="bfloat16").passed
        assert judge(target, golden, "depth-bound-bionemo", dtype="bfloat16").passed

    def test_outside_the_model(self):
        with pytest.raises(InputError, match="from 0 to 4"):
            judge([1.0], [1.0], "depth-bound", layer=5, layers=4)


def test_standard_by_type():
    assert checker_standard("float32") == "double-benchmark"
    assert checker_standard("int32") == checker_standard("bool") == "binary"
    assert checker_standard("float8_e4m3fn") == "ulp"
    assert checker_standard("bfloat16", "float8_e5m2") == "absolute"
    for dtype in ("float32", "int8", "float8_e4m3fn"):
        assert standard(checker_standard(dtype)).source


def test_metrics_alone():
    m = compare_arrays([1.0, 2.0], [1.0, 2.0])
    assert judge(m, standard="msprobe-old").passed
    assert judge(compare_arrays([1.0], [1.0, 2.0])).parts[0].name == "shape"
    with pytest.raises(InputError, match="2 problems"):
        judge(m, [1.0], "ulp")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (([1.0], [1.0], "msprob"), "standard"),
        (([1.0],), "golden"),
        ((["a"], [1.0]), "target"),
        ((np.int32([1]), np.int32([1]), "ulp"), "dtype"),
        ((np.float64([1]), np.float64([1]), "ascend-single"), "dtype"),
        ((np.ones(1, complex), np.ones(1, complex), "binary"), "target"),
    ],
)
def test_refused(arguments, field):
    with pytest.raises(InputError) as caught:
        judge(*arguments)
    assert caught.value.problems[0].field == field


def test_refused_below():
    with pytest.raises(InputError, match="golden's shape"):
        ulp_errors([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="golden's shape"):
        operator_errors([1.0], [1.0, 2.0], Limits(0, 0, 0, 0))
    with pytest.raises(InputError, match=r"target\.Max"):
        compare_summaries({"Max": "high"}, {"Max": 1})
    with pytest.raises(InputError, match="objects"):
        checksum(np.array([None]))


class TestComparators:
    def test_single_point(self):
        found = single_point(np.float32([[1, 2, 9], [3, 4, 9]]), np.float32([[1, 2.0015], [3, 5]]))
        assert (found.same_share, found.first_difference) == (0.5, (0, 1))
        assert (found.within_thousandth, found.within_hundredth) == (0.75, 0.75)
        assert (found.max_abs_error, found.max_relative_error) == (1.0, 0.2)
        assert found.common_shape == (2, 2) and found.target_shape == (2, 3)

    def test_single_point_is_symmetric(self):
        a, b = [1.0, -2.0, np.nan, np.inf], [1.5, 2.0, np.nan, 3.0]
        one, other = single_point(a, b), single_point(b, a)
        assert one == other and one.max_relative_error == np.inf and one.same_share == 0.25

    def test_single_point_needs_a_common_part(self):
        with pytest.raises(InputError, match="corner"):
            single_point(np.ones(3), np.ones((3, 1)))

    def test_checkpoint(self):
        row = checkpoint_row(np.float32([[3, 4]]), np.float32([[3, 0]]))
        assert row == {"l2": 4.0, "cos": 0.6, "numel": 2, "shape": [1, 2]}

    @pytest.mark.parametrize(("gap", "result"), [(0.0101, "warning"), (0.0099, "pass")])
    def test_rollout(self, gap, result):
        actor = np.log([0.5, 0.25])
        verdict = judge_rollout(np.log([0.5 + gap, 0.25]), actor)
        assert verdict.result == result and verdict.parts[0].value == pytest.approx(gap)
        assert judge_rollout(np.log([0.5, 0.9]), actor, np.array([True, False])).result == "pass"

    def test_rollout_refuses(self):
        with pytest.raises(InputError, match="2 problems"):
            judge_rollout([0.5], [np.nan])
        with pytest.raises(InputError, match="mask"):
            judge_rollout([-0.5], [-0.5], [1])
