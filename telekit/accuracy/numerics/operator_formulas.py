"""What each operator computes, written once: in fp64 it is the golden, in another arithmetic what is judged."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import Array
from telekit.accuracy.numerics.emulate import Arithmetic, reduce_terms

Arrays = dict[str, Array]


def matmul(ar: Arithmetic, a: Array, b: Array) -> Arrays:
    """``(m, k) @ (k, n)``."""
    return {"y": ar.store(ar.matmul(a, b))}


def grouped_matmul(ar: Arithmetic, x: Array, w: Array, counts: Array) -> Arrays:
    """Rows ``(tokens, k)``, sorted by expert, times ``w (experts, k, n)``; an expert may have no row."""
    y = np.zeros((len(x), w.shape[-1]), ar.kind)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            y[start : start + count] = ar.matmul(x[start : start + count], w[expert])
        start += count
    return {"y": ar.store(y)}


def probabilities(ar: Arithmetic, x: Array) -> tuple[Array, Array, Array]:
    """Softmax along the last axis, before it is stored; the maximum and the sum of exponentials with it."""
    top = np.max(x, axis=-1, keepdims=True)
    e = ar.op(np.exp, ar.op(np.subtract, x, top))
    total = ar.sum(e)
    return ar.op(np.divide, e, total), top, total


def softmax(ar: Arithmetic, x: Array) -> Arrays:
    """Softmax along the last axis."""
    return {"y": ar.store(probabilities(ar, x)[0])}


def layer_norm(ar: Arithmetic, x: Array, weight: Array, bias: Array) -> Arrays:
    """Two passes: the mean first, then the variance of what is left."""
    d = ar.op(np.subtract, x, ar.mean(x))
    variance = ar.mean(ar.op(np.multiply, d, d))
    y = ar.op(np.divide, d, _root(ar, variance, 1e-5))
    return {"y": ar.store(ar.op(np.add, ar.op(np.multiply, y, weight), bias))}


def rms_norm(ar: Arithmetic, x: Array, weight: Array) -> Arrays:
    """No mean is taken off."""
    square = ar.mean(ar.op(np.multiply, x, x))
    y = ar.op(np.divide, x, _root(ar, square, 1e-6))
    return {"y": ar.store(ar.op(np.multiply, y, weight))}


def _root(ar: Arithmetic, x: Array, epsilon: float) -> Array:
    return ar.op(np.sqrt, ar.op(np.add, x, epsilon))


def rotary(ar: Arithmetic, x: Array, positions: Array, base: float = 10000.0) -> Arrays:
    """``x (tokens, heads, 2 * half)``; the angle is a product of the arithmetic, as it is on a device."""
    half = x.shape[-1] // 2
    frequency = ar.op(lambda i: base ** (-i / half), np.arange(half))
    angle = ar.op(np.multiply, positions[:, None, None], frequency)
    cosine, sine = ar.op(np.cos, angle), ar.op(np.sin, angle)
    first, second = x[..., :half], x[..., half:]
    turned = [
        ar.op(np.subtract, ar.op(np.multiply, first, cosine), ar.op(np.multiply, second, sine)),
        ar.op(np.add, ar.op(np.multiply, second, cosine), ar.op(np.multiply, first, sine)),
    ]
    return {"y": ar.store(np.concatenate(turned, axis=-1))}


def scores(ar: Arithmetic, q: Array, k: Array, query_places: Array, key_places: Array) -> Array:
    """``q k^T / sqrt(head_dim)``, -Inf where the key's place in the sequence is after the query's."""
    s = ar.op(np.multiply, ar.matmul(q, np.swapaxes(k, -1, -2)), 1 / sqrt(q.shape[-1]))
    return np.where(key_places > query_places[:, None], ar.kind(-np.inf), s)


def attention(ar: Arithmetic, q: Array, k: Array, v: Array) -> Arrays:
    """Causal attention ``(heads, tokens, head_dim)``.

    Exponentials are rounded to the storage format for the second product, and divided by their sum after it, as fused
    kernels do.
    """
    s = scores(ar, q, k, np.arange(q.shape[-2]), np.arange(k.shape[-2]))
    e = ar.op(np.exp, ar.op(np.subtract, s, np.max(s, axis=-1, keepdims=True)))
    y = ar.op(np.divide, ar.matmul(ar.store(e), v), ar.sum(e))
    return {"y": ar.store(y)}


def swiglu(ar: Arithmetic, gate: Array, up: Array) -> Arrays:
    """``gate * sigmoid(gate) * up``."""
    below = ar.op(np.add, 1.0, ar.op(np.exp, -gate))
    return {"y": ar.store(ar.op(np.multiply, ar.op(np.divide, gate, below), up))}


def router_topk(ar: Arithmetic, logits: Array, top_k: Array) -> Arrays:
    """Weights ``(tokens, experts)``, zero where an expert is not taken, and which are; the first of equals wins."""
    p = probabilities(ar, logits)[0]
    order = np.argsort(-p, axis=-1, kind="stable")[:, : int(top_k)]
    taken = np.zeros(p.shape, bool)
    np.put_along_axis(taken, order, True, axis=-1)
    kept = np.where(taken, p, ar.kind(0))
    return {"weights": ar.store(ar.op(np.divide, kept, ar.sum(kept))), "experts": taken}


def cross_entropy(ar: Arithmetic, logits: Array, labels: Array) -> Arrays:
    """Loss of each token, and the gradient of their mean."""
    p, top, total = probabilities(ar, logits)
    at = labels[:, None]
    own = np.take_along_axis(logits, at, axis=-1)
    loss = ar.op(np.add, ar.op(np.log, total), ar.op(np.subtract, top, own))
    hot = np.zeros(p.shape, ar.kind)
    np.put_along_axis(hot, at, 1, axis=-1)
    grad = ar.op(np.divide, ar.op(np.subtract, p, hot), len(logits))
    return {"loss": ar.store(loss[:, 0]), "grad": ar.store(grad)}


def embedding_grad(ar: Arithmetic, grad: Array, words: Array, vocabulary: Array) -> Arrays:
    """Rows of ``grad (tokens, width)`` summed by word, in the arithmetic's order over the tokens of a word."""
    p = ar.precision
    total = np.zeros((int(vocabulary), grad.shape[-1]), ar.kind)
    for word in np.unique(words).tolist():
        total[word] = reduce_terms(
            grad[words == word], order=p.order, dtype=p.accumulate, block=p.block, parts=p.parts, seed=p.seed
        )
    return {"y": ar.store(total)}


def adam(
    ar: Arithmetic,
    parameter: Array,
    grad: Array,
    first: Array,
    second: Array,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    decay: float = 0.1,
    step: int = 10,
) -> Arrays:
    """One step of AdamW; moments and parameter are stored in the storage format."""

    def blend(old: Array, new: Array, beta: float) -> Array:
        return ar.op(np.add, ar.op(np.multiply, old, beta), ar.op(np.multiply, new, 1 - beta))

    m = blend(first, grad, betas[0])
    v = blend(second, ar.op(np.multiply, grad, grad), betas[1])
    scaled: Any = [ar.op(np.divide, x, 1 - b**step) for x, b in zip((m, v), betas, strict=True)]
    update = ar.op(np.divide, scaled[0], ar.op(np.add, ar.op(np.sqrt, scaled[1]), eps))
    shrunk = ar.op(np.multiply, parameter, 1 - lr * decay)
    after = ar.op(np.subtract, shrunk, ar.op(np.multiply, update, lr))
    return {"parameter": ar.store(after), "first": ar.store(m), "second": ar.store(v)}
