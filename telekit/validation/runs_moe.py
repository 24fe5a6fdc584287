"""Published runs of expert models, and the tables that hold both kinds, read as jobs."""

from __future__ import annotations

from typing import Any

from telekit import catalog
from telekit.model.huggingface import load_model
from telekit.validation.readings import (
    Reading,
    Row,
    Unread,
    causal_flops,
    degrees,
    step_of_rate,
    step_of_tflops,
)
from telekit.validation.run_models import llama

PRECISIONS: dict[str, dict[str, str]] = {
    "BF16": {"precision": "bf16"},
    "MXFP8": {"precision": "fp8", "fp8_recipe": "mxfp8"},
    "FP8-MX": {"precision": "fp8", "fp8_recipe": "mxfp8"},
    "FP8": {"precision": "fp8", "fp8_recipe": "tensorwise"},
    "FP8-CS": {"precision": "fp8", "fp8_recipe": "tensorwise"},
    "FP8 (second value: other scaling recipe)": {"precision": "fp8", "fp8_recipe": "mxfp8"},
    "NVFP4": {"precision": "fp4"},
}
"""Recipes of NVIDIA's tables; plain FP8 is current scaling there, the value in parentheses MXFP8."""

MODELS = {
    "DeepSeekV3": "deepseek-v3",
    "DeepSeek-V3": "deepseek-v3",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "LLAMA3_8B": "llama-3.1-8b",
    "LLAMA3_70B": "llama-3.1-70b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b",
    "Mixtral-8x22B": "mixtral-8x22b",
}

OFFLOADED = {
    ("GB300", "BF16"): 30,
    ("GB300", "FP8"): 20,
    ("GB200", "BF16"): 20,
    ("GB200", "FP8"): 40,
    ("B200", "FP8"): 5,
}
"""Layers of 80 whose activations Llama 3 70B under FSDP keeps on the host, by device and precision."""

NVIDIA_TRAIN: dict[str, Any] = {"grad_dtype": "bf16", "cross_entropy_fusion": "te"}
"""What Megatron-Bridge's measured runs of every model say: gradients kept and summed in 16 bits, the loss fused
(``scripts/performance/configs/*/*_llm_pretrain.py`` and ``scripts/performance/utils/overrides.py``)."""

DEEPSEEK_PARTS = {8: "Et*8|(t*8|)*6t*5{m}L", 16: "Et*4|(t*4|)*14t{m}L", 32: "Et|(tt|)*30{m}L"}
"""Pipeline layouts of DeepSeek-V3 in Megatron-Bridge's recipes, by the number of parts."""


def bridge(row: Row) -> Reading | Unread:
    """Megatron-Bridge's performance tables.

    What a table leaves out is in ``scripts/performance/configs`` of the same repository, by release: recompute,
    dispatcher, CUDA graphs, overlap of expert traffic. Releases before 26.06 had other defaults than the file of
    today; where a release's own could not be read, it is taken like its neighbour's.
    """
    name, _, variant = row["model"].partition(" ")
    if name not in MODELS:
        return Unread("the model's fields are not published beside the table")
    if row["task"] == "LoRA":
        return Unread("adapters only: a job trains every parameter")
    release = tuple(int(part) for part in row["release"].split("."))
    train: dict[str, Any] = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | PRECISIONS[
        row["precision"]
    ]
    train |= NVIDIA_TRAIN | _bridge_stores(name, row)
    train["mtp"] = name == "DeepSeekV3" and variant != "(w/o MTP)"
    layout = degrees(row, zero=3 if row.get("fsdp") else 1, **_bridge_switches(name, row, release))
    notes = ["recompute, dispatcher, graphs and overlap from scripts/performance/configs"]
    if name == "DeepSeekV3":
        text = DEEPSEEK_PARTS.get(row["pp"] * (row.get("vp") or 1))
        if text:
            layout["stages"] = text.format(m="m" if train["mtp"] else "")
    if "ga" in row and row["gbs"] == row["ga"] * row["dp"] != row["mbs"] * row["ga"] * row["dp"]:
        layout["micro_batch"] = 1
        notes.append("micro-batch from the steps of accumulation, which its own column contradicts")
    if variant == "(tokendrop)":
        layout["moe_expert_capacity_factor"] = 1.0
    if row["task"] == "SFT":
        notes.append("fine-tuning of every parameter on packed sequences, taken as pre-training")
    step = step_of_rate(row, row["tokens_per_s_per_gpu"])
    return Reading(load_model(MODELS[name]), row["gpu"].lower(), train, layout, step, tuple(notes))


