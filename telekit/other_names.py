"""Names that other programs have for what a job says, and what to write instead.

Megatron-LM's and Megatron Bridge's names, MindFormers', DeepSpeed's, torchtitan's, and the short ones of tables and
papers. A name leads to fields of a job's sections, or to a sentence where no field of its own says the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from telekit.units import either

_FIELDS: dict[str, str] = {
    "layout.tp": (
        "tensor_model_parallel_size tensor_parallel_size tensor_parallel_degree tensor_parallel "
        "tensor_parallelism tp_size tp_degree model_parallel_size model_parallel mp_size mp autotp_size"
    ),
    "layout.cp": (
        "context_parallel_size context_parallel_degree context_parallel context_parallelism cp_size cp_degree"
    ),
    "layout.pp": (
        "pipeline_model_parallel_size pipeline_parallel_size pipeline_parallel_degree pipeline_parallel "
        "pipeline_parallelism pipe_parallel_size pipeline_stage pipeline_stages num_stages pp_size "
        "pp_degree"
    ),
    "layout.vpp": (
        "virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank virtual_pipeline "
        "virtual_stages num_model_chunks pp_interleave_num vp_size vpp_size vp interleave"
    ),
    "layout.dp": (
        "data_parallel_size data_parallel data_parallelism data_parallel_replicate_degree dp_size "
        "dp_replicate"
    ),
    "layout.ep": (
        "expert_model_parallel_size expert_parallel_size expert_parallel_degree expert_parallel "
        "expert_parallelism moe_expert_parallel_size ep_size ep_degree"
    ),
    "layout.etp": (
        "expert_tensor_parallel_size expert_tensor_parallel_degree expert_tensor_parallel "
        "expert_model_parallel etp_size tp_extend_ep"
    ),
    "layout.zero": "zero_stage zero_optimization stage data_parallel_sharding_strategy optimizer_level",
    "layout.micro_batch": (
        "micro_batch_size microbatch_size micro_batchsize microbatch mbs local_batch_size "
        "train_micro_batch_size_per_gpu per_device_train_batch_size pipeline_parallel_microbatch_size"
    ),
    "layout.sequence_parallel": (
        "use_seq_parallel enable_sequence_parallel seq_parallel sequence_parallelism"
    ),
    "layout.recompute": (
        "recompute_granularity recompute_modules activation_checkpointing activation_checkpoint "
        "activation_checkpoint_mode gradient_checkpointing checkpoint_activations select_recompute "
        "ac_mode ac selective_ac_option"
    ),
    "layout.recompute_group": "recompute_num_layers checkpoint_num_layers",
    "layout.schedule": "pipeline_schedule pipeline_parallel_schedule pipeline_scheduler pp_schedule",
    "layout.dispatcher": (
        "moe_token_dispatcher_type moe_flex_dispatcher_backend token_dispatcher moe_dispatcher"
    ),
    "layout.cp_comm_type": "context_parallel_algo cp_algo context_parallel_comm_type",
    "layout.overlap_moe_comm": "overlap_moe_expert_parallel_comm moe_overlap overlap_a2a",
    "layout.activation_offload": "cpu_offloading fine_grained_activation_offloading offload_activations",
    "layout.optimizer_offload": (
        "optimizer_cpu_offload optimizer_offload_fraction offload_optimizer cpu_offload"
    ),
    "layout.moe_expert_capacity_factor": "expert_capacity_factor moe_capacity_factor capacity_factor",
    "layout.cuda_graphs": (
        "enable_cuda_graph cuda_graph_impl cuda_graph_scope cuda_graph external_cuda_graph"
    ),
    "layout.stages": "pipeline_model_parallel_layout pipeline_layout pp_layout offset layers_per_stage",
    "layout.expert_imbalance": "load_imbalance moe_imbalance",
    "layout.fused_experts": "use_transformer_engine_op_fuser",
    "layout.overlap_grad_reduce": "overlap_comm overlap_grad",
    "layout.overlap_param_gather": "overlap_param_gather_with_optimizer_step overlap_param",
    "layout.tp_comm_overlap": "tp_overlap async_tensor_parallel enable_async_tensor_parallel",
    "train.global_batch": "global_batch_size train_batch_size globalbatch gbs",
    "train.seq_len": (
        "seq_length sequence_length seqlen seqlength max_seq_len max_seq_length context_length "
        "encoder_seq_length max_position_embeddings"
    ),
    "train.precision": "dtype compute_dtype params_dtype mixed_precision mixed_precision_param fp8 fp4",
    "train.grad_dtype": (
        "main_grads_dtype grad_reduce_dtype mixed_precision_reduce accumulate_allreduce_grads_in_fp32 "
        "communication_data_type"
    ),
    "train.master_dtype": "main_params_dtype master_weights_dtype",
    "train.state_dtype": "exp_avg_dtype exp_avg_sq_dtype optimizer_state_dtype optimizer_dtype",
    "train.optimizer": "optim optimizer_type optimizer_name",
    "train.attention_kernel": (
        "attention_backend attn_backend attn_implementation use_flash_attn use_flash_attention"
    ),
    "train.mtp": "mtp_num_layers mtp_depth num_nextn_predict_layers",
    "train.cross_entropy_fusion": "cross_entropy_loss_fusion cross_entropy_fusion_impl",
    "train.activation_func_fp8_input_store": "",
    "train.expert_weights": "moe_grouped_gemm moe_use_legacy_grouped_gemm",
    "train.fp8_param_gather": "fp8_param fp8_model_params",
    "train.fp8_recipe": "fp8_scaling float8_recipe",
    "train.wgrad_buffers": "",
    "cluster.devices": (
        "gpus num_gpus n_gpus ngpus gpu_count gpu_num npus num_npus npu_num num_devices n_devices "
        "ndevices device_num device_count world_size cards num_cards chips num_chips accelerators ranks"
    ),
    "cluster.nodes": "nnodes num_nodes n_nodes node_count node_num num_hosts hosts machines servers",
    "cluster.device": (
        "gpu npu tpu gpu_type gpu_name device_type device_name accelerator accelerator_type chip hardware"
    ),
    "cluster.devices_per_node": (
        "gpus_per_node num_gpus_per_node npus_per_node nproc_per_node devices_per_host local_world_size "
        "cards_per_node"
    ),
    "cluster.tiers": "links network interconnect topology",
}
"""Other names of each field."""

_SENTENCES: dict[str, str] = {
    "write zero: 3 in layout, which splits parameters, gradients and optimizer states over the replicas": (
        "fsdp fsdp2 use_fsdp use_torch_fsdp2 use_megatron_fsdp fully_shard fully_sharded_data_parallel "
        "data_parallel_shard_degree dp_shard fsdp_parallelism"
    ),
    "write zero: 1 in layout, which splits the optimizer states over the replicas": (
        "use_distributed_optimizer distributed_optimizer enable_parallel_optimizer"
    ),
    "micro-batches follow: global_batch / (dp * micro_batch)": (
        "num_microbatches num_micro_batches micro_batches microbatches micro_batch_num micro_batch_count "
        "pipeline_parallel_microbatches gradient_accumulation_steps gradient_accumulation grad_accum "
        "accumulation_steps gas ga"
    ),
    "write vpp in layout, the chunks of a device: layers / (pp * layers of a chunk)": (
        "num_layers_per_virtual_pipeline_stage num_layers_per_virtual_stage layers_per_virtual_stage"
    ),
    "write micro_batch in layout (sequences of one micro-batch) and global_batch in train (of one step)": (
        "batch_size batchsize batch bs"
    ),
    "write cp in layout, and cp_comm_type: a2a": (
        "sequence_parallel_size ulysses_degree ulysses_size ulysses sp_size ds_sequence_parallel_size"
    ),
    "write precision: bf16 or precision: fp16 in train": "bf16 fp16 half bfloat16",
}
"""What to write where a name is no other name of one field."""

_SECTIONS = {
    "cluster": "hardware system machine machines",
    "train": "training trainer train_config training_config runner_config",
    "layout": "parallel parallelism parallel_config parallel_strategy strategy sharding",
    "model": "model_config architecture",
}
"""Other names of a job's sections."""


