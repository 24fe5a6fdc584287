"""Published memory of training steps as jobs: what a device held at its fullest, by the allocator's own count."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit.job import Job
from telekit.model.huggingface import load_model
from telekit.units import GIB, MIB
from telekit.validation.readings import Reading, Row, degrees, job_of, rows
from telekit.validation.run_models import gpt, llama, padded
from telekit.validation.runs import PublishedRun, UnmappedRow, published_runs


@dataclass(frozen=True)
class MemoryRun:
    """A measured peak and the job that says it.

    Attributes
    ----------
    id, group, source : str
        Of the row.
    job : Job
    measured_bytes : float
        Peak of the fullest device.
    verified : bool
    notes : tuple of str
        What the row leaves open and how it is read.
    """

    id: str
    group: str
    source: str
    job: Job
    measured_bytes: float
    verified: bool
    notes: tuple[str, ...] = ()


REASONS = {
    "activation_formula_bytes_per_layer": "a formula",
    "activation_bytes_per_layer": "one layer; tested beside the formulas",
    "activation_pct_of_tp_baseline": "ratios of one layer; tested beside the formulas",
    "weight_optimizer_bytes": "a test of another program; tested beside the formulas",
    "formula": "a formula",
    "activation_saving_GB": "savings without the layout",
    "note": "no number",
}
"""Kinds of rows that hold no device's peak."""

UNSTATED = {
    "korth": "parameters and activations of a figure; tested beside the formulas",
    "mbridge": "the model's fields are in the linked file only",
    "zb": "micro-batches are not stated, and half the schedules differ from the layouts' own",
    "tutel": "one layer",
    "chunkflow": "chunks of sequences, which a job cannot say",
    "hbp": "the sequences of a batch are not stated",
    "galvatron": "one layer",
    "primus": "batch not stated",
}


@cache
def memory_runs(group: str | None = None) -> tuple[MemoryRun, ...]:
    """Every published peak that a job can say, of one group or of all."""
    return tuple(run for run in _read()[0] if group in (None, run.group))


@cache
def unmapped_memory() -> tuple[UnmappedRow, ...]:
    """Every other row of the same file, with the reason."""
    return _read()[1]


@cache
def _read() -> tuple[tuple[MemoryRun, ...], tuple[UnmappedRow, ...]]:
    found: list[MemoryRun] = []
    left: list[UnmappedRow] = []
    for row in rows("memory"):
        runs = _runs(row)
        if isinstance(runs, str):
            left.append(UnmappedRow(row["id"], f"memory-{row['id'].split('_')[0]}", runs))
        elif runs.job.problems():
            reason = "; ".join(f"{p.field} {p.value}: {p.rule}" for p in runs.job.problems())
            left.append(UnmappedRow(row["id"], runs.group, reason))
        else:
            found.append(runs)
    return tuple(found), tuple(left)


def _runs(row: Row) -> MemoryRun | str:
    start = row["id"].split("_")[0]
    if row["kind"] in REASONS:
        return REASONS[row["kind"]]
    if start in UNSTATED:
        return UNSTATED[start]
    return {"thr": _same_run, "kwai": _kwai, "hp": _dry_run, "vocabpar": _vocabulary}[start](row)


@cache
def _steps() -> dict[str, PublishedRun]:
    return {run.id: run for run in published_runs()}


def _same_run(row: Row) -> MemoryRun | str:
    """Read the peak of a run whose speed is a row of throughput.json."""
    run = _steps().get(row["id"].removeprefix("thr_mem_"))
    if run is None:
        return "its run's layout is in the linked file only"
    bytes_, group = float(row["peak_memory_GiB"] * GIB), f"memory-{run.group}"
    return MemoryRun(row["id"], group, row["source"], run.job, bytes_, row["verified"])


def _kwai(row: Row) -> MemoryRun:
    """Kwai's exact peaks of one layout under growing offload (alpha of the activations)."""
    model = llama(row["hidden"], row["heads"], row["heads"], row["layers"], row["ffn"], padded(row))
    layout = degrees(
        row, zero=1, recompute=["layernorm", "mlp_act"], activation_offload=float(row["offload_alpha"])
    )
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"], "wgrad_buffers": "transient"}
    read = Reading(model, "h800", train, layout, 0.0)
    job = job_of(read, row["n_gpus"])
    notes = ("norms and activations recomputed; offload as a share of a layer's activations",)
    bytes_ = float(row["max_memory_allocated_bytes"])
    return MemoryRun(row["id"], "memory-kwai", row["source"], job, bytes_, row["verified"], notes)


def _dry_run(row: Row) -> MemoryRun:
    """MindSpore's compile-time peaks of DeepSeek-V3 with one MTP module: trends over EP, not a device's measurement."""
    train: dict[str, Any] = {"seq_len": row["seq_len"], "global_batch": row["dp"] * max(row["pp"], 32)}
    train |= {"wgrad_buffers": "transient", "expert_weights": "grouped"}
    layout = degrees(row, etp=1, zero=1)
    if row["pp"] == 4:
        layout["stages"] = [[16, 15, 15, 15]]
    job = job_of(Reading(load_model("deepseek-v3"), "ascend-910b", train, layout, 0.0), row["n_devices"])
    notes = ("recompute and layers of the stages not stated: only the slope over EP is judged",)
    return MemoryRun(
        row["id"], "memory-dry-run", row["source"], job, float(row["peak_MB"] * MIB), row["verified"], notes
    )


def _vocabulary(row: Row) -> MemoryRun | str:
    """Vocabulary parallelism's baseline: the head on the last stage, one layer after another."""
    if row["method"] != "baseline":
        return "vocabulary layers shared out over the stages, which a job cannot say"
    model = gpt(row["hidden"], row["heads"], row["layers"], row["vocab"], row["seq_len"])
    train: dict[str, Any] = {"seq_len": row["seq_len"], "global_batch": row["num_microbatches"] * row["mbs"]}
    train["wgrad_buffers"] = "transient"
    job = job_of(Reading(model, "a100-80gb", train, degrees(row, zero=1), 0.0), row["n_gpus"])
    notes = ("GB taken as 2^30 bytes, as torch's numbers are mostly divided",)
    bytes_ = float(row["peak_memory_GB"] * GIB)
    return MemoryRun(row["id"], "memory-vocabulary", row["source"], job, bytes_, row["verified"], notes)


def expert_slopes() -> tuple[tuple[MemoryRun, MemoryRun], ...]:
    """Pairs of dry runs that differ in EP alone, the smaller EP first: their difference is the experts' memory."""
    found: dict[tuple[int | None, int, int], list[MemoryRun]] = {}
    for run in memory_runs("memory-dry-run"):
        layout = run.job.layout
        found.setdefault((layout.dp, layout.tp, layout.pp), []).append(run)
    pairs = [sorted(same, key=lambda run: run.job.layout.ep) for same in found.values() if len(same) == 2]
    return tuple((first, second) for first, second in pairs)
