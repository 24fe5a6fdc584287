"""One family of errors: what was wrong, where, by which rule, and what would work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


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


def from_pydantic(
    error: ValidationError, prefix: str = "", source: str = "", kind: type[BaseModel] | None = None
) -> InputError:
    """Turn pydantic's list of failures into ours, one problem a field.

    Parameters
    ----------
    error : pydantic.ValidationError
        What the door refused.
    prefix : str
        Path of the object that was read (``layout``).
    source : str
        File it came from.
    kind : type or None
        Schema that refused it: then a problem says what its field takes, and what a field is named here.
    """
    ours: list[Problem] = []
    found: dict[str, Problem] = {}
    for item in error.errors():
        inner = item.get("ctx", {}).get("error")
        if isinstance(inner, InputError):
            ours += inner.problems
            continue
        problem = _problem(item, prefix, kind)
        old = found.get(problem.field)  # pydantic fails once for each type that a field may have
        if old is not None and problem.rule not in old.rule:
            problem = replace(old, rule=f"{old.rule}, or {problem.rule}")
        found[problem.field] = problem if old is None or problem.rule != old.rule else old
    deepest = [p for p in found.values() if not any(f.startswith(f"{p.field}.") for f in found)]
    return InputError([*deepest, *ours], source)


def _problem(item: Any, prefix: str, kind: type[BaseModel] | None) -> Problem:
    """Say one failure in plain words."""
    from telekit.schemas import KEY, field_at, takes_number, values

    steps = _steps(item, kind)
    path = ".".join(str(step) for step in (prefix, *steps) if step != "") or prefix
    if item["type"] == "extra_forbidden":
        return Problem(path, item["input"], "no such field", _instead(steps, prefix, kind))
    if item["type"] == "missing":
        return Problem(path, "missing", "this field is required")
    at = [*steps[:-1], KEY] if item["loc"][-1:] == (KEY,) else steps
    wanted = None if kind is None or not at else field_at(kind, at)
    if wanted is None or "error" in item.get("ctx", {}):
        return Problem(path, item["input"], _rule(item))
    quoted = isinstance(item["input"], str) and takes_number(wanted) and _is_number(item["input"])
    return Problem(path, item["input"], f"must be {values(wanted)}", "write it without quotes" * quoted)


def _instead(steps: list[Any], prefix: str, kind: type[BaseModel] | None) -> str:
    """Say what to write instead of an unknown field; nothing where no schema is given."""
    from telekit.other_names import instead_of
    from telekit.schemas import field_at, fields_of

    known = fields_of(field_at(kind, steps[:-1]))
    section = prefix.rpartition(".")[2] if len(steps) == 1 else ""
    return instead_of(str(steps[-1]), known, section) if known else ""


def _steps(item: Any, kind: type[BaseModel] | None) -> list[Any]:
    """Path of a failure, without pydantic's names of the types that a field may have (``tuple[...]``)."""
    from telekit.schemas import field_at

    steps: list[Any] = []
    for step in item["loc"]:
        written = (
            item["type"] == "extra_forbidden" and step is item["loc"][-1]
        )  # then it is what a person wrote
        named = isinstance(step, str) and ("[" in step or "-" in step) and not written
        if not named or ("[" not in step and kind is not None and field_at(kind, [*steps, step]) is not None):
            steps.append(step)
    return steps


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_PLAIN = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping of fields",
    "literal_error": "must be one of {expected}",
    "too_short": "must hold at least {min_length}",
    "too_long": "must hold at most {max_length}",
}
"""Our words for pydantic's kinds of failure, where no schema is at hand."""


def _rule(item: Any) -> str:
    ctx = item.get("ctx", {})
    if item["type"] in _PLAIN:
        return _PLAIN[item["type"]].format(**ctx)
    text = str(ctx.get("error", item["msg"]))
    return text[:1].lower() + text[1:]


def _short(value: Any, limit: int = 60) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a number of thousands of digits"
    if not text.isprintable():
        text = repr(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
