"""A trace as the file that PyTorch's profiler would write: Kineto's Chrome trace JSON.

Categories, arguments of collectives and the head are those of pytorch/kineto ``libkineto/src/output_json.cpp``.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from telekit.diagnose.trace import KINDS, OPERATIONS, Trace
from telekit.errors import bad

_CATEGORIES = {
    "launch": "cuda_runtime",
    "wait": "cuda_runtime",
    "kernel": "kernel",
    "communication": "kernel",
    "copy": "gpu_memcpy",
    "data": "user_annotation",
}
_CALLS = {
    "all-reduce": "allreduce",
    "all-gather": "_allgather_base",
    "reduce-scatter": "_reduce_scatter_base",
    "all-to-all": "all_to_allv",
    "send-recv": "send",
}
_ELEMENT_BYTES = 2


def write_kineto(trace: Trace, folder: str | Path, compress: bool = True) -> Path:
    """Write a rank's trace as ``rank<r>.pt.trace.json`` (``.gz``) in a folder, which is made.

    Parameters
    ----------
    trace : Trace
        Any; times are written to the nanosecond.
    folder : path
        Where.
    compress : bool
        With gzip.

    Raises
    ------
    InputError
        The file cannot be written, or the trace has no rank.
    """
    if trace.rank is None:
        raise bad("trace.rank", None, "a rank is needed to name the file", "0")
    path = Path(folder) / f"rank{trace.rank}.pt.trace.json{'.gz' if compress else ''}"
    head = json.dumps(_head(trace))[:-1]
    events = ",\n".join([*_names(trace), *_events(trace)])
    text = f'{head}, "traceEvents": [\n{events}\n]}}\n'.encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text, 6, mtime=0) if compress else text)
    except OSError as error:
        rule = f"cannot be written: {error.strerror or error}"
        raise bad("folder", str(folder), rule, "a folder of yours works") from None
    return path


def _head(trace: Trace) -> dict[str, Any]:
    groups = [
        {"pg_name": g.name, "pg_desc": g.description, "backend_config": "cuda:nccl", "pg_size": g.size,
         "ranks": list(g.ranks)}
        for g in dict.fromkeys(trace.groups)
    ]  # fmt: skip
    info = {"backend": "nccl", "rank": trace.rank, "world_size": trace.world_size, "pg_count": len(groups)}
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "distributedInfo": info | {"pg_config": groups},
        "displayTimeUnit": "ms",
        "traceName": trace.source,
    }
    devices = [lane.process for lane in trace.lanes if lane.on_device]
    if trace.device and devices:
        head["deviceProperties"] = [{"id": int(devices[0]), "name": trace.device}]
    if trace.base_ns is not None:
        head["baseTimeNanoseconds"] = trace.base_ns
    return head


def _names(trace: Trace) -> list[str]:
    """Names of processes and threads, as metadata events."""
    rows = []
    for process, on_device in dict.fromkeys((lane.process, lane.on_device) for lane in trace.lanes):
        at = {"ph": "M", "ts": 0, "pid": _number(process), "tid": 0}
        label = f"GPU {process}" if on_device else "CPU"
        rows += [at | {"name": "process_name", "args": {"name": "python"}}]
        rows += [at | {"name": "process_labels", "args": {"labels": label}}]
    for lane in trace.lanes:
        at = {"ph": "M", "ts": 0, "pid": _number(lane.process), "tid": _number(lane.thread)}
        label = (
            f"stream {lane.thread}" if lane.on_device else f"thread {lane.thread} ({lane.label or 'python'})"
        )
        rows.append(at | {"name": "thread_name", "args": {"name": label}})
    return [json.dumps(row) for row in rows]


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _events(trace: Trace) -> list[str]:
    """One line an event."""
    names = [json.dumps(name) for name in trace.names]
    lanes = [
        f'"pid": {json.dumps(_number(lane.process))}, "tid": {json.dumps(_number(lane.thread))}'
        for lane in trace.lanes
    ]
    columns = ("name", "kind", "start_s", "end_s", "lane", "correlation", "bytes", "operation")
    rows = []
    for i, (name, kind, start, end, lane, correlation, size, operation) in enumerate(
        zip(*(getattr(trace, c).tolist() for c in columns), strict=True)
    ):
        what = KINDS[kind]
        begin_ns, end_ns = round(start * 1e9), round(end * 1e9)
        args = {"correlation": correlation} if correlation >= 0 else {}
        if trace.lanes[lane].on_device:
            args |= {"device": int(trace.lanes[lane].process), "stream": int(trace.lanes[lane].thread)}
        if operation:
            args |= _collective(trace, i)
        elif size:
            args["bytes"] = size
        category = _CATEGORIES.get(what) or _host_category(trace.names[name])
        rows.append(
            f'{{"ph": "X", "cat": "{category}", "name": {names[name]}, {lanes[lane]}, "ts": {_us(begin_ns)}, '
            f'"dur": {_us(end_ns - begin_ns)}, "args": {json.dumps(args)}}}'
        )
    return rows


def _host_category(name: str) -> str:
    """Category of what a host does, by its name."""
    if name.startswith("cuda"):
        return "cuda_runtime"
    return "user_annotation" if name.startswith(("ProfilerStep#", "save_checkpoint")) else "cpu_op"


def _us(nanoseconds: int) -> str:
    """Microseconds with three places, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _collective(trace: Trace, index: int) -> dict[str, Any]:
    """Arguments of a collective."""
    operation, size = OPERATIONS[trace.operation[index]], int(trace.bytes[index])
    group = trace.groups[trace.group[index]]
    elements = size // _ELEMENT_BYTES
    part = elements // max(group.size, 1)
    args = {
        "Collective name": _CALLS.get(operation, operation),
        "In msg nelems": part if operation == "all-gather" else elements,
        "Out msg nelems": part if operation == "reduce-scatter" else elements,
        "dtype": "BFloat16",
        "Group size": group.size,
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": str(list(group.ranks)),
    }
    if trace.sequence[index] >= 0:
        args["Seq"] = int(trace.sequence[index])
    if trace.peer[index] >= 0:
        args["Dst Rank"] = int(trace.peer[index])
    return args
