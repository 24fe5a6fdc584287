"""The noun *layout*: how a job is split over devices.

Names are Megatron-Core's: ``tp cp pp vpp dp ep etp``; ``vpp`` counts chunks per device. The expert side folds over
the same devices as the dense side: ``etp * ep * edp = tp * cp * dp`` within one pipeline stage.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

Schedule = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe", "dualpipe-v", "seqsmartvpp"
]
SCHEDULES: tuple[str, ...] = get_args(Schedule)
Module = Literal["core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts"]
Option = Literal["none", "selective", "full"]
Dispatcher = Literal["alltoall", "allgather", "deepep"]
ContextExchange = Literal["p2p", "a2a"]

SELECTIVE: tuple[Module, ...] = ("core_attn", "layernorm", "moe_act", "mla_up_proj")
"""What ``recompute: selective`` recomputes here. Megatron-Core's own default is core_attn alone, which saves
next to nothing once attention is a flash kernel; launch files name the modules, so both agree."""

Degree = Annotated[int, Field(ge=1, le=2**20)]


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
        How tokens reach experts: alltoall, allgather, or deepep (each token crosses to a node once).
    cp_comm_type : str
        How context ranks share attention: p2p passes keys and values round a ring, a2a (Ulysses) hands each rank
        the whole sequence of its share of the heads (no effect at cp 1).
    tp_comm_overlap : bool
        Ask Megatron-Core to run tensor-parallel traffic beside its products. The estimate does not count on it.
    overlap_grad_reduce, overlap_param_gather, overlap_moe_comm : bool
        Hide data-parallel traffic behind the backward and forward pass, expert traffic behind compute
        (dualpipe always does the last).
    expert_imbalance : float
        Tokens of the busiest expert rank over the mean.
    stages : "auto" or nested list
        Layers of each chunk (outer) and stage (inner); auto spreads them evenly.
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
    expert_imbalance: Annotated[float, Field(ge=1.0, le=1e3, allow_inf_nan=False)] = 1.0
    stages: Literal["auto"] | Stages = "auto"

    @field_validator("stages", mode="before")
    @classmethod
    def _plain_counts(cls, value: Any) -> Any:
        """Accept a bare number where only the layers of a chunk are given."""
        if not isinstance(value, (list, tuple)):
            return value
        return tuple(
            tuple({"layers": cell} if isinstance(cell, int) else cell for cell in row)
            if isinstance(row, (list, tuple))
            else row
            for row in value
        )

    @property
    def option(self) -> Option:
        """Recompute choice of a layer that ``stages`` does not decide."""
        return "selective" if isinstance(self.recompute, tuple) else self.recompute

    @property
    def recompute_modules(self) -> tuple[Module, ...]:
        """What a selectively recomputed layer recomputes."""
        return self.recompute if isinstance(self.recompute, tuple) else SELECTIVE
