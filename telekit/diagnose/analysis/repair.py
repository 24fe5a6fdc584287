"""Durations that cannot be: two events at once on one stream."""

from __future__ import annotations

from dataclasses import replace

from telekit.diagnose.trace import Trace, TraceProblem

ROUNDING_S = 2e-6
"""Overlaps up to this come of times printed in whole microseconds; they are cut, and not counted as faults."""


def repaired(trace: Trace) -> Trace:
    """End each event of a stream where the stream's next event starts, at the latest.

    What counts is :meth:`~telekit.diagnose.trace.Trace.overruns`. Events cut by more than :data:`ROUNDING_S` are a
    problem of the trace, kept, not lost.
    """
    now, then = trace.overruns()
    if not len(now):
        return trace
    end = trace.end_s.copy()
    end[now] = trace.start_s[then]
    wrong = now[trace.end_s[now] - trace.start_s[then] > ROUNDING_S]
    if not len(wrong):
        return replace(trace, end_s=end)
    places = tuple(f"{trace.names[trace.name[i]]} at {trace.start_s[i]:.6f} s" for i in wrong[:3])
    problem = TraceProblem(
        "event lasted into the next one of its stream; cut there", len(wrong), places, lost=False
    )
    return replace(trace, end_s=end, problems=(*trace.problems, problem))
