"""Published runs of dense models, read as jobs: what each source states, and what is taken where it is silent."""

from __future__ import annotations

from typing import Any

from telekit.model.huggingface import load_model
from telekit.validation.readings import (
    Reading,
    Row,
    Unread,
    causal_flops,
    degrees,
    megatron_flops,
    step_of_rate,
    step_of_tflops,
)
from telekit.validation.run_models import cut, gpt, gpt_of, llama, mpt, padded

OLD_LAYOUT: dict[str, Any] = {
    "sequence_parallel": False,
    "zero": 0,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
}
"""Megatron-LM before the distributed optimizer: replicas sum their gradients after the last backward pass."""

OLD_TRAIN: dict[str, Any] = {
    "precision": "fp16",
    "grad_dtype": "bf16",
    "attention_kernel": "unfused",
    "wgrad_buffers": "transient",
}
"""Its fp16 training: two bytes a gradient, attention that writes its scores."""

OLD = "gradients in 16 bits, summed after the backward pass; attention writes its scores, as Megatron-LM did then"


def simumax(row: Row) -> Reading:
    """SimuMax's measured B200 runs (simu_tools/megatron_scripts of the same repository has their flags)."""
    layers = row["layers_used"]
    name = {"llama3-70b": "llama-3.1-70b", "llama3-405b": "llama-3.1-405b"}.get(row["model"])
    deepseek = {"deepseekv2": "deepseek-v2", "deepseekv3": "deepseek-v3"}.get(row["model"], "")
    groups = {"num_key_value_heads": 16} if row["model"] == "llama3-405b" else {}
    model = cut(name, layers, **groups) if name else cut(deepseek, layers)
    layout = degrees(
        row,
        zero=1,
        sequence_parallel=True,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        cp_comm_type="a2a",
    )
    train = {
        "seq_len": row["seq_len"],
        "global_batch": row["gbs"],
        "precision": "bf16",
        "mtp": False,
        "cross_entropy_fusion": "te",
    }
    if deepseek:
        layout["moe_expert_capacity_factor"] = 1.0
    notes = (
        "405B with 16 key/value groups, as its script has it; Hugging Face's has 8",
        "no overlap of data-parallel traffic, all-to-all dispatcher, every expert padded to capacity factor 1: "
        "the flags of simu_tools/megatron_scripts",
    )
    return Reading(model, "b200", train, layout, row["step_time_s"], notes)


def sc21(row: Row) -> Reading:
    """Megatron-LM 2021, tables 1 (PTD-P) and 2 (against ZeRO-3)."""
    if "method" in row:
        return _sc21_against_zero3(row)
    chunks = row["layers"] // (row["pp"] * row["vp"]) if row.get("vp") else 1
    layout = degrees(row | {"vp": chunks}, recompute="full", **OLD_LAYOUT)
    model = gpt_of(row)
    step = step_of_tflops(row, megatron_flops(model, row["seq_len"]), row["hw_tflops_per_gpu"])
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | OLD_TRAIN
    return Reading(model, "a100-80gb", train, layout, step, (OLD, "vp counts layers of a virtual stage"))


SC21_SHAPES = {174.6: (12288, 96, 96, 12), 529.6: (20480, 128, 105, 35)}
"""Width, heads, layers and PTD-P's stages of table 2's models."""


def _sc21_against_zero3(row: Row) -> Reading:
    hidden, heads, layers, stages = SC21_SHAPES[row["params_B"]]
    model = gpt(hidden, heads, layers, row["vocab"], row["seq_len"])
    step = step_of_tflops(row, megatron_flops(model, row["seq_len"]), row["hw_tflops_per_gpu"])
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | OLD_TRAIN
    if row["method"] == "ZeRO-3":
        layout = OLD_LAYOUT | {"zero": 3, "micro_batch": row["mbs"], "recompute": "full"}
        notes = ("DeepSpeed's ZeRO-3 without tensor parallelism; it did not fetch ahead then",)
        return Reading(model, "a100-80gb", train, layout, step, notes)
    layout = {"tp": 8, "pp": stages, "micro_batch": row["mbs"], "recompute": "full"} | OLD_LAYOUT
    return Reading(
        model, "a100-80gb", train, layout, step, (OLD, "one chunk a stage, which the table does not say")
    )


