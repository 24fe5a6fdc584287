"""Fitted and assumed constants of an estimate: the value, where it comes from, and what it does to the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from telekit.cluster.config import ClusterConfig, Device, LinkTier
from telekit.cluster.curves import Curve
from telekit.cluster.sourced import Sourced
from telekit.comm.expert_links import expert_links
from telekit.cost import loss, memory, offload, step
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.job import Job
from telekit.operators import attention, layer, shapes
from telekit.operators.coefficients import moved
from telekit.training.config import LOW

MOVED = 0.1
"""By how much a constant is moved, as a share of itself."""
DEVICE = ("gemm_efficiency", "grouped_gemm_efficiency", "attention_efficiency", "memory_efficiency")
KERNELS = (
    "wave_share", "half_inner", "attention_backward", "attention_half_keys", "launch_s", "host_launch_s",
    "backward_launches", "overlap_share", "host_link_bytes_per_s", "jitter",
)  # fmt: skip
TABLES = ("low_precision", "mixers")
LINKS = ("efficiency", "latency_s", "half_bytes")
CURVE = (
    "start_s", "step_s", "bandwidth_bytes_per_s", "low_latency_ratio", "ramp_s", "rank_exponent", "in_switch_share",
)  # fmt: skip
EXPERT_LINKS = (
    "kernel_start_s", "low_latency_dispatch_s", "low_latency_combine_s", "combine_fill_tokens", "sm_row_s",
    "sm_bytes_per_s",
)  # fmt: skip
ASSUMED = "assumed for every device"
DEEPEP = ("deepep", "hybridep")
"""Dispatchers whose kernels have constants of their own."""


@dataclass(frozen=True)
class Constant:
    """One number that was fitted, derived or assumed.

    Parameters
    ----------
    name : str
        Its path in the job's ``cluster``; ``code.NAME`` for one that is the same everywhere, ``expert_links.NAME`` for
        one of ``data/measurements/expert_links.json``.
    value : float
    source : str
        What it was fitted on, or why it was taken.
    verified : bool
        Whether it was read or measured at its source.
    effect, memory_effect : float
        Change of the step's time, and of the fullest device's memory, when it is 10 % more, as shares of them.
    """

    name: str
    value: float
    source: str
    verified: bool
    effect: float
    memory_effect: float = 0.0

    @property
    def text(self) -> str:
        """All in a line."""
        found = [
            f"{what} {abs(effect):.2%} {more if effect > 0 else less}"
            for effect, what, more, less in (
                (self.effect, "the step", "longer", "shorter"),
                (self.memory_effect, "the peak of memory", "larger", "smaller"),
            )
            if effect
        ]
        says = f"10 % more makes {' and '.join(found)}" if found else "no effect here"
        return f"{self.name} = {self.value:.4g}: {self.source}; {says}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "value": self.value,
            "source": self.source,
            "verified": self.verified,
            "effect_of_10_percent": self.effect,
            "memory_effect_of_10_percent": self.memory_effect,
        }


Origin = tuple[str, bool]
Moved = tuple[str, float, Origin, ClusterConfig]


def constants(job: Job) -> tuple[Constant, ...]:
    """List the fitted and assumed constants of a job's estimate, those that matter most first.

    Times are by the pipeline's closed form. Of measured curves only those that this job asks are listed, and of the
    code's constants those that it uses.
    """
    base = _answer(job, job.cluster)
    found = [
        _constant(name, value, origin, base, _answer(job, changed))
        for name, value, origin, changed in (
            *_of_device(job.cluster), *_of_links(job.cluster), *_of_curves(job, base)
        )
    ]  # fmt: skip
    for name, value, origin in _of_code(job):
        with moved(name.rpartition(".")[2], 1.0 + MOVED):
            found.append(_constant(name, value, origin, base, _answer(job, job.cluster)))
    return tuple(sorted(found, key=lambda one: (-abs(one.effect), -abs(one.memory_effect))))


def _constant(
    name: str, value: float, origin: Origin, base: tuple[float, float], changed: tuple[float, float]
) -> Constant:
    time, peak = (
        0.0 if abs(after / before - 1.0) <= 1e-9 else after / before - 1.0
        for before, after in zip(base, changed, strict=True)
    )
    source, verified = origin
    if name.startswith("tiers.") and not (time or peak):
        source += (
            " (unused: measured curves or fitted shares answer for this job's traffic here, or there is none)"
        )
    return Constant(name, value, source, verified, time, peak)


def _of_device(cluster: ClusterConfig) -> Iterator[Moved]:
    device = cluster.device
    for name in DEVICE:
        value = getattr(device, name)
        changed = device.model_copy(update={name: value * (1.0 + MOVED)})
        yield f"device.{name}", value, _origin(device, name), _with_device(cluster, changed)
    for name in KERNELS:
        value = getattr(device.kernels, name)
        yield _kernel(cluster, f"device.kernels.{name}", value, name, {name: value * (1.0 + MOVED)})
    for table in TABLES:
        known = getattr(device.kernels, table)
        for key, value in known.items():
            changes = {table: {**known, key: value * (1.0 + MOVED)}}
            yield _kernel(cluster, f"device.kernels.{table}.{key}", value, table, changes)


def _kernel(cluster: ClusterConfig, name: str, value: float, field: str, changes: dict[str, Any]) -> Moved:
    device = cluster.device
    kernels = device.kernels.model_copy(update=changes)
    changed = device.model_copy(update={"kernels": kernels})
    return name, value, _origin(device.kernels, field), _with_device(cluster, changed)


def _of_links(cluster: ClusterConfig) -> Iterator[Moved]:
    for at, tier in enumerate(cluster.tiers):
        for name in LINKS:
            value = getattr(tier, name)
            if value or name != "half_bytes":
                changed = tier.model_copy(update={name: value * (1.0 + MOVED)})
                yield (
                    f"tiers.{tier.name}.{name}",
                    value,
                    _origin(tier, name),
                    _with_tier(cluster, at, changed),
                )


def _of_curves(job: Job, base: tuple[float, float]) -> Iterator[Moved]:
    cluster = job.cluster
    for at, tier in enumerate(cluster.tiers):
        for op, curve in tier.curves.items():
            slower = curve.model_copy(update={"bandwidth_bytes_per_s": 0.5 * curve.bandwidth_bytes_per_s})
            if _answer(job, _with_curve(cluster, at, op, slower)) == base:
                continue  # this job never asks it
            for name in CURVE:
                value = getattr(curve, name)
                if value is not None:
                    changed = curve.model_copy(update={name: value * (1.0 + MOVED)})
                    named = f"tiers.{tier.name}.curves.{op}.{name}"
                    yield named, value, (curve.source, curve.verified), _with_curve(cluster, at, op, changed)


def _with_curve(cluster: ClusterConfig, at: int, op: str, curve: Curve) -> ClusterConfig:
    tier = cluster.tiers[at]
    return _with_tier(cluster, at, tier.model_copy(update={"curves": {**tier.curves, op: curve}}))


def _with_tier(cluster: ClusterConfig, at: int, tier: LinkTier) -> ClusterConfig:
    return cluster.model_copy(update={"tiers": (*cluster.tiers[:at], tier, *cluster.tiers[at + 1 :])})


def _with_device(cluster: ClusterConfig, device: Device) -> ClusterConfig:
    return cluster.model_copy(update={"device": device})


def _origin(record: Sourced | LinkTier, name: str) -> Origin:
    known = record.sources.get(name)
    if known is not None:
        return known.source, known.verified
    return (ASSUMED if name in KERNELS else "as the record has it"), False


def _of_code(job: Job) -> Iterator[tuple[str, float, Origin]]:
    """Constants of the code that this job uses."""
    train, layout, moe = job.train, job.layout, job.model.moe
    low = train.precision in LOW
    many = moe is not None
    known: tuple[tuple[str, float, str, bool], ...] = (
        ("BUCKET_PARAMETERS", step.BUCKET_PARAMETERS, "Megatron-Core's distributed_data_parallel_config.py", True),
        ("ATTENTION_LAUNCHES", attention.ATTENTION_LAUNCHES, ASSUMED, train.attention_kernel != "unfused"),
        ("CASTS", shapes.CASTS[shapes.recipe_of(train)] if low else 0.0, "Transformer Engine's casts", low),
        ("CAST_LAUNCHES", shapes.CAST_LAUNCHES, "assumed: a cast takes the host half of an operator", low),
        ("GROUP_LAUNCH", shapes.GROUP_LAUNCH, "assumed: a loop in C++", many),
        ("ROUTER_LAUNCHES", layer.ROUTER_LAUNCHES, "about Megatron-Core's moe_utils.py", many),
        ("SORTS", layer.SORTS.get(layout.dispatcher, 1.0), ASSUMED, many),
        ("FRAMEWORK_BYTES", memory.FRAMEWORK_BYTES, ASSUMED, True),
        ("WORKSPACE_BYTES", memory.WORKSPACE_BYTES, "two libraries' workspaces of cuBLAS, by their sources", True),
        ("GROUPED_WORKSPACE_BYTES", memory.GROUPED_WORKSPACE_BYTES, "Transformer Engine's four streams", many),
        ("LOGIT_BYTES", loss.LOGIT_BYTES[train.cross_entropy_fusion], "tensors of the loss, by its source", True),
        ("LOSS_HELD_BYTES", loss.LOSS_HELD_BYTES[train.cross_entropy_fusion], "tensors of the loss, by its source",
         layout.schedule in loss.LOSSES_WAIT),
        ("LINEAR_LOSS_TOKENS", loss.LINEAR_LOSS_TOKENS, ASSUMED, train.cross_entropy_fusion == "linear"),
        ("OFFLOAD_CHUNKS", offload.OFFLOAD_CHUNKS, ASSUMED, layout.activation_offload > 0 and layout.vpp > 1),
        ("OFFLOAD_LAYERS", offload.OFFLOAD_LAYERS, ASSUMED, layout.activation_offload > 0 and layout.vpp == 1),
    )  # fmt: skip
    for name, value, source, used in known:
        if used:
            yield f"code.{name}", float(value), (source, False)
    if many and layout.ep > 1 and layout.dispatcher in DEEPEP:
        links = expert_links(job.cluster)
        for name in EXPERT_LINKS:
            yield f"expert_links.{name}", float(getattr(links, name)), ("; ".join(links.sources), False)


def _answer(job: Job, cluster: ClusterConfig) -> tuple[float, float]:
    """Time of a step, and memory of the fullest device."""
    cost = step_cost(Site(job.model, cluster, job.train, replace(job, cluster=cluster).layout))
    return float(cost.step_s), float(cost.peak_bytes.max())
