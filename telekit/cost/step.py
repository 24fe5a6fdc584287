"""Time of one optimizer step: stages from operators, the pipeline's shape, data parallelism, the optimizer.

Formulas here serve one layout and a table of layouts alike. :mod:`telekit.cost.estimate` puts them together for one job
and replaces the pipeline's closed form by its simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.variability import slowest
from telekit.comm.collectives import collective_time_s
from telekit.cost.layers import (
    BESIDE,
    CATEGORIES,
    LayerCost,
    Pass,
    Site,
    at_rows,
    end_costs,
    group,
    layer_cost,
)
from telekit.cost.memory import Memory, memory_of
from telekit.cost.optimizers import optimizer_state_bytes
from telekit.cost.states import Held, owned, stage_parameters
from telekit.layout.schedules import BOTH_ENDS, model_copies
from telekit.layout.stages import OPTIONS, Assignment, assign
from telekit.operators.coefficients import now
from telekit.operators.shapes import Shapes, boundary_width
from telekit.pipeline.closed_form import pipeline_time_s
from telekit.training.config import BYTES

BUCKET_PARAMETERS = 40e6
"""Parameters of one bucket of Megatron-Core's gradients (``distributed_data_parallel_config.py``: at least so many)."""
GAPS = ("host", "offload")
"""Parts of a pass in which the device has nothing to do."""
SPLIT_BACKWARD = ("zb-h1", "dualpipe", "dualpipe-v")
"""Schedules whose formulas ask for the weights' gradients by themselves."""


@dataclass(frozen=True)
class Passes:
    """Passes of one micro-batch by category, each (chunks, ..., stages), with rows for layouts that differ in them.

    ``weight_s`` is the part of the backward pass that computes weights' gradients only. Where one micro-batch's forward
    and another's backward run together (DualPipe; else 0), ``traffic_s`` is the expert traffic that hides, and
    ``hidden_s`` all that the pair saves: with the traffic go gaps in which the device waited for the host or its link,
    as far as the other pass fills them. ``which`` says which of these rows each layout of the table is; None for one
    layout.
    """

    forward: dict[str, Any]
    backward: dict[str, Any]
    weight_s: Any
    hidden_s: Any
    traffic_s: Any
    which: Any

    def rows(self, value: Any) -> Any:
        """Give each layout its own row of (chunks, rows, stages)."""
        return value if self.which is None or np.ndim(value) < 3 else value[:, self.which]


@dataclass(frozen=True)
class StepCost:
    """Everything a step is made of; times in seconds, arrays (..., stages), chunks first where they are kept.

    Parameters
    ----------
    passes : Passes
        One micro-batch through each chunk of each stage.
    forward_s, backward_s : array (chunks, ..., stages)
        Both passes, all categories together; recomputation is in the backward pass.
    micro_batches : float or column
        Micro-batches of a step.
    comm_s : float or column
        One activation from a stage to the next.
    pipeline_s : float or (n,)
        All micro-batches through the pipeline, by the schedule's closed form.
    dp_comm_s, optimizer_s : float or (n,)
        Data-parallel traffic that nothing hides, and the optimizer's update, of the slowest stage.
    waiting_s : float or (n,)
        What all devices wait for the slowest of them.
    held : Memory
        Memory of each stage's device.
    """

    passes: Passes
    forward_s: Any
    backward_s: Any
    micro_batches: Any
    comm_s: Any
    pipeline_s: Any
    dp_comm_s: Any
    optimizer_s: Any
    waiting_s: Any
    held: Memory

    @property
    def forward(self) -> dict[str, Any]:
        """Forward pass by category, each (chunks, ..., stages)."""
        return {key: self.passes.rows(value) for key, value in self.passes.forward.items()}

    @property
    def backward(self) -> dict[str, Any]:
        """Backward pass by category."""
        return {key: self.passes.rows(value) for key, value in self.passes.backward.items()}

    @property
    def weight_s(self) -> Any:
        """Part of the backward pass that computes weights' gradients only."""
        return self.passes.rows(self.passes.weight_s)

    @property
    def hidden_s(self) -> Any:
        """What a forward and a backward that run together save; 0 save under DualPipe."""
        return self.passes.rows(self.passes.hidden_s)

    @property
    def traffic_s(self) -> Any:
        """Expert traffic in it; the rest is gaps of the host and its link (less than 0 where new ones open)."""
        return self.passes.rows(self.passes.traffic_s)

    @property
    def peak_bytes(self) -> Any:
        """Memory of each stage's device."""
        return self.held.peak_bytes

    @property
    def memory(self) -> dict[str, Any]:
        """Bytes of each stage's device by holder, shape (..., stages)."""
        return self.held.by_holder

    @property
    def step_s(self) -> Any:
        """The whole step, with the pipeline's closed form."""
        return self.pipeline_s + self.dp_comm_s + self.optimizer_s + self.waiting_s


