"""Tasks of chapter 7 and what they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit.cluster.config import load_cluster
from telekit.errors import InputError
from telekit.exercises.check import Feedback, design, number
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.legality import OnChip, fit, ordered
from telekit.fusion.search import search
from telekit.fusion.subgraphs import SIZES, subgraph
from telekit.fusion.traffic import FusionCost, Step, Target, cost, gains, host_s
from telekit.units import KIB

LAUNCHES, LAUNCH_S, COPIES, COPY_S, STEP_S = 3091, 4.58e-6, 632, 8.4e-6, 40e-3
"""A published case (kekzl/imp, pull request 1367): what the host issues in a step, and the step."""
DEVICE_S, LESS = 35e-3, 0.43
"""Device time of that step (ours), and by which share fusion lowered it (published)."""
SINGLE = 0.78
"""Share of the bandwidth that single operators reach in the task on when not to fuse."""
CHIP = OnChip(192 * KIB, "910B's unified buffer, as the chapter assumes")
CORE = OnChip(64 * KIB, "the task's")
"""What a core of the design task has for a tile."""
WITHIN = 1.02


@cache
def _bound(chip_bytes: int) -> float:
    """Bytes of SwiGLU and then RMSNorm in two kernels over those in one; bf16."""
    graph = Graph("swiglu-norm")
    gate, up = (graph.input(name, ("B", "H"), "bf16") for name in ("gate", "up"))
    inner = gate.silu() * up
    first = graph.operators
    graph.output(inner * (inner.square().mean(-1, keepdims=True) + 1e-6).rsqrt(), "y")
    rest = tuple(i for i in graph.operators if i not in first)
    sizes, large = {"B": 512, "H": 4096}, OnChip(1024 * KIB, "a row fits")
    apart = cost(graph, Fusion((first, rest)), sizes, Target("device", 1e12, OnChip(chip_bytes, "task")))
    return (
        apart.moved_bytes / cost(graph, Fusion.whole(graph), sizes, Target("device", 1e12, large)).moved_bytes
    )


def bound_of_swiglu_norm(answer: float | None) -> Feedback:
    """Largest speed-up by fusing SwiGLU with an RMSNorm that keeps its row on chip."""
    return number(
        answer,
        _bound(1024 * KIB),
        digits=3,
        hint="Count tensors of B x H: SwiGLU reads two and writes one, the norm reads one and writes one.",
        slips={
            "that is for a norm that reads its row twice": _bound(4 * KIB),
            "fused it still reads gate and up and writes the result: three tensors, not two": 2.5,
            "the norm reads what SwiGLU wrote; fused, it neither is written nor read": 4 / 3,
            "that is the share of bytes that is left; the question is for the speed-up": 0.6,
        },
    )


def least_efficiency(answer: float | None) -> Feedback:
    """Share of the bandwidth, in per cent, at which a kernel of two chained operators is as quick as both alone."""
    graph = Graph("pair")
    graph.output(graph.input("x", ("N",)).exp().tanh(), "y")
    prices = [
        cost(graph, make(graph), {"N": 2**24}, Target("device", 1e12, CHIP))
        for make in (Fusion.none, Fusion.whole)
    ]
    less = prices[1].moved_bytes / prices[0].moved_bytes
    return number(
        answer,
        100 * SINGLE * less,
        unit="%",
        hint="Time is bytes over reached bandwidth; the fused kernel moves half of the bytes.",
        slips={
            "it moves fewer bytes, so it may be slower a byte": 100 * SINGLE,
            "half of the bandwidth that single operators reach, not of the peak": 50,
            "more than all there is": 200 * SINGLE,
        },
    )


def _step(launches: int, device_s: float) -> Step:
    """Return the published step with other launches and device time; what else the host does stays."""
    other = STEP_S - host_s(LAUNCHES, LAUNCH_S, COPIES, COPY_S)
    return Step(launches, device_s, host_s(launches, LAUNCH_S, COPIES, COPY_S, other))


def host_bound_step(answer: float | None) -> Feedback:
    """Milliseconds of a host-bound step when the device takes 43 % less and the host issues 1,545 launches."""
    after = _step(1545, DEVICE_S * (1 - LESS))
    return number(
        answer,
        1e3 * after.step_s,
        unit="ms",
        hint="The host has 40 ms of work; each launch less saves it 4.58 us. The device waits.",
        slips={
            "the host decides, not the device": 1e3 * STEP_S * (1 - LESS),
            "that is the device's time; the host takes longer": 1e3 * DEVICE_S * (1 - LESS),
            "true if launches stayed as many; 1,546 of them are gone": 1e3 * STEP_S,
            "launches are a part of the host's work; copies and the rest stay": 1e3 * STEP_S / 2,
        },
    )


@cache
def _widest() -> int:
    """Most experts whose softmax row fits on chip, so that the kernel goes over it once."""
    graph = subgraph("router-softmax")
    fits, not_yet = 1, 2**20
    while not_yet - fits > 1:
        middle = (fits + not_yet) // 2
        once = fit(graph, graph.operators, {"T": 64, "E": middle}, CHIP).passes == 1
        fits, not_yet = (middle, not_yet) if once else (fits, middle)
    return fits


def widest_row(answer: float | None) -> Feedback:
    """Longest row of fp32 that the softmax kernel can hold in 192 KiB."""
    room = CHIP.capacity_bytes
    return number(
        answer,
        _widest(),
        unit="numbers",
        hint="Which operands of the listing have both axes, i and j? Each takes 4 bytes a number.",
        slips={
            "the row is held three times: as read, as exponentials, as written": room / 4,
            "the result has a place of its own too": room / 8,
            "192 KiB hold that many rows of bytes; a number in fp32 has four": room / 3,
            "r0 has one number a row: it takes no room to speak of": room / 16,
        },
    )


def gain_over_partly_fused(answer: float | None) -> Feedback:
    """Gain at 4,096 tokens over a baseline that is fused in part."""
    times = {"eager": 2.84, "partly fused": 1.36, "fused": 0.86}
    found = gains(times, "fused")
    return number(
        answer,
        found["partly fused"],
        digits=3,
        hint="The time of the baseline over the time of what is judged.",
        slips={
            "that is over eager; the baseline is fused in part": found["eager"],
            "that is what the baseline itself gains over eager": 2.84 / 1.36,
            "the other way round": 0.86 / 1.36,
        },
    )


# --- the design ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A reader's kernels, priced."""

    cost: FusionCost


