"""The door of :class:`telekit.planner.stage_problem.StageProblem`: what is wrong with one, all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from telekit.errors import Problem

MAX_LAYERS = 1_000
MAX_PARTS = 1_024
LARGEST = 1e30


def broken_numbers(problem: Any) -> Iterator[Problem]:
    """Yield every number that is missing, not a number, negative or absurd."""
    for name, least in (("stages", 1), ("chunks", 1), ("micro_batches", 1), ("min_layers", 0)):
        value = getattr(problem, name)
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            yield Problem(name, value, f"must be a whole number of at least {least}", f"use {max(1, least)}")
    if not problem.layers:
        yield Problem("layers", "none", "there must be at least one run of layers")
    names = [run.name for run in problem.layers]
    for run in problem.layers:
        at = f"layers.{run.name}"
        if names.count(run.name) > 1:
            yield Problem(at, run.name, "two runs have this name", "number them")
        if not isinstance(run.count, int | np.integer) or not 1 <= run.count <= MAX_LAYERS:
            yield Problem(f"{at}.count", run.count, f"must be a whole number in [1, {MAX_LAYERS}]")
        if not run.options:
            yield Problem(f"{at}.options", "none", "there must be at least one, recomputing nothing")
        yield from _measure_problems(at, run, ("forward_s", "backward_s", "parameter_bytes"))
        for option in run.options:
            yield from _measure_problems(
                f"{at}.{option.name}", option, ("extra_backward_s", "activation_bytes")
            )
    for end in ("head", "tail"):
        fields = ("forward_s", "backward_s", "memory_bytes")
        yield from _measure_problems(end, getattr(problem, end), fields)
    yield from _measure_problems("problem", problem, ("comm_s",))


def _measure_problems(at: str, holder: Any, fields: tuple[str, ...]) -> Iterator[Problem]:
    for field in fields:
        value = getattr(holder, field)
        if not isinstance(value, int | float | np.number) or not 0 <= value <= LARGEST:
            yield Problem(f"{at}.{field}", value, f"must be a number in [0, {LARGEST:g}]")


def broken_shapes(problem: Any) -> Iterator[Problem]:
    """Yield what does not fit together: sizes, layers against chunks, shapes of arrays."""
    parts = problem.stages * problem.chunks
    if parts > MAX_PARTS:
        yield Problem("stages", problem.stages, f"stages * chunks = {parts} must not exceed {MAX_PARTS}")
    if problem.total_layers > MAX_LAYERS:
        yield Problem("layers", problem.total_layers, f"must not exceed {MAX_LAYERS}")
    if problem.total_layers < parts * problem.min_layers:
        fits = problem.total_layers // max(1, problem.chunks * max(1, problem.min_layers))
        yield Problem(
            "stages",
            problem.stages,
            f"{parts} chunks of at least {problem.min_layers} layer need more than {problem.total_layers} layers",
            f"use at most {fits} stages" if fits else "use fewer chunks",
        )
    for name, shapes in (
        ("memory_cap_bytes", [(), (problem.stages,)]),
        ("constant_bytes", [(), (problem.stages,)]),
        ("in_flight", [(problem.chunks, problem.stages)]),
    ):
        value = getattr(problem, name)
        if value is None:
            continue
        array = np.asarray(value, dtype=np.float64)
        shape = array.shape[1:] if name == "in_flight" and array.ndim == 3 else array.shape
        least = -LARGEST if name == "constant_bytes" else 0
        if shape not in shapes:
            yield Problem(name, array.shape, f"must have shape {' or '.join(map(str, shapes))}")
        elif not ((array >= least) & (array <= LARGEST)).all():
            yield Problem(name, value, f"must be numbers in [{least:g}, {LARGEST:g}]")
