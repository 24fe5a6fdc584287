"""Panels of chapter 2 without a browser, and the numbers that the chapter's prose states."""

import re
from itertools import pairwise
from math import sqrt

import ml_dtypes
import numpy as np
import pytest
from chart_checks import assert_draws

from telekit.accuracy.numerics.emulate import Precision
from telekit.accuracy.numerics.harness import run_trial, trials
from telekit.accuracy.standards import msprobe
from telekit.accuracy.standards.tolerances import tolerance
from telekit.exercises.operator_faults import DTYPES, METRICS, PLANTS, STANDARDS, planted
from telekit.ui import known_operators as known
from telekit.ui import operator_charts as charts
from telekit.ui.panels import chapter02

NUMPY = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


@pytest.fixture(scope="module")
def one():
    return chapter02.standards_explorer()


@pytest.fixture(scope="module")
def growth():
    return chapter02.growth_explorer()


@pytest.fixture(scope="module")
def faults():
    return chapter02.faults_explorer()


def begin(panel, make):
    return panel.set(**make().values)


def said(panel):
    return {row["standard"]: row["said"] for row in panel.rows["verdicts"]}


def passing(panel):
    return {name for name, it in said(panel).items() if it == "pass"}


# --- one result, every standard -----------------------------------------------------------------------------


def test_a_result_as_good_as_bf16_can_be_fails_three_standards(one):
    begin(one, chapter02.standards_explorer)
    assert one.titles == [
        "38% of this bf16 result is within 1e-3",
        "3 of 16 standards call it an error, though bf16 can do no better",
    ]
    errors = {name for name, it in said(one).items() if it == "error"}
    assert errors == {"msprobe, document", "thousandth", "numpy.allclose"}
    assert "<b>100.0%</b> are golden, rounded once" in one.text


