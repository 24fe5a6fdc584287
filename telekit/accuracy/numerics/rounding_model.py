"""How large rounding errors are expected to be: independent errors that add in squares, against what is measured."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np

from telekit.accuracy.measures.pairs import Floats, format_of
from telekit.accuracy.numerics.emulate import order_problems, terms_a_block
from telekit.errors import InputError, Problem

# Normal values by the power of two below their size: how many there are, and that power, to which steps belong.
_LOW = 2.0 ** np.arange(-40, 4)
_SHARE = np.array([erf(2 * low / sqrt(2)) - erf(low / sqrt(2)) for low in _LOW])
# Root mean square of one rounding relative to that of normal values, in epsilons: an error is uniform over a step.
# 0.213; for another standard deviation than 1 it stays within 0.2119 and 0.2128.
ONE_ROUNDING = sqrt(float((_SHARE * _LOW**2).sum()) / 12)


def one_rounding(dtype: str) -> float:
    """Return the expected relative error of rounding an array once: root mean square over root mean square.

    Parameters
    ----------
    dtype : str
        A floating format.
    """
    return ONE_ROUNDING * format_of(dtype).epsilon


def partial_sums(n: int, order: str = "sequential", *, block: int = 0, parts: int = 4) -> Floats:
    """Terms in each partial sum that an order of summation rounds: ``n - 1`` numbers, the last of them ``n``.

    ``mma`` rounds each block once, so it has fewer.

    Raises
    ------
    InputError
        If the order is not known, is ``native``, which promises none, or ``n`` is below 1.
    """
    problems = order_problems(order, block, parts)
    if order == "native":
        problems.append(Problem("order", order, "promises no order to model", "pairwise"))
    if n < 1:
        problems.append(Problem("n", n, "must be at least 1", "4096"))
    if problems:
        raise InputError(problems)
    size = terms_a_block(order, block)
    if order in ("sequential", "random", "ring"):
        return np.arange(2.0, n + 1)
    if order in ("tree", "pairwise"):
        return np.array(_halves(n, 1 if order == "tree" else size), float)
    if order == "split-k":
        size = -(-n // parts)
    ends = np.minimum(np.arange(size, n + size, size), n)
    sizes = np.diff(ends, prepend=0)
    inner = [float(s) for s in sizes] if order == "mma" else [k for s in sizes for k in range(2, int(s) + 1)]
    return np.array([*inner, *ends[1:]], float)


def _halves(n: int, base: int) -> list[int]:
    if n <= base:
        return list(range(2, n + 1))
    return [*_halves(n // 2, base), *_halves(n - n // 2, base), n]


def expected_sum(
    n: int,
    dtype: str = "float32",
    order: str = "sequential",
    *,
    block: int = 0,
    parts: int = 4,
    same_sign: bool = False,
    rounded_terms: bool = False,
) -> float:
    """Return the expected relative error of a sum of ``n`` terms: root mean square over root mean square.

    Parameters
    ----------
    n : int
        Terms.
    dtype : str
        Format of the partial sums.
    order, block, parts
        As in `telekit.accuracy.numerics.emulate.Precision`.
    same_sign : bool
        Whether partial sums grow with their terms (all of one sign), not with the root of it (signs at random).
    rounded_terms : bool
        Whether each term was rounded to the format too, as products of float32 are.

    Returns
    -------
    float
        ``c eps sqrt(sum over partial sums of (terms / n))``, with ``c`` = 0.213: about ``c eps sqrt(n / 2)`` one
        after another, ``c eps sqrt(log2 n)`` as a tree. Squares of the shares for one sign: ``c eps sqrt(n / 3)``.

    Raises
    ------
    InputError
        As `partial_sums`.

    Notes
    -----
    Errors are taken as independent, and terms as having all their bits: products of bf16 in fp32 have 16 of 24, so
    that many sums are exact, and errors about half of this. Independence ends where terms fall below half a step of
    the sum, at about ``n = 1 / eps`` terms of one sign (128 in bf16): then they are lost one and all, and the true
    error is larger.
    """
    share = partial_sums(n, order, block=block, parts=parts) / n
    total = float((share**2 if same_sign else share).sum()) + (1 / n if same_sign else 1.0) * rounded_terms
    return one_rounding(dtype) * sqrt(total)


def expected_difference(error: float, dtype: str) -> float:
    """Return how far two results are apart, relatively, that differ by ``error`` before both are rounded to a format.

    Parameters
    ----------
    error : float
        Relative root mean square of the difference before rounding.
    dtype : str
        Format both are rounded to.

    Notes
    -----
    A difference far below a step moves a share of the results by a whole step, so that the root mean square of what
    is seen falls only with the root of ``error``; one far above it has two roundings added.
    """
    if not error:
        return 0.0
    # Expected square of the difference, in steps, for a normal difference and a uniform place on the grid.
    spread = np.linspace(0, 6, 2001)
    step = format_of(dtype).epsilon * _LOW
    size = error / step[:, None] * spread
    whole = np.floor(size)
    squares = whole**2 + (size - whole) * (2 * whole + 1)
    weight = np.exp(-(spread**2) / 2)
    return sqrt(float(_SHARE @ (step**2 * (squares @ weight))) / float(weight.sum()))
