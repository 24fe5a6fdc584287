"""The search for a fusion: patterns, merging step by step, an integer program, and launches side by side.

Every way is judged by the same model (:mod:`telekit.fusion.traffic`), and leaving everything unfused is one of the
ways: the answer may be *do not fuse*. Where the host decides the step, the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telekit.errors import InputError, bad
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.legality import cycle, ordered
from telekit.fusion.patterns import patterns
from telekit.fusion.program import MAX_OPERATORS, TIE, Best, best_partition, candidates
from telekit.fusion.stacking import stacked
from telekit.fusion.traffic import FusionCost, KernelCost, Target, cost, kernel_cost
from telekit.units import format_bytes, format_seconds

METHODS = ("auto", "patterns", "merging", "program")
Groups = tuple[tuple[int, ...], ...]
_Gain = tuple[float, int, int, tuple[int, ...]]  # seconds saved, places of two groups, the two as one
MANY = 64
"""Above so many groups, merging takes many pairs in one step."""
NEAR = 16
"""Of the groups that read one tensor, how many that follow each are tried with it."""
MAX_WORK = 250_000
"""Operators that merging may price, all groups it tries together: some seconds; then it answers with what it has."""


@dataclass(frozen=True)
class Search:
    """An answer.

    Parameters
    ----------
    fusion : Fusion
        The kernels, in the order they run: what ``encode`` takes.
    launches : tuple of tuple of int
        Places of kernels by launch; those of one launch are stacked side by side.
    cost, unfused : FusionCost
        Of the answer, and of the baseline: every operator a kernel and a launch.
    method : str
        What found it: ``unfused``, ``patterns``, ``merging`` or ``program``.
    proved : bool
        Whether no partition into kernels has a shorter step (launches side by side come after, and are not proved).
    bound_s : float
        No partition has a shorter step, without launches side by side; 0 where nothing is shown.
    verdict : str
        One sentence.
    """

    fusion: Fusion
    launches: tuple[tuple[int, ...], ...]
    cost: FusionCost
    unfused: FusionCost
    method: str
    proved: bool
    bound_s: float
    verdict: str

    @property
    def gain(self) -> float:
        """Step of the unfused baseline over that of the answer."""
        return self.unfused.step_s / self.cost.step_s if self.cost.step_s else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        sides = {
            name: {
                "launches": c.launches,
                "read_bytes": c.read_bytes,
                "written_bytes": c.written_bytes,
                "device_s": c.device_s,
                "host_s": c.host_s,
                "step_s": c.step_s,
                "bound": c.bound,
            }
            for name, c in (("fused", self.cost), ("unfused", self.unfused))
        }
        kernels = [
            {"operators": list(k.group), "kind": k.kind, "moved_bytes": k.moved_bytes, "device_s": k.device_s}
            for k in self.cost.kernels
        ]
        return {
            "verdict": self.verdict,
            "baseline": "every operator a kernel and a launch",
            "gain": self.gain,
            **sides,
            "kernels": kernels,
            "launches": [list(launch) for launch in self.launches],
            "method": self.method,
            "proof": {"proved": self.proved, "bound_s": self.bound_s},
        }


def search(
    graph: Graph,
    sizes: Mapping[str, int],
    target: Target,
    method: str = "auto",
    side_by_side: bool = True,
    time_limit_s: float = 20.0,
) -> Search:
    """Find which operators to fuse.

    Parameters
    ----------
    graph, sizes, target
        What runs, at which sizes, on what.
    method : str
        ``patterns``, ``merging``, ``program``, or ``auto``: all of them, the program where the graph is small enough.
    side_by_side : bool
        Whether kernels that are alike and independent may share a launch.
    time_limit_s : float
        Of the integer program.

    Raises
    ------
    InputError
        Sizes that are missing, an unknown method, a graph without operators, one too large for ``program``.
    """
    if method not in METHODS:
        raise bad("method", method, "no such method", " ".join(METHODS))
    graph.bind(sizes)
    operators = [i for i in graph.operators if i in graph.live()]
    if not operators:
        raise bad("graph", graph.name, "has no operator that an output needs", "graph.output(value)")
    prices = _Prices(graph, sizes, target)
    ways: dict[str, Groups] = {"unfused": tuple((i,) for i in operators)}
    if method in ("auto", "patterns"):
        ways["patterns"] = _by_patterns(graph, sizes, target, operators)
    if method in ("auto", "merging"):
        ways["merging"] = _merged(prices, ways.get("patterns", ways["unfused"]))
    best = _by_program(prices, method, len(operators), time_limit_s)
    if best and best.groups is not None:
        ways["program"] = best.groups
    names = sorted(ways, key=list(ways).index)
    found = min(reversed(names), key=lambda name: prices.goal(ways[name]))
    if prices.goal(ways["unfused"]) <= prices.goal(ways[found]) * (1 + TIE):
        found = "unfused"
    return _answer(prices, ways[found], found, best, side_by_side)


class _Prices:
    """Price of groups, each found once; None for a group that is no kernel."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], target: Target) -> None:
        self.graph, self.sizes, self.target = graph, sizes, target
        self.known: dict[tuple[int, ...], KernelCost | None] = {}
        self.work = 0  # operators of all groups that were priced

    def kernel(self, group: tuple[int, ...]) -> KernelCost | None:
        if group not in self.known:
            self.work += len(group)
            try:
                self.known[group] = kernel_cost(self.graph, group, self.sizes, self.target)
            except InputError:
                if len(group) == 1:
                    raise
                self.known[group] = None
        return self.known[group]

    def goal(self, groups: Groups) -> float:
        """Return what the integer program minimises; infinite for a partition that cannot run."""
        prices = [self.kernel(group) for group in groups]
        found = [p.device_s for p in prices if p is not None]
        if len(found) < len(groups):
            return float("inf")
        device_s, host_s = sum(found), len(groups) * self.target.host_launch_s
        return max(device_s, host_s) + TIE * (device_s + host_s)