def test_the_case_is_the_product_that_numpy_makes(one):
    """Products of bf16 numbers are exact in fp32, and fp32 sums one after another are cumsum's."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((32, 512), (512, 32)))
    wide = a.astype(np.float32)[:, :, None] * b.astype(np.float32)[None]
    target = np.cumsum(wide, axis=1, dtype=np.float32)[:, -1].astype(ml_dtypes.bfloat16).astype(np.float64)
    golden = a.astype(np.float64) @ b.astype(np.float64)
    pair = known.tried(known.Case("matmul", "bfloat16", 512, "float32", "sequential", "normal"))
    assert np.array_equal(pair.target, target) and np.allclose(pair.golden, golden, rtol=1e-13)
    below = float(np.mean(np.abs(target - golden) / np.abs(golden) < 1e-3))
    assert known.spread(pair).below == below


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_errors_stand_still_and_the_line_of_1e_3_walks(one, dtype):
    begin(one, chapter02.standards_explorer).set(dtype=dtype)
    epsilon = float(ml_dtypes.finfo(NUMPY[dtype]).eps)
    line = next(row["at"] for row in one.rows["lines"] if row["name"] == "1e-3")
    assert line == pytest.approx(1e-3 / epsilon)
    shares = one.rows["errors"]
    assert sum(row["share"] for row in shares) == pytest.approx(1)
    typical = sum(row["share"] for row in shares if row["high"] <= 0.5)
    if dtype == "float32":  # the prose: a few epsilons, of 512 partial sums
        few = sum(row["share"] for row in shares if 0.5 < row["high"] <= 16)
        assert few > 0.5 and f"{line:,.0f}" == "8,389"
    else:  # one rounding at the end decides: half an epsilon at most
        assert typical == pytest.approx(1)


def test_bars_are_coloured_by_the_threshold_itself(one):
    begin(one, chapter02.standards_explorer)
    within = sum(row["share"] for row in one.rows["errors"] if row["side"] == charts.WITHIN)
    assert f"{within:.0%}" == "38%"
    for low in {row["low"] for row in one.rows["errors"]}:
        stack = sorted((r["base"], r["top"]) for r in one.rows["errors"] if r["low"] == low)
        assert stack[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(stack))


def test_who_does_not_see_one_per_cent_in_bf16(one):
    begin(one, chapter02.standards_explorer).set(fault=0.01)
    assert passing(one) == {"Ascend, mixed", "MindFormers helper", "TTrace, 33 layers"}
    assert one.titles[1] == "13 of 16 standards see that it is 1.0% too large"


def test_who_does_not_see_a_thousandth_in_fp32(one):
    begin(one, chapter02.standards_explorer).set(dtype="float32", fault=0.001)
    assert passing(one) == {"msprobe, code", "msprobe, old rule", "MindFormers helper"}
    most = max(one.rows["errors"], key=lambda row: row["share"])
    assert most["low"] <= 8400 <= most["high"]


def test_narrow_sums_fail_and_a_tree_brings_two_standards_back(one):
    begin(one, chapter02.standards_explorer).set(accumulate="own")
    narrow = passing(one)
    assert narrow == {"MindFormers helper", "TTrace, 33 layers"}
    assert passing(one.set(order="tree")) - narrow == {"msprobe, code", "msprobe, old rule"}


def test_limits_made_for_values_of_size_one_pass_tiny_ones(one):
    begin(one, chapter02.standards_explorer).set(fault=0.05)
    normal = passing(one)
    assert len(passing(one.set(values="small")) - normal) == 8
    pair = known.tried(known.Case("matmul", "bfloat16", 512, "float32", "sequential", "small"))
    assert 1e-7 < np.sqrt(np.mean(pair.golden**2)) < 1e-5


def test_fp8_has_rows_in_eleven_standards(one):
    begin(one, chapter02.standards_explorer).set(dtype="float8_e4m3fn")
    assert one.titles[0].startswith("2% of this fp8 e4m3 result")
    assert sum(it == "no row" for it in said(one).values()) == 5


def test_overflow_is_said(one):
    begin(one, chapter02.standards_explorer).set(dtype="float8_e4m3fn", values="wide", length=1024)
    assert one.error is None and "NaN or Inf: fp8 e4m3 has no value so large" in one.text


def test_what_sums_nothing_says_so(one):
    begin(one, chapter02.standards_explorer).set(operator="swiglu")
    assert "swiglu sums nothing" in one.text
    assert "sums nothing" not in one.set(operator="softmax").text


def test_every_reason_is_short_and_has_its_value():
    for dtype in DTYPES.values():
        for scale in (0.0, 0.01, 0.05):
            case = known.Case("matmul", dtype, 256, "float32", "sequential", "normal")
            for name, (result, why) in known.verdicts(known.with_fault(case, scale)).items():
                assert len(why) <= 50, (name, why)
                assert "asks" in why or result == "skip", (name, why)


# --- how it grows -------------------------------------------------------------------------------------------


def test_errors_grow_with_the_root_one_after_another_and_with_the_logarithm_as_a_tree(growth):
    begin(growth, chapter02.growth_explorer)
    assert growth.titles[0] == "From 16 to 2,048 terms: 11.0-fold error one after another, 1.7-fold as a tree"
    at = {(row["order"], row["length"]): row["error"] for row in growth.rows["measured"]}
    once = 0.2127 * 2**-7
    assert (
        at["sequential", 2048] / once
        == pytest.approx(32, rel=0.03)
        == pytest.approx(sqrt(2048 / 2), rel=0.03)
    )
    assert at["tree", 2048] / once == pytest.approx(3.4, rel=0.03) == pytest.approx(sqrt(11), rel=0.05)


def test_measured_errors_meet_the_expected_ones_as_said():
    points = known.by_length("bfloat16", "bfloat16", "normal")
    off = {(it.order, it.length): abs(it.error / it.expected - 1) for it in points}
    assert 0.2 < max(off.values()) <= 0.26
    assert max(it for (order, _), it in off.items() if order == "sequential") <= 0.1


def test_sums_in_fp32_make_length_and_order_no_matter(growth):
    begin(growth, chapter02.growth_explorer).set(accumulate="float32")
    errors = [row["error"] for row in growth.rows["measured"]]
    assert max(errors) / min(errors) < 1.25
    assert np.mean(errors) == pytest.approx(0.2127 * 2**-7, rel=0.05)


def test_terms_of_one_sign_are_lost(growth):
    begin(growth, chapter02.growth_explorer).set(values="positive")
    at = {row["length"]: row["error"] for row in growth.rows["measured"] if row["order"] == "sequential"}
    assert at[2048] == pytest.approx(0.5, rel=0.02)  # half of the sum is gone
    assert not growth.rows["expected"]


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("accumulate", ["own", "float32"])
def test_layers_grow_as_the_prose_says_in_every_dtype(growth, dtype, accumulate):
    begin(growth, chapter02.growth_explorer).set(dtype=dtype, accumulate=accumulate)
    depth = {row["layers"]: row["error"] for row in growth.rows["depth"] if row["error"]}
    if 32 not in depth:  # fp8 that sums in itself overflows on the way
        assert (dtype, accumulate) == ("float8_e4m3fn", "own")
        return
    grown = depth[32] / depth[1]
    assert grown == pytest.approx(3, abs=0.1) if dtype == "float32" else 4 < grown < 5
    bound = {row["layers"]: row["error"] for row in growth.rows["bound"]}
    assert (depth[32] > bound[32]) is dtype.startswith("float8")


def test_layers_add_up_slowly_and_stay_under_the_bound(growth):
    begin(growth, chapter02.growth_explorer).set(accumulate="float32")
    depth = {row["layers"]: row["error"] for row in growth.rows["depth"]}
    bound = {row["layers"]: row["error"] for row in growth.rows["bound"]}
    assert 4 < depth[32] / depth[1] < 5
    assert bound[32] / depth[32] == pytest.approx(7, rel=0.05)
    for n, value in bound.items():
        assert value == pytest.approx(4 * 1.03**n * 2**-7)
    assert "the bound is passed" in growth.set(dtype="float8_e4m3fn").titles[1]


# --- who sees it --------------------------------------------------------------------------------------------


def test_no_check_is_right_everywhere_at_one_per_cent_in_bf16(faults):
    begin(faults, chapter02.faults_explorer)
    assert faults.titles == ["No check is right on all 10 cases; double benchmark L2 and 2 more are on 9"]
    found = chapter02.outcomes("bfloat16", 0.01, 0)
    assert len(found) == len(PLANTS) * len({*METRICS, *STANDARDS})
    assert all(found["one value too large", check] != charts.RIGHT for check in STANDARDS)
    assert found["one NaN", "ascend-mixed"] == charts.MISSED
    assert found["all too large", "cosine > 0.99"] == charts.MISSED
    assert found["rows out of order", "four statistics <= 50 %"] == charts.MISSED
    assert found["healthy, golden near 0", "MaxRelativeErr <= 0.5"] == charts.FALSE_ALARM
    for check in ("cosine > 0.99", "four statistics <= 50 %"):
        assert charts.FALSE_ALARM not in {found[it.name, check] for it in PLANTS}


def test_a_check_that_fails_the_healthy_product_says_nothing_of_a_fault():
    found = chapter02.outcomes("bfloat16", 0.01, 0)
    assert found["healthy", "thousandth"] == charts.FALSE_ALARM
    assert {found[it.name, "thousandth"] for it in PLANTS if not it.healthy} == {charts.NOTHING}


def test_in_fp32_some_checks_see_everything(faults):
    begin(faults, chapter02.faults_explorer).set(dtype="float32")
    assert faults.titles[0].endswith("right on all 10 cases")


def test_what_the_dtype_rounds_away_leaves_nothing_to_see(faults):
    begin(faults, chapter02.faults_explorer).set(dtype="float8_e4m3fn", size=0.01)
    assert "fp8 e4m3 rounds it away" in faults.text
    assert (
        planted("all too large", "float8_e4m3fn", 0.01).target == planted("healthy", "float8_e4m3fn").target
    ).all()


def test_one_value_is_seen_from_two_per_cent_on():
    for size, seen in ((0.01, False), (0.02, True), (1.0, True)):
        found = chapter02.outcomes("bfloat16", size, 0)
        assert seen == (charts.RIGHT in {found["one value too large", c] for c in STANDARDS}), size


@pytest.mark.parametrize("which", ["one", "growth", "faults"])
def test_charts_draw_what_they_are_given(which, request):
    panel = request.getfixturevalue(which)
    begin(
        panel,
        {"one": chapter02.standards_explorer, "growth": chapter02.growth_explorer}.get(
            which, chapter02.faults_explorer
        ),
    )
    drawn = {
        "one": (charts.spread_chart, charts.verdict_chart),
        "growth": (charts.length_chart, charts.depth_chart),
        "faults": (charts.fault_chart,),
    }[which]
    for view, chart in zip(panel.views, drawn, strict=True):
        assert_draws(chart(), view.datasets)


def test_names_of_lines_are_not_written_across_each_other(one):
    for dtype in DTYPES.values():
        begin(one, chapter02.standards_explorer).set(dtype=dtype)
        rows = one.rows["lines"]
        for side, sign in (("right", 1), ("left", -1)):
            lanes = [r["lane"] for r in sorted(rows, key=lambda r: sign * r["at"]) if r["side"] == side]
            assert lanes == sorted(lanes, reverse=True)
        assert len({row["lane"] for row in rows}) == len(rows)


# --- tables -------------------------------------------------------------------------------------------------


def test_one_rounding_table_by_hand():
    rows = {row[0]: row[1:] for row in known.one_rounding().rows}
    # in [1, 2) the error is uniform up to half a step, and a thousandth of x is 1.5e-3 on average
    for name, bits in (("bf16", 7), ("fp8 e4m3", 3), ("fp8 e5m2", 2)):
        assert float(rows[name][2].rstrip("%")) == pytest.approx(100 * 1.5e-3 * 2 ** (bits + 1), abs=0.3)
        assert rows[name][0] == f"2^-{bits}"
    assert rows["fp32"][-1] == "16,800" and rows["fp16"][3] == "1.02"


def test_numbers_that_the_prose_gives_of_standards_and_roundings():
    rows = {row[0]: row[1:] for row in known.one_rounding().rows}
    assert f"{100 - float(rows['bf16'][2].rstrip('%')):.0f}" == "62"  # missed by a perfect bf16 result
    assert (msprobe.OUTPUT_SHARE["msprobe-documented"], msprobe.OUTPUT_SHARE["msprobe-coded"]) == (0.6, 0.1)
    case = known.tried(known.Case("matmul", "bfloat16", 1024, "float32", "sequential", "normal"))
    stored = case.golden.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.mean(np.abs(case.target - stored) <= 1e-3 * np.abs(stored)) == 1
    for name, share in (("transformer-engine", 0.125), ("jax", 0.1)):  # an eighth and a tenth in fp8
        assert tolerance(name, "float8_e4m3fn")[0] == share
    assert tolerance("torch", "float16")[1] == 1e-5
    sound, moved = (planted(p, "bfloat16", 0.01, 0).target for p in ("healthy", "one value too large"))
    (at,) = np.argwhere(sound != moved)
    assert abs(moved[tuple(at)] / sound[tuple(at)] - 1) == pytest.approx(0.008, abs=5e-4)
    step = 2.0 ** (np.floor(np.log2(abs(sound[tuple(at)]))) - 7)
    assert abs(moved[tuple(at)] - sound[tuple(at)]) == step  # one step


def test_side_by_side_is_as_the_prose_reads_it():
    rows = {row[0]: row[1:] for row in known.side_by_side().rows}
    bf16, fp32 = ({name: row[i] for name, row in rows.items()} for i in (4, 0))
    assert {n for n, it in bf16.items() if it == "ERROR"} == {
        "msprobe, document",
        "thousandth",
        "numpy.allclose",
    }
    assert {n for n, it in fp32.items() if it == "ERROR"} == {
        "double benchmark L2", "Ascend, dual L2", "torch, TE", "JAX", "numpy.allclose",
    }  # fmt: skip
    assert {n for n, row in rows.items() if row[5] == "."} == {
        "Ascend, mixed",
        "MindFormers helper",
        "TTrace, 33 layers",
    }
    pair = known.tried(known.Case("matmul", "bfloat16", 1024, "float32", "sequential", "normal"))
    assert f"{pair.metrics.one_thousandth_ratio:.2f}" == "0.37"


def test_guards_are_the_published_ones():
    rows = {row[0]: row[1:] for row in known.guards().rows}
    near = dict(zip(known.guards().header[1:], rows["golden[7] = 1e-8"], strict=True))
    assert near["cosine"] == "0.99999" and float(near["MaxRelErr"]) == pytest.approx(4.5e5, rel=0.02)
    assert near["old rule"] == "pass"
    assert rows["y = 2 x"][1:3] == ("1", "2") and rows["y = x, reversed"][2] == "1"
    assert rows["zeros beside zeros"][4] == "0" and rows["ones beside zeros"][-1] == "pass"
    assert rows["a scalar"][-1] == "pass" and rows["both empty"][0] == "empty"


def test_checksums_are_msprobes():
    assert [row[1] for row in known.checksums().rows] == ["b20e96b1", "7a3c1979", "2144df1c", "ccfc5c3c"]


def test_levels_are_the_standards():
    rows = known.cases_asked(2).rows
    assert [row[1:3] for row in rows] == [
        ("5,000", "10/2/2"),
        ("10,000", "5/1.5/1.5"),
        ("30,000", "2/1.2/1.2"),
    ]
    assert {row[-1] for row in rows} == {"no"}


def test_two_files_are_judged_as_said():
    rows = {row[0]: row[1:] for row in known.files_compared().rows}
    assert rows["mlp.gate"][:2] == ("1", "2") and rows["mlp.up"][1] == "1"
    assert rows["router.bias"][-2:] == ("pass", "error") and rows["attention.out"][-2:] == ("pass", "pass")


def test_the_call_that_the_chapter_names_runs():
    trial = next(trials("rms_norm", 1))
    assert (
        run_trial("rms_norm", trial, Precision()).target["y"].shape
        == run_trial("rms_norm", trial).golden["y"].shape
    )
    assert re.search(r"\d", repr(known.suspects()))
