"""What a standard answers: a result, and every part that led to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PASS, WARNING, ERROR, SKIP = "pass", "warning", "error", "skip"
_RANK = {SKIP: 0, PASS: 1, WARNING: 2, ERROR: 3}


@dataclass(frozen=True)
class Part:
    """One rule of a standard.

    Attributes
    ----------
    name : str
        What was looked at.
    value : object
        What was found; None where it is not defined.
    rule : str
        What passes, in words (``> 0.99``).
    result : str
        ``pass``, ``warning``, ``error``, or ``skip`` where the rule does not apply.
    note : str
        Anything a reader should know: why it was skipped, where the worst element is.
    own : bool
        Whether the rule is telekit's, beside those of the standard: it counts in the verdict, and not in the column
        ``Result`` of msprobe's table.
    """

    name: str
    value: Any
    rule: str
    result: str
    note: str = ""
    own: bool = False


@dataclass(frozen=True)
class Verdict:
    """The answer of one standard: the worst of its parts, and the parts.

    ``result`` is ``skip`` when no part applied. ``source`` says whose standard it is.
    """

    result: str
    parts: tuple[Part, ...]
    standard: str
    source: str
    messages: tuple[str, ...] = ()

    @property
    def by_standard(self) -> str:
        """The worst of the standard's own parts: what it says where telekit adds nothing."""
        return worst(p.result for p in self.parts if not p.own)

    @property
    def passed(self) -> bool:
        """Whether nothing failed; a warning does not fail."""
        return self.result != ERROR

    def part(self, name: str) -> Part:
        """Return the part of that name; KeyError if there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)


def worst(results: Iterable[str]) -> str:
    """Return the worst of several results: error, warning, pass, then skip."""
    return max(results, key=_RANK.__getitem__, default=SKIP)


def check(
    name: str, value: Any, passes: bool, rule: str, *, level: str = ERROR, note: str = "", own: bool = False
) -> Part:
    """Make a part that passes, or fails with ``level``; ``own`` as in `Part`."""
    return Part(name, value, rule, PASS if passes else level, note, own)


def skipped(name: str, rule: str, note: str) -> Part:
    """Make a part that does not apply."""
    return Part(name, None, rule, SKIP, note)


def conclude(parts: Iterable[Part], standard: str, source: str, messages: Iterable[str] = ()) -> Verdict:
    """Join parts into a verdict."""
    found = tuple(parts)
    return Verdict(worst(p.result for p in found), found, standard, source, tuple(messages))
