"""A third table of planted faults: done element by element, to attention's scores, and to rotary embeddings.

Most are by a third author who had not read the locator: fresh, all were located and few named. The locator has since
been improved on them; their relatives beside them (other numbers, bases, places) were added with that.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
from planted_faults import CP2, CP2_TP2, DENSE, DP2, FORWARD, PP2, PP2_TP2, SP2, TP2, TP4, Planted, at, of

from telekit.accuracy.causes import finding as f
from telekit.accuracy.miniature import attention as att
from telekit.accuracy.miniature import operators as ops

L0, L1 = "decoder.layers.0", "decoder.layers.1"
CORE, ROTARY = "self_attention.core_attention", "self_attention.rotary"
TURN, BLOCKS = ops._turn, att._blocks
LOST = (f.ZERO, f.LOCAL, f.DROPPED, f.MASK, f.MISSING_TERM)


@contextmanager
def swapped(of, name, value):
    old = getattr(of, name)
    setattr(of, name, value)
    try:
        yield
    finally:
        setattr(of, name, old)


def scores(change):
    """Attention with something done to its scores before the mask and the softmax."""

    def made(q, k, seen, scale):
        s = q @ k.swapaxes(-1, -2) * q.dtype.type(scale)
        heads = np.arange(q.shape[2] * q.shape[4] * q.shape[5])
        heads = heads.reshape(1, 1, q.shape[2], 1, q.shape[4], q.shape[5], 1, 1)
        far = np.arange(q.shape[6])[:, None] - np.arange(k.shape[-2])[None]
        s = change(s, heads, far).astype(q.dtype)
        return np.where(seen[None, :, None, None, None, None], s, -np.inf)

    return partial(swapped, att, "_scores", made)


def packed(tape, pq, pk, offset, ring):
    return [
        s & ((np.roll(pk, j, axis=0)[:, None, :] >= 6) == (pq[:, :, None] >= 6))
        for j, s in enumerate(BLOCKS(tape, pq, pk, offset, ring))
    ]


def first_half(x, positions, base, sign):
    n = x.shape[-1] // 2
    return np.concatenate([TURN(x[..., :n], positions, base, sign), x[..., n:]], -1)


def kept(x, share, seed):
    return (x * (np.random.default_rng(seed).random(x.shape) >= share) / (1 - share)).astype(x.dtype)


def part_rms(e):
    x, w = e.inputs
    s = 1 / np.sqrt(np.mean(x[..., :8] ** 2, -1, keepdims=True) + 1e-5)
    return (x * s * w.reshape(*w.shape[:3], *(1,) * (x.ndim - 4), -1)).astype(x.dtype)


def clamped(e):
    g, u = np.split(e.inputs[0], 2, -1)
    return e.call(np.concatenate([np.minimum(g, 1), np.clip(u, -1, 1)], -1))


def capped_gate(e):
    g, u = np.split(e.inputs[0], 2, -1)
    return e.call(np.concatenate([0.6 * np.tanh(g / 0.6), u], -1))


def biased(e):
    x = e.call()
    b = 0.2 * np.random.default_rng(8).standard_normal((1, 1, x.shape[2], 1, 1, x.shape[-1]))
    return (x + b).astype(x.dtype)


def softcap(e):
    x = e.call()
    return (1.5 * np.tanh(x / 1.5)).astype(x.dtype)


def last_row_gone(e):
    w = e.inputs[0].copy()
    w[..., -1, :] = 0
    return e.call(w)


def transposed(e):
    x = e.call()
    return np.ascontiguousarray(x.swapaxes(3, 4)).reshape(x.shape)


def attention(name, change, causes, layouts=(TP2, DP2)):
    return Planted(name, list, of(0, CORE), FORWARD, causes, layouts, DENSE, patch=scores(change))


def rotary(name, layouts=(DP2, CP2_TP2), **settings):
    make = at("*.rotary_pos_emb*", lambda e: e.call(**{k: v(e.settings[k]) for k, v in settings.items()}))
    return Planted(name, make, of(0, ROTARY), FORWARD, (f.ROTARY,), layouts, DENSE)


def forward(name, point, change, where, causes, layouts, config=DENSE):
    return Planted(name, at(point, change), where, FORWARD, causes, layouts, config)


ACT, EMBEDDING = "mlp.activation_func", "embedding.word_embeddings"
THIRD = (
    attention("scores soft-capped at 1", lambda s, h, d: np.tanh(s), (f.ACTIVATION,)),
    attention("ALiBi left on", lambda s, h, d: s - 2.0 ** (-8 * (h + 1) / h.size) * d, (f.EXTRA_TERM,)),
    attention("a scale of its own for each head", lambda s, h, d: s * (1 + 0.5 * h), (f.SOFTMAX_SCALE,)),
    attention("relative bias left on", lambda s, h, d: s + np.sin(3 * d + h), (f.EXTRA_TERM,)),
    Planted("packed sequences cut at position 6", list, of(0, CORE), FORWARD, (f.MASK,), (DP2, CP2), DENSE,
            patch=partial(swapped, att, "_blocks", packed)),
    Planted("half of each head turned", list, of(0, ROTARY), FORWARD, (f.ROTARY,), (TP2, CP2), DENSE,
            patch=partial(swapped, ops, "_turn", first_half)),
    rotary("positions interpolated by 4", positions=lambda p: p / 4),
    rotary("positions offset by 3", positions=lambda p: p + 3),
    rotary("a rotary base of 500", base=lambda b: 500.0),
    forward("dropout after the activation", f"{L1}.{ACT}", lambda e: kept(e.call(), 0.1, 3), of(1, ACT), LOST,
            (TP2, DP2)),
    forward("dropout before the residual", f"{L0}.self_attn_bda",
            lambda e: e.call(kept(e.inputs[0], 0.2, 5), e.inputs[1]),
            of(0, "self_attn_bda"), LOST, (DP2, TP2)),
    forward("RMS over a quarter of the channels", f"{L0}.pre_mlp_layernorm", part_rms, of(0, "pre_mlp_layernorm"),
            (f.NORMALISATION,), (SP2, DP2)),
    forward("gate and up clamped at 1", f"{L0}.{ACT}", clamped, of(0, ACT), (f.ACTIVATION,), (DP2, TP2)),
    forward("gate soft-capped", f"{L1}.{ACT}", capped_gate, of(1, ACT), (f.ACTIVATION,), (TP2, DP2)),
    forward("a bias in qkv that golden has not", f"{L0}.self_attention.linear_qkv", biased,
            of(0, "self_attention.linear_qkv"), (f.EXTRA_TERM,), (TP2, DP2)),
    forward("logits soft-capped", "output_layer", softcap, "output_layer", (f.ACTIVATION,), (DP2, TP2)),
    forward("last id of each vocabulary shard masked", EMBEDDING, last_row_gone, "embedding", LOST, (TP2, TP4),
            replace(DENSE, vocabulary=32)),
    forward("batch and sequence confused in a send", f"{L0}.mlp_bda", transposed,
            r"layers\.0(\.mlp_bda)?(\.|$)|layers\.1", (f.PERMUTATION,), (PP2, PP2_TP2)),
)  # fmt: skip
