"""SQLite of nsys, JSON of rocprofv3, Megatron-LM's timers, and folders of several of them."""

import gzip
import json
import math
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from telekit.diagnose.readers import read
from telekit.diagnose.trace import KINDS
from telekit.errors import InputError

PROCESS = 53 << 24
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, "end" INTEGER, eventClass INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, "end" INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
  textId INTEGER);
INSERT INTO StringIds VALUES (1, 'gemm<float>'), (2, 'gemm'), (3, 'cudaLaunchKernel_v7000'),
  (4, 'ncclDevKernel_AllReduce');
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200');
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '');
"""


def export(path, process=PROCESS):
    with closing(sqlite3.connect(path)) as base:
        base.executescript(SCHEMA)
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,1,?,?,?,?,2)",
            [(2000, 5000, 7, 11, process, 1), (6000, 9000, 20, 12, process, 4), (9000, 8000, 7, 13, process, 1),
             (None, 8000, 7, 13, process, 1)],
        )  # fmt: skip
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1500,1600,0,?,11,3,0)", (process | 99,))
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (100,400,0,7,10,?,4096,1)", (process,))
        base.execute("INSERT INTO NVTX_EVENTS VALUES (1000,10000,59,'step 4',?,NULL)", (process | 99,))
        base.execute("INSERT INTO NVTX_EVENTS VALUES (1000,NULL,34,'mark',?,NULL)", (process | 99,))
        base.commit()
    return path


def test_nsys_export(tmp_path):
    (trace,) = read(export(tmp_path / "report_rank2.sqlite")).traces
    found = {trace.names[n]: (KINDS[k], str(trace.lanes[lane]), int(s)) for n, k, lane, s in
             zip(trace.name, trace.kind, trace.lane, trace.step, strict=True)}  # fmt: skip
    assert found == {
        "Memcpy HtoD": ("copy", "device 0 stream 7", -1),
        "step 4": ("host", "process 53 thread 99", 4),
        "cudaLaunchKernel_v7000": ("launch", "process 53 thread 99", 4),
        "gemm<float>": ("kernel", "device 0 stream 7", 4),
        "ncclDevKernel_AllReduce": ("communication", "device 0 stream 20", 4),
    }
    assert trace.rank == 2 and trace.device == "NVIDIA H200" and trace.base_ns == 1_700_000_000_000_000_100
    assert trace.bytes.max() == 4096 and trace.start_s.tolist() == [0, 0.9e-6, 1.4e-6, 1.9e-6, 5.9e-6]
    (problem,) = trace.problems
    assert problem.count == 2 and "no times in order" in problem.reason


def test_nsys_export_of_several_processes(tmp_path):
    path = export(tmp_path / "report_rank2.sqlite")
    with closing(sqlite3.connect(path)) as base:
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000,5000,1,1,7,1,?,1,2)", (54 << 24,))
        base.commit()
    traces = read(path)
    assert traces.ranks == (None, None) and "2 processes were recorded" in traces.traces[0].notes[0]


def test_a_view_under_a_known_name_is_not_run(tmp_path):
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as base:
        base.execute(
            "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS"
            " (SELECT 1 UNION ALL SELECT start FROM n) SELECT * FROM n"
        )
        base.commit()
    with pytest.raises(InputError, match="none of the tables"):
        read(path)


def test_damaged_exports_are_refused_or_read_as_far_as_they_go(tmp_path):
    whole = export(tmp_path / "whole.sqlite").read_bytes()
    for size in range(0, len(whole), 2048):
        path = tmp_path / "cut.sqlite"
        path.write_bytes(whole[:size])
        try:
            traces = read(path)
        except InputError:
            continue
        assert len(traces) >= 0


ROCPROF = {"rocprofiler-sdk-tool": [{
    "metadata": {"pid": 852831},
    "strings": {"buffer_records": [{"kind": "NONE", "operations": []},
                                   {"kind": "HIP_RUNTIME_API", "operations": ["hipMalloc", "hipLaunchKernel"]},
                                   {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]}]},
    "kernel_symbols": [{"kernel_id": 10, "formatted_kernel_name": "add(float*)", "kernel_name": "_Z3addPf.kd"}],
    "buffer_records": {
        "kernel_dispatch": [
            {"kind": 3, "operation": 0, "start_timestamp": 2000, "end_timestamp": 5000,
             "correlation_id": {"internal": 7}, "stream_id": {"handle": 3},
             "dispatch_info": {"kernel_id": 10, "agent_id": {"handle": 4}, "queue_id": {"handle": 1}}},
            {"start_timestamp": "x", "end_timestamp": 5000}, 5, {"start_timestamp": 9, "end_timestamp": 5}],
        "hip_api": [{"kind": 1, "operation": 1, "thread_id": 99, "start_timestamp": 1000, "end_timestamp": 1500,
                     "correlation_id": {"internal": 7}}],
        "memory_copy": [{"kind": 2, "operation": 1, "start_timestamp": 100, "end_timestamp": 300, "bytes": 64,
                         "dst_agent_id": {"handle": 4}, "correlation_id": {"internal": 1}}],
        "counters": [1, 2]},
}]}  # fmt: skip


def test_rocprof_json(tmp_path):
    path = tmp_path / "rank1_results.json"
    path.write_text(json.dumps(ROCPROF))
    (trace,) = read(path).traces
    found = {trace.names[n]: (KINDS[k], str(trace.lanes[lane])) for n, k, lane in
             zip(trace.name, trace.kind, trace.lane, strict=True)}  # fmt: skip
    assert found == {
        "MEMORY_COPY_HOST_TO_DEVICE": ("copy", "device 4 stream copies"),
        "hipLaunchKernel": ("launch", "process 852831 thread 99"),
        "add(float*)": ("kernel", "device 4 stream 3"),
    }
    assert trace.rank == 1 and trace.correlation.tolist() == [1, 7, 7] and trace.bytes.tolist() == [64, 0, 0]
    assert sum(p.count for p in trace.problems) == 3
    for text in (json.dumps(ROCPROF)[:-3], '{"rocprofiler-sdk-tool": 5}'):
        path.write_text(text)
        with pytest.raises(InputError):
            read(path)


LOG = """
 [2024-05-01 10:00:00] iteration        5/     100 | elapsed time per iteration (ms): 1234.5 | loss: 1.0 |
