"""Whole numbers that name something: rows of a table, experts, classes of a vocabulary."""

from __future__ import annotations

import numpy as np

from telekit.accuracy.measures.pairs import Floats


def numbers_of(x: Floats, count: float = np.inf) -> bool:
    """Whether all elements, of which there are some, are whole numbers from 0 to below ``count``."""
    return bool(x.size and (x == np.rint(x)).all() and x.min() >= 0 and x.max() < count)


def table_rows(ids: Floats, rows: int) -> bool:
    """Whether an array, of more than one element, names rows of a table: token ids."""
    return ids.ndim > 0 and ids.size > 1 and numbers_of(ids, rows)


def distinct(x: Floats) -> bool:
    """Whether no row, along the last axis, has a number twice."""
    return bool((np.diff(np.sort(x, axis=-1), axis=-1) > 0).all())
