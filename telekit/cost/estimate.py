"""The answer for one job: time and memory, broken down, with what was assumed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from telekit.cost.assumptions import assumptions
from telekit.cost.constants import Constant, constants
from telekit.cost.interval import Interval, interval
from telekit.cost.layers import CATEGORIES, Site
from telekit.cost.recomputed import recomputed_flops_per_token
from telekit.cost.step import StepCost, step_cost
from telekit.errors import Problem
from telekit.job import Job
from telekit.layout.notes import notes
from telekit.layout.stages import assign
from telekit.model.flops import training_flops_per_token
from telekit.pipeline.simulate import SIMULATED, makespan

MOST_SIMULATED = 1_000_000
"""Passes of a longer step are not simulated: the closed form is as near by then."""


@dataclass(frozen=True)
class StageEstimate:
    """One stage's device: its layers, what fills its memory, and one micro-batch's passes."""

    layers: int
    memory_bytes: dict[str, float]
    peak_bytes: float
    forward_s: float
    backward_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "layers": self.layers,
            "memory_bytes": self.memory_bytes,
            "peak_bytes": self.peak_bytes,
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
        }


@dataclass(frozen=True)
class Estimate:
    """What one step of a job takes. Times are None when the layout is not valid.

    ``model_tflops_per_device`` and ``mfu`` count causal attention's half, MTP modules that are trained, and no
    recomputation; ``hfu`` counts what is recomputed too. Both go by the convention ``telekit`` (others:
    :data:`telekit.model.utilization.CONVENTIONS`) and are against the 16-bit peak, also for fp8 training (as
    DeepSeek-V3 and NVIDIA report it).
    ``breakdown_s`` sums to ``step_time_s``.
    """

    job: Job
    problems: tuple[Problem, ...]
    capacity_bytes: float
    stages: tuple[StageEstimate, ...] = ()
    step_time_s: float | None = None
    breakdown_s: dict[str, float] | None = None
    tokens_per_s_per_device: float | None = None
    model_tflops_per_device: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    assumptions: tuple[str, ...] = ()
    interval: Interval | None = None

    @property
    def step_time_interval_s(self) -> tuple[float, float] | None:
        """Where eight of ten measured steps of published runs like this one lay; None where there are none."""
        if self.interval is None or self.step_time_s is None:
            return None
        return self.interval.of_seconds(self.step_time_s)

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Numbers that the answer rests on, each with its source and its effect; none where the layout is not valid."""
        return constants(self.job) if self.valid else ()

    @property
    def valid(self) -> bool:
        """True when the layout breaks no rule."""
        return not self.problems

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest device."""
        return max((stage.peak_bytes for stage in self.stages), default=0.0)

    @property
    def fits(self) -> bool:
        """True when the layout is valid and no device is over its capacity."""
        return self.valid and self.peak_bytes <= self.capacity_bytes

    def to_dict(self, *, constants: bool = True) -> dict[str, Any]:
        """Plain data, in the field names of ``telekit estimate --json``.

        ``constants`` False leaves the constants out: each one's effect costs an estimate.
        """
        listed = self.constants if constants else ()
        return {
            "valid": self.valid,
            "fits": self.fits,
            "problems": [p.to_dict() for p in self.problems],
            "step_time_s": self.step_time_s,
            "tokens_per_s_per_device": self.tokens_per_s_per_device,
            "model_tflops_per_device": self.model_tflops_per_device,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "utilization_convention": "telekit",
            "breakdown_s": self.breakdown_s,
            "stages": [stage.to_dict() for stage in self.stages],
            "peak_bytes": self.peak_bytes if self.stages else None,
            "capacity_bytes": self.capacity_bytes,
            "step_time_interval_s": self.step_time_interval_s,
            "interval_of": self.interval.said if self.interval else None,
            "assumptions": [*self.assumptions, *(one.text for one in listed)],
            **({"constants": [one.to_dict() for one in listed]} if constants else {}),
        }


def estimate(job: Job) -> Estimate:
    """Estimate one step of a job under its layout.

    Returns
    -------
    Estimate
        An invalid layout gives its ``problems``, what is to be known of it besides, and no times; one over
        capacity gives times and ``fits`` False.
    """
    problems = job.problems()
    capacity = float(job.cluster.device.memory_bytes)
    if problems:
        return Estimate(job, problems, capacity, assumptions=notes(job.case))
    site = Site(job.model, job.cluster, job.train, job.layout)
    assignment = assign(job.model, job.layout)
    cost = step_cost(site, assignment)
    pipeline = pipeline_s(job, cost)
    parts = breakdown(cost, pipeline)
    step = sum(parts.values())
    tokens_per_s = job.train.tokens / step / job.cluster.devices
    flops = training_flops_per_token(job.model, job.train.seq_len, include_mtp=job.train.mtp)
    rate, peak = tokens_per_s * flops, job.cluster.device.peak(job.train.wide)
    return Estimate(
        job,
        (),
        capacity,
        _stage_estimates(cost, assignment.layers.sum(axis=0)),
        step,
        parts,
        tokens_per_s,
        rate / 1e12,
        rate / peak,
        tokens_per_s * (flops + recomputed_flops_per_token(job)) / peak,
        assumptions(job),
        interval(job),
    )


def pipeline_s(job: Job, cost: StepCost) -> float:
    """All micro-batches through the pipeline: simulated where the schedule's order is modelled."""
    operations = 2 * job.layout.pp * job.layout.vpp * job.micro_batches
    if job.layout.pp > 1 and job.layout.schedule in SIMULATED and operations <= MOST_SIMULATED:
        return float(
            makespan(
                job.layout.schedule, cost.forward_s, cost.backward_s, job.micro_batches, float(cost.comm_s)
            )
        )
    return float(cost.pipeline_s)


