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
    mtp_entry_operators,
)
from telekit.operators.saved import kept_bytes
from telekit.operators.shapes import Shapes
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


BESIDE = ("weight_s", "issue_s", "link_s")
"""Fields of a pass that are parts of its time."""


@dataclass(frozen=True)
class Pass:
    """Time of one pass by category; ``weight_s`` is the part of the computing that only weights' gradients need.

    ``issue_s`` is what the host takes to issue the pass and ``link_s`` what offloaded activations take over the host's
    link, hidden or not: parts of the pass's time, not beside it.
    """

    times_s: dict[str, Any]
    weight_s: Any = 0.0
    issue_s: Any = 0.0
    link_s: Any = 0.0

    def rows(self, which: Any) -> Pass:
        """Give each row of a table its own, ``which`` as of :meth:`telekit.layout.table.LayoutTable.distinct`."""
        if which is None:
            return self
        return Pass(
            {key: at_rows(time, which) for key, time in self.times_s.items()},
            at_rows(self.weight_s, which),
            at_rows(self.issue_s, which),
            at_rows(self.link_s, which),
        )

    @property
    def total_s(self) -> Any:
        """All categories together."""
        return sum(self.times_s.values(), 0.0 * self.weight_s)

    def __add__(self, other: Pass) -> Pass:
        keys = [k for k in CATEGORIES if k in self.times_s or k in other.times_s]
        both = {k: self.times_s.get(k, 0.0) + other.times_s.get(k, 0.0) for k in keys}
        return Pass(both, *(getattr(self, name) + getattr(other, name) for name in BESIDE))


@dataclass(frozen=True)
class LayerCost:
    """One layer (or an end of the model): passes and kept bytes; the tuples follow :data:`OPTIONS`.

    ``away`` is what offloading adds to the forward pass, ``repeat`` what recomputation and offloading add to the
    backward pass, ``activation_bytes`` what one micro-batch in flight keeps.
    """

    forward: Pass
    backward: Pass
    away: tuple[Pass, ...]
    repeat: tuple[Pass, ...]
    activation_bytes: tuple[Any, ...]

    def rows(self, which: Any) -> LayerCost:
        """Give each row of a table its own."""
        return LayerCost(
            self.forward.rows(which),
            self.backward.rows(which),
            tuple(one.rows(which) for one in self.away),
            tuple(one.rows(which) for one in self.repeat),
            tuple(at_rows(size, which) for size in self.activation_bytes),
        )

    def forward_with(self, option: int) -> Pass:
        """Forward pass under a recompute option, which says what there is to offload."""
        return self.forward + self.away[option]

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
    """Forward and backward pass; ``only`` keeps what belongs to one of these recompute modules.

    Every number starts in the layout's shape, so that none is a bare 0 where nothing adds to it.
    """
    zero = no_time(site)
    forward: dict[str, Any] = {"compute": zero}
    backward: dict[str, Any] = {"compute": zero}
    weight, issued = zero, (zero, zero)
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
    there = Pass(_with_host(forward, issue_f), zero, issue_f, zero)
    return there, Pass(_with_host(backward, issue_b), weight, issue_b, zero)


def no_time(site: Site) -> Any:
    """No time in the layout's shape: a number of one layout, a column of a table."""
    return 0.0 * site.layout.micro_batch


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
    nothing = _no_pass(site)
    repeat: tuple[Pass, ...] = (nothing, _as_recompute(again), _as_recompute(forward))
    away: tuple[Pass, ...] = (nothing,) * len(OPTIONS)
    if site.layout.activation_offload:
        away = tuple(_offload(site, forward, size) for size in kept)
        back = (_offload(site, backward, size) for size in kept)
        repeat = tuple(p + more for p, more in zip(repeat, back, strict=True))
    return LayerCost(forward, backward, away, repeat, kept)


def _offload(site: Site, beside: Pass, kept_bytes_: Any) -> Pass:
    """Way of kept activations to the host, or back, where it takes longer than the pass beside it."""
    link = site.cluster.device.kernels.host_link_bytes_per_s
    way = site.layout.activation_offload * kept_bytes_ / link
    zero = no_time(site)
    return Pass({"offload": np.maximum(way - beside.total_s, 0.0)}, zero, zero, way)


def _no_pass(site: Site) -> Pass:
    zero = no_time(site)
    return Pass({"recompute": zero}, zero, zero, zero)


def _as_recompute(again: Pass) -> Pass:
    return Pass({"recompute": again.total_s}, 0.0 * again.weight_s, again.issue_s, again.link_s)


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
        module = _joined(_mtp_block(site), head)
        for _ in range(model.mtp_layers):
            head = _joined(head, module)
    return embedding, head


def _mtp_block(site: Site) -> LayerCost:
    """Cost of what a multi-token-prediction module does before its head, which is recomputed as the layers are.

    Full recompute covers norms and projection too, and keeps their two inputs (Megatron-Core's
    ``multi_token_prediction.py``: ``_proj_and_transformer_layer`` is checkpointed).
    """
    model, train, layout = site.model, site.train, site.layout
    kind, entry = model.mtp_block, mtp_entry_operators(model, train, layout)
    block = layer_operators(model, kind, train, layout)
    transfers = layer_transfers(model, kind, train, layout)
    whole, option = _plain((*entry, *block), transfers, site), OPTIONS.index(layout.option)
    modules = frozenset(layout.recompute_modules)
    selected = _passes(block, transfers, site, only=modules)[0]
    zero = no_time(site)  # the host issues a module while the device is busy with layers
    selected = Pass(selected.times_s | {"host": zero}, selected.weight_s, zero, zero)
    again = (_no_pass(site), selected, whole.forward)[option]
    x, before = Shapes.of(model, train, layout), sum(op.saved_bytes + op.held_bytes for op in entry)
    inputs = 2.0 * x.bytes * x.shard_tokens * x.hidden
    kept = inputs if OPTIONS[option] == "full" else before + kept_bytes(model, kind, train, layout)[option]
    backward = whole.backward + _as_recompute(again)
    return LayerCost(whole.forward, backward, whole.away, whole.repeat, (kept,) * len(OPTIONS))


def _plain(
    operators: tuple[Operator, ...],
    transfers: tuple[Transfer, ...],
    site: Site,
) -> LayerCost:
    zero = no_time(site)
    forward, backward = (
        Pass(p.times_s | {"host": zero}, p.weight_s, zero, zero) for p in _passes(operators, transfers, site)
    )
    kept = sum((op.saved_bytes + op.held_bytes for op in operators), zero)
    nothing = (_no_pass(site),) * len(OPTIONS)
    return LayerCost(forward, backward, nothing, nothing, (kept,) * len(OPTIONS))


def _joined(one: LayerCost, other: LayerCost) -> LayerCost:
    kept = tuple(a + b for a, b in zip(one.activation_bytes, other.activation_bytes, strict=True))
    return LayerCost(one.forward + other.forward, one.backward + other.backward, one.away, one.repeat, kept)
