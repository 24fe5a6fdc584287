"""Interleaved 1F1B with groups of any size, uneven micro-batches, and MindSpore's less-memory variant.

A group of micro-batches passes one chunk after the other; groups follow each other. Backwards pass the chunks
in the opposite order, and the warm-up says how many forwards lie before the first backward's. With groups of
as many micro-batches as stages this is what :func:`telekit.pipeline.schedules.order` makes as arrays.

Sources: Megatron-Core ``core/pipeline_parallel/schedules.py`` (``get_pp_rank_microbatches``,
``get_schedule_table``, ``forward_backward_pipelining_with_interleaving``); MindSpore ``ccsrc/frontend/parallel/
pipeline_transformer/pipeline_scheduler.cc`` (``InterleavedScheduler``; the environment variable
``ENABLE_LESS_MEM_VPP`` turns the less-memory variant on).
"""

from __future__ import annotations

import numpy as np

from telekit.pipeline.order import BACKWARD, FORWARD, PAIR, Ints, Op
from telekit.pipeline.size_rules import Rule, raise_broken

RULES: tuple[Rule, ...] = (
    ("stages", "interleaving needs at least 2 stages", lambda of: of["stages"] > 1),
    ("chunks", "interleaving needs at least 2 chunks; one chunk is 1f1b", lambda of: of["chunks"] > 1),
    (
        "micro_batches",
        "interleaving needs at least as many micro-batches as stages, {stages}",
        lambda of: of["micro_batches"] >= of["stages"],
    ),
)
GROUP_RULES: tuple[Rule, ...] = (
    *RULES,
    (
        "group_size",
        "a group has at least stages = {stages} micro-batches and at most all {micro_batches}",
        lambda of: of["stages"] <= of["group_size"] <= of["micro_batches"],
    ),
    (
        "group_size",
        "what {micro_batches} micro-batches leave after whole groups must be none or at least stages = {stages}",
        lambda of: not 0 < of["micro_batches"] % of["group_size"] < of["stages"],
    ),
)
"""Megatron-Core raises an error for all others: a last group of fewer would wait for the ring."""


def interleaved_1f1b(
    stages: int, micro_batches: int, chunks: int = 2, group_size: int | None = None
) -> tuple[list[list[Op]], Ints]:
    """Megatron-Core's order; stage s warms up with ``2 (p - 1 - s) + (v - 1) group_size`` forwards.

    Parameters
    ----------
    stages, micro_batches, chunks : int
        Devices, micro-batches of a step, model parts a device holds.
    group_size : int, optional
        Micro-batches that pass a chunk one after the other (``microbatch_group_size_per_vp_stage``); as many as
        stages when nothing is said. Larger groups hold more activations.

    Returns
    -------
    operations : list (stages,) of list of Op
        What each device runs.
    part : array (chunks, stages)
        Chunk v of device s is part ``v * stages + s``.

    Raises
    ------
    InputError
        For sizes that break :data:`GROUP_RULES`; all broken rules are listed.
    """
    groups = megatron_groups(stages, micro_batches, chunks, group_size)
    leads = [2 * (stages - 1 - s) + (chunks - 1) * groups[0] for s in range(stages)]
    return alternating(groups, leads, chunks), ring(stages, chunks)


def interleaved_less_memory(stages: int, micro_batches: int, chunks: int = 2) -> tuple[list[list[Op]], Ints]:
    """MindSpore's less-memory variant: a stage's warm-up is one forward longer than the next stage's, not two.

    With equal stages and no communication it takes no longer than Megatron-Core's order; communication then
    delays each round trip between neighbours, and costs several times as much (B = 2 F, 4 stages, 2 chunks, 16
    micro-batches: a tenth of F makes 52.5 F into 57.9 F, and with Megatron-Core's order into 53.9 F).
    The first group has ``g = p + (m mod p)`` micro-batches, the others p; stage s warms up with
    ``p - 1 - s + (v - 1) g`` forwards. Returns and errors as in :func:`interleaved_1f1b`, without groups.
    """
    raise_broken(RULES, stages=stages, micro_batches=micro_batches, chunks=chunks)
    groups = [stages + micro_batches % stages] + [stages] * (micro_batches // stages - 1)
    leads = [stages - 1 - s + (chunks - 1) * groups[0] for s in range(stages)]
    return alternating(groups, leads, chunks), ring(stages, chunks)


def megatron_groups(stages: int, micro_batches: int, chunks: int, group_size: int | None) -> list[int]:
    """Micro-batches of each group; the last one has what remains. Errors as in :func:`interleaved_1f1b`."""
    if group_size is None:
        raise_broken(RULES, stages=stages, micro_batches=micro_batches, chunks=chunks)
    size = stages if group_size is None else group_size
    raise_broken(GROUP_RULES, stages=stages, micro_batches=micro_batches, chunks=chunks, group_size=size)
    return [min(size, micro_batches - first) for first in range(0, micro_batches, size)]


def alternating(
    groups: list[int], leads: list[int], chunks: int, pieces: int = 1, paired: bool = False
) -> list[list[Op]]:
    """Write ``leads[s]`` forwards of stage s, then a forward and a backward in turn, then backwards.

    Parameters
    ----------
    groups : list of int
        Micro-batches of each group.
    leads : list (stages,) of int
        Forwards before the first that a backward follows.
    chunks, pieces : int
        Model parts a device holds; slices of a sequence, which follow each other through a chunk and come back
        the last first.
    paired : bool
        Whether a forward and the backward after it are one block.
    """
    forwards, backwards, first = [], [], 0
    for size in groups:
        block = range(first, first + size)
        forwards += [Op(FORWARD, i, c, k) for c in range(chunks) for i in block for k in range(pieces)]
        backwards += [
            Op(BACKWARD, i, c, k)
            for c in reversed(range(chunks))
            for i in block
            for k in reversed(range(pieces))
        ]
        first += size
    lines = []
    for warm in (min(lead, len(forwards)) for lead in leads):
        steady = zip(forwards[warm:], backwards, strict=False)
        if paired:
            middle = [Op(PAIR, f.micro_batch, f.chunk, 0, b.micro_batch, b.chunk) for f, b in steady]
        else:
            middle = [op for both in steady for op in both]
        lines.append(forwards[:warm] + middle + backwards[len(forwards) - warm :])
    return lines


def ring(stages: int, chunks: int) -> Ints:
    """Model part of each chunk of each device when chunks go round the devices, shape (chunks, stages)."""
    return np.arange(chunks * stages).reshape(chunks, stages)
