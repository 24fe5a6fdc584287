"""Memory of each stage's device, by what holds it, at the moment it is fullest.

What stays (states, gradients of every weight's shape, workspaces) and the activations of the micro-batches in flight,
and on top of them the fullest of some moments: a layer that is recomputed and runs backward, experts' tokens on their
way, the loss with its logits, the embedding's gradient. All is what the framework's allocator counts, except the term
``framework``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from telekit.cost.layers import LayerCost, Site, at_rows
from telekit.cost.loss import (
    LOSSES_WAIT,
    head_gradient_bytes,
    logits_bytes,
    loss_bytes,
    waiting_loss_bytes,
)
from telekit.cost.offload import on_device, window_bytes
from telekit.cost.states import STATE_LEVELS, at, full_state_bytes, weight_gradients
from telekit.cost.states import Held as Held
from telekit.cost.states import end_held as end_held
from telekit.cost.states import gathered_bytes as gathered_bytes
from telekit.cost.states import layer_held as layer_held
from telekit.cost.states import owned as owned
from telekit.cost.states import stage_parameters as stage_parameters
from telekit.cost.states import state_bytes as state_bytes
from telekit.cost.states import states_of as states_of
from telekit.layout.schedules import model_copies
from telekit.layout.stages import OPTIONS, Assignment
from telekit.operators import saved
from telekit.operators.coefficients import now
from telekit.operators.shapes import Shapes
from telekit.pipeline.closed_form import peak_held
from telekit.training.config import BYTES
from telekit.units import GIB, MIB

FRAMEWORK_BYTES = 2 * GIB
"""Context, buffers of communication libraries and fragmentation (assumed; allocator peaks show none of them)."""

WORKSPACE_BYTES = 2 * 32 * MIB
"""Workspaces of cuBLAS that PyTorch and Transformer Engine each keep, on Hopper and later (their sources)."""
GROUPED_WORKSPACE_BYTES = 4 * 32 * MIB
"""Those of the four streams that Transformer Engine runs the experts' products on."""


@dataclass(frozen=True)
class Memory:
    """Memory of each stage's device by holder, at its fullest; values broadcast to (..., stages).

    Parameters
    ----------
    shared : dict of str to array
        What rows with the same passes have alike: one for each row of ``which``.
    own : dict of str to array
        What every row has for itself: activations in flight, and states that replicas share.
    which : array or None
        Row of ``shared`` of each row; None where there is one layout, or each has its own.
    """

    shared: dict[str, Any]
    own: dict[str, Any]
    which: Any = None

    @property
    def by_holder(self) -> dict[str, Any]:
        """Bytes by holder, of every row."""
        return {name: at_rows(value, self.which) for name, value in self.shared.items()} | self.own

    @property
    def peak_bytes(self) -> Any:
        """All holders together."""
        return at_rows(sum(self.shared.values()), self.which) + sum(self.own.values())


def activation_bytes(site: Site, chunks: Any, micro_batches: Any, window: Any = None) -> Any:
    """Bytes that the micro-batches in flight keep on each stage's device at its fullest, shape (..., stages).

    Parameters
    ----------
    site : Site
    chunks : array (chunks, ..., stages)
        What one micro-batch keeps (:func:`chunk_bytes`).
    micro_batches : float or column
        Micro-batches of a step.
    window : array (..., stages), optional
        Of offloaded ones, what is on the device at once (:func:`telekit.cost.offload.window_bytes`).
    """
    held = peak_held(site.layout.schedule, chunks, micro_batches)
    return held if window is None else on_device(site, held, window)


