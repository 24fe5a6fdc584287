"""Any loss log: told by what it holds. Megatron's golden JSON, TensorBoard events, CSV, training logs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from telekit.accuracy.readers.curve import CurveBuilder, LossCurve, as_number
from telekit.accuracy.readers.events import is_events, read_events
from telekit.accuracy.readers.logs import read_log
from telekit.accuracy.readers.problems import Problems, read_json, shown
from telekit.accuracy.readers.table import is_table, read_table
from telekit.documents import regular_size
from telekit.errors import InputError, bad

MAX_FILES = 1000


def losses(path: str | Path) -> LossCurve:
    """Read a loss curve.

    Parameters
    ----------
    path : str or Path
        Golden JSON of Megatron-LM's functional tests, a TensorBoard event file or a folder of them (of one run),
        CSV with a header, or a log with Megatron-LM's or MindFormers' lines.

    Returns
    -------
    LossCurve
        Its ``notes`` list the lines and records that could not be read.

    Raises
    ------
    InputError
        No such file, not a format that is read, or no value in it.
    """
    path, problems = Path(path), Problems()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if "tfevents" in p.name)[:MAX_FILES]
        if files:
            return _events(path, files, problems)
        rule = "holds no TensorBoard event file; of other logs name the file"
        raise bad("folder", path.name, rule, source=str(path))
    if not regular_size(path):
        raise bad("file", path.name, "is empty", source=str(path))
    with path.open("rb") as file:
        head = file.read(4096)
    if is_events(head):
        return _events(path, [path], problems)
    if path.suffix == ".json" or head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b'{"'):
        return _golden(path, problems)
    if is_table(head):
        return read_table(path, problems)
    if b"\0" in head:
        raise bad("file", shown(head[:16]), "is neither text nor a TensorBoard event file", source=str(path))
    return read_log(path, problems)


def _events(source: Path, files: list[Path], problems: Problems) -> LossCurve:
    builder = CurveBuilder(source, "tensorboard", problems)
    for file in files:
        try:
            read_events(file, builder)
        except InputError as error:
            if len(files) == 1:
                raise
            problems.refused(file, error)
    return builder.curve()


def _golden(path: Path, problems: Problems) -> LossCurve:
    """Read ``{metric: {start_step, end_step, step_interval, values: {step: number}}}``, or values in a list."""
    content = read_json(path, problems)
    if not isinstance(content, dict):
        raise bad("JSON", type(content).__name__, "is not an object of metrics", source=str(path))
    builder = CurveBuilder(path, "golden", problems)
    for metric, entry in content.items():
        if not isinstance(entry, dict) or "values" not in entry:
            problems.add(path, metric, "has no values: left out")
            continue
        for step, value in _points(entry, f"{shown(metric)}", path, problems):
            number = _number(value)
            if not _is_step(step) or number is None:
                place = f"{shown(metric)}.{shown(step)}"
                builder.unread(metric, place, f"{shown(value, 40)} at this step is not read")
            else:
                builder.add(metric, int(step), number)
    return builder.curve()


def _points(entry: dict[str, Any], metric: str, path: Path, problems: Problems) -> Iterator[tuple[str, Any]]:
    values = entry["values"]
    if isinstance(values, list):
        start, interval = entry.get("start_step", 0), entry.get("step_interval", 1)
        if not all(isinstance(n, int) and 0 <= n < 2**40 for n in (start, interval)):
            problems.add(path, metric, "start_step and step_interval must be counts: left out")
            return
        values = {str(start + i * interval): value for i, value in enumerate(values)}
    if not isinstance(values, dict):
        problems.add(path, metric, "values are neither an object nor a list: left out")
        return
    yield from values.items()


def _is_step(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 18


def _number(value: Any) -> float | None:
    """Return a value of the golden file: a number, or the text of one."""
    if isinstance(value, str):
        return as_number(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
