"""Gradients whose pieces count other parts of the sum than they should: tokens of one rank, pieces of other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.formula import LEAST, own_side, proven, relative
from telekit.accuracy.redoing.formula.orders import as_rows, counts
from telekit.accuracy.redoing.layers.dense import linear

_UNLIKE = 0.05  # factors this far apart are not one
_WHOLE = 0.02  # from a number that sums and means give: what rounding may leave of a factor
_MOST = 16
_SEQUENCES, _POSITIONS = ("dp", "micro_batches"), ("cp", "tp")  # what deals them
Pieces = list[Array]


def token_piece_causes(case: Case) -> Iterator[Cause]:
    """Fit with which factor each rank's tokens count in each rank's piece of a weight's gradient."""
    t = case.target
    if t is None or case.phase != BACKWARD or t.ndim != 2:
        return
    found = proven(case, (linear,))
    if found is None or not found.formula.name.startswith("the product x^T y"):
        return
    whole = relative(found.own, t)
    if whole <= found.limit:
        return
    left, right = (own_side(k) for k in found.formula.inputs)
    if left.shape[:-1] != right.shape[:-1]:
        return
    for n, name in counts(case):
        for dealt, tokens in _tokens(left.shape[:-1], n):
            parts = [as_rows(left)[p].T @ as_rows(right)[p] for p in tokens]
            for where, pieces in _of_weight(t.shape, n):
                factors, rest = _fitted(parts, t, pieces, where[0])
                if rest <= max(found.reach, LEAST) and rest <= whole / 3 and np.ptp(factors) > _UNLIKE:
                    yield _said(found.formula.name, n, name, dealt, where, factors, rest)
                    return


def _said(
    formula: str, n: int, name: str, dealt: str, where: tuple[int, str], factors: Floats, rest: float
) -> Cause:
    dealt_to = _SEQUENCES if dealt.startswith("sequences") else _POSITIONS
    groups = [g for g in name.split(" or ") if g in dealt_to]
    of = f" ({' or '.join(groups)})" if groups else ""
    lost = bool((np.abs(factors) < _UNLIKE).any())
    kind = kinds.MISSING_TERM if lost else kinds.SCALED
    if np.abs(factors - np.eye(n)).max() < _UNLIKE:
        text = f"each of {n}{of} pieces of its axis {where[0]}{where[1]} sums its own rank's {dealt} alone"
        text += ": the other ranks' tokens were not gathered, or not added"
    elif np.ptp(factors, axis=1).max() < _UNLIKE:
        text = f"the {n} pieces{of} of the {dealt} count {_numbers(factors[:, 0])} times"
    else:
        rows = "; ".join(_numbers(c) for c in factors.T)
        text = f"in each of {n} pieces{of} of its axis {where[0]}{where[1]} the {dealt} of the ranks count {rows} times"
    return Cause(kind, 0.95, f"in {formula} {text} ({rest:.2g} of it is left)")


def _numbers(factors: Floats) -> str:
    return str((np.round(factors, 2) + 0.0).tolist())


def _tokens(shape: tuple[int, ...], n: int) -> Iterator[tuple[str, Pieces]]:
    """Deal tokens to n ranks: sequences, positions in a row, positions zigzag."""
    grid = np.arange(int(np.prod(shape))).reshape(shape)
    for axis in range(grid.ndim):
        what = "sequences" if axis == 0 and grid.ndim > 1 else "positions"
        if grid.shape[axis] % n == 0:
            yield what, [p.ravel() for p in np.split(grid, n, axis=axis)]
        if grid.shape[axis] % (2 * n) == 0:
            parts = np.split(grid, 2 * n, axis=axis)
            pairs = [np.concatenate([parts[r], parts[-1 - r]], axis=axis).ravel() for r in range(n)]
            yield f"{what} (dealt zigzag)", pairs


def _of_weight(shape: tuple[int, ...], n: int) -> Iterator[tuple[tuple[int, str], Pieces]]:
    """Deal a weight to n ranks: along an axis, or each of the blocks that it is fused of."""
    yield (0, ""), [np.arange(shape[0])]
    for axis, blocks in product(range(len(shape)), (1, 2, 3)):
        size = shape[axis]
        if size % (n * blocks) or (axis and blocks > 1):
            continue
        grid = np.arange(size).reshape(blocks, n, -1)
        yield (axis, f" (of each of {blocks} blocks)" * (blocks > 1)), [grid[:, i].ravel() for i in range(n)]


