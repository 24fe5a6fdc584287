"""Hosts that stop for a while, whether or not their devices run out of work meanwhile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.breakdown import LONG_SHARE
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.analysis.intervals import union
from telekit.diagnose.marks import is_mark
from telekit.diagnose.trace import Floats

LIKE = 0.5
"""A silence of this share of a known pause's length is another one."""
UNUSUAL = 8.0
"""It must be so many times the median rank's longest of that step."""


def longest_silence_s(run: Run, row: int) -> Floats:
    """Longest time of each common step in which no thread that launches shows an event."""
    trace, steps = run.traces[row], run.steps[row]
    edges, found = steps.edges_s, np.zeros(len(run.number))
    lanes = np.unique(trace.lane[trace.is_kind("launch") & ~trace.on_device])
    wall = float(np.median(np.diff(edges)))
    which = ~trace.on_device & ~is_mark(trace) & np.isin(trace.lane, lanes)
    which &= (trace.duration_s <= LONG_SHARE * wall) | trace.is_kind("wait", "launch", "data")
    start, end = union(trace.start_s[which], trace.end_s[which])
    if len(start) < 2:
        return found
    length, step = start[1:] - end[:-1], np.searchsorted(edges, end[:-1], side="right") - 1
    inside = (step >= 0) & (step < len(edges) - 1)
    longest = np.zeros(len(edges) - 1)
    np.maximum.at(longest, step[inside], length[inside])
    return np.asarray(longest[run.column[row]])


def pauses_like(run: Run, valid: NDArray[np.bool_], known_s: float) -> NDArray[np.bool_]:
    """Ranks and steps in which the host is silent for about as long as in a known pause, and others are not."""
    silence = np.stack([longest_silence_s(run, row) for row in range(len(run.traces))])
    usual = np.median(silence, axis=0)
    return np.asarray(valid & (silence >= LIKE * known_s) & (silence >= UNUSUAL * usual))
