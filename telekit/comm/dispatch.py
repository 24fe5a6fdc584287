"""Bytes and time of sending tokens to their experts and back, by dispatcher.

Rows are copies of a token; a rank's rows stay on it, cross the fabric of its domain (``inner``: a node), or the network
between domains (``outer``). With ``N`` domains, ``p`` ranks of a group in each, top-k ``k``, and ``D`` and ``d`` the
distinct domains and devices that a token visits (:mod:`telekit.comm.routing`), a rank sends for each token of its own

===================== ================== ================= ===================================================
dispatcher            inner              outer             how
===================== ================== ================= ===================================================
alltoall              ``k (p - 1) / ep`` ``k (1 - 1 / N)`` every copy straight to its rank
alltoall_deredundency ``k (p - 1) / p``  ``N - 1``         AllGather between nodes, then all-to-all inside one
deepep, hybridep      ``d (1 - 1 / p)``  ``D (1 - 1 / N)`` once to a node, there once to a device
allgather             ``N (p - 1)``      ``N - 1``         every token to every rank
===================== ================== ================= ===================================================

Sources: MindFormers' ``alltoall_deredundency``, DeepEP (arXiv 2412.19437, section 3.2.2), HybridEP (arXiv 2603.07685),
Megatron-Core's all-gather dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telekit.comm.expert_links import ExpertLinks
from telekit.comm.routing import Routing, distinct_uniform
from telekit.errors import InputError, Problem, bad

TIERS = ("local", "inner", "outer")


@dataclass(frozen=True)
class Rows:
    """Rows a rank sends for each of its tokens.

    ``inner`` and ``outer`` cross links, ``local`` stays; ``visits`` are the places (inner: devices, outer: domains)
    by which kernels work and sources count, own places too.
    """

    local: Any
    inner: Any
    outer: Any
    visits: dict[str, Any]


@dataclass(frozen=True)
class Phase:
    """One step of a dispatch or combine: bytes a rank sends over each tier, and its time."""

    name: str
    inner_bytes: Any
    outer_bytes: Any
    time_s: Any


@dataclass(frozen=True)
class Dispatch:
    """Bytes and time of one dispatcher, numbers or columns.

    Parameters
    ----------
    dispatcher : str
        Its name.
    rows : Rows
        Rows a token.
    dispatch_phases, combine_phases : tuple of Phase
        Steps one after the other, with the tokens on their way to the experts and on their way back.
    dispatch_row_bytes, combine_row_bytes : float or column
        One row.
    tokens : float or column
        Tokens of a rank.
    """

    dispatcher: str
    rows: Rows
    dispatch_phases: tuple[Phase, ...]
    combine_phases: tuple[Phase, ...]
    dispatch_row_bytes: Any
    combine_row_bytes: Any
    tokens: Any

    @property
    def dispatch_s(self) -> Any:
        """Time of the dispatch."""
        return sum(phase.time_s for phase in self.dispatch_phases)

    @property
    def combine_s(self) -> Any:
        """Time of the combine."""
        return sum(phase.time_s for phase in self.combine_phases)

    @property
    def time_s(self) -> Any:
        """Both together, as one forward pass of a layer has them."""
        return self.dispatch_s + self.combine_s

    def sent_bytes(self, tier: str, way: str = "dispatch") -> Any:
        """Bytes a rank sends over a tier (``inner``, ``outer``), or keeps (``local``)."""
        row = self.dispatch_row_bytes if way == "dispatch" else self.combine_row_bytes
        return getattr(self.rows, tier) * self.tokens * row

    def counted_bandwidth(self, tier: str, way: str = "dispatch") -> Any:
        """Bandwidth as DeepEP's tests report it for a tier: rows by place visited, own places too, over the time."""
        if way == "dispatch":
            return self.rows.visits[tier] * self.tokens * self.dispatch_row_bytes / self.dispatch_s
        return self.rows.visits[tier] * self.tokens * self.combine_row_bytes / self.combine_s


