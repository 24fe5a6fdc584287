"""Events that number the steps of a trace, and which numbering to follow where there are several."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.trace import Ints, Trace

MARK = re.compile(
    r"^(?P<family>ProfilerStep|(?:train(?:ing)?[_ ]?)?(?:step|iteration|iter))[ #_:]{0,3}(?P<number>\d{1,9})$",
    re.IGNORECASE,
)
"""Names that number a step; up to nine digits, as the column ``step`` holds."""
PROFILER = "profilerstep"
"""The profiler's own marks."""


@dataclass(frozen=True, eq=False)
class Marks:
    """Events of the host that number steps, all of one family of names.

    Parameters
    ----------
    number : (events,) int array
        The step that each marks; -1 no mark.
    followed, passed : str
        A name of the family; names of the others' (one each), empty where there are none.
    """

    number: Ints
    followed: str
    passed: tuple[str, ...]


def is_mark(trace: Trace) -> NDArray[np.bool_]:
    """Which events name a step as a whole, by any numbering."""
    return np.array([bool(MARK.match(name)) for name in trace.names] or [False])[trace.name]


def step_marks(trace: Trace) -> Marks:
    """Find the marks of a trace's steps.

    Scripts mark steps of their own inside the profiler's, or micro-batches inside steps, and these count otherwise:
    followed are the profiler's; without them those that recur, and of these the ones that last longest together (the
    outermost), then the fewest.
    """
    matches = [MARK.match(name) for name in trace.names]
    families = list(dict.fromkeys(_family(m) for m in matches if m))
    number = np.array([int(m["number"]) if m else -1 for m in matches] or [-1], np.int64)[trace.name]
    family = np.array([families.index(_family(m)) if m else -1 for m in matches] or [-1])[trace.name]
    which = np.flatnonzero((family >= 0) & ~trace.on_device & (trace.duration_s > 0))
    present = np.unique(family[which]).tolist()
    if not present:
        return Marks(np.full(len(trace), -1, np.int64), "", ())
    count = np.bincount(family[which], minlength=len(families))
    spent = np.bincount(family[which], trace.duration_s[which], minlength=len(families))
    order = sorted(present, key=lambda f: (families[f] != PROFILER, count[f] < 2, -spent[f], count[f]))
    first = [trace.names[trace.name[which[np.argmax(family[which] == f)]]] for f in order]
    mine = np.zeros(len(trace), bool)
    mine[which[family[which] == order[0]]] = True
    return Marks(np.where(mine, number, -1), first[0], tuple(first[1:]))


def _family(found: re.Match[str]) -> str:
    """Return what names of one numbering have in common."""
    return re.sub(r"[_ ]", "", found["family"].lower())
