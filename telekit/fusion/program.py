"""The best partition into kernels, by an integer program.

Every group that may be one kernel is a column, with its time on the device. Each operator is in one chosen group, and
the step takes at least the device's time and at least the host's. Groups that wait for each other in a circle are
forbidden when they turn up, and the program is solved again. HiGHS solves it through ``scipy.optimize.milp``, inside
the process.

All groups are found by growing: one operator, then a neighbour with all that lies on a path between (a group with an
operator outside on such a path is never a kernel). Every group that hangs together is reached in this way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.errors import InputError, bad
from telekit.fusion.graph import Graph
from telekit.fusion.legality import cycle
from telekit.fusion.traffic import KernelCost, Target, kernel_cost

MAX_OPERATORS = 40
"""Beyond it the program is not tried: groups are too many."""
MAX_GROUPS = 8000
"""Sets that are looked at; a graph with more is searched by the heuristic."""
TIE = 1e-5
"""Share of device and host time that the objective adds, so that of two equal steps the lighter one is chosen."""


@dataclass(frozen=True)
class Best:
    """What the program found.

    Parameters
    ----------
    groups : tuple of tuple of int or None
        The partition; None when no answer was found in time.
    bound_s : float
        No partition has a shorter step.
    proved : bool
        Whether ``groups`` is shown to be the best, to a few parts in 100,000.
    columns, cuts : int
        Size of the program, and circles that were forbidden.
    """

    groups: tuple[tuple[int, ...], ...] | None
    bound_s: float
    proved: bool
    columns: int
    cuts: int


def candidates(
    graph: Graph, sizes: Mapping[str, int], target: Target, most: int = MAX_GROUPS
) -> list[KernelCost] | None:
    """Price every group that may be one kernel; None when more than ``most`` sets would be looked at."""
    live = [i for i in graph.operators if i in graph.live()]
    bit = {index: 1 << place for place, index in enumerate(live)}
    near, above, below = _relations(graph, live, bit)
    seen = set(bit.values())
    queue = list(seen)
    for group in queue:
        around = 0
        for place in _bits(group):
            around |= near[place]
        for place in _bits(around & ~group):
            grown = _hull(group | 1 << place, above, below)
            if grown not in seen:
                seen.add(grown)
                queue.append(grown)
                if len(seen) > most:
                    return None
    found = []
    for group in queue:
        try:
            found.append(kernel_cost(graph, [live[place] for place in _bits(group)], sizes, target))
        except InputError:
            if group.bit_count() == 1:  # nothing can be run
                raise
    return found


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def _relations(
    graph: Graph, live: Sequence[int], bit: Mapping[int, int]
) -> tuple[list[int], list[int], list[int]]:
    """Bit sets of each operator's neighbours (those that read the same tensor too), of all above it, of all below."""
    near, above, below = [0] * len(live), [0] * len(live), [0] * len(live)
    readers = graph.consumers()
    for node in graph.nodes:
        reading = [r for r in readers[node.index] if r in bit]
        both = sum(bit[r] for r in reading) if node.shape != () else 0
        both |= bit.get(node.index, 0)
        for index in (*reading, *([node.index] if node.index in bit else [])):
            near[bit[index].bit_length() - 1] |= both
    for place, index in enumerate(live):
        for source in graph.nodes[index].inputs:
            if source in bit:
                above[place] |= bit[source] | above[bit[source].bit_length() - 1]
        near[place] |= sum(bit[s] for s in set(graph.nodes[index].inputs) if s in bit)
        near[place] |= sum(bit[r] for r in readers[index] if r in bit)
    for place in range(len(live)):
        for other in _bits(above[place]):
            below[other] |= 1 << place
    return near, above, below


def _hull(group: int, above: Sequence[int], below: Sequence[int]) -> int:
    """Add to a group all that lies on a path between two of its operators."""
    over, under = 0, 0
    for place in _bits(group):
        over |= above[place]
        under |= below[place]
    return group | (over & under)


def best_partition(
    graph: Graph, columns: Sequence[KernelCost], target: Target, time_limit_s: float = 20.0
) -> Best:
    """Choose groups so that the step is shortest.

    Parameters
    ----------
    graph : Graph
        What runs.
    columns : sequence of KernelCost
        Groups to choose from, as :func:`candidates` found them.
    target : Target
        For the host's time per launch.
    time_limit_s : float
        Wall time of all solves together.
    """
    if not (time_limit_s > 0 and math.isfinite(time_limit_s)):
        raise bad("time_limit_s", time_limit_s, "must be a positive number of seconds", "20 works")
    end = time.monotonic() + time_limit_s
    device = np.array([k.device_s for k in columns])
    cuts: list[list[int]] = []
    bound_s = 0.0
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return Best(None, bound_s, False, len(columns), len(cuts))
        answer = _solve(graph, columns, device, target.host_launch_s, cuts, left)
        unit = _unit(device, target.host_launch_s)
        if answer.mip_dual_bound is not None and math.isfinite(answer.mip_dual_bound):
            bound_s = max(bound_s, answer.mip_dual_bound * unit / (1 + 2 * TIE))
        if answer.x is None:
            return Best(None, bound_s, False, len(columns), len(cuts))
        chosen = [int(i) for i in np.flatnonzero(answer.x[:-1] > 0.5)]
        groups = [columns[i].group for i in chosen]
        circle = cycle(graph, groups)
        if not circle:
            return Best(tuple(groups), bound_s, answer.status == 0, len(columns), len(cuts))
        cuts.append([chosen[place] for place in circle])


def _unit(device: np.ndarray[Any, Any], launch_s: float) -> float:
    """Scale of the program's times, so that the solver's tolerances are relative."""
    return float(max(device.max(), launch_s)) or 1.0


def _solve(
    graph: Graph,
    columns: Sequence[KernelCost],
    device: np.ndarray[Any, Any],
    launch_s: float,
    cuts: list[list[int]],
    limit_s: float,
) -> Any:
    """One solve: a 0-1 variable a column, and the step's time last."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    live = [i for i in graph.operators if i in graph.live()]
    row = {index: place for place, index in enumerate(live)}
    unit, count = _unit(device, launch_s), len(columns)
    entries = [(row[i], c, 1.0) for c, column in enumerate(columns) for i in column.group]
    least, most = [1.0] * len(live), [1.0] * len(live)
    for times in (device / unit, np.full(count, launch_s / unit)):
        entries += [(len(least), c, float(t)) for c, t in enumerate(times)] + [(len(least), count, -1.0)]
        least.append(-np.inf)
        most.append(0.0)
    for cut in cuts:
        entries += [(len(least), c, 1.0) for c in cut]
        least.append(-np.inf)
        most.append(len(cut) - 1.0)
    rows, places, values = zip(*entries, strict=True)
    matrix = csr_array((values, (rows, places)), shape=(len(least), count + 1))
    goal = np.append(TIE * (device + launch_s) / unit, 1.0)
    return milp(
        goal,
        integrality=np.append(np.ones(count), 0),
        bounds=Bounds(np.zeros(count + 1), np.append(np.ones(count), np.inf)),
        constraints=LinearConstraint(matrix, least, most),
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
