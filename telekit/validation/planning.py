"""How well estimates choose: measured plans ranked by our estimate of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.planner.candidates import tables, valid_rows
from telekit.training.config import TrainConfig
from telekit.validation import runs_dense
from telekit.validation.readings import Row, job_of, rows
from telekit.validation.runs import PublishedRun, published_runs


@dataclass(frozen=True)
class Ranking:
    """Measured plans of one model on one cluster, beside our estimates.

    Attributes
    ----------
    id, source : str
        Of the row or of the table it is made of.
    measured_s, estimated_s : tuple of float
        Step of each plan, best measured first.
    spearman : float
        Rank correlation of the two.
    regret : float
        What the plan that we estimate fastest loses against the fastest measured, as a share of the latter.
    odd : tuple of str
        Measured plans that no smooth law of the micro-batch gives, as :func:`odd_steps` says.
    """

    id: str
    source: str
    measured_s: tuple[float, ...]
    estimated_s: tuple[float, ...]
    spearman: float
    regret: float
    odd: tuple[str, ...] = ()


def spearman(first: object, second: object) -> float | None:
    """Rank correlation, ties sharing their mean rank; None of fewer than three values or of equal ones."""
    from scipy.stats import spearmanr

    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(spearmanr(a, b).statistic)


def ranked(name: str, source: str, plans: list[tuple[float, Job]]) -> Ranking:
    """Rank measured plans by our estimates of them."""
    plans = sorted(plans, key=lambda plan: plan[0])
    measured = [seconds for seconds, _ in plans]
    ours = [estimate(job).step_time_s or np.inf for _, job in plans]
    chosen = measured[int(np.argmin(ours))]
    found = spearman(measured, ours)
    assert found is not None
    regret = chosen / measured[0] - 1
    return Ranking(name, source, tuple(measured), tuple(ours), found, regret, odd_steps(plans))


class _Work(NamedTuple):
    """All of a plan but its micro-batch, which is 1 here."""

    model: str
    train: TrainConfig
    layout: ParallelConfig


ODD = 0.02
"""Time per sample that may rise with the micro-batch before it is called odd: a repeated plan differs by 0.05 %."""


def odd_steps(plans: list[tuple[float, Job]]) -> tuple[str, ...]:
    """Say where a larger micro-batch, all else equal, was measured slower per sample.

    Kernels of a larger micro-batch are no slower per sample, so a model of the layout alone cannot give both
    times: what was different lies outside the layout (nodes, network, other tenants).

    Parameters
    ----------
    plans : list of (float, Job)
        Measured step and job. A step is taken as ``(batch / dp + (pp - 1) * micro_batch)`` samples, one after another:
        1F1B's length in samples.
    """
    alike: dict[_Work, list[tuple[int, float]]] = {}
    for seconds, job in plans:
        layout = job.layout
        samples = job.train.global_batch / (layout.dp or 1) + (layout.pp - 1) * layout.micro_batch
        same = _Work(job.model.name, job.train, layout.model_copy(update={"micro_batch": 1}))
        alike.setdefault(same, []).append((layout.micro_batch, seconds / samples))
    found = []
    for same, times in alike.items():
        for (few, quick), (many, slow) in pairwise(sorted(times)):
            if many > few and slow > quick * (1 + ODD):
                place = f"tp {same.layout.tp} pp {same.layout.pp}"
                found.append(
                    f"{place}: micro-batch {many} {slow / quick - 1:.1%} slower per sample than {few}"
                )
    return tuple(found)


@cache
def rankings() -> tuple[Ranking, ...]:
    """Every open ranking: ``plan_ranking`` rows, and tables that measured several layouts of the same work."""
    found = []
    for row in rows("planning"):
        if row["kind"] == "plan_ranking":
            shared = {k: v for k, v in row.items() if k != "plans_best_first"}
            plans = [
                shared | plan | {"step_time_s": plan["iteration_ms"] / 1e3}
                for plan in row["plans_best_first"]
            ]
            jobs = [(plan["step_time_s"], _job(plan)) for plan in plans]
            found.append(ranked(row["id"], row["source"], jobs))
    return (*found, *_tables())


def _job(plan: Row) -> Job:
    return job_of(runs_dense.vtrain(plan), plan["n_gpus"])


FEWEST_PLANS = 3


def _tables() -> list[Ranking]:
    """Tables of one model, cluster and batch under several layouts (parallel folding; NVIDIA's model zoo)."""
    plans: dict[tuple[object, ...], list[tuple[float, Job]]] = {}
    sources: dict[tuple[object, ...], str] = {}
    for group in ("moe-folding", "moe-model-zoo"):
        for run in published_runs(group):
            key = (group, run.job.model.name, run.job.cluster.name, run.job.train)
            plans.setdefault(key, []).append((run.measured_step_s, run.job))
            sources[key] = run.source
    return [
        ranked(f"{key[0]}, {key[1]} on {key[2]}", sources[key], same)
        for key, same in plans.items()
        if len(same) >= FEWEST_PLANS
    ]


@dataclass(frozen=True)
class Standing:
    """A published best plan among all the layouts that we would search.

    Attributes
    ----------
    id : str
        Of the measured run of the plan.
    layouts : int
        Valid layouts of even chunks that fit, under the plan's own recompute, offload and micro-batch.
    quicker : int
        Of these, how many we estimate quicker than the published plan.
    shortfall : float
        What we estimate the published plan to lose against the quickest, as a share of the latter.
    """

    id: str
    layouts: int
    quicker: int
    shortfall: float


KEPT = ("micro_batch", "recompute", "activation_offload", "zero")
"""Fields of the plan that the layouts beside it share."""


def standing(run: PublishedRun) -> Standing:
    """Find where a published plan stands among what we would search; all by the pipeline's closed form."""
    job = run.job
    free = Job(job.model, job.cluster, job.train, job.layout.model_copy(update={"dp": None}), KEPT)
    steps: list[float] = []
    for shape in tables(free):
        if job.model.num_layers % (shape.base.pp * shape.base.vpp):
            continue  # Megatron-LM of the time asked for even chunks
        kept = valid_rows(free, shape, Counter()).recomputing(job.layout.recompute)
        if len(kept):
            cost = step_cost(Site(job.model, job.cluster, job.train, kept))
            fits = np.max(cost.peak_bytes, axis=-1) <= job.cluster.device.memory_bytes
            steps += np.broadcast_to(cost.step_s, fits.shape)[fits].tolist()
    own = float(step_cost(Site(job.model, job.cluster, job.train, job.layout)).step_s)
    best = min([*steps, own])
    return Standing(run.id, len(steps), sum(step < own * (1 - 1e-9) for step in steps), own / best - 1)


@cache
def standings() -> tuple[Standing, ...]:
    """Every best plan of the open ``best_plan`` rows that is a measured run too (Kwai's)."""
    wanted = {row["id"].removeprefix("best_plan_") for row in rows("planning") if row["kind"] == "best_plan"}
    return tuple(standing(run) for run in published_runs("kwai") if run.id.removeprefix("kwai_") in wanted)