PASS_COLUMNS = ("tp", "cp", "ep", "etp", "micro_batch", "expert_imbalance")
"""Columns of a layout that a micro-batch's passes depend on."""


def step_cost(site: Site, assignment: Assignment | None = None) -> StepCost:
    """Cost of a step under one layout, or under every row of a table."""
    train, layout = site.train, site.layout
    assignment = assignment or assign(site.model, layout)
    few, which = layout.distinct(PASS_COLUMNS)
    here = replace(site, layout=few)
    costs = [layer_cost(kind, here) for kind in site.model.kinds]
    embedding, head = end_costs(here)
    passes = _passes_of_stages(here, assignment, costs, embedding, head, which)
    f, b = (passes.rows(sum(side.values())) for side in (passes.forward, passes.backward))
    micro_batches = train.global_batch / (layout.dp * layout.micro_batch)
    comm_s = neighbour_s(site)
    pipeline = _pipeline_s(site, passes, f, b, micro_batches, comm_s)
    held, stages = stage_parameters(here, assignment), distinct_stages(assignment, layout.schedule)
    chosen = Held(*(at_rows(one[..., stages], which) for one in np.broadcast_arrays(*vars(held).values())))
    first, last = (side.sum(axis=0)[..., stages] for side in _covers(here, passes, f, b))
    return StepCost(
        passes,
        f,
        b,
        micro_batches,
        comm_s,
        pipeline,
        data_parallel_s(site, chosen, first, last, micro_batches, assignment.layers.sum(axis=0)[stages]),
        optimizer_s(site, chosen),
        (slowest(site.cluster.devices, site.cluster.device.kernels.jitter) - 1.0) * pipeline,
        memory_of(site, assignment, costs, head, micro_batches, (here, which)),
    )


def _covers(site: Site, passes: Passes, f: Any, b: Any) -> tuple[Any, Any]:
    """Give the passes that data-parallel traffic hides behind: of a pair that saves time, a third and two thirds.

    A device that holds two stages runs each of them for half of the micro-batches.
    """
    if site.layout.schedule not in BOTH_ENDS:
        return f, b
    pair = f + b - passes.rows(passes.hidden_s)
    if model_copies(site.layout.schedule) == 2:
        pair = (pair + np.flip(pair, -1)) / 2.0
    return pair / 3.0, pair * 2.0 / 3.0


def _pipeline_s(site: Site, passes: Passes, f: Any, b: Any, micro_batches: Any, comm_s: Any) -> Any:
    weight = both = None
    if site.layout.schedule in SPLIT_BACKWARD:
        weight, both = passes.rows(passes.weight_s), f + b - passes.rows(passes.hidden_s)
    return pipeline_time_s(
        site.layout.schedule, f, b, micro_batches, weight_s=weight, comm_s=comm_s, overlapped_s=both
    )


def distinct_stages(assignment: Assignment, schedule: str) -> NDArray[np.int64]:
    """Stages that differ in what stands on their device: others are like one of them."""
    kinds, options, chunks, stages = assignment.counts.shape
    rows = [*assignment.counts.reshape(kinds * options * chunks, stages)]
    rows += [np.arange(stages) == stage for _, stage in (assignment.embedding, assignment.head)]
    found = np.stack(rows)
    if model_copies(schedule) == 2:
        found = np.concatenate([found, np.flip(found, -1)])
    return np.sort(np.unique(found, axis=1, return_index=True)[1])


def _passes_of_stages(
    site: Site,
    assignment: Assignment,
    costs: list[LayerCost],
    embedding: LayerCost,
    head: LayerCost,
    which: Any,
) -> Passes:
    forward, backward, beside = _stages(assignment, costs, embedding, head)
    return Passes(forward, backward, *_paired(site, forward, backward, beside), which)


