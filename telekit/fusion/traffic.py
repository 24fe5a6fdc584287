"""What a choice of kernels costs: bytes, launches, FLOPs, and time on a device and on its host.

Per kernel the device takes ``max(bytes / (bandwidth * efficiency), vector FLOPs / rate, GEMM FLOPs / rate) + gap``. The
host issues kernels ahead of the device, one every ``host_launch_s``. A step takes the longer of the two: where that is
the host, only fewer launches help. Every figure is against a named baseline, for a gain without one says nothing.

A kernel reads each tensor from outside once (as often as it has passes that need it), and writes each value that leaves
it. Of a tensor that is gathered from, the rows that are named are read; single numbers cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from telekit.cluster.config import Device
from telekit.errors import InputError, Problem, bad
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.legality import OnChip, fit, leaving, levels, on_chip

KINDS = ("element", "reduce", "transpose", "gather", "gemm")
"""Kinds of kernels, by the operator that decides how its memory is reached; the later one of two counts."""
DEVICE_GAP_S = 2e-6
"""Start and end of a kernel on the device, during which it moves nothing. Assumed."""
HOST_LAUNCH_S = 5e-6
"""Host time to issue one kernel; 4.58 µs were measured on a GPU (kekzl/imp, pull request 1367). Assumed elsewhere."""


@dataclass(frozen=True)
class Target:
    """What kernels run on.

    Parameters
    ----------
    name : str
        Device.
    bandwidth_bytes_per_s : float
        Peak of its memory.
    chip : OnChip
        Memory of one core.
    efficiency : Mapping of str to float
        Fraction of the bandwidth that a large kernel of each kind reaches; a kind that is left out has ``element``'s.
    fused_efficiency : float
        What a kernel of several operators reaches of that (1: a fused kernel is as good as a single one).
    half_bytes : float
        A kernel of x bytes reaches x / (x + half_bytes) of that rate.
    vector_flops_per_s, gemm_flops_per_s : float or None
        Arithmetic rate of element-wise work and of matrix products; None where it never decides.
    gap_s, host_launch_s : float
        Per kernel, on the device and on the host.
    assumptions : tuple of str
        What no source confirms.
    """

    name: str
    bandwidth_bytes_per_s: float
    chip: OnChip
    efficiency: Mapping[str, float] = field(default_factory=lambda: {"element": 1.0})
    fused_efficiency: float = 1.0
    half_bytes: float = 0.0
    vector_flops_per_s: float | None = None
    gemm_flops_per_s: float | None = None
    gap_s: float = 0.0
    host_launch_s: float = 0.0
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rates = {"bandwidth_bytes_per_s": self.bandwidth_bytes_per_s}
        rates |= {
            name: rate
            for name in ("vector_flops_per_s", "gemm_flops_per_s")
            if (rate := getattr(self, name)) is not None
        }
        shares = {f"efficiency.{kind}": share for kind, share in self.efficiency.items()}
        shares["fused_efficiency"] = self.fused_efficiency
        problems = [
            Problem(n, v, "must be a positive number", "1e12") for n, v in rates.items() if not 0 < v < 1e300
        ]
        problems += [
            Problem(n, v, "must be above 0 and at most 1", "0.6") for n, v in shares.items() if not 0 < v <= 1
        ]
        problems += [
            Problem(n, v, "must be a number from 0", "5e-6")
            for n in ("gap_s", "host_launch_s", "half_bytes")
            if not 0 <= (v := getattr(self, n)) < 1e300
        ]
        problems += [
            Problem("efficiency", k, "no such kind", " ".join(KINDS))
            for k in self.efficiency
            if k not in KINDS
        ]
        if "element" not in self.efficiency:
            problems.append(Problem("efficiency", "missing", "element is required", "{'element': 0.6}"))
        if problems:
            raise InputError(problems)

    @classmethod
    def of(cls, device: Device, dtype: str = "bf16", chip: OnChip | None = None, **changed: Any) -> Target:
        """Build the target that a device of the catalog is; ``changed`` replaces fields."""
        chip = chip or on_chip(device.name)
        assumed = [
            f"{chip.source}: {chip.capacity_bytes} bytes",
            "a fused kernel reaches the share of the bandwidth that a single operator does",
            "element-wise work is bound by its bytes, never by its arithmetic",
        ]
        if "gap_s" not in changed:
            assumed.append(f"a kernel's start and end take {DEVICE_GAP_S * 1e6:g} µs on the device: assumed")
        if "host_launch_s" not in changed:
            assumed.append(f"the host issues a kernel in {HOST_LAUNCH_S * 1e6:g} µs: assumed")
        origin = device.sources.get("memory_efficiency")
        if origin is not None and not origin.verified:
            assumed.append(f"memory_efficiency = {device.memory_efficiency}: {origin.source}")
        made = cls(
            device.name,
            device.memory_bandwidth_bytes_per_s,
            chip,
            {"element": device.memory_efficiency},
            gemm_flops_per_s=device.peak(dtype) * device.gemm_efficiency,
            gap_s=DEVICE_GAP_S,
            host_launch_s=HOST_LAUNCH_S,
            assumptions=tuple(assumed),
        )
        return replace(made, **changed) if changed else made


@dataclass(frozen=True)
class KernelCost:
    """One kernel.

    Parameters
    ----------
    group : tuple of int
        Its operators.
    kind : str
        One of :data:`KINDS`.
    read_bytes, written_bytes : int
        Its traffic with the device's memory.
    vector_flops, gemm_flops : int
        Its arithmetic.
    passes : int
        How often it goes over its rows.
    device_s : float
        Its time on the device, gap included.
    """

    group: tuple[int, ...]
    kind: str
    read_bytes: int
    written_bytes: int
    vector_flops: int
    gemm_flops: int
    passes: int
    device_s: float

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Step:
    """Device and host beside each other.

    Parameters
    ----------
    launches : int
        Kernels issued.
    device_s, host_s : float
        Busy time of each.
    """

    launches: int
    device_s: float
    host_s: float

    @property
    def step_s(self) -> float:
        """The longer of the two."""
        return max(self.device_s, self.host_s)

    @property
    def bound(self) -> str:
        """``host`` or ``device``: which of them decides."""
        return "host" if self.host_s > self.device_s else "device"


@dataclass(frozen=True)
class FusionCost(Step):
    """A choice of kernels.

    Parameters
    ----------
    kernels : tuple of KernelCost
        In the order they run.
    """

    kernels: tuple[KernelCost, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes that all kernels read."""
        return sum(k.read_bytes for k in self.kernels)

    @property
    def written_bytes(self) -> int:
        """Bytes that all kernels write."""
        return sum(k.written_bytes for k in self.kernels)

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


