"""A layout in its surroundings, as rules, repairs and notes read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from telekit.cluster.config import ClusterConfig
from telekit.layout.config import ParallelConfig
from telekit.layout.stages import part_positions
from telekit.model.config import ModelConfig
from telekit.training.config import TrainConfig

MOST_SHOWN = 16
"""Numbers of a list that a message shows."""


@dataclass(frozen=True)
class Case:
    """A layout (one, or a table) in its surroundings."""

    model: ModelConfig
    cluster: ClusterConfig
    train: TrainConfig
    layout: Any

    @property
    def micro_batches(self) -> Any:
        """Micro-batches of one data-parallel rank in one step."""
        return self.train.global_batch / (self.layout.dp * self.layout.micro_batch)

    def widths(self, name: str) -> list[int]:
        """Distinct values of an attention or feed-forward field over the model's layer kinds."""
        mtp = self.model.mtp_kind if self.model.mtp_layers and self.train.mtp else None
        kinds = (*self.model.kinds, *([mtp] if mtp else ()))
        parts = [part for kind in kinds for part in (kind.attention, kind.mlp)]
        return sorted({getattr(part, name, 0) or 0 for part in parts} - {0})

    def moe_width(self, name: str) -> list[int]:
        """Return a field of the expert block, as a list; nothing for a dense model or where it is 0."""
        value = getattr(self.model.moe, name, 0) if self.model.moe else 0
        return [value] if value else []

    def changed(self, fields: Mapping[str, Any]) -> Case:
        """Return the case with other values of some fields (``layout.tp``, ``train.global_batch``), for one layout."""
        layout, train = ({k.split(".")[1]: v for k, v in fields.items() if k.startswith(s)}
                         for s in ("layout.", "train."))  # fmt: skip
        return replace(
            self,
            layout=ParallelConfig.model_validate(self.layout.model_dump() | layout),
            train=TrainConfig.model_validate(self.train.model_dump() | train),
        )

    def value(self, field: str) -> Any:
        """Return what stands in ``layout.tp`` or ``train.global_batch``; stages as counts of layers."""
        section, name = field.split(".")
        value = getattr(getattr(self, section), name)
        if name == "stages" and value != "auto":
            return [[cell.layers for cell in row] for row in value]
        return value


def placed_layers(layout: Any) -> int:
    """Layers that written-out stages hold; 0 for ``auto``."""
    return 0 if layout.stages == "auto" else sum(cell.layers for row in layout.stages for cell in row)


def shape_fits(layout: Any) -> bool:
    """Whether written-out stages are ``vpp`` rows of ``pp``."""
    rows = layout.stages
    return rows == "auto" or (len(rows) == layout.vpp and all(len(row) == layout.pp for row in rows))


def places(layout: Any) -> list[tuple[int, int]]:
    """(chunk, stage) of each part, also where the schedule does not take ``vpp`` chunks: then row after row."""
    looped = [(v, s) for v in range(layout.vpp) for s in range(layout.pp)]
    shaped = part_positions(layout.schedule, layout.pp, layout.vpp)
    return shaped if len(shaped) == len(looped) else looped


def empty_parts(layout: Any) -> list[int]:
    """Parts of the model, the first and the last apart, that written-out stages leave without a layer."""
    if layout.stages == "auto" or not shape_fits(layout):
        return []
    positions = places(layout)
    last = len(positions) - 1
    inner = range(1, last) if last else range(1)
    return [part for part in inner if not layout.stages[positions[part][0]][positions[part][1]].layers]


def not_exchanged(model: ModelConfig) -> list[str]:
    """Name kinds of layers whose exchange between context ranks is not modelled."""
    found = {kind.attention.kind for kind in model.kinds} - {"gqa", "mla", "none"}
    sparse = any(getattr(kind.attention, "indexer", None) for kind in model.kinds)
    return sorted(f"{kind} layers" for kind in found) + ["an indexer's choice of keys"] * sparse


def facts(case: Case) -> dict[str, Any]:
    """Numbers that the rules' texts name, for one layout."""
    layout, moe = case.layout, case.model.moe
    degrees = {name: getattr(layout, name) for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")}
    return degrees | {
        "heads": _words(case.widths("heads")),
        "kv_heads": _words(case.widths("kv_heads")),
        "kv_copies": _copies(case),
        "a2a_split": _plain_split(case),
        "output_groups": _words(case.widths("output_groups")),
        "ffn": _words(case.widths("ffn_hidden_size")),
        "expert_ffn": moe.expert_ffn_hidden_size if moe else 0,
        "shared_ffn": moe.shared_ffn_hidden_size if moe else 0,
        "experts": moe.num_experts if moe else 0,
        "not_exchanged": " and ".join(not_exchanged(case.model)),
        "devices": case.cluster.devices,
        "layers": case.model.num_layers,
        "parts": layout.pp * layout.vpp,
        "seq_len": case.train.seq_len,
        "global_batch": case.train.global_batch,
        "dense": layout.tp * layout.cp * layout.pp * layout.dp,
        "fold": layout.ep * layout.etp,
        "expert_side": layout.ep * layout.etp * layout.pp,
        "stage_devices": layout.stage_devices,
        "head_ranks": layout.tp * layout.cp,
        "batch_unit": layout.dp * layout.micro_batch,
        "micro_batches": f"{case.micro_batches:g}",
        "placed": placed_layers(layout),
        "empty": _empty(case),
        "schedule": layout.schedule,
    }


def _words(values: list[int]) -> str:
    return ", ".join(map(str, values)) or "none"


def _copies(case: Case) -> str:
    """Say how often a key/value head would be needed, where that is a whole number."""
    tp = case.layout.tp
    few = [heads for heads in case.widths("kv_heads") if heads < tp and tp % heads == 0]
    return f"tp {tp} would need {tp // few[0]} copies of each, which" if few else "parts or copies of them"


def _plain_split(case: Case) -> str:
    """Key/value heads of each context rank if one tensor rank's were dealt out one after the other."""
    heads, layout = min(case.widths("kv_heads"), default=0), case.layout
    mine = heads // layout.tp if heads % layout.tp == 0 else heads
    base, more = divmod(mine, layout.cp)
    dealt = [base + (rank < more) for rank in range(min(layout.cp, MOST_SHOWN))]
    return f"[{', '.join(map(str, dealt))}{', …' if layout.cp > MOST_SHOWN else ''}]"


def _empty(case: Case) -> str:
    layout, parts = case.layout, case.layout.pp * case.layout.vpp
    if layout.stages == "auto":
        return f"{case.model.num_layers} layers do not reach {parts} parts (pp * vpp)"
    return f"part {_words(empty_parts(layout)[:MOST_SHOWN])} of {parts} (counted from 0) holds no layer"
