"""Exact parameter counts, as the checkpoint has them: Python ints, by component.

Each count can be asked for matrices only, which is what a token is multiplied by: norms, biases, attention
sinks and the router's load-balancing bias are vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from telekit.model.config import LayerKind, ModelConfig
from telekit.model.tensors import Tensor, layer_tensors, mtp_tensors, trunk_tensors


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
    latent : int
        Projections into and out of the width that the experts work on, where that is not the hidden width.
    router : int
        Its matrices, biases and scales, and the shared experts' gate.
    norms : int
        Norms of the residual stream.
    residual : int
        What mixes several residual streams, or per-layer embeddings, into the block.
    """

    attention_sharded: int = 0
    attention_replicated: int = 0
    mlp: int = 0
    shared_experts: int = 0
    experts: int = 0
    experts_active: int = 0
    latent: int = 0
    router: int = 0
    norms: int = 0
    residual: int = 0

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
            self.attention + self.mlp + self.shared_experts + self.experts_active
            + self.latent + self.router + self.norms + self.residual
        )  # fmt: skip


def layer_parameters(model: ModelConfig, kind: LayerKind, *, matrices_only: bool = False) -> LayerParameters:
    """Parameters of one block of ``kind``."""
    return _summed(layer_tensors(model, kind), matrices_only)


def mtp_layer(model: ModelConfig, *, matrices_only: bool = False) -> LayerParameters:
    """One multi-token-prediction module; its projection is counted with the ``mlp``."""
    return _summed(mtp_tensors(model), matrices_only)


def _summed(tensors: Iterable[Tensor], matrices_only: bool) -> LayerParameters:
    sums = dict.fromkeys(LayerParameters.__dataclass_fields__, 0)
    for t in tensors:
        if matrices_only and not t.multiplied:
            continue
        if t.component == "attention":
            sums["attention_sharded" if t.split else "attention_replicated"] += t.size
            continue
        sums[t.component] += t.copies * t.size
        if t.component == "experts":
            sums["experts_active"] += t.active * t.size
    return LayerParameters(**sums)


def norm_parameters(model: ModelConfig) -> int:
    """One norm of the residual stream: its weight, and its bias if it has one."""
    return model.hidden_size * (2 if model.norm_bias else 1)


def trunk_parameters(model: ModelConfig, *, matrices_only: bool = False) -> LayerParameters:
    """Count what stands outside blocks, embeddings and head: the final norm, and what an odd trunk adds."""
    return _summed(trunk_tensors(model), matrices_only)


def embedding_parameters(model: ModelConfig) -> int:
    """Input embedding, with learned positions and per-layer embeddings where there are any."""
    found = model.hidden_size * (model.vocab_size + model.learned_positions)
    if model.per_layer_inputs:
        found += model.per_layer_inputs.vocab_size * model.per_layer_inputs.width * model.num_layers
    return found


def head_parameters(model: ModelConfig) -> int:
    """Output head; no matrix of its own when it is the input embedding."""
    matrix = 0 if model.tied_embeddings else model.hidden_size * model.vocab_size
    return matrix + model.head_bias * model.vocab_size


def mtp_parameters(model: ModelConfig) -> int:
    """All multi-token-prediction modules together."""
    return model.mtp_layers * mtp_layer(model).total
