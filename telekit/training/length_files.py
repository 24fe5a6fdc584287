"""Numbers out of a user's file, with the line of each: bounded, never unpickled, a fault named by its place."""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem, bad

FIELDS = ("length", "len", "num_tokens", "n_tokens", "tokens", "input_ids")
"""Names that a column of lengths goes by, most telling first."""
NUMBERS, LISTS = ("length", "len", "num_tokens", "n_tokens"), ("input_ids",)
"""Of these, names of numbers only, and of lists of tokens only."""
NO_NAMES = frozenset(("nan", "inf", "infinity", "true", "false", "none", "null", "na", "n/a"))
"""Words that stand for a value that is missing or is no length; none is a header, whatever its case."""
MAX_LINE_BYTES = 2**26
"""Longest line of a text file: the `input_ids` of a few million tokens."""
MAX_HEADER_BYTES = 10_000
"""Longest header of a .npy file; that of one column is under 128."""
SHOWN = 10


class Read(NamedTuple):
    """Values as they stand in a file, and the line of each (empty where a file has no lines)."""

    values: NDArray[Any]
    lines: NDArray[np.int64]


def read_lengths(path: Path, field: str | None, most: int) -> Read:
    """Read at most ``most`` numbers from a file, by its suffix; they may still be no lengths.

    Raises
    ------
    InputError
        The file is missing, not of a known kind, malformed, cut short or too large.
    """
    readers = {
        ".npy": _npy, ".parquet": _parquet, ".csv": _csv, ".txt": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl,
    }  # fmt: skip
    read = readers.get(path.suffix.lower())
    if "\0" in str(path):
        raise bad("file", path.name, "is no name of a file")
    try:
        if path.exists() and not path.is_file():
            raise bad("file", path.name, "is not a regular file")
        if read is None:
            raise bad("file", path.name, "is of no kind that is read here", f"one of {', '.join(readers)}")
        return read(path, field, most)
    except InputError as error:
        raise error.within(str(path)) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise bad("file", path.name, f"cannot be read: {reason}", source=str(path)) from None


def _too_many(most: int) -> NoReturn:
    raise bad("file", "too many lengths", f"at most {most:,} are read")


def _npy(path: Path, field: str | None, most: int) -> Read:
    """One column of a .npy file; the size that its header claims is checked before anything is made room for."""
    with path.open("rb") as file:
        shape, dtype = _npy_header(file)
        if dtype.kind not in "iuf":
            rule = "must be whole numbers; objects are never unpickled"
            raise bad("dtype", str(dtype), rule, "save it as int64")
        if len(shape) != 1:
            raise bad("shape", shape, "must have one dimension", "save the lengths as one column")
        if field is not None:
            raise bad("field", field, "a .npy file has no named columns", "leave it out")
        if shape[0] > most:
            _too_many(most)
        here = path.stat().st_size - file.tell()
        if here != shape[0] * dtype.itemsize:
            rule = f"the header says {shape[0]:,} entries of {dtype.itemsize} bytes, and {here:,} bytes follow it"
            raise bad("file", path.name, f"{rule}: cut short, or not what it says")
        values = np.fromfile(file, dtype, shape[0])
    return Read(values, np.zeros(0, np.int64))


def _npy_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    import warnings

    formats = np.lib.format
    try:
        version = formats.read_magic(file)
        sizes = {(1, 0): 2, (2, 0): 4}
        if version not in sizes:
            raise bad("version", version, "is not read", "versions 1.0 and 2.0, as numpy.save writes columns")
        start = file.tell()
        length = int.from_bytes(file.read(sizes[version]), "little")
        if length > MAX_HEADER_BYTES:
            raise bad("header", f"{length:,} bytes", f"must be at most {MAX_HEADER_BYTES:,} bytes")
        file.seek(start)
        read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 2's headers, which are read all the same
            shape, _, dtype = read(file)
    except InputError:
        raise
    except Exception as error:  # the header is Python text: whatever its tokenizer and parser raise
        reason = (str(error).splitlines() or ["malformed"])[0][:200]
        raise bad("header", "not a .npy header", reason) from None
    return tuple(shape), np.dtype(dtype)


