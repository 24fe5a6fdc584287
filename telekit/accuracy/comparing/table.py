"""The table that msprobe writes: its columns in its order, its words for what is missing, as rows and as CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from math import isfinite, isinf, isnan
from pathlib import Path
from typing import Any
from zlib import crc32

from telekit.accuracy.compare import Comparison
from telekit.accuracy.compared import OUTPUT, Compared
from telekit.accuracy.measures.metrics import EMPTY, SHAPES_DIFFER
from telekit.accuracy.readers.named import NamedTensor, Statistics
from telekit.accuracy.standards.msprobe import OUTPUT_SHARE
from telekit.accuracy.standards.verdict import PASS, SKIP, Verdict, conclude

NA = "N/A"
HEAD = (
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
    "NPU Requires_grad", "Bench Requires_grad",
)  # fmt: skip
TENSOR = (
    "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
)  # fmt: skip
STATISTICS = (
    "Max diff", "Min diff", "Mean diff", "L2norm diff",
    "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr",
)  # fmt: skip
SIDES = (
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
)  # fmt: skip
CHECKSUMS = ("NPU MD5", "BENCH MD5")
TAIL = ("Requires_grad Consistent", "Result", "Err_message")
WHOLE_OPERATOR = frozenset(["1 per mille share", "cosine drop", "norm error growth"])
STACK, DATA = "NPU_Stack_Info", "Data_name"
VERDICT = "Verdict"
_FORMULA = re.compile(r"^[+\-=%@]|;[+\-=%@]")


def columns(mode: str, *, stack: bool = False) -> tuple[str, ...]:
    """Return the columns of a mode (``tensor``, ``statistics``, ``md5``) in msprobe's order."""
    middle = {"tensor": (*TENSOR, *SIDES), "md5": CHECKSUMS}.get(mode, (*STATISTICS, *SIDES))
    data = (DATA,) if mode == "tensor" else ()
    return (*HEAD, *middle, *TAIL, *((STACK,) if stack else ()), *data)


def row_of(row: Compared, verdict: Verdict, mode: str) -> dict[str, Any]:
    """Return one row by msprobe's column names: numbers where there are numbers, its words elsewhere.

    ``Result`` is the verdict of the comparison's standard (msprobe's own under ``msprobe``; what no rule fits passes,
    as there), ``Err_message`` the list of its reasons and notes.
    """
    t, g = row.target, row.golden
    found: dict[str, Any] = {"NPU Name": t.name if t else NA, "Bench Name": g.name if g else NA}
    for name, side in (("NPU", t), ("Bench", g)):
        found[f"{name} Dtype"] = _dtype(side)
        found[f"{name} Tensor Shape"] = _shape(side)
        grad = side.requires_grad if side else None
        found[f"{name} Requires_grad"] = NA if grad is None else str(grad)
    found = {name: found[name] for name in HEAD}
    if mode == "md5":
        found |= dict(zip(CHECKSUMS, (_checksum(t), _checksum(g)), strict=True))
    else:
        found |= _tensor(row) if mode == "tensor" else _statistics(t, g)
        found |= dict(zip(SIDES, (*_stats(t, row, "target"), *_stats(g, row, "golden")), strict=True))
    result = verdict.by_standard if row.api else verdict.result  # of lone tensors msprobe has no table
    reasons = [_reason(p) for p in verdict.parts if p.result not in (PASS, SKIP)]
    return found | {
        "Requires_grad Consistent": str(found["NPU Requires_grad"] == found["Bench Requires_grad"]),
        "Result": PASS if result == SKIP else result,
        "Err_message": [*reasons, *row.notes],
    }


def _reason(part: Any) -> str:
    value = "" if part.value is None else f" {part.value}"
    return f"{part.result}: {part.name}{value}, asked for: {part.rule}{'; ' if part.note else ''}{part.note}"


def _dtype(side: NamedTensor | None) -> str:
    if side is None or side.kind == "none":
        return NA
    if side.kind == "scalar":
        return f"<class '{type(side.value).__name__}'>"
    return side.written_dtype or side.dtype


def _shape(side: NamedTensor | None) -> str:
    return NA if side is None or side.shape is None else str(list(side.shape))


def _tensor(row: Compared) -> dict[str, Any]:
    m = row.metrics
    if m is None:
        return dict.fromkeys(TENSOR, "unsupported")
    figures = m.columns()
    if m.status in (SHAPES_DIFFER, EMPTY):
        return dict.fromkeys(TENSOR, "shape unmatched" if m.status == SHAPES_DIFFER else "unsupported")
    return {name: figures[name] for name in TENSOR}


def _statistics(t: NamedTensor | None, g: NamedTensor | None) -> dict[str, Any]:
    """Return signed differences, and relative ones as percent strings: 0 where equal, N/A where golden is zero."""
    if t is None or g is None:
        return dict.fromkeys(STATISTICS, NA)
    change: list[Any] = []
    relative: list[Any] = []
    for a, b in zip(_values(t), _values(g), strict=True):
        if a == b or (a != a and b != b):  # NaN beside NaN is no difference
            change.append(0)
            relative.append(0)
        elif not _number(a) or not _number(b):
            change.append(NA)
            relative.append(NA)
        else:
            difference = float(a) - float(b)
            change.append(difference)
            relative.append(_percent(difference, b))
    return dict(zip(STATISTICS, (*change, *relative), strict=True))


