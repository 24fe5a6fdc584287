"""Right values in other places: axes swapped, rolled, an offset in memory, rows that are other rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_orders import flat_shift
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.formula.orders import as_rows, counts, dealt

_MOST_ROWS = 1 << 11


def moved(own: Floats, t: Floats, reach: float, case: Case) -> Iterator[Cause]:
    """Find the right rows in another order: axes swapped without moving the elements, rolled, or otherwise."""
    if t.ndim < 2 or np.unique(own[:64]).size < 8:
        return
    for text, value in _orders(own, case):
        if near(value, t, reach):
            yield Cause(kinds.PERMUTATION, 0.96, f"the elements stand in another order: {text}")
            return
    by = flat_shift(own, t, reach)
    if by is not None:
        where = f"{abs(by)} {'later' if by > 0 else 'earlier'} in memory"
        text = f"each stands {where}: an offset, or a padding counted or not"
        yield Cause(kinds.PERMUTATION, 0.95, f"the elements stand in another order: {text}")
        return
    if t.shape[-1] < 4 or t.size // t.shape[-1] > _MOST_ROWS:
        return
    a, b = as_rows(t), as_rows(own)
    probe = np.random.default_rng(0).standard_normal((b.shape[1], 4))
    order = np.square((a @ probe)[:, None] - (b @ probe)[None]).sum(axis=-1).argmin(axis=1)
    if np.array_equal(order, np.arange(len(a))) or not near(b[order], a, reach):
        return
    others = int((order != np.arange(len(a))).sum())
    if np.unique(order).size == len(order):
        text = (
            f"{others} of {len(a)} rows stand in another order, each is another row's: {order[:8].tolist()}…"
        )
        yield Cause(kinds.PERMUTATION, 0.94, text)
    else:
        text = f"{others} of {len(a)} rows are other rows, {len(a) - np.unique(order).size} of those are lost"
        yield Cause(kinds.DUPLICATED, 0.9, f"{text}: rows {order[:8].tolist()}…")


def _orders(own: Floats, case: Case) -> Iterator[tuple[str, Floats]]:
    axes = [a for a in range(own.ndim) if own.shape[a] > 1]
    for axis in axes:
        for by in (1, -1, 2, -2):
            if own.shape[axis] > 2 * abs(by):
                yield f"axis {axis} rolled by {by:+d}", np.roll(own, by, axis=axis)
        yield f"axis {axis} reversed", np.flip(own, axis=axis)
    rows = own.reshape(-1, own.shape[-1])
    for by in (1, -1):
        yield f"rows rolled by {by:+d} through all tokens", np.roll(rows, by, axis=0).reshape(own.shape)
    if own.ndim > 4:
        return
    pieces = [(1, 0, "")]
    for n, name in counts(case):
        pieces += [(n, a, f", in each of {n} pieces of axis {a}{dealt(name, a, own.ndim)}") for a in (0, 1)]
    for n, axis, said in pieces:
        if axis >= own.ndim - 1 or own.shape[axis] % n:
            continue
        for order in permutations(range(own.ndim)):
            if order == tuple(range(own.ndim)):
                continue
            named = f"axes {order} of the tensor read as its own{said}"
            parts = np.split(own, n, axis=axis)
            yield named, np.concatenate([p.transpose(order).reshape(p.shape) for p in parts], axis=axis)


def near(value: Floats, t: Floats, reach: float) -> bool:
    """Whether a hypothesis leaves no more than so much of the target, relative."""
    rest = float(np.linalg.norm((value - t).ravel()))
    return bool(np.isfinite(rest)) and rest <= reach * float(np.linalg.norm(t.ravel()))
