"""Makespans of 1F1B and interleaved 1F1B, many duration sets at once, without an event a pass.

Both schedules are so regular that every pass can be given a level with two properties: a device runs at
most one pass a level, and what a pass waits for on another device ran exactly ``depth`` levels before. So
one vector operation over the devices does a whole level, and only the last ``depth`` levels are kept.

1F1B: F of micro-batch i on stage s is on level ``2 i + s``, B on ``2 i + 2 p - 1 - s``; depth 1.
Interleaved: the k-th forward of stage s is on level ``2 (k + s)``, the k-th backward on
``2 (k - s + p + v p - 2) + 1``; depth 2. That these are the orders of
:func:`telekit.pipeline.schedules.order` follows from :func:`~telekit.pipeline.schedules.warm_up`: forward
``k + warm_up`` lies just before backward ``k``.

Once all devices are busy the pattern repeats, and the level-to-level map is linear in the max-plus sense
(adding t to every time adds t to every later time). When one period adds the same time to every device, it
always will, and the rest of the steady phase is one addition. The map moves no two states further apart, so
the rounding admitted in that test grows no faster than by itself at each period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from telekit.pipeline.order import BACKWARD, FORWARD
from telekit.pipeline.schedules import raise_broken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LATTICED = ("1f1b", "seqsmartvpp", "interleaved-1f1b")
_BLOCK = 32_768
"""Times a level that fit a core's cache."""
_SAME = 8 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Lattice:
    """A schedule by levels.

    Attributes
    ----------
    depth : int
        Levels between a pass and what it waits for.
    duration : array (levels, stages + 1)
        Row of the duration table: (kind, chunk, stage) in C order; one row more, of zeros, where a device
        rests.
    source : array (levels, stages + 1)
        Device waited for; ``stages`` for none. The last column, a device that never runs, is that one's
        state: minus infinity.
    steady : tuple of int
        First and end of the levels in which no device rests.
    period : int
        Levels after which ``duration`` and ``source`` repeat there. For 1F1B it is ``stages`` times
        the shortest: the period of the times themselves where communication counts.
    """

    depth: int
    duration: Ints
    source: Ints
    steady: tuple[int, int]
    period: int


@lru_cache(maxsize=32)
def lattice(schedule: str, stages: int, micro_batches: int, chunks: int) -> Lattice:
    """Levels of a schedule of :data:`LATTICED`.

    Raises
    ------
    InputError
        For numbers the schedule does not allow.
    """
    raise_broken(schedule, stages, micro_batches, chunks)
    stage = np.arange(stages)
    if schedule == "interleaved-1f1b":
        depth = 2
        shift = stages + stages * chunks - 2
        level = np.arange(2 * (micro_batches * chunks + shift))[:, None]
        forward = level % 2 == 0
        turn = np.where(forward, level // 2 - stage, level // 2 + stage - shift)
        passed = turn // stages % chunks
    else:
        depth = 1
        level = np.arange(2 * (micro_batches + stages - 1))[:, None]
        forward = (level - stage) % 2 == 0
        turn = np.where(forward, (level - stage) // 2, (level + stage + 1) // 2 - stages)
        passed = np.zeros_like(turn)
    runs = (turn >= 0) & (turn < micro_batches * chunks)
    chunk = np.where(forward, passed, chunks - 1 - passed)
    duration = (np.where(forward, FORWARD, BACKWARD) * chunks + chunk) * stages + stage
    enters = np.where(forward, stage == 0, stage == stages - 1) & (passed == 0)
    source = np.where(forward, stage - 1, stage + 1) % stages
    return Lattice(
        depth,
        _with_resting(np.where(runs, duration, 2 * chunks * stages), 2 * chunks * stages),
        _with_resting(np.where(runs & ~enters, source, stages), stages),
        _longest_run(np.asarray(runs.all(axis=1))),
        2 * stages * chunks,
    )


def _with_resting(values: Ints, resting: int) -> Ints:
    return np.pad(values, ((0, 0), (0, 1)), constant_values=resting)


def _longest_run(full: NDArray[np.bool_]) -> tuple[int, int]:
    """First and end of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], full, [False]]).astype(np.int8))).reshape(-1, 2)
    if not edges.size:
        return full.size, full.size
    first, end = edges[np.argmax(edges[:, 1] - edges[:, 0])].tolist()
    return first, end


def lattice_makespan(found: Lattice, durations_s: Floats, comm_s: float = 0.0) -> Floats:
    """Makespans of duration sets.

    Parameters
    ----------
    found : Lattice
        The schedule.
    durations_s : array (2, chunks, stages, batch)
        Seconds of forward and backward passes.
    comm_s : float
        Seconds between neighbouring stages.

    Returns
    -------
    array (batch,)
        Seconds.
    """
    passes, batch = math.prod(durations_s.shape[:-1]), durations_s.shape[-1]
    table = np.zeros((passes + 1, batch))
    table[:-1] = durations_s.reshape(passes, batch)
    width = max(_BLOCK // found.source.shape[1], 1)
    blocks = [_last_end(found, table[:, i : i + width], comm_s) for i in range(0, batch, width)]
    return np.concatenate(blocks) if blocks else np.zeros(0)


def _last_end(found: Lattice, table: Floats, comm_s: float) -> Floats:
    """March through all levels, skipping what of the steady phase is known to repeat."""
    first, end = found.steady
    periods = (end - first) // found.period
    state = np.zeros((found.depth, found.source.shape[1], table.shape[1]))
    state[:, -1] = -np.inf
    state = _march(found, state, table, comm_s, 0, first)
    state = _march_steady(found, state, table, comm_s, periods)
    state = _march(found, state, table, comm_s, first + periods * found.period, len(found.source))
    return np.asarray(state[:, :-1].max(axis=(0, 1)))


def _march(found: Lattice, state: Floats, table: Floats, comm_s: float, first: int, end: int) -> Floats:
    """Run levels [first, end). ``state[-1]`` is the level just done, ``state[0]`` the oldest that is kept."""
    recent = list(state)
    for level in range(first, end):
        ready = recent[0].take(found.source[level], axis=0)
        if comm_s:
            ready += comm_s
        np.maximum(ready, recent[-1], out=ready)
        ready += table.take(found.duration[level], axis=0)
        recent = [*recent[1:], ready]
    return np.stack(recent)


def _march_steady(found: Lattice, state: Floats, table: Floats, comm_s: float, periods: int) -> Floats:
    """Run ``periods`` periods; sets whose devices all gained the same time leave early, their rest added."""
    result, open_sets, level = np.empty_like(state), np.arange(table.shape[1]), found.steady[0]
    for left in range(periods - 1, 0, -1):
        before = state[:, :-1]
        state = _march(found, state, table, comm_s, level, level + found.period)
        level += found.period
        gain = (state[:, :-1] - before).reshape(-1, open_sets.size)
        most = gain.max(axis=0)
        repeats = most - gain.min(axis=0) <= _SAME * state[:, :-1].max(axis=(0, 1))
        if repeats.any():
            result[..., open_sets[repeats]] = state[..., repeats] + left * most[repeats]
            open_sets, state, table = open_sets[~repeats], state[..., ~repeats], table[:, ~repeats]
            if not open_sets.size:
                return result
    if periods:
        state = _march(found, state, table, comm_s, level, level + found.period)
    result[..., open_sets] = state
    return result
