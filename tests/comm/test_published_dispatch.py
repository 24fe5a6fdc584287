"""Dispatch and combine against every published row; how many must come within 20 % is asserted group by group."""

from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from telekit import catalog
from telekit.cluster.config import load_cluster
from telekit.comm.dispatch import dispatch, logical_to_wire
from telekit.comm.expert_links import expert_links
from telekit.comm.routing import Routing

FP8 = 1 + 4 / 128
"""Bytes of a number in fp8 with a scale of four bytes for every 128 (int8 on Ascend alike)."""

DEVICES = {
    "H800": "h800",
    "H100": "h100",
    "H200": "h200",
    "GB200": "gb200",
    "B200": "b200",
    "A3": "ascend-910c",
}
NEAR = 0.20


@cache
def rows():
    found = catalog.load(catalog.root() / "measurements" / "communication.json")
    return tuple(row for row in found if row["kind"] == "moe_a2a")


@cache
def links(gpu):
    device = next(DEVICES[name] for name in DEVICES if name in gpu)
    return expert_links(load_cluster({"device": device, "nodes": 128}))


def group_of(row):
    if "implementation" in row:
        return f"table 7, {row['implementation']}, {row['gpu']}"
    if "sms" in row:
        return f"DeepEP, EP 8, {row['gpu']}"
    maker = "Ascend A3" if "A3" in row["gpu"] else "DeepEP"
    if "low latency" in row.get("mode", ""):
        return f"{maker}, low latency"
    return f"{maker}, arXiv 2505.09343" if "network" in row else f"{maker}, normal"


def routing_of(row):
    """Choices as each source made them.

    Table 7 and DeepEP's tests between nodes are group-limited as in DeepSeek-V3: table 7 by its eight groups (without
    that its rows at EP 32 and 64 would need more than the card's 50 GB/s), DeepEP by nodes, at most four. Tests inside
    one node, low-latency kernels and Ascend's draw all experts alike.
    """
    experts, k = row.get("experts", 256), row.get("topk", 8)
    if "implementation" in row:
        return Routing(experts, k, 8, 4)
    nodes = row["ep"] // 8
    if group_of(row) in ("DeepEP, normal", "DeepEP, arXiv 2505.09343") and nodes > 1:
        return Routing.node_limited(experts, k, nodes, 4)
    return Routing.uniform(experts, k)


def dispatcher_of(row):
    if row.get("implementation") == "HybridEP":
        return "hybridep"
    if row.get("implementation") or ("A3" in row["gpu"] and "mode" not in row):
        return "alltoall"
    return "deepep_low_latency" if "low latency" in row.get("mode", "") else "deepep"


def dispatched(row):
    there, own = links(row["gpu"]), row.get("sms", 24)
    number = 2 if "implementation" in row else FP8
    return dispatch(
        dispatcher_of(row), row["tokens"], row.get("hidden", 7168), number, 2, routing_of(row), row["ep"],
        there.domain, replace(there, sms=own),
    )  # fmt: skip


def predicted_over_published(row):
    """Time, or where a source gives only that the bandwidth by its own counting (own node or device counted)."""
    found, way = dispatched(row), row["op"]
    if "latency_us" in row:
        return (found.dispatch_s if way == "dispatch" else found.combine_s) * 1e6 / row["latency_us"]
    tier = "inner" if row.get("bottleneck") in ("NVLink", "HCCS") else "outer"
    return found.counted_bandwidth(tier, way) / 1e9 / row["bottleneck_bandwidth_GBs"]


@cache
def by_group():
    found = defaultdict(list)
    for row in rows():
        found[group_of(row)].append((row["id"], predicted_over_published(row)))
    return dict(found)


# group: rows, of them within 20 %, and the largest error that is let pass
EXPECTED = {
    "DeepEP, normal": (4, 4, 0.12),
    "DeepEP, arXiv 2505.09343": (4, 4, 0.10),
    "DeepEP, low latency": (12, 12, 0.10),
    "DeepEP, EP 8, NVIDIA H100 80GB HBM3": (24, 24, 0.08),
    "DeepEP, EP 8, NVIDIA H200": (48, 48, 0.10),
    "DeepEP, EP 8, NVIDIA B200": (36, 36, 0.18),
    "table 7, all-to-all, H100": (4, 4, 0.10),
    "table 7, all-to-all, GB200": (4, 4, 0.12),
    "table 7, HybridEP, H100": (4, 4, 0.14),
    "table 7, HybridEP, GB200": (4, 4, 0.15),
    "Ascend A3, normal": (5, 5, 0.08),
    "Ascend A3, low latency": (6, 6, 0.05),
}


def test_every_row_is_compared():
    assert {name: len(found) for name, found in by_group().items()} == {
        name: count for name, (count, _, _) in EXPECTED.items()
    }
    assert sum(count for count, _, _ in EXPECTED.values()) == len(rows()) == 155


