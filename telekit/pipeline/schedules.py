"""Orders of pipeline schedules: what each device runs, one pass after the other, without any time.

An order lists forward (F) and backward (B) passes of (micro-batch, chunk) for each device, and says which
part of the model each chunk of a device is, so that dependencies follow for any placement. Times come
later (:mod:`telekit.pipeline.simulate`).

1F1B and its interleaved form differ in one number a stage: how many forwards run before the first
backward (:func:`warm_up`). After that, forwards and backwards alternate.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem, bad
from telekit.layout.schedules import RULES, Holds
from telekit.pipeline.order import BACKWARD, FORWARD, Order
from telekit.pipeline.sizes import Rule, broken

Ints = NDArray[np.int64]

SAPP = ("interleaved-sapp", "interleaved-sapp-less-memory")
ORDERED = ("gpipe", "1f1b", "interleaved-1f1b", "seqsmartvpp", *SAPP)
"""Schedules with an order here. ``seqsmartvpp`` with one chunk and one piece is 1F1B (MindSpore's scheduler)."""

SAPP_RULES: tuple[tuple[str, str, str, Holds], ...] = (
    (
        "SAPP interleaving",
        "vpp",
        "{schedule} needs pp > 1 and vpp > 1 (with one chunk it is 1f1b)",
        lambda schedule, pp, vpp, m: schedule not in SAPP or (pp > 1 and vpp > 1),
    ),
    (
        "SAPP micro-batches",
        "micro_batch",
        "interleaved-sapp needs at least pp = {pp} micro-batches",
        lambda schedule, pp, vpp, m: (schedule != SAPP[0]) | (m >= pp),
    ),
    (
        "SAPP less memory",
        "micro_batch",
        "with micro-batches that are no multiple of pp = {pp}, SAPP's less-memory order waits for itself",
        lambda schedule, pp, vpp, m: (schedule != SAPP[1]) | (np.mod(m, pp) == 0),
    ),
)
_PAIR_OF_STAGES: Rule = ("stages", "interleaving needs at least 2 stages", lambda of: of["stages"] > 1)
_FIELDS = {"pp": "stages", "vpp": "chunks", "micro_batch": "micro_batches"}


@lru_cache(maxsize=16, typed=True)
def order(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """Order of a schedule; the same object for the same arguments, its arrays read-only.

    Parameters
    ----------
    schedule : str
        A name of :data:`ORDERED`: ``interleaved-1f1b`` is Megatron-Core's order with groups of as many
        micro-batches as stages, ``interleaved-sapp`` and ``interleaved-sapp-less-memory`` are those of
        MindFormers' pipeline-balance tool (SAPP).
    stages, micro_batches, chunks : int
        Devices, micro-batches of a step, model parts a device holds.

    Raises
    ------
    InputError
        For an unknown name, or numbers the schedule does not allow; every broken rule is listed.
    """
    if schedule not in ORDERED:
        raise bad("schedule", schedule, "no order of this schedule is known", f"known: {', '.join(ORDERED)}")
    raise_broken(schedule, stages, micro_batches, chunks)
    each = micro_batches * chunks
    device, turn = np.divmod(np.arange(stages * each), each)
    lead = warm_up(schedule, stages, micro_batches, chunks)[device]
    # After the warm-up, forward k + lead comes just before backward k.
    forward_at = turn + np.clip(turn - lead, 0, each)
    backward_at = turn + np.minimum(turn + lead + 1, each)
    place = np.concatenate([forward_at, backward_at]) + 2 * each * np.tile(device, 2)
    micro_batch, chunk = (np.tile(column, stages) for column in _groups(stages, micro_batches, chunks))

    def column(forward: Any, backward: Any) -> Ints:
        values = np.empty(place.size, dtype=np.int64)
        values[place[: device.size]], values[place[device.size :]] = forward, backward
        values.flags.writeable = False
        return values

    return Order(
        schedule,
        stages,
        chunks,
        micro_batches,
        device=column(device, device),
        kind=column(FORWARD, BACKWARD),
        micro_batch=column(micro_batch, micro_batch),
        chunk=column(chunk, chunks - 1 - chunk),
        part=np.arange(chunks * stages).reshape(chunks, stages),
    )


def warm_up(schedule: str, stages: int, micro_batches: Any, chunks: int) -> Any:
    """Count the forwards of the warm-up on each stage, shape (..., stages).

    One more forward runs just before the first backward. Never more than there are; all for GPipe. Sources:
    Megatron-Core ``core/pipeline_parallel/schedules.py`` (``p - s - 1``, interleaved ``2 (p - s - 1) +
    (v - 1) p``), MindFormers ``toolkit/pipeline_balance`` (interleaved ``+ (m mod p)(v - 1)``, less memory
    ``v p - s - 1``).

    Parameters
    ----------
    schedule : str
        Name.
    stages, chunks : int
        Devices, model parts a device holds.
    micro_batches : int or column (n, 1)
        Micro-batches of a step.
    """
    behind = stages - 1 - np.arange(stages)
    match schedule:
        case "gpipe":
            lead = behind + micro_batches * chunks
        case "interleaved-1f1b":
            lead = 2 * behind + (chunks - 1) * stages
        case "interleaved-sapp":
            lead = 2 * behind + (chunks - 1) * (stages + np.mod(micro_batches, stages))
        case _:
            lead = behind + (chunks - 1) * stages
    return np.minimum(lead, micro_batches * chunks)


def _groups(stages: int, micro_batches: int, chunks: int) -> tuple[Ints, Ints]:
    """Micro-batch and chunk of the k-th forward.

    A group of ``stages`` micro-batches passes chunk after chunk; a remainder joins the first group (SAPP).
    """
    remainder = micro_batches % stages
    group = np.maximum(np.arange(micro_batches) - remainder, 0) // stages
    micro_batch, chunk = (
        np.tile(np.arange(micro_batches), chunks),
        np.repeat(np.arange(chunks), micro_batches),
    )
    by_group = np.lexsort((micro_batch, chunk, np.tile(group, chunks)))
    return micro_batch[by_group], chunk[by_group]


def raise_broken(schedule: str, stages: int, micro_batches: int, chunks: int) -> None:
    """Raise an InputError of all broken rules, if there are any."""
    problems = broken_rules(schedule, stages, micro_batches, chunks)
    if problems:
        raise InputError(problems)


def broken_rules(schedule: str, stages: int, micro_batches: int, chunks: int) -> list[Problem]:
    """Every size that breaks a rule of the schedule, or cannot be used at all, each with a value that works."""
    sizes = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
    own = [_PAIR_OF_STAGES] if schedule in ("interleaved-1f1b", *SAPP) else []
    return broken(sizes, own + [_rule(schedule, *rule) for rule in (*RULES, *SAPP_RULES)])


def _rule(schedule: str, _: str, field: str, text: str, holds: Holds) -> Rule:
    """Read a rule of layouts as one of sizes."""
    return (
        _FIELDS[field],
        text.replace("{schedule}", schedule),
        lambda of: bool(holds(schedule, of["stages"], of["chunks"], of["micro_batches"])),
    )