def _bridge_stores(name: str, row: Row) -> dict[str, Any]:
    """Say what is kept in which format: the recipes' weights and moments, and FSDP's gradients.

    ``src/megatron/bridge/training/mixed_precision.py`` and ``src/megatron/bridge/recipes``: fp8 weights stand in their
    16-bit ones' place with scales of a tensor or of 32 numbers, not in NVFP4; DeepSeek-V3's moments have 16 bits.
    Megatron-FSDP does not sum gradients in place.
    """
    stores: dict[str, Any] = {"fp8_param_gather": PRECISIONS[row["precision"]]["precision"] == "fp8"}
    if name == "DeepSeekV3":
        stores["state_dtype"] = "bf16"
    if row.get("fsdp"):
        stores["wgrad_buffers"] = "transient"
    return stores


def _bridge_switches(name: str, row: Row, release: tuple[int, ...]) -> dict[str, Any]:
    gpu, new = row["gpu"], release >= (26, 6)
    if name.startswith("LLAMA3"):
        graphs = "full" if name == "LLAMA3_8B" and gpu != "H100" else "none"
        layers = OFFLOADED.get((gpu, row["precision"].removesuffix("-CS")), 0)
        offload = layers / 80 if row.get("fsdp") and name == "LLAMA3_70B" else 0.0
        overlap = name == "LLAMA3_70B" and row["tp"] > 1
        return {"cuda_graphs": graphs, "activation_offload": offload, "tp_comm_overlap": overlap}
    switches: dict[str, Any] = {"dispatcher": "hybridep", "fused_experts": new and gpu != "H100"}
    graphs = "full" if new else "partial"
    if name == "DeepSeekV3":
        switches |= _deepseek_switches(gpu, row, release)
    elif name == "Qwen3_235B_a22B":
        wide = gpu in ("GB200", "GB300")
        switches["cuda_graphs"] = graphs if wide else "none"
        switches["dispatcher"] = "hybridep" if wide else "alltoall"
        chunked = bool(row.get("vp"))
        switches["overlap_moe_comm"] = gpu == "H100" or (chunked and (new if wide else gpu == "B300"))
    elif name == "Qwen3_30B_a3B":  # before 26.06 graphs held router and preprocessing, on B200 attention too
        recorded = "partial" if gpu == "B200" and row["mbs"] > 1 else "none"
        switches["cuda_graphs"] = "full" if new else recorded
    else:
        again = gpu == "B200" or (gpu == "B300" and row["precision"] == "NVFP4")
        switches["cuda_graphs"] = "none" if gpu == "B200" else "partial"
        switches["recompute"] = ["layernorm", "moe_act"] if again else "none"
        switches["fused_experts"] = False
    return switches


def _deepseek_switches(gpu: str, row: Row, release: tuple[int, ...]) -> dict[str, Any]:
    new, chunks = release >= (26, 6), row.get("vp") or 1
    recompute: Any = ["mla_up_proj"]
    if gpu == "GB300" and new:
        recompute = "none"
    elif gpu == "GB200" and (26, 2) <= release < (26, 6) and row["precision"] != "BF16":
        recompute = ["mlp"]
    elif gpu == "B200" and row["ep"] == 32:
        recompute = ["mla_up_proj", "mlp"]
    wide_b200 = gpu == "B200" and row["ep"] == 32
    graphs = "full" if new else ("partial" if gpu in ("GB200", "B300") or wide_b200 else "none")
    overlap = chunks > 1 and (new or wide_b200)
    return {
        "recompute": recompute,
        "cuda_graphs": graphs,
        "overlap_moe_comm": overlap,
        "dispatcher": "deepep" if wide_b200 else "hybridep",
    }


def mcore_moe(row: Row) -> Reading:
    """Megatron-Core's MoE report, tables 11 and 20."""
    name = MODELS[row["model"]]
    notes = row.get("notes", "")
    modules = notes.removeprefix("recompute ").split("+") if notes.startswith("recompute") else ["none"]
    train: dict[str, Any] = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | PRECISIONS[
        row["precision"]
    ]
    wide = row["gpu"] != "H100"
    layout = degrees(
        row, zero=1, dispatcher="hybridep" if wide else "deepep", cuda_graphs="partial" if wide else "none",
        overlap_moe_comm=not wide,
        recompute="none" if modules == ["none"] else modules,
    )  # fmt: skip
    parts = DEEPSEEK_PARTS.get(row["pp"] * row["vp"])
    if name == "deepseek-v3" and parts:
        layout["stages"] = parts.format(m="m")
    train |= NVIDIA_TRAIN | _bridge_stores("DeepSeekV3" if name == "deepseek-v3" else name, row)
    step = step_of_rate(row, row["tokens_per_s_per_gpu"])
    notes = ("recompute as the report says", "formats of gradients and weights as in Megatron-Bridge")
    return Reading(load_model(name), row["gpu"].lower(), train, layout, step, notes)


