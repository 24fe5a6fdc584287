"""One pass over a pair of arrays: every sum, extreme and count that the tensor metrics need, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite, ldexp, sqrt

import numpy as np
from numpy.typing import NDArray

from telekit.accuracy.measures.pairs import (
    BLOCK,
    KEPT,
    ROW,
    Array,
    Floats,
    exact_distance,
    flat,
    release,
    whole_numbers,
)

ONE_THOUSANDTH, FIVE_THOUSANDTHS = 0.001, 0.005
_LOWEST = 1e-140  # below this a square leaves float64's normal range


@dataclass
class Side:
    """Running figures of one tensor; extremes and sums are over its finite values."""

    maximum: float = -inf
    minimum: float = inf
    total: float = 0.0
    squares: float = 0.0
    nan: int = 0
    infinite: int = 0
    exponent: int = 0  # squares are of the values divided by 2**exponent

    def extremes(self, values: Array) -> None:
        """Take in the largest and smallest of ``values``."""
        if values.size:
            self.maximum = max(self.maximum, float(np.maximum.reduce(values)))
            self.minimum = min(self.minimum, float(np.minimum.reduce(values)))

    @property
    def norm(self) -> float:
        """Euclidean norm of the finite values."""
        return _scaled(sqrt(self.squares), self.exponent)

    @property
    def largest(self) -> float:
        """Largest absolute finite value."""
        return max(self.maximum, -self.minimum, 0.0)


@dataclass
class Sums:
    """What one pass leaves behind; ``product`` and ``distance`` are scaled by the sides' exponents."""

    target: Side = field(default_factory=Side)
    golden: Side = field(default_factory=Side)
    product: float = 0.0
    distance_squares: float = 0.0
    distance_exponent: int = 0
    max_abs: float = 0.0
    max_abs_index: int = 0
    max_relative: float = 0.0
    max_relative_index: int = 0
    below_one: int = 0
    below_five: int = 0
    positions_match: bool = True
    opposite_infinities: int = 0

    @property
    def distance(self) -> float:
        """Euclidean distance."""
        return _scaled(sqrt(self.distance_squares), self.distance_exponent)

    @property
    def cosine(self) -> float:
        """Cosine of the angle; both norms must be above zero."""
        return self.product / (sqrt(self.target.squares) * sqrt(self.golden.squares))


def _scaled(value: float, exponent: int) -> float:
    try:
        return ldexp(value, exponent)
    except OverflowError:
        return inf


