"""Published training steps as jobs, and which of them constants may be fitted on.

Every row of ``data/measurements/throughput.json`` is read by its source's reader, or is listed with the reason why no
job can say it. **The split**: a configuration is the model, the devices, the formats and how the model is split
(:func:`configuration`), read from the job, so that the same job is one whatever its source; it is *for fitting* when
the first byte of its SHA-256 is odd. Groups of fewer than :data:`FEWEST_TO_SPLIT` configurations are never fitted on,
nor are unverified rows, nor what shares a configuration with one of these. All else is held out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from telekit.job import Job
from telekit.model.count import count
from telekit.validation import runs_dense, runs_moe
from telekit.validation.readings import Reading, Row, Unread, job_of, rows

FEWEST_TO_SPLIT = 13
"""Configurations of a group below which all of them are held out."""

Reader = Callable[[Row], Reading | Unread]

GROUPS: dict[str, tuple[tuple[str, ...], Reader]] = {
    "simumax-b200": (("simumax_",), runs_dense.simumax),
    "megatron-sc21": (("sc21_t1", "sc21_t2_ptdp"), runs_dense.sc21),
    "zero-3-of-2021": (("sc21_t2_zero3",), runs_dense.sc21),
    "korthikanti": (("korth_",), runs_dense.korthikanti),
    "mt-nlg": (("mtnlg_",), runs_dense.mt_nlg),
    "megascale": (("megascale_",), runs_dense.megascale),
    "llama-3": (("llama3_",), runs_dense.llama3),
    "deepseek-v3": (("dsv3_",), runs_moe.deepseek_v3),
    "megascale-moe": (("msmoe_",), runs_moe.megascale_moe),
    "moe-folding": (("folding_",), runs_moe.folding),
    "megatron-bridge": (("mbridge_",), runs_moe.bridge),
    "megatron-core-moe": (("mcoremoe_",), runs_moe.mcore_moe),
    "moe-model-zoo": (("modelzoo_",), runs_moe.model_zoo),
    "megatron-lm": (("mlm_",), runs_dense.megatron_lm),
    "torchtitan": (("titan_",), runs_dense.titan),
    "kwai": (("kwai_",), runs_dense.kwai),
    "vtrain-multi-node": (("vtrain_multi",), runs_dense.vtrain),
    "vtrain-single-node": (("vtrain_single",), runs_dense.vtrain),
    "mpt": (("mpt_",), runs_dense.mpt_table),
    "telechat": (("telechat3_", "mf_"), runs_moe.telechat),
    "other": (("misc_", "pangu_", "llama1_"), runs_moe.misc),
}
"""Beginnings of the ids, and reader, of each group."""


NO_STEP = {
    "layer_time": "one layer, not a step",
    "ablation": "an ablation: shares or MFU at a layout that is not stated whole",
    "training_cost": "device-hours of a whole run, not a step",
    "offload_ablation": "memory and speed before and after, at a batch that is not stated",
    "comm_share": "a share of time, not a step",
    "other": "inference",
    "parallel_config": "no time",
    "trend": "ranges, not a step",
    "planner_outcome": "a planner's outcome, from an unverified summary",
}
"""Kinds of rows that hold no step of training."""


@dataclass(frozen=True)
class PublishedRun:
    """A measured step and the job that says it.

    Attributes
    ----------
    id, group, source : str
        Of the row.
    configuration : str
        Key of the split.
    job : Job
    measured_step_s : float
    in_fit : bool
        Constants may be fitted on it.
    verified : bool
        The row's main values were read in a source.
    notes : tuple of str
        What the row leaves open and how it is read.
    """

    id: str
    group: str
    source: str
    configuration: str
    job: Job
    measured_step_s: float
    in_fit: bool
    verified: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class UnmappedRow:
    """A row that no job can say, and why."""

    id: str
    group: str
    reason: str


@cache
def published_runs(group: str | None = None) -> tuple[PublishedRun, ...]:
    """Every published step that a job can say, of one group or of all (:data:`GROUPS`)."""
    return tuple(run for run in _read()[0] if group in (None, run.group))


@cache
def unmapped_rows(group: str | None = None) -> tuple[UnmappedRow, ...]:
    """Every row of the same file that no job can say."""
    return tuple(row for row in _read()[1] if group in (None, row.group))


def group_of(row_id: str) -> str:
    """Group of a row by its id."""
    return next(name for name, (starts, _) in GROUPS.items() if row_id.startswith(starts))


@cache
def _read() -> tuple[tuple[PublishedRun, ...], tuple[UnmappedRow, ...]]:
    found: list[PublishedRun] = []
    left: list[UnmappedRow] = []
    for row in rows("throughput"):
        group = group_of(row["id"])
        run = _run(row, group)
        found.append(run) if isinstance(run, PublishedRun) else left.append(run)
    return _split(found), tuple(left)


def _run(row: Row, group: str) -> PublishedRun | UnmappedRow:
    if row["kind"] in NO_STEP:
        return UnmappedRow(row["id"], group, NO_STEP[row["kind"]])
    read = GROUPS[group][1](row)
    if isinstance(read, Unread):
        return UnmappedRow(row["id"], group, read.reason)
    job = job_of(read, row["n_gpus"])
    broken = job.problems()
    if broken:
        return UnmappedRow(row["id"], group, "; ".join(f"{p.field} {p.value}: {p.rule}" for p in broken))
    return PublishedRun(
        row["id"], group, origin(row["source"]), configuration(job), job, read.step_s, False, row["verified"],
        read.notes,
    )  # fmt: skip


def origin(text: str) -> str:
    """Repository or paper of a source, without the place in it."""
    return text.partition("@")[0] if text.startswith("github:") else " ".join(text.split()[:1])


DEGREES = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero", "micro_batch")
"""Fields of a layout that tell configurations apart. Recompute, offload and switches of the software do not: what is
known of one of them tells of the others, and a key that is too coarse leaks nothing."""


def configuration(job: Job) -> str:
    """Key of the split: model, devices, sequence, formats and degrees; neither batch nor number of micro-batches."""
    model, train = job.model, job.train
    recipe = f" {train.fp8_recipe}" if train.precision == "fp8" else ""
    return " ".join([
        f"{count(model).total} parameters, {model.num_layers} layers of {model.hidden_size}, on",
        f"{job.cluster.devices} {job.cluster.device.name}, seq_len {train.seq_len}, {train.precision}{recipe},",
        *(f"{name} {getattr(job.layout, name)}" for name in DEGREES),
    ])  # fmt: skip


def _split(found: list[PublishedRun]) -> tuple[PublishedRun, ...]:
    """Mark the runs that constants may be fitted on."""
    of_group: dict[str, set[str]] = {}
    for run in found:
        of_group.setdefault(run.group, set()).add(run.configuration)
    small = {group for group, keys in of_group.items() if len(keys) < FEWEST_TO_SPLIT}
    never = {run.configuration for run in found if run.group in small or not run.verified}
    return tuple(
        replace(run, in_fit=run.configuration not in never and odd(run.configuration)) for run in found
    )


def odd(*key: str) -> bool:
    """Whether the split lets constants be fitted on a configuration."""
    return hashlib.sha256("\n".join(key).encode()).digest()[0] % 2 == 1
