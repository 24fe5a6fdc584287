"""A weight's gradient whose factors are of different tokens: the output's gradient of some, the input of others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Array
from telekit.accuracy.redoing.formula.formula import LEAST, Proven, own_side, relative
from telekit.accuracy.redoing.formula.orders import as_rows, counts

_MOST_BLOCKS = 8
_UNLIKE = 0.1


def crossed_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Fit with which factor each block of one factor meets each block of the other."""
    t, formula = case.target, found.formula
    if t is None or case.phase != BACKWARD or not formula.name.startswith("the product x^T y"):
        return
    left, right = (own_side(k) for k in formula.inputs)
    if left.shape[:-1] != right.shape[:-1] or left.ndim < 3:
        return
    a, b = as_rows(left), as_rows(right)
    for said, blocks in _blocks(case, left.shape[:-1]):
        n = len(blocks)
        matrix = np.stack([(a[p].T @ b[q]).ravel() for p, q in product(blocks, blocks)], axis=1)
        if len(matrix) < 4 * n * n or not np.isfinite(matrix).all():
            continue
        factors, *_ = np.linalg.lstsq(matrix, t.ravel(), rcond=1e-6)
        rest = relative(matrix @ factors, t.ravel())
        times = factors.reshape(n, n)
        whole = np.rint(times)
        if (
            rest > max(found.reach, LEAST)
            or rest > found.own_error / 3
            or np.abs(times - whole).max() > _UNLIKE
        ):
            continue
        if (
            (whole.sum(axis=1) == 1).all()
            and set(np.unique(whole)) == {0.0, 1.0}
            and (whole != np.eye(n)).any()
        ):
            order = whole.argmax(axis=1).tolist()
            kind = kinds.PERMUTATION if len(set(order)) == n else kinds.DUPLICATED
            text = f"in {formula.name} of {said} those of the first meet {order} of the second"
            yield Cause(kind, 0.95, f"{text}: other tokens' than their own ({rest:.2g} of it is left)")
            return


def _blocks(case: Case, shape: tuple[int, ...]) -> Iterator[tuple[str, list[Array]]]:
    """Deal tokens to blocks: sequences by replica and micro-batch, positions by rank; fewest blocks first."""
    grid = np.arange(int(np.prod(shape))).reshape(shape)
    sizes = [n for n, _ in counts(case, "dp", "micro_batches")]
    of_batch = {1, *sizes, *(a * b for a, b in product(sizes, sizes) if a < b)}
    of_place = {1, *(n for n, _ in counts(case, "tp", "cp")), *(2 * n for n, _ in counts(case, "cp"))}
    for n, m in sorted(product(of_batch, of_place), key=lambda pair: pair[0] * pair[1]):
        if 1 < n * m <= _MOST_BLOCKS and shape[0] % n == 0 and shape[1] % m == 0:
            said = f"{n} x {m} blocks of tokens (sequences x positions)"
            parts: list[Array] = [p for part in np.split(grid, n) for p in np.split(part, m, axis=1)]
            yield said, [p.ravel() for p in parts]
