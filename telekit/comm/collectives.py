"""Time of collectives over links in tiers, elementwise over layouts: the one price that everything asks for.

A group is ``ranks`` devices that lie ``stride`` apart. Where a measured curve stands for all of it, the curve answers.
Else each tier adds a start, and the bytes of all tiers flow at once, so the slowest decides; tiers that use the same
ports of a device share them. A tier inside with a curve counts by it, and what the library's protocols cost there
(a start, and for small messages bytes sent slowly or a ramp) they cost beyond, too.

Ring collectives (all-gather, reduce-scatter, broadcast, all-reduce) take the bytes of rings, in which all ranks of one
unit drive their own links side by side, and the latency of one ring a tier; an all-reduce takes two trees over the
units of a tier where that is quicker. An all-to-all sends each peer its share over the tier that reaches it. A call
costs what the library's start costs on the devices' own links, and the outer tiers come on top.

:mod:`telekit.comm.algorithms` tells the algorithms apart. Sources: nccl-tests PERFORMANCE.md for the factors, the
cluster's record for links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.cluster.curves import Curve
from telekit.comm.groups import fabrics, together, unit_sizes
from telekit.errors import bad

RING_PASSES = {"all-gather": 1.0, "reduce-scatter": 1.0, "broadcast": 1.0, "all-reduce": 2.0}
COLLECTIVES = (*RING_PASSES, "all-to-all", "send-recv")


@dataclass(frozen=True)
class Part:
    """What one tier adds to a collective, numbers or columns; all 0 where the group does not use it.

    Parameters
    ----------
    tier : LinkTier
        Whose links; a measured tier stands for those inside it too.
    ranks : float or column
        How many of the group one unit of the tier holds.
    fabric : int
        Parts of one fabric share ports.
    measured : bool or column
        Whether the tier's curve was asked.
    start_s, transfer_s : float or column
        Time of the empty message, and of the bytes.
    sent_bytes : float or column
        What the busiest rank sends on the tier.
    """

    tier: LinkTier
    ranks: Any
    fabric: int
    measured: Any
    start_s: Any
    transfer_s: Any
    sent_bytes: Any

    def where(self, kept: Any) -> Part:
        """Drop it where it is not kept."""
        values = (np.where(kept, x, 0.0) for x in (self.start_s, self.transfer_s, self.sent_bytes))
        return Part(self.tier, self.ranks, self.fabric, np.asarray(self.measured) & kept, *values)


@dataclass(frozen=True)
class _Step:
    """One tier on the way out: what a unit below and one of this tier hold; whether it goes beyond a node."""

    op: str
    size_bytes: Any
    ranks: Any
    inner: Any
    reach: Any
    tier: LinkTier
    outer: bool

    @property
    def share(self) -> Any:
        """Part of the buffer that every rank sends on in one pass of a ring."""
        return 1.0 if self.op == "broadcast" else (self.ranks - 1.0) / self.ranks

    @property
    def units(self) -> Any:
        return np.ceil(self.reach / self.inner)


def collective_time_s(op: str, size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig) -> Any:
    """Time of one collective.

    Parameters
    ----------
    op : str
        One of :data:`COLLECTIVES`.
    size_bytes : float or column
        Whole buffer, as nccl-tests counts it (all-gather: what every rank holds at the end; all-to-all: what
        one rank sends, its own share included; send-recv: the message).
    ranks, stride : int or column
        Group size, and distance between neighbours in ranks; :func:`telekit.comm.groups.together` says how such
        groups lie on nodes and racks.
    cluster : ClusterConfig
        Links.

    Returns
    -------
    float or column
        Seconds; 0 for one rank.

    Raises
    ------
    InputError
        For a collective with no such name.
    """
    return min_time_s(collective_parts(op, size_bytes, ranks, stride, cluster))


def collective_parts(
    op: str, size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig
) -> tuple[tuple[Part, ...], ...]:
    """Ways to carry it out, each as what every tier adds, for :func:`min_time_s`; as :func:`collective_time_s`."""
    if op not in COLLECTIVES:
        raise bad("op", op, "no such collective", f"known: {', '.join(COLLECTIVES)}")
    if op == "send-recv":
        return (_send_recv(size_bytes, ranks, stride, cluster),)
    rules = {"all-to-all": (_exchange,), "all-reduce": (_ring, _trees)}.get(op, (_ring,))
    return tuple(_over_tiers(rule, op, size_bytes, ranks, stride, cluster) for rule in rules)


def parts_time_s(parts: tuple[Part, ...]) -> Any:
    """Time of all parts: starts add up, bytes flow side by side where they use other ports."""
    start: Any = 0.0
    busy: dict[int, Any] = {}
    for part in parts:
        start = start + part.start_s
        busy[part.fabric] = busy.get(part.fabric, 0.0) + part.transfer_s
    slowest: Any = 0.0
    for time in busy.values():
        slowest = np.maximum(slowest, time)
    return start + slowest


def min_time_s(ways: tuple[tuple[Part, ...], ...]) -> Any:
    """Time of the quickest way."""
    first, *rest = (parts_time_s(parts) for parts in ways)
    for time in rest:
        first = np.minimum(first, time)
    return first


def _over_tiers(
    rule: Callable[[_Step], tuple[Any, Any]],
    op: str,
    size_bytes: Any,
    ranks: Any,
    stride: Any,
    cluster: ClusterConfig,
) -> tuple[Part, ...]:
    ranks, stride = np.asarray(ranks, dtype=np.float64), np.asarray(stride, dtype=np.float64)
    inner: Any = np.ones(())
    found: list[Part] = []
    library = _library_curve(op, cluster)
    started: Any = np.zeros((), dtype=bool)  # whether some tier's curve counts the library's start
    held = together(ranks * stride, cluster)
    for depth, (tier, fabric) in enumerate(zip(cluster.tiers, fabrics(cluster), strict=True)):
        reach = np.clip(held[depth] / stride, 1.0, ranks)
        outer = unit_sizes(cluster)[depth] > cluster.devices_per_node
        step, used = _Step(op, size_bytes, ranks, inner, reach, tier, outer), reach > inner
        steps, sent = rule(step)
        plain = sent / tier.rate_bytes_per_s
        moved = plain if library is None or not outer else plain + library.protocol_s(plain)
        part = Part(tier, reach, fabric, False, steps * tier.message_s, moved, sent).where(used)
        covers = used & _covers(step, depth, cluster)
        if np.any(covers):
            found = [one.where(~covers) for one in found]
            part = _chosen(covers, _measured(step, fabric, rule(replace(step, inner=1.0))[1]), part)
            started = started | covers
        found.append(part)
        inner = reach
    launch_s = 0.0 if library is None else library.start_s
    return _launched(found, np.where(started | (ranks <= 1), 0.0, launch_s))


def _launched(found: list[Part], launch_s: Any) -> tuple[Part, ...]:
    """Add the library's start to the outermost tier in use, where no curve counts it."""
    parts, left = [], launch_s
    for part in reversed(found):
        here = np.where(part.transfer_s + part.start_s > 0, left, 0.0)
        parts.append(replace(part, start_s=part.start_s + here))
        left = left - here
    return tuple(reversed(parts))


