"""A job as command-line arguments of Megatron-LM.

Options and what their checks ask for were read in ``megatron/training/arguments.py`` at 000c4ac24f61 and
``megatron/core/transformer/transformer_config.py`` at 002526d81b81 of github:NVIDIA/Megatron-LM; those of newer kinds
of layers where :mod:`telekit.launch.megatron_model` says; what context ranks may share, in
``transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py`` at 015d22571b33 of
github:NVIDIA/TransformerEngine.
"""

from __future__ import annotations

from collections.abc import Iterator

from telekit.job import Job
from telekit.launch.megatron_kernels import format_lines, kernel_lines
from telekit.launch.megatron_memory import memory_lines
from telekit.launch.megatron_model import flag as _flag
from telekit.launch.megatron_model import hybrid_pattern, model_lines
from telekit.launch.megatron_model import note as _note
from telekit.launch.parts import Part, header, modules, mtp_modules, parts
from telekit.launch.pipeline_layout import layout_string as layout_string
from telekit.layout.stages import V_SHAPED
from telekit.model.attention import Attention

Held = tuple[Part, ...]

LEFT_TO_YOU = (
    "yours to add, a job does not hold them: data, tokenizer, training length, learning rate, rotary "
    "embedding, activation of ungated blocks, router scores and balancing losses"
)
ONE_CHOICE = "Megatron-LM has one recompute choice for all stages"
ENGINE = "between context ranks, TransformerEngine"
NEWER = "newer releases may take more"
SAFE = "it fits where the layout fits, and is slower"


def arguments(job: Job) -> str:
    """Write a job as Megatron-LM arguments, one a line, quoted for a shell.

    Comment lines at the top say what Megatron-LM cannot express and what stands instead. The text goes into a
    shell array as it is: ``ARGS=(`` text ``)``.

    Raises
    ------
    InputError
        Every rule the layout breaks.
    """
    held = parts(job)
    sections = (
        model_lines(job), _degrees(job), _pipeline(job, held), _overlap(job, held), _recompute(job, held),
        _data_parallel(job), _batch(job), kernel_lines(job), _precision(job), memory_lines(job),
    )  # fmt: skip
    lines = [line for section in sections for line in section]
    notes = [line[2:] for line in lines if line.startswith("# ")]
    flags = [line for line in lines if not line.startswith("# ")]
    return header(job, (*notes, LEFT_TO_YOU)) + "\n".join(flags) + "\n"


def _degrees(job: Job) -> Iterator[str]:
    layout = job.layout
    yield _flag("tensor-model-parallel-size", layout.tp)
    if layout.tp > 1 and layout.sequence_parallel:
        yield _flag("sequence-parallel")
    elif layout.tp > 1 and job.model.moe is not None:
        yield _note("Megatron-LM refuses experts under tensor parallelism without sequence parallelism")
    if layout.tp_comm_overlap:
        yield _flag("tp-comm-overlap")
    yield _flag("context-parallel-size", layout.cp)
    if layout.cp > 1 and layout.cp_comm_type != "p2p":  # its own default
        yield _flag("cp-comm-type", layout.cp_comm_type)
    yield from _context_notes(job)
    yield _flag("pipeline-model-parallel-size", layout.pp)
    name = job.cluster.device.name
    if name.startswith(("ascend", "tpu")):
        yield _note(
            f"Megatron-LM itself runs on NVIDIA GPUs; on {name} these are for a port of it, as MindSpeed is"
        )
    elif (layout.tp > 1 or layout.cp > 1) and layout.zero < 2:
        yield _note(
            "before Blackwell, tp or cp above 1 needs CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment"
        )


def _context_notes(job: Job) -> Iterator[str]:
    """Say what TransformerEngine refuses between context ranks."""
    exchange = job.layout.cp_comm_type
    if job.layout.cp == 1:
        return
    attentions = [kind.attention for kind in job.model.kinds]
    if exchange == "p2p" and any(spec.window for spec in attentions):
        yield _note(f"{ENGINE} takes attention windows with cp_comm_type a2a only; {NEWER}")
    unlike = [(key, value) for key, value in map(_key_and_value, attentions) if key != value]
    if exchange == "a2a" and unlike:
        yield _note(
            f"{ENGINE} takes keys and values of different widths ({unlike[0][0]} and {unlike[0][1]} here) with "
            f"cp_comm_type p2p only; {NEWER}"
        )


def _key_and_value(attention: Attention) -> tuple[int, int]:
    """Widths of one head's key and value, where softmax attention has them."""
    if attention.kind == "mla":
        return attention.qk_head_dim, attention.v_head_dim
    return (attention.head_dim, attention.value_dim) if attention.kind == "gqa" else (0, 0)


def _pipeline(job: Job, held: Held) -> Iterator[str]:
    layout = job.layout
    if layout.pp == 1:
        return
    uneven = len({part.layers for part in held}) > 1
    hybrid = hybrid_pattern(job.model) is not None
    if uneven and hybrid:
        yield _note("Megatron-LM spreads a hybrid model's layers evenly: the planned stages are not kept")
    if (uneven or mtp_modules(job)) and not hybrid:
        yield _flag("pipeline-model-parallel-layout", layout_string(job))
    elif layout.vpp > 1:
        yield _flag("num-virtual-stages-per-pipeline-rank", layout.vpp)
    runs = "1f1b" if layout.vpp == 1 else "interleaved-1f1b"
    if layout.schedule != runs:
        yield _note(
            f"schedule {layout.schedule} is not in Megatron-LM; this runs {runs}: its bubble and its "
            "activations in flight, not those of the estimate"
        )
    if layout.schedule in V_SHAPED:
        yield _note(
            "a V placement is not in Megatron-LM: the second chunk of stage s holds part pp + s, not "
            "2 * pp - 1 - s, and the output head stands on the last stage; the memory of each stage differs"
        )
    if layout.schedule == "dualpipe":
        yield _note("DualPipe's second copy of the model is not made: stage s holds its own layers only")
    if layout.vpp > 1 and job.micro_batches % layout.pp:
        yield _note(f"{job.micro_batches} micro-batches are not whole groups of pp, as {runs} wants them")


