"""Causes that show between ranks: what each of them holds of the located tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.checks.replicas import compare_replicas, reduction_of
from telekit.accuracy.compared import BACKWARD, SETUP
from telekit.accuracy.measures.pairs import Floats

_MATCH = 0.2
_IS_GOLDEN = 2e-3  # relative: what a sum of ranks' tensors may be off by and still be golden


def rank_causes(case: Case) -> Iterator[Cause]:
    """Replicas that differ, and whether their sum is what golden has."""
    g = case.golden
    assert g is not None
    if len(case.replicas) < 2:
        return
    held = pieces(case.replicas, g)
    if not complete(held):
        yield from _doubled(case, held)
        return
    even = (
        len({len(arrays) for arrays, _ in held.values()}) == 1
    )  # else who holds which piece is only a guess
    for piece, (arrays, ranks) in held.items():
        if len(arrays) < 2:
            continue
        found = compare_replicas(arrays)
        part = g[piece_slice(piece, g)] if piece else g
        if found.equal:
            yield from _equal(case, arrays[0], part, len(arrays))
            continue
        if case.part != "parameters_grad" and found.spread < 2 * case.epsilon:
            continue
        how = reduction_of(arrays, part, max(_IS_GOLDEN, case.noise))
        where = f"piece {piece}" if piece else "the tensor"
        said = f"ranks {ranks} hold {where} with differences of {found.spread:.3g} of its norm"
        if how:
            if _taken(case, arrays, piece):
                among = _alike(arrays, ranks)
                missing = f"the reduction {'between' if len(among) < len(ranks) else 'over'} them is missing"
                if len(among) < len(ranks):
                    said += f" (ranks {' and '.join(map(str, among))} the same each)"
                text = f"{said}, and {how} is golden: {missing}{_group(len(among), case)}"
                yield Cause(kinds.MISSING_REDUCTION, 0.96, text)
                return
        elif even and case.part == "output" and _taken(case, arrays, piece):
            yield _differing(case, arrays, part, found.spread, said)
            return


def _alike(arrays: list[Floats], ranks: list[int]) -> list[list[int]]:
    """Sort ranks by what they hold: those together hold the same, to the bit."""
    found: list[tuple[Floats, list[int]]] = []
    for array, rank in zip(arrays, ranks, strict=True):
        same = next((of for held, of in found if np.array_equal(held, array)), None)
        if same is None:
            found.append((array, [rank]))
        else:
            same.append(rank)
    return [of for _, of in found]


def _doubled(case: Case, held: Mapping[Piece | None, tuple[list[Floats], list[int]]]) -> Iterator[Cause]:
    """Shards that are one and the same on several ranks, while a piece of the whole is held by none."""
    golden = case.golden
    if golden is None or case.part != "parameters":
        return
    for piece, (arrays, ranks) in held.items():
        if piece is None or len(arrays) < 2 or not all(np.array_equal(a, arrays[0]) for a in arrays):
            continue
        axis, count, mine, blocks = piece
        held_by = {p[2] for p in held if p is not None}
        lost = [i for i in range(count) if i not in held_by]
        own = golden[piece_slice(piece, golden)]
        if any(np.array_equal(own, golden[piece_slice((axis, count, i, blocks), golden)]) for i in lost):
            continue  # golden's own pieces are alike
        text = f"ranks {ranks} hold the same shard, piece {mine} of {count} of axis {axis} in golden"
        if lost:
            yield Cause(kinds.DUPLICATED, 0.95, f"{text}; pieces {lost} of it are on no rank: duplicated")
            return


def _differing(case: Case, arrays: Sequence[Floats], golden: Floats, spread: float, said: str) -> Cause:
    """Explain outputs that the merge took for replicas and that differ: on all ranks, or on some beside golden's."""
    norm = float(np.linalg.norm(golden.ravel())) or 1.0
    near = max(0.02, case.noise)
    right = sum(float(np.linalg.norm((a - golden).ravel())) <= near * norm for a in arrays)
    if right:
        return Cause(kinds.ONE_SHARD, 0.5, f"{said}; {right} of {len(arrays)} hold golden, the others do not")
    sure = 0.72 if spread > 2 * near else 0.55
    return Cause(kinds.MISSING_REDUCTION, sure, f"{said}, and none is golden: they should hold the same")


