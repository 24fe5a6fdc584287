"""The columns of a trace: built from records, selected, shifted, shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.diagnose.builder import MAX_PLACES, ProblemCounter, TraceBuilder, whole
from telekit.diagnose.trace import (
    COLUMNS,
    KINDS,
    OPERATIONS,
    Group,
    Lane,
    Table,
    Trace,
    TraceProblem,
    TraceSet,
)
from telekit.errors import InputError

RECORDS = [
    {"name": "gemm", "kind": "kernel", "start_s": 2.0, "end_s": 5.0, "correlation": 7},
    {"name": "cudaLaunchKernel", "kind": "launch", "start_s": 1.0, "end_s": 1.5, "correlation": 7},
    {"name": "ncclDevKernel_AllReduce", "kind": "communication", "start_s": 3.0, "end_s": 9.0, "bytes": 64,
     "group": Group("dp", 2, (0, 1)), "operation": "all-reduce", "sequence": 4, "lane": "20", "step": 1},
]  # fmt: skip


def test_records_become_columns_by_start():
    trace = Trace.of(RECORDS, rank=3, source="here")
    assert [trace.names[i] for i in trace.name] == ["cudaLaunchKernel", "gemm", "ncclDevKernel_AllReduce"]
    assert trace.start_s.tolist() == [1, 2, 3] and trace.end_s.tolist() == [1.5, 5, 9]
    assert trace.duration_s.tolist() == [0.5, 3, 6] and trace.span_s == (1, 9)
    assert trace.on_device.tolist() == [False, True, True]
    assert trace.is_kind("kernel", "communication").tolist() == [False, True, True]
    assert trace.named("NCCL|gemm").tolist() == [False, True, True]
    assert trace.correlation.tolist() == [7, 7, -1] and trace.step.tolist() == [-1, -1, 1]
    assert [OPERATIONS[i] for i in trace.operation] == ["", "", "all-reduce"]
    for name, kind in COLUMNS.items():
        assert getattr(trace, name).dtype == kind


def test_one_event_is_plain_values():
    event = Trace.of(RECORDS, rank=3).event(2)
    assert event == {"name": "ncclDevKernel_AllReduce", "kind": "communication", "start_s": 3.0, "end_s": 9.0,
                     "lane": "device 0 stream 20", "step": 1, "bytes": 64, "group": "dp", "operation": "all-reduce",
                     "rank": 3}  # fmt: skip


def test_selected_and_shifted_keep_names_and_metadata():
    trace = Trace.of(RECORDS, rank=3)
    kernels = trace.select(trace.is_kind("kernel")).shifted(10)
    assert len(kernels) == 1 and kernels.rank == 3 and kernels.names == trace.names
    assert kernels.span_s == (12, 15) and trace.span_s == (1, 9)


def test_of_one_start_the_outer_event_comes_first():
    records = [
        {"name": n, "kind": "host", "start_s": 0, "end_s": e} for n, e in (("in", 1), ("out", 3), ("mid", 2))
    ]
    trace = Trace.of(records)
    assert [trace.names[i] for i in trace.name] == ["out", "mid", "in"]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "gpu"},
        {"operation": "sum"},
        {"end_s": 1.0},
        {"start_s": float("nan")},
        {"end_s": float("inf")},
    ],
)
def test_bad_records_are_refused_by_name(change):
    with pytest.raises(InputError, match=r"records\.0\."):
        Trace.of([RECORDS[0] | change])
    with pytest.raises(InputError, match=r"records\.0\.name = missing"):
        Trace.of([{"kind": "host"}])


def test_an_empty_trace_answers():
    trace = Trace.of([])
    assert (
        len(trace) == 0
        and trace.span_s == (0, 0)
        and not trace.on_device.any()
        and not trace.named("x").any()
    )


def test_nanoseconds_since_1970_are_kept():
    builder = TraceBuilder()
    for start in (1_715_000_000_000_000_124, 1_715_000_000_000_000_123):
        builder.add(builder.name("a"), 0, start, start + 1, builder.lane(Lane("1")))
    trace = builder.build(base_ns=0)
    assert trace.base_ns == 1_715_000_000_000_000_123
    assert trace.start_s.tolist() == [0, 1e-9] and trace.end_s.tolist() == [1e-9, 2e-9]


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**30)), max_size=30))
def test_builder_keeps_every_event(times):
    builder = TraceBuilder()
    for number, (start, duration) in enumerate(times):
        builder.add(
            builder.name("x"), 0, start, start + duration, builder.lane(Lane("1")), correlation=number
        )
    trace = builder.build()
    zero = min((s for s, _ in times), default=0)
    for at, number in enumerate(trace.correlation.tolist()):
        start, duration = times[number]
        assert (
            trace.start_s[at] == (start - zero) / 1e9 and trace.end_s[at] == (start + duration - zero) / 1e9
        )
    assert (
        sorted(trace.correlation.tolist()) == list(range(len(times))) and (np.diff(trace.start_s) >= 0).all()
    )


def test_a_group_learns_what_it_was_not_told():
    builder = TraceBuilder()
    assert builder.group(Group("")) == -1
    assert builder.group(Group("tp")) == builder.group(Group("tp", 8, (), "tensor")) == 0
    assert builder.build().groups == (Group("tp", 8, (), "tensor"),)


def test_a_set_is_by_rank():
    traces = TraceSet.of([Trace.of([], rank=r) for r in (2, None, 0)], problems=(TraceProblem("bad"),))
    assert traces.ranks == (0, 2, None) and len(traces) == 3 and traces.rank(2).rank == 2
    assert len(traces.all_problems) == 1
    with pytest.raises(InputError, match="no trace is of this rank"):
        traces.rank(1)


def test_problems_are_counted_by_reason_with_a_few_places():
    counter = ProblemCounter()
    for number in range(20):
        counter.add("is odd", f"event {number}")
    counter.add("was mended", lost=False, count=3)
    odd, mended = counter.listed()
    assert odd.count == 20 and len(odd.places) == MAX_PLACES and odd.lost and len(counter) == 2
    assert (
        str(odd) == "20: is odd (event 0, event 1, event 2, event 3, event 4, …)"
        and str(mended) == "3: was mended"
    )


@pytest.mark.parametrize(
    ("value", "found"),
    [(5, 5), ("5", 5), ("0x1f", 31), ("5.0", 5), (5.9, 5), (None, -1), ([], -1), ("x", -1), (True, -1), (2**70, -1),
     (float("nan"), -1), ("9" * 39, -1), ("1e400", -1)],
)  # fmt: skip
def test_whole_numbers_of_any_dress(value, found):
    assert whole(value) == found


def test_a_table_counts_rows():
    assert len(Table("steps", {"a": np.zeros(3)})) == 3 and len(Table("steps", {}, {"b": ("x",)})) == 1
    assert len(Table("steps", {})) == 0 and len(KINDS) == 8