def _overlap(job: Job, held: Held) -> Iterator[str]:
    layout = job.layout
    if job.model.moe is None or not (layout.overlap_moe_comm or layout.schedule.startswith("dualpipe")):
        return
    choices = {choice for part in held for choice in part.choices}
    against = [
        reason
        for reason, holds in (
            ("ep is 1", layout.ep == 1),
            ("a hybrid model", hybrid_pattern(job.model) is not None),
            ("pp > 1 without virtual stages", layout.pp > 1 and layout.vpp == 1),
            ("the allgather dispatcher", layout.dispatcher == "allgather"),
            ("full recompute", "full" in choices),
            ("recompute of moe", "selective" in choices and "moe" in modules(job)),
            ("more than one MTP module", mtp_modules(job) > 1),
            ("fp32", job.train.precision == "fp32"),
        )
        if holds
    ]
    if against:
        yield _note(
            f"expert traffic is not hidden: --overlap-moe-expert-parallel-comm excludes {', '.join(against)}"
        )
    else:
        yield _flag("overlap-moe-expert-parallel-comm")


def _recompute(job: Job, held: Held) -> Iterator[str]:
    choices = [choice for part in held for choice in part.choices]
    planned = (
        f"{choices.count('full')} full and {choices.count('selective')} selective of {len(choices)} layers"
    )
    if "full" in choices:
        deepest = max(part.covering("full", "selective") for part in held)
        everywhere = all(part.layers <= deepest for part in held)
        yield _flag("recompute-granularity", "full")
        yield _flag("recompute-method", "uniform" if everywhere else "block")
        yield _flag("recompute-num-layers", job.layout.recompute_group if everywhere else deepest)
        done = "all layers" if everywhere else f"the first {deepest} layers of each chunk"
        exact = all(part.choices[:deepest].count("full") == min(deepest, part.layers) for part in held)
        if not exact:
            yield _note(f"{ONE_CHOICE}: full in {done}, planned were {planned}; {SAFE}")
        if not everywhere and mtp_modules(job):
            yield _note("block recompute leaves MTP modules out: they keep their activations")
    elif "selective" in choices:
        if hybrid_pattern(job.model):
            yield _note("Mamba layers recompute nothing selectively")
        named = [module for module in modules(job) if module != "mlp_act"]
        if len(named) < len(modules(job)):
            yield _note("a dense MLP's activation is no module of its own in Megatron-LM: its output is kept")
        if named:
            yield _flag("recompute-granularity", "selective")
            yield _flag("recompute-modules", *named)
        if "none" in choices:
            yield _note(f"{ONE_CHOICE}: selective in all layers, planned were {planned}; {SAFE}")


def _data_parallel(job: Job) -> Iterator[str]:
    layout = job.layout
    if layout.zero == 1:
        yield _flag("use-distributed-optimizer")
    if layout.zero > 1:
        yield _flag("use-megatron-fsdp")
        split = "optim_grads" if layout.zero == 2 else "optim_grads_params"
        yield _flag("data-parallel-sharding-strategy", split)
        yield _flag("ckpt-format", "fsdp_dtensor")
        yield _note("Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment")
    if layout.overlap_grad_reduce:
        yield _flag("overlap-grad-reduce")
    if layout.overlap_param_gather and layout.zero:
        if layout.overlap_grad_reduce:
            yield _flag("overlap-param-gather")
        else:
            yield _note("parameters are gathered in the open: hiding it needs overlap_grad_reduce too")


def _batch(job: Job) -> Iterator[str]:
    train, positions = job.train, job.model.learned_positions
    yield _flag("seq-length", train.seq_len)
    yield _flag("max-position-embeddings", positions or train.seq_len)
    if 0 < positions < train.seq_len:
        yield _note(f"the model has {positions} learned positions: Megatron-LM refuses a longer sequence")
    yield _flag("micro-batch-size", job.layout.micro_batch)
    yield _flag("global-batch-size", train.global_batch)


def _precision(job: Job) -> Iterator[str]:
    train = job.train
    yield _flag("optimizer", "adam")  # with decoupled weight decay, so AdamW
    if train.precision == "fp32":
        return
    yield from format_lines(job)
    yield _flag("accumulate-allreduce-grads-in-fp32" if train.grad_dtype == "fp32" else "grad-reduce-in-bf16")
    if train.master_dtype == "bf16":
        yield _note("master parameters stay in fp32: Megatron-LM has fp32 and fp16 for them")
    if train.state_dtype == "bf16" and job.layout.zero == 1:
        yield _flag("use-precision-aware-optimizer")
        yield _flag("main-grads-dtype", train.grad_dtype)
        yield _flag("exp-avg-dtype", "bf16")
        yield _flag("exp-avg-sq-dtype", "bf16")
    elif train.state_dtype == "bf16":
        yield _note("moments stay in fp32: lower formats need the distributed optimizer (zero 1)")
