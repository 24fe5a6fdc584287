"""The command on traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from telekit.cli.output import JsonFlag, paragraphs, progress, show, table

if TYPE_CHECKING:
    from telekit.diagnose.analysis.diagnosis import Diagnosis

SHOWN = 16
"""Ranks shown to a person; --json has all."""


def diagnose(
    folder: Annotated[Path, typer.Argument(help="A trace, or a folder of traces, one file a rank.")],
    ranks_per_node: Annotated[int, typer.Option(help="Ranks that share a node, in order.")] = 8,
    as_json: JsonFlag = False,
) -> None:
    """Say what is wrong with a run, from its traces."""
    from telekit.diagnose.analysis.diagnosis import diagnose as run

    with progress() as tell:
        found = run(folder, ranks_per_node=ranks_per_node, progress=tell)
    show(as_json, found.to_dict(), lambda: _print(found))
    raise typer.Exit(0 if found.healthy else 1)


def _print(found: Diagnosis) -> None:
    """Print the verdict, the evidence and the ranks."""
    from telekit.units import format_seconds

    paragraphs([f"{found.verdict}; most ranks are bound by: {found.bound}"])
    for finding in found.findings:
        paragraphs(
            ["", str(finding), *(f"  {e.text}" for e in finding.evidence), f"  advice: {finding.advice}"]
        )
    paragraphs([""])
    worst = sorted(found.ranks, key=lambda r: -r.own_s)[:SHOWN]
    idle = ("compute", "overlap", "transfer", "waiting", "copy", "data")
    rows = []
    for rank in worst:
        parts = [rank.seconds[name] for name in idle]
        other = rank.step_s - sum(parts)
        name = "?" if rank.rank is None else str(rank.rank)
        rows.append((name, rank.bound, *map(format_seconds, (rank.step_s, *parts, max(other, 0.0)))))
    table(("rank", "bound by", "step", *idle, "other idle"), rows)
    if len(found.ranks) > SHOWN:
        paragraphs([f"and {len(found.ranks) - SHOWN} ranks with less time of their own (--json has all)"])
    paragraphs([*(f"note: {n}" for n in found.notes), *(f"problem: {p}" for p in found.problems[:SHOWN])])
