"""Errors of one operator's output as msprobe's checker and Ascend's standard take them; their limits by type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import (
    BLOCK,
    FORMATS,
    Floats,
    blocks,
    checked,
    dtype_name,
    exact_distance,
    flat,
    numpy_type,
    same_shape,
    whole_numbers,
)
from telekit.errors import InputError, Problem


@dataclass(frozen=True)
class Limits:
    """What msprobe's checker sets by type.

    Attributes
    ----------
    small_value : float
        ``|golden|`` up to this is small: judged by its absolute error.
    rtol, small_atol : float
        Limits of the relative error of normal values and of the absolute error of small ones.
    epsilon : float
        Added to ``|golden|`` before dividing.
    """

    small_value: float
    rtol: float
    small_atol: float
    epsilon: float


# msprobe's own by type: bfloat16's is half of the format's epsilon in `pairs.FORMATS`
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-8, "float32": 2.0**-23, "float64": 2.0**-52}


def _limits(rows: dict[str, tuple[float, float, float]]) -> dict[str, Limits]:
    return {dtype: Limits(*row, EPSILON[dtype]) for dtype, row in rows.items()}


LIMITS = {
    "absolute": _limits(
        {
            "float16": (2.0**-10, 2.0**-10, 2.0**-16),
            "bfloat16": (2.0**-10, 2.0**-8, 1e-16),
            "float32": (2.0**-20, 2.0**-20, 2.0**-30),
        }
    ),
    "absolute-documented": _limits(
        {
            "float16": (2.0**-11, 2.0**-10, 2.0**-16),
            "bfloat16": (2.0**-8, 2.0**-8, 2.0**-16),
            "float32": (2.0**-14, 2.0**-20, 2.0**-30),
        }
    ),
    "benchmark": _limits(
        {
            "float16": (2.0**-10, 2.0**-10, 1e-16),
            "bfloat16": (2.0**-10, 2.0**-8, 1e-16),
            "float32": (2.0**-20, 2.0**-20, 2.0**-30),
        }
    ),
    "legacy": _limits(
        {
            "float16": (1e-3, 1e-3, 1e-5),
            "bfloat16": (1e-3, 4e-3, 1e-5),
            "float32": (1e-6, 1e-6, 1e-9),
        }
    ),
}
MINIMUM_ERROR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-14}
ACCUMULATIVE = {
    "float16": (2.0**-8, 2.0**-20),
    "bfloat16": (2.0**-7, 2.0**-7),
    "float32": (2.0**-11, 2.0**-14),
}


def row_of(table: dict[str, Any], dtype: str, what: str) -> Any:
    """Return a type's row of a table, or raise InputError that names the types it has."""
    if dtype not in table:
        raise InputError(
            [Problem("dtype", dtype, f"{what} has no row for it", f"dtype= one of {', '.join(table)}")]
        )
    return table[dtype]


@dataclass(frozen=True)
class OperatorErrors:
    """Errors of an output against its golden.

    Attributes
    ----------
    special_share : float
        Of the places where a side is NaN or Inf, the share where the two do not agree.
    relative_share, absolute_share : float
        Share of normal values above ``rtol``, and of small values above ``small_atol``.
    rmse : float
        Root of the mean square error over normal values, with msprobe's correction of the count.
    max_relative, mean_relative : float
        Over normal values.
    balance : float
        ``|#(target > golden) - #(target < golden)| / n``, golden rounded to the type that counts.
    elements, normal, small, special : int
        How many values of each kind.
    """

    special_share: float
    relative_share: float
    absolute_share: float
    rmse: float
    max_relative: float
    mean_relative: float
    balance: float
    elements: int
    normal: int
    small: int
    special: int


@dataclass
class _Counts:
    elements: int = 0
    special: int = 0
    special_wrong: int = 0
    small: int = 0
    small_wrong: int = 0
    normal: int = 0
    normal_wrong: int = 0
    squares: float = 0.0
    relative: float = 0.0
    top: float = 0.0
    larger: int = 0
    smaller: int = 0

    def add(self, x: Floats, y: Floats, rounded: Floats, limits: Limits, maximum: float) -> None:
        finite = np.isfinite(x) & np.isfinite(rounded)
        self._special(x[~finite], rounded[~finite], limits, maximum)
        x, y, rounded = x[finite], y[finite], rounded[finite]
        error, size = np.abs(x - y), np.abs(y)
        small = size <= limits.small_value
        normal = ~small
        relative = error[normal] / (size[normal] + limits.epsilon)
        self.elements += finite.size
        self.small += int(np.count_nonzero(small))
        self.small_wrong += int(np.count_nonzero(error[small] > limits.small_atol))
        self.normal += relative.size
        self.normal_wrong += int(np.count_nonzero(relative > limits.rtol))
        self.squares += float(np.square(error[normal]).sum())
        self.relative += float(relative.sum())
        self.top = max(self.top, float(relative.max(initial=0.0)))
        self.larger += int(np.count_nonzero(x > rounded))
        self.smaller += int(np.count_nonzero(x < rounded))

    def _special(self, x: Floats, y: Floats, limits: Limits, maximum: float) -> None:
        """Inf counts as the type's largest value, so that 65504 for an fp16 Inf is no error."""
        a, b = np.clip(x, -maximum, maximum), np.clip(y, -maximum, maximum)
        close = np.abs(a - b) <= limits.rtol * (np.abs(b) + limits.epsilon)
        agree = close | (np.isnan(x) & np.isnan(y))
        self.special += x.size
        self.special_wrong += int(np.count_nonzero(~agree))


