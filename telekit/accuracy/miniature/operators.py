"""The operators of a dense transformer, each with its gradient written out; arrays are ``[dp, cp, tp, ...]``."""

from __future__ import annotations

import numpy as np

from telekit.accuracy.miniature.mesh import Array
from telekit.accuracy.miniature.tape import Operator, Tape


def _flat(x: Array) -> Array:
    """Rows of features of each rank: (dp, cp, tp, rows, features)."""
    return x.reshape(*x.shape[:3], -1, x.shape[-1])


def _linear(tape: Tape, x: Array, weight: Array) -> Array:
    return (_flat(x) @ weight.swapaxes(-1, -2)).reshape(*x.shape[:-1], weight.shape[-2])


def _linear_back(tape: Tape, grad: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    rows = _flat(grad)
    return (rows @ weight).reshape(x.shape), rows.swapaxes(-1, -2) @ _flat(x)


LINEAR = Operator(_linear, _linear_back)
"""``x @ weight.T``; weight as torch keeps it, (out, in)."""
WIDE_LINEAR = Operator(_linear, _linear_back, wide=True)


def _add(tape: Tape, a: Array, b: Array) -> Array:
    return a + b


ADD = Operator(_add, lambda tape, grad, a, b: (grad, grad))


def _per_rank(weight: Array, like: Array) -> Array:
    """Put a vector of each rank beside its rows."""
    return weight.reshape(*weight.shape[:3], *(1,) * (like.ndim - 4), weight.shape[-1])


def _rms_norm(tape: Tape, x: Array, weight: Array, *, eps: float) -> Array:
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return np.asarray(x * scale * _per_rank(weight, x))


def _rms_norm_back(tape: Tape, grad: Array, x: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    normed = x * scale
    inner = grad * _per_rank(weight, x)
    of_x = scale * (inner - normed * np.mean(inner * normed, axis=-1, keepdims=True))
    return of_x, _flat(grad * normed).sum(axis=3)


RMS_NORM = Operator(_rms_norm, _rms_norm_back)


def _swiglu(tape: Tape, x: Array) -> Array:
    gate, up = np.split(x, 2, axis=-1)
    return np.asarray(gate / (1 + np.exp(-gate)) * up)


def _swiglu_back(tape: Tape, grad: Array, x: Array) -> tuple[Array]:
    gate, up = np.split(x, 2, axis=-1)
    sigmoid = 1 / (1 + np.exp(-gate))
    of_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    return (np.concatenate([of_gate, grad * gate * sigmoid], axis=-1),)


SWIGLU = Operator(_swiglu, _swiglu_back)
"""``silu(gate) * up`` of ``[gate; up]``."""


def _turn(x: Array, positions: Array, base: float, sign: float) -> Array:
    half = x.shape[-1] // 2
    angle = positions[..., None] * base ** (-np.arange(half) / half)
    shape = (1, angle.shape[0], 1, 1, angle.shape[1], 1, half)
    cos, sin = (f(angle).astype(x.dtype).reshape(shape) for f in (np.cos, np.sin))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - sign * b * sin, b * cos + sign * a * sin], axis=-1)


def _rotary(tape: Tape, q: Array, k: Array, *, positions: Array, base: float) -> tuple[Array, Array]:
    return _turn(q, positions, base, 1), _turn(k, positions, base, 1)


def _rotary_back(
    tape: Tape, grads: tuple[Array, Array], q: Array, k: Array, *, positions: Array, base: float
) -> tuple[Array, Array]:
    return _turn(grads[0], positions, base, -1), _turn(grads[1], positions, base, -1)


ROTARY = Operator(_rotary, _rotary_back)
"""Turns the first half of a head against the second; positions (cp, tokens of a rank)."""


def _split_qkv(tape: Tape, x: Array, *, groups: int, size: int) -> tuple[Array, Array, Array]:
    parts = x.reshape(*x.shape[:-1], groups, -1, size)
    q = np.ascontiguousarray(parts[..., :-2, :]).reshape(*x.shape[:-1], -1, size)
    return q, np.ascontiguousarray(parts[..., -2, :]), np.ascontiguousarray(parts[..., -1, :])


def _split_qkv_back(
    tape: Tape, grads: tuple[Array, Array, Array], x: Array, *, groups: int, size: int
) -> tuple[Array]:
    q, k, v = grads
    parts = [q.reshape(*q.shape[:-2], groups, -1, size), k[..., None, :], v[..., None, :]]
    return (np.concatenate(parts, axis=-2).reshape(x.shape),)


SPLIT_QKV = Operator(_split_qkv, _split_qkv_back)
"""Takes apart what Megatron-Core's linear_qkv makes: for each group its queries, its key, its value."""


def _merge_heads(tape: Tape, x: Array) -> Array:
    return x.reshape(*x.shape[:-2], -1)


MERGE_HEADS = Operator(_merge_heads, lambda tape, grad, x: (grad.reshape(x.shape),))


def _one_hot(tape: Tape, tokens: Array, vocabulary: int) -> Array:
    """Rows (dp, cp, tp, tokens, entries of a rank); all zero where another rank has the token."""
    first = np.arange(tape.layout.tp)[:, None, None] * vocabulary
    rows = tokens.reshape(*tokens.shape[:3], -1, 1) - first
    return np.asarray(rows == np.arange(vocabulary), tape.mesh.dtype)


def _embedding(tape: Tape, weight: Array, *, tokens: Array) -> Array:
    found = _one_hot(tape, tokens, weight.shape[-2]) @ weight
    return found.reshape(*tokens.shape, weight.shape[-1])


def _embedding_back(tape: Tape, grad: Array, weight: Array, *, tokens: Array) -> tuple[Array]:
    return (_one_hot(tape, tokens, weight.shape[-2]).swapaxes(-1, -2) @ _flat(grad),)


EMBEDDING = Operator(_embedding, _embedding_back)
"""Each rank looks up what its part of the vocabulary has; the sum over tp is the embedding."""


def _cross_entropy(tape: Tape, logits: Array, *, labels: Array) -> tuple[Array, Array]:
    at, wide = tape.at, tape.mesh.wide
    own = _one_hot(tape, labels, logits.shape[-1]).reshape(logits.shape)
    largest = tape.collective("all_reduce_max", "tp", logits.max(axis=-1), wide)
    powers = np.exp(logits - largest[..., None])
    tape.at = f"{at}.predicted"
    predicted = tape.collective("all_reduce", "tp", (logits * own).sum(axis=-1), wide)
    tape.at = f"{at}.sum_exp"
    total = tape.collective("all_reduce", "tp", powers.sum(axis=-1), wide)
    return np.asarray(np.log(total) + largest - predicted), powers / total[..., None] - own


def _cross_entropy_back(
    tape: Tape, grad: Array, logits: Array, *, labels: Array, saved: Array
) -> tuple[Array]:
    return (saved * grad[..., None],)


CROSS_ENTROPY = Operator(_cross_entropy, _cross_entropy_back, wide=True, saves=True)
"""Of each token, over a vocabulary split over tp."""


def _mean(tape: Tape, losses: Array, *, tokens: int) -> Array:
    return np.asarray(losses.sum(axis=(3, 4)) / tokens)


def _mean_back(tape: Tape, grad: Array, losses: Array, *, tokens: int) -> tuple[Array]:
    return (np.broadcast_to(grad[..., None, None] / tokens, losses.shape).astype(losses.dtype),)


MEAN = Operator(_mean, _mean_back, wide=True)
"""A rank's share of the mean over all tokens of the global batch."""
