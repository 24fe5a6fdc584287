"""How devices of one kind differ from each other, and what the slowest of many costs."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal, get_args

import numpy as np

from telekit.errors import bad

Spread = Literal["normal", "exponential", "pareto"]
"""How the time of a device's step lies around its mean: symmetric, with a long tail, with a heavy one."""

PARETO_SHAPE = 3.0
"""Exponent of the heavy tail: the variance is finite, no third moment is."""


def slowest(devices: int, jitter: float, spread: Spread = "normal") -> float:
    """Time of the slowest of some devices over the mean: all wait for it at the end of a step.

    Parameters
    ----------
    devices : int
        How many wait for each other, each as fast as chance has it, whatever the others do.
    jitter : float
        Standard deviation of devices' times over their mean.
    spread : str
        Shape of their distribution.

    Raises
    ------
    InputError
        For no devices, a jitter below 0 or above 1, or a distribution with no such name.
    """
    if not 0 <= jitter <= 1:
        raise bad("jitter", jitter, "must be from 0 to 1")
    return 1.0 + jitter * expected_largest(devices, spread)


@cache
def expected_largest(devices: int, spread: Spread = "normal") -> float:
    """Mean of the largest of ``n`` independent draws, in standard deviations above their mean.

    Exponential: the sum of 1/i up to n, less 1. Pareto: by the gamma function (David and Nagaraja, Order Statistics,
    2003, chapter 3). Normal: ``x - integral of F(t)^n dt`` up to an ``x`` that no draw exceeds.
    """
    if devices < 1:
        raise bad("devices", devices, "must be at least 1")
    if spread not in get_args(Spread):
        raise bad("spread", spread, "no such distribution", f"known: {', '.join(get_args(Spread))}")
    if devices == 1:
        return 0.0
    if spread == "normal":
        return _normal(devices)
    if spread == "exponential":
        return math.fsum(1.0 / i for i in range(2, devices + 1))
    a = PARETO_SHAPE
    mean, deviation = a / (a - 1), math.sqrt(a / (a - 2)) / (a - 1)
    largest = math.exp(math.lgamma(devices + 1) - math.lgamma(devices + 1 - 1 / a)) * math.gamma(1 - 1 / a)
    return (largest - mean) / deviation


def _normal(devices: int) -> float:
    """Trapezoids: the integrand is flat at both ends, so that their error vanishes with the step at once."""
    points = np.linspace(-10.0, 10.0, 801)
    log_below = np.array([math.log(0.5 * math.erfc(-x / math.sqrt(2))) for x in points])
    below = np.exp(devices * log_below)
    return 10.0 - float((points[1] - points[0]) * (below.sum() - 0.5))


def slowest_of_machines(machines: int, share: float, slower: float) -> float:
    """Time of the slowest machine over that of a good one, where each is slow with some chance.

    Parameters
    ----------
    machines : int
        Machines of the job.
    share : float
        Share of all machines that is slow.
    slower : float
        By how much those take longer, over a good one's time.
    """
    if machines < 1 or not 0 <= share <= 1:
        raise bad("share", share, "must be from 0 to 1, of at least one machine")
    return 1.0 + slower * (1.0 - (1.0 - share) ** machines)
