"""What the miniature is and how it is split: two small frozen descriptions, checked at the door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from telekit.errors import InputError, Problem

Precision = Literal["fp64", "fp32", "bf16"]
MAX_SIZE = 4096
"""Of any one dimension, so that a slip of the hand does not fill the memory."""


@dataclass(frozen=True)
class Config:
    """A transformer language model, its data and its optimizer; names as in Megatron-Core where it has them.

    Parameters
    ----------
    layers, hidden, heads, kv_heads, ffn, vocabulary : int
        The network; ``ffn`` is the inner width of the MLP, or of each expert.
    sequence, batch : int
        Tokens of a sequence; sequences of a global batch.
    experts, top_k, shared_ffn : int
        ``experts = 0`` is dense; ``shared_ffn`` is the inner width of a shared expert, 0 for none.
    aux_coefficient : float
        Of the sequence-wise load balancing loss, which does not depend on how a batch is split.
    tied : bool
        Whether the output layer uses the embedding's weight.
    precision : {"fp64", "fp32", "bf16"}
        Of weights, activations and their gradients. With ``bf16`` every operator's output is rounded to bfloat16;
        the master weights, gradient sums, optimizer states, router and loss are float32.
    lr, beta1, beta2, adam_eps, weight_decay, clip_grad : float
        AdamW; decay is left out for norms; ``clip_grad = 0`` does not clip.
    norm_eps, rotary_base : float
        Of RMSNorm; of the rotary embedding.
    """

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 64
    vocabulary: int = 64
    sequence: int = 16
    batch: int = 4
    experts: int = 0
    top_k: int = 2
    shared_ffn: int = 0
    aux_coefficient: float = 0.01
    tied: bool = False
    precision: Precision = "fp32"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.1
    clip_grad: float = 1.0
    norm_eps: float = 1e-5
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        problems = [
            Problem(f"config.{name}", value, f"must be a whole number from {low} to {MAX_SIZE}")
            for name, low in _WHOLE.items()
            if not (
                isinstance(value := getattr(self, name), int)
                and not isinstance(value, bool)
                and low <= value <= MAX_SIZE
            )
        ]
        if self.precision not in ("fp64", "fp32", "bf16"):
            problems.append(Problem("config.precision", self.precision, "must be fp64, fp32 or bf16"))
        if not problems:
            problems = _wrong_shape(self)
        if problems:
            raise InputError(problems)

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads

    @property
    def tokens(self) -> int:
        """Tokens of a global batch."""
        return self.batch * self.sequence


_WHOLE = {
    "layers": 1, "hidden": 2, "heads": 1, "kv_heads": 1, "ffn": 1, "vocabulary": 2, "sequence": 1, "batch": 1,
    "experts": 0, "top_k": 1, "shared_ffn": 0,
}  # fmt: skip


def _wrong_shape(c: Config) -> list[Problem]:
    problems = []
    if c.hidden % (2 * c.heads):
        rule = f"must be a multiple of twice heads ({c.heads}): rotary turns pairs of a head"
        problems.append(Problem("config.hidden", c.hidden, rule, f"{2 * c.heads * 4}"))
    if c.heads % c.kv_heads:
        problems.append(Problem("config.kv_heads", c.kv_heads, f"must divide heads ({c.heads})", "1"))
    if c.experts and c.top_k > c.experts:
        problems.append(Problem("config.top_k", c.top_k, f"must be at most experts ({c.experts})"))
    if c.shared_ffn and not c.experts:
        problems.append(
            Problem("config.shared_ffn", c.shared_ffn, "is of an MoE layer, and experts is 0", "0")
        )
    return problems


@dataclass(frozen=True)
class Layout:
    """How a step is split over ranks, numbered as Megatron-Core does: tp fastest, then cp, dp, pp.

    Parameters
    ----------
    tp, cp, pp, dp, ep : int
        ``ep`` divides ``dp * cp``; experts are also split by ``tp`` inside. ``pp`` only decides which rank holds which
        layer: a pipeline changes no arithmetic, except that a tied weight has two copies.
    micro_batches : int
        A rank's part of a global batch is run in so many pieces.
    sequence_parallel : bool
        With ``tp > 1``: norms and residuals hold a part of the positions each.
    cp_comm_type : {"p2p", "all_gather"}
        Keys and values go around a ring and partial outputs are merged, or are gathered first. Positions are dealt in
        the zigzag order that balances a causal mask.
    reduce_order : {"ring", "sequential", "tree"}
        In which order a reduction adds its ranks; each sum is rounded to the tensor's precision.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    micro_batches: int = 1
    sequence_parallel: bool = False
    cp_comm_type: Literal["p2p", "all_gather"] = "p2p"
    reduce_order: Literal["ring", "sequential", "tree"] = "ring"

    def __post_init__(self) -> None:
        problems = [
            Problem(f"layout.{name}", value, "must be a whole number from 1 to 64")
            for name in ("tp", "cp", "pp", "dp", "ep", "micro_batches")
            if not (
                isinstance(value := getattr(self, name), int)
                and not isinstance(value, bool)
                and 1 <= value <= 64
            )
        ]
        if self.cp_comm_type not in ("p2p", "all_gather"):
            problems.append(Problem("layout.cp_comm_type", self.cp_comm_type, "must be p2p or all_gather"))
        if self.reduce_order not in ("ring", "sequential", "tree"):
            problems.append(
                Problem("layout.reduce_order", self.reduce_order, "must be ring, sequential or tree")
            )
        if not problems and (self.dp * self.cp) % self.ep:
            problems.append(
                Problem("layout.ep", self.ep, f"must divide dp * cp ({self.dp * self.cp})", str(self.dp))
            )
        if problems:
            raise InputError(problems)

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def splits_sequence(self) -> bool:
        """Whether tensor-parallel ranks hold a part of the positions each between the linear layers."""
        return self.sequence_parallel and self.tp > 1


def check_layout(config: Config, layout: Layout) -> None:
    """Refuse a layout that does not divide the model.

    Raises
    ------
    InputError
        Listing each size that is not divided.
    """
    c, n = config, layout
    pieces = n.dp * n.micro_batches
    rules = [
        ("tp", n.tp, c.kv_heads % n.tp == 0, f"must divide kv_heads ({c.kv_heads})"),
        ("tp", n.tp, c.ffn % n.tp == 0, f"must divide ffn ({c.ffn})"),
        ("tp", n.tp, c.shared_ffn % n.tp == 0, f"must divide shared_ffn ({c.shared_ffn})"),
        ("tp", n.tp, c.vocabulary % n.tp == 0, f"must divide vocabulary ({c.vocabulary})"),
        ("pp", n.pp, c.layers % n.pp == 0, f"must divide layers ({c.layers})"),
        ("dp", n.dp, c.batch % pieces == 0, f"times micro_batches ({pieces}) must divide batch ({c.batch})"),
        ("cp", n.cp, n.cp == 1 or c.sequence % (2 * n.cp) == 0, f"twice it must divide sequence ({c.sequence})"),
        ("ep", n.ep, n.ep == 1 or (c.experts > 0 and c.experts % n.ep == 0),
         f"must divide experts ({c.experts})" if c.experts else "must be 1: the model is dense"),
        ("sequence_parallel", n.tp, not n.splits_sequence or (c.sequence // n.cp) % n.tp == 0,
         f"tp must divide the {c.sequence // n.cp} positions of a context-parallel rank"),
    ]  # fmt: skip
    problems = [Problem(f"layout.{name}", value, rule) for name, value, holds, rule in rules if not holds]
    if problems:
        raise InputError(problems)
