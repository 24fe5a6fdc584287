"""Values that operators are tried with: plain, tiny, of a wide range, with outliers or NaN, and sums that cancel."""

from __future__ import annotations

import numpy as np

from telekit.accuracy.measures.pairs import Floats
from telekit.errors import bad

RANGES = {
    "normal": "standard normal",
    "uniform": "uniform in [-1, 1)",
    "positive": "uniform in [0, 1): sums grow, and rounding errors do not cancel",
    "wide": "normal times 2 to a power uniform in [-10, 10]",
    "small": "normal times 2**-12: many results below the small-value limits of the standards",
    "outliers": "normal, one in a thousand (at least one) times 100",
    "special": "normal, with one NaN, one Inf and one -Inf",
    "cancel": "the second half of a sum nearly takes back the first: little is left of large terms",
}


def draw(
    values: str, shape: tuple[int, ...], rng: np.random.Generator, *, axis: int = -1, mirrored: bool = False
) -> Floats:
    """Draw an array of float64.

    Parameters
    ----------
    values : str
        One of ``RANGES``.
    shape : tuple of int
        Its shape.
    rng : numpy.random.Generator
        Where the numbers come from.
    axis : int
        The axis an operator sums over, for ``cancel``.
    mirrored : bool
        For the second factor of a product under ``cancel``: its second half repeats the first, and the first
        factor's is the first half negated, but for a part in 64.

    Raises
    ------
    InputError
        If there is no such range.
    """
    if values not in RANGES:
        raise bad("values", values, f"must be one of {', '.join(RANGES)}")
    if values in ("uniform", "positive"):
        return rng.uniform(-1.0 if values == "uniform" else 0.0, 1.0, shape)
    x = rng.standard_normal(shape)
    flat = x.reshape(-1)
    if values == "wide":
        x *= 2.0 ** rng.uniform(-10, 10, shape)
    elif values == "small":
        x *= 2.0**-12
    elif values == "outliers" and x.size:
        flat[rng.choice(x.size, max(1, x.size // 1000), replace=False)] *= 100
    elif values == "special":
        some = rng.choice(x.size, min(3, x.size), replace=False)
        flat[some] = (np.nan, np.inf, -np.inf)[: some.size]
    elif values == "cancel":
        _cancel(np.moveaxis(x, axis, 0), rng, mirrored)
    return x


def _cancel(x: Floats, rng: np.random.Generator, mirrored: bool) -> None:
    half = len(x) // 2
    first, second = x[:half], x[half : 2 * half]
    second[...] = first if mirrored else -first * (1 + rng.standard_normal(first.shape) / 64)
