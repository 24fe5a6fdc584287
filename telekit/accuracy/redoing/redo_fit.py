"""The number with which something comes nearest to a target: a grid first, so that no valley is missed, then closer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

from telekit.accuracy.measures.pairs import Floats


def nearest(left: Callable[[float], float], grid: Floats) -> float:
    """Return where ``left`` is least, between the neighbours of the best point of a rising grid."""
    at = int(np.argmin([left(float(x)) for x in grid]))
    low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    found = minimize_scalar(
        left, bounds=(low, high), method="bounded", options={"xatol": 1e-10 * max(high - low, 1e-3)}
    )
    return float(found.x) if found.fun <= left(float(grid[at])) else float(grid[at])
