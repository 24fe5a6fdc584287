"""A layout in its surroundings, as rules, repairs and notes read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from telekit.cluster.config import ClusterConfig
from telekit.layout.config import ParallelConfig
from telekit.layout.schedules import ONE_CHUNK
from telekit.layout.stages import MOST_SHOWN, part_positions
from telekit.model.config import ModelConfig
from telekit.training.config import TrainConfig

FOLLOWING: dict[str, Any] = {"dp": None, "vpp": 1, "schedule": "1f1b"}
"""Fields that :func:`filled` derives, as they stand where they are left out."""


def filled(layout: ParallelConfig, given: Collection[str], devices: int) -> ParallelConfig:
    """Fill in what follows from the ``given`` fields of a layout.

    ``dp`` is what the devices leave after ``tp * cp * pp``, ``vpp`` the rows of written-out stages, and several chunks
    ask for the interleaved schedule.
    """
    updates: dict[str, Any] = {}
    vpp, rows = layout.vpp, 0 if layout.stages == "auto" else len(layout.stages)
    if layout.schedule == "dualpipe" and vpp == 2 and not rows:
        updates["vpp"] = 1  # its two chunks a device are the two copies of the model, which vpp 1 implies
    if rows > 1 and "vpp" not in given and ("schedule" not in given or layout.schedule not in ONE_CHUNK):
        updates["vpp"] = vpp = rows
    if layout.dp is None:
        updates["dp"] = max(1, devices // (layout.tp * layout.cp * layout.pp))
    if vpp > 1 and "schedule" not in given and layout.schedule == "1f1b":
        updates["schedule"] = "interleaved-1f1b"
    return layout.model_copy(update=updates)


@dataclass(frozen=True)
class Case:
    """A layout (one, or a table) in its surroundings.

    ``given`` names the layout fields that a person wrote, the others following (:func:`filled`); None: all of them.
    """

    model: ModelConfig
    cluster: ClusterConfig
    train: TrainConfig
    layout: Any
    given: Collection[str] | None = None

    @property
    def dp_follows(self) -> bool:
        """Whether nobody wrote ``dp``: it is what the devices leave."""
        return self.given is not None and "dp" not in self.given

    @property
    def dp_known(self) -> bool:
        """Whether ``dp`` was written, or is a whole number that the devices leave."""
        x = self.layout
        return not self.dp_follows or bool(self.cluster.devices % (x.tp * x.cp * x.pp) == 0)

    @property
    def micro_batches(self) -> Any:
        """Micro-batches of one data-parallel rank in one step."""
        return self.train.global_batch / (self.layout.dp * self.layout.micro_batch)

    @property
    def node_devices(self) -> int:
        """Devices of one node; all of them where they do not fill one."""
        return min(self.cluster.devices_per_node, self.cluster.devices)

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
        """Return the case with other values of some fields (``layout.tp``, ``train.global_batch``), for one layout.

        Fields that nobody wrote follow anew.
        """
        changes, train = ({k.split(".")[1]: v for k, v in fields.items() if k.startswith(s)}
                          for s in ("layout.", "train."))  # fmt: skip
        given = None if self.given is None else {*self.given, *changes}
        open_ = {} if given is None else {k: v for k, v in FOLLOWING.items() if k not in given}
        layout = ParallelConfig.model_validate(dict(self.layout) | open_ | changes)
        return replace(
            self,
            layout=layout if given is None else filled(layout, given, self.cluster.devices),
            train=TrainConfig.model_validate(dict(self.train) | train) if train else self.train,
            given=given,
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
        "product": _product(case),
        "devices": case.cluster.devices,
        "node": case.node_devices,
        "layers": case.model.num_layers,
        "parts": layout.pp * layout.vpp,
        "seq_len": case.train.seq_len,
        "global_batch": case.train.global_batch,
        "fold": layout.ep * layout.etp,
        "expert_side": layout.ep * layout.etp * layout.pp,
        "stage_devices": layout.stage_devices,
        "head_ranks": layout.tp * layout.cp,
        "batch_unit": layout.dp * layout.micro_batch,
        "twice_pp": 2 * layout.pp,
        "micro_batches": _micro_batches(case),
        "placed": placed_layers(layout),
        "empty": _empty(case),
        "schedule": layout.schedule,
    }


def _product(case: Case) -> str:
    """Say what the degrees make, and what they should."""
    layout, devices = case.layout, case.cluster.devices
    fold = f"(ep {layout.ep} and etp {layout.etp} fold over them)"
    degrees = f"tp {layout.tp} * cp {layout.cp} * pp {layout.pp}"
    made = layout.tp * layout.cp * layout.pp
    if case.dp_follows:
        return f"{degrees} = {made} must divide the {devices} devices {fold}: dp is what remains"
    return f"{degrees} * dp {layout.dp} = {made * layout.dp} must be the {devices} devices {fold}"


def _micro_batches(case: Case) -> str:
    layout, there = case.layout, case.micro_batches
    if there == int(there):
        return f"{there:.0f}"
    return f"{there:.3g} ({case.train.global_batch} sequences over dp {layout.dp} * micro_batch {layout.micro_batch})"


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
