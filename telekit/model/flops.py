"""FLOPs a token costs, each counting convention a named argument.

Sources differ in four ways, and a table of throughputs means nothing without them:

- ``attention``: ``"causal"`` counts the keys a query really meets, on average ``(s + 1) / 2`` in a sequence
  of ``s`` and as exactly for a window (NVIDIA's tables take ``s / 2``); ``"full"`` counts all ``s``, or the
  whole window, as Megatron's papers do.
- ``weights``: ``"matrices"`` counts 2 FLOPs for each number of each matrix that a token is multiplied by;
  ``"parameters"`` counts 2 for each active parameter save the input embedding (the rule ``6 N``), norms and
  biases included.
- ``recompute``: ``"full"`` adds one more forward pass of the blocks, not of the head.
- ``include_head``, ``include_mtp``: the output head; the multi-token-prediction modules with their head.

The backward pass costs twice the forward pass. A look-up in the embedding costs nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from telekit.errors import InputError, Problem
from telekit.model.config import LayerKind, ModelConfig, MultiHeadLatentAttention
from telekit.model.parameters import (
    LayerParameters,
    layer_parameters,
    mtp_layer,
    norm_parameters,
)

AttentionCount = Literal["causal", "full"]
WeightCount = Literal["matrices", "parameters"]
Recompute = Literal["none", "full"]

LONGEST = 10**9


@dataclass(frozen=True)
class LayerFlops:
    """Forward FLOPs per token of one block, by component.

    ``attention_core`` is the two products with keys and values; all the rest is products with weights.
    """

    attention_projections: float
    attention_core: float
    mlp: float
    shared_experts: float
    experts: float
    router: float
    norms: float

    @property
    def total(self) -> float:
        """The whole block."""
        return (
            self.attention_projections
            + self.attention_core
            + self.mlp
            + self.shared_experts
            + self.experts
            + self.router
            + self.norms
        )


def mean_keys(seq_len: int, window: int | None = None, attention: AttentionCount = "causal") -> float:
    """Keys that a query meets, on average over a sequence.

    Parameters
    ----------
    seq_len : int
        Tokens of the sequence (of the document, where attention stays inside documents).
    window : int, optional
        Keys a query may see, itself included; None for all before it.
    attention : {"causal", "full"}
        Whether the keys after the query are left out.

    Returns
    -------
    float
        ``(s + 1) / 2`` without a window; ``w - w (w - 1) / (2 s)`` with one shorter than the sequence.
    """
    width = seq_len if window is None else min(window, seq_len)
    if attention == "full":
        return float(width)
    return width - width * (width - 1) / (2 * seq_len)


def core_flops(kind: LayerKind, seq_len: int, attention: AttentionCount = "causal") -> float:
    """Forward FLOPs per token of the products with keys and with values in one block."""
    spec = kind.attention
    if isinstance(spec, MultiHeadLatentAttention):
        width = spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
    else:
        width = 2 * spec.head_dim
    return 2 * spec.heads * width * mean_keys(seq_len, spec.window, attention)


def layer_flops(model: ModelConfig, kind: LayerKind, seq_len: int, attention: AttentionCount = "causal",
                weights: WeightCount = "matrices") -> LayerFlops:  # fmt: skip
    """Forward FLOPs per token of one block."""
    parameters = layer_parameters(model, kind, matrices_only=weights == "matrices")
    return _flops(parameters, core_flops(kind, seq_len, attention))


def head_flops(model: ModelConfig) -> int:
    """Forward FLOPs per token of the output head, tied or not."""
    return 2 * model.hidden_size * model.vocab_size


def mtp_flops(model: ModelConfig, seq_len: int, attention: AttentionCount = "causal",
              weights: WeightCount = "matrices", *, include_head: bool = True) -> float:  # fmt: skip
    """Forward FLOPs per token of all multi-token-prediction modules, each with its pass through the head."""
    module = mtp_layer(model, matrices_only=weights == "matrices")
    block = _flops(module, core_flops(model.layers[-1], seq_len, attention))
    return model.mtp_layers * (block.total + include_head * head_flops(model))


def forward_flops_per_token(model: ModelConfig, seq_len: int, *, attention: AttentionCount = "causal",
                            weights: WeightCount = "matrices", include_head: bool = True,
                            include_mtp: bool = False) -> float:  # fmt: skip
    """FLOPs of one forward pass, per token of a sequence of ``seq_len``.

    Raises
    ------
    InputError
        A sequence length out of bounds, or a convention with no such name.
    """
    check_convention(seq_len, attention, weights)
    total = _blocks(model, seq_len, attention, weights)
    if weights == "parameters":
        total += 2 * (norm_parameters(model) + model.hidden_size * model.learned_positions)
    if include_head:
        total += head_flops(model)
    if include_mtp:
        total += mtp_flops(model, seq_len, attention, weights, include_head=include_head)
    return total


def training_flops_per_token(model: ModelConfig, seq_len: int, *, attention: AttentionCount = "causal",
                             weights: WeightCount = "matrices", recompute: Recompute = "none",
                             include_head: bool = True, include_mtp: bool = False) -> float:  # fmt: skip
    """FLOPs of forward and backward pass, per token of a sequence of ``seq_len``.

    With ``recompute="full"`` that is what the device does (for HFU); without, what the model needs (for MFU).

    Raises
    ------
    InputError
        A sequence length out of bounds, or a convention with no such name.
    """
    check_convention(seq_len, attention, weights, recompute)
    forward = forward_flops_per_token(model, seq_len, attention=attention, weights=weights,
                                      include_head=include_head, include_mtp=include_mtp)  # fmt: skip
    if recompute == "none":
        return 3 * forward
    again = _blocks(model, seq_len, attention, weights)
    if include_mtp:
        again += mtp_flops(model, seq_len, attention, weights, include_head=False)
    return 3 * forward + again


def check_convention(seq_len: int, attention: str, weights: str = "matrices",
                     recompute: str = "none") -> None:  # fmt: skip
    """Refuse a sequence length or a convention that means nothing."""
    problems = []
    if type(seq_len) is not int or not 1 <= seq_len <= LONGEST:
        rule = f"must be a whole number from 1 to {LONGEST:,}"
        problems.append(Problem("seq_len", seq_len, rule, "for example 4096"))
    named = (("attention", attention, AttentionCount), ("weights", weights, WeightCount),
             ("recompute", recompute, Recompute))  # fmt: skip
    for name, value, kind in named:
        if value not in get_args(kind):
            problems.append(Problem(name, value, f"must be one of {', '.join(get_args(kind))}"))
    if problems:
        raise InputError(problems)


def _flops(parameters: LayerParameters, core: float) -> LayerFlops:
    return LayerFlops(
        attention_projections=2 * parameters.attention,
        attention_core=core,
        mlp=2 * parameters.mlp,
        shared_experts=2 * parameters.shared_experts,
        experts=2 * parameters.experts_active,
        router=2 * parameters.router,
        norms=2 * parameters.norms,
    )


def _blocks(model: ModelConfig, seq_len: int, attention: AttentionCount, weights: WeightCount) -> float:
    return sum(
        layers * layer_flops(model, model.kinds[kind], seq_len, attention, weights).total
        for kind, layers in Counter(model.pattern).items()
    )
