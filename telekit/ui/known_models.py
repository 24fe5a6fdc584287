"""The catalog's models, counted: one by one, side by side, and beside what was published of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit import catalog
from telekit.cluster.config import Device, load_cluster
from telekit.cost.glance import LEAN, devices_to_hold, state_bytes_per_parameter
from telekit.model.config import ModelConfig
from telekit.model.count import Count, count
from telekit.model.huggingface import read_model
from telekit.model.reshape import shape_of
from telekit.training.config import TrainConfig
from telekit.ui import sizes
from telekit.ui.live import Still
from telekit.ui.sizes import BILLION, billions, share
from telekit.ui.tables import Table

RELEASED = ("telechat3-36b", "telechat3-105b-a4.7b")
"""Models of the report's series whose shapes are public."""

BANDS = (
    (0.0005, "under 0.05 %"),
    (0.005, "0.05 to 0.5 %"),
    (0.01, "0.5 to 1 %"),
    (0.03, "1 to 3 %"),
    (math.inf, "over 3 %"),
)
"""Distances from a published total, each from the one before it."""


@dataclass(frozen=True)
class Known:
    """One model of the catalog, what was counted, and what was published."""

    name: str
    model: ModelConfig
    count: Count
    published: Mapping[str, Any]

    @property
    def family(self) -> str:
        """First word of its name (``qwen`` of ``qwen3-8b``)."""
        found = re.match(r"[a-z]+", self.name)
        return found[0] if found else self.name

    @property
    def sparse(self) -> bool:
        """Whether it has experts."""
        return self.model.moe is not None

    @property
    def multiplied(self) -> int:
        """Parameters that one token is multiplied by: those that it meets, without the input embedding."""
        return self.count.active_without_input_embedding

    @property
    def layer(self) -> float:
        """Parameters stored in a layer, on average."""
        ends = self.count.by_component["embedding"] + self.count.by_component["head"]
        return (self.count.total - ends) / self.model.num_layers

    @property
    def off(self) -> float:
        """Relative distance of the count from the published total."""
        mtp = self.count.mtp if self.published.get("total_includes_mtp") else 0
        total = float(self.published["total_b"]) * BILLION
        return (self.count.total + mtp) / total - 1


@cache
def known(name: str) -> Known:
    """Read and count one model of the catalog.

    Raises
    ------
    InputError
        No such name, or a part of the model that is not modelled.
    """
    model = read_model(name).model
    return Known(model.name, model, count(name), catalog.record("models", name)["published"])


@cache
def all_known() -> tuple[Known, ...]:
    """Return every model of the catalog, counted."""
    return tuple(known(name) for name in catalog.names("models"))


@cache
def device(name: str) -> Device:
    """Return a device of the catalog by its name."""
    return load_cluster({"device": name, "devices": 1}).device


def components(name: str) -> Table:
    """List the parts of a model: parameters stored, and those that one token meets."""
    counted = known(name).count
    total = sizes.parts_of(counted) | {"together": (counted.total, counted.active)}
    rows = (
        (part, f"{stored:,}", share(stored / counted.total), f"{met:,}", share(met / counted.active))
        for part, (stored, met) in total.items()
        if stored
    )
    aside = f", MTP modules of {billions(counted.mtp)} apart" if counted.mtp else ""
    mixed = mixers(known(name).model)
    aside += f"; attention: {mixed}" if mixed else ""
    return Table(f"{name}{aside}", ("part", "stored", "", "met by one token", ""), tuple(rows))


def beside_published(*names: str) -> Table:
    """Put counts beside published ones; active parameters with both embeddings, without the input one, with neither."""
    header = (
        "model",
        "total",
        "published",
        "off",
        "active: both",
        "no input",
        "neither",
        "published",
        "which",
    )
    return Table(
        "parameters in B (1e9); * total with MTP",
        header,
        tuple(_published_row(known(name)) for name in names),
    )


WHICH = {
    "with input embedding and head": "both",
    "without the input embedding": "no input",
    "without embedding and head": "neither",
    "dense: every parameter": "both",
}
"""Conventions of published active counts, by the catalog's words for them."""


