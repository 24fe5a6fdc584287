"""Fusion of the chapter: chains and subgraphs on a device by name, and tables of what fusing them changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from textwrap import fill

import numpy as np

from telekit import catalog
from telekit.cluster.config import Device, load_cluster
from telekit.cost.estimate import estimate
from telekit.errors import bad
from telekit.fusion.bytecode import Program, encode
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.legality import OnChip, on_chip
from telekit.fusion.listing import listing
from telekit.fusion.machine import Machine, run
from telekit.fusion.measured import random_inputs
from telekit.fusion.reference import run_unfused
from telekit.fusion.savings import Part, Savings, savings
from telekit.fusion.search import Search, search
from telekit.fusion.subgraphs import SIZES, subgraph
from telekit.fusion.traffic import FusionCost, Step, Target, cost, gains, host_s
from telekit.job import Job
from telekit.ui.tables import Table
from telekit.units import KIB, MIB, format_bytes

DEVICES = ("ascend-910b", "ascend-910c", "a100-80gb", "h100", "h200", "b200")
READS = {"nothing": "none", "one tensor again": "same", "a new tensor each": "new"}
"""What an operator of a chain reads beside the value before it."""
SMALL = 16
"""Operators up to which the integer program answers while a hand waits."""
METHODS = ("unfused", "patterns", "merging", "program")
JOB = "telechat3-105b-910b-256"
ALONE = Machine(threads=1)
"""Of listings: tiles must not depend on the reader's cores."""
COLUMNS = 100
KINDS = {
    "norms": ("norm",),
    "rotary": ("rotary",),
    "router": ("router",),
    "permutation": ("permute",),
    "activations": ("activation",),
    "loss": ("cross_entropy",),
    "AdamW": ("adamw",),
}
"""Kinds of work of a step, by a part of their names."""


@lru_cache(maxsize=64)
def device(name: str) -> Device:
    """Device of the catalog."""
    return load_cluster({"device": name, "nodes": 1}).device


@dataclass(frozen=True)
class On:
    """What kernels run on, as a panel's controls say it.

    Attributes
    ----------
    device : str
        Catalog name.
    launch_us, gap_us : float
        Microseconds a kernel: of the host to issue it, of the device to start and end it.
    chip_kib : int
        Memory of one core; 0: the device's own.
    fused : float
        What a kernel of several operators reaches of the bandwidth that a single one does.
    share : float
        What a single one reaches of the peak bandwidth; 0: the device's own.
    """

    device: str = "ascend-910b"
    launch_us: float = 5.0
    gap_us: float = 2.0
    chip_kib: int = 0
    fused: float = 1.0
    share: float = 0.0


@lru_cache(maxsize=256)
def target(on: On) -> Target:
    """Return the target that these settings are."""
    chip = OnChip(on.chip_kib * KIB, "chosen here") if on.chip_kib else on_chip(on.device)
    made = Target.of(
        device(on.device),
        chip=chip,
        host_launch_s=on.launch_us * 1e-6,
        gap_s=on.gap_us * 1e-6,
        fused_efficiency=on.fused,
    )
    share = {"element": on.share} if on.share else made.efficiency
    times = f"a kernel takes {on.gap_us:g} us to start and end, and the host {on.launch_us:g} us to issue: assumed"
    return replace(made, efficiency=share, assumptions=(*made.assumptions, times))


REPORTED = On()


# --- a chain ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """Element-wise operators in a row, unfused and as one kernel."""

    unfused: FusionCost
    fused: FusionCost

    @property
    def gain(self) -> float:
        """Unfused step over fused."""
        return self.unfused.step_s / self.fused.step_s


def chain_graph(operators: int, reads: str, dtype: str) -> Graph:
    """Make a chain; each operator is one FLOP an element and reads what :data:`READS` says beside its forerunner."""
    graph = Graph(f"chain-{operators}")
    value = graph.input("x", ("N",), dtype)
    again = graph.input("y", ("N",), dtype) if reads == "same" else None
    for place in range(operators):
        if reads == "none":
            value = value * 1.01
        else:
            value = value + (again if again is not None else graph.input(f"y{place}", ("N",), dtype))
    graph.output(value, "z")
    return graph


@lru_cache(maxsize=1024)
def chain(operators: int, reads: str, dtype: str, elements: int, on: On) -> Chain:
    """Price a chain unfused and fused."""
    graph, sizes = chain_graph(operators, reads, dtype), {"N": elements}
    made = (Fusion.none(graph), Fusion.whole(graph))
    return Chain(*(cost(graph, fusion, sizes, target(on)) for fusion in made))


# --- a subgraph ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def graph_of(name: str) -> Graph:
    """Subgraph by name."""
    return subgraph(name)


