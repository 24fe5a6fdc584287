"""The scoreboard: every published step and peak that a job can say, against our estimate of it.

An error is estimated over measured, less one. ``mape`` is the mean size of the errors, ``bias`` their mean. Rows that
constants were fitted on and rows that were held out are told apart (the rule: :mod:`telekit.validation.runs`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from telekit import catalog
from telekit.errors import TelekitError, bad
from telekit.validation.gaps import closed_form_gaps
from telekit.validation.kernel_rows import kernel_rows, unmapped_kernels
from telekit.validation.megascale import column_rows
from telekit.validation.memory_runs import expert_slopes, memory_runs, unmapped_memory
from telekit.validation.planning import rankings, spearman, standings
from telekit.validation.runs import FEWEST_TO_SPLIT, GROUPS, published_runs, unmapped_rows
from telekit.validation.scoring import ScoredRow, constants, intervals, scored

WORST = 3
"""Rows of a group that are shown as its worst."""

SPLIT = (
    "A configuration is model, devices, sequence length, formats, degrees, ZeRO and micro-batch of a job, whatever "
    "source or release it is from. It is for fitting when the first byte of its SHA-256 is odd; groups of fewer than "
    f"{FEWEST_TO_SPLIT} configurations, unverified rows, and what shares a configuration with one of these are never "
    "fitted on."
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Score:
    """Errors of some rows: how many, of how many configurations, ``mape`` and ``bias``; None of no rows."""

    rows: int
    configurations: int
    mape: float | None
    bias: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "rows": self.rows, "configurations": self.configurations, "mape": self.mape, "bias": self.bias
        }  # fmt: skip


def score(found: Sequence[ScoredRow]) -> Score:
    """Errors of some rows."""
    errors = np.array([row.error for row in found])
    keys = {(row.group, row.configuration) for row in found}
    if not len(errors):
        return Score(0, 0, None, None)
    return Score(len(errors), len(keys), float(np.abs(errors).mean()), float(errors.mean()))


@dataclass(frozen=True)
class GroupScore:
    """One group of the scoreboard.

    Attributes
    ----------
    name, kind : str
        ``kind`` is ``step_time``, ``memory`` or ``kernel``.
    all, held_out, fitted : Score
        Verified rows: all, those held out, those that constants may have been fitted on.
    unverified : Score
        The rest, scored apart.
    rank_correlation : float or None
        Spearman's, of measured and estimated tokens a second and device (kernels: of seconds, memory: of bytes); None
        of fewer than three rows.
    worst : tuple of ScoredRow
        Largest errors, each with a likely reason.
    unmapped : dict of str to int
        Rows of the source that no job can say, by reason.
    said_not_to_fit : int
        Rows that ran, of which the estimate says that they do not fit their device.
    """

    name: str
    kind: str
    all: Score
    held_out: Score
    fitted: Score
    unverified: Score
    rank_correlation: float | None
    worst: tuple[ScoredRow, ...]
    unmapped: dict[str, int]
    said_not_to_fit: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the field names of ``telekit validate --json``."""
        return {
            "name": self.name,
            "kind": self.kind,
            **self.all.to_dict(),
            "rank_correlation": self.rank_correlation,
            "held_out": self.held_out.to_dict(),
            "fitted": self.fitted.to_dict(),
            "unverified": self.unverified.to_dict(),
            "worst": [row.to_dict() for row in self.worst],
            "unmapped": self.unmapped,
            "said_not_to_fit": self.said_not_to_fit,
        }


