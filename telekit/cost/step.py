"""Time of one optimizer step: stages from operators, the pipeline's shape, data parallelism, the optimizer.

Formulas here serve one layout and a table of layouts alike. :mod:`telekit.cost.estimate` puts them together for one job
and replaces the pipeline's closed form by its simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.comm.collectives import collective_time_s
from telekit.cost.layers import CATEGORIES, LayerCost, Pass, Site, end_costs, group, layer_cost
from telekit.cost.memory import memory_bytes, owned, stage_parameters
from telekit.layout.schedules import BOTH_ENDS
from telekit.layout.stages import OPTIONS, Assignment, assign
from telekit.operators.shapes import Shapes, boundary_width
from telekit.pipeline.closed_form import pipeline_time_s
from telekit.training.config import BYTES

COMMUNICATION_SLOWDOWN = 20 / 112
"""What computing loses while expert traffic runs beside it: 20 of an H800's 132 SMs drive the links
(DeepSeek-V3, arXiv 2412.19437, section 3.2.2). Taken for every device."""


@dataclass(frozen=True)
class StepCost:
    """Everything a step is made of; times in seconds, arrays (..., stages), chunks first where they are kept.

    Parameters
    ----------
    forward, backward : dict of str to array
        One micro-batch by category, shape (chunks, ..., stages).
    weight_s : array
        Part of the backward pass that computes weights' gradients only.
    hidden_s : array
        Expert traffic that hides when one micro-batch's forward and another's backward run together (DualPipe);
        0 under the other schedules.
    micro_batches : float or column
        Micro-batches of a step.
    comm_s : float or column
        One activation from a stage to the next.
    pipeline_s : float or (n,)
        All micro-batches through the pipeline, by the schedule's closed form.
    dp_comm_s, optimizer_s : float or (n,)
        Data-parallel traffic that nothing hides, and the optimizer's update, of the slowest stage.
    memory : dict of str to array
        Bytes by holder, shape (..., stages).
    """

    forward: dict[str, Any]
    backward: dict[str, Any]
    weight_s: Any
    hidden_s: Any
    micro_batches: Any
    comm_s: Any
    pipeline_s: Any
    dp_comm_s: Any
    optimizer_s: Any
    memory: dict[str, Any]

    @property
    def forward_s(self) -> Any:
        """Forward pass of one micro-batch, shape (chunks, ..., stages)."""
        return sum(self.forward.values())

    @property
    def backward_s(self) -> Any:
        """Backward pass of one micro-batch, recomputation included."""
        return sum(self.backward.values())

    @property
    def peak_bytes(self) -> Any:
        """Memory of each stage's device."""
        return sum(self.memory.values())

    @property
    def step_s(self) -> Any:
        """The whole step, with the pipeline's closed form."""
        return self.pipeline_s + self.dp_comm_s + self.optimizer_s


def step_cost(site: Site, assignment: Assignment | None = None) -> StepCost:
    """Cost of a step under one layout, or under every row of a table."""
    model, train, layout = site.model, site.train, site.layout
    assignment = assignment or assign(model, layout)
    costs = [layer_cost(kind, site) for kind in model.kinds]
    embedding, head = end_costs(site)
    forward, backward, weight_s = _stages(site, assignment, costs, embedding, head)
    micro_batches = train.global_batch / (layout.dp * layout.micro_batch)
    comm_s = neighbour_s(site)
    f, b = sum(forward.values()), sum(backward.values())
    hidden_s = _hidden_s(site, forward, backward)
    pipeline = pipeline_time_s(
        layout.schedule, f, b, micro_batches, weight_s=weight_s, comm_s=comm_s, overlapped_s=f + b - hidden_s
    )
    return StepCost(
        forward,
        backward,
        weight_s,
        hidden_s,
        micro_batches,
        comm_s,
        pipeline,
        data_parallel_s(site, assignment, f.sum(axis=0), b.sum(axis=0), micro_batches),
        optimizer_s(site, assignment),
        memory_bytes(site, assignment, costs, head, micro_batches),
    )


