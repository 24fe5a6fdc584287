"""The noun *model*: what is trained, as a pattern of layers.

A model is a list of layer kinds and a pattern that says which kind stands where. Widths are in elements,
counts in units; every field is whole and positive. Readers of other formats build it
(:mod:`telekit.model.huggingface`); everything else only reads it.
"""

from __future__ import annotations

from functools import cached_property
from itertools import groupby
from typing import Annotated, Literal

from pydantic import Field, model_validator

from telekit.model.attention import (
    Attention,
    Count,
    CountOrZero,
    Frozen,
)
from telekit.model.attention import GroupedQueryAttention as GroupedQueryAttention
from telekit.model.attention import MultiHeadLatentAttention as MultiHeadLatentAttention


class FeedForward(Frozen):
    """Dense feed-forward block; ``gated`` means three matrices (SwiGLU), else two.

    ``bias`` is one for each matrix, ``down_bias`` one for the last matrix only.
    """

    kind: Literal["dense"] = "dense"
    ffn_hidden_size: Count
    gated: bool = True
    bias: bool = False
    down_bias: bool = False


class MixtureOfExperts(Frozen):
    """Routed experts, ``top_k`` of ``num_experts`` for each token, and shared experts for all.

    Parameters
    ----------
    num_experts, top_k, expert_ffn_hidden_size : int
        Routed experts, those that one token meets, width of one.
    shared_ffn_hidden_size : int
        Width of all shared experts together (0: none); a dense block beside the experts is one too.
    gated, expert_bias, shared_bias : bool
        Three matrices an expert, else two; biases of the routed and of the shared experts.
    router_bias, correction_bias, expert_scale : bool
        One number an expert each: bias of the router's linear map, load-balancing bias of DeepSeek-V3's
        auxiliary-loss-free routing, learned factor of an expert's output (Gemma 4).
    router_hidden_size : int, optional
        The router is two maps, with this many numbers between them (Skywork-MoE).
    router_scale : bool
        A learned factor for each number of the router's input (Gemma 4).
    shared_gate : bool
        A sigmoid gate of the shared experts, one number a token (Qwen2-MoE).
    latent_size : int, optional
        Experts work on vectors of this width, between two projections that all of them share (Nemotron 3 Super).
    groups, group_limit : int, int or None
        Equal blocks of experts, and how many of them a token may visit (DeepSeek-V3: 8 and 4); None: all.
    """

    kind: Literal["moe"] = "moe"
    num_experts: Count
    top_k: Count
    expert_ffn_hidden_size: Count
    shared_ffn_hidden_size: CountOrZero = 0
    gated: bool = True
    expert_bias: bool = False
    shared_bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    expert_scale: bool = False
    router_hidden_size: Count | None = None
    router_scale: bool = False
    shared_gate: bool = False
    latent_size: Count | None = None
    groups: Count = 1
    group_limit: Count | None = None

    @model_validator(mode="after")
    def _enough_experts(self) -> MixtureOfExperts:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k={self.top_k} must not exceed num_experts={self.num_experts}")
        if self.num_experts % self.groups:
            raise ValueError(f"groups={self.groups} must divide num_experts={self.num_experts}")
        limit = self.group_limit
        if (
            limit is not None
            and not self.top_k * self.groups <= limit * self.num_experts <= self.groups * self.num_experts
        ):
            least = -(-self.top_k * self.groups // self.num_experts)
            raise ValueError(
                f"group_limit={limit} must be from {least}, which hold top_k experts, to groups={self.groups}"
            )
        return self


class NoFeedForward(Frozen):
    """A block without a feed-forward part: the mixing half of a hybrid model's layer, or a pruned one."""

    kind: Literal["none"] = "none"


Mlp = Annotated[FeedForward | MixtureOfExperts | NoFeedForward, Field(discriminator="kind")]


class LayerKind(Frozen):
    """One kind of block.

    ``norms`` is how many norms of the hidden width it has, ``output_scale`` whether its output has a learned
    factor, one number (Gemma 4).
    """

    name: str
    attention: Attention
    mlp: Mlp
    norms: CountOrZero = 2
    output_scale: bool = False


class PerLayerInputs(Frozen):
    """Gemma's per-layer embeddings: each layer mixes in ``width`` numbers of its own for each token."""

    vocab_size: Count
    width: Count


class ModelConfig(Frozen):
    """What is trained.

    Parameters
    ----------
    name, source : str
        Catalog name or file, and where the fields come from.
    hidden_size, vocab_size : int
        Width of the residual stream; entries of the vocabulary as stored.
    kinds : tuple of LayerKind
        The distinct blocks.
    pattern : tuple of int
        Index into ``kinds`` of each layer, first to last.
    tied_embeddings : bool
        True when the output head is the input embedding.
    learned_positions : int
        Rows of a learned position embedding (0: none).
    norm_bias, head_bias, embedding_norm : bool
        Norms have a bias beside their weight (LayerNorm); the output head has one; the embedding is normed.
    residual_streams : int
        Parallel residual streams, mixed by learned maps before and after each half block (DeepSeek-V4; 1: plain).
    per_layer_inputs : PerLayerInputs, optional
        Per-layer embeddings.
    mtp_layers : int
        Multi-token-prediction modules, each one more block and a projection.
    mtp_kind : LayerKind, optional
        That block; None: the model's last kind.
    mtp_norms : int
        Norms of a module beside its block's: of the embedding, the hidden state and, but for ERNIE, the output.
    """

    name: str
    source: str = ""
    hidden_size: Count
    vocab_size: Count
    kinds: tuple[LayerKind, ...] = Field(min_length=1)
    pattern: tuple[CountOrZero, ...] = Field(min_length=1, max_length=10_000)
    tied_embeddings: bool = False
    learned_positions: CountOrZero = 0
    norm_bias: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    residual_streams: Count = 1
    per_layer_inputs: PerLayerInputs | None = None
    mtp_layers: CountOrZero = 0
    mtp_kind: LayerKind | None = None
    mtp_norms: CountOrZero = 3

    @model_validator(mode="after")
    def _pattern_names_kinds(self) -> ModelConfig:
        if max(self.pattern) >= len(self.kinds):
            raise ValueError(f"pattern names kind {max(self.pattern)} of {len(self.kinds)}")
        return self

    @property
    def num_layers(self) -> int:
        """Transformer blocks, MTP modules apart."""
        return len(self.pattern)

    @cached_property
    def layers(self) -> tuple[LayerKind, ...]:
        """The block at each depth."""
        return tuple(self.kinds[i] for i in self.pattern)

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Neighbouring layers of one kind: (index into ``kinds``, how many)."""
        return tuple((kind, len(list(group))) for kind, group in groupby(self.pattern))

    @property
    def mtp_block(self) -> LayerKind:
        """Block of a multi-token-prediction module."""
        return self.mtp_kind or self.kinds[self.pattern[-1]]

    @cached_property
    def moe(self) -> MixtureOfExperts | None:
        """The expert block, when the model has one (all expert blocks of a model are alike)."""
        return next((kind.mlp for kind in self.kinds if isinstance(kind.mlp, MixtureOfExperts)), None)
