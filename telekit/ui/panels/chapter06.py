"""Panels of chapter 6: what a token sends where, which dispatcher wins, and what hides behind computing."""

from __future__ import annotations

import html
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)
import numpy as np

from telekit.comm.dispatch import dispatch
from telekit.comm.overlap import COMPUTE, Overlap, Task, rate_of_units, simulate
from telekit.comm.overlap_plans import LayerTimes, chunked, dualpipe_pair, one_f_one_b, shared_expert
from telekit.ui import known_communication as known
from telekit.ui import streams
from telekit.ui import traffic as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_communication import FLAT, GATHERED, SHOWN, TWO_HOPS, Case
from telekit.ui.panels.apart import figures_line

DEVICES = ["ascend-910b", "ascend-910c", "a100-80gb", "h800", "h100", "h200", "b200", "gb200"]
PER_NODE = [4, 8, 16, 32, 64]
TOP_K = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16]
EXPERTS = [64, 128, 192, 256, 384, 512]
HIDDEN = [1024, 2048, 2560, 4096, 5120, 7168]
TOKENS = [128, 512, 1024, 2048, 4096, 8192, 16384]
RATIO_VALUES = [1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32]
RATIOS = {"as the device's": 0.0} | {f"{x:g} to 1": float(x) for x in RATIO_VALUES}
NODES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
REPORTED = (2, 4)
"""Nodes and top-k of the report's case: EP 16 on nodes of 8, and TeleChat3-105B's 4 experts a token."""


# --- what a token sends -------------------------------------------------------------------------------------


def traffic_explorer() -> Explorer:
    """Show what a token sends over each tier, and the time over EP, for every dispatcher."""
    case = Case()
    controls: dict[str, W.Widget] = {
        "device": pick("device", DEVICES, case.device),
        "ep": slide("EP", list(known.EPS), case.ep),
        "top_k": slide("top-k", TOP_K, case.top_k),
        "per_node": slide("ranks a node", PER_NODE, case.per_node),
        "experts": slide("experts E", EXPERTS, case.experts),
        "routing": pick("routing", list(known.ROUTINGS), case.routing),
        "hidden": slide("hidden size", HIDDEN, case.hidden),
        "tokens": slide("tokens", TOKENS, case.tokens),
        "ratio": pick("link ratio", RATIOS, 0.0),
    }
    views = [charts.traffic_bars(), charts.time_curves(SHOWN)]
    return Explorer(
        controls, views, _traffic, _traffic_text, _traffic_titles, title="What a token sends, and when"
    )


def _traffic(**values: Any) -> Tables:
    case = Case(**values)
    return charts.traffic_rows(known.priced(case)) | charts.time_rows(known.by_ep(case), case.ep)


def _traffic_titles(**values: Any) -> list[str]:
    case = Case(**values)
    found = known.priced(case)
    flat, least = (float(found[name].rows.outer) for name in (FLAT, TWO_HOPS))
    sent = "All ranks are on one node: nothing goes between nodes"
    if case.nodes > 1:
        sent = f"Of {case.top_k} copies of a token, all-to-all sends {flat:.3g} to other nodes"
        sent += f"; once a node would be {least:.3g}"
    best = min(found, key=lambda name: float(found[name].time_s))
    took = charts.share_of(found, best)
    quick = f"At EP {case.ep} {best} takes {took:.0%} of the global all-to-all's time"
    return [sent, quick if best != FLAT else f"At EP {case.ep} nothing is quicker than the global all-to-all"]


def _traffic_text(**values: Any) -> str:
    case = Case(**values)
    found, links = known.priced(case), known.links_of(case.device, case.ratio)
    uneven = known.busiest(case.experts, case.top_k, case.routing, case.ep, case.tokens)
    said = (
        f"{case.nodes} node{'s' * (case.nodes > 1)}. A rank gets {links.fabric_bytes_per_s / 1e9:.3g} GB/s in its node"
        f" and {links.network_bytes_per_s / 1e9:.3g} between nodes, {known.ratio_of(links):.3g} to 1"
        f"{', over the same ports' if links.shared_ports else ''}; the busiest rank gets {uneven:.3g} times the mean. "
    )
    soft = html.escape(said + _gathering(case))
    return f"{figures_line(charts.times_text(found))}<span class='telekit-soft'>{soft}</span>"


def _gathering(case: Case) -> str:
    """Say whether a case has fewer nodes than experts a token."""
    n, k = case.nodes, case.top_k
    if n == 1:
        return "One node: flat and hierarchical are the same."
    sends = "fewer rows than" if n < k else ("as many rows as" if n == k else "more rows than")
    return f"{n} nodes, top-{k}: the AllGather form sends {sends} all-to-all between nodes."


# --- who wins where -----------------------------------------------------------------------------------------


