"""What each device of a pipeline runs, one operation after the other, without any time.

A schedule is a list of operations for each device. Generators (:mod:`~telekit.pipeline.schedules`,
``zero_bubble``, ``v_shaped``, ``dualpipe``, ``sequence``) write plain lists of :class:`Op`;
:func:`from_lists` checks them and makes columns, and :func:`dependencies` says what waits for what. Times
come later (:mod:`telekit.pipeline.simulate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem
from telekit.timeline import CompiledOrder, compile_order

Ints = NDArray[np.int64]

FORWARD, BACKWARD, INPUT, WEIGHT, PAIR = range(5)
KIND_NAMES = ("forward", "backward", "input gradient", "weight gradient", "forward and backward")
KIND_LETTERS = ("F", "B", "I", "W", "F")
"""First letter of an operation's name. I and W are the halves of B: many papers write B for I."""

MAX_OPERATIONS = 4_000_000
_NAMED_IN_ERRORS = 8


class Op(NamedTuple):
    """One operation of one device.

    Attributes
    ----------
    kind : int
        FORWARD; BACKWARD, which makes the gradients of inputs and of weights; INPUT and WEIGHT, its two
        halves; or PAIR, one block that runs a forward with the whole backward of another micro-batch.
    micro_batch, chunk, piece : int
        What it works on: a micro-batch, one of the device's model parts, a slice of the sequence.
    other_micro_batch, other_chunk : int
        Of a PAIR's backward; -1 for all other kinds.
    """

    kind: int
    micro_batch: int
    chunk: int = 0
    piece: int = 0
    other_micro_batch: int = -1
    other_chunk: int = -1


@dataclass(frozen=True)
class Order:
    """What each device runs, in order; operations are sorted by device, then by their turn.

    Attributes
    ----------
    schedule : str
        Name.
    stages, chunks, micro_batches : int
        Devices of the pipeline, model parts a device holds, micro-batches of a step.
    device, kind, micro_batch, chunk : arrays (operations,)
        Columns, as in :class:`Op`.
    part : array (chunks, stages)
        Which part of the model, first to last, each chunk of each device is. DualPipe has each part twice.
    pieces : int
        Slices a sequence is cut into.
    piece, other_micro_batch, other_chunk : arrays (operations,) or None
        Columns, None where no operation uses them.
    """

    schedule: str
    stages: int
    chunks: int
    micro_batches: int
    device: Ints
    kind: Ints
    micro_batch: Ints
    chunk: Ints
    part: Ints
    pieces: int = 1
    piece: Ints | None = None
    other_micro_batch: Ints | None = None
    other_chunk: Ints | None = None

    @property
    def parts(self) -> int:
        """Parts that the model is cut into."""
        return int(self.part.max()) + 1

    @property
    def first(self) -> Ints:
        """First operation of each device, and the number of all, shape (stages + 1,)."""
        return np.searchsorted(self.device, np.arange(self.stages + 1))

    @cached_property
    def compiled(self) -> CompiledOrder:
        """The order, ready to be timed; its dependencies are those of :attr:`links`."""
        before, after, _ = self.links
        return compile_order(self.device, before, after, self.describe)

    @cached_property
    def links(self) -> tuple[Ints, Ints, Ints]:
        """Dependencies (before, after) that a device's own order does not imply, and what each crosses.

        The third array is k + 1 between parts k and k + 1 on different devices, 0 inside a device.
        """
        before, after, crosses = _dependencies(self)
        apart = self.device[before] != self.device[after]
        kept = apart | (before >= after)
        return before[kept], after[kept], np.where(apart, crosses, 0)[kept]

    @cached_property
    def classes(self) -> tuple[Ints, Ints]:
        """One operation of each class, and the class of each operation; (classes,) and (operations,).

        Operations of a class differ in the micro-batch alone.
        """
        code = (self.kind * self.chunks + self.chunk) * self.stages + self.device
        size = len(KIND_NAMES) * self.chunks * self.stages
        if self.piece is not None:
            code, size = code * self.pieces + self.piece, size * self.pieces
        if self.other_chunk is not None:
            code, size = code * (self.chunks + 1) + self.other_chunk + 1, size * (self.chunks + 1)
        one = np.full(size, -1, dtype=np.int64)
        one[code] = np.arange(code.size)
        number = np.cumsum(one >= 0) - 1
        return one[one >= 0], number[code]

    def describe(self, operation: int) -> str:
        """Name of one operation (``F3 of chunk 1 on stage 2``; a pair: ``F3&B0 of chunks 0&1 on stage 2``)."""
        name = f"{KIND_LETTERS[self.kind[operation]]}{self.micro_batch[operation]}"
        chunk = f"chunk {self.chunk[operation]}"
        if (
            self.kind[operation] == PAIR
            and self.other_micro_batch is not None
            and self.other_chunk is not None
        ):
            name += f"&B{self.other_micro_batch[operation]}"
            chunk = f"chunks {self.chunk[operation]}&{self.other_chunk[operation]}"
        if self.piece is not None:
            name += f" piece {self.piece[operation]}"
        return f"{name}{f' of {chunk}' if self.chunks > 1 else ''} on stage {self.device[operation]}"


