"""Errors in units in the last place of the golden value, for any floating format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import (
    Array,
    Floats,
    Format,
    blocks,
    checked,
    dtype_name,
    format_of,
    same_shape,
)


@dataclass(frozen=True)
class UlpErrors:
    """Errors in ulp over the places where both sides are finite; None where there is none.

    ``share_above`` is the share of errors above ``threshold``.
    """

    maximum: float | None
    mean: float | None
    share_above: float | None
    threshold: float
    dtype: str
    elements: int
    not_finite: int


def ulp_distance(target: Floats, golden: Floats, form: Format, zero_exponent: int | None = 0) -> Floats:
    """Errors in ulp, element by element.

    Parameters
    ----------
    target, golden : ndarray of float64
        Finite values.
    form : Format
        The format whose spacing counts.
    zero_exponent : int or None
        Exponent of a golden zero: msprobe takes 0, as if it stood at 1; None takes the format's smallest, which
        counts steps of its subnormals.
    """
    exponent = np.frexp(golden)[1] - 1
    if zero_exponent is not None:
        exponent = np.where(golden == 0, zero_exponent, exponent)
    elif golden.size:
        exponent = np.where(golden == 0, form.min_exponent, exponent)
    exponent = np.maximum(exponent, form.min_exponent)
    return np.asarray(np.ldexp(np.abs(target - golden), form.mantissa - exponent), np.float64)


def ulp_errors(
    target: Any,
    golden: Any,
    dtype: str = "",
    *,
    threshold: float | None = None,
    zero_exponent: int | None = 0,
) -> UlpErrors:
    """Compare in units in the last place: ``|target - golden| * 2**(m - max(floor(log2|golden|), e_min))``.

    Parameters
    ----------
    target, golden : array_like
        Of one shape.
    dtype : str
        Format that counts; target's if left out.
    threshold : float, optional
        Errors above it are counted: msprobe's 32 for fp32 and fp64, 1 for others.
    zero_exponent : int or None
        See `ulp_distance`.

    Raises
    ------
    InputError
        If the shapes differ, or the format is not a floating one.

    Notes
    -----
    msprobe at commit 8ff00da3, ``api_accuracy_checker/compare/algorithm.py``.
    """
    a, b = checked(target, golden)
    same_shape(a, b)
    name = dtype or dtype_name(a)
    form = format_of(name)
    limit = (32.0 if form.mantissa >= 23 else 1.0) if threshold is None else threshold
    return _totals(a, b, name, form, limit, zero_exponent)


def _totals(
    a: Array, b: Array, name: str, form: Format, limit: float, zero_exponent: int | None
) -> UlpErrors:
    total = top = 0.0
    above = count = 0
    for _, (x, y) in blocks(a, b):
        finite = np.isfinite(x) & np.isfinite(y)
        with np.errstate(over="ignore"):
            errors = ulp_distance(x[finite], y[finite], form, zero_exponent)
        count += errors.size
        if errors.size:
            top, total = max(top, float(errors.max())), total + float(errors.sum())
            above += int(np.count_nonzero(errors > limit))
    if not count:
        return UlpErrors(None, None, None, limit, name, a.size, a.size)
    return UlpErrors(top, total / count, above / count, limit, name, a.size, a.size - count)