@dataclass(frozen=True)
class Scoreboard:
    """Every group, and what is made of them.

    ``rows`` are all the rows it stands on; ``whole`` says that it has every group: then plans are ranked too.
    """

    rows: tuple[ScoredRow, ...]
    groups: tuple[GroupScore, ...]
    whole: bool

    def of_kind(self, kind: str) -> tuple[ScoredRow, ...]:
        """Return the verified rows of one kind."""
        return tuple(row for row in self.rows if row.kind == kind and row.verified)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the field names of ``telekit validate --json`` and of ``data/scoreboard.json``."""
        steps = self.of_kind("step_time")
        return {
            "source": "telekit validate --write, over data/measurements",
            "split": SPLIT,
            "groups": [group.to_dict() for group in self.groups],
            "all": {
                **score(steps).to_dict(),
                "held_out": score([row for row in steps if not row.in_fit]).to_dict(),
                "fitted": score([row for row in steps if row.in_fit]).to_dict(),
                "said_not_to_fit": sum(not row.fits for row in steps),
            },
            **(_beyond() if self.whole else {name: [] for name in BEYOND}),
            "intervals": intervals(steps),
            "constants": constants(steps),
            "rows": [_point(row) for row in self.rows],
        }  # fmt: skip


def _point(row: ScoredRow) -> dict[str, Any]:
    """One row as a chart needs it: what was measured and estimated, and whether constants may know of it."""
    named = {name: getattr(row, name) for name in ("id", "group", "kind", "verified", "in_fit", "fits")}
    devices = None if row.job is None else row.job.cluster.devices
    return named | {"devices": devices, "measured": row.measured, "estimated": row.estimated}


BEYOND = ("planning", "best_plans", "columns", "expert_slopes", "closed_form", "left_out")
"""What only a whole scoreboard has."""


def expert_slope_errors() -> list[dict[str, Any]]:
    """Memory that a smaller EP adds to the fullest device, of dry runs that differ in EP alone."""
    ours = {row.id: row.estimated for row in scored("memory-dry-run", "memory")}
    found = []
    for few, many in expert_slopes():
        measured, estimated = few.measured_bytes - many.measured_bytes, ours[few.id] - ours[many.id]
        rows = {"id": few.id, "against": many.id, "measured_bytes": measured, "estimated_bytes": estimated}
        found.append(rows | {"error": estimated / measured - 1})
    return found


def _beyond() -> dict[str, Any]:
    return {
        "planning": [
            {
                "id": r.id,
                "source": r.source,
                "plans": len(r.measured_s),
                "spearman": r.spearman,
                "regret": r.regret,
                "odd": list(r.odd),
            }
            for r in rankings()
        ],
        "best_plans": [asdict(found) for found in standings()],
        "columns": [
            asdict(row) | {"points": row.mfu_points, "contradicts": row.contradicts} for row in column_rows()
        ],
        "expert_slopes": expert_slope_errors(),
        "closed_form": [asdict(gap) for gap in closed_form_gaps()],
        "left_out": [{"name": name, "reasons": reasons} for name, reasons in left_out().items()],
    }


def scoreboard(group: str | None = None, progress: Progress | None = None) -> Scoreboard:
    """Score every published run, or those of one group.

    Raises
    ------
    InputError
        A group with no such name.
    """
    names = group_names()
    if group is not None and group not in names:
        raise bad("group", group, "no such group", f"known: {', '.join(names)}")
    wanted = [(name, kind) for name, kind in names.items() if group in (None, name)]
    found: list[ScoredRow] = []
    for done, (name, kind) in enumerate(wanted):
        if progress is not None:
            progress(done, len(wanted), name)
        found += scored(name, kind)
    return Scoreboard(tuple(found), tuple(_group(name, kind, found) for name, kind in wanted), group is None)


@cache
def group_names() -> dict[str, str]:
    """Every group with its kind."""
    steps = [name for name in GROUPS if published_runs(name)]
    memory = [run.group for run in memory_runs()]
    kernels = [row.group for row in kernel_rows()]
    return (
        dict.fromkeys(steps, "step_time") | dict.fromkeys(memory, "memory") | dict.fromkeys(kernels, "kernel")
    )


LEFT_OUT = {"step_time": unmapped_rows, "memory": unmapped_memory, "kernel": unmapped_kernels}


def left_out() -> dict[str, dict[str, int]]:
    """Rows of the sources of which no row can be scored: how many, by source and reason."""
    found: dict[str, dict[str, int]] = {}
    for read in LEFT_OUT.values():
        for row in read():
            if row.group not in group_names():
                reasons = found.setdefault(row.group, {})
                reasons[row.reason] = reasons.get(row.reason, 0) + 1
    return found


def _group(name: str, kind: str, found: Iterable[ScoredRow]) -> GroupScore:
    every = [row for row in found if row.group == name]
    mine = [row for row in every if row.verified]
    worst = sorted(mine, key=lambda row: -abs(row.error))[:WORST]
    left = [row for row in LEFT_OUT[kind]() if row.group == name]
    return GroupScore(
        name,
        kind,
        score(mine),
        score([row for row in mine if not row.in_fit]),
        score([row for row in mine if row.in_fit]),
        score([row for row in every if not row.verified]),
        spearman([_ranked(row, row.measured) for row in mine], [_ranked(row, row.estimated) for row in mine]),
        tuple(worst),
        dict(Counter(row.reason for row in left)),
        sum(not row.fits for row in every),
    )


def _ranked(row: ScoredRow, value: float) -> float:
    return (
        row.job.train.tokens / (value * row.job.cluster.devices)
        if row.kind == "step_time" and row.job
        else value
    )


def scoreboard_path() -> Path:
    """Where the shipped scoreboard lies."""
    return catalog.root() / "scoreboard.json"


def write(board: Scoreboard, path: Path | None = None) -> Path:
    """Store a scoreboard; ``estimate`` reads its intervals from the shipped place.

    Raises
    ------
    TelekitError
        The file cannot be written.
    """
    path = path or scoreboard_path()
    text = json.dumps(_rounded(board.to_dict()), indent=1, ensure_ascii=False, allow_nan=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise TelekitError(f"cannot write {path}: {error.strerror}") from None
    return path


def _rounded(value: Any) -> Any:
    """Round numbers to six digits, so that a machine's last bits do not show in the file."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value
