"""Forwards that hide behind backwards of other micro-batches: DualPipe, DualPipeV and overlapped 1F1B.

Both Pipes run two ways through the devices at once. DualPipe feeds micro-batches from both ends: device d holds
part d for the first half of them and part ``p - 1 - d`` for the second, so that the model is held twice.
DualPipeV folds the pipeline instead: device d holds parts d and ``2 p - 1 - d``, and all micro-batches pass
both.

Sources: github.com/deepseek-ai/DualPipe, README and ``dualpipe/dualpipe.py``, ``dualpipe/dualpipev.py``
(``step``, its eight phases); Megatron-Core ``core/pipeline_parallel/schedules.py`` and ``combined_1f1b.py``.
Every pair is one operation (PAIR) whose time says what overlapping saves: F&B 3 where F is 1 and B 2 saves
nothing, F&B 2 hides the whole forward. :func:`telekit.pipeline.order.split_pairs` gives what runs where a
forward and a backward cannot be one block; that ends earlier than blocks which save nothing, for a block waits
for both its inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from telekit.pipeline import size_rules as rules
from telekit.pipeline.interleaved import alternating, megatron_groups, ring
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, PAIR, WEIGHT, Ints, Op
from telekit.pipeline.schedules import raise_broken


def dualpipe(stages: int, micro_batches: int) -> tuple[list[list[Op]], Ints]:
    """DualPipe's order.

    Parameters
    ----------
    stages, micro_batches : int
        Devices, an even number; micro-batches of both directions together, even and at least twice as many.

    Returns
    -------
    operations : list (stages,) of list of Op
        What each device runs. Micro-batches of the first half are on chunk 0, the others on chunk 1.
    part : array (2, stages)
        Model part of each chunk.

    Raises
    ------
    InputError
        For sizes that DualPipe does not run.
    """
    raise_broken("dualpipe", stages, micro_batches, 1)
    half = micro_batches // 2
    down, up = (0, range(half)), (1, range(half, micro_batches))
    lines = []
    for d in range(stages):
        near = min(d, stages - 1 - d)
        ways = (down, up) if d < stages // 2 else (up, down)
        lines.append(_device(ways, stages // 2 - near - 1, near + 1, half - stages + near + 1))
    return lines, np.stack([np.arange(stages), np.arange(stages)[::-1]])


def dualpipe_v(stages: int, micro_batches: int) -> tuple[list[list[Op]], Ints]:
    """DualPipeV's order; at least ``2 * stages`` micro-batches. Else as :func:`dualpipe`."""
    raise_broken("dualpipe-v", stages, micro_batches, 2)
    ways = (0, range(micro_batches)), (1, range(micro_batches))
    lines = [_device(ways, stages - d - 1, d + 1, micro_batches - 2 * stages + d + 1) for d in range(stages)]
    return lines, np.stack([np.arange(stages), 2 * stages - 1 - np.arange(stages)])


def overlapped_1f1b(
    stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None
) -> tuple[list[list[Op]], Ints]:
    """1F1B, plain or interleaved, whose steady forwards and backwards are blocks, and so hide each other.

    Megatron-Core's ``overlap_moe_expert_parallel_comm``: the expert all-to-all of one runs under the computation
    of the other. One more forward in the warm-up makes the two independent, and a device runs ahead of the next
    by two forwards, as interleaving does anyway: a block passes on its forward and its backward only together,
    so with plain 1F1B's warm-up each device would wait every other time. Hence the price: stage s of one chunk
    holds ``2 (p - s)`` micro-batches. (Megatron-Core asks for two chunks; one chunk is our reading.)

    Parameters
    ----------
    stages, micro_batches, chunks : int
        Devices, micro-batches of a step, model parts a device holds.
    group_size : int, optional
        As in :func:`telekit.pipeline.interleaved.interleaved_1f1b`, for more than one chunk.

    Returns
    -------
    operations : list (stages,) of list of Op
        What each device runs.
    part : array (chunks, stages)
        Chunk v of device s is part ``v * stages + s``.

    Raises
    ------
    InputError
        For sizes that interleaved 1F1B does not run, and for groups of a single chunk.
    """
    if chunks == 1 and group_size is None:
        rules.raise_broken((), stages=stages, micro_batches=micro_batches)
        groups = [micro_batches]
    else:
        groups = megatron_groups(stages, micro_batches, chunks, group_size)
    leads = [2 * (stages - 1 - s) + (chunks - 1) * groups[0] + 1 for s in range(stages)]
    return alternating(groups, leads, chunks, paired=True), ring(stages, chunks)


class _Line:
    """A device's operations as they are written: which micro-batch is next on each way, and whose W is due."""

    def __init__(self, ways: Sequence[tuple[int, range]]) -> None:
        self.operations: list[Op] = []
        self._chunk = [chunk for chunk, _ in ways]
        self._forward = [iter(micro_batches) for _, micro_batches in ways]
        self._backward = [iter(micro_batches) for _, micro_batches in ways]
        self._due: deque[Op] = deque()

    def forward(self, way: int) -> None:
        self.operations.append(Op(FORWARD, next(self._forward[way]), self._chunk[way]))

    def backward(self, way: int) -> None:
        self.operations.append(Op(BACKWARD, next(self._backward[way]), self._chunk[way]))

    def input(self, way: int) -> None:
        micro_batch, chunk = next(self._backward[way]), self._chunk[way]
        self.operations.append(Op(INPUT, micro_batch, chunk))
        self._due.append(Op(WEIGHT, micro_batch, chunk))

    def weight(self) -> None:
        self.operations.append(self._due.popleft())

    def pair(self, way: int) -> None:
        """Forward of a way with a backward of the other."""
        other = 1 - way
        self.operations.append(
            Op(
                PAIR,
                next(self._forward[way]),
                self._chunk[way],
                0,
                next(self._backward[other]),
                self._chunk[other],
            )
        )


def _device(
    ways: tuple[tuple[int, range], tuple[int, range]], to_turn: int, near: int, steady: int
) -> list[Op]:
    """Write one device's line.

    Way 0 is the one that starts nearer to this device. ``to_turn`` devices lie between it and the middle
    (DualPipeV: the fold), ``near`` is its own number from its end, 1 for the first.
    """
    line = _Line(ways)
    for _ in range(2 * to_turn):
        line.forward(0)
    for _ in range(near):
        line.forward(0)
        line.forward(1)
    for _ in range(to_turn):
        line.input(1)
        line.weight()
        line.forward(1)
    for turn in range(steady):
        if turn == 0 and to_turn == 0:
            # The middle device's first two would wait for each other's neighbours; apart they start earlier.
            line.forward(0)
            line.backward(1)
        else:
            line.pair(0)
        line.pair(1)
    for _ in range(to_turn):
        line.backward(1)
        line.pair(1)
    for turn in range(2 * near):
        # In the second half the weights' gradients wait, so that the way out is free sooner.
        (line.backward if turn < near else line.input)(1 - turn % 2)
    for _ in range(to_turn):
        line.weight()
        line.input(0)
    for _ in range(near):
        line.weight()
    return line.operations
