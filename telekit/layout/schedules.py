"""What each pipeline schedule asks of a layout: chunks a device, stages, micro-batches.

Predicates take (schedule, pp, vpp, micro_batches); ``micro_batches`` may be a column. Sources: Megatron-Core
``schedules.py`` (1F1B, interleaved), zero-bubble ``zbv.py``, DualPipe's README, MindSpore's ``pipeline_scheduler``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ONE_CHUNK = ("gpipe", "1f1b", "zb-h1", "dualpipe", "seqsmartvpp")
TWO_CHUNKS = ("zb-v", "dualpipe-v")
EVEN_STAGES = ("dualpipe", "seqsmartvpp")
BOTH_ENDS = ("dualpipe", "dualpipe-v")
"""Feed micro-batches from both ends: at least two a stage."""

Holds = Callable[[str, int, int, Any], Any]


def smallest_group(pp: int, micro_batches: int) -> int | None:
    """Smallest group of micro-batches that Megatron-Core's interleaved schedule runs through one chunk at a time.

    A group holds ``pp`` to all micro-batches, and those that remain are none or at least ``pp``
    (``forward_backward_pipelining_with_interleaving`` of ``megatron/core/pipeline_parallel/schedules.py`` at
    00611e6eeb0b). None where there are too few micro-batches. Orders and times here have groups of ``pp`` only.
    """
    sizes = range(pp, micro_batches + 1)
    return next((n for n in sizes if micro_batches % n == 0 or micro_batches % n >= pp), None)


def model_copies(schedule: str) -> int:
    """How many model parts of the whole a device holds at ``vpp`` 1: DualPipe keeps two copies of the model."""
    return 2 if schedule == "dualpipe" else 1


def default_chunks(schedule: str) -> int:
    """Chunks a device holds when nothing is said."""
    return 1 if schedule in ONE_CHUNK else 2


RULES: tuple[tuple[str, str, str, Holds], ...] = (
    (
        "one chunk",
        "vpp",
        "{schedule} holds one chunk a device; interleaved-1f1b holds more",
        lambda schedule, pp, vpp, m: schedule not in ONE_CHUNK or vpp == 1,
    ),
    (
        "two chunks",
        "vpp",
        "{schedule} holds two chunks a device, in the shape of a V",
        lambda schedule, pp, vpp, m: schedule not in TWO_CHUNKS or vpp == 2,
    ),
    (
        "interleaving",
        "vpp",
        "interleaved-1f1b needs pp > 1 and vpp > 1 (with one chunk it is 1f1b)",
        lambda schedule, pp, vpp, m: schedule != "interleaved-1f1b" or (pp > 1 and vpp > 1),
    ),
    (
        "interleaved micro-batches",
        "micro_batch",
        "interleaved-1f1b needs at least pp = {pp} micro-batches, in whole groups of pp (Megatron-Core's default, and "
        "all that its older releases take; newer ones take groups of N from pp to M, M mod N = 0 or at least pp); "
        "M = {micro_batches}",
        lambda schedule, pp, vpp, m: (schedule != "interleaved-1f1b") | (np.mod(m, pp) == 0),
    ),
    (
        "even stages",
        "pp",
        "{schedule} needs an even number of stages",
        lambda schedule, pp, vpp, m: schedule not in EVEN_STAGES or pp % 2 == 0,
    ),
    (
        "dualpipe micro-batches",
        "micro_batch",
        "{schedule} needs an even number of micro-batches, at least 2 * pp = {twice_pp}; there are {micro_batches}",
        lambda schedule, pp, vpp, m: (schedule != "dualpipe") | ((m >= 2 * pp) & (np.mod(m, 2) == 0)),
    ),
    (
        "V micro-batches",
        "micro_batch",
        "{schedule} needs at least 2 * pp = {twice_pp} micro-batches; there are {micro_batches}",
        lambda schedule, pp, vpp, m: (schedule not in TWO_CHUNKS) | (m >= 2 * pp),
    ),
    (  # zero-bubble's closed forms hold once the pipeline is full
        "zb-h1 micro-batches",
        "micro_batch",
        "{schedule} needs at least pp = {pp} micro-batches; there are {micro_batches}",
        lambda schedule, pp, vpp, m: (schedule != "zb-h1") | (m >= pp),
    ),
)
