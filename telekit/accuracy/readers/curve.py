"""A training curve: for each step the loss and whatever else the run logged."""

from __future__ import annotations

import math
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
    """

    steps: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[np.float64]] = field(repr=False)
    present: dict[str, npt.NDArray[np.bool_]] = field(repr=False)
    source: str = ""
    kind: str = ""
    notes: tuple[ReadProblem, ...] = ()

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
        """The column that is the language model's loss: by its name, else the only one there is."""
        return self._called(LOSS) or (next(iter(self.columns)) if len(self.columns) == 1 else None)

    @property
    def grad_norm(self) -> str | None:
        """The column that is the norm of the gradient."""
        return self._called(GRAD_NORM)

    def _called(self, names: tuple[str, ...]) -> str | None:
        lower = {name.lower(): name for name in self.columns}
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
        return LossCurve(steps, columns, present, self.source, self.kind, self.problems.listed())
