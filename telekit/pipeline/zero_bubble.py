"""Zero-bubble orders with one chunk a device: ZB-H1 and ZB-H2 by hand, ZB-1p and ZB-2p searched.

The backward is split: B makes the gradient of the inputs, which the stage before waits for; W makes the
gradient of the weights, which nobody waits for, so that it fills what would be a bubble. What W needs of a
micro-batch's activations stays until it has run.

Source: arXiv 2401.10241, sections 2 (hand-made) and 3.1 (automatic).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from telekit.errors import InputError, Problem
from telekit.pipeline.case import make_case
from telekit.pipeline.numbers import faults
from telekit.pipeline.order import Ints, Op
from telekit.pipeline.rounds import best_by_rounds
from telekit.pipeline.rule_orders import by_rules
from telekit.pipeline.sizes import MAX_LISTED
from telekit.pipeline.times import Times
from telekit.pipeline.writing import B, F, Pass, W, Work, Writer, line_parts, make_work

_OPERATIONS_BY_RULES = 400_000
"""Most operations of all rules' orders together, some seconds; one order is always written."""
WEIGHT_SHARE_OF_PAPER = 32 / 74
"""Share of a layer's activations that W needs: ``32 s b h`` of ``s b h (34 + 5 a s / h)`` (arXiv 2401.10241,
table 1), for its models with ``a s / h = 8``. With flash attention, which keeps no scores, it is 32 / 34."""


def zb_h1(stages: int, micro_batches: int) -> tuple[list[list[Op]], Ints]:
    """ZB-H1: 1F1B, where W runs as many backwards late as there are stages before.

    All devices hold as many micro-batches as 1F1B's first, and the bubble is ``(p - 1)(F + B - W)``.

    Parameters
    ----------
    stages, micro_batches : int
        Devices, micro-batches of a step; any numbers from 1.

    Returns
    -------
    operations : list (stages,) of list of Op
        What each device runs.
    part : array (1, stages)
        Device d is part d.
    """
    return _by_hand(stages, micro_batches, _h1)


def zb_h2(stages: int, micro_batches: int) -> tuple[list[list[Op]], Ints]:
    """ZB-H2: nearly twice as many forwards in the warm-up, and W twice as late.

    Bubble ``(p - 1)(F + B - 2 W)`` for ``2 p - 1`` micro-batches held, from that many micro-batches on. The
    last device ends ``p - 1`` forwards after the first: the bubble is in a device's own span. Otherwise as
    :func:`zb_h1`.
    """
    return _by_hand(stages, micro_batches, _h2)


def zb_1p(
    stages: int,
    micro_batches: int,
    times: Times | None = None,
    limit: int | Sequence[int] | None = None,
    weight_share: float = 1.0,
) -> tuple[list[list[Op]], Ints]:
    """ZB-1p: the shortest order found that holds no more micro-batches than there are stages.

    Never longer than :func:`zb_h1`'s order, and than :func:`zb_h2`'s where that fits the limit; under a limit
    below the number of stages also not than the rules of :mod:`telekit.pipeline.rule_orders`. Of equally
    long orders the one with the shorter spans is kept, then the one that holds less.

    Parameters
    ----------
    stages, micro_batches : int
        Devices, micro-batches of a step; any numbers from 1.
    times : Times, optional
        One duration set, ``(1, stages)``, for which the order is made: also of single micro-batches, and with
        communication. All halves 1 when nothing is said.
    limit : int or sequence (stages,), optional
        Most micro-batches that a device may hold, instead of ``stages``.
    weight_share : float
        What of a micro-batch's activations W needs: they count so much from the end of B on, and the rest is
        let go. 1 is safe, and enough for the paper's rates of ZB-1p.

    Returns
    -------
    operations, part
        As :func:`zb_h1`.

    Raises
    ------
    InputError
        For sizes or limits below 1, a share outside 0 to 1, or times that do not fit.
    """
    return _searched(stages, micro_batches, times, stages if limit is None else limit, weight_share)


def zb_2p(
    stages: int,
    micro_batches: int,
    times: Times | None = None,
    limit: int | Sequence[int] | None = None,
    weight_share: float | None = None,
) -> tuple[list[list[Op]], Ints]:
    """ZB-2p: as :func:`zb_1p`, but activations of twice as many micro-batches as stages may be held.

    They are counted as the paper counts them, with :data:`WEIGHT_SHARE_OF_PAPER` between B and W, unless
    ``limit`` or ``weight_share`` says otherwise; under a ``limit``, all of them stay until W has run. Where F and
    B take longer than W this matters: with all of them held to the end of W, no order within ``2 p`` comes near
    the paper's bubble.
    """
    if weight_share is None:
        weight_share = WEIGHT_SHARE_OF_PAPER if limit is None else 1.0
    return _searched(stages, micro_batches, times, 2 * stages if limit is None else limit, weight_share)


