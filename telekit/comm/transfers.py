"""Time of a layer's transfers under a layout: ranks and stride of each group, in Megatron-Core's order of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig
from telekit.comm.collectives import collective_time_s
from telekit.operators.transfers import Transfer


def group(layout: Any, name: str, node_devices: int = 1) -> tuple[Any, Any]:
    """Ranks and stride of a group (order of ranks: tp, cp, dp, pp; experts etp, ep, edp, pp).

    ``ep_inner`` are the ranks of ``ep`` in one node, ``ep_outer`` those at the same place of each node.
    """
    x = layout
    inside = np.clip(node_devices / x.etp, 1.0, x.ep)
    return {
        "tp": (x.tp, 1),
        "cp": (x.cp, x.tp),
        "dp": (x.dp * x.cp, x.tp),
        "etp": (x.etp, 1),
        "ep": (x.ep, x.etp),
        "ep_inner": (inside, x.etp),
        "ep_outer": (x.ep / inside, x.etp * inside),
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
    ranks, stride = group(layout, transfer.group, min(cluster.devices_per_node, cluster.devices))
    size_bytes = transfer.size_bytes * ranks if transfer.per_rank else transfer.size_bytes
    visits = transfer.fan_out, transfer.experts
    time = collective_time_s(transfer.op, size_bytes, ranks, stride, cluster, *visits)
    return np.where(np.asarray(ranks) > 1, time, 0.0)
