"""Faults that public trace tools had, each with its right answer (recomputed by hand)."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from telekit.diagnose.analysis.breakdown import by_stream
from telekit.diagnose.analysis.clocks import align
from telekit.diagnose.analysis.collectives import match
from telekit.diagnose.analysis.intervals import overlaps
from telekit.diagnose.analysis.launches import launch_queue
from telekit.diagnose.analysis.repair import repaired
from telekit.diagnose.analysis.steps import find_steps
from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.readers import read
from telekit.diagnose.readers.classify import is_communication
from telekit.diagnose.rules.outliers import persistent
from telekit.diagnose.trace import KINDS, Group, Trace, TraceSet
from telekit.errors import InputError

US = 1e-6


def kernel(start, end, name="gemm", **more):
    return {"name": name, "kind": "kernel", "start_s": start, "end_s": end, **more}


def reduce(start, end, **more):
    more = {"operation": "all-reduce", "group": Group("world", 4)} | more
    return {
        "name": "ncclDevKernel_AllReduce",
        "kind": "communication",
        "start_s": start,
        "end_s": end,
        **more,
    }


def written(folder, events, name="rank0.json", **rest):
    path = folder / name
    text = json.dumps({"traceEvents": events, **rest})
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


def test_cd01_own_compute_is_the_wall_without_waiting():
    """Of four ranks' phases of 293 ms, one waits 1 ms inside collectives and the others 200: it is the slow one."""
    traces = []
    for rank, compute in enumerate([0.093, 0.2912, 0.093, 0.0931]):
        records = []
        for step in range(5):
            t = step * 0.3
            records += [kernel(t, t + compute, step=step), reduce(t + compute, t + 0.2922, step=step)]
        traces.append(Trace.of(records, rank=rank, world_size=4))
    found = diagnose(traces)
    assert (found.verdict, found.findings[0].ranks, found.findings[0].cause) == (
        "slow device",
        (1,),
        "device",
    )
    waiting = [r.seconds["waiting"] for r in found.ranks]
    assert waiting == pytest.approx([0.1982, 0, 0.1982, 0.1981], abs=1e-9)
    own = np.array([r.own_s for r in found.ranks])
    assert own - own.min() == pytest.approx([0, 0.1982, 0, 0.0001], abs=1e-9)
    assert [o.row for o in persistent(own[:, None], 0.01, 1e-3)] == [1]
    assert persistent(found.run.wall_s, 0.01, 1e-3) == []  # the walls alone tell nothing


def test_cd03_all_spellings_of_nccl_are_communication(tmp_path):
    names = ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclKernel_x", "gemm"]
    assert [is_communication(n) for n in names] == [True, True, False]
    events = [
        {"ph": "X", "cat": "kernel", "name": n, "pid": 0, "tid": 7, "ts": 100 * i, "dur": 50}
        for i, n in enumerate(names)
    ]
    trace = read(written(tmp_path, events)).traces[0]
    kinds = {trace.names[n]: KINDS[k] for n, k in zip(trace.name, trace.kind, strict=True)}
    assert [kinds[n] for n in names] == ["communication", "communication", "kernel"]


def test_cd03_a_trace_without_communication_is_noted():
    traces = [Trace.of([kernel(0, 1)], rank=r, world_size=4) for r in range(4)]
    assert any("no communication kernel" in note for note in diagnose(traces).notes)


def test_cd05_busy_is_a_union():
    records = [kernel(0, 10, lane="a"), kernel(5, 12, lane="b"), kernel(20, 25, lane="b")]
    found = overlaps({"kernels": ([0, 5, 20], [10, 12, 25])}, (0, 30))
    assert found == {("kernels",): 17, (): 13}
    assert found[()] / 30 == pytest.approx(0.433, abs=5e-4)
    streams = by_stream(Trace.of(records), (0, 30))
    assert sorted(s["busy_s"] for s in streams.values()) == [10, 12]


def test_cd06_a_stream_runs_one_kernel_at_a_time():
    records = [kernel(0, 3.4, "k1"), kernel(100 * US, 150 * US, "k2"), kernel(160 * US, 200 * US, "k3")]
    trace = repaired(Trace.of(records))
    assert trace.duration_s.sum() == pytest.approx(190 * US)
    assert trace.end_s[0] == pytest.approx(100 * US)
    assert [(p.count, p.lost) for p in trace.problems] == [(1, False)]


def test_cd08_text_times_keep_nanoseconds(tmp_path):
    base = 1715000000000000
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": f"{base}.123", "dur": 0.4},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": f"{base + 1}.125", "dur": 0.4},
    ]
    trace = read(written(tmp_path, events)).traces[0]
    assert trace.start_s[1] - trace.start_s[0] == pytest.approx(1.002e-6, abs=1e-12)
    assert trace.duration_s == pytest.approx([0.4e-6] * 2, abs=1e-12)
    assert float(f"{base + 1}.125") - float(f"{base}.123") != pytest.approx(1.002, abs=1e-3)  # the naive way


def test_cd09_ranks_without_numbers_are_not_compared():
    traces = [Trace.of([kernel(0, 1)], source=name) for name in ("a.json", "b.json")]
    with pytest.raises(InputError, match="does not say its rank"):
        diagnose(traces)
    assert diagnose(traces[0]).ranks[0].rank is None


def test_cd09_rank_from_the_file_name(tmp_path):
    events = [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}]
    assert read(written(tmp_path, events, "trace_rank3.json")).traces[0].rank == 3


