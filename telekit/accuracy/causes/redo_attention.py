"""Attention done again from its queries, keys and values: other masks, scales, head groups, and local windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_values import taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats

MAX_SCORES = 1 << 24
_ORDERS = {
    "batch, sequence, heads": (0, 2, 1, 3),
    "sequence, batch, heads": (1, 2, 0, 3),
    "batch, heads, sequence": (0, 1, 2, 3),
}


def attention_causes(case: Case) -> Iterator[Cause]:
    """Find q, k and v among the inputs so that causal attention gives golden, then vary it."""
    g = case.golden
    assert g is not None
    if case.phase != "forward":
        return
    four = [k.golden for k in case.inputs if k.golden is not None and k.golden.ndim == 4]
    for q, k, v in permutations(four[:4], 3):
        if k.shape != v.shape or q.shape[-1] != k.shape[-1]:
            continue
        for order in _ORDERS.values():
            q_, k_, v_ = (a.transpose(order) for a in (q, k, v))
            if q_.shape[0] != k_.shape[0] or q_.shape[1] % k_.shape[1] or q_.shape[2] != k_.shape[2]:
                continue
            if q_.shape[0] * q_.shape[1] * q_.shape[2] ** 2 > MAX_SCORES:
                continue
            base = _base(q_, k_, v_, order, case)
            if base is not None:
                yield from _varied(q_, k_, v_, order, base, case)
                return


def _attend(q: Floats, k: Floats, v: Floats, scale: float, mask: Array, tile: bool = False) -> Floats:
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (np.tile(a, (1, groups, 1, 1)) if tile else np.repeat(a, groups, axis=1) for a in (k, v))
    scores = np.where(mask, (q @ k.swapaxes(-1, -2)) * scale, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = p.sum(axis=-1, keepdims=True)
    return np.asarray((p / np.where(total > 0, total, 1.0)) @ v)


def _shaped(value: Floats, order: tuple[int, ...], golden: Floats) -> Floats:
    back = value.transpose(np.argsort(order))
    return back.reshape(golden.shape) if back.size == golden.size else back


def _masks(n: int) -> dict[str, Array]:
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    return {"causal": j <= i, "no": np.ones((n, n), bool)}


def _base(q: Floats, k: Floats, v: Floats, order: tuple[int, ...], case: Case) -> tuple[str, Array] | None:
    """Find the mask with which golden comes out."""
    g = case.golden
    assert g is not None
    for name, mask in _masks(q.shape[2]).items():
        value = _shaped(_attend(q, k, v, q.shape[-1] ** -0.5, mask), order, g)
        norm = float(np.linalg.norm(g.ravel()))
        if (
            value.shape == g.shape
            and float(np.linalg.norm((value - g).ravel())) <= max(6 * case.epsilon, 1e-5) * norm
        ):
            return name, mask
    return None


def _varied(
    q: Floats, k: Floats, v: Floats, order: tuple[int, ...], base: tuple[str, Array], case: Case
) -> Iterator[Cause]:
    g = case.golden
    assert g is not None
    n, d = q.shape[2], q.shape[-1]
    name, mask = base
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    masks = {
        "no mask": np.ones((n, n), bool), "a causal mask": j <= i, "a mask that hides the token itself": j < i,
        "a mask that shows one token of the future": j <= i + 1, "the mask with the opposite meaning": j > i,
        "a mask of the future and itself": j >= i,
    }  # fmt: skip
    for count in {int(s) for s in case.sizes.values() if 1 < s <= 16} | {2, 4}:
        if n % count == 0:
            same = i // (n // count) == j // (n // count)
            masks[f"attention only inside each of {count} pieces"] = mask & same
    for width in range(1, min(n, 64)):
        masks[f"a window of {width}"] = mask & (i - j < width)
    for text, other in masks.items():
        if np.array_equal(other, mask):
            continue
        share = taken_away(case, _shaped(_attend(q, k, v, d**-0.5, other), order, g))
        if share > 0.8:
            kind = kinds.MASK if "pieces" not in text else kinds.MISSING_REDUCTION
            yield Cause(
                kind,
                0.95 * share,
                f"attention done again with {text} gives the target, golden has {name} mask",
            )
            return
    scale, share = _scale(q, k, v, order, mask, case)
    if share > 0.8:
        text = f"attention done again with a scale of {scale:.4g} gives the target, golden has {d**-0.5:.4g}"
        yield Cause(kinds.SOFTMAX_SCALE, 0.95 * share, text)
    elif q.shape[1] > k.shape[1]:
        share = taken_away(case, _shaped(_attend(q, k, v, d**-0.5, mask, True), order, g))
        if share > 0.8:
            yield Cause(
                kinds.PERMUTATION,
                0.95 * share,
                "attention done again with key and value heads tiled, not repeated, gives the target",
            )


def _scale(
    q: Floats, k: Floats, v: Floats, order: tuple[int, ...], mask: Array, case: Case
) -> tuple[float, float]:
    """Search the scale that comes nearest to the target: a coarse grid, then closer."""
    t, g = case.target, case.golden
    assert t is not None and g is not None

    def left(logarithm: float) -> float:
        value = _shaped(_attend(q, k, v, float(np.exp(logarithm)), mask), order, g)
        return float(np.linalg.norm((value - t).ravel()))

    at, width = float(np.log(q.shape[-1] ** -0.5)), 3.0
    for _ in range(6):
        grid = np.linspace(at - width, at + width, 9)
        at = float(grid[int(np.argmin([left(x) for x in grid]))])
        width /= 4
    scale = float(np.exp(at))
    return scale, taken_away(case, _shaped(_attend(q, k, v, scale, mask), order, g))
