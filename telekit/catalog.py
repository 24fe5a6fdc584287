"""Raw records of ``data/`` by name: facts with their source, read as they stand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from telekit.errors import bad


@cache
def root() -> Path:
    """Folder of the shipped facts: inside an installed package, else beside the checkout's package."""
    package = Path(__file__).parent
    inside = package / "data"
    return inside if inside.is_dir() else package.parent / "data"


@cache
def notebooks() -> Path:
    """Folder of the shipped notebooks."""
    package = Path(__file__).parent
    inside = package / "notebooks"
    return inside if inside.is_dir() else package.parent / "notebooks"


FEW = 12
"""Names that a message lists; more are left to the command that does."""


@cache
def names(kind: str) -> tuple[str, ...]:
    """Names of the records of one kind (``models``, ``clusters``), sorted."""
    return tuple(sorted(path.stem for path in (root() / kind).glob("*.json")))


def record(kind: str, name: str) -> dict[str, Any]:
    """Return one record by its catalog name.

    Raises
    ------
    InputError
        When there is no such name; close names are suggested.
    """
    if name not in names(kind):
        import difflib

        close = difflib.get_close_matches(name.lower(), names(kind), n=3, cutoff=0.5)
        known = names(kind)
        listed = (
            f"known: {', '.join(known)}" if len(known) <= FEW else f"`telekit {kind}` lists all {len(known)}"
        )
        hint = f"did you mean {', '.join(close)}?" if close else listed
        raise bad(
            kind.rstrip("s"), name, f"not a name in the catalog of {kind}, nor a path that exists", hint
        )
    found: dict[str, Any] = load(root() / kind / f"{name}.json")
    return found


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def load(path: Path) -> Any:
    """Parse one shipped JSON file (a fresh object each time)."""
    return json.loads(_text(path))
