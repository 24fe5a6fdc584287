"""A job as a YAML configuration of MindFormers.

Fields were read in ``configs/telechat3/pretrain_telechat3_105b_a4b_4k.yaml`` (f87626a9b9da) of
github:mindspore-lab/mindformers and ``docs/mindformers/docs/source_en/feature/configuration.md``
(046e44e74a24) of github:mindspore-ai/docs; how offset and recompute lists are read, in ``LayerSetting`` of
``mindformers/parallel_core/training_graph/transformer/utils.py`` (0b3a3b557636); what its expert layers refuse, in
``moe/moe_layer.py`` beside it (099486867e49).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from telekit.job import Job
from telekit.launch.mindformers_model import attention_section, leading_dense, linear_biases, model_notes
from telekit.launch.parts import Part, header, modules, mtp_modules, parts
from telekit.layout.config import Module
from telekit.training.config import DROPOUT, LOW

Held = tuple[Part, ...]
Section = dict[str, Any]

SCHEDULERS = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved-1f1b": "1f1b",
    "seqsmartvpp": "seqsmartvpp",
    "zb-v": "zero_bubble_v",
    "dualpipe-v": "zero_bubble_v",
}
"""MindSpore's name for a schedule; it calls ZeroBubbleV also DualPipeV."""

CELLS: dict[Module, str] = {
    "core_attn": r"self_attention\.core_attention",
    "layernorm": r"(input_layernorm|pre_mlp_layernorm)",
    "mla_up_proj": r"self_attention\.(linear_q_up_proj|linear_kv_up_proj)",
    "mlp": r"mlp\.(linear_fc1|activation_func|mul|linear_fc2)",
    "mlp_act": r"mlp\.(activation_func|mul)",
    "moe": r"mlp\.(router|experts|shared_experts)",
    "moe_act": r"mlp\.experts",
    "shared_experts": r"mlp\.shared_experts",
}
"""Cells and operators of a MindFormers layer by Megatron-Core's name of the module, as patterns of
``select_recompute``. The routed experts are one operator there, so their activation alone cannot be named."""

LEFT_TO_YOU = (
    "yours to add, a job does not hold them: model_type and architectures, data, learning rate, callbacks, "
    "context, rotary embedding, router scores and balancing losses"
)
SAFE = "it fits where the layout fits, and is slower"


def config(job: Job) -> str:
    """Write a job as MindFormers YAML: parallel layout, recompute, batch, model shape.

    Comment lines at the top say what MindFormers cannot express and what stands instead.

    Raises
    ------
    InputError
        Every rule the layout breaks.
    """
    held = parts(job)
    sections: Section = {
        "use_parallel": True,
        "use_legacy": False,
        "run_mode": "train",
        "runner_config": _runner(job),
        "optimizer": {"type": "AdamW"},
        "parallel_config": _degrees(job),
        "parallel": _parallel(job),
        "recompute_config": _recompute(job, held),
        "model": {"model_config": _model(job, held)},
    }
    notes = (*_notes(job), *_recompute_notes(job, held), *model_notes(job.model), LEFT_TO_YOU)
    return header(job, notes) + _yaml(sections)


