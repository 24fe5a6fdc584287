"""Every schedule by its name: what it takes, how its order is made, and its makespan by formula if it has one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from telekit.errors import InputError, Problem, bad
from telekit.pipeline import makespans
from telekit.pipeline.makespans import EQUAL as EQUAL
from telekit.pipeline.makespans import Passes as Passes
from telekit.pipeline.makespans import Sizes
from telekit.pipeline.numbers import faults, wrong_numbers
from telekit.pipeline.order import MAX_OPERATIONS, Order, from_lists
from telekit.pipeline.schedules import order as array_order
from telekit.pipeline.size_rules import raise_broken
from telekit.pipeline.sizes import MAX_SEARCHED, check_sizes, no_count
from telekit.pipeline.times import Times


@dataclass(frozen=True)
class Schedule:
    """One named schedule.

    Attributes
    ----------
    name, says, source : str
        Name, what it does in a line, and where it was published.
    generator : str
        ``module.function`` of this package that makes its lists of operations.
    chunks, pieces : int
        Model parts that a device holds, slices of a sequence, when nothing is said.
    options : tuple of str
        What its generator takes beside sizes: ``chunks``, ``group_size``, ``sequence_chunks``,
        ``memory_limit``, ``passes``.
    arrays : bool
        Whether :func:`telekit.pipeline.schedules.order` makes its columns at once, without lists.
    formula : callable or None
        Its makespan for (Sizes, Passes), or None for numbers where no formula gives the simulated one.
    """

    name: str
    says: str
    source: str
    generator: str
    chunks: int = 1
    pieces: int = 1
    options: tuple[str, ...] = ()
    arrays: bool = False
    formula: Callable[[Sizes, Passes], float | None] | None = None


_ARGUMENTS = {"memory_limit": "limit", "sequence_chunks": "pieces"}
"""What generators call an option, where they call it otherwise."""


def build(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int | None = None,
    group_size: int | None = None,
    sequence_chunks: int | None = None,
    memory_limit: float | None = None,
    passes: Passes = EQUAL,
) -> Order:
    """Make the order of a schedule; the same object for the same arguments.

    Parameters
    ----------
    name : str
        A name of :data:`EVERY`.
    stages, micro_batches : int
        Devices, micro-batches of a step.
    chunks : int, optional
        Model parts a device holds; the schedule's own number when nothing is said.
    group_size, sequence_chunks : int, optional
        Micro-batches that pass a chunk one after the other (interleaved); slices of a sequence (sequence
        pipelines).
    memory_limit : float, optional
        Most micro-batches of a full stage that a device may hold, where the order is searched.
    passes : Passes
        Times that an order is searched for.

    Raises
    ------
    InputError
        For an unknown name, numbers the schedule does not allow, and choices it does not have.
    """
    schedule = get(name)
    options: dict[str, Any] = {"chunks": chunks, "group_size": group_size, "sequence_chunks": sequence_chunks}
    wanted = {
        key: value for key, value in (options | {"memory_limit": memory_limit}).items() if value is not None
    }
    if chunks == schedule.chunks and "chunks" not in schedule.options:
        del wanted["chunks"]
    needed = passes._replace(pair=None) if "passes" in schedule.options else None
    if not all(isinstance(size, Hashable) for size in (stages, micro_batches, *wanted.values())):
        sizes = check_sizes(stages, micro_batches, _or(chunks, 1), _or(sequence_chunks, 1))
        raise InputError(_own_names(sizes + _wrong_passes(passes)))
    problems = [_no_choice(schedule, key, wanted[key]) for key in wanted if key not in schedule.options]
    problems += _wrong_passes(passes)
    if "memory_limit" in wanted and "memory_limit" in schedule.options:
        problems += wrong_limit(memory_limit, least=1.0)
    if problems:
        wanted = {key: wanted[key] for key in ("chunks", "group_size", "sequence_chunks") if key in wanted}
        own = [(key, value) for key, value in wanted.items() if key in schedule.options]
        raise InputError(problems + _wrong_sizes(schedule, stages, micro_batches, own))
    if "memory_limit" in wanted:  # a device of one chunk holds whole micro-batches, counted to where all fit
        wanted["memory_limit"] = math.floor(min(wanted["memory_limit"], MAX_OPERATIONS))
    try:
        return _built(schedule, stages, micro_batches, needed, *wanted.items())
    except InputError as fault:
        raise InputError(_own_names(fault.problems)) from None


def _wrong_sizes(
    schedule: Schedule, stages: int, micro_batches: int, options: list[tuple[str, Any]]
) -> list[Problem]:
    """List what is wrong with sizes beside choices that are wrong already."""
    if "passes" in schedule.options:  # they have no rules of their own
        return check_sizes(stages, micro_batches, schedule.chunks, most=MAX_SEARCHED)
    try:
        _built(schedule, stages, micro_batches, None, *options)
    except InputError as fault:
        return _own_names(fault.problems)
    return []


def _or(value: Any, other: int) -> Any:
    return other if value is None else value


def _own_names(problems: Iterable[Problem]) -> list[Problem]:
    """Say what a caller gave, where generators call it otherwise."""
    names = {own: name for name, own in _ARGUMENTS.items()}
    return [
        replace(
            problem,
            field=names.get(problem.field, problem.field),
            suggestion=re.sub(
                rf"^{problem.field}\b", names.get(problem.field, problem.field), problem.suggestion
            ),
        )
        for problem in problems
    ]


def wrong_limit(value: Any, least: float = 0.0) -> list[Problem]:
    """Name a memory limit that is not one positive number, or is below the least that works."""
    works = "memory_limit 1 works"
    found = [replace(fault, suggestion=works) for fault in faults("memory_limit", value)]
    if found or (np.ndim(value) == 0 and least <= value and 0 < value < math.inf):
        return found
    rule = f"must be finite and at least {least:g}" if least else "must be finite and more than 0"
    return [Problem("memory_limit", value, rule, works)]


def _no_choice(schedule: Schedule, name: str, value: float) -> Problem:
    if name == "chunks":
        rule = f"{schedule.name} holds {schedule.chunks} on each device"
        return Problem(name, value, rule, f"chunks {schedule.chunks} works")
    having = [other.name for other in EVERY.values() if name in other.options]
    return Problem(
        name, value, f"{schedule.name} has no such choice", f"leave it out, or take {' or '.join(having)}"
    )


def _wrong_passes(passes: Passes) -> list[Problem]:
    return [
        problem
        for name, value in passes._asdict().items()
        if value is not None or name != "pair"
        for problem in wrong_numbers(name, value, zero=name == "comm", single=True)
    ]


@lru_cache(maxsize=32, typed=True)
def _built(
    schedule: Schedule,
    stages: int,
    micro_batches: int,
    passes: Passes | None,
    *options: tuple[str, Any],
) -> Order:
    arguments: dict[str, Any] = {_ARGUMENTS.get(name, name): value for name, value in options}
    if schedule.arrays and "group_size" not in arguments:
        return array_order(schedule.name, stages, micro_batches, arguments.get("chunks", schedule.chunks))
    if passes is not None:
        raise_broken((), MAX_SEARCHED, stages=stages, micro_batches=micro_batches, chunks=schedule.chunks)
        shape = np.arange(schedule.chunks * stages).reshape(schedule.chunks, stages)
        arguments["times"] = Times.of_stages(shape, *passes)
    if "sequence_chunks" in schedule.options:
        arguments.setdefault("pieces", schedule.pieces)
    module, _, function = schedule.generator.partition(".")
    generator = getattr(import_module(f"telekit.pipeline.{module}"), function)
    lines, part = generator(stages, micro_batches, **arguments)
    return from_lists(schedule.name, lines, part, micro_batches, arguments.get("pieces", 1))


def get(name: str) -> Schedule:
    """Look a schedule up by its name, or raise an InputError that lists all."""
    if not isinstance(name, str) or name not in EVERY:
        raise bad("schedule", name, "no such schedule", f"known: {', '.join(EVERY)}")
    return EVERY[name]


def times(order: Order, passes: Passes) -> Times:
    """Make the times of an order whose stages are all equal."""
    return Times.of_stages(order.part, *passes)


def closed_form(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int | None = None,
    group_size: int | None = None,
    sequence_chunks: int | None = None,
    passes: Passes = EQUAL,
) -> float | None:
    """Makespan by formula, None where there is none that is exact for these numbers.

    Sizes must be whole and positive; a schedule's own rules are not checked.
    """
    schedule = get(name)
    problems = [
        fault
        for key, value in {
            "stages": stages,
            "micro_batches": micro_batches,
            "chunks": _or(chunks, 1),
            "sequence_chunks": _or(sequence_chunks, 1),
        }.items()
        for fault in no_count(key, value)
    ]
    if problems:
        raise InputError(problems + _wrong_passes(passes))
    if group_size not in (None, stages) or schedule.formula is None:
        return None
    held, pieces = chunks or schedule.chunks, sequence_chunks or schedule.pieces
    return schedule.formula(Sizes(name, stages, micro_batches, held, pieces), passes)


SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            "gpipe",
            "all forwards, then all backwards",
            "arXiv 1811.06965",
            "",
            arrays=True,
            formula=makespans.by_stages,
        ),
        Schedule(
            "1f1b",
            "a forward and a backward in turn, once the pipeline is full",
            "arXiv 2006.09503 (PipeDream-flush)",
            "",
            arrays=True,
            formula=makespans.by_stages,
        ),
        Schedule(
            "interleaved-1f1b",
            "1F1B over several chunks a device, in groups of micro-batches",
            "arXiv 2104.04473; Megatron-Core core/pipeline_parallel/schedules.py",
            "interleaved.interleaved_1f1b",
            chunks=2,
            options=("chunks", "group_size"),
            arrays=True,
            formula=makespans.interleaved,
        ),
        Schedule(
            "zb-h1",
            "1F1B whose weight gradients run late, where it would idle",
            "arXiv 2401.10241, section 2.1",
            "zero_bubble.zb_h1",
            formula=makespans.zb_h1,
        ),
        Schedule(
            "zb-h2",
            "as zb-h1 with nearly twice as many forwards in the warm-up",
            "arXiv 2401.10241, section 2.2",
            "zero_bubble.zb_h2",
            formula=makespans.zb_h2,
        ),
        Schedule(
            "zb-1p",
            "searched for the given times; holds as many micro-batches as 1F1B",
            "arXiv 2401.10241, section 3.1",
            "zero_bubble.zb_1p",
            options=("memory_limit", "passes"),
        ),
        Schedule(
            "zb-2p",
            "searched for the given times; holds twice as many micro-batches as 1F1B",
            "arXiv 2401.10241, section 3.1",
            "zero_bubble.zb_2p",
            options=("memory_limit", "passes"),
        ),
        Schedule(
            "zb-v",
            "two chunks a device in the shape of a V; no bubble but the start's",
            "arXiv 2401.10241, section 6",
            "v_shaped.zb_v",
            chunks=2,
            options=("passes",),
            formula=makespans.zb_v,
        ),
        Schedule(
            "v-half",
            "V that holds about half of 1F1B's activations",
            "arXiv 2405.15362, section 4",
            "v_shaped.v_half",
            chunks=2,
            options=("passes",),
        ),
        Schedule(
            "v-min",
            "V that holds about a third of 1F1B's activations",
            "arXiv 2405.15362, section 4",
            "v_shaped.v_min",
            chunks=2,
            options=("passes",),
        ),
        Schedule(
            "dualpipe",
            "two pipelines in opposite directions, forwards overlapped with backwards; the model twice",
            "github.com/deepseek-ai/DualPipe",
            "dualpipe.dualpipe",
            formula=makespans.equal_passes,
        ),
        Schedule(
            "dualpipe-v",
            "DualPipe cut in half and folded: the model once, in the shape of a V",
            "github.com/deepseek-ai/DualPipe",
            "dualpipe.dualpipe_v",
            chunks=2,
            formula=makespans.equal_passes,
        ),
        Schedule(
            "seq-1f1b",
            "1F1B of pieces of sequences; with more chunks, MindSpore's seqpipe",
            "arXiv 2406.03488; MindSpore seqpipe_scheduler.cc",
            "sequence.seq_1f1b",
            pieces=2,
            options=("chunks", "sequence_chunks"),
            formula=makespans.by_pieces,
        ),
        Schedule(
            "seqsmartvpp",
            "MindSpore's sequence pipeline with a shorter warm-up; 1F1B for one chunk and one piece",
            "MindSpore seqpipe_scheduler.cc",
            "sequence.seqsmartvpp",
            options=("chunks", "sequence_chunks"),
            formula=makespans.by_pieces,
        ),
    )
}
"""Schedules by name."""

VARIANTS: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            "interleaved-sapp",
            "interleaved 1F1B as MindFormers' pipeline-balance tool simulates it, uneven micro-batches too",
            "MindFormers toolkit/pipeline_balance",
            "",
            chunks=2,
            options=("chunks",),
            arrays=True,
        ),
        Schedule(
            "interleaved-sapp-less-memory",
            "the same with a shorter warm-up",
            "MindFormers toolkit/pipeline_balance",
            "",
            chunks=2,
            options=("chunks",),
            arrays=True,
        ),
        Schedule(
            "interleaved-less-memory",
            "MindSpore's interleaving with a shorter warm-up, uneven micro-batches too",
            "MindSpore pipeline_scheduler.cc (ENABLE_LESS_MEM_VPP)",
            "interleaved.interleaved_less_memory",
            chunks=2,
            options=("chunks",),
        ),
        Schedule(
            "overlapped-1f1b",
            "1F1B whose steady forwards and backwards hide each other's expert all-to-all",
            "Megatron-Core, overlap_moe_expert_parallel_comm",
            "dualpipe.overlapped_1f1b",
            options=("chunks", "group_size"),
        ),
    )
}
"""Frameworks' variants of schedules, by name."""

EVERY = SCHEDULES | VARIANTS
