"""``telekit validate``: every published row against the models."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from telekit.cli.output import JsonFlag, paragraphs, progress, show, table


def validate(
    group: Annotated[str | None, typer.Option(help="One group only.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Store data/scoreboard.json.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Score the models against every published run that a job can say."""
    from telekit.errors import bad
    from telekit.validation import report, scoreboard

    if write and group is not None:
        raise bad("--write", group, "stores the whole scoreboard, not one group", "leave out --group")
    with progress() as tell:
        board = scoreboard.scoreboard(group, tell)
        plain = board.to_dict()
    if write:
        print(f"wrote {scoreboard.write(board)}", file=sys.stderr)

    def text() -> None:
        if markdown:
            print(report.markdown(plain), end="")
            return
        table(report.HEAD, report.lines(plain))
        print()
        paragraphs(report.text(plain))

    show(as_json, plain, text)
