"""Makespans of named schedules with equal stages, by formula, where a formula gives the simulated one exactly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from telekit.pipeline.closed_form import pipeline_time_s


class Passes(NamedTuple):
    """Times of one micro-batch on one whole stage, in any unit, equal for all stages.

    ``pair`` None: overlapping a forward with a backward saves nothing.
    """

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    pair: float | None = None
    comm: float = 0.0


EQUAL = Passes()
"""F = B = W = 1, communication free."""


class Sizes(NamedTuple):
    """A schedule's name and numbers."""

    name: str
    stages: int
    micro_batches: int
    chunks: int
    pieces: int


def by_stages(size: Sizes, passes: Passes) -> float:
    """Evaluate :func:`telekit.pipeline.closed_form.pipeline_time_s`, which takes any stages, for equal ones."""
    share = 1 if size.name == "dualpipe" else size.chunks

    def each(time: float) -> Any:
        return np.full((size.chunks, size.stages), time / share)

    forward, backward_input, weight, pair, comm = passes
    both = None if pair is None else each(pair)
    times = each(forward), each(backward_input + weight)
    return float(pipeline_time_s(size.name, *times, size.micro_batches, each(weight), comm, both))


def interleaved(size: Sizes, passes: Passes) -> float | None:
    """In whole groups, while communication takes no longer than a chunk's shorter pass."""
    shorter = min(passes.forward, passes.backward_input + passes.backward_weight)
    if size.micro_batches % size.stages or passes.comm * size.chunks > shorter:
        return None
    return by_stages(size, passes)


def zb_h1(size: Sizes, passes: Passes) -> float | None:
    """With W no longer than F and B, and a full pipeline."""
    f, b, w, _, comm = passes
    return None if w > min(f, b) or comm or size.micro_batches < size.stages else by_stages(size, passes)


def zb_h2(size: Sizes, passes: Passes) -> float | None:
    """With W no longer than F and B, and a full pipeline: the span's bubble, or the start's skew if longer."""
    f, b, w, _, comm = passes
    if w > min(f, b) or comm or size.micro_batches < 2 * size.stages - 1:
        return None
    return size.micro_batches * (f + b + w) + (size.stages - 1) * max(f + b - 2 * w, f)


def equal_passes(size: Sizes, passes: Passes) -> float | None:
    """With F = B = W; a pair takes at least as long as a backward."""
    f, b, w, pair, comm = passes
    if not f == b == w or comm or (pair is not None and pair < b + w):
        return None
    return by_stages(size, passes)


def zb_v(size: Sizes, passes: Passes) -> float | None:
    """With F = B = W, and twice as many micro-batches as stages."""
    return equal_passes(size, passes) if size.micro_batches >= 2 * size.stages else None


def by_pieces(size: Sizes, passes: Passes) -> float | None:
    """1F1B of as many micro-batches as there are pieces, with one chunk and free communication."""
    if size.chunks > 1 or (size.pieces > 1 and passes.comm):
        return None
    f, b, w = (time / size.pieces for time in passes[:3])
    short = Passes(f, b, w, comm=passes.comm)
    return by_stages(Sizes("1f1b", size.stages, size.micro_batches * size.pieces, 1, 1), short)