@cache
def block() -> tuple[Graph, Target]:
    """Return the task's graph, and 910B with 64 KiB a core."""
    return subgraph("feed-forward"), Target.of(
        load_cluster({"device": "ascend-910b", "nodes": 1}).device, chip=CORE
    )


@cache
def best() -> FusionCost:
    """Price the best choice of kernels, as the integer program proves it."""
    graph, on = block()
    return search(graph, SIZES, on, "program", side_by_side=False).cost


def _lawful(groups: Sequence[Sequence[int]]) -> Choice:
    """Price groups of operators.

    Raises
    ------
    ValueError
        They are no choice of kernels; the text says why.
    """
    graph, on = block()
    seen = [i for group in groups for i in group]
    strange = sorted({i for i in seen if i not in graph.operators})
    missing = [i for i in graph.operators if i not in seen]
    twice = sorted({i for i in seen if seen.count(i) > 1})
    for what, which in (("no operator", strange), ("in no group", missing), ("in two groups", twice)):
        if which:
            raise ValueError(f"{what}: {', '.join(map(str, which))}")
    try:
        return Choice(cost(graph, ordered(graph, [g for g in groups if g]), SIZES, on))
    except InputError as error:
        raise ValueError("; ".join(str(p) for p in error.problems)) from error


def _quick(groups: Sequence[Sequence[int]]) -> bool | str:
    ratio = _lawful(groups).cost.step_s / best().step_s
    return ratio <= WITHIN or f"it takes {ratio:.3f} times as long as the best"


DEMANDS: tuple[tuple[str, Callable[[Any], bool | str]], ...] = (
    ("Every group must be a kernel", lambda groups: bool(_lawful(groups))),
    (f"It may take {WITHIN - 1:.0%} longer than the best", _quick),
)


def kernels(answer: Sequence[Sequence[int]] | None) -> Feedback:
    """Check groups of the feed-forward block's operators, by their numbers."""
    example = "[[2, 3, 4], [6], ...]"
    if answer is None:
        return design(None, (), f"Give groups of operators' numbers, such as {example}.")
    try:
        groups: list[list[Any]] = [[*group] for group in answer]
    except TypeError:
        groups = [[None]]
    if not all(type(i) is int for group in groups for i in group):
        return Feedback(False, f"Write a list of lists of operators' numbers, such as {example}.")
    return design(groups, DEMANDS)
