"""Intervals, steps, categories, launches, clocks and the critical path of the analysis, each against an oracle."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_job import Toy

from telekit.diagnose.analysis.breakdown import CATEGORIES, break_down, idle_event, longest_of
from telekit.diagnose.analysis.clocks import align
from telekit.diagnose.analysis.collectives import identify, match, places
from telekit.diagnose.analysis.critical import critical_path, critical_step
from telekit.diagnose.analysis.intervals import overlaps, union
from telekit.diagnose.analysis.repair import repaired
from telekit.diagnose.analysis.steps import find_steps
from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.rules.outliers import persistent, transient
from telekit.diagnose.trace import Trace
from telekit.errors import InputError

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=12)


def arrays(pairs):
    start = np.array([p[0] for p in pairs], float)
    return start, start + np.array([p[1] for p in pairs], float)


def covered(pairs, second):
    return any(s <= second < s + n for s, n in pairs)


@given(PAIRS)
def test_union_against_counting_seconds(pairs):
    start, end = union(*arrays(pairs))
    assert (end - start).sum() == sum(covered(pairs, t) for t in range(60))
    assert (start[1:] > end[:-1]).all()


@given(PAIRS, PAIRS)
def test_overlaps_against_counting_seconds(a, b):
    found = overlaps({"a": arrays(a), "b": arrays(b)}, (0, 60))
    for names in ((), ("a",), ("b",), ("a", "b")):
        right = sum(("a" in names) == covered(a, t) and ("b" in names) == covered(b, t) for t in range(60))
        assert found.get(names, 0) == right


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-(2**60), 2**60)), max_size=30))
def test_identify_numbers_distinct_rows(rows):
    columns = [np.array(c, np.int64) for c in zip(*rows, strict=True)] or [np.zeros(0, np.int64)] * 2
    number, first = identify(*columns)
    assert [rows[first[n]] for n in number] == rows
    assert len(first) == len(set(rows))
    assert places(*columns).tolist() == [rows[:i].count(row) for i, row in enumerate(rows)]


@pytest.mark.parametrize("shape", [(4, 1, 2), (2, 2, 2)])
def test_categories_add_up_to_the_wall(shape):
    found = diagnose(Toy(*shape, steps=4, heavy=True, jitter=0.1).run())
    for broken in found.run.breakdowns:
        assert broken.seconds.sum(axis=1) == pytest.approx(broken.wall_s, rel=1e-9)
    for rank in found.ranks:
        assert sum(rank.seconds.values()) == pytest.approx(rank.step_s, rel=1e-9)


def test_categories_of_a_trace_made_by_hand():
    """Twelve seconds: load, compute, overlap, communicate, launch, two silent, copy, compute."""
    of = [("load", "data", 0, 1), ("k", "kernel", 1, 5), ("nccl", "communication", 4, 7), ("launch", "launch", 7, 8),
          ("copy", "copy", 10, 11), ("k", "kernel", 11, 12)]  # fmt: skip
    records = [{"name": n, "kind": k, "start_s": s, "end_s": e} for n, k, s, e in of]
    records[2]["lane"] = "stream 2"
    for r in (records[1], records[4], records[5]):
        r["lane"] = "stream 1"
    trace = Trace.of(records)
    found = break_down(trace, find_steps(trace)).total_s()
    right = {"data": 1, "compute": 4, "overlap": 1, "transfer": 2, "launch": 1, "silent": 2, "copy": 1}
    assert {k: v for k, v in found.items() if v} == right
    assert tuple(found) == CATEGORIES


@pytest.mark.skipif(
    "TELEKIT_SAMPLES" not in os.environ, reason="TELEKIT_SAMPLES names no folder of real traces"
)
def test_categories_of_real_traces_add_up():
    files = sorted((Path(os.environ["TELEKIT_SAMPLES"]) / "samples" / "traces").iterdir())
    assert len(files) >= 10
    for path in files:
        found = diagnose(path)
        for broken in found.run.breakdowns:
            assert broken.seconds.sum() == pytest.approx(broken.wall_s.sum(), rel=1e-3)
        json.dumps(found.to_dict(), allow_nan=False)


def test_steps_by_what_recurs():
    records = []
    for step in range(5):
        t = step * 10.0
        for i in range(6):
            records.append({"name": "gemm", "kind": "kernel", "start_s": t + i, "end_s": t + i + 0.5})
        records.append({"name": "adam", "kind": "kernel", "start_s": t + 7, "end_s": t + 8})
    steps = find_steps(Trace.of(records))
    assert steps.found_by == "every adam"
    assert np.diff(steps.edges_s)[:-1] == pytest.approx([10] * 4)
    assert find_steps(Trace.of(records[:2])).found_by == "whole trace"


def test_a_frame_that_outlasts_its_step_does_not_lengthen_it():
    """A profiler's own frame begins before the last step's mark ends, and stops the profiler 8 s after it."""
    records = [
        {"name": f"ProfilerStep#{s}", "kind": "host", "start_s": 3.0 * s, "end_s": 3.0 * s + 3}
        for s in range(2)
    ]
    records += [
        {"name": "profiler.py: step", "kind": "host", "start_s": 5.9, "end_s": 14.0},
        {"name": "stop_trace", "kind": "host", "start_s": 7.0, "end_s": 14.0},
    ]
    steps = find_steps(Trace.of(records, rank=0))
    assert steps.edges_s.tolist() == [0, 3, 6]
    records += [
        {"name": "launch", "kind": "launch", "start_s": 5.0, "end_s": 5.1, "correlation": 1},
        {"name": "gemm", "kind": "kernel", "start_s": 5.5, "end_s": 7.5, "correlation": 1},
    ]
    assert find_steps(Trace.of(records, rank=0)).edges_s[-1] == 7.5, "its device may still be at work"


def test_steps_of_kernels_follow_their_launch():
    """The host launches step 1's kernel in step 1; the device runs it after step 2 began."""
    records = [
        {"name": f"ProfilerStep#{s}", "kind": "host", "start_s": s, "end_s": s + 1.0} for s in range(3)
    ]
    for s in range(3):
        records += [
            {"name": "l", "kind": "launch", "start_s": s + 0.1, "end_s": s + 0.2, "correlation": s},
            {
                "name": "k",
                "kind": "kernel",
                "start_s": 1.3 * s + 0.5,
                "end_s": 1.3 * s + 1.7,
                "correlation": s,
            },
        ]
    trace = Trace.of(records)
    steps = find_steps(trace)
    assert steps.of_event[trace.is_kind("kernel")].tolist() == [0, 1, 2]
    assert steps.edges_s == pytest.approx([0, 1.7, 3.0, 4.3])


