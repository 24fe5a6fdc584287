"""Plain training logs: the lines of Megatron-LM and of MindFormers, among whatever else the run printed.

Formats: NVIDIA/Megatron-LM ``megatron/training/training.py`` (training_log, evaluate_and_print_results) and
mindspore-lab/mindformers ``mindformers/core/callback/callback.py`` (MFLossMonitor).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from telekit.accuracy.readers.curve import CurveBuilder, LossCurve, as_number
from telekit.accuracy.readers.problems import Problems, shown
from telekit.errors import bad

MAX_LINE = 65_536
_MEGATRON = re.compile(r"\biteration\s{1,20}(\d{1,15})\s{0,20}/\s{0,20}(?:\d{1,15}|infinity)\s?\|(.*)")
_VALIDATION = re.compile(r"\b(validation|test) loss at iteration (\d{1,15})\b[^|]*\|(.*)")
_MINDFORMERS = re.compile(r"Epoch:\[\s*(\d{1,9})/\s*\d{1,9}\], step:\[\s*(\d{1,15})/\s*(\d{1,15})\],(.*)")
_PAIR = re.compile(r"\s*([A-Za-z][A-Za-z_ ]{0,60}?)(?::\s?|\s(?=\[))(\[[^\]]{0,200}\]|[^,]{1,80})(?:,|$)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)", re.IGNORECASE)
_TRUTH = {"true": 1.0, "false": 0.0}


def read_log(path: Path, problems: Problems) -> LossCurve:
    """Read a training log; a value that cannot be read is noted with its line, other lines are passed over.

    MindFormers counts steps within an epoch: step = (epoch - 1) · steps per epoch + step.

    Raises
    ------
    InputError
        No line of either format.
    """
    builder = CurveBuilder(path, "", problems)
    for number, line in _lines(path, problems):
        kind = _line(line, number, builder)
        if kind and builder.kind not in ("", kind):
            what = f"is of {kind}, those before of {builder.kind}: left out"
            problems.add(path, f"line {number}", what, lost=True)
        builder.kind = builder.kind or kind
    if not len(builder):
        raise bad("file", path.name, "has no line of Megatron-LM (iteration 5/ 100 | ... | lm loss: 1.0E+01 |) or of "
                  "MindFormers ({ Epoch:[ 1/ 2], step:[ 5/ 100], loss: 10.0, ...)", source=str(path))  # fmt: skip
    return builder.curve()


def _lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; a carriage return ends one too, as a progress bar writes it."""
    number, inside = 0, False
    with path.open(encoding="utf-8", errors="replace") as file:
        while text := file.readline(MAX_LINE):
            ends = text.endswith("\n")
            if not inside:
                number += 1
                if ends or len(text) < MAX_LINE:
                    yield number, text
                else:
                    what = f"is over {MAX_LINE:,} characters: left out"
                    problems.add(path, f"line {number}", what)
            inside = not ends


def _line(line: str, number: int, builder: CurveBuilder) -> str:
    """Read one line if it is of a known format; return which."""
    if found := _MINDFORMERS.search(line):
        if builder.kind in ("", "mindformers"):
            epoch, step, steps = (int(n) for n in found.groups()[:3])
            at = (max(epoch, 1) - 1) * steps + step
            _add(_mindformers_pairs(found[4]), at, number, builder)
        return "mindformers"
    if found := _MEGATRON.search(line):
        if builder.kind in ("", "megatron"):
            _add(_megatron_pairs(found[2]), int(found[1]), number, builder)
        return "megatron"
    if found := _VALIDATION.search(line):
        if builder.kind in ("", "megatron"):
            pairs = ((f"{found[1]} {name}", text) for name, text in _megatron_pairs(found[3]))
            _add(pairs, int(found[2]), number, builder)
        return "megatron"
    return ""


def _megatron_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield ``name: value`` between bars; some forks leave out the colon before the number."""
    for cell in text.split("|"):
        name, colon, value = cell.strip().rpartition(":")
        if not colon:
            name, _, value = cell.strip().rpartition(" ")
            if as_number(value) is None:
                continue
        if name.strip():
            yield name.strip(), value.strip()


def _mindformers_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield ``name: value``; a value in brackets may hold commas."""
    for found in _PAIR.finditer(text):
        yield found[1].strip(), found[2].strip()


def _add(pairs: Iterator[tuple[str, str]], step: int, number: int, builder: CurveBuilder) -> None:
    for name, text in pairs:
        value = _value(text)
        if value is None:
            if text not in ("None", "[]"):
                builder.unread(name, f"line {number}", f"{shown(name)}: {shown(text, 40)} is not read")
        elif name.isprintable():
            builder.add(name, step, value)


def _value(text: str) -> float | None:
    """Return the number of ``1.0E+01``, ``[10.5]``, ``[now/mean]``, ``1754ms``, ``170.5T`` or ``False``."""
    if (number := as_number(text.strip("[] "))) is not None:
        return number
    plain = text.strip("[] ()")
    if plain.lower() in _TRUTH:
        return _TRUTH[plain.lower()]
    first = plain.split("/")[0].strip()
    for unit in ("ms", "T", ""):
        if first.endswith(unit) and _NUMBER.fullmatch(first.removesuffix(unit)):
            return float(first.removesuffix(unit))
    return None
