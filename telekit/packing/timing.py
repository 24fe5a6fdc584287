"""Pipelines of unequal micro-batches, timed many at once in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem
from telekit.packing.plan import Plan
from telekit.pipeline.order import Order
from telekit.pipeline.registry import build
from telekit.pipeline.simulate import Simulation, run
from telekit.pipeline.times import Times

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

AT_ONCE = 2**18
"""Operations that are timed at once: tens of megabytes."""


def pipeline_s(forward: Floats, backward: Floats, plan: Plan) -> tuple[Floats, Floats]:
    """End, and computing of a mean stage, of pipelines, both (...); nothing is checked.

    Parameters
    ----------
    forward, backward : arrays (..., micro_batches, chunks, stages)
        Seconds of each micro-batch.
    plan : Plan
        What runs.
    """
    busy = (forward + backward).sum(axis=(-3, -2)).mean(axis=-1)
    if plan.stages == 1:
        return busy * plan.level, busy * plan.level
    rows = forward.reshape(-1, *forward.shape[-3:]), backward.reshape(-1, *backward.shape[-3:])
    end, own = np.empty(len(rows[0])), busy.reshape(-1).copy()
    for some in slices(len(end), operations(plan, forward.shape[-3])):
        found = simulate(rows[0][some], rows[1][some], plan)
        end[some] = found.makespan_s * plan.level
        if plan.pairs:
            own[some] = found.busy_s.mean(axis=-1)
    return end.reshape(busy.shape), own.reshape(busy.shape)


def ends_s(forward: Floats, backward: Floats, owner: Ints, order: Ints, plan: Plan) -> Floats:
    """End of pipelines (n,) whose micro-batches are put in another order.

    Parameters
    ----------
    forward, backward : arrays (rows, micro_batches, chunks, stages)
        Seconds of each micro-batch.
    owner, order : arrays (n,), (n, micro_batches)
        Row of each, and its order.
    plan : Plan
        What runs.
    """
    end = np.empty(len(owner))
    for some in slices(len(owner), operations(plan, order.shape[-1])):
        taken = owner[some, None], order[some]
        end[some] = pipeline_s(forward[taken], backward[taken], plan)[0]
    return end


def operations(plan: Plan, micro_batches: int) -> int:
    """Operations of one pipeline, as the simulator counts them."""
    return _order(plan, micro_batches).kind.size if plan.stages > 1 else micro_batches * plan.chunks


def slices(count: int, size: int) -> Iterator[slice]:
    """Cut ``count`` pipelines of ``size`` operations into parts that are timed at once."""
    step = max(AT_ONCE // size, 1)
    return (slice(first, first + step) for first in range(0, count, step))


def simulate(forward: Floats, backward: Floats, plan: Plan) -> Simulation:
    """Every pass of pipelines, from times (..., micro_batches, chunks, stages): for a drawing of one rank.

    Without ``level``, which is a factor on the whole.
    """
    order = _order(plan, forward.shape[-3])
    parts = (plan.chunks, plan.stages)
    shares = [np.broadcast_to(x, parts) for x in (plan.weight_share, plan.pair_share)]
    if forward.shape[-2] != order.chunks:  # each device holds two stages: the model is there twice
        forward, backward = (x[..., 0, order.part] for x in (forward, backward))
        shares = [x[0, order.part] for x in shares]
    weight = backward * shares[0]
    pair = (forward + backward) * shares[1] if plan.pairs else None
    return run(order, Times(forward, backward - weight, weight, pair, plan.comm_s, by_micro_batch=True))


def _order(plan: Plan, micro_batches: int) -> Order:
    return build(plan.schedule, plan.stages, micro_batches, plan.chunks if plan.chunks > 1 else None)


def met(times: Floats, plan: Plan) -> Floats:
    """Keep one row, the longest times, of ranks that meet in layers; (..., ranks, micro_batches, chunks, stages).

    Where ranks meet at gradients only, each is a row of its own.
    """
    if plan.meets == "gradients":
        return times
    ranks, rest = times.shape[-4], times.shape[-3:]
    split: Floats = times.reshape(*times.shape[:-4], -1, plan.group or ranks, *rest)
    slowest: Floats = split.max(axis=-4)
    return slowest


def checked_times(forward_s: ArrayLike, backward_s: ArrayLike, plan: Plan, by_part: bool) -> tuple[Any, Any]:
    """Return times as (..., ranks, micro_batches, chunks, stages), or raise what is wrong with them and the plan."""
    parts = (plan.chunks, plan.stages)
    read = [_read("forward_s", forward_s, plan, by_part), _read("backward_s", backward_s, plan, by_part)]
    problems = [fault for _, fault in read if fault]
    forward, backward = (times for times, _ in read)
    if not problems and forward.shape != backward.shape:
        problems.append(Problem("backward_s", backward.shape, f"must have forward_s's shape {forward.shape}"))
    problems += [
        Problem(
            name, np.shape(share), f"must be one number, or (chunks, stages) = {parts}", "one number works"
        )
        for name, share in (("weight_share", plan.weight_share), ("pair_share", plan.pair_share))
        if np.shape(share) not in ((), parts)
    ]
    if problems:
        raise InputError(problems)
    if not by_part:
        forward, backward = (
            np.broadcast_to(x[..., None, None] / plan.chunks, (*x.shape, *parts)) for x in (forward, backward)
        )
    ranks = forward.shape[-4]
    if plan.group is not None and ranks % plan.group:
        rule = f"ranks that meet in layers must divide the {ranks} data-parallel ranks"
        raise InputError([Problem("group", plan.group, rule, f"{ranks} works")])
    return forward, backward


def _read(name: str, values: ArrayLike, plan: Plan, by_part: bool) -> tuple[Floats, Problem | None]:
    """Positive times in an array of the right shape, and what is wrong with them."""
    parts = (plan.chunks, plan.stages) if by_part else ()
    try:
        raw = np.asarray(values)
    except ValueError:
        return np.zeros(0), Problem(
            name, "lists of unlike lengths", "every rank takes equally many micro-batches"
        )
    if raw.dtype.kind not in "iuf":
        return np.zeros(0), Problem(name, values, "must be times in seconds", "[[1.0, 2.0]] works")
    times = raw.astype(np.float64)
    if times.ndim < 2 + len(parts) or 0 in times.shape or (by_part and times.shape[-2:] != parts):
        rest = f", {plan.chunks} chunks, {plan.stages} stages" if by_part else ""
        return times, Problem(name, times.shape, f"its shape must end in (ranks, micro_batches{rest})")
    wrong = np.flatnonzero(~(np.isfinite(times) & (times > 0)).ravel())
    if wrong.size:
        where = tuple(int(i) for i in np.unravel_index(wrong[0], times.shape))
        return times, Problem(name, float(times[where]), f"must be a positive time (at {where})")
    return times, None
