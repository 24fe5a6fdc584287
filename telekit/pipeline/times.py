"""How long the operations of a pipeline take: stages, micro-batches, pieces, recompute, communication."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import Problem
from telekit.pipeline.numbers import faults, numbers, wrong_numbers
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, PAIR, WEIGHT, Ints, Order

Floats = NDArray[np.float64]

MAX_TIMES = 2**27
"""Most operations times duration sets that are timed at once: 1 GiB of end times."""

SHARES_SUM = 1e-9
"""How far shares of pieces may sum from 1: rounding."""

_Passes = tuple[Ints, Ints, Ints]
"""Micro-batch, chunk and device of each."""

_HALVES = ("forward", "backward_input", "backward_weight")
_WORK = {
    FORWARD: ("forward",),
    BACKWARD: ("recompute", "backward_input", "backward_weight"),
    INPUT: ("recompute", "backward_input"),
    WEIGHT: ("backward_weight",),
}


@dataclass(frozen=True)
class Times:
    """Durations, in any one unit, of what an order runs; leading axes (...) are independent duration sets.

    Attributes
    ----------
    forward, backward_input, backward_weight : arrays (..., chunks, stages)
        One micro-batch through one chunk of one device. A whole backward is the sum of its halves.
    pair : array (..., chunks, stages), optional
        A forward overlapped with the whole backward of another micro-batch, by the forward's chunk. Without
        it a pair takes the sum: overlapping saves nothing. By micro-batch, it is that of two passes of the same
        one, and takes its share of the sum of the two that meet.
    comm : float or array (..., parts - 1)
        From the end of a pass to the moment the neighbouring model part may use it, when that is on another
        device; entry k is between parts k and k + 1. No device is busy with it.
    recompute : float or array (..., chunks, stages)
        Spent right before each backward (or its input half), on the same device.
    micro_batch : array (..., micro_batches), optional
        Factor of each micro-batch on all of the above but ``comm``, as packed documents give it. A pair's
        factor is the mean of its two, weighted by forward and backward.
    piece : array (pieces,), optional
        Share of a micro-batch's time that each slice of its sequence takes; equal shares without it.
    by_micro_batch : bool
        Whether ``forward``, ``backward_input``, ``backward_weight``, ``pair`` and ``recompute`` have one more
        axis (micro_batches) before ``chunks``.
    """

    forward: ArrayLike
    backward_input: ArrayLike
    backward_weight: ArrayLike
    pair: ArrayLike | None = None
    comm: ArrayLike = 0.0
    recompute: ArrayLike = 0.0
    micro_batch: ArrayLike | None = None
    piece: ArrayLike | None = None
    by_micro_batch: bool = False

    @classmethod
    def of_stages(
        cls,
        part: Ints,
        forward: ArrayLike,
        backward_input: ArrayLike,
        backward_weight: ArrayLike,
        pair: ArrayLike | None = None,
        comm: ArrayLike = 0.0,
    ) -> Times:
        """Share times of whole stages evenly among the parts of a stage.

        Parameters
        ----------
        part : array (chunks, stages)
            Model part of each chunk; with k parts for each stage, a part takes 1 / k of a stage's time.
        forward, backward_input, backward_weight, pair : floats or arrays (..., stages)
            One micro-batch through one stage.
        comm : float or array (..., parts - 1)
            As it is.
        """
        share = part.shape[1] / (int(part.max()) + 1)

        def chunks(name: str, values: ArrayLike) -> Floats:
            each = np.atleast_1d(numbers(name, values))[..., None, :] * share
            stages = part.shape[1] if each.shape[-1] == 1 else each.shape[-1]
            return np.broadcast_to(each, (*each.shape[:-2], part.shape[0], stages))

        both = None if pair is None else chunks("pair", pair)
        halves = (forward, backward_input, backward_weight)
        first, second, third = (chunks(*half) for half in zip(_HALVES, halves, strict=True))
        return cls(first, second, third, both, comm)

    @property
    def sets(self) -> tuple[int, ...]:
        """Leading axes of all arrays together."""
        shapes = [np.shape(values)[: -self._axes] for values in self._passes().values()]
        shapes.append(np.shape(self.comm)[:-1])
        if self.micro_batch is not None:
            shapes.append(np.shape(self.micro_batch)[:-1])
        return np.broadcast_shapes(*shapes)

    @property
    def _axes(self) -> int:
        """Axes of one duration set."""
        return 3 if self.by_micro_batch else 2

    def with_ends(self, part: Ints, embedding: ArrayLike, loss: ArrayLike) -> Times:
        """Add work to the ends of the model.

        Parameters
        ----------
        part : array (chunks, stages)
            Model part of each chunk, as in :class:`~telekit.pipeline.order.Order`.
        embedding, loss : arrays (3,)
            Time that the first and the last part take more: forward, input gradient, weight gradient.
        """
        ends = np.stack([part == 0, part == part.max()]).astype(np.float64)
        more = np.einsum("ek,ecs->kcs", np.array([embedding, loss], dtype=np.float64), ends)
        passes = {name: np.asarray(getattr(self, name)) + x for name, x in zip(_HALVES, more, strict=True)}
        return replace(self, **passes)

    def durations(self, order: Order, operations: Ints) -> Floats:
        """Durations of some operations, shape (operations, *sets); nothing is checked."""
        kind, micro_batch, chunk, device = (
            column[operations] for column in (order.kind, order.micro_batch, order.chunk, order.device)
        )
        result = np.empty((operations.size, *self.sets))
        for work, names in _WORK.items():
            here = kind == work
            if here.any():
                result[here] = self._work(names, (micro_batch[here], chunk[here], device[here]))
        if order.other_micro_batch is not None and order.other_chunk is not None:
            here = kind == PAIR
            own = micro_batch[here], chunk[here], device[here]
            other = order.other_micro_batch[operations][here], order.other_chunk[operations][here], own[2]
            result[here] = self._pairs(own, other)
        if order.piece is not None:
            share = np.full(order.pieces, 1 / order.pieces) if self.piece is None else np.asarray(self.piece)
            result *= share[order.piece[operations]].reshape(-1, *[1] * (result.ndim - 1))
        return result

    def _pairs(self, own: _Passes, other: _Passes) -> Any:
        """Durations of pairs; own is the forward, other the backward."""
        both = self._work(("forward",), own) + self._work(_HALVES[1:], other)
        if self.pair is not None:
            same = own[0], *other[1:]  # a pair is given for two passes of one micro-batch
            plain = self._work(("forward",), own, even=True) + self._work(_HALVES[1:], same, even=True)
            both = self._work(("pair",), own, even=True) * (both / plain)
        return both + self._work(("recompute",), other)

    def _work(self, names: tuple[str, ...], at: _Passes, even: bool = False) -> Any:
        """Sum of some passes, shape (operations, *sets); ``even`` leaves factors of micro-batches out."""
        core = np.shape(self.forward)[-self._axes :]
        index = at if self.by_micro_batch else at[1:]
        total: Any = 0.0
        for name in names:
            values = np.broadcast_to(np.asarray(getattr(self, name), dtype=np.float64), (*self.sets, *core))
            total = total + np.moveaxis(values, range(-self._axes, 0), range(self._axes))[index]
        if self.micro_batch is not None and not even:
            factor = np.asarray(self.micro_batch, dtype=np.float64)
            total = total * np.moveaxis(np.broadcast_to(factor, (*self.sets, factor.shape[-1])), -1, 0)[at[0]]
        return total

    def lags(self, order: Order) -> Floats:
        """Communication of each boundary, and 0 before them, shape (parts, *sets); nothing is checked."""
        table = np.zeros((order.parts, *self.sets))
        table[1:] = np.moveaxis(np.broadcast_to(self.comm, (*self.sets, order.parts - 1)), -1, 0)
        return table

    def problems(self, order: Order) -> list[Problem]:
        """List everything that keeps these times from timing an order."""
        given = self._passes() | {"comm": self.comm}
        factors = {"micro_batch": self.micro_batch, "piece": self.piece}
        given |= {name: values for name, values in factors.items() if values is not None}
        unread = [fault for name, values in given.items() for fault in faults(name, values)]
        if unread:
            return unread
        shape = (order.micro_batches,) * self.by_micro_batch + (order.chunks, order.stages)
        names = "(..., micro_batches, chunks, stages)" if self.by_micro_batch else "(..., chunks, stages)"
        found = []
        for name, values in self._passes().items():
            scalar = name == "recompute" and np.ndim(values) == 0
            if not scalar and np.shape(values)[-len(shape) :] != shape:
                rule = f"its shape must end in {shape}: {names}"
                found.append(Problem(name, np.shape(values), rule, f"{shape} works"))
            found += wrong_numbers(name, values, zero=name == "recompute")
        for name, values, length in (
            ("micro_batch", self.micro_batch, order.micro_batches),
            ("piece", self.piece, order.pieces),
        ):
            if values is not None:
                if np.shape(values)[-1:] != (length,):
                    found.append(
                        Problem(name, np.shape(values), f"must have {length} entries", f"({length},) works")
                    )
                found += wrong_numbers(name, values)
        found += self._wrong_shares(order)
        if np.shape(self.comm)[-1:] not in ((), (1,), (order.parts - 1,)):
            rule = f"must be one number, or one for each of {order.parts - 1} boundaries between model parts"
            found.append(Problem("comm", np.shape(self.comm), rule, "one number works"))
        found += wrong_numbers("comm", self.comm, zero=True)
        return found or self._too_many(order)

    def _wrong_shares(self, order: Order) -> list[Problem]:
        """Shares of a whole sum to 1, for each micro-batch's time is given whole."""
        if self.piece is None or np.shape(self.piece) != (order.pieces,):
            return []
        total = float(np.sum(np.asarray(self.piece, dtype=np.float64)))
        if abs(total - 1) <= SHARES_SUM:
            return []
        rule = f"shares of a micro-batch's time must sum to 1, not {total:g}"
        return [Problem("piece", self.piece, rule, f"{order.pieces} times {1 / order.pieces:g} works")]

    def _too_many(self, order: Order) -> list[Problem]:
        try:
            sets = int(np.prod(self.sets))
        except ValueError as error:
            return [
                Problem("times", "shapes", f"leading axes do not fit together: {error}", "equal axes work")
            ]
        if sets * order.kind.size <= MAX_TIMES:
            return []
        rule = f"makes {sets * order.kind.size:,} operations and sets at once; the most is {MAX_TIMES:,}"
        return [Problem("times", f"{sets} sets", rule, f"{max(MAX_TIMES // order.kind.size, 1)} sets work")]

    def _passes(self) -> dict[str, Any]:
        names = (*_HALVES, "recompute") + ("pair",) * (self.pair is not None)
        return {name: getattr(self, name) for name in names}
