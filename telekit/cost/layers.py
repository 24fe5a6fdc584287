"""What one layer costs on one device: time of each pass, and bytes kept, by recompute choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig
from telekit.comm.transfers import group as layout_group
from telekit.comm.transfers import transfer_s
from telekit.layout.stages import OPTIONS
from telekit.model.config import LayerKind, ModelConfig
from telekit.operators.efficiency import times_s
from telekit.operators.layer import (
    Operator,
    Shapes,
    embedding_operators,
    entry_bytes,
    head_operators,
    layer_operators,
    mtp_operators,
)
from telekit.operators.transfers import (
    EXPERT_GROUPS,
    Transfer,
    embedding_transfers,
    head_transfers,
    layer_transfers,
)
from telekit.training.config import TrainConfig

CATEGORIES = ("compute", "recompute", "tp_comm", "cp_comm", "ep_comm")
GROUP_CATEGORY = {"tp": "tp_comm", "etp": "tp_comm", "cp": "cp_comm"} | dict.fromkeys(
    EXPERT_GROUPS, "ep_comm"
)


@dataclass(frozen=True)
class Pass:
    """Time of one pass by category; ``weight_s`` is the part of the computing that only weights' gradients need."""

    times_s: dict[str, Any]
    weight_s: Any = 0.0

    @property
    def total_s(self) -> Any:
        """All categories together."""
        return sum(self.times_s.values(), 0.0 * self.weight_s)

    def __add__(self, other: Pass) -> Pass:
        keys = [k for k in CATEGORIES if k in self.times_s or k in other.times_s]
        both = {k: self.times_s.get(k, 0.0) + other.times_s.get(k, 0.0) for k in keys}
        return Pass(both, self.weight_s + other.weight_s)


@dataclass(frozen=True)
class LayerCost:
    """One layer (or an end of the model): passes and kept bytes; the two tuples follow :data:`OPTIONS`.

    ``repeat`` is what recomputation adds to the backward pass, ``activation_bytes`` what one micro-batch in
    flight keeps.
    """

    forward: Pass
    backward: Pass
    repeat: tuple[Pass, ...]
    activation_bytes: tuple[Any, ...]

    def backward_with(self, option: int) -> Pass:
        """Backward pass under a recompute option."""
        return self.backward + self.repeat[option]


@dataclass(frozen=True)
class Site:
    """The surroundings every cost is computed in."""

    model: ModelConfig
    cluster: ClusterConfig
    train: TrainConfig
    layout: Any


def group(site: Site, name: str) -> tuple[Any, Any]:
    """Ranks and stride of a group of the site's layout."""
    return layout_group(site.layout, name)


def _passes(
    operators: Iterable[Operator],
    transfers: Iterable[Transfer],
    site: Site,
    only: frozenset[str] | None = None,
) -> tuple[Pass, Pass]:
    """Forward and backward pass; ``only`` keeps what belongs to one of these recompute modules."""
    forward: dict[str, Any] = {"compute": 0.0}
    backward: dict[str, Any] = {"compute": 0.0}
    weight: Any = 0.0
    hidden: dict[str, tuple[Any, Any]] = {}
    for op in operators:
        if only is not None and only.isdisjoint(op.modules):
            continue
        f, b = times_s(op, site.cluster.device, site.train)
        forward["compute"], backward["compute"] = forward["compute"] + f, backward["compute"] + b
        hidden[op.name] = (f, b)
        if op.kind in ("gemm", "grouped_gemm"):
            weight = weight + b / 2
    for item in transfers:
        if only is not None and only.isdisjoint(item.modules):
            continue
        once = transfer_s(item, site.layout, site.cluster)
        cover_f, cover_b = hidden.get(item.behind, (0.0, 0.0))
        key = GROUP_CATEGORY[item.group]
        forward[key] = forward.get(key, 0.0) + np.maximum(once * item.forward_calls - cover_f, 0.0)
        backward[key] = backward.get(key, 0.0) + np.maximum(once * item.backward_calls - cover_b, 0.0)
    return Pass(forward), Pass(backward, weight + 0.0 * backward["compute"])  # in the shape of the layout


def _overlap_experts(found: Pass, site: Site) -> Pass:
    """Hide expert traffic behind the same pass's computing, where the layout asks for it."""
    if not site.layout.overlap_moe_comm or "ep_comm" not in found.times_s:
        return found
    rest = np.maximum(found.times_s["ep_comm"] - found.times_s["compute"], 0.0)
    return Pass(found.times_s | {"ep_comm": rest}, found.weight_s)


def layer_cost(kind: LayerKind, site: Site) -> LayerCost:
    """Cost of one transformer block on one device, for one micro-batch."""
    operators = layer_operators(site.model, kind, site.train, site.layout)
    transfers = layer_transfers(site.model, kind, site.train, site.layout)
    forward, backward = (_overlap_experts(p, site) for p in _passes(operators, transfers, site))
    modules = frozenset(site.layout.recompute_modules)
    again, _ = _passes(operators, transfers, site, only=modules)
    again = _overlap_experts(again, site)
    nothing = 0.0 * Shapes.of(site.model, site.train, site.layout).tokens  # in the shape of the layout
    everything = sum((op.saved_bytes + op.held_bytes for op in operators), nothing)
    entry = np.minimum(entry_bytes(site.model, kind, site.train, site.layout), everything)
    freed = sum(op.saved_bytes for op in operators if not modules.isdisjoint(op.modules))
    return LayerCost(
        forward,
        backward,
        (_no_pass(forward), _as_recompute(again, forward), _as_recompute(forward, forward)),
        (everything, everything - freed, entry),
    )


def _no_pass(forward: Pass) -> Pass:
    return Pass({"recompute": 0.0 * forward.total_s})  # in the shape of the layout


def _as_recompute(again: Pass, forward: Pass) -> Pass:
    return Pass({"recompute": again.total_s + 0.0 * forward.total_s})


def end_costs(site: Site) -> tuple[LayerCost, LayerCost]:
    """Costs of the model's ends: the input embedding, and the output head with the MTP modules.

    Their activations are those kept for each micro-batch in flight on the last stage (one); logits are apart.
    """
    model, train, layout = site.model, site.train, site.layout
    embedding = _plain(
        embedding_operators(model, train, layout), embedding_transfers(model, train, layout), site
    )
    head = _plain(head_operators(model, train, layout), head_transfers(model, train, layout), site)
    if train.mtp and model.mtp_layers:
        last = model.mtp_block
        transfers = (*layer_transfers(model, last, train, layout), *head_transfers(model, train, layout))
        module = _plain(mtp_operators(model, train, layout), transfers, site)
        for _ in range(model.mtp_layers):
            head = _joined(head, module)
    return embedding, head


def _plain(
    operators: tuple[Operator, ...],
    transfers: tuple[Transfer, ...],
    site: Site,
) -> LayerCost:
    forward, backward = (_overlap_experts(p, site) for p in _passes(operators, transfers, site))
    kept = sum(op.saved_bytes + op.held_bytes for op in operators)
    return LayerCost(forward, backward, (_no_pass(forward),) * len(OPTIONS), (kept,) * len(OPTIONS))


def _joined(one: LayerCost, other: LayerCost) -> LayerCost:
    kept = tuple(a + b for a, b in zip(one.activation_bytes, other.activation_bytes, strict=True))
    return LayerCost(one.forward + other.forward, one.backward + other.backward, one.repeat, kept)
