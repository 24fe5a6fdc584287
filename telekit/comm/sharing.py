"""Contention: groups that send over the same network cards at once, and the rate each is left with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.comm.algorithms import phases, total_s
from telekit.comm.groups import Group, place
from telekit.errors import bad

Rates = NDArray[np.float64]


def siblings(count: int, stride: int, first: int = 0) -> tuple[Group, ...]:
    """List the groups that a layout makes beside one of ``count`` ranks ``stride`` apart: together, whole blocks."""
    return tuple(Group.strided(count, stride, first + start) for start in range(stride))


def fair_rates(use: Any, capacity: Any) -> Rates:
    """Max-min fair rates: all rise together until a link is full, and those on it stay.

    Parameters
    ----------
    use : array, shape (flows, links)
        What a flow of rate 1 puts on each link.
    capacity : array, shape (links,)
        Bytes a second of each link.

    Returns
    -------
    array, shape (flows,)
        Bytes a second; infinite for a flow that uses no link.
    """
    use, capacity = np.asarray(use, dtype=float), np.asarray(capacity, dtype=float)
    rates = np.full(len(use), np.inf)
    rising = use.any(axis=1)
    left = capacity.copy()
    level = 0.0
    while rising.any():
        load = use[rising].sum(axis=0)
        used = load > 0
        rise = (left[used] / load[used]).min()
        level += rise
        left = left - rise * load
        full = used & (left <= 1e-9 * capacity)
        stopped = rising & use[:, full].any(axis=1)
        rates[stopped] = level
        rising &= ~stopped
    return rates


def shared_rates(groups: Sequence[Group], tier: LinkTier, cluster: ClusterConfig) -> Rates:
    """Rate at which each group can leave one unit of the tier below, while all of them send.

    A group spreads what leaves a unit evenly over its ranks there, each of which sends through its own card; the
    devices that share one are those of ``tier.ports``. A tier without ports gives each device its bandwidth.

    Parameters
    ----------
    groups : sequence of Group
        Those that send at once.
    tier : LinkTier
        One of the cluster's.
    cluster : ClusterConfig
        Where.

    Returns
    -------
    array, shape (groups,)
        Bytes a second, efficiency included; infinite for a group that does not use the tier.

    Raises
    ------
    InputError
        For a tier of another cluster, or a group that the cluster does not hold.
    """
    if tier not in cluster.tiers:
        raise bad("tier", tier.name, f"is none of {cluster.name}", ", ".join(t.name for t in cluster.tiers))
    together = tier.ports.devices if tier.ports else 1
    if cluster.devices_per_node % together:
        rule = f"{together} devices share a card, which does not divide a node of {cluster.devices_per_node}"
        raise bad("ports.devices", together, rule)
    cards = -(-cluster.devices // together)
    use = np.zeros((len(groups), cards))
    for row, group in enumerate(groups):
        where = place(group, cluster)
        if tier in where.tiers:
            level = where.tiers.index(tier)
            below = where.units[level - 1] if level else 1
            _, unit, held = np.unique(where.ranks // below, return_inverse=True, return_counts=True)
            np.add.at(use[row], where.ranks // together, 1.0 / held[unit])
    card = tier.ports.card_bytes_per_s if tier.ports else tier.bandwidth_bytes_per_s
    return fair_rates(use, np.full(cards, card * tier.efficiency))


def contended_time_s(
    op: str, algorithm: str, size_bytes: Any, groups: Sequence[Group], cluster: ClusterConfig
) -> list[Any]:
    """Time of the same collective in each of several groups that run at once.

    Parameters
    ----------
    op, algorithm, size_bytes, cluster
        As :func:`telekit.comm.algorithms.phases`.
    groups : sequence of Group
        Those that run at once; one group alone gets all that its cards can do.

    Returns
    -------
    list of float or array
        Seconds, by group; raises as :func:`telekit.comm.algorithms.phases`.
    """
    rates = {tier.name: shared_rates(groups, tier, cluster) for tier in cluster.tiers}
    times = []
    for row, group in enumerate(groups):
        found = [
            replace(phase, tier=_with_rate(phase.tier, float(rates[phase.tier.name][row]) / phase.links))
            for phase in phases(op, algorithm, size_bytes, group, cluster)
        ]
        times.append(total_s(found) + 0.0 * size_bytes)
    return times


def _with_rate(tier: LinkTier, rate_bytes_per_s: float) -> LinkTier:
    """Return a tier whose devices reach this rate; what a card's ports are is decided by then."""
    return tier.model_copy(
        update={"bandwidth_bytes_per_s": rate_bytes_per_s / tier.efficiency, "ports": None}
    )
