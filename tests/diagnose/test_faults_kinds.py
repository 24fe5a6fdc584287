"""Each kind of fault does what its truth says and nothing else: against the same run, of the same seed, without it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from telekit.diagnose.faults import FAULT_KINDS, Fault, TracedJob, Truth, draw_fault, generate
from telekit.diagnose.faults.kinds import effects_of
from telekit.errors import InputError

JOB = TracedJob.of(16, steps=4)
EVERY = tuple(range(4))
SEED = 7


@cache
def healthy():
    """The run that faults are compared with."""
    return generate(job=JOB, seed=SEED).traces


def faulty(kind, ranks, size, steps=EVERY):
    """The same run with one fault."""
    return generate(Fault(kind, ranks, steps, size), JOB, SEED).traces


def ratios(traces, pick):
    """Time of some events over that of the healthy run's, by rank: ratios event by event."""
    found = {}
    for before, after in zip(healthy(), traces, strict=True):
        a, b = pick(before), pick(after)
        first, second = (
            t.duration_s[m][np.lexsort((t.start_s[m], t.correlation[m]))]
            for t, m in ((before, a), (after, b))
        )
        found[before.rank] = second / first
    return found


def kernels(trace):
    return trace.is_kind("kernel")


def step_s(traces):
    """Mean time of a step."""
    return np.mean([np.diff(t.start_s[t.named("^ProfilerStep")]).mean() for t in traces])


def test_a_healthy_run_says_so():
    run = generate(job=TracedJob.of(8, steps=1))
    assert run.truth() == Truth()
    assert not run.truth().is_fault


def test_a_slow_device_is_slow_by_its_factor_and_no_other():
    found = ratios(faulty("slow-device", (5,), 1.5), kernels)
    for rank, ratio in found.items():
        assert ratio == pytest.approx(np.full(len(ratio), 1.5 if rank == 5 else 1.0), rel=1e-3)


def test_some_steps_are_only_those():
    traces = faulty("slow-device-in-some-steps", (5,), 1.5, (1, 2))
    ratio = ratios(traces, kernels)[5]
    trace = traces.rank(5)
    order = np.lexsort((trace.start_s[kernels(trace)], trace.correlation[kernels(trace)]))
    step = trace.step[kernels(trace)][order]
    assert ratio == pytest.approx(np.where(np.isin(step, (1, 2)), 1.5, 1.0), rel=1e-3)


def test_the_idle_mode_slows_kernels_after_idle_time_only():
    ratio = ratios(faulty("frequency-drop", (5,), 1.6), kernels)
    slow = ratio[5] > 1.3
    assert ratio[5][slow] == pytest.approx(np.full(slow.sum(), 1.6), rel=1e-3)
    assert 0.05 < slow.mean() < 0.7
    assert ratio[4] == pytest.approx(np.ones(len(ratio[4])), rel=1e-3)
    everywhere = ratios(faulty("frequency-drop-everywhere", tuple(range(16)), 1.6), kernels)
    assert all((r > 1.3).mean() > 0.05 for r in everywhere.values())


def test_expert_imbalance_slows_experts_kernels_and_spares_those_of_its_groups():
    ranks = tuple(JOB.groups()["edp"][1].tolist())  # one shard of experts
    traces = faulty("expert-imbalance", ranks, 1.6)
    for rank, ratio in ratios(traces, lambda t: t.named("grouped_gemm|vectorized") & kernels(t)).items():
        same = any(rank in row and set(row) & set(ranks) for row in JOB.groups()["ep"].tolist())
        expected = 1.6 if rank in ranks else (4 - 1.6) / 3 if same else 1.0
        assert ratio == pytest.approx(np.full(len(ratio), expected), rel=1e-3)
    for ratio in ratios(traces, lambda t: t.named("flash") & kernels(t)).values():
        assert ratio == pytest.approx(np.ones(len(ratio)), rel=1e-3)


def transfers(traces):
    """Time that data moves, by the members of each operation: from the last start to the common end."""
    found = {}
    for trace in traces:
        for i in np.flatnonzero(trace.is_kind("communication")):
            group = trace.groups[trace.group[i]]
            pair = int(trace.peer[i])
            key = (
                group.description,
                tuple(sorted((trace.rank, pair))) if pair >= 0 else group.ranks,
                int(trace.sequence[i]),
            )
            found.setdefault(key, []).append(trace.duration_s[i])
    return {key: min(times) for key, times in found.items()}


def test_a_slow_link_slows_every_transfer_over_its_port():
    before, after = transfers(healthy()), transfers(faulty("slow-link", (5,), 3.0))
    for (about, members, number), time in after.items():
        touched = 5 in members and not about.startswith("TENSOR") and about != "default_pg"
        if about != "default_pg":
            assert time / before[about, members, number] == pytest.approx(3.0 if touched else 1.0, rel=2e-3)