class _Pass:
    """Buffers of one pass, made once: a fresh one a block would cost more than the arithmetic."""

    def __init__(self, target: Array, golden: Array, epsilon: float) -> None:
        self.target, self.golden, self.epsilon = target, golden, epsilon
        width = min(BLOCK, -(-target.size // ROW) * ROW)
        self.pair = np.zeros((2, width))
        self.mask = np.empty(width, bool)
        self.spare = np.empty(width)
        self.ones = np.ones((ROW // 4, 1))
        wide = any(a.itemsize == 8 for a in (target, golden))  # narrower ones are exact in float64
        self.integers = wide and whole_numbers(target, golden)
        self.zeros = False
        self.sums = Sums()

    def run(self) -> Sums:
        with np.errstate(all="ignore"):
            for nth, start in enumerate(range(0, self.target.size, self.pair.shape[1])):
                self._block(start)
                if nth % KEPT == KEPT - 1:
                    release(self.target, self.golden)
            if _out_of_range(self.sums):
                _rescale(self.sums, self.target, self.golden)
        return self.sums

    def _block(self, start: int) -> None:
        sums = self.sums
        part = slice(start, start + self.pair.shape[1])
        a, b = self.target[part], self.golden[part]
        size = a.size
        self.pair[:, size:] = 0.0  # only a last block is not full; zeros add nothing
        np.copyto(self.pair[0, :size], a, casting="unsafe")
        np.copyto(self.pair[1, :size], b, casting="unsafe")
        x, y = self.pair[:, :size]
        squares = _dots(self.pair[0], self.pair[0]), _dots(self.pair[1], self.pair[1])
        if not isfinite(squares[0] + squares[1]) and not np.isfinite(self.pair).all():
            a, b = self._without_special(x, y)
            squares = _dots(self.pair[0], self.pair[0]), _dots(self.pair[1], self.pair[1])
        totals = np.matmul(self.pair.reshape(2, -1, 4, ROW // 4), self.ones).reshape(2, -1).sum(axis=1)
        for side, native, wide, square, total in zip(
            (sums.target, sums.golden), (a, b), (x, y), squares, totals.tolist(), strict=True
        ):
            side.extremes(native if native.itemsize > 2 and native.dtype.kind != "b" else wide)
            side.squares += square
            side.total += total
        sums.product += _dots(self.pair[0], self.pair[1])
        self._errors(start, size)

    def _without_special(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Count NaN and Inf, set them to zero in the buffers, and return the finite values of each side."""
        sums = self.sums
        nans, infinities = [np.isnan(v) for v in (x, y)], [np.isinf(v) for v in (x, y)]
        sums.positions_match &= bool((nans[0] == nans[1]).all() and (infinities[0] == infinities[1]).all())
        sums.opposite_infinities += int(np.count_nonzero(infinities[0] & infinities[1] & (x != y)))
        finite = []
        for side, values, nan, infinite in zip(
            (sums.target, sums.golden), (x, y), nans, infinities, strict=True
        ):
            side.nan += int(np.count_nonzero(nan))
            side.infinite += int(np.count_nonzero(infinite))
            special = nan | infinite
            finite.append(values[~special])
            values[special] = 0.0
        return finite[0], finite[1]

    def _errors(self, start: int, size: int) -> None:
        """Distance, absolute and relative errors of the block; the buffers are used up."""
        sums, mask = self.sums, self.mask[:size]
        x, y = self.pair[:, :size]
        part = slice(start, start + size)
        np.subtract(x, y, out=x)
        sums.distance_squares += _dots(self.pair[0], self.pair[0])
        if self.integers:
            x[:] = exact_distance(self.target[part], self.golden[part])
        np.abs(x, out=x)
        top = float(np.maximum.reduce(x))
        if top > sums.max_abs:
            sums.max_abs, sums.max_abs_index = top, start + int(x.argmax())
        np.abs(y, out=y)
        if self.zeros:  # so far only a guess from the block before
            self._replace_zeros(y, mask)
        np.divide(x, y, out=x)
        top = float(np.maximum.reduce(x))
        if not isfinite(top) and not self.zeros:  # 0/0, or more over zero
            self._replace_zeros(y, mask)
            there = self.target[part][mask].astype(np.float64)
            there[~np.isfinite(there)] = 0.0
            x[mask] = np.abs(there) / self.epsilon
            top = float(np.maximum.reduce(x))
        if top > sums.max_relative:
            sums.max_relative, sums.max_relative_index = top, start + int(x.argmax())
        sums.below_one += int(np.count_nonzero(np.less(x, ONE_THOUSANDTH, out=mask)))
        sums.below_five += int(np.count_nonzero(np.less(x, FIVE_THOUSANDTHS, out=mask)))

    def _replace_zeros(self, golden: Floats, mask: NDArray[np.bool_]) -> None:
        """Put epsilon where golden is zero: adding it to both sides leaves their difference as it is.

        Arithmetic on the whole block: numpy's masked writes are six times slower when zeros stand at random.
        """
        np.equal(golden, 0.0, out=mask)
        self.zeros = bool(mask.any())
        if self.zeros:
            added = self.spare[: golden.size]
            np.copyto(added, mask)
            np.multiply(added, self.epsilon, out=added)
            np.add(golden, added, out=golden)


def _dots(x: Floats, y: Floats) -> float:
    """Dot product, a row at a time."""
    return float(np.matmul(x.reshape(-1, 1, ROW), y.reshape(-1, ROW, 1)).sum())


def _out_of_range(sums: Sums) -> bool:
    """Tell whether a square overflowed or lost bits below float64's range."""
    sides = (sums.target, sums.golden)
    return not all(isfinite(s.squares) for s in sides) or any(0 < s.largest < _LOWEST for s in sides)


def _rescale(sums: Sums, target: Array, golden: Array) -> None:
    """Take the sums of squares again, of values brought near 1 by powers of two."""
    sides = (sums.target, sums.golden)
    for side in sides:
        side.exponent, side.squares = int(np.frexp(side.largest)[1]), 0.0
    sums.distance_exponent = max(s.exponent for s in sides) + 1
    sums.product = sums.distance_squares = 0.0
    for start in range(0, target.size, BLOCK):
        wide = [v[start : start + BLOCK].astype(np.float64) for v in (target, golden)]
        x, y = (np.where(np.isfinite(v), v, 0.0) for v in wide)
        d = np.ldexp(x, -sums.distance_exponent) - np.ldexp(y, -sums.distance_exponent)
        x, y = (np.ldexp(v, -s.exponent) for v, s in zip((x, y), sides, strict=True))
        sums.target.squares += float(x @ x)
        sums.golden.squares += float(y @ y)
        sums.product += float(x @ y)
        sums.distance_squares += float(d @ d)


def pair_sums(target: Array, golden: Array, epsilon: float) -> Sums:
    """Read both arrays once.

    Parameters
    ----------
    target, golden : ndarray
        Of one shape and at least one element.
    epsilon : float
        Added to both where golden is zero, before the relative error is taken.
    """
    return _Pass(flat(target), flat(golden), epsilon).run()
