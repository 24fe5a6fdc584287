"""Chrome traces: what Kineto and Ascend write, and what befalls such files."""

import gzip
import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.diagnose.readers import read
from telekit.diagnose.readers.classify import is_communication, kind_of, operation
from telekit.diagnose.readers.times import nanoseconds
from telekit.diagnose.trace import KINDS, OPERATIONS
from telekit.errors import InputError


def written(tmp_path, content, name="trace.json"):
    path = tmp_path / name
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def one(tmp_path, content, name="trace.json", **rest):
    return read(written(tmp_path, content, name), **rest).traces[0]


def event(**change):
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 1, "ts": 10, "dur": 5} | change


def kernel(**change):
    return event(cat="kernel", name="gemm", pid=0, tid=7) | change


def names(trace):
    return [trace.names[i] for i in trace.name]


def kinds(trace):
    return [KINDS[i] for i in trace.kind]


def reasons(trace):
    return " | ".join(p.reason for p in trace.problems)


def test_a_bare_list_with_a_text_for_the_process(tmp_path):
    """CD13, pytorch/kineto issue 728."""
    text = '[{"name":"aten::mul","ph":"X","ts":633,"dur":54,"tid":1,"pid":"CPU functions","args":{}}]'
    trace = one(tmp_path, text)
    assert names(trace) == ["aten::mul"] and trace.duration_s.tolist() == [54e-6] and not trace.problems
    assert trace.lanes[0].process == "CPU functions"


def test_times_as_text_keep_their_nanoseconds(tmp_path):
    """CD08, Ascend/pytorch issue 133: as a float, a time in microseconds since 1970 moves in steps of 0.25."""
    rows = [event(ts="1715000000000000.123", dur=0.4), event(ts="1715000000000000.124", dur="0.4", name="b")]
    trace = one(tmp_path, rows)
    assert trace.base_ns == 1_715_000_000_000_000_123
    assert trace.start_s.tolist() == [0, 1e-9] and trace.end_s.tolist() == [400e-9, 401e-9]
    bare = json.dumps(rows).replace('"1715000000000000.123"', "1715000000000000.123")
    assert one(tmp_path, bare).start_s.tolist() == [0, 1e-9]


@given(st.decimals(-(10**12), 10**12, places=3, allow_nan=False), st.sampled_from([1, 1000, 1_000_000]))
def test_nanoseconds_are_the_decimal_digits(value, unit):
    expected = int((value * unit).to_integral_value())
    assert nanoseconds(str(value), unit) == expected
    assert nanoseconds(f" {value}0 ", unit) == expected


@pytest.mark.parametrize(
    "value", [None, "", "x", "nan", "inf", "1e400", [], True, float("nan"), 10**30, "9" * 200]
)
def test_what_is_no_time_is_refused(value):
    with pytest.raises(ValueError, match=r"number|range"):
        nanoseconds(value)


@pytest.mark.parametrize(
    ("name", "category", "kind", "device"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel", "communication", True),
        ("ncclKernel_x", "kernel", "communication", True),
        ("gemm", "kernel", "kernel", True),
        ("void at::native::reduce_kernel<512>", "kernel", "kernel", True),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "copy", True),
        ("Memset (Device)", "gpu_memset", "copy", True),
        ("Stream Sync", "cuda_sync", "wait", True),
        ("ProfilerStep#3", "gpu_user_annotation", "other", True),
        ("cudaLaunchKernel", "cuda_runtime", "launch", False),
        ("cuLaunchKernelEx", "cuda_driver", "launch", False),
        ("hipExtModuleLaunchKernel", "cuda_runtime", "launch", False),
        ("cudaMemcpyAsync", "cuda_runtime", "launch", False),
        ("cudaStreamSynchronize", "cuda_runtime", "wait", False),
        ("cudaMalloc", "cuda_runtime", "host", False),
        ("aten::mul", "cpu_op", "host", False),
        ("nccl:all_reduce", "user_annotation", "host", False),
        ("gloo:all_reduce", "user_annotation", "communication", False),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", "data", False),
        ("Activity Buffer Request", "overhead", "other", False),
    ],
)
def test_kinds_by_what_profilers_call_them(name, category, kind, device):
    """CD03 among them: facebookresearch/HolisticTraceAnalysis issue 208."""
    found, on_device = kind_of(name, category, "", "", "")
    assert (KINDS[found], on_device) == (kind, device)


