"""Cluster values fitted from traces: those that the generator was given come back."""

from dataclasses import replace

import numpy as np
import pytest

from telekit.cluster.jitter import Jitter
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.faults.kinds import effects_of
from telekit.diagnose.fits import fit_idle, fit_jitter, fit_monitor, measure
from telekit.diagnose.host_times import fit_host
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


def issued(times, first=0):
    """One launch for each (launch, its end, kernel, its end), microseconds."""
    rows = []
    for number, (call, back, begin, end) in enumerate(times, first):
        rows.append({"name": "cudaLaunchKernel", "kind": "launch", "start_s": call * 1e-6, "end_s": back * 1e-6,
                     "correlation": number})  # fmt: skip
        rows.append({"name": "gemm", "kind": "kernel", "start_s": begin * 1e-6, "end_s": end * 1e-6,
                     "correlation": number})  # fmt: skip
    return rows


def test_a_full_queue_is_no_cost_of_issuing():
    """A launch costs 5 us, a kernel takes 100; once 100 launches wait, each call waits for a kernel to end."""
    free = [(5 * i, 5 * i + 3, 5 + 100 * i, 105 + 100 * i) for i in range(100)]
    full = [(500 + 100 * i, 598 + 100 * i, 10_005 + 100 * i, 10_105 + 100 * i) for i in range(2000)]
    assert fit_host([Trace.of(issued(free + full))]).host_launch_s == pytest.approx(5e-6)
    assert fit_host([Trace.of(issued(full))]) is None  # full before the trace began


def test_a_host_that_waits_for_its_device_says_nothing_of_issuing():
    """A launch costs 5 us, a kernel takes 1 ms, and after so many launches the host waits for the last kernel."""

    def steps(launches):
        return [(s * (1000 * launches + 100) + 5 * i, s * (1000 * launches + 100) + 5 * i + 3,
                 s * (1000 * launches + 100) + 10 + 1000 * i, s * (1000 * launches + 100) + 10 + 1000 * (i + 1))
                for s in range(20) for i in range(launches)]  # fmt: skip

    assert fit_host([Trace.of(issued(steps(3)))]).host_launch_s == pytest.approx(5e-6)
    assert fit_host([Trace.of(issued(steps(1)))]) is None
    assert "host_launch_s" not in measure([Trace.of(issued(steps(1)))]).kernels()


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_a_host_bound_job_is_told_from_one_that_waits(spread):
    """Each launch comes 12 us after the one before, or 4 us after its kernel has ended; kernels take 7 us or so."""
    rng = np.random.default_rng(1)
    length = 7 * (1 + spread * rng.standard_normal(200))
    bound = [(12 * i, 12 * i + 2, 12 * i + 2, 12 * i + 2 + t) for i, t in enumerate(length)]
    now, waiting = 0.0, []
    for t in length:
        waiting.append((now, now + 2, now + 2, now + 2 + t))
        now += 2 + t + 4
    found = fit_host([Trace.of(issued(bound))])
    assert fit_host([Trace.of(issued(waiting))]) is None
    assert found is None if spread == 0 else found.host_launch_s == pytest.approx(12e-6)
    wait = {"name": "cudaStreamSynchronize", "kind": "wait", "start_s": 1.0, "end_s": 1.1}
    found = fit_host([Trace.of([*issued(bound), wait])])  # where waits are recorded, one that is not was none
    assert found.host_launch_s == pytest.approx(12e-6)


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
    assert set(found.kernels()) == {"jitter", "host_launch_s"}
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
        [{"name": "a", "kind": "launch", "start_s": i, "end_s": i + 0.5} for i in range(30)], rank=0
    )
    assert fit_host([host]) is None  # nothing says whether the host waited in between
    with pytest.raises(InputError):
        fit_jitter([one], devices_per_node=0)


def test_jitter_does_not_see_steps_that_are_longer_for_all():
    rng, traces = np.random.default_rng(0), []
    for rank in range(8):
        rows = [{"name": "gemm", "kind": "kernel", "start_s": 10 * s, "step": s,
                 "end_s": 10 * s + (1 + s) * (1 + 0.01 * rng.standard_normal())} for s in range(6)]  # fmt: skip
        traces.append(Trace.of(rows, rank=rank))
    assert fit_jitter(traces).deviation == pytest.approx(0.01, rel=0.3)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_jitter_of_few_ranks_that_begin_at_other_steps(ranks):
    rng, traces = np.random.default_rng(ranks), []
    for rank in range(ranks):
        rows = [{"name": "gemm", "kind": "kernel", "start_s": 10 * s, "step": s,
                 "end_s": 10 * s + (1 + s % 3) * (1 + 0.02 * rng.standard_normal())}
                for s in range(400)]  # fmt: skip
        rows = rows[rank % 2 :]
        rows += [row | {"step": 400} for row in rows[:1]] if rank % 2 else []  # the same kernels
        traces.append(Trace.of(rows, rank=rank))
    assert fit_jitter(traces).deviation == pytest.approx(0.02, rel=0.1)
