"""Reading numbers that a caller gives: real, finite, not too large for sums of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem, bad

MAX_TIME = 1e100
"""Largest time, in any unit: sums and products of such times stay finite."""


def numbers(name: str, values: Any) -> NDArray[np.float64]:
    """Read an array of real numbers, or raise an InputError: for text, None, rows of unequal length, complex."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "biuf":
            return array.astype(np.float64, copy=False)
        if array.dtype.kind == "O" and not any(isinstance(x, str | complex) or x is None for x in array.flat):
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    rule = "must be real numbers, in rows of equal length"
    raise bad(name, values, rule, f"{name} 1 works")


def faults(name: str, values: Any) -> list[Problem]:
    """Return the problem of what cannot be read as numbers."""
    try:
        numbers(name, values)
    except InputError as fault:
        return list(fault.problems)
    return []


def wrong_numbers(name: str, values: Any, zero: bool = False, single: bool = False) -> list[Problem]:
    """Name the first entry that is no time: not finite, too large, negative, or (unless ``zero``) zero.

    ``single`` asks for one number, no array.
    """
    try:
        array = numbers(name, values)
    except InputError as fault:
        return list(fault.problems)
    if single and array.ndim:
        return [Problem(name, values, "must be one number", f"{name} 1 works")]
    good = (array <= MAX_TIME) & ((array >= 0) if zero else (array > 0))
    if good.all():
        return []
    first = float(array[~good][0])
    if MAX_TIME < first < math.inf:
        return [Problem(name, first, f"the most is {MAX_TIME:g}", f"{MAX_TIME:g} works")]
    rule = "must be finite and not negative" if zero else "must be finite and more than 0"
    near = min(abs(first), MAX_TIME) if np.isfinite(first) and first else 0.0 if zero else 1.0
    return [Problem(name, first, rule, f"{near:g} works")]