def korthikanti(row: Row) -> Reading:
    """Korthikanti et al. 2022, table 5: full recompute against selective with sequence parallelism."""
    full = row["recompute"] == "full"
    layout = degrees(
        row, **OLD_LAYOUT | {"recompute": "full" if full else ["core_attn"], "sequence_parallel": not full}
    )
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | OLD_TRAIN
    return Reading(gpt_of(row), "a100-80gb", train, layout, row["step_time_s"], (OLD,))


def mt_nlg(row: Row) -> Reading:
    """Megatron-Turing NLG 530B on 280 to 420 nodes."""
    model = gpt(row["hidden"], row["heads"], row["layers"], 51200, row["seq_len"])
    layout = degrees(row, recompute="full", **OLD_LAYOUT)
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | OLD_TRAIN
    return Reading(
        model, "a100-80gb", train, layout, row["step_time_s"], (OLD, "vocabulary of 51,200 assumed")
    )


def megascale(row: Row) -> Reading | Unread:
    """MegaScale's strong scaling of a 175B model; its rows of Megatron-LM, whose blocks a job can say."""
    if "gbs" not in row:
        return Unread("weak scaling: the batch is not stated")
    if row["method"] == "MegaScale":
        return Unread("attention and MLP side by side, and a sliding window of unknown width")
    switches = OLD_LAYOUT | {"sequence_parallel": True, "zero": 1, "recompute": ["core_attn"]}
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | OLD_TRAIN | {"precision": "bf16"}
    layout = degrees(row, **switches)
    notes = (
        "Megatron-LM 285068c8 of December 2022: scores written, selective recompute, no overlap of gradients",
        "micro-batch 1 and ZeRO-1: the table does not say",
        "vocab, vp unverified",
    )
    return Reading(gpt_of(row), "a100-80gb", train, layout, row["step_time_s"], notes)


def vtrain(row: Row) -> Reading:
    """Read vTrain's measurements of Megatron-DeepSpeed on A100."""
    layout = degrees(row, dp=row["dp"], recompute=row["recompute"], **OLD_LAYOUT)
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | OLD_TRAIN
    device = "a100-80gb-100g" if row["n_gpus"] > 8 else "a100-80gb"
    return Reading(gpt_of(row), device, train, layout, row["step_time_s"], (OLD,))


def llama3(row: Row) -> Reading:
    """Llama 3's table 4 (405B on 8,192 and 16,384 H100)."""
    layout = degrees(row, zero=1, vpp=8, schedule="interleaved-1f1b", recompute="none")
    model = load_model("llama-3.1-405b")
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"], "precision": "bf16"}
    train["wgrad_buffers"] = "transient"  # PyTorch's own products
    step = step_of_tflops(row, causal_flops(model, row["seq_len"]), row["model_tflops_per_gpu"])
    notes = (
        "chunks are not stated; 8 a stage put one layer in each, none in the first and last, and 16 x 8 - 2 is 126",
        "gradients summed once a step, and here whole till then: Meta shards them too, which frees about 11 GiB",
        "TFLOP/s rounded in the paper",
    )
    return Reading(model, "h100", train, layout, step, notes)


