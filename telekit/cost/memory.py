"""Memory of each stage's device, by what holds it.

States follow ZeRO over the replicas of each shard: dense parameters over ``dp * cp`` ranks, experts over ``edp``.
Activations are those of every micro-batch in flight. Source of the rules: Megatron-Core's distributed optimizer
(``docs/source/api-guide/dist_optimizer.md``) and Rajbhandari et al. 2020 (ZeRO), section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cost.layers import LayerCost, Site
from telekit.layout.schedules import model_copies
from telekit.layout.stages import OPTIONS, V_SHAPED, Assignment
from telekit.model.config import ModelConfig
from telekit.model.parameters import (
    LayerParameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_layer,
)
from telekit.model.tensors import trunk_tensors
from telekit.operators.layer import Shapes, expert_width, routed_tokens
from telekit.pipeline.closed_form import peak_held
from telekit.training.config import BYTES, TrainConfig
from telekit.units import GIB

FRAMEWORK_BYTES = 2 * GIB
"""Context, collective buffers and fragmentation (assumed; allocator peaks do not show the first two)."""


@dataclass(frozen=True)
class Held:
    """Parameters of one device: ``dense`` and ``expert`` shards have different replicas."""

    dense: Any
    expert: Any

    def __add__(self, other: Held) -> Held:
        return Held(self.dense + other.dense, self.expert + other.expert)

    def times(self, factor: Any) -> Held:
        """Return so many of the same."""
        return Held(self.dense * factor, self.expert * factor)


def layer_held(model: ModelConfig, kind: int, layout: Any) -> Held:
    """Parameters of one layer on one device."""
    return _held(layer_parameters(model, model.kinds[kind]), layout)


def _held(p: LayerParameters, layout: Any) -> Held:
    sharded = float(p.attention_sharded + p.mlp + p.shared_experts)
    whole = float(p.attention_replicated + p.latent + p.router + p.norms + p.residual)
    return Held(sharded / layout.tp + whole, float(p.experts) / (layout.ep * layout.etp))


def end_held(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Held, Held]:
    """Parameters of the two ends: input embedding and its norm; output head, final norm and MTP modules.

    Where the ends are on different devices, the last one keeps a copy of the vocabulary's embedding when the head is
    tied to it or MTP modules look tokens up.
    """
    after_embedding, before_head = _trunk(model)
    first = Held(float(embedding_parameters(model)) / layout.tp + after_embedding, 0.0)
    mtp = model.mtp_layers if train.mtp else 0
    apart = layout.pp > 1 and layout.schedule not in V_SHAPED and model_copies(layout.schedule) == 1
    again = model.hidden_size * model.vocab_size if apart and (model.tied_embeddings or mtp) else 0
    last = Held(float(head_parameters(model) + again) / layout.tp + before_head, 0.0)
    if mtp:
        last = last + _held(mtp_layer(model), layout).times(float(mtp))
    return first, last


def _trunk(model: ModelConfig) -> tuple[int, int]:
    """Parameters outside blocks, whole on each rank: what stands with the embedding, and what with the head."""
    tensors = [t for t in trunk_tensors(model) if t.size]
    with_embedding = sum(t.copies * t.size for t in tensors if t.name.startswith(("embedding", "per_layer")))
    return with_embedding, sum(t.copies * t.size for t in tensors) - with_embedding


def stage_parameters(site: Site, assignment: Assignment) -> Held:
    """Parameters on each stage's device, shape (..., stages)."""
    model, layout = site.model, site.layout
    per_stage = assignment.counts.sum(axis=(1, 2)).astype(float)
    found = Held(0.0, 0.0)
    for kind in range(len(model.kinds)):
        found = found + layer_held(model, kind, layout).times(per_stage[kind])
    first, last = end_held(model, site.train, layout)
    found = found + first.times(_at(assignment.embedding[1], layout.pp))
    found = found + last.times(_at(assignment.head[1], layout.pp))
    if model_copies(layout.schedule) == 2:  # the mirror stage stands on the same device
        found = found + Held(np.flip(found.dense, -1), np.flip(found.expert, -1))
    return found


def _at(stage: int, stages: int) -> NDArray[np.float64]:
    return np.asarray(np.eye(stages)[stage])


def state_bytes(site: Site, assignment: Assignment) -> dict[str, Any]:
    """Bytes of parameters, gradients and optimizer states on each stage's device, shape (..., stages)."""
    return states_of(site, stage_parameters(site, assignment))


