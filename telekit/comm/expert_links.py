"""What expert traffic gets of a cluster's links: the fabric inside a domain, the network beyond it, and the SMs.

Shares, costs of the kernels and start times were fitted to published measurements and lie, each with its source and
error, in ``data/measurements/expert_links.json``. A device without rows gets the kernels of H100 and H200, and of each
link what the cluster's record says that collectives reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from telekit import catalog
from telekit.cluster.config import ClusterConfig, LinkTier


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
    fabric_latency_s, network_latency_s : float
        Start of a collective library's call on each.
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
    """

    domain: int
    reach: int | None
    fabric_bytes_per_s: float
    network_bytes_per_s: float
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


def expert_links(cluster: ClusterConfig) -> ExpertLinks:
    """Read a cluster's links as expert traffic sees them.

    A fitted share is of the cluster's own bandwidth, and moves with its efficiency where that is not the catalog's.
    """
    found = catalog.record("measurements", "expert_links")
    mine = found["devices"].get(cluster.device.name, {})
    record: dict[str, Any] = found["default"] | mine
    inner, outer = _tiers(cluster, record.get("domain_tier"))
    origins = found["default"]["sources"] | mine.get("sources", {})
    return ExpertLinks(
        domain=inner.devices or cluster.devices,
        reach=outer.devices,
        fabric_bytes_per_s=inner.bandwidth_bytes_per_s * _share(cluster, inner, record["fabric_share"]),
        network_bytes_per_s=outer.bandwidth_bytes_per_s * _share(cluster, outer, record["network_share"]),
        fabric_latency_s=inner.latency_s,
        network_latency_s=outer.latency_s,
        shared_ports=record["shared_ports"],
        kernel_start_s=record["kernel_start_s"],
        low_latency_dispatch_s=record["low_latency_dispatch_s"],
        low_latency_combine_s=record["low_latency_combine_s"],
        combine_fill_tokens=record["combine_fill_tokens"],
        sm_row_s=record["sm_row_s"],
        sm_bytes_per_s=record["sm_bytes_per_s"],
        sms=record["sms"],
        sources=tuple(f"{name}: {text}" for name, text in origins.items()),
    )


def _share(cluster: ClusterConfig, tier: LinkTier, fitted: float | None) -> float:
    """Return the share of a tier's bandwidth that expert traffic reaches."""
    if fitted is None:
        return tier.efficiency
    known = catalog.record("clusters", cluster.device.name)["tiers"]
    usual = [float(one["efficiency"]) for one in known if one["name"] == tier.name]
    return min(fitted * tier.efficiency / usual[0], 1.0) if usual else tier.efficiency


def _tiers(cluster: ClusterConfig, domain: str | None) -> tuple[LinkTier, LinkTier]:
    """Tier of the domain, and the one beyond it (the same where there is no other).

    The domain is the tier a record names, else the last one that is as fast as the first.
    """
    tiers = cluster.tiers
    fast = [i for i, tier in enumerate(tiers) if tier.bandwidth_bytes_per_s >= tiers[0].bandwidth_bytes_per_s]
    named = [i for i, tier in enumerate(tiers) if tier.name == domain]
    at = named[0] if named else fast[-1]
    return tiers[at], tiers[min(at + 1, len(tiers) - 1)]