def _equal(case: Case, array: Floats, golden: Floats, ranks: int) -> Iterator[Cause]:
    """Equal on all ranks but a multiple of golden by the number of ranks: reduced twice."""
    norm = float(np.vdot(golden, golden))
    if not norm:
        return
    factor = float(np.vdot(array, golden)) / norm
    left = float(np.linalg.norm((array - factor * golden).ravel())) / max(
        float(np.linalg.norm(array.ravel())), 1e-300
    )
    sizes = {n: s for n, s in case.summed.items() if s > 1}
    names = [n for n, s in sizes.items() if abs(factor / s - 1) < 0.01]
    if left < max(0.02, case.noise) and names and case.phase not in (BACKWARD, SETUP):
        text = f"all {ranks} ranks hold the same, {factor:.4g} times golden: reduced twice over {' or '.join(names)}"
        yield Cause(kinds.DOUBLE_REDUCTION, 0.93, text)


def _taken(case: Case, arrays: Sequence[Floats], piece: Piece | None) -> bool:
    """Whether the merged target took one rank's, rather than their sum.

    What is summed, or joined, on merging are terms and parts of one tensor: those differ by right.
    """
    t = case.target
    assert t is not None
    part = t[piece_slice(piece, t)] if piece else t
    norm = float(np.linalg.norm(part.ravel()))
    return any(float(np.linalg.norm((part - a).ravel())) <= 0.01 * norm for a in arrays)


def _group(ranks: int, case: Case) -> str:
    names = [n for n, s in case.sizes.items() if s == ranks and s > 1]
    if "expert" in case.words:
        names = ["the replicas of an expert", *(n for n in names if n != "ep")]
    return f" ({' or '.join(names)})" if names else ""


Piece = tuple[int, int, int, int]
"""Axis, number of pieces, which of them, and blocks that are each split (2 for gate and up)."""


def pieces(arrays: Sequence[Floats], golden: Floats) -> dict[Piece | None, tuple[list[Floats], list[int]]]:
    """Sort ranks' tensors by the piece of golden they hold: all of it, or the most similar part along an axis."""
    found: dict[Piece | None, tuple[list[Floats], list[int]]] = {}
    for rank, a in enumerate(arrays):
        key: Piece | None = None
        if a.shape != golden.shape:
            best = _piece_of(a, golden)
            if best is None:
                continue
            key = best
        group = found.setdefault(key, ([], []))
        group[0].append(a)
        group[1].append(rank)
    return found


def complete(held: Mapping[Piece | None, tuple[list[Floats], list[int]]]) -> bool:
    """Whether every piece of the whole has a holder: else two that look like one piece are no copies of it."""
    return all(piece is None or sum(p is not None for p in held) >= piece[1] for piece in held)


def _piece_of(array: Floats, golden: Floats) -> Piece | None:
    if array.ndim != golden.ndim:
        return None
    axes = [i for i in range(array.ndim) if array.shape[i] != golden.shape[i]]
    if len(axes) != 1 or not array.shape[axes[0]] or golden.shape[axes[0]] % array.shape[axes[0]]:
        return None
    axis = axes[0]
    count = golden.shape[axis] // array.shape[axis]
    best: tuple[float, Piece] | None = None
    for blocks in (1, 2):
        if array.shape[axis] % blocks:
            continue
        for index in range(count):
            key = (axis, count, index, blocks)
            part = golden[piece_slice(key, golden)]
            norm = float(np.linalg.norm(part.ravel()) * np.linalg.norm(array.ravel()))
            close = abs(float(np.vdot(part, array))) / norm if norm else 0.0
            if best is None or close > best[0]:
                best = (close, key)
    return best[1] if best is not None and best[0] > _MATCH else None


def piece_slice(piece: Piece, golden: Floats) -> tuple[Any, ...]:
    """Index of a piece in golden."""
    axis, count, index, blocks = piece
    block = golden.shape[axis] // blocks
    part = block // count
    where = np.concatenate(
        [np.arange(b * block + index * part, b * block + (index + 1) * part) for b in range(blocks)]
    )
    return (*(slice(None) for _ in range(axis)), where)
