"""Raw records of ``data/`` by name: facts with their source, read as they stand."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from telekit.errors import bad
from telekit.units import either


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


ALIASES = {f"llama-3-{size}": f"llama-3.1-{size}" for size in ("8b", "70b", "405b")}
"""Names that mean another record: Llama 3 and 3.1 differ in no shape."""


def found(name: str, known: Collection[str]) -> str | None:
    """Return the one of some names that is meant: without regard to case, and with ``_`` or a space for ``-``."""
    if name in known:
        return name
    plain = _plain(name)
    plain = ALIASES.get(plain, plain)
    return next((one for one in known if _plain(one) == plain), None)


def suggested(name: str, known: Collection[str], all_of_them: str = "") -> str:
    """Say which names may be meant: those that begin with it, else hold it, else are spelled like it.

    Parameters
    ----------
    name : str
        What stands there.
    known : collection of str
        Names that there are.
    all_of_them : str
        What to say where none is like it; by default all are listed.
    """
    asked = _squeezed(name)
    by_letters = {_squeezed(k): k for k in known}
    begins = [k for letters, k in by_letters.items() if asked and letters.startswith(asked)]
    holds = [k for letters, k in by_letters.items() if len(asked) > 1 and asked in letters]
    like = difflib.get_close_matches(asked, by_letters, n=3, cutoff=0.6)
    close = (begins or holds or [by_letters[letters] for letters in like])[:FEW]
    return f"did you mean {either(close)}?" if close else all_of_them or f"known: {', '.join(known)}"


def _plain(name: str) -> str:
    return re.sub("[ _]+", "-", name.strip().lower())


def _squeezed(name: str) -> str:
    """Letters and digits alone: ``Llama3 8B`` and ``llama-3-8b`` are spelled alike."""
    return re.sub("[^a-z0-9]", "", name.lower())


def record(kind: str, name: str) -> dict[str, Any]:
    """Return one record by its catalog name (:func:`found` says what counts as it).

    Raises
    ------
    InputError
        When there is no such name; names like it are suggested.
    """
    known = names(kind)
    meant = found(name, known)
    if meant is None:
        everything = f"`telekit {kind}` lists all {len(known)}" if len(known) > FEW else ""
        rule = f"not a name in the catalog of {kind}, nor a path that exists"
        raise bad(kind.rstrip("s"), name, rule, suggested(name, known, everything))
    content: dict[str, Any] = load(root() / kind / f"{meant}.json")
    return content


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def load(path: Path) -> Any:
    """Parse one shipped JSON file (a fresh object each time)."""
    return json.loads(_text(path))
