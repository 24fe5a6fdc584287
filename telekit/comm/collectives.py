"""Time of collectives over links in tiers, elementwise over layouts: what the cost models ask.

A group is ``ranks`` devices that lie ``stride`` apart. Inside a tier that has a measured curve the curve answers. Over
several tiers, and where there is none, ring collectives (all-gather, reduce-scatter, all-reduce) are limited by the
slowest tier, where all ranks inside one unit of that tier drive their own links side by side (the groups beside this
one drive theirs); all-to-all sends each peer its share over the tier that reaches it. The bytes are the ring's, which
libraries take for large buffers; the latency is that of one ring a tier, since for small ones they do not walk a ring
through all ranks. :mod:`telekit.comm.algorithms` tells the algorithms apart. Sources: nccl-tests PERFORMANCE.md for the
factors, the cluster's record for links.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.comm.routing import distinct_uniform
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
    op: str,
    size_bytes: Any,
    ranks: Any,
    stride: Any,
    cluster: ClusterConfig,
    fan_out: int = 1,
    experts: int = 1,
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
    fan_out, experts : int
        Experts a token visits, and experts there are, for ``dedup-all-to-all``; routing is uniform.

    Returns
    -------
    float or column
        Seconds; 0 for one rank.

    Raises
    ------
    InputError
        For a collective with no such name, and more experts visited than there are.
    """
    if op not in COLLECTIVES:
        raise bad("op", op, "no such collective", f"known: {', '.join(COLLECTIVES)}")
    if op == "send-recv":
        return _send_recv_s(size_bytes, ranks, stride, cluster)
    if op in RING_PASSES:
        return _ring_s(op, size_bytes, ranks, stride, cluster)
    if op == "dedup-all-to-all" and not 1 <= fan_out <= experts:
        raise bad("fan_out", fan_out, f"a token visits from 1 to all {experts} experts", "give experts too")
    visits = (fan_out, experts) if op == "dedup-all-to-all" else (0, 0)
    return _all_to_all_s(op, size_bytes, ranks, stride, cluster, *visits)


def _ring_s(op: str, size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig) -> Any:
    inner: Any = 1.0
    latency: Any = 0.0
    transfer: Any = 0.0
    passes, share = RING_PASSES[op], (ranks - 1.0) / ranks
    for depth, tier in enumerate(cluster.tiers):
        reach = within_reach(tier, ranks, stride)
        steps = passes * (np.ceil(reach / inner) - 1.0) * tier.message_s
        moved = passes * share * size_bytes / (tier.rate_bytes_per_s * inner)
        if op in tier.curves:  # a rank's own link carries what the whole group makes it send
            same = 1.0 if op == "broadcast" else share * reach / np.maximum(reach - 1.0, 1.0)
            steps, moved = _measured(cluster, depth, op, size_bytes * same, inner, reach, (steps, moved))
        latency = latency + np.where(reach > inner, steps, 0.0)
        transfer = np.maximum(transfer, np.where(reach > inner, moved, 0.0))
        inner = reach
    return transfer + latency


def _measured(
    cluster: ClusterConfig,
    depth: int,
    op: str,
    size_bytes: Any,
    inner: Any,
    reach: Any,
    plain: tuple[Any, Any],
) -> tuple[Any, Any]:
    """Latency and time of the bytes by a tier's curve, which was measured on whole units of the tier below."""
    whole = True if depth == 0 else inner >= (cluster.tiers[depth - 1].devices or np.inf)
    time = cluster.tiers[depth].curves[op].time_s(op, size_bytes, reach)
    return np.where(whole, 0.0, plain[0]), np.where(whole, time, plain[1])


def _all_to_all_s(
    op: str, size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig, fan_out: int, experts: int
) -> Any:
    inner: Any = 1.0
    latency: Any = 0.0
    transfer: Any = 0.0
    for depth, tier in enumerate(cluster.tiers):
        reach = within_reach(tier, ranks, stride)
        share = (reach - inner) / ranks
        if fan_out and depth:
            units = ranks / inner  # a token visits so many of them; only those within reach use this tier
            visited = distinct_uniform(units, experts, fan_out)
            share = visited * (reach / inner - 1.0) / units / fan_out
        elif fan_out:  # copies that arrive once at a node are handed on inside it
            share = (reach - 1.0) / reach
        steps, moved = tier.message_s, size_bytes * share / tier.rate_bytes_per_s
        if op in tier.curves:
            plain = (steps, moved)
            steps, moved = _measured(cluster, depth, op, size_bytes * reach / ranks, inner, reach, plain)
        latency = latency + np.where(reach > inner, steps, 0.0)
        transfer = np.maximum(transfer, np.where(reach > inner, moved, 0.0))
        inner = reach
    return transfer + latency


def _send_recv_s(size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig) -> Any:
    """Time of the slowest of the hops between neighbours: some hop crosses a unit that does not hold them all."""
    time: Any = 0.0
    for tier in reversed(cluster.tiers):
        curve = tier.curves.get("send-recv")
        mine = tier.message_s + size_bytes / tier.rate_bytes_per_s
        if curve is not None:
            mine = curve.time_s("send-recv", size_bytes, 2.0)
        time = mine if tier.devices is None else np.where(ranks * stride <= tier.devices, mine, time)
    return time
