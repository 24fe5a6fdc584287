"""One collective, said in numbers: what ``telekit comm`` prints.

Its time is the one that the cost models take. A named algorithm is answered by its links instead, and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from telekit import catalog
from telekit.cluster.config import ClusterConfig, device_names, load_cluster
from telekit.cluster.curves import Curve, bus_factor
from telekit.comm.algorithms import (
    ALGORITHMS,
    IN_NETWORK,
    LIBRARIES,
    Phase,
    by_algorithm,
    check_algorithm,
    library,
    placed_phases,
    total_s,
)
from telekit.comm.collectives import Part, collective_parts, parts_time_s
from telekit.comm.groups import Group, Place, place
from telekit.errors import InputError, Problem, bad
from telekit.units import format_bytes, format_seconds

MEASURED, PARTLY_MEASURED, LINKS = "measured-curve", "curve-and-links", "links"
"""In place of an algorithm, how the cost models price it: a fitted curve, one inside and links beyond, or links."""

MOST_BYTES = 2.0**60

RING_BYTES = ("ring", "direct", "pairwise")
"""Algorithms whose busiest rank sends what busbw counts (over all its links together)."""


@dataclass(frozen=True)
class Collective:
    """One collective on one cluster.

    Attributes
    ----------
    op, cluster, algorithm : str
        What, where, how: the algorithm that was named, else :data:`MEASURED`, :data:`PARTLY_MEASURED` or :data:`LINKS`.
    devices, stride : int
        Ranks of the group, and how far apart they lie, from rank 0 on.
    size_bytes, time_s : float
        Whole buffer as nccl-tests counts it, and how long it takes.
    tiers : tuple of dict
        Per tier and stage: ``tier stage measured sent_bytes start_s transfer_s time_s``, of a named algorithm ``steps``
        and ``links`` too.
    by_algorithm_s : dict of str to float
        By links alone: what the named algorithm, and each of the device's library that can serve the group, would take.
    estimate_time_s : float
        What the cost models take for it (:func:`telekit.comm.collectives.collective_time_s`): ``time_s`` unless an
        algorithm was named.
    notes : tuple of str
        How the figures must be read.
    """

    op: str
    cluster: str
    algorithm: str
    devices: int
    stride: int
    size_bytes: float
    time_s: float
    tiers: tuple[dict[str, Any], ...]
    by_algorithm_s: dict[str, float]
    estimate_time_s: float
    notes: tuple[str, ...]

    @property
    def algbw_bytes_per_s(self) -> float:
        """Buffer over time."""
        return self.size_bytes / self.time_s

    @property
    def busbw_bytes_per_s(self) -> float:
        """Algbw times nccl-tests' factor of the operation."""
        return float(bus_factor(self.op, float(self.devices))) * self.algbw_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "op": self.op,
            "cluster": self.cluster,
            "devices": self.devices,
            "stride": self.stride,
            "size_bytes": self.size_bytes,
            "time_s": self.time_s,
            "algbw_bytes_per_s": self.algbw_bytes_per_s,
            "busbw_bytes_per_s": self.busbw_bytes_per_s,
            "algorithm": self.algorithm,
            "tiers": list(self.tiers),
            "by_algorithm_s": self.by_algorithm_s,
            "estimate_time_s": self.estimate_time_s,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Say it in lines for a person."""
        apart = f", {self.stride} apart" if self.stride > 1 else ""
        head = (
            f"{self.op} of {format_bytes(self.size_bytes)} on {self.devices} devices{apart} of {self.cluster}"
        )
        rows = {
            "time": f"{format_seconds(self.time_s)} ({self.algorithm})",
            "algbw": f"{self.algbw_bytes_per_s / 1e9:.4g} GB/s",
            "busbw": f"{self.busbw_bytes_per_s / 1e9:.4g} GB/s",
        }
        for use in self.tiers:
            name = f"  stage {use['stage'] + 1}, {use['tier']}"
            rows[name] = f"{_said(use)}, {format_seconds(use['time_s'])}"
        rows |= {f"  by {name}, links alone": format_seconds(t) for name, t in self.by_algorithm_s.items()}
        if self.time_s != self.estimate_time_s:
            rows["  in telekit estimate"] = format_seconds(self.estimate_time_s)
        return "\n".join([head, *(f"{k:<44}{v}" for k, v in rows.items()), *(f"  - {n}" for n in self.notes)])


def _said(use: dict[str, Any]) -> str:
    sent = f"{format_bytes(use['sent_bytes'])} sent by the busiest rank"
    if "steps" in use:
        return f"{use['steps']} steps, {sent}, {use['links']} links of a unit at once"
    return f"{'by its curve' if use['measured'] else 'by its links'}, {sent}"


def collective(
    op: str,
    cluster: ClusterConfig | str | Path,
    devices: int,
    size_bytes: float,
    algorithm: str | None = None,
    stride: int = 1,
) -> Collective:
    """Price one collective.

    Parameters
    ----------
    op : str
        A name of :data:`telekit.comm.algorithms.ALGORITHMS`.
    cluster : ClusterConfig, str or Path
        Where; the name of a device means as many nodes of it as the group needs.
    devices, stride : int
        Ranks of the group and their distance, from rank 0 on.
    size_bytes : float
        Whole buffer, as nccl-tests counts it.
    algorithm : str, optional
        Without one, what the cost models take; with one, what that algorithm takes by the links alone.

    Raises
    ------
    InputError
        All that is wrong with the numbers; a group that the cluster does not hold or the algorithm cannot serve.
    """
    _check(op, devices, size_bytes, stride)
    if algorithm is not None:
        check_algorithm(op, algorithm)
    group = Group.strided(devices, stride)
    site = cluster if isinstance(cluster, ClusterConfig) else cluster_for(cluster, devices, stride)
    where, size = place(group, site), float(size_bytes)
    parts = min(collective_parts(op, size, float(devices), float(stride), site), key=parts_time_s)
    parts = tuple(part for part in parts if part.start_s + part.transfer_s > 0)
    estimate = float(parts_time_s(parts))
    times = by_algorithm(op, size, group, site)
    name, time, uses, slowest = _basis(parts), estimate, tuple(map(_part, parts)), _link(where)
    if algorithm is not None:
        phases = placed_phases(op, algorithm, size, where)
        name, time, uses, slowest = algorithm, float(total_s(phases)), _uses(phases), _link(where, phases)
        times = {name: time} | times
    answer = Collective(op, site.name, name, devices, stride, size, time, uses, times, estimate, ())
    return replace(answer, notes=tuple(_notes(answer, where, parts, slowest, library(site))))


def _basis(parts: tuple[Part, ...]) -> str:
    measured = [bool(part.measured) for part in parts]
    return MEASURED if all(measured) and measured else PARTLY_MEASURED if any(measured) else LINKS


def cluster_for(spec: str | Path, devices: int, stride: int = 1) -> ClusterConfig:
    """Load a cluster; for the name of a device, as many nodes of it as ``devices`` ranks ``stride`` apart need."""
    device = catalog.found(str(spec), device_names())
    if device is None:
        return load_cluster(spec)
    per_node = int(catalog.record("clusters", device)["devices_per_node"])
    return load_cluster({"device": device, "nodes": -(-((devices - 1) * stride + 1) // per_node)})


def not_a_wire_rate(
    op: str, busbw_bytes_per_s: float, link_bytes_per_s: float, algorithm: str = "", devices: int = 0
) -> str:
    """Why a bus bandwidth is no rate of a link; nothing where it may be one.

    Parameters
    ----------
    op, algorithm : str
        What was run, and how, where it is known.
    busbw_bytes_per_s : float
        By nccl-tests' factor.
    link_bytes_per_s : float
        One way, of the slowest link a rank sends over.
    devices : int
        Ranks, where it is known.
    """
    head = "busbw is not a wire rate"
    if algorithm == IN_NETWORK:
        sends = f"(n+1)/n{f' ({(devices + 1) / devices:.3g})' if devices else ''} of the buffer"
        counts = f"2(n-1)/n{f' ({2 * (devices - 1) / devices:.3g})' if devices else ''}"
        return f"{head}: the switch reduces, a rank sends {sends}, busbw counts {counts}; compare by time"
    if algorithm and algorithm not in (*RING_BYTES, MEASURED, PARTLY_MEASURED, LINKS):
        return f"{head}: it counts a ring's bytes, {algorithm} sends others; compare by time"
    if busbw_bytes_per_s <= link_bytes_per_s * (1 + 1e-9):
        return ""
    reason = {
        "all-reduce": "a switch reduces (NVLS, SHARP) or a tree or hierarchy sends less over it",
        "all-to-all": "only a part of the buffer goes over it",
    }.get(op, "several links of a unit share the work")
    rates = f"{busbw_bytes_per_s / 1e9:.4g} GB/s is above the slowest link's {link_bytes_per_s / 1e9:.4g}"
    return f"{head}: {rates}; {reason}; compare by time"


def _part(part: Part) -> dict[str, Any]:
    start, transfer = float(part.start_s), float(part.transfer_s)
    return {
        "tier": part.tier.name,
        "stage": 0,
        "measured": bool(part.measured),
        "sent_bytes": float(part.sent_bytes),
        "start_s": start,
        "transfer_s": transfer,
        "time_s": start + transfer,
    }


def _uses(found: tuple[Phase, ...]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "tier": phase.tier.name,
            "stage": phase.stage,
            "measured": False,
            "steps": phase.steps,
            "sent_bytes": float(phase.sent_bytes),
            "links": phase.links,
            "start_s": phase.start_s,
            "transfer_s": float(phase.transfer_s),
            "time_s": phase.start_s + float(phase.transfer_s),
        }
        for phase in found
    )


def _link(where: Place, ring: tuple[Phase, ...] = ()) -> float:
    """Slowest way over which a rank's bytes go, bytes a second; rings leave a unit over all its links together."""
    if ring:
        return min(phase.links * phase.tier.bandwidth_bytes_per_s for phase in ring)
    return min(tier.bandwidth_bytes_per_s for tier in where.tiers)


