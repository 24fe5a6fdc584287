"""The number with which something comes nearest to a target: a grid first, so that no valley is missed, then closer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

from telekit.accuracy.measures.pairs import Floats

_SECTIONS = 36
_GOLDEN = (5**0.5 - 1) / 2


def nearest(left: Callable[[float], float], grid: Floats) -> float:
    """Return where ``left`` is least, between the neighbours of the best point of a rising grid."""
    at = int(np.argmin([left(float(x)) for x in grid]))
    low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    found = minimize_scalar(
        left, bounds=(low, high), method="bounded", options={"xatol": 1e-10 * max(high - low, 1e-3)}
    )
    return float(found.x) if found.fun <= left(float(grid[at])) else float(grid[at])


def searched(left: Callable[[Floats], Floats], grid: Floats, count: int) -> Floats:
    """Search the least of so many independent functions at once: a grid, then golden sections around its best.

    Parameters
    ----------
    left : callable
        Of ``count`` numbers, one for each function, what each leaves.
    grid : ndarray
        Where to look, ascending.
    count : int
        How many functions.

    Returns
    -------
    ndarray
        The number of each.
    """
    coarse = np.stack([np.nan_to_num(left(np.full(count, c)), nan=np.inf) for c in grid])
    at = coarse.argmin(axis=0)
    low, high = grid[np.maximum(at - 1, 0)], grid[np.minimum(at + 1, len(grid) - 1)]
    for _ in range(_SECTIONS):
        width = high - low
        a, b = high - _GOLDEN * width, low + _GOLDEN * width
        nearer = left(a) < left(b)
        low, high = np.where(nearer, low, a), np.where(nearer, b, high)
    return np.asarray((low + high) / 2)


def plain(by: Floats, left: Callable[[Floats], Floats]) -> Floats:
    """Round each number to the fewest digits with which it leaves no more: what fits as well is not told apart."""
    least, value = left(by), by
    for digits in (4, 3, 2, 1):
        other = np.array([float(f"{c:.{digits}g}") for c in by])
        value = np.where(left(other) <= 1.03 * least + 1e-13 * float(np.square(by).max()), other, value)
    return np.asarray(value)
