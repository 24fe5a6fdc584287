"""Rows of padding: tensors that differ from golden in one length only, all alike, and hold one value beyond it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.accuracy.compared import PARAMETERS, PARAMETERS_GRAD, Compared
from telekit.accuracy.comparing.names import Pair
from telekit.accuracy.readers.named import NamedTensor

Array = NDArray[Any]
Lengths = tuple[int, int]


def paddings(pairs: Sequence[Pair], notes: list[str]) -> dict[Lengths, int]:
    """Return the pair of lengths (target's, golden's) that padding may explain, with how many tensors have it.

    Only where every tensor that differs in shape differs so, and at least two do: one alone is a wrong shape. Never
    where a tensor of no operator, a weight, is shorter than golden: that is a shard, or half a weight.
    """
    seen: Counter[Lengths | None] = Counter()
    for t, g, _ in pairs:
        if t is not None and g is not None and t.kind == g.kind == "tensor" and t.shape != g.shape:
            axis = _one_axis(t, g)
            lengths = None if axis is None else _lengths(t, g, axis)
            seen[None if lengths and not t.api and lengths[0] < lengths[1] else lengths] += 1
    if len(seen) != 1 or None in seen or sum(seen.values()) < 2:
        return {}
    ((lengths, count),) = seen.items()
    assert lengths is not None
    notes.append(
        f"{count} tensors have {lengths[0]} rows in target and {lengths[1]} in golden: padding where the rest is one "
        f"value repeated; the first {min(lengths)} are compared"
    )
    return {lengths: count}


def trimmed(
    row: Compared, target: Array, golden: Array, cut: dict[Lengths, int]
) -> tuple[Compared, Array, Array]:
    """Cut both arrays to the length they have in common, if padding explains the rest; a note says what was done.

    Parameters
    ----------
    row : Compared
    target, golden : ndarray
        Its elements.
    cut : dict of (int, int) to int
        From `paddings`.
    """
    t, g = row.target, row.golden
    axis = _one_axis(t, g) if cut and t and g and t.shape != g.shape else None
    if axis is None or t is None or g is None or _lengths(t, g, axis) not in cut:
        return row, target, golden
    n = min(_lengths(t, g, axis))
    longer = target if target.shape[axis] > n else golden
    if not _one_value(np.moveaxis(longer, axis, 0)[n:]):
        said = f"no padding: beyond {n} of axis {axis} stands more than one value repeated"
        return replace(row, notes=(*row.notes, said)), target, golden
    a, b = (x[(slice(None),) * axis + (slice(n),)] for x in (target, golden))
    return replace(row, notes=(*row.notes, f"first {n} of axis {axis} compared, the rest is padding")), a, b


def _one_value(rest: Array) -> bool:
    if not rest.size:
        return True
    first = rest.reshape(-1)[:1]
    return bool(np.all((rest == first) | ((rest != rest) & (first != first))))


def _one_axis(t: NamedTensor, g: NamedTensor) -> int | None:
    """Return the one axis, before the last, in which two shapes differ."""
    if t.shape is None or g.shape is None or len(t.shape) != len(g.shape) or len(t.shape) < 2:
        return None
    if t.part in (PARAMETERS, PARAMETERS_GRAD):
        return None
    axes = [i for i, (m, n) in enumerate(zip(t.shape, g.shape, strict=True)) if m != n]
    return axes[0] if len(axes) == 1 and axes[0] < len(t.shape) - 1 else None


def _lengths(t: NamedTensor, g: NamedTensor, axis: int) -> Lengths:
    return (t.shape or ())[axis], (g.shape or ())[axis]