def logical_to_wire(bandwidth: Any, units: Any) -> Any:
    """Bandwidth on the wire behind one that counts rows to the own unit (DeepEP issue 51).

    Of rows to distinct nodes (devices), ``1 / units`` stay on the own one, so that a reported RDMA bandwidth may exceed
    the card's.
    """
    return bandwidth * (units - 1.0) / units


def _flat(k: float, p: Any, nodes: Any, routing: Routing | None) -> Rows:
    ranks = p * nodes
    visits = {"inner": k + 0.0 * ranks, "outer": k + 0.0 * ranks}
    return Rows(k / ranks, k * (p - 1.0) / ranks, k * (1.0 - 1.0 / nodes), visits)


def _two_hop(k: float, p: Any, nodes: Any, routing: Routing) -> Rows:
    devices = _distinct(routing, p * nodes)
    domains = _distinct(routing, nodes)
    visits = {"inner": devices, "outer": domains}
    return Rows(devices / p, devices * (1.0 - 1.0 / p), domains * (1.0 - 1.0 / nodes), visits)


def _distinct(routing: Routing, units: Any) -> Any:
    """Distinct units; all experts alike and no groups have a closed form, which columns of units pass in one go."""
    if routing.balanced and routing.limit == routing.groups:
        return distinct_uniform(units, float(routing.experts), routing.top_k)
    return routing.distinct_units(units)


def _gather_then_exchange(k: float, p: Any, nodes: Any, routing: Routing | None) -> Rows:
    visits = {"inner": k + 0.0 * p * nodes, "outer": nodes + 0.0 * p}
    return Rows(k / p, k * (p - 1.0) / p, nodes - 1.0 + 0.0 * p, visits)


def _gather(k: float, p: Any, nodes: Any, routing: Routing | None) -> Rows:
    visits = {"inner": p * nodes, "outer": nodes + 0.0 * p}
    return Rows(1.0 + 0.0 * p * nodes, nodes * (p - 1.0), nodes - 1.0 + 0.0 * p, visits)


ROWS: dict[str, Callable[..., Rows]] = {
    "alltoall": _flat,
    "alltoall_deredundency": _gather_then_exchange,
    "deepep": _two_hop,
    "hybridep": _two_hop,
    "allgather": _gather,
    "deepep_low_latency": _flat,
}
DISPATCHERS = tuple(ROWS)
"""``deepep_low_latency`` is for a few tokens at inference: every copy straight to its rank."""


def rows_per_token(dispatcher: str, routing: Routing, ep: Any, per_node: Any) -> Rows:
    """Rows a token, by tier.

    Parameters
    ----------
    dispatcher : str
        One of :data:`DISPATCHERS`.
    routing : Routing
        How tokens choose.
    ep, per_node : int or column
        Expert-parallel ranks, and how many of them a node (domain) holds.
    """
    if dispatcher not in ROWS:
        raise bad("dispatcher", dispatcher, "no such dispatcher", f"known: {', '.join(DISPATCHERS)}")
    return rows_on(dispatcher, routing, *_shape(ep, per_node, routing.experts))


def rows_on(dispatcher: str, routing: Routing, ep: Any, held: Any) -> Rows:
    """Rows a token, by tier, where a domain holds ``held`` of the ``ep`` ranks and every one as many; not checked."""
    return ROWS[dispatcher](float(routing.top_k), held, ep / held, routing)


def inter_node_rows(
    dispatcher: str,
    top_k: int,
    ep: Any,
    per_node: Any,
    experts: int,
    groups: int = 1,
    group_limit: int | None = None,
) -> Any:
    """Rows a token sends to other nodes, uniform routing (or group-limited)."""
    return rows_per_token(dispatcher, Routing(experts, top_k, groups, group_limit), ep, per_node).outer