def model_zoo(row: Row) -> Reading:
    """NVIDIA's MoE model zoo: Qwen3-235B on H100 and GB200."""
    model = load_model(MODELS[row["model"]])
    modules: dict[str, Any] = {"norm, act": ["layernorm", "moe_act"], "full": "full"}
    said = row.get("notes", "")
    layout = degrees(
        row,
        zero=3 if said == "FSDP" else 1,
        recompute=modules.get(row.get("recompute", ""), "none"),
        dispatcher={"A2A": "alltoall", "DeepEP": "deepep", "HybridEP": "hybridep"}[row["dispatcher"]],
        overlap_moe_comm="a2a overlap" in said,
        cuda_graphs="none" if row["gpu"] == "H100" else "partial",
    )
    train: dict[str, Any] = {"seq_len": row["seq_len"], "global_batch": row["gbs"]} | PRECISIONS[
        row["precision"]
    ]
    train |= NVIDIA_TRAIN | _bridge_stores("", row)
    taken = "formats of gradients and weights as in Megatron-Bridge"
    if "step_time_s" in row:
        return Reading(model, row["gpu"].lower(), train, layout, row["step_time_s"], (taken,))
    step = step_of_tflops(row, causal_flops(model, row["seq_len"]), row["model_tflops_per_gpu"])
    return Reading(model, row["gpu"].lower(), train, layout, step, ("step from causal TFLOP/s", taken))


def deepseek_v3(row: Row) -> Reading:
    """DeepSeek-V3 on 2,048 H800 (arXiv 2505.09343 table 4)."""
    job = catalog.load(catalog.root() / "jobs" / "deepseek-v3-h800-2048.json")["job"]
    return Reading(load_model("deepseek-v3"), "h800", job["train"], job["layout"], row["step_time_s"])


def megascale_moe(row: Row) -> Reading:
    """Megatron-LM's rows of MegaScale-MoE's table (352B on H800)."""
    model = llama(
        *(row[n] for n in ("hidden", "heads", "kv_heads", "layers", "ffn", "vocab", "experts", "topk"))
    )
    layout = degrees(row, zero=1, etp=1, recompute="none")
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"], "precision": "bf16"}
    notes = ("tp unverified", "micro-batch 1, one chunk a stage, no recompute: not stated")
    return Reading(model, "h800", train, layout, row["step_time_s_derived"], notes)


def folding(row: Row) -> Reading | Unread:
    """MoE parallel folding, table 3: the best mapping of each method."""
    if row.get("oom"):
        return Unread("out of memory: no time")
    if "pp" not in row:
        return Unread("the mapping is not stated")
    if row["model"] == "Mixtral-8x22B":
        model = load_model("mixtral-8x22b")
    else:
        model = llama(8192, 64, 8, 80, 28672, 128256, 8, 2)
    if row["method"].startswith("FSDP"):
        return Unread("the micro-batch, which decides how often FSDP gathers, is not stated")
    chunks = model.num_layers // row["pp"] if row["pp"] > 1 else 1
    layout = degrees(row | {"vp": chunks}, zero=1, moe_expert_capacity_factor=1.0)
    layout["etp"] = row.get("etp") or row["tp"]
    flops = causal_flops(model, row["seq_len"])
    step = step_of_tflops(row, flops, row["mfu_pct"] / 100 * 989.5)
    train = {"seq_len": row["seq_len"], "global_batch": row["gbs"], "precision": "bf16"}
    notes = (
        "micro-batch 1: not stated",
        "chunks of one layer: not stated, chosen from the measured value, since whole stages would idle for more "
        "than the published MFU leaves",
        "experts over tp too, unless etp is stated",
    )
    return Reading(model, "h100", train, layout, step, notes)


def telechat(row: Row) -> Reading | Unread:
    """TeleChat's published speeds: rows of MindFormers that state a layout."""
    if row["id"].startswith("telechat3"):
        return Unread("neither layout nor sequence length is stated")
    name = row["model"].lower()
    layout = degrees(row, dp=row["dp"], recompute="full", zero=1)
    batch = row["dp"] * row["micro_batch_num"] * row["mbs"]
    train = {"seq_len": row["seq_len"], "global_batch": batch, "precision": "bf16"}
    train |= {"wgrad_buffers": "transient", "expert_weights": "grouped"}  # as in MindFormers' dry runs
    step = step_of_rate(row | {"gbs": batch}, row["tokens_per_s_per_gpu"])
    notes: tuple[str, ...] = ("fine-tuning",)
    if not row["recompute"].startswith("full on"):
        return Reading(load_model(name), "ascend-910b", train, layout, step, notes)
    layout["recompute"] = "none"
    notes += ("recompute of three layers of stage 0 left out",)
    return Reading(load_model(name), "ascend-910b", train, layout, step, notes)


def misc(row: Row) -> Unread:
    """Rows that no job can say."""
    return Unread("no layout or batch is stated")
