"""Tasks of chapter 6 and what they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from telekit.cluster.config import load_cluster
from telekit.cluster.curves import bus_factor
from telekit.comm.dispatch import dispatch, inter_node_rows, logical_to_wire
from telekit.comm.expert_links import ExpertLinks, expert_links
from telekit.comm.overlap import rate_of_units, simulate
from telekit.comm.overlap_formulas import pair_exposed_s
from telekit.comm.overlap_plans import chunked
from telekit.comm.routing import Routing
from telekit.errors import InputError
from telekit.exercises.check import Feedback, design, number

EXPERTS, TOP_K, HIDDEN, WIDTH, TOKENS = 192, 4, 2560, 1536, 4096
"""TeleChat3-105B's experts, and tokens of a rank."""
FABRIC, NETWORK, LATENCY_S = 150e9, 20e9, 50e-6
FLOPS_PER_S, SMALLER = 180e12, 0.03
"""Rate of the experts' products, and by how much each further chunk slows them down."""
ROOM = 12
"""Experts of a layer that a device has room for."""
EPS, FORMS, CHUNKS = (8, 16, 32, 64), ("alltoall", "alltoall_deredundency", "allgather"), (1, 2, 4, 8, 16)
WITHIN = 1.01


def distinct_nodes(answer: float | None) -> Feedback:
    """Mean number of distinct nodes of a token with 4 of 192 experts on 4 nodes, uniform routing."""
    want = Routing(EXPERTS, TOP_K).distinct_units(4)
    return number(
        answer,
        want,
        rel=0.001,
        digits=3,
        unit="nodes",
        hint="A node is missed when all 4 experts are among the 144 of the other nodes: C(144, 4) / C(192, 4).",
        slips={
            "a token chooses 4 different experts: with (3/4)**4 it may choose one twice": 4 * (1 - 0.75**4),
            "two of its experts may be on one node": 4,
            "those are the other nodes; its own counts too": 0.75 * want,
            "that is how many it misses": 4 - want,
        },
    )


def reported_by_nccl(answer: float | None) -> Feedback:
    """Bus bandwidth that nccl-tests prints for an all-to-all on 2 nodes of 8, network-bound at 50 GB/s a rank."""
    size = 2.0**30
    time = size * 8 / 16 / 50e9
    want = float(bus_factor("all-to-all", 16.0)) * size / time / 1e9
    return number(
        answer,
        want,
        unit="GB/s",
        hint="Of the buffer 8/16 goes over the card; algbw is buffer over time, busbw 15/16 of it.",
        slips={
            "the card carries 8 of 16 parts of the buffer, busbw counts 15": 50,
            "the buffer over the time is algbw; busbw is 15/16 of it": 100,
            "over the card go 8 of 16 parts of the buffer, not all of it": 50 * 15 / 16,
        },
    )


def where_gathering_loses(answer: float | None) -> Feedback:
    """Fewest nodes at which the AllGather form sends more rows between nodes than the all-to-all, at top-6."""
    sends = {
        n: [inter_node_rows(form, 6, 8 * n, 8, 1680) for form in FORMS[:2]] for n in (2, 3, 4, 5, 6, 7, 10)
    }
    want = min(n for n, (flat, gathered) in sends.items() if gathered > flat + 1e-9)
    return number(
        answer,
        want,
        unit="nodes",
        hint="Compare N - 1 with k (1 - 1/N).",
        slips={"there both send as much": 6, "there it still sends less": 5},
    )


def on_the_wire(answer: float | None) -> Feedback:
    """Rate of the wire behind 58 GB/s that DeepEP reports for EP 32 on 4 nodes."""
    return number(
        answer,
        logical_to_wire(58.0, 4),
        unit="GB/s",
        hint="The report counts a row to each node that a token visits; one of four nodes is its own.",
        slips={
            "rows to the own node never leave it": 58,
            "half of them stay only where there are two nodes": 29,
            "that share stays": 14.5,
        },
    )