def states_of(site: Site, held: Held) -> dict[str, Any]:
    """Bytes of the states of some parameters of one device, split as the ZeRO stage says."""
    train = site.train
    return {
        "parameters": train.parameter_bytes * owned(site, held, 3),
        "gradients": BYTES[train.grad_dtype] * owned(site, held, 2),
        "optimizer": train.optimizer_bytes * owned(site, held, 1),
    }


def owned(site: Site, held: Held, level: int) -> Any:
    """Parameters whose states a device keeps, when those are split from ZeRO stage ``level`` on."""
    layout = site.layout
    if layout.zero < level:
        return held.dense + held.expert
    return held.dense / layout.dense_replicas + held.expert / layout.edp


def activation_bytes(site: Site, costs: list[LayerCost], assignment: Assignment, micro_batches: Any) -> Any:
    """Bytes that the micro-batches in flight keep on each stage's device at its fullest, shape (..., stages)."""
    chunks = []
    for chunk in range(assignment.counts.shape[2]):
        one: Any = 0.0 * micro_batches
        for kind, cost in enumerate(costs):
            for option in range(len(OPTIONS)):
                layers = assignment.counts[kind, option, chunk].astype(float)
                one = one + layers * cost.activation_bytes[option]
        chunks.append(one)
    return peak_held(site.layout.schedule, np.stack(chunks), micro_batches)


def workspace_bytes(costs: list[LayerCost], assignment: Assignment) -> Any:
    """Bytes that one recomputed layer holds for a moment on each stage: the largest that the stage has."""
    most: Any = np.zeros(assignment.counts.shape[3])
    for kind, cost in enumerate(costs):
        for option in range(1, len(OPTIONS)):
            has = assignment.counts[kind, option].sum(axis=0) > 0
            freed = cost.activation_bytes[0] - cost.activation_bytes[option]
            most = np.maximum(most, has * freed)
    return most


def logits_bytes(site: Site, assignment: Assignment, head: LayerCost) -> Any:
    """Logits in 16 bits and their gradient in fp32, with what the head and MTP keep, on the last stage's device.

    One micro-batch: the last stage runs each backward pass right after its forward pass.
    """
    x = Shapes.of(site.model, site.train, site.layout)
    modules = site.model.mtp_layers if site.train.mtp else 0
    logits = (x.bytes + 4.0) * x.tokens * float(site.model.vocab_size) / x.tp * (1.0 + modules)
    return (logits + head.activation_bytes[0]) * _at(assignment.head[1], site.layout.pp)


def dispatch_bytes(site: Site) -> Any:
    """Buffers of the expert exchange on every device: what is sent and what arrives, of one layer."""
    if site.model.moe is None:
        return 0.0
    x, moe = Shapes.of(site.model, site.train, site.layout), site.model.moe
    return 2.0 * x.bytes * routed_tokens(x, moe, site.layout) * expert_width(x.hidden, moe)


def gathered_bytes(site: Site) -> tuple[Any, Any]:
    """Bytes that sharded states hold whole for a moment: parameters of two layers (ZeRO 3), gradients of one (2, 3).

    Two, since the next layer is gathered while one computes (PyTorch FSDP's prefetch).
    """
    layers = [layer_held(site.model, kind, site.layout) for kind in range(len(site.model.kinds))]
    most: Any = 0.0
    for held in layers:
        most = np.maximum(most, held.dense + held.expert)
    zero = site.layout.zero
    return 2.0 * site.train.parameter_bytes * most * (zero == 3), BYTES[site.train.grad_dtype] * most * (
        zero >= 2
    )


def memory_bytes(
    site: Site, assignment: Assignment, costs: list[LayerCost], head: LayerCost, micro_batches: Any
) -> dict[str, Any]:
    """Memory of each stage's device by holder; every value broadcasts to (..., stages)."""
    kept = activation_bytes(site, costs, assignment, micro_batches)
    ends = logits_bytes(site, assignment, head)
    if model_copies(site.layout.schedule) == 2:
        ends = ends + np.flip(ends, -1)
    zero = 0.0 * kept
    states = state_bytes(site, assignment)
    parameters, gradients = gathered_bytes(site)
    return states | {
        "parameters": states["parameters"] + parameters,
        "gradients": states["gradients"] + gradients,
        "activations": kept,
        "recompute_workspace": workspace_bytes(costs, assignment) + zero,
        "logits": ends + zero,
        "dispatch": dispatch_bytes(site) + zero,
        "framework": float(FRAMEWORK_BYTES) + zero,
    }
