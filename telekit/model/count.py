"""The size of a model in one answer: parameters by component, and FLOPs per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from telekit.model.config import ModelConfig
from telekit.model.flops import (
    AttentionCount,
    check_convention,
    forward_flops_per_token,
    training_flops_per_token,
)
from telekit.model.huggingface import load_model
from telekit.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    norm_parameters,
)

CONVENTION = (
    "total: each stored parameter once, without MTP modules and vision towers; active: what one token meets, "
    "input embedding and head included (a tied matrix once); FLOPs: 2 for each number of a matrix a token is "
    "multiplied by and attention over {keys}, head included, embedding look-up, norms and MTP not; training "
    "is 3 forward passes, without recompute"
)
KEYS = {"causal": "the keys before it, (s + 1) / 2 on average", "full": "all keys of the sequence or window"}


@dataclass(frozen=True)
class Count:
    """Parameters and FLOPs of one model.

    Parameters
    ----------
    total : int
        Stored parameters, without MTP modules and vision towers.
    active, active_without_input_embedding : int
        What one token meets, with input embedding and head; and without the input embedding, save where it is
        the head. Published counts use either.
    mtp, vision : int
        Apart from the total.
    by_component : dict of str to int
        Its parts; they sum to ``total``.
    forward_flops_per_token, training_flops_per_token : float
        Without MTP, by :attr:`convention`.
    """

    name: str
    total: int
    active: int
    active_without_input_embedding: int
    mtp: int
    vision: int
    by_component: Mapping[str, int]
    forward_flops_per_token: float
    training_flops_per_token: float
    seq_len: int
    attention: AttentionCount
    convention: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return asdict(self)


def count(
    model: ModelConfig | str | Path | Mapping[str, Any],
    seq_len: int = 4096,
    attention: AttentionCount = "causal",
) -> Count:
    """Count a model: exact parameters by component, and FLOPs per token of a sequence.

    Parameters
    ----------
    model : ModelConfig, str, Path or mapping
        A model, or anything :func:`~telekit.model.huggingface.load_model` reads.
    seq_len : int
        Tokens of a sequence.
    attention : {"causal", "full"}
        Whether the keys after a query are left out of the FLOPs.

    Raises
    ------
    InputError
        What ``load_model`` refuses; a sequence length or convention that means nothing.
    """
    check_convention(seq_len, attention)
    model = load_model(model)
    parts, idle = _components(model)
    active = sum(parts.values()) - idle
    input_only = 0 if model.tied_embeddings else model.hidden_size * model.vocab_size
    return Count(
        name=model.name,
        total=sum(parts.values()),
        active=active,
        active_without_input_embedding=active - input_only,
        mtp=mtp_parameters(model),
        vision=0,
        by_component=parts,
        forward_flops_per_token=forward_flops_per_token(model, seq_len, attention=attention),
        training_flops_per_token=training_flops_per_token(model, seq_len, attention=attention),
        seq_len=seq_len,
        attention=attention,
        convention=CONVENTION.format(keys=KEYS[attention]),
    )


def _components(model: ModelConfig) -> tuple[dict[str, int], int]:
    """Parameters by component, and those of them that one token does not meet."""
    parts = dict.fromkeys(("attention", "mlp", "shared_experts", "experts", "router", "norms"), 0)
    idle = 0
    for index, layers in Counter(model.pattern).items():
        layer = layer_parameters(model, model.kinds[index])
        for name in parts:
            parts[name] += layers * getattr(layer, name)
        idle += layers * (layer.experts - layer.experts_active)
    parts["norms"] += norm_parameters(model)
    return {"embedding": embedding_parameters(model), **parts, "head": head_parameters(model)}, idle