def _library_curve(op: str, cluster: ClusterConfig) -> Curve | None:
    """Innermost curve there is: it knows the start of the library's call, and what its protocols cost."""
    return next((tier.curves[op] for tier in cluster.tiers if op in tier.curves), None)


def _covers(step: _Step, depth: int, cluster: ClusterConfig) -> Any:
    """Where a tier's curve stands for the group's part inside it.

    It was measured on whole units of the tier below, unless the same ports reach all (NVLink in a rack).
    """
    curve = step.tier.curves.get(step.op)
    if curve is None:
        return np.zeros((), dtype=bool)
    if curve.unit_ranks > 1:
        return np.asarray(step.inner == curve.unit_ranks)
    ports = fabrics(cluster)
    return np.asarray(ports[depth] == ports[0] or step.inner >= unit_sizes(cluster)[depth - 1])


def _measured(step: _Step, fabric: int, sent: Any) -> Part:
    """Part by a tier's curve; a rank's own link carries what the whole group makes it send."""
    reach = step.reach
    if step.op == "all-to-all":
        same = reach / step.ranks
    elif step.op == "broadcast":
        same = 1.0 + 0.0 * reach
    else:
        same = step.share * reach / np.maximum(reach - 1.0, 1.0)
    curve = step.tier.curves[step.op]
    start = curve.time_s(step.op, 0.0, reach)
    time = curve.time_s(step.op, step.size_bytes * same, reach)
    return Part(step.tier, reach, fabric, True, start, time - start, sent)


def _chosen(here: Any, one: Part, other: Part) -> Part:
    both = zip(
        (one.start_s, one.transfer_s, one.sent_bytes),
        (other.start_s, other.transfer_s, other.sent_bytes),
        strict=True,
    )
    return Part(one.tier, one.ranks, one.fabric, here, *(np.where(here, a, b) for a, b in both))


def _ring(step: _Step) -> tuple[Any, Any]:
    """Count steps of one ring over the units of a tier, and bytes of a rank, whose unit leaves by all its links."""
    passes = RING_PASSES[step.op]
    return passes * (step.units - 1.0), passes * step.share * step.size_bytes / step.inner


def _trees(step: _Step) -> tuple[Any, Any]:
    """Count steps up and down two trees over the units, each of which carries half; a chain inside a node.

    Halving and doubling (HCCL) takes as many.
    """
    if not step.outer:
        return _ring(step)
    return 2.0 * np.ceil(np.log2(step.units)), 2.0 * step.size_bytes / step.inner


def _exchange(step: _Step) -> tuple[Any, Any]:
    """One start a tier, and the shares of the peers that it reaches."""
    return 1.0 + 0.0 * step.reach, step.size_bytes * (step.reach - step.inner) / step.ranks


def _send_recv(size_bytes: Any, ranks: Any, stride: Any, cluster: ClusterConfig) -> tuple[Part, ...]:
    """Slowest of the hops between neighbours: some hop crosses a unit that does not hold them all."""
    span = np.asarray(ranks, dtype=np.float64) * stride
    held, ports = together(span, cluster), fabrics(cluster)
    near: Any = 0.0  # a hop is no quicker than one over the links inside
    found = []
    library = _library_curve("send-recv", cluster)
    crosses: Any = np.asarray(ranks) > 1
    for tier, block, fabric in zip(cluster.tiers, held, ports, strict=True):
        curve = tier.curves.get("send-recv")
        plain = size_bytes / tier.rate_bytes_per_s
        if curve is not None:
            start: Any = curve.time_s("send-recv", 0.0, 2.0)
            time: Any = curve.time_s("send-recv", size_bytes, 2.0)
        else:
            start = tier.message_s + (library.start_s if library else 0.0)
            time = start + plain + (library.protocol_s(plain) if library else 0.0)
        near = np.maximum(near, time)
        part = Part(tier, 2.0, fabric, curve is not None, start, near - start, size_bytes)
        found.append(part.where(crosses & (block >= span)))
        crosses = crosses & (block < span)
    return tuple(found)