def _parquet(path: Path, field: str | None, most: int) -> Read:
    """One column of a parquet file, batch by batch, by pandas' own engine, which is asked for the sizes first."""
    from importlib import import_module

    try:
        parquet, compute = import_module("pyarrow.parquet"), import_module("pyarrow.compute")
    except ImportError:
        raise bad(
            "file", path.name, "parquet needs pyarrow, which is not installed", "pip install pyarrow"
        ) from None
    arrow = import_module("pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            if file.metadata.num_rows > most:
                _too_many(most)
            name = _chosen(file.schema_arrow.names, field)
            kind = file.schema_arrow.field(name).type
            nested = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
            if nested and not arrow.types.is_integer(kind.value_type):
                raise bad(name, str(kind), "lists must be of tokens, which are whole numbers")
            if not (nested or arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
                raise bad(name, str(kind), "must be a column of whole numbers or of lists")
            if rule := _mistaken(name, nested):
                raise bad(name, str(kind), rule)
            columns = [batch.column(0) for batch in file.iter_batches(columns=[name])]
    except arrow.ArrowException as error:
        raise bad("file", path.name, f"is no readable parquet: {str(error).splitlines()[0][:200]}") from None
    found = [compute.list_value_length(c) if nested else c for c in columns]
    # an empty cell becomes NaN, which is no length and is named as such
    parts = [c.to_numpy(zero_copy_only=False) for c in found]
    return Read(np.concatenate(parts) if parts else np.zeros(0), np.zeros(0, np.int64))


class _Rows:
    """Numbers and their lines as they come, and what is wrong with the others."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.values, self.lines = array("d"), array("q")
        self.problems: list[Problem] = []
        self.more = 0

    def add(self, line: int, value: float) -> None:
        if len(self.values) >= self.most:
            _too_many(self.most)
        self.values.append(value)
        self.lines.append(line)

    def wrong(self, line: int, value: Any, rule: str, suggestion: str = "") -> None:
        if len(self.problems) < SHOWN:
            self.problems.append(Problem(f"line {line}", value, rule, suggestion))
        else:
            self.more += 1

    def read(self) -> Read:
        if self.more:
            self.problems.append(Problem("file", f"{self.more:,} more lines", "cannot be read either"))
        if self.problems:
            raise InputError(self.problems)
        return Read(np.frombuffer(self.values), np.frombuffer(self.lines, np.int64))


def _lines(file: BinaryIO, counted: list[int]) -> Iterator[str]:
    """Lines as text; ``counted`` holds the number of the line at hand."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        counted[0] += 1
        if len(line) > MAX_LINE_BYTES:
            raise bad(f"line {counted[0]}", "too long", f"at most {MAX_LINE_BYTES:,} bytes are read")
        try:
            yield line.decode("utf-8-sig" if counted[0] == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise bad(f"line {counted[0]}", f"byte {error.start + 1}", "is not UTF-8 text") from None


def _csv(path: Path, field: str | None, most: int) -> Read:
    """One column of a table, with a header or, alone, without."""
    rows, at = _Rows(most), [0]
    column, width = 0, 0
    with path.open("rb") as file:
        try:
            for cells in csv.reader(_lines(file, at)):
                if not cells:
                    continue
                if not width:
                    width = len(cells)
                    names = [cell.strip() for cell in cells]
                    if width > 1 or field is not None or _is_name(names[0]):
                        column = names.index(_chosen(names, field))
                        if rule := _mistaken(names[column], False):
                            raise bad(names[column], "a column of a table", rule)
                        continue
                if len(cells) != width:
                    rows.wrong(at[0], ",".join(cells), f"must have {width} cells, as the first line has")
                    continue
                value = _number(cells[column])
                if math.isnan(value):
                    rows.wrong(at[0], cells[column], "is not a number")
                else:
                    rows.add(at[0], value)
        except csv.Error as error:
            raise bad(f"line {at[0]}", "not CSV", str(error)) from None
    return rows.read()


def _is_name(text: str) -> bool:
    """Whether the only cell of a first line is a header: a word, that does not stand for a value."""
    return text.lstrip("_")[:1].isalpha() and text.lower() not in NO_NAMES


def _mistaken(name: str, listed: bool) -> str:
    """Rule that a field breaks by holding a list, or none; empty where it may."""
    if listed and name in NUMBERS:
        return "must be a number of tokens, not a list"
    return "must be a list of tokens, not their number" if not listed and name in LISTS else ""


def _number(text: str) -> float:
    """Return the number that a cell holds; NaN when it holds none."""
    try:
        return float(text) if "_" not in text else math.nan
    except ValueError:
        return math.nan


def _chosen(names: list[str], field: str | None) -> str:
    """Column to read: the one asked for, else the first known name, else the only one."""
    shown = ", ".join(str(name)[:40] for name in names[:12]) or "none"
    if field is not None:
        if field not in names:
            raise bad("field", field, "no such column", f"there are {shown}")
        return field
    for name in FIELDS:
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    raise bad("field", "not given", f"no column is called {', '.join(FIELDS)}", f"name one of {shown}")


def _jsonl(path: Path, field: str | None, most: int) -> Read:
    """One number, or one object with a number or a list, a line."""
    rows, at = _Rows(most), [0]
    chosen = field
    with path.open("rb") as file:
        for text in _lines(file, at):
            if text.isspace():
                continue
            try:
                item = json.loads(text)
            except (ValueError, RecursionError) as error:
                cut = "" if text.endswith("\n") else "; the file ends inside this line: cut short?"
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "malformed"
                rows.wrong(at[0], text.strip(), f"is not JSON ({reason}){cut}")
                continue
            if isinstance(item, dict):
                chosen = chosen if chosen is not None else _chosen(list(item), None)
                if chosen not in item:
                    rows.wrong(at[0], text.strip(), f"has no field {chosen}")
                    continue
                item = item[chosen]
                rule = _mistaken(chosen, isinstance(item, list))
            else:
                rule = "is a list without a name" if isinstance(item, list) else ""
            if rule:
                rows.wrong(at[0], text.strip(), rule, 'a number, or {"input_ids": [...]}')
            else:
                _add_json(rows, at[0], item)
    return rows.read()


def _add_json(rows: _Rows, line: int, item: Any) -> None:
    if isinstance(item, list):
        if set(map(type, item)) <= {int}:
            rows.add(line, len(item))
        else:
            rows.wrong(line, json.dumps(item), "lists must be of tokens, which are whole numbers")
    elif isinstance(item, int | float) and not isinstance(item, bool):
        if isinstance(item, int) and abs(item) >= 2**53:
            rows.wrong(line, item, "is no number of tokens")  # nor one that a float holds
        else:
            rows.add(line, item)
    else:
        rows.wrong(line, json.dumps(item), "must be a number of tokens, or a list of them")
