"""What expert traffic gets of a cluster's links: the fabric inside a domain, the network beyond it, and the SMs.

Shares, costs of the kernels and start times were fitted to published measurements and lie, each with its source and
error, in ``data/measurements/expert_links.json``. A device without rows gets the kernels of H100 and H200, and of each
link what the cluster's record says that collectives reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from telekit import catalog
from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.comm.groups import fabrics, together
from telekit.operators.coefficients import now


@dataclass(frozen=True)
class ExpertLinks:
    """Links as expert traffic sees them, each rank's share, one way.

    Parameters
    ----------
    domain : int
        Devices that the fabric joins: the node, or the rack where that is one fabric (GB200).
    reach : int or None
        Devices that the network joins; None: any number.
    fabric_bytes_per_s, network_bytes_per_s : float
        What dispatch and combine reach inside a domain, and between domains.
    library_start_s, fabric_latency_s, network_latency_s : float
        Start of a collective library's call, where a curve of its all-to-all knows it, and what each link adds.
    shared_ports : bool
        Whether both use the same ports, so that their times add up (Ascend A3) where else they overlap.
    kernel_start_s, low_latency_dispatch_s, low_latency_combine_s : float
        Start of DeepEP's kernels: the normal ones, and each low-latency one.
    combine_fill_tokens : float
        Tokens whose time DeepEP's combine loses while it fills and drains.
    sm_row_s, sm_bytes_per_s : float
        Time of one SM for a row however short, and what it copies; DeepEP's normal kernels.
    sms : int
        SMs those kernels run on.
    sources : tuple of str
        Where the numbers come from, and their errors.
    measured : tuple of str
        Dispatchers of which published rows on this device were met.
    """

    domain: int
    reach: int | None
    fabric_bytes_per_s: float
    network_bytes_per_s: float
    library_start_s: float
    fabric_latency_s: float
    network_latency_s: float
    shared_ports: bool
    kernel_start_s: float
    low_latency_dispatch_s: float
    low_latency_combine_s: float
    combine_fill_tokens: float
    sm_row_s: float
    sm_bytes_per_s: float
    sms: int
    sources: tuple[str, ...]
    measured: tuple[str, ...] = ()


def expert_links(cluster: ClusterConfig, far: bool = False) -> ExpertLinks:
    """Read a cluster's links as expert traffic sees them.

    A fitted share is of the cluster's own bandwidth, and moves with its efficiency where that is not the catalog's.

    Parameters
    ----------
    cluster : ClusterConfig
        Where.
    far : bool
        Take the outermost tier for the network, for groups that reach beyond the tier next to the domain.
    """
    record = _record(cluster.device.name)
    at = _domain(cluster)
    beyond = len(cluster.tiers) - 1 if far else min(at + 1, len(cluster.tiers) - 1)
    inner, outer = cluster.tiers[at], cluster.tiers[beyond]
    next_to = beyond == at + 1 or at == beyond
    curve, ports = inner.curves.get("all-to-all"), fabrics(cluster)
    return ExpertLinks(
        domain=min(inner.devices or cluster.devices, cluster.devices),
        reach=outer.devices,
        fabric_bytes_per_s=inner.bandwidth_bytes_per_s * _share(cluster, inner, record["fabric_share"]),
        network_bytes_per_s=outer.bandwidth_bytes_per_s
        * _share(cluster, outer, record["network_share"] if next_to else None),
        library_start_s=0.0 if curve is None else curve.start_s,
        fabric_latency_s=inner.latency_s,
        network_latency_s=outer.latency_s,
        shared_ports=beyond != at and ports[beyond] == ports[at],
        kernel_start_s=now("kernel_start_s", record["kernel_start_s"]),
        low_latency_dispatch_s=now("low_latency_dispatch_s", record["low_latency_dispatch_s"]),
        low_latency_combine_s=now("low_latency_combine_s", record["low_latency_combine_s"]),
        combine_fill_tokens=now("combine_fill_tokens", record["combine_fill_tokens"]),
        sm_row_s=now("sm_row_s", record["sm_row_s"]),
        sm_bytes_per_s=now("sm_bytes_per_s", record["sm_bytes_per_s"]),
        sms=record["sms"],
        sources=tuple(f"{name}: {text}" for name, text in record["sources"].items()),
        measured=tuple(record.get("measured", ())),
    )


def domain_ranks(cluster: ClusterConfig, ep: Any, etp: Any = 1) -> Any:
    """Expert-parallel ranks of one domain, in groups of ``ep``, each ``etp`` neighbours; divides ``ep``, elementwise.

    :func:`telekit.comm.groups.together` says how groups lie on nodes and racks.
    """
    ep, etp = np.asarray(ep), np.asarray(etp)
    held = together(ep * etp, cluster)[_domain(cluster)]
    ranks = np.rint(ep).astype(np.int64)
    return np.gcd(ranks, np.maximum(held // np.rint(etp).astype(np.int64), 1)).astype(np.float64)


@lru_cache
def _record(device: str) -> Mapping[str, Any]:
    """Read what was measured of a device, with the defaults for the rest; once, since every transfer asks."""
    found = catalog.record("measurements", "expert_links")
    mine = found["devices"].get(device, {})
    sources = found["default"]["sources"] | mine.get("sources", {})
    return MappingProxyType(found["default"] | mine | {"sources": sources})


def _share(cluster: ClusterConfig, tier: LinkTier, fitted: float | None) -> float:
    """Return the share of a tier's bandwidth that expert traffic reaches."""
    if fitted is None:
        return tier.efficiency
    usual = _usual_efficiency(cluster.device.name).get(tier.name)
    return min(fitted * tier.efficiency / usual, 1.0) if usual else tier.efficiency


@lru_cache
def _usual_efficiency(device: str) -> Mapping[str, float]:
    """Efficiency of each tier in the catalog's record."""
    known = catalog.record("clusters", device)["tiers"]
    return MappingProxyType({one["name"]: float(one["efficiency"]) for one in known})


def _domain(cluster: ClusterConfig) -> int:
    """Place of the domain's tier: the one a record names, else the last one on the ports of the first."""
    named, ports = _record(cluster.device.name).get("domain_tier"), fabrics(cluster)
    own = [depth for depth, port in enumerate(ports) if port == ports[0]]
    return next((depth for depth, tier in enumerate(cluster.tiers) if tier.name == named), own[-1])
