"""A right value times another factor for each row, each channel, or each rank's piece of an axis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.formula.orders import as_rows, counts, dealt
from telekit.accuracy.redoing.output.moved import near

_FEW = 4  # different factors: more are a weight by channel
_SAID = 8
_LEAST_ROWS = 8


def by_columns(own: Floats, t: Floats, reach: float, case: Case) -> Iterator[Cause]:
    """Find one factor on some channels, or one for each rank's piece of them."""
    rows = int(np.prod(t.shape[: min(2, t.ndim - 1)]))
    if t.ndim < 2 or rows < _LEAST_ROWS:
        return
    a, b = t.reshape(rows, -1), own.reshape(rows, -1)  # heads and their elements are channels of one row
    square = (b * b).sum(axis=0)
    if not square.all():
        return
    factor = (a * b).sum(axis=0) / square
    room = max(4 * reach, 1e-4)
    order = np.sort(factor)
    groups = np.split(order, np.flatnonzero(np.diff(order) > room) + 1)
    middle = np.array([float(np.median(g)) for g in groups])
    if not 1 < len(middle) <= _FEW or any(np.ptp(g) > 2 * room for g in groups):
        return
    value = middle[np.abs(factor[:, None] - middle).argmin(axis=1)]
    if not near(b * value, a, reach):
        return
    for (n, name), blocks in product(counts(case), (1, 2, 3)):
        if value.size % (n * blocks):
            continue
        pieces = value.reshape(blocks, n, -1).swapaxes(0, 1).reshape(n, -1)
        if not np.ptp(pieces, axis=1).any():
            each = f", of each of {blocks} blocks," if blocks > 1 else ""
            said = f"the {n} pieces{dealt(name, t.ndim - 1, t.ndim)} of the channels{each} are {_rounded(pieces[:, 0])}"
            yield Cause(kinds.ONE_SHARD, 0.92, f"{said} times the right ones")
            return
    at = np.flatnonzero(np.abs(value - 1) > room)
    kind = kinds.GRADIENT_SCALING if case.phase == BACKWARD else kinds.SCALED
    kind = kinds.LOCAL if (value < 0).any() else kind
    where = f"{at[:_SAID].tolist()}{'…' if at.size > _SAID else ''}"
    sign = ", with the other sign" if (value < 0).any() else ""
    times = _rounded(np.unique(value[at]))
    text = f"{at.size} of {value.size} channels, {where}, are {times} times the right ones{sign}"
    yield Cause(kind, 0.9, text)


def _rounded(factors: Floats) -> str:
    return ", ".join(f"{f:.4g}" for f in factors)


def by_rows(own: Floats, t: Floats, reach: float) -> Iterator[Cause]:
    """Find another factor for each row."""
    if t.ndim < 2 or t.shape[-1] < 4 or t.size // t.shape[-1] < 4:
        return
    a, b = as_rows(t), as_rows(own)
    square = (b * b).sum(axis=1)
    factor = (a * b).sum(axis=1) / np.where(square > 0, square, 1.0)
    good = factor[square > 0]
    if not near(factor[:, None] * b, a, reach) or np.ptp(good) < 0.01 or set(good.round(6)) <= {0.0, 1.0}:
        return
    text = (
        f"each row is a multiple of the right one, {good.min():.4g} to {good.max():.4g}: another denominator"
    )
    yield Cause(kinds.NORMALISATION, 0.85, f"{text}, or what it is taken over")
