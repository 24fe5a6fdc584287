"""How collectives are carried out: what each algorithm sends over which tier, in how many steps.

Phases of one stage run side by side: their steps add up (a chunk takes them one after the other), their bytes flow at
once. Stages follow one another. A step costs the tier's latency, and half-saturation where the tier knows it.

Sources: ring, and tree as a chain inside a node and two binary trees over nodes: github:NVIDIA/nccl
``src/graph/{rings,trees}.cc``, and Sanders, Speck, Träff, Parallel Computing 35 (2009), for the two trees; recursive
halving and doubling: Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005); hierarchical all-to-all: DeepSpeed-MoE
(arXiv 2201.05596).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.comm.groups import Group, Place, place
from telekit.comm.trees import double_tree
from telekit.errors import bad

ALGORITHMS = {
    "all-reduce": ("ring", "tree", "recursive-halving-doubling", "hierarchical"),
    "all-gather": ("ring", "recursive-halving-doubling", "hierarchical"),
    "reduce-scatter": ("ring", "recursive-halving-doubling", "hierarchical"),
    "broadcast": ("ring", "hierarchical"),
    "all-to-all": ("direct", "pairwise", "hierarchical"),
    "send-recv": ("direct",),
}
"""Algorithms by collective; :data:`LIBRARIES` says which of them a device's library has."""

IN_NETWORK = "in-network"
"""All-reduce in the switch (NVLS, SHARP): only where it is asked for, since not every switch can."""

_RINGS: dict[str, tuple[str, ...]] = {
    "all-gather": ("ring",),
    "reduce-scatter": ("ring",),
    "broadcast": ("ring",),
    "send-recv": ("direct",),
}
_NCCL = _RINGS | {"all-reduce": ("ring", "tree"), "all-to-all": ("direct",)}
LIBRARIES: dict[str, dict[str, tuple[str, ...]]] = {
    "NCCL": _NCCL,
    "RCCL": _NCCL,
    "HCCL": _RINGS
    | {"all-reduce": ("ring", "recursive-halving-doubling"), "all-to-all": ("direct", "pairwise")},
    "XLA": _RINGS | {"all-reduce": ("ring",), "all-to-all": ("direct",)},
}
"""Of these algorithms, those that a library has (``NCCL_ALGO``; ``HCCL_ALGO``, whose mesh is ``direct`` here)."""


def library(cluster: ClusterConfig) -> str:
    """Name the library of a device: HCCL on Ascend, XLA's on TPU, RCCL on AMD's Instinct, else NCCL."""
    name = cluster.device.name.lower()
    own = {"ascend": "HCCL", "tpu": "XLA", "mi3": "RCCL"}
    return next((library for start, library in own.items() if name.startswith(start)), "NCCL")


@dataclass(frozen=True)
class Phase:
    """What an algorithm does on one tier.

    Parameters
    ----------
    stage : int
        Phases of one stage run side by side, stages one after another.
    tier : LinkTier
        Whose links.
    steps : int
        Messages that wait for one another, on the path that takes longest.
    sent_bytes : float or array
        What the busiest rank sends on this tier.
    links : int
        Links over which one unit of the tier below sends at once.
    fabric : int
        Phases of one fabric share the ports of a device, so that their bytes add up.
    """

    stage: int
    tier: LinkTier
    steps: int
    sent_bytes: Any
    links: int
    fabric: int = 0

    @property
    def start_s(self) -> float:
        """Time of the steps without their bytes."""
        return self.steps * self.tier.message_s

    @property
    def transfer_s(self) -> Any:
        """Time of the bytes."""
        return self.sent_bytes / self.tier.rate_bytes_per_s