@pytest.mark.parametrize("name", EXPECTED)
def test_published_rows_are_predicted(name):
    _, near, most = EXPECTED[name]
    errors = {row: abs(ratio - 1) for row, ratio in by_group()[name]}
    assert sum(error <= NEAR for error in errors.values()) == near
    assert max(errors.values()) <= most, max(errors, key=errors.get)


def test_fused_over_flat_is_predicted():
    """HybridEP against the all-to-all of the same case (H100 and GB200, EP 8 to 64)."""
    times = defaultdict(dict)
    for row in rows():
        if "implementation" in row:
            predicted = predicted_over_published(row) * row["latency_us"]
            times[row["gpu"], row["ep"]][row["implementation"]] = (row["latency_us"], predicted)
    assert len(times) == 8
    off = {}
    for case, found in times.items():
        (flat, flat_model), (fused, fused_model) = found["all-to-all"], found["HybridEP"]
        off[case] = (flat_model / fused_model) / (flat / fused) - 1
    assert all(abs(error) <= NEAR for error in off.values())
    assert max(off, key=lambda case: abs(off[case])) == (
        "GB200",
        64,
    )  # whose all-to-all slows down, unmodelled


def test_which_is_quicker_is_never_wrong():
    for row in rows():
        if row.get("implementation") == "HybridEP":
            flat = dict(row, implementation="all-to-all")
            assert dispatched(row).dispatch_s < dispatched(flat).dispatch_s


def test_reported_bandwidth_above_the_card_is_explained():
    """DeepEP reports 43 to 58 GB/s over a 50 GB/s card: without the own node's rows it is below, for every row."""
    reported = [r for r in rows() if r["gpu"] == "H800" and "bottleneck_bandwidth_GBs" in r and r["ep"] > 8]
    assert len(reported) == 7 and any(r["bottleneck_bandwidth_GBs"] > 50 for r in reported)
    for row in reported:
        assert logical_to_wire(row["bottleneck_bandwidth_GBs"], row["ep"] / 8) < 45


def test_without_group_limits_table_7_would_need_more_than_the_card():
    """Why the rows of HybridEP between nodes are read as group-limited (the source does not say)."""
    row = next(
        r for r in rows() if r.get("implementation") == "HybridEP" and r["gpu"] == "H100" and r["ep"] == 64
    )
    free = Routing(256, 8).distinct_units(8) * (1 - 1 / 8) * 4096 * 7168 * 2 / (row["latency_us"] * 1e-6)
    limited = (
        Routing(256, 8, 8, 4).distinct_units(8) * (1 - 1 / 8) * 4096 * 7168 * 2 / (row["latency_us"] * 1e-6)
    )
    assert limited < 50e9 < free


@pytest.mark.parametrize("hidden", [2048, 4096, 7168])
def test_a_hidden_size_left_out_of_the_fit_is_predicted(hidden):
    """The kernels' parameters, fitted again without one hidden size; most of its rows come within 20 %."""
    from scipy.optimize import least_squares

    found = [r for r in rows() if "sms" in r]

    def columns(some):
        there = np.array([r["op"] == "combine" for r in some], dtype=float)
        width = np.array([r["hidden"] * (2 if r["op"] == "combine" else FP8) for r in some])
        visits = np.array([routing_of(r).distinct_units(8) for r in some])
        rest = [np.array([float(r[k]) for r in some]) for k in ("tokens", "sms", "latency_us")]
        return there, width, visits, np.array(["B200" in r["gpu"] for r in some]), *rest

    def errors(p, data):
        combine, width, visits, blackwell, tokens, sms, measured = data
        row_s, rate = np.where(blackwell, p[3], p[2]) * 1e-9, np.where(blackwell, p[5], p[4]) * 1e9
        wire = visits * 7 / 8 * width / (np.where(blackwell, 540, 302) * 1e9)
        time = p[0] * 1e-6 + (tokens + p[1] * combine) * np.maximum(
            wire, visits * (row_s + width / rate) / sms
        )
        return np.log(time * 1e6 / measured)

    kept, left = ([r for r in found if (r["hidden"] == hidden) == out] for out in (False, True))
    fit = least_squares(
        errors,
        [40, 170, 140, 170, 35, 27],
        bounds=(1, 1e3),
        args=(columns(kept),),
        loss="soft_l1",
        f_scale=0.05,
    )
    off = np.abs(np.expm1(errors(fit.x, columns(left))))
    assert np.mean(off <= NEAR) >= 0.9
    assert np.median(off) <= 0.10


def test_an_all_to_all_of_another_device_by_the_default_shares():
    """Tutel (arXiv 2206.03382, appendix A.2): 128 MiB among the 8 A100 of a node take 600 us; A100 was not fitted."""
    there = expert_links(load_cluster({"device": "a100-80gb", "nodes": 1}))
    rows_of = 2**27 // (2 * 1024)
    found = dispatch("alltoall", rows_of, 1024, 2, 2, Routing(64, 1), 8, 8, there)
    assert found.dispatch_s == pytest.approx(600e-6, rel=0.05)