def _fitted(parts: list[Floats], target: Floats, pieces: Pieces, axis: int) -> tuple[Floats, float]:
    """Return the factor of each part in each piece of the target, (parts, pieces), and what they leave."""
    factors, rest = np.zeros((len(parts), len(pieces))), 0.0
    for j, piece in enumerate(pieces):
        matrix = np.stack([np.take(p, piece, axis=axis).ravel() for p in parts], axis=1)
        of = np.take(target, piece, axis=axis).ravel()
        if len(of) < 4 * len(parts) or not _apart(matrix):
            return factors, np.inf
        factors[:, j], *_ = np.linalg.lstsq(matrix, of, rcond=1e-9)
        rest += float(np.sum((matrix @ factors[:, j] - of) ** 2))
    return factors, float(np.sqrt(rest)) / max(float(np.linalg.norm(target.ravel())), 1e-300)


def mixed_piece_causes(case: Case) -> Iterator[Cause]:
    """Find pieces of a gradient that are sums, means, or copies of several of the right one's pieces."""
    t, g = case.target, case.golden
    if t is None or g is None or case.phase != BACKWARD or t.shape != g.shape:
        return
    if case.part not in ("gradient", "parameters_grad") and "reduce" not in case.words:
        return
    sources = [
        ("its input", own_side(k)) for k in case.inputs if k.golden is not None and k.golden.shape == g.shape
    ]
    if not any("reduce" in k.name for k in case.inputs):
        sources = []
    for said, source in (*sources[:1], ("golden", g)):
        whole = relative(source, t)
        limit = max(LEAST, 4 * case.epsilon, 0.0 if said != "golden" else case.noise)
        for n, axis in product(sorted({*(n for n, _ in counts(case)), t.shape[0]}), range(min(t.ndim, 2))):
            if not 1 < n <= _MOST or t.shape[axis] % n:
                continue
            parts = np.split(source, n, axis=axis)
            factors, rest = _mixed(parts, np.split(t, n, axis=axis))
            if rest > limit or rest > whole / 3 or not _plain(factors, n):
                continue
            yield _mixture(factors, n, axis, said, rest)
            return


def _mixed(parts: list[Floats], target: list[Floats]) -> tuple[Floats, float]:
    matrix = np.stack([p.ravel() for p in parts], axis=1)
    of = np.stack([p.ravel() for p in target], axis=1)
    if len(matrix) < 4 * len(parts) or not np.isfinite(of).all() or not _apart(matrix):
        return np.zeros((len(parts), len(parts))), np.inf
    factors, *_ = np.linalg.lstsq(matrix, of, rcond=1e-9)
    return np.asarray(factors), float(np.linalg.norm(matrix @ factors - of)) / max(
        float(np.linalg.norm(of)), 1e-300
    )


def _apart(matrix: Floats) -> bool:
    """Whether columns can be told from each other, so that a factor means something."""
    sizes = np.linalg.norm(matrix, axis=0)
    if not np.isfinite(sizes).all() or not sizes.all():
        return False
    found = np.linalg.eigvalsh((matrix / sizes).T @ (matrix / sizes))
    return bool(found[0] > 1e-3 * found[-1])


def _plain(factors: Floats, n: int) -> bool:
    """Whether factors are those of sums and means, several in some piece: no order, no scale, no fit by chance."""
    off = factors - np.diag(np.diag(factors))
    grid = min(float(np.abs(factors * d - np.rint(factors * d)).max()) / d for d in (1, 2, n))
    several = (np.abs(factors) > _UNLIKE).sum(axis=0) > 1
    return grid < _WHOLE and bool((np.abs(off) > _UNLIKE).any()) and bool(several.any())


def _mixture(factors: Floats, n: int, axis: int, source: str, rest: float) -> Cause:
    said = []
    for j, column in enumerate(factors.T[:4]):
        terms = [
            f"{'' if abs(f - 1) < _WHOLE else f'{f:.3g} times '}piece {i}"
            for i, f in enumerate(column)
            if abs(f) > _UNLIKE
        ]
        said.append(f"piece {j} is {' + '.join(terms)}")
    text = f"of {n} pieces of axis {axis} {', '.join(said)}{'…' if n > 4 else ''} of {source}"
    why = "the sum goes over too many ranks: it adds what belongs to other experts or shards"
    return Cause(kinds.EXTRA_TERM, 0.95, f"{text} ({rest:.2g} is left): {why}")
