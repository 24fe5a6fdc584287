"""Whether values stand on the grid of a narrower format than their type: what was rounded shows in what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import Floats, on_grid

NARROW = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16")
FEWEST = 16
"""Fewer different values are on a grid by chance, or because they are simple numbers."""
_ALL, _SOME = 0.999, 0.6
_SAMPLE = 1 << 16


def share_on_grid(values: Any, dtype: str) -> float:
    """Share of the finite values other than zero that a format holds to the bit, by its mantissa; nan where none is.

    Of values drawn at random in float32 one in 65,536 is a bfloat16.
    """
    found = _some(values)
    if not found.size:
        return float("nan")
    return float(np.mean(on_grid(found, dtype)))


@dataclass(frozen=True)
class Grid:
    """A format whose grid holds all of the target's values, and the shares of both sides' values on it."""

    dtype: str
    target: float
    golden: float

    def said(self, what: str) -> str:
        """In words, of what the values are."""
        return f"{what} is a {self.dtype} in the target ({self.golden:.1%} of golden's are)"


def coarser_grid(target: Any, golden: Any) -> Grid | None:
    """Find the narrowest format that holds all of the target's values and by far not all of golden's."""
    t, g = _some(target), _some(golden)
    if np.unique(np.abs(t)).size < FEWEST or not g.size:
        return None
    for dtype in NARROW:
        mine, other = share_on_grid(t, dtype), share_on_grid(g, dtype)
        if mine >= _ALL:
            return Grid(dtype, mine, other) if other <= _SOME else None
    return None


def _some(values: Any) -> Floats:
    found = np.asarray(values, np.float64).ravel()
    found = found[:: max(1, found.size // _SAMPLE)]
    return np.asarray(found[np.isfinite(found) & (found != 0)])