def _stages(
    site: Site, assignment: Assignment, costs: list[LayerCost], embedding: LayerCost, head: LayerCost
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    forward: dict[str, Any] = {}
    backward: dict[str, Any] = {}
    weight: Any = 0.0
    for kind, cost in enumerate(costs):
        for option in range(len(OPTIONS)):
            layers = assignment.counts[kind, option].astype(float)
            if layers.any():
                _add(forward, cost.forward, layers)
                _add(backward, cost.backward_with(option), layers)
                weight = weight + _spread(layers, cost.backward.weight_s)
    for (chunk, stage), end in ((assignment.embedding, embedding), (assignment.head, head)):
        place = np.zeros(assignment.layers.shape)
        place[chunk, stage] = 1.0
        _add(forward, end.forward, place)
        _add(backward, end.backward, place)
        weight = weight + _spread(place, end.backward.weight_s)
    return forward, backward, weight


def _add(total: dict[str, Any], found: Pass, layers: Any) -> None:
    for key in CATEGORIES:
        if key in found.times_s:
            total[key] = total.get(key, 0.0) + _spread(layers, found.times_s[key])


def _spread(layers: Any, value: Any) -> Any:
    """Give each chunk and stage its share of a per-layer value: (chunks, stages) and (n, 1) to (chunks, n, stages)."""
    return np.stack([value * row for row in layers])


def _hidden_s(site: Site, forward: dict[str, Any], backward: dict[str, Any]) -> Any:
    """Time that pairing a forward with a backward saves: traffic hides, computing gives up units to it."""
    computing = sum(
        side[key] for side in (forward, backward) for key in ("compute", "recompute") if key in side
    )
    if site.layout.schedule not in BOTH_ENDS:
        return 0.0 * computing
    traffic = forward.get("ep_comm", 0.0) + backward.get("ep_comm", 0.0)
    return np.maximum(np.minimum(traffic, computing) - computing * COMMUNICATION_SLOWDOWN, 0.0)


def neighbour_s(site: Site) -> Any:
    """Time to hand one micro-batch's activations to the next stage."""
    x = Shapes.of(site.model, site.train, site.layout)
    stages, stride = group(site, "pp")
    size_bytes = x.bytes * x.shard_tokens * boundary_width(site.model)
    time = collective_time_s("send-recv", size_bytes, stages, stride, site.cluster)
    return time if stages > 1 else 0.0 * time


def data_parallel_s(
    site: Site, assignment: Assignment, forward_s: Any, backward_s: Any, micro_batches: Any
) -> Any:
    """Data-parallel traffic that computing does not hide, of the slowest stage.

    Gradients are summed once a step (ZeRO 0, 1) or once a micro-batch (2, 3); parameters are gathered once a step
    (1, 2) or before each pass (3). Each call may hide behind one pass of the stage over one micro-batch.
    """
    train, layout = site.train, site.layout
    held = stage_parameters(site, assignment)
    grads = _shard_collective_s(site, held, float(BYTES[train.grad_dtype]), layout.zero)
    params = _shard_collective_s(site, held, float(train.parameter_bytes), None)
    hide_f = forward_s if layout.overlap_param_gather else 0.0
    hide_b = backward_s if layout.overlap_grad_reduce else 0.0
    if layout.zero == 3:  # parameters are gathered before each pass; the backward pass hides both kinds
        backward = np.maximum(params + grads - hide_b, 0.0)
        return np.max(micro_batches * (np.maximum(params - hide_f, 0.0) + backward), axis=-1)
    calls = micro_batches if layout.zero == 2 else 1.0
    gathered = np.maximum(params - hide_f, 0.0) if layout.zero >= 1 else 0.0
    return np.max(calls * np.maximum(grads - hide_b, 0.0) + gathered, axis=-1)


def _shard_collective_s(site: Site, held: Any, size: float, zero: int | None) -> Any:
    """Sum gradients (``zero`` says how) or gather parameters (``zero`` None) of both kinds of shard."""
    op = "all-gather" if zero is None else ("all-reduce" if zero == 0 else "reduce-scatter")
    total: Any = 0.0
    for parameters, name in ((held.dense, "dp"), (held.expert, "edp")):
        ranks, stride = group(site, name)
        time = collective_time_s(op, parameters * size, ranks, stride, site.cluster)
        total = total + np.where((np.asarray(ranks) > 1) & (parameters > 0), time, 0.0)
    return total


def optimizer_s(site: Site, assignment: Assignment) -> Any:
    """Time of the update on the slowest stage: gradients read, states read and written, parameters written."""
    train, device = site.train, site.cluster.device
    moved = BYTES[train.grad_dtype] + 2.0 * train.optimizer_bytes + train.parameter_bytes
    mine = owned(site, stage_parameters(site, assignment), 1)
    return np.max(mine * moved, axis=-1) / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
