"""Cluster values fitted from traces: those that the generator was given come back."""

from dataclasses import replace

import numpy as np
import pytest

from telekit.cluster.jitter import Jitter
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.faults.kinds import effects_of
from telekit.diagnose.fits import fit_host, fit_idle, fit_jitter, fit_monitor, measure
from telekit.diagnose.trace import Trace
from telekit.errors import InputError


@pytest.mark.parametrize("spread", ["normal", "exponential", "pareto"])
@pytest.mark.parametrize("deviation", [0.01, 0.02])
def test_jitter_of_independent_devices_comes_back(spread, deviation):
    job = TracedJob.of(64, steps=6, layers=1, jitter=Jitter(deviation, spread))
    found = fit_jitter(generate(job=job, seed=2).traces)
    assert found.spread == spread
    assert found.deviation == pytest.approx(deviation, rel=0.25)
    assert found.node_share < 0.1


@pytest.mark.parametrize("spread", ["normal", "exponential"])
def test_what_nodes_have_in_common_comes_back(spread):
    job = TracedJob.of(128, steps=6, layers=1, jitter=Jitter(0.01, spread, 0.5))
    found = fit_jitter(generate(job=job, seed=2).traces)
    assert found.spread == spread
    assert found.deviation == pytest.approx(0.01, rel=0.2)
    assert found.node_share == pytest.approx(0.5, abs=0.12)
    assert found.slowest(128) == pytest.approx(job.jitter.slowest(128), abs=0.004)


def test_what_issuing_costs_comes_back():
    job = TracedJob.of(16, steps=2, host_launch_s=30e-6, host_jitter=0.05)
    found = fit_host(generate(job=job).traces)
    assert 30e-6 <= found.host_launch_s < 38e-6  # collectives take 1.6 times as long to issue
    assert found.launch_s == pytest.approx(6e-7, abs=2e-9)
    assert found.launch_call_s == pytest.approx(0.4 * 32e-6, rel=0.15)
    assert not found.host_bound
    slow = fit_host(generate(job=replace(job, host_launch_s=300e-6)).traces)
    assert slow.host_bound


@pytest.mark.parametrize("seed", range(4))
def test_the_idle_mode_comes_back(seed):
    run = generate("frequency-drop-everywhere", TracedJob.of(16, steps=4), seed)
    effects, found = effects_of(run.faults, run.job), fit_idle(run.traces)
    assert found.factor == pytest.approx(run.truth().size, rel=0.02)
    assert found.window_s == pytest.approx(effects.idle_window_s[0], rel=0.15)
    assert found.threshold_s == pytest.approx(effects.idle_s[0], rel=1.0)  # no idle times lie nearer


def test_a_monitor_comes_back():
    job = TracedJob.of(16, steps=30, layers=1)
    good = 0
    for seed in range(5):
        run = generate("monitoring", job, seed)
        effects, found = effects_of(run.faults, job), fit_monitor(run.traces)
        rank = run.truth().ranks[0]
        good += found is not None and found.period_s == pytest.approx(effects.burst_period_s[rank], rel=0.03)
    assert good >= 4


@pytest.mark.parametrize("kind", ["healthy", "slow-device", "slow-device-in-some-steps", "slow-link", "slow-launch",
                                  "garbage-collection", "checkpoint", "clock-jump", "expert-imbalance"])  # fmt: skip
def test_other_faults_are_no_idle_mode_and_no_monitor(kind):
    for seed in (1, 2):
        traces = generate(kind, TracedJob.of(16, steps=4), seed).traces
        assert fit_idle(traces) is None
        assert fit_monitor(traces) is None


def test_measured_values_carry_the_names_of_the_device():
    found = measure(generate(job=TracedJob.of(16, steps=4)).traces)
    assert set(found.kernels()) == {"jitter", "host_launch_s", "launch_s"}
    assert found.kernels()["jitter"] == found.jitter.deviation
    assert found.idle is None
    assert found.monitor is None


def test_traces_that_show_nothing_give_nothing():
    empty = Trace.of([], rank=0)
    assert measure([]) == measure([empty])
    assert measure([empty]).kernels() == {}
    one = Trace.of([{"name": "a", "kind": "kernel", "start_s": 0, "end_s": 1, "step": 0}], rank=0)
    assert measure([one]).jitter is None
    host = Trace.of(
        [{"name": "a", "kind": "launch", "start_s": i, "end_s": i + 0.5} for i in range(3)], rank=0
    )
    assert fit_host([host]).host_launch_s == 1
    with pytest.raises(InputError):
        fit_jitter([one], devices_per_node=0)


def test_jitter_does_not_see_steps_that_are_longer_for_all():
    rng, traces = np.random.default_rng(0), []
    for rank in range(8):
        rows = [{"name": "gemm", "kind": "kernel", "start_s": 10 * s, "step": s,
                 "end_s": 10 * s + (1 + s) * (1 + 0.01 * rng.standard_normal())} for s in range(6)]  # fmt: skip
        traces.append(Trace.of(rows, rank=rank))
    assert fit_jitter(traces).deviation == pytest.approx(0.01, rel=0.3)