def _by_patterns(graph: Graph, sizes: Mapping[str, int], target: Target, operators: list[int]) -> Groups:
    groups = [p.group for p in patterns(graph, sizes, target.chip)]
    inside = {i for group in groups for i in group}
    return (*groups, *((i,) for i in operators if i not in inside))


def _merged(prices: _Prices, start: Groups) -> Groups:
    """Merge the two neighbouring groups that gain most, until none gains; from the start given and from nothing."""
    single = tuple((i,) for group in start for i in group)
    ends = [_merge(prices, groups) for groups in dict.fromkeys((start, single))]
    return min(ends, key=prices.goal)


def _merge(prices: _Prices, groups: Groups) -> Groups:
    """Merge until nothing gains; many pairs at a time while there are many groups, the best pair alone after that."""
    refused: set[tuple[int, ...]] = set()
    while gains := _gains(prices, groups, refused):
        step = _together(prices, groups, gains) if len(groups) > MANY else None
        step = step or _first(prices, groups, gains, refused)
        if step is None or prices.work > MAX_WORK:
            return groups
        groups = step
    return groups


def _gains(prices: _Prices, groups: Groups, refused: set[tuple[int, ...]]) -> list[_Gain]:
    """Pairs of groups that are one kernel and gain by it, best first; others are noted as refused."""
    host_bound, found = _host_bound(prices, groups), list[_Gain]()
    for a, b in _neighbours(prices.graph, groups):
        union = tuple(sorted(groups[a] + groups[b]))
        if union in refused or prices.work > MAX_WORK:
            continue
        old, new = [prices.kernel(groups[a]), prices.kernel(groups[b])], prices.kernel(union)
        if new is None:
            refused.add(union)
            continue
        saved = sum(k.device_s for k in old if k) - new.device_s
        if saved > 0 or host_bound:
            found.append((saved, a, b, union))
    return sorted(found, reverse=True)


def _together(prices: _Prices, groups: Groups, gains: list[_Gain]) -> Groups | None:
    """Merge as many pairs as do not overlap, if that is a gain and nothing waits for itself."""
    busy, unions = set[int](), list[tuple[int, ...]]()
    for _, a, b, union in gains:
        if a not in busy and b not in busy:
            busy |= {a, b}
            unions.append(union)
    made = (*(g for i, g in enumerate(groups) if i not in busy), *unions)
    better = prices.goal(made) < prices.goal(groups) and not cycle(prices.graph, made)
    return made if better else None


