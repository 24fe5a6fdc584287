"""Are the two runs set up alike? Six sheets, as msprobe's config check has them, each filled from a pair of files.

The first five must pass before any number is compared, says msprobe.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.readers.curve import as_number
from telekit.accuracy.readers.folders import tensors
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, worst
from telekit.documents import parse, read_text
from telekit.errors import InputError, bad

ENVIRONMENT, PACKAGES, DATASET, WEIGHTS, HYPERPARAMETERS, RANDOM_CALLS = (
    "environment",
    "packages",
    "dataset",
    "weights",
    "hyperparameters",
    "random calls",
)
MAX_FILES = 10_000
LISTED = 20


@dataclass(frozen=True)
class Difference:
    """One entry that is not alike; None where a side lacks it."""

    name: str
    target: Any
    golden: Any
    result: str


@dataclass(frozen=True)
class Sheet:
    """One comparison.

    Attributes
    ----------
    name : str
        ``environment``, ``packages``, ``dataset``, ``weights``, ``hyperparameters`` or ``random calls``.
    result : str
        pass, warning, error; skip where a side gave nothing.
    compared : int
        Entries of both sides together.
    differences : tuple of Difference
        The first ``LISTED``; ``different`` counts all.
    """

    name: str
    result: str
    compared: int
    different: int
    differences: tuple[Difference, ...]
    note: str = ""

    def __str__(self) -> str:
        """One line with the first differences."""
        if self.result == SKIP:
            return f"{self.name}: {self.note}"
        some = "; ".join(f"{d.name}: {d.target} against {d.golden}" for d in self.differences[:3])
        end = f", {self.different} differ: {some}" if self.different else ", all alike"
        return f"{self.name}: {self.compared} entries{end}" + (f" ({self.note})" if self.note else "")


def check_sheet(
    name: str,
    target: str | Path | Mapping[str, Any] | None,
    golden: str | Path | Mapping[str, Any] | None,
    *,
    expected: Collection[str] = (),
) -> Sheet:
    """Compare one sheet of two runs.

    Parameters
    ----------
    name : str
        Which sheet.
    target, golden : path, mapping or None
        Environment and hyperparameters: ``NAME=value`` lines, YAML or JSON (nested names are joined by dots);
        packages: lines as ``pip freeze`` writes them, of a version, an address or an editable install; dataset: files
        or folders, compared by their bytes; weights: a checkpoint, compared by its values; random calls: a text, line
        by line. Mappings are taken as they are. None: not given.
    expected : collection of str
        Entries that may differ: what is changed on purpose, such as ``tp``.

    Returns
    -------
    Sheet
        In environment, packages and random calls a difference is a warning, elsewhere an error: telekit's choice.
        What could not be read or compared is a warning at least.

    Raises
    ------
    InputError
        Unknown sheet, or a file that cannot be read.
    """
    if name not in _READERS:
        raise bad("sheet", name, "is none of msprobe's", f"one of {', '.join(_READERS)}")
    if target is None or golden is None:
        return Sheet(name, SKIP, 0, 0, (), "not given for " + ("both" if target is golden else "one side"))
    if name == WEIGHTS and not (isinstance(target, Mapping) or isinstance(golden, Mapping)):
        return _weights(Path(target), Path(golden), expected)
    read, level = _READERS[name]
    ours, theirs = (side if isinstance(side, Mapping) else read(Path(side)) for side in (target, golden))
    alike = _alike if name == HYPERPARAMETERS else lambda one, two: one == two
    found = []
    for key in sorted({*ours, *theirs}, key=str):
        one, two = ours.get(key), theirs.get(key)
        if key not in ours or key not in theirs or not alike(one, two):
            found.append(Difference(key, one, two, PASS if key in expected else level))
        elif isinstance(one, _Unread):
            found.append(Difference(key, one, two, WARNING))
    return _sheet(name, len({*ours, *theirs}), found)


class _Unread(str):
    """What stands in place of a value that was not read: two of them are not known to be alike."""


def _alike(one: Any, two: Any) -> bool:
    """Whether two settings are equal; a file of NAME=value knows texts only, and YAML reads 1e-4 as one."""
    if isinstance(one, str) != isinstance(two, str):
        text, other = (one, two) if isinstance(one, str) else (two, one)
        if isinstance(other, bool) or other is None:
            return text.strip().lower() in (
                (str(other).lower(),) if other is not None else ("none", "null", "")
            )
        return isinstance(other, (int, float)) and as_number(text) == other
    both_nan = all(isinstance(x, float) and math.isnan(x) for x in (one, two))
    return bool(one == two or both_nan)


def _sheet(name: str, compared: int, found: list[Difference], note: str = "") -> Sheet:
    result = worst(d.result for d in found) if found else PASS if compared else SKIP
    shown = sorted(found, key=lambda d: d.result == PASS)[:LISTED]
    return Sheet(
        name, result, compared, len(found), tuple(shown), note or ("" if compared else "nothing in it")
    )


def settings(path: Path) -> dict[str, Any]:
    """Read ``NAME=value`` lines, or a YAML or JSON mapping with nested names joined by dots."""
    text = read_text(path)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if path.suffix.lower() not in (".json", ".yaml", ".yml") and lines and all("=" in line for line in lines):
        pairs = (line.removeprefix("export ").partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}
    content = parse(text, str(path), is_json=path.suffix.lower() == ".json")
    if not isinstance(content, dict):
        raise bad(
            "file", path.name, "holds no names with values", "NAME=value lines, YAML or JSON", str(path)
        )
    return dict(_flat(content, ""))


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _packages(path: Path) -> dict[str, str]:
    """Read lines of ``pip freeze``; whatever else a line is, it is compared as it stands."""
    found: dict[str, str] = {}
    for line in read_text(path).splitlines():
        plain = line.split(" #")[0].strip()
        if plain and not plain.startswith("#"):
            name, version = _package(plain)
            key = name.strip().lower().replace("_", "-")
            found[key] = f"{found[key]}, {version}" if key in found else version
    return found


def _package(line: str) -> tuple[str, str]:
    """Split ``name==version``, ``name @ address``, ``-e address#egg=name`` or ``name version``."""
    if line.startswith(("-e ", "--editable")):
        address = line.partition(" ")[2].strip()
        _, egg, name = address.partition("#egg=")
        return (name, address) if egg else (line, "editable")
    for mark in ("==", " @ "):
        name, found, version = line.partition(mark)
        if found:
            return name, version.lstrip("=").strip()
    name, _, version = line.partition(" ")
    return (line, "") if line.startswith("-") or not version else (name, version.strip())