def map_explorer() -> Explorer:
    """Map which dispatcher is quickest over nodes and top-k, and over nodes and hierarchy ratio."""
    case = Case()
    forms = {"all-to-all, AllGather form": (FLAT, GATHERED), "and once a node": (FLAT, GATHERED, TWO_HOPS)}
    controls: dict[str, W.Widget] = {
        "device": pick("device", DEVICES, case.device),
        "forms": pick("compare", forms, (FLAT, GATHERED)),
        "routing": pick("routing", list(known.ROUTINGS[:2]), case.routing),
        "top_k": slide("top-k (right)", TOP_K, case.top_k),
        "per_node": slide("ranks a node", PER_NODE[:3], case.per_node, costly=True),
        "experts": slide("experts E", EXPERTS[2:], case.experts, costly=True),
        "tokens": slide("tokens", TOKENS, case.tokens, costly=True),
        "ratio": pick("ratio (left)", RATIOS, 0.0),
    }
    every = (FLAT, GATHERED, TWO_HOPS)
    views = [
        charts.winner_map("by_top_k", "experts of a token (top-k)", every),
        charts.winner_map("by_ratio", "bandwidth in the node : between", every),
    ]
    return Explorer(controls, views, _map, _map_text, _map_titles, title="Which dispatcher wins where")


@lru_cache(maxsize=2048)
def _column(case: Case, forms: tuple[str, ...]) -> tuple[charts.Cell, ...]:
    """Cells of one top-k and ratio over all numbers of nodes; all ranks evenly loaded."""
    nodes = [n for n in NODES if case.experts % (n * case.per_node) == 0]
    ep = np.array(nodes, dtype=np.float64) * case.per_node
    choice = known.routing_of(case.experts, case.top_k, case.routing)
    links = known.links_of(case.device, case.ratio)
    times = np.array(
        [
            dispatch(name, case.tokens, case.hidden, 2, 2, choice, ep, case.per_node, links).time_s
            for name in forms
        ]
    )
    level = case.ratio or float(case.top_k)
    best = times.argmin(axis=0)
    gains = times[0] / times.min(axis=0)
    return tuple(
        charts.Cell(n, level, forms[int(i)], float(gain))
        for n, i, gain in zip(nodes, best, gains, strict=True)
    )


def _maps(forms: tuple[str, ...], top_k: int, ratio: float, **values: Any) -> tuple[list[charts.Cell], ...]:
    case = Case(**values)
    by_k = [
        replace(cell, level=k) for k in TOP_K for cell in _column(replace(case, top_k=k, ratio=ratio), forms)
    ]
    by_ratio = [
        cell for r in RATIO_VALUES for cell in _column(replace(case, top_k=top_k, ratio=float(r)), forms)
    ]
    return by_k, by_ratio


def _map(**values: Any) -> Tables:
    by_k, by_ratio = _maps(**values)
    n, k = REPORTED
    mark = _at(by_k, n, k) if values["per_node"] == 8 else None
    other = None
    if values["per_node"] == 8 and values["top_k"] == k:
        own = known.ratio_of(known.links_of(values["device"]))
        near = min(RATIO_VALUES, key=lambda r: abs(np.log(r / own)))
        other = _at(by_ratio, n, near)
    return charts.map_rows("by_top_k", by_k, [(x, x) for x in TOP_K if x > 1], mark) | charts.map_rows(
        "by_ratio", by_ratio, [(values["top_k"], r) for r in RATIO_VALUES if values["top_k"] > 1], other
    )


def _at(cells: list[charts.Cell], nodes: int, level: float) -> charts.Cell | None:
    return next((cell for cell in cells if (cell.nodes, cell.level) == (nodes, level)), None)


def _map_titles(**values: Any) -> list[str]:
    by_k, by_ratio = _maps(**values)
    n, k = REPORTED
    here = _at(by_k, n, k) if values["per_node"] == 8 else None
    wins = [cell for cell in by_k if cell.winner == GATHERED and cell.gain > 1]
    inside = sum(cell.nodes < cell.level for cell in wins)
    where = "only where nodes < top-k" if inside == len(wins) else "also where nodes are not below top-k"
    left = f"The AllGather form wins {where if wins else 'nowhere'}"
    if here:
        verdict = (
            "nothing beats the all-to-all"
            if here.winner == FLAT
            else f"{charts.FORMS[here.winner]}, {here.gain:.2f} times as quick"
        )
        left += f"; EP 16, top-4: {verdict}"
    top = max(by_ratio, key=lambda cell: cell.gain)
    right = f"Top-{values['top_k']}: the flatter the links, the less is gained: {top.gain:.2f} at {top.level:g} to 1"
    return [left, right]


def _map_text(**values: Any) -> str:
    links = known.links_of(values["device"], values["ratio"])
    said = (
        "Red frame: EP 16 on nodes of 8 with top-4, the report's case; dashed: nodes = top-k, where the AllGather form "
        "and the all-to-all send as much between nodes. A number says how many times as quick the winner is as "
        "the all-to-all. "
        f"Left at {known.ratio_of(links):.3g} to 1. Dispatch and combine, hidden size {Case().hidden:,}, "
        "ranks evenly loaded."
    )
    return f"<span class='telekit-soft'>{html.escape(said)}</span>"


