"""Expert traffic of the chapter: one case under a reader's hands, and tables beside published numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from textwrap import fill
from typing import Any

import numpy as np

from telekit.cluster.config import load_cluster
from telekit.comm.dispatch import Dispatch, dispatch, inter_node_rows, logical_to_wire
from telekit.comm.expert_links import ExpertLinks, expert_links
from telekit.comm.routing import Routing
from telekit.cost.dispatch_gain import Gain, gain
from telekit.cost.dispatch_study import load_study
from telekit.errors import bad
from telekit.ui.tables import Table
from telekit.validation.dispatch import WHY, DispatchRow, dispatch_rows, errors_by_reading

FLAT, GATHERED, TWO_HOPS = "alltoall", "alltoall_deredundency", "hybridep"
SHOWN = (FLAT, GATHERED, TWO_HOPS, "deepep", "allgather")
"""Dispatchers of the panels; hybridep sends the rows of deepep, at the speed of the links alone."""
ROUTINGS = ("uniform", "4 of 8 groups", "Zipf 0.5", "Zipf 1")
EPS = (4, 8, 16, 32, 64, 128, 256)
STUDY = "expert-dispatch-gain"
COLUMNS = 100
"""Of a printed line: a cell of a notebook breaks longer ones."""
BF16_BYTES = 2
NODES = 512
"""Nodes of a panel's cluster: more than any group of it needs."""