def exposed_with_interference(answer: float | None) -> Feedback:
    """Exposed part of 14 ms of traffic beside 10 ms of computing that start together, 20 of 132 SMs taken."""
    rate = float(rate_of_units(20, 132))
    return number(
        answer,
        pair_exposed_s(10.0, 14.0, rate),
        unit="ms",
        hint="While traffic runs, computing has 112 of 132 SMs: how long does it take then?",
        slips={
            "computing slows down while traffic runs, and hides more of it": 4,
            "that is how much longer computing takes": 10 / rate - 10,
            "nothing is added at the end: traffic ends after 14 ms either way": 14 - 10 * rate,
        },
    )


# --- the design ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A reader's layer, priced: seconds of dispatch, experts and combine together, and experts a device holds."""

    ep: int
    dispatcher: str
    chunks: int
    time_s: float

    @property
    def held(self) -> float:
        """Experts that a device holds."""
        return EXPERTS / self.ep


@cache
def links() -> ExpertLinks:
    """Links of the task: 150 GB/s in a node of 8 and 20 between nodes, 50 us a start on each."""
    found = expert_links(load_cluster({"device": "h800", "nodes": 16}))
    return replace(
        found,
        fabric_bytes_per_s=FABRIC,
        network_bytes_per_s=NETWORK,
        library_start_s=0.0,
        fabric_latency_s=LATENCY_S,
        network_latency_s=LATENCY_S,
        shared_ports=False,
    )


@cache
def chosen(ep: int, dispatcher: str, chunks: int) -> Choice:
    """Price a choice: each chunk's traffic pays its own starts, each further chunk slows the experts by 3 %.

    Raises
    ------
    InputError
        For a dispatcher or a number of chunks that does not exist.
    """
    found = dispatch(dispatcher, TOKENS, HIDDEN, 2, 2, Routing(EXPERTS, TOP_K), ep, 8, links())
    phases = {"dispatch": found.dispatch_phases, "combine": found.combine_phases}
    start = {
        way: sum(LATENCY_S * ((p.inner_bytes > 0) + (p.outer_bytes > 0)) for p in steps)
        for way, steps in phases.items()
    }
    experts_s = 6 * HIDDEN * WIDTH * TOP_K * TOKENS / FLOPS_PER_S
    sent = (float(found.dispatch_s - start["dispatch"]), float(found.combine_s - start["combine"]))
    efficiency = 1 / (1 + SMALLER * (chunks - 1))
    tasks = chunked(sent[0], experts_s, sent[1], chunks, float(start["dispatch"]), efficiency)
    return Choice(ep, dispatcher, chunks, float(simulate(tasks).makespan_s))


@cache
def quickest() -> Choice:
    """Find the quickest choice that fits, of all there are."""
    every = (chosen(*it) for it in product(EPS, FORMS, CHUNKS))
    return min((it for it in every if it.held <= ROOM), key=lambda it: it.time_s)


def _fits(it: Choice) -> bool | str:
    return it.held <= ROOM or f"a device holds {it.held:g} experts and has room for {ROOM}"


def _quick(it: Choice) -> bool | str:
    ratio = it.time_s / quickest().time_s
    return ratio <= WITHIN or f"it takes {1e3 * it.time_s:.2f} ms, {ratio:.2f} times the quickest that fits"


DEMANDS: tuple[tuple[str, Callable[[Choice], bool | str]], ...] = (
    ("It must fit", _fits),
    (f"It may take {WITHIN - 1:.0%} longer than the quickest", _quick),
)


def layer(answer: Mapping[str, Any] | None) -> Feedback:
    """Check a layer's group size, dispatcher and chunks."""
    example = '{"ep": 8, "dispatcher": "alltoall", "chunks": 1}'
    if answer is None:
        return design(None, (), f"Give a choice, such as {example}.")
    if not isinstance(answer, Mapping) or set(answer) != {"ep", "dispatcher", "chunks"}:
        return Feedback(False, f"Write ep, dispatcher and chunks, such as {example}.")
    allowed = {"ep": EPS, "dispatcher": FORMS, "chunks": CHUNKS}
    for name, values in allowed.items():
        if isinstance(answer[name], bool) or not any(answer[name] is v or answer[name] == v for v in values):
            return Feedback(False, f"{name} is one of {', '.join(map(str, values))} here.")
    try:
        found = chosen(int(answer["ep"]), answer["dispatcher"], int(answer["chunks"]))
    except InputError as error:
        return Feedback(False, f"It must run: {'; '.join(str(p) for p in error.problems)}.")
    return design(found, DEMANDS)
