"""Exports of nsys and rocprof as their documentation has them: versions, units, devices, processes, what is missing.

Columns after the Nsight Systems export schema and ``nsys stats``' reports, rocprof's ``results.csv``, rocprofv2's file
plugin and ROCprofiler-SDK's "Using rocprofv3".
"""

import copy
import csv
import io
import json
import sqlite3
from contextlib import closing

import pytest

from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.readers import read
from telekit.diagnose.readers.finish import BY_DEVICE
from telekit.diagnose.trace import KINDS
from telekit.errors import InputError

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER,
  greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
  shortName INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, "end" INTEGER, eventClass INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, "end" INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
  textId INTEGER);
CREATE TABLE OSRT_API (start INTEGER, "end" INTEGER, globalTid INTEGER, nameId INTEGER);
INSERT INTO StringIds VALUES (1, 'gemm<float>'), (2, 'cudaLaunchKernel_v7000'), (3, 'ncclDevKernel_AllReduce_Sum'),
  (4, 'read');
"""


def nsys(path, processes=1, change=""):
    """Two steps of each process: a launch, a kernel, a collective; and what is no range, or has no time."""
    with closing(sqlite3.connect(path)) as base:
        base.executescript(SCHEMA)
        for k in range(processes):
            pid = (53 + k) << 24
            for i in range(2):
                at = 10_000 * i
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,2,0)",
                             (at + 1000, at + 1500, pid | 9, i + 1))  # fmt: skip
                base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,1,0,?,?,?,?,NULL,NULL)",
                                 [(at + 2000, at + 5000, k, 7, i + 1, pid, 1),
                                  (at + 5000, at + 9000, k, 9, 100 + i, pid, 3)])  # fmt: skip
                base.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,59,?,?,NULL)",
                             (at + 500, at + 9500, f"step {i}", pid | 9))  # fmt: skip
        base.executescript(change)
        base.commit()
    return path


def kinds(trace):
    return {trace.names[n]: (KINDS[k], str(trace.lanes[lane])) for n, k, lane in
            zip(trace.name, trace.kind, trace.lane, strict=True)}  # fmt: skip


def reasons(found):
    return {p.reason: p.count for p in found.problems}


def test_nsys_events_without_a_length_or_a_time(tmp_path):
    """Marks and names of NVTX (their end 0 in old exports) are no ranges; a record of 0 to 0 has no time."""
    tid = 53 << 24 | 9
    change = f"""
    INSERT INTO NVTX_EVENTS VALUES (100, 0, 34, 'mark', {tid}, NULL), (0, 0, 33, 'category', {tid}, NULL),
      (100, NULL, 60, 'open', {tid}, NULL), (200, 900, 60, 'between', {tid}, NULL);
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 0, 0, 1, 0, 7, 5, {53 << 24}, 1, NULL, NULL);
    INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (30000, 35000, 0, 1, 7, 9, {53 << 24}, 3, 4);
    """
    (trace,) = read(nsys(tmp_path / "r_rank3.sqlite", change=change)).traces
    assert trace.rank == 3 and "mark" not in trace.names and "category" not in trace.names
    assert kinds(trace)["CUDA graph"] == ("kernel", "device 0 stream 7")
    assert kinds(trace)["between"] == ("host", "process 53 thread 9")
    assert reasons(trace) == {"a range began and never ended": 1, "no time of it was recorded (0 to 0)": 1}
    assert trace.duration_s[trace.is_kind("kernel")].tolist() == pytest.approx([3e-6, 3e-6, 5e-6])


def test_nsys_kernels_that_do_not_name_their_process_are_of_the_only_one(tmp_path):
    change = "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid"
    (trace,) = read(nsys(tmp_path / "x.sqlite", change=change)).traces
    assert len(trace) == 8 and trace.step[trace.is_kind("kernel")].tolist() == [0, 1]


def test_nsys_ranks_of_one_file_are_told_by_their_devices(tmp_path):
    """The launcher, which has no device, is left out and said."""
    change = f"INSERT INTO OSRT_API VALUES (10, 90000, {50 << 24 | 50}, 4)"
    traces = read(nsys(tmp_path / "x.sqlite", 4, change))
    assert traces.ranks == (0, 1, 2, 3) and all(BY_DEVICE in t.notes for t in traces)
    assert [{lane.process for lane in t.lanes if lane.on_device} for t in traces] == [
        {"0"},
        {"1"},
        {"2"},
        {"3"},
    ]
    assert sum(p.count for t in traces for p in t.problems) == 1, "told once, not of each process"
    found = diagnose(traces)
    assert [r.steps for r in found.ranks] == [2] * 4 and found.ranks[0].seconds["compute"] == pytest.approx(
        3e-6
    )


def test_nsys_processes_that_share_a_device_keep_their_ranks_unknown(tmp_path):
    path = nsys(tmp_path / "x.sqlite", 2, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 0")
    assert read(path).ranks == (None, None)
    with pytest.raises(InputError, match="does not say its rank"):
        diagnose(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", "its tables are empty"),
        (
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 2, 0, 1, 0, 7, 1, 1, 1, 1, 1)",
            "no times in order",
        ),
    ],
)
def test_an_nsys_export_without_an_event_is_refused_with_its_reason_and_the_rest_analysed(
    tmp_path, change, said
):
    with pytest.raises(InputError, match=said):
        read(nsys(tmp_path / "rank0.sqlite", 0, change))
    nsys(tmp_path / "rank1.sqlite")
    found = diagnose(tmp_path)
    assert [r.rank for r in found.ranks] == [1] and any(said in p.reason for p in found.problems)


def columns_of(path):
    with closing(sqlite3.connect(path)) as base:
        tables = [
            n for (n,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        ]
        return [(t, row[1]) for t in tables for row in base.execute(f"PRAGMA table_info({t})").fetchall()]


def analysed(path):
    """Analyse, or refuse in words."""
    try:
        return json.dumps(diagnose(path).to_dict(), allow_nan=False)
    except InputError as error:
        return str(error)


def test_an_nsys_export_with_any_column_missing_or_odd_is_analysed_or_refused(tmp_path):
    for number, (table, column) in enumerate(columns_of(nsys(tmp_path / "whole.sqlite"))):
        changes = [
            f'UPDATE {table} SET "{column}" = {v}' for v in ("-1", "'x'", "1.5", "x'00ff'", "2147483647")
        ]
        changes += [f'ALTER TABLE {table} DROP COLUMN "{column}"'] if column != "id" else []
        for kind, change in enumerate(changes):
            try:
                path = nsys(tmp_path / f"{number}_{kind}.sqlite", 2, change)
            except sqlite3.Error:  # an id that is no number, or twice the same
                continue
            assert analysed(path)


GPU = ("Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
       "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n")  # fmt: skip


def gpu(start, took, device=0, size="", name="gemm"):
    return f"{start},{took},1,,,,,,,,,,{size},,,,NVIDIA H200 ({device}),1,,7,{name}\n"


def kept(folder, text, name="x.csv"):
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("unit", "second"),
    [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1), ("nsec", 1e-9), ("usec", 1e-6), ("msec", 1e-3)],
)
@pytest.mark.parametrize(("of", "size"), [("B", 1), ("byte", 1), ("KB", 1e3), ("MB", 1e6), ("MiB", 2**20)])
def test_nsys_reports_say_their_units(tmp_path, unit, second, of, size):
    header = GPU.replace("(ns)", f"({unit})").replace("Bytes (MB)", f"Bytes ({of})")
    rows = gpu(1000, 500) + gpu(2000, 100, size="2.0", name="[CUDA memcpy Host-to-Device]")
    (trace,) = read(kept(tmp_path, header + rows)).traces
    assert trace.duration_s.tolist() == pytest.approx([500 * second, 100 * second])
    assert trace.start_s.tolist() == pytest.approx([0, 1000 * second]) and trace.bytes.tolist() == [
        0,
        2 * size,
    ]


def test_a_size_of_an_unknown_unit_is_none(tmp_path):
    (trace,) = read(kept(tmp_path, GPU.replace("Bytes (MB)", "Bytes (pages)") + gpu(0, 5, size="2"))).traces
    assert trace.bytes.tolist() == [0]


def test_nsys_reports_of_several_devices_and_processes(tmp_path):
    """Correlation ids of two processes may be the same: no launch is tied to a kernel then."""
    kept(tmp_path, GPU + gpu(1000, 500) + gpu(1200, 500, device=1), "r_cuda_gpu_trace.csv")
    api = "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid\n500,100,cudaLaunchKernel,0,1,53,53\n"
    kept(tmp_path, api + "600,100,cudaLaunchKernel,0,1,54,54\n", "r_cuda_api_trace.csv")
    kept(tmp_path, "Time (%),Total Time (ns),Instances,Name\n100,1000,2,gemm\n", "r_cuda_gpu_kern_sum.csv")
    projected = (
        "Name,Start (ns),Duration (ns),Projected Start (ns),Projected Duration (ns)\nx,500,100,1000,500\n"
    )
    kept(tmp_path, projected, "r_nvtx_gpu_proj_trace.csv")
    (trace,) = read(tmp_path).traces
    assert len(trace) == 4 and set(trace.correlation.tolist()) == {-1}
    assert any("kernels of 2 devices" in n for n in trace.notes)
    (problem,) = trace.problems
    assert "several processes" in problem.reason and problem.count == 2 and not problem.lost


def test_an_empty_report_beside_a_good_one_is_said(tmp_path):
    kept(tmp_path, GPU, "rank0_cuda_gpu_trace.csv")
    kept(tmp_path, GPU + gpu(1000, 500), "rank1_cuda_gpu_trace.csv")
    found = diagnose(tmp_path)
    assert [r.rank for r in found.ranks] == [1]
    assert [p.places[0].rsplit("/", 1)[-1] for p in found.problems] == ["rank0_cuda_gpu_trace.csv"]


V1 = ('"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","DispatchNs","BeginNs","EndNs",'
      '"CompleteNs","DurationNs"\n0,"gemm.kd",2,1,0,34,34,256,256,1000,2000,5000,6000,3000\n'
      '1,"gemm.kd",3,1,0,34,34,256,256,1000,2500,5500,6000,3000\n')  # fmt: skip
V2 = ("Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n\n"
      '1,2,1,15,15,10,"gemm.kd",2000,5000,33\n2,3,1,15,15,10,"gemm.kd",2500,5500,34\n')  # fmt: skip
V2_DOMAINS = ("Domain,Function,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n\n"
              "HIP_API_DOMAIN,hipMalloc,,100,200,1\nHIP_API_DOMAIN,hipLaunchKernel,,300,400,2\n"
              "HIP_OPS_DOMAIN,,gemm.kd,500,900,2\n")  # fmt: skip


@pytest.mark.parametrize("text", [V1, V2])
def test_old_rocprof_tells_devices_apart(tmp_path, text):
    """Kernels of two devices overlap; of one queue one would be cut."""
    (trace,) = read(kept(tmp_path, text)).traces
    assert {str(lane) for lane in trace.lanes} == {
        "device 2 stream 1",
        "device 3 stream 1",
    } and not trace.problems
    assert trace.duration_s.tolist() == pytest.approx([3e-6, 3e-6])


def test_rocprofv2_calls_and_kernels_of_one_table(tmp_path):
    (trace,) = read(kept(tmp_path, V2_DOMAINS)).traces
    told = {name: kind for name, (kind, _) in kinds(trace).items()}
    assert told == {"hipMalloc": "host", "hipLaunchKernel": "launch", "gemm.kd": "kernel"}


KERNELS = ('"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
           '"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size"\n')  # fmt: skip
COUNTERS = ('"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Kernel_Name","Counter_Name",'
            '"Start_Timestamp","End_Timestamp"\n1,1,"Agent 4",1,704,"gemm","SQ_WAVES",1551874061010000,'
            '1551874061018000\n')  # fmt: skip
COPIES = ('"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",'
          '"End_Timestamp"\n"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE","Agent 0","Agent 4",5,100,300\n'
          '"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST","Agent 4","Agent 0",6,200,400\n')  # fmt: skip


def rocprof(pid, agent):
    rows = [f'"KERNEL_DISPATCH","Agent {agent}",1,0,{pid},{i},9,"gemm",{i},{1551874061000000 + 10000 * i},'
            f"{1551874061008000 + 10000 * i},0\n" for i in range(1, 4)]  # fmt: skip
    return KERNELS + "".join(rows)


def test_rocprofv3_processes_of_a_folder_are_ranks_by_their_agents(tmp_path):
    for pid, agent in ((710, 4), (707, 10), (708, 5)):
        kept(tmp_path, rocprof(pid, agent), f"{pid}_kernel_trace.csv")
        kept(tmp_path, COUNTERS, f"{pid}_counter_collection.csv")
    traces = read(tmp_path)
    assert traces.ranks == (0, 1, 2) and [len(t) for t in traces] == [3, 3, 3]
    assert [t.lanes[0].process for t in traces] == ["Agent 4", "Agent 5", "Agent 10"]
    assert [len(t) for t in read(kept(tmp_path, COUNTERS, "alone.csv"))] == [1]


def test_a_copy_is_of_the_device_at_its_one_end(tmp_path):
    (trace,) = read(kept(tmp_path, COPIES)).traces
    assert {str(lane) for lane in trace.lanes} == {"device Agent 4 stream all"}
    assert trace.duration_s.tolist() == pytest.approx([2e-7, 2e-7]), "two ways at once: not cut"


@pytest.mark.parametrize(
    "text", [V1, V2, V2_DOMAINS, COPIES, COUNTERS, rocprof(1, 4), GPU + gpu(1, 5) + gpu(7, 9)]
)
def test_a_table_with_any_column_missing_or_odd_is_analysed_or_refused(tmp_path, text):
    header, *rows = [row for row in csv.reader(io.StringIO(text)) if row]
    for column in range(len(header)):
        shorter = [row[:column] + row[column + 1 :] for row in (header, *rows)]
        assert analysed(kept(tmp_path, "\n".join(",".join(row) for row in shorter)))
        for odd in ("", "x", "-1", "1e400", "nan", "99999999999999999999"):
            changed = [header, *([*row[:column], odd, *row[column + 1 :]] for row in rows[:1]), *rows[1:]]
            assert analysed(kept(tmp_path, "\n".join(",".join(row) for row in changed)))


WAYS = ("MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST")


def tool(k):
    return {
        "metadata": {"pid": 1000 + k},
        "strings": {
            "buffer_records": [
                {"kind": "HIP_RUNTIME_API", "operations": ["hipMalloc", "hipLaunchKernel"]},
                {"kind": "MEMORY_COPY", "operations": ["NONE", *WAYS]},
                {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxThreadRangeA"]},
            ],
            "marker_api": [{"key": 70, "value": "step 0"}, {"key": 71, "value": "step 1"}],
        },
        "kernel_symbols": [{"kernel_id": 10, "formatted_kernel_name": "add(float*)"}],
        "buffer_records": {
            "kernel_dispatch": [{"start_timestamp": 1000 * i + 200, "end_timestamp": 1000 * i + 600,
                                 "correlation_id": {"internal": i + 1}, "stream_id": {"handle": 3},
                                 "dispatch_info": {"kernel_id": 10, "agent_id": {"handle": 4 + k}}} for i in (0, 1)],
            "hip_api": [{"kind": 0, "operation": 1, "thread_id": 9, "start_timestamp": 1000 * i + 50,
                         "end_timestamp": 1000 * i + 90, "correlation_id": {"internal": i + 1}} for i in (0, 1)],
            "marker_api": [{"kind": 2, "operation": 0, "thread_id": 9, "start_timestamp": 1000 * i,
                            "end_timestamp": 1000 * i + 900, "correlation_id": {"internal": 70 + i}} for i in (0, 1)],
            "memory_copy": [{"kind": 1, "operation": 1 + i, "start_timestamp": 100 + i, "end_timestamp": 300 + i,
                             "src_agent_id": {"handle": [0, 4 + k][i]}, "dst_agent_id": {"handle": [4 + k, 0][i]},
                             "bytes": 64} for i in (0, 1)],
        },
    }  # fmt: skip


def test_rocprofv3_json_of_several_processes(tmp_path):
    path = kept(tmp_path, json.dumps({"rocprofiler-sdk-tool": [tool(1), tool(0)]}), "x_results.json")
    traces = read(path)
    assert traces.ranks == (0, 1) and all(BY_DEVICE in t.notes for t in traces)
    trace = traces.rank(1)
    assert {lane.process for lane in trace.lanes if lane.on_device} == {"5"}, "copies of both ways too"
    copies = trace.duration_s[trace.is_kind("copy")]
    assert copies.tolist() == pytest.approx([2e-7, 2e-7]), "two ways at once: not cut"
    assert {"step 0", "step 1"} <= set(trace.names) and trace.step[trace.is_kind("kernel")].tolist() == [0, 1]


def places(value, path=()):
    members = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


def test_rocprofv3_json_with_anything_missing_or_odd_is_analysed_or_refused(tmp_path):
    whole = {"rocprofiler-sdk-tool": [tool(0)]}
    for place in places(whole):
        for odd in (None, "x", -1, [], {}, 1e300):
            changed = copy.deepcopy(whole)
            at = changed
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = odd
            assert analysed(kept(tmp_path, json.dumps(changed), "x_results.json"))
