"""Activations that the host holds: what of them is on the device all the same, on its way or in use.

Two systems are known by their sources. Transformer Engine goes layer by layer as the forward pass does
(``cpu_offload.py``; Megatron-Core's ``--cpu-offloading-num-layers``, without pipeline). Megatron-Kwai goes chunk by
chunk of an interleaved pipeline (Yuan et al., ATC 2024).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from telekit.cost.layers import LayerCost, Site
from telekit.layout.schedules import model_copies
from telekit.layout.stages import OPTIONS, Assignment
from telekit.operators.coefficients import now

OFFLOAD_LAYERS = 2
"""Layers whose activations are on the device although they are offloaded, in each direction that is under way: one that
computes and one on its way (Transformer Engine waits for a layer's copy when a later one is through)."""

OFFLOAD_CHUNKS = 4
"""Chunks of an interleaved pipeline, likewise: one that computes and one on its way in both directions (assumed;
Megatron-Kwai's published peak with all offloaded holds as many)."""


def window_bytes(site: Site, costs: list[LayerCost], assignment: Assignment, chunks: Any) -> Any:
    """Bytes of offloaded activations that are on the device at once, shape (..., stages).

    Parameters
    ----------
    site : Site
    costs : list of LayerCost
        Of each kind of layer.
    assignment : Assignment
    chunks : array (chunks, ..., stages)
        What one micro-batch keeps.
    """
    if site.layout.vpp > 1:
        return now("OFFLOAD_CHUNKS", OFFLOAD_CHUNKS) * chunks.max(axis=0)
    layers: Any = reduce(np.maximum, _layers(costs, assignment))
    if model_copies(site.layout.schedule) == 2:  # the mirror stage stands on the same device
        layers = np.maximum(layers, np.flip(layers, -1))
    directions = 2 if site.layout.pp > 1 else 1  # without a pipeline all goes out, and then all comes in
    return directions * now("OFFLOAD_LAYERS", OFFLOAD_LAYERS) * layers


def _layers(costs: list[LayerCost], assignment: Assignment) -> list[Any]:
    """Bytes of a layer of each kind and recompute option, on the stages that have one."""
    found = []
    for kind, cost in enumerate(costs):
        for option in range(len(OPTIONS)):
            here = (assignment.counts[kind, option].sum(axis=0) > 0).astype(float)
            found.append(here * cost.activation_bytes[option])
    return found


def on_device(site: Site, held: Any, window: Any) -> Any:
    """Bytes on the device of activations in flight; never more than all of them."""
    share = site.layout.activation_offload
    return (1.0 - share) * held + share * np.minimum(held, window)