def _h1(stages: int, device: int) -> tuple[int, int]:
    """Count the forwards before the first B, and the backwards by which W is late."""
    return stages - device, device


def _h2(stages: int, device: int) -> tuple[int, int]:
    return 2 * (stages - device) - 1, 2 * device


_Hand = Callable[[int, int], tuple[int, int]]


def _by_hand(stages: int, micro_batches: int, hand: _Hand) -> tuple[list[list[Op]], Ints]:
    writer = Writer(make_work(line_parts, stages, micro_batches, most=MAX_LISTED), [micro_batches] * stages)
    writer.follow(_hand_lines(stages, micro_batches, hand))
    return writer.operations(), line_parts(stages)


def _hand_lines(stages: int, micro_batches: int, hand: _Hand) -> list[list[Pass]]:
    """Warm-up; then a B, a W once those that are to be late are late, and a forward; then the other Ws."""
    lines = []
    for s in range(stages):
        lead, late = hand(stages, s)
        line = [(F, s, i) for i in range(min(lead, micro_batches))]
        for i in range(micro_batches):
            line.append((B, s, i))
            if i >= late:
                line.append((W, s, i - late))
            if i + lead < micro_batches:
                line.append((F, s, i + lead))
        line += [(W, s, i) for i in range(max(micro_batches - late, 0), micro_batches)]
        lines.append(line)
    return lines


def _searched(
    stages: int, micro_batches: int, times: Times | None, limit: int | Sequence[int], weight_share: float
) -> tuple[list[list[Op]], Ints]:
    work = make_work(line_parts, stages, micro_batches, times)
    limits = _checked_limits(stages, limit, weight_share)
    known = [_hand_lines(stages, micro_batches, hand) for hand in (_h1, _h2)]
    if min(limits) < min(stages, micro_batches):
        known.append(_by_rules(stages, micro_batches, times, limits))
    best = best_by_rounds(work, limits, weight_share, _warm_ups(work, limits), known)
    return best.operations(), line_parts(stages)


def _by_rules(stages: int, micro_batches: int, times: Times | None, limits: list[int]) -> list[list[Pass]]:
    """Shortest of some rules' orders: rounds that fill 1F1B's warm-up run poorly where less may be held."""
    one = np.ones((1, stages))
    case = make_case(line_parts(stages), micro_batches, times or Times(one, one, one), limits)
    best = min(by_rules(case, most=_OPERATIONS_BY_RULES / len(case.duration)), key=case.makespan)
    return [[(*divmod(n // micro_batches, stages), n % micro_batches) for n in line] for line in best]


def _checked_limits(stages: int, limit: int | Sequence[int], weight_share: float) -> list[int]:
    problems = []
    unread = faults("limit", limit) + faults("weight_share", weight_share)
    if unread:
        raise InputError(unread)
    limits = np.atleast_1d(np.asarray(limit))
    if limits.shape not in ((1,), (stages,)):
        problems.append(
            Problem("limit", limits.shape, f"must be one number, or {stages}", "one number works")
        )
    elif not (limits.dtype.kind in "iu" and (limits >= 1).all()):
        rule = "a device holds at least the micro-batch that it works on: whole numbers from 1"
        problems.append(Problem("limit", limit, rule, f"limit {stages} works"))
    if not 0 <= weight_share <= 1:
        problems.append(Problem("weight_share", weight_share, "must be 0 to 1", "weight_share 1 works"))
    if problems:
        raise InputError(problems)
    return [int(most) for most in np.broadcast_to(limits, (stages,))]


def _warm_ups(work: Work, limits: list[int]) -> Iterator[list[list[int]]]:
    """Fill the wait for the first B with forwards that end, or that begin, before it could start.

    Never fewer than 1F1B has, where the limit allows them; never more than on the device before.
    """
    most = [min(limit, work.micro_batches) for limit in limits]
    least = [min(n, work.stages - s) for s, n in enumerate(most)]
    for to_the_end in (False, True):
        counts = _counts(work, least, most, to_the_end)
        for s in range(1, work.stages):
            counts[s] = min(counts[s], counts[s - 1], max(counts[s - 1] - 1, least[s]))
        yield [[0] * count for count in counts]


def _counts(work: Work, least: list[int], most: list[int], to_the_end: bool) -> list[int]:
    """Count the forwards that fit into each device's wait for its first B; ``to_the_end``, one that overlaps."""
    forward, backward = work.duration[F], work.duration[B]
    first, counts = [0.0], []
    for s in range(work.stages):
        first.append(first[-1] + work.lag[s] + forward[s][0])
    arrival = first[-1]
    for s in range(work.stages - 1, -1, -1):
        now, count = first[s + 1], 1
        while count < most[s]:
            end = now + forward[s][count]
            if count >= least[s] and (now >= arrival if to_the_end else end > arrival):
                break
            now, count = end, count + 1
        counts.append(count)
        arrival = max(arrival, now) + backward[s][0] + work.lag[s]
    return counts[::-1]
