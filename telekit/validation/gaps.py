"""How far the closed form that a search ranks by is from the simulation that an answer stands on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.job import Job, load_job
from telekit.layout.config import SCHEDULES
from telekit.layout.schedules import default_chunks
from telekit.pipeline.simulate import SIMULATED

MODELS = (
    ("llama-3.1-70b", "h100", 1),
    ("deepseek-v3", "h800", 8),
    ("telechat3-105b-a4.7b", "ascend-910b", 8),
)
"""Model, device and expert ranks of the layouts that are compared."""
STAGES = (2, 4, 8, 16)
ROUNDS = (1, 2, 4, 16)
"""Micro-batches over stages."""


@dataclass(frozen=True)
class Gap:
    """Closed form over simulation, less 1, of one schedule: of how many layouts, least, mean and largest."""

    schedule: str
    layouts: int
    least: float
    mean: float
    largest: float


@cache
def closed_form_gaps() -> tuple[Gap, ...]:
    """Compare whole steps of every schedule that is simulated; the others are answered by their closed form too."""
    found = []
    for schedule in SCHEDULES:
        if schedule in SIMULATED:
            gaps = np.array([_gap(job) for job in _jobs(schedule)])
            found.append(Gap(schedule, len(gaps), *(float(f(gaps)) for f in (np.min, np.mean, np.max))))
    return tuple(found)


def _jobs(schedule: str) -> Iterator[Job]:
    chunks = default_chunks(schedule)
    for model, device, ep in MODELS:
        for stages in STAGES:
            for rounds in ROUNDS:
                layout = {"pp": stages, "vpp": chunks, "ep": ep, "schedule": schedule, "tp": 8 // ep}
                job = load_job({
                    "model": model, "cluster": {"device": device, "devices": 8 * stages},
                    "train": {"seq_len": 4096, "global_batch": stages * rounds * ep}, "layout": layout,
                })  # fmt: skip
                if not job.problems():
                    yield job


def _gap(job: Job) -> float:
    cost = step_cost(Site(job.model, job.cluster, job.train, job.layout))
    gap = float(cost.step_s) / (estimate(job).step_time_s or float("nan")) - 1.0
    return round(gap, 9) + 0.0  # the last bits are the machine's, and have a sign
