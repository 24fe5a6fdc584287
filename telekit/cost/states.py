"""Parameters, gradients and optimizer states of each stage's device.

States follow ZeRO over the replicas of each shard: dense parameters over ``dp * cp`` ranks, experts over ``edp``.
Source of the rules: Megatron-Core's distributed optimizer (``docs/source/api-guide/dist_optimizer.md``) and
Rajbhandari et al. 2020 (ZeRO), section 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cost.layers import Site
from telekit.cost.optimizers import Held as Held
from telekit.cost.optimizers import optimizer_state_bytes
from telekit.layout.schedules import model_copies
from telekit.layout.stages import V_SHAPED, Assignment
from telekit.model.config import LayerKind, MixtureOfExperts, ModelConfig
from telekit.model.parameters import embedding_parameters, head_parameters
from telekit.model.tensors import Tensor, layer_tensors, mtp_tensors, trunk_tensors
from telekit.training.config import BYTES, LOW, TrainConfig

WHOLE = ("router", "latent", "norms", "residual")
"""Components that every tensor rank holds whole."""
STATE_LEVELS = {"parameters": 3, "gradients": 2, "optimizer": 1}
"""States, and the ZeRO stage from which they are split over the replicas."""
OUT_OF_PLACE = ("router", "residual")
"""Components whose products do not go through Transformer Engine's layers."""


def layer_held(model: ModelConfig, kind: int, layout: Any) -> Held:
    """Parameters of one layer on one device."""
    return _held(layer_tensors(model, model.kinds[kind]), layout)


def _held(tensors: Iterable[Tensor], layout: Any) -> Held:
    """Sum tensors as numbers by how they are split, and divide once."""
    sums = {"split": [0.0, 0.0], "whole": [0.0, 0.0], "experts": [0.0, 0.0]}
    sides = dict.fromkeys(("dense", "experts"), 0.0)
    for t in tensors:
        part = "experts" if t.component == "experts" else ("whole" if _whole(t) else "split")
        sums[part][0] += t.copies * t.size
        sums[part][1] += t.copies * t.size * (t.multiplied and t.component not in OUT_OF_PLACE)
        sides["experts" if part == "experts" else "dense"] += t.copies * sum(t.shape) * (len(t.shape) == 2)
    dense, linear = (sums["split"][i] / layout.tp + sums["whole"][i] for i in (0, 1))
    ranks = layout.ep * layout.etp
    return Held(dense, sums["experts"][0] / ranks, linear, sides["dense"], sides["experts"] / ranks)


def _whole(t: Tensor) -> bool:
    return t.component in WHOLE or (t.component == "attention" and not t.split)


def end_held(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Held, Held]:
    """Parameters of the two ends: input embedding and its norm; output head, final norm and MTP modules.

    Where the ends are on different devices, the last one keeps a copy of the vocabulary's embedding when the head is
    tied to it or MTP modules look tokens up.
    """
    after_embedding, before_head = _trunk(model)
    sides = float(model.hidden_size + model.vocab_size)
    first = Held(float(embedding_parameters(model)) / layout.tp + after_embedding, 0.0, 0.0, sides)
    mtp = model.mtp_layers if train.mtp else 0
    apart = layout.pp > 1 and layout.schedule not in V_SHAPED and model_copies(layout.schedule) == 1
    again = model.hidden_size * model.vocab_size if apart and (model.tied_embeddings or mtp) else 0
    head = head_parameters(model)
    last = Held(float(head + again) / layout.tp + before_head, 0.0, 0.0, sides * (bool(head) + bool(again)))
    if mtp:
        last = last + _held(mtp_tensors(model), layout).times(float(mtp))
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
    found = found + first.times(at(assignment.embedding[1], layout.pp))
    found = found + last.times(at(assignment.head[1], layout.pp))
    if model_copies(layout.schedule) == 2:  # the mirror stage stands on the same device
        found = found + Held(*(np.flip(value, -1) for value in vars(found).values()))
    return found


def at(stage: int, stages: int) -> NDArray[np.float64]:
    """Return 1 at a stage and 0 at the others."""
    return np.asarray(np.eye(stages)[stage])


def state_bytes(site: Site, assignment: Assignment) -> dict[str, Any]:
    """Bytes of parameters, gradients and optimizer states on each stage's device, shape (..., stages)."""
    return states_of(site, stage_parameters(site, assignment))


def states_of(site: Site, held: Held) -> dict[str, Any]:
    """Bytes of the states of some parameters of one device, split as the ZeRO stage says."""
    return {
        name: owned(site, full_state_bytes(site, held, name), level) for name, level in STATE_LEVELS.items()
    }


def full_state_bytes(site: Site, held: Held, name: str) -> Held:
    """Bytes of one of the states of some parameters before ZeRO splits them: ``dense`` and ``expert``."""
    train = site.train
    if name == "parameters":
        return parameter_bytes(site, held)
    if name == "gradients":
        size = float(BYTES[train.grad_dtype])
        return Held(size * held.dense, size * held.expert)
    found = optimizer_state_bytes(train, held)
    on_device = 1.0 - site.layout.optimizer_offload
    return Held(on_device * found.dense, on_device * found.expert)


