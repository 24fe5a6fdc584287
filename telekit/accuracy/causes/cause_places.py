"""Causes that show in where a tensor differs: some rows or columns alone, or a factor for each row or column."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import DEALT, Case
from telekit.accuracy.causes.cause_orders import GATED
from telekit.accuracy.causes.cause_values import taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import FORWARD
from telekit.accuracy.measures.pairs import Array, Floats

_ATTENTION = ("attn", "attention", "softmax", "score", "mask")
_NORM = ("norm", "ln_", "rms")
_NOTHING = 0.01  # of the largest difference: an index that differs less does not differ
_ROUTER = ("router", "gate", "topk", "moe")


def place_causes(case: Case) -> Iterator[Cause]:
    """Look along every axis, then for factors by row and by column."""
    yield from _confined(case)
    yield from _by_row(case)
    yield from _by_column(case)
    yield from _rows_that_sum(case)


def _fewest_indices(t: Floats, g: Floats, case: Case) -> tuple[float, int, Array] | None:
    """Return the axis of whose indices the smallest share differs, with that share, and which they are."""
    best: tuple[float, int, Array] | None = None
    for axis in range(t.ndim):
        n = t.shape[axis]
        if n < 2:
            continue
        others = tuple(a for a in range(t.ndim) if a != axis)
        error = np.sqrt(((t - g) ** 2).sum(axis=others))
        scale = np.sqrt((g**2).sum(axis=others))
        # where golden is next to nothing a difference is judged by the tensor's own size
        typical = np.maximum(scale, max(0.3 * float(np.median(scale)), 0.01 * float(scale.max())))
        relative = error / np.maximum(typical, 1e-300)
        limit = max(case.noise, _NOTHING * float(relative.max()))
        bad = relative > limit
        share = float(bad.mean())
        if 0 < share <= 0.75 and (best is None or share < best[0]):
            best = (share, axis, bad)
    return best


def _confined(case: Case) -> Iterator[Cause]:
    """Error on a part of an axis' indices, none on the others."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    best = _fewest_indices(t, g, case)
    if best is None:
        return
    share, axis, bad = best
    where = np.flatnonzero(bad)
    rows = np.moveaxis(t, axis, 0)[bad]
    last = axis == t.ndim - 1
    said = f"axis {axis} (of {t.shape}): {where.size} of {bad.size} indices differ, {_listed(where)}"
    if not rows.any():
        kind = kinds.ZERO if last else kinds.DROPPED
        yield Cause(kind, 0.85, f"{said}; the target is 0 there")
        return
    piece = _piece(bad, axis, t.ndim, case)
    if last and np.abs(rows + np.moveaxis(g, axis, 0)[bad]).max() <= case.noise * np.abs(rows).max():
        yield Cause(kinds.LOCAL, 0.85, f"{said}; the target is golden with the other sign there")
        return
    if piece:
        yield from _piece_scaled(rows, np.moveaxis(g, axis, 0)[bad], case, f"{said}: {piece}")
        yield Cause(kinds.ONE_SHARD, 0.7, f"{said}: {piece}")
    words = case.words
    if not last and _as_masked(case, rows):
        yield Cause(kinds.MASK, 0.6, f"{said}, and lies inside the values: a mask, positions or padding")
    elif not last and any(w in words for w in _ROUTER) and share < 0.5:
        yield Cause(kinds.ROUTER, 0.55, f"{said}: tokens that chose, or kept, other experts")
    yield Cause(kinds.LOCAL, 0.5 * (1 - share) + 0.1, said)


def _as_masked(case: Case, rows: Floats) -> bool:
    """Whether positions of attention's output are still means of values, or weights of keys: a mask keeps them that."""
    if case.phase != FORWARD or not any(w in case.words for w in _ATTENTION):
        return False
    known = [k.golden for k in case.inputs if k.golden is not None and k.golden.ndim > 2]
    values = [g for g in known if rows.shape[-1] % g.shape[-1] == 0 and g.size <= rows.size * 4]
    top = max((float(np.abs(g).max()) for g in values), default=1.0)
    return len(known) > 2 and float(np.abs(rows).max()) <= top * (1 + case.noise)