def operator_errors(target: Any, golden: Any, limits: Limits, dtype: str = "") -> OperatorErrors:
    """Take msprobe's errors of an operator's output, in one pass of blocks.

    Parameters
    ----------
    target, golden : array_like
        Of one shape; golden usually in a wider type.
    limits : Limits
        ``LIMITS[standard][dtype]``, or your own.
    dtype : str
        Type whose range and rounding count; target's if left out.

    Raises
    ------
    InputError
        If the shapes differ, or the type is not a floating one.

    Notes
    -----
    msprobe at commit 8ff00da3, ``api_accuracy_checker/compare/algorithm.py``. One deviation: where golden is Inf
    the relative error is taken against the type's largest value; msprobe divides by Inf, and then any finite
    target agrees with it.
    """
    a, b = checked(target, golden)
    same_shape(a, b)
    name = dtype or dtype_name(a)
    maximum = row_of(FORMATS, name, "the table of floating formats").maximum
    kind = numpy_type(name)
    counts = _Counts()
    with np.errstate(all="ignore"):
        for _, (x, y) in blocks(a, b):
            counts.add(x, y, y.astype(kind).astype(np.float64), limits, maximum)
    return _errors(counts)


def _errors(c: _Counts) -> OperatorErrors:
    left_out = c.small + c.special
    mean_square = c.squares / c.elements if c.elements else 0.0
    correction = c.elements / (c.elements - left_out + 0.0001) + 0.0001
    return OperatorErrors(
        special_share=_share(c.special_wrong, c.special),
        relative_share=_share(c.normal_wrong, c.normal),
        absolute_share=_share(c.small_wrong, c.small),
        rmse=sqrt(mean_square * correction),
        max_relative=c.top,
        mean_relative=_share(c.relative, c.normal),
        balance=_share(abs(c.larger - c.smaller), c.elements),
        elements=c.elements,
        normal=c.normal,
        small=c.small,
        special=c.special,
    )


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class RelativeErrors:
    """``|target - golden| / (|golden| + epsilon)`` over all places; NaN at both sides is left out.

    ``shares`` are of all elements, by threshold: those strictly below it. ``rmse`` is the plain root mean square.
    A place with NaN or Inf on one side, or Inf of opposite signs, has infinite error.
    """

    maximum: float
    mean: float
    rmse: float
    shares: dict[float, float]
    elements: int


def relative_errors(
    target: Any, golden: Any, epsilon: float, thresholds: Sequence[float] = ()
) -> RelativeErrors:
    """Take relative errors with ``epsilon`` in the denominator, and the share below each threshold.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    a, b = checked(target, golden)
    same_shape(a, b)
    top = total = squares = 0.0
    below = dict.fromkeys(thresholds, 0)
    with np.errstate(all="ignore"):
        for _, (x, y) in blocks(a, b):
            error = _difference(x, y)
            relative = np.where(error == np.inf, np.inf, error / (np.abs(y) + epsilon))
            relative[error == 0] = 0.0
            top, total = max(top, float(relative.max())), total + float(relative.sum())
            squares += float(np.square(error).sum())
            for limit in below:
                below[limit] += int(np.count_nonzero(relative < limit))
    n = max(a.size, 1)
    shares = {limit: count / a.size if a.size else 1.0 for limit, count in below.items()}
    return RelativeErrors(top, total / n, sqrt(squares / n), shares, a.size)


def _difference(x: Floats, y: Floats) -> Floats:
    """Absolute difference: 0 where both are NaN or the same Inf, Inf where only one is special."""
    error = np.abs(x - y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def count_different(target: Any, golden: Any) -> int:
    """Count places whose values differ: exact for integers too; NaN equals NaN, -0.0 equals 0.0.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    a, b = checked(target, golden)
    same_shape(a, b)
    if a.dtype == b.dtype and a.dtype.kind in "biu":
        return int(np.count_nonzero(a != b))
    if whole_numbers(a, b):
        rows = flat(a), flat(b)
        starts = range(0, a.size, BLOCK)
        return sum(int(np.count_nonzero(exact_distance(*(r[i : i + BLOCK] for r in rows)))) for i in starts)
    return sum(int(np.count_nonzero((x != y) & ~(np.isnan(x) & np.isnan(y)))) for _, (x, y) in blocks(a, b))
