"""What the optimizer did, read back from weights and states before and after: lr, decay, betas, eps, corrections.

Each side's own numbers are fitted on its own tensors, so that a wrong gradient does not look like a wrong optimizer.
AdamW: ``m' = b1 m + (1 - b1) g``, ``v' = b2 v + (1 - b2) g^2``,
``p' = p - lr wd p - lr (m' / (1 - b1^t)) / (sqrt(v' / (1 - b2^t)) + eps)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.checks.grids import coarser_grid
from telekit.accuracy.compared import INPUT, OUTPUT
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import optimizer_row
from telekit.accuracy.measures.pairs import Floats

_STATES = ("grad", "parameter", "exp_avg", "exp_avg_sq")
_SAMPLE = 1 << 15  # elements of a tensor that are fitted: a few coefficients need no more
_SAME_MOMENT, _SAME_STEP = 1e-3, 2e-5  # relative: how far nine in ten elements agree where settings do
_COUPLED = 5e-3  # of a moment: what a fit with the weight in it may leave
States = tuple[dict[str, Floats], dict[str, Floats]]


@dataclass(frozen=True)
class Fitted:
    """What one side's optimizer did to one parameter.

    Attributes
    ----------
    keep1, take1, keep2, take2 : float
        ``m' = keep1 m + take1 g``, ``v' = keep2 v + take2 g^2``; nan where the state before is all zero.
    decay, rate : float
        ``p' - p = -decay p - rate m' / (sqrt(v') + eps)``: decay is ``lr wd``, rate is
        ``lr sqrt(1 - b2^t) / (1 - b1^t)``.
    eps : float
        Best of a grid, on the scale of ``sqrt(v')``.
    coupled : float
        Share of the weight in ``m'``: decay that went into the gradient.
    left : tuple of float
        What each of the three fits leaves, relative.
    moved : tuple of ndarray
        Weight before and after, and the moments after: to try another eps on.
    """

    keep1: float
    take1: float
    keep2: float
    take2: float
    decay: float
    rate: float
    eps: float
    coupled: float
    left: tuple[float, float, float]
    moved: tuple[Floats, Floats, Floats, Floats]

    def left_with(self, eps: float) -> float:
        """Return what the fit of the step leaves with a given eps."""
        return float(_with_eps(*self.moved, np.array([eps]))[1][0])


def fit(before: dict[str, Floats], after: dict[str, Floats]) -> Fitted | None:
    """Fit one side; None where a tensor is missing or the weight did not move."""
    if not all(k in before for k in _STATES) or not all(k in after for k in _STATES[1:]):
        return None
    if not all(np.isfinite(a).all() for side in (before, after) for a in side.values()):
        return None
    g, p, m, v = (before[k].ravel() for k in _STATES)
    p1, m1, v1 = (after[k].ravel() for k in _STATES[1:])
    (keep1, take1, coupled), left1 = _least([m, g, p], m1)
    plain, left_plain = _least([m, g], m1)
    small = abs(coupled) * float(np.linalg.norm(p)) < 0.02 * float(np.linalg.norm(m1))
    if left_plain < 1e-5 or small or left1 > min(_COUPLED, 0.1 * left_plain):  # else it explains nothing
        (keep1, take1), coupled, left1 = plain, 0.0, left_plain
    (keep2, take2), left2 = _least([v, g * g], v1)
    eps, (decay, rate), left3 = _step(p, p1, m1, v1)
    return Fitted(
        keep1, take1, keep2, take2, decay, rate, eps, coupled, (left1, left2, left3), (p, p1, m1, v1)
    )


def _least(columns: Sequence[Floats], of: Floats) -> tuple[tuple[float, ...], float]:
    """Least squares with columns brought to one scale; a column of zeros gives nan."""
    scales = [float(np.linalg.norm(c)) for c in columns]
    used = [i for i, s in enumerate(scales) if s > 0]
    norm = float(np.linalg.norm(of))
    found = [float("nan")] * len(columns)
    if not norm:
        return tuple(0.0 if i in used else found[i] for i in range(len(columns))), 0.0
    if not used:
        return tuple(found), 1.0
    matrix = np.stack([columns[i] / scales[i] for i in used], axis=1)
    if not np.isfinite(matrix).all() or not np.isfinite(norm):
        return tuple(found), 1.0
    answer, *_ = np.linalg.lstsq(matrix, of / norm, rcond=1e-9)
    for i, value in zip(used, answer, strict=True):
        found[i] = float(value) * norm / scales[i]
    return tuple(found), float(np.linalg.norm(matrix @ answer - of / norm))


def _step(p: Floats, p1: Floats, m1: Floats, v1: Floats) -> tuple[float, tuple[float, float], float]:
    """Fit the weight's change; the eps that leaves least, 0 where it makes no difference."""
    root = np.sqrt(np.maximum(v1, 0))
    typical = float(np.median(root[root > 0])) if (root > 0).any() else 1.0
    (answer,), (left,) = _with_eps(p, p1, m1, v1, np.zeros(1))
    best = 0.0, (float(answer[0]), float(answer[1])), float(left)
    centre, width = 0.0, 6.0
    for _ in range(5):
        grid = typical * 10.0 ** np.linspace(centre - width, centre + width, 25)
        answers, lefts = _with_eps(p, p1, m1, v1, grid)
        at = int(np.argmin(lefts))
        if lefts[at] < 0.98 * best[2] - 1e-7:
            best = float(grid[at]), (float(answers[at, 0]), float(answers[at, 1])), float(lefts[at])
        if not best[0]:
            break
        centre, width = float(np.log10(best[0] / typical)), width / 10
    return best


def _with_eps(p: Floats, p1: Floats, m1: Floats, v1: Floats, eps: Floats) -> tuple[Floats, Floats]:
    """Fit ``p' - p = -decay p - rate u`` for each of some eps: (k, 2) of decay and rate, (k,) of what they leave.

    Two columns in closed form, the second made orthogonal to the first: normal equations would square the condition.
    """
    with np.errstate(all="ignore"):
        u = np.where(m1 == 0, 0.0, m1 / (np.sqrt(np.maximum(v1, 0)) + eps[:, None]))
    change = p1 - p
    norm, size, sizes = float(np.linalg.norm(change)), float(np.linalg.norm(p)), np.linalg.norm(u, axis=1)
    if not norm:
        return np.zeros((eps.size, 2)), np.zeros(eps.size)
    with np.errstate(all="ignore"):
        a, b, d = -p / (size or 1.0), -u / np.where(sizes > 0, sizes, 1.0)[:, None], change / norm
        slope = b @ a
        own = b - slope[:, None] * a
        square = (own * own).sum(axis=1)
        y = np.where(square > 1e-12, own @ d / square, 0.0)
        x = float(a @ d) - slope * y
        left = np.linalg.norm(d - x[:, None] * a - y[:, None] * b, axis=1)
        answer = np.stack([x * norm / size if size else np.full(eps.size, np.nan), y * norm / sizes], axis=1)
    finite = np.isfinite(left)
    answer[~finite], left[~finite] = np.nan, 1.0
    return answer, left


def states_of(node: Node, which: str) -> States | None:
    """Read one side's tensors before and after the step, or a sample of their elements; None where shapes differ."""
    found: list[dict[str, Floats]] = []
    shapes: set[tuple[int, ...]] = set()
    for part in (INPUT, OUTPUT):
        rows = {k: optimizer_row(node, k, part) for k in _STATES}
        arrays = {k: wide(getattr(r, which)) for k, r in rows.items() if r is not None}
        shapes |= {a.shape for a in arrays.values() if a is not None}
        found.append({k: _sample(a) for k, a in arrays.items() if a is not None})
    return (found[0], found[1]) if len(shapes) == 1 else None


def _sample(array: Floats) -> Floats:
    """Take elements at places that are the same for all tensors of a size, and in no rhythm of its rows."""
    flat = array.ravel()
    return flat if flat.size <= _SAMPLE else flat[np.random.default_rng(0).integers(0, flat.size, _SAMPLE)]


def same_step(node: Node) -> bool:
    """Whether both sides moved moments and weight alike, so that there is nothing to fit.

    Nine elements in ten are asked: where a gradient is next to nothing, Adam's first step takes its sign, and that is
    rounding's.
    """
    t, g = states_of(node, "target"), states_of(node, "golden")
    if t is None or g is None or any(a.keys() != b.keys() for a, b in zip(t, g, strict=True)):
        return False
    for key, limit in (("exp_avg", _SAME_MOMENT), ("exp_avg_sq", _SAME_MOMENT), ("parameter", _SAME_STEP)):
        if key in t[1]:
            a, b = t[1][key], g[1][key]
            if key == "parameter":
                if key not in t[0]:
                    return False
                a, b = a - t[0][key], b - g[0][key]
            if a.shape != b.shape or not _alike(a, b, limit):
                return False
    return "parameter" in t[1]


def _alike(a: Floats, b: Floats, limit: float) -> bool:
    there = (a != 0) | (b != 0)
    if not there.any():
        return True
    off = np.quantile(np.abs(a - b)[there], 0.9)
    return bool(off <= limit * np.median(np.abs(b[there])))


def narrowed(node: Node) -> Cause | None:
    """Say that the target keeps its weights or moments in bfloat16 where golden keeps more."""
    for key, what in (("parameter", "weight"), ("exp_avg", "first moment"), ("exp_avg_sq", "second moment")):
        row = optimizer_row(node, key, OUTPUT)
        t, g = (None, None) if row is None else (wide(row.target), wide(row.golden))
        grid = None if t is None or g is None else coarser_grid(t, g)
        if grid is None:
            continue
        of = "no float32 master" if key == "parameter" else "states kept in it"
        return Cause(kinds.WRONG_DTYPE, 0.95, f"{grid.said(f'every {what} after the step')}: {of}")
    return None
