"""Every dispatcher on one cluster, side by side: what ``telekit dispatch`` prints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telekit.cluster.config import ClusterConfig
from telekit.comm.dispatch import Dispatch, dispatch
from telekit.comm.expert_links import ExpertLinks, domain_ranks, expert_links
from telekit.comm.routing import Routing
from telekit.comm.summary import cluster_for
from telekit.errors import bad
from telekit.units import format_bytes, format_seconds

TRAINING = ("alltoall", "alltoall_deredundency", "deepep", "hybridep", "allgather")
"""Dispatchers that training uses; low-latency kernels hold a few tokens only."""


@dataclass(frozen=True)
class DispatchSummary:
    """Dispatchers compared for one group of ranks.

    Attributes
    ----------
    cluster, ep, tokens, hidden
        Where, and what one rank sends.
    per_domain : int
        Devices of one domain that take part: a rack holds as many whole groups, or equal parts of one, as it can.
    routing : Routing
        How tokens choose.
    imbalance : float
        Busiest rank over the mean.
    links : ExpertLinks
        What expert traffic gets of the links.
    found : tuple of Dispatch
        One for each dispatcher.
    """

    cluster: str
    ep: int
    tokens: int
    hidden: int
    per_domain: int
    routing: Routing
    imbalance: float
    links: ExpertLinks
    found: tuple[Dispatch, ...]

    @property
    def quickest(self) -> Dispatch:
        """The one with the shortest dispatch and combine."""
        return min(self.found, key=lambda one: float(one.time_s))

    @property
    def domains(self) -> int:
        """Domains (nodes) of the group."""
        return math.ceil(self.ep / self.per_domain)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        routing = self.routing
        return {
            "cluster": self.cluster,
            "ep": self.ep,
            "devices_per_domain": self.per_domain,
            "tokens": self.tokens,
            "hidden": self.hidden,
            "experts": routing.experts,
            "top_k": routing.top_k,
            "groups": routing.groups,
            "group_limit": routing.limit,
            "imbalance": self.imbalance,
            "distinct_devices": routing.distinct_units(self.ep),
            "distinct_domains": routing.distinct_units(self.domains),
            "routing_method": routing.method(self.ep),
            "dispatchers": [_row(one) for one in self.found],
            "quickest": self.quickest.dispatcher,
            "assumptions": list(self.assumptions),
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted."""
        how = "all experts alike" if self.routing.balanced else "experts of unequal weight"
        return (
            f"{how}; the busiest rank gets {self.imbalance:.3g} times the mean and decides",
            "no other traffic on the links, nothing hidden behind compute",
            *self.caveats,
            *self.links.sources,
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the reader must know before comparing lines: the routing, and what was never measured here."""
        routing, lines = self.routing, []
        if routing.limit == routing.groups:
            lines.append(
                "a token may visit any device: no groups of experts were given (--groups, --group-limit), and where a "
                "router has them deepep and hybridep send less"
            )
        if missing := [one.dispatcher for one in self.found if one.dispatcher not in self.links.measured]:
            kernels = ", deepep with the kernels of H100 and H200" if "deepep" in missing else ""
            lines.append(
                f"no published time of {', '.join(missing)} on this device: priced by its links{kernels}"
            )
        if (method := routing.method(self.ep)) != "exact":
            lines.append(f"places that a token visits are by {method}")
        return tuple(lines)

    def text(self) -> str:
        """Return a table for a person."""
        routing = self.routing
        devices, domains = routing.distinct_units(self.ep), routing.distinct_units(self.domains)
        lines = [
            f"EP {self.ep} on {self.cluster}: {self.tokens} tokens of {self.hidden} a rank, top-{routing.top_k} of "
            f"{routing.experts} experts; a token visits {devices:.3g} devices in {domains:.3g} of {self.domains} "
            f"domains of {self.per_domain}",
            "",
            f"{'dispatcher':<23}{'rows in':>9}{'rows out':>9}{'bytes in':>13}{'bytes out':>13}"
            f"{'dispatch':>11}{'combine':>11}",
        ]
        for one in self.found:
            row = _row(one)
            both = {t: format_bytes(sum(row[f"{way}_bytes"][t] for way in WAYS)) for t in ("inner", "outer")}
            lines.append(
                f"{one.dispatcher:<23}{row['rows']['inner']:>9.3f}{row['rows']['outer']:>9.3f}"
                f"{both['inner']:>13}{both['outer']:>13}"
                f"{format_seconds(row['dispatch_s']):>11}{format_seconds(row['combine_s']):>11}"
            )
        lines += [
            "",
            f"quickest: {self.quickest.dispatcher}",
            "in and out: inside a domain, and between domains; a rank",
            *(f"caution: {line}" for line in self.caveats),
        ]
        return "\n".join(lines)


WAYS = ("dispatch", "combine")


def _row(one: Dispatch) -> dict[str, Any]:
    tiers = ("local", "inner", "outer")
    return {
        "dispatcher": one.dispatcher,
        "rows": {tier: float(getattr(one.rows, tier)) for tier in tiers},
        **{f"{way}_bytes": {tier: float(one.sent_bytes(tier, way)) for tier in tiers} for way in WAYS},
        "dispatch_s": float(one.dispatch_s),
        "combine_s": float(one.combine_s),
        "time_s": float(one.time_s),
        "phases": [
            {"way": way, "name": phase.name, "time_s": float(phase.time_s)}
            for way, phases in zip(WAYS, (one.dispatch_phases, one.combine_phases), strict=True)
            for phase in phases
        ],
    }


def compare_dispatchers(
    cluster: ClusterConfig | str | Path,
    ep: int,
    tokens: int = 4096,
    hidden: int = 7168,
    routing: Routing | None = None,
    dispatch_bytes: float = 2.0,
    combine_bytes: float = 2.0,
    imbalance: float | None = None,
) -> DispatchSummary:
    """Compare every training dispatcher for one group of expert-parallel ranks.

    Parameters
    ----------
    cluster : ClusterConfig, str or Path
        A cluster, a catalog name of one or of a device (then as many nodes as the group fills), or a file.
    ep : int
        Expert-parallel ranks, one after the other.
    tokens, hidden : int
        Tokens of a rank, and numbers of a token.
    routing : Routing, optional
        How tokens choose; None: top-8 of 256, all alike.
    dispatch_bytes, combine_bytes : float
        Bytes of one number each way.
    imbalance : float, optional
        Busiest rank over the mean; None: what the routing makes of these tokens.

    Raises
    ------
    InputError
        A group that the cluster, its nodes or the experts do not fit, or numbers out of range.
    """
    routing = Routing(256, 8) if routing is None else routing
    if not 1 <= ep <= routing.experts or routing.experts % ep:
        near = max(d for d in range(1, min(max(ep, 1), routing.experts) + 1) if routing.experts % d == 0)
        raise bad("ep", ep, f"must divide the {routing.experts} experts", f"{near} would work")
    if not 1 <= tokens <= 10**9:
        raise bad("tokens", tokens, "must be from 1 to 1,000,000,000", "for example 4096")
    where = cluster if isinstance(cluster, ClusterConfig) else cluster_for(cluster, ep)
    if ep > where.devices:
        raise bad("ep", ep, f"is more than the {where.devices} devices of {where.name}")
    links = expert_links(where)
    load = routing.imbalance(ep, tokens * ep) if imbalance is None else imbalance
    held = links.domain  # a node is full; a rack has as many of a large group as it shares evenly
    if where.devices_per_node < held < ep:
        held = int(domain_ranks(where, ep))
    found = tuple(
        dispatch(name, tokens, hidden, dispatch_bytes, combine_bytes, routing, ep, held, links, load)
        for name in TRAINING
    )
    return DispatchSummary(where.name, ep, tokens, hidden, held, routing, load, links, found)