def _yaml(sections: Section) -> str:
    """One field a line, lists in one line, nothing written as a reference to another place."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_row(self, data: list[Any]) -> yaml.Node:
            return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(list, Dumper.represent_row)
    return str(yaml.dump(sections, Dumper=Dumper, sort_keys=False, width=110))


def _runner(job: Job) -> Section:
    steps = {"gradient_accumulation_steps": job.micro_batches} if job.layout.pp == 1 else {}
    return {"batch_size": job.layout.micro_batch} | steps


def _degrees(job: Job) -> Section:
    layout = job.layout
    algorithm = "ulysses_cp" if layout.cp_comm_type == "a2a" else "colossalai_cp"
    cp = {"context_parallel": layout.cp, "context_parallel_algo": algorithm} if layout.cp > 1 else {}
    return {
        "data_parallel": layout.dp,
        "model_parallel": layout.tp,
        **cp,
        "pipeline_stage": layout.pp,
        "expert_parallel": layout.ep,
        "micro_batch_num": job.micro_batches if layout.pp > 1 else 1,
        "use_seq_parallel": layout.sequence_parallel and layout.tp > 1,
        "vocab_emb_dp": False,
    }


def _parallel(job: Job) -> Section:
    layout = job.layout
    section: Section = {
        "parallel_mode": 1,
        "gradients_mean": False,
        "enable_alltoall": job.model.moe is not None or (layout.cp > 1 and layout.cp_comm_type == "a2a"),
        "full_batch": False,
        "dataset_strategy": [[layout.dp, 1] for _ in range(4)],
        "enable_parallel_optimizer": layout.zero > 0,
    }
    if layout.zero:
        section["parallel_optimizer_config"] = {
            "gradient_accumulation_shard": layout.zero > 1,
            "parallel_optimizer_threshold": 64,
        }
    if layout.pp > 1:
        scheduler = _scheduler(job)
        section["pipeline_config"] = {
            "pipeline_interleave": layout.vpp > 1 or scheduler == "seqsmartvpp",
            "pipeline_scheduler": scheduler,
        }
    return section


def _scheduler(job: Job) -> str:
    return SCHEDULERS.get(job.layout.schedule, "1f1b")


def _grid(job: Job, cells: dict[tuple[int, int], int]) -> list[Any]:
    """Write numbers by (chunk, stage) as MindFormers reads them: one list a chunk, or a flat one."""
    layout = job.layout
    rows = [[cells[chunk, stage] for stage in range(layout.pp)] for chunk in range(layout.vpp)]
    return rows if layout.vpp > 1 else rows[0]


def _offset(job: Job, held: Held) -> int | list[Any]:
    even = job.model.num_layers // len(held)
    if all(part.layers == even for part in held):
        return 0
    return _grid(job, {(part.chunk, part.stage): part.layers - even for part in held})


def _layers(job: Job, held: Held, *wanted: str) -> bool | list[Any]:
    """Layers from each chunk's first that are recomputed; True and False where all or none are."""
    depth = {(part.chunk, part.stage): part.covering(*wanted) for part in held}
    if not any(depth.values()):
        return False
    if all(depth[part.chunk, part.stage] == part.layers for part in held):
        return True
    return _grid(job, depth)


def _recompute(job: Job, held: Held) -> Section:
    full = _layers(job, held, "full")
    selective = any("selective" in part.choices for part in held)
    chosen = _layers(job, held, "full", "selective")
    return {
        "recompute": full,
        "select_recompute": {CELLS[name]: chosen for name in modules(job)} if selective else False,
        "parallel_optimizer_comm_recompute": job.layout.zero == 3,
        "mp_comm_recompute": bool(full),
    }


def _recompute_notes(job: Job, held: Held) -> Iterator[str]:
    order = {"full": 0, "selective": 1, "none": 2}
    if any(list(part.choices) != sorted(part.choices, key=order.__getitem__) for part in held):
        yield (
            "recomputed layers come first in a chunk, full before selective; another order is covered by "
            f"recomputing more layers: {SAFE}"
        )
    if any("selective" in part.choices for part in held) and "moe_act" in modules(job):
        yield (
            "moe_act: the routed experts are one operator in MindFormers; all of it is recomputed, with the "
            f"exchange of tokens: {SAFE}"
        )


def _notes(job: Job) -> Iterator[str]:
    layout, train = job.layout, job.train
    if not job.cluster.device.name.startswith("ascend"):
        yield f"MindFormers runs on Ascend only, not on {job.cluster.device.name}"
    yield from _schedule_notes(job)
    if job.model.moe is not None:
        yield from _expert_notes(job)
    if layout.zero in (1, 2):
        yield (
            "enable_parallel_optimizer splits the parameters too, and gathers them for use: its memory is "
            f"not exactly that of zero {layout.zero}"
        )
    if layout.overlap_grad_reduce or layout.overlap_param_gather:
        yield "overlap of data-parallel traffic is left to the graph compiler and its parallel_speed_up file"
    if layout.tp_comm_overlap:
        yield "tp_comm_overlap is Megatron-Core's: it is left to the graph compiler and its parallel_speed_up file"
    if train.precision in LOW:
        yield f"{train.precision} is not in these files: products run in bfloat16"
    yield from _left_out(job)
    if "bf16" in (train.grad_dtype, train.state_dtype):
        yield "gradients and moments follow params_dtype; a format of their own is not in these files"
    yield "dataset_strategy is for the columns input_ids, labels, loss_mask, position_ids"


def _left_out(job: Job) -> Iterator[str]:
    """Name what a job says that these files do not, each with what runs instead."""
    layout, train = job.layout, job.train
    said = (
        (train.optimizer != "adamw", f"the optimizer {train.optimizer}: AdamW stands, with more memory"),
        (layout.recompute_group > 1, "recomputing several layers as one: each layer keeps its input"),
        (
            layout.activation_offload or layout.optimizer_offload,
            "offload to the host: all stays on the device",
        ),
        (layout.moe_expert_capacity_factor, "a capacity of the experts: no token is dropped or padded"),
        (layout.cuda_graphs != "none", "CUDA graphs: the compiled graph of the framework runs"),
        (layout.fused_experts, "fused experts: grouped products run one after the other"),
    )
    yield from (f"not set here is {text}" for holds, text in said if holds)


