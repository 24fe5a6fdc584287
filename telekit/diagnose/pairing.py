"""Which launch of the host put which work on the device, by correlation id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.trace import Trace


def launches_of(trace: Trace) -> NDArray[np.intp]:
    """Find the host's launches that carry a correlation id, by time."""
    return np.flatnonzero(trace.is_kind("launch") & ~trace.on_device & (trace.correlation >= 0))


def launch_of(
    trace: Trace, work: NDArray[np.intp], launches: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Return the launch of each piece of work, shape (work,): the earliest with its id; -1 where none is known.

    Parameters
    ----------
    trace : Trace
        One rank.
    work : (work,) int array
        Indices of events.
    launches : (n,) int array, optional
        Those to choose from, by time and with ids; default :func:`launches_of`.
    """
    host = launches_of(trace) if launches is None else launches
    if not len(host):
        return np.full(len(work), -1, np.intp)
    host = host[np.argsort(trace.correlation[host], kind="stable")]
    ids, wanted = trace.correlation[host], trace.correlation[work]
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[at] == wanted, host[at], -1)
