"""Root cause of an alarm: one walk where the job stands still, many walks against a healthy window where it is slow.

Source: arXiv 2509.03018. How blame is counted in a slow job is ours: at each state log of the window every watched rank
that waits walks back to what it waits for, and that rank is blamed for one period; a healthy window's blame is taken
off, since in a pipeline somebody always waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.mycroft.faults import CAUSES
from telekit.diagnose.mycroft.telemetry import STATE_PERIOD_S, Telemetry, logged_s
from telekit.diagnose.mycroft.trigger import SLOW, STUCK, Trigger, Watch, first_trigger, watched_ranks
from telekit.diagnose.mycroft.walk import Origin, walk

Floats = NDArray[np.float64]
Blame = dict[tuple[int, str], Floats]


@dataclass(frozen=True)
class RootCause:
    """What was found.

    Attributes
    ----------
    rank : int
        Who holds the job up; of a flow, its sender.
    cause : str
        Row of the cause table.
    kind : str
        ``stuck`` or ``slow``, as it looked when the cause was found: what stopped a moment ago looks slow.
    trigger : Trigger
        The alarm.
    located_s : float
        When the cause was found.
    origin : Origin
        A walk that ended there: path, flow and counters, for a person to check.
    """

    rank: int
    cause: str
    kind: str
    trigger: Trigger
    located_s: float
    origin: Origin

    @property
    def says(self) -> str:
        """The cause in words."""
        return CAUSES[self.cause]


def find_root_cause(
    logs: Telemetry, watch: Watch | None = None, progress: Callable[[float], None] | None = None
) -> RootCause | None:
    """Watch a run, and after the first alarm look for its cause until it is found or the logs end.

    Parameters
    ----------
    logs : Telemetry
        What is seen.
    watch : Watch, optional
        How.
    progress : callable, optional
        Called with the time, in seconds of the run, of each look.

    Returns
    -------
    RootCause or None
        None when nothing was wrong, or an alarm's cause was not found.
    """
    watch = watch or Watch()
    trigger = first_trigger(logs, watch)
    if trigger is None:
        return None
    healthy: Blame | None = None
    for at_s in np.arange(trigger.at_s, logs.horizon_s, watch.period_s).tolist():
        if progress:
            progress(at_s)
        found = _standstill(logs, trigger, at_s, watch)
        if found is None:
            if healthy is None:
                healthy = blame(logs, watch.window_s, watch.window_s)[0]
            found = _slowness(logs, trigger, at_s, watch, healthy)
        if found:
            return found
    return None


def _standstill(logs: Telemetry, trigger: Trigger, at_s: float, watch: Watch) -> RootCause | None:
    """Walk once, if no watched rank has completed anything for far longer than it takes when healthy."""
    ranks, at_s = watched_ranks(logs.job), logged_s(at_s)
    ends = np.sort(np.concatenate([logs.end_s[logs.blocking[rank]] for rank in ranks]))
    usual = ends[ends <= watch.window_s]
    pause_s = float(np.diff(usual, prepend=0.0).max(initial=0.0))
    quiet_s = at_s - float(ends[ends <= at_s].max(initial=0.0))
    if quiet_s < max(watch.straggler_s, watch.slow_ratio * pause_s):
        return None
    origins = [origin for rank in ranks if (origin := walk(logs, rank, at_s))]
    still = [origin for origin in origins if at_s - origin.since_s >= watch.straggler_s]
    if not still:
        return None
    earliest = min(still, key=lambda origin: (origin.since_s, len(origin.path)))
    return RootCause(earliest.rank, earliest.cause, STUCK, trigger, at_s, earliest)


def _slowness(
    logs: Telemetry, trigger: Trigger, at_s: float, watch: Watch, healthy: Blame
) -> RootCause | None:
    """Name whom some watched rank waits for longest, beyond what is usual, if that is a straggler's second or more."""
    now, origins = blame(logs, at_s, watch.window_s)
    excess = {key: np.maximum(waits - healthy.get(key, 0.0), 0.0) for key, waits in now.items()}
    by_rank: dict[int, Floats] = defaultdict(lambda: np.zeros(1))
    for (rank, _), waits in excess.items():
        by_rank[rank] = by_rank[rank] + waits
    most = {rank: float(waits.max()) for rank, waits in by_rank.items()}
    if not most or max(most.values()) < watch.straggler_s:
        return None
    rank = max(most, key=lambda each: (most[each], float(by_rank[each].sum()), -each))
    cause = max((float(waits.sum()), cause) for (each, cause), waits in excess.items() if each == rank)[1]
    return RootCause(rank, cause, SLOW, trigger, logged_s(at_s), origins[rank, cause])


def blame(logs: Telemetry, at_s: float, window_s: float) -> tuple[Blame, dict[tuple[int, str], Origin]]:
    """Count for how long each watched rank waited for each rank.

    Parameters
    ----------
    logs : Telemetry
        What is seen.
    at_s, window_s : float
        The window ends here and is so long.

    Returns
    -------
    dict of (rank, cause) to array (watched ranks,)
        Seconds that each of :func:`~telekit.diagnose.mycroft.trigger.watched_ranks` waited for it.
    dict of (rank, cause) to Origin
        The last walk that ended there.
    """
    ranks = watched_ranks(logs.job)
    found: Blame = defaultdict(lambda: np.zeros(len(ranks)))
    origins: dict[tuple[int, str], Origin] = {}
    last = logged_s(at_s)
    for step in range(round(window_s / STATE_PERIOD_S)):
        for place, rank in enumerate(ranks):
            origin = walk(logs, rank, last - step * STATE_PERIOD_S)
            if origin:
                key = (origin.rank, origin.cause)
                found[key][place] += STATE_PERIOD_S
                origins.setdefault(key, origin)
    return dict(found), origins
