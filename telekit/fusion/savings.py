"""What operator fusion saves in a training step of a real job: launches, bytes, and time on a device.

Two baselines bracket the answer, for a gain without one says nothing:

- *operators*: every element-wise operator is a kernel, as when a graph runs op by op and the model is written in plain
  operators (MindSpore's jit level O0 without fused operators of the library);
- *library*: norms, activations, rotary embedding, softmax, cross-entropy, permutation and AdamW are each a hand-written
  kernel already, as in CANN's operator libraries and in Megatron-Core; left are adds and multiplies beside them.

The truth of a run lies between. A stage's time is saved once for each micro-batch that passes it and for those of the
pipeline's bubble, as if every schedule's bubble were 1F1B's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telekit.errors import bad
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.layer import Stretch, from_operators, head_stretches
from telekit.fusion.legality import ordered
from telekit.fusion.search import search
from telekit.fusion.subgraphs import adam
from telekit.fusion.traffic import FusionCost, Target, cost
from telekit.job import Job
from telekit.model.config import LayerKind
from telekit.model.tensors import Tensor, layer_tensors, mtp_tensors

OWN_OUTPUTS = {"residual-rms-norm": "sum", "residual-rms-norm-backward": "dx"}
"""Outputs that an add beside the library's kernel makes."""
LOOSE = frozenset(("router-weights", "router-weights-backward", "cross-entropy-backward"))
"""Graphs for which no library kernel is assumed: each operator is one in both baselines."""

UNCOUNTED = (
    "left out: top-k of the router, the auxiliary loss, gradient clipping and accumulation, joining and splitting the "
    "parts of latent attention's heads",
    "residual stream and rotary embedding are priced in the training dtype; a model that keeps them in fp32 moves up "
    "to twice those bytes, fused or not",
)
"""Work that no part of the estimate has, or has at fewer bytes than a model may move."""


@dataclass(frozen=True)
class Part:
    """One kind of work over a step of one device: how often it runs, and what one run costs in each way.

    ``library`` and ``operators`` are the baselines, ``fused`` is what the search found.
    """

    name: str
    runs: float
    fused: FusionCost
    library: FusionCost
    operators: FusionCost


@dataclass(frozen=True)
class Saving:
    """What fusion saves against one baseline, on the average device over one step.

    Parameters
    ----------
    baseline : str
        ``library`` or ``operators``.
    launches, moved_bytes : float
        Kernels and traffic that are no longer there.
    device_s : float
        Time of them on the device, gaps included, with the pipeline's bubble.
    host_s : float
        Time the host needs no longer to issue them; it counts where the host decides, instead of ``device_s``.
    share, host_share : float
        ``device_s``, ``host_s`` over the step of the baseline: ``step_time_s`` is of the fused run.
    """

    baseline: str
    launches: float
    moved_bytes: float
    device_s: float
    host_s: float
    share: float
    host_share: float


@dataclass(frozen=True)
class Savings:
    """The estimate: ``low`` against the library's kernels, ``high`` against one kernel an operator."""

    low: Saving
    high: Saving
    parts: tuple[Part, ...]
    fused_launches: float
    fused_bytes: float
    left_out: tuple[str, ...]
    assumptions: tuple[str, ...]


def savings(job: Job, step_time_s: float, target: Target | None = None) -> Savings:
    """Estimate what fusion saves in one step.

    Parameters
    ----------
    job : Job
        What is trained, where and how it is split.
    step_time_s : float
        Step of the run with fusion, measured or estimated: telekit's own estimate prices fused kernels.
    target : Target, optional
        Device and launch times; the job's device with assumed launch times when none is given.

    Raises
    ------
    InputError
        The step is no positive time; the device's memory on chip is not known; a job without layers.
    """
    if not 0 < step_time_s < 1e9:
        raise bad("step_time_s", step_time_s, "must be a positive number of seconds", "10.0")
    target = target or Target.of(job.cluster.device, "bf16")
    layout: Any = job.layout
    micro_batches = job.train.global_batch / (layout.dp * layout.micro_batch)
    bubble = 1 + (layout.pp - 1) / (layout.vpp * micro_batches)
    parts, left_out = _parts(job, target, micro_batches)
    low, high = (_saving(name, parts, target, bubble, step_time_s) for name in ("library", "operators"))
    fused = [(p.runs * p.fused.launches, p.runs * p.fused.moved_bytes) for p in parts]
    again = {"full": "forward runs twice (full recompute)", "none": "forward runs once"}.get(
        layout.option, "forward runs once: what is recomputed selectively is left out"
    )
    assumptions = (
        "averages over the devices: layers, head and parameters are spread evenly over the stages",
        again,
        f"what a micro-batch saves counts {micro_batches:g} + {layout.pp - 1}/{layout.vpp} times (1F1B's bubble)",
        "AdamW runs once a tensor; its state is spread over data-parallel ranks from zero 1 on",
        "sums over rows (a norm's weight gradient) are finished inside the kernel, by adding up atomically",
        *UNCOUNTED,
        "step_time_s is of the fused run, so shares are of step_time_s plus what is saved",
        *target.assumptions,
    )
    launches, moved = (sum(column) for column in zip(*fused, strict=True))
    return Savings(low, high, tuple(parts), launches, moved, left_out, assumptions)