def _flat(names: Mapping[str, str]) -> dict[str, str]:
    return {name: wanted for wanted, others in names.items() for name in others.split()}


FIELD_OF = _flat(_FIELDS) | {path.partition(".")[2]: path for path in _FIELDS}
"""Field of a job (``layout.tp``) by each of its names, its own included."""

SENTENCE_OF = _flat(_SENTENCES)
"""What to write, by the names that are no field's."""

SECTION_OF = _flat(_SECTIONS)
"""Section of a job by each of its other names."""


def instead_of(name: str, known: Collection[str], section: str = "") -> str:
    """Say what to write instead of a field that there is not.

    Parameters
    ----------
    name : str
        What stands there.
    known : collection of str
        Fields that could.
    section : str
        Section of a job that these are (``layout``); empty for a record within one, which has no other names.

    Returns
    -------
    str
        Another name's field, a near field, or all of them.
    """
    plain = _plain(name)
    if section and (found := _meant(plain, section)):
        return found
    close = difflib.get_close_matches(plain, known, n=1, cutoff=0.8)
    if close := close or difflib.get_close_matches(plain, known, n=3, cutoff=0.6):
        return f"did you mean {either(close)}?"
    others = difflib.get_close_matches(plain, [*FIELD_OF, *SENTENCE_OF], n=1, cutoff=0.8) if section else []
    return _meant(others[0], section) if others else f"known: {', '.join(known)}"


def instead_of_section(name: str, known: Collection[str]) -> str:
    """Say what to write instead of a section that a job does not have: another name's, or where a field belongs."""
    plain = _plain(name)
    if plain in SECTION_OF:
        return f"here it is named {SECTION_OF[plain]}"
    if plain in FIELD_OF or plain in SENTENCE_OF:
        return _meant(plain, "")
    return instead_of(name, known)


def _plain(name: str) -> str:
    return name.strip().lower().lstrip("-").replace("-", "_").replace(" ", "_").replace(".", "_")


def _meant(plain: str, section: str) -> str:
    """Say what a name means: a sentence, or the field's own name and section; nothing for a name of no one's."""
    if plain in SENTENCE_OF:
        return SENTENCE_OF[plain]
    place, _, field = FIELD_OF.get(plain, "").partition(".")
    if not field or (place == section and field == plain):
        return ""
    if field == plain:
        return f"write it in {place}"
    return f"here it is named {field}" + ("" if place == section else f", in {place}")
