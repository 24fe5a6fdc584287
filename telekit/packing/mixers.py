"""What mixing tokens takes for documents of any length, many at once: pairs of queries and keys, and their time.

The operators of a layer say what one sequence takes. Their arithmetic is a number for each pair of a query and a key
that it meets (or for each token, of a recurrence), their traffic one for each token and one for each pair; both numbers
are read off the operators, so that only the pairs of a document are counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig, Device
from telekit.model.config import LayerKind, ModelConfig
from telekit.operators.efficiency import times_s
from telekit.operators.layer import Operator, layer_operators
from telekit.packing.inputs import Floats, Ints
from telekit.training.config import TrainConfig

Counting = Callable[[Any], Any]
MIXING = "attention"
"""Kind of the operators that mix tokens; all others cost the same for every token."""
REFERENCE = 2**20
"""Tokens of the sequence that numbers are read off at: every kind of mixer has long met all that it meets."""


def causal_pairs(lengths: Any, window: int | None = None, chunk: int | None = None) -> Any:
    """Pairs of queries and keys of documents, exact integers; the mean of a query is ``attention_flops.mean_keys``.

    Parameters
    ----------
    lengths : int array
        Tokens of each document.
    window, chunk : int, optional
        Keys a query sees at most, itself included; tokens of a chunk that it sees no keys outside of.
    """
    if chunk is not None:
        whole, rest = np.divmod(lengths, chunk)
        return whole * causal_pairs(np.int64(chunk), window) + causal_pairs(rest, window)
    near = lengths if window is None else np.minimum(lengths, window)
    return lengths * near - near * (near - 1) // 2


def block_pairs(lengths: Any, ratio: int, most: int | None = None) -> Any:
    """Pairs of queries and complete blocks of ``ratio`` tokens, ``most`` blocks a query at most; exact integers."""
    blocks = lengths // ratio
    limit = blocks if most is None else np.minimum(blocks, most)
    return ratio * limit * (limit - 1) // 2 + limit * (lengths - ratio * limit + 1)


def counting(name: str, spec: Any) -> tuple[Counting, str]:
    """How an operator's pairs follow from a document's length, and in words how they grow."""
    indexer = getattr(spec, "indexer", None)
    if name == "recurrence":
        return (lambda n: n), "tokens"
    if spec.kind == "mla":
        most = indexer.top_k if indexer and name == "core_attention" else None
        return (lambda n: causal_pairs(n, most)), _words(most, None)
    if spec.kind == "gqa":
        return (lambda n: causal_pairs(n, spec.window, spec.chunk)), _words(spec.window, spec.chunk)
    ratio = spec.compress_ratio
    if name != "core_attention":
        return (lambda n: block_pairs(n, ratio) if ratio else 0 * n), f"blocks of {ratio} tokens"
    if not ratio:
        return (lambda n: causal_pairs(n, spec.window)), _words(spec.window, None)
    most = indexer.top_k if indexer else None
    words = f"{_words(spec.window, None)} and blocks of {ratio} tokens{f', {most} at most' if most else ''}"
    return (lambda n: causal_pairs(n, spec.window) + block_pairs(n, ratio, most)), words


def _words(window: int | None, chunk: int | None) -> str:
    near = "all keys before" if window is None else f"{window} keys before at most"
    return near if chunk is None else f"{near}, in chunks of {chunk}"


@dataclass(frozen=True)
class Direction:
    """Seconds of one pass: arithmetic for each pair; traffic for each token and for each pair.

    A document of up to ``most_keys`` tokens computes as if each query met ``more_keys`` more: short rows keep kernels
    from their rate.
    """

    pair_s: float
    token_traffic_s: float
    pair_traffic_s: float
    more_keys: float = 0.0
    most_keys: float = np.inf

    def seconds(self, lengths: Any, pairs: Any) -> Any:
        """Time of each document: its arithmetic or its traffic with memory, whichever is longer."""
        traffic = self.token_traffic_s * lengths + self.pair_traffic_s * pairs
        more = 1.0 + self.more_keys / np.minimum(lengths, self.most_keys)
        return np.maximum(self.pair_s * more * pairs, traffic)


@dataclass(frozen=True)
class Mixer:
    """One operator that mixes tokens, for one document on one device of a stage.

    Parameters
    ----------
    name : str
        The operator.
    grows : str
        What a query meets, in words.
    modules : tuple of str
        Recompute modules it is part of.
    pairs : callable
        Pairs of documents of given lengths.
    forward, backward : Direction
        Seconds of the two passes.
    """

    name: str
    grows: str
    modules: tuple[str, ...]
    pairs: Counting
    forward: Direction
    backward: Direction

    def seconds(self, lengths: Ints) -> tuple[Floats, Floats]:
        """Forward and backward time of each document."""
        pairs = self.pairs(lengths)
        return self.forward.seconds(lengths, pairs), self.backward.seconds(lengths, pairs)


def mixers(
    model: ModelConfig, kind: LayerKind, cluster: ClusterConfig, train: TrainConfig, layout: Any
) -> tuple[Mixer, ...]:
    """Mixers of one layer; their numbers are read off its operators for a long sequence, and for a single token."""
    one = layout.model_copy(update={"micro_batch": 1})
    long, short = (
        [op for op in layer_operators(model, kind, t, one) if op.kind == MIXING]
        for t in (train.model_copy(update={"seq_len": n}) for n in (REFERENCE, 1))
    )
    found = []
    for op, single in zip(long, short, strict=True):
        pairs, grows = counting(op.name, kind.attention)
        met = float(pairs(np.int64(REFERENCE))), float(pairs(np.int64(1)))
        forward, backward = (_direction(side, op, single, met, cluster, train) for side in (0, 1))
        found.append(Mixer(op.name, grows, op.modules, pairs, forward, backward))
    return tuple(found)


def _direction(
    side: int,
    op: Operator,
    single: Operator,
    met: tuple[float, float],
    cluster: ClusterConfig,
    train: TrainConfig,
) -> Direction:
    kernels = cluster.device.kernels
    endless = kernels.model_copy(update={"launch_s": 0.0, "attention_half_keys": 0.0})
    device = cluster.device.model_copy(update={"kernels": endless})
    idle = replace(op, forward_bytes=0.0, backward_bytes=0.0)
    arithmetic = float(times_s(idle, device, train)[side])
    long, short = (_traffic_s(o, device, train)[side] for o in (op, single))
    keys, keys_of_one = met[0] / REFERENCE, met[1]
    pair_traffic = 0.0
    if keys > keys_of_one and abs(long / REFERENCE - short) > 1e-12 * short:
        pair_traffic = (long / REFERENCE - short) / (keys - keys_of_one)
    token_traffic = long / REFERENCE - pair_traffic * keys
    pair = arithmetic / met[0] if met[0] else 0.0
    if not op.keys:
        return Direction(pair, token_traffic, pair_traffic)
    split = 1.0 / float(single.keys)  # ranks among which a sequence is split
    return Direction(
        pair, token_traffic, pair_traffic, kernels.attention_half_keys * split, float(op.keys) * split
    )


def _traffic_s(op: Operator, device: Device, train: TrainConfig) -> tuple[float, float]:
    moved = times_s(replace(op, forward_flops=0.0, backward_flops=0.0), device, train)
    return float(moved[0]), float(moved[1])
