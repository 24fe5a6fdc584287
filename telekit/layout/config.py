"""The noun *layout*: how a job is split over devices.

Names are Megatron-Core's: ``tp cp pp vpp dp ep etp``; ``vpp`` counts chunks per device. The expert side folds over
the same devices as the dense side: ``etp * ep * edp = tp * cp * dp`` within one pipeline stage.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from telekit.errors import InputError, Problem, bad, from_pydantic
from telekit.layout.pipeline_string import LETTERS, read_layout

Schedule = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe", "dualpipe-v", "seqsmartvpp"
]
SCHEDULES: tuple[str, ...] = get_args(Schedule)
Module = Literal[
    "core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "mlp_act", "moe", "shared_experts"
]  # fmt: skip
Option = Literal["none", "selective", "full"]
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep", "alltoall_deredundency"]
DISPATCHERS: tuple[str, ...] = get_args(Dispatcher)
Graphs = Literal["none", "partial", "full"]
ContextExchange = Literal["p2p", "a2a"]

SELECTIVE: tuple[Module, ...] = ("core_attn", "layernorm", "moe_act", "mla_up_proj")
"""What ``recompute: selective`` recomputes here. Megatron-Core's own default is core_attn alone, which saves
next to nothing once attention is a flash kernel; launch files name the modules, so both agree."""

MOST_CELLS = 16
"""Chunks of written-out stages that a message names."""

Degree = Annotated[int, Field(ge=1, le=2**20)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class Quantities:
    """What follows from a layout's degrees, for one layout and for a table of them alike."""

    tp: Any
    cp: Any
    dp: Any
    ep: Any
    etp: Any
    micro_batch: Any
    sequence_parallel: bool

    @property
    def stage_devices(self) -> Any:
        """Devices that share one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> Any:
        """Replicas of each expert's shard: the expert side's data parallelism."""
        return self.stage_devices / (self.ep * self.etp)

    @property
    def dense_replicas(self) -> Any:
        """Replicas of a dense parameter's shard: its gradients are summed over data and context ranks."""
        return self.dp * self.cp

    @property
    def sequence_shards(self) -> Any:
        """Ranks over which the tokens between tensor-parallel blocks are split."""
        return self.tp if self.sequence_parallel else 1

    def distinct(self, names: tuple[str, ...]) -> tuple[Any, Any]:
        """Layouts that differ in some columns, and which of them each row is; a layout is its own, and has no rows."""
        return self, None