def chunk_bytes(site: Site, costs: list[LayerCost], assignment: Assignment) -> Any:
    """Bytes that one micro-batch keeps on each chunk of each stage, shape (chunks, ..., stages)."""
    full, group = OPTIONS.index("full"), site.layout.recompute_group
    entry: Any = reduce(np.maximum, (cost.activation_bytes[full] for cost in costs))
    chunks = []
    for chunk in range(assignment.counts.shape[2]):
        one: Any = 0.0 * entry
        for kind, cost in enumerate(costs):
            for option in range(len(OPTIONS)):
                layers = assignment.counts[kind, option, chunk].astype(float)
                if layers.any() and (option != full or group == 1):
                    one = one + layers * cost.activation_bytes[option]
        if group > 1:
            one = one + np.ceil(assignment.counts[:, full, chunk].sum(axis=0) / group) * entry
        chunks.append(one + np.zeros(site.layout.pp))
    return np.stack(chunks)


def recomputed_bytes(site: Site, cost: LayerCost, option: int) -> Any:
    """Bytes that one recomputed layer, or a group of such, holds beside what it keeps anyway."""
    freed = cost.activation_bytes[0] - cost.activation_bytes[option]
    more = site.layout.recompute_group - 1 if OPTIONS[option] == "full" else 0
    return freed + float(more) * cost.activation_bytes[0]


def _has(assignment: Assignment, kind: int, option: int | None = None) -> Any:
    """Whether each stage has layers of a kind (and recompute option), as 0 and 1."""
    counts = assignment.counts[kind] if option is None else assignment.counts[kind, option : option + 1]
    return (counts.sum(axis=(0, 1)) > 0).astype(float)


def embedding_bytes(
    site: Site, assignment: Assignment, chunks: Any, micro_batches: Any = None, window: Any = None
) -> Any:
    """Bytes of the embedding's gradient, less what its micro-batch's layers held, which are through; first stage."""
    x, (chunk, stage) = Shapes.of(site.model, site.train, site.layout), assignment.embedding
    left = chunks[chunk]
    if window is not None:
        held = peak_held(site.layout.schedule, chunks, micro_batches)
        left = on_device(site, held, window) - on_device(site, held - left, window)
    return (head_gradient_bytes(site) + x.bytes * x.shard_tokens * x.hidden - left) * at(
        stage, site.layout.pp
    )


def weight_gradient_bytes(site: Site, assignment: Assignment) -> Any:
    """Bytes of 16-bit gradients of weights beside the sums: one of each shape on a stage, or the largest."""
    kept, mirrored = site.train.wgrad_buffers == "kept", model_copies(site.layout.schedule) == 2
    width = product_gradient_bytes(site)
    found: dict[str, tuple[Any, Any]] = {}
    for index, kind in enumerate(site.model.kinds):
        here = _has(assignment, index)
        here = np.maximum(here, np.flip(here)) if mirrored else here
        for shape, size in weight_gradients(site, kind).items():
            found[shape] = (size, np.maximum(found[shape][1], here) if shape in found else here)
    total: Any = np.zeros(site.layout.pp)
    for size, here in found.values():
        one = width * size * here
        total = total + one if kept else np.maximum(total, one)
    head = at(assignment.head[1], site.layout.pp)
    head = np.maximum(head, np.flip(head)) if mirrored else head
    return total + kept * head_gradient_bytes(site) * head


def product_gradient_bytes(site: Site) -> float:
    """Bytes of one number of a product's gradient beside the sums.

    None where ZeRO 2 and 3 sum no gradients in place and hold those of a layer in the same format: they are it.
    """
    train = site.train
    alike = BYTES[train.grad_dtype] == train.parameter_bytes
    if train.wgrad_buffers == "transient" and site.layout.zero >= 2 and alike:
        return 0.0
    return float(train.parameter_bytes)


def standing_bytes(site: Site) -> float:
    """Workspaces of matrix libraries, which the allocator counts."""
    grouped = now("GROUPED_WORKSPACE_BYTES", GROUPED_WORKSPACE_BYTES) if site.model.moe else 0
    return now("WORKSPACE_BYTES", WORKSPACE_BYTES) + grouped


