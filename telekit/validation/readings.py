"""How a published row becomes a job: what every reader returns, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit import catalog
from telekit.cluster.config import ClusterConfig, cluster_names, load_cluster
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.config import ModelConfig
from telekit.model.flops import training_flops_per_token
from telekit.model.utilization import flops_per_token
from telekit.training.config import TrainConfig
from telekit.units import GIB

Row = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """A row, read: the four nouns and what was measured.

    Attributes
    ----------
    model : ModelConfig
    device : str
        Catalog name.
    train, layout : dict
        Fields of ``TrainConfig`` and ``ParallelConfig``.
    step_s : float
        Measured seconds of one optimizer step.
    notes : tuple of str
        What the row leaves open and how it is read here.
    """

    model: ModelConfig
    device: str
    train: dict[str, Any]
    layout: dict[str, Any]
    step_s: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unread:
    """A row that no job can say, and why."""

    reason: str


@cache
def rows(name: str) -> tuple[Row, ...]:
    """Rows of one file of ``data/measurements`` as they stand."""
    return tuple(catalog.load(catalog.root() / "measurements" / f"{name}.json"))


HUNDRED_GBIT_BYTES_PER_S = 12.5e9
"""Nodes of eight devices and 800 Gb/s: Kwai's and vTrain's."""

SMALL_H100 = {
    "name": "h100-96gb", "memory_bytes": 96 * GIB, "memory_bandwidth_bytes_per_s": 2.4e12, "power_w": 500
}  # fmt: skip
"""torchtitan's H100 with 96 GB of HBM2e and a cap of 500 W, which the peak does not know of."""


@cache
def cluster_of(device: str, devices: int) -> ClusterConfig:
    """Cluster of so many devices of the catalog.

    ``-100g`` after a name is 100 Gb/s between nodes; ``h100-96gb`` is torchtitan's; a cluster's name is that cluster.
    """
    if device in cluster_names():
        return load_cluster(device)
    slow = device.endswith("-100g")
    base = "h100" if device == "h100-96gb" else device.removesuffix("-100g")
    spec: dict[str, Any] = {"device": base, "devices": devices}
    record = catalog.record("clusters", base)
    if slow:
        inner, outer = record["tiers"]
        plain = {k: v for k, v in outer.items() if k not in ("ports", "curves", "sources")}
        spec["tiers"] = [inner, plain | {"bandwidth_bytes_per_s": HUNDRED_GBIT_BYTES_PER_S}]
    elif device == "h100-96gb":
        spec |= {"device": record["device"] | SMALL_H100}
        spec |= {name: record[name] for name in ("devices_per_node", "tiers")}
    return load_cluster(spec)


def job_of(read: Reading, devices: int) -> Job:
    """Build the job of a reading."""
    cluster = cluster_of(read.device, devices)
    return Job(read.model, cluster, TrainConfig(**read.train), ParallelConfig(**read.layout))


def degrees(row: Row, **more: Any) -> dict[str, Any]:
    """Degrees that a row states, by the names of ``ParallelConfig``; interleaved where it has virtual stages."""
    found = {name: row[name] for name in ("tp", "pp", "cp", "ep") if row.get(name) is not None}
    found["micro_batch"] = row.get("mbs") or 1
    chunks = row.get("vp") or 1
    if found.get("pp", 1) > 1 and chunks > 1:
        found |= {"vpp": chunks, "schedule": "interleaved-1f1b"}
    return found | more


def step_of_rate(row: Row, tokens_per_s_per_gpu: float) -> float:
    """Seconds of a step from tokens a second and device."""
    return float(row["gbs"] * row["seq_len"] / (tokens_per_s_per_gpu * row["n_gpus"]))


def step_of_tflops(row: Row, flops_per_sequence: float, tflops_per_gpu: float) -> float:
    """Seconds of a step from what a source counts as TFLOP/s of a device."""
    return float(row["gbs"] * flops_per_sequence / (row["n_gpus"] * tflops_per_gpu * 1e12))


def megatron_flops(model: ModelConfig, seq_len: int) -> float:
    """FLOPs of a sequence as Narayanan et al. 2021 count them (equation 3): all keys, full recompute."""
    return seq_len * flops_per_token(model, seq_len, "megatron", recompute="full")


def causal_flops(model: ModelConfig, seq_len: int) -> float:
    """FLOPs of a sequence with causal attention's half and no recompute."""
    return seq_len * training_flops_per_token(model, seq_len)
