"""Exact parameter counts, as the checkpoint has them: Python ints, by component.

Each count can be asked for matrices only, which is what a token is multiplied by: norms, biases, attention
sinks and the router's load-balancing bias are vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from telekit.model.config import (
    FeedForward,
    GroupedQueryAttention,
    LayerKind,
    MixtureOfExperts,
    ModelConfig,
    MultiHeadLatentAttention,
)


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one block, by what becomes of them in parallel.

    Parameters
    ----------
    attention_sharded : int
        Divided by tensor parallelism: projections that are split by heads, their biases, sinks.
    attention_replicated : int
        Whole on each tensor rank: latent attention's down-projections and their norms, norms of queries and
        keys, the output projection's bias.
    mlp : int
        Dense feed-forward block with its biases, divided by tensor parallelism (but for the last bias, of
        ``hidden_size`` numbers, which in truth is whole on each rank).
    shared_experts : int
        Experts that every token meets.
    experts, experts_active : int
        All routed experts, and the ``top_k`` of them that one token meets.
    router : int
        Its matrix and biases.
    norms : int
        Norms of the residual stream.
    """

    attention_sharded: int
    attention_replicated: int
    mlp: int = 0
    shared_experts: int = 0
    experts: int = 0
    experts_active: int = 0
    router: int = 0
    norms: int = 0

    @property
    def attention(self) -> int:
        """Both parts of the attention."""
        return self.attention_sharded + self.attention_replicated

    @property
    def total(self) -> int:
        """Everything that is stored."""
        return self.active - self.experts_active + self.experts

    @property
    def active(self) -> int:
        """What one token meets."""
        return (
            self.attention + self.mlp + self.shared_experts + self.experts_active + self.router + self.norms
        )


def layer_parameters(model: ModelConfig, kind: LayerKind, *, matrices_only: bool = False) -> LayerParameters:
    """Parameters of one block of ``kind`` (latent attention: arXiv 2412.19437, section 2.1.1)."""
    vectors = 0 if matrices_only else 1
    hidden, mlp = model.hidden_size, kind.mlp
    if isinstance(kind.attention, MultiHeadLatentAttention):
        sharded, replicated = _latent(hidden, kind.attention, vectors)
    else:
        sharded, replicated = _grouped(hidden, kind.attention, vectors)
    attention = LayerParameters(sharded, replicated, norms=vectors * kind.norms * norm_parameters(model))
    if isinstance(mlp, FeedForward):
        return replace(attention, mlp=_dense(hidden, mlp, vectors))
    return replace(attention, **_experts(hidden, mlp, vectors))


def norm_parameters(model: ModelConfig) -> int:
    """One norm of the residual stream: its weight, and its bias if it has one."""
    return model.hidden_size * (2 if model.norm_bias else 1)


def embedding_parameters(model: ModelConfig) -> int:
    """Input embedding, and learned positions where there are any."""
    return model.hidden_size * (model.vocab_size + model.learned_positions)


def head_parameters(model: ModelConfig) -> int:
    """Output head; none of its own when it is the input embedding."""
    return 0 if model.tied_embeddings else model.hidden_size * model.vocab_size


def mtp_layer(model: ModelConfig, *, matrices_only: bool = False) -> LayerParameters:
    """One multi-token-prediction module: a block of the last kind, a projection and three norms.

    The projection, 2 hidden -> hidden, is counted with the ``mlp`` and like it divided by tensor parallelism.
    Embedding and head are the model's own (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    block = layer_parameters(model, model.layers[-1], matrices_only=matrices_only)
    norms = 0 if matrices_only else 3 * norm_parameters(model)
    return replace(block, mlp=block.mlp + 2 * model.hidden_size**2, norms=block.norms + norms)


def mtp_parameters(model: ModelConfig) -> int:
    """All multi-token-prediction modules together."""
    return model.mtp_layers * mtp_layer(model).total


def _grouped(hidden: int, a: GroupedQueryAttention, vectors: int) -> tuple[int, int]:
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    sharded = hidden * (queries + 2 * keys) + queries * hidden
    sharded += vectors * (a.qkv_bias * (queries + 2 * keys) + a.sinks * a.heads)
    norms = {"none": 0, "head": 2 * a.head_dim, "full": queries + keys}[a.qk_norm]
    return sharded, vectors * (norms + a.output_bias * hidden)


def _latent(hidden: int, a: MultiHeadLatentAttention, vectors: int) -> tuple[int, int]:
    queries = a.heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
    sharded = a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim) + a.heads * a.v_head_dim * hidden
    replicated = hidden * (a.kv_lora_rank + a.qk_rope_head_dim) + vectors * a.kv_lora_rank
    if a.q_lora_rank is None:
        return sharded + hidden * queries, replicated
    return sharded + a.q_lora_rank * queries, replicated + (hidden + vectors) * a.q_lora_rank


def _dense(hidden: int, mlp: FeedForward, vectors: int) -> int:
    inputs = 2 if mlp.gated else 1
    biases = mlp.bias * inputs * mlp.ffn_hidden_size + (mlp.bias or mlp.down_bias) * hidden
    return (inputs + 1) * hidden * mlp.ffn_hidden_size + vectors * biases


def _experts(hidden: int, moe: MixtureOfExperts, vectors: int) -> dict[str, int]:
    inputs = 2 if moe.gated else 1
    biases = vectors * moe.expert_bias * (inputs * moe.expert_ffn_hidden_size + hidden)
    one = (inputs + 1) * hidden * moe.expert_ffn_hidden_size + biases
    router_biases = vectors * (moe.router_bias + moe.correction_bias)
    return {
        "shared_experts": (inputs + 1) * hidden * moe.shared_ffn_hidden_size,
        "experts": moe.num_experts * one,
        "experts_active": moe.top_k * one,
        "router": moe.num_experts * (hidden + router_biases),
    }
