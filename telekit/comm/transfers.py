"""Time of a layer's transfers under a layout: ranks and stride of each group, in Megatron-Core's order of ranks.

Collectives are priced by :mod:`telekit.comm.collectives`, expert traffic by :mod:`telekit.comm.dispatch`, as
``telekit comm`` and ``telekit dispatch`` price them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig
from telekit.comm.collectives import collective_time_s
from telekit.comm.dispatch import exchange_phases, rows_on, tensor_phase
from telekit.comm.expert_links import ExpertLinks, domain_ranks, expert_links
from telekit.comm.routing import Routing
from telekit.operators.transfers import ExpertTraffic, Transfer


def group(layout: Any, name: str) -> tuple[Any, Any]:
    """Ranks and stride of a group (order of ranks: tp, cp, dp, pp; experts etp, ep, edp, pp)."""
    x = layout
    return {
        "tp": (x.tp, 1),
        "cp": (x.cp, x.tp),
        "dp": (x.dp * x.cp, x.tp),
        "etp": (x.etp, 1),
        "ep": (x.ep, x.etp),
        "edp": (x.edp, x.etp * x.ep),
        "pp": (x.pp, x.tp * x.cp * x.dp),
    }[name]


def transfer_s(transfer: Transfer, layout: Any, cluster: ClusterConfig) -> Any:
    """Time of one call; 0 in a group of one rank.

    Parameters
    ----------
    transfer, layout, cluster
        What is sent, under one layout or a table of them, over which links.
    """
    ranks, stride = group(layout, transfer.group)
    if not np.any(np.asarray(ranks) > 1):
        return np.zeros(np.broadcast_shapes(np.shape(ranks), np.shape(transfer.size_bytes)))
    if transfer.expert is None:
        time = collective_time_s(transfer.op, transfer.size_bytes, ranks, stride, cluster)
    else:
        time = _expert_s(transfer.expert, transfer.group, layout, cluster)
    return np.where(np.asarray(ranks) > 1, time, 0.0)


def _expert_s(traffic: ExpertTraffic, over: str, layout: Any, cluster: ClusterConfig) -> Any:
    """Time of expert traffic over ``ep``, or over the ranks that share an expert's matrices."""
    near = expert_links(cluster)
    time = _by_links(traffic, over, layout, cluster, near)
    span = np.asarray(layout.ep) * layout.etp
    if near.reach is None or not np.any(span > near.reach):
        return time
    far = _by_links(traffic, over, layout, cluster, expert_links(cluster, far=True))
    return np.where(span > near.reach, far, time)


def _by_links(
    traffic: ExpertTraffic, over: str, layout: Any, cluster: ClusterConfig, links: ExpertLinks
) -> Any:
    routing = _routing(traffic.experts, traffic.top_k, traffic.groups, traffic.group_limit)
    rows = rows_on(traffic.dispatcher, routing, layout.ep, domain_ranks(cluster, layout.ep, layout.etp))
    tokens, size = traffic.tokens, traffic.row_bytes
    # rows that pad an expert to its capacity travel, those over it do not
    uneven = layout.moe_expert_capacity_factor or layout.expert_imbalance
    if over == "etp":
        return tensor_phase(rows, tokens, size, links, uneven, layout.etp).time_s
    found = exchange_phases(traffic.dispatcher, traffic.way, rows, tokens, size, links, uneven)
    return sum(phase.time_s for phase in found)


@lru_cache(maxsize=256)
def _routing(experts: int, top_k: int, groups: int, group_limit: int | None) -> Routing:
    return Routing(experts, top_k, groups, group_limit)