def phases(
    op: str, algorithm: str, size_bytes: Any, group: Group, cluster: ClusterConfig
) -> tuple[Phase, ...]:
    """Phases of one collective.

    Parameters
    ----------
    op, algorithm : str
        As :data:`ALGORITHMS` lists them; all-reduce also takes :data:`IN_NETWORK`.
    size_bytes : float or array
        Whole buffer, as nccl-tests counts it.
    group : Group
        Who takes part.
    cluster : ClusterConfig
        Where.

    Returns
    -------
    tuple of Phase
        None for a group of one.

    Raises
    ------
    InputError
        No such collective or algorithm; a group that the cluster does not hold, or the algorithm cannot serve.
    """
    check_algorithm(op, algorithm)
    return placed_phases(op, algorithm, size_bytes, place(group, cluster))


def placed_phases(op: str, algorithm: str, size_bytes: Any, where: Place) -> tuple[Phase, ...]:
    """Phases of one collective of a group that was placed; as :func:`phases`."""
    reason = refusal(op, algorithm, where)
    if reason:
        good = [name for name in ALGORITHMS[op] if not refusal(op, name, where)]
        raise bad("algorithm", algorithm, reason, f"{', '.join(good)} would work")
    if where.size == 1:
        return ()
    ports = dict(zip((tier.name for tier in where.tiers), where.fabrics, strict=True))
    found = _RULES[algorithm](op, size_bytes, where)
    return tuple(replace(phase, fabric=ports[phase.tier.name]) for phase in found)


def check_algorithm(op: str, algorithm: str) -> None:
    """Refuse a name that is not known.

    Raises
    ------
    InputError
        Saying which are.
    """
    if op not in ALGORITHMS:
        raise bad("op", op, "no such collective", f"known: {', '.join(ALGORITHMS)}")
    known = (*ALGORITHMS[op], IN_NETWORK) if op == "all-reduce" else ALGORITHMS[op]
    if algorithm not in known:
        raise bad("algorithm", algorithm, f"no algorithm of {op}", f"known: {', '.join(known)}")


def refusal(op: str, algorithm: str, where: Place) -> str:
    """Why an algorithm cannot serve a group; nothing where it can."""
    spread = "; ".join(
        f"{tier.name}: {' or '.join(map(str, sorted(set(held))))} of the group in a unit"
        for tier, held in zip(where.tiers, where.members, strict=True)
    )
    if algorithm in ("tree", "pairwise", "hierarchical") and not where.even:
        return f"needs equally many of the group in every unit ({spread})"
    if algorithm == "recursive-halving-doubling" and op != "all-reduce" and where.size & (where.size - 1):
        return f"needs a power of two of ranks, not {where.size} (only all-reduce folds the rest in)"
    if algorithm == IN_NETWORK and len(where.tiers) > 1:
        return "one switch must reach the whole group"
    return ""


def algorithm_time_s(op: str, algorithm: str, size_bytes: Any, group: Group, cluster: ClusterConfig) -> Any:
    """Time of one collective by one algorithm, elementwise over ``size_bytes``; raises as :func:`phases`."""
    return total_s(phases(op, algorithm, size_bytes, group, cluster)) + 0.0 * size_bytes


def total_s(found: Iterable[Phase]) -> Any:
    """Time of all stages."""
    total: Any = 0.0
    for _, stage in groupby(found, key=lambda phase: phase.stage):
        busy: dict[int, Any] = {}
        for phase in stage:
            total = total + phase.start_s
            busy[phase.fabric] = busy.get(phase.fabric, 0.0) + phase.transfer_s
        slowest: Any = 0.0
        for time in busy.values():
            slowest = np.maximum(slowest, time)
        total = total + slowest
    return total


def by_algorithm(
    op: str, size_bytes: float, group: Group, cluster: ClusterConfig, names: Sequence[str] | None = None
) -> dict[str, float]:
    """Seconds of each named algorithm (of the library's) that can serve the group; raises as :func:`phases`."""
    if op not in ALGORITHMS:
        raise bad("op", op, "no such collective", f"known: {', '.join(ALGORITHMS)}")
    where = place(group, cluster)
    able = [name for name in names or LIBRARIES[library(cluster)][op] if not refusal(op, name, where)]
    return {name: float(total_s(placed_phases(op, name, size_bytes, where))) for name in able}