def test_cd11_broken_strings_are_read(tmp_path):
    names = [b"a\x01b", b"C:\\path", b"\xff"]
    event = b'{"ph":"X","cat":"kernel","name":"%s","pid":0,"tid":7,"ts":%d,"dur":1}'
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents":[' + b",".join(event % (n, 9 * i) for i, n in enumerate(names)) + b"]}")
    trace = read(path).traces[0]
    assert len(trace) == 3
    assert sum(p.count for p in trace.problems if not p.lost) >= 1
    assert not any(p.lost for p in trace.problems)


def test_cd13_a_bare_list_with_a_text_for_a_process(tmp_path):
    event = {
        "name": "aten::mul",
        "ph": "X",
        "ts": 633,
        "dur": 54,
        "tid": 1,
        "pid": "CPU functions",
        "args": {},
    }
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps([event]))
    trace = read(path).traces[0]
    assert trace.event(0)["name"] == "aten::mul"
    assert trace.duration_s[0] == pytest.approx(54 * US)


def test_cd14_clocks_are_aligned_by_common_ends():
    """Rank 1's clock is 11.56 s ahead and it starts 1.6 ms late: the offset is found, the lateness kept."""
    starts = {0: 0.0, 1: 1.6e-3}
    traces = []
    for rank, late in starts.items():
        ahead = 11.56 * rank
        records = [reduce(i + late + ahead, i + 0.01 + ahead, step=0) for i in range(8)]
        traces.append(Trace.of(records, rank=rank))
    clocks = align(traces, match(traces, [find_steps(t) for t in traces]))
    assert clocks.offset_s[1] == pytest.approx(11.56, abs=1e-9)
    skew = clocks.common_s(1, traces[1].start_s[0]) - clocks.common_s(0, traces[0].start_s[0])
    assert skew == pytest.approx(1.6e-3, abs=1e-9)


def test_cd14_without_anchors_times_are_not_compared():
    traces = [Trace.of([kernel(0, 1)], rank=r) for r in range(2)]
    with pytest.raises(InputError, match="no collective in common and no base time"):
        align(traces, match(traces, [find_steps(t) for t in traces]))
    assert any("not compared" in n for n in diagnose(traces).notes)
    based = [Trace.of([kernel(0, 1)], rank=r, base_ns=10**18 + 5 * 10**8 * r) for r in range(2)]
    assert align(based, match(based, [find_steps(t) for t in based])).common_s(1, 0.0) == pytest.approx(0.5)


def test_cd16_steps_without_kernels_are_left_out():
    records = []
    for step in range(50):
        records.append(
            {"name": f"ProfilerStep#{step}", "kind": "host", "start_s": step, "end_s": step + 1, "step": step}
        )
        if step >= 2:
            records.append(kernel(step + 0.1, step + 0.6, step=step))
    trace = Trace.of(records, rank=0)
    steps = find_steps(trace)
    assert (len(steps.number), steps.incomplete) == (50, (0, 1))
    summary = diagnose(trace).ranks[0]
    assert summary.incomplete == (0, 1)
    assert summary.seconds["compute"] == pytest.approx(0.5)  # 0.48 with the empty ones


def test_cd17_rotating_pauses_are_the_hosts():
    late = [3, 0, 2, 1, 3]
    traces = []
    for rank in range(4):
        records = []
        for step, who in enumerate(late):
            t = step * 0.76
            own = t + (0.4 if rank == who else 0.0)  # a gap on the host, and no kernel
            records.append({"name": "cudaLaunchKernel", "kind": "launch", "start_s": own, "end_s": own + 1e-5,
                            "step": step, "correlation": 2 * step})  # fmt: skip
            records.append(kernel(own + 1e-5, own + 0.3, step=step, correlation=2 * step))
            records.append(reduce(own + 0.3, t + 0.75, step=step, group=Group("dp", 4)))
            records.append({"name": f"ProfilerStep#{step}", "kind": "host", "start_s": t, "end_s": t + 0.76})
        traces.append(Trace.of(records, rank=rank, world_size=4))
    found = diagnose(TraceSet.of(traces))
    first = found.findings[0]
    assert (first.kind, first.cause, set(first.ranks)) == ("pause", "host", {0, 1, 2, 3})
    assert "garbage collection" in first.detail
    assert "all ranks" in first.advice
    assert not any(f.cause == "device" for f in found.findings)


def test_cd19_overlap_of_three_groups():
    found = overlaps({"C": ([0], [10]), "A": ([5], [15]), "R": ([8], [20])}, (0, 25))
    right = {("C",): 5, ("C", "A"): 3, ("C", "A", "R"): 2, ("A", "R"): 5, ("R",): 5, (): 5}
    assert found == right


@pytest.mark.parametrize(
    ("kernel_us", "busy", "growth_us", "bound"), [(5, 0.417, 0, "host"), (20, 1.0, 8, "device")]
)
def test_cd20_host_bound_or_device_bound(kernel_us, busy, growth_us, bound):
    records, free = [], 0.0
    for i in range(100):
        launched = i * 12 * US
        start = max(launched, free)
        free = start + kernel_us * US
        records.append({"name": "launch", "kind": "launch", "start_s": launched - US, "end_s": launched,
                        "correlation": i})  # fmt: skip
        records.append(kernel(start, free, correlation=i))
    queue = launch_queue(Trace.of(records))
    assert queue.busy_share == pytest.approx(busy, abs=5e-4)
    assert queue.delay_growth_s == pytest.approx(growth_us * US, abs=1e-9)
    assert queue.bound == bound
    assert (queue.delay_s.max() < 1e-9) == (bound == "host")
