"""What an estimate assumes, in sentences: listed beside every answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from telekit.cost.layers import Site
from telekit.cost.memory import FRAMEWORK_BYTES, stage_parameters
from telekit.job import Job
from telekit.layout.notes import notes
from telekit.layout.schedules import BOTH_ENDS, model_copies
from telekit.layout.stages import assign
from telekit.model.attention_flops import indexer_flops, mixer_flops
from telekit.model.config import ModelConfig
from telekit.model.count import count
from telekit.operators.recurrent import RECURRENT
from telekit.operators.shapes import CASTS, recipe_of
from telekit.pipeline.simulate import SIMULATED
from telekit.training.config import LOW
from telekit.units import format_bytes

LEFT_OUT = (
    "not modelled: data loading, network contention between groups, "
    "memory fragmentation beyond the framework term"
)
ATTENTION = {
    "flash": "attention is a flash kernel: scores are not stored, its backward computes 2.5 forwards",
    "flash-2": "attention is FlashAttention-2: scores are not stored, its backward computes 2.5 forwards",
    "triton": "attention is a Triton kernel: scores are not stored, its backward computes 2.5 forwards",
    "unfused": "attention writes its scores to memory, masks them and drops some out, each by a kernel of its own",
}


def assumptions(job: Job) -> tuple[str, ...]:
    """Assumptions that this job's estimate rests on, most general first."""
    return (
        *_of_device(job),
        LEFT_OUT,
        *_of_layers(job.model, job.train.seq_len),
        *_of_experts(job),
        *_of_traffic(job),
        *_of_the_step(job),
        *_held_twice(job),
        *notes(job.case),
        *job.cluster.assumptions,
    )


def _of_device(job: Job) -> Iterator[str]:
    """Say what a device reaches, keeps for itself, and waits for."""
    device, kernels = job.cluster.device, job.cluster.device.kernels
    yield (
        f"large matrix products reach {device.gemm_efficiency:.0%} of peak on {device.name}, experts' grouped products "
        f"{device.grouped_gemm_efficiency:.0%}, attention {device.attention_efficiency:.0%}; element-wise work "
        f"{device.memory_efficiency:.0%} of memory bandwidth; smaller ones less, by their sizes"
    )
    yield ATTENTION[job.train.attention_kernel]
    yield f"framework and collective buffers take {format_bytes(FRAMEWORK_BYTES)} on every device"
    if kernels.host_launch_s and job.layout.cuda_graphs != "full":
        yield (
            f"the host issues an operator in {kernels.host_launch_s * 1e6:.0f} us, and no pass is quicker than that"
        )
    else:
        yield "the host never keeps the device waiting"
    yield (
        f"devices differ by {kernels.jitter:.1%} (standard deviation), and all wait for the slowest of "
        f"{job.cluster.devices:,}"
    )


def _of_layers(model: ModelConfig, seq_len: int) -> list[str]:
    """Say what layers beyond plain attention and feed-forward blocks rest on."""
    specs: list[Any] = [kind.attention for kind in model.kinds]
    lines = []
    if any(spec.kind in RECURRENT for spec in specs):
        lines.append(
            "linear attention and state-space layers: the recurrence at the speed of attention, or its memory traffic, "
            "whichever is longer; kernels, which work in chunks, compute up to 2.5 times that; they keep no states, so "
            "that the backward pass costs 3 forwards"
        )
    if any(getattr(spec, "indexer", None) for spec in specs):
        lines.append(
            "an indexer is whole on each tensor rank; its scores cost 3 forwards in the backward pass, and its own "
            "loss nothing more; chosen keys are read as fast as neighbouring ones"
        )
    absorbed = _absorbed(specs, seq_len)
    if absorbed > 1:
        lines.append(
            "sparse latent attention is counted with keys and values rebuilt; kernels on the latent vectors compute "
            f"{absorbed:.1f} times that"
        )
    if any(spec.kind == "gqa" and not spec.own_keys for spec in specs):
        lines.append("layers that use an earlier layer's keys and values stand on its stage")
    if model.residual_streams > 1:
        lines.append(
            f"{model.residual_streams} residual streams are read and written whole by each half block, kept for its "
            "backward pass, and handed to the next stage"
        )
    if model.per_layer_inputs:
        lines.append(
            "per-layer embeddings are made on the first stage, and all of them travel to every later one"
        )
    return lines


