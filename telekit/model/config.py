"""The noun *model*: what is trained, as a pattern of layers.

A model is a list of layer kinds and a pattern that says which kind stands where. Widths are in elements,
counts in units; every field is whole and positive. Readers of other formats build it
(:mod:`telekit.model.huggingface`); everything else only reads it.
"""

from __future__ import annotations

from functools import cached_property
from itertools import groupby
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1, le=10**7, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=10**7, strict=True)]


class Frozen(BaseModel):
    """Immutable, and strict about unknown fields and wrong types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GroupedQueryAttention(Frozen):
    """Softmax attention with ``kv_heads`` key/value heads (``kv_heads == heads`` is plain multi-head).

    ``window`` is the number of keys a query sees, itself included; None means all before it.
    """

    kind: Literal["gqa"] = "gqa"
    heads: Count
    kv_heads: Count
    head_dim: Count
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    sinks: bool = False
    window: Count | None = None

    @model_validator(mode="after")
    def _groups(self) -> GroupedQueryAttention:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} must divide heads={self.heads}")
        return self


class MultiHeadLatentAttention(Frozen):
    """DeepSeek's latent attention: keys and values rebuilt from ``kv_lora_rank`` numbers a token.

    ``q_lora_rank`` None means one dense query projection (DeepSeek-V2-Lite).
    """

    kind: Literal["mla"] = "mla"
    heads: Count
    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count

    @property
    def kv_heads(self) -> int:
        """In training every head has its own keys and values."""
        return self.heads

    @property
    def window(self) -> None:
        """No window."""
        return None


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

    ``shared_ffn_hidden_size`` is the width of all shared experts together (0: none).
    ``router_bias`` is a bias of the router's linear map, ``correction_bias`` the load-balancing bias of
    DeepSeek-V3's auxiliary-loss-free routing: one number an expert each.
    """

    kind: Literal["moe"] = "moe"
    num_experts: Count
    top_k: Count
    expert_ffn_hidden_size: Count
    shared_ffn_hidden_size: CountOrZero = 0
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False

    @model_validator(mode="after")
    def _enough_experts(self) -> MixtureOfExperts:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k={self.top_k} must not exceed num_experts={self.num_experts}")
        return self


Attention = Annotated[GroupedQueryAttention | MultiHeadLatentAttention, Field(discriminator="kind")]
Mlp = Annotated[FeedForward | MixtureOfExperts, Field(discriminator="kind")]


class LayerKind(Frozen):
    """One kind of transformer block; ``norms`` is how many norms of the hidden width it has."""

    name: str
    attention: Attention
    mlp: Mlp
    norms: Count = 2


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
    norm_bias : bool
        True when norms have a bias beside their weight (LayerNorm).
    mtp_layers : int
        Multi-token-prediction modules, each one more block of the last kind.
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
    mtp_layers: CountOrZero = 0

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

    @cached_property
    def moe(self) -> MixtureOfExperts | None:
        """The expert block, when the model has one (all expert blocks of a model are alike)."""
        found = [k.mlp for k in self.kinds if k.mlp.kind == "moe"]
        return found[0] if found else None
