"""Sizes that a schedule may be asked for at all: whole, positive, not too many."""

from __future__ import annotations

import numpy as np

from telekit.errors import Problem
from telekit.pipeline.order import MAX_OPERATIONS


def check_sizes(stages: int, micro_batches: int, chunks: int = 1, pieces: int = 1) -> list[Problem]:
    """Name sizes that are not whole or not positive; else, operations that are too many to list.

    Counted are a forward and a backward of each micro-batch, chunk and piece.
    """
    sizes = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks, "pieces": pieces}
    unusable = [
        Problem(name, value, "must be a whole number of at least 1", f"{name} 1 works")
        for name, value in sizes.items()
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1
    ]
    if unusable:
        return unusable
    of_one = 2 * int(stages) * int(chunks) * int(pieces)
    operations = of_one * int(micro_batches)
    if operations <= MAX_OPERATIONS:
        return []
    most = max(MAX_OPERATIONS // of_one, 1)
    rule = f"makes {operations:,} operations; the most is {MAX_OPERATIONS:,}"
    return [Problem("micro_batches", micro_batches, rule, f"micro_batches {most} works")]
