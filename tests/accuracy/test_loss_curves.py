"""Judging loss curves: errors, limits, self-noise, drift under autocorrelation, jumps, and the suspect."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from telekit.accuracy.curves.curve_coverage import Columns
from telekit.accuracy.curves.curve_standards import CURVE_STANDARDS, Limit, allowed_bad_steps, curve_standard
from telekit.accuracy.curves.curve_statistics import onset, outliers, spikes, trend
from telekit.accuracy.curves.judge import judge_curves
from telekit.accuracy.curves.ratios import micro_batch_means
from telekit.accuracy.readers.curve import LossCurve
from telekit.errors import InputError


def curve(loss, *, start=1, steps=None, **columns):
    """Make a curve of a loss and further columns (grad_norm, aux_loss, learning_rate)."""
    loss = np.asarray(loss, float)
    steps = np.arange(start, start + loss.size) if steps is None else np.asarray(steps)
    values = {"lm loss": loss} | {
        name.replace("_", " "): np.broadcast_to(np.asarray(v, float), loss.shape).copy()
        for name, v in columns.items()
    }
    return LossCurve(
        steps.astype(np.int64), values, {n: np.ones(loss.size, bool) for n in values}, "made", "csv"
    )


def falling(n, floor=3.0):
    """A training loss, without noise."""
    return floor + 8 * np.exp(-np.arange(n) / (n / 5))


def wander(n, correlation, scale, seed=0):
    """Differences of two runs: neighbours alike, no drift."""
    noise = np.random.default_rng(seed).normal(size=n + 500)
    return scale * math.sqrt(1 - correlation**2) * lfilter([1], [1, -correlation], noise)[500:]


def causes(verdict):
    return [s.cause for s in verdict.suspects]


# ---- errors and limits ----


def test_every_figure_of_a_small_pair_by_hand():
    target, golden = (
        curve([10.0, 8.0, 5.0], grad_norm=[2.2, 1.0, 1.0]),
        curve([10.1, 8.0, 4.0], grad_norm=[2.0, 1, 1]),
    )
    found = judge_curves(target, golden)
    first, mean, norm = found.first_step, found.mean, found.grad_norm
    assert first["step"] == 1 and first["abs_error"] == pytest.approx(0.1)
    assert first["rel_error"] == pytest.approx(0.1 / 10.1) and first["result"] == "error"
    assert mean["steps"] == 3 and mean["mae"] == pytest.approx(1.1 / 3)
    assert mean["mre"] == pytest.approx((0.1 / 10.1 + 0.25) / 3)
    assert mean["bias"] == pytest.approx((-0.1 / 10.1 + 0.25) / 3)
    assert (mean["max_abs"], mean["max_abs_step"], mean["max_rel"], mean["max_rel_step"]) == (1.0, 3, 0.25, 3)
    assert norm["mre"] == pytest.approx(0.1 / 3) and norm["first_rel_error"] == pytest.approx(0.1)
    assert norm["result"] == "pass" and norm["epsilon_bound"]["result"] == "warning"


@pytest.mark.parametrize(
    ("limit", "absolute", "relative", "passes"),
    [
        (Limit(0.005, 0.005), 0.004, 1.0, True), (Limit(0.005, 0.005), 1.0, 0.004, True),
        (Limit(0.005, 0.005), 0.005, 0.005, False), (Limit(0.005, 0.005), math.nan, math.nan, False),
        (Limit(None, 0.01), 0.0, 0.01, False), (Limit(None, 0.01, inclusive=True), 9.0, 0.01, True),
    ],
)  # fmt: skip
def test_a_limit_passes_either_way(limit, absolute, relative, passes):
    assert limit.passes(absolute, relative) is passes


def test_noise_bigger_than_a_limit_is_the_limit():
    limit = Limit(0.01, 0.01)
    assert limit.raised(0.009, 0.009) is limit
    raised = limit.raised(0.02, 0.004)
    assert raised == Limit(0.02, 0.01, inclusive=True)
    assert raised.passes(0.02, 1) and not raised.passes(0.021, 0.011)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.integers(0, 10))
def test_a_curve_agrees_with_itself_under_every_standard(values, start):
    for name in CURVE_STANDARDS:
        found = judge_curves(curve(values, start=start), curve(values, start=start), standard=name)
        assert found.passed and found.shape == "good" and causes(found) == ["identical"]
        assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["verdict"] in ("pass", "skip")


def test_curves_of_zeros_and_of_negative_rewards_are_judged():
    assert judge_curves(curve([0.0, 0.0]), curve([0.0, 0.0])).passed
    found = judge_curves(curve([0.1, 0.0]), curve([0.0, 0.0]))
    assert found.first_step["rel_error"] == "inf" and not found.passed
    assert judge_curves(curve([-28.0] * 30), curve([-28.001] * 30)).passed


def test_only_common_steps_count_and_it_is_said():
    found = judge_curves(
        curve([5.0, 4.0, 3.0], steps=[1, 5, 10]),
        curve(np.linspace(5, 2, 12), start=0),
        standard="msprobe-guide",
    )
    assert found.errors.loss.steps.tolist() == [1, 5, 10]
    assert any(
        "of 10 steps between 1 and 10, 3 are logged by both" in note for note in found.verdict.messages
    )
    assert any("target starts at step 1, golden at 0" in note for note in found.verdict.messages)
    with pytest.raises(InputError, match=r"1 to 3.*none in common with golden's 10 to 12"):
        judge_curves(curve([1.0] * 3), curve([1.0] * 3, start=10))


def test_a_curve_without_a_loss_needs_a_column():
    odd = LossCurve(
        np.array([1, 2]), {"a": np.ones(2), "b": np.ones(2)}, {n: np.ones(2, bool) for n in "ab"}, "odd"
    )
    with pytest.raises(InputError, match="name the column"):
        judge_curves(odd, curve([1.0, 1.0]))
    assert judge_curves(odd, curve([1.0, 1.0]), columns=Columns(target="b")).passed


def test_nan_on_one_side_fails_and_on_both_is_left_out():
    loss = falling(40)
    broken = loss.copy()
    broken[30:] = math.nan
    found = judge_curves(curve(broken), curve(loss))
    part = found.verdict.part("finite")
    assert part.result == "error" and part.value == 10 and "step 31" in part.note
    assert found.suspect.cause == "non-finite" and found.shape == "not finite"
    assert found.mean["steps"] == 30 and found.mean["result"] == "pass"
    both = judge_curves(curve(broken), curve(broken))
    assert both.passed and any("10 steps are NaN or Inf on both sides" in n for n in both.verdict.messages)
    assert judge_curves(curve(loss), curve(broken)).verdict.part("finite").result == "warning"
    lost = judge_curves(curve([math.nan, math.inf]), curve([1.0, 1.0]))
    assert lost.shape == "not finite" and not lost.passed
    json.dumps(lost.to_dict(), allow_nan=False)
    with pytest.raises(InputError, match="NaN or Inf in both"):
        judge_curves(curve([math.nan]), curve([math.nan]))


ODD = st.one_of(st.floats(), st.floats(-10, 10), st.sampled_from([0.0, 1e308, -1e308, 5e-324, 2.0]))
ODDS = st.lists(ODD, min_size=1, max_size=50)


@given(ODDS, ODDS, ODDS, st.sampled_from(sorted(CURVE_STANDARDS)), st.integers(0, 3))
def test_whatever_is_logged_is_judged_or_refused(target, golden, third, standard, start):
    n = min(map(len, (target, golden, third)))
    ours = curve(target[:n], start=start, grad_norm=third[:n])
    theirs = curve(golden[:n], grad_norm=golden[:n])
    try:
        found = judge_curves(
            ours, theirs, standard=standard, noise=curve(third[:n]), sizes={"tp": 2, "tokens": 100}
        )
    except InputError:
        return
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.suspects and all(0 <= s.confidence <= 1 for s in found.suspects)


def test_an_unknown_standard_lists_all():
    with pytest.raises(InputError, match=r"mindformers, msprobe-guide, megatron-deterministic"):
        judge_curves(curve([1.0]), curve([1.0]), standard="best")


# ---- self-noise ----


def test_self_noise_by_hand_and_as_limit():
    golden = curve([10.0, 9.0, 8.0], grad_norm=[1.0, 1.0, 1.0])
    second = curve([10.0, 9.2, 8.4], grad_norm=[1.0, 1.3, 1.3])
    third = curve([10.2, 9.0, 8.0], grad_norm=[1.0, 1.0, 1.0])
    found = judge_curves(golden, golden, noise=[second, third])
    noise = found.self_noise
    assert noise["runs"] == 3 and noise["first_abs"] == pytest.approx(0.2)
    assert noise["mae"] == pytest.approx((0.2 + 0.2 + 0.4) / 3)  # second against third
    assert noise["norm_mre"] == pytest.approx(0.2)  # golden against second
    target = curve([10.1, 9.1, 8.2], grad_norm=[1.0, 1.25, 1.25])
    assert not judge_curves(target, golden).passed
    judged = judge_curves(target, golden, noise=[second, third])
    assert judged.passed and judged.suspect.cause == "noise" and judged.mean_limit.absolute == noise["mae"]
    assert judged.grad_norm["limit"] == pytest.approx(0.2)


def test_divergence_leaves_the_noise_band_at_its_step():
    n, at = 1200, 700
    base = falling(n)
    golden, second = curve(base + wander(n, 0.5, 2e-3, 1)), curve(base + wander(n, 0.5, 2e-3, 2))
    moved = base + wander(n, 0.5, 2e-3, 3)
    moved[at:] += np.linspace(0.05, 0.2, n - at)
    found = judge_curves(curve(moved), golden, noise=second)
    assert found.errors.drift.onset.step == at + 1  # steps count from 1
    assert found.errors.drift.onset.source == "two runs of the golden"
    assert found.suspect.cause == "drift" and found.shape == "good first, bad mean"
    healthy = judge_curves(curve(base + wander(n, 0.5, 2e-3, 4)), golden, noise=second)
    assert healthy.passed and healthy.errors.drift.onset.step is None and healthy.suspect.cause == "noise"


def test_bit_exact_golden_runs_make_the_first_difference_the_onset():
    base = falling(200)
    moved = base.copy()
    moved[120:] *= 1.0005
    found = judge_curves(curve(moved), curve(base), noise=curve(base))
    assert found.errors.drift.onset.step == 121 and found.errors.drift.onset.band == pytest.approx(
        0, abs=1e-6
    )


def test_onset_without_noise_runs_ignores_an_offset():
    n = 400
    steps, noise = np.arange(n), wander(n, 0.3, 1.0, 5)
    assert onset(steps, noise + 50, 100.0).step is None
    stepped = noise + 50
    stepped[250:] += 30
    assert onset(steps, stepped, 100.0).step == 250
    assert onset(steps[:10], stepped[:10], 100.0).source == "too few steps"


# ---- drift: a test that knows neighbours are alike ----


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("correlation", [0.0, 0.8, 0.97, 0.99])
def test_noise_without_drift_is_rarely_called_drift(n, correlation):
    steps = np.arange(n)
    found = sum(trend(steps, wander(n, correlation, 1.0, seed)).significant for seed in range(200))
    assert found <= 20  # 10 %, where a plain t-test at 0.1 % finds 10 to 90 % for the alike ones


def test_a_plain_test_would_find_drift_everywhere():
    from scipy import stats

    plain = sum(stats.ttest_1samp(wander(1000, 0.97, 1.0, seed), 0).pvalue < 0.001 for seed in range(200))
    assert plain > 100


@pytest.mark.parametrize("correlation", [0.0, 0.8, 0.95])
def test_real_drift_is_found(correlation):
    n = 2000
    steps = np.arange(n)
    drifting = [wander(n, correlation, 1.0, s) + np.linspace(-3, 3, n) for s in range(50)]
    assert sum(trend(steps, d).slope_p < 0.001 for d in drifting) >= 45
    shifted = [wander(n, correlation, 1.0, s) + 1.5 for s in range(50)]
    assert sum(trend(steps, d).mean_p < 0.001 for d in shifted) >= 45


def test_the_line_is_least_squares():
    steps = np.arange(25) * 4
    values = 0.5 + 0.01 * steps + np.cos(steps)
    slope, middle = np.polyfit(steps - steps.mean(), values, 1)
    found = trend(steps, values)
    assert found.slope == pytest.approx(slope) and found.mean == pytest.approx(middle)
    assert found.end == pytest.approx(middle + slope * (steps[-1] - steps.mean()))
    assert trend(steps[:19], values[:19]) is None


def test_exact_series():
    steps = np.arange(30)
    assert not trend(steps, np.zeros(30)).significant
    assert trend(steps, np.full(30, 1e-3)).mean_p == 0
    line = trend(steps, 1e-3 * steps)
    assert line.slope_p == 0 and line.significant


def test_a_late_divergence_fails_though_the_mean_passes():
    n = 2000
    base = falling(n)
    moved = base + wander(n, 0.5, 1e-3, 1)
    moved[1500:] *= 1.02
    found = judge_curves(curve(moved), curve(base))
    assert found.mean["result"] == "pass" and found.verdict.part("drift").result == "error"
    assert found.shape == "good mean, bad end" and found.errors.drift.onset.step == 1501


def test_a_small_steady_difference_is_said_and_a_larger_one_warned_of():
    n = 2000
    base = falling(n)
    small = judge_curves(curve(base * 1.001 + wander(n, 0.2, 1e-4)), curve(base)).verdict.part("drift")
    assert small.result == "pass" and "not luck" in small.note
    larger = judge_curves(curve(base * 1.007 + wander(n, 0.2, 1e-4)), curve(base)).verdict.part("drift")
    assert larger.result == "warning"


# ---- jumps ----


def test_outliers_are_few_and_out_of_line():
    noise = wander(500, 0.5, 1e-3)
    noise[[100, 350]] += 0.4
    assert np.flatnonzero(outliers(noise, 5.0)).tolist() == [100, 350]
    noise[::3] += 0.4
    assert not outliers(noise, 5.0).any()  # a third of all steps is no exception


def test_spikes_of_the_target_alone_are_warned_of():
    n = 600
    base = falling(n) + wander(n, 0.0, 1e-3)
    both = base.copy()
    both[300] += 1.0
    alone = both.copy()
    alone[450] += 1.0
    assert np.flatnonzero(spikes(alone)).tolist() == [300, 450]
    found = judge_curves(curve(alone), curve(both))
    assert found.errors.jumps.target_spikes == (451,) and found.errors.jumps.common_spikes == 1
    assert found.verdict.part("spikes").result == "warning"
    assert found.verdict.part("outliers").result == "warning" and found.passed  # 1 of 600: 6 may
    assert not spikes(falling(600)).any()


@pytest.mark.parametrize(("steps", "allowed"), [(1, 1), (50, 1), (199, 1), (200, 2), (5000, 50), (20001, 50)])
def test_bad_steps_allowed(steps, allowed):
    assert allowed_bad_steps(steps) == allowed


# ---- suspects ----


@pytest.mark.parametrize(
    ("ratio", "sizes", "what"),
    [(2.0, {"cp": 2, "tp": 8}, "cp"), (0.25, {"dp": 4}, "dp"), (1 / 4096, {"tokens": 4096}, "tokens")],
)
def test_a_scaled_loss_is_scaling(ratio, sizes, what):
    base = falling(100)
    found = judge_curves(curve(base * ratio * (1 + wander(100, 0.3, 1e-4))), curve(base), sizes=sizes)
    assert found.suspect.cause == "scaling"
    assert what in found.suspect.next and found.suspect.confidence > 0.8
    assert not found.passed


def test_a_scaled_norm_is_scaling_though_the_loss_agrees():
    base = falling(50)
    found = judge_curves(curve(base, grad_norm=4.0), curve(base, grad_norm=1.0), sizes={"ep": 4, "tp": 8})
    assert found.suspect.cause == "scaling" and "ep" in found.suspect.next
    assert found.first_step["result"] == "pass" and found.grad_norm["result"] == "error"
    assert found.shape == "good loss, another rule fails" and "backward" in causes(found)


def test_an_auxiliary_loss_on_top_is_found_and_taken_off():
    base, aux = falling(60), 0.02 + wander(60, 0.5, 2e-3)
    target, golden = curve(base + aux, aux_loss=aux), curve(base)
    found = judge_curves(target, golden)
    assert found.suspect.cause == "auxiliary loss" and "subtract aux loss from target" in found.suspect.next
    assert judge_curves(target, golden, columns=Columns(subtract_target="aux loss")).passed
    turned = judge_curves(golden, target)
    assert "subtract aux loss from golden" in turned.suspect.next
    tenth = judge_curves(curve(base + 10 * aux, aux_loss=aux), golden)
    assert tenth.suspect.cause == "auxiliary loss" and "10 times" in tenth.suspect.evidence


def test_a_constant_offset_without_more_is_said_to_be_one_of_two():
    base = falling(60)
    found = judge_curves(curve(base + 0.1 + wander(60, 0.2, 2e-3)), curve(base))
    assert causes(found)[0] == "mean of micro-batch means" and "auxiliary loss" in causes(found)
    assert found.suspect.confidence <= 0.5  # one look at the curve does not tell them apart


def test_an_offset_that_the_micro_batches_explain():
    means = micro_batch_means([4.0, 2.0], [10, 100])
    for target, golden, who in ((3.0, 240 / 110, "target"), (240 / 110, 3.0, "golden")):
        found = judge_curves(curve([target]), curve([golden]), micro_batches=means)
        assert found.suspect.cause == "mean of micro-batch means" and found.suspect.confidence == 0.95
        assert found.suspect.evidence.startswith(f"{who} logs 3")


def test_steps_numbered_from_0_and_from_1():
    base = falling(100) + wander(100, 0.0, 0.3)
    found = judge_curves(curve(base[1:]), curve(base[:-1]))
    assert found.suspect.cause == "shifted steps" and "golden's step s + 1" in found.suspect.evidence
    assert "golden's step s - 1" in judge_curves(curve(base[:-1]), curve(base[1:])).suspect.evidence


def test_forward_backward_optimizer_by_the_first_two_steps():
    base = falling(100)
    start = judge_curves(curve(base * np.where(np.arange(100) < 5, 1.02, 1.0)), curve(base))
    assert start.suspect.cause == "other start" and start.shape == "bad first, good mean"
    forward = judge_curves(curve(base * (1.02 + wander(100, 0.5, 0.01))), curve(base))
    assert forward.suspect.cause == "forward" and forward.shape == "bad first, bad mean"
    norms = np.linspace(3, 1, 100)
    backward = judge_curves(curve(base, grad_norm=norms * 1.4), curve(base, grad_norm=norms))
    assert backward.suspect.cause == "backward" and backward.suspect.confidence >= 0.7
    later = base.copy()
    later[1:] *= np.linspace(1.02, 1.1, 99)
    optimizer = judge_curves(curve(later, grad_norm=norms), curve(base, grad_norm=norms))
    assert optimizer.suspect.cause == "optimizer" and optimizer.suspect.confidence == 0.8


def test_runs_with_learning_rate_0_tell_update_from_forward():
    n = 1500
    base = falling(n)
    moved = base * (1 + 0.03 * np.linspace(0, 1, n) ** 2)
    still = np.full(n, 11.0)
    same, other = curve(still + wander(n, 0.5, 1e-3)), curve(still + 0.3)
    assert judge_curves(curve(moved), curve(base)).suspect.cause == "drift"
    update = judge_curves(curve(moved), curve(base), lr_zero=(same, curve(still)))
    assert update.suspect.cause == "optimizer" and "learning rate 0" in update.suspect.evidence
    forward = judge_curves(curve(moved), curve(base), lr_zero=(other, curve(still)))
    assert forward.suspect.cause == "forward"


# ---- the other standards ----


def test_deterministic_means_to_the_last_digit():
    base = falling(60)
    off = base.copy()
    off[30] = np.nextafter(off[30], 99)
    exact = judge_curves(curve(off), curve(base), standard="megatron-deterministic")
    assert not exact.passed and "first at 31" in exact.verdict.parts[0].note
    assert judge_curves(curve(off), curve(base), standard="megatron-approximate").passed


def test_iteration_time_by_the_median_of_its_steady_steps():
    time = np.full(50, 1.0)
    time[:29] = 9.0
    golden = curve(falling(50), **{"iteration-time": time})
    for factor, result in ((1.04, "pass"), (1.06, "error")):
        slow = curve(falling(50), **{"iteration-time": np.where(np.arange(50) < 29, 1.0, factor)})
        found = judge_curves(slow, golden, standard="megatron-approximate-with-cost")
        assert found.verdict.part("every step: iteration-time").result == result


def test_smoothing_is_taken_before_fp8_is_judged():
    base = np.full(200, 2.0)
    rng = np.random.default_rng(0)
    noisy = base * (1 + 0.004 * rng.choice([-1, 1], 200))
    ema_t, ema_g = [noisy[0]], [base[0]]
    for t, g in zip(noisy[1:], base[1:], strict=True):
        ema_t.append(0.9 * ema_t[-1] + 0.1 * t)
        ema_g.append(0.9 * ema_g[-1] + 0.1 * g)
    worst = max(abs(t - g) / g for t, g in zip(ema_t, ema_g, strict=True))
    part = judge_curves(curve(noisy), curve(base), standard="deepseek-fp8").verdict.parts[0]
    assert f"largest {worst:.4%}" in part.note
    assert not curve_standard("deepseek-fp8").verified


def test_a_million_steps_are_judged():
    n = 1_000_000
    base = falling(n)
    found = judge_curves(
        curve(base + wander(n, 0.9, 1e-3, 1)), curve(base), noise=curve(base + wander(n, 0.9, 1e-3, 2))
    )
    assert found.passed and found.mean["steps"] == n
