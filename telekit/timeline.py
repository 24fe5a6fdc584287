"""The event kernel: operations in a fixed order on resources, with dependencies, timed by longest paths.

An order says *what follows what*; a timing says *how long each thing takes*. They are separate: an order is
compiled once into levels (what an operation waits for lies in earlier levels), and then any number of
duration sets are timed with three array operations a level. Nothing here knows about pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, bad

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NAMED_IN_ERRORS = 8


@dataclass(frozen=True)
class CompiledOrder:
    """An order without a circle, ready to be timed; made by :func:`compile_order`.

    Rows are operations sorted by level. Row ``count`` stands for the start of time.

    Attributes
    ----------
    count, dependencies : int
        Operations, and dependencies given to :func:`compile_order`.
    sequence, rank : arrays (count,)
        Operation of each row, and row of each operation.
    levels, edges : arrays (levels + 1,)
        First row, and first edge, of each level.
    sources, lag_index : arrays (edges,)
        Edges by the row they enter: the row each leaves, and the dependency it is (``dependencies`` for one
        without a lag).
    heads : array (count,)
        First edge of each row, counted from the first edge of its level.
    """

    count: int
    dependencies: int
    sequence: Ints
    rank: Ints
    levels: Ints
    edges: Ints
    sources: Ints
    lag_index: Ints
    heads: Ints

    def finish(self, duration_s: ArrayLike, lag_s: ArrayLike = 0.0) -> Floats:
        """End of each operation when everything starts as early as it can.

        Parameters
        ----------
        duration_s : array (count, ...)
            Seconds each operation holds its resource; further axes are independent duration sets.
        lag_s : float or array (dependencies,)
            Seconds between the end of a dependency's first operation and the start of its second.

        Returns
        -------
        array (count, ...)
            End times in seconds; the first start is 0.
        """
        duration = np.asarray(duration_s, dtype=np.float64)
        end = np.zeros((self.count + 1, *duration.shape[1:]))
        np.take(duration, self.sequence, axis=0, out=end[:-1])
        lags = np.zeros(self.dependencies + 1)
        lags[:-1] = lag_s
        lag = lags[self.lag_index].reshape(-1, *[1] * (duration.ndim - 1)) if lags.any() else None
        self._sweep(end, lag)
        return np.take(end, self.rank, axis=0)

    def _sweep(self, end: Floats, lag: Floats | None) -> None:
        """Turn durations into end times, in place, one level after the other."""
        levels, edges = self.levels.tolist(), self.edges.tolist()
        sources, heads, latest = self.sources, self.heads, np.maximum.reduceat
        for row, next_row, edge, next_edge in zip(levels, levels[1:], edges, edges[1:], strict=False):
            ready = end[sources[edge:next_edge]]
            if lag is not None:
                ready += lag[edge:next_edge]
            end[row:next_row] += latest(ready, heads[row:next_row], axis=0)


def compile_order(
    resource: ArrayLike, before: ArrayLike, after: ArrayLike, describe: Callable[[int], str] = str
) -> CompiledOrder:
    """Compile operations 0..n-1 that run, on each resource, in the order of their numbers.

    Parameters
    ----------
    resource : array (n,) of int
        What each operation holds, one at a time; a negative number holds nothing.
    before, after : arrays (dependencies,) of int
        Operation ``after[k]`` waits for operation ``before[k]``.
    describe : callable
        Name of an operation, for errors.

    Returns
    -------
    CompiledOrder

    Raises
    ------
    InputError
        When operations wait for each other in a circle; the circle is named.
    """
    held = np.asarray(resource, dtype=np.int64)
    first, second = np.asarray(before, dtype=np.int64), np.asarray(after, dtype=np.int64)
    count, dependencies = held.size, first.size
    by_resource = np.argsort(held, kind="stable")
    follows = (held[by_resource[1:]] == held[by_resource[:-1]]) & (held[by_resource[1:]] >= 0)
    source = np.concatenate([first, by_resource[:-1][follows]])
    target = np.concatenate([second, by_resource[1:][follows]])
    level = _levels(count, source, target, describe)
    sequence = np.argsort(level, kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[sequence] = np.arange(count)
    levels = np.append(0, np.cumsum(np.bincount(level)))

    # An operation that waits for nothing gets an edge from the start of time: reduceat needs one each.
    free = np.flatnonzero(level == 0)
    row = np.concatenate([rank[target], rank[free]])
    origin = np.concatenate([rank[source], np.full(free.size, count)])
    lag_index = np.full(row.size, dependencies)
    lag_index[:dependencies] = np.arange(dependencies)
    by_row = np.argsort(row, kind="stable")
    first_edge = np.append(0, np.cumsum(np.bincount(row, minlength=count)))
    edges = first_edge[levels]
    heads = first_edge[:-1] - np.repeat(edges[:-1], np.diff(levels))
    return CompiledOrder(
        count, dependencies, sequence, rank, levels, edges, origin[by_row], lag_index[by_row], heads
    )


def _levels(count: int, source: Ints, target: Ints, describe: Callable[[int], str]) -> Ints:
    """Most edges on any way from a start to each operation, found a whole level at a time."""
    waiting = np.bincount(target, minlength=count)
    successors = target[np.argsort(source, kind="stable")]
    fan_out = np.bincount(source, minlength=count)
    first = np.cumsum(fan_out) - fan_out
    level = np.full(count, -1, dtype=np.int64)
    frontier, depth = np.flatnonzero(waiting == 0), 0
    while frontier.size:
        level[frontier] = depth
        sizes = fan_out[frontier]
        ends = sizes.cumsum()
        reached = successors[(first[frontier] - ends + sizes).repeat(sizes) + np.arange(ends[-1])]
        np.subtract.at(waiting, reached, 1)
        frontier, depth = np.unique(reached[waiting[reached] == 0]), depth + 1
    if (level < 0).any():
        raise _deadlock(level, source, target, describe)
    return level


def _deadlock(level: Ints, source: Ints, target: Ints, describe: Callable[[int], str]) -> InputError:
    """Walk back along stuck operations until one repeats: from there on it is a circle."""
    stuck = (level[source] < 0) & (level[target] < 0)
    waits_for = dict(zip(target[stuck].tolist(), source[stuck].tolist(), strict=True))
    at, seen = next(iter(waits_for)), dict[int, int]()
    while at not in seen:
        seen[at] = len(seen)
        at = waits_for[at]
    circle = [operation for operation, when in seen.items() if when >= seen[at]]
    names = [describe(operation) for operation in circle[:_NAMED_IN_ERRORS]]
    names += ["…"] * (len(circle) > _NAMED_IN_ERRORS) + [describe(circle[0])]
    return bad(
        "order",
        names[0],
        f"deadlock: operations wait for each other in a circle ({' waits for '.join(names)})",
        "put each operation after everything that it waits for",
    )


def chrome_trace(
    start_s: ArrayLike,
    end_s: ArrayLike,
    resource: ArrayLike,
    names: Sequence[str],
    categories: Sequence[str],
    resource_names: Sequence[str],
) -> dict[str, Any]:
    """Trace that Perfetto and chrome://tracing open, as plain data for ``json.dump``.

    Parameters
    ----------
    start_s, end_s : arrays (n,)
        When each operation runs, in seconds; the format counts microseconds.
    resource : array (n,) of int
        Index into ``resource_names``: the track an operation is drawn on.
    names, categories : sequences (n,) of str
        What it is called, and what kind of thing it is (colours go by name).
    resource_names : sequence of str
        Tracks, top to bottom.
    """
    start_us = (np.asarray(start_s, dtype=np.float64) * 1e6).tolist()
    end_us = (np.asarray(end_s, dtype=np.float64) * 1e6).tolist()
    tracks = np.asarray(resource, dtype=np.int64).tolist()
    events: list[dict[str, Any]] = []
    for track, label in enumerate(resource_names):
        at = {"ph": "M", "pid": 0, "tid": track}
        events.append(at | {"name": "thread_name", "args": {"name": label}})
        events.append(at | {"name": "thread_sort_index", "args": {"sort_index": track}})
    for name, kind, track, begin, end in zip(names, categories, tracks, start_us, end_us, strict=True):
        events.append(
            {"ph": "X", "pid": 0, "tid": track, "name": name, "cat": kind, "ts": begin, "dur": end - begin}
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
