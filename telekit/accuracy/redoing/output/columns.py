"""Tensors that are nothing but columns of others put side by side (a split, a join): which columns went where.

Columns are copied, not computed, so they are compared to the bit, whatever the precision of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.cause_orders import permutation_causes
from telekit.accuracy.causes.cause_values import dtype_causes, ratio_causes
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.formula.formula import LEAST
from telekit.accuracy.redoing.output.values import done_to

MAX_ELEMENTS = 1 << 22
_LEAST_ROWS = 8  # fewer tokens may be alike by chance
_MOST_SAID = 3
Column = tuple[int, int]
"""Which of the known tensors, and which of its columns."""


def column_causes(case: Case) -> Iterator[Cause]:
    """Find columns of other tensors that stand in other places than golden's, or what was done to them on the way."""
    t, found = case.target, joined(case)
    assert t is not None
    if found is None or np.array_equal(found.right, t):
        return
    own = [_columns(a) for a in found.own]
    used = {at for at, _ in found.meant}
    stands = _found(_columns(t), {key: c for key, c in _places(own).items() if c[0] in used})
    if stands is not None:
        yield _said(found, stands, _columns(t))
        return
    several = len({at for at, _ in found.meant}) > 1
    of = (
        "the columns it is joined of"
        if several
        else f"what golden takes from {found.sources[found.meant[0][0]].name}"
    )
    bare = replace(case, golden=found.right, inputs_error=0.0)
    for detector in (ratio_causes, permutation_causes, dtype_causes):
        for cause in detector(bare):
            yield Cause(cause.kind, cause.confidence, f"against {of}, {cause.text}")
    for cause in islice(done_to(found.right, t, max(LEAST, case.epsilon / 2), case), 1):
        yield Cause(cause.kind, cause.confidence, f"of {of}, {cause.text}")


@dataclass(frozen=True)
class Joined:
    """A tensor that golden joins of columns of others.

    Attributes
    ----------
    sources : sequence of Known
    own : sequence of ndarray
        The target's side of them.
    meant : list of (int, int)
        For each column its source and the column of that.
    right : ndarray
        What joining the target's own columns gives.
    """

    sources: Sequence[Known]
    own: Sequence[Floats]
    meant: list[Column]
    right: Floats


def joined(case: Case) -> Joined | None:
    """Return the columns that golden's tensor is joined of; None where some stand in no tensor near it."""
    t, g = case.target, case.golden
    if t is None or g is None or t.shape != g.shape or g.ndim < 2 or g.size > MAX_ELEMENTS:
        return None
    if int(np.prod(rows_of(g))) < _LEAST_ROWS or not np.isfinite(t).all():
        return None
    sides = [
        (k, k.target, k.golden)
        for k in reversed((*case.near, *case.inputs))
        if k.golden is not None and k.target is not None and k.target.shape == k.golden.shape
    ]
    sides = [s for s in sides if rows_of(s[2]) == rows_of(g) and s[2].size <= MAX_ELEMENTS]
    meant = _found(_columns(g), _places([_columns(golden) for _, _, golden in sides]))
    if meant is None:
        return None
    own = [target for _, target, _ in sides]
    columns = [_columns(a) for a in own]
    right = np.stack([columns[at][j] for at, j in meant]).T.reshape(t.shape)
    return Joined([k for k, _, _ in sides], own, meant, right)


def rows_of(array: Floats) -> tuple[int, ...]:
    """Return the axes of tokens: the first two, or the first of a matrix."""
    return array.shape[: min(2, array.ndim - 1)]


def _columns(array: Floats) -> Floats:
    """Columns over all tokens, (columns, tokens): heads and their elements count as columns of one row."""
    return np.ascontiguousarray(array.reshape(int(np.prod(rows_of(array))), -1).T)


def _places(tensors: Sequence[Floats]) -> dict[bytes, Column]:
    """Where each column is to be found: the first tensor that has it counts; one value throughout tells nothing."""
    found: dict[bytes, Column] = {}
    for at, columns in enumerate(tensors):
        for j, column in enumerate(columns):
            if np.ptp(column):
                found.setdefault(column.tobytes(), (at, j))
    return found


def _found(columns: Floats, places: dict[bytes, Column]) -> list[Column] | None:
    found = [places.get(column.tobytes()) for column in columns]
    return None if None in found else [c for c in found if c is not None]


def _said(found: Joined, stands: list[Column], there: Floats) -> Cause:
    meant, right = found.meant, _columns(found.right)
    moved = [i for i in range(len(there)) if not np.array_equal(right[i], there[i])]
    runs = [moved[:1]]
    for before, after in pairwise(moved):
        together = after == before + 1 and all(_next(side[before], side[after]) for side in (meant, stands))
        runs = [*runs[:-1], [*runs[-1], after]] if together else [*runs, [after]]
    said = [
        f"columns {run[0]} to {run[-1]} are {_name(stands[run[0]], found)} where golden's are "
        f"{_name(meant[run[0]], found)}"
        for run in runs[:_MOST_SAID]
    ]
    more = f", and {len(runs) - _MOST_SAID} more" if len(runs) > _MOST_SAID else ""
    kind = kinds.PERMUTATION if len(set(stands)) == len(set(meant)) else kinds.DUPLICATED
    text = f"{len(moved)} columns are copied from other places, to the bit: {'; '.join(said)}{more}"
    return Cause(kind, 0.97, text)


def _next(a: Column, b: Column) -> bool:
    return b == (a[0], a[1] + 1)


def _name(column: Column, found: Joined) -> str:
    return f"those from {column[1]} on of {found.sources[column[0]].name}"