def _moments(
    site: Site, assignment: Assignment, costs: list[LayerCost], head: LayerCost, embedding: Any
) -> list[tuple[str, Any, Any]]:
    """Moments a stage may be fullest at: the part that is named, its bytes, and those of recomputation beside it."""
    model, train, layout = site.model, site.train, site.layout
    found: list[tuple[str, Any, Any]] = []
    for index, kind in enumerate(model.kinds):
        for option in range(len(OPTIONS)):
            here = _has(assignment, index, option)
            if not here.any():
                continue
            again = here * recomputed_bytes(site, costs[index], option)
            found.append(
                ("recompute_workspace", here * saved.working_bytes(model, kind, train, layout), again)
            )
            if kind.mlp.kind == "moe":
                found.append(("dispatch", here * saved.exchange_bytes(model, kind, train, layout), again))
    found.append(("logits", logits_bytes(site, assignment, head), 0.0))
    found.append(("gradients", embedding, 0.0))
    if model_copies(layout.schedule) == 2:  # the mirror stage stands on the same device
        found += [(name, *(np.flip(x, -1) if np.ndim(x) else x for x in sizes)) for name, *sizes in found]
    return found


def memory_of(
    site: Site,
    assignment: Assignment,
    costs: list[LayerCost],
    head: LayerCost,
    micro_batches: Any,
    few: tuple[Site, Any] | None = None,
) -> Memory:
    """Memory of each stage's device at its fullest.

    ``recompute_workspace``, ``logits`` and ``dispatch`` belong to one moment each: the fullest is given, the others
    are 0.

    Parameters
    ----------
    site : Site
        Under one layout, or every row of a table.
    assignment : Assignment
    costs, head : LayerCost
        Of each kind of layer, and of the head; of the rows of ``few`` where that is given.
    micro_batches : float or column
        Micro-batches of a step.
    few : tuple of Site and array, optional
        Rows that differ in what one micro-batch's passes depend on, and which of them each row is.
    """
    here, which = few or (site, None)
    if which is not None and site.layout.activation_offload:  # what is on its way depends on all in flight
        costs, head = [cost.rows(which) for cost in costs], head.rows(which)
        here, which = site, None
    chunks = chunk_bytes(here, costs, assignment)
    window = window_bytes(here, costs, assignment, chunks) if site.layout.activation_offload else None
    zero = np.zeros(here.layout.pp)
    shared: dict[str, Any] = {
        "parameters": zero,
        "gradients": weight_gradient_bytes(here, assignment),
        "recompute_workspace": standing_bytes(here) + zero,
        "logits": zero,
        "dispatch": zero,
        "framework": now("FRAMEWORK_BYTES", FRAMEWORK_BYTES) + zero,
    }
    embedding = embedding_bytes(here, assignment, chunks, micro_batches, window)
    _add_fullest(shared, _moments(here, assignment, costs, head, embedding), zero)
    own = {"activations": _activations(site, chunks, micro_batches, which, window)}
    if site.layout.schedule in LOSSES_WAIT:
        others = waiting_loss_bytes(site, head.rows(which), micro_batches)
        own["logits"] = at_rows(shared.pop("logits"), which) + others
    _add_states(site, here, assignment, shared, own, which)
    return Memory(shared, own, which)


def _add_fullest(shared: dict[str, Any], moments: list[tuple[str, Any, Any]], zero: Any) -> None:
    """Add the fullest of the moments of each stage to its holders; the first of equal ones is the one."""
    fullest = reduce(np.maximum, (size + again for _, size, again in moments), zero)
    left: Any = np.ones_like(fullest)
    for name, size, again in moments:
        its = left * (size + again == fullest)
        shared[name] = shared[name] + its * size
        shared["recompute_workspace"] = shared["recompute_workspace"] + its * again
        left = left - its