@lru_cache(maxsize=512)
def found(name: str, method: str, tokens: int, on: On) -> Search:
    """Search a fusion; ``unfused`` finds none. TeleChat3-105B's sizes, so many tokens."""
    if method == "unfused":
        best = found(name, "program", tokens, on)
        return replace(
            best,
            fusion=Fusion.none(graph_of(name)),
            cost=best.unfused,
            method="unfused",
            proved=best.gain == 1.0,
        )
    sizes = SIZES | {"T": tokens, "N": 4 * tokens}
    return search(graph_of(name), sizes, target(on), method, side_by_side=False)


def over_tokens(name: str, fusion: Fusion, on: On, tokens: tuple[int, ...]) -> tuple[Step, ...]:
    """Price one choice of kernels at every number of tokens."""
    alone = all(len(group) == 1 for group in fusion.groups)
    asked = replace(on, launch_us=REPORTED.launch_us, fused=1.0 if alone else on.fused)
    count = len(fusion.groups)
    launch_s = on.launch_us * 1e-6
    return tuple(
        Step(count, busy, host_s(count, launch_s)) for busy in _device_s(name, fusion, asked, tokens)
    )


@lru_cache(maxsize=256)
def _device_s(name: str, fusion: Fusion, on: On, tokens: tuple[int, ...]) -> tuple[float, ...]:
    """Device time at every number of tokens; how long the host takes to issue does not matter here."""
    graph = graph_of(name)
    return tuple(cost(graph, fusion, SIZES | {"T": t, "N": 4 * t}, target(on)).device_s for t in tokens)


@lru_cache(maxsize=64)
def program_of(name: str, fused: bool) -> Program:
    """Encode a subgraph as the search fuses it on 910B, or with a kernel an operator."""
    graph = graph_of(name)
    if not fused:
        return encode(graph, Fusion.none(graph))
    method = "program" if len(graph.operators) <= SMALL else "merging"
    return encode(graph, found(name, method, 4096, REPORTED).fusion)


# --- the step -----------------------------------------------------------------------------------------------


@cache
def job() -> Job:
    """Return the public 256-device job of TeleChat3-105B."""
    return Job.read(catalog.record("jobs", JOB)["job"])


@cache
def step_s() -> float:
    """Step of it, as telekit estimates it with fused kernels."""
    time_s = estimate(job()).step_time_s
    if time_s is None:
        raise bad("job", JOB, "its step cannot be estimated", "a job that fits")
    return float(time_s)


@lru_cache(maxsize=64)
def saved(on: On = REPORTED) -> Savings:
    """Estimate what fusion saves a step."""
    return savings(job(), step_s(), target(on))


def kind_of(part: Part) -> str:
    """Kind of a part's work, a name of :data:`KINDS`."""
    return next(kind for kind, words in KINDS.items() if any(word in part.name for word in words))


# --- tables -------------------------------------------------------------------------------------------------

LAYER = (
    "residual-rms-norm", "residual-rms-norm-backward", "rotary", "router-sigmoid", "router-weights", "permute",
    "unpermute", "swiglu", "swiglu-backward", "cross-entropy", "adamw",
)  # fmt: skip


def layer_on_910b() -> Table:
    """Count launches, bytes and time of a layer's element-wise work, unfused and as the integer program fuses it."""
    rows, proved = [], 0
    for name in LAYER:
        it = search(graph_of(name), SIZES, target(REPORTED), side_by_side=False)
        proved += it.proved
        moved = (it.unfused.moved_bytes / MIB, it.cost.moved_bytes / MIB)
        times = (it.unfused.step_s * 1e6, it.cost.step_s * 1e6)
        rows.append(
            (
                name,
                *(str(c.launches) for c in (it.unfused, it.cost)),
                *(f"{m:,.1f}" for m in moved),
                *(f"{t:,.0f}" for t in times),
                f"{it.gain:.2f}",
            )
        )
    title = f"4,096 tokens on one 910B, before and after; {proved} of {len(rows)} proved best by the integer program"
    return Table(title, ("", "launches", "", "MiB", "", "us", "", "gain"), tuple(rows))