@pytest.mark.parametrize(
    ("name", "what"),
    [("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "all-reduce"), ("nccl:_all_gather_base", "all-gather"),
     ("ncclDevKernel_ReduceScatter_Sum_f32", "reduce-scatter"), ("ncclKernel_SendRecv_RING_SIMPLE", "send-recv"),
     ("nccl:all_to_all", "all-to-all"), ("hcom_allReduce__303_1_1", "all-reduce"),
     ("ncclDevKernel_Broadcast", "broadcast"),
     ("c10d::barrier", "barrier"), ("ncclDevKernel_Reduce_Sum", "reduce"), ("gemm", "")],
)  # fmt: skip
def test_operations_by_name(name, what):
    assert OPERATIONS[operation(name)] == what


def test_a_trace_without_communication_says_so(tmp_path):
    assert not is_communication("gemm")
    assert "no communication kernel was found" in " ".join(one(tmp_path, [kernel()]).notes)
    told = one(tmp_path, [kernel(name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL")])
    assert kinds(told) == ["communication"] and "no communication" not in " ".join(told.notes)


def test_an_impossible_duration_is_cut_at_the_next_event_of_its_stream(tmp_path):
    """CD06, AMD-AGI/Hyperloom pull 1116."""
    rows = [
        kernel(name="k1", ts=0, dur=3_400_000),
        kernel(name="k2", ts=100, dur=50),
        kernel(name="k3", ts=160, dur=40),
    ]
    trace = one(tmp_path, rows)
    assert np.allclose(trace.duration_s * 1e6, [100, 50, 40], rtol=1e-12)
    (problem,) = trace.problems
    assert problem.count == 1 and not problem.lost and "ran into the next event" in problem.reason


def test_kernels_of_one_graph_launch_may_overlap(tmp_path):
    rows = [
        kernel(ts=0, dur=30, args={"correlation": 4}),
        kernel(ts=10, dur=30, args={"correlation": 4}, name="b"),
    ]
    trace = one(tmp_path, rows)
    assert np.allclose(trace.duration_s * 1e6, [30, 30]) and not trace.problems


def test_host_events_nest_and_stay(tmp_path):
    trace = one(tmp_path, [event(ts=0, dur=30), event(ts=5, dur=5, name="inner")])
    assert np.allclose(trace.duration_s * 1e6, [30, 5]) and not trace.problems


def test_control_characters_bad_escapes_and_bytes_that_are_no_text(tmp_path):
    """CD11, pytorch/pytorch issue 136180."""
    raw = b'[{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"a\x01b"},\n'
    raw += b'{"ph":"X","ts":2,"dur":1,"pid":1,"tid":1,"name":"C:\\path\\q"},\n'
    raw += b'{"ph":"X","ts":3,"dur":1,"pid":1,"tid":1,"name":"x\xffy"},\n'
    raw += b'{"ph":"X","ts":4,"dur":1,"pid":1,"tid":1,"name":"\xe6\x98\x87"}]'
    trace = one(tmp_path, raw)
    assert names(trace) == ["a\\x01b", "C:\\path\\q", "x\\udcffy", "昇"]
    assert sum(p.count for p in trace.problems) == 3 and not any(p.lost for p in trace.problems)
    json.dumps(trace.event(2)).encode("utf-8")


def test_rank_from_the_trace_then_an_argument_then_the_name(tmp_path):
    """CD09, facebookresearch/HolisticTraceAnalysis issue 107."""
    inside = {"distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": [event()]}
    assert (one(tmp_path, inside).rank, one(tmp_path, inside).world_size) == (3, 8)
    assert one(tmp_path, inside, rank=5).rank == 5
    assert one(tmp_path, [event()], "trace_rank12.json").rank == 12
    assert one(tmp_path, [event()], "rank-7.pt.trace.json.gz").rank == 7
    nameless = one(tmp_path, {"distributedInfo": {"backend": "nccl"}, "traceEvents": [event()]}, "x.json")
    assert nameless.rank is None and "rank is not known" in " ".join(nameless.notes)


def test_times_since_the_base_and_since_1970_are_one_clock(tmp_path):
    """CD14: traces align by baseTimeNanoseconds."""
    late = one(tmp_path, {"traceEvents": [event(ts=250.5)], "baseTimeNanoseconds": 1_719_853_884_000_000_000})
    assert late.base_ns == 1_719_853_884_000_250_500
    assert one(tmp_path, [event(ts=250.5)]).base_ns is None
    assert one(tmp_path, [event(ts=1_719_853_884_000_000)]).base_ns == 1_719_853_884_000_000_000


def test_collectives_carry_bytes_group_sequence(tmp_path):
    args = {"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 400, "dtype": "BFloat16",
            "Group size": 4, "Process Group Name": "2", "Process Group Ranks": "[0, 2, 4, 6]", "Seq": 17,
            "Process Group Description": "dp", "Dst Rank": 3, "correlation": 9}  # fmt: skip
    trace = one(tmp_path, [kernel(name="ncclDevKernel_Generic", args=args)])
    assert (
        trace.bytes.tolist() == [800]
        and trace.sequence.tolist() == [17]
        and trace.correlation.tolist() == [9]
    )
    assert OPERATIONS[trace.operation[0]] == "all-reduce" and trace.peer.tolist() == [-1]
    group = trace.groups[trace.group[0]]
    assert (group.name, group.size, group.ranks, group.description) == ("2", 4, (0, 2, 4, 6), "dp")
    sent = one(tmp_path, [kernel(name="ncclDevKernel_SendRecv", args={"Group size": 2, "Dst Rank": 3})])
    assert sent.peer.tolist() == [3] and OPERATIONS[sent.operation[0]] == "send-recv"
    older = one(
        tmp_path, [event(name="nccl:all_reduce", args={"Input Dims": [[10, 20]], "Input type": ["float"]})]
    )
    assert older.bytes.tolist() == [800] and OPERATIONS[older.operation[0]] == "all-reduce"


def test_begin_and_end_pairs_nest(tmp_path):
    def half(ph, ts, name, **more):
        return {"ph": ph, "ts": ts, "name": name, "pid": 1, "tid": 1} | more

    rows = [half("B", 0, "out"), half("B", 10, "in", args={"correlation": 3}), half("E", 20, "in"),
            half("E", 50, "out"),
            half("E", 60, "lonely"), half("B", 70, "open"), half("b", 80, "async", id=1, cat="c"),
            half("e", 90, "async", id=1, cat="c"), half("B", 100, "back"), half("E", 95, "back")]  # fmt: skip
    trace = one(tmp_path, rows)
    assert names(trace) == ["out", "in", "async"] and np.allclose(trace.duration_s * 1e6, [50, 10, 10])
    assert trace.correlation.tolist() == [-1, 3, -1]
    assert {p.reason: p.places for p in trace.problems} == {
        "ends what never began": ("event 5",),
        "begins and never ends": ("event 6",),
        "ends before it begins": ("event 9",),
    }


def test_steps_reach_the_device_through_launches(tmp_path):
    rows = [event(name="ProfilerStep#4", cat="user_annotation", ts=0, dur=100),
            event(name="ProfilerStep#5", cat="user_annotation", ts=100, dur=100),
            event(name="cudaLaunchKernel", cat="cuda_runtime", ts=90, dur=5, args={"correlation": 1}),
            kernel(ts=150, dur=10, args={"correlation": 1}), kernel(ts=170, dur=10, name="unlaunched"),
            event(ts=300, name="after")]  # fmt: skip
    trace = one(tmp_path, rows)
    steps = dict(zip(names(trace), trace.step.tolist(), strict=True))
    assert (
        steps["cudaLaunchKernel"] == steps["gemm"] == 4 and steps["unlaunched"] == 5 and steps["after"] == -1
    )


def test_bad_events_are_counted_by_reason_and_the_rest_read(tmp_path):
    rows = [event(), 17, "x", None, [1], {"name": "no phase"}, event(ts="soon"), event(dur=-1), event(dur="long"),
            event(ph="?"), event(ts=None), event(ph=["X"]), event(name=None, ts=40), event(name=5, ts=41),
            {k: v for k, v in event(ts=50).items() if k != "dur"}, {"ph": "M", "name": 5},
            event(args=[1], ts=60), event(cat=["odd"], ts=70), event(pid={"a": 1}, tid=None, ts=80)]  # fmt: skip
    trace = one(tmp_path, rows)
    assert len(trace) == 7
    assert {p.reason: p.count for p in trace.problems if p.lost} == {
        "is not an object": 4,
        "has no phase (ph)": 2,
        "its time (ts) is no number": 2,
        "has a negative duration": 1,
        "its duration (dur) is no number": 1,
        "has a phase that is not known: '?'": 1,
        "is metadata without a name": 1,
    }
    assert {p.reason for p in trace.problems if not p.lost} == {
        "has no name: called (no name)",
        "has no duration (dur): taken as 0",
    }


def test_events_twice_told(tmp_path):
    launch = event(cat="cuda_runtime", name="cudaLaunchKernel", args={"correlation": 5})
    numbered = [event(args={"Ev Idx": n}, name="aten::zeros") for n in (1, 2, 2)]
    rows = [kernel(), kernel(), launch, launch, event(), event(), *numbered]
    trace = one(tmp_path, rows)
    assert sorted(names(trace)) == ["aten::mul"] * 2 + ["aten::zeros"] * 2 + ["cudaLaunchKernel", "gemm"]
    assert {p.reason: (p.count, p.lost) for p in trace.problems} == {
        "stands twice and has no id: kept, it may be one inside the other": (1, False),
        "stands twice": (3, True),
    }
    assert (trace.correlation >= -1).all()


def test_a_time_of_another_clock_is_left_out(tmp_path):
    rows = [event(ts=1_700_000_000_000_000 + i, name=f"n{i}") for i in range(9)]
    trace = one(
        tmp_path, [event(ts=0, name="zero"), *rows, event(ts=1_700_000_000_000_000, dur=10**12, name="long")]
    )
    assert names(trace) == [f"n{i}" for i in range(9)] and trace.base_ns == 1_700_000_000_000_000_000
    assert trace.start_s[0] == 0 and "over a day" in reasons(trace)


@pytest.mark.parametrize("cut", [1, 5, 30, 31, 60, 100])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_cut_off_anywhere_keeps_what_stands_before(tmp_path, cut, zipped):
    whole = json.dumps(
        {"traceEvents": [event(ts=10 * i, name=f"n{i}") for i in range(50)]}, indent=1
    ).encode()
    content = gzip.compress(whole) if zipped else whole
    part = content[: -cut if not zipped else -min(cut, 40)]
    path = tmp_path / ("trace.json.gz" if zipped else "trace.json")
    path.write_bytes(part)
    trace = read(path).traces[0]
    assert names(trace) == [f"n{i}" for i in range(len(trace))] and (zipped or len(trace) >= 48)
    assert trace.problems or cut < 3


def test_one_broken_event_costs_only_itself(tmp_path):
    rows = [json.dumps(event(ts=10 * i, name=f"n{i}", args={"a": {"b": [1, {"c": 2}]}})) for i in range(10)]
    rows[3] = rows[3].replace('"ts"', '"ts')
    rows[6] = rows[6].replace(":", "", 1)
    rows[8] = "[" * 200_000
    trace = one(tmp_path, "[" + ",\n".join(rows) + "]")
    assert names(trace)[:3] == ["n0", "n1", "n2"] and {"n4", "n5", "n7", "n9"} >= set(names(trace)[3:])
    assert len(trace) >= 6 and any(p.lost for p in trace.problems)


def test_commas_too_many_or_missing_are_passed_over(tmp_path):
    trace = one(tmp_path, f"[,,{json.dumps(event())} {json.dumps(event(ts=50))},,]")
    assert len(trace) == 2 and not trace.problems


def test_members_after_and_broken_members_before_the_events(tmp_path):
    text = f'{{"a": {{"b": 1, "oops: ]}}, "c" 4, "traceEvents": [{json.dumps(event())}]'
    text += ', "distributedInfo": {"rank": 2}}'
    trace = one(tmp_path, text)
    assert len(trace) == 1 and trace.rank == 2 and "member" in reasons(trace)


def test_pieces_that_end_anywhere_give_the_same_events(tmp_path, monkeypatch):
    rows = [event(ts=f"{10 * i}.125", name=f"n{i}é\\", args={"text": '}, {"x": ]'}) for i in range(40)]
    path = written(
        tmp_path,
        json.dumps({"schemaVersion": 1.5, "traceEvents": rows, "baseTimeNanoseconds": 12345678901234}),
    )
    whole = read(path).traces[0]
    for size in (1, 2, 7, 64):
        monkeypatch.setattr("telekit.diagnose.readers.source.PIECE_BYTES", size)
        found = read(path).traces[0]
        assert names(found) == names(whole) and (found.start_s == whole.start_s).all() and not found.problems
        assert found.base_ns == whole.base_ns == 12345678901234 + 125


def test_no_json_is_an_error_and_an_empty_list_is_not(tmp_path):
    assert len(one(tmp_path, "[]")) == 0
    for text in ("", "hello", "\x00\x01", '{"a": 1}', "[1, 2]"):
        with pytest.raises(InputError, match="none of the formats"):
            read(written(tmp_path, text))
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "absent.json")


def test_progress_ends_at_the_whole(tmp_path):
    told = []
    path = written(tmp_path, [event()])
    read(path, progress=lambda *step: told.append(step))
    assert told[-1][:2] == (path.stat().st_size, path.stat().st_size)


ASCEND = [
    {"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": {"name": "Ascend Hardware"}},
    {"ph": "M", "name": "thread_name", "pid": 4, "tid": 2, "args": {"name": "Stream 2"}},
    {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": "CANN"}},
    {"ph": "M", "name": "process_name", "pid": 6, "tid": 0, "args": {"name": "Communication"}},
    {"ph": "M", "name": "thread_name", "pid": 6, "tid": 9, "args": {"name": "Group 0 Communication"}},
    {"ph": "M", "name": "thread_name", "pid": 6, "tid": 10, "args": {"name": "Plane 0"}},
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Overlap Analysis"}},
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "Python"}},
    event(name="ProfilerStep#2", cat="cpu_op", ts="1699529623106000.000", dur=900),
    event(name="Node@launch", cat="", pid=5, tid=3, ts="1699529623106100.250", dur=3, args={"connection_id": 77}),
    event(name="AscendCL@aclrtSynchronizeStream", cat="", pid=5, tid=3, ts="1699529623106800.000", dur=9),
    event(name="MatMulV2", cat="", pid=4, tid=2, ts="1699529623106200.500", dur=100,
          args={"Task Type": "AI_CORE", "Stream Id": 2, "connection_id": 77}),
    event(name="EVENT_WAIT", cat="", pid=4, tid=2, ts="1699529623106310.000", dur=4, args={"Task Type": "EVENT_WAIT"}),
    event(name="MEMCPY_ASYNC", cat="", pid=4, tid=2, ts="1699529623106320.000", dur=4,
          args={"Task Type": "PCIE_DMA_SQE"}),
    event(name="hcom_allReduce__303_1_1", cat="", pid=6, tid=9, ts="1699529623106400.000", dur=50,
          args={"connection_id": 80}),
    event(name="Memcpy", cat="", pid=6, tid=10, ts="1699529623106401.000", dur=5, args={"size(Byte)": 4096}),
    event(name="Notify_Wait", cat="", pid=6, tid=10, ts="1699529623106407.000", dur=5),
    event(name="Computing", cat="", pid=7, tid=1, ts="1699529623106200.500", dur=100),
]  # fmt: skip


def test_ascend_layers_by_the_names_of_their_processes(tmp_path):
    trace = one(tmp_path, ASCEND)
    found = dict(zip(names(trace), zip(kinds(trace), trace.on_device.tolist(), strict=True), strict=True))
    assert found == {
        "ProfilerStep#2": ("host", False),
        "Node@launch": ("launch", False),
        "AscendCL@aclrtSynchronizeStream": ("wait", False),
        "MatMulV2": ("kernel", True),
        "EVENT_WAIT": ("wait", True),
        "MEMCPY_ASYNC": ("copy", True),
        "hcom_allReduce__303_1_1": ("communication", True),
        "Memcpy": ("other", True),
        "Notify_Wait": ("other", True),
        "Computing": ("other", False),
    }
    at = names(trace).index("MatMulV2")
    assert trace.correlation[at] == 77 and trace.step[at] == 2 and not trace.problems
    assert trace.start_s[at] == float(Decimal("200.5e-6")) and "Stream 2" in trace.lanes[trace.lane[at]].label
    hcom = names(trace).index("hcom_allReduce__303_1_1")
    assert (
        trace.groups[trace.group[hcom]].name == "Group 0"
        and OPERATIONS[trace.operation[hcom]] == "all-reduce"
    )
    assert (np.delete(trace.group, hcom) == -1).all()
    backwards = one(tmp_path, ASCEND[::-1])
    assert sorted(names(backwards)) == sorted(names(trace)) and sorted(backwards.kind) == sorted(trace.kind)
