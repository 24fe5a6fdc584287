"""How far off an estimate may be: the errors of published runs like it, from ``data/scoreboard.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from telekit import catalog
from telekit.job import Job

FORMATS = {"fp32": "32-bit", "bf16": "16-bit", "fp16": "16-bit", "fp8": "8-bit", "fp4": "4-bit"}
"""Classes of precision that published runs are told apart by."""


@dataclass(frozen=True)
class Interval:
    """Where measured times of like runs lie, as multiples of the estimate.

    Attributes
    ----------
    low, high : float
        Measured over estimated: eight of ten runs of a further source should lie between.
    configurations, sources : int
        That it stands on; each source has the same weight.
    of : str
        Which runs they are.
    """

    low: float
    high: float
    configurations: int
    sources: int
    of: str

    @property
    def said(self) -> str:
        """Which runs it stands on, in words."""
        return f"{self.of}: {self.configurations} held-out configurations of {self.sources} sources"

    def of_seconds(self, seconds: float) -> tuple[float, float]:
        """Interval around an estimate of so many seconds."""
        return self.low * seconds, self.high * seconds


def kind_of(job: Job) -> tuple[str, str, str]:
    """Device, kind of model and class of precision: what tells published runs apart."""
    model = "dense" if job.model.moe is None else "moe"
    return job.cluster.device.name, model, FORMATS[job.train.precision]


def interval(job: Job, board: Mapping[str, Any] | None = None) -> Interval | None:
    """Find the errors of the runs most like a job; None where no scoreboard is shipped.

    ``board`` is the scoreboard's plain data; None reads the shipped one. Runs of the same device, kind of model and
    precision count first, then of the same device and kind, then of the same kind on any device.
    """
    if board is None:
        board = _board()
    known = {(i["device"], i["model"], i["precision"]): i for i in board.get("intervals", ())}
    for key in likeness(*kind_of(job)):
        if key in known:
            found = known[key]
            return Interval(**{field.name: found[field.name] for field in fields(Interval)})
    return None


USUAL_RANKING_ERROR = 0.03
"""Taken where no scoreboard is shipped."""


def ranking_error(board: Mapping[str, Any] | None = None) -> float:
    """Say what choosing by the estimate lost at most in published rankings of layouts: nearer plans are a tie.

    ``board`` is the scoreboard's plain data; None reads the shipped one.
    """
    lost = [row["regret"] for row in (_board() if board is None else board).get("planning", ())]
    return max(lost, default=USUAL_RANKING_ERROR)


def _board() -> Mapping[str, Any]:
    path = catalog.root() / "scoreboard.json"
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else {}


@lru_cache(maxsize=1)
def _read(path: Path, changed_ns: int) -> Mapping[str, Any]:
    """Read it once, and again when the file has changed."""
    found: Mapping[str, Any] = catalog.load(path)
    return found


def likeness(
    device: str, model: str, precision: str
) -> tuple[tuple[str | None, str | None, str | None], ...]:
    """Keys of the groups that a run belongs to, nearest first; None stands for any.

    Runs of the other kind of model on the same device say less than runs of this kind on others.
    """
    return (
        (device, model, precision),
        (device, model, None),
        (None, model, precision),
        (None, model, None),
        (device, None, None),
        (None, None, None),
    )