def _shape(ep: Any, per_node: Any, experts: int) -> tuple[Any, Any]:
    """Return ranks of a group, and how many one node holds: all that fit in one; else groups must fill whole nodes."""
    ep, per_node = np.asarray(ep, dtype=np.float64), np.asarray(per_node, dtype=np.float64)
    p = np.minimum(ep, per_node)
    fits = (p >= 1) & (ep == np.rint(ep)) & (p == np.rint(p)) & (np.mod(ep, np.maximum(p, 1.0)) == 0)
    if not fits.all():
        at = np.argmin(np.broadcast_to(fits, np.broadcast_shapes(ep.shape, per_node.shape)).ravel())
        here, node = (float(np.broadcast_to(x, fits.shape).ravel()[at]) for x in (ep, per_node))
        rule = f"must be at most the {node:g} ranks of a node, or a multiple, so that groups fill whole nodes"
        good = [d for d in range(1, experts + 1) if experts % d == 0 and (d <= node or d % node == 0)]
        raise bad("ep", here, rule, f"{min(good, key=lambda d: abs(d - here))} would work")
    if np.any(ep > experts):
        raise bad("ep", float(np.max(ep)), f"is more than the {experts} experts", f"{experts} would work")
    return (ep, p) if ep.ndim or p.ndim else (float(ep), float(p))


def dispatch(
    dispatcher: str,
    tokens: Any,
    hidden: Any,
    dispatch_bytes: Any,
    combine_bytes: Any,
    routing: Routing,
    ep: Any,
    per_node: Any,
    links: ExpertLinks,
    imbalance: Any = 1.0,
    etp: Any = 1,
) -> Dispatch:
    """Bytes and time of a dispatch and of its combine; numbers, or columns that meet by broadcasting.

    Parameters
    ----------
    dispatcher : str
        One of :data:`DISPATCHERS`.
    tokens, hidden : int or column
        Tokens that one rank sends, and numbers of a token.
    dispatch_bytes, combine_bytes : float or column
        Bytes of one number each way: 2 for bf16, 1.03125 for fp8 with a 4-byte scale for every 128.
    routing : Routing
        How tokens choose their experts.
    ep, per_node : int or column
        Expert-parallel ranks, and devices of one fabric (``links.domain``).
    links : ExpertLinks
        Of :func:`telekit.comm.expert_links.expert_links`.
    imbalance : float or column
        Load of the busiest rank over the mean: it decides every exchange that depends on the routing.
    etp : int or column
        Ranks that share one expert's matrices and lie side by side: rows that arrive at one are gathered by all.
        Turning them into expert ranks (``ep * etp``, etp 1) is what folding the tensor domain into experts means.

    Raises
    ------
    InputError
        An unknown dispatcher, numbers out of range, or groups that do not fill whole nodes.
    """
    _check(tokens, hidden, dispatch_bytes, combine_bytes, imbalance, etp)
    per_node = np.asarray(per_node, dtype=np.float64) / etp
    rows = rows_per_token(dispatcher, routing, ep, per_node)
    if links.reach is not None and np.any(np.asarray(ep) * etp > links.reach):
        raise bad("ep", float(np.max(ep)), f"is more than the {links.reach} devices that the links reach")
    sizes = (
        np.asarray(hidden, dtype=np.float64) * dispatch_bytes,
        np.asarray(hidden, dtype=np.float64) * combine_bytes,
    )
    there, back = (
        _phases(dispatcher, way, rows, tokens, size, links, imbalance, etp)
        for way, size in zip(("dispatch", "combine"), sizes, strict=True)
    )
    return Dispatch(dispatcher, rows, there, back, *sizes, tokens)


def _check(
    tokens: Any, hidden: Any, dispatch_bytes: Any, combine_bytes: Any, imbalance: Any, etp: Any
) -> None:
    limits = {"tokens": (tokens, 0, 1e12), "hidden": (hidden, 1, 1e7), "imbalance": (imbalance, 1, 1e6),
              "dispatch_bytes": (dispatch_bytes, 0.1, 16), "combine_bytes": (combine_bytes, 0.1, 16),
              "etp": (etp, 1, 1e6)}  # fmt: skip
    problems = []
    for name, (value, low, high) in limits.items():
        values = np.asarray(value, dtype=np.float64)
        wrong = values[~((values >= low) & (values <= high))]
        if wrong.size:
            problems.append(Problem(name, float(wrong.ravel()[0]), f"must be from {low} to {high:g}"))
    if problems:
        raise InputError(problems)