def _published_row(it: Known) -> tuple[str, ...]:
    ends = it.count.by_component["embedding"] + it.count.by_component["head"]
    active = (it.count.active, it.multiplied, it.count.active - ends)
    mtp = it.count.mtp if it.published.get("total_includes_mtp") else 0
    return (
        f"{it.name}{' *' if mtp else ''}",
        f"{(it.count.total + mtp) / BILLION:.2f}",
        f"{it.published['total_b']:g}",
        f"{it.off:+.1%}",
        *(f"{size / BILLION:.2f}" for size in active),
        *_published_active(it.published),
    )


def _published_active(published: Mapping[str, Any]) -> tuple[str, str]:
    if published["active_b"] is None:
        return "not said", ""
    return f"{published['active_b']:g}", WHICH[published["active_convention"]]


def at_a_glance(*names: str, on: str = "ascend-910b", seq_len: int = 4096) -> Table:
    """Say what some models cost: FLOPs of a token, and bytes of the states.

    FLOPs are those of training (forward and backward, causal, head included); beside them 6 N for all parameters, and
    for those that a token is multiplied by. States are 18 bytes a parameter.
    """
    header = ("model", "layers", "width", "experts", "FLOPs/token", "6N", "6Nₘ", "states", "devices")
    rows = tuple(_glance_row(known(name), on, seq_len) for name in names)
    memory = device(on).memory_bytes / 2**30
    title = f"GFLOP at {seq_len:,} tokens; states in TB (1e12), and devices of {memory:.0f} GiB that just hold them"
    return Table(title, header, rows)


def _glance_row(it: Known, on: str, seq_len: int) -> tuple[str, ...]:
    shape, train = shape_of(it.model), TrainConfig()
    flops = count(it.model, seq_len).training_flops_per_token
    bytes_ = it.count.total * state_bytes_per_parameter(train)
    return (
        it.name,
        str(shape.layers),
        f"{shape.hidden_size:,}",
        f"{shape.top_k} of {shape.experts}" if shape.experts else "none",
        f"{flops / 1e9:,.1f}",
        f"{6 * it.count.total / 1e9:,.0f}",
        f"{6 * it.multiplied / 1e9:,.1f}",
        f"{bytes_ / 1e12:.2f}",
        str(devices_to_hold(it.count.total, device(on).memory_bytes, train)),
    )


def states_range(parameters: int) -> tuple[float, float]:
    """Bytes of the states with gradients in 16 bits, and in 32."""
    lean, usual = (state_bytes_per_parameter(train) for train in (LEAN, TrainConfig()))
    return parameters * lean, parameters * usual


MIXERS = {
    "mamba2": "Mamba (state space)",
    "gated-delta": "linear attention",
    "kda": "linear attention",
    "lightning": "linear attention",
}
"""Blocks that mix tokens in the place of attention, and that a count puts under it."""


def mixers(model: ModelConfig) -> str:
    """Say which blocks stand in the place of attention, and in how many layers; nothing where there are none."""
    kinds = Counter(MIXERS.get(layer.attention.kind, layer.attention.kind) for layer in model.layers)
    others = [f"{kinds[name]} layers of {name}" for name in dict.fromkeys(MIXERS.values()) if kinds[name]]
    softmax = sum(n for kind, n in kinds.items() if kind != "none" and kind not in MIXERS.values())
    return ", ".join([*others, f"{softmax} of softmax attention"]) if others else ""


def error_picture() -> Still:
    """Draw how far counts are from published totals, over the whole catalog."""
    models = all_known()
    by_band: dict[str, list[Known]] = {name: [] for _, name in BANDS}
    for it in models:
        by_band[next(name for limit, name in BANDS if abs(it.off) <= limit)].append(it)
    rows = [{"band": name, "models": len(some), "text": _some(some)} for name, some in by_band.items()]
    close = sum(len(by_band[name]) for _, name in BANDS[:2])
    title = f"{close} of {len(models)} models are counted within 0.5 % of their published total"
    return Still(sizes.error_bands(), {"errors": rows}, title)


def _some(models: list[Known]) -> str:
    ranked = sorted(models, key=lambda it: -abs(it.off))
    named = ", ".join(f"{it.name} {it.off:+.2%}" for it in ranked[:3])
    return f"{len(models)}" + (f": {named}" if models and len(models) <= 3 else "")
