"""Time and activations of a pipeline by formula, for one layout or for a table of layouts.

Shapes: times have the chunks first and the stages last, ``(chunks, ..., stages)``; a number that varies in a
table is a column ``(n, 1)``; a time of a whole step comes out as ``(...)``. The backward pass B holds the
weights' gradient W unless a formula says otherwise (zero-bubble's papers write B without it).

How far a formula is from the exact time is in the docstring of :func:`pipeline_time_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from telekit.errors import bad
from telekit.layout.config import SCHEDULES
from telekit.layout.schedules import RULES
from telekit.pipeline.schedules import warm_up


def pipeline_time_s(
    schedule: str,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    micro_batches: Any,
    weight_s: ArrayLike | None = None,
    comm_s: Any = 0.0,
    overlapped_s: ArrayLike | None = None,
) -> Any:
    """Time of all micro-batches through the pipeline.

    ========================  ================================================================================
    schedule                  how good the formula is
    ========================  ================================================================================
    gpipe                     exact, for any stages and ``comm_s``
    1f1b                      never above the simulation. Equal to it for equal stages; for stages up to 30 %
                              apart without ``comm_s``: in all of 12,000 random cases; up to 2 times apart: in
                              88 %, 3 % below at worst. With ``comm_s`` 2 to 10 % of a stage: 6 % below at worst
    interleaved-1f1b          never above the simulation. Equal to it for equal stages while ``comm_s`` is at
                              most a chunk's shorter pass; for chunks up to 30 % apart: 1.3 % below on average,
                              6 % at worst; up to 2 times apart: 3 % and 14 %
    seqsmartvpp               as 1F1B, which it is with one chunk and one piece of the sequence
    zb-h1                     exact for equal stages: bubble ``(p - 1)(F + B - 2 W)``, arXiv 2401.10241
                              table 2
    zb-v                      start skew alone: exact for equal stages and F = B - W = W, else a lower bound
    dualpipe, dualpipe-v      exact for equal stages and F = B - W = W; DualPipe README's bubble
                              ``(PP/2 - 1)(F&B + B - 3 W)``, PP counting DualPipeV's stages twice
    ========================  ================================================================================

    Parameters
    ----------
    schedule : str
        A name of :data:`telekit.layout.config.SCHEDULES`.
    forward_s, backward_s : arrays (chunks, ..., stages)
        Seconds of one micro-batch's pass. DualPipe's device s runs stages s and p - 1 - s, half of the
        micro-batches each.
    micro_batches : int or column
        Micro-batches of a step (DualPipe: of both directions).
    weight_s : array (chunks, ..., stages), optional
        Part of ``backward_s`` that computes weights' gradients; ``zb-h1`` and DualPipe need it.
    comm_s : float or column
        Seconds from a stage to its neighbour, which no device is busy with. Outside gpipe and the 1F1B family
        only the first and the last micro-batch's way is counted.
    overlapped_s : array (chunks, ..., stages), optional
        DualPipe's F&B, one forward and one backward run as one block; their sum when nothing is said.

    Returns
    -------
    float or array (...)
        Seconds.

    Raises
    ------
    InputError
        For an unknown schedule, a number of chunks it does not allow, or ``weight_s`` missing.
    """
    f, b = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    _check(schedule, f, weight_s)
    w = np.zeros_like(b) if weight_s is None else np.asarray(weight_s, dtype=np.float64)
    both = f + b if overlapped_s is None else np.asarray(overlapped_s, dtype=np.float64)
    match schedule:
        case "gpipe":
            time = gpipe_time_s(f[0], b[0], micro_batches, comm_s)
        case "zb-h1":
            time = _zb_h1_time_s(f[0], b[0], w[0], micro_batches, comm_s)
        case "zb-v":
            time = np.max(_reach(f[0], comm_s) + micro_batches * (f + b).sum(axis=0), axis=-1, keepdims=True)
        case "dualpipe" | "dualpipe-v":
            time = _dualpipe_time_s(schedule, f, b, w, both, micro_batches, comm_s)
        case _:
            time = _alternating_time_s(schedule, f, b, micro_batches, comm_s)
    return time[..., 0]


def _check(schedule: str, f: Any, weight_s: Any) -> None:
    if schedule not in SCHEDULES:
        raise bad("schedule", schedule, "no formula for this schedule", f"known: {', '.join(SCHEDULES)}")
    chunks, stages = f.shape[0], f.shape[-1]
    for _, field, text, holds in RULES:
        if field == "vpp" and not holds(schedule, stages, chunks, stages):
            raise bad("chunks", chunks, text.format(schedule=schedule, pp=stages, vpp=chunks))
    if weight_s is None and schedule in ("zb-h1", "dualpipe", "dualpipe-v"):
        rule = f"{schedule} moves the weights' gradients by themselves, so their time must be given"
        raise bad("weight_s", "missing", rule, "half of backward_s when nothing better is known")


def gpipe_time_s(f: Any, b: Any, micro_batches: Any, comm_s: Any) -> Any:
    """All forwards, then all backwards: two flow shops, each ``sum + (m - 1) max``; shape (..., 1)."""
    stages, more = f.shape[-1], micro_batches - 1
    way = _sum(f) + _sum(b) + 2 * (stages - 1) * comm_s
    return way + more * (_max(f) + _max(b))


def _alternating_time_s(schedule: str, f: Any, b: Any, m: Any, comm_s: Any) -> Any:
    """1F1B, plain or interleaved: the longest of some ways through the graph of passes, shape (..., 1).

    Each way reaches one stage, stays there for all its passes, and leaves: ``reach + m (F + B) + leave``. In
    between it may make two detours over the stages behind, one in the warm-up and one in the drain, where
    these take longer than the stage itself. A last way, for 1F1B, counts communication: it goes to the last
    stage and back once for every ``p`` micro-batches, for no more than ``p`` are in flight.
    """
    chunks, stages = f.shape[0], f.shape[-1]
    work = (f + b).sum(axis=0)
    lead = warm_up(schedule, stages, m, chunks)
    warm, drain = _detour(f, b, lead, m, comm_s), _detour(b, f, lead, m, comm_s)
    apart = m * chunks - 1 > lead
    detours = np.where(apart, warm + drain, np.maximum(warm, drain))
    time = _max(_reach(f[0], comm_s) + _reach(b[0], comm_s) + m * work + detours)
    if chunks > 1:
        return time
    rounds, rest = np.floor_divide(m - 1, stages), np.mod(m - 1, stages)
    least = rest * np.min(work, axis=-1, keepdims=True) + 2 * comm_s * np.maximum(rest - 1, 0)
    tail = np.where(rounds > 0, np.maximum(rest * _max(work), least), rest * work[..., -1:])
    return np.maximum(time, (rounds + 1) * (_sum(work) + 2 * (stages - 1) * comm_s) + tail)


def _detour(first: Any, other: Any, lead: Any, m: Any, comm_s: Any) -> Any:
    """Time that a detour in the warm-up adds to each stage's own passes, shape (..., stages).

    From its first forward, stage b may wait for stage j behind it: on the way to j, for all that j runs
    before its first backward, and for that backward's way from j to b. With forward and backward changed
    over, it is the drain, read from its end.
    """
    chunks, stages = first.shape[0], first.shape[-1]
    passed = _forwards_by_chunk(np.minimum(lead + 1, m * chunks), stages, chunks)
    own = sum(n * time for n, time in zip(passed, first, strict=True))
    waits = own
    for chunk in range(chunks - 1):
        # The next chunk's first forward comes round the ring; it may come later than a group takes here.
        ahead = _reach(first[chunk], 0.0)
        ring = _sum(first[chunk]) - ahead + _reach(first[chunk + 1], 0.0) + stages * comm_s
        waits = waits + np.maximum(ring - stages * first[chunk], 0.0)
    reach, back = _reach(first[0], comm_s), np.cumsum(other[-1] + comm_s, axis=-1)
    latest = np.maximum.accumulate(np.flip(reach + waits + back, -1), axis=-1)
    return np.flip(latest, -1) - (reach + own + back)


def _zb_h1_time_s(f: Any, b: Any, w: Any, m: Any, comm_s: Any) -> Any:
    """Return the slowest stage's work and, for each other stage, F + B - 2 W, at least the start's F."""
    work = f + b
    slowest = np.argmax(work, axis=-1, keepdims=True)
    bubble = np.maximum(work - 2 * w, f)
    others = _sum(bubble) - np.take_along_axis(bubble, slowest, axis=-1)
    return m * _max(work) + others + 2 * (f.shape[-1] - 1) * comm_s


def _dualpipe_time_s(schedule: str, f: Any, b: Any, w: Any, both: Any, m: Any, comm_s: Any) -> Any:
    """Steady work less what overlapping saves, and the README's bubble with mean times, shape (..., 1).

    A device in the middle overlaps all but PP + 1 of its pairs; PP is the number of model parts.
    """
    stages = f.shape[-1]
    if schedule == "dualpipe":
        parts, passes = stages, m
        f, b, w, both = ((x[0] + np.flip(x[0], -1)) / 2 for x in (f, b, w, both))
    else:
        parts, passes = 2 * stages, 2 * m
        f, b, w, both = (x.mean(axis=0) for x in (f, b, w, both))
    saved = (passes - parts - 1) * (f + b - both)
    bubble = np.maximum(both + b - 3 * w, 0.0).mean(axis=-1, keepdims=True) + 2 * comm_s
    return _max(passes * (f + b) - saved) + (parts / 2 - 1) * bubble


def in_flight(schedule: str, stages: int, chunks: int, micro_batches: Any) -> Any:
    """Most micro-batches whose activations each chunk of each stage holds at once.

    The chunks of a stage do not peak together under the interleaved schedule, so a sum over them is a
    little too much there; :func:`peak_held` has the true peak.

    ================  =======================================================================================
    gpipe             m
    1f1b,seqsmartvpp  p - s (1F1B's; seqsmartvpp is said to hold fewer)
    interleaved-1f1b  as Megatron-Core's order has it; ``2 (p - s) + (v - 1) p - 1`` over all chunks
    zb-h1             p: a pass that waits for W keeps its activations (arXiv 2401.10241 table 2)
    zb-v              2 p - s and s, or one less of the first and one more of the second: the paper's p for the device
    dualpipe          p + 1 for the device, over its two stages (README)
    dualpipe-v        2 p - s and s + 1, together 2 p + 1 (README's PP + 1)
    ================  =======================================================================================

    Parameters
    ----------
    schedule : str
        A name of :data:`telekit.layout.config.SCHEDULES`.
    stages, chunks : int
        Devices, model parts a device holds.
    micro_batches : int or column (n, 1)
        Micro-batches of a step: no chunk holds more.

    Returns
    -------
    array (chunks, ..., stages)
        Counts.
    """
    return _moments(schedule, stages, chunks, micro_batches).max(axis=0)


def peak_held(schedule: str, weight: ArrayLike, micro_batches: Any) -> Any:
    """Most that each stage's device holds at once, shape (..., stages).

    Exact: what the schedules' orders hold, where zero-bubble's halves and DualPipe's pairs take equal times. DualPipe's
    device s holds p - s micro-batches of stage s and s + 1 of stage p - 1 - s.

    Parameters
    ----------
    schedule : str
        A name of :data:`telekit.layout.config.SCHEDULES`.
    weight : array (chunks, ..., stages)
        What one micro-batch in flight keeps, in any unit.
    micro_batches : int or column (n, 1)
        Micro-batches of a step.
    """
    weights = np.asarray(weight, dtype=np.float64)
    if schedule == "dualpipe":
        stage = np.arange(weights.shape[-1])
        mine, mirror = np.minimum(len(stage) - stage, micro_batches), np.minimum(stage + 1, micro_batches)
        return mine * weights[0] + mirror * np.flip(weights[0], -1)
    held = _moments(schedule, weights.shape[-1], weights.shape[0], micro_batches)
    held = held.reshape(*held.shape[:2], *[1] * (weights.ndim + 1 - held.ndim), *held.shape[2:])
    return (held * weights).sum(axis=1).max(axis=0)


def _moments(schedule: str, stages: int, chunks: int, m: Any) -> Any:
    """Micro-batches in flight at every moment that can be a peak, shape (moments, chunks, ..., stages)."""
    stage = np.arange(stages)
    peaks: dict[str, Callable[[], list[Any]]] = {
        "zb-h1": lambda: [0 * stage + stages],
        "dualpipe": lambda: [0 * stage + stages + 1],
        "dualpipe-v": lambda: [2 * stages - stage, stage + 1],
    }
    if schedule == "zb-v":  # all of the way down, or one less and the first of the way up
        held = [np.stack([2 * stages - stage - late, stage + late]) for late in (0, 1)]
        return np.stack([np.stack([np.minimum(row, m) for row in moment]) for moment in held])
    if schedule in peaks:
        return np.stack([np.minimum(held, m) for held in peaks[schedule]()])[None]
    if schedule not in SCHEDULES:
        raise bad("schedule", schedule, "no formula for this schedule", f"known: {', '.join(SCHEDULES)}")
    lead = warm_up(schedule, stages, m, chunks)
    if chunks == 1:
        return np.minimum(lead + 1, m)[None, None]
    # After the warm-up each forward adds to one chunk what a backward takes from another, until either comes
    # to its next chunk: what is held is linear in between, so peaks lie at such changes. Those of forwards
    # show the same states as those of backwards (the order read from its end is the same order), and one
    # period shows them all.
    held = []
    for group in range(chunks + 1):
        ended = np.minimum(group * stages, np.maximum(m * chunks - lead - 1, 0))
        started = np.minimum(ended + lead + 1, m * chunks)
        forward = _forwards_by_chunk(started, stages, chunks)
        held.append(forward - np.flip(_forwards_by_chunk(ended, stages, chunks), axis=0))
    return np.stack(held)


def _forwards_by_chunk(forwards: Any, stages: int, chunks: int) -> Any:
    """Split the first ``forwards`` of a stage by chunk, groups of ``stages`` in turn; shape (chunks, ...).

    Backwards pass the chunks in the opposite order.
    """
    if chunks == 1:
        return np.asarray(forwards)[None]
    groups, rest = np.divmod(forwards, stages * chunks)
    return np.stack([groups * stages + np.clip(rest - c * stages, 0, stages) for c in range(chunks)])


def _reach(time: Any, comm_s: Any) -> Any:
    """Time to arrive at each stage: the passes of the stages before it, and a hop for each."""
    return np.cumsum(time, axis=-1) - time + comm_s * np.arange(time.shape[-1])


def _sum(x: Any) -> Any:
    return np.sum(x, axis=-1, keepdims=True)


def _max(x: Any) -> Any:
    return np.max(x, axis=-1, keepdims=True)
