"""Attention whose scores are changed before the softmax: what was done to them is fitted to the target, by head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.fit import plain, searched
from telekit.accuracy.redoing.layers.norm import normed

MAX_FITTED = 1 << 18
"""Scores of as many sequences are looked at while a number is searched; all of them where it is tried."""
_MOST_COLUMNS = 64


@dataclass(frozen=True)
class Scene:
    """What attention is made from, (batch, heads, tokens, size), keys and values repeated over their groups."""

    q: Floats
    k: Floats
    v: Floats
    mask: Array

    @property
    def scores(self) -> Floats:
        """Scores with the heads' usual scale."""
        return np.asarray(self.q @ self.k.swapaxes(-1, -2) * self.q.shape[-1] ** -0.5)

    @property
    def distance(self) -> Floats:
        """How far a key stands before a query."""
        return np.arange(self.q.shape[2])[:, None] - np.arange(self.k.shape[2])[None, :] * 1.0

    def first(self) -> Scene:
        """Return as many sequences as a search may look at."""
        n = max(MAX_FITTED // max(self.q.shape[1] * self.q.shape[2] ** 2, 1), 1)
        return Scene(self.q[:n], self.k[:n], self.v[:n], self.mask)


def scene_of(q: Floats, k: Floats, v: Floats, mask: Array) -> Scene:
    """Repeat keys and values over the heads of a group."""
    groups = q.shape[1] // k.shape[1]
    return Scene(q, np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1), mask)


def probabilities(scores: Floats, mask: Array, sink: Floats | None = None) -> Floats:
    """Softmax over what a mask shows; ``sink`` is one more score in the denominator."""
    hidden = np.where(mask, scores, -np.inf)
    top = np.maximum(hidden.max(axis=-1, keepdims=True), -1e30)
    p = np.exp(hidden - top)
    total = p.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.minimum(sink - top, 600))
    return np.asarray(p / np.where(total > 0, total, 1.0))


_Change = Callable[[Scene, Floats], Floats]
"""Attention's output with a number for each head, (heads, 1, 1), in its scores."""


def _made(change: Callable[[Floats, Floats, Scene], Floats], scene: Scene, by: Floats) -> Floats:
    return np.asarray(probabilities(change(scene.scores, by, scene), scene.mask) @ scene.v)


def _sunk(scene: Scene, by: Floats) -> Floats:
    return np.asarray(probabilities(scene.scores, scene.mask, by) @ scene.v)


def _by_position(s: Floats, by: Floats, scene: Scene) -> Floats:
    return np.asarray(s * (1 + by * np.log(np.arange(1, s.shape[-2] + 1))[:, None]))


_SIZES = np.geomspace(0.02, 100, 40)
_SIGNED = np.concatenate([-np.geomspace(2, 0.002, 20), np.geomspace(0.002, 2, 20)])
FAMILIES: tuple[tuple[str, str, _Change, Floats], ...] = (
    (kinds.SOFTMAX_SCALE, "scores times {} (a scale, or a temperature)", partial(_made, lambda s, c, _: s * c), _SIZES),
    (kinds.ACTIVATION, "scores soft-capped with tanh at {}",
     partial(_made, lambda s, c, _: c * np.tanh(s / c)), _SIZES),
    (kinds.ACTIVATION, "scores clamped to plus and minus {}",
     partial(_made, lambda s, c, _: np.clip(s, -c, c)), _SIZES),
    (kinds.EXTRA_TERM, "a bias on the scores that falls by {} with each position of distance (ALiBi)",
     partial(_made, lambda s, c, scene: s - c * scene.distance), _SIGNED),
    (kinds.NORMALISATION, "an attention sink with a score of {} in the softmax's denominator", _sunk,
     np.linspace(-8, 8, 41)),
    (kinds.SOFTMAX_SCALE, "scores times 1 + {} times the logarithm of the query's position",
     partial(_made, _by_position), _SIGNED),
)  # fmt: skip
"""Class, words, what comes of it, and where to look for its number."""


def fitted_scores(scene: Scene, target: Floats) -> Iterator[tuple[str, str, Callable[[Scene], Floats]]]:
    """Fit each family's number, for all heads one and for each its own.

    Parameters
    ----------
    scene : Scene
        Queries, keys and values of the target.
    target : ndarray
        Its output, (batch, heads, tokens, size).

    Yields
    ------
    (str, str, callable)
        Class, words, and what makes the output of a scene: whether it is the target is left to the caller.
    """
    few = scene.first()
    if few.q.shape[1] * few.q.shape[2] ** 2 > 4 * MAX_FITTED:
        return
    for kind, words, change, grid in FAMILIES:

        def left(by: Floats, change: _Change = change) -> Floats:
            value = change(few, by[:, None, None]) - target[: len(few.q)]
            return np.asarray(np.square(value).sum(axis=(0, 2, 3)))

        by = plain(searched(left, grid, few.q.shape[1]), left)
        yield kind, words.format(_said(by, left)), partial(_at, change, by)
    for text, which in (("queries and keys", (0, 1)), ("queries", (0,)), ("keys", (1,))):
        yield kinds.NORMALISATION, f"{text} normalised (RMS) before the scores", partial(_normed, which)


