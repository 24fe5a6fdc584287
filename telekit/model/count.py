"""The size of a model in one answer: parameters by component, and FLOPs per token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from telekit.model.config import ModelConfig
from telekit.model.flops import (
    AttentionCount,
    check_convention,
    forward_flops_per_token,
    training_flops_per_token,
)
from telekit.model.huggingface import Reading, read_model
from telekit.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    trunk_parameters,
)
from telekit.model.unread import printable

CONVENTION = (
    "total: each stored parameter once, without MTP modules and vision towers; active: what one token meets, "
    "input embedding and head included (a tied matrix once); FLOPs: 2 for each number of a matrix a token is "
    "multiplied by and attention over {keys}, head included, embedding look-up, norms and MTP not; training "
    "is 3 forward passes, without recompute"
)
KEYS = {"causal": "the keys before it, (s + 1) / 2 on average", "full": "all keys of the sequence or window"}
WITHIN = ", inside each document"


_NAMES_ONLY = re.compile(r"(.*\.)?(hidden_act|mlp_hidden_act|hidden_activation|activation_function)")
"""Defaults that change no number here: which activation stands between two matrices."""

_SHAPES = re.compile(
    r"(.*\.)?(model_type|vocab_size\w*|tie_word_embeddings|hidden_size_per_layer_input|interleave_moe_layer_step|"
    r"\w*(heads|experts|experts_per_tok|layers|modules|layer_types|mtp\w*|window|window_pattern|chunk_size|interval|head_dim))"
)
"""Defaults that a reader of the numbers should see: they shape the model, and files that mean otherwise say so."""

PARTS = ("attention", "mlp", "shared_experts", "experts", "latent", "router", "norms", "residual")
ODD = ("latent", "residual")
"""Parts that few models have, told only where there are any."""


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
    mtp : int
        MTP modules, apart from the total.
    vision : int or None
        Always apart from the total: 0 for a text model, None where the file has vision or audio towers, which
        are not counted.
    by_component : dict of str to int
        Its parts; they sum to ``total``.
    forward_flops_per_token, training_flops_per_token : float
        Without MTP, by :attr:`convention`.
    notes : tuple of str
        Which part of a multimodal file was read, and which was not; what the file does not say and shapes the
        model; what else a reader of the numbers should know.
    defaults : dict
        Each field that was absent or null, with the value that was taken, but for choices that change no number.
    ignored : tuple of str
        Fields of unknown meaning that were passed over.
    """

    name: str
    total: int
    active: int
    active_without_input_embedding: int
    mtp: int
    vision: int | None
    by_component: Mapping[str, int]
    forward_flops_per_token: float
    training_flops_per_token: float
    seq_len: int
    attention: AttentionCount
    convention: str
    notes: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


def count(
    model: ModelConfig | Reading | str | Path | Mapping[str, Any],
    seq_len: int = 4096,
    attention: AttentionCount = "causal",
    documents: Sequence[int] = (),
) -> Count:
    """Count a model: exact parameters by component, and FLOPs per token of a sequence.

    Parameters
    ----------
    model : ModelConfig, Reading, str, Path or mapping
        A model, one just read, or anything :func:`~telekit.model.huggingface.load_model` reads.
    seq_len : int
        Tokens of a sequence.
    attention : {"causal", "full"}
        Whether the keys after a query are left out of the FLOPs.
    documents : sequence of int
        Lengths of documents packed into the sequence; attention then stays inside each.

    Raises
    ------
    InputError
        What ``load_model`` refuses; a sequence length or convention that means nothing.
    """
    check_convention(seq_len, attention, documents=documents)
    reading = model if isinstance(model, Reading) else read_model(model)
    model = reading.model
    parts, idle = _components(model)
    active = sum(parts.values()) - idle
    input_only = 0 if model.tied_embeddings else model.hidden_size * model.vocab_size
    return Count(
        name=model.name,
        total=sum(parts.values()),
        active=active,
        active_without_input_embedding=active - input_only,
        mtp=mtp_parameters(model),
        vision=None if reading.towers else 0,
        by_component=parts,
        forward_flops_per_token=forward_flops_per_token(
            model, seq_len, attention=attention, documents=documents
        ),
        training_flops_per_token=training_flops_per_token(
            model, seq_len, attention=attention, documents=documents
        ),
        seq_len=seq_len,
        attention=attention,
        convention=CONVENTION.format(keys=KEYS[attention] + (WITHIN if documents else "")),
        notes=_notes(reading),
        defaults={name: v for name, v in reading.defaults.items() if not _NAMES_ONLY.fullmatch(name)},
        ignored=reading.ignored,
    )


def _notes(reading: Reading) -> tuple[str, ...]:
    found = []
    if reading.within:
        found.append(f"counted: the text model, {reading.within} of a multimodal file")
    if reading.towers:
        found.append(f"not counted: {', '.join(reading.towers)}, and what joins them to the text model")
    filled = _filled(reading)
    if filled:
        found.append(f"not said by the file, and taken as: {', '.join(filled)}")
    return (*found, *reading.notes)


def _filled(reading: Reading) -> list[str]:
    """Defaults that shape the model, but for widths of heads that are the hidden width over the heads."""
    model = reading.model
    usual = {model.hidden_size // k.attention.heads for k in model.kinds if k.attention.heads}
    return [
        f"{name} = {printable(value)}"
        for name, value in reading.defaults.items()
        if value and _SHAPES.fullmatch(name) and not (name.endswith("head_dim") and value in usual)
    ]


def _components(model: ModelConfig) -> tuple[dict[str, int], int]:
    """Parameters by component, and those of them that one token does not meet."""
    parts = dict.fromkeys(PARTS, 0)
    idle = 0
    for index, layers in Counter(model.pattern).items():
        layer = layer_parameters(model, model.kinds[index])
        for name in parts:
            parts[name] += layers * getattr(layer, name)
        idle += layers * (layer.experts - layer.experts_active)
    trunk = trunk_parameters(model)
    parts = {name: size + getattr(trunk, name) for name, size in parts.items()}
    parts = {name: size for name, size in parts.items() if size or name not in ODD}
    return {"embedding": embedding_parameters(model), **parts, "head": head_parameters(model)}, idle