def _percent(difference: float, golden: float) -> Any:
    if not isfinite(difference):
        return difference  # NaN or Inf, as the difference itself
    return f"{abs(difference / golden * 100)}%" if golden else NA


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _values(side: NamedTensor) -> tuple[Any, Any, Any, Any]:
    if side.kind == "scalar":
        return (side.value,) * 4
    s = side.statistics or Statistics()
    return s.max, s.min, s.mean, s.norm


def _stats(side: NamedTensor | None, row: Compared, which: str) -> tuple[Any, ...]:
    """Return a side's statistics: those dumped, else those of its elements."""
    if side is None:
        return (NA,) * 4
    if side.kind == "tensor" and side.statistics is None and row.metrics is not None:
        own = getattr(row.metrics, which)
        return (
            (NA,) * 4
            if own is None
            else tuple(_word(x) for x in (own.maximum, own.minimum, own.mean, own.l2norm))
        )
    return tuple(_word(value) for value in _values(side))


def _word(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return str(value)
    return value


def _checksum(side: NamedTensor | None) -> str:
    """Return the dumped checksum; a scalar's is that of its text, as msprobe takes it."""
    if side is None:
        return NA
    if side.md5 is not None:
        return side.md5
    if side.kind == "none":
        return NA
    return f"{crc32(str(side.value if side.kind == 'scalar' else '').encode()):08x}"


def rows_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return every row, fit for strict JSON: NaN and Inf are the words msprobe writes.

    Beside msprobe's columns stands `VERDICT`, with telekit's own rules in it.
    """
    found = []
    for row, verdict in zip(comparison.rows, comparison.verdicts, strict=True):
        cells = row_of(row, verdict, comparison.mode) | {VERDICT: verdict.result}
        found.append({name: _plain(value) for name, value in cells.items()})
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return "Nan" if isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def write_csv(comparison: Comparison, path: str | Path) -> tuple[Path, ...]:
    """Write msprobe's table: target's rows in target's order, then what only golden has.

    Parameters
    ----------
    comparison : Comparison
    path : str or Path
        Of several steps or ranks one file each, ``name_step0_rank1.csv``.

    Returns
    -------
    tuple of Path
        What was written, in UTF-8.
    """
    path = Path(path)
    groups: dict[tuple[int | None, int | None], list[int]] = {}
    for i, row in enumerate(comparison.rows):
        groups.setdefault((row.step, row.rank), []).append(i)
    written = []
    for (step, rank), places in groups.items():
        names = [f"step{step}"] if step is not None else []
        names += [f"rank{rank}"] if rank is not None else []
        file = (
            path
            if len(groups) == 1
            else path.with_name("_".join([path.stem, *names]) + (path.suffix or ".csv"))
        )
        _write(comparison, sorted(places, key=lambda i: comparison.rows[i].target_order), file)
        written.append(file)
    return tuple(written)


def _write(comparison: Comparison, places: Sequence[int], file: Path) -> None:
    head = columns(comparison.mode, stack=bool(comparison.stacks))
    with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        seen: set[str] = set()
        verdicts = _as_placed(comparison)
        for i in places:
            row = comparison.rows[i]
            cells = row_of(row, verdicts[i], comparison.mode)
            api = row.target.api if row.target else ""
            lines = (
                comparison.stacks.get(api, ()) if api not in seen else ()
            )  # on an operator's first row only
            seen.add(api)
            cells[STACK] = str(list(lines)) if lines else NA
            cells[DATA] = str([_file(x) for x in (row.target, row.golden)])
            writer.writerow(_cells(cells[name] for name in head))


def _file(side: NamedTensor | None) -> str:
    """Return the file a dump keeps a tensor in; -1 where it kept none."""
    if side is None:
        return NA
    if not side.has_data:
        return "-1"
    return f"{side.name}.{'pt' if side.written_dtype.startswith('torch.') else 'npy'}"


def _as_placed(comparison: Comparison) -> list[Verdict]:
    """Return verdicts with msprobe's rules over all outputs on the operator's first output, where msprobe writes them.

    Ours stand on the output that breaks the rule; an operator's worst result is the same.
    """
    verdicts = list(comparison.verdicts)
    if comparison.standard not in OUTPUT_SHARE:
        return verdicts
    first: dict[tuple[Any, ...], int] = {}
    for i, row in enumerate(comparison.rows):
        if not row.api or row.part != OUTPUT:
            continue
        to = first.setdefault((row.step, row.rank, row.api), i)
        moved = [p for p in verdicts[i].parts if p.name in WHOLE_OPERATOR]
        if to != i and any(p.result not in (PASS, SKIP) for p in moved):
            verdicts[to] = _again(verdicts[to], [*verdicts[to].parts, *moved])
        if to != i and moved:
            verdicts[i] = _again(verdicts[i], [p for p in verdicts[i].parts if p not in moved])
    return verdicts


def _again(verdict: Verdict, parts: Sequence[Any]) -> Verdict:
    return conclude(parts, verdict.standard, verdict.source, verdict.messages)


def _cells(values: Iterable[Any]) -> list[str]:
    """Return what a spreadsheet may read: no text of a dump becomes a formula."""
    found = []
    for value in values:
        if isinstance(value, float) and (isnan(value) or isinf(value)):
            value = _plain(value)
        text = _quoted(value) if isinstance(value, list) else str(value)
        if isinstance(value, str) and _FORMULA.search(text) and not _reads_as_number(text):
            text = f"'{text}"
        found.append(text)
    return found


def _quoted(lines: Sequence[Any]) -> str:
    """Return a list as JSON writes it."""
    import json

    return json.dumps([str(line) for line in lines], ensure_ascii=False)


def _reads_as_number(text: str) -> bool:
    try:
        float(text.removesuffix("%"))
    except ValueError:
        return False
    return True
