"""Commands on accuracy: tensors, dumps and checkpoints against their golden."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from telekit.cli.output import JsonFlag, paragraphs, progress, show, table

if TYPE_CHECKING:
    from telekit.accuracy.compare import Comparison

_SHOWN = 20


def compare(
    target: Annotated[Path, typer.Argument(help="A file of tensors, an msprobe dump, a checkpoint folder.")],
    golden: Annotated[Path, typer.Argument(help="What it should be.")],
    standard: Annotated[
        str | None, typer.Option(help="By name (a wrong one lists all); msprobe's where none is named.")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="YAML or JSON of target: golden names.")] = None,
    match: Annotated[str, typer.Option(help="name, order or fuzzy.")] = "name",
    csv: Annotated[Path | None, typer.Option(help="Write msprobe's table here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report that opens offline here.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare tensors; exit 1 when the standard is not met, nothing was judged, or the sides part unseen by it."""
    from telekit.accuracy.compare import compare as run
    from telekit.accuracy.comparing.table import rows_of, write_csv

    _spared(csv, html, inputs=[target, golden, *([mapping] if mapping else [])])
    with progress() as tell:
        found = run(target, golden, standard=standard, mapping=mapping, match=match, progress=tell)
    files = [str(p) for p in _written(lambda p: write_csv(found, p), csv)]
    if html is not None:
        from telekit.ui.accuracy_report import write_report

        files += [str(p) for p in _written(lambda p: (write_report(found, p),), html)]
    document: dict[str, Any] = {
        "result": found.result,
        "located": found.located,
        "standard": found.standard,
        "mode": found.mode,
        "counts": found.counts,
        "first_divergence": _finding(found),
        "notes": _strict(found.notes),
        "problems": [str(p) for p in found.problems],
        "written": files,
        "rows": rows_of(found) if as_json else [],
    }
    show(as_json, document, lambda: _print(found, files))
    if found.negative:
        raise typer.Exit(1)


def _spared(*files: Path | None, inputs: list[Path]) -> None:
    """Refuse to write over what is to be read: an input, or a file in a folder that is one."""
    from telekit.errors import bad

    for path in (p.resolve() for p in files if p is not None):
        for read in (p.resolve() for p in inputs):
            if path == read or (path.exists() and read.is_dir() and path.is_relative_to(read)):
                raise bad("file", str(path), "is an input, which is never written over", "another name")


def _written(write: Any, path: Path | None) -> Any:
    if path is None:
        return ()
    from telekit.errors import bad

    try:
        return write(path)
    except OSError as error:
        raise bad("file", str(path), f"cannot be written: {error.strerror}") from None


def _finding(found: Comparison) -> dict[str, Any] | None:
    from dataclasses import asdict

    if found.first_divergence is None:
        return None
    return dict(_strict(asdict(found.first_divergence)))


def _strict(value: Any) -> Any:
    """Make a document fit for JSON: it has no NaN, no infinity and no lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(v) for v in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _print(found: Comparison, files: list[str]) -> None:
    counts = ", ".join(f"{n} {name}" for name, n in found.counts.items() if n)
    paragraphs([f"{found.result} by {found.standard} ({found.mode}): {counts or 'no rows'}"])
    if found.located and found.result == "pass":
        paragraphs(
            ["warning: the sides part beyond rounding; the standard named has no rule for it, or a wide one"]
        )
    first = found.first_divergence
    if first is not None:
        where = _strict(" ".join(w for w in (first.operator, first.phase, first.part) if w))
        paragraphs([f"first divergence: {where}: {first.cause} (confidence {first.confidence:.2f})"])
        paragraphs([*_strict(first.evidence[:4]), f"to be sure, dump: {first.next_dump}"])
    bad_rows = [
        (row, v)
        for row, v in zip(found.rows, found.verdicts, strict=True)
        if v.result in ("error", "warning")
    ]
    bad_rows.sort(key=lambda pair: pair[1].result == "warning")
    if bad_rows:
        table(("tensor", "result", "why"), [(r.name, v.result, _why(v)) for r, v in bad_rows[:_SHOWN]])
    if len(bad_rows) > _SHOWN:
        paragraphs([f"and {len(bad_rows) - _SHOWN} more: --csv, --html or --json list all"])
    paragraphs(_strict(found.notes))
    problems = sorted(found.problems, key=lambda p: not p.lost)
    paragraphs([f"{'not compared: ' if p.lost else ''}{p}" for p in problems[:_SHOWN]])
    if len(problems) > _SHOWN:
        paragraphs([f"and {len(problems) - _SHOWN} more problems: --json lists all"])
    paragraphs([f"written: {file}" for file in files])


def _why(verdict: Any) -> str:
    parts = [p for p in verdict.parts if p.result == verdict.result]
    return "; ".join(
        f"{p.name} {'' if p.value is None else p.value}".strip() + (f": {p.note}" if p.own and p.note else "")
        for p in parts
    )
