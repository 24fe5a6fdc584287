"""Layers and recompute onto the stages of one job: from a job to a placement problem and back."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cost.estimate import estimate
from telekit.cost.layers import LayerCost, Site, end_costs, layer_cost
from telekit.cost.memory import (
    FRAMEWORK_BYTES,
    Held,
    end_held,
    end_moments,
    gathered_bytes,
    layer_held,
    reserve,
    states_of,
)
from telekit.cost.step import neighbour_s
from telekit.errors import InputError
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.layout.stages import OPTIONS, assign, with_counts
from telekit.model.config import ModelConfig
from telekit.pipeline.simulate import SIMULATED
from telekit.planner.solver import PROVED_GAP
from telekit.planner.stage_problem import EndLoad, LayerType, RecomputeOption, StageProblem
from telekit.planner.stages import Proof, StagePlan, place

NOT_PLACED = Proof("unknown", None, None, "none", "makespan")


@dataclass(frozen=True)
class Placed:
    """A layout with its ``stages``, what is proved of them, and a bound on the pipeline of any placement."""

    layout: ParallelConfig
    proof: Proof
    bound_s: float


def place_layers(
    job: Job, choices: tuple[str, ...], time_limit_s: float, worth_s: float = math.inf
) -> Placed | None:
    """Place a job's layers on its stages; None when no placement was found that fits the memory.

    What a layer holds while it runs backward, its recomputed tensors among it, is no sum over layers. So the layers are
    first placed with the least of it, which bounds every placement; if the result is over the capacity, they are
    placed again with the most of it on every stage. Under a schedule that is not simulated
    layers stay spread evenly.

    Parameters
    ----------
    job : Job
        Its layout's ``stages`` are what is sought; given ones are kept.
    choices : tuple of str
        Recompute options that a layer may take.
    time_limit_s : float
        Of both placements together.
    worth_s : float
        A placement that takes longer than this even without workspace is not tried again.
    """
    if job.layout.schedule not in SIMULATED or job.layout.stages != "auto":
        return Placed(job.layout, NOT_PLACED, 0.0)
    began = time.monotonic()
    try:
        found = place(stage_problem(job, choices, workspace=False), time_limit_s=time_limit_s)
        bound = found.proof
        layout = _written(job, choices, found)
        if found.makespan < worth_s and not estimate(job.with_layout(layout)).fits:
            left = max(time_limit_s - (time.monotonic() - began), time_limit_s / 4)
            found = place(stage_problem(job, choices), time_limit_s=left)
            layout = _written(job, choices, found)
    except InputError:
        return None
    return Placed(layout, _proof_of(found, bound), bound.bound or 0.0)


def _written(job: Job, choices: tuple[str, ...], found: StagePlan) -> ParallelConfig:
    return with_counts(job.layout, job.model, layer_counts(job.model, choices, found.placement.counts))


def _proof_of(found: StagePlan, relaxed: Proof) -> Proof:
    """Return what the bound of the problem without workspace says of a placement."""
    if relaxed.bound is None:
        return relaxed
    gap = max(0.0, 1.0 - relaxed.bound / found.makespan)
    return replace(relaxed, status="optimal" if gap <= PROVED_GAP else "feasible", gap=gap)


def stage_problem(job: Job, choices: tuple[str, ...] = OPTIONS, workspace: bool = True) -> StageProblem:
    """State the placement of a job's layers in seconds and bytes, as :func:`telekit.estimate` counts them.

    ``workspace`` sets aside, on every stage, the most that a layer's passes hold for a moment; else the least.
    """
    site = Site(job.model, job.cluster, job.train, job.layout)
    costs = [layer_cost(kind, site) for kind in job.model.kinds]
    first, last = end_costs(site)
    held_first, held_last = end_held(job.model, job.train, job.layout)
    allowed = [OPTIONS.index(choice) for choice in choices]
    aside = reserve(site, costs, allowed)
    moment, buffers = aside.moment[workspace], aside.buffers[workspace]  # the least, or the most
    at_first, at_last = end_moments(site, last, moment, job.micro_batches, least=not workspace)
    whole = gathered_bytes(site, assign(job.model, job.layout))
    gathered = float(np.max(sum(whole))) if workspace else 0.0  # a stage with few layers gathers less
    constant = FRAMEWORK_BYTES + aside.standing + buffers + moment + gathered
    layout = job.layout
    stays = 1.0 - (not workspace) * layout.activation_offload  # at least; what is on its way comes on top
    return StageProblem(
        layers=tuple(
            _layer_type(site, costs[kind], kind, count, i, allowed, stays, workspace)
            for i, (kind, count) in enumerate(job.model.runs)
        ),
        stages=layout.pp,
        chunks=layout.vpp,
        micro_batches=job.micro_batches,
        schedule=layout.schedule,
        head=_end(first, _states(site, held_first) + at_first),
        tail=_end(last, _states(site, held_last) + at_last),
        memory_cap_bytes=float(job.cluster.device.memory_bytes),
        constant_bytes=float(constant),
        comm_s=float(neighbour_s(site)),
    )


def _layer_type(
    site: Site,
    cost: LayerCost,
    kind: int,
    count: int,
    index: int,
    allowed: list[int],
    stays: float,
    workspace: bool,
) -> LayerType:
    """State a run of layers; what some choices wait longer for offloading in the forward pass counts in the backward.

    For a bound it counts nowhere.
    """
    away = {o: float(cost.away[o].total_s) for o in allowed}
    least = min(away.values())
    return LayerType(
        f"{site.model.kinds[kind].name}{index or ''}",
        count,
        float(cost.forward.total_s) + least,
        float(cost.backward.total_s),
        _states(site, layer_held(site.model, kind, site.layout)),
        tuple(
            RecomputeOption(
                OPTIONS[o],
                float(cost.repeat[o].total_s) + workspace * (away[o] - least),
                stays * float(cost.activation_bytes[o]),
            )
            for o in allowed
        ),
    )


def _end(cost: LayerCost, memory_bytes: float) -> EndLoad:
    return EndLoad(float(cost.forward.total_s), float(cost.backward.total_s), memory_bytes)


def _states(site: Site, held: Held) -> float:
    return float(sum(states_of(site, held).values()))


def layer_counts(model: ModelConfig, choices: tuple[str, ...], counts: Any) -> NDArray[np.int64]:
    """Turn counts of runs, ``[run][choice][chunk][stage]``, into layers by kind.

    Returns
    -------
    array (kinds, options, chunks, stages)
    """
    shape = np.asarray(counts[0]).shape[1:]
    found = np.zeros((len(model.kinds), len(OPTIONS), *shape), dtype=np.int64)
    for (kind, _), by_choice in zip(model.runs, counts, strict=True):
        for choice, matrix in zip(choices, by_choice, strict=True):
            found[kind, OPTIONS.index(choice)] += np.asarray(matrix, dtype=np.int64)
    return found