def _absorbed(specs: list[Any], seq_len: int) -> float:
    """How much more attention over latent vectors computes than over rebuilt keys, where it is sparse."""
    for spec in specs:
        if spec.kind == "mla" and spec.indexer:
            scores = indexer_flops(spec, seq_len)
            latent = mixer_flops(spec, seq_len, mla="absorbed") - scores
            return latent / (mixer_flops(spec, seq_len) - scores)
    return 0.0


def _of_experts(job: Job) -> Iterator[str]:
    """Say how tokens are routed."""
    moe = job.model.moe
    if moe is not None:
        among = f" in at most {moe.group_limit} of {moe.groups} groups" if moe.group_limit else ""
        yield (
            f"routing is dropless, a token visits any {moe.top_k} of {moe.num_experts} experts{among}; the busiest "
            f"expert rank gets {job.layout.expert_imbalance:g} times the mean"
        )


def _of_traffic(job: Job) -> Iterator[str]:
    """Say how ranks stand on the cluster, and what traffic hides behind."""
    cluster, layout = job.cluster, job.layout
    if any(tier.devices and tier.devices > cluster.devices_per_node for tier in cluster.tiers):
        yield "racks and supernodes are filled with as many nodes as keep groups of ranks whole"
    longer = f"takes {cluster.device.kernels.overlap_share:.0%} longer"
    if layout.overlap_grad_reduce or layout.overlap_param_gather:
        yield (
            "data-parallel traffic hides behind one micro-batch's pass of its stage, all but one bucket; computing "
            f"{longer} meanwhile"
        )
    if layout.schedule in BOTH_ENDS:
        yield (
            f"expert traffic hides behind computing, which {longer} for it (20/112: DeepSeek-V3's kernels take 20 of "
            "an H800's 132 units; taken for every device)"
        )
    elif layout.overlap_moe_comm:
        yield f"expert traffic hides behind the computing of its own pass, which {longer} meanwhile"


def _of_the_step(job: Job) -> Iterator[str]:
    """Say what precision, schedule and ZeRO rest on."""
    train, layout = job.train, job.layout
    if train.precision in LOW:
        yield (
            f"{train.precision}: all matrix products but router and head, {CASTS[recipe_of(train)]:g} bytes moved to "
            "cast a number; attention, norms, and what experts send back are bf16"
        )
    if layout.schedule == "seqsmartvpp":
        yield (
            "seqsmartvpp is timed as 1f1b, which it is where the sequence is not cut; `telekit pipeline` times "
            "pieces and chunks"
        )
    if layout.schedule not in SIMULATED:
        yield f"{layout.schedule}: time by its closed form, not by simulation"
    if layout.schedule == "zb-v":
        yield "zb-v: the closed form is exact for equal stages with F = B = W, else a lower bound"
    if layout.zero == 3:
        yield "ZeRO 3 gathers two layers' parameters at a time, and holds one layer's whole gradient"


def _held_twice(job: Job) -> list[str]:
    """Say how many parameters the stages hold together, where that is more than the model has."""
    whole = job.layout.model_copy(update={"tp": 1, "cp": 1, "dp": 1, "ep": 1, "etp": 1})
    held = stage_parameters(Site(job.model, job.cluster, job.train, whole), assign(job.model, whole))
    over_stages, found = int(np.sum(held.dense + held.expert)), count(job.model)
    logical = found.total + (found.mtp if job.train.mtp else 0)
    if over_stages <= logical:
        return []
    twice = model_copies(whole.schedule) > 1
    why = "a device holds two stages" if twice else "the last holds an input embedding too"
    return [f"parameters: {logical:,} in the model, {over_stages:,} in the memory of all stages ({why})"]
