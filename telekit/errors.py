"""One family of errors: what was wrong, where, by which rule, and what would work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class TelekitError(Exception):
    """Anything telekit refuses to do; its text is meant for a person."""


@dataclass(frozen=True)
class Problem:
    """One broken rule.

    Parameters
    ----------
    field : str
        Where, as a dotted path (``layout.tp``).
    value : object
        What stood there.
    rule : str
        The rule it breaks, in words.
    suggestion : str
        A value that would work, or nothing when none can be named.
    """

    field: str
    value: Any
    rule: str
    suggestion: str = ""

    def __str__(self) -> str:
        """One line: field, value, rule, and what would work."""
        hint = f"; {self.suggestion}" if self.suggestion else ""
        return f"{self.field} = {_short(self.value)}: {self.rule}{hint}"

    def to_dict(self) -> dict[str, str]:
        """Strings only, fit for JSON."""
        return asdict(self) | {"value": _short(self.value)}


class InputError(TelekitError, ValueError):
    """Bad input; ``problems`` lists every broken rule, not only the first.

    Parameters
    ----------
    problems : iterable of Problem
        What is wrong.
    source : str
        The file or object the input came from.
    """

    def __init__(self, problems: Iterable[Problem], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [str(p) for p in self.problems]
        head = f"{self.source}: " if self.source else ""
        if len(lines) == 1:
            return head + lines[0]
        return f"{head}{len(lines)} problems\n" + "\n".join(f"  - {line}" for line in lines)

    def within(self, source: str) -> InputError:
        """Return the same problems, said to come from ``source``."""
        return InputError(self.problems, source)


def bad(field: str, value: Any, rule: str, suggestion: str = "", source: str = "") -> InputError:
    """Make an error of one problem."""
    return InputError([Problem(field, value, rule, suggestion)], source)


def from_pydantic(error: ValidationError, prefix: str = "", source: str = "") -> InputError:
    """Turn pydantic's list of failures into ours, one problem a failure.

    Parameters
    ----------
    error : pydantic.ValidationError
        What the door refused.
    prefix : str
        Path of the object that was read (``layout``).
    source : str
        File it came from.
    """
    problems: list[Problem] = []
    for item in error.errors():
        inner = item.get("ctx", {}).get("error")
        unknown = item["type"] == "extra_forbidden"  # then the last step is what a person wrote
        steps = [s for s in item["loc"] if not _is_choice(s) or (unknown and s is item["loc"][-1])]
        path = ".".join(str(step) for step in (prefix, *steps) if step != "")
        if isinstance(inner, InputError):
            problems += inner.problems
            continue
        value = "missing" if item["type"] == "missing" else item["input"]
        problems.append(Problem(path or prefix, value, _rule(item)))
    return InputError(_joined(problems), source)


def _is_choice(part: Any) -> bool:
    """Tell whether a step of pydantic's path names one of several allowed types, not a field."""
    return isinstance(part, str) and ("[" in part or "-" in part)


def _joined(problems: list[Problem]) -> list[Problem]:
    """Join what pydantic says of each allowed type of one field into one problem."""
    found: dict[str, Problem] = {}
    for problem in problems:
        old = found.get(problem.field)
        if old is not None and problem.rule not in old.rule:
            problem = replace(old, rule=f"{old.rule}, or {problem.rule}")
        found[problem.field] = problem if old is None or problem.rule != old.rule else old
    return list(found.values())


def _rule(item: Any) -> str:
    kind, ctx = item["type"], item.get("ctx", {})
    match kind:
        case "missing":
            return "this field is required"
        case "extra_forbidden":
            return "no such field"
        case "literal_error":
            return f"must be one of {ctx['expected']}"
        case _:
            text = str(item["msg"])
            return text[0].lower() + text[1:]


def _short(value: Any, limit: int = 60) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a number of thousands of digits"
    if not text.isprintable():
        text = repr(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
