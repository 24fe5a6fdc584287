"""A group of ranks on the tiers of a cluster: which tiers it uses, and how its ranks are spread over their units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.errors import InputError, Problem, bad

Index = NDArray[np.int64]


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
    """

    ranks: Index
    tiers: tuple[LinkTier, ...]
    parts: tuple[int | None, ...]
    members: tuple[tuple[int, ...], ...]

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
        for tier in self.tiers[:-1]:
            assert tier.devices is not None  # only the last tier of a cluster may be without
            found += first // tier.devices != second // tier.devices
        return found


def place(group: Group, cluster: ClusterConfig) -> Place:
    """Put a group on a cluster.

    Raises
    ------
    InputError
        The ranks do not ascend, or the cluster has no such ranks.
    """
    _check(group, cluster)
    ranks = np.asarray(group.ranks, dtype=np.int64)
    below = ranks
    tiers, parts, members = [], [], []
    for tier in cluster.tiers:
        unit = ranks // (tier.devices or cluster.devices)
        _, joined = np.unique(np.unique(np.stack([unit, below]), axis=1)[0], return_counts=True)
        if joined.max() > 1:
            tiers.append(tier)
            parts.append(int(joined[0]) if (joined == joined[0]).all() else None)
            members.append(tuple(np.unique(unit, return_counts=True)[1].tolist()))
        below = unit
    return Place(ranks, tuple(tiers), tuple(parts), tuple(members))


def _check(group: Group, cluster: ClusterConfig) -> None:
    if not group.ranks or any(b <= a for a, b in pairwise(group.ranks)) or group.ranks[0] < 0:
        raise bad(
            "group", str(group.ranks)[:40], "must be ranks from 0 on, ascending", "for example 0, 8, 16"
        )
    if group.ranks[-1] >= cluster.devices:
        span = group.ranks[-1] - group.ranks[0] + 1
        rule = f"the group reaches rank {group.ranks[-1]}; {cluster.name} has {cluster.devices} devices"
        hint = f"a cluster of {-(-span // cluster.devices_per_node)} nodes or more would hold it"
        raise bad("devices", len(group.ranks), rule, hint)
