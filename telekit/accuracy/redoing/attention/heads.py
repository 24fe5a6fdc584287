"""Attention whose query heads read other key and value heads than their group's, or whose gradients add up others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.attention.gradients import gradients, proven_call
from telekit.accuracy.redoing.attention.scores import Scene, probabilities
from telekit.accuracy.redoing.formula.formula import Proven, relative

MAX_SCORES = 1 << 22  # times pairs of key and value heads
_UNLIKE = 0.1


def head_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Find which key and value head each query head's output, or gradient, was made with."""
    call = proven_call(case, found)
    if call is None:
        return
    q, k, v, *up = call.tensors
    heads, n, many = q.shape[1], q.shape[2], k.shape[1]
    if many < 2 or q.shape[0] * heads * n * n * many**2 > MAX_SCORES:
        return
    if call.which:
        yield from _added(found, call.tensors, call.target, call.which)
        return

    def output(at: Array, of: Array) -> Floats:
        if call.which is None:
            scene = Scene(q, k[:, at], v[:, of], call.args[2])
            return np.asarray(probabilities(scene.scores, scene.mask) @ scene.v)
        usual = np.arange(heads) // (heads // many)
        return gradients([q, k[:, at], v[:, of], up[0]], saved=[q, k[:, usual], v[:, usual]])[0]

    yield from _read(found, output, call.target, many)


def _read(
    found: Proven, output: Callable[[Array, Array], Floats], target: Floats, many: int
) -> Iterator[Cause]:
    """Try every pair of a key and a value head for all query heads at once, and take each head's best."""
    heads = target.shape[1]
    pairs = [(a, b) for a in range(many) for b in range(many)]
    left = np.stack(
        [((output(np.full(heads, a), np.full(heads, b)) - target) ** 2).sum(axis=(0, 2, 3)) for a, b in pairs]
    )
    best = np.array([pairs[i] for i in left.argmin(axis=0)])
    usual = np.arange(heads) // (heads // many)
    value = output(best[:, 0], best[:, 1])
    rest = relative(value, target)
    if rest > found.reach or rest > found.own_error / 3 or (best == usual[:, None]).all():
        return
    of_each = heads // many
    even = all((np.bincount(column, minlength=many) == of_each).all() for column in best.T)
    kind = kinds.PERMUTATION if even else kinds.DUPLICATED
    names = [
        f"{name} heads {column.tolist()}"
        for name, column in zip(("key", "value"), best.T, strict=True)
        if (column != usual).any()
    ]
    said = " and ".join(names)
    text = f"{found.formula.name} of the target's own inputs is the target where query heads 0 to {heads - 1} read"
    yield Cause(kind, 0.96, f"{text} {said}, not {usual.tolist()} ({rest:.2g} is left)")


def _added(found: Proven, tensors: list[Floats], target: Floats, which: int) -> Iterator[Cause]:
    """Fit how often each query head's gradient counts in each key, or value, head's."""
    q, k, v, up = tensors
    heads, many = q.shape[1], k.shape[1]
    usual = np.arange(heads) // (heads // many)
    made = gradients([q, k[:, usual], v[:, usual], up])[which]
    matrix = np.moveaxis(made, 1, 0).reshape(heads, -1).T
    of = np.moveaxis(target, 1, 0).reshape(many, -1).T
    if len(matrix) < 4 * heads or not np.isfinite(matrix).all():
        return
    factors, *_ = np.linalg.lstsq(matrix, of, rcond=1e-6)
    rest = relative(matrix @ factors, of)
    right = usual[:, None] == np.arange(many)
    if rest > found.reach or rest > found.own_error / 3 or np.abs(factors - right).max() < _UNLIKE:
        return
    counts = np.abs(factors) > _UNLIKE
    if (counts & ~right).any():
        once = (counts.sum(axis=1) == 1).all() and (counts.sum(axis=0) == heads // many).all()
        kind = kinds.PERMUTATION if once else kinds.DUPLICATED
    else:
        kind = kinds.MISSING_TERM if (right & ~counts).any() else kinds.SCALED
    rows = "; ".join(str((np.round(c, 2) + 0.0).tolist()) for c in factors.T[:8])
    text = f"in {found.formula.name} the query heads count {rows} times in each key head's"
    yield Cause(kind, 0.95, f"{text} ({rest:.2g} is left)")