def from_lists(
    schedule: str,
    operations: Sequence[Sequence[Op]],
    part: ArrayLike,
    micro_batches: int,
    pieces: int = 1,
) -> Order:
    """Make an order of a list of operations for each device, its arrays read-only.

    Parameters
    ----------
    schedule : str
        Name.
    operations : sequence (stages,) of sequences of Op
        What each device runs, in order. Devices may have lists of different lengths.
    part : array (chunks, stages)
        Which part of the model each chunk of each device is.
    micro_batches, pieces : int
        Micro-batches of a step; slices of a sequence.

    Raises
    ------
    InputError
        When a number lies outside its range, or when some micro-batch (and piece) does not run through each
        model part exactly once: one forward, and either one backward or one of each of its halves. All
        faults of a kind are counted, and the first ones named. Operations that wait for each other in a
        circle are found later, by :func:`telekit.timeline.compile_order`.
    """
    parts = np.array(part, dtype=np.int64, ndmin=2)
    chunks, stages = parts.shape
    sizes = [len(line) for line in operations]
    flat = chain.from_iterable(chain.from_iterable(operations))
    table = np.fromiter(flat, dtype=np.int64, count=6 * sum(sizes)).reshape(-1, 6)
    columns = [np.ascontiguousarray(column) for column in table.T]
    kind, micro_batch, chunk, piece, other_micro_batch, other_chunk = columns
    paired = bool((kind == PAIR).any())
    found = Order(
        schedule,
        stages,
        chunks,
        micro_batches,
        device=np.repeat(np.arange(len(sizes)), sizes),
        kind=kind,
        micro_batch=micro_batch,
        chunk=chunk,
        part=parts,
        pieces=pieces,
        piece=piece if pieces > 1 else None,
        other_micro_batch=other_micro_batch if paired else None,
        other_chunk=other_chunk if paired else None,
    )
    problems = _out_of_range(found, piece) or _not_once(found)
    if not problems and 0 in sizes:
        problems = [Problem("operations", f"stage {sizes.index(0)}", "runs nothing", "one micro-batch works")]
    if problems:
        raise InputError(problems)
    for column in (*columns, found.device, parts):
        column.flags.writeable = False
    return found


def _out_of_range(found: Order, piece: Ints) -> list[Problem]:
    """List every column with a value that names nothing."""
    pair = found.kind == PAIR
    limits = [
        ("kind", found.kind, len(KIND_NAMES)),
        ("micro_batch", found.micro_batch, found.micro_batches),
        ("chunk", found.chunk, found.chunks),
        ("piece", piece, found.pieces),
    ]
    if found.other_micro_batch is not None and found.other_chunk is not None:
        limits.append(("other_micro_batch", found.other_micro_batch[pair], found.micro_batches))
        limits.append(("other_chunk", found.other_chunk[pair], found.chunks))
        if found.pieces > 1:
            return [Problem("pieces", found.pieces, "a pair is of whole sequences", "pieces 1 works")]
    problems = []
    if found.device.size and found.device[-1] >= found.stages:
        rule = f"part has {found.stages} stages: there must be as many lists"
        problems.append(Problem("operations", int(found.device[-1]) + 1, rule, f"{found.stages} lists work"))
    for name, values, limit in limits:
        wrong = (values < 0) | (values >= limit)
        if wrong.any():
            rule = f"must be 0 to {limit - 1}"
            problems.append(Problem(name, int(values[wrong][0]), rule, f"{limit - 1} works"))
    return problems


