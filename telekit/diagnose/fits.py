"""Cluster values out of traces: how devices' times spread, what issuing costs, the idle mode, a monitor's bursts.

``Kernels`` (``device.kernels``) takes :meth:`Measured.kernels`; :mod:`telekit.cluster.jitter` and
:mod:`telekit.cluster.regimes` hold the models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.jitter import Jitter
from telekit.cluster.regimes import IdleFrequency, Monitor
from telekit.cluster.variability import Spread
from telekit.diagnose.host_times import HostTimes, fit_host
from telekit.diagnose.trace import Trace
from telekit.errors import bad

Floats = NDArray[np.float64]

_FEW = 8
"""Values that a fit needs."""
_SLOW = 1.15
"""A kernel this much longer than its like ran at a lower frequency."""
_STRETCHED = 20.0
"""A launch call this many times the usual was interrupted."""


@dataclass(frozen=True)
class Measured:
    """What traces say of a cluster; None where they do not show it.

    Parameters
    ----------
    jitter : Jitter or None
        Spread of devices' own work.
    host : HostTimes or None
        Cost of issuing.
    idle : IdleFrequency or None
        Frequency lowered when idle.
    monitor : Monitor or None
        Bursts that interrupt hosts.
    """

    jitter: Jitter | None
    host: HostTimes | None
    idle: IdleFrequency | None
    monitor: Monitor | None

    def kernels(self) -> dict[str, float]:
        """Give values by the names of ``device.kernels``' fields, for ``model_copy(update=...)``.

        Not ``launch_s``: the gap between two kernels that wait in a stream is only a part of it; the catalog's holds
        what a kernel itself takes to start and end.
        """
        found = {} if self.jitter is None else {"jitter": self.jitter.deviation}
        return found if self.host is None else found | {"host_launch_s": self.host.host_launch_s}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        found = {name: part and asdict(part) for name, part in vars(self).items()}
        if self.host is not None:
            found["host"] |= {"host_bound": self.host.host_bound}
        return found


def measure(traces: Iterable[Trace], devices_per_node: int = 8) -> Measured:
    """Fit everything that traces of one run show.

    Parameters
    ----------
    traces : iterable of Trace
        Ranks of one run.
    devices_per_node : int
        Consecutive ranks of a host.
    """
    traces = list(traces)
    return Measured(
        fit_jitter(traces, devices_per_node), fit_host(traces), fit_idle(traces), fit_monitor(traces)
    )


def fit_jitter(traces: Iterable[Trace], devices_per_node: int = 8) -> Jitter | None:
    """Fit the spread of devices' own work (kernels, without collectives) over ranks and steps.

    Ranks that run the same kernels are compared with each other: those of one pipeline stage. The shape is that with
    the nearest L-skewness and L-kurtosis; the common share is the correlation of devices of one node. Devices' lasting
    differences count in.

    Returns
    -------
    Jitter or None
        None of fewer than eight values, or where no two ranks run the same.
    """
    if devices_per_node < 1:
        raise bad("devices_per_node", devices_per_node, "must be at least 1", "8")
    work = _own_work([t for t in traces if t.rank is not None])
    if work is None:
        return None
    relative, ranks = work
    if relative.size < _FEW or not relative.std():
        return None
    node = ranks // devices_per_node
    spread, deviation = _shape(relative, node)
    return Jitter(min(deviation, 1.0), spread, _common(relative, node), devices_per_node)


def _own_work(traces: list[Trace]) -> tuple[Floats, NDArray[np.int64]] | None:
    """Work of each step and rank over the mean of ranks that run the same: (steps, ranks); and the ranks.

    Steps that all of them have. A rank is in the mean that it is compared with, so that of n ranks deviations come out
    small by sqrt((n - 1) / n), which is put right.
    """
    classes: dict[tuple[tuple[str, int], ...], list[tuple[int, NDArray[np.int32], Floats]]] = {}
    for trace in traces:
        kernels = trace.is_kind("kernel") & (trace.step >= 0)
        if not kernels.any():
            continue
        steps, at = np.unique(trace.step[kernels], return_inverse=True)
        names, counts = np.unique(trace.name[kernels], return_counts=True)
        key = tuple(sorted((trace.names[n], int(c)) for n, c in zip(names, counts, strict=True)))
        time: Floats = np.bincount(at.ravel(), trace.duration_s[kernels]).astype(np.float64)
        classes.setdefault(key, []).append((int(trace.rank or 0), steps, time))
    peers = [rows for rows in classes.values() if len(rows) > 1]
    if not peers:
        return None
    shared = reduce(np.intersect1d, [steps for rows in peers for _, steps, _ in rows])
    columns, ranks = [], []
    for rows in peers:
        table = np.array([time[np.isin(steps, shared)] for _, steps, time in rows])
        unlike = table / table.mean(0) - 1  # a step with more work is no jitter
        columns += list(1 + unlike * (len(rows) / (len(rows) - 1)) ** 0.5)
        ranks += [rank for rank, _, _ in rows]
    return np.array(columns).T, np.array(ranks)


_L_RATIOS: dict[Spread, tuple[float, float, float]] = {
    "normal": (0.0, 0.1226, 1 / np.pi**0.5),
    "exponential": (1 / 3, 1 / 6, 1 / 2),
    "pareto": (1 / 2, 7 / 22, 3**0.5 / 5),
}
"""L-skewness, L-kurtosis and L-scale over standard deviation (Hosking, L-moments, JRSS B 52, 1990, table 1)."""


def _shape(relative: Floats, node: NDArray[np.int64]) -> tuple[Spread, float]:
    """Shape of distribution and standard deviation over the mean.

    What devices of a node have in common is taken off for the shape: a sum of two draws is nearer to normal than each.
    """
    common = _common(relative, node)
    own = relative - 1.0
    if common > 0.1:
        own = np.hstack([p - p.mean(1, keepdims=True) for one in np.unique(node)
                         if (p := own[:, node == one]).shape[1] > 2] or [own])  # fmt: skip
    _, skewness, kurtosis = _l_moments(own.ravel())
    spread = min(
        _L_RATIOS,
        key=lambda name: (_L_RATIOS[name][0] - skewness) ** 2 + (_L_RATIOS[name][1] - kurtosis) ** 2,
    )
    whole = _l_moments(relative.ravel())[0] if common <= 0.1 else 0.0
    return spread, whole / _L_RATIOS[spread][2] if whole else float(relative.std())


def _l_moments(values: Floats) -> tuple[float, float, float]:
    """L-scale, L-skewness and L-kurtosis of a sample (unbiased probability-weighted moments)."""
    x, n = np.sort(values), len(values)
    i = np.arange(n)
    b0 = x.mean()
    b1 = (x * i).mean() / (n - 1)
    b2 = (x * i * (i - 1)).mean() / ((n - 1) * (n - 2))
    b3 = (x * i * (i - 1) * (i - 2)).mean() / ((n - 1) * (n - 2) * (n - 3))
    second = 2 * b1 - b0
    third, fourth = 6 * b2 - 6 * b1 + b0, 20 * b3 - 30 * b2 + 12 * b1 - b0
    return float(second), float(third / second), float(fourth / second)


def _common(relative: Floats, node: NDArray[np.int64]) -> float:
    """Correlation of devices of a node, from the variance of nodes' sums."""
    values = (relative - 1.0).clip(*np.quantile(relative - 1.0, [0.005, 0.995]))
    values = values - values.mean()
    variance, pairs, together = float((values**2).mean()), 0, 0.0
    for one in np.unique(node):
        part = values[:, node == one]
        size = part.shape[1]
        pairs += size * (size - 1) * len(part)
        together += float((part.sum(1) ** 2).sum() - (part**2).sum())
    return float(np.clip(together / pairs / variance, 0.0, 1.0)) if pairs and variance else 0.0


