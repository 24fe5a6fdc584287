"""Memory of the loss: logits, what head and MTP modules keep, and gradients, of every micro-batch that waits."""

from __future__ import annotations

from typing import Any

import numpy as np

from telekit.cost.layers import LayerCost, Site
from telekit.cost.states import at
from telekit.layout.stages import Assignment, part_positions
from telekit.operators.coefficients import now
from telekit.operators.shapes import Shapes
from telekit.pipeline.closed_form import peak_held

LINEAR_LOSS_TOKENS = 4096
"""Tokens whose logits a loss that is fused with the head holds at a time (assumed)."""

LOGIT_BYTES = {"none": 6.0, "native": 6.0, "te": 2.0, "linear": 2.0, "torch": 14.0}
"""Bytes of one logit while the loss is made: 16 bits and an fp32 softmax; the gradient in the logits' place; or 16
bits, an fp32 copy, its softmax and its gradient."""
LOSS_HELD_BYTES = {"none": 4.0, "native": 4.0, "te": 2.0, "linear": 0.0, "torch": 4.0}
"""Bytes of one logit from the loss to its backward pass: an fp32 softmax; the gradient in the logits' place; nothing
where the loss makes its gradient at once."""
LOSSES_WAIT = ("gpipe", "zb-h1")
"""Schedules whose last stage holds several micro-batches: whole ones, or until their weights' gradients are made.
Under the others it runs each backward pass right after its forward pass."""


def logits_bytes(site: Site, assignment: Assignment, head: LayerCost) -> Any:
    """Bytes of the loss at its fullest, on the last stage's device: logits, what head and MTP keep, gradients."""
    return loss_bytes(site, head) * at(assignment.head[1], site.layout.pp)


def loss_bytes(site: Site, head: LayerCost) -> Any:
    """Bytes of one micro-batch's loss at its fullest; :func:`waiting_loss_bytes` has those of others in flight.

    Where tensor ranks split the sequence, the head's input is gathered, and so is its gradient before it is scattered.
    """
    x, train = Shapes.of(site.model, site.train, site.layout), site.train
    held = now("LINEAR_LOSS_TOKENS", LINEAR_LOSS_TOKENS)
    tokens = np.minimum(x.tokens, held) if train.cross_entropy_fusion == "linear" else x.tokens
    logits = now("LOGIT_BYTES", LOGIT_BYTES[train.cross_entropy_fusion]) * _logits(site, x, tokens)
    stream = x.bytes * x.shard_tokens * x.hidden + 2.0 * x.gathered_bytes
    once = head_gradient_bytes(site) if train.wgrad_buffers == "transient" else 0.0
    return logits + head.activation_bytes[0] + stream + once


def _logits(site: Site, x: Shapes, tokens: Any) -> Any:
    """Logits of one rank, by how many times wider than 16 bits they are; each MTP module makes them again."""
    modules = site.model.mtp_layers if site.train.mtp else 0
    return x.bytes / 2.0 * tokens * float(site.model.vocab_size) / x.tp * (1.0 + modules)


def waiting_loss_bytes(site: Site, head: LayerCost, micro_batches: Any) -> Any:
    """Bytes that head and loss keep of micro-batches in flight beside the one at its fullest, shape (..., stages).

    A pass that waits for its weights' gradient keeps the logits' gradient, in 16 bits.
    """
    layout, x = site.layout, Shapes.of(site.model, site.train, site.layout)
    if layout.schedule not in LOSSES_WAIT:
        return np.zeros(layout.pp)
    chunk, stage = part_positions(layout.schedule, layout.pp, layout.vpp)[-1]
    place = np.zeros((layout.vpp, *np.shape(micro_batches)[:-1], layout.pp))
    place[chunk, ..., stage] = 1.0
    others = np.maximum(peak_held(layout.schedule, place, micro_batches) - 1.0, 0.0)
    width = now("LOSS_HELD_BYTES", LOSS_HELD_BYTES[site.train.cross_entropy_fusion])
    width = width if layout.schedule == "gpipe" else min(width, 2.0)
    return others * (width * _logits(site, x, x.tokens) + head.activation_bytes[0])


def head_gradient_bytes(site: Site) -> Any:
    """Bytes of the 16-bit gradient of the vocabulary's matrix."""
    model = site.model
    return float(site.train.parameter_bytes) * float(model.hidden_size * model.vocab_size) / site.layout.tp