def _not_once(found: Order) -> list[Problem]:
    """Name what runs more than once, and what never runs."""
    size = (found.parts, found.micro_batches, found.pieces)
    counts = {name: np.zeros(int(np.prod(size)), dtype=np.int64) for name in "FBIW"}
    for name, operations, chunk, micro_batch in _passes(found):
        counts[name] += np.bincount(_key(found, operations, chunk, micro_batch), minlength=counts[name].size)
    runs = {
        "F": counts["F"],
        "B or I": counts["B"] + counts["I"],
        "B or W": counts["B"] + counts["W"],
    }
    problems = []
    for name, count in runs.items():
        for wrong, fault in ((count > 1, "more than once"), (count < 1, "never")):
            at = np.argwhere(wrong.reshape(size))
            if at.size:
                names = [
                    f"of micro-batch {i} on part {q}" + (f" piece {k}" if found.pieces > 1 else "")
                    for q, i, k in at[:_NAMED_IN_ERRORS].tolist()
                ]
                more = f" and {len(at) - len(names)} more" if len(at) > len(names) else ""
                rule = f"each runs once for each model part; {fault}: {', '.join(names)}{more}"
                problems.append(Problem("operations", f"{name} {fault}", rule, "exactly one of each works"))
    return problems


def dependencies(found: Order) -> tuple[Ints, Ints]:
    """Operations (before, after) that wait for each other.

    A forward waits for that of the part before, a backward for that of the part behind, the last part's
    backward for its own forward. That a backward follows its own forward on every other part is implied.
    The weight gradient waits for the input gradient; on each part, a forward for that of the piece before
    and a backward for that of the piece behind. A pair is both its forward and its backward.
    """
    before, after, _ = _dependencies(found)
    return before, after


def _dependencies(found: Order) -> tuple[Ints, Ints, Ints]:
    """Dependencies, and k + 1 for one between parts k and k + 1, else 0."""
    size = found.parts * found.micro_batches * found.pieces
    at = {name: np.full(size, -1, dtype=np.int64) for name in "FBW"}
    for name, operations, chunk, micro_batch in _passes(found):
        at["B" if name == "I" else name][_key(found, operations, chunk, micro_batch)] = operations
    forward, backward, weight = (
        at[name].reshape(found.parts, found.micro_batches, found.pieces) for name in "FBW"
    )
    between = np.arange(1, found.parts)[:, None, None] + np.zeros_like(forward[1:])
    links: list[tuple[Ints, Ints, ArrayLike]] = [
        (forward[:-1], forward[1:], between),
        (forward[-1:], backward[-1:], 0),
        (backward[1:], backward[:-1], between),
    ]
    if (found.kind == WEIGHT).any():
        split = weight >= 0
        links.append((backward[split], weight[split], 0))
    if found.pieces > 1:
        links.append((forward[..., :-1], forward[..., 1:], 0))
        links.append((backward[..., 1:], backward[..., :-1], 0))
    before, after, crosses = zip(*(np.broadcast_arrays(*link) for link in links), strict=True)
    return _joined(before), _joined(after), _joined(crosses)


def split_pairs(operations: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """Run each pair as its forward and then its backward: what a device does that cannot overlap them."""
    return [list(chain.from_iterable(_halves(op) for op in line)) for line in operations]


def _halves(op: Op) -> tuple[Op, ...]:
    if op.kind != PAIR:
        return (op,)
    return (
        Op(FORWARD, op.micro_batch, op.chunk, op.piece),
        Op(BACKWARD, op.other_micro_batch, op.other_chunk, op.piece),
    )


def _passes(found: Order) -> list[tuple[str, Ints, Ints, Ints]]:
    """List (F, B, I or W; operations; chunk of each; micro-batch of each); a pair is in F and in B."""
    passes = []
    for name, kind in (("F", FORWARD), ("B", BACKWARD), ("I", INPUT), ("W", WEIGHT)):
        here = np.flatnonzero(found.kind == kind)
        passes.append((name, here, found.chunk[here], found.micro_batch[here]))
    if found.other_chunk is not None and found.other_micro_batch is not None:
        here = np.flatnonzero(found.kind == PAIR)
        passes.append(("F", here, found.chunk[here], found.micro_batch[here]))
        passes.append(("B", here, found.other_chunk[here], found.other_micro_batch[here]))
    return passes


def _key(found: Order, operations: Ints, chunk: Ints, micro_batch: Ints) -> Ints:
    """Return one number for each (model part, micro-batch, piece)."""
    key = found.part[chunk, found.device[operations]] * found.micro_batches + micro_batch
    return key * found.pieces + (0 if found.piece is None else found.piece[operations])


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate([array.ravel() for array in arrays])