def _schedule_notes(job: Job) -> Iterator[str]:
    layout, m = job.layout, job.micro_batches
    if layout.pp == 1:
        return
    runs = _scheduler(job)
    if layout.schedule not in SCHEDULERS:
        yield (
            f"schedule {layout.schedule} is not in MindSpore; this runs {runs}: its bubble and its "
            "activations in flight, not those of the estimate"
        )
    if layout.schedule == "dualpipe":
        yield "DualPipe's second copy of the model is not made: stage s holds its own layers only"
    if layout.schedule == "dualpipe-v":
        yield "zero_bubble_v is MindSpore's schedule of this placement; hiding its traffic is not set here"
    if m < layout.pp:
        yield f"{m} micro-batches: MindSpore wants at least {layout.pp} for {runs} on {layout.pp} stages"


def _expert_notes(job: Job) -> Iterator[str]:
    layout, per_node = job.layout, job.cluster.devices_per_node
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "MindFormers refuses experts under tensor parallelism without use_seq_parallel, whatever etp is"
    if layout.etp > 1:
        yield (
            f"etp {layout.etp}: MindFormers does not split one expert's matrices; with expert_parallel "
            f"{layout.ep} a device computes whole experts, gathered from what the parallel optimizer splits"
        )
    if layout.dispatcher == "allgather":
        yield "the allgather dispatcher is not in MindFormers: alltoall stands instead"
    if layout.dispatcher == "alltoall_deredundency" and _dispatcher(job) == "alltoall":
        yield f"alltoall_deredundency wants ep of at least {per_node}: alltoall stands instead"
    name = {"deepep": "DeepEP", "hybridep": "HybridEP"}.get(layout.dispatcher)
    if name and _dispatcher(job) == "alltoall":
        yield f"{name} is not in MindFormers, nor its like for ep below {per_node}: alltoall stands instead"
    elif name:
        yield f"{name} is not in MindFormers: alltoall_deredundency stands instead"
    if layout.overlap_moe_comm:
        yield "hiding expert traffic is not set here (pp_1f1b_overlap of the parallel_speed_up file)"


def _dispatcher(job: Job) -> str:
    once_a_node = job.layout.dispatcher in ("deepep", "hybridep", "alltoall_deredundency")
    once_a_node = once_a_node and job.layout.ep >= job.cluster.devices_per_node
    return "alltoall_deredundency" if once_a_node else "alltoall"


def _model(job: Job, held: Held) -> Section:
    model, train = job.model, job.train
    dense = [k.mlp.ffn_hidden_size for k in model.kinds if k.mlp.kind == "dense"]
    gated = any(kind.mlp.gated for kind in model.kinds if kind.mlp.kind != "none")
    dropout = DROPOUT if train.attention_kernel == "unfused" else 0.0
    widest = max(dense) if dense else model.moe.expert_ffn_hidden_size if model.moe else 0
    return {
        "vocab_size": model.vocab_size,
        "seq_length": train.seq_len,
        "hidden_size": model.hidden_size,
        "intermediate_size": widest,
        "num_hidden_layers": model.num_layers,
        "max_position_embeddings": model.learned_positions or train.seq_len,
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "normalization": "LayerNorm" if model.norm_bias else "RMSNorm",
        "hidden_act": "swiglu" if gated else "gelu",
        "gated_linear_unit": gated,
        "add_bias_linear": linear_biases(model) == {True},
        "tie_word_embeddings": model.tied_embeddings,
        "use_flash_attention": train.attention_kernel != "unfused",
        "attention_dropout": dropout,
        "hidden_dropout": dropout,
        **attention_section(model),
        **_experts(job),
        **({"num_nextn_predict_layers": mtp_modules(job)} if mtp_modules(job) else {}),
        "offset": _offset(job, held),
        "pp_interleave_num": job.layout.vpp,
        "params_dtype": "bfloat16" if train.master_dtype == "bf16" else "float32",
        "compute_dtype": {"fp32": "float32", "fp16": "float16"}.get(train.precision, "bfloat16"),
    }


def _experts(job: Job) -> Section:
    moe = job.model.moe
    if moe is None:
        return {}
    shared = moe.shared_ffn_hidden_size
    section: Section = {
        "moe_intermediate_size": moe.expert_ffn_hidden_size,
        "first_k_dense_replace": leading_dense(job.model),
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "n_shared_experts": -(-shared // moe.expert_ffn_hidden_size),
    }
    if shared:
        section["moe_shared_expert_intermediate_size"] = shared
    if moe.correction_bias:
        section |= {"moe_router_enable_expert_bias": True, "scoring_func": "sigmoid"}
    return section | {
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": _dispatcher(job),
        "npu_nums_per_device": job.cluster.devices_per_node,
    }