def _notes(
    answer: Collective, where: Place, parts: tuple[Part, ...], slowest: float, library_name: str
) -> list[str]:
    used = [(part, part.tier.curves[answer.op]) for part in parts if part.measured]
    named = answer.algorithm in ALGORITHMS[answer.op] or answer.algorithm == IN_NETWORK
    in_switch = any(curve.in_switch_bytes_per_s is not None for _, curve in used)
    algorithm = IN_NETWORK if in_switch and answer.algorithm == MEASURED else answer.algorithm
    why = not_a_wire_rate(answer.op, answer.busbw_bytes_per_s, slowest, algorithm, answer.devices)
    lines = [why] if why else []
    if len(where.tiers) > 1 or answer.stride > 1:
        lines.append("each device sends at its own share of the network: groups beside this one run too")
    lines += [
        f"{tier.name}: {unit} of its {tier.devices} devices take part, so that groups stay whole"
        for tier, unit in zip(where.tiers[:-1], where.units, strict=False)
        if tier.devices and unit < tier.devices
    ]
    if named:
        own = (
            ""
            if answer.algorithm in LIBRARIES[library_name][answer.op]
            else f"; {library_name} does not offer it"
        )
        lines.append(
            f"{answer.algorithm} by the links alone: latency, and the rate that large messages reach{own}"
        )
        return lines
    for part, curve in used:
        lines += _of_curve(answer, part, curve)
    if answer.algorithm != MEASURED:
        tiers = ", ".join(part.tier.name for part in parts if not part.measured)
        lines.append(f"{tiers}: by links alone, latency and the rate that large messages reach")
    return lines


