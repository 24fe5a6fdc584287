"""Published rows of expert dispatch and combine against :mod:`telekit.comm.dispatch`: how each is read, and why.

Sources seldom say how their tokens chose experts, and some name a kernel that works otherwise than its name says. So a
row has a reading, with its reason, and what the other readings would have given. Nothing here is fitted to a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from telekit.cluster.config import load_cluster
from telekit.comm.dispatch import Dispatch, dispatch
from telekit.comm.expert_links import ExpertLinks, expert_links
from telekit.comm.routing import Routing
from telekit.operators.transfers import FP8_SCALED
from telekit.validation.readings import rows

DEVICES = {
    "H800": "h800",
    "H100": "h100",
    "H200": "h200",
    "GB200": "gb200",
    "B200": "b200",
    "A3": "ascend-910c",
}
"""Part of a row's ``gpu``, and the catalog's device."""

NODES = 128
"""Nodes of the cluster that rows are computed on: more than any of them needs."""

BF16_BYTES = 2.0

ANY, GROUPS, BY_NODE = "any experts", "4 of 8 groups", "at most 4 nodes"
"""How tokens choose: all experts alike, as DeepSeek-V3's router, or as DeepEP's test between nodes."""

EVERY_COPY = "every copy is sent, whichever experts are chosen"
WHY = {
    "DeepEP, {device}, EP 8": "DeepEP's tests/test_intranode.py draws so",
    "DeepEP, {device}, normal": "DeepEP's tests/test_internode.py draws so: nodes are the groups, at most four a token",
    "DeepEP, {device}, MPFT": "as in DeepEP's tests/test_internode.py, by the same authors",
    "DeepEP, {device}, low latency": EVERY_COPY,
    "all-to-all, {device}": EVERY_COPY,
    "HybridEP, {device}": (
        "the source is silent, and DeepEP's tests/test_hybrid_ep.py draws any experts; but then EP 32 and 64 on H100 "
        "would need more than the card's 50 GB/s. So all rows are read as routed by DeepSeek-V3"
    ),
    "DeepEP-Ascend, {device}, normal": (
        "its tests/python/deepep/test_intranode.py counts every copy and notes that copies to one rank are sent twice"
    ),
    "DeepEP-Ascend, {device}, low latency": EVERY_COPY,
}
"""Reason for the reading of each group of rows."""


@dataclass(frozen=True)
class Reading:
    """One way to read a row.

    Attributes
    ----------
    name : str
        Of the routing (:data:`ANY`, :data:`GROUPS`, :data:`BY_NODE`), or of the dispatcher where that is in question.
    dispatcher : str
        One of :data:`telekit.comm.dispatch.DISPATCHERS`.
    routing : Routing
        How tokens choose.
    """

    name: str
    dispatcher: str
    routing: Routing


@dataclass(frozen=True)
class DispatchRow:
    """A published row beside ours.

    Attributes
    ----------
    id, group, device : str
        Of the row in ``data/measurements/communication.json``; source and kernel; the catalog's device.
    op, ep : str, int
        ``dispatch`` or ``combine``, and ranks.
    reading, why : Reading, str
        How it is read, and the reason.
    published, found : float
        Seconds, or where the source gives only that the bandwidth by its own counting in bytes/s.
    others : dict of str to float
        What each other reading finds.
    """

    id: str
    group: str
    device: str
    op: str
    ep: int
    reading: Reading
    why: str
    published: float
    found: float
    others: dict[str, float]

    @property
    def error(self) -> float:
        """Relative error of the published figure, be it a time or a bandwidth."""
        return self.found / self.published - 1

    @property
    def other_errors(self) -> dict[str, float]:
        """The same of every other reading."""
        return {name: found / self.published - 1 for name, found in self.others.items()}


@dataclass(frozen=True)
class GroupError:
    """Errors of one group of rows under one reading: the median of their sizes, and the largest with its sign.

    ``why`` is the reason for the reading that is used, else empty.
    """

    group: str
    reading: str
    used: bool
    rows: int
    median: float
    most: float
    why: str


@cache
def published() -> tuple[Mapping[str, Any], ...]:
    """Rows of dispatch and combine as they stand in ``data/measurements/communication.json``."""
    return tuple(row for row in rows("communication") if row["kind"] == "moe_a2a")


def device_of(row: Mapping[str, Any]) -> str:
    """Part of a row's ``gpu`` that is a key of :data:`DEVICES`."""
    return next(name for name in DEVICES if name in row["gpu"])


