"""Tokens that miss rows of their experts: dropped over capacity, or not received."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import FORWARD
from telekit.accuracy.measures.pairs import Floats

_LEAST_WIDTH = 8  # a narrower difference is near a multiple of some row by chance
_EXPERTS = ("combine", "unpermute", "dispatch", "expert", "moe")


def drop_causes(case: Case) -> Iterator[Cause]:
    """Try tokens that miss one or more of their experts' rows, each with its weight: dropped, not combined.

    Golden's rows before the combination are known, in whatever order; each token's difference must be minus a weight
    times one of them (or a sum of as many as a token has experts).
    """
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != FORWARD or g.ndim < 2 or not any(w in case.words for w in _EXPERTS):
        return
    d = (t - g).reshape(-1, g.shape[-1])
    size = np.linalg.norm(g.reshape(d.shape), axis=1)
    bad = np.flatnonzero(np.linalg.norm(d, axis=1) > max(case.noise, 1e-6) * np.maximum(size, 1e-30))
    tables = [k.golden for k in case.inputs if k.golden is not None and k.golden.shape[-1:] == g.shape[-1:]]
    known = [k.golden for k in case.inputs if k.golden is not None]
    weights = [a.reshape(len(d), -1) for a in known if a.shape[:-1] == g.shape[:-1] and a.shape != g.shape]
    if not 0 < bad.size < len(d) or g.shape[-1] < _LEAST_WIDTH or not weights:
        return
    for table in tables:
        rows = table.reshape(-1, g.shape[-1])
        if len(rows) < len(d) or rows.size * bad.size > 1 << 28:
            continue
        missing = [_missing_rows(d[b], rows, weights[0][b], max(case.noise, 1e-3)) for b in bad]
        share = float(np.mean([m > 0 for m in missing]))
        if share >= 0.9:
            text = f"{bad.size} of {len(d)} tokens miss {sum(missing)} weighted rows of their experts, and nothing else"
            yield Cause(kinds.DROPPED, 0.95 * share, f"{text}: dropped (over capacity), or not received")
            return


def _missing_rows(difference: Floats, rows: Floats, weights: Floats, noise: float) -> int:
    """How many weighted rows must be taken away to explain a token's difference; 0 where they do not."""
    left = -difference
    whole, squares = float(np.linalg.norm(left)), (rows * rows).sum(axis=1)
    for used in range(1, weights.size + 1):
        change = weights[:, None] * (
            weights[:, None] * squares - 2 * (rows @ left)
        )  # of the square that is left
        which, row = np.unravel_index(int(change.argmin()), change.shape)
        left = left - weights[which] * rows[row]
        if float(np.linalg.norm(left)) <= max(5 * noise, 0.1) * whole:
            return used
    return 0
