"""Ranks as the leading axes of an array, what a rank's piece is of the whole, and reductions in a chosen order.

Every tensor of a run is one array ``[dp, cp, tp, ...]``: the first three axes are the ranks of a pipeline stage, the
rest is what each of them holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from telekit.accuracy.miniature.config import Config, Layout

Array = npt.NDArray[Any]
Round = Callable[[Array], Array]
Data = Literal["dealt", "same", "partial"]
Tensor = Literal["same", "split", "partial", "sequence"]


@dataclass(frozen=True, eq=False)
class Place:
    """What a rank's piece is of the whole tensor.

    Parameters
    ----------
    data : {"dealt", "same", "partial"}
        Over dp, cp and micro-batches: axis 0 (sequences) and axis 1 (positions) are dealt; each has all; each has a
        term of a sum.
    tensor : {"same", "split", "partial", "sequence"}
        Over tp: each has all; a part of ``axis``; a term of a sum; a part of the positions.
    axis : int
        Of the rank's piece, negative from the end.
    parts : int
        So many blocks stand along ``axis`` and each is split: 2 for the gate and up halves of SwiGLU.
    experts : bool
        Axis 0 is dealt over ep, and the other ranks of dp and cp are its replicas.
    keys : ndarray of int, shape (dp, cp, tp, rows), or None
        Rows are (expert, token) pairs in this order; -1 is padding.
    """

    data: Data = "dealt"
    tensor: Tensor = "same"
    axis: int = -1
    parts: int = 1
    experts: bool = False
    keys: Array | None = None


class Mesh:
    """The ranks of one pipeline stage and the positions that each holds."""

    def __init__(self, config: Config, layout: Layout) -> None:
        self.config, self.layout = config, layout
        self.shape = (layout.dp, layout.cp, layout.tp)
        self.dtype = np.dtype(np.float64 if config.precision == "fp64" else np.float32)

    @cached_property
    def positions(self) -> Array:
        """Positions of each context-parallel rank, shape (cp, sequence / cp): zigzag, or all in order."""
        everything = np.arange(self.config.sequence)
        n = self.layout.cp
        if n == 1:
            return everything[None]
        pieces = np.split(everything, 2 * n)
        return np.stack([np.concatenate([pieces[c], pieces[2 * n - 1 - c]]) for c in range(n)])

    def round(self, value: Array) -> Array:
        """Round to the precision of activations, held in a wider type."""
        if self.config.precision != "bf16":
            return np.asarray(value, self.dtype)
        return np.asarray(value.astype(ml_dtypes.bfloat16).astype(np.float32), np.float32)

    def wide(self, value: Array) -> Array:
        """Round to the precision of sums, masters and states."""
        return np.asarray(value, self.dtype)

    def groups(self, axes: str) -> tuple[int, ...]:
        """Sizes of a group of ranks: ``tp``, ``cp``, ``dp-cp``, ``edp`` (replicas of an expert)."""
        n = self.layout
        sizes = {"tp": n.tp, "cp": n.cp, "dp-cp": n.dp * n.cp, "ep": n.ep, "edp": n.dp * n.cp // n.ep}
        return tuple(sizes[axis] for axis in axes.split("+"))

    def size(self, axes: str) -> int:
        """How many ranks a group has."""
        return int(np.prod(self.groups(axes)))

    def to_groups(self, value: Array, axes: str) -> Array:
        """Return the array with its group's ranks along one leading axis: ``[group, other ranks..., ...]``."""
        n, rest = self.layout, value.shape[3:]
        match axes:
            case "tp":
                return np.moveaxis(value, 2, 0)
            case "cp":
                return np.moveaxis(value, 1, 0)
            case "dp-cp":
                return value.reshape(n.dp * n.cp, n.tp, *rest)
            case "ep":
                by_rank = value.reshape(n.dp * n.cp // n.ep, n.ep, n.tp, *rest)
                return np.moveaxis(by_rank, 1, 0)
            case "cp+tp":
                return np.moveaxis(value, 0, 2).reshape(n.cp * n.tp, n.dp, *rest)
        return value.reshape(n.dp * n.cp // n.ep, n.ep, n.tp, *rest)  # edp

    def from_groups(self, value: Array, axes: str) -> Array:
        """Undo `to_groups`."""
        n = self.layout
        match axes:
            case "tp":
                return np.moveaxis(value, 0, 2)
            case "cp":
                return np.moveaxis(value, 0, 1)
            case "dp-cp":
                return value.reshape(*self.shape, *value.shape[2:])
            case "ep":
                return np.moveaxis(value, 0, 1).reshape(*self.shape, *value.shape[3:])
            case "cp+tp":
                return np.moveaxis(value.reshape(n.cp, n.tp, n.dp, *value.shape[2:]), 2, 0)
        return value.reshape(*self.shape, *value.shape[3:])


def reduce(terms: Array, order: str, rnd: Round, others: int = 0) -> Array:
    """Add along axis 0 in an order, rounding each sum.

    Parameters
    ----------
    terms : ndarray, shape (ranks, ...)
    order : {"ring", "sequential", "tree"}
        A ring deals a tensor's elements into as many pieces as ranks, and piece *i* starts its way at rank *i* + 1.
    rnd : callable
    others : int
        How many axes after the first number other groups, each of which deals its own tensor.
    """
    n = len(terms)
    if order == "tree":
        parts = list(terms)
        while len(parts) > 1:
            pairs = [rnd(a + b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[len(pairs) * 2 :]
        return np.asarray(parts[0])
    if order == "sequential" or n == 2:  # two terms commute
        total = terms[0]
        for term in terms[1:]:
            total = rnd(total + term)
        return np.asarray(total)
    flat = terms.reshape(n, int(np.prod(terms.shape[1 : 1 + others])), -1)
    where = np.arange(flat.shape[2])
    piece = where * n // max(1, where.size)
    total = np.moveaxis(flat, 1, 2)[(piece + 1) % n, where]
    for i in range(2, n + 1):
        total = rnd(total + np.moveaxis(flat, 1, 2)[(piece + i) % n, where])
    return np.asarray(total.T.reshape(terms.shape[1:]))


def shard(full: Array, place: Place, mesh: Mesh) -> Array:
    """Return every rank's piece of a parameter, shape (dp, cp, tp, ...)."""
    n = mesh.layout
    if place.tensor == "split":
        blocks = np.split(full, place.parts, axis=place.axis)
        split = [np.split(block, n.tp, axis=place.axis) for block in blocks]
        by_tp = np.stack([np.concatenate([b[t] for b in split], axis=place.axis) for t in range(n.tp)])
    else:
        by_tp = np.stack([full] * n.tp)
    if not place.experts:
        return np.array(np.broadcast_to(by_tp, (n.dp, n.cp, *by_tp.shape)))
    of_ep = np.stack(np.split(by_tp, n.ep, axis=1))
    many = np.broadcast_to(of_ep, (mesh.size("edp"), *of_ep.shape))
    return np.array(many.reshape(*mesh.shape, *of_ep.shape[2:]))


def merge(pieces: Sequence[tuple[Array, Place]], mesh: Mesh) -> Array:
    """Return the whole tensor from every rank's piece of every micro-batch.

    Replicas are not compared: the first is taken. Terms of a sum are added in float64.
    """
    place = pieces[0][1]
    if place.keys is not None:
        return _rows(pieces, mesh)
    whole = [_one(array, place, mesh) for array, _ in pieces]
    if len(whole) == 1 or place.data == "same":
        return whole[0]
    if place.data == "partial":
        return np.sum(np.stack(whole), axis=0, dtype=np.float64).astype(whole[0].dtype)
    return np.concatenate(whole)


def _one(array: Array, place: Place, mesh: Mesh) -> Array:
    n = mesh.layout
    if place.experts:
        by_rank = array.reshape(-1, n.ep, *array.shape[2:])
        of_ep = _added(by_rank, 0) if place.data == "partial" else by_rank[0]
        return np.concatenate([_over_tp(piece, place) for piece in of_ep])
    if place.data == "same":
        return _over_tp(array[0, 0], place)
    if place.data == "partial":
        return _over_tp(_added(array.reshape(-1, *array.shape[2:]), 0), place)
    order = np.argsort(mesh.positions, axis=None)
    rows = []
    for of_dp in array:
        dealt = np.concatenate([_over_tp(of_cp, place) for of_cp in of_dp], axis=1)
        rows.append(dealt if n.cp == 1 else dealt[:, order])
    return np.concatenate(rows)


def _over_tp(array: Array, place: Place) -> Array:
    """Make one of the pieces ``[tp, ...]``."""
    if len(array) == 1 or place.tensor == "same":
        return np.asarray(array[0])
    if place.tensor == "partial":
        return _added(array, 0)
    if place.tensor == "sequence":
        return np.concatenate(list(array), axis=1)
    split = [np.split(piece, place.parts, axis=place.axis) for piece in array]
    blocks = [np.concatenate([s[p] for s in split], axis=place.axis) for p in range(place.parts)]
    return np.concatenate(blocks, axis=place.axis)


def _added(array: Array, axis: int) -> Array:
    return np.asarray(np.sum(array, axis=axis, dtype=np.float64).astype(array.dtype))


def _rows(pieces: Sequence[tuple[Array, Place]], mesh: Mesh) -> Array:
    found, keys = [], []
    for array, place in pieces:
        assert place.keys is not None
        for d in range(mesh.layout.dp):
            for c in range(mesh.layout.cp):
                key = place.keys[d, c, 0]
                found.append(_over_tp(array[d, c], place)[key >= 0])
                keys.append(key[key >= 0])
    return np.concatenate(found)[np.argsort(np.concatenate(keys), kind="stable")]
