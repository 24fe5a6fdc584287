"""What a reader could not read: collected with its place, never fatal to the rest of the file or folder."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telekit.documents import regular_size
from telekit.errors import InputError, bad

MAX_JSON_BYTES = 256_000_000
"""A larger JSON file is refused: parsed it would take some 2 GB of memory."""
MAX_PROBLEMS = 1000
"""Problems listed one by one; further ones are counted only."""


@dataclass(frozen=True)
class ReadProblem:
    """One thing that was not read, or was read with a doubt.

    Parameters
    ----------
    file : str
        The file it stands in.
    place : str
        Where in the file: a line, a byte, a key path, a member's name.
    what : str
        What is wrong, and what was done about it.
    lost : bool
        Whether tensors were left out for it: what is left may not be all that there was.
    """

    file: str
    place: str
    what: str
    lost: bool = False

    def __str__(self) -> str:
        """One line: file, place, what."""
        return f"{self.file}: {self.place}: {self.what}" if self.place else f"{self.file}: {self.what}"


class Problems:
    """A bounded list of :class:`ReadProblem`; ``total`` counts those beyond the bound too."""

    def __init__(self) -> None:
        self._kept: list[ReadProblem] = []
        self.total = 0
        self._lost = False

    def add(self, file: str | Path, place: str, what: str, *, lost: bool = False) -> None:
        """Note one problem; ``lost`` where tensors were left out for it."""
        self.total += 1
        self._lost |= lost
        if len(self._kept) < MAX_PROBLEMS:
            self._kept.append(ReadProblem(str(file), shown(place), what, lost))

    def refused(self, file: str | Path, error: InputError, *, lost: bool = True) -> None:
        """Note a file that was refused as a whole, with each of its reasons; ``lost`` as in `add`."""
        for problem in error.problems:
            value = f" = {shown(problem.value, 80)}"
            self.add(file, f"{problem.field}{value}", problem.rule, lost=lost)

    def __iter__(self) -> Iterator[ReadProblem]:
        return iter(self._kept)

    def __len__(self) -> int:
        return self.total

    def listed(self) -> tuple[ReadProblem, ...]:
        """Return the problems kept, and one that says how many more there were."""
        more = self.total - len(self._kept)
        last = (ReadProblem("", "", f"{more:,} more problems are not listed", self._lost),) if more else ()
        return (*self._kept, *last)


def shown(text: Any, limit: int = 200) -> str:
    """Return text from a file as one printable line of bounded length."""
    try:
        plain = text if isinstance(text, str) else reprlib.repr(text)  # bounded: lists may hold themselves
    except ValueError:  # an integer of more digits than Python prints
        plain = "a number of thousands of digits"
    if not plain.isprintable():
        plain = repr(plain)
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def read_json(path: Path, problems: Problems, *, lost: bool = False) -> Any:
    """Parse a JSON file; ``NaN`` and ``Infinity`` are read, of a repeated key the first value is kept and it is noted.

    ``lost`` says whether tensors are lost with a value that is left out.

    Raises
    ------
    InputError
        Missing, not a regular file, too large, not UTF-8, malformed (with line and column) or nested too deep.
    """
    size = regular_size(path)
    if size > MAX_JSON_BYTES:
        raise bad("file", f"{size:,} bytes", f"is too large: at most {MAX_JSON_BYTES:,} bytes of JSON are read",
                  source=str(path))  # fmt: skip
    return parse_json(path.read_bytes(), path, problems, lost=lost)


def parse_json(content: bytes, path: Path, problems: Problems, *, lost: bool = False) -> Any:
    """Parse JSON already read from ``path``, as :func:`read_json` does."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                problems.add(path, f"key {shown(key)}", "stands twice: the first is kept", lost=lost)
            else:
                found[key] = value
        return found

    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise bad("byte", error.start, "is not UTF-8 text", source=str(path)) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise bad("JSON", where, error.msg, source=str(path)) from None
    except RecursionError:
        raise bad("JSON", "text", "is nested too deep", source=str(path)) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise bad("JSON", "a number", str(error), source=str(path)) from None


def inside(path: Path, root: Path) -> bool:
    """Whether a path, with all links followed, is still in ``root``."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def plain_name(name: Any, folder: Path) -> str:
    """Return a file name that someone else wrote, if it is one plain name: nothing absolute, no folder, no parent."""
    if not isinstance(name, str) or not name or len(name) > 255 or not name.isprintable():
        raise bad("file name", shown(name, 60), "is not a plain file name", source=str(folder))
    if name in (".", "..") or any(mark in name for mark in ("/", "\\", ":")):
        raise bad(
            "file name", name, "names another folder; only files beside it are opened", source=str(folder)
        )
    return name


def beside(root: Path, folder: str, name: Any) -> Path:
    """Return the file ``name`` in ``folder`` of ``root``, where ``name`` was written by someone else.

    Raises
    ------
    InputError
        It is not one plain file name, or it or the folder is a link out of ``root``.
    """
    path = root / folder / plain_name(name, root / folder)
    if not inside(path, root):
        raise bad(
            "file name", path.name, "is a link out of the dump and is not followed", source=str(path.parent)
        )
    return path
