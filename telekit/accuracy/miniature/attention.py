"""Causal grouped-query attention over one block of keys or a ring of them.

Queries are (dp, cp, tp, batch, tokens, heads, size), keys and values have groups in place of heads.
"""

from __future__ import annotations

import numpy as np

from telekit.accuracy.miniature.mesh import Array
from telekit.accuracy.miniature.tape import Operator, Tape


def _queries(x: Array, groups: int) -> Array:
    """(..., tokens, heads, size) to (..., groups, heads of a group, tokens, size)."""
    split = x.reshape(*x.shape[:-2], groups, -1, x.shape[-1])
    return np.ascontiguousarray(np.moveaxis(split, -4, -2))


def _from_queries(x: Array) -> Array:
    back = np.moveaxis(x, -2, -4)
    return back.reshape(*back.shape[:-3], -1, back.shape[-1])


def _keys(x: Array) -> Array:
    """(..., tokens, groups, size) to (..., groups, 1, tokens, size)."""
    return np.moveaxis(x, -3, -2)[..., None, :, :]


def _scores(q: Array, k: Array, seen: Array, scale: float) -> Array:
    """Scores, minus infinity where a key is not seen; ``seen`` (cp, queries, keys)."""
    scores = q @ k.swapaxes(-1, -2) * q.dtype.type(scale)
    return np.where(seen[None, :, None, None, None, None], scores, -np.inf)


def _block(q: Array, k: Array, v: Array, seen: Array, scale: float) -> tuple[Array, Array]:
    """Output and log-sum-exp of one block of keys; a row that sees none of it gives zero and minus infinity."""
    scores = _scores(q, k, seen, scale)
    largest = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = powers.sum(axis=-1, keepdims=True)
    return (powers @ v) / np.where(total > 0, total, 1), np.log(total) + largest


def _blocks(tape: Tape, positions_q: Array, positions_k: Array, offset: int, ring: bool) -> list[Array]:
    """Say what each rank's queries see of the keys that reach it in each step of the ring."""
    steps = tape.layout.cp if ring else 1
    return [
        np.roll(positions_k, j, axis=0)[:, None, :] <= positions_q[:, :, None] + offset for j in range(steps)
    ]


def _attention(tape: Tape, q: Array, k: Array, v: Array, *, scale: float, positions_q: Array, positions_k: Array,
               offset: int, ring: bool, rescale: bool) -> tuple[Array, tuple[Array, Array]]:  # fmt: skip
    """Attend; in step *j* of a ring a rank has the keys of the rank *j* before it, and merges what it gets.

    A query sees keys at positions up to its own plus ``offset``. ``rescale = False`` merges blocks without weighing
    them by their share of the softmax (a fault; right is True).
    """
    queries = _queries(q, k.shape[-2])
    keys, values = _keys(k), _keys(v)
    out = lse = None
    for j, seen in enumerate(_blocks(tape, positions_q, positions_k, offset, ring)):
        of_block, of_lse = _block(queries, np.roll(keys, j, 1), np.roll(values, j, 1), seen, scale)
        if out is None or lse is None:
            out, lse = of_block, of_lse
            continue
        of_block = tape.mesh.round(of_block)
        both = np.logaddexp(lse, of_lse)
        old, new = (np.exp(lse - both), np.exp(of_lse - both)) if rescale else (0.5, 0.5)
        out, lse = tape.mesh.wide(out * old + of_block * new), both
    assert out is not None and lse is not None
    out = tape.mesh.round(out)
    return _from_queries(out), (out, lse)


def _attention_back(tape: Tape, grad: Array, q: Array, k: Array, v: Array, *, scale: float, positions_q: Array,
                    positions_k: Array, offset: int, ring: bool, rescale: bool,
                    saved: tuple[Array, Array]) -> tuple[Array, Array, Array]:  # fmt: skip
    """Gradients of queries where they are; those of keys and values travel with their block and grow at each rank."""
    out, lse = saved
    rnd = tape.mesh.round
    queries, keys, values = _queries(q, k.shape[-2]), _keys(k), _keys(v)
    up = _queries(grad, k.shape[-2])
    delta = (up * out).sum(axis=-1, keepdims=True)
    of_q, of_k, of_v = np.zeros_like(queries), np.zeros_like(keys), np.zeros_like(values)
    for j, seen in enumerate(_blocks(tape, positions_q, positions_k, offset, ring)):
        here_k, here_v = np.roll(keys, j, 1), np.roll(values, j, 1)
        weights = np.exp(_scores(queries, here_k, seen, scale) - lse)
        inner = weights * (up @ here_v.swapaxes(-1, -2) - delta) * up.dtype.type(scale)
        of_q = rnd(of_q + rnd(inner @ here_k))
        made_k = (inner.swapaxes(-1, -2) @ queries).sum(axis=-3, keepdims=True)
        made_v = (weights.swapaxes(-1, -2) @ up).sum(axis=-3, keepdims=True)
        of_k = rnd(of_k + rnd(np.roll(made_k, -j, 1)))
        of_v = rnd(of_v + rnd(np.roll(made_v, -j, 1)))
    back_k, back_v = (np.moveaxis(x[..., 0, :, :], -2, -3) for x in (of_k, of_v))
    return _from_queries(of_q), np.ascontiguousarray(back_k), np.ascontiguousarray(back_v)


ATTENTION = Operator(_attention, _attention_back, saves=True)