def _of_curve(answer: Collective, part: Part, curve: Curve) -> list[str]:
    """Say what stands behind a curve, and whether it was asked beyond what was measured."""
    how = f"fitted to {curve.rows} measurements" if curve.rows else "that was derived, not measured"
    lines = [f"{part.tier.name}: by a curve {how}: {curve.source}"]
    outside = curve.outside(answer.op, round(float(part.ranks)))
    return [*lines, f"{part.tier.name}: {outside}"] if outside else lines


def _check(op: str, devices: Any, size_bytes: Any, stride: Any) -> None:
    if op not in ALGORITHMS:
        raise bad("op", op, "no such collective", f"known: {', '.join(ALGORITHMS)}")
    problems = []
    for name, value, least in (("devices", devices, 2), ("stride", stride, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            rule = f"must be a whole number of at least {least}"
            problems.append(Problem(name, value, rule, f"{least} would work"))
    fine = isinstance(size_bytes, (int, float)) and not isinstance(size_bytes, bool)
    if not fine or not math.isfinite(size_bytes) or not 0 < size_bytes <= MOST_BYTES:
        rule = "must be more than 0, and 2**60 at most"
        problems.append(Problem("bytes", size_bytes, rule, "for example 1073741824 (1GiB)"))
    if problems:
        raise InputError(problems)
