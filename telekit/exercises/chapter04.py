"""Tasks of chapter 4 and what they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit.errors import InputError
from telekit.exercises.check import Feedback, design, number
from telekit.layout.schedules import model_copies
from telekit.pipeline.registry import SCHEDULES, Passes, build, get, times
from telekit.pipeline.simulate import run

STAGES, SEQUENCES = 8, 64
ROOM = {1: 10.0, 2: 5.0}
"""Sequences whose activations of a whole stage a device can hold, by copies of the model."""
SIZES, CHUNKS = (1, 2, 4, 8), (2, 4, 8)
WITHIN = 1.02


def larger_micro_batch(answer: float | None) -> Feedback:
    """Bubble of 1F1B, 8 stages, 32 sequences a rank in micro-batches of 4, in per cent of all time."""
    return number(
        answer,
        100 * 7 / 15,
        unit="%",
        hint="32 sequences in micro-batches of 4 are 8 micro-batches.",
        slips={
            "with micro-batches of 4 there are 8 of them, not 32": 100 * 7 / 39,
            "that is idle time over working time": 100 * 7 / 8,
            "the first device waits for 7 others, not for 8": 100 * 8 / 16,
        },
    )


def chunks_needed(answer: float | None) -> Feedback:
    """Fewest chunks with which interleaving idles at most 10 % of all time, at 8 stages and 16 micro-batches."""
    return number(
        answer,
        4,
        unit="chunks",
        hint="The bubble is (p - 1) / (v m + p - 1) of all time; v is a whole number.",
        slips={
            "that keeps idle time under 10 % of the working time, which is more than asked": 5,
            "with 3 chunks it idles 12.7 %": 3,
        },
    )


def interleaved_activations(answer: float | None) -> Feedback:
    """Most that the first of 8 devices holds under 2 chunks and 16 micro-batches, in micro-batches of a stage."""
    return number(
        answer,
        23 / 2,
        unit="micro-batches of a full stage",
        hint="Warm-up is 2 (p - 1) + (v - 1) p forwards of a chunk, and one more runs before the first backward.",
        slips={
            "one more forward runs before the first backward": 22 / 2,
            "a chunk keeps half of what a stage keeps": 23,
            "that is 1F1B's": 8,
        },
    )


def most_to_save(answer: float | None) -> Feedback:
    """Share of 1F1B's step that any schedule can save at 8 stages and 512 micro-batches, in per cent."""
    return number(
        answer,
        100 * 7 / 519,
        rel=0.007,
        digits=2,
        unit="%",
        hint="A schedule without any bubble saves the whole of 1F1B's.",
        slips={
            "that is at 16 micro-batches": 100 * 7 / 23,
            "that is over the working time; the step is longer": 100 * 7 / 512,
        },
    )


def zero_bubble_idle(answer: float | None) -> Feedback:
    """Idle time of ZB-1p by DualPipe's README, (PP - 1)(F + B - 2 W), at F = 1, both halves of B 1, 8 stages."""
    return number(
        answer,
        7,
        unit="units of time",
        hint="Ask what the README's B holds; the paper writes (p - 1)(F + B - W) for the same schedule.",
        slips={
            "this README's B holds W: it is 2, not 1": 0,
            "that is the paper's formula with the README's B: W counts twice": 14,
            "the first device waits for 7 others, not for 8": 8,
        },
    )


# --- the design ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A reader's pipeline, simulated."""

    schedule: str
    micro_batch: int
    chunks: int
    makespan: float
    held: float
    """Sequences whose activations the fullest device holds."""

    @property
    def room(self) -> float:
        """Sequences that it could hold."""
        return ROOM[model_copies(self.schedule)]

    @property
    def fits(self) -> bool:
        """Whether they fit."""
        return self.held <= self.room + 1e-9


def chosen(schedule: str, micro_batch: int, chunks: int | None = None) -> Choice:
    """Simulate a choice: 64 sequences on 8 devices, in micro-batches of b.

    A pass of a stage takes 0.3 + 0.7 b, and 0.1 b pass from a stage to its neighbour; a piece of a sequence is as
    large as its share of b, and pays its own 0.3.

    Raises
    ------
    InputError
        For a schedule, a number of chunks or of micro-batches that does not exist.
    """
    each = 0.3 * get(schedule).pieces + 0.7 * micro_batch
    passes = Passes(each, each, each, None, 0.1 * micro_batch)
    order = build(schedule, STAGES, SEQUENCES // micro_batch, chunks=chunks, passes=passes)
    found = run(order, times(order, passes))
    held = float(found.peak_activations.max()) * micro_batch
    return Choice(schedule, micro_batch, order.chunks, float(found.makespan_s), held)


@cache
def shortest() -> Choice:
    """Find the shortest choice that fits, of all there are."""
    return min((it for it in _all() if it.fits), key=lambda it: it.makespan)


def _all() -> Iterator[Choice]:
    for name in SCHEDULES:
        for chunks in CHUNKS if "chunks" in get(name).options else (None,):
            for size in SIZES:
                try:
                    yield chosen(name, size, chunks)
                except InputError:
                    continue


def _fits(it: Choice) -> bool | str:
    twice = ", beside two copies of the model" if model_copies(it.schedule) == 2 else ""
    return it.fits or f"a device holds {it.held:.3g} sequences and has room for {it.room:g}{twice}"


def _short(it: Choice) -> bool | str:
    ratio = it.makespan / shortest().makespan
    return ratio <= WITHIN or f"it takes {it.makespan:.1f}, {ratio:.3f} times the shortest that fits"


DEMANDS: tuple[tuple[str, Callable[[Choice], bool | str]], ...] = (
    ("It must fit", _fits),
    (f"It may take {WITHIN - 1:.0%} longer than the shortest", _short),
)


def pipeline(answer: Mapping[str, Any] | None) -> Feedback:
    """Check a pipeline that a reader chose: a schedule, sequences of a micro-batch, chunks where it takes them."""
    if answer is None:
        return design(None, (), 'Give a choice, such as {"schedule": "1f1b", "micro_batch": 1}.')
    if not isinstance(answer, Mapping) or not {"schedule", "micro_batch"} <= set(answer):
        return Feedback(
            False, 'Write a schedule and a micro-batch, such as {"schedule": "1f1b", "micro_batch": 1}.'
        )
    unknown = sorted(str(key) for key in set(answer) - {"schedule", "micro_batch", "chunks"})
    if unknown:
        return Feedback(
            False, f"{', '.join(unknown)}: only schedule, micro_batch and chunks are chosen here."
        )
    name, size, chunks = answer["schedule"], _whole(answer["micro_batch"]), answer.get("chunks")
    if not isinstance(name, str):
        return Feedback(False, "A schedule is given by its name.")
    if size not in SIZES:
        return Feedback(False, f"A micro-batch holds {', '.join(map(str, SIZES))} sequences here.")
    if chunks is not None and (chunks := _whole(chunks)) is None:
        return Feedback(False, f"Chunks a device are a whole number, such as {CHUNKS[0]}.")
    try:
        found = chosen(name, size, chunks)
    except InputError as error:
        return Feedback(False, f"It must run: {'; '.join(str(p) for p in error.problems)}.")
    return design(found, DEMANDS)


def _whole(value: Any) -> int | None:
    """Read a whole number, written as 2, 2.0 or "2"; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and not isinstance(value, bool) else None