def parameter_bytes(site: Site, held: Held) -> Held:
    """Bytes of parameters as the passes read them, before ZeRO splits them.

    Low precision keeps what it casts weights to beside the 16-bit ones, since the next micro-batch reads it again; or
    in their place (``fp8_param_gather``).
    """
    train = site.train
    wide = float(train.parameter_bytes)
    if train.precision not in LOW:
        return Held(wide * held.dense, wide * held.expert)
    cast = cast_bytes(site)
    stored = cast if train.fp8_param_gather else wide + cast
    return Held(wide * (held.dense - held.linear) + stored * held.linear, stored * held.expert)


def cast_bytes(site: Site) -> float:
    """Bytes that low precision keeps of a weight: by rows, and by columns for the backward pass.

    Blackwell multiplies 8-bit matrices in either order, so that one scale a tensor needs one copy; finer scales
    are along rows or columns (Transformer Engine, issue 1261).
    """
    train, device = site.train, site.cluster.device
    either_order = "fp4" in device.peak_flops and train.fp8_recipe in ("delayed", "tensorwise")
    return train.product_bytes * (1.0 if either_order and train.precision == "fp8" else 2.0)


def owned(site: Site, held: Held, level: int) -> Any:
    """Parameters, or bytes of them, that a device keeps when they are split from ZeRO stage ``level`` on."""
    layout = site.layout
    if layout.zero < level:
        return held.dense + held.expert
    return held.dense / layout.dense_replicas + held.expert / layout.edp


def gathered_bytes(site: Site, assignment: Assignment) -> tuple[Any, Any]:
    """Bytes that sharded states hold whole for a moment: parameters (ZeRO 3) and gradients (2, 3); else 0.

    Parameters of two neighbours, since the next one is gathered while one computes (PyTorch FSDP's prefetch): two
    layers, or on the stages of the model's ends a layer and the embedding or the head. Gradients of one layer: those of
    the ends belong to the moments of loss and embedding. Without overlap both are those of the largest matrix:
    DeepSpeed's ZeRO-3 of 2021 gathered and summed module by module. Of a stage with less, it is less
    (:func:`telekit.cost.memory.memory_of`). Shapes (..., stages).
    """
    model, train, layout = site.model, site.train, site.layout
    most: Any = 0.0
    matrix: Any = 0.0
    for index, kind in enumerate(model.kinds):
        held = layer_held(model, index, layout)
        most = np.maximum(most, held.dense + held.expert)
        for size in weight_gradients(site, kind).values():
            matrix = np.maximum(matrix, size)
    end = _largest_end(site, assignment)
    in_fp8 = train.precision in LOW and train.fp8_param_gather
    width, wide = cast_bytes(site) if in_fp8 else float(train.parameter_bytes), float(train.parameter_bytes)
    if layout.overlap_param_gather:
        parameters = width * most + np.maximum(width * most, wide * end)
    else:
        parameters = np.maximum(width * matrix, wide * end)
    gradients = float(BYTES[train.grad_dtype]) * (most if layout.overlap_grad_reduce else matrix)
    return parameters * (layout.zero == 3), gradients * (layout.zero >= 2)


def _largest_end(site: Site, assignment: Assignment) -> Any:
    """Parameters of embedding or head, the larger where a stage has both; MTP modules are layers. (..., stages)."""
    layout = site.layout
    ends = end_held(site.model, site.train.model_copy(update={"mtp": False}), layout)
    places = (assignment.embedding[1], assignment.head[1])
    first, last = (held.dense * at(stage, layout.pp) for held, stage in zip(ends, places, strict=True))
    end = np.maximum(first, last)
    return np.maximum(end, np.flip(end, -1)) if model_copies(layout.schedule) == 2 else end


def weight_gradients(site: Site, kind: LayerKind) -> dict[str, Any]:
    """Numbers of the gradient of every weight of a block, by its shape; one expert stands for all, unless grouped."""
    found: dict[str, Any] = {}
    for t in layer_tensors(site.model, kind):
        if not t.multiplied or t.component in OUT_OF_PLACE:
            continue
        size, ranks = float(t.size), 1.0 if _whole(t) else site.layout.tp
        if t.component == "experts":
            size, ranks = _expert_matrix(site, kind, t), site.layout.etp
        found[f"{t.name} {t.shape}"] = size / ranks
    return found


def _expert_matrix(site: Site, kind: LayerKind, t: Tensor) -> Any:
    """Numbers of one parameter of a rank's experts; where they are grouped, gate and up are two."""
    if site.train.expert_weights == "each" or not isinstance(kind.mlp, MixtureOfExperts):
        return float(t.size)
    alike = 1 + kind.mlp.gated if t.name.endswith("up") else 1
    return float(t.size * t.copies) / alike / site.layout.ep
