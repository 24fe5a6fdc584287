"""Two halves of a last axis, as gate and up, read from the wrong places: of the whole, or in each rank's piece.

A rank's piece of ``[gate; up]`` is its part of gate, then its part of up; a merged dump holds all of gate, then all of
up. What a rank reads wrongly is therefore no run of the merged tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from telekit.accuracy.causes.case import Case
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.orders import counts

Order = Callable[[Floats], Floats]
"""Puts the last axis in another order."""


def _swapped(x: Floats) -> Floats:
    return np.roll(x, x.shape[-1] // 2, axis=-1)


def _apart(x: Floats) -> Floats:
    """Even entries, then odd ones."""
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def _interleaved(x: Floats) -> Floats:
    """One entry of each half in turn."""
    return np.stack(np.split(x, 2, axis=-1), axis=-1).reshape(x.shape)


READINGS: tuple[tuple[str, Order, Order], ...] = (
    ("are taken the wrong way round", _swapped, _swapped),
    ("read interleaved", _apart, _interleaved),
    (
        "read interleaved and the wrong way round",
        lambda x: _swapped(_apart(x)),
        lambda x: _interleaved(_swapped(x)),
    ),
    ("joined in turn, entry by entry", _interleaved, _apart),
)
"""In words, in which order the halves are read, and in which their gradients are then written."""


def in_pieces(case: Case, width: int) -> Iterator[tuple[int, str]]:
    """Return into how many ranks' pieces the halves may be dealt, with words for it: one first."""
    yield 1, ""
    for n, of in counts(case, "tp", "etp"):
        if width % (2 * n) == 0:
            yield n, f", inside each of {n} ranks' pieces{f' ({of})' if of else ''}"


def of_pieces(order: Order, count: int, x: Floats) -> Floats:
    """Put each rank's piece of two halves in another order; the halves of the whole are what is handed in and out."""
    pieces = x.reshape(*x.shape[:-1], 2, count, -1).swapaxes(-2, -3)
    moved = order(pieces.reshape(*x.shape[:-1], count, -1)).reshape(pieces.shape)
    return np.ascontiguousarray(moved.swapaxes(-2, -3)).reshape(x.shape)


def exchanged(
    halves: Floats, act: Callable[[Floats], Floats], target: Floats
) -> tuple[str, Array, Array] | None:
    """Find the channels that each product of an activated gate and up was made with, wherever they stand.

    Parameters
    ----------
    halves, target : ndarray, shape (..., 2 channels) and (..., channels)
        Gate, then up; and the products as they are.
    act : callable
        The gate's activation.

    Returns
    -------
    (str, ndarray, ndarray) or None
        In words, and of which of all channels each product is; None where they are the right ones, or too many.
    """
    rows, y = (x.reshape(-1, x.shape[-1]) for x in (halves, target))
    n = y.shape[1]
    if n > _MOST_CHANNELS:
        return None
    some = slice(0, None, max(1, len(rows) // _ROWS))
    b, y = rows[some], y[some]
    a = act(b)
    squares = (a * a).T @ (b * b)
    at = np.array([(squares - 2 * (a * y[:, [j]]).T @ b).argmin() for j in range(n)])
    gate, up = np.unravel_index(at, squares.shape)
    if np.array_equal(gate, np.arange(n)) and np.array_equal(up, n + np.arange(n)):
        return None
    said = " and ".join(f"{name} from channels {i[:6].tolist()}…" for name, i in (("gate", gate), ("up", up)))
    return f"{said} of the {2 * n} of [gate; up]", gate, up


_MOST_CHANNELS, _ROWS = 128, 128
