"""CSV: events of Ascend, nsys and rocprof; step times, operator totals, metrics."""

import math

import numpy as np
import pytest

from telekit.diagnose.readers import read
from telekit.diagnose.readers.rows import column_name, number
from telekit.diagnose.trace import KINDS
from telekit.errors import InputError

KERNELS = """Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,\
Start Time(us),Duration(us),Wait Time(us)
5,0,4294967295,21,2,aclnnMatmul_MatMulV2,MatMulV2,AI_CORE,"1699529623106200.500\t",100.25,1.5
5,0,4294967295,22,2,aclnnAdd_Add,Add,AI_VECTOR_CORE,"1699529623106310.750\t",10,10
5,0,4294967295,N/A,3,hcom_allReduce__303_1_1,hcom_allReduce_,COMMUNICATION,"1699529623106250.500\t",400,0
6,0,4294967295,24,2,aclnnCat_Cat,Cat,AI_CPU,N/A,10,10
6,0,4294967295,25,2,short row
"""
GPU = """
NOTICE: Existing SQLite export found: reports/x.sqlite

Processing [reports/x.sqlite] with [cuda_gpu_trace.py]...
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),\
Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1134711990,661398,123,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA H200 (0),1,,13,[CUDA memcpy Host-to-Device]
1136125733,7072,128,4096,1,1,256,1,1,16,0.000,0.000,,,,,NVIDIA H200 (0),1,,7,"void saxpy<float>(float, const float *)"
1136135733,9000,129,4096,1,1,256,1,1,16,0.000,0.000,,,,,NVIDIA H200 (0),1,,9,ncclDevKernel_AllGather_RING_LL
"""
API = """Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
1134000000,1000,cudaLaunchKernel,0,128,53,53,20,python
1137000000,5000,cudaDeviceSynchronize,0,130,53,53,20,python
"""
ROCM_KERNELS = """"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",\
"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size"
"KERNEL_DISPATCH","Agent 4",1,1,852831,1,10,"void addition_kernel<float>(float*, int, int)",1,\
1551874061244694,1551874061255734,0
"KERNEL_DISPATCH","Agent 4",1,1,852831,2,13,"rcclGenericKernel",2,1551874061259214,1551874061270254,0
"""
ROCM_API = """"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API","hipLaunchKernel",852831,852831,1,1551874061240000,1551874061241000
"HIP_RUNTIME_API","hipDeviceSynchronize",852831,852831,9,1551874061242000,1551874061272000
"""
ROCM_COPIES = """"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",\
"Start_Timestamp","End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE","Agent 0","Agent 4",0,1551874061230000,1551874061235000
"""
STEPS = """Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,\
Communication(Not Overlapped and Exclude Receive),Preparing
0,5,1000.5,200.25,300,500.25,100,1600.75,0,200.25,12
0,6,1001,oops,300,500,,1600,0,200,
"""
CLUSTER = """Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,DP Index
5,rank,0,1000,200,300,500,100,1600,0,0
5,rank,1,1900,200,300,500,100,2500,0,1
5,stage,"(0, 1)",1900,200,300,500,100,2500,0,
"""
OPERATORS = """Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
0,MatMulV2,AI_CORE,10,1000,90,100,120,62.5
0,Add,AI_VECTOR_CORE,20,600,10,30,50,37.5
"""