def kwai(row: Row) -> Reading:
    """Kwai's best plans with offload and cheap recompute on H800 and A800."""
    ours = row["recompute"].startswith("rematerialize")
    layout = degrees(
        row, dp=row["dp"], zero=1, recompute=["layernorm", "mlp_act"] if ours else row["recompute"],
        activation_offload=float(row["offload_alpha"]),
    )  # fmt: skip
    shape = (row[n] for n in ("hidden", "heads", "kv_heads", "layers", "ffn"))
    model = llama(*shape, padded(row))
    train = {
        "seq_len": row["seq_len"],
        "global_batch": row["gbs"],
        "precision": "bf16",
        "wgrad_buffers": "transient",
    }
    rate = row["tokens_per_s"] / row["n_gpus"] if "tokens_per_s" in row else row["tokens_per_s_per_gpu"]
    notes = ("eight cards of 100 Gb/s a node",) + (
        ("cheap operators recomputed: norms, activation",) if ours else ()
    )
    device = "h800-100g" if row["n_gpus"] > 8 else row["gpu"].lower()
    return Reading(model, device, train, layout, step_of_rate(row, rate), notes)


MPT_DEVICES = {"h100_80gb": "h100", "a100_80gb": "a100-80gb", "a100_40gb": "a100-40gb"}


def mpt_table(row: Row) -> Reading:
    """MosaicML's MPT benchmarks under PyTorch FSDP."""
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}[row["sharding"]]
    layout = {"micro_batch": row["mbs"], "zero": zero, "recompute": row["recompute"]}
    train: dict[str, Any] = {"seq_len": row["seq_len"], "global_batch": row["gbs"], "precision": "bf16"}
    train |= {"attention_kernel": "triton", "wgrad_buffers": "transient"}
    if "fp8" in row["precision"]:
        train |= {"precision": "fp8", "fp8_recipe": "delayed"}
    model = mpt(row["model"].removeprefix("MPT-"), row["seq_len"])
    step = step_of_rate(row, row["tokens_per_s_per_gpu"])
    return Reading(
        model, MPT_DEVICES[row["gpu"]], train, layout, step, ("flash attention written in Triton",)
    )


def titan(row: Row) -> Reading | Unread:
    """Read torchtitan's Llama 3.1 benchmarks: FSDP, float8 linear layers."""
    if "local_batch" not in row:
        return Unread("local batch and recompute are in the linked file only")
    name = row["model"].lower()
    shards = row["fsdp"]
    layout = {n: row[n] for n in ("tp", "pp", "cp")} | {
        "dp": shards,
        "zero": 3 if row["pp"] == 1 else 1,
        "recompute": row["recompute"],
    }
    layout["micro_batch"] = row["local_batch"] if row["pp"] == 1 else 1
    layout["tp_comm_overlap"] = "AsyncTP" in row["technique"]
    train = {
        "seq_len": row["seq_len"], "global_batch": row["gbs"], "precision": "fp8", "fp8_recipe": "tensorwise",
        "attention_kernel": "flash-2", "wgrad_buffers": "transient", "cross_entropy_fusion": "torch",
    }  # fmt: skip
    step = step_of_rate(row, row["tokens_per_s_per_gpu"])
    notes = ("micro-batch 1 under 1F1B", "under a pipeline FSDP keeps parameters gathered through the step")
    return Reading(load_model(name), "h100-96gb", train, layout, step, notes)


def megatron_lm(row: Row) -> Reading:
    """Megatron-LM's Llama 3 examples in fp8, with the flags of ``examples/llama/train_llama3_8b_h100_fp8.sh``."""
    name = {"LLAMA3-8B": "llama-3.1-8b", "LLAMA3-70B": "llama-3.1-70b"}[row["model"]]
    layout = degrees(row, zero=1)
    train = {
        "seq_len": row["seq_len"], "global_batch": row["gbs"], "precision": "fp8", "fp8_recipe": "delayed",
        "fp8_param_gather": True, "grad_dtype": "bf16", "cross_entropy_fusion": "native",
    }  # fmt: skip
    step = step_of_rate(row, row["tokens_per_s_per_gpu"])
    return Reading(load_model(name), "h100", train, layout, step, ("no recompute stated",))
