"""What kind of event it is, from what the profilers call it."""

from __future__ import annotations

import re

from telekit.diagnose.trace import KIND, OPERATION

_DEVICE = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "memcpy": "copy",
    "memset": "copy",
    "concurrent_kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "xpu_kernel": "kernel",
    "gpu_user_annotation": "other",
    "gpu_op": "kernel",
    "cuda_sync": "wait",
}
_RUNTIME = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime",
            "privateuse1_driver", "mtia_runtime", "cann", "hip_api", "driver"}  # fmt: skip
_COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|hcom_|oneccl|mscclpp|deep_?ep::|nvshmem|cross_device_reduce|allreduce_fusion"
    r"|all_?reduce_(?:one|two)_?shot|(?:one|two)_?shot_?all_?reduce|multimem_all_?reduce|c10d::symmetric",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"^(?:nccl|rccl|hccl|gloo|mpi|ucc|c10d|_c10d_functional)::?|^record_param_comms|^hcom_", re.IGNORECASE
)
_ON_HOST = re.compile(r"^(?:gloo|mpi):", re.IGNORECASE)
_LAUNCH = re.compile(
    r"launch|memcpy(?!Type)|memset|^(?:node@|acl(?:rt)?(?:mem(?:cpy|set)).*async)|runtime@kernel|enqueue$",
    re.IGNORECASE,
)
_WAIT = re.compile(
    r"synchroni[sz]e|^(?:cuda|hip)StreamSync|^(?:cuda|hip|cu)EventSync|waitevent.*host", re.IGNORECASE
)
_DATA = re.compile(
    r"data_?loader|get_batch|next_batch|fetch_batch|load_batch|batch[-_ ]generator", re.IGNORECASE
)
_OPERATIONS = (
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("reducescatter", "reduce-scatter"),
    ("alltoall", "all-to-all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send-recv"),
    ("barrier", "barrier"),
    ("batchsend", "send-recv"),
    ("receive", "send-recv"),
    ("send", "send-recv"),
    ("recv", "send-recv"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
)
_ASCEND_WAIT = re.compile(r"wait", re.IGNORECASE)
_ASCEND_COPY = re.compile(r"memcpy|sdma|pcie_dma|memset", re.IGNORECASE)
_ASCEND_CORE = re.compile(r"ai_?core|ai_?cpu|aic|aiv|vector|mix|kernel|dsa|dvpp", re.IGNORECASE)
DTYPE_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "uint64": 8, "float": 4, "float32": 4, "fp32": 4, "int": 4,
    "int32": 4, "half": 2, "float16": 2, "fp16": 2, "bfloat16": 2, "c10::bfloat16": 2, "c10::half": 2, "bf16": 2,
    "short": 2, "int16": 2, "byte": 1, "char": 1, "int8": 1, "uint8": 1, "bool": 1, "unsigned char": 1,
    "signed char": 1, "long int": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
}  # fmt: skip
"""Bytes of one element, by the names traces use, in lower case."""


def is_device_category(category: str) -> bool:
    """Whether a Chrome trace's category is of work on a device."""
    return category.lower() in _DEVICE


def is_outward(name: str) -> bool:
    """Whether a copy of this name goes from a device to the host, so that its source is the device."""
    return bool(re.search(r"device_?to_?host|dtoh", name, re.IGNORECASE))


def is_communication(name: str) -> bool:
    """Whether a device's kernel of this name is a collective or point-to-point operation."""
    return bool(_COMMUNICATION.search(name))


def operation(name: str) -> int:
    """Return which collective a name speaks of, as an index into :data:`OPERATIONS`; 0 where none."""
    plain = name.lower().replace("_", "").replace("-", "")
    for mark in ("ncclkernel", "nccldevkernel", "ncclker", "ncclsym"):
        plain = plain.replace(mark, "")
    for word, found in _OPERATIONS:
        if word in plain:
            return OPERATION[found]
    return 0


def is_call(name: str) -> bool:
    """Whether a host event of this name is the call of a collective."""
    return bool(_CALL.search(name))


def kind_of(name: str, category: str, process: str, thread: str, task: str) -> tuple[int, bool]:
    """Tell the kind of an event, and whether it ran on a device.

    Parameters
    ----------
    name, category : str
        The event's.
    process, thread : str
        What the trace calls its process and thread.
    task : str
        Ascend's task type.
    """
    plain = category.lower()
    if plain in _DEVICE:
        kind = _DEVICE[plain]
        return KIND["communication" if kind == "kernel" and is_communication(name) else kind], True
    if process.startswith("Ascend Hardware"):
        return KIND[ascend_task(name, thread, task)], True
    if process.startswith(("Communication", "HCCL")) and not category:
        whole = "plane" not in thread.lower() and not _ASCEND_WAIT.search(name)
        return KIND["communication" if whole else "other"], True
    if process.startswith(("Overlap Analysis", "AI Core Freq", "AI Core Utilization")) or plain in (
        "overhead",
        "trace",
    ):
        return KIND["other"], False
    if _WAIT.search(name) and plain != "python_function":
        return KIND["wait"], False
    if (plain in _RUNTIME or process.startswith("CANN") or plain == "enqueue") and _LAUNCH.search(name):
        return KIND["launch"], False
    if _ON_HOST.search(name):
        return KIND["communication"], False
    return KIND["data" if _DATA.search(name) else "host"], False


def ascend_task(name: str, thread: str, task: str) -> str:
    """Kind of a task in Ascend's hardware layer (its collectives stand in the communication layer as a whole)."""
    if "step trace" in thread.lower():
        return "other"
    if _ASCEND_WAIT.search(task) or _ASCEND_WAIT.search(name):
        return "wait"
    if is_communication(name) or task.upper() in ("COMMUNICATION", "HCCL"):
        return "communication"
    if _ASCEND_COPY.search(task) or (not task and _ASCEND_COPY.search(name)):
        return "copy"
    return "kernel" if not task or _ASCEND_CORE.search(task) else "other"


def size_of(dtype: str, elements: int) -> int:
    """Bytes of so many elements; 0 where the type or the number is not known."""
    return DTYPE_BYTES.get(dtype.lower(), 0) * max(elements, 0)