def host_s(
    launches: int, launch_s: float, copies: int = 0, copy_s: float = 0.0, other_s: float = 0.0
) -> float:
    """Host time of a step: launches and copies it issues, and whatever else it does."""
    return launches * launch_s + copies * copy_s + other_s


def kernel_cost(graph: Graph, group: Iterable[int], sizes: Mapping[str, int], target: Target) -> KernelCost:
    """Price one kernel.

    Raises
    ------
    InputError
        The group is no kernel on this target (:func:`telekit.fusion.legality.fit`).
    """
    fitted = fit(graph, group, sizes, target.chip)
    members = tuple(sorted(set(group) & graph.live()))
    times_read = reads(graph, members, levels(graph, members) if fitted.passes > 1 else {})
    read = sum(count * _read_bytes(graph, source, members, sizes) for source, count in times_read.items())
    written = sum(graph.node_bytes(i, sizes) for i in leaving(graph, members))
    flops = {True: 0, False: 0}
    for i in members:
        flops[graph.nodes[i].kind == "gemm"] += graph.node_flops(i, sizes)
    kind = max(_kinds(graph, members), key=KINDS.index)
    device_s = _device_s(target, kind, len(members), read + written, flops[False], flops[True])
    return KernelCost(members, kind, read, written, flops[False], flops[True], fitted.passes, device_s)


