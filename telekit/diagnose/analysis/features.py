"""What the rules look at: arrays over ranks and steps, from the traces of a run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.breakdown import CATEGORIES, Breakdown, break_down
from telekit.diagnose.analysis.classes import EXPERTS
from telekit.diagnose.analysis.collectives import Collectives, match
from telekit.diagnose.analysis.common_steps import Common, common, lacking, rank_names, renumbered
from telekit.diagnose.analysis.launches import launch_cost, launch_queue
from telekit.diagnose.analysis.repair import repaired
from telekit.diagnose.analysis.steps import Steps, find_steps
from telekit.diagnose.trace import Floats, Trace

Progress = Callable[[int, int, str], None]
MOST_NAMES = 256
"""Kernel names compared across ranks: those with most time."""


@dataclass(frozen=True, eq=False)
class Run:
    """Traces of one run with what was measured on them.

    Parameters
    ----------
    traces : tuple of Trace
        Repaired, by rank.
    steps, breakdowns : tuples
        Of each trace.
    collectives : Collectives
        Matched over all traces.
    common : Common
        Steps compared.
    names : tuple of str
        Kernel names compared.
    mean_s, middle_s, count : (ranks, steps, names) arrays
        Mean and median duration and number of kernels; NaN (count 0) where there are none. Of a step that a rank
        lacks NaN, and the rank's usual count.
    ranks_per_node : int
        Ranks ``k n`` to ``k n + n - 1`` share node ``k``.
    notes : tuple of str
        How steps were found, and who lacks which.
    """

    traces: tuple[Trace, ...]
    steps: tuple[Steps, ...]
    breakdowns: tuple[Breakdown, ...]
    collectives: Collectives
    common: Common
    names: tuple[str, ...]
    mean_s: Floats
    middle_s: Floats
    count: Floats
    ranks_per_node: int
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> NDArray[np.int64]:
        """Number of each common step."""
        return self.common.number

    @property
    def column(self) -> NDArray[np.int64]:
        """Index of each common step in each rank's steps, shape (ranks, steps)."""
        return self.common.column

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which ranks have which common step, shape (ranks, steps); where not, times are the rank's usual ones."""
        return self.common.present

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of each trace; its place where unknown."""
        return np.array([i if t.rank is None else t.rank for i, t in enumerate(self.traces)], np.int64)

    @cached_property
    def node(self) -> NDArray[np.int64]:
        """Node of each trace."""
        return self.ranks // self.ranks_per_node

    @cached_property
    def seconds(self) -> Floats:
        """Seconds by rank, common step and category."""
        return self._of_steps([b.seconds for b in self.breakdowns])

    @cached_property
    def wall_s(self) -> Floats:
        """Length of each common step on each rank."""
        return self._of_steps([b.wall_s for b in self.breakdowns])

    @cached_property
    def longest_idle_s(self) -> Floats:
        """Longest idle time of each rank in each common step."""
        return self._of_steps([b.longest_idle_s for b in self.breakdowns])

    def _of_steps(self, values: Sequence[Floats]) -> Floats:
        """Take the common steps of each rank's values by step."""
        return self.common.filled(np.stack([v[c] for v, c in zip(values, self.column, strict=True)]))

    @cached_property
    def step_s(self) -> float:
        """Median length of a step."""
        return float(np.median(self.wall_s)) if self.wall_s.size else 0.0

    @cached_property
    def mean_step_s(self) -> float:
        """Mean length of a step: what losses are a share of."""
        return float(np.mean(self.wall_s)) if self.wall_s.size else 0.0

    @cached_property
    def launch_cost_s(self) -> Floats:
        """Median launching call, and median time from one to the next, shape (ranks, 2); NaN where launches are few."""
        return np.array([launch_cost(trace) for trace in self.traces]).reshape(-1, 2)

    @cached_property
    def launching(self) -> tuple[dict[str, Any], ...]:
        """Each rank's launches against its kernels (:meth:`LaunchQueue.to_dict`); empty without correlation ids."""
        queues = (launch_queue(trace) for trace in self.traces)
        return tuple(queue.to_dict() if len(queue.start_s) else {} for queue in queues)

    def share(self, lost: float) -> float:
        """Share of the run's time: of a mean loss a step, in usual steps (:attr:`step_s`), as rules measure it."""
        return min(lost * self.step_s / self.mean_step_s, 1.0) if self.mean_step_s > 0 else 0.0

    @cached_property
    def experts(self) -> NDArray[np.bool_]:
        """Which of the names are experts' kernels."""
        return np.array([bool(EXPERTS.search(n)) for n in self.names], bool)

    @cached_property
    def roles(self) -> NDArray[np.int64]:
        """Ranks of one number launch the same work (in the same order, where :attr:`ordered`)."""
        return self._roles[0]

    @property
    def ordered(self) -> bool:
        """Ranks of one role launch in the same order, so that they compare event by event."""
        return self._roles[1]

    @cached_property
    def _roles(self) -> tuple[NDArray[np.int64], bool]:
        if not self.count.size:
            return np.zeros(len(self.traces), np.int64), False
        usual = np.median(self.count, axis=1).round().astype(np.int64)
        by_count = np.unique(usual, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
        orders = [
            _order(t, s, int(c[p][p.sum() // 2]) if p.any() else -2)
            for t, s, c, p in zip(self.traces, self.steps, self.column, self.present, strict=True)
        ]
        both = np.column_stack([by_count, orders])
        found = np.unique(both, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
        ordered = bool(found.max() + 1 <= len(found) / 2)  # else the order is chance
        return (found if ordered else by_count), ordered

    def category(self, *names: str) -> Floats:
        """Seconds of categories together, shape (ranks, steps)."""
        return np.asarray(self.seconds[:, :, [CATEGORIES.index(n) for n in names]].sum(axis=2))


def measure(traces: Sequence[Trace], ranks_per_node: int = 8, progress: Progress | None = None) -> Run:
    """Measure steps, categories, kernels and collectives of all ranks."""
    tell = progress or (lambda done, total, what: None)
    total = 2 * len(traces)
    fixed, steps = [], []
    for i, trace in enumerate(traces):
        fixed.append(repaired(trace))
        steps.append(find_steps(fixed[-1]))
        tell(i + 1, total, "steps")
    called = rank_names(fixed)
    steps, notes = renumbered(steps, called)
    matched = match(fixed, steps)
    moving = transfers(matched, len(fixed))
    broken = []
    for i, (trace, found) in enumerate(zip(fixed, steps, strict=True)):
        broken.append(break_down(trace, found, moving[i]))
        tell(len(traces) + i + 1, total, "categories")
    shared = common(steps)
    names, mean, middle, count = _kernels(fixed, steps, shared)
    notes = [*dict.fromkeys(s.note for s in steps if s.note), *notes, *lacking(steps, called)]
    return Run(tuple(fixed), tuple(steps), tuple(broken), matched, shared, names, mean, middle, count,
               ranks_per_node, tuple(notes))  # fmt: skip


def _order(trace: Trace, steps: Steps, step: int) -> int:
    """Return a number for the order in which a step's work was launched."""
    at = np.flatnonzero((steps.of_event == step) & trace.on_device & trace.is_kind("kernel", "communication"))
    ids = trace.correlation[at]
    at = at[np.argsort(ids, kind="stable")] if (ids >= 0).all() else at
    ahead = np.sign(trace.peer[at] - (trace.rank or 0)) * (trace.peer[at] >= 0)
    names = [zlib.crc32(n.encode()) for n in trace.names]
    return zlib.crc32(np.column_stack([np.array(names, np.int64)[trace.name[at]], ahead]).tobytes())


def transfers(matched: Collectives, count: int) -> list[tuple[Floats, Floats]]:
    """When each rank's communication moves data: the last part of each event, as long as the shortest of its kind."""
    begin = matched.start_s + matched.wait_s
    order = np.argsort(matched.rank, kind="stable")
    cuts = np.searchsorted(matched.rank[order], np.arange(1, count))
    return [(begin[part], matched.end_s[part]) for part in np.split(order, cuts)]


def _kernels(
    traces: Sequence[Trace], steps: Sequence[Steps], shared: Common
) -> tuple[tuple[str, ...], Floats, Floats, Floats]:
    """Mean, median and count of the durations of each kernel name, rank and common step."""
    total: dict[str, float] = {}
    picked = []
    for trace in traces:
        at = np.flatnonzero(trace.is_kind("kernel"))
        spent = np.bincount(trace.name[at], weights=trace.duration_s[at], minlength=len(trace.names))
        for index in np.unique(trace.name[at]):
            total[trace.names[index]] = total.get(trace.names[index], 0.0) + spent[index]
        picked.append(at)
    names = tuple(sorted(total, key=lambda n: (-total[n], n))[:MOST_NAMES])
    index = {name: i for i, name in enumerate(names)}
    shape = (len(traces), len(shared.number), len(names))
    mean, middle, count = np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape)
    for r, (trace, found, at) in enumerate(zip(traces, steps, picked, strict=True)):
        place = np.full(len(found.number) + 1, -1)  # the last for events outside all steps
        place[shared.column[r][shared.present[r]]] = np.flatnonzero(shared.present[r])
        known = np.array([index.get(n, -1) for n in trace.names] or [-1])[trace.name[at]]
        step = place[found.of_event[at]]
        use = (known >= 0) & (step >= 0)
        mean[r], middle[r], count[r] = _cells(step[use], known[use], trace.duration_s[at[use]], shape[1:])
    return names, mean, middle, shared.filled(count)


def _cells(
    step: NDArray[np.int64], name: NDArray[np.int64], duration_s: Floats, shape: tuple[int, int]
) -> tuple[Floats, Floats, Floats]:
    """Mean, median and count of durations by step and name."""
    size = shape[0] * shape[1]
    cell = step * shape[1] + name
    count = np.bincount(cell, minlength=size)
    mean = np.bincount(cell, weights=duration_s, minlength=size) / np.where(count, count, np.nan)
    order = np.lexsort((duration_s, cell))
    first = np.cumsum(count) - count
    middle = np.full(size, np.nan)
    has = count > 0
    ranked = duration_s[order]
    middle[has] = (ranked[(first + (count - 1) // 2)[has]] + ranked[(first + count // 2)[has]]) / 2
    return mean.reshape(shape), middle.reshape(shape), count.reshape(shape).astype(float)
