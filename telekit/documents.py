"""Read a JSON or YAML file that someone else wrote: bounded, without tags, with the position of a fault."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from telekit.errors import InputError, bad

MAX_BYTES = 10_000_000
"""Larger configuration files are refused: none of the field's is over a few hundred kB."""


class _PlainLoader(yaml.SafeLoader):
    """YAML without tags, anchors or repeated keys: none is needed here, and each is a way to be misled."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases are not read", problem_mark=event.start_mark
            )
        if getattr(event, "tag", None) not in (None, "!"):
            raise yaml.MarkedYAMLError(
                problem=f"the tag {event.tag} is not read", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: Any) -> Any:
        """Read decimal numbers only: YAML 1.1 also reads 010 as 8 and 1:00 as 60."""
        text = self.construct_scalar(node)
        return int(text.replace("_", "")) if _DECIMAL.fullmatch(text) else text

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value} stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def read_document(path: str | Path) -> Any:
    """Parse a ``.json`` file as JSON, anything else as YAML.

    Raises
    ------
    InputError
        Missing, too large, not UTF-8, malformed (with line and column), nested too deep, tagged, or holding NaN.
    """
    text = read_text(path)
    return parse(text, str(path), is_json=Path(path).suffix.lower() == ".json")


def read_text(path: str | Path) -> str:
    """Return a small UTF-8 file's text."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise bad("file", str(path), "cannot be read: it is not a regular file", source=str(path))
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise bad(
                "file", path.name, f"is too large: at most {MAX_BYTES:,} bytes are read", source=str(path)
            )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad("file", path.name, f"is not UTF-8 text (byte {error.start})", source=str(path)) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise bad("file", str(path), f"cannot be read: {reason}", source=str(path)) from None


def regular_size(path: Path) -> int:
    """Return a regular file's size in bytes.

    Raises
    ------
    InputError
        It does not exist, cannot be read, or is no regular file (a pipe would block, a device never ends).
    """
    try:
        if path.exists() and not path.is_file():
            raise bad("file", path.name, "is not a regular file", source=str(path))
        return path.stat().st_size
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise bad("file", path.name, f"cannot be read: {reason}", source=str(path)) from None


def parse(text: str, source: str, *, is_json: bool = False, infinite: bool = False) -> Any:
    """Parse text as JSON or YAML; ``source`` names it in errors.

    ``infinite`` True lets ``Infinity`` and ``NaN`` stand inside lists, as released config files have them; a field
    of its own may still not be one.
    """
    try:
        if is_json:
            constant = None if infinite else _no_constant
            return json.loads(text, parse_constant=constant, object_pairs_hook=_unique)
        return yaml.load(text, Loader=_PlainLoader)
    except json.JSONDecodeError as error:
        raise bad("JSON", f"line {error.lineno}, column {error.colno}", error.msg, source=source) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise bad("YAML", where, error.problem or "malformed", source=source) from None
    except yaml.YAMLError as error:
        raise bad("YAML", "text", str(error).splitlines()[0], source=source) from None
    except RecursionError:
        raise bad("file", source, "is nested too deep", source=source) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise error.within(source) from None
        raise bad("file", source, str(error), source=source) from None


def _no_constant(name: str) -> Any:
    raise bad("JSON", name, "is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise bad("JSON", key, "this key stands twice in one object")
        if isinstance(value, float) and not math.isfinite(value):
            raise bad(key, json.dumps(value), "is not a JSON number")
        found[key] = value
    return found