def cost(
    graph: Graph, fusion: Fusion, sizes: Mapping[str, int], target: Target, launches: int | None = None
) -> FusionCost:
    """Price a choice of kernels.

    Parameters
    ----------
    graph, fusion, sizes, target
        What runs, as which kernels, at which sizes, on what.
    launches : int, optional
        How many launches they take, when some are launched together; each its own when not given.

    Raises
    ------
    InputError
        A group is no kernel.
    """
    graph.bind(sizes)
    kernels = tuple(kernel_cost(graph, group, sizes, target) for group in fusion.groups)
    count = len(kernels) if launches is None else launches
    device_s = sum(k.device_s for k in kernels) - (len(kernels) - count) * target.gap_s
    return FusionCost(count, device_s, host_s(count, target.host_launch_s), kernels)


def reads(graph: Graph, members: tuple[int, ...], level: Mapping[int, int]) -> dict[int, int]:
    """How often a kernel reads each value from outside.

    ``level`` says, for a kernel of several passes, which of them makes each reduction, from all that it needs
    (:func:`telekit.fusion.legality.levels`); the last one makes the rest. Empty for one pass.
    """
    inside = set(members)
    nodes = graph.nodes
    count: dict[int, int] = {}
    reduced = set(level)
    goals = [{i for i in reduced if level[i] == k} for k in sorted({level[i] for i in reduced})]
    last = set(leaving(graph, members)) - reduced
    for wanted in [*goals, last] if last or not goals else goals:
        queue, seen = list(wanted), set(wanted)
        for index in queue:
            for source in nodes[index].inputs:
                if source not in seen and source not in reduced:
                    seen.add(source)
                    if source in inside:
                        queue.append(source)
                    else:
                        count[source] = count.get(source, 0) + 1
    return {source: times for source, times in count.items() if nodes[source].shape != ()}


def _read_bytes(graph: Graph, source: int, members: tuple[int, ...], sizes: Mapping[str, int]) -> int:
    """Bytes of a value, or of the rows that gathers name when nothing else reads it."""
    whole, rows = graph.node_bytes(source, sizes), 0
    for index in members:
        node = graph.nodes[index]
        if source in node.inputs:
            if node.kind != "gather" or source != node.inputs[0] or source == node.inputs[1]:
                return whole
            rows += graph.node_bytes(index, sizes)
    return rows


def _kinds(graph: Graph, members: tuple[int, ...]) -> list[str]:
    kinds = [graph.nodes[i].kind for i in members]
    return ["element" if kind == "broadcast" else kind for kind in kinds]


def _device_s(
    target: Target, kind: str, operators: int, moved_bytes: int, vector_flops: int, gemm_flops: int
) -> float:
    share = target.efficiency.get(kind, target.efficiency["element"])
    if operators > 1:
        share *= target.fused_efficiency
    bytes_s = (moved_bytes + target.half_bytes * bool(moved_bytes)) / (target.bandwidth_bytes_per_s * share)
    vector_s = vector_flops / target.vector_flops_per_s if target.vector_flops_per_s else 0.0
    gemm_s = gemm_flops / target.gemm_flops_per_s if target.gemm_flops_per_s else 0.0
    return max(bytes_s, vector_s, gemm_s) + target.gap_s


def gains(times_s: Mapping[str, float], of: str) -> dict[str, float]:
    """Speed-up of one variant over each of the others, by the name of the baseline.

    Raises
    ------
    InputError
        No such variant, or a time that is not positive.
    """
    if of not in times_s:
        raise bad("of", of, "no such variant", ", ".join(times_s))
    problems = [
        Problem(n, t, "a time is a positive number", "1e-3") for n, t in times_s.items() if not 0 < t < 1e300
    ]
    if problems:
        raise InputError(problems)
    return {name: time / times_s[of] for name, time in times_s.items() if name != of}
