"""Layers and recompute onto the stages of one job: from a job to a placement problem and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cost.layers import LayerCost, Site, end_costs, layer_cost
from telekit.cost.memory import (
    FRAMEWORK_BYTES,
    Held,
    dispatch_bytes,
    end_held,
    layer_held,
    logits_bytes,
    states_of,
)
from telekit.cost.step import neighbour_s
from telekit.errors import InputError
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.layout.stages import OPTIONS, assign, with_counts
from telekit.model.config import ModelConfig
from telekit.planner.stage_problem import EndLoad, LayerType, RecomputeOption, StageProblem
from telekit.planner.stages import Proof, StagePlan, place

PLACEABLE = ("gpipe", "1f1b", "interleaved-1f1b")
"""Schedules whose placements can be simulated; under the others layers are spread evenly."""
MOST_RUNS = 4

NOT_PLACED = Proof("unknown", None, None, "none", "makespan")


@dataclass(frozen=True)
class Unit:
    """Layers that are placed together: their kinds, and how many such units follow each other."""

    kinds: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Placed:
    """A layout with its ``stages``, what is proved of them, and a bound on the pipeline of any placement."""

    layout: ParallelConfig
    proof: Proof
    bound_s: float


def units(model: ModelConfig) -> tuple[Unit, ...]:
    """Split the pattern into runs of equal layers, or of equal groups where kinds alternate.

    gpt-oss alternates two kinds of attention, so its unit is a pair: stages are then cut between pairs.
    """
    if len(model.runs) <= MOST_RUNS:
        return tuple(Unit((kind,), count) for kind, count in model.runs)
    head: list[Unit] = []
    for start in range(model.num_layers):
        rest = model.pattern[start:]
        for period in range(2, len(rest) // 2 + 1):
            if len(rest) % period == 0 and rest == rest[:period] * (len(rest) // period):
                return (*head, Unit(rest[:period], len(rest) // period))
        head.append(Unit((model.pattern[start],), 1))
    return tuple(Unit((kind,), count) for kind, count in model.runs)


def place_layers(job: Job, choices: tuple[str, ...], time_limit_s: float) -> Placed | None:
    """Place a job's layers on its stages; None when no placement fits the memory.

    ``choices`` are the recompute options that a layer may take.
    """
    if job.layout.schedule not in PLACEABLE or job.layout.stages != "auto":
        return Placed(job.layout, NOT_PLACED, 0.0)
    try:
        found: StagePlan = place(stage_problem(job, choices), objective="makespan", time_limit_s=time_limit_s)
    except InputError:
        return None
    counts = layer_counts(job.model, units(job.model), choices, found.placement.counts)
    layout = with_counts(job.layout, job.model, counts)
    return Placed(layout, found.proof, found.proof.bound or 0.0)


def stage_problem(job: Job, choices: tuple[str, ...] = OPTIONS) -> StageProblem:
    """State the placement of a job's layers in seconds and bytes, as :func:`telekit.estimate` counts them."""
    site = Site(job.model, job.cluster, job.train, job.layout)
    costs = [layer_cost(kind, site) for kind in job.model.kinds]
    first, last = end_costs(site)
    held_first, held_last = end_held(job.model, job.train, job.layout)
    logits = float(logits_bytes(site, assign(job.model, job.layout), last).max())
    allowed = [OPTIONS.index(choice) for choice in choices]
    workspace = max(float(c.activation_bytes[0] - c.activation_bytes[o]) for c in costs for o in allowed)
    layout = job.layout
    return StageProblem(
        layers=tuple(_layer_type(site, costs, unit, i, allowed) for i, unit in enumerate(units(job.model))),
        stages=layout.pp,
        chunks=layout.vpp,
        micro_batches=job.micro_batches,
        schedule=layout.schedule,
        head=_end(first, _states(site, held_first)),
        tail=_end(last, _states(site, held_last) + logits),
        memory_cap_bytes=float(job.cluster.device.memory_bytes),
        constant_bytes=float(FRAMEWORK_BYTES) + float(dispatch_bytes(site)) + workspace,
        comm_s=float(neighbour_s(site)),
    )


def _layer_type(site: Site, costs: list[LayerCost], unit: Unit, index: int, allowed: list[int]) -> LayerType:
    mine = [costs[kind] for kind in unit.kinds]
    options = tuple(
        RecomputeOption(
            OPTIONS[o],
            sum(float(c.repeat[o].total_s) for c in mine),
            sum(float(c.activation_bytes[o]) for c in mine),
        )
        for o in allowed
    )
    names = "+".join(dict.fromkeys(site.model.kinds[kind].name for kind in unit.kinds))
    return LayerType(
        f"{names}{index}" if index else names,
        unit.count,
        sum(float(c.forward.total_s) for c in mine),
        sum(float(c.backward.total_s) for c in mine),
        sum(_states(site, layer_held(site.model, kind, site.layout)) for kind in unit.kinds),
        options,
    )


def _end(cost: LayerCost, memory_bytes: float) -> EndLoad:
    return EndLoad(float(cost.forward.total_s), float(cost.backward.total_s), memory_bytes)


def _states(site: Site, held: Held) -> float:
    return float(sum(states_of(site, held).values()))


def layer_counts(
    model: ModelConfig, groups: tuple[Unit, ...], choices: tuple[str, ...], counts: Any
) -> NDArray[np.int64]:
    """Turn counts of units, ``[unit][choice][chunk][stage]``, into layers by kind.

    Returns
    -------
    array (kinds, options, chunks, stages)
    """
    shape = np.asarray(counts[0]).shape[1:]
    found = np.zeros((len(model.kinds), len(OPTIONS), *shape), dtype=np.int64)
    for unit, by_choice in zip(groups, counts, strict=True):
        for choice, matrix in zip(choices, by_choice, strict=True):
            for kind in unit.kinds:
                found[kind, OPTIONS.index(choice)] += np.asarray(matrix, dtype=np.int64)
    return found
