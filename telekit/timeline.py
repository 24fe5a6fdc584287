"""The event kernel: operations in a fixed order on resources, with dependencies, timed by longest paths.

An order says *what follows what*; a timing says *how long each thing takes*. They are separate: an order is
compiled once into levels (what an operation waits for lies in earlier levels), and then any number of
duration sets are timed with a few array operations a level. Nothing here knows about pipelines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, bad

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NAMED_IN_ERRORS = 8


class Level(NamedTuple):
    """Operations that wait only for operations of earlier levels.

    Attributes
    ----------
    operations : array (n,)
        Their numbers, those that wait for most others first.
    sources : array (edges,)
        What they wait for: first one thing for each of them, then the second one of all that have two, and
        so on. ``count`` stands for the start of time.
    joins : tuple of (int, int, int)
        For the second things, the third and so on: how many there are, their first place in ``sources``, and
        the end of their places.
    """

    operations: Ints
    sources: Ints
    joins: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class CompiledOrder:
    """An order without a circle, ready to be timed; made by :func:`compile_order`.

    Attributes
    ----------
    count, dependencies : int
        Operations, and dependencies given to :func:`compile_order`.
    sequence : array (count,)
        Operations of all levels, one level after the other.
    lags : array (edges,)
        The dependency that each of all levels' sources is (``dependencies`` for one without a lag).
    levels : tuple of Level
        All operations.
    """

    count: int
    dependencies: int
    sequence: Ints
    lags: Ints
    levels: tuple[Level, ...]

    def finish(
        self,
        duration_s: ArrayLike,
        lag_s: ArrayLike = 0.0,
        row: Ints | None = None,
        lag_row: Ints | None = None,
    ) -> Floats:
        """End of each operation when everything starts as early as it can.

        Parameters
        ----------
        duration_s : array (count, ...) or (rows, ...)
            Seconds each operation holds its resource; further axes are independent duration sets.
        lag_s : float, array (dependencies, ...) or (lag rows, ...)
            Seconds between the end of a dependency's first operation and the start of its second.
        row, lag_row : arrays (count,) and (dependencies,), optional
            Row of ``duration_s`` that each operation has, and row of ``lag_s`` that each dependency has. With
            many duration sets, a table of a few rows that stays in the cache is several times as fast as a
            row for each operation.

        Returns
        -------
        array (count, ...)
            End times in seconds; the first start is 0.
        """
        duration, lag = np.asarray(duration_s, dtype=np.float64), np.asarray(lag_s, dtype=np.float64)
        end = np.empty((self.count + 1, *duration.shape[1:]))
        end[-1] = 0.0
        each_duration, each_lag = self._durations(duration, row), self._lags(lag, lag_row, duration.ndim)
        for level, lasts, gap in zip(self.levels, each_duration, each_lag, strict=True):
            operations, sources, joins = level
            ready = end.take(sources, axis=0)
            if gap is not None:
                ready += gap
            latest = ready[: operations.size]
            for width, begin, stop in joins:
                some = latest[:width]
                np.maximum(some, ready[begin:stop], out=some)
            latest += lasts
            end[operations] = latest
        return end[:-1]

    def _durations(self, duration: Floats, row: Ints | None) -> Iterable[Floats]:
        """Durations of each level."""
        rows = self.sequence if row is None else row[self.sequence]
        return _cut(duration, rows, [level.operations.size for level in self.levels])

    def _lags(self, lag: Floats, row: Ints | None, axes: int) -> Iterable[Floats | None]:
        """Lags of each level's edges, None where nothing lags."""
        if not lag.any():
            return [None] * len(self.levels)
        if lag.ndim == 0:
            lag, row = lag[None], np.zeros(self.dependencies, dtype=np.int64)
        table = np.concatenate([lag, np.zeros_like(lag[:1])])
        table = table.reshape(*table.shape, *[1] * (axes - table.ndim))
        rows = np.append(np.arange(self.dependencies) if row is None else row, len(lag))[self.lags]
        return _cut(table, rows, [level.sources.size for level in self.levels])


