"""Tensors in another order: pieces of an axis moved, axes read the wrong way round, slices that are another's.

Pieces are those that the layout has: sizes of its groups where they are known, else 2, 4 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import DEALT, Case
from telekit.accuracy.measures.pairs import Array, Floats

_PIECES = 12
_MOST_SLICES = 16  # so many heads, experts or sequences are tried in each other's place
_MOST_REVERSED = 1 << 14
Other = tuple[str, str, Floats]
"""Class of the fault, what was done to an input in words, and the input with it."""


def as_rows(x: Floats) -> Floats:
    """Return rows of features: all axes but the last made one."""
    return x.reshape(-1, x.shape[-1])


def counts(case: Case, *groups: str) -> list[tuple[int, str]]:
    """Return into how many pieces something may be split, with the groups of that size; ``groups`` alone if given."""
    named: dict[int, list[str]] = {}
    for name, size in case.sizes.items():
        idle = name == "etp" and "expert" not in case.words
        if (
            1 < size <= 64
            and not idle
            and name not in ("tokens", "loss_scale")
            and (not groups or name in groups)
        ):
            named.setdefault(int(size), []).append(name)
    known = [(size, " or ".join(names)) for size, names in named.items()]
    return (known or ([] if case.sizes else [(2, ""), (4, ""), (8, "")]))[:_PIECES]


def dealt(groups: str, axis: int, ndim: int) -> str:
    """Name in brackets those of some groups that deal an axis; nothing where none does."""
    some = [g for g in groups.split(" or ") if {axis, axis - ndim} & set(DEALT.get(g, ()))]
    return f" ({' or '.join(some)})" if some else ""


def other_orders(case: Case, own: Floats, axis: int) -> Iterator[Other]:
    """Return an input with pieces of an axis in another order, or one of them missing."""
    size = own.shape[axis]
    for n, name in counts(case):
        of = dealt(name, axis, own.ndim)
        if size % n or size < 2 * n:
            continue
        pieces = np.arange(size).reshape(n, -1)
        for text, order in _orders(n):
            at = pieces[order].ravel()
            yield kinds.PERMUTATION, f"{n} pieces{of} of axis {axis} {text} in", np.take(own, at, axis=axis)
        for k in range(n if n <= 8 else 0):
            keep = np.isin(np.arange(size), pieces[k], invert=True)
            shaped = keep.reshape([-1 if a == axis else 1 for a in range(own.ndim)])
            yield kinds.MISSING_TERM, f"without piece {k} of {n}{of} of axis {axis}", own * shaped
            yield kinds.MISSING_REDUCTION, f"with piece {k} of {n}{of} of axis {axis} alone", own * ~shaped
    for n, _ in counts(case, "cp"):
        for text, at in zigzags(size, n):
            yield kinds.PERMUTATION, f"axis {axis} {text} of {n} ranks in", np.take(own, at, axis=axis)
        for text, at in _of_other_ranks(size, n):
            yield (
                kinds.PERMUTATION,
                f"axis {axis}, dealt zigzag to {n} ranks, {text} in",
                np.take(own, at, axis=axis),
            )
    if 1 < size <= _MOST_REVERSED:
        yield kinds.PERMUTATION, f"axis {axis} reversed in", np.flip(own, axis=axis)
        for by in (1, -1) if size > 2 else ():
            yield kinds.PERMUTATION, f"axis {axis} shifted by {by:+d} in", np.roll(own, by, axis=axis)


def other_axes(case: Case, own: Floats) -> Iterator[Other]:
    """Return an input whose neighbouring axes were swapped without moving its elements, or moved without the axes.

    Of the whole, or in each tensor-parallel rank's piece.
    """
    for a in range(own.ndim - 1):
        for n, of in ((1, ""), *counts(case, "tp")):
            if own.shape[a] % n or own.shape[a] < 2 * n or own.shape[a + 1] < 2:
                continue
            parts = np.split(own, n, axis=a)
            where = f", in each of {n} pieces of axis {a}{f' ({of})' if of else ''}" if n > 1 else ""
            said = f"axes {a} and {a + 1}{where}, {{}} the wrong way round, in"
            yield (
                kinds.PERMUTATION,
                said.format("written"),
                np.concatenate([_written(p, a) for p in parts], axis=a),
            )
            yield kinds.PERMUTATION, said.format("read"), np.concatenate([_read(p, a) for p in parts], axis=a)


def _written(x: Floats, axis: int) -> Floats:
    return np.ascontiguousarray(x.swapaxes(axis, axis + 1)).reshape(x.shape)


def _read(x: Floats, axis: int) -> Floats:
    shape = x.swapaxes(axis, axis + 1).shape
    return np.ascontiguousarray(x.reshape(shape).swapaxes(axis, axis + 1))


def matched(
    make: Callable[[Floats], Floats], own: Floats, target: Floats, reach: float
) -> tuple[str, float] | None:
    """Find which slice of an input each slice of the output was made from, along one axis of each.

    Parameters
    ----------
    make : callable
        The output, of the input.
    own, target : ndarray
        Input and output as they are.
    reach : float
        Relative error that may be left.

    Returns
    -------
    (str, float) or None
        The order in words with what it leaves, relative; None where none fits.
    """
    size = float(np.linalg.norm(target.ravel())) or 1.0
    for axis in range(own.ndim - 1):
        n = own.shape[axis]
        if not 2 < n <= _MOST_SLICES:
            continue
        made = [make(np.roll(own, -by, axis=axis)) for by in range(n)]
        for out in (a for a in range(target.ndim) if target.shape[a] % n == 0):
            others = tuple(a for a in range(target.ndim) if a != out)
            left = np.stack([((value - target) ** 2).sum(axis=others) for value in made])
            left = left.reshape(n, n, -1).sum(axis=2)
            by = left.argmin(axis=0)
            rest = float(np.sqrt(left.min(axis=0).sum())) / size
            if rest <= reach and by.any():
                order = ((np.arange(n) + by) % n).tolist()
                return f"slices {order} of axis {axis}", rest
    return None


def _orders(n: int) -> Iterator[tuple[str, Array]]:
    if n > 2:
        yield "in reverse order", np.arange(n)[::-1]
        yield "one place on", np.roll(np.arange(n), 1)
        yield "one place back", np.roll(np.arange(n), -1)
    else:
        yield "in reverse order", np.array([1, 0])


def _of_other_ranks(size: int, n: int) -> Iterator[tuple[str, Array]]:
    """Orders in which each context-parallel rank's two chunks are those of another."""
    if size % (2 * n):
        return
    parts = np.arange(size).reshape(2 * n, -1)
    for text, order in _orders(n):
        chunks = [int(order[c]) if c < n else 2 * n - 1 - int(order[2 * n - 1 - c]) for c in range(2 * n)]
        yield f"with the ranks {text}", parts[chunks].ravel()


def zigzags(size: int, n: int) -> Iterator[tuple[str, Array]]:
    """Orders of positions under context parallelism: dealt zigzag and not put back, and the reverse."""
    if n < 2 or size % (2 * n):
        return
    parts = np.arange(size).reshape(2 * n, -1)
    dealt = np.concatenate([np.concatenate([parts[r], parts[2 * n - 1 - r]]) for r in range(n)])
    yield "in the zigzag order", dealt
    yield "put back from a zigzag order it never had", np.argsort(dealt)