def _ring(op: str, size: Any, where: Place) -> Iterable[Phase]:
    """Rings side by side, each with its share of the buffer and each leaving a unit by another rank's link."""
    n = where.size
    sent = size if op == "broadcast" else size * (n - 1) / n * (2 if op == "all-reduce" else 1)
    steps = _ring_steps(where, 2 if op == "all-reduce" else 1)
    for level, (tier, share) in enumerate(zip(where.tiers, _ring_shares(where), strict=True)):
        yield Phase(0, tier, steps[level], sent * share, min(where.links(level), _rings(where)))


def _rings(where: Place) -> int:
    """Rings that leave a unit by different ranks; over uneven units of several tiers only one is sure to."""
    if where.even:
        return prod(where.radices[:-1])
    return min(where.members[0]) if len(where.tiers) == 2 else 1


def _ring_shares(where: Place) -> list[float]:
    """By tier, share of the rings that the busiest rank carries on over it."""
    rings = _rings(where)
    if where.even:
        shares, outer = [], 1.0
        for radix in where.radices[:-1]:
            shares.append(outer * (1 - 1 / radix))
            outer /= radix
        return [*shares, outer]
    inner = [1.0] * (len(where.tiers) - 1)
    if len(where.tiers) == 2 and max(where.members[0]) == rings > 1:
        inner = [1 - 1 / rings]  # every rank leaves its unit in one of them
    return [*inner, 1.0 / rings]


def _ring_steps(where: Place, turns: int) -> list[int]:
    """By tier, hops of the chunk that crosses most: all edges ``turns`` times, but for the ``turns`` that come last."""
    edges = where.level(np.arange(where.size), np.roll(np.arange(where.size), -1))
    counts = turns * np.bincount(edges, minlength=len(where.tiers))
    beside = np.roll(edges, -1) if turns == 2 else edges
    ends = np.maximum(edges, beside) * len(where.tiers) + np.minimum(edges, beside)
    best = int(np.argmin(ends))
    for edge in (edges, np.roll(edges, -1))[:turns]:
        counts[edge[best]] -= 1
    return [int(count) for count in counts]


def _tree(op: str, size: Any, where: Place) -> Iterable[Phase]:
    """Chains inside a unit of the innermost tier, two trees over the units, both ways; one of each for every rank."""
    chain = where.radices[0] if len(where.tiers) > 1 else 1
    heads = np.arange(0, where.size, chain)
    depth, halves = double_tree(len(heads), lambda a, b: where.level(heads[a], heads[b]), len(where.tiers))
    if chain > 1:
        yield Phase(0, where.tiers[0], 2 * (chain - 1), 2 * size * (chain - 1) / chain, 1)
    for level in range(1 if chain > 1 else 0, len(where.tiers)):
        sent = size * halves[level] / 2 / chain
        yield Phase(0, where.tiers[level], 2 * depth[level], sent, where.links(level))


def _halving_doubling(op: str, size: Any, where: Place) -> Iterable[Phase]:
    """Exchanges over distances 1, 2, 4, ... (a reduce-scatter: from the far end); the rest of all-reduce folds in."""
    n = where.size
    core = 1 << (n.bit_length() - 1)
    rest, levels = n - core, len(where.tiers)
    active = np.concatenate([2 * np.arange(rest) + 1, np.arange(2 * rest, n)])
    steps, sent = np.zeros(levels, dtype=np.int64), np.zeros((levels, n))

    def exchange(a: Any, b: Any, share: float, times: int = 1) -> None:
        level = where.level(a, b)
        steps[level.max()] += times
        sent[level, a] += times * share

    if rest:
        spare = 2 * np.arange(rest)
        exchange(spare, spare + 1, 1.0)
        exchange(spare + 1, spare, 1.0)
    for bit in range(core.bit_length() - 1):
        partner = active[np.arange(core) ^ (1 << bit)]
        if op == "all-reduce":
            exchange(active, partner, 0.5 / (1 << bit), 2)
        else:
            exchange(active, partner, (1 << bit) / n)
    yield from _in_turn(where, steps, sent.max(axis=1), size)


