"""A training curve: for each step the loss and whatever else the run logged."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from telekit.accuracy.readers.problems import Problems, ReadProblem
from telekit.errors import bad

MAX_STEPS = 20_000_000
"""Of all columns together: larger files are refused before memory is."""
LOSS = (
    "lm loss",
    "lm_loss",
    "lm-loss",
    "loss",
    "train_loss",
    "train/loss",
    "train loss",
    "training loss",
    "value",
)
GRAD_NORM = (
    "grad norm",
    "grad-norm",
    "grad_norm",
    "global_norm",
    "global norm",
    "train/grad_norm",
    "gradient norm",
)

EVALUATION = frozenset(("eval", "evaluation", "val", "valid", "validation", "test", "dev", "heldout"))
"""Words in the name of a loss that is not the training's."""
_NAN = re.compile(r"[+-]?(?:nanq?(?:\(\w*\))?|1\.#(?:ind|qnan|snan)\d*)", re.IGNORECASE)
_INFINITE = re.compile(r"[+-]?(?:1\.#)?inf(?:inity)?\d*", re.IGNORECASE)


def as_number(text: str) -> float | None:
    """Return the number that a log's text is, None where it is none.

    NaN and infinity are read as C libraries write them: ``nan``, ``-nan(ind)``, ``1.#QNAN``, ``Infinity``, ``1.#INF``.
    """
    plain = text.strip()
    if _NAN.fullmatch(plain):
        return math.nan
    if _INFINITE.fullmatch(plain):
        return -math.inf if plain.startswith("-") else math.inf
    try:
        return None if "_" in plain else float(plain)
    except ValueError:
        return None


def of_evaluation(name: str) -> bool:
    """Whether a column's name says that it was measured on held-out data."""
    return not EVALUATION.isdisjoint(re.split(r"[^a-z]+", name.lower()))


@dataclass(frozen=True)
class LossCurve:
    """Columns over steps.

    Parameters
    ----------
    steps : ndarray of int64
        Ascending, each once.
    columns : dict of str to ndarray of float64
        By the names of the file; NaN where a step has no value or the value is NaN.
    present : dict of str to ndarray of bool
        Where a step has a value: a NaN that is present was logged as NaN.
    source : str
        The file or folder.
    kind : str
        golden, tensorboard, csv, megatron or mindformers.
    notes : tuple of ReadProblem
        What was not read or doubtful: lines left out, steps logged twice.
    unread : dict of str to int
        How many values of a column stand in the file and are no numbers.
    """

    steps: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[np.float64]] = field(repr=False)
    present: dict[str, npt.NDArray[np.bool_]] = field(repr=False)
    source: str = ""
    kind: str = ""
    notes: tuple[ReadProblem, ...] = ()
    unread: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def broken(self) -> str:
        """The first thing for which part of the file was left out; empty where all of it was read."""
        return next((str(note) for note in self.notes if note.lost), "")

    def series(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return steps and values of a column, only where it has values.

        Raises
        ------
        InputError
            No such column; the columns there are named.
        """
        if name not in self.columns:
            raise bad(
                "column", name, "is not in the file", f"one of {', '.join(self.columns)}", source=self.source
            )
        here = self.present[name]
        return self.steps[here], self.columns[name][here]

    @property
    def loss(self) -> str | None:
        """The column that is the language model's loss: by its name, the training's first, else the only one."""
        return self._called(LOSS) or (next(iter(self.columns)) if len(self.columns) == 1 else None)

    @property
    def grad_norm(self) -> str | None:
        """The column that is the norm of the gradient."""
        return self._called(GRAD_NORM)

    def _called(self, names: tuple[str, ...]) -> str | None:
        lower = {name.lower(): name for name in sorted(self.columns, key=of_evaluation)}
        exact = next((lower[name] for name in names if name in lower), None)
        ends = (
            real for want in names for low, real in lower.items() if low.endswith((f"/{want}", f" - {want}"))
        )
        return exact or next(ends, None)


class CurveBuilder:
    """Collects values in the order of the file; of a step logged twice the last value stays, as after a resume."""

    def __init__(self, source: str | Path, kind: str, problems: Problems) -> None:
        self.source, self.kind, self.problems = str(source), kind, problems
        self._values: dict[str, dict[int, float]] = {}
        self._count = 0
        self._again: dict[str, list[int]] = {}
        self._unread: dict[str, int] = {}

    def add(self, name: str, step: int, value: float) -> None:
        """Take one value.

        Raises
        ------
        InputError
            A step that is no count, or more values than ``MAX_STEPS``.
        """
        if not 0 <= step < 2**62:
            raise bad("step", step, "is not a count", source=self.source)
        column = self._values.setdefault(name, {})
        if step in column:
            self._again.setdefault(name, []).append(step)
        else:
            self._count += 1
            if self._count > MAX_STEPS:
                raise bad("values", f"{MAX_STEPS:,}", "are read at most", source=self.source)
        column[step] = value

    def unread(self, name: str, place: str, what: str) -> None:
        """Note a value that stands in the file and is no number."""
        self._unread[name] = self._unread.get(name, 0) + 1
        self.problems.add(self.source, place, what)

    def __len__(self) -> int:
        return self._count

    def curve(self) -> LossCurve:
        """Return the curve.

        Raises
        ------
        InputError
            Nothing was read.
        """
        if not self._values:
            raise bad("values", 0, "could be read of any step", source=self.source)
        for name, again in self._again.items():
            some = ", ".join(str(step) for step in again[:3])
            self.problems.add(
                self.source, name, f"{len(again)} steps are logged again ({some}…): the last value stays"
            )
        steps = np.array(sorted(set().union(*self._values.values())), np.int64)
        columns, present = {}, {}
        for name, values in self._values.items():
            column = np.full(steps.size, math.nan)
            at = np.searchsorted(steps, np.fromiter(values, dtype=np.int64, count=len(values)))
            column[at] = np.fromiter(values.values(), dtype=np.float64, count=len(values))
            here = np.zeros(steps.size, dtype=np.bool_)
            here[at] = True
            columns[name], present[name] = column, here
        return LossCurve(
            steps, columns, present, self.source, self.kind, self.problems.listed(), self._unread
        )
