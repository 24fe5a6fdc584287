"""One family of errors: what was wrong, where, by which rule, and what would work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
        path = ".".join(str(part) for part in (prefix, *item["loc"]) if part != "")
        if isinstance(inner, InputError):
            problems += inner.problems
            continue
        value = "missing" if item["type"] == "missing" else item["input"]
        problems.append(Problem(path or prefix, value, _rule(item)))
    return InputError(problems, source)


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
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
