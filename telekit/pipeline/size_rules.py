"""Raising what :mod:`telekit.pipeline.sizes` finds, for the generators whose orders are lists."""

from __future__ import annotations

from collections.abc import Sequence

from telekit.errors import InputError
from telekit.pipeline.sizes import MAX_LISTED, broken
from telekit.pipeline.sizes import Rule as Rule
from telekit.pipeline.sizes import Sizes as Sizes


def raise_broken(rules: Sequence[Rule], most: int = MAX_LISTED, **sizes: int) -> None:
    """Raise an InputError of every size that breaks a rule, is no count, or makes too many operations."""
    problems = broken(sizes, rules, most)
    if problems:
        raise InputError(problems)
