"""Fit the catalog's device constants again: which constants, on which published rows, by one routine.

Only rows marked for fitting are used (the rule: :mod:`telekit.validation.runs`); a device's record says what its values
were taken from, and what was set by hand. ``refit(name)`` runs one line of :data:`FITS` from the records as they stand.
Blackwell's ``memory_efficiency`` was set by hand before its fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.cluster.config import Device, load_cluster
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.errors import bad
from telekit.job import Job
from telekit.layout.stages import assign
from telekit.operators.fit import Fitted, constant, fit_constants, with_constants
from telekit.validation.kernel_rows import KernelRow, kernel_rows
from telekit.validation.runs import PublishedRun, published_runs

BLACKWELL = ("b200", "b300", "gb200", "gb300")

IDLE_W = 400.0
"""Board power of a Blackwell device that its products do not get: set by hand (mean error of the fit
8.4 %; 8.6 % with 200 W)."""

Prepared = Callable[[Device], Any]


@dataclass(frozen=True)
class Fit:
    """One fit: ``constants`` of ``devices`` together, on the rows for fitting of ``groups``.

    Attributes
    ----------
    devices : tuple of str
        They share every constant; rates of products go by board power where records state it (:func:`powered`).
    constants : tuple of str
        Of :data:`telekit.operators.fit.RANGES`.
    groups : tuple of str
        Of the scoreboard: runs, or kernels.
    start : tuple of (str, float)
        Constants that are moved before the fit, and not part of it save where it names them.
    aside : tuple of str
        Constants that are fitted beside, for these rows alone: records do not take them.
    model, kernel : str
        Only runs of ``dense`` or ``moe`` models, or of one ``attention_kernel``; all when empty.
    """

    devices: tuple[str, ...]
    constants: tuple[str, ...]
    groups: tuple[str, ...]
    start: tuple[tuple[str, float], ...] = ()
    aside: tuple[str, ...] = ()
    model: str = ""
    kernel: str = ""


RATES = ("gemm_efficiency", "grouped_gemm_efficiency")
VTRAIN = ("vtrain-single-node", "vtrain-multi-node")
FITS = {
    "tiles": Fit(
        ("h800",), ("kernels.wave_share", "kernels.half_inner"), ("kernels-gemm-h800", "kernels-grouped-gemm-h800"),
        (("kernels.low_precision.fp8", 1.0), ("kernels.launch_s", 4e-6)),
        (*RATES, "memory_efficiency", "kernels.launch_s"),
    ),
    "flash-2": Fit(("h100",), ("kernels.mixers.flash-2",), ("kernels-attention-h100",), kernel="flash-2"),
    "ampere": Fit(("a100-80gb",), ("gemm_efficiency", "kernels.launch_s", "kernels.host_launch_s"), VTRAIN),
    "ampere-triton": Fit(("a100-40gb",), ("kernels.mixers.triton",), ("mpt",), kernel="triton"),
    "hopper": Fit(
        ("h100", "h800"), ("gemm_efficiency", "kernels.low_precision.fp8"), ("kwai", "megatron-bridge"), model="dense"
    ),
    "hopper-triton": Fit(("h100",), ("kernels.mixers.triton",), ("mpt",), kernel="triton"),
    "blackwell": Fit(
        BLACKWELL,
        (*RATES, "kernels.low_precision.fp8", "kernels.low_precision.fp4", "kernels.mixers.recurrence"),
        ("megatron-bridge", "simumax-b200"),
    ),
}  # fmt: skip
"""Fits behind the catalog, in the order they were run: each starts from what those before it left.

