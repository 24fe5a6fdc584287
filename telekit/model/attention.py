"""Token mixers: every kind of attention, and the recurrent layers that stand in its place.

Each class says the shapes of one layer's mixer; what it stores is in :mod:`telekit.model.tensors`, what it
computes in :mod:`telekit.model.attention_flops`. All have ``heads`` and ``kv_heads``, the two counts that tensor
parallelism must divide, and ``window``, the keys a query sees (itself included; None: all before it).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1, le=10**7, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=10**7, strict=True)]


class Frozen(BaseModel):
    """Immutable, and strict about unknown fields and wrong types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Unwindowed(Frozen):
    """A mixer whose queries see everything before them, or whose state does."""

    @property
    def window(self) -> None:
        """No window."""
        return None


class GroupedQueryAttention(Frozen):
    """Softmax attention with ``kv_heads`` key/value heads (``kv_heads == heads`` is plain multi-head).

    Parameters
    ----------
    heads, kv_heads, head_dim : int
        Query heads, key/value heads, width of each.
    v_head_dim : int, optional
        Width of a value head where it is not ``head_dim`` (MiMo-V2).
    q_lora_rank : int, optional
        Queries go through a bottleneck of this width, with a norm in it (Step-3).
    qkv_bias, output_bias : bool
        Biases of the projections.
    qk_norm : {"none", "query", "head", "full"}
        Norms of queries and keys: one weight for each number of a head ("query": of queries only), or of all heads.
    sinks : bool
        One learned logit a head that takes part in the softmax (gpt-oss).
    window : int, optional
        Keys a query sees, itself included.
    chunk : int, optional
        Queries see only keys of their own chunk of this many tokens (Llama 4).
    output_gate : {"none", "element", "head"}
        A sigmoid gate on the output, for each number (Qwen3-Next) or each head (Step-3.5), with its projection.
    own_values : bool
        False: there is no value projection, values are the keys before their norm (Gemma 4's global layers).
    own_keys : bool
        False: keys and values are those of an earlier layer (Hunyuan-Large, Gemma's small models).
    """

    kind: Literal["gqa"] = "gqa"
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Count | None = None
    q_lora_rank: Count | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "query", "head", "full"] = "none"
    sinks: bool = False
    window: Count | None = None
    chunk: Count | None = None
    output_gate: Literal["none", "element", "head"] = "none"
    own_values: bool = True
    own_keys: bool = True

    @model_validator(mode="after")
    def _groups(self) -> GroupedQueryAttention:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} must divide heads={self.heads}")
        return self

    @property
    def value_dim(self) -> int:
        """Width of a value head."""
        return self.v_head_dim or self.head_dim


class Indexer(Frozen):
    """Chooses ``top_k`` keys a query by cheap scores of ``heads`` small heads (DeepSeek-V3.2's lightning indexer).

    ``own`` False: the layer meets the keys that an earlier layer chose, and has no indexer itself (GLM-5's later
    models).
    """

    heads: Count
    head_dim: Count
    top_k: Count
    own: bool = True


class MultiHeadLatentAttention(Unwindowed):
    """DeepSeek's latent attention: keys and values rebuilt from ``kv_lora_rank`` numbers a token.

    ``q_lora_rank`` None means one dense query projection (DeepSeek-V2-Lite). ``bias`` is one on both
    down-projections and the output projection. With an ``indexer`` a query meets the chosen keys only.
    """

    kind: Literal["mla"] = "mla"
    heads: Count
    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: CountOrZero
    v_head_dim: Count
    bias: bool = False
    indexer: Indexer | None = None

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def kv_heads(self) -> int:
        """In training every head has its own keys and values."""
        return self.heads


