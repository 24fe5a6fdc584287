"""Faults of the generator, found again: also through files, and those that look like others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from telekit.diagnose.analysis.features import measure
from telekit.diagnose.analysis.steps import find_steps
from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.faults import FAULT_KINDS, Fault, TracedJob, generate
from telekit.diagnose.rules.after_idle import following
from telekit.diagnose.trace import Trace

JOB = TracedJob.of(16, layers=1, micro_batches=2, steps=5)
WIDE = TracedJob.of(32, layers=1, micro_batches=2, steps=6)
STEPS = tuple(range(6))


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_is_found_in_files_too(kind, tmp_path):
    made = generate(kind, JOB, seed=11)
    made.write(tmp_path, compress=False)
    found, truth = diagnose(tmp_path), made.truth()
    if not truth.is_fault:
        assert found.healthy and any("clock" in n for n in found.notes)
        return
    first = found.findings[0]
    assert (first.kind, first.cause) == (truth.finding, truth.cause)
    if truth.scope == "all":
        assert first.scope == "all"
    elif kind == "slow-link":
        assert set(truth.ranks) <= set(first.ranks) <= set(truth.candidates)
    else:
        assert set(first.ranks) == set(truth.ranks)


@pytest.mark.parametrize("by_s", [0.006, -0.006, 0.03, -0.03, 0.09])
@pytest.mark.parametrize("job", [JOB, WIDE], ids=["2 nodes", "4 nodes"])
def test_the_clock_of_a_node_is_set_for_all_its_ranks(job, by_s):
    node = tuple(range(8, 16))
    found = diagnose(generate(Fault("clock-jump", node, (2,), by_s), job, seed=3).traces)
    assert found.healthy, [str(f) for f in found.findings]
    assert sorted(j.trace for j in found.clocks.jumps) == list(node)
    assert [j.by_s for j in found.clocks.jumps] == pytest.approx([by_s] * 8, abs=2e-4)
    assert sum("clock" in n for n in found.notes) == 1, "of a node it is said once"
    assert found.clocks.residual_s < 1e-4


def test_a_step_without_its_mark_is_unfinished():
    def step(number, start, mark=True):
        events = [
            {"name": "cudaLaunchKernel", "kind": "launch", "start_s": start + 0.1 * i, "end_s": start + 0.1 * i + 0.05,
             "correlation": 10 * number + i} for i in range(3)
        ] + [
            {"name": "gemm", "kind": "kernel", "start_s": start + 0.2 + 0.2 * i, "end_s": start + 0.3 + 0.2 * i,
             "correlation": 10 * number + i} for i in range(3)
        ]  # fmt: skip
        whole = {"name": f"ProfilerStep#{number}", "kind": "host", "start_s": start, "end_s": start + 0.9}
        return [*([whole] if mark else []), *events]

    trace = Trace.of([*step(7, 0.0), *step(8, 1.0), *step(9, 2.0, mark=False)])
    found = find_steps(trace)
    assert found.number.tolist() == [7, 8] and found.kernels.tolist() == [3, 3]
    assert found.unfinished.sum() == 6 and (trace.start_s[found.unfinished] >= 2).all()
    assert set(found.number_of(np.flatnonzero(found.unfinished)).tolist()) == {9}
    assert found.edges_s[-1] < 2, "its length is not known"


def test_a_slow_network_of_a_node_is_one_finding_by_groups_and_pairs():
    job = TracedJob(ranks=64, tp=2, pp=2, ep=4, layers=1, micro_batches=2)
    for node in (1, 2, 5):
        ranks = tuple(range(8 * node, 8 * node + 8))
        found = diagnose(generate(Fault("slow-network-of-node", ranks, STEPS, 2.5), job, seed=node).traces)
        assert [(f.kind, f.scope, set(f.ranks)) for f in found.findings] == [
            ("slow link", "node", set(ranks))
        ]


def test_a_pair_at_the_pipelines_end_is_a_pair():
    job = TracedJob(ranks=32, tp=2, pp=4, ep=2, layers=1, micro_batches=4)
    first = diagnose(generate(Fault("slow-pair", (21, 29), STEPS, 15.0), job, seed=2).traces).findings[0]
    assert (first.kind, set(first.ranks)) == ("slow point-to-point", {21, 29})


def test_collections_in_turn_on_one_node_are_no_monitor():
    fault = Fault("garbage-collection", (15, 12, 13, 14, 9, 11), STEPS, 0.05)
    first = diagnose(generate(fault, replace(JOB, steps=6), seed=5).traces).findings[0]
    assert (first.kind, first.scope, set(first.ranks)) == ("pause", "several", set(fault.ranks))
    assert "garbage" in first.detail


def test_a_checkpoint_of_two_nodes_is_one_finding():
    ranks = (*range(8), *range(16, 24))
    found = diagnose(generate(Fault("checkpoint", ranks, (3,), 0.3), WIDE, seed=6).traces)
    assert [(f.kind, set(f.ranks), f.steps) for f in found.findings] == [("checkpoint", set(ranks), (3,))]


def test_a_slow_host_that_costs_little_is_a_note():
    job = replace(JOB, kernel_scale=6.0, host_launch_s=10e-6, host_jitter=0.05)
    found = diagnose(generate(Fault("slow-launch", (5,), tuple(range(5)), 4.0), job, seed=7).traces)
    assert found.healthy
    assert [n for n in found.notes if "rank 5 takes" in n and "launch to launch" in n]
    usual = diagnose(generate("healthy", job, seed=7).traces)
    assert not any("launch to launch" in n for n in usual.notes)


@pytest.mark.parametrize(("kind", "seen"), [("frequency-drop-everywhere", True), ("healthy", False),
                                            ("slow-device-in-some-steps", False), ("slow-node", False)])  # fmt: skip
def test_like_kernels_tell_a_clock_that_drops_when_idle(kind, seen):
    job = TracedJob.of(16, layers=3, micro_batches=4, data_s=6e-4)
    made = generate(kind, job, seed=8)
    run = measure(made.traces.traces)
    found = following(run, list(range(16)), np.ones(run.wall_s.shape, bool))
    assert (found is not None) == seen
    if seen:
        assert found.near == pytest.approx(made.truth().size - 1, abs=0.1)
