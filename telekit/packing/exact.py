"""The best assignment of a small batch, and what is proved of a large one.

The fast policy goes first. Where it meets the bound nothing is left to prove; else the integer program
(:mod:`telekit.packing.program`) is asked for something better, with its work bounded from both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike

from telekit.errors import bad
from telekit.packing.balance import Assignment, assignment, balanced, longest_first
from telekit.packing.inputs import checked_ranks, checked_work
from telekit.packing.program import MOST_CELLS, Program, solve

TOLERANCE = 1e-6
"""Relative: HiGHS' own, within which an assignment counts as proved best."""


@dataclass(frozen=True)
class Proof:
    """What is known of an assignment.

    Parameters
    ----------
    status : {"optimal", "time limit", "too large"}
        Proved best; stopped by the time limit; more samples times ranks than the program takes, so only bounded.
    bound : float
        No assignment has a busiest rank below it.
    gap : float
        How far the assignment is above the bound, as a share of it.
    """

    status: Literal["optimal", "time limit", "too large"]
    bound: float
    gap: float


def optimal(
    work: ArrayLike, ranks: int, per_rank: int | None = None, time_limit_s: float = 10.0
) -> tuple[Assignment, Proof]:
    """Best assignment, or the best found in the time, with what is proved of it.

    Parameters
    ----------
    work, ranks, per_rank
        As :func:`telekit.packing.balance.lower_bound`.
    time_limit_s : float
        Wall time of the integer program.

    Returns
    -------
    Assignment, Proof
        Never worse than :func:`telekit.packing.balance.balanced`; the assignment's ``bound`` is the proof's.

    Raises
    ------
    InputError
        As :func:`telekit.packing.balance.lower_bound`; for a time limit that is not positive.
    """
    if not (isinstance(time_limit_s, (int, float)) and time_limit_s > 0 and math.isfinite(time_limit_s)):
        raise bad("time_limit_s", time_limit_s, "must be a positive number of seconds", "10 works")
    found = checked_work(work)
    checked_ranks(found.size, ranks, per_rank)
    tries = (rule(found, ranks, per_rank) for rule in (balanced, longest_first))
    best = min(tries, key=lambda each: each.largest)
    if best.largest <= best.bound * (1 + TOLERANCE):
        return best, Proof("optimal", best.bound, best.gap)
    if found.size * ranks > MOST_CELLS:
        return best, Proof("too large", best.bound, best.gap)
    answer = solve(Program(found, ranks, per_rank, least=best.bound, most=best.largest), time_limit_s)
    bound = max(best.bound, min(answer.bound, best.largest))
    rank = best.rank
    if answer.rank is not None:
        other = assignment(answer.rank, found, ranks, bound)
        rank = other.rank if other.largest < best.largest else rank
    if answer.infeasible:  # nothing within what is known: it is the best
        bound = best.largest
    best = assignment(rank, found, ranks, bound)
    status: Literal["optimal", "time limit"] = "optimal" if best.gap <= TOLERANCE else "time limit"
    return best, Proof(status, bound, best.gap)