class StageLayers(BaseModel):
    """Layers of one chunk of one stage, and what is recomputed in them.

    ``recompute`` says how many layers, counted from the chunk's first, recompute everything (``full``) and how
    many after them ``selective``; or it lists one choice a layer. None: the layout's own choice for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    layers: Annotated[int, Field(ge=0, le=10_000)]
    recompute: (
        dict[Option, Annotated[int, Field(ge=0)]] | Annotated[tuple[Option, ...], Field(strict=False)] | None
    ) = None

    def options(self, default: str) -> tuple[str, ...]:
        """Recompute choice of each layer, first to last."""
        if self.recompute is None:
            return (default,) * self.layers
        if isinstance(self.recompute, tuple):
            return self.recompute
        full, selective = self.recompute.get("full", 0), self.recompute.get("selective", 0)
        return ("full",) * full + ("selective",) * selective + ("none",) * (self.layers - full - selective)


Stages = Annotated[tuple[Annotated[tuple[StageLayers, ...], Field(strict=False)], ...], Field(strict=False)]


class ParallelConfig(BaseModel, Quantities):
    """One layout.

    Parameters
    ----------
    tp, cp, pp, vpp, ep, etp : int
        Ranks over which tensors, the sequence, layers, (chunks a device), experts and one expert's matrices
        are split.
    dp : int or None
        Data-parallel ranks; None: what the device count leaves.
    zero : int
        0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too are split over the replicas.
    micro_batch : int
        Sequences of one micro-batch on one data-parallel rank.
    sequence_parallel : bool
        Split the tokens between tensor-parallel blocks over the ``tp`` ranks (no effect at tp 1).
    recompute : str or list of str
        none, selective (see ``SELECTIVE``), full, or modules by Megatron-Core's names.
    schedule : str
        Pipeline schedule.
    dispatcher : str
        How tokens reach experts: alltoall, allgather, deepep and hybridep (each token crosses to a node once), or
        alltoall_deredundency (MindFormers: every token is gathered by every node, then all-to-all inside it).
    cp_comm_type : str
        How context ranks share attention: p2p passes keys and values round a ring, a2a (Ulysses) hands each rank
        the whole sequence of its share of the heads (no effect at cp 1).
    tp_comm_overlap : bool
        Run tensor-parallel traffic beside the products it belongs to, in ``tp`` pieces of which one cannot hide.
    overlap_grad_reduce, overlap_param_gather, overlap_moe_comm : bool
        Hide data-parallel traffic behind the backward and forward pass, expert traffic behind compute
        (dualpipe always does the last).
    recompute_group : int
        Layers that are checkpointed as one under full recompute (Megatron-LM's ``--recompute-num-layers`` with the
        method uniform): one input is kept, all of them are held while they run backward. The method block is said
        by ``stages``.
    activation_offload, optimizer_offload : float
        Share of the activations in flight, and of master parameters and optimizer states, that the host's memory holds.
    moe_expert_capacity_factor : float or None
        Tokens of each expert over the mean, padded or dropped to it, at least 1; None: none are dropped, and
        ``expert_imbalance`` says how many the busiest rank has.
    fused_experts : bool
        Experts' two products with activation and casts between them as one kernel (Transformer Engine's op fuser).
    cuda_graphs : str
        What runs as recorded graphs, which the host need not issue: none, partial (all but the experts), full.
    expert_imbalance : float
        Tokens of the busiest expert rank over the mean.
    stages : "auto", nested list or str
        Layers of each chunk (outer) and stage (inner); auto spreads them evenly; Megatron-LM's layout string, as in
        ``Et|(tt|)*30L``, is read as rows of ``pp`` and kept as counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tp: Degree = 1
    cp: Degree = 1
    pp: Degree = 1
    vpp: Degree = 1
    dp: Degree | None = None
    ep: Degree = 1
    etp: Degree = 1
    zero: Annotated[int, Field(ge=0, le=3)] = 1
    micro_batch: Degree = 1
    sequence_parallel: bool = True
    recompute: Option | Annotated[tuple[Module, ...], Field(strict=False)] = "none"
    schedule: Schedule = "1f1b"
    dispatcher: Dispatcher = "alltoall"
    cp_comm_type: ContextExchange = "p2p"
    tp_comm_overlap: bool = False
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_moe_comm: bool = False
    recompute_group: Degree = 1
    activation_offload: Share = 0.0
    optimizer_offload: Share = 0.0
    moe_expert_capacity_factor: Annotated[float, Field(gt=0.0, le=1e3, allow_inf_nan=False)] | None = None
    fused_experts: bool = False
    cuda_graphs: Graphs = "none"
    expert_imbalance: Annotated[float, Field(ge=1.0, le=1e3, allow_inf_nan=False)] = 1.0
    stages: Literal["auto"] | Stages = "auto"

    @field_validator("stages", mode="before")
    @classmethod
    def _written_stages(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept a bare number for the layers of a chunk, and Megatron-LM's layout string for all of them."""
        if isinstance(value, str) and value != "auto":
            value = _counts(value, info.data.get("pp"), info.data.get("vpp"))
        if isinstance(value, (list, tuple)):
            return _cells(value)
        if value != "auto":
            rule = "must be auto, rows of layers (a row for each chunk, a number for each stage), or a layout string"
            raise bad("layout.stages", value, rule, "[[24, 24]] is two stages of 24 layers")
        return value

    @property
    def option(self) -> Option:
        """Recompute choice of a layer that ``stages`` does not decide."""
        return "selective" if isinstance(self.recompute, tuple) else self.recompute

    @property
    def recompute_modules(self) -> tuple[Module, ...]:
        """What a selectively recomputed layer recomputes."""
        return self.recompute if isinstance(self.recompute, tuple) else SELECTIVE


def _counts(text: str, pp: int | None, vpp: int | None) -> list[list[int]] | str:
    """Read a layout string as counts; ``pp`` and ``vpp`` are None where they are refused themselves."""
    try:
        rows = read_layout(text, pp or 1)
    except InputError as error:
        known = [p.suggestion.replace(LETTERS, f"auto, or {LETTERS}") for p in error.problems]
        found = zip(error.problems, known, strict=True)
        raise InputError(Problem("layout.stages", p.value, p.rule, hint) for p, hint in found) from None
    if pp is None or vpp is None:
        return "auto"
    if pp == 1 and len(rows) > vpp:
        rule = f"has {len(rows)} parts, which pp says how to deal out; pp is 1"
        raise bad("layout.stages", text, rule, f"pp {len(rows)} makes each a stage")
    return [[part.layers for part in row] for row in rows]


def _cells(rows: Any) -> tuple[tuple[StageLayers, ...], ...]:
    """Read rows of chunks; every one that cannot be read is named by its place."""
    problems: list[Problem] = []
    found = []
    for chunk, row in enumerate(rows):
        if isinstance(row, (list, tuple)):
            found.append(tuple(_cell(cell, chunk, stage, problems) for stage, cell in enumerate(row)))
        else:
            rule = "must be a row of layers, a number for each stage"
            problems.append(Problem(f"layout.stages.{chunk}", row, rule))
    if len(problems) > MOST_CELLS:
        rule = f"so many chunks cannot be read; the first {MOST_CELLS} are named"
        problems = [Problem("layout.stages", f"{len(problems)} faults", rule), *problems[:MOST_CELLS]]
    if problems:
        raise InputError(problems)
    return tuple(found)


def _cell(cell: Any, chunk: int, stage: int, problems: list[Problem]) -> StageLayers:
    at = f"layout.stages.{chunk}.{stage}"
    try:
        if isinstance(cell, (StageLayers, dict)):
            return StageLayers.model_validate(cell)
        return StageLayers(layers=cell)
    except ValidationError as error:
        place = f"chunk {chunk} of stage {stage}"
        found = from_pydantic(error, at, kind=StageLayers).problems if isinstance(cell, dict) else ()
        choices = [p for p in found if p.field.startswith(f"{at}.recompute")]
        problems += [p for p in found if p not in choices]
        if choices:
            rule = f"{place} takes {{full: n, selective: n}}, or a list of one choice a layer: none, selective, full"
            problems.append(Problem(f"{at}.recompute", cell["recompute"], rule))
        elif not found:
            rule = f"{place} must be a whole number of layers from 0 to 10,000, or {{layers, recompute}}"
            problems.append(Problem(at, cell, rule))
        return StageLayers(layers=0)
