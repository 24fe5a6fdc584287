"""All ranks slow after every idle time: no rank and no step is left to compare with, only like kernels elsewhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.collectives import identify
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.trace import Floats, Ints

AHEAD = 4
"""Kernels that follow, by which kernels of one name are told apart."""
LEAST_RATIO = 0.06
ALIKE = 0.12
"""Relative spread (first to ninth tenth) of settled kernels of one context, above which they are not one work."""


def like_kernels(run: Run, rows: list[int], least_s: float) -> tuple[float, float, int, int] | None:
    """Compare the first kernels after idle times with kernels of the same context long after any.

    Layers repeat: a kernel followed by the same kernels, launched by the same thread of the same rank, is the same
    work. Contexts whose settled kernels differ among themselves are left out.

    Returns
    -------
    (excess, share of time lost, row, event) or None
        Median relative excess; time of the first kernels only; the row and event that show it.
    """
    parts = [_kernels(run, row, least_s) for row in rows]
    owner = np.repeat(np.arange(len(rows)), [len(p[0]) for p in parts])
    context = identify(owner, *(np.concatenate([p[c] for p in parts]) for c in range(AHEAD + 2)))[0]
    duration, since = (np.concatenate([p[c] for p in parts]) for c in (AHEAD + 2, AHEAD + 3))
    event = np.concatenate([p[AHEAD + 4] for p in parts]).astype(np.int64)
    if not np.isfinite(since).any():
        return None
    first = since <= 1e-9
    settled = since >= np.quantile(since[np.isfinite(since)], 0.6)
    usual = _settled(context, duration, settled & ~first)
    late = _settled(context, duration, _latest(context, since) & ~first)
    usual = np.where(np.isnan(usual), late, usual)
    at = np.flatnonzero(first & ~np.isnan(usual[context]))
    if len(at) < 20:
        return None
    excess = duration[at] / usual[context[at]] - 1
    middle = float(np.median(excess))
    slow = np.unique(owner[at[excess > LEAST_RATIO]])
    if middle < LEAST_RATIO or len(slow) < 0.7 * len(np.unique(owner[at])) or len(slow) < min(3, len(rows)):
        return None
    top = int(at[np.argmax(excess)])
    lost = float((np.maximum(excess, 0) * usual[context[at]]).sum()) / float(run.wall_s[rows].sum())
    return middle, lost, rows[owner[top]], int(event[top])


def _kernels(run: Run, row: int, least_s: float) -> tuple[Ints | Floats, ...]:
    """Names of each kernel and the next ones, launching thread, duration, time since an idle time ended, event."""
    trace, broken = run.traces[row], run.breakdowns[row]
    at = np.flatnonzero(trace.is_kind("kernel"))
    index = {n: i for i, n in enumerate(run.names)}
    name = np.array([index.get(n, -1) for n in trace.names] or [-1], np.int64)[trace.name[at]]
    after = [np.append(name[k:], np.full(min(k, len(name)), -1)) for k in range(AHEAD + 1)]
    host = np.flatnonzero(trace.is_kind("launch") & ~trace.on_device & (trace.correlation >= 0))
    host = host[np.argsort(trace.correlation[host], kind="stable")]
    thread = np.zeros(len(at), np.int64)
    if len(host):
        ids = trace.correlation[host]
        thread = trace.lane[
            host[np.minimum(np.searchsorted(ids, trace.correlation[at]), len(ids) - 1)]
        ].astype(np.int64)
    ends = broken.gap_end_s[broken.gap_end_s - broken.gap_start_s >= least_s]
    before = np.searchsorted(ends, trace.start_s[at] + 1e-9, side="right") - 1
    since = np.full(len(at), np.inf)
    since[before >= 0] = trace.start_s[at[before >= 0]] - ends[before[before >= 0]]
    return (*after, thread, trace.duration_s[at], since, at)


def _latest(context: Ints, since: Floats) -> NDArray[np.bool_]:
    """Which kernels are among the two fifths of their context that run longest after an idle time."""
    order = np.lexsort((since, context))
    count = np.bincount(context)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - (np.cumsum(count) - count)[context[order]]
    return np.asarray(place >= 0.6 * count[context])


def _settled(context: Ints, duration: Floats, settled: NDArray[np.bool_]) -> Floats:
    """Median of each context's settled kernels; NaN where there are fewer than five, or they are not alike."""
    found = np.full(int(context.max()) + 1, np.nan)
    at = np.flatnonzero(settled)
    at = at[np.lexsort((duration[at], context[at]))]
    keys, begin, count = np.unique(context[at], return_index=True, return_counts=True)
    low, middle, high = (duration[at[begin + ((count - 1) * q).astype(np.int64)]] for q in (0.1, 0.5, 0.9))
    good = (count >= 5) & (middle > 0) & (high - low <= ALIKE * middle)
    found[keys[good]] = middle[good]
    return found
