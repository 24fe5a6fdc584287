"""Assignments that keep a cap of tokens, and the fewest micro-batches that do."""

from __future__ import annotations

import heapq

import numpy as np

from telekit.errors import bad
from telekit.packing.inputs import Floats, Ints, check_caps, fewest_bound
from telekit.packing.program import MOST_CELLS, Program, solve

SEARCH_S = 5.0
"""Seconds that the integer program may look for an assignment within a cap, after rules of thumb found none."""


def capped(work: Floats, tokens: Floats, bins: int, cap: float, per_bin: int | None = None) -> Ints:
    """Bin of each sample, none above ``cap`` tokens; alike in work as far as a greedy rule gets.

    Work goes first; where that runs out of room, tokens do; and where that does too, an integer program looks.

    Raises
    ------
    InputError
        When there is none, or none was found: the text says which.
    """
    check_caps(tokens, bins, cap)
    for key in (work, tokens):
        found = _least(np.argsort(-key, kind="stable"), key, tokens, bins, cap, per_bin)
        if found is not None:
            return found
    if per_bin is None:
        packed = first_fit_decreasing(tokens, cap)
        if packed.max() < bins:
            return packed
    least = fewest_bound(tokens, cap)
    none, looked = least > bins, tokens.size * bins <= MOST_CELLS
    if not none and looked:
        problem = Program(tokens, bins, per_bin, tokens, cap)
        answer = solve(problem, SEARCH_S)
        if answer.rank is not None:
            return answer.rank
        none = answer.infeasible
    said = "no assignment keeps it" if none else "no assignment that keeps it was found, nor shown to be none"
    count = "" if per_bin is None else f" of {per_bin} samples each"
    rule = f"{said} with {bins} bins{count} for {tokens.sum():.0f} tokens"
    raise bad("cap", cap, rule, f"{first_fit_decreasing(tokens, cap).max() + 1} bins of any count work")


def _least(
    order: Ints, key: Floats, tokens: Floats, bins: int, cap: float, per_bin: int | None
) -> Ints | None:
    """Each sample to the bin of least ``key`` that has room; None where one finds none."""
    found = np.empty(tokens.size, dtype=np.int64)
    heap = [(0.0, b) for b in range(bins)]
    held, left = [0.0] * bins, [per_bin or tokens.size] * bins
    sizes, keys = tokens.tolist(), key.tolist()
    for sample in order.tolist():
        aside = []
        while heap and held[heap[0][1]] + sizes[sample] > cap:
            aside.append(heapq.heappop(heap))
        if not heap:
            return None
        load, b = heapq.heappop(heap)
        found[sample] = b
        held[b] += sizes[sample]
        left[b] -= 1
        if left[b]:
            aside.append((load + keys[sample], b))
        for entry in aside:
            heapq.heappush(heap, entry)
    return found


def first_fit_decreasing(tokens: Floats, cap: float) -> Ints:
    """Bin of each sample, largest first into the first bin with room: at most 11/9 of the fewest and 6/9 more."""
    found = np.empty(tokens.size, dtype=np.int64)
    room = np.full(tokens.size, float(cap))
    for sample in np.argsort(-tokens, kind="stable"):
        b = int(np.argmax(room >= tokens[sample]))
        found[sample] = b
        room[b] -= tokens[sample]
    return found


def fewest(tokens: Floats, cap: float) -> tuple[int, bool]:
    """Fewest bins of ``cap`` tokens, and whether that is proved; else it is the fewest that was found."""
    check_caps(tokens, None, cap)
    most, least = int(first_fit_decreasing(tokens, cap).max()) + 1, fewest_bound(tokens, cap)
    for bins in range(least, most):
        if tokens.size * bins > MOST_CELLS:
            return most, False
        answer = solve(Program(tokens, bins, None, tokens, cap), SEARCH_S)
        if answer.rank is not None:
            return bins, True
        if not answer.infeasible:
            return most, False
    return most, True
