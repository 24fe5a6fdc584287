"""Metrics of machines, sample by sample: aligned in time, gaps filled by the nearest sample."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem

Floats = NDArray[np.float64]

MOST_VALUES = 2**27
"""Metrics times machines times samples that are kept in memory (1 GiB)."""


@dataclass(frozen=True)
class MachineMetrics:
    """What machines report, at even times.

    Parameters
    ----------
    names, machines : tuples of str
        Metrics and machines.
    values : array (metrics, machines, samples)
        Samples; NaN where one is missing.
    start_s, period_s : float
        Time of the first sample, and between two.
    """

    names: tuple[str, ...]
    machines: tuple[str, ...]
    values: Floats
    start_s: float = 0.0
    period_s: float = 1.0

    def __post_init__(self) -> None:
        shape = (len(self.names), len(self.machines))
        if self.values.ndim != 3 or self.values.shape[:2] != shape:
            rule = f"must have shape (metrics, machines, samples), here ({shape[0]}, {shape[1]}, ...)"
            raise InputError([Problem("values", self.values.shape, rule)])

    @property
    def samples(self) -> int:
        """Samples of each metric and machine."""
        return int(self.values.shape[2])

    def between(self, begin_s: float, end_s: float) -> MachineMetrics:
        """Keep the samples from ``begin_s`` up to but not at ``end_s``."""
        first, last = (
            min(max(math.ceil((at - self.start_s) / self.period_s - 1e-9), 0), self.samples)
            for at in (begin_s, end_s)
        )
        start_s = self.start_s + first * self.period_s
        return replace(self, values=self.values[:, :, first:last], start_s=start_s)

    def without(self, machines: Collection[str]) -> MachineMetrics:
        """Leave out some machines."""
        kept = [row for row, machine in enumerate(self.machines) if machine not in machines]
        return replace(self, machines=tuple(self.machines[row] for row in kept), values=self.values[:, kept])

    def filled(self, name: str) -> Floats:
        """Fill one metric's missing samples with the nearest one in time, the earlier of two equally near.

        Returns
        -------
        array (machines, samples)
            NaN only on a machine that has no sample at all.
        """
        return _nearest(self.values[self.names.index(name)])


def _nearest(values: Floats) -> Floats:
    known = np.isfinite(values)
    if known.all():
        return values
    count = values.shape[-1]
    place = np.arange(count)
    before = np.maximum.accumulate(np.where(known, place, -count), axis=-1)
    after = np.minimum.accumulate(np.where(known, place, 3 * count)[..., ::-1], axis=-1)[..., ::-1]
    nearest = np.where(place - before <= after - place, before, after)
    filled = np.take_along_axis(values, np.clip(nearest, 0, count - 1), axis=-1)
    return np.where(known.any(axis=-1, keepdims=True), filled, np.nan)


def align(
    time_s: ArrayLike,
    machine: Sequence[str],
    metric: Sequence[str],
    value: ArrayLike,
    period_s: float = 1.0,
) -> MachineMetrics:
    """Put samples taken at any times onto even ones; of several that fall on one, the last in time counts.

    Parameters
    ----------
    time_s, value : arrays (samples,)
        When, in seconds, and what; a value that is not finite is a missing one.
    machine, metric : sequences (samples,) of str
        Where and of what.
    period_s : float
        Time between two samples of the answer.

    Returns
    -------
    MachineMetrics
        Machines and metrics in the order of their names.

    Raises
    ------
    InputError
        No samples, columns of different lengths, a time or period that is no number, or more samples than
        :data:`MOST_VALUES` when spread out.
    """
    times, values = np.asarray(time_s, dtype=np.float64), np.asarray(value, dtype=np.float64)
    problems = []
    if not times.size or not len(machine) == len(metric) == values.size == times.size:
        sizes = f"{times.size}, {len(machine)}, {len(metric)}, {values.size}"
        problems.append(Problem("samples", sizes, "columns must have one length, at least 1"))
    if not np.isfinite(times).all():
        problems.append(Problem("time_s", "not finite", "each time must be a number of seconds"))
    if not 0 < period_s < math.inf:
        problems.append(Problem("period_s", period_s, "must be above 0", "1 works"))
    if problems:
        raise InputError(problems)
    machines, row = np.unique(np.asarray(machine, dtype=str), return_inverse=True)
    names, layer = np.unique(np.asarray(metric, dtype=str), return_inverse=True)
    start_s = math.floor(float(times.min()) / period_s + 0.5) * period_s
    count = math.floor((float(times.max()) - start_s) / period_s + 0.5) + 1
    if names.size * machines.size * count > MOST_VALUES:
        rule = f"spread out at this period they are {names.size} x {machines.size} x {count} samples"
        raise InputError(
            [Problem("period_s", period_s, f"{rule}, at most {MOST_VALUES:,}", "a longer one works")]
        )
    spread = np.full((names.size, machines.size, count), np.nan)
    column = np.floor((times - start_s) / period_s + 0.5).astype(np.int64)
    usable = np.flatnonzero(np.isfinite(values))
    usable = usable[np.argsort(times[usable], kind="stable")]
    spread[layer[usable], row[usable], column[usable]] = values[usable]
    return MachineMetrics(tuple(names.tolist()), tuple(machines.tolist()), spread, start_s, period_s)
