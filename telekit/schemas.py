"""What a schema takes, in plain words: the values of a field, and the fields of a nested record."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from telekit.units import either

Bounds = dict[str, Any]

KEY = "[key]"
"""Step from a mapping to what its keys are, as pydantic writes it."""

_LIMITS = ("gt", "ge", "le", "min_length", "max_length")
_NUMBERS = {int: ("a whole number", "whole numbers"), float: ("a number", "numbers")}
_PLAIN = {bool: "true or false", str: "text", type(None): "null", None: "null"}


def field_at(kind: Any, path: Iterable[Any]) -> Any:
    """Type of the field that a path leads to, with its bounds; None where no schema says it.

    Parameters
    ----------
    kind : type
        Schema to start from, or the type of any field.
    path : iterable of str or int
        Names of fields, keys of mappings and places in lists.
    """
    for step in path:
        found = (_inside(part, step) for part, _ in _parts(kind))
        kind = next((inner for inner in found if inner is not None), None)
        if kind is None:
            return None
    return kind


def fields_of(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a record, or of the first record among several types; none for any other type."""
    return next((tuple(part.model_fields) for part, _ in _parts(kind) if _is_record(part)), ())


def takes_number(kind: Any) -> bool:
    """Whether a number is among the values of a type."""
    return any(part in _NUMBERS for part, _ in _parts(kind))


def values(kind: Any, *, many: bool = False) -> str:
    """Say which values a type takes: ``a whole number from 1 to 8``, ``none, full or a list of core_attn or moe``.

    Parameters
    ----------
    kind : type
        Any type that a field may have.
    many : bool
        Whether several of them are spoken of: ``whole numbers from 1 to 8``.
    """
    parts = _parts(kind)
    choices = [str(value) for part, _ in parts if get_origin(part) is Literal for value in get_args(part)]
    words = [_words(part, bounds, many) for part, bounds in parts if get_origin(part) is not Literal]
    return either([*choices, *words])


def _words(kind: Any, bounds: Bounds, many: bool) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _NUMBERS:
        return _NUMBERS[kind][many] + _range(bounds)
    if kind in _PLAIN:
        return _PLAIN[kind] + (" that is not empty" if kind is str and bounds.get("min_length") else "")
    if _is_record(kind):
        return f"{'mappings' if many else 'a mapping'} with the fields {', '.join(kind.model_fields)}"
    if origin is dict:
        inner = f"{values(arguments[0])} to {values(arguments[1])}"
        return f"{'mappings' if many else 'a mapping'} of {_length(bounds)}{inner}"
    if origin in (tuple, list):
        return f"{'lists' if many else 'a list'} of {_length(bounds)}{values(arguments[0], many=True)}"
    return "another value"


def _range(bounds: Bounds) -> str:
    low, high, above = (bounds.get(name) for name in ("ge", "le", "gt"))
    if above is not None:
        return f" above {_number(above)}" + ("" if high is None else f" and up to {_number(high)}")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    return (
        f" from {_number(low)} on"
        if low is not None
        else f" up to {_number(high)}"
        if high is not None
        else ""
    )


def _length(bounds: Bounds) -> str:
    low, high = bounds.get("min_length"), bounds.get("max_length")
    return f"{low or 0} to {high} " if high is not None else f"{low} or more " if low else ""


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _parts(kind: Any, bounds: Bounds | None = None) -> list[tuple[Any, Bounds]]:
    """Types that a field allows, each without its annotations and with the bounds that they held."""
    bounds = dict(bounds or {})
    while get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        limits = [limit for note in notes for limit in (note, *getattr(note, "metadata", ()))]
        bounds |= {name: getattr(limit, name) for limit in limits for name in _LIMITS if hasattr(limit, name)}
    if get_origin(kind) in (Union, types.UnionType):
        return [found for choice in get_args(kind) for found in _parts(choice, bounds)]
    return [(kind, bounds)]


def _inside(kind: Any, step: Any) -> Any:
    """Type one step into a record, a mapping or a list; None where the step does not lead into it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if _is_record(kind):
        field = kind.model_fields.get(step) if isinstance(step, str) else None
        return field and (
            Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        )
    if origin is dict and isinstance(step, str):
        return arguments[0 if step == KEY else 1]
    return arguments[0] if origin in (tuple, list) and isinstance(step, int) else None


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