[0] (min, max) time across ranks (ms):
    forward-backward ...............................: (1000.25, 1200.50)
    batch-generator ................................: (1.00, 30.00)
    optimizer ......................................: (oops, 2.00)
something else: (1.0, 2.0)
 [2024-05-01 10:00:02] iteration        6/     100 | elapsed time per iteration (ms): 1300.0 |
max time across ranks (ms):
    forward-backward ...............................: 1250.75
times across ranks (ms):
  forward-compute:
     rank  0: 10.50
     rank 11: 20.50
"""


def test_megatron_timers(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(LOG)
    (table,) = read(path).tables
    columns = [table.columns[c].tolist() for c in ("iteration", "rank", "min_s", "max_s")]
    rows = list(zip(table.labels["timer"], *columns, strict=True))
    nan = math.nan
    expected = [
        ("iteration-time", 5, nan, nan, 1.2345),
        ("forward-backward", 5, nan, 1.00025, 1.2005),
        ("batch-generator", 5, nan, 0.001, 0.03),
        ("iteration-time", 6, nan, nan, 1.3),
        ("forward-backward", 6, nan, nan, 1.25075),
        ("forward-compute", 6, 0, 0.0105, 0.0105),
        ("forward-compute", 6, 11, 0.0205, 0.0205),
    ]
    assert [r[0] for r in rows] == [r[0] for r in expected]
    assert np.allclose(np.array([r[1:] for r in rows]), np.array([r[1:] for r in expected]), equal_nan=True)
    (problem,) = table.problems
    assert problem.places == ("line 6",) and table.kind == "timers"


def chrome(path, rank=None, world=None, **rest):
    info = {k: v for k, v in (("rank", rank), ("world_size", world)) if v is not None}
    rows = [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2}]
    text = json.dumps({"distributedInfo": info, "traceEvents": rows} | rest).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def test_a_folder_is_read_by_rank_and_one_bad_file_does_not_stop_it(tmp_path):
    for rank in (3, 1, 2):
        chrome(tmp_path / f"host{rank}" / f"t{rank}.pt.trace.json.gz", rank, 4)
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "bad.json").write_text('{"rocprofiler-sdk-tool": ')
    (tmp_path / "readme.md").write_text("traceEvents")
    (tmp_path / "train.log").write_text(LOG)
    traces = read(tmp_path)
    assert traces.ranks == (1, 2, 3) and [t.kind for t in traces.tables] == ["timers"]
    assert traces.notes == ("2 files of other formats were passed over", "3 of 4 ranks have a trace")
    (problem,) = traces.problems
    assert problem.places == ("bad.json",) and "line 1" in problem.reason


def test_odd_ranks_are_said(tmp_path):
    for name, rank in (("a", 1), ("b", 1), ("c", None)):
        chrome(tmp_path / f"{name}.json", rank)
    assert read(tmp_path).notes == ("several traces are of rank 1", "1 of 3 traces do not say their rank")


def test_ascend_folder_takes_its_rank_from_its_profiler_info(tmp_path):
    top = tmp_path / "host_1_2024_ascend_pt"
    chrome(top / "ASCEND_PROFILER_OUTPUT" / "trace_view.json")
    (top / "profiler_info_6.json").write_text('{"rank_id": 6}')
    kernels = "Name,Start Time(us),Duration(us),Accelerator Core\na,0,10,AI_CORE\n"
    (top / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text(kernels)
    traces = read(tmp_path)
    assert traces.ranks == (6,) and len(traces.traces[0]) == 1


def test_links_out_of_a_folder_are_not_followed(tmp_path):
    chrome(tmp_path / "secret.json", 9)
    chrome(tmp_path / "in" / "a.json", 1)
    (tmp_path / "in" / "b.json").symlink_to(tmp_path / "secret.json")
    traces = read(tmp_path / "in")
    assert traces.ranks == (1,) and "link out of the folder" in traces.problems[0].reason


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match="holds no trace"):
        read(tmp_path)


def test_progress_of_a_folder_never_runs_back(tmp_path):
    for rank in range(4):
        chrome(tmp_path / f"r{rank}.json", rank)
    told = []
    read(tmp_path, progress=lambda done, total, text: told.append((done, total)))
    assert told == sorted(told) and told[-1][0] == told[-1][1]