def _in_turn(where: Place, steps: Any, shares: Any, size: Any) -> Iterable[Phase]:
    """One phase a tier, one after another; beside the last, bytes of steps that always wait for an outer tier."""
    last = len(where.tiers) - 1
    for level in sorted(range(last + 1), key=lambda level: not steps[level]):
        if shares[level]:
            stage = level if steps[level] else last
            tier, sent = where.tiers[level], size * float(shares[level])
            yield Phase(stage, tier, int(steps[level]), sent, where.links(level))


def _pairwise(op: str, size: Any, where: Place) -> Iterable[Phase]:
    """One partner a step, by its distance on each tier: in a step all ranks use the same tier."""
    steps = [prod(where.radices[:level]) * (radix - 1) for level, radix in enumerate(where.radices)]
    yield from _in_turn(where, steps, [count / where.size for count in steps], size)


def _direct(op: str, size: Any, where: Place) -> Iterable[Phase]:
    """Every message at once; the farthest decides the latency."""
    last = len(where.tiers) - 1
    if op == "send-recv":
        yield Phase(0, where.tiers[last], 1, size, 1)
        return
    for level, tier in enumerate(where.tiers):
        most = _most_peers(where, level) / where.size
        yield Phase(0, tier, int(level == last), size * most, where.links(level))


def _most_peers(where: Place, level: int) -> int:
    """Peers over one tier, of the rank that has most there."""
    units = where.ranks // where.units[level]
    below = where.units[level - 1] if level else 1
    _, inverse, held = np.unique(units, return_inverse=True, return_counts=True)
    _, inner, near = np.unique(where.ranks // below, return_inverse=True, return_counts=True)
    return int((held[inverse] - near[inner]).max())


def _hierarchical(op: str, size: Any, where: Place) -> Iterable[Phase]:
    """Rings (all-to-all: exchanges) tier by tier: inside a unit first, then across, and back."""
    inward, outward = [], []
    held = 1
    for level, (tier, radix) in enumerate(zip(where.tiers, where.radices, strict=True)):
        share = (radix - 1) / radix
        part = size * share / (1 if op == "all-to-all" else held)
        inward.append((tier, radix - 1, part, where.links(level)))
        held *= radix
    outward = inward[::-1]
    order = {
        "all-reduce": [*inward, *outward],
        "all-gather": outward,
        "broadcast": _scattered_broadcast(size, where, inward),
    }.get(op, inward)
    for stage, (tier, steps, sent, links) in enumerate(order):
        yield Phase(stage, tier, steps, sent, links)


def _scattered_broadcast(size: Any, where: Place, inward: list[Any]) -> list[Any]:
    """Scatter inside the root's units, chains across the outermost tier, gather inside each unit."""
    *inner, (tier, steps, _, links) = inward
    across = (tier, steps, size / prod(where.radices[:-1]), links)
    return [*inner, across, *inner[::-1]]


def _in_network(op: str, size: Any, where: Place) -> Iterable[Phase]:
    """Each rank sends its buffer once to the switch, and its share of the result once more."""
    yield Phase(0, where.tiers[0], 2, size * (where.size + 1) / where.size, 1)


_RULES: dict[str, Callable[[str, Any, Place], Iterable[Phase]]] = {
    "ring": _ring,
    "tree": _tree,
    "recursive-halving-doubling": _halving_doubling,
    "pairwise": _pairwise,
    "direct": _direct,
    "hierarchical": _hierarchical,
    IN_NETWORK: _in_network,
}