@pytest.mark.parametrize("seed", range(4))
def test_clocks_of_a_job(seed):
    job = Toy(4, 1, 4, steps=5, seed=seed)
    found = diagnose(job.run())
    clocks = found.clocks
    assert len(set(clocks.part.tolist())) == 1
    for rank, trace in enumerate(found.run.traces):
        last = trace.named("nccl")
        common = clocks.common_s(rank, trace.end_s[last][-1:])
        first = found.run.traces[0]
        own = clocks.common_s(0, first.end_s[first.named("nccl")][-1:])
        if rank % 4 == 0:  # of rank 0's last group
            assert common == pytest.approx(own, abs=2e-6)
    assert clocks.drift - clocks.drift[0] == pytest.approx(job.drifts - job.drifts[0], abs=3e-6)


def test_a_clock_that_was_set_is_no_fault():
    found = diagnose(Toy(4, 1, 4, seed=3, faults={"jump": {"ranks": [4], "seconds": 0.03}}).run())
    assert found.healthy
    assert [(j.trace, round(j.by_s, 4)) for j in found.clocks.jumps] == [(4, 0.03)]
    assert any("not a fault" in n for n in found.notes)


def test_waits_need_more_than_one_rank():
    trace = Trace.of(
        [{"name": "nccl", "kind": "communication", "start_s": 0, "end_s": 1, "group": "g"}] * 2, rank=0
    )
    matched = match([trace], [find_steps(trace)])
    assert matched.wait_s.tolist() == [0, 0]