def test_a_slow_pair_slows_its_own_transfers_only():
    before, after = transfers(healthy()), transfers(faulty("slow-pair", (3, 11), 9.0))
    hit = {key[1] for key, time in after.items() if time / before[key] > 1.5}
    assert hit == {(3, 11)}


def test_a_slow_node_and_its_network_hit_all_its_ranks():
    for kind in ("slow-node", "slow-network-of-node"):
        for seed in range(5):
            fault = draw_fault(kind, JOB, seed)
            assert fault.ranks in (tuple(range(8)), tuple(range(8, 16)))
    ratio = ratios(faulty("slow-node", tuple(range(8)), 1.4), kernels)
    assert [round(r.mean(), 2) for r in ratio.values()] == [1.4] * 8 + [1.0] * 8


def test_slow_launches_are_slow_where_told():
    found = ratios(faulty("slow-launch", (5,), 10.0), lambda t: t.is_kind("launch"))
    assert np.median(found[5]) == pytest.approx(10, rel=1e-3)
    assert np.median(found[4]) == pytest.approx(1, rel=1e-3)
    everywhere = faulty("slow-launch-everywhere", tuple(range(16)), 10.0)
    assert all(
        np.median(r) == pytest.approx(10, rel=1e-3)
        for r in ratios(everywhere, lambda t: t.is_kind("launch")).values()
    )
    assert step_s(everywhere) > 2 * step_s(healthy())  # now host-bound


def test_loading_takes_as_much_longer():
    for kind, ranks in (("slow-data", (5,)), ("slow-data-everywhere", tuple(range(16)))):
        traces = faulty(kind, ranks, 0.03)
        for before, after in zip(healthy(), traces, strict=True):
            added = after.duration_s[after.is_kind("data")] - before.duration_s[before.is_kind("data")]
            assert added == pytest.approx(np.full(4, 0.03 if before.rank in ranks else 0.0), abs=2e-7)
        assert step_s(traces) == pytest.approx(step_s(healthy()) + 0.03, rel=0.1)


def between_launches(trace):
    """Longest time between two launches of a thread inside a step, by step."""
    found = {}
    for lane in range(len(trace.lanes)):
        rows = trace.is_kind("launch") & (trace.lane == lane)
        step, start = trace.step[rows], trace.start_s[rows]
        for number in np.unique(step):
            found[number] = max(found.get(number, 0), np.diff(start[step == number]).max(initial=0))
    return found


def test_a_collection_stops_one_host_a_step_without_a_trace_of_it():
    fault = Fault("garbage-collection", (3, 9, 0, 5), EVERY, 0.05)
    traces = generate(fault, JOB, SEED).traces
    for trace in traces:
        assert len(trace) == len(healthy().rank(trace.rank))
        for step, gap in between_launches(trace).items():
            if fault.ranks[step] == trace.rank:
                assert 0.039 < gap < 0.062
    assert step_s(traces) > step_s(healthy()) + 0.02


def test_a_late_rank_makes_the_others_wait_in_a_collective():
    traces = faulty("late-rank", (5,), 0.3, (2,))
    late = traces.rank(5)
    assert between_launches(late)[2] == pytest.approx(0.3, abs=0.01)
    for trace in traces:
        longest = trace.duration_s[trace.is_kind("communication") & (trace.step == 2)].max()
        assert (longest > 0.2) == (trace.rank != 5), trace.rank


def test_a_stuck_rank_ends_every_trace_in_a_collective_that_never_ends():
    traces = faulty("stuck-rank", (5,), 1e4, (2,))
    launched = {}
    for trace in traces:
        assert len(trace) < len(healthy().rank(trace.rank))
        assert trace.span_s[1] < 1
        assert trace.step.max() <= 2
        assert trace.named("ProfilerStep").sum() == 2  # the third never ends
        calls, device = trace.is_kind("launch"), trace.on_device
        launched[trace.rank] = len(
            set(trace.correlation[calls].tolist()) - set(trace.correlation[device].tolist())
        )
    assert all(launched[rank] > 0 for rank in (4, 1, 13))  # its neighbours wait in kernels that never end
    assert launched[5] < min(launched[4], launched[7])


def test_memory_stalls_show_as_calls_on_their_rank_alone():
    traces = faulty("memory-stalls", (5,), 0.004)
    for trace in traces:
        calls = trace.named("^cuda(Free|Malloc)$")
        assert calls.sum() == (5 * 2 * 4 if trace.rank == 5 else 0)
        if trace.rank == 5:  # a call also waits for the device
            assert trace.duration_s[calls].min() >= 0.5 * 0.7 * 0.004 - 1e-9


def test_a_checkpoint_is_written_once_by_the_first_replicas():
    fault = draw_fault("checkpoint", JOB, 3)
    assert fault.ranks == (0, 1, 8, 9)
    for trace in generate(fault, JOB, SEED).traces:
        saved = trace.duration_s[trace.named("checkpoint")]
        assert saved == pytest.approx([fault.size] if trace.rank in fault.ranks else [], rel=1e-4)


