"""The simulated job: against closed forms and a ring written out by hand; what a fault may and may not change."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.diagnose.mycroft.faults import FAULT_KINDS, Fault, draw_fault
from telekit.diagnose.mycroft.job import DP, RingJob, groups_of
from telekit.diagnose.mycroft.program import program
from telekit.diagnose.mycroft.telemetry import logged_s, simulate
from telekit.errors import InputError

RING = RingJob(tp=1, pp=1, dp=4, micro_batches=2, iterations=2, jitter=0.0)
SMALL = RingJob(iterations=3)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_of_one_chunk_a_step_takes_its_closed_form(ranks):
    job = replace(RING, dp=ranks, ring_chunks=1)
    part = job.dp_bytes / ranks
    step_s = part / job.copy_bytes_per_s + part / job.rdma_bytes_per_s + job.latency_s
    compute_s = 2 * (job.forward_s + job.backward_s)
    logs = simulate(job)
    assert logs.horizon_s == pytest.approx(2 * (compute_s + 2 * (ranks - 1) * step_s))


@pytest.mark.parametrize(("pp", "batches"), [(1, 4), (2, 4), (4, 8), (4, 2)])
def test_a_pipeline_without_communication_takes_its_closed_form(pp, batches):
    tiny = {"tp_bytes": 1.0, "pp_bytes": 1.0, "dp_bytes": 1.0, "latency_s": 1e-12}
    job = RingJob(tp=1, pp=pp, dp=2, micro_batches=batches, iterations=1, jitter=0.0, **tiny)
    expected = (batches + pp - 1) * (job.forward_s + job.backward_s)
    assert simulate(job).horizon_s == pytest.approx(expected, abs=1e-6)


def _ring_by_hand(job, compute_s, fault=None):
    """Done times [rank][chunk] of one ring, all ranks entering when their compute ends; slow or dead from a time."""
    count, ahead = job.dp, job.ring_chunks
    chunks = 2 * (count - 1) * ahead
    size = job.dp_bytes / count / ahead
    took = {"copy": size / job.copy_bytes_per_s, "wire": size / job.rdma_bytes_per_s, "arrive": job.latency_s}
    hits = {
        "pcie-slow": "copy",
        "gpu-hang": "copy",
        "nic-slow": "wire",
        "nic-down": "wire",
        "link-lost": "arrive",
    }

    def end(rank, role, begin, chunk):
        seconds = took[role]
        hit = fault and fault.rank == rank and hits.get(fault.kind) == role and begin >= fault.start_s
        if hit and not (fault.kind == "gpu-hang" and chunk == 0):
            seconds = math.inf if FAULT_KINDS[fault.kind].stops else seconds * fault.factor
        return begin + seconds

    copied, sent, done = (np.full((count, chunks), np.nan) for _ in range(3))
    for chunk in range(chunks):
        for rank in range(count):
            before = [table[rank, chunk - 1] if chunk else 0.0 for table in (copied, sent, done)]
            came = done[rank - 1, chunk - ahead] if chunk >= ahead else compute_s
            copied[rank, chunk] = end(rank, "copy", max(before[0], came), chunk)
            sent[rank, chunk] = end(rank, "wire", max(before[1], copied[rank, chunk]), chunk)
            done[rank, chunk] = end(rank, "arrive", max(before[2], sent[rank, chunk]), chunk)
    return np.stack([copied, sent, done], axis=-1)


@pytest.mark.parametrize("kind", [None, "pcie-slow", "gpu-hang", "nic-slow", "nic-down", "link-lost"])
@pytest.mark.parametrize("into_s", [0.0, 0.05, 0.13])
def test_a_ring_equals_one_written_by_hand(kind, into_s):
    job = replace(RING, iterations=1)
    compute_s = 2 * (job.forward_s + job.backward_s)
    fault = Fault(kind, 2, compute_s + into_s, 5.0) if kind else None
    logs = simulate(job, fault or ())
    np.testing.assert_allclose(logs.chunk_s, _ring_by_hand(job, compute_s, fault), rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(FAULT_KINDS)), st.integers(0, 999), st.floats(0, 3))
def test_counters_are_in_order_and_the_past_is_as_without_the_fault(kind, seed, start_s):
    fault = replace(draw_fault(kind, SMALL, seed), start_s=start_s)
    logs, healthy = simulate(SMALL, fault, seed), simulate(SMALL, (), seed)
    ready, transmitted, done = np.moveaxis(logs.chunk_s, -1, 0)
    assert (ready <= transmitted).all() and (transmitted <= done).all()
    assert (logs.chunk_s >= healthy.chunk_s).all() and (logs.end_s >= healthy.end_s).all()
    before = healthy.chunk_s <= start_s
    np.testing.assert_array_equal(logs.chunk_s[before], healthy.chunk_s[before])
    if not fault.stops or start_s < 1:
        assert np.isinf(logs.end_s).any() == fault.stops


def test_every_flow_ends_and_counts_all_its_chunks():
    logs = simulate(SMALL)
    flows = logs.program.flows
    assert np.isfinite(logs.end_s).all() and (logs.start_s <= logs.end_s).all()
    for flow in range(0, flows.source.size, 7):
        counts = logs.counters(flow, logs.horizon_s)
        assert counts.ready == counts.transmitted == counts.done == counts.chunks == flows.chunks[flow]
    times = np.linspace(0, logs.horizon_s, 50)
    history = logs.history(3, times)
    assert [tuple(row) for row in history.tolist()] == [logs.counters(3, t)[:3] for t in times]
    assert logs.last_change_s(3, 0.0) == -math.inf
    assert logs.last_change_s(3, logs.horizon_s) == logs.chunk_s[3][np.isfinite(logs.chunk_s[3])].max()


def test_calls_of_a_meeting_are_those_of_one_group():
    logs = simulate(SMALL)
    calls, groups = logs.program.calls, groups_of(SMALL)
    rings = {tuple(row) for name in ("tp", "dp") for row in groups[name].tolist()}
    pairs = {frozenset((a, b)) for row in groups["pp"].tolist() for a, b in pairwise(row)}
    for row in logs.members:
        ranks = calls.rank[row[row >= 0]].tolist()
        assert tuple(ranks) in rings or frozenset(ranks) in pairs
    assert (np.bincount(calls.rank[calls.kind == DP]) == SMALL.iterations).all()


def test_state_log_times():
    assert logged_s(1.2345) == pytest.approx(1.2)
    assert logged_s(0.3) == pytest.approx(0.3), "0.3 / 0.1 is a little below 3"


def test_a_job_is_written_out_once():
    assert program(RingJob(iterations=2)) is program(RingJob(iterations=2))


def test_bad_inputs_are_named():
    with pytest.raises(InputError, match=r"2 problems(.|\n)*job\.tp(.|\n)*job\.latency_s"):
        RingJob(tp=0, latency_s=-1)
    with pytest.raises(InputError, match="tp \\* pp \\* dp"):
        RingJob(tp=1, pp=1, dp=1)
    with pytest.raises(InputError, match="iterations"):
        RingJob(iterations=10_000)
    with pytest.raises(InputError, match=r"fault\.kind(.|\n)*fault\.factor"):
        Fault("moth", 0, 1.0, 0.5)
    with pytest.raises(InputError, match=r"fault\.rank"):
        simulate(SMALL, Fault("nic-down", 99, 1.0))
    with pytest.raises(InputError, match="stages or data ranks"):
        simulate(RingJob(tp=4, pp=1, dp=1, iterations=1), Fault("nic-down", 0, 1.0))