def _piece_scaled(rows: Floats, golden: Floats, case: Case, said: str) -> Iterator[Cause]:
    """Say that a micro-batch's gradient is a multiple of golden's."""
    square = float(np.vdot(golden, golden))
    if case.phase != "backward" or "micro_batches" not in said or not square:
        return
    factor = float(np.vdot(rows, golden)) / square
    left = float(np.linalg.norm((rows - factor * golden).ravel()))
    if left <= case.noise * abs(factor) * square**0.5 and left < 0.1 * abs(factor - 1) * square**0.5:
        yield Cause(kinds.GRADIENT_SCALING, 0.85, f"{said}, where the target is {factor:.4g} times golden")


def _listed(where: Array) -> str:
    if where.size > 1 and where[-1] - where[0] == where.size - 1:
        return f"{where[0]} to {where[-1]}"
    return ", ".join(str(i) for i in where[:8]) + ("…" if where.size > 8 else "")


def _piece(bad: Array, axis: int, ndim: int, case: Case) -> str:
    """Whether the indices are one aligned piece of as many as a known group has ranks, on an axis that it deals."""
    where, n = np.flatnonzero(bad), bad.size
    rank = _zigzag_rank(where, n, case) if axis == 1 and ndim > 2 else ""
    if rank or where[-1] - where[0] != where.size - 1 or n % where.size:
        return rank
    count = n // where.size
    if count == 2 and axis == ndim - 1 and any(w in case.words for w in GATED):
        return ""  # gate or up
    at = {axis, axis - ndim}
    # positions are dealt to cp zigzag, and to tp only where heads have no axis of their own
    never = {"cp", "tp"} if axis == 1 and ndim > 3 else {"cp"} if axis == 1 and ndim > 2 else set()
    never |= set() if "expert" in case.words else {"etp"}
    names = [
        k
        for k, s in case.sizes.items()
        if s == count and count > 1 and k not in never and at & set(DEALT.get(k, ()))
    ]
    if where[0] % where.size or (not names and case.sizes):
        return ""
    said = f" of {' or '.join(names)}" if names else ""
    return f"piece {where[0] // where.size} of {count}{said}"


def _zigzag_rank(where: Array, n: int, case: Case) -> str:
    """Name the context-parallel rank whose two chunks the positions are."""
    count = int(case.sizes.get("cp", 1))
    if count < 2 or n % (2 * count):
        return ""
    chunks = np.split(np.arange(n), 2 * count)
    owned = [np.concatenate([chunks[r], chunks[-1 - r]]) for r in range(count)]
    rank = next((r for r, at in enumerate(owned) if np.array_equal(at, where)), None)
    return "" if rank is None else f"rank {rank} of {count} of cp, which are dealt positions zigzag"


def _by_row(case: Case) -> Iterator[Cause]:
    """Find a factor for each row (token): the norm's or the softmax's denominator, router weights."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if t.ndim < 2 or t.shape[-1] < 4 or t.size // t.shape[-1] < 3:
        return
    a, b = t.reshape(-1, t.shape[-1]), g.reshape(-1, g.shape[-1])
    square = (b * b).sum(axis=1)
    factor = np.where(square > 0, (a * b).sum(axis=1) / np.where(square > 0, square, 1), 1.0)
    share = taken_away(case, (factor[:, None] * b).reshape(t.shape))
    spread = float(np.std(factor))
    if share < 0.7 or spread < 1e-12 or spread < 0.1 * abs(float(np.mean(factor)) - 1):
        return
    lost = np.flatnonzero(np.abs(factor) < 0.5)
    if lost.size and (np.minimum(np.abs(factor), np.abs(factor - 1)) < max(case.noise, 1e-6)).all():
        left = float(np.linalg.norm(a - (np.abs(factor) >= 0.5)[:, None] * b))
        if left > max(case.noise, 1e-6) * float(np.linalg.norm(b)):
            return
        text = f"{lost.size} of {len(factor)} rows are 0 ({_listed(lost)}), the others are golden's: dropped, or masked"
        yield Cause(kinds.DROPPED, 0.85 * share, text)
        return
    said = f"each row is a multiple of golden's, {factor.min():.4g} to {factor.max():.4g}"
    size = np.sqrt(square)
    order = float(np.corrcoef(np.abs(factor - 1), size)[0, 1]) if np.std(size) > 0 else 0.0
    if any(w in case.words for w in _NORM):
        yield Cause(
            kinds.NORM_EPSILON,
            0.7 * share,
            f"{said}: the norm's denominator (its eps, or what it averages over)",
        )
        return
    kind = kinds.ROUTER if any(w in case.words for w in _ROUTER) else kinds.NORMALISATION
    yield Cause(
        kind, 0.65 * share, f"{said} (correlation with the rows' norm {order:.2f}): a denominator by row"
    )


def _by_column(case: Case) -> Iterator[Cause]:
    """Find a factor for each channel: a weight left out, taken twice, or read as 1 + w."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if t.ndim < 2 or t.shape[-1] < 2 or t.size // t.shape[-1] < 4:
        return
    a, b = t.reshape(-1, t.shape[-1]), g.reshape(-1, g.shape[-1])
    square = (b * b).sum(axis=0)
    factor = np.where(square > 0, (a * b).sum(axis=0) / np.where(square > 0, square, 1), 1.0)
    share = taken_away(case, factor * b.reshape(g.shape))
    if share < 0.7 or float(np.std(factor)) < 1e-3:
        return
    for k in case.parameters:
        w = k.golden
        if w is None or w.shape != factor.shape:
            continue
        for what, expected in (
            ("left out", 1 / np.where(w == 0, np.inf, w)),
            ("taken twice", w),
            ("read as 1 + w", (1 + w) / w),
        ):
            if np.allclose(factor, expected, rtol=0.05 + case.noise, atol=1e-6):
                yield Cause(
                    kinds.CHANNEL_WEIGHT,
                    0.95 * share,
                    f"channels differ by a factor each: {k.name} is {what}",
                )
                return
    ones = np.abs(factor - 1) < max(case.noise, 1e-3)
    if not ones.any():
        yield Cause(
            kinds.CHANNEL_WEIGHT,
            0.65 * share,
            f"each channel is a multiple of golden's, {factor.min():.4g} to {factor.max():.4g}",
        )


