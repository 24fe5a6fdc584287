"""Rules of sizes as data, and for what breaks one the nearest value that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from telekit.errors import InputError, Problem
from telekit.pipeline.sizes import check_sizes

Sizes = Mapping[str, int]
Rule = tuple[str, str, Callable[[Sizes], bool]]
"""Field it is about, its text (sizes in braces), and whether some sizes keep it."""


def raise_broken(rules: Sequence[Rule], **sizes: int) -> None:
    """Raise an InputError of every rule that sizes break, each with the nearest value that keeps all about it.

    Sizes that are not whole, not positive, or together too many to list are named alone.
    """
    known = {name: sizes[name] for name in ("stages", "micro_batches", "chunks", "pieces") if name in sizes}
    problems = check_sizes(**known)
    for name, value in sizes.items():
        if name not in known:
            problems += [
                Problem(name, value, problem.rule, f"{name} {sizes['stages']} works")
                for problem in check_sizes(value, 1)
                if not problems
            ]
    if not problems:
        problems = [
            Problem(field, sizes[field], text.format(**sizes), _nearest(rules, field, sizes))
            for field, text, holds in rules
            if not holds(sizes)
        ]
    if problems:
        raise InputError(problems)


def _nearest(rules: Sequence[Rule], field: str, sizes: Sizes) -> str:
    """Nearest value of a field that keeps all rules about it, the other sizes as they are."""
    mine = [holds for name, _, holds in rules if name == field]
    for distance in range(1, sizes[field] + sizes["micro_batches"] + 2 * sizes["stages"]):
        for value in (sizes[field] - distance, sizes[field] + distance):
            if value >= 1 and all(holds({**sizes, field: value}) for holds in mine):
                return f"{field} {value} works"
    return ""