def kept(tmp_path, text, name="x.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def found(trace):
    return {trace.names[n]: (KINDS[k], str(trace.lanes[lane])) for n, k, lane in
            zip(trace.name, trace.kind, trace.lane, strict=True)}  # fmt: skip


def test_ascend_kernels(tmp_path):
    trace = read(kept(tmp_path, KERNELS, "kernel_details.csv")).traces[0]
    assert found(trace) == {
        "aclnnMatmul_MatMulV2": ("kernel", "device 0 stream 2"),
        "hcom_allReduce__303_1_1": ("communication", "device 0 stream 3"),
        "aclnnAdd_Add": ("kernel", "device 0 stream 2"),
    }
    assert trace.base_ns == 1_699_529_623_106_200_500 and trace.step.tolist() == [5, 5, 5]
    assert np.allclose(trace.duration_s * 1e6, [100.25, 400, 10], rtol=1e-12)
    assert {p.reason: p.places for p in trace.problems} == {
        "a time, duration or size is no number": ("line 5",),
        "has not as many cells as the header": ("line 6",),
    }


def test_ascend_kernels_without_streams_are_not_cut(tmp_path):
    trace = read(
        kept(tmp_path, "Name,Start Time(us),Duration(us),Accelerator Core\na,0,10,AI_CORE\nb,5,10,AI_CORE\n")
    ).traces[0]
    assert np.allclose(trace.duration_s * 1e6, [10, 10]) and not trace.problems


def test_nsys_tables_after_their_preamble_are_one_trace(tmp_path):
    kept(tmp_path, GPU, "report_rank3_cuda_gpu_trace.csv")
    kept(tmp_path, API, "report_rank3_cuda_api_trace.csv")
    traces = read(tmp_path)
    (trace,) = traces.traces
    assert trace.rank == 3 and not traces.all_problems and trace.base_ns is None
    assert found(trace) == {
        "cudaLaunchKernel": ("launch", "process 53 thread 53"),
        "[CUDA memcpy Host-to-Device]": ("copy", "device NVIDIA H200 (0) stream 13"),
        "void saxpy<float>(float, const float *)": ("kernel", "device NVIDIA H200 (0) stream 7"),
        "ncclDevKernel_AllGather_RING_LL": ("communication", "device NVIDIA H200 (0) stream 9"),
        "cudaDeviceSynchronize": ("wait", "process 53 thread 53"),
    }
    assert trace.bytes.max() == 4_194_000
    assert trace.start_s.tolist() == [0, 711_990e-9, 2_125_733e-9, 2_135_733e-9, 3e-3]


def test_nsys_tables_in_other_units(tmp_path):
    text = GPU.replace("Start (ns)", "Start (us)").replace("Duration (ns)", "Duration (ms)")
    trace = read(kept(tmp_path, text)).traces[0]
    assert math.isclose(trace.duration_s[1], 7.072) and math.isclose(trace.start_s[1], 1_413_743e-6)


def test_rocprof_tables_of_one_process_are_one_trace(tmp_path):
    kept(tmp_path, ROCM_KERNELS, "852831_kernel_trace.csv")
    kept(tmp_path, ROCM_API, "852831_hip_api_trace.csv")
    kept(tmp_path, ROCM_COPIES, "852831_memory_copy_trace.csv")
    (trace,) = read(tmp_path).traces
    assert found(trace) == {
        "MEMORY_COPY_HOST_TO_DEVICE": ("copy", "device Agent 4 stream all"),
        "hipLaunchKernel": ("launch", "process 852831 thread 852831"),
        "hipDeviceSynchronize": ("wait", "process 852831 thread 852831"),
        "void addition_kernel<float>(float*, int, int)": ("kernel", "device Agent 4 stream 1"),
        "rcclGenericKernel": ("communication", "device Agent 4 stream 1"),
    }
    assert sorted(trace.correlation.tolist()) == [0, 1, 1, 2, 9]


def test_old_rocprof_names(tmp_path):
    text = (
        '"Index","KernelName","gpu-id","queue-id","pid","tid","BeginNs","EndNs"\n0,"gemm",2,0,5,5,1000,3000\n'
    )
    trace = read(kept(tmp_path, text)).traces[0]
    assert found(trace) == {"gemm": ("kernel", "device 2 stream 0")} and trace.duration_s.tolist() == [2e-6]


def test_step_times(tmp_path):
    (table,) = read(kept(tmp_path, STEPS, "rank_4_step_trace_time.csv")).tables
    assert table.kind == "steps" and table.rank == 4 and len(table) == 2
    assert np.allclose(table.columns["computing_s"], [1000.5e-6, 1001e-6])
    assert np.isnan(table.columns["communication_not_overlapped_s"][1]) and np.isnan(
        table.columns["free_s"][1]
    )
    assert table.columns["step"].tolist() == [5, 6] and table.labels["device_id"] == ("0", "0")
    total = sum(table.columns[c][0] for c in ("computing_s", "communication_not_overlapped_s", "free_s"))
    assert math.isclose(total, 1300.75e-6)
    (problem,) = table.problems
    assert problem.places == ("line 3",) and not problem.lost


def test_step_times_of_a_cluster(tmp_path):
    (table,) = read(kept(tmp_path, CLUSTER)).tables
    assert table.columns["rank"].tolist()[:2] == [0, 1] and np.isnan(table.columns["rank"][2])
    assert table.labels["type"] == ("rank", "rank", "stage") and table.columns["index_dp"].tolist()[:2] == [
        0,
        1,
    ]


def test_operator_totals(tmp_path):
    (table,) = read(kept(tmp_path, OPERATORS, "op_statistic.csv")).tables
    assert table.kind == "operators" and table.labels["op_type"] == ("MatMulV2", "Add")
    assert np.allclose(table.columns["total_time_s"], [1e-3, 6e-4]) and table.columns[
        "ratio_share"
    ].tolist() == [0.625, 0.375]
    assert np.allclose(table.columns["count"] * table.columns["avg_time_s"], table.columns["total_time_s"])


def test_metrics(tmp_path):
    text = "timestamp,machine,GPU Utilization (%),temperature(C)\n2024-01-01T00:00:00,a,50,60\n"
    text += "1704067201,b,,N/A\n1704067202000,c,1,2\n"
    (table,) = read(kept(tmp_path, text)).tables
    assert table.kind == "metrics" and table.columns["time_s"].tolist() == [
        1704067200,
        1704067201,
        1704067202,
    ]
    assert table.labels["machine"] == ("a", "b", "c")
    assert table.columns["gpu_utilization_share"][0] == 0.5 and np.isnan(
        table.columns["temperature_celsius"][1]
    )


@pytest.mark.parametrize(
    ("name", "unit", "column"),
    [("Total Time(us)", "", ("total_time_s", 1e-6)), ("Ratio(%)", "", ("ratio_share", 0.01)),
     ("free", "us", ("free_s", 1e-6)),
     ("Bytes (MB)", "", ("bytes", 1e6)), ("bandwidth(GB/s)", "", ("bandwidth_bytes_per_s", 1e9)),
     ("count", "", ("count", 1.0))],
)  # fmt: skip
def test_columns_get_our_units(name, unit, column):
    assert column_name(name, unit) == column


def test_numbers_of_cells():
    assert number(" 1.5 ") == 1.5 and number("50%") == 0.5 and math.isnan(number("N/A"))
    for text in ("x", "inf", "1,5"):
        with pytest.raises(ValueError, match=r"could not|infinite"):
            number(text)


def test_a_quote_that_never_closes_costs_one_line(tmp_path):
    lines = OPERATORS.split("\n")
    lines[1] = lines[1].replace("MatMulV2", '"MatMulV2')
    (table,) = read(kept(tmp_path, "\n".join(lines))).tables
    assert table.labels["op_type"] == ("Add",) and table.problems[0].places == ("line 2",)


def test_a_header_alone_is_an_empty_table(tmp_path):
    (table,) = read(kept(tmp_path, OPERATORS.split("\n")[0])).tables
    assert len(table) == 0
    with pytest.raises(InputError, match="none of the formats"):
        read(kept(tmp_path, "a,b,c\n1,2,3\n"))