Not among them is ``kernels.attention_half_keys``: it was fitted on five rows of H20, which is no device of the catalog
(tests/operators/test_operator_fit.py).
"""


@dataclass(frozen=True)
class Refitted:
    """What a fit finds, beside what the records hold.

    ``rows`` were fitted on; ``before`` and ``after`` are their mean absolute errors, ``constants`` those of the first
    device, and ``recorded`` what its record holds.
    """

    rows: int
    before: float
    after: float
    constants: dict[str, float]
    recorded: dict[str, float]


def refit(name: str) -> Refitted:
    """Run one of :data:`FITS`.

    Raises
    ------
    InputError
        For an unknown name, or a constant that cannot be fitted.
    """
    if name not in FITS:
        raise bad("fit", name, "no such fit", f"known: {', '.join(FITS)}")
    fit = FITS[name]
    first = load_cluster({"device": fit.devices[0], "devices": 8}).device
    kernels = fit.groups[0].startswith("kernels")
    predict, measured = _kernels(fit) if kernels else _steps(fit)
    started = with_constants(first, dict(fit.start))
    found: Fitted = fit_constants(started, (*fit.constants, *fit.aside), predict, measured)
    errors = np.asarray(predict(first)) / measured - 1.0
    return Refitted(
        len(measured),
        float(np.abs(errors).mean()),
        found.mape,
        {key: found.constants[key] for key in fit.constants},
        {key: constant(first, key) for key in fit.constants},
    )


def powered(value: float, power_w: float, of_w: float) -> float:
    """Share of its peak that products reach on the same silicon at another board power: as :data:`IDLE_W` leaves it."""
    return value * (power_w - IDLE_W) / (of_w - IDLE_W)


def kernels_of(fit: Fit) -> list[KernelRow]:
    """Find the kernels that a fit sees: none of them held out."""
    rows = (row for group in fit.groups for row in kernel_rows(group))
    return [row for row in rows if row.in_fit and fit.kernel in ("", row.attention_kernel)]


def runs_of(fit: Fit) -> list[PublishedRun]:
    """Find the runs that a fit sees: none of them held out."""
    runs = (run for group in fit.groups for run in published_runs(group))
    return [run for run in runs if run.in_fit and _wanted(run, fit)]


def _kernels(fit: Fit) -> tuple[Prepared, np.ndarray[Any, Any]]:
    rows = kernels_of(fit)
    measured = np.array([row.row["time_s"] for row in rows])
    return lambda trial: [row.estimated_s(trial) for row in rows], measured


def _steps(fit: Fit) -> tuple[Prepared, np.ndarray[Any, Any]]:
    runs = runs_of(fit)
    simulated = [_simulated(run.job) for run in runs]

    def predict(trial: Device) -> list[float]:
        return [
            ratio * _step_s(run.job, _like(run.job.cluster.device, trial, fit))
            for run, ratio in zip(runs, simulated, strict=True)
        ]

    return predict, np.array([run.measured_step_s for run in runs])


def _wanted(run: PublishedRun, fit: Fit) -> bool:
    job = run.job
    kind = "dense" if job.model.moe is None else "moe"
    return (
        job.cluster.device.name in fit.devices
        and fit.model in ("", kind)
        and fit.kernel in ("", job.train.attention_kernel)
    )


def _like(device: Device, trial: Device, fit: Fit) -> Device:
    """Give a device what the trial has of the fit's constants, rates at its own board power where that is another."""
    values = {name: constant(trial, name) for name in fit.constants}
    if device.power_w and trial.power_w and device.power_w != trial.power_w:
        for name in set(RATES) & set(values):
            values[name] = powered(values[name], device.power_w, trial.power_w)
    return with_constants(device, values)


def _step_s(job: Job, device: Device) -> float:
    """Time of a step with the pipeline's closed form."""
    cluster = job.cluster.model_copy(update={"device": device})
    return float(
        step_cost(Site(job.model, cluster, job.train, job.layout), assign(job.model, job.layout)).step_s
    )


def _simulated(job: Job) -> float:
    """Compare the simulated step with that by the closed form: the ratio hardly moves with the constants."""
    return (estimate(job).step_time_s or math.nan) / _step_s(job, job.cluster.device)
