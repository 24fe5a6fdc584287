"""What many trials said together: a row for each operator, dtype and standard, with the parts that led to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from telekit.accuracy.standards.operator_rules import ASCEND_CASES
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, Part, Verdict, worst
from telekit.errors import bad

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = {f"ascend-dual-l{i}": count for i, count in enumerate(ASCEND_CASES)}


@dataclass(frozen=True)
class PartTotal:
    """One part of a standard over all trials.

    Attributes
    ----------
    output, name, rule : str
        Of which output, what was looked at, what passes. The rule is that of the worst trial.
    judged, warned, failed : int
        Trials in which it applied, warned, and failed.
    worst : object
        Its value in the worst trial: the largest, or the smallest where the rule wants more; None if not defined.
    worst_trial : int
        Which trial that was; -1 if the part never applied.
    note : str
        What the worst trial says.
    """

    output: str
    name: str
    rule: str
    judged: int
    warned: int
    failed: int
    worst: Any
    worst_trial: int
    note: str


@dataclass(frozen=True)
class Row:
    """An operator in a dtype by a standard.

    Attributes
    ----------
    result : str
        The worst of all trials; ``skip`` if no part ever applied.
    trials, passed, warned, failed, skipped : int
        How many there were, and their results.
    first_failed : int or None
        Number of the first trial that failed; `telekit.accuracy.numerics.harness.trials` makes it again.
    required : int or None
        Trials the standard asks for, if it does.
    parts : tuple of PartTotal
        What led to it.
    """

    operator: str
    dtype: str
    standard: str
    result: str
    trials: int
    passed: int
    warned: int
    failed: int
    skipped: int
    first_failed: int | None
    required: int | None
    parts: tuple[PartTotal, ...]

    @property
    def enough(self) -> bool:
        """Whether there were as many trials as the standard asks for."""
        return self.required is None or self.trials >= self.required

    def part(self, name: str, output: str = "") -> PartTotal:
        """Return a part by name, of the first output if none is named; KeyError if there is none."""
        for part in self.parts:
            if part.name == name and output in ("", part.output):
                return part
        raise KeyError(name)


@dataclass(frozen=True)
class Table:
    """Rows, and how the trials were drawn."""

    rows: tuple[Row, ...]
    seed: int
    values: tuple[str, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def row(self, operator: str, dtype: str, standard: str) -> Row:
        """Return one row.

        Raises
        ------
        InputError
            If there is none.
        """
        for row in self.rows:
            if (row.operator, row.dtype, row.standard) == (operator, dtype, standard):
                return row
        raise bad("row", f"{operator}, {dtype}, {standard}", "the table has no such row")

    def frame(self) -> pd.DataFrame:
        """Make a table of the rows without their parts; ``failing`` names the parts that failed."""
        import pandas as pd

        records = []
        for row in self.rows:
            plain = {k: v for k, v in asdict(row).items() if k != "parts"}
            failing = [f"{p.output}: {p.name}" for p in row.parts if p.failed]
            records.append(plain | {"enough": row.enough, "failing": ", ".join(failing)})
        return pd.DataFrame(records)

    def parts_frame(self) -> pd.DataFrame:
        """Make a table of all parts, each with its row's operator, dtype and standard."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"operator": r.operator, "dtype": r.dtype, "standard": r.standard} | asdict(p)
                for r in self.rows
                for p in r.parts
            ]
        )


@dataclass
class Tally:
    """Verdicts of one row while trials run."""

    operator: str
    dtype: str
    standard: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((PASS, WARNING, ERROR, SKIP), 0))
    first_failed: int | None = None
    _parts: dict[tuple[str, str], _PartTally] = field(default_factory=dict)

    def add(self, trial: int, verdicts: dict[str, Verdict]) -> None:
        """Add the verdicts of a trial, by output."""
        result = worst(v.result for v in verdicts.values())
        self.counts[result] += 1
        if result == ERROR and self.first_failed is None:
            self.first_failed = trial
        for output, verdict in verdicts.items():
            for part in verdict.parts:
                self._parts.setdefault((output, part.name), _PartTally()).add(trial, part)

    def row(self) -> Row:
        """Close the row."""
        trials, required = sum(self.counts.values()), REQUIRED.get(self.standard)
        parts = [t.total(output, name) for (output, name), t in self._parts.items() if name != "cases"]
        if required is not None:
            parts.append(_cases(trials, required))
        return Row(
            self.operator,
            self.dtype,
            self.standard,
            result=worst(r for r, n in self.counts.items() if n),
            trials=trials,
            passed=self.counts[PASS],
            warned=self.counts[WARNING],
            failed=self.counts[ERROR],
            skipped=self.counts[SKIP],
            first_failed=self.first_failed,
            required=required,
            parts=tuple(parts),
        )


def _cases(trials: int, required: int) -> PartTotal:
    note = "" if trials >= required else "too few for the standard: only a sample"
    return PartTotal("", "cases", f">= {required}", int(trials >= required), 0, 0, trials, -1, note)


@dataclass
class _PartTally:
    judged: int = 0
    warned: int = 0
    failed: int = 0
    worst: Part | None = None
    trial: int = -1

    def add(self, trial: int, part: Part) -> None:
        if part.result != SKIP:
            self.judged += 1
            self.warned += part.result == WARNING
            self.failed += part.result == ERROR
        if self.worst is None or _badness(part) > _badness(self.worst):
            self.worst, self.trial = part, trial

    def total(self, output: str, name: str) -> PartTotal:
        assert self.worst is not None
        own = self.worst
        trial = self.trial if self.judged or own.value is not None else -1
        return PartTotal(
            output, name, own.rule, self.judged, self.warned, self.failed, own.value, trial, own.note
        )


def _badness(part: Part) -> tuple[int, float]:
    """Order results first, then values: the smaller is worse where the rule wants more."""
    rank = (SKIP, PASS, WARNING, ERROR).index(part.result)
    if isinstance(part.value, bool) or not isinstance(part.value, int | float):
        return rank, float("-inf")
    value = float(part.value)
    return rank, -value if part.rule.split(" ")[0].startswith(
        ">"
    ) or " > " in part.rule or ">=" in part.rule else value
