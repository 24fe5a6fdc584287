"""msprobe's modes without values: differences of four statistics, and a checksum of the raw bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any
from zlib import crc32

import numpy as np

from telekit.accuracy.measures.metrics import Statistics
from telekit.errors import InputError, Problem

NAMES = ("Max", "Min", "Mean", "Norm")
_COLUMNS = {"Max": "Max", "Min": "Min", "Mean": "Mean", "Norm": "L2norm"}
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class SummaryErrors:
    """Differences of msprobe's statistics, target less golden; None where they are not defined.

    Attributes
    ----------
    difference : dict of str to float or None
        By ``Max``, ``Min``, ``Mean``, ``Norm``; signed.
    relative : dict of str to float or None
        ``|difference / golden|``, a fraction; None where golden is zero.
    target, golden : dict of str to float or None
        What was compared, NaN and Inf as they were dumped.
    """

    difference: dict[str, float | None]
    relative: dict[str, float | None]
    target: dict[str, float | None]
    golden: dict[str, float | None]

    def columns(self) -> dict[str, float | str]:
        """Return msprobe's columns of statistics mode, in its order: the relative ones are percent strings."""
        row: dict[str, float | str] = {}
        for name in NAMES:
            value = self.difference[name]
            row[f"{_COLUMNS[name]} diff"] = "N/A" if value is None else value
        for name in NAMES:
            value = self.relative[name]
            row[f"{name}RelativeErr"] = "N/A" if value is None else f"{value * 100:.10g}%"
        for side, values in (("NPU", self.target), ("Bench", self.golden)):
            for name in NAMES:
                value = values[name]
                row[f"{side} {_COLUMNS[name].lower()}"] = "N/A" if value is None else value
        return row


def compare_summaries(
    target: Mapping[str, Any] | Statistics, golden: Mapping[str, Any] | Statistics
) -> SummaryErrors:
    """Compare the statistics of two tensors.

    Parameters
    ----------
    target, golden : mapping or Statistics
        ``Max``, ``Min``, ``Mean`` and ``Norm`` as in dump.json. A missing one, None and an empty string are not
        known; a string that reads as a number is that number.

    Raises
    ------
    InputError
        If a statistic is neither a number nor absent.
    """
    problems: list[Problem] = []
    t, g = (
        {name: _number(_statistic(side, name), f"{where}.{name}", problems) for name in NAMES}
        for where, side in (("target", target), ("golden", golden))
    )
    if problems:
        raise InputError(problems)
    difference: dict[str, float | None] = {}
    relative: dict[str, float | None] = {}
    for name in NAMES:
        a, b = t[name], g[name]
        known = a is not None and b is not None and isfinite(a) and isfinite(b)
        difference[name] = a - b if known and a is not None and b is not None else None
        change = difference[name]
        relative[name] = None if change is None or not b else abs(change / b)
    return SummaryErrors(difference, relative, t, g)


def _statistic(side: Mapping[str, Any] | Statistics, name: str) -> Any:
    if isinstance(side, Statistics):
        keys = {"Max": side.maximum, "Min": side.minimum, "Mean": side.mean, "Norm": side.l2norm}
        return keys[name] if side.finite else float("nan")
    return side.get(name)


def _number(value: Any, where: str, problems: list[Problem]) -> float | None:
    if value is None or (isinstance(value, str) and value.strip() in ("", "N/A", "None", "null")):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        problems.append(Problem(where, value, "must be a number, or absent"))
    except OverflowError:
        problems.append(Problem(where, value, "must fit a float64"))
    return None


def checksum(array: Any) -> str:
    """CRC-32 of the raw bytes in C order, eight hex digits: what msprobe writes as MD5.

    It tells -0.0 from 0.0, and equal numbers of different types apart; msprobe's MindSpore side widens bfloat16
    to float32 first, its PyTorch side does not.

    Parameters
    ----------
    array : array_like
        Any type; read in pieces of 16 MB.

    Raises
    ------
    InputError
        If it holds Python objects.
    """
    values = np.asarray(array)
    if values.dtype.hasobject:
        raise InputError([Problem("array", str(values.dtype), "must hold numbers, not objects")])
    raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    total = 0
    for start in range(0, raw.size, _CHUNK_BYTES):
        total = crc32(raw[start : start + _CHUNK_BYTES].tobytes(), total)
    return f"{total:08x}"