def test_critical_path_over_host_and_device():
    """The first kernel is long (the next waits for it), the third waits for its launch."""
    records = []
    for i, (launch, start, end) in enumerate([(0.1, 0.1, 1.0), (0.2, 1.0, 1.5), (2.0, 2.0, 2.4)]):
        records += [
            {"name": "l", "kind": "launch", "start_s": launch - 0.1, "end_s": launch, "correlation": i},
            {"name": f"k{i}", "kind": "kernel", "start_s": start, "end_s": end, "correlation": i},
        ]
    path = critical_path(repaired(Trace.of(records)))
    assert sum(path.seconds().values()) == pytest.approx(2.4)
    assert path.seconds()["kernel"] == pytest.approx(0.9 + 0.5 + 0.4)
    edges = [(a.end_s, b.start_s) for a, b in zip(path.links, path.links[1:], strict=False)]
    assert all(a == pytest.approx(b) for a, b in edges)


def test_a_host_on_the_critical_path_is_split_by_what_it_does():
    """Between two kernels the host loads for 3 s, is silent for 1, runs an operator for 4 and launches for 2.5."""
    records = [
        {"name": "launch", "kind": "launch", "start_s": 0.0, "end_s": 0.5, "correlation": 0},
        {"name": "a", "kind": "kernel", "start_s": 0.5, "end_s": 2.0, "correlation": 0},
        {"name": "DataLoader.__next__", "kind": "data", "start_s": 2.0, "end_s": 5.0},
        {"name": "aten::mm", "kind": "host", "start_s": 6.0, "end_s": 12.5},
        {"name": "launch", "kind": "launch", "start_s": 10.0, "end_s": 12.5, "correlation": 1},
        {"name": "b", "kind": "kernel", "start_s": 12.5, "end_s": 13.0, "correlation": 1},
    ]
    path = critical_path(Trace.of(records))
    assert path.seconds() == pytest.approx(
        {"launch": 0.5 + 2.5, "kernel": 2.0, "data": 3.0, "idle": 1.0, "host": 4.0}
    )
    for before, after in itertools.pairwise(path.links):
        assert before.end_s == after.start_s


def test_a_window_cuts_the_critical_path():
    """Of a kernel from 0 to 4 and the next from 5 to 9, a window from 3 to 6 sees a second each, and one between."""
    records = [
        {"name": "a", "kind": "kernel", "start_s": 0.0, "end_s": 4.0},
        {"name": "b", "kind": "kernel", "start_s": 5.0, "end_s": 9.0},
    ]
    path = critical_path(Trace.of(records), (3.0, 6.0))
    assert [(link.kind, link.start_s, link.end_s) for link in path.links] == [
        ("kernel", 3.0, 4.0), ("idle", 4.0, 5.0), ("kernel", 5.0, 6.0)]  # fmt: skip
    assert path.names_s == {"a": 1.0, "b": 1.0}


def test_the_critical_path_told_is_of_the_rank_that_the_others_wait_for():
    found = diagnose(
        generate("slow-device", TracedJob.of(16, layers=1, micro_batches=2, steps=4), seed=3).traces
    )
    told, (rank,) = found.critical, found.findings[0].ranks
    assert told.rank == rank and told.step in found.run.number
    seconds = told.to_dict()["seconds"]
    row, column = found.run.ranks.tolist().index(rank), found.run.number.tolist().index(told.step)
    assert sum(seconds.values()) == pytest.approx(found.run.wall_s[row, column])
    assert seconds["kernel"] + seconds["communication"] > 0.9 * sum(seconds.values())
    assert list(told.to_dict()["longest_s"].values()) == sorted(told.path.names_s.values(), reverse=True)[:8]
    assert str(told).startswith(f"critical path of rank {rank}, step {told.step} (") and "kernel" in str(told)
    assert critical_step(found.run, 0).step == found.run.number[0]
    nothing = Trace.of([{"name": "aten::mm", "kind": "host", "start_s": 0, "end_s": 1}], rank=0)
    assert diagnose(nothing).critical is None and diagnose(nothing).to_dict()["critical_path"] is None


