"""Megatron-LM's arguments for what a job says of memory: the loss, fp8 stores, capacity, offload, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from telekit.job import Job
from telekit.launch.megatron_model import flag, note


def memory_lines(job: Job) -> Iterator[str]:
    """Arguments, and as comment lines what Megatron-LM does otherwise.

    Names as in Megatron-LM's ``megatron/training/arguments.py`` and in public launch scripts that pass them.
    """
    train, layout = job.train, job.layout
    if train.cross_entropy_fusion in ("native", "te", "linear"):
        yield flag("cross-entropy-loss-fusion")
        yield flag("cross-entropy-fusion-impl", train.cross_entropy_fusion)
    flags = {
        "fp8-param-gather": train.fp8_param_gather,
        "activation-func-fp8-input-store": train.activation_func_fp8_input_store,
    }
    yield from (flag(name) for name, wanted in flags.items() if wanted)
    if layout.moe_expert_capacity_factor:
        yield flag("moe-expert-capacity-factor", f"{layout.moe_expert_capacity_factor:g}")
        yield flag("moe-pad-expert-input-to-capacity")
    if layout.optimizer_offload:
        yield flag("optimizer-cpu-offload")
        yield flag("optimizer-offload-fraction", f"{layout.optimizer_offload:g}")
    if layout.activation_offload:
        share = f"{layout.activation_offload:.0%} of the activations"
        yield note(
            f"{share} on the host: Megatron-LM offloads by layers or modules, not by a share; here they stay"
        )
    if train.optimizer != "adamw":
        yield note(
            f"the optimizer {train.optimizer} is not written here: adam stands in its place, with more memory"
        )