def swiglu_norm_bounds() -> Table:
    """Bytes of SwiGLU and RMSNorm in units of B H, in two kernels and in one; bf16."""
    graph = Graph("swiglu-norm")
    gate, up = (graph.input(name, ("B", "H"), "bf16") for name in ("gate", "up"))
    inner = gate.silu() * up
    first = graph.operators
    graph.output(inner * (inner.square().mean(-1, keepdims=True) + 1e-6).rsqrt(), "y")
    rest = tuple(i for i in graph.operators if i not in first)
    sizes = {"B": 512, "H": 4096}
    rows = []
    for name, chip in (("norm reads its row twice", 4 * KIB), ("norm keeps its row", 1024 * KIB)):
        apart, whole = (
            cost(graph, fusion, sizes, Target("device", 1e12, OnChip(size, "example")))
            for fusion, size in ((Fusion((first, rest)), chip), (Fusion.whole(graph), 1024 * KIB))
        )
        unit = 512 * 4096
        cells = (f"{apart.moved_bytes / unit:g} BH", f"{whole.moved_bytes / unit:g} BH")
        rows.append((name, *cells, f"{apart.moved_bytes / whole.moved_bytes:.2f}"))
    return Table("SwiGLU, then RMSNorm; bytes in bf16", ("", "two kernels", "one", "at most"), tuple(rows))


def feed_forward_choices() -> Table:
    """How three ways to search fuse a feed-forward block; 4,096 tokens on 910B."""
    best = found("feed-forward", "program", 4096, REPORTED)
    rows = []
    for method in METHODS:
        it = found("feed-forward", method, 4096, REPORTED)
        over = it.cost.step_s / best.cost.step_s - 1
        proof = "proved" if it.proved else ""
        rows.append((method, str(it.cost.launches), f"{it.cost.step_s * 1e6:.0f}", f"{over:+.1%}", proof))
    title = f"RMSNorm, gate and up, SwiGLU, down, residual: {best.unfused.launches} operators on 910B"
    return Table(title, ("", "launches", "us", "over the best", ""), tuple(rows))


def operators_of(name: str = "feed-forward") -> Table:
    """Operators of a subgraph with their numbers: what a group is made of."""
    graph = graph_of(name)
    rows = []
    for i in graph.operators:
        node = graph.nodes[i]
        reads = ", ".join(
            graph.nodes[s].name if graph.nodes[s].op != "constant" else "a number" for s in node.inputs
        )
        rows.append(
            (str(i), f" {node.op:<8}", f"{'(' + ', '.join(map(str, node.shape)) + ')':<8}", f"{reads:<20}")
        )
    return Table(f"Operators of {name}", ("", "", "", ""), tuple(rows))


def code_of(name: str = "rms-norm") -> str:
    """List the bytecode of a fused subgraph."""
    return listing(program_of(name, True))


def one_program_many_shapes() -> Table:
    """Run one program of SwiGLU at several shapes, and compare with NumPy operator by operator."""
    graph, program = graph_of("swiglu"), program_of("swiglu", True)
    rows = []
    for tokens, width in ((1, 1), (7, 33), (512, 1536)):
        sizes = {"T": tokens, "F": width}
        inputs = random_inputs(graph, sizes)
        fused, unfused = run(program, inputs, machine=ALONE)["y"], run_unfused(graph, inputs)["y"]
        same = "equal to the last bit" if np.array_equal(fused, unfused) else "not equal"
        rows.append((f"{tokens} x {width}", same))
    return Table(
        f"SwiGLU, {len(program.code)} bytes, encoded once", ("T x F", "fused and unfused"), tuple(rows)
    )


def published_gains() -> Table:
    """Gain of one fused kernel by baseline: published times, forward and backward (axolotl, pull request 3680)."""
    times = {
        1024: {"eager": 0.83, "partly fused": 0.49, "fused": 0.48},
        4096: {"eager": 2.84, "partly fused": 1.36, "fused": 0.86},
    }
    rows = []
    for tokens, ms in times.items():
        over = gains(ms, "fused")
        rows.append((f"{tokens} tokens", *(f"{over[name]:.2f}" for name in ("eager", "partly fused"))))
    return Table("How many times as quick as", ("", "eager", "partly fused"), tuple(rows))


def telechat3() -> str:
    """Estimate what fusion saves TeleChat3-105B a step, against both baselines, and on what that rests."""
    it, on = saved(), target(REPORTED)
    lines = [
        "TeleChat3-105B on 256 x 910B, one step, the average device",
        f"fused: {it.fused_launches:,.0f} launches, {format_bytes(it.fused_bytes)}; step {step_s():.2g} s (estimated)",
    ]
    for one in (it.low, it.high):
        fewer = f"{one.launches:>7,.0f} launches and {format_bytes(one.moved_bytes)} fewer"
        lines += [
            f"against {one.baseline + ':':<11}{fewer}; {one.device_s * 1e3:.0f} ms of device, {one.share:.1%}",
            f"{'':<19}{one.host_s * 1e3:.0f} ms of host, counts only where the host decides",
        ]
    extra = [line for line in it.assumptions if line not in on.assumptions]
    rest = [*extra, *on.assumptions]
    return "\n".join(
        [*lines, "assumed:", *(fill(f"- {line}", COLUMNS, subsequent_indent="  ") for line in rest)]
    )
