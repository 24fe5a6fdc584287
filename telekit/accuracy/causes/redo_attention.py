"""Attention done again from its queries, keys and values: other masks, scales, head groups, and local windows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_values import agrees, taken_away
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
        if agrees(value, g, case, 6.0, 1e-5):
            return name, mask
    return None


def _varied(
    q: Floats, k: Floats, v: Floats, order: tuple[int, ...], base: tuple[str, Array], case: Case
) -> Iterator[Cause]:
    g = case.golden
    assert g is not None
    d = q.shape[-1]
    name, mask = base
    for text, other in _other_masks(mask, case).items():
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
    merged = list(_merged(q, k, v, order, mask, case))
    if merged:
        yield from merged
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


def _other_masks(mask: Array, case: Case) -> dict[str, Array]:
    """Masks that may have been taken instead, by what they are."""
    n = len(mask)
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    masks = {
        "no mask": np.ones((n, n), bool), "a causal mask": j <= i, "a mask that hides the token itself": j < i,
        "a mask that shows one token of the future": j <= i + 1, "the mask with the opposite meaning": j > i,
        "a mask of the future and itself": j >= i,
    }  # fmt: skip
    for how, owner in _owners(n, case):
        masks[f"attention only inside each of {how}"] = mask & (owner[:, None] == owner[None, :])
    for width in range(1, min(n, 64)):
        masks[f"a window of {width}"] = mask & (i - j < width)
    return masks


def _owners(n: int, case: Case) -> Iterator[tuple[str, Array]]:
    """Ways to deal positions to ranks: which rank has each, in order and zigzag."""
    for count in sorted({int(s) for s in case.sizes.values() if 1 < s <= 16} | {2, 4}):
        if n % count == 0:
            yield f"{count} pieces", np.arange(n) // (n // count)
        if n % (2 * count) == 0:
            chunk = np.arange(n) // (n // (2 * count))
            yield f"{count} pieces dealt zigzag", np.minimum(chunk, 2 * count - 1 - chunk)


def _merged(
    q: Floats, k: Floats, v: Floats, order: tuple[int, ...], mask: Array, case: Case
) -> Iterator[Cause]:
    """Try blocks of keys merged with fixed shares, one for each pair of ranks, not with those of the softmax."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    for how, owner in _owners(q.shape[2], case):
        ranks = int(owner.max()) + 1
        blocks = [
            _shaped(_attend(q, k, v, q.shape[-1] ** -0.5, mask & (owner == r)[None, :]), order, g)
            for r in range(ranks)
        ]
        of_query = _shaped(np.broadcast_to(owner[:, None] * 1.0, q.shape), order, g)
        value, shares = np.zeros_like(g), np.zeros((ranks, ranks))
        for r in range(ranks):
            at = of_query == r
            shares[r], *_ = np.linalg.lstsq(np.stack([b[at] for b in blocks], axis=1), t[at], rcond=1e-9)
            value[at] = sum(s * b[at] for s, b in zip(shares[r], blocks, strict=True))
        share = taken_away(case, value)
        if share > 0.85:
            fixed = shares.round(2).tolist()
            text = f"keys of {how} are merged with the same shares for every query of a rank, {fixed}"
            yield Cause(
                kinds.NORMALISATION, 0.95 * share, f"{text}: not weighed by their part of the softmax"
            )
            return


def attention_gradient_causes(case: Case) -> Iterator[Cause]:
    """Find q, k, v and the output's gradient so that golden comes out, then count only pairs inside a rank."""
    g = case.golden
    assert g is not None
    if case.phase != "backward" or g.ndim != 4:
        return
    known = [k.golden for k in case.inputs if k.golden is not None and k.golden.ndim >= 3]
    four = [a for a in known if a.ndim == 4][:5]
    for q, k, v in permutations(four, 3):
        if k.shape != v.shape or q.shape[-1] != k.shape[-1] or g.shape not in (q.shape, k.shape):
            continue
        ups = [a.reshape(q.shape) for a in known if a.size == q.size and not any(a is x for x in (q, k, v))]
        for up, order in product(ups, _ORDERS.values()):
            moved = [a.transpose(order) for a in (q, k, v, up)]
            q_, k_ = moved[:2]
            if q_.shape[0] != k_.shape[0] or q_.shape[1] % k_.shape[1] or q_.shape[2] != k_.shape[2]:
                continue
            if q_.shape[0] * q_.shape[1] * q_.shape[2] ** 2 > MAX_SCORES:
                continue
            which = _gradient_of(moved, order, case)
            if which is not None:
                yield from _own_pairs(moved, order, which, case)
                return


def _gradients(tensors: list[Floats], pairs: Array) -> tuple[Floats, Floats, Floats]:
    """Gradients of q, k and v of causal attention, of the pairs of query and key alone that count."""
    q, k, v, up = tensors
    groups, n, scale = q.shape[1] // k.shape[1], q.shape[2], q.shape[-1] ** -0.5
    keys, values = (np.repeat(a, groups, axis=1) for a in (k, v))
    scores = np.where(np.tri(n, dtype=bool), (q @ keys.swapaxes(-1, -2)) * scale, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    inner = up @ values.swapaxes(-1, -2)
    inner = p * (inner - (inner * p).sum(axis=-1, keepdims=True)) * scale * pairs
    of_k, of_v = inner.swapaxes(-1, -2) @ q, (p * pairs).swapaxes(-1, -2) @ up
    whole = (k.shape[0], k.shape[1], groups, n, -1)
    return inner @ keys, of_k.reshape(whole).sum(axis=2), of_v.reshape(whole).sum(axis=2)


def _gradient_of(tensors: list[Floats], order: tuple[int, ...], case: Case) -> int | None:
    """Which of the three golden is; None where it is none of them."""
    g = case.golden
    assert g is not None
    n = tensors[0].shape[2]
    for which, value in enumerate(_gradients(tensors, np.ones((n, n), bool))):
        if agrees(value.transpose(np.argsort(order)), g, case, 6.0, 1e-5):
            return which
    return None


def _own_pairs(tensors: list[Floats], order: tuple[int, ...], which: int, case: Case) -> Iterator[Cause]:
    """Try the gradient with the pairs inside each rank alone: what came from other ranks was not added."""
    for how, owner in _owners(tensors[0].shape[2], case):
        value = _gradients(tensors, owner[:, None] == owner[None, :])[which]
        share = taken_away(case, value.transpose(np.argsort(order)))
        if share > 0.85:
            what = ("queries", "keys", "values")[which]
            text = f"the gradient of the {what}, of {how}, has only what a rank's own queries and keys make"
            yield Cause(
                kinds.MISSING_REDUCTION, 0.95 * share, f"{text}: the other ranks' parts are not added"
            )
            return


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