def test_streams_and_what_runs_together_add_up_to_the_time():
    """Kernels from 0 to 4 and 6 to 8, an all-reduce from 3 to 7 on another stream, a copy from 9 to 10."""
    records = [
        {"name": "a", "kind": "kernel", "start_s": 0.0, "end_s": 4.0},
        {
            "name": "nccl",
            "kind": "communication",
            "start_s": 3.0,
            "end_s": 7.0,
            "lane": "9",
            "operation": "all-reduce",
        },
        {"name": "b", "kind": "kernel", "start_s": 6.0, "end_s": 8.0},
        {"name": "c", "kind": "copy", "start_s": 9.0, "end_s": 10.0, "lane": "9"},
    ]
    told = diagnose(Trace.of(records, rank=0)).ranks[0].to_dict()
    assert told["together_s"] == {
        "kernel": 4,
        "all-reduce": 2,
        "kernel and all-reduce": 2,
        "copy": 1,
        "idle": 1,
    }
    assert told["streams"] == {"device 0 stream 7": {"busy_s": 6, "idle_s": 4},
                               "device 0 stream 9": {"busy_s": 5, "idle_s": 5}}  # fmt: skip


def test_the_longest_time_of_what_a_host_did():
    """It loads for 3 s and launches for 2 s, twice: each is asked for by itself."""
    records = [{"name": f"k{a}", "kind": "kernel", "start_s": a, "end_s": a + 1} for a in (0, 4, 9, 12)]
    records += [
        {"name": "DataLoader.__next__", "kind": "data", "start_s": 1.0, "end_s": 4.0},
        {"name": "cudaLaunchKernel", "kind": "launch", "start_s": 6.0, "end_s": 8.0},
        {"name": "cudaLaunchKernel", "kind": "launch", "start_s": 10.5, "end_s": 12.0},
        {"name": "aten::mm", "kind": "host", "start_s": 5.5, "end_s": 6.5},
    ]
    trace = Trace.of(records, rank=0)
    steps = find_steps(trace)
    assert longest_of(trace, steps, 0, ("data",)) == (1.0, 3.0)
    assert longest_of(trace, steps, 0, ("launch",)) == (6.0, 2.0)
    assert longest_of(trace, steps, 0, ("launch", "host", "silent")) == (5.0, 4.0)
    assert longest_of(trace, steps, 0, ("checkpoint",)) == (0.0, 0.0)
    assert idle_event(trace, 5.0, 9.0, ("launch", "host", "silent"))["name"] == "cudaLaunchKernel"


def test_outliers_in_noise():
    noise = np.random.default_rng(0).normal(0, 0.01, (64, 8))
    assert persistent(noise, 0.01, 0.001) == [] and transient(noise, 0.02, 0.001) == []
    slow, spike = noise.copy(), noise.copy()
    slow[7] += 0.1
    spike[9, 3] += 0.3
    assert [(o.row, o.persistent) for o in persistent(slow, 0.01, 0.001)] == [(7, True)]
    assert [(o.row, o.steps) for o in transient(spike, 0.08, 0.001)] == [(9, (3,))]


def test_outliers_in_heavy_tails_are_rare():
    """Pareto noise of shape 3: of 100 runs at most 5 have an extreme of their own called a fault."""
    random = np.random.default_rng(1)
    found = [len(transient(0.01 * random.pareto(3, (128, 6)), 0.06, 0.002)) for _ in range(100)]
    assert sum(n > 0 for n in found) <= 5


def test_bad_input_is_refused():
    trace = Trace.of([{"name": "k", "kind": "kernel", "start_s": 0, "end_s": 1}], rank=1)
    with pytest.raises(InputError, match="no event can be used"):
        diagnose(Trace.of([]))
    with pytest.raises(InputError, match="is the rank of 2 traces"):
        diagnose([trace, trace])
    with pytest.raises(InputError, match="ranks_per_node"):
        diagnose(trace, ranks_per_node=0)


def test_align_refuses_without_anchors():
    traces = [Trace.of([{"name": "k", "kind": "kernel", "start_s": 0, "end_s": 1}], rank=r) for r in range(2)]
    with pytest.raises(InputError, match="cannot be aligned"):
        align(traces, match(traces, [find_steps(t) for t in traces]))
