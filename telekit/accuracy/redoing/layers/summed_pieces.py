"""A gradient of a weight that ranks hold pieces of, reduced over those ranks: every piece is the sum of all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.formula.formula import LEAST, own_side, relative
from telekit.accuracy.redoing.formula.orders import counts


def summed_piece_causes(case: Case) -> Iterator[Cause]:
    """Try the sum (or mean) of the pieces of what went into a reduction in the place of each of them."""
    t, g = case.target, case.golden
    if t is None or g is None or case.phase != BACKWARD or "reduce" not in case.words:
        return
    for known in case.inputs:
        if (
            known.golden is None
            or known.golden.shape != g.shape
            or relative(known.golden, g) > max(LEAST, case.noise)
        ):
            continue
        own = own_side(known)
        for (n, name), axis, blocks in product(counts(case), range(g.ndim), (1, 2)):
            if g.shape[axis] % (n * blocks):
                continue
            total = _summed(own, axis, n, blocks)
            for how, value in (("sum", total), ("mean", total / n)):
                left = relative(value, t)
                if left <= max(LEAST, case.noise) and left < relative(own, t) / 3:
                    of = f" of {name}" if name else ""
                    yield Cause(
                        kinds.DOUBLE_REDUCTION,
                        0.95,
                        f"each of {n} pieces of axis {axis} is the {how} of all of them ({left:.2g} is left): reduced "
                        f"over ranks{of} that hold different pieces of the weight",
                    )
                    return


def _summed(x: Floats, axis: int, n: int, blocks: int) -> Floats:
    """Put the sum of n pieces in the place of each; ``blocks`` are each dealt (2 for gate and up)."""
    split = x.reshape(*x.shape[:axis], blocks, n, x.shape[axis] // (blocks * n), *x.shape[axis + 1 :])
    total = split.sum(axis=axis + 1, keepdims=True)
    return np.asarray(np.broadcast_to(total, split.shape).reshape(x.shape))