def _stages(
    assignment: Assignment, costs: list[LayerCost], embedding: LayerCost, head: LayerCost
) -> tuple[dict[str, Any], dict[str, Any], dict[str, tuple[Any, Any]]]:
    """Sum layers and ends: both passes by category, and of each field of :data:`BESIDE` both passes'."""
    forward: dict[str, Any] = {}
    backward: dict[str, Any] = {}
    beside: dict[str, tuple[Any, Any]] = dict.fromkeys(BESIDE, (0.0, 0.0))
    placed: list[tuple[Pass, Pass, Any]] = []
    for kind, cost in enumerate(costs):
        for option in range(len(OPTIONS)):
            layers = assignment.counts[kind, option].astype(float)
            if layers.any():
                placed.append((cost.forward_with(option), cost.backward_with(option), layers))
    for (chunk, stage), end in ((assignment.embedding, embedding), (assignment.head, head)):
        place = np.zeros(assignment.layers.shape)
        place[chunk, stage] = 1.0
        placed.append((end.forward, end.backward, place))
    for there, back, layers in placed:
        _add(forward, there, layers)
        _add(backward, back, layers)
        for name, (a, b) in beside.items():
            mine = (_spread(layers, getattr(one, name)) for one in (there, back))
            beside[name] = (a + next(mine), b + next(mine))
    return forward, backward, beside


def _add(total: dict[str, Any], found: Pass, layers: Any) -> None:
    for key in CATEGORIES:
        if key in found.times_s:
            total[key] = total.get(key, 0.0) + _spread(layers, found.times_s[key])


def _spread(layers: Any, value: Any) -> Any:
    """Give each chunk and stage its share of a per-layer value: (chunks, stages) and (n, 1) to (chunks, n, stages)."""
    return np.stack([value * row for row in layers])


def _paired(
    site: Site, forward: dict[str, Any], backward: dict[str, Any], beside: dict[str, tuple[Any, Any]]
) -> tuple[Any, Any, Any]:
    """Weights' part of the backward pass, what pairing it with a forward saves, and the expert traffic in that.

    Where the backward pass waits for the host, so do weights' gradients: they are half of its operators.

    On the device traffic hides behind computing, which gives up units to it. The pair takes that, or what the host
    needs to issue both, or its link to carry what they offload, both ways at once, whichever is longest. So does the
    schedule's bubble of pair + backward - 3 weights; what the device waits in a pair, it need not wait in the bubble.
    So more work never makes a step shorter.
    """
    sides, weight_s = (forward, backward), beside["weight_s"][1]
    computing = sum(side[key] for side in sides for key in ("compute", "recompute") if key in side)
    behind, waiting = sum(backward.values()), _gaps(backward)
    if site.layout.schedule not in BOTH_ENDS:
        spread = np.minimum(weight_s + waiting, np.maximum(weight_s, behind / 2.0))
        return spread, 0.0 * computing, 0.0 * computing
    traffic = forward.get("ep_comm", 0.0) + backward.get("ep_comm", 0.0)
    lost = computing * site.cluster.device.kernels.overlap_share
    hides = np.maximum(np.minimum(traffic, computing) - lost, 0.0)
    apart = sum(forward.values()) + behind
    device = apart - _gaps(forward) - waiting - hides
    (issue_f, issue_b), (out, back) = beside["issue_s"], beside["link_s"]
    link = np.maximum(out, back)
    pair = np.maximum(device, np.minimum(np.maximum(issue_f + issue_b, link), apart))
    bubble = device + behind - waiting - 3.0 * weight_s - (pair - device)
    waits = np.maximum(issue_f + 0.5 * issue_b, link + back)
    bubble = np.maximum(bubble, np.minimum(waits, pair + behind))
    return (pair + behind - bubble) / 3.0, apart - pair, hides


def _gaps(side: dict[str, Any]) -> Any:
    """Time of a pass in which its device waits for the host or its link."""
    return sum(side.get(key, 0.0) for key in GAPS)