# --- communication beside computing -------------------------------------------------------------------------

SMS, ATTENTION, LAYERS = 132, 0.3, 2
"""SMs of an H800; attention's share of a forward pass; layers of a pair that is shown."""
COMM_RATIOS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0]
STARTS = {"free": 0.0} | {f"{x:.0%} of computing": x for x in (0.01, 0.02, 0.05, 0.1)}
SHARES = {f"{x:.0%} of computing": x for x in (0.1, 0.2, 0.33, 0.5)}


def overlap_explorer() -> Explorer:
    """Run one plan of overlap, and hold all of them against each other."""
    controls: dict[str, W.Widget] = {
        "plan": pick("plan", list(streams.PLANS), "chunked"),
        "ratio": slide("comm ratio", COMM_RATIOS, 0.6),
        "chunks": slide("chunks n", [1, 2, 4, 8, 16], 4),
        "taken": slide("SMs taken", [0, 8, 16, 20, 24, 32, 48, 64], 0),
        "shared": pick("shared part", SHARES, 0.2),
        "start": pick("a start costs", STARTS, 0.0),
    }

    def able(_change: Any = None) -> None:
        plan = controls["plan"].value
        controls["chunks"].disabled = plan != "chunked"
        controls["shared"].disabled = plan != "shared expert"

    able()
    controls["plan"].observe(able, "value")
    views = [streams.stream_lanes(), streams.plan_curves(COMM_RATIOS)]
    return Explorer(
        controls, views, _overlap, _overlap_text, _overlap_titles, title="Communication beside computing"
    )


@lru_cache(maxsize=4096)
def overlapped(plan: str, ratio: float, chunks: int, taken: int, shared: float, start: float) -> Overlap:
    """Run a plan whose computing takes 1 alone, and whose traffic takes ``ratio`` without its starts."""
    way = ratio / 2
    if plan == "chunked":
        tasks = chunked(way, 1.0, way, chunks, start)
    elif plan == "shared expert":
        tasks = shared_expert(way + start, 1 - shared, way + start, shared * 2 / 3, shared / 3)
    elif plan == "one after the other":
        tasks = [
            Task("dispatch", "comm", way + start),
            Task("experts", COMPUTE, 1.0, ("dispatch",)),
            Task("combine", "comm", way + start, ("experts",)),
        ]
    else:  # per layer three passes of computing (forward, inputs, weights) and four of traffic
        forward, each = 1 / (3 * LAYERS), ratio / (4 * LAYERS) + start
        times = LayerTimes(ATTENTION * forward, each, (1 - ATTENTION) * forward, each)
        tasks = (one_f_one_b if plan == "1F1B pair" else dualpipe_pair)(times, LAYERS)
    return simulate(tasks, float(rate_of_units(taken, SMS)))


def _overlap(plan: str, ratio: float, **values: Any) -> Tables:
    found = overlapped(plan, ratio, **values)
    by_plan = {
        name: {x: float(overlapped(name, x, **values).makespan_s) for x in COMM_RATIOS}
        for name in streams.PLANS
    }
    return streams.stream_rows(found, float(max(found.makespan_s, found.serial_s))) | streams.plan_rows(
        by_plan, ratio
    )


def _overlap_titles(plan: str, ratio: float, **values: Any) -> list[str]:
    found = overlapped(plan, ratio, **values)
    bare, comm = float(found.exposed_s), float(found.comm_s)
    first = f"{plan}: {bare:.2f} of {comm:.2f} communication is exposed; all ends after {float(found.makespan_s):.2f}"
    ends = {name: float(overlapped(name, ratio, **values).makespan_s) for name in streams.PLANS}
    best = min(ends, key=lambda name: round(ends[name], 6))
    return [
        first[0].upper() + first[1:],
        f"At {ratio:g} to 1 {best} is quickest: {ends[best]:.2f} times computing alone",
    ]


def _overlap_text(plan: str, ratio: float, **values: Any) -> str:
    found = overlapped(plan, ratio, **values)
    cells = [
        (f"{float(found.makespan_s):.3f}", "end"),
        (f"{float(found.lower_bound_s):.3f}", "lower bound"),
        (f"{float(found.exposed_s):.3f}", "exposed"),
        (f"{float(found.slowdown_s):.3f}", "lost to interference"),
        (f"{float(found.efficiency):.0%}", "hidden, of what could be"),
    ]
    what = {
        "one after the other": "One layer's experts, dispatch and combine.",
        "shared expert": "The shared expert's two halves run beside dispatch and combine.",
        "chunked": "The experts' tokens in parts; one part's traffic runs beside another's computing.",
    }.get(plan, f"{LAYERS} layers, a forward of one micro-batch beside a backward of another.")
    said = (
        f"{what} D: dispatch, C: combine, E: experts, A: attention, M: MLP. Computing alone takes 1. "
        "The lower bound is for any order of these tasks at these rates. "
    )
    said += f"SMs of {SMS} that traffic takes slow computing down while both run." if values["taken"] else ""
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
