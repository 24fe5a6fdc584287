"""A group of ranks on the tiers of a cluster: which tiers it uses, and how its ranks are spread over their units.

Ranks fill nodes one after the other, every device of a node at work, so a group whose span does not divide a node
straddles two. Larger units (racks, supernodes) are filled with as many nodes as keep groups whole: 64 of the 72 devices
of a GB200 rack, where groups span 16, 32, 64 or 128. A group straddles a rack only if it must.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isqrt, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.errors import InputError, Problem, bad

Index = NDArray[np.int64]

SCALE_UP = ("node", "supernode")
"""Names of the tiers whose links are the device's own, not a network card's."""


@dataclass(frozen=True)
class Group:
    """Ranks that take part, ascending, as :func:`telekit.layout.groups.rank_groups` lists them."""

    ranks: tuple[int, ...]

    @classmethod
    def strided(cls, count: int, stride: int = 1, first: int = 0) -> Group:
        """``count`` ranks, ``stride`` apart, from ``first`` on.

        Raises
        ------
        InputError
            For numbers that no rank has.
        """
        given = (("devices", count, 1), ("stride", stride, 1), ("first", first, 0))
        wrong = [
            Problem(name, value, f"must be a whole number of at least {least}", f"{least} would work")
            for name, value, least in given
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least
        ]
        if wrong:
            raise InputError(wrong)
        if count > 2**20:
            raise bad("devices", count, "clusters hold 1,048,576 devices at most", "for example 1024")
        return cls(tuple(range(first, first + count * stride, stride)))


@dataclass(frozen=True)
class Place:
    """A group on a cluster.

    Parameters
    ----------
    ranks : array of int64, shape (n,)
        Its ranks.
    tiers : tuple of LinkTier
        Tiers whose links it uses, innermost first; none for one rank.
    parts : tuple of int or None
        By used tier, how many parts (ranks, or units of the used tier below) each of its units joins; None where
        they differ.
    members : tuple of tuple of int
        By used tier, how many of the ranks each of its units holds.
    units : tuple of int
        By used tier, how many ranks of the job one of its units holds.
    fabrics : tuple of int
        By used tier, a number that tiers have in common which use the same ports of a device.
    """

    ranks: Index
    tiers: tuple[LinkTier, ...]
    parts: tuple[int | None, ...]
    members: tuple[tuple[int, ...], ...]
    units: tuple[int, ...]
    fabrics: tuple[int, ...]

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    @property
    def even(self) -> bool:
        """Whether every unit of a tier holds equally many."""
        return None not in self.parts

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """Parts of each used tier, where they are even."""
        return tuple(part for part in self.parts if part is not None)

    def links(self, level: int) -> int:
        """Ranks in one unit of the used tier below: links over which it can send at once."""
        return 1 if level == 0 else min(self.members[level - 1])

    def level(self, a: Any, b: Any) -> Index:
        """Find the used tier (its index) over which ranks at positions ``a`` and ``b`` talk, elementwise."""
        first, second = self.ranks[np.asarray(a)], self.ranks[np.asarray(b)]
        found = np.zeros(np.broadcast(first, second).shape, dtype=np.int64)
        for unit in self.units[:-1]:
            found += first // unit != second // unit
        return found


def fabrics(cluster: ClusterConfig) -> tuple[int, ...]:
    """Tell tiers by the ports of a device that they use: bytes over tiers of one number add up.

    A supernode's links are those of its nodes (NVLink in a rack, Ascend's links): 0. All tiers beyond leave by the
    network card: 1. The names say so, not the rates: links that get faster must not change whose ports they are, or
    more bandwidth could cost time.
    """
    found = [0]
    for tier in cluster.tiers[1:]:
        found.append(0 if found[-1] == 0 and tier.name in SCALE_UP else 1)
    return tuple(found)


def unit_sizes(cluster: ClusterConfig) -> tuple[int, ...]:
    """Devices of a unit by tier, none more than the cluster has."""
    return tuple(min(tier.devices or cluster.devices, cluster.devices) for tier in cluster.tiers)


def together(span: Any, cluster: ClusterConfig) -> tuple[Any, ...]:
    """By tier, how many of ``span`` neighbouring ranks one unit holds, elementwise; all groups have that span.

    Inside a node that is what all nodes have for sure. A larger unit holds all where they fit; else as many, in equal
    blocks of whole nodes, as it can.
    """
    span = np.rint(np.asarray(span)).astype(np.int64)
    found: list[Any] = []
    below: Any = np.ones_like(span)
    inner = 1
    for unit in unit_sizes(cluster):
        if unit == cluster.devices:
            below = span
        elif unit <= cluster.devices_per_node:
            below = np.gcd(span, unit)
        else:
            below = below * _largest_divisors(span // below, unit // inner)
        found.append(below)
        inner = unit
    return tuple(found)


def _largest_divisors(numbers: Index, most: int) -> Index:
    """Largest divisor of each number that is not above ``most``, elementwise."""
    if (numbers <= most).all():
        return numbers
    distinct, at = np.unique(numbers, return_inverse=True)
    values = np.array([_largest_divisor(int(number), most) for number in distinct], dtype=np.int64)
    return values[at].reshape(numbers.shape)


@lru_cache(maxsize=4096)
def _largest_divisor(number: int, most: int) -> int:
    if number <= most:
        return number
    near = range(1, isqrt(number) + 1)
    return max(d for low in near if number % low == 0 for d in (low, number // low) if d <= most)


def place(group: Group, cluster: ClusterConfig) -> Place:
    """Put a group on a cluster.

    Raises
    ------
    InputError
        The ranks do not ascend, or the cluster has no such ranks.
    """
    ranks = np.asarray(group.ranks, dtype=np.int64)
    _check(ranks, cluster)
    below, tiers, parts, members, units = ranks, [], [], [], []
    for depth, size in enumerate(_filled(ranks, cluster)):
        unit = ranks // size
        starts = np.flatnonzero(np.diff(unit, prepend=-1))  # ranks ascend, so a unit's stand together
        new = np.flatnonzero(np.diff(below, prepend=-1))
        joined = np.unique(unit[new], return_counts=True)[1]
        if joined.max() > 1:
            tiers.append(depth)
            parts.append(int(joined[0]) if (joined == joined[0]).all() else None)
            members.append(tuple(np.diff(starts, append=len(ranks)).tolist()))
            units.append(size)
        below = unit
    ports = fabrics(cluster)
    return Place(
        ranks, tuple(cluster.tiers[d] for d in tiers), tuple(parts), tuple(members), tuple(units),
        tuple(ports[d] for d in tiers),
    )  # fmt: skip


def _filled(ranks: Index, cluster: ClusterConfig) -> list[int]:
    """By tier, ranks of the job that one unit holds: of a rack, as many as blocks like this group's fill.

    A group whose ranks are unevenly spaced says nothing of the others: it lies as its numbers say.
    """
    gaps = np.diff(ranks)
    if not len(gaps) or (gaps != gaps[0]).any():
        return list(unit_sizes(cluster))
    held = together(int(ranks[-1] - ranks[0] + gaps[0]), cluster)
    found, inner = [], 1
    for unit, block in zip(unit_sizes(cluster), held, strict=True):
        if cluster.devices_per_node < unit < cluster.devices:
            whole = lcm(int(block), inner)
            unit = unit // whole * whole
        found.append(unit)
        inner = unit
    return found


def _check(ranks: Index, cluster: ClusterConfig) -> None:
    if not len(ranks) or ranks[0] < 0 or (np.diff(ranks) <= 0).any():
        shown = str(ranks[:8].tolist())
        raise bad("group", shown[:40], "must be ranks from 0 on, ascending", "for example 0, 8, 16")
    if ranks[-1] >= cluster.devices:
        span = int(ranks[-1] - ranks[0]) + 1
        rule = f"the group reaches rank {ranks[-1]}; {cluster.name} has {cluster.devices} devices"
        hint = f"a cluster of {-(-span // cluster.devices_per_node)} nodes or more would hold it"
        raise bad("devices", len(ranks), rule, hint)
