"""Intervals of time: their union, what is active when, and seconds by what is active together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def union(start_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """Merge intervals that touch or overlap; those without length vanish.

    Parameters
    ----------
    start_s, end_s : (n,) arrays
        In any order.

    Returns
    -------
    starts, ends : (m,) arrays
        Disjoint, ascending.
    """
    real = end_s > start_s
    start, end = start_s[real], end_s[real]
    if not len(start):
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.r_[True, start[1:] > reach[:-1]]
    return start[first], reach[np.r_[first[1:], True]]


def clipped(start_s: Floats, end_s: Floats, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """Cut intervals at a window; those outside get no length."""
    return np.clip(start_s, *window), np.clip(end_s, *window)


@dataclass(frozen=True, eq=False)
class Sweep:
    """A window cut at every change of what is active.

    Parameters
    ----------
    edges_s : (m + 1,) array
        Ascending.
    active : (m, classes) bool array
        Which class of intervals runs in each piece.
    """

    edges_s: Floats
    active: NDArray[np.bool_]

    @property
    def length_s(self) -> Floats:
        """Seconds of each piece, shape (m,)."""
        return np.diff(self.edges_s)


def sweep(
    classes: Sequence[tuple[Floats, Floats]], window: tuple[float, float], cuts: Sequence[float] = ()
) -> Sweep:
    """Cut a window at every start and end of any class's union, and at ``cuts``.

    Parameters
    ----------
    classes : sequence of (start_s, end_s)
        Intervals of each class.
    window : (float, float)
        Seconds.
    cuts : sequence of float
        Further edges (step boundaries), seconds.
    """
    merged = [union(*clipped(start, end, window)) for start, end in classes]
    points = [np.asarray(window, float), np.clip(np.asarray(cuts, float), *window)]
    edges = np.unique(np.concatenate([*points, *(part for pair in merged for part in pair)]))
    change = np.zeros((len(edges), len(merged)), np.int8)
    for column, (start, end) in enumerate(merged):
        change[np.searchsorted(edges, start), column] = 1
        np.subtract.at(change[:, column], np.searchsorted(edges, end), np.int8(1))
    return Sweep(edges, np.cumsum(change, axis=0, dtype=np.int8)[:-1].astype(bool))


def overlaps(
    groups: Mapping[str, tuple[Floats, Floats]], window: tuple[float, float]
) -> dict[tuple[str, ...], float]:
    """Seconds by which of the groups run together; ``()`` is idle; the sum is the window.

    Parameters
    ----------
    groups : mapping of str to (start_s, end_s)
        For example kernels, all-to-all, all-reduce.
    window : (float, float)
        Seconds.
    """
    names = tuple(groups)
    found = sweep([(np.asarray(a, float), np.asarray(b, float)) for a, b in groups.values()], window)
    kinds, where = np.unique(found.active, axis=0, return_inverse=True)
    seconds = np.bincount(where.ravel(), weights=found.length_s, minlength=len(kinds))
    return {
        tuple(name for name, on in zip(names, kind, strict=True) if on): float(time)
        for kind, time in zip(kinds, seconds, strict=True)
    }
