"""What mixing tokens costs beyond its projections: keys that a query meets, and the FLOPs of each kind of mixer.

All are forward FLOPs per token, averaged over a sequence (a document, where attention stays inside documents).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from telekit.model.attention import (
    CompressedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    KimiDeltaAttention,
    LightningAttention,
    Mamba2,
    MultiHeadLatentAttention,
)

AttentionCount = Literal["causal", "full"]
MlaForm = Literal["expanded", "absorbed"]


def mean_keys(seq_len: int, window: int | None = None, attention: AttentionCount = "causal",
              chunk: int | None = None) -> float:  # fmt: skip
    """Keys that a query meets, on average over a sequence.

    Parameters
    ----------
    seq_len : int
        Tokens of the sequence (of the document, where attention stays inside documents).
    window : int, optional
        Keys a query may see, itself included; None for all before it. A sparse choice of the best ``k`` keys
        meets as many as a window of ``k`` does.
    attention : {"causal", "full"}
        Whether the keys after the query are left out.
    chunk : int, optional
        Queries see keys of their own chunk only.

    Returns
    -------
    float
        ``(s + 1) / 2`` without a window; ``w - w (w - 1) / (2 s)`` with one shorter than the sequence.
    """
    if chunk is not None and chunk < seq_len:
        whole, rest = divmod(seq_len, chunk)
        inside = whole * chunk * mean_keys(chunk, window, attention)
        last = rest * mean_keys(rest, window, attention) if rest else 0.0
        return (inside + last) / seq_len
    width = seq_len if window is None else min(window, seq_len)
    if attention == "full":
        return float(width)
    return width - width * (width - 1) / (2 * seq_len)


def mean_blocks(seq_len: int, ratio: int, most: int | None = None,
                attention: AttentionCount = "causal") -> float:  # fmt: skip
    """Compressed blocks of ``ratio`` tokens that a query meets, on average: those complete at its place.

    Parameters
    ----------
    seq_len, ratio : int
        Tokens of the sequence and of one block.
    most : int, optional
        Blocks that are chosen at most.
    attention : {"causal", "full"}
        Whether blocks that end after the query are left out.
    """
    blocks = seq_len // ratio
    limit = blocks if most is None else min(most, blocks)
    if attention == "full":
        return float(limit)
    # the query at place i (from 1) has i // ratio complete blocks: sum min(limit, i // ratio) over the places
    rising = ratio * limit * (limit - 1) // 2
    return (rising + limit * (seq_len - ratio * limit + 1)) / seq_len


def mixer_flops(spec: Any, seq_len: int, attention: AttentionCount = "causal",
                mla: MlaForm = "expanded") -> float:  # fmt: skip
    """Forward FLOPs per token of one layer's token mixer, its projections apart.

    Softmax attention: the products with keys and with values. Linear attention and state-space layers: the
    recurrence, which grows with the state and not with the sequence; their kernels, which work in chunks, do
    more. ``mla="absorbed"`` counts latent attention as multi-query attention over the latent vectors, with the
    up-projection folded into queries and outputs (the projections then cost what they cost expanded).
    """
    count = _MIXERS.get(spec.kind)
    return count(spec, seq_len, attention, mla) if count else 0.0


def _pairs(heads: int, widths: int, keys: float) -> float:
    return 2 * heads * widths * keys


def scored_keys(spec: Any, seq_len: int, attention: AttentionCount = "causal") -> float:
    """Keys, or compressed blocks, that an indexer scores for a query, on average; 0 without one of its own."""
    if getattr(spec, "indexer", None) is None or not spec.indexer.own:
        return 0.0
    if spec.kind == "mla":
        return mean_keys(seq_len, None, attention)
    return mean_blocks(seq_len, spec.compress_ratio, None, attention) if spec.compress_ratio else 0.0


def indexer_flops(spec: Any, seq_len: int, attention: AttentionCount = "causal") -> float:
    """Part of :func:`mixer_flops` that chooses keys: one product a head with every key, and their weighted sum."""
    keys = scored_keys(spec, seq_len, attention)
    return 2 * spec.indexer.heads * (spec.indexer.head_dim + 1) * keys if keys else 0.0


def _grouped(a: GroupedQueryAttention, seq_len: int, attention: AttentionCount, mla: MlaForm) -> float:
    keys = mean_keys(seq_len, a.window, attention, a.chunk)
    return _pairs(a.heads, a.head_dim + a.value_dim, keys)


def _latent(a: MultiHeadLatentAttention, seq_len: int, attention: AttentionCount, mla: MlaForm) -> float:
    chosen = a.indexer.top_k if a.indexer else None
    widths = a.qk_head_dim + a.v_head_dim
    if mla == "absorbed":
        widths = 2 * a.kv_lora_rank + a.qk_rope_head_dim
    keys = mean_keys(seq_len, chosen, attention)
    return _pairs(a.heads, widths, keys) + indexer_flops(a, seq_len, attention)


def _compressed(a: CompressedAttention, seq_len: int, attention: AttentionCount, mla: MlaForm) -> float:
    keys = mean_keys(seq_len, a.window, attention)
    if a.compress_ratio:
        chosen = a.indexer.top_k if a.indexer else None
        keys += mean_blocks(seq_len, a.compress_ratio, chosen, attention)
    return _pairs(a.heads, 2 * a.head_dim, keys) + indexer_flops(a, seq_len, attention)


DELTA_RULE = 7
"""FLOPs for each number of a delta rule's state: decay 1, what the key recalls 2, write 2, read 2."""
DECAYED = 5
"""FLOPs for each number of a state that only decays (Mamba-2, lightning attention): decay 1, write 2, read 2."""


def _state(a: Any, *_: Any) -> float:
    if isinstance(a, GatedDeltaNet):
        return DELTA_RULE * a.value_heads * a.key_head_dim * a.value_head_dim
    if isinstance(a, KimiDeltaAttention):
        return DELTA_RULE * a.heads * a.head_dim**2
    if isinstance(a, LightningAttention):
        return DECAYED * a.heads * a.head_dim**2
    assert isinstance(a, Mamba2)
    return DECAYED * a.heads * a.head_dim * a.state_size


_MIXERS: dict[str, Callable[[Any, int, AttentionCount, MlaForm], float]] = {
    "gqa": _grouped,
    "mla": _latent,
    "compressed": _compressed,
    "gated-delta": _state,
    "kda": _state,
    "lightning": _state,
    "mamba2": _state,
}