class CompressedAttention(Frozen):
    """DeepSeek-V4's attention: one key that is also the value, a window, and older tokens in compressed blocks.

    Parameters
    ----------
    heads, head_dim : int
        Query heads; all share one key/value head of this width.
    q_lora_rank, output_groups, output_lora_rank : int
        Bottleneck of the queries; the output projection goes through ``output_lora_rank`` for each group of heads.
    window : int
        Uncompressed keys a query sees.
    compress_ratio : int
        Tokens of one compressed block; 0: no blocks, the window only.
    overlap : bool
        Blocks mix in the tokens of the block before, with projections twice as wide.
    indexer : Indexer, optional
        Chooses the blocks; None: all of them are met.
    """

    kind: Literal["compressed"] = "compressed"
    heads: Count
    head_dim: Count
    q_lora_rank: Count
    output_groups: Count
    output_lora_rank: Count
    window: Count
    compress_ratio: CountOrZero = 0
    overlap: bool = False
    indexer: Indexer | None = None

    @property
    def kv_heads(self) -> int:
        """The one key is whole on each tensor rank: it limits nothing that the query heads do not."""
        return self.heads


class GatedDeltaNet(Unwindowed):
    """Linear attention with the gated delta rule (Qwen3-Next): a state of key by value width for each value head."""

    kind: Literal["gated-delta"] = "gated-delta"
    key_heads: Count
    value_heads: Count
    key_head_dim: Count
    value_head_dim: Count
    conv_kernel: Count

    @model_validator(mode="after")
    def _groups(self) -> GatedDeltaNet:
        if self.value_heads % self.key_heads:
            raise ValueError(f"key_heads={self.key_heads} must divide value_heads={self.value_heads}")
        return self

    @property
    def heads(self) -> int:
        """Value heads."""
        return self.value_heads

    @property
    def kv_heads(self) -> int:
        """Key heads."""
        return self.key_heads


class KimiDeltaAttention(Unwindowed):
    """Kimi Linear's delta rule: a decay for each number of a key, from a low-rank projection."""

    kind: Literal["kda"] = "kda"
    heads: Count
    head_dim: Count
    conv_kernel: Count

    @property
    def kv_heads(self) -> int:
        """As many as query heads."""
        return self.heads


class LightningAttention(Unwindowed):
    """Linear attention with a fixed decay a head and a gated output (MiniMax-01, Ring-linear).

    ``output_norm`` is the width of the norm before the gate (0: it has no weight); ``qkv_bias`` a bias on the
    projection of queries, keys and values; ``qk_norm`` True a norm of each head's queries and keys.
    """

    kind: Literal["lightning"] = "lightning"
    heads: Count
    head_dim: Count
    output_norm: CountOrZero
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False

    @property
    def kv_heads(self) -> int:
        """As many as query heads."""
        return self.heads


class Mamba2(Unwindowed):
    """State-space layer (Mamba-2, arXiv 2405.21060): ``state_size`` numbers for each of ``heads * head_dim`` channels.

    ``groups`` share the input and output maps of the state.
    """

    kind: Literal["mamba2"] = "mamba2"
    heads: Count
    head_dim: Count
    groups: Count
    state_size: Count
    conv_kernel: Count
    conv_bias: bool = True
    projection_bias: bool = False

    @model_validator(mode="after")
    def _groups(self) -> Mamba2:
        if self.heads % self.groups:
            raise ValueError(f"groups={self.groups} must divide heads={self.heads}")
        return self

    @property
    def kv_heads(self) -> int:
        """Groups: each tensor rank needs whole ones."""
        return self.groups


class NoAttention(Unwindowed):
    """A block without a token mixer: pruned, or the feed-forward half of a hybrid model's layer."""

    kind: Literal["none"] = "none"

    @property
    def heads(self) -> int:
        """None."""
        return 0

    @property
    def kv_heads(self) -> int:
        """None."""
        return 0


Attention = Annotated[
    GroupedQueryAttention
    | MultiHeadLatentAttention
    | CompressedAttention
    | GatedDeltaNet
    | KimiDeltaAttention
    | LightningAttention
    | Mamba2
    | NoAttention,
    Field(discriminator="kind"),
]
