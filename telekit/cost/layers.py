"""What one layer costs on one device: time of each pass, and bytes kept, by recompute choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig
from telekit.comm.transfers import group as layout_group
from telekit.comm.transfers import transfer_s
from telekit.layout.schedules import BOTH_ENDS
from telekit.layout.stages import OPTIONS
from telekit.model.config import LayerKind, ModelConfig
from telekit.operators import host
from telekit.operators.efficiency import operator_times
from telekit.operators.layer import (
    Operator,
    embedding_operators,
    head_operators,
    layer_operators,
    mtp_operators,
)
from telekit.operators.saved import kept_bytes
from telekit.operators.transfers import (
    EXPERT_GROUPS,
    Transfer,
    embedding_transfers,
    head_transfers,
    layer_transfers,
)
from telekit.training.config import TrainConfig

CATEGORIES = ("compute", "recompute", "host", "offload", "tp_comm", "cp_comm", "ep_comm")
GROUP_CATEGORY = {"tp": "tp_comm", "etp": "tp_comm", "cp": "cp_comm"} | dict.fromkeys(
    EXPERT_GROUPS, "ep_comm"
)


@dataclass(frozen=True)
class Pass:
    """Time of one pass by category; ``weight_s`` is the part of the computing that only weights' gradients need.

    ``issue_s`` is what the host takes to issue the pass, hidden or not: a part of the pass's time, not beside it.
    """

    times_s: dict[str, Any]
    weight_s: Any = 0.0
    issue_s: Any = 0.0

    def rows(self, which: Any) -> Pass:
        """Give each row of a table its own, ``which`` as of :meth:`telekit.layout.table.LayoutTable.distinct`."""
        if which is None:
            return self
        return Pass(
            {key: at_rows(time, which) for key, time in self.times_s.items()},
            at_rows(self.weight_s, which),
            at_rows(self.issue_s, which),
        )

    @property
    def total_s(self) -> Any:
        """All categories together."""
        return sum(self.times_s.values(), 0.0 * self.weight_s)

    def __add__(self, other: Pass) -> Pass:
        keys = [k for k in CATEGORIES if k in self.times_s or k in other.times_s]
        both = {k: self.times_s.get(k, 0.0) + other.times_s.get(k, 0.0) for k in keys}
        return Pass(both, self.weight_s + other.weight_s, self.issue_s + other.issue_s)


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

    def rows(self, which: Any) -> LayerCost:
        """Give each row of a table its own."""
        return LayerCost(
            self.forward.rows(which),
            self.backward.rows(which),
            tuple(one.rows(which) for one in self.repeat),
            tuple(at_rows(size, which) for size in self.activation_bytes),
        )

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


def at_rows(value: Any, which: Any) -> Any:
    """Rows of a column; a number stays, and so does everything where ``which`` is None."""
    return value if which is None or np.ndim(value) < 2 else value[which]


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
    issued: tuple[Any, Any] = (0.0, 0.0)
    kernels = site.cluster.device.kernels
    hidden: dict[str, tuple[Any, Any]] = {}
    for op in operators:
        if only is not None and only.isdisjoint(op.modules):
            continue
        found = operator_times(op, site.cluster.device, site.train)
        f, b = found.forward_s, found.backward_s
        forward["compute"], backward["compute"] = forward["compute"] + f, backward["compute"] + b
        hidden[op.name] = (f, b)
        count = host.launches(op, site.layout.cuda_graphs)
        issued = (issued[0] + count, issued[1] + kernels.backward_launches * count)
        if "core_attn" not in op.modules:
            weight = weight + found.weight_s
    for item in transfers:
        if only is not None and only.isdisjoint(item.modules):
            continue
        once = transfer_s(item, site.layout, site.cluster)
        calls = host.calls(item, group(site, item.group)[0], site.layout.cuda_graphs)
        issued = (issued[0] + calls[0], issued[1] + calls[1])
        cover_f, cover_b = hidden.get(item.behind, (0.0, 0.0))
        key = GROUP_CATEGORY[item.group]
        if item.group == "tp" and site.layout.tp_comm_overlap:
            once = once / site.layout.tp
        forward[key] = forward.get(key, 0.0) + np.maximum(once * item.forward_calls - cover_f, 0.0)
        backward[key] = backward.get(key, 0.0) + np.maximum(once * item.backward_calls - cover_b, 0.0)
    issue_f, issue_b = (kernels.host_launch_s * count for count in issued)
    forward, backward = _overlapped(forward, site), _overlapped(backward, site)
    weight = weight + 0.0 * backward["compute"]  # in the layout's shape
    there = Pass(_with_host(forward, issue_f), 0.0, issue_f)
    return there, Pass(_with_host(backward, issue_b), weight, issue_b)


def _overlapped(times: dict[str, Any], site: Site) -> dict[str, Any]:
    """Hide expert traffic behind the same pass's computing, where the layout asks for it.

    While both run, computing gives up units to the traffic, which shows as expert traffic. Schedules that pair a
    forward with a backward pass hide it behind the other one, whatever the layout asks for.
    """
    paired = site.layout.schedule in BOTH_ENDS
    if paired or not site.layout.overlap_moe_comm or "ep_comm" not in times:
        return times
    beside = np.minimum(times["ep_comm"], times["compute"])
    lost = site.cluster.device.kernels.overlap_share * beside
    return times | {"ep_comm": times["ep_comm"] - beside + lost}


def _with_host(times: dict[str, Any], issue_s: Any) -> dict[str, Any]:
    """Add what the host takes longer to issue a pass than the device to run it."""
    return times | {"host": np.maximum(issue_s - sum(times.values()), 0.0)}


def layer_cost(kind: LayerKind, site: Site) -> LayerCost:
    """Cost of one transformer block on one device, for one micro-batch."""
    operators = layer_operators(site.model, kind, site.train, site.layout)
    transfers = layer_transfers(site.model, kind, site.train, site.layout)
    forward, backward = _passes(operators, transfers, site)
    modules = frozenset(site.layout.recompute_modules)
    again, _ = _passes(operators, transfers, site, only=modules)
    kept = kept_bytes(site.model, kind, site.train, site.layout)
    repeat: tuple[Pass, ...] = (
        _no_pass(forward),
        _as_recompute(again, forward),
        _as_recompute(forward, forward),
    )
    if site.layout.activation_offload:
        repeat = tuple(
            p + _offload(site, forward, backward, size) for p, size in zip(repeat, kept, strict=True)
        )
    return LayerCost(forward, backward, repeat, kept)


def _offload(site: Site, forward: Pass, backward: Pass, kept_bytes_: Any) -> Pass:
    """Way of kept activations to the host and back, where it takes longer than the pass beside it."""
    link = site.cluster.device.kernels.host_link_bytes_per_s
    way = site.layout.activation_offload * kept_bytes_ / link
    return Pass({"offload": np.maximum(way - forward.total_s, 0.0) + np.maximum(way - backward.total_s, 0.0)})


def _no_pass(forward: Pass) -> Pass:
    return Pass({"recompute": 0.0 * forward.total_s})  # in the shape of the layout


def _as_recompute(again: Pass, forward: Pass) -> Pass:
    return Pass({"recompute": again.total_s + 0.0 * forward.total_s}, 0.0, again.issue_s)


def end_costs(site: Site) -> tuple[LayerCost, LayerCost]:
    """Costs of the model's ends: the input embedding, and the output head with the MTP modules.

    The host issues them while the device is busy with layers, so it does not show. Their activations are those kept
    for each micro-batch in flight on the last stage (one); logits are apart.
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
    forward, backward = (
        Pass(p.times_s | {"host": 0.0 * p.total_s}, p.weight_s) for p in _passes(operators, transfers, site)
    )
    kept = sum(op.saved_bytes + op.held_bytes for op in operators)
    return LayerCost(forward, backward, (_no_pass(forward),) * len(OPTIONS), (kept,) * len(OPTIONS))


def _joined(one: LayerCost, other: LayerCost) -> LayerCost:
    kept = tuple(a + b for a, b in zip(one.activation_bytes, other.activation_bytes, strict=True))
    return LayerCost(one.forward + other.forward, one.backward + other.backward, one.repeat, kept)