def fit_idle(traces: Iterable[Trace]) -> IdleFrequency | None:
    """Fit the idle mode: kernels after long idle times are longer than their like; None where they are not.

    Idle is a device between kernels of its own work, waiting in collectives included. Only ranks on which it shows
    are used. The threshold is the geometric middle between the longest idle time without effect and the
    shortest with one: traces without idle times around it do not say it closer.
    """
    found = [one for trace in traces if (one := _idle_of(trace)) is not None]
    if not found:
        return None
    below, above, factor, window = np.array(found).T
    low, high = float(np.median(below)), float(np.quantile(above, 0.1))
    return IdleFrequency((min(low, high) * high) ** 0.5, float(np.median(factor)), float(np.median(window)))


def _idle_of(trace: Trace) -> tuple[float, float, float, float] | None:
    """Longest idle time without effect, shortest with one, factor and window of one rank."""
    rows = np.flatnonzero(trace.is_kind("kernel"))
    if len(rows) < 4 * _FEW:
        return None
    start, end = trace.start_s[rows], np.maximum.accumulate(trace.end_s[rows])
    length, steps = trace.duration_s[rows], len(np.unique(trace.step[rows]))
    usual, seen = _usual(trace.name[rows], length)
    known = np.flatnonzero(seen > steps)  # what comes once a step may always come after the same idle time
    if len(known) < _FEW:
        return None
    since = np.append(0, known[:-1] + 1)
    idle = np.maximum.reduceat(np.append(0.0, start[1:] - end[:-1])[: known[-1] + 1], since)
    begin, factor = start[known], length[known] / usual[known]
    slow = factor > _SLOW
    fresh = np.append(False, ~slow[:-1])  # after a normal kernel, it is this idle time that tells
    hit, clean = np.sort(idle[fresh & slow]), np.sort(idle[fresh & ~slow])
    if len(hit) < 3 or slow.mean() > 0.9:
        return None
    above, below = float(hit[len(hit) // 20]), float(clean[-1 - len(clean) // 200])
    if above < 0.7 * below or above < 2e-5:
        return None
    firsts, normal = np.flatnonzero(fresh & slow), np.flatnonzero(~slow)
    after = np.searchsorted(normal, firsts)
    firsts, after = firsts[after < len(normal)], after[after < len(normal)]
    spans = begin[normal[after]] - begin[firsts]
    window = float(np.median(spans)) if len(spans) else 0.0
    return min(below, above), above, float(np.median(factor[slow])), window


def _usual(name: NDArray[np.int32], length: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Time that each kernel usually takes, of those of its name between the same neighbours; and how many they are.

    One matrix product's kernel serves several shapes, which its place tells apart.
    """
    place = np.column_stack([np.append(-1, name[:-1]), name, np.append(name[1:], -1)])
    _, key = np.unique(place, axis=0, return_inverse=True)
    key = key.ravel()
    order = np.lexsort((length, key))
    first = np.searchsorted(key[order], np.arange(key.max() + 1))
    count = np.bincount(key)
    return np.maximum(length[order][first + count // 4], 1e-7)[key], count[key]


def fit_monitor(traces: Iterable[Trace]) -> Monitor | None:
    """Fit a monitor's bursts from launch calls that take many times the usual; None where fewer than eight show.

    Of the rank with most of them. The period is that at which the calls lie most at one phase, as a burst that falls
    into a wait of the host is not seen; its length is the part of the period that calls of all bursts together fill.
    """
    most, best = _FEW - 1, None
    for trace in traces:
        rows = np.flatnonzero(trace.is_kind("launch"))
        start, end = trace.start_s[rows], trace.end_s[rows]
        hit = np.flatnonzero(end - start > _STRETCHED * np.median(end - start)) if len(rows) else rows
        spans = _spans(start, end, hit)
        if len(spans) > most:
            most, best = len(spans), (start[hit], end[hit], float(spans.max()))
    return None if best is None else _monitor(*best)


def _monitor(begin: Floats, end: Floats, longest: float) -> Monitor | None:
    """Period at which calls lie most at one phase, filling no more of it than bursts seen whole."""
    least, most = 1.2 * longest, float(np.ptp(begin)) / 4
    if most <= least:
        return None
    tried = 1 / np.linspace(1 / most, 1 / least, int(10 * np.ptp(begin) / least))
    length, middle = end - begin, (begin + end) / 2
    turn = np.exp(2j * np.pi * middle / tried[:, None]) @ length / length.sum()
    for at in np.argsort(-np.abs(turn))[:200]:
        period = float(tried[at])
        phase = (middle - np.angle(turn[at]) / (2 * np.pi) * period + period / 2) % period  # around its half
        filled = float(np.quantile(phase + length / 2, 0.95) - np.quantile(phase - length / 2, 0.05))
        if filled < 1.5 * longest:
            return Monitor(period, min(filled, period))
    return None


def _spans(start: Floats, end: Floats, hit: NDArray[np.int64]) -> Floats:
    """Lengths of bursts: of calls in a row, none of the usual length between them."""
    if not len(hit):
        return np.zeros(0)
    far = start[hit[1:]] - end[hit[:-1]] > 5 * (end - start)[hit[:-1]]
    firsts = np.flatnonzero(np.append(True, (np.diff(hit) > 1) | far))
    lasts = np.append(firsts[1:], len(hit)) - 1
    return np.asarray(end[hit[lasts]] - start[hit[firsts]])