def _activations(site: Site, chunks: Any, micro_batches: Any, which: Any, window: Any) -> Any:
    """Activations in flight of every row, found once for rows with the same passes and micro-batches."""
    if which is None or chunks.ndim < 3:
        return activation_bytes(site, chunks, micro_batches, window)
    counts, place = np.unique(micro_batches[:, 0], return_inverse=True)
    code, row = np.unique(which * len(counts) + place, return_inverse=True)
    passes, micro = np.divmod(code, len(counts))
    return activation_bytes(site, chunks[:, passes], counts[micro][:, None])[row]


def _add_states(
    site: Site, here: Site, assignment: Assignment, shared: dict[str, Any], own: dict[str, Any], which: Any
) -> None:
    """Add states: to what rows share, or where replicas share them to what each has for itself.

    What is whole for a moment beside a device's own part is no more than what the others have of it.
    """
    held = stage_parameters(here, assignment)
    whole = dict(zip(("parameters", "gradients"), gathered_bytes(here, assignment), strict=True))
    for name, level in STATE_LEVELS.items():
        one = full_state_bytes(here, held, name)
        if site.layout.zero < level:
            shared[name] = shared.get(name, 0.0) + one.dense + one.expert
            continue
        mine = owned(site, Held(*(at_rows(x, which) for x in vars(one).values())), level)
        if name in whole:
            mine = mine + np.minimum(
                at_rows(whole[name], which), at_rows(one.dense + one.expert, which) - mine
            )
        own[name] = mine + at_rows(shared.pop(name), which) if name in shared else mine


def allocated_bytes(memory: Mapping[str, Any]) -> Any:
    """Return the peak that a framework's allocator reports: all holders but what it does not see."""
    return sum(value for name, value in memory.items() if name != "framework")


def end_moments(
    site: Site, head: LayerCost, moment: float, micro_batches: int, least: bool
) -> tuple[float, float]:
    """Bytes by which the ends of the model may go beyond a moment that is set aside on every stage: first, last.

    The least of the first end is nothing, since its layers' activations are free when the embedding's gradient is
    made. The head's gradient stays, where gradients of every shape do, and so do losses of other micro-batches.
    """
    x = Shapes.of(site.model, site.train, site.layout)
    gradient = float(head_gradient_bytes(site))
    embedding = gradient + float(x.bytes * x.shard_tokens * x.hidden)
    stays = gradient if site.train.wgrad_buffers == "kept" else 0.0
    others = float(np.max(waiting_loss_bytes(site, head, micro_batches)))
    last = max(0.0, float(loss_bytes(site, head)) - moment) + stays + others
    return 0.0 if least else max(0.0, embedding - moment), last


@dataclass(frozen=True)
class Reserve:
    """What a placement of layers sets aside on every stage, since it is no sum over layers.

    Parameters
    ----------
    standing : float
        Bytes on every stage, whatever stands on it.
    buffers, moment : tuple of float
        Least and most of any stage: 16-bit gradients of weights; a layer's passes, with recomputation.
    """

    standing: float
    buffers: tuple[float, float]
    moment: tuple[float, float]


def reserve(site: Site, costs: list[LayerCost], options: Sequence[int]) -> Reserve:
    """Bounds of what :func:`memory_of` finds for any placement of one layout's layers under some recompute options."""
    model, train, layout = site.model, site.train, site.layout
    width = product_gradient_bytes(site)
    gradients = [weight_gradients(site, kind) for kind in model.kinds]
    each = [
        sum(g.values()) if train.wgrad_buffers == "kept" else max(g.values(), default=0.0) for g in gradients
    ]
    shapes = {shape: size for g in gradients for shape, size in g.items()}
    together = sum(shapes.values()) if train.wgrad_buffers == "kept" else max(each)
    moments = [
        float(
            np.maximum(
                saved.working_bytes(model, k, train, layout), saved.exchange_bytes(model, k, train, layout)
            )
        )
        for k in model.kinds
    ]
    again = [float(recomputed_bytes(site, cost, o)) if o else 0.0 for cost in costs for o in options]
    return Reserve(
        standing_bytes(site),
        (width * float(min(each)), width * float(together)),
        (min(moments), max(moments) + max(again)),
    )