def breakdown(cost: StepCost, pipeline: float) -> dict[str, float]:
    """Split the step: the mean device's work by category, and what the pipeline adds to it as bubble.

    Expert traffic and waiting for the host are what shows: a schedule that pairs forward and backward hides the rest,
    save at both ends of the step, which counts as bubble.
    """
    parts = {
        key: float(cost.micro_batches * np.mean(_total(cost, key)))
        for key in CATEGORIES
        if key in cost.forward or key in cost.backward
    }
    for key, time in _saved(cost).items():
        parts[key] = _less(parts.get(key, 0.0), float(cost.micro_batches * np.mean(time)))
    parts["bubble"] = _less(pipeline, sum(parts.values()))
    return parts | {
        "dp_comm": float(cost.dp_comm_s),
        "optimizer": float(cost.optimizer_s),
        "waiting": float(cost.waiting_s) * pipeline / float(cost.pipeline_s),
    }


def _less(whole: float, part: float) -> float:
    """Take a part away; what rounding leaves of all of it is nothing."""
    return 0.0 if abs(whole - part) < 1e-12 * abs(whole) else whole - part


def _saved(cost: StepCost) -> dict[str, Any]:
    """Say where the time was that pairs of a forward and a backward pass save: traffic, then gaps of host and link."""
    traffic, saved = (x.sum(axis=0) for x in (cost.traffic_s, cost.hidden_s))
    if not np.any(saved):
        return {}
    closed = np.maximum(saved - traffic, 0.0)
    host, link = _total(cost, "host"), _total(cost, "offload")
    rest = np.clip(closed - host, 0.0, link)
    found = {"ep_comm": traffic, "host": np.minimum(closed, host), "offload": rest}
    return {key: time for key, time in found.items() if np.any(time)}


def _total(cost: StepCost, key: str) -> Any:
    zero = 0.0 * cost.forward_s
    return (cost.forward.get(key, zero) + cost.backward.get(key, zero)).sum(axis=0)


def _stage_estimates(cost: StepCost, layers: Any) -> tuple[StageEstimate, ...]:
    forward, backward, peak = cost.forward_s.sum(axis=0), cost.backward_s.sum(axis=0), cost.peak_bytes
    return tuple(
        StageEstimate(
            int(layers[s]),
            {name: float(np.broadcast_to(value, peak.shape)[s]) for name, value in cost.memory.items()},
            float(peak[s]),
            float(forward[s]),
            float(backward[s]),
        )
        for s in range(len(peak))
    )
