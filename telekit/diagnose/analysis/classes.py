"""What an event is for, by its kind and its name: classes of the host's work, experts' kernels."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.marks import is_mark
from telekit.diagnose.trace import Trace

HOST_CLASSES = ("checkpoint", "memory", "collector", "monitor", "data", "sync", "launch", "host")
"""What a host does while its device idles, the most telling first; ``silent`` is none of them."""
NAMES = {
    "checkpoint": r"(?:save|write|dump|serializ\w*|persist)\W?_?(?:\w*_)?(?:checkpoint|ckpt)|(?:checkpoint|ckpt)\W?_?"
    r"(?:save|saving|write|writing|dump|io|flush|async|stage)|torch\.save|^checkpoint(?:ing)?$|state_dict",
    "memory": r"(?:cuda|hip|cu|musa|aclrt|rt)(?:host)?(?:malloc|free|mem(?:create|map|unmap|release|alloc|address))|"
    r"realloc|empty_?cache|allocator|defrag|memory.*(?:alloc|compact)",
    "collector": r"\bgc\b|gc[._ ]collect|garbage|gc_pause|^gc",
    "monitor": r"monitor|dcgm|nvidia-smi|npu-smi|telemetry|prometheus|node_exporter|health_?check|daemon|cron",
    "data": r"data_?loader|get_batch|next_batch|load_batch|fetch_batch|batch_iterator|dataset|tokeniz",
    "sync": r"synchronize|cudaeventquery|streamwait|\bitem$|_local_scalar_dense",
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in NAMES.items()}
EXPERTS = re.compile(r"expert|moe|grouped_?gemm|group_?gemm|gmm|grouped_?m(?:at)?m", re.IGNORECASE)


@lru_cache(maxsize=65536)
def class_of_name(name: str) -> str:
    """Class of the host's work that a name tells, or nothing."""
    return next((kind for kind, pattern in PATTERNS.items() if pattern.search(name)), "")


def host_classes(trace: Trace) -> NDArray[np.int64]:
    """Index into :data:`HOST_CLASSES` of each host event; -1 of others, and of what only frames other events.

    Loading counts on threads that launch (a worker that loads ahead holds nobody up), where there are such; so do
    plain operators. Collections, monitors and saves count wherever they run.
    """
    names = np.array(
        [HOST_CLASSES.index(c) if (c := class_of_name(n)) else -1 for n in trace.names] or [-1], np.int64
    )
    by_kind = {"data": "data", "wait": "sync", "launch": "launch", "host": "host"}
    found = np.full(len(trace), -1, np.int64)
    for kind, name in by_kind.items():
        found[trace.is_kind(kind)] = HOST_CLASSES.index(name)
    plain = trace.is_kind("host", "launch", "wait", "data", "other") & ~trace.on_device
    telling = names[trace.name] >= 0
    keep_data = trace.is_kind("data") & (names[trace.name] != HOST_CLASSES.index("checkpoint"))
    found = np.where(plain & telling & ~keep_data, names[trace.name], found)
    found[is_mark(trace) | ~plain] = -1
    return _on_main_threads(trace, found)


def _on_main_threads(trace: Trace, found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Leave out what runs on threads that launch nothing, except what matters wherever it runs."""
    launching = np.unique(trace.lane[trace.is_kind("launch") & ~trace.on_device])
    if not len(launching):
        return found
    aside = ~np.isin(trace.lane, launching)
    for name in ("data", "sync", "host", "launch"):
        which = found == HOST_CLASSES.index(name)
        if (which & ~aside).any():
            found[which & aside] = -1
    return found
