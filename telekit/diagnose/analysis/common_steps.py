"""Steps that the ranks of a run can be compared in, though some lack some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.steps import Steps
from telekit.diagnose.trace import Floats, Trace

MOST_NOTES = 5
"""Ranks named one by one."""


@dataclass(frozen=True, eq=False)
class Common:
    """Steps compared, and who has them.

    Parameters
    ----------
    number : (steps,) int array
        Ascending.
    column : (ranks, steps) int array
        Index of each in each rank's steps; of no meaning where not ``present``.
    present : (ranks, steps) bool array
        Which ranks have which complete.
    """

    number: NDArray[np.int64]
    column: NDArray[np.int64]
    present: NDArray[np.bool_]

    def filled(self, values: Floats) -> Floats:
        """Put a rank's median over its steps where it lacks one; that of all ranks where it has none.

        Values are of ranks by steps (by more). So what is normal of a rank stays normal; what steps show is judged
        where they are present only.
        """
        if self.present.all():
            return values
        found = values.copy()
        for row in np.flatnonzero(~self.present.all(axis=1)):
            mine = self.present[row]
            usual = (
                np.median(values[row, mine], axis=0)
                if mine.any()
                else np.median(values[self.present], axis=0)
            )
            found[row, ~mine] = usual
        return found


def common(steps: Sequence[Steps]) -> Common:
    """Choose the steps to compare.

    Those that all ranks have complete, and of those inside a rank's trace also those that it lacks, while most have
    them. At the ends of traces profilers start and stop unevenly: there a step that one lacks is left out for all,
    unless over half would be. Then those that half of the ranks have count, and without any those that two have.
    """
    if not steps:
        return Common(np.zeros(0, np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), bool))
    number, have = _complete(steps)
    seen = np.stack([np.isin(number, s.number[~s.missing]) for s in steps])
    first = np.array([s.number.min(initial=0) for s in steps])[:, None]
    last = np.array([s.number.max(initial=0) for s in steps])[:, None]
    hole = ~seen & (number > first) & (number < last)
    often = _often(have)
    strict = often & (have | hole).all(axis=0)
    pick = strict if 2 * strict.sum() >= often.sum() and strict.any() else often
    if not pick.any():
        pick = have.sum(axis=0) >= min(2, len(steps))
    columns = [np.minimum(np.searchsorted(s.number, number[pick]), max(len(s.number) - 1, 0)) for s in steps]
    return Common(number[pick], np.stack(columns), have[:, pick])


def renumbered(steps: Sequence[Steps], names: Sequence[str]) -> tuple[list[Steps], list[str]]:
    """Give ranks that count their steps otherwise (no number in common with the others) the others' numbers, by place.

    Also returns notes that say so. Where no number is common to half of the ranks, all are counted by place, unless
    some have a number in common: then nothing tells which count otherwise.
    """
    number, have = _complete(steps)
    most = number[_often(have)]
    if len(steps) < 2 or (not len(most) and (have.sum(axis=0) > 1).any()):
        return list(steps), []
    if not len(most):
        most = next((s.number[s.complete] for s in steps if s.complete.any()), most)
    found, notes = [], []
    for one, name in zip(steps, names, strict=True):
        mine = one.number[one.complete]
        if len(mine) and not np.isin(mine, most).any() and len(most):
            by = int(most[0] - mine[0])
            notes.append(
                f"{name} counts its steps from {mine[0]}, others from {most[0]}: they are compared by their place"
            )
            one = replace(one, number=one.number + by)
        found.append(one)
    return found, _shortened(notes, "count their steps otherwise too")


def lacking(steps: Sequence[Steps], names: Sequence[str]) -> list[str]:
    """Say which steps are not in which rank's trace, and which in none's."""
    everyone = np.unique(np.concatenate([s.seen for s in steps] or [np.zeros(0, np.int64)]))
    notes = []
    for one, name in zip(steps, names, strict=True):
        absent = np.setdiff1d(everyone, one.seen)
        begun = absent[absent == one.seen.max(initial=-2) + 1] if one.unfinished.any() else absent[:0]
        absent = np.setdiff1d(absent, begun)
        said = [f"{_listed(absent)} not in its trace"] if len(absent) else []
        said += [f"{_listed(begun)} not finished there"] if len(begun) else []
        notes += [f"{name}: {', '.join(said)}"] if said and len(one.seen) else []
    holes = {(int(s.number[i]), int(s.number[i + 1]) - 1) for s in steps for i in np.flatnonzero(s.missing)}
    nobody = sorted((a, b) for a, b in holes if not ((everyone >= a) & (everyone <= b)).any())
    shown = [f"step {a} is in no trace" if a == b else f"steps {a} to {b} are in no trace" for a, b in nobody]
    return [*_shortened(notes, "lack steps too"), *shown[:MOST_NOTES]]


def rank_names(traces: Sequence[Trace]) -> list[str]:
    """Name traces in notes."""
    return [f"rank {i if t.rank is None else t.rank}" for i, t in enumerate(traces)]


def _complete(steps: Sequence[Steps]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Numbers of steps that any rank has complete, and which rank has which."""
    whole = [s.number[s.complete] for s in steps]
    number = np.unique(np.concatenate(whole or [np.zeros(0, np.int64)]))
    have = [np.isin(number, w) for w in whole]
    return number, np.stack(have) if have else np.zeros((0, len(number)), bool)


def _often(have: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which steps half of the ranks have, two at least where there are two."""
    return np.asarray(have.sum(axis=0) >= max(len(have) / 2, min(2, len(have))))


def _shortened(notes: list[str], more: str) -> list[str]:
    rest = len(notes) - MOST_NOTES
    return notes if rest <= 1 else [*notes[:MOST_NOTES], f"{rest} more ranks {more}"]


def _listed(numbers: NDArray[np.int64]) -> str:
    """Write numbers of steps, with their verb: ``step 3 is``, ``steps 3, 5 to 7 are``."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    words = [str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs]
    shown = ", ".join(words[:6]) + (", …" if len(words) > 6 else "")
    return f"step {shown} is" if len(numbers) == 1 else f"steps {shown} are"
