"""A bias on attention's scores, by distance or by pair of positions, fitted to the output that it leads to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.attention.scores import Scene, probabilities

_MOST_TOKENS = 64
_MOST_VALUES = 1 << 20
_TURNS = 25
_EXACT = 1e-15
_MOST_DAMPED = 1e6
_HIDDEN = (-8.0, -5.0, -3.5)
"""A bias so low may stand for a key that is hidden: tried, it must give the target as well."""


def fitted_biases(scene: Scene, target: Floats) -> Iterator[tuple[str, str, Callable[[Scene], Floats]]]:
    """Fit a bias for each head and distance, then for each head and pair of positions, the same in every sequence.

    Parameters
    ----------
    scene : Scene
        Queries, keys and values of the target.
    target : ndarray
        Its output, (batch, heads, tokens, size).

    Yields
    ------
    (str, str, callable)
        Class, words, and what makes the output of a scene.
    """
    batch, heads, n, d = scene.q.shape
    if n > _MOST_TOKENS or batch * heads * n * n * d > _MOST_VALUES or n != scene.k.shape[2]:
        return
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    if batch * d >= 8:
        s, which = scene.scores, i - j + n - 1
        by = np.stack(
            [
                _fitted(s[:, h], scene.mask, scene.v[:, h], target[:, h], which, 2 * n - 1)
                for h in range(heads)
            ]
        )
        past = np.take_along_axis(by, np.broadcast_to((i - j + n - 1).ravel(), (heads, n * n)), 1).reshape(
            heads, n, n
        )
        first = (by[0, n - 1 :][: min(n, 6)] - by[0, n - 1]).round(2).tolist()
        text = f"a bias on the scores that goes with the distance and the head (head 0, distances 0, 1, …: {first}…)"
        yield kinds.EXTRA_TERM, text, partial(_biased, past)
    if batch * d >= 2 * n:
        by = _pairs(scene, target)
        top = np.where(scene.mask, by, -np.inf).max(axis=-1, keepdims=True)
        typical = np.median(by - top, axis=0)  # a mask is one for all heads
        for low in _HIDDEN:
            hidden = scene.mask & (typical < low)
            if hidden.any():
                text = f"{int(hidden.sum())} pairs of query and key hidden that golden shows: another mask"
                yield kinds.MASK, text, partial(_biased, np.where(hidden, -np.inf, 0.0)[None])
        text = "a bias on the scores for each head and pair of positions (or scores changed in another way)"
        yield kinds.EXTRA_TERM, text, partial(_biased, by)


def _pairs(scene: Scene, target: Floats) -> Floats:
    """Fit a number for each head, query and key: each query's on its own."""
    s, v, n = scene.scores, scene.v, scene.q.shape[2]
    which, by = np.arange(n)[None], np.zeros((s.shape[1], n, n))
    for h in range(len(by)):
        for i in range(n):
            row = slice(i, i + 1)
            by[h, i] = _fitted(s[:, h, row], scene.mask[row], v[:, h], target[:, h, row], which, n)
    return by


def _biased(bias: Floats, scene: Scene) -> Floats:
    return np.asarray(probabilities(scene.scores + bias, scene.mask) @ scene.v)


def _fitted(s: Floats, mask: Array, v: Floats, t: Floats, which: Array, count: int) -> Floats:
    """Fit ``count`` numbers, of which ``which`` says for each query and key the one that is added to their score.

    Levenberg-Marquardt on the outputs: what a score adds to an output is its weight times its value less the output.
    """
    by, damp, enough = np.zeros(count), 1e-3, _EXACT * float(np.square(t).sum())
    p, out, left = _once(s, by, which, mask, v, t)
    for _ in range(_TURNS):
        if left <= enough or damp > _MOST_DAMPED:
            break
        matrix, side = _normal(p, out, v, t, which, count)
        scale = np.diag(matrix) + 1e-12 * max(float(np.trace(matrix)), 1e-300)
        try:
            step = np.linalg.solve(matrix + damp * np.diag(scale), side)
        except np.linalg.LinAlgError:  # nothing depends on a number
            damp *= 100
            continue
        other = np.clip(by + np.clip(step, -3, 3), -40, 40)
        tried = _once(s, other, which, mask, v, t)
        if not tried[2] < left:
            damp *= 5
            continue
        done = tried[2] > left * (1 - 1e-3)
        by, (p, out, left), damp = other, tried, damp / 5
        if done:
            break
    return by


def _once(
    s: Floats, by: Floats, which: Array, mask: Array, v: Floats, t: Floats
) -> tuple[Floats, Floats, float]:
    p = probabilities(s + by[which], mask)
    out = p @ v
    return p, out, float(np.square(out - t).sum())


def _normal(p: Floats, out: Floats, v: Floats, t: Floats, which: Array, count: int) -> tuple[Floats, Floats]:
    """Return normal equations, summed over sequences, queries and a head's elements."""
    matrix, side = np.zeros((count, count)), np.zeros(count)
    for i in range(p.shape[1]):
        of = p[:, i, :, None] * (v - out[:, i, None, :])  # (batch, keys, size)
        flat = of.transpose(1, 0, 2).reshape(of.shape[1], -1)
        at = which[i]
        matrix[np.ix_(at, at)] += flat @ flat.T
        side[at] += flat @ (t[:, i] - out[:, i]).ravel()
    return matrix, side
