"""How commands print: tables for a person, JSON for a program, a bar for who waits."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from telekit.errors import TelekitError, bad

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def show(as_json: bool, document: Any, text: Callable[[], None]) -> None:
    """Print the document as JSON, or what ``text`` prints.

    Who stops reading early is no fault: the rest goes nowhere, and the command goes on to its exit code.
    """
    try:
        if as_json:
            plain = "utf" in (sys.stdout.encoding or "").lower()
            print(json.dumps(document, allow_nan=False, indent=1, ensure_ascii=not plain))
        else:
            text()
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
        if isinstance(error, BrokenPipeError):  # who reads has read enough
            return
        raise TelekitError(f"cannot write: {error.strerror}") from None


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under a head; a column called source takes what room is left."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(show_edge=False, pad_edge=False, expand="source" in head)
    for i, name in enumerate(head):
        if name == "source":  # takes what room is left; --json has it whole
            drawn.add_column(name, ratio=1, no_wrap=True, overflow="ellipsis")
        else:
            drawn.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*map(harmless, row))
    Console(file=sys.stdout, highlight=False, markup=False, emoji=False).print(drawn)


def paragraphs(lines: Iterable[str]) -> None:
    """Print each line, folded at the width of the terminal."""
    for line in lines:
        print(textwrap.fill(harmless(line), shutil.get_terminal_size().columns))


def harmless(text: str) -> str:
    """Return text of someone else's file as a terminal may show it: no escape, no control, no lone surrogate."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _controls(c) else c for c in text)


def _controls(sign: str) -> bool:
    """Whether a character moves a terminal's cursor, its colours or the order of its text; spaces do not."""
    return unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on standard error, when a person watches."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from tqdm import tqdm

    with tqdm(total=1, leave=False, file=sys.stderr, bar_format="{desc} {bar} {elapsed}") as bar:

        def tell(done: int, total: int, what: str) -> None:
            bar.total = max(total, 1)
            bar.n = done
            bar.set_description(harmless(what))

        yield tell


def whole_numbers(field: str, text: str) -> tuple[int, ...]:
    """Read whole numbers between commas."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise bad(field, text, "must be whole numbers between commas", "for example 2048,1024,1024") from None
