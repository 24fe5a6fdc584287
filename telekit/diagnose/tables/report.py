"""What one kind of table says: its numbers, what bounds the run by them, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.diagnose.builder import ProblemCounter
from telekit.diagnose.rules.finding import Finding
from telekit.diagnose.trace import Floats, TraceProblem

Cell = str | float | int | None
FIRST = 3
"""Ranks or names told in a sentence."""


@dataclass(frozen=True)
class TableReport:
    """What the tables of one kind say.

    Parameters
    ----------
    kind : str
        As :class:`telekit.diagnose.trace.Table` has it: ``timers``, ``steps``, ``operators``, ``metrics``.
    sources : tuple of str
        The files.
    bound : str
        What bounds the run by these: ``compute``, ``communication``, ``host``, ``data``, ``unknown``.
    says : str
        The main thing in one sentence.
    rows : tuple of mapping
        The numbers, all with the same keys; units in the keys' ends (``_s`` seconds, ``share`` of 1); None unknown.
    findings : tuple of Finding
        The costliest first.
    notes, problems : tuples
        Assumptions; what could not be used.
    """

    kind: str
    sources: tuple[str, ...]
    bound: str
    says: str
    rows: tuple[Mapping[str, Cell], ...]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[TraceProblem, ...] = ()

    @property
    def tells_ranks(self) -> bool:
        """Three ranks and more are told apart."""
        keys = ("rank", "slowest_rank", "furthest_machine")
        if not any(row.get(key) is not None for row in self.rows for key in keys):
            return False
        return len(self.rows) >= 3 or self.kind != "steps"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for strict JSON."""
        return {
            "kind": self.kind,
            "files": list(self.sources),
            "bound": self.bound,
            "says": self.says,
            "rows": [dict(r) for r in self.rows],
            "findings": [f.to_dict() for f in self.findings],
            "notes": list(self.notes),
            "problems": [str(p) for p in self.problems],
        }


def unusable(kind: str, sources: Iterable[str], why: str, problems: ProblemCounter) -> TableReport:
    """Report tables that say nothing, and why."""
    return TableReport(kind, tuple(sources), "unknown", why, (), (), (), problems.listed())


def plain(value: float) -> float | None:
    """Return a number fit for strict JSON: None of NaN and infinity."""
    return float(value) if np.isfinite(value) else None


def middle(values: Floats) -> Floats:
    """Median of what is known in each row; NaN where nothing is, without a warning."""
    known = np.isfinite(values).any(axis=1)
    found = np.full(len(values), np.nan)
    if known.any():
        found[known] = np.nanmedian(values[known], axis=1)
    return found


def some(ranks: Iterable[object]) -> str:
    """Name the first few of them."""
    told = [str(r) for r in ranks]
    return ", ".join(told[:FIRST]) + (f" and {len(told) - FIRST} more" if len(told) > FIRST else "")
