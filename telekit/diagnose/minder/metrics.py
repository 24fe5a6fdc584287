"""Metrics of machines, sample by sample: aligned in time, short gaps filled by the nearest sample."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem

Floats = NDArray[np.float64]

MOST_VALUES = 2**27
"""Metrics times machines times samples that are kept in memory (1 GiB)."""


MOST_FILLED = 8
"""A sample is filled from one at most so many samples away. What a machine did in a longer gap nobody knows."""


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
            NaN where no sample is as near as :data:`MOST_FILLED`.
        """
        return _nearest(self.values[self.names.index(name)], MOST_FILLED)

    def silences(self) -> tuple[Silence, ...]:
        """Find times in which a machine that reports otherwise reports nothing, too long to be filled."""
        known = np.asarray(np.isfinite(self.values).any(axis=0))
        found = []
        for machine, here in zip(self.machines, known, strict=True):
            times = np.flatnonzero(here)
            if not len(times):
                continue
            before, after = np.r_[-1, times], np.r_[times, self.samples]
            for at in np.flatnonzero(after - before > 2 * MOST_FILLED + 1):
                begin, end = int(before[at]) + 1, int(after[at])
                until = None if end == self.samples else self.start_s + end * self.period_s
                found.append(Silence(machine, self.start_s + begin * self.period_s, until))
        return tuple(found)


class Silence(NamedTuple):
    """A machine reported nothing: from the first sample that is missing, to the next one (None: there is none)."""

    machine: str
    begin_s: float
    end_s: float | None


def _nearest(values: Floats, most: int) -> Floats:
    known = np.isfinite(values)
    if known.all():
        return values
    count = values.shape[-1]
    place = np.arange(count)
    before = np.maximum.accumulate(np.where(known, place, -count), axis=-1)
    after = np.minimum.accumulate(np.where(known, place, 3 * count)[..., ::-1], axis=-1)[..., ::-1]
    nearest = np.where(place - before <= after - place, before, after)
    filled = np.take_along_axis(values, np.clip(nearest, 0, count - 1), axis=-1)
    near = known.any(axis=-1, keepdims=True) & (np.abs(nearest - place) <= most)
    return np.where(near, filled, np.nan)


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
    parts = [np.flatnonzero(layer.ravel() == k) for k in range(len(names))]
    samples = [
        Samples(times[at], tuple(machines.tolist()), row.ravel()[at], {name: values[at]})
        for name, at in zip(names.tolist(), parts, strict=True)
    ]
    return spread_out(samples, period_s)


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of several metrics, taken together.

    Parameters
    ----------
    time_s : array (samples,)
        When, seconds.
    machines : tuple of str
        Machines.
    row : int array (samples,)
        Index into them.
    values : mapping of str to array (samples,)
        By metric; what is not finite is missing.
    """

    time_s: Floats
    machines: tuple[str, ...]
    row: NDArray[np.int64]
    values: Mapping[str, Floats]


def spread_out(samples: Sequence[Samples], period_s: float) -> MachineMetrics:
    """Put samples onto even times; as :func:`align`, which checks its arguments.

    Raises
    ------
    InputError
        More samples than :data:`MOST_VALUES` when spread out.
    """
    machines = sorted({s.machines[i] for s in samples for i in np.unique(s.row).tolist()})
    names = sorted({name for s in samples for name in s.values})
    first = min(float(s.time_s.min()) for s in samples if len(s.time_s))
    last = max(float(s.time_s.max()) for s in samples if len(s.time_s))
    start_s = math.floor(first / period_s + 0.5) * period_s
    count = math.floor((last - start_s) / period_s + 0.5) + 1
    if len(names) * len(machines) * count > MOST_VALUES:
        rule = f"spread out at this period they are {len(names)} x {len(machines)} x {count} samples"
        raise InputError(
            [Problem("period_s", period_s, f"{rule}, at most {MOST_VALUES:,}", "a longer one works")]
        )
    spread = np.full((len(names), len(machines), count), np.nan)
    place = {machine: i for i, machine in enumerate(machines)}
    for one in samples:
        order = np.argsort(one.time_s, kind="stable")
        column = np.floor((one.time_s[order] - start_s) / period_s + 0.5).astype(np.int64)
        row = np.array([place.get(machine, -1) for machine in one.machines], np.int64)[one.row[order]]
        for name, values in one.values.items():
            known = np.isfinite(values[order])
            spread[names.index(name), row[known], column[known]] = values[order][known]
    return MachineMetrics(tuple(names), tuple(machines), spread, start_s, period_s)