def neighbour_s(site: Site) -> Any:
    """Time to hand one micro-batch's activations to the next stage.

    Each tensor rank sends its share; without sequence parallelism they gather what arrives (Megatron-LM's
    scatter-gather, arXiv 2104.04473, section 4.1).
    """
    x = Shapes.of(site.model, site.train, site.layout)
    stages, stride = group(site, "pp")
    whole = x.bytes * x.tokens * boundary_width(site.model)
    time = collective_time_s("send-recv", whole / x.tp, stages, stride, site.cluster)
    if not site.layout.sequence_parallel:
        time = time + collective_time_s("all-gather", whole, *group(site, "tp"), site.cluster)
    return time if stages > 1 else 0.0 * time


def data_parallel_s(
    site: Site, held: Held, forward_s: Any, backward_s: Any, micro_batches: Any, layers: Any
) -> Any:
    """Data-parallel traffic that computing does not hide, of the slowest stage.

    Gradients are summed once a step (ZeRO 0, 1) or once a micro-batch (2, 3); parameters are gathered once a step
    (1, 2) or before each pass (3). Each call may hide behind one pass of the stage over one micro-batch, all but one
    bucket: the first one to be gathered, and the last one to be summed. With ZeRO 3 a bucket is one of the stage's
    ``layers``; those that are gathered for the backward pass are at hand when it begins.
    """
    train, layout = site.train, site.layout
    grads = _shard_collective_s(site, held, float(BYTES[train.grad_dtype]), layout.zero)
    params = _shard_collective_s(site, held, float(train.parameter_bytes), None)
    each = 1.0 / model_copies(layout.schedule)  # a micro-batch runs through one of a device's stages
    grads = grads * (each if layout.zero >= 2 else 1.0)
    if layout.zero == 3:  # parameters are gathered before each pass; the backward pass hides both kinds
        params = params * each
        layer = 1.0 / np.maximum(layers, 1)
        backward = _exposed(site, params + grads, layer * grads, backward_s, layout.overlap_grad_reduce)
        gather = _exposed(site, params, layer * params, forward_s, layout.overlap_param_gather)
        return np.max(micro_batches * (gather + backward), axis=-1)
    size = now("BUCKET_PARAMETERS", BUCKET_PARAMETERS)
    bucket = np.minimum(size / np.maximum(held.dense + held.expert, 1.0), 1.0)
    gather = _exposed(site, params, bucket * params, forward_s, layout.overlap_param_gather)
    calls = micro_batches if layout.zero == 2 else 1.0
    scatter = _exposed(site, grads, bucket * grads, backward_s, layout.overlap_grad_reduce)
    return np.max(calls * scatter + (gather if layout.zero >= 1 else 0.0), axis=-1)


def _exposed(site: Site, time: Any, least: Any, behind: Any, overlaps: bool) -> Any:
    """Part of a call's time that shows: what is longer than the pass it hides behind, and one bucket's at least.

    While both run, computing gives up units to the traffic, which counts here: nothing where nothing hides.
    """
    if not overlaps:
        return time
    shows = np.maximum(time - behind, least)
    return shows + site.cluster.device.kernels.overlap_share * (time - shows)


def _shard_collective_s(site: Site, held: Any, size: float, zero: int | None) -> Any:
    """Sum gradients (``zero`` says how) or gather parameters (``zero`` None) of both kinds of shard."""
    op = "all-gather" if zero is None else ("all-reduce" if zero == 0 else "reduce-scatter")
    total: Any = 0.0
    for parameters, name in ((held.dense, "dp"), (held.expert, "edp")):
        ranks, stride = group(site, name)
        time = collective_time_s(op, parameters * size, ranks, stride, site.cluster)
        total = total + np.where((np.asarray(ranks) > 1) & (parameters > 0), time, 0.0)
    return total


def optimizer_s(site: Site, held: Held) -> Any:
    """Time of the update on the slowest stage: gradients read twice and cleared, states and parameters renewed.

    Gradients are read once more for their norm. States that are kept on the host come and go over its link.
    """
    train, device = site.train, site.cluster.device
    gradient = BYTES[train.grad_dtype]
    states = owned(site, optimizer_state_bytes(train, held), 1)
    moved = owned(site, held, 1) * (2.0 * gradient + train.parameter_bytes) + owned(site, held, 2) * gradient
    away = site.layout.optimizer_offload * 2.0 * states / device.kernels.host_link_bytes_per_s
    stream = device.memory_bandwidth_bytes_per_s * device.memory_efficiency
    return np.max((moved + 2.0 * states) / stream + away, axis=-1)
