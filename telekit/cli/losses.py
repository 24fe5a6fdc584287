"""The command on loss curves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from telekit.cli.output import JsonFlag, paragraphs, show, table
from telekit.errors import bad

if TYPE_CHECKING:
    from telekit.accuracy.curves.judge import CurveVerdict
    from telekit.accuracy.curves.ratios import MicroBatchMeans

NOTES = 20
"""Printed at most."""


def compare_loss(
    target: Annotated[
        Path, typer.Argument(help="Log, CSV, TensorBoard events or golden JSON of the run to judge.")
    ],
    golden: Annotated[Path, typer.Argument(help="The same of the run it should equal.")],
    standard: Annotated[str, typer.Option(help="A wrong one lists all.")] = "mindformers",
    noise: Annotated[
        list[Path] | None, typer.Option(help="One more run of golden's setup; may be given often.")
    ] = None,
    lr_zero: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="TARGET GOLDEN", help="Both runs with learning rate 0."),
    ] = None,
    target_column: Annotated[str, typer.Option(help="The loss, where its name is unusual.")] = "",
    golden_column: Annotated[str, typer.Option(help="The loss, where its name is unusual.")] = "",
    subtract_target: Annotated[str, typer.Option(help="Column to take off first: an auxiliary loss.")] = "",
    subtract_golden: Annotated[str, typer.Option(help="Column to take off first: an auxiliary loss.")] = "",
    sizes: Annotated[
        str, typer.Option(help="To name a constant ratio: tp=2,cp=4,dp=8,ep=8,tokens=4096,micro_batches=16.")
    ] = "",
    micro_batches: Annotated[
        str,
        typer.Option(help="Of the first step, mean loss:tokens of each, to name an offset: 4.0:10,2.0:100."),
    ] = "",
    dtype: Annotated[str, typer.Option(help="Arithmetic, for the bound on the first norm.")] = "bfloat16",
    layers: Annotated[int, typer.Option(help="Layers, for the bound on the first norm.")] = 32,
    as_json: JsonFlag = False,
) -> None:
    """Judge a loss curve against a golden one."""
    from telekit.accuracy.curves.curve_coverage import Columns
    from telekit.accuracy.curves.judge import judge_curves
    from telekit.accuracy.readers import losses

    verdict = judge_curves(
        losses(target),
        losses(golden),
        noise=[losses(path) for path in noise or ()],
        standard=standard,
        columns=Columns(target_column, golden_column, subtract_target, subtract_golden),
        sizes=read_sizes(sizes),
        micro_batches=read_micro_batches(micro_batches),
        lr_zero=None if lr_zero is None else (losses(lr_zero[0]), losses(lr_zero[1])),
        dtype=dtype,
        layers=layers,
    )
    show(as_json, verdict.to_dict(), lambda: _print(verdict))
    if not verdict.passed:
        raise typer.Exit(1)


def read_sizes(text: str) -> dict[str, float]:
    """Read ``tp=2,tokens=4096``.

    Raises
    ------
    InputError
        For what is no name with a number above 0.
    """
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = (part.strip() for part in item.partition("="))
        size = _number(number)
        if not (name and equals and size > 0):
            raise bad("sizes", item, "must be a name and a number above 0", "for example tp=2,tokens=4096")
        found[name] = size
    return found


def read_micro_batches(text: str) -> MicroBatchMeans | None:
    """Read ``4.0:10,2.0:100``: mean loss and tokens of each micro-batch; None for nothing.

    Raises
    ------
    InputError
        For what is no such pair.
    """
    from telekit.accuracy.curves.ratios import micro_batch_means

    if not text.strip():
        return None
    pairs = [tuple(_number(part) for part in item.split(":")) for item in text.split(",")]
    if any(len(pair) != 2 or not all(math.isfinite(n) for n in pair) for pair in pairs):
        raise bad(
            "micro-batches", text, "must be mean loss:tokens between commas", "for example 4.0:10,2.0:100"
        )
    return micro_batch_means([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _print(verdict: CurveVerdict) -> None:
    print(f"{verdict.result}: {verdict.shape} ({verdict.verdict.standard}; {verdict.verdict.source})")
    compared = (("loss", "loss"), ("grad_norm", "gradient norm"))
    ours, theirs = verdict.columns["target"], verdict.columns["golden"]
    said = [f"{what} {ours[n]!r} beside {theirs[n]!r}" for n, what in compared if ours[n] and theirs[n]]
    paragraphs(
        [f"compared at {verdict.errors.loss.steps.size:,} steps, target beside golden: {', '.join(said)}"]
    )
    rows = []
    for part in verdict.verdict.parts:
        value = f"{part.value:.5g}" if isinstance(part.value, (int, float)) else ""
        rows.append((part.name, part.result, value, part.rule))
    table(("part", "result", "found", "passes"), rows)
    paragraphs(f"{part.name}: {part.note}" for part in verdict.verdict.parts if part.note)
    for suspect in verdict.suspects:
        paragraphs(
            [
                f"suspect, {suspect.confidence:.0%} sure: {suspect.cause}. {suspect.evidence}. Next: {suspect.next}."
            ]
        )
    notes = verdict.verdict.messages
    paragraphs(f"note: {note}" for note in notes[:NOTES])
    if len(notes) > NOTES:
        paragraphs([f"note: {len(notes) - NOTES} more; --json has them"])