@dataclass(frozen=True)
class Case:
    """Expert traffic of one layer's forward pass.

    Attributes
    ----------
    device : str
        Catalog name; its links and what expert traffic gets of them.
    ep, per_node : int
        Ranks that share the experts, and how many of them one fabric joins.
    top_k, experts : int
        Experts of a token, and of the layer.
    routing : str
        One of :data:`ROUTINGS`.
    hidden, tokens : int
        Numbers of a token, and tokens of a rank.
    ratio : float
        Reached bandwidth inside a node over that between nodes; 0: as the device has it.
    """

    device: str = "ascend-910b"
    ep: int = 16
    per_node: int = 8
    top_k: int = 4
    experts: int = 192
    routing: str = "uniform"
    hidden: int = 2560
    tokens: int = 4096
    ratio: float = 0.0

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return max(1, self.ep // self.per_node)


@lru_cache(maxsize=256)
def routing_of(experts: int, top_k: int, routing: str) -> Routing:
    """Routing of a name of :data:`ROUTINGS`."""
    if routing == "4 of 8 groups":
        return Routing(experts, top_k, 8, 4)
    if routing.startswith("Zipf"):
        return Routing.zipf(experts, top_k, float(routing.split()[1]))
    return Routing(experts, top_k)


@lru_cache(maxsize=64)
def links_of(device: str, ratio: float = 0.0) -> ExpertLinks:
    """Links of a device's cluster, with another hierarchy ratio where one is given."""
    found = expert_links(load_cluster({"device": device, "nodes": NODES}))
    return replace(found, network_bytes_per_s=found.fabric_bytes_per_s / ratio) if ratio else found


def ratio_of(links: ExpertLinks) -> float:
    """Reached bandwidth inside a node over that between nodes."""
    return links.fabric_bytes_per_s / links.network_bytes_per_s


@lru_cache(maxsize=1024)
def busiest(experts: int, top_k: int, routing: str, ep: int, tokens: int) -> float:
    """Load of the busiest rank over the mean."""
    return routing_of(experts, top_k, routing).imbalance(ep, tokens * ep)


@lru_cache(maxsize=512)
def priced(case: Case, links: ExpertLinks | None = None) -> dict[str, Dispatch]:
    """Price every dispatcher on a case, over its device's links or over others.

    Raises
    ------
    InputError
        Where the experts cannot be shared out evenly, or the group does not fill whole nodes.
    """
    if case.experts % case.ep:
        fits = [ep for ep in EPS if case.experts % ep == 0]
        rule = f"must divide the {case.experts} experts"
        raise bad("ep", case.ep, rule, f"{', '.join(map(str, fits))} would work")
    there = links or links_of(case.device, case.ratio)
    choice = routing_of(case.experts, case.top_k, case.routing)
    uneven = busiest(case.experts, case.top_k, case.routing, case.ep, case.tokens)
    return {
        name: dispatch(
            name, case.tokens, case.hidden, BF16_BYTES, BF16_BYTES, choice, case.ep, case.per_node, there, uneven
        )
        for name in SHOWN
    }  # fmt: skip


def by_ep(case: Case) -> dict[int, dict[str, Dispatch]]:
    """Price the dispatchers at every group size that shares the experts evenly and fills whole nodes."""
    fits = [ep for ep in EPS if case.experts % ep == 0 and (ep <= case.per_node or ep % case.per_node == 0)]
    return {ep: priced(replace(case, ep=ep)) for ep in fits}


# --- tables -------------------------------------------------------------------------------------------------


def rows_between_nodes(experts: int = 192, per_node: int = 8) -> Table:
    """Rows that a token sends to other nodes, by dispatcher; uniform routing."""
    rows = []
    for ep in (16, 32, 64):
        for k in (4, 8):
            sent = [
                float(inter_node_rows(name, k, ep, per_node, experts)) for name in (FLAT, GATHERED, TWO_HOPS)
            ]
            nodes = ep // per_node
            verdict = "fewer" if sent[1] < sent[0] else ("as many" if sent[1] == sent[0] else "more")
            cells = (f"{sent[0]:.3f}", f"{sent[1]:.3f}", f"{sent[2]:.3f}", verdict)
            rows.append((f"EP {ep}", str(nodes), str(k), *cells))
    title = f"{experts} experts, {per_node} ranks a node; last column: what the AllGather form sends beside all-to-all"
    header = ("", "nodes", "top-k", "all-to-all", "AllGather form", "once a node", "AllGather form")
    return Table(title, header, tuple(rows))


def flat_beside_fused() -> Table:
    """HybridEP against the all-to-all of the same case, published and predicted (arXiv 2603.07685, table 7)."""
    pairs: dict[tuple[str, int], dict[str, DispatchRow]] = {}
    for row in dispatch_rows():
        kernel, gpu = row.group.split(", ")[:2]
        if kernel in ("all-to-all", "HybridEP"):
            pairs.setdefault((gpu, row.ep), {})[kernel] = row
    rows, near = [], 0
    for (gpu, ep), found in sorted(pairs.items(), key=lambda pair: (pair[0][0] == "GB200", pair[0][1])):
        flat, fused = found["all-to-all"], found["HybridEP"]
        ours, seen = flat.found / fused.found, flat.published / fused.published
        near += abs(ours / seen - 1) <= 0.2
        times = tuple(f"{x * 1e6:.0f}" for row in (flat, fused) for x in (row.published, row.found))
        rows.append((gpu, str(ep), *times, f"{seen:.2f}", f"{ours:.2f}", f"{ours / seen - 1:+.0%}"))
    title = f"Dispatch, microseconds, published and ours; ratio within 20 % for {near} of {len(rows)}"
    header = ("", "EP", "flat", "ours", "fused", "ours", "flat/fused", "ours", "off")
    return Table(title, header, tuple(rows))


def deepep_between_nodes() -> Table:
    """DeepEP's bandwidth between nodes on H800: as reported, on the wire, and ours, counted as it counts."""
    rows = []
    for row in dispatch_rows():
        if row.group not in ("DeepEP, H800, normal", "DeepEP, H800, MPFT"):
            continue
        wire = logical_to_wire(row.published, row.ep / 8)
        figures = (f"{row.published / 1e9:.1f}", f"{row.found / 1e9:.1f}", f"{row.error:+.0%}")
        rows.append((row.op, str(row.ep), *figures, f"{wire / 1e9:.1f}"))
    title = "H800, GB/s a GPU over a 50 GB/s card; reported counts rows to the own node, the wire does not carry them"
    return Table(title, ("", "EP", "reported", "ours", "off", "on the wire"), tuple(rows))


def dispatch_errors() -> Table:
    """Errors of dispatch and combine against every published row, by source."""
    rows = [
        (it.group, str(it.rows), f"{it.median:.0%}", f"{abs(it.most):.0%}")
        for it in errors_by_reading()
        if it.used
    ]
    every = [abs(row.error) for row in dispatch_rows()]
    rows.append(("all", str(len(every)), f"{np.median(every):.0%}", f"{max(every):.0%}"))
    return Table(
        "Error against published rows; most were in the fit", ("", "rows", "median", "most"), tuple(rows)
    )


def dispatch_readings() -> Table:
    """How rows whose source leaves it open are read, and what the other readings would have given."""
    found = errors_by_reading()
    open_ones = {it.group for it in found if not it.used}
    rows = [
        (
            it.group,
            it.reading,
            "read so" if it.used else "",
            str(it.rows),
            f"{it.median:.0%}",
            f"{it.most:+.0%}",
        )
        for it in found
        if it.group in open_ones
    ]
    title = "How a token chose its experts (A3: what the kernel does), as read and otherwise: errors of ours"
    return Table(title, ("", "reading", "", "rows", "median", "most"), tuple(rows))


def reading_reasons() -> str:
    """Say why rows are read as they are, kernel by kernel."""
    return _wrapped([f"{kind.replace(', {device}', '')}: {reason}." for kind, reason in WHY.items()])


FITTED = ("a100-80gb", "h100", "h200", "b200", "gb200", "v100")


def fit_errors() -> Table:
    """Errors of the measured curves inside a node, by device and collective."""
    rows = []
    for device in FITTED:
        for op, curve in load_cluster({"device": device, "nodes": 1}).tiers[0].curves.items():
            if not curve.rows:
                continue
            e = curve.errors
            own = tuple("" if x is None else f"{x:.1%}" for x in (e.fit, e.fit_above_16_mb))
            apart = ", ".join(f"{h.ranks}: {h.error:.1%}" for h in e.held_out)
            large = ", ".join(
                f"{h.ranks}: {h.error_above_16_mb:.1%}" for h in e.held_out if h.error_above_16_mb
            )
            rows.append((f"{device} {op}", str(curve.rows), *own, apart, large))
    title = "Median error of a fitted curve: on its own rows, and on those of one count of devices that it never saw"
    return Table(title, ("", "rows", "own", "16 MiB and up", "held out", "16 MiB and up"), tuple(rows))


@cache
def study() -> Gain:
    """Answer of the frozen study: TeleChat3-105B at EP 16 on 910B."""
    return gain(load_study(STUDY))


def study_answer() -> Table:
    """Gain of the study, its intervals, where the claim lies, and what moves it most."""
    found = study()
    lines = [f"Gain at the base: {found.base:.1%}"]
    for name, (low, middle, high) in (
        ("every input drawn from its range", found.interval),
        ("those draws without overlap", found.interval_in_the_open),
        ("those with overlap, which hides all it can in both forms", found.interval_overlapped),
    ):
        lines.append(f"{name}: median {middle:.1%}, 5 to 95 % from {low:.1%} to {high:.1%}")
    lines.append(
        f"{found.study.claim:.0%} lies {found.verdict}: {found.share_beyond:.0%} of the draws reach it, "
        f"{found.share_beyond_in_the_open:.0%} of those without overlap"
    )
    rows = tuple(
        (
            bar.input.name,
            _said(bar.input.base),
            *(_said(end) for end in bar.input.ends),
            *(f"{x:.1%}" for x in bar.gains),
        )
        for bar in found.bars
    )
    return Table("\n".join(lines), ("input", "base", "from", "to", "gain", "gain"), rows)


def study_fixed() -> Table:
    """List what the study holds fixed, where it stands, and the gain when it is moved."""
    found = study()
    rows = tuple(
        (it.fixed.name, _said(it.value), ", ".join(f"{_said(x)}: {gain:.1%}" for x, gain in pairs))
        for it in found.moved
        for pairs in (list(zip(it.fixed.moved, it.gains, strict=True)),)
    )
    title = f"Held fixed, {found.study.fixed_note}\n(gain where they stand: {found.base:.1%})"
    return Table(fill(title, COLUMNS, replace_whitespace=False), ("", "stands at", "gain if moved"), rows)


def study_inputs() -> str:
    """Every frozen input of the study, and all that it holds fixed: what it is, and where it comes from."""
    frozen = study().study
    lines = [f"Frozen {frozen.frozen}.", f"job: {frozen.job_source}."]
    lines += [f"{item.name}: {item.says}. Source: {item.source}." for item in frozen.inputs]
    lines += [f"held fixed, {item.name}: {item.says}; {item.why}." for item in frozen.fixed]
    return _wrapped(lines)


def _wrapped(lines: list[str]) -> str:
    return "\n".join(fill(line, COLUMNS, subsequent_indent="    ", break_long_words=False) for line in lines)


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
