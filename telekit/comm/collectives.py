"""Alpha-beta time of collectives over links in tiers, elementwise over layouts.

A group is ``ranks`` devices that lie ``stride`` apart. On each tier it has so many ranks within reach; ring collectives
(all-gather, reduce-scatter, all-reduce) are limited by the slowest tier, where all ranks inside one unit of that tier
drive their own links side by side; all-to-all sends each peer its share over the tier that reaches it. Latency is paid
once a step of a hierarchical ring. Sources: nccl-tests PERFORMANCE.md for the factors, the cluster's record for links.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.errors import bad

RING_PASSES = {"all-gather": 1.0, "reduce-scatter": 1.0, "broadcast": 1.0, "all-reduce": 2.0}
COLLECTIVES = (*RING_PASSES, "all-to-all", "dedup-all-to-all", "send-recv")


def within_reach(tier: LinkTier, ranks: Any, stride: Any) -> Any:
    """Ranks of a group that one unit of a tier holds for sure (at least 1, at most all).

    Groups lie one after the other, so one whose span does not divide a node straddles two of them: then only as
    many neighbours as both have in common stay together (6 ranks on nodes of 8: 2).
    """
    if tier.devices is None:
        return ranks * 1.0
    span = np.rint(np.asarray(ranks * stride)).astype(np.int64)
    return np.clip(np.gcd(span, tier.devices) / stride, 1.0, ranks)


def collective_time_s(
    op: str, size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig, fan_out: int = 1
) -> Any:
    """Time of one collective.

    Parameters
    ----------
    op : str
        One of :data:`COLLECTIVES`. ``dedup-all-to-all`` is an all-to-all of token copies, ``fan_out`` a token, in
        which a token crosses to another node once, however many experts it visits there.
    size_bytes : float or column
        Whole buffer, as nccl-tests counts it (all-gather: what every rank holds at the end; all-to-all: what
        one rank sends, its own share included; send-recv: the message).
    ranks, stride : int or column
        Group size, and distance between neighbours in ranks.
    cluster : ClusterConfig
        Links.
    fan_out : int
        Experts a token visits, for ``dedup-all-to-all``.

    Returns
    -------
    float or column
        Seconds; 0 for one rank.

    Raises
    ------
    InputError
        For a collective with no such name.
    """
    if op not in COLLECTIVES:
        raise bad("op", op, "no such collective", f"known: {', '.join(COLLECTIVES)}")
    if op == "send-recv":
        return _send_recv_s(size_bytes, ranks, stride, cluster)
    if op in RING_PASSES:
        return RING_PASSES[op] * _ring_s(size_bytes, ranks, stride, cluster)
    return _all_to_all_s(size_bytes, ranks, stride, cluster, fan_out if op == "dedup-all-to-all" else 0)


def _ring_s(size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig) -> Any:
    inner: Any = 1.0
    latency: Any = 0.0
    transfer: Any = 0.0
    for tier in cluster.tiers:
        reach = within_reach(tier, ranks, stride)
        crosses = reach > inner
        rate = tier.bandwidth_bytes_per_s * tier.efficiency * inner
        transfer = np.maximum(transfer, np.where(crosses, size_bytes / rate, 0.0))
        latency = latency + np.where(crosses, (np.ceil(reach / inner) - 1.0) * tier.latency_s, 0.0)
        inner = reach
    return transfer * (ranks - 1.0) / ranks + latency


def _all_to_all_s(size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig, fan_out: int) -> Any:
    inner: Any = 1.0
    latency: Any = 0.0
    transfer: Any = 0.0
    for depth, tier in enumerate(cluster.tiers):
        reach = within_reach(tier, ranks, stride)
        share = (reach - inner) / ranks
        if fan_out and depth:
            share = _distinct_units(reach / inner, ranks / inner, fan_out) / fan_out
        elif fan_out:  # copies that arrive once at a node are handed on inside it
            share = (reach - 1.0) / reach
        crosses = reach > inner
        rate = tier.bandwidth_bytes_per_s * tier.efficiency
        transfer = np.maximum(transfer, np.where(crosses, size_bytes * share / rate, 0.0))
        latency = latency + np.where(crosses, tier.latency_s, 0.0)
        inner = reach
    return transfer + latency


def _distinct_units(reached: Any, units: Any, fan_out: int) -> Any:
    """Mean number of other units (nodes) that hold one of ``fan_out`` experts drawn uniformly.

    Drawn with repetition, which is at most 2 % below drawing distinct ones at 128 experts and more).
    """
    return (reached - 1.0) * (1.0 - (1.0 - 1.0 / units) ** fan_out)


def _send_recv_s(size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig) -> Any:
    """Time of the slowest of the hops between neighbours: some hop crosses a unit that does not hold them all."""
    time: Any = 0.0
    for tier in reversed(cluster.tiers):
        mine = tier.latency_s + size_bytes / (tier.bandwidth_bytes_per_s * tier.efficiency)
        time = mine if tier.devices is None else np.where(ranks * stride <= tier.devices, mine, time)
    return time