def test_a_monitor_stretches_calls_of_all_a_nodes_hosts_at_the_same_times():
    job = replace(JOB, clock_offset_s=0.0, clock_drift=0.0)
    fault = Fault("monitoring", tuple(range(8)), EVERY, 0.015, 5)
    effects = effects_of([fault], job)
    period, phase = effects.burst_period_s[0], effects.burst_phase_s[0]
    for trace in generate(fault, job, SEED).traces:
        rows = trace.is_kind("launch")
        begin = trace.start_s[rows] + (trace.base_ns - 1_750_000_000_000_000_000) / 1e9
        long = trace.duration_s[rows] > 4e-4
        assert long.any() == (trace.rank < 8)
        assert ((begin[long] - phase) % period < 0.015 + 0.01).all()


def test_a_clock_that_jumps_changes_no_true_time():
    for jump in (0.02, -0.02):
        traces = faulty("clock-jump", (5,), jump, (2,))
        for before, after in zip(healthy(), traces, strict=True):
            if before.rank != 5:
                assert np.array_equal(before.start_s, after.start_s)
        before, after = healthy().rank(5), traces.rank(5)
        moved = [
            np.median((a.start_s[a.step == s & 3]) - np.median(b.start_s[b.step == s & 3]))
            for s in EVERY
            for a, b in [(after, before)]
        ]
        assert moved[0] == pytest.approx(0, abs=1e-6)
        assert moved[3] == pytest.approx(jump, abs=1e-6)
    assert not generate(Fault("clock-jump", (5,), (2,), 0.02), JOB, SEED).truth().is_fault


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_what_is_drawn_fits_the_job_and_its_kind(kind):
    for ranks in (16, 64, 128):
        job = TracedJob.of(ranks)
        for seed in range(8):
            fault = draw_fault(kind, job, seed)
            assert fault == draw_fault(kind, job, seed)
            low, high = FAULT_KINDS[kind].size
            assert low <= abs(fault.size) <= high
            assert set(fault.ranks) <= set(range(ranks))
            assert set(fault.steps) <= set(range(job.steps))
            count = {"rank": 1, "pair": 2, "node": 8, "all": ranks}.get(FAULT_KINDS[kind].scope)
            assert count in (None, len(fault.ranks))
            effects_of([fault], job)
    assert len({draw_fault(kind, TracedJob.of(64), s).size for s in range(8)}) == 8


@pytest.mark.parametrize("kind", [k for k in FAULT_KINDS if FAULT_KINDS[k].cause and k != "stuck-rank"])
def test_every_fault_costs_time(kind):
    run = generate(kind, JOB, SEED)
    assert step_s(run.traces) > 1.01 * step_s(healthy())
    truth = run.truth()
    assert truth.is_fault
    assert (truth.kind, truth.ranks) == (kind, run.faults[0].ranks)
    assert set(truth.ranks) <= set(truth.candidates)


def test_a_link_is_told_by_the_groups_that_share_it():
    for rank in range(16):
        assert generate_truth("slow-link", rank, JOB).candidates == (rank,)
    flat = TracedJob(
        ranks=8, tp=2, pp=1, ep=8
    )  # one group of experts, no stages: the data group shares all transfers
    assert generate_truth("slow-link", 3, flat).candidates == (1, 3, 5, 7)


def generate_truth(kind, rank, job):
    """Truth without a run."""
    from telekit.diagnose.faults.kinds import truth_of

    return truth_of(Fault(kind, (rank,), (0,), 3.0), job)


def test_several_faults_have_several_truths():
    faults = (Fault("slow-device", (2,), EVERY, 1.3), Fault("slow-data", (9,), EVERY, 0.02))
    run = generate(faults, JOB, SEED)
    assert [t.ranks for t in run.truths] == [(2,), (9,)]
    with pytest.raises(InputError, match="truths"):
        run.truth()


def test_faults_that_cannot_be_are_refused_with_all_reasons():
    faults = [
        Fault("slow-device", (99,), (0,), 2.0),
        Fault("flood", (0,), (0,), 1.0),
        Fault("slow-data", (0,), (), -1.0),
        Fault("slow-pair", (0, 1), (0,), 2.0),
    ]
    with pytest.raises(InputError) as caught:
        generate(faults, JOB)
    assert {p.field for p in caught.value.problems} == {
        "faults.0.ranks", "faults.1.kind", "faults.2.steps", "faults.2.size", "faults.3.ranks",
    }  # fmt: skip
    with pytest.raises(InputError, match="known"):
        generate("flood")
    for kind, job in (("slow-pair", TracedJob(8, 2, 1, 2)), ("expert-imbalance", TracedJob(8, 2, 2, 1))):
        with pytest.raises(InputError):
            draw_fault(kind, job, 0)
