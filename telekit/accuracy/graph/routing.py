"""A token whose experts' scores nearly tie may choose another expert for a rounding's sake: that is no fault."""

from __future__ import annotations

import numpy as np

from telekit.accuracy.compared import Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import is_float, wide
from telekit.accuracy.measures.pairs import Floats

_WORDS = ("router", "topk", "top_k", "gate", "expert", "moe", "dispatch", "combine", "permute", "mlp")
_SHARE = 0.15  # more tokens than this do not tie by chance
_TIE = 16.0  # a gap below so many errors of the scores is a tie


def routes(base: str) -> bool:
    """Whether an operator's name has to do with experts."""
    lower = base.lower()
    return any(word in lower for word in _WORDS)


def flipped_rows(node: Node, row: Compared, epsilon: float, level: float) -> int | None:
    """Return how many tokens chose other experts although a tie explains it; None where that is not what differs.

    A token counts where the golden scores of its last chosen and first left-out expert are closer than what the
    inputs' error and rounding can turn. Every token that differs must be one, and there may only be a few.
    """
    t, g = wide(row.target), wide(row.golden)
    if t is None or g is None or t.shape != g.shape or g.ndim < 2:
        return None
    a, b = t.reshape(-1, t.shape[-1]), g.reshape(-1, g.shape[-1])
    chosen = not is_float(row)
    if not chosen and not _sparse(b):
        return None
    differs = np.any(a != b, axis=1) if chosen else np.any((a == 0) != (b == 0), axis=1)
    count = int(np.count_nonzero(differs))
    if not count or count > max(2, _SHARE * len(b)):
        return None
    found = _scores(node, len(b), int(b.max()) + 1 if chosen else b.shape[1])
    if found is None:
        return count
    scores, size = found
    k = b.shape[1] if chosen and b.shape[1] < scores.shape[1] else int(np.count_nonzero(b[0]))
    if not 0 < k < scores.shape[1]:
        return None
    ordered = np.sort(scores, axis=1)[:, ::-1]
    gap = (ordered[:, :k] - ordered[:, 1 : k + 1]).min(axis=1)  # two that are chosen may also change places
    return count if bool(np.all(gap[differs] <= _TIE * (epsilon + level) * size[differs])) else None


def alike(row: Compared) -> bool:
    """Whether a tensor that other choices changed still has about golden's norm: other rows, not other sizes."""
    m = row.metrics
    ratio = None if m is None else m.norm_ratio
    return ratio is None or 0.7 < ratio < 1.4


def _sparse(array: Floats) -> bool:
    """Whether every row has the same number of non-zeros, and some zeros: chosen experts' weights."""
    count = np.count_nonzero(array, axis=1)
    return bool(count.size and 0 < count[0] < array.shape[1] and (count == count[0]).all())


def _scores(node: Node, rows: int, experts: int) -> tuple[Floats, Floats] | None:
    """Golden's dense scores of each token, and the size that their rounding goes with.

    A tensor of the operator that has a column for each expert, else its input times its weight.
    """
    tensors = [
        (r, found)
        for r in (*node.inputs, *node.parameters, *node.outputs, *node.before)
        if is_float(r) and (found := wide(r.golden)) is not None and found.ndim >= 2
    ]
    flat = [f.reshape(-1, f.shape[-1]) for r, f in tensors if r.part != "parameters"]
    for x in flat:
        if (
            len(x) == rows
            and experts <= x.shape[1] <= 1024
            and x.shape[1] < 4 * experts
            and np.count_nonzero(x) == x.size
        ):
            return x, np.abs(x).max(axis=1)
    for x in flat:
        for row, w in tensors:
            if row.part == "parameters" and w.ndim == 2 and w.shape[1] == x.shape[1] and len(x) == rows:
                size = np.linalg.norm(x, axis=1) * float(np.linalg.norm(w, axis=1).max())
                return x @ w.T, size
    return None