def _lines(path: Path) -> dict[str, str]:
    return {f"line {i}": line.rstrip() for i, line in enumerate(read_text(path).splitlines(), 1)}


def _digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 of a file, or of each file of a folder by its place in it.

    A link to a file counts by what it leads to. One to a folder is not followed, and said, as is all that is no file.
    """
    if not path.is_dir():
        return {"data": _digest(path)}
    found = sorted(p for p in path.rglob("*") if p.is_symlink() or not p.is_dir())
    if len(found) > MAX_FILES:
        raise bad("folder", path.name, f"holds more than {MAX_FILES:,} files", source=str(path))
    return {str(p.relative_to(path)): _digest(p) if p.is_file() else _Unread(_odd(p)) for p in found}


def _odd(path: Path) -> str:
    what = "no regular file" if not path.is_symlink() else "a link to a folder"
    return f"{what if path.exists() else 'a link that leads nowhere'}, not read"


def _digest(path: Path) -> str:
    if not path.is_file():
        raise bad("file", path.name, "is no regular file", source=str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _weights(target: Path, golden: Path, expected: Collection[str]) -> Sheet:
    """Compare checkpoints by value, one tensor at a time."""
    sides = []
    problems, lost = 0, False
    for path in (target, golden):
        read = tensors(path)
        problems += len(read.problems)
        lost |= any(problem.lost for problem in read.problems)
        sides.append({(t.step, t.rank, t.shard, t.name): t for t in read if t.kind == "tensor"})
    ours, theirs = sides
    found, unknown = [], 0
    for key in [*ours, *(k for k in theirs if k not in ours)]:
        one, two = ours.get(key), theirs.get(key)
        level = PASS if key[3] in expected else ERROR
        if one is None or two is None:
            found.append(Difference(key[3], one and str(one.shape), two and str(two.shape), level))
        elif not (one.has_data and two.has_data):
            unknown += 1
        else:
            apart = _apart(one, two)
            if apart is not None:
                found.append(Difference(key[3], f"{one.shape}{apart}", str(two.shape), level))
    notes = [f"{unknown} tensors have no data to compare"] if unknown else []
    notes += [f"{problems} problems in reading"] if problems else []
    sheet = _sheet(WEIGHTS, len({*ours, *theirs}) - unknown, found, ", ".join(notes))
    partly = lost or (unknown and sheet.compared)
    return replace(sheet, result=worst((sheet.result, WARNING))) if partly else sheet


def _apart(target: NamedTensor, golden: NamedTensor) -> str | None:
    """Say how far two tensors are apart; None where they are equal. One that cannot be compared is not known to be."""
    try:
        one, two = target.load(), golden.load()
        if one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes():
            return None
        metrics = compare_arrays(one, two)
    except InputError as error:
        return f", not compared ({'; '.join(p.rule for p in error.problems)})"
    if metrics.identical:
        return None
    return "" if metrics.max_abs_error is None else f", apart by {metrics.max_abs_error:.4g}"


def _no_weights(path: Path) -> dict[str, Any]:
    raise bad("weights", str(path), "must be two checkpoints, or two mappings")


_READERS: dict[str, tuple[Callable[[Path], Mapping[str, Any]], str]] = {
    ENVIRONMENT: (settings, WARNING),
    PACKAGES: (_packages, WARNING),
    DATASET: (_digests, ERROR),
    WEIGHTS: (_no_weights, ERROR),
    HYPERPARAMETERS: (settings, ERROR),
    RANDOM_CALLS: (_lines, WARNING),
}
SHEETS = tuple(_READERS)