def _parts(job: Job, target: Target, micro_batches: float) -> tuple[list[Part], tuple[str, ...]]:
    model, train, layout = job.model, job.train, job.layout
    passes = 2.0 if layout.option == "full" else 1.0
    counts: dict[LayerKind, float] = {}
    for kind in model.layers:
        counts[kind] = counts.get(kind, 0.0) + 1 / layout.pp
    modules = model.mtp_layers * train.mtp
    if modules:
        counts[model.mtp_block] = counts.get(model.mtp_block, 0.0) + modules / layout.pp
    parts: list[Part] = []
    left_out: list[str] = []
    for kind, layers in counts.items():
        stretches, without = from_operators(model, kind, train, layout)
        left_out += without
        parts += _priced(stretches, layers * micro_batches, passes, target)
    parts += _priced(
        head_stretches(model, train, layout), (1 + modules) / layout.pp * micro_batches, 1.0, target
    )
    parts += _optimizer(job, target)
    return _joined(parts), tuple(dict.fromkeys(left_out))


def _priced(stretches: tuple[Stretch, ...], runs: float, passes: float, target: Target) -> list[Part]:
    found = []
    for stretch in stretches:
        found.append(_part(stretch.name, stretch.forward, stretch.sizes, runs * passes, target))
        if stretch.backward is not None:
            found.append(_part(f"{stretch.name} backward", stretch.backward, stretch.sizes, runs, target))
    return found


def _part(name: str, graph: Graph, sizes: Mapping[str, int], runs: float, target: Target) -> Part:
    found = search(graph, sizes, target, "merging", side_by_side=False)
    library = cost(graph, library_kernels(graph), sizes, target)
    return Part(name, runs, found.cost, library, found.unfused)


def library_kernels(graph: Graph) -> Fusion:
    """Kernels of a subgraph where the library has one for the named operation, and only what is beside it is single."""
    if graph.name in LOOSE:
        return Fusion.none(graph)
    beside = {graph.outputs[OWN_OUTPUTS[graph.name]]} if graph.name in OWN_OUTPUTS else set()
    rest = tuple(i for i in graph.operators if i in graph.live() and i not in beside)
    return ordered(graph, (rest, *((i,) for i in beside)))


def _optimizer(job: Job, target: Target) -> list[Part]:
    """AdamW over the tensors of the average stage, one run a tensor size."""
    model, layout = job.model, job.layout
    tensors = [(t, 1 / layout.pp) for kind in model.layers for t in layer_tensors(model, kind)]
    if model.mtp_layers and job.train.mtp:
        tensors += [(t, model.mtp_layers / layout.pp) for t in mtp_tensors(model)]
    vocabulary = Tensor("vocabulary", "mlp", (model.vocab_size, model.hidden_size), split=True)
    tensors.append((vocabulary, (1 if model.tied_embeddings else 2) / layout.pp))
    runs: dict[int, float] = {}
    for tensor, share in tensors:
        elements = max(round(owned_elements(tensor, layout)), 1)
        runs[elements] = runs.get(elements, 0.0) + share
    return [_part("adamw", adam(), {"P": elements}, times, target) for elements, times in runs.items()]


def owned_elements(tensor: Tensor, layout: Any) -> float:
    """Elements of a tensor (all experts as one, as a grouped product keeps them) that one device updates."""
    if tensor.component == "experts":
        split, replicas = layout.ep * layout.etp, layout.edp
    else:
        split, replicas = layout.tp if tensor.split else 1, layout.dense_replicas
    return float(tensor.size * tensor.copies / split / (replicas if layout.zero >= 1 else 1))


def _joined(parts: list[Part]) -> list[Part]:
    """Parts of one name and the same price are one."""
    found: dict[tuple[str, FusionCost], Part] = {}
    for part in parts:
        key = (part.name, part.fused)
        runs = part.runs + (found[key].runs if key in found else 0.0)
        found[key] = Part(part.name, runs, part.fused, part.library, part.operators)
    return list(found.values())


def _saving(baseline: str, parts: list[Part], target: Target, bubble: float, step_time_s: float) -> Saving:
    launches = moved = device_s = host_s = 0.0
    for part in parts:
        before: FusionCost = getattr(part, baseline)
        times = part.runs * (1.0 if part.name == "adamw" else bubble)
        launches += part.runs * (before.launches - part.fused.launches)
        moved += part.runs * (before.moved_bytes - part.fused.moved_bytes)
        device_s += times * (before.device_s - part.fused.device_s)
        host_s += times * (before.launches - part.fused.launches) * target.host_launch_s
    shares = (saved / (step_time_s + saved) for saved in (device_s, host_s))
    return Saving(baseline, launches, moved, device_s, host_s, *shares)