def _phases(
    dispatcher: str,
    way: str,
    rows: Rows,
    tokens: Any,
    row_bytes: Any,
    links: ExpertLinks,
    imbalance: Any,
    etp: Any,
) -> tuple[Phase, ...]:
    """List the steps of one way, in order."""
    steps = exchange_phases(dispatcher, way, rows, tokens, row_bytes, links, imbalance)
    if np.any(np.asarray(etp) > 1):
        steps = (*steps, tensor_phase(rows, tokens, row_bytes, links, imbalance, etp))
    return steps if way == "dispatch" else steps[::-1]


def exchange_phases(
    dispatcher: str, way: str, rows: Rows, tokens: Any, row_bytes: Any, links: ExpertLinks, imbalance: Any
) -> tuple[Phase, ...]:
    """List steps of one way over the expert-parallel ranks, as a dispatch orders them; see :func:`dispatch`."""
    inner, outer = rows.inner * tokens * row_bytes, rows.outer * tokens * row_bytes
    gathers = "all-gather" if way == "dispatch" else "reduce-scatter"
    if dispatcher == "alltoall_deredundency":
        return (
            _library(gathers, 0.0, outer, links),
            _library("all-to-all", inner, 0.0, links, imbalance),
        )
    if dispatcher == "allgather":
        return (_library(gathers, inner, outer, links),)
    if dispatcher == "deepep":
        return (_kernel(way, rows, tokens, row_bytes, links, imbalance),)
    if dispatcher == "deepep_low_latency":
        start = links.low_latency_dispatch_s if way == "dispatch" else links.low_latency_combine_s
        return (Phase(way, inner, outer, start + _transfer_s(inner, outer, links) * imbalance),)
    own = replace(links, library_start_s=0.0) if dispatcher == "hybridep" else links  # kernels of its own
    return (_library(way, inner, outer, own, imbalance),)


def tensor_phase(
    rows: Rows, tokens: Any, row_bytes: Any, links: ExpertLinks, imbalance: Any, etp: Any
) -> Phase:
    """Gather what arrived over the ranks that share an expert: each row is wanted by the ``etp - 1`` others."""
    arrived = rows.visits["inner"] * tokens * row_bytes * (np.asarray(etp) - 1.0)
    return _library("expert tensor ranks", arrived, 0.0, links, imbalance)


def _transfer_s(inner: Any, outer: Any, links: ExpertLinks) -> Any:
    fabric, network = inner / links.fabric_bytes_per_s, outer / links.network_bytes_per_s
    return fabric + network if links.shared_ports else np.maximum(fabric, network)


def _library(name: str, inner: Any, outer: Any, links: ExpertLinks, imbalance: Any = 1.0) -> Phase:
    """One call of a collective library: its start, and the latency of each link that it uses."""
    near, far = np.asarray(inner) > 0, np.asarray(outer) > 0
    start = np.where(near | far, links.library_start_s, 0.0)
    start = start + np.where(near, links.fabric_latency_s, 0.0) + np.where(far, links.network_latency_s, 0.0)
    return Phase(name, inner, outer, start + _transfer_s(inner, outer, links) * imbalance)


def _kernel(way: str, rows: Rows, tokens: Any, row_bytes: Any, links: ExpertLinks, imbalance: Any) -> Phase:
    """DeepEP's normal kernels: hops are pipelined, so the slowest decides: fabric, network, or the SMs that copy."""
    fill = links.combine_fill_tokens if way == "combine" else 0.0
    wire = _transfer_s(rows.inner * row_bytes, rows.outer * row_bytes, links)
    copying = rows.visits["inner"] * (links.sm_row_s + row_bytes / links.sm_bytes_per_s) / links.sms
    time = links.kernel_start_s + (tokens + fill) * np.maximum(wire, copying) * imbalance
    return Phase(way, rows.inner * tokens * row_bytes, rows.outer * tokens * row_bytes, time)
