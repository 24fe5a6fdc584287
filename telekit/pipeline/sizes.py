"""Sizes that a schedule may be asked for: whole, positive, not too many, and by its own rules.

Every size at fault is named with a value that works, and the values that are named work together: stages are
settled first, then chunks, pieces, micro-batches and groups, each with what was named for those before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from telekit.errors import Problem
from telekit.pipeline.order import MAX_OPERATIONS

MAX_STAGES = 65_536
"""Dependencies run through all stages one after the other: more take minutes."""
MAX_LISTED = 2_000_000
"""Most operations of an order that is written as lists."""
MAX_SEARCHED = 200_000
"""Most operations of an order that is made for given times: some dozens are written and timed."""
_MAX_COUNTED = 100_000_000
"""Most operations times chunks: activations are counted chunk by chunk."""

Sizes = Mapping[str, int]
Rule = tuple[str, str, Callable[[Sizes], bool]]
"""Field it is about, its text (sizes in braces), and whether some sizes keep it."""

_TURNS = ("stages", "chunks", "pieces", "micro_batches", "group_size")
_FACTORS = _TURNS[:4]
_COUNT = "must be a whole number of at least 1"


def check_sizes(
    stages: int, micro_batches: int, chunks: int = 1, pieces: int = 1, most: int = MAX_OPERATIONS
) -> list[Problem]:
    """Name sizes that are not whole, not positive, or make too many operations.

    Counted are a forward and a backward of each micro-batch, chunk and piece; ``most`` may be made.
    """
    sizes = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks, "pieces": pieces}
    return broken(sizes, (), most)


def broken(sizes: Mapping[str, Any], rules: Sequence[Rule], most: int = MAX_OPERATIONS) -> list[Problem]:
    """Name every size that cannot be used, each with the nearest value that works.

    Parameters
    ----------
    sizes : mapping
        ``stages`` and ``micro_batches``; perhaps ``chunks``, ``pieces`` and ``group_size``.
    rules : sequence of Rule
        The schedule's own.
    most : int
        Most operations.
    """
    stages = sizes["stages"]
    ceiling = MAX_STAGES
    first = found = _broken(sizes, rules, most, ceiling)
    while not all(problem.suggestion for problem in found):  # with so many stages nothing works
        ceiling = min(ceiling, stages if _whole(stages) else 2) // 2
        if not ceiling:
            return first
        found = _broken(sizes, rules, most, ceiling)
    return found


def _broken(sizes: Mapping[str, Any], rules: Sequence[Rule], most: int, ceiling: int) -> list[Problem]:
    """Name what cannot be used, with values that work for up to ``ceiling`` stages."""
    fixed = {name: int(value) if _whole(value) else 1 for name, value in sizes.items()}
    asked = dict(fixed)
    _shrink(fixed, most, ceiling)
    found = {}
    for name in (turn for turn in _TURNS if turn in sizes):
        mine = [rule for rule in rules if rule[0] == name]
        rule = _fault(name, sizes[name], asked, fixed, mine, most)
        if rule:
            near = next(_near(name, fixed, [holds for *_, holds in mine], most), None)
            hint = "" if near is None else f"{name} {near} works"
            found[name] = Problem(name, sizes[name], rule, hint)
            fixed[name] = fixed[name] if near is None else near
    return [found[name] for name in sizes if name in found]


def no_count(name: str, value: Any) -> list[Problem]:
    """Name a size that is no whole number of at least 1."""
    return [] if _whole(value) else [Problem(name, value, _COUNT, f"{name} 1 works")]


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1


def _operations(sizes: Sizes) -> int:
    return 2 * math.prod(sizes.get(name, 1) for name in _FACTORS)


def _fits(sizes: Sizes, most: int) -> bool:
    operations = _operations(sizes)
    return operations <= most and operations * sizes.get("chunks", 1) <= _MAX_COUNTED


def _shrink(sizes: dict[str, int], most: int, ceiling: int) -> None:
    """Make the largest sizes smaller until all fit."""
    sizes["stages"] = min(sizes["stages"], ceiling)
    while _operations(sizes) > most:
        name = max((name for name in _FACTORS if name in sizes), key=sizes.__getitem__)
        sizes[name] = max(most // (_operations(sizes) // sizes[name]), 1)
    if not _fits(sizes, most):
        sizes["chunks"] = math.isqrt(_MAX_COUNTED // (_operations(sizes) // sizes["chunks"]))


def _fault(name: str, value: Any, asked: Sizes, fixed: Sizes, mine: Sequence[Rule], most: int) -> str:
    """Say what is wrong with a size; nothing where it works with those before it."""
    if not _whole(value):
        return _COUNT
    if fixed[name] != value:
        operations = _operations(asked)
        if name == "stages" and value > MAX_STAGES:
            return f"the most is {MAX_STAGES:,}"
        if operations > most:
            made = f"{operations:,}" if operations < 10**15 else "more than 10^15"
            return f"makes {made} operations; the most is {most:,}"
        if name == "chunks":
            return f"makes {operations:,} operations, each counted for every chunk; that is too many"
        return f"needs micro-batches that make more operations than the most, {most:,}"
    words = {"pp": fixed["stages"], "twice_pp": 2 * fixed["stages"], "vpp": fixed.get("chunks", 1)}
    return next((text.format(**fixed, **words) for _, text, holds in mine if not holds(fixed)), "")


def _near(name: str, fixed: Sizes, mine: Sequence[Callable[[Sizes], bool]], most: int) -> Iterator[int]:
    """Values of a size that keep all rules about it, the nearest first: rules repeat every ``stages``."""
    start = min(fixed[name], fixed["micro_batches"]) if name == "group_size" else fixed[name]
    reach = 2 * fixed["stages"] + 3
    near = (start + way * distance for distance in range(reach) for way in ((-1, 1) if distance else (1,)))
    for value in (*near, fixed["micro_batches"], *range(1, reach)):
        if value >= 1:
            tried = {**fixed, name: value}
            if _fits(tried, most) and all(holds(tried) for holds in mine):
                yield value
