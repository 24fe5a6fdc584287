"""What an estimate assumes, in sentences: listed beside every answer."""

from __future__ import annotations

from telekit.cost.memory import FRAMEWORK_BYTES
from telekit.job import Job
from telekit.layout.schedules import BOTH_ENDS
from telekit.pipeline.simulate import SIMULATED
from telekit.units import format_bytes

LEFT_OUT = (
    "not modelled: host launch overhead, jitter between ranks, network contention, efficiency that depends on the "
    "shape of a product, memory fragmentation beyond the framework term"
)


def assumptions(job: Job) -> tuple[str, ...]:
    """Assumptions that this job's estimate rests on, most general first."""
    device, layout, train = job.cluster.device, job.layout, job.train
    lines = [
        f"matrix products reach {device.gemm_efficiency:.0%} of peak on {device.name}, experts' grouped products "
        f"{device.grouped_gemm_efficiency:.0%}, attention {device.attention_efficiency:.0%}; element-wise work "
        f"{device.memory_efficiency:.0%} of memory bandwidth",
        "attention is a flash kernel: scores are not stored, its backward costs 2.5 forwards",
        f"framework and collective buffers take {format_bytes(FRAMEWORK_BYTES)} on every device",
        LEFT_OUT,
    ]
    if job.model.moe is not None:
        lines.append(
            f"routing is dropless; the busiest expert rank gets {layout.expert_imbalance:g} times the mean"
        )
    if layout.overlap_grad_reduce or layout.overlap_param_gather:
        lines.append(
            "data-parallel traffic hides behind one micro-batch's pass of its stage, at no cost to it"
        )
    if layout.schedule in BOTH_ENDS:
        lines.append(
            "expert traffic hides behind computing, which gives up 20 of 132 units to it (DeepSeek-V3's H800 kernels; "
            "taken for every device)"
        )
    elif layout.overlap_moe_comm:
        lines.append("expert traffic hides behind the computing of its own pass, at no cost to it")
    if train.precision == "fp8":
        lines.append(
            "fp8: matrix products at the fp8 peak, casts around them apart, what they read is kept in fp8; "
            "other activations, and what experts "
            "send back, are bf16"
        )
    if layout.schedule == "seqsmartvpp":
        lines.append("seqsmartvpp is timed as 1f1b: what it gains is not published")
    if layout.schedule not in SIMULATED:
        lines.append(f"{layout.schedule}: time by its closed form, not by simulation")
    if layout.schedule == "zb-v":
        lines.append("zb-v: the closed form is exact for equal stages with F = B = W, else a lower bound")
    if layout.zero == 3:
        lines.append("ZeRO 3 gathers two layers' parameters at a time, and holds one layer's whole gradient")
    return (*lines, *job.cluster.assumptions)