def _first(
    prices: _Prices, groups: Groups, gains: list[_Gain], refused: set[tuple[int, ...]]
) -> Groups | None:
    """Merge the first pair that shortens the step and waits for nothing that waits for it."""
    now = prices.goal(groups)
    for _, a, b, union in gains:
        made = (*(g for i, g in enumerate(groups) if i not in (a, b)), union)
        if prices.goal(made) < now and not cycle(prices.graph, made):
            return made
        prices.work += len(groups)
        refused.add(union)
    return None


def _host_bound(prices: _Prices, groups: Groups) -> bool:
    device_s = sum(k.device_s for g in groups if (k := prices.kernel(g)))
    return len(groups) * prices.target.host_launch_s > device_s


def _neighbours(graph: Graph, groups: Groups) -> list[tuple[int, int]]:
    """Pairs of groups of which one reads the other, or that read one tensor (of many readers, each the next few)."""
    home = {i: place for place, group in enumerate(groups) for i in group}
    found: set[tuple[int, int]] = set()
    for source, readers in enumerate(graph.consumers()):
        if graph.nodes[source].shape == () and source not in home:
            continue
        near = sorted({home[i] for i in (source, *readers) if i in home})
        found |= {(a, b) for n, a in enumerate(near) for b in near[n + 1 : n + 1 + NEAR]}
    return sorted(found)


def _by_program(prices: _Prices, method: str, operators: int, time_limit_s: float) -> Best | None:
    if method not in ("auto", "program"):
        return None
    columns = None
    if operators <= MAX_OPERATORS:
        columns = candidates(prices.graph, prices.sizes, prices.target)
    if columns is None:
        if method == "program":
            rule = "too many groups for the integer program"
            raise bad("graph", f"{operators} operators", rule, "method merging", prices.graph.name)
        return None
    prices.known |= {c.group: c for c in columns}
    return best_partition(prices.graph, columns, prices.target, time_limit_s)


def _answer(prices: _Prices, groups: Groups, method: str, best: Best | None, side_by_side: bool) -> Search:
    graph, sizes, target = prices.graph, prices.sizes, prices.target
    fusion = ordered(graph, groups)
    singly = tuple((place,) for place in range(len(fusion.groups)))
    launches = stacked(graph, fusion) if side_by_side else singly
    if (max(target.gap_s, target.host_launch_s)) == 0:
        launches = singly  # nothing to gain
    price = cost(graph, fusion, sizes, target, len(launches))
    unfused = cost(graph, ordered(graph, ((i,) for g in groups for i in g)), sizes, target)
    bound_s = best.bound_s if best else 0.0
    alone = prices.goal(groups) / (1 + TIE)
    proved = best is not None and best.proved and alone <= bound_s * (1 + 4 * TIE) + 1e-30
    return Search(fusion, launches, price, unfused, method, proved, bound_s, _verdict(price, unfused, method))


def _verdict(price: FusionCost, unfused: FusionCost, method: str) -> str:
    """One sentence: whether to fuse, what it brings, and which side decides."""
    saved = f"{unfused.launches} launches to {price.launches}, {format_bytes(unfused.moved_bytes)} moved to "
    saved += format_bytes(price.moved_bytes)
    times = f"{format_seconds(unfused.step_s)} to {format_seconds(price.step_s)}"
    host = f"the host decides: it issues for {format_seconds(unfused.host_s)} while the device works for "
    host += f"{format_seconds(unfused.device_s)}, so only fewer launches help"
    if method == "unfused":
        if price.launches < unfused.launches:
            return f"do not fuse, launch side by side: {saved}; {times}"
        reason = f" ({host})" if unfused.bound == "host" else ""
        return f"do not fuse: no choice of kernels is quicker than {format_seconds(unfused.step_s)} unfused{reason}"
    end = f"; {host}" if unfused.bound == "host" else ""
    after = "; then the host decides" if unfused.bound == "device" and price.bound == "host" else ""
    return f"fuse: {saved}; {times}{end}{after}"
