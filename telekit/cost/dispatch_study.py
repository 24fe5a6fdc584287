"""A frozen question of the catalog: a job, two dispatchers, what the answer may hang on, and what is held fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telekit import catalog
from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.errors import bad
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

UNEVEN, OVERLAP, FORM = "expert_imbalance", "overlap_moe_comm", "hierarchical"
"""Inputs of every study: the busiest expert rank over the mean, overlap of expert traffic, and the dispatcher."""
IN_LAYOUT = ("tp", "recompute", UNEVEN, OVERLAP, "ep", "etp", "pp", "micro_batch")
EXPERTS_OVER_GEMM = 0.87
"""Grouped products beside plain ones, as the study froze it (H800 rows of InferSim, as the 910B's record still has it).

The records of A100 and Hopper say 0.91 since."""


@dataclass(frozen=True)
class Input:
    """One thing the answer hangs on: its base value, and a range (``low`` to ``high``) or ``choices``."""

    name: str
    says: str
    source: str
    base: Any
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    @property
    def ends(self) -> tuple[Any, Any]:
        """What a bar of the tornado spans."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)

    def at(self, share: float) -> Any:
        """Value at a share of the range (evenly, in the logarithm where it spans a factor of 5), or of the choices."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        if self.low > 0 and self.high / self.low >= 5:
            return float(self.low * (self.high / self.low) ** share)
        return float(self.low + (self.high - self.low) * share)


@dataclass(frozen=True)
class Fixed:
    """One thing that is held fixed: what it is, why it is held, and where it is moved to, to see what it would do."""

    name: str
    says: str
    why: str
    moved: tuple[Any, ...]


@dataclass(frozen=True)
class Study:
    """A frozen question: job, dispatchers, inputs, and the claim that the answer is held against.

    ``fixed`` is what stays as the job or the catalog has it; ``fixed_note`` says when that was listed.
    """

    name: str
    title: str
    frozen: str
    job: Mapping[str, Any]
    job_source: str
    flat: str
    inputs: tuple[Input, ...]
    fixed: tuple[Fixed, ...]
    fixed_note: str
    claim: float
    claim_source: str

    @property
    def base(self) -> dict[str, Any]:
        """Base value of every input."""
        return {item.name: item.base for item in self.inputs}


def load_study(name: str) -> Study:
    """Read a study of the catalog.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    record = catalog.record("studies", name)
    inputs = tuple(
        Input(**(item | ({"choices": tuple(item["choices"])} if "choices" in item else {})))
        for item in record["inputs"]
    )
    fixed = tuple(Fixed(**(item | {"moved": tuple(item["moved"])})) for item in record["fixed"])
    claim = record["claim"]
    return Study(
        record["name"], record["title"], record["frozen"], record["job"], record["job_source"], record["flat"],
        inputs, fixed, record["fixed_note"], claim["gain"], claim["source"],
    )  # fmt: skip


def study_job(study: Study, dispatcher: str, **values: Any) -> Job:
    """Make the job of a study under one dispatcher, with some inputs or fixed things moved from where they stand.

    The global batch follows the data-parallel ranks, so that a rank keeps its number of micro-batches.

    Raises
    ------
    InputError
        For a name that the study does not have.
    """
    known = [*study.base, *(item.name for item in study.fixed)]
    if unknown := sorted(set(values) - set(known)):
        raise bad("input", unknown[0], f"not an input of {study.name}", f"known: {', '.join(known)}")
    v, spec = study.base | values, study.job
    layout = spec["layout"] | {name: v[name] for name in IN_LAYOUT if name in v} | {"dispatcher": dispatcher}
    devices = v.get("devices", spec["cluster"]["devices"])
    usual = spec["train"]["global_batch"] // _at_once(spec["layout"], spec["cluster"]["devices"])
    batch = v.get("micro_batches", usual) * _at_once(layout, devices)
    return Job(
        model=load_model(spec["model"]),
        cluster=_cluster(devices, v),
        train=TrainConfig.model_validate(spec["train"] | {"seq_len": v["seq_len"], "global_batch": batch}),
        layout=ParallelConfig.model_validate(layout),
    )


def _at_once(layout: Mapping[str, Any], devices: int) -> int:
    """Sequences of one micro-batch of all data-parallel ranks."""
    return int(devices // (layout["tp"] * layout["cp"] * layout["pp"]) * layout["micro_batch"])


def _cluster(devices: int, v: Mapping[str, Any]) -> ClusterConfig:
    record = load_cluster({"device": v["device"], "devices": devices}).model_dump()
    record["device"] |= {
        "gemm_efficiency": v["gemm_efficiency"],
        "grouped_gemm_efficiency": v.get("experts_over_gemm", EXPERTS_OVER_GEMM) * v["gemm_efficiency"],
        "attention_efficiency": v["attention_efficiency"],
        "memory_efficiency": v["memory_efficiency"],
    }
    for prefix, tier in (("node", record["tiers"][0]), ("network", record["tiers"][-1])):
        for field in ("efficiency", "latency_s", "bandwidth_bytes_per_s"):
            tier[field] = v.get(f"{prefix}_{field}", tier[field])
    kernels = record["device"]["kernels"]
    kernels["host_launch_s"] = v.get("host_launch_s", kernels["host_launch_s"])
    return ClusterConfig.model_validate(record)


def standing(study: Study) -> dict[str, Any]:
    """Where the fixed things stand, as the job and the catalog have them."""
    job = study_job(study, study.flat)
    node, network = job.cluster.tiers[0], job.cluster.tiers[-1]
    return {name: getattr(job.layout, name) for name in IN_LAYOUT} | {
        "micro_batches": job.micro_batches,
        "devices": job.cluster.devices,
        "node_bandwidth_bytes_per_s": node.bandwidth_bytes_per_s,
        "node_latency_s": node.latency_s,
        "network_bandwidth_bytes_per_s": network.bandwidth_bytes_per_s,
        "experts_over_gemm": EXPERTS_OVER_GEMM,
        "host_launch_s": job.cluster.device.kernels.host_launch_s,
    }
