"""A step that used other states than those dumped with it: moved pieces, another parameter's, old ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import OUTPUT
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import optimizer_row
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.updating.stepping import Settings, Step, usual

_SAME = 1e-3  # relative: a state that the step used is known so well
_GONE = 0.01  # of an index's state: less is none
_FITS = 1e-4  # of golden's moment: then its rule is known
_COUNTS = (2, 3, 4, 6, 8, 12, 16)
_MOST_ROWS = 4096


def other_state(node: Node, last: Node | None, others: Sequence[Node]) -> Cause | None:
    """Say which state the target's moments were made from where it is not the one dumped.

    Golden's moments say how a state and a gradient are mixed; the target's, with its gradient taken away, are the
    state that was used.

    Parameters
    ----------
    node, last : Node
        A parameter's step and its step before.
    others : sequence of Node
        Other parameters' steps.
    """
    said, kind = [], kinds.OPTIMIZER_STATE
    for key, which in (("exp_avg", "first"), ("exp_avg_sq", "second")):
        found = _used(node, key)
        if found is None:
            continue
        used, kept = found
        if not kept.any() or near(used, kept):
            continue
        text = _origin(used, kept, key, last, others, node)
        if not text:
            return None
        said.append(f"the {which} moment is made from {text}")
    return Cause(kind, 0.95, "; ".join(said)) if said else None


@dataclass(frozen=True)
class Mixed:
    """One side's moment as golden mixes it: ``after = keep kept + take gradient`` (for the second its square)."""

    keep: float
    take: float
    kept: Floats
    gradient: Floats
    after: Floats


def mixed(node: Node, key: str) -> Mixed | None:
    """Return the target's moment with golden's numbers; None where golden's is no such mean."""
    rows = optimizer_row(node, "grad"), optimizer_row(node, key), optimizer_row(node, key, OUTPUT)
    if any(r is None for r in rows):
        return None
    g, m, m1 = (wide(r.golden) if r is not None else None for r in rows)
    x, kept, after = (wide(r.target) if r is not None else None for r in rows)
    if g is None or m is None or m1 is None or x is None or kept is None or after is None:
        return None
    arrays = (g, m, m1, x, kept, after)
    if len({a.shape for a in arrays}) > 1 or not all(np.isfinite(a).all() for a in arrays):
        return None
    if key == "exp_avg_sq":
        g, x = g * g, x * x
    sizes = [float(np.linalg.norm(a.ravel())) or 1.0 for a in (m, g, m1)]
    matrix = np.stack([m.ravel() / sizes[0], g.ravel() / sizes[1]], axis=1)
    answer, *_ = np.linalg.lstsq(matrix, m1.ravel() / sizes[2], rcond=1e-12)
    if float(np.linalg.norm(matrix @ answer - m1.ravel() / sizes[2])) > _FITS:
        return None
    keep, take = (float(a) * sizes[2] / s for a, s in zip(answer, sizes, strict=False))
    return Mixed(keep, take, kept, x, after)


def _used(node: Node, key: str) -> tuple[Floats, Floats] | None:
    """Return the state that the target's step used and the one that was dumped."""
    row = optimizer_row(node, key)
    before = None if row is None else wide(row.golden)
    found = mixed(node, key) if before is not None and before.any() else None
    if found is None or abs(found.keep) <= 1e-3:
        return None
    return (found.after - found.take * found.gradient) / found.keep, found.kept


def near(a: Floats, b: Floats) -> bool:
    """Whether two tensors are alike to what a step tells of them."""
    return a.shape == b.shape and float(np.linalg.norm((a - b).ravel())) <= _SAME * max(
        float(np.linalg.norm(b.ravel())), 1e-300
    )


