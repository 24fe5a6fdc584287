"""Megatron-LM's arguments for kernels: number formats of products, attention, fused experts, recorded graphs.

Names of fp8 options as :mod:`telekit.launch.megatron` read them; of fp4, of graphs, of the op fuser and of dropout, in
``megatron/training/arguments.py`` of github:NVIDIA/Megatron-LM and its guide for DeepSeek-V3 on GB200 (release 0.15).
"""

from __future__ import annotations

from collections.abc import Iterator

from telekit.job import Job
from telekit.launch.megatron_model import flag, note
from telekit.training.config import DROPOUT

GRAPHED = {"moe": ("attn", "moe_router", "moe_preprocess"), "dense": ("attn", "mlp")}
"""What ``cuda_graphs: partial`` records, by the kind of the model's MLPs."""


def format_lines(job: Job) -> Iterator[str]:
    """Say the formats of products: 16 bits, and what fp8 and fp4 recipes add to them."""
    train = job.train
    yield flag("fp16" if train.precision == "fp16" else "bf16")
    if train.precision == "fp8":  # per-tensor scales take e5m2 for gradients, finer ones e4m3 throughout
        yield flag("fp8-format", "hybrid" if train.fp8_recipe in ("delayed", "tensorwise") else "e4m3")
        yield flag("fp8-recipe", train.fp8_recipe)
    if train.precision == "fp4":
        yield flag("fp4-format", "e2m1")
        yield flag("fp4-recipe", "nvfp4")


def kernel_lines(job: Job) -> Iterator[str]:
    """Say attention and its dropout, fused experts, graphs."""
    train, layout = job.train, job.layout
    unfused = train.attention_kernel == "unfused"
    yield flag("attention-dropout", DROPOUT if unfused else 0.0)
    yield flag("hidden-dropout", DROPOUT if unfused else 0.0)
    if unfused:
        yield flag("attention-backend", "unfused")
    elif train.attention_kernel != "flash":
        yield note(
            f"attention kernel {train.attention_kernel}: which one runs follows from what is installed"
        )
    if layout.fused_experts and job.model.moe is not None:
        yield flag("use-transformer-engine-op-fuser")
    if layout.cuda_graphs != "none" and layout.recompute == "full":
        yield note("no graphs are recorded: Megatron-LM refuses them with full recompute")
    elif layout.cuda_graphs == "full":
        yield flag("cuda-graph-impl", "local")
        yield flag("cuda-graph-scope", "full_iteration")
        yield flag("te-rng-tracker")
        yield flag("no-check-for-nan-in-loss-and-grad")
    elif layout.cuda_graphs == "partial":
        yield flag("cuda-graph-impl", "transformer_engine")
        yield flag("cuda-graph-scope", *GRAPHED["moe" if job.model.moe else "dense"])
        yield flag("te-rng-tracker")
