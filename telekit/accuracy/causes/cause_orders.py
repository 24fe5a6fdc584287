"""Causes that are an order: the same values in other places of a tensor, or some of them several times."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_values import other_signs
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Floats

GATED = ("activation", "swiglu", "fc1", "gate_up", "act_fn")
"""Words in the names of what holds a gate beside what it opens."""
_LEAST_SLICE = 4
_MOST_NOISE = 0.2


def permutation_causes(case: Case) -> Iterator[Cause]:
    """Find the same values in another order."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if t.size < 4 or np.unique(g).size < 3:
        return
    a, b = np.sort(t.ravel()), np.sort(g.ravel())
    left, whole = _size(a - b), _size(t - g)
    how = _order(case, max(case.noise, 1e-6)) if left < 0.05 * whole else ""
    same = left <= 1e-6 * _size(g) or (left <= 2 * case.epsilon * _size(g) and (how or (a == b).mean() > 0.9))
    if not other_signs(case) and same and left < 0.05 * whole:
        yield Cause(
            kinds.PERMUTATION,
            0.95 - left / whole,
            f"the same values in another order{how}; statistics are equal",
        )
        return
    by = flat_shift(g, t, max(case.noise, 1e-6))
    if by is not None and not how:
        text = f"the elements stand {abs(by)} {'later' if by > 0 else 'earlier'} in memory than golden's"
        yield Cause(kinds.PERMUTATION, 0.93, f"{text}: an offset that differs, a padding counted or not")
        return
    for axis in range(t.ndim):
        text = _copies(t, g, axis, case.noise)
        if text:
            yield Cause(kinds.DUPLICATED, 0.85, text)
            return


def _rows(array: Floats, axis: int) -> Floats:
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _match(t: Floats, g: Floats, axis: int, noise: float) -> Floats | None:
    """For each slice of the target along an axis the golden slice it equals; None where one has none."""
    a, b = _rows(t, axis), _rows(g, axis)
    if not 2 <= len(a) <= 4096 or (a.shape[1] < 2 and np.unique(b).size < len(b)):
        return None
    probe = np.random.default_rng(0).standard_normal((b.shape[1], 2)) / sqrt(b.shape[1])
    pa, pb = a @ probe, b @ probe
    nearest = np.abs(pa[:, None, 0] - pb[None, :, 0]) + np.abs(pa[:, None, 1] - pb[None, :, 1])
    found = nearest.argmin(axis=1)
    size = np.linalg.norm(b[found], axis=1)
    return found if (np.linalg.norm(a - b[found], axis=1) <= (noise + 1e-12) * size).all() else None


def _order(case: Case, noise: float) -> str:
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if t.ndim == 2 and t.shape == g.T.shape and np.array_equal(t, g.T):
        return ": transposed"
    for axis in range(t.ndim):
        found = _match(t, g, axis, noise)
        if found is None or np.array_equal(found, np.arange(len(found))):
            continue
        n = len(found)
        if np.unique(found).size < n and np.unique(_rows(g, axis), axis=0).shape[0] == n:
            continue  # a slice stands twice, another nowhere: no order
        turns = [k for k in (1, -1) if np.array_equal(found, np.roll(np.arange(n), k))]
        if turns and n > 2:
            return f": axis {axis} rolled by {turns[0]:+d}"
        if n > 2 and np.array_equal(found, np.arange(n)[::-1]):
            return f": axis {axis} reversed"
        blocks = _blocks(found)
        said = (
            f"blocks of {len(found) // len(blocks)} in the order {blocks}"
            if blocks
            else f"slices {found[:8].tolist()}…"
        )
        gated = not case.words.strip() or any(w in case.words for w in GATED)  # no name speaks against it
        features = (axis == t.ndim - 1 or t.ndim == 2) and gated
        swiglu = features and blocks is not None and len(blocks) in (2, 4, 8, 16, 32)
        hint = ": gate and up halves, or shards, joined without (or with) interleaving" if swiglu else ""
        return f": axis {axis}, {said}{hint}"
    return ""


def _blocks(found: Floats) -> list[int] | None:
    """Order of the largest equal blocks that were moved as a whole."""
    n = len(found)
    for count in range(2, min(n, 64) + 1):
        if n % count == 0:
            rows = found.reshape(count, -1)
            if (np.diff(rows, axis=1) == 1).all() and (rows[:, 0] % rows.shape[1] == 0).all():
                return [int(r // rows.shape[1]) for r in rows[:, 0]]
    return None


def _copies(t: Floats, g: Floats, axis: int, noise: float) -> str:
    """Every slice is one of golden's, but some stand twice and others are missing."""
    if t.size // max(t.shape[axis], 1) < _LEAST_SLICE or noise > _MOST_NOISE:
        return ""  # single numbers, and what is far off, are near others by chance
    found = _match(t, g, axis, max(noise, 1e-9))
    if found is None or np.array_equal(found, np.arange(len(found))):
        return ""
    distinct = np.unique(found).size
    if distinct == len(found) or distinct == 1:
        return ""
    return (
        f"axis {axis}: {distinct} of golden's {len(found)} slices stand in the target: {found[:8].tolist()}"
    )


def _size(array: Floats) -> float:
    return float(np.linalg.norm(array.ravel()))


def flat_shift(own: Floats, target: Floats, reach: float) -> int | None:
    """Find by how many elements a tensor's memory stands off, wrapped round or not; None where by none.

    Found by correlation, so that rounding does not matter; ``reach`` is the relative error that may be left of the
    elements that have a counterpart.
    """
    a, b = own.ravel(), target.ravel()
    if a.size != b.size or a.size < 16 or not np.isfinite(b).all():
        return None
    both = np.fft.irfft(np.conj(np.fft.rfft(a)) * np.fft.rfft(b), n=a.size)
    best = int(both.argmax())
    by = best if best <= a.size // 2 else best - a.size
    if by == 0 or abs(by) > a.size // 4:
        return None
    here = slice(by, None) if by > 0 else slice(None, by)
    left = np.linalg.norm((np.roll(a, by) - b)[here])
    return by if left <= reach * float(np.linalg.norm(b[here])) else None