def _rows_that_sum(case: Case) -> Iterator[Cause]:
    """Golden's rows are probabilities: how the target's are not the same ones."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if t.ndim < 2 or (g < 0).any() or (t < 0).any() or t.shape[-1] < 2:
        return
    a, b = t.reshape(-1, t.shape[-1]), g.reshape(-1, g.shape[-1])
    near = max(0.01, 4 * case.epsilon)
    of_golden, of_target = b.sum(axis=1), a.sum(axis=1)
    if not (np.abs(of_golden - 1) < near).all():
        if (np.abs(of_target - 1) < near).all():
            kind = kinds.ROUTER if any(w in case.words for w in _ROUTER) else kinds.NORMALISATION
            yield Cause(kind, 0.85, "the target's rows sum to 1, golden's do not: normalised once too often")
        return
    if not (np.abs(of_target - 1) < near).all():
        kind = kinds.ROUTER if any(w in case.words for w in _ROUTER) else kinds.NORMALISATION
        text = f"golden's rows sum to 1, the target's to {of_target.min():.4g} to {of_target.max():.4g}: not normalised"
        yield Cause(kind, 0.88, text)
        return
    zeros = (a == 0) != (b == 0)
    if zeros.any():
        opened = int(((a != 0) & (b == 0)).sum())
        text = f"{opened} places open that golden closes, {int(zeros.sum()) - opened} closed that it opens"
        kind = kinds.ROUTER if any(w in case.words for w in _ROUTER) else kinds.MASK
        yield Cause(kind, 0.9, f"probabilities are zero at other places: {text}")
        return
    slope, left = _power(a, b)
    if left < 0.02 and abs(slope - 1) > 0.02:
        yield Cause(
            kinds.SOFTMAX_SCALE,
            0.92,
            f"log-probabilities of each row are {slope:.4g} times golden's: the scale before the softmax",
        )


def _power(a: Floats, b: Floats) -> tuple[float, float]:
    """Fit ``log a = slope * log b + constant of the row``; return slope and what is left of the variance."""
    both = (a > 0) & (b > 0)
    x, y = np.log(np.where(both, b, 1.0)), np.log(np.where(both, a, 1.0))
    count = np.maximum(both.sum(axis=1, keepdims=True), 1)
    x = np.where(both, x - x.sum(axis=1, keepdims=True) / count, 0.0)
    y = np.where(both, y - y.sum(axis=1, keepdims=True) / count, 0.0)
    square = float((x * x).sum())
    if not square or not y.any():
        return 1.0, 1.0
    slope = float((x * y).sum()) / square
    return slope, float(((y - slope * x) ** 2).sum() / (y * y).sum())
