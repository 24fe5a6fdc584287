"""Durations that cannot be: two events at once on one stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from telekit.diagnose.trace import Trace, TraceProblem

ROUNDING_S = 2e-6
"""Overlaps up to this come of times printed in whole microseconds; they are cut, and not counted as faults."""


def repaired(trace: Trace) -> Trace:
    """End each event of a stream where the stream's next event starts, at the latest.

    A stream runs its work in order, so an event that lasts into the next one was measured wrongly (a lost end,
    a counter that ran over). Events cut by more than :data:`ROUNDING_S` are a problem of the trace, kept, not lost.
    """
    on = np.flatnonzero(trace.on_device & trace.is_kind("kernel", "communication", "copy"))
    order = on[np.lexsort((trace.start_s[on], trace.lane[on]))]
    same = trace.lane[order][1:] == trace.lane[order][:-1]
    over = np.where(same, trace.end_s[order][:-1] - trace.start_s[order][1:], 0.0)
    at = np.flatnonzero(over > 0)
    if not len(at):
        return trace
    end = trace.end_s.copy()
    end[order[at]] = trace.start_s[order[at + 1]]
    wrong = order[at[over[at] > ROUNDING_S]]
    if not len(wrong):
        return replace(trace, end_s=end)
    places = tuple(f"{trace.names[trace.name[i]]} at {trace.start_s[i]:.6f} s" for i in wrong[:3])
    problem = TraceProblem(
        "event lasted into the next one of its stream; cut there", len(wrong), places, lost=False
    )
    return replace(trace, end_s=end, problems=(*trace.problems, problem))
