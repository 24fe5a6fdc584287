"""Times as whole nanoseconds, from the digits as they stand: a float of microseconds since 1970 keeps only 0.25 us."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_NS = 9_000_000_000_000_000_000
"""Later than this (the year 2255) is no time."""
EPOCH_NS = 100_000_000_000_000_000
"""A time beyond this (1973) counts from 1970, one before it from an unknown start, such as the machine's."""


def nanoseconds(value: Any, unit_ns: int = 1000) -> int:
    """Return a time as whole nanoseconds; fractions of a nanosecond are rounded.

    Parameters
    ----------
    value : int, float or str
        A number, or its text.
    unit_ns : int
        Nanoseconds in one of its units: 1000 for microseconds.

    Raises
    ------
    ValueError
        No number, not finite, or out of range.
    """
    kind = type(value)
    if kind is str:
        if unit_ns == 1000 and value[-4:-3] == "." and len(value) < 24:
            try:
                found = int(value[:-4] + value[-3:])  # three decimals of a microsecond: the usual case
            except ValueError:
                found = _slowly(value, unit_ns)
        else:
            found = _slowly(value, unit_ns)
    elif kind is int:
        found = value * unit_ns
    elif kind is float and math.isfinite(value):
        found = round(Decimal(repr(value)) * unit_ns)
    else:
        raise ValueError("no number")
    if -MAX_NS < found < MAX_NS:
        return found
    raise ValueError("out of range")


def _slowly(text: str, unit_ns: int) -> int:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError("no number") from None
    if not number.is_finite() or number.adjusted() > 40:
        raise ValueError("out of range")
    return round(number * unit_ns)
