"""Which rows at fault belong together: a whole node, or ranks each by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from telekit.diagnose.analysis.features import Run
from telekit.diagnose.rules.outliers import Outlier

WHOLE = 0.75
"""Share of a node's ranks that makes the node the culprit."""


def scoped(run: Run, rows: Sequence[int], found: Mapping[int, Outlier]) -> list[tuple[str, tuple[int, ...]]]:
    """Group flagged rows (worst first) by node where most of a node's ranks are flagged; the rest stand alone.

    Returns
    -------
    list of (scope, rows)
        Scope ``node`` (all traced ranks of it, the worst first), ``rank``; worst first.
    """
    groups: list[tuple[str, tuple[int, ...]]] = []
    left = list(rows)
    for node in dict.fromkeys(run.node[list(rows)].tolist()):
        here = np.flatnonzero(run.node == node).tolist()
        mine = [r for r in rows if run.node[r] == node]
        if len(here) >= 3 and len(mine) >= WHOLE * len(here) and len(here) < len(run.traces):
            groups.append(("node", (*mine, *(r for r in here if r not in mine))))
            left = [r for r in left if r not in mine]
    groups += [("rank", (r,)) for r in left]
    return sorted(groups, key=lambda g: -max(found[r].excess for r in g[1] if r in found))