def _origin(
    used: Floats, kept: Floats, key: str, last: Node | None, others: Sequence[Node], node: Node
) -> str:
    """Say where a state is from; empty where it is none that is known."""
    lost = _lost(used, kept)
    if lost:
        return lost
    for text, value in moved(used, kept):
        if near(used, value):
            return f"the one dumped with {text}"
    if last is not None:
        old = optimizer_row(last, key)
        before = None if old is None else wide(old.target)
        if before is not None and before.any() and near(used, before):
            return "that before the step before: it was not carried over"
    for other in others:
        row = optimizer_row(other, key) if other is not node else None
        theirs = None if row is None else wide(row.target)
        if theirs is None or theirs.size != used.size or not theirs.any():
            continue
        if near(used, theirs.reshape(used.shape)):
            return f"that of {other.base}"
    if not float(np.linalg.norm(used.ravel())):
        return ""
    scale = float(np.vdot(used, kept)) / float(np.vdot(kept, kept))
    return f"{scale:.4g} times the one dumped" if scale and near(used, scale * kept) else ""


def _lost(used: Floats, kept: Floats) -> str:
    """Say which indices of an axis count as zero, the others being right."""
    if near(used, np.zeros_like(kept)) or float(np.linalg.norm(used)) <= _SAME * float(np.linalg.norm(kept)):
        return "zeros, not from the one dumped: it was lost"
    for axis in range(used.ndim):
        a, b = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (used, kept))
        size = np.linalg.norm(b, axis=1)
        gone = (np.linalg.norm(a, axis=1) <= _GONE * size) & (size > 0)
        if gone.any() and near(a, np.where(gone[:, None], 0.0, b)):
            at = np.flatnonzero(gone)
            where = f"{at.size} of {len(a)} indices of axis {axis} ({at[0]} to {at[-1]})"
            return f"the one dumped with {where} lost: zero there"
    return ""


def moved(used: Floats, kept: Floats) -> Iterator[tuple[str, Floats]]:
    """Orders of pieces along an axis in which the state may have been read."""
    if used.ndim == 2 and used.size == used.shape[0] * used.shape[1]:
        yield "its axes transposed", kept.T.reshape(kept.shape)
    for axis, n in product(range(used.ndim), _COUNTS):
        if used.shape[axis] % n or used.shape[axis] < n:
            continue
        order = _order(np.split(used, n, axis=axis), np.split(kept, n, axis=axis))
        if order is not None and not np.array_equal(order, np.arange(n)):
            parts = np.split(kept, n, axis=axis)
            what = "in other places" if len(set(order.tolist())) == n else "repeated"
            text = f"its {n} pieces of axis {axis} {what}: {order.tolist()}"
            yield text, np.concatenate([parts[i] for i in order], axis=axis)
    for axis in range(used.ndim):
        a, b = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (used, kept))
        if 1 < len(a) <= _MOST_ROWS:
            nearest = ((a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T).argmin(axis=1)
            if np.unique(nearest).size == len(a) and not np.array_equal(nearest, np.arange(len(a))):
                first = f"{nearest[:8].tolist()}{'…' if len(nearest) > 8 else ''}"
                yield f"axis {axis} in another order: {first}", np.take(kept, nearest, axis=axis)


def moved_weight(node: Node, golden: Settings) -> Cause | None:
    """Say that the weight after the step is golden's rule's, in other places."""
    keys = ("parameter", "exp_avg", "exp_avg_sq")
    rows = optimizer_row(node, "parameter"), *(optimizer_row(node, k, OUTPUT) for k in keys)
    p, p1, m1, v1 = (None if r is None else wide(r.target) for r in rows)
    if p is None or p1 is None or m1 is None or v1 is None or len({a.shape for a in (p, p1, m1, v1)}) > 1:
        return None
    right = p + usual(Step(m1, p, m1, v1, p1, m1, v1), golden)
    if not np.isfinite(right).all() or near(p1, right):
        return None
    for text, value in moved(p1, right):
        if near(p1, value):
            return Cause(kinds.PERMUTATION, 0.95, f"the weight after the step is the right one with {text}")
    return None


def _order(used: Sequence[Floats], kept: Sequence[Floats]) -> Array | None:
    """Of each piece, which of the dumped ones it is; None where one is none."""
    found = [next((i for i, k in enumerate(kept) if near(u, k)), -1) for u in used]
    return np.array(found) if min(found) >= 0 else None