def _at(change: _Change, by: Floats, scene: Scene) -> Floats:
    return change(scene, by[:, None, None])


def _normed(which: tuple[int, ...], scene: Scene) -> Floats:
    q, k = (
        normed(x, np.ones(x.shape[-1]), 1e-6, False) if at in which else x
        for at, x in enumerate((scene.q, scene.k))
    )
    other = Scene(q, k, scene.v, scene.mask)
    return np.asarray(probabilities(other.scores, scene.mask) @ scene.v)


def _said(by: Floats, left: Callable[[Floats], Floats]) -> str:
    """Say the numbers of those heads whose output depends on them."""
    least = left(by)
    sure = (left(by * 1.1) > 2 * least) & (left(by / 1.1) > 2 * least)
    if not sure.any():
        return "a number that the output does not tell"
    known = by[sure]
    if sure.all() and np.ptp(known) <= 0.02 * abs(float(np.median(known))):
        return f"{float(np.median(known)):.4g}"
    some = ", ".join(f"{float(c):.3g}" if ok else "?" for c, ok in zip(by[:8], sure[:8], strict=True))
    return f"{some}{'…' if len(by) > 8 else ''} (by head)"


def weight_causes_of(scene: Scene, target: Floats, reach: float) -> Iterator[Cause]:
    """Read the softmax's weights back from outputs of rows that see fewer keys than a head is wide.

    Parameters
    ----------
    scene, target
        As for ``fitted_scores``.
    reach : float
        Relative error of the target that rounding explains.

    Yields
    ------
    Cause
        Weights dropped at random, or other weights of the same values: the scores were changed.
    """
    n, d = scene.q.shape[2], scene.q.shape[-1]
    if not np.array_equal(scene.mask, np.tri(n, dtype=bool)) or scene.q.size > MAX_FITTED:
        return
    usual, total, wrong = probabilities(scene.scores, scene.mask), 0.0, 0.0
    ratios, rooms, weights, sums = [], [], [], []
    for i in range(min(n, d - 1, _MOST_COLUMNS)):
        values, row = scene.v[:, :, : i + 1], target[:, :, i : i + 1]
        size = np.linalg.svd(values, compute_uv=False)
        good = size[..., -1] > _LEAST_VALUE * size[..., 0]
        inverse = np.linalg.pinv(values)
        w = row @ inverse
        rest = (w @ values - row)[good]
        total, wrong = total + float(np.square(row[good]).sum()), wrong + float(np.square(rest).sum())
        ratios.append((w[:, :, 0] / usual[:, :, i, : i + 1])[good].ravel())
        weights.append(usual[:, :, i, : i + 1][good].ravel())
        off = np.linalg.norm(row, axis=-1) * np.linalg.norm(inverse, axis=-2) / np.sqrt(d)
        rooms.append((_ROOM * reach * off / usual[:, :, i, : i + 1])[good].ravel())
        sums.append(np.stack([w[:, :, 0].sum(axis=-1)[good], w[:, :, 0].min(axis=-1)[good]], axis=-1))
    if not ratios or sum(map(len, sums)) < _LEAST_ROWS or wrong > (2 * reach) ** 2 * total:
        return
    ratio, room = np.concatenate(ratios), np.concatenate(rooms)
    yield from _of_weights(ratio, room, np.concatenate(weights), np.concatenate(sums), reach)


_LEAST_VALUE = 0.15
_LEAST_ROWS = 16
_LEAST_SHARE = 0.01
_LEAST_WEIGHT = 0.02
_ROOM, _MOST_ROOM = 8.0, 0.25  # times rounding's usual error; of a weight, where it cannot be told from none


def _of_weights(ratio: Floats, room: Floats, weight: Floats, sums: Floats, reach: float) -> Iterator[Cause]:
    """Say what weights are over golden's, ``ratio`` with a ``room`` that rounding leaves each; ``sums`` are rows'."""
    near = 10 * reach / _LEAST_VALUE
    seen = (room < _MOST_ROOM) & (weight > _LEAST_WEIGHT)
    ratio, room = ratio[seen], room[seen]
    if ratio.size < 32:
        return
    gone = np.abs(ratio) <= room  # a row of nothing has no room at all
    share, rest = float(gone.mean()), ratio[~gone]
    if _LEAST_SHARE < share < 0.9:
        factor = float(np.median(rest))
        if factor > 1 + reach and (np.abs(rest / factor - 1) < room[~gone]).all():
            if abs(factor * (1 - share) - 1) < 4 * np.sqrt(share / ratio.size) + near:
                text = (
                    f"of the softmax's weights {share:.2%} are 0 and the others {factor:.4g} times golden's"
                )
                yield Cause(kinds.LOCAL, 0.9, f"{text}: dropout of {1 - 1 / factor:.2g} left on in attention")
            return
    if (np.abs(sums[:, 0] - 1) < near).mean() > 0.95 and (sums[:, 1] > -near).mean() > 0.95 and near < 0.25:
        text = "the output is the same values with other weights that still sum to 1"
        yield Cause(kinds.SOFTMAX_SCALE, 0.75, f"{text}: the scores are changed before the softmax")