def _kind(row: Mapping[str, Any]) -> str:
    if "implementation" in row:
        return f"{row['implementation']}, {{device}}"
    ascend = device_of(row) == "A3"
    mode = "low latency" if "low latency" in row.get("mode", "") else row.get("network", "normal")
    if mode == "normal" and row["ep"] == 8 and not ascend:
        mode = "EP 8"
    return f"DeepEP{'-Ascend' if ascend else ''}, {{device}}, {mode}"


def group_of(row: Mapping[str, Any]) -> str:
    """Kernel, device and mode of a row."""
    return _kind(row).format(device=device_of(row))


def why(row: Mapping[str, Any]) -> str:
    """Reason for the reading of a row."""
    return WHY[_kind(row)]


def readings(row: Mapping[str, Any]) -> tuple[Reading, ...]:
    """Ways to read a row; the first is the one that is used."""
    experts, k, nodes = row.get("experts", 256), row.get("topk", 8), row["ep"] // 8
    free = Routing(experts, k)
    if row.get("implementation") == "all-to-all":
        return (Reading(ANY, "alltoall", free),)
    if "low latency" in row.get("mode", ""):
        return (Reading(ANY, "deepep_low_latency", free),)
    if device_of(row) == "A3":
        return Reading("alltoall", "alltoall", free), Reading("deepep", "deepep", free)
    name = "hybridep" if "implementation" in row else "deepep"
    any_of, grouped = Reading(ANY, name, free), Reading(GROUPS, name, Routing(experts, k, 8, 4))
    if name == "hybridep":
        return grouped, any_of
    if nodes == 1:
        return any_of, grouped
    return Reading(BY_NODE, name, Routing.node_limited(experts, k, nodes, 4)), any_of, grouped


@lru_cache(maxsize=16)
def _links(device: str) -> ExpertLinks:
    return expert_links(load_cluster({"device": DEVICES[device], "nodes": NODES}))


def dispatched(row: Mapping[str, Any], reading: Reading | None = None) -> Dispatch:
    """Dispatch and combine of a row as we price them, under a reading (None: the one that is used)."""
    used = reading or readings(row)[0]
    links = replace(_links(device_of(row)), sms=row.get("sms", 24))
    number = BF16_BYTES if "implementation" in row else FP8_SCALED  # int8 has the same scales
    return dispatch(
        used.dispatcher, row["tokens"], row.get("hidden", 7168), number, BF16_BYTES, used.routing, row["ep"],
        links.domain, links,
    )  # fmt: skip


def figures(row: Mapping[str, Any], reading: Reading | None = None) -> tuple[float, float]:
    """Our figure and the published one: seconds, or where a source gives only that the bandwidth that it counts."""
    found, way = dispatched(row, reading), row["op"]
    if "latency_us" in row:
        return float(found.dispatch_s if way == "dispatch" else found.combine_s), row["latency_us"] * 1e-6
    tier = "inner" if row.get("bottleneck") in ("NVLink", "HCCS") else "outer"
    return float(found.counted_bandwidth(tier, way)), row["bottleneck_bandwidth_GBs"] * 1e9


@cache
def dispatch_rows() -> tuple[DispatchRow, ...]:
    """Every published row beside ours."""
    rows = []
    for row in published():
        used, *others = readings(row)
        ours, seen = figures(row)
        more = {other.name: figures(row, other)[0] for other in others}
        where, call = (row["id"], group_of(row), DEVICES[device_of(row)]), (row["op"], row["ep"])
        rows.append(DispatchRow(*where, *call, used, why(row), seen, ours, more))
    return tuple(rows)


def errors_by_reading() -> tuple[GroupError, ...]:
    """Errors of each group of rows under every reading of it, the used one first."""
    errors: dict[tuple[str, str], list[float]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for row in sorted(dispatch_rows(), key=lambda row: row.group):
        reasons[row.group, row.reading.name] = row.why
        for name, error in {row.reading.name: row.error, **row.other_errors}.items():
            errors.setdefault((row.group, name), []).append(error)
    return tuple(
        GroupError(
            *key, key in reasons, len(found), float(np.median(np.abs(found))), max(found, key=abs),
            reasons.get(key, ""),
        )
        for key, found in errors.items()
    )  # fmt: skip