def _cut(table: Floats, rows: Ints, sizes: list[int]) -> Iterable[Floats]:
    """Cut ``table[rows]`` into levels. One set is taken in one go; many would leave the cache before their turn."""
    stops = np.cumsum(sizes, dtype=np.int64).tolist()
    spans = zip([0, *stops], stops, strict=False)
    if table.ndim > 1:
        return (table.take(rows[begin:stop], axis=0) for begin, stop in spans)
    taken = table[rows]
    return [taken[begin:stop] for begin, stop in spans]


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

    # An operation that waits for nothing gets an edge from the start of time, so that each has one.
    free = np.flatnonzero(level == 0)
    lag = np.full(source.size + free.size, dependencies)
    lag[:dependencies] = np.arange(dependencies)
    source = np.concatenate([source, np.full(free.size, count)])
    target = np.concatenate([target, free])
    sequence, edge, counts = _by_level(level, target)
    levels = tuple(_cut_levels(sequence, source[edge], counts))
    return CompiledOrder(count, dependencies, sequence, lag[edge], levels)


def _by_level(level: Ints, target: Ints) -> tuple[Ints, Ints, Ints]:
    """Sort operations by level and falling number of edges, edges by level and their turn in their target.

    The third value, of shape (levels, turns), counts edges.
    """
    if not level.size:
        return level, target, np.zeros((0, 1), dtype=np.int64)
    waits = np.bincount(target)
    sequence = np.lexsort((-waits, level))
    by_target = np.argsort(target, kind="stable")
    first = np.cumsum(waits) - waits

    # Edges in the order of the sequence, and the place of each among its level's edges of the same turn.
    sizes = waits[sequence]
    row = np.repeat(np.arange(level.size), sizes)
    turn = np.arange(row.size) - (np.cumsum(sizes) - sizes)[row]
    height = level[sequence][row]
    most = int(waits.max())
    counts = np.bincount(height * most + turn, minlength=(int(level.max()) + 1) * most).reshape(-1, most)
    begins = np.cumsum(counts.ravel()).reshape(counts.shape) - counts
    rows = np.append(0, np.cumsum(counts[:, 0]))
    edge = np.empty_like(row)
    edge[begins[height, turn] + row - rows[height]] = by_target[first[sequence][row] + turn]
    return sequence, edge, counts


def _cut_levels(sequence: Ints, sources: Ints, counts: Ints) -> Iterator[Level]:
    """Cut columns into levels; ``counts`` (levels, turns) is how many edges there are."""
    row = edge = 0
    for size, *others in counts.tolist():
        joins, stop = [], size
        for width in others:
            if width:
                joins.append((width, stop, stop + width))
                stop += width
        yield Level(sequence[row : row + size], sources[edge : edge + stop], tuple(joins))
        row, edge = row + size, edge + stop


def _levels(count: int, source: Ints, target: Ints, describe: Callable[[int], str]) -> Ints:
    """Most edges on any way from a start to each operation, found a whole level at a time."""
    waiting = np.bincount(target, minlength=count)
    successors = target[np.argsort(source, kind="stable")]
    fan_out = np.bincount(source, minlength=count)
    first = np.cumsum(fan_out) - fan_out
    level, turn = np.full(count, -1, dtype=np.int64), np.empty(count, dtype=np.int64)
    frontier, depth = np.flatnonzero(waiting == 0), 0
    while frontier.size:
        level[frontier] = depth
        sizes = fan_out[frontier]
        ends = sizes.cumsum()
        reached = successors[(first[frontier] - ends + sizes).repeat(sizes) + np.arange(ends[-1])]
        np.subtract.at(waiting, reached, 1)
        ready = reached[waiting[reached] == 0]
        turns = np.arange(ready.size)
        turn[ready] = turns
        frontier, depth = ready[turn[ready] == turns], depth + 1  # one of each
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


def write_trace(path: str | Path, trace: dict[str, Any]) -> None:
    """Write what :func:`chrome_trace` made as a file; an InputError when that cannot be."""
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            json.dump(trace, file, allow_nan=False)
    except OSError as error:
        rule = f"cannot be written: {error.strerror or error}"
        raise bad("trace", str(path), rule, "a file in a folder of yours works") from None
