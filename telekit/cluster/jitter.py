"""How devices' times lie around their mean, machines of one node together or not, and what the slowest of them costs.

The slowest of independent devices is in :mod:`telekit.cluster.variability`; here devices of one node share a part of
their luck (a fan, a power cap, a noisy neighbour on the host).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.cluster.variability import PARETO_SHAPE, Spread, expected_largest
from telekit.errors import InputError, Problem, bad

Floats = NDArray[np.float64]

_PARETO_MEAN = PARETO_SHAPE / (PARETO_SHAPE - 1)
_PARETO_DEVIATION = math.sqrt(PARETO_SHAPE / (PARETO_SHAPE - 2)) / (PARETO_SHAPE - 1)


@dataclass(frozen=True)
class Jitter:
    """Spread of devices' times of the same work.

    A device's time is ``mean * (1 + deviation * (sqrt(node_share) * A + sqrt(1 - node_share) * B))``, where ``A`` is
    drawn once a node, ``B`` once a device, both of mean 0 and variance 1 and of the shape ``spread``.

    Parameters
    ----------
    deviation : float
        Standard deviation over the mean.
    spread : str
        ``normal``, ``exponential`` (long tail) or ``pareto`` (heavy tail).
    node_share : float
        Part of the variance that the devices of a node have in common: the correlation of two of them.
    devices_per_node : int
        Devices that have it in common.
    """

    deviation: float = 0.005
    spread: Spread = "normal"
    node_share: float = 0.0
    devices_per_node: int = 8

    def __post_init__(self) -> None:
        """Check the values.

        Raises
        ------
        InputError
            All values out of range.
        """
        problems = []
        for name in ("deviation", "node_share"):
            if not 0 <= getattr(self, name) <= 1:
                problems.append(Problem(f"jitter.{name}", getattr(self, name), "must be from 0 to 1", "0.01"))
        if self.spread not in get_args(Spread):
            known = ", ".join(get_args(Spread))
            problems.append(Problem("jitter.spread", self.spread, "no such distribution", f"known: {known}"))
        if self.devices_per_node < 1:
            problems.append(
                Problem("jitter.devices_per_node", self.devices_per_node, "must be at least 1", "8")
            )
        if problems:
            raise InputError(problems)

    def draw(self, generator: np.random.Generator, times: int, devices: int) -> Floats:
        """Draw times over their mean.

        Parameters
        ----------
        generator : numpy.random.Generator
            Where chance comes from.
        times, devices : int
            Draws of each device; devices, those of a node side by side.

        Returns
        -------
        array (times, devices)
            At least 0.05: nothing is done in no time.
        """
        node = np.arange(devices) // self.devices_per_node
        common = standard_draws(generator, self.spread, (times, int(node[-1]) + 1))[:, node]
        own = standard_draws(generator, self.spread, (times, devices))
        mixed = math.sqrt(self.node_share) * common + math.sqrt(1 - self.node_share) * own
        return np.asarray(np.maximum(1.0 + self.deviation * mixed, 0.05))

    def slowest(self, devices: int) -> float:
        """Mean time of the slowest of some devices, over the mean time of one.

        Raises
        ------
        InputError
            For no devices.
        """
        return 1.0 + self.deviation * _expected(devices, self.spread, self.node_share, self.devices_per_node)

    def slowest_quantile(self, devices: int, share: float) -> float:
        """Time that the slowest of some devices keeps within in a share of all steps, over the mean time of one.

        Raises
        ------
        InputError
            For no devices or a share that is not between 0 and 1.
        """
        _check_devices(devices)
        if not 0 < share < 1:
            raise bad("share", share, "must be between 0 and 1", "0.99")
        low, high = -100.0, 1e6
        for _ in range(80):
            middle = (low + high) / 2
            below = _largest_below(
                np.array([middle]), devices, self.spread, self.node_share, self.devices_per_node
            )[0]
            low, high = (middle, high) if below < share else (low, middle)
        return 1.0 + self.deviation * high


def standard_draws(generator: np.random.Generator, spread: Spread, shape: tuple[int, ...]) -> Floats:
    """Draw numbers of mean 0 and variance 1 of a shape of distribution."""
    if spread == "normal":
        return generator.standard_normal(shape)
    if spread == "exponential":
        return generator.standard_exponential(shape) - 1.0
    return np.asarray((1.0 + generator.pareto(PARETO_SHAPE, shape) - _PARETO_MEAN) / _PARETO_DEVIATION)


def standard_below(points: ArrayLike, spread: Spread) -> Floats:
    """Chance of a standard draw at or below each point."""
    x = np.asarray(points, dtype=np.float64)
    if spread == "normal":
        from scipy.special import ndtr

        return np.asarray(ndtr(x))
    if spread == "exponential":
        return np.asarray(-np.expm1(-np.maximum(x + 1.0, 0.0)))
    value = np.maximum(x * _PARETO_DEVIATION + _PARETO_MEAN, 1.0)
    return np.asarray(1.0 - value**-PARETO_SHAPE)


def _check_devices(devices: int) -> None:
    if devices < 1:
        raise bad("devices", devices, "must be at least 1")


@cache
def _expected(devices: int, spread: Spread, node_share: float, per_node: int) -> float:
    """Mean of the largest, in standard deviations above the mean of one."""
    _check_devices(devices)
    if node_share == 0 or (per_node == 1 and spread == "normal"):  # other shapes change when two are added
        return expected_largest(devices, spread)
    if node_share == 1:
        return expected_largest(-(-devices // per_node), spread)
    points, (nodes, rest) = _grid(spread, 3000), divmod(devices, per_node)
    below = _below_on_grid(spread, node_share, per_node) ** nodes
    if rest:
        below = below * _below_on_grid(spread, node_share, rest)
    widths, middle = np.diff(points), 0.5 * (below[1:] + below[:-1])
    negative = points[1:] <= 0
    # E[X] is the integral of 1 - F above 0, less that of F below
    return float((widths * (1 - middle))[~negative].sum() - (widths * middle)[negative].sum())


def _grid(spread: Spread, count: int) -> Floats:
    """Points from where nothing lies below to where nothing matters above, dense around the mean; 0 is one."""
    if spread == "normal":
        return np.linspace(-12.0, 12.0, 2 * (count // 2) + 1)
    far = 80.0 if spread == "exponential" else 1e5
    above = np.concatenate([np.linspace(0.0, 1.0, count // 3), np.geomspace(1.0, far, count)[1:]])
    return np.concatenate([np.linspace(-2.0, 0.0, count // 3)[:-1], above])


def _largest_below(points: Floats, devices: int, spread: Spread, node_share: float, per_node: int) -> Floats:
    """Chance that none of the devices lies above each point: that of one node, to the power of their number."""
    nodes, rest = divmod(devices, per_node)
    if node_share == 0:
        return np.asarray(standard_below(points, spread) ** devices)
    if node_share == 1:
        return np.asarray(standard_below(points, spread) ** (nodes + (rest > 0)))
    full = _node_below(points, spread, node_share, per_node) ** nodes
    return full * _node_below(points, spread, node_share, rest) if rest else full


@cache
def _below_on_grid(spread: Spread, node_share: float, size: int) -> Floats:
    """Return the node's chances at the grid's points, which serve any number of such nodes."""
    return _node_below(_grid(spread, 3000), spread, node_share, size)


def _node_below(points: Floats, spread: Spread, node_share: float, size: int) -> Floats:
    """Chance that none of a node's devices lies above each point, given its common part, over all of that."""
    edges = _grid(spread, 1000)
    weight = np.diff(standard_below(edges, spread))
    common = 0.5 * (edges[1:] + edges[:-1])
    result = np.empty(len(points))
    for begin in range(0, len(points), 256):  # one block of the table stays in the cache
        part = points[begin : begin + 256, None]
        own = standard_below((part - math.sqrt(node_share) * common) / math.sqrt(1 - node_share), spread)
        result[begin : begin + 256] = own**size @ weight
    return result
