"""A job as command-line arguments of Megatron-LM.

Options and what their checks ask for were read in ``megatron/training/arguments.py`` at 000c4ac24f61 and
``megatron/core/transformer/transformer_config.py`` at 002526d81b81 of github:NVIDIA/Megatron-LM.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby
from math import gcd

from telekit.job import Job
from telekit.launch.parts import Part, header, modules, mtp_modules, parts
from telekit.launch.pipeline_layout import layout_string as layout_string
from telekit.layout.stages import V_SHAPED
from telekit.model.config import GroupedQueryAttention, ModelConfig, MultiHeadLatentAttention

Held = tuple[Part, ...]

LEFT_TO_YOU = (
    "yours to add, a job does not hold them: data, tokenizer, training length, learning rate, rotary "
    "embedding, router scores and balancing losses"
)
ONE_CHOICE = "Megatron-LM has one recompute choice for all stages"
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
        _shape(job), _attention(job.model), _biases(job.model), _experts(job), _degrees(job),
        _pipeline(job, held), _overlap(job, held), _recompute(job, held), _data_parallel(job), _batch(job),
        _precision(job),
    )  # fmt: skip
    lines = [line for section in sections for line in section]
    notes = [line[2:] for line in lines if line.startswith("# ")]
    flags = [line for line in lines if not line.startswith("# ")]
    return header(job, (*notes, LEFT_TO_YOU)) + "\n".join(flags) + "\n"


def _flag(name: str, *values: object) -> str:
    return shlex.join([f"--{name}", *map(str, values)])


def _note(text: str) -> str:
    return f"# {text}"


def _shape(job: Job) -> Iterator[str]:
    model, tp = job.model, job.layout.tp
    dense = {k.mlp.ffn_hidden_size for k in model.kinds if k.mlp.kind == "dense"}
    widest = max(dense) if dense else model.moe.expert_ffn_hidden_size if model.moe else 0
    yield _flag("num-layers", model.num_layers)
    yield _flag("hidden-size", model.hidden_size)
    yield _flag("ffn-hidden-size", widest)
    if len(dense) > 1:
        yield _note(f"feed-forward widths differ between layers ({sorted(dense)}); Megatron-LM takes one")
    gated = {kind.mlp.gated for kind in model.kinds}
    if True in gated:
        yield _flag("swiglu")
    if len(gated) > 1:
        yield _note("some feed-forward blocks are not gated; --swiglu gates them all")
    yield _flag("normalization", "LayerNorm" if model.norm_bias else "RMSNorm")
    if any(kind.norms != 2 for kind in model.kinds):
        yield _note("layers with other than two norms need a layer spec of your own (--spec)")
    yield _flag("position-embedding-type", "learned_absolute" if model.learned_positions else "rope")
    if not model.tied_embeddings:
        yield _flag("untie-embeddings-and-output-weights")
    yield _flag("vocab-size", model.vocab_size)
    unit = gcd(model.vocab_size // tp, 128) if model.vocab_size % tp == 0 else 1
    if unit != 128:
        yield _flag("make-vocab-size-divisible-by", unit)
    if model.vocab_size % tp:
        yield _note(f"the vocabulary is padded to a multiple of tp = {tp}")
    if mtp_modules(job):
        yield _flag("mtp-num-layers", mtp_modules(job))


def _attention(model: ModelConfig) -> Iterator[str]:
    attention = model.layers[-1].attention
    alike = {str(kind.attention.model_dump(exclude={"window"})) for kind in model.kinds}
    if len(alike) > 1:
        yield _note("attention differs between layers; Megatron-LM takes one: that of the last layer")
    yield _flag("num-attention-heads", attention.heads)
    if attention.kind == "mla":
        yield from _latent(attention)
    else:
        yield from _grouped(attention)
        yield from _window(model)


def _latent(attention: MultiHeadLatentAttention) -> Iterator[str]:
    yield _flag("multi-latent-attention")
    if attention.q_lora_rank:
        yield _flag("q-lora-rank", attention.q_lora_rank)
    yield _flag("kv-lora-rank", attention.kv_lora_rank)
    yield _flag("qk-head-dim", attention.qk_nope_head_dim)
    yield _flag("qk-pos-emb-head-dim", attention.qk_rope_head_dim)
    yield _flag("v-head-dim", attention.v_head_dim)
    yield _flag("qk-layernorm")


def _grouped(attention: GroupedQueryAttention) -> Iterator[str]:
    yield _flag("kv-channels", attention.head_dim)
    if attention.kv_heads != attention.heads:
        yield _flag("group-query-attention")
        yield _flag("num-query-groups", attention.kv_heads)
    if attention.qk_norm != "none":
        yield _flag("qk-layernorm")
    if attention.qk_norm == "full":
        yield _note("qk_norm full: --qk-layernorm normalises each head apart, not all heads together")
    if attention.sinks:
        yield _flag("softmax-type", "learnable")


def _window(model: ModelConfig) -> Iterator[str]:
    windows = {kind.attention.window for kind in model.kinds if kind.attention.window}
    if not windows:
        return
    if len(windows) > 1:
        yield _note(f"attention windows differ ({sorted(windows)}); Megatron-LM takes one: the widest")
    yield _flag("window-size", f"{max(windows) - 1},0")  # keys before the query, which itself is not counted
    windowed = [int(layer.attention.window is not None) for layer in model.layers]
    if not all(windowed):
        yield _flag("window-attn-skip-freq", _pattern(windowed))


def _biases(model: ModelConfig) -> Iterator[str]:
    found: set[tuple[str, bool]] = set()
    for kind in model.kinds:
        attention, mlp = kind.attention, kind.mlp
        found |= {
            ("qkv", getattr(attention, "qkv_bias", False)),
            ("output", getattr(attention, "output_bias", False)),
        }
        if mlp.kind == "dense":
            found |= {("first feed-forward", mlp.bias), ("last feed-forward", mlp.bias or mlp.down_bias)}
        else:
            found |= {("expert", mlp.expert_bias), ("router", mlp.router_bias)}
    there = {name for name, has in found if has}
    if there == {name for name, _ in found} and len(there) == len(found):
        return  # a bias everywhere is Megatron-LM's default
    yield _flag("disable-bias-linear")
    if "qkv" in there:
        yield _flag("add-qkv-bias")
    if there - {"qkv"}:
        lost = ", ".join(sorted(there - {"qkv"}))
        yield _note(f"Megatron-LM has biases everywhere or on q, k, v only; left out: the bias of {lost}")


def _experts(job: Job) -> Iterator[str]:
    moe, layout = job.model.moe, job.layout
    if moe is None:
        return
    yield _flag("num-experts", moe.num_experts)
    layers = [int(layer.mlp.kind == "moe") for layer in job.model.layers]
    if not all(layers):
        yield _flag("moe-layer-freq", _pattern(layers))
    yield _flag("moe-ffn-hidden-size", moe.expert_ffn_hidden_size)
    if moe.shared_ffn_hidden_size:
        yield _flag("moe-shared-expert-intermediate-size", moe.shared_ffn_hidden_size)
    yield _flag("moe-router-topk", moe.top_k)
    if moe.correction_bias:
        yield _flag("moe-router-enable-expert-bias")
        yield _flag("moe-router-score-function", "sigmoid")  # the bias is refused with softmax scores
    if job.train.precision in ("bf16", "fp8"):
        yield _flag("moe-grouped-gemm")
    else:
        yield _note("experts run one by one: Megatron-LM's grouped matrix products need bf16")
    if job.train.precision == "fp16" and layout.ep > 1:
        yield _note("Megatron-LM refuses ep > 1 in fp16: use bf16")
    yield _flag("expert-model-parallel-size", layout.ep)
    yield _flag("expert-tensor-parallel-size", layout.etp)
    yield _flag("moe-token-dispatcher-type", "flex" if layout.dispatcher == "deepep" else layout.dispatcher)
    if layout.dispatcher == "deepep":
        yield _flag("moe-enable-deepep")


def _pattern(values: list[int]) -> str:
    """Write a list as the shortest repeated Python list: ``([0]*3+[1]*58)`` or ``([1]+[0])*18``."""
    size = len(values)
    period = next(p for p in range(1, size + 1) if size % p == 0 and values == values[:p] * (size // p))
    runs = [(value, len(list(same))) for value, same in groupby(values[:period])]
    text = "+".join(f"[{value}]" + (f"*{n}" if n > 1 else "") for value, n in runs)
    return f"({text})" + (f"*{size // period}" if size > period else "")


def _degrees(job: Job) -> Iterator[str]:
    layout = job.layout
    yield _flag("tensor-model-parallel-size", layout.tp)
    if layout.tp > 1 and layout.sequence_parallel:
        yield _flag("sequence-parallel")
    yield _flag("context-parallel-size", layout.cp)
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


def _pipeline(job: Job, held: Held) -> Iterator[str]:
    layout = job.layout
    if layout.pp == 1:
        return
    uneven = len({part.layers for part in held}) > 1
    if uneven or mtp_modules(job):
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
        yield _flag("recompute-num-layers", 1 if everywhere else deepest)
        done = "all layers" if everywhere else f"the first {deepest} layers of each chunk"
        exact = all(part.choices[:deepest].count("full") == min(deepest, part.layers) for part in held)
        if not exact:
            yield _note(f"{ONE_CHOICE}: full in {done}, planned were {planned}; {SAFE}")
        if not everywhere and mtp_modules(job):
            yield _note("block recompute leaves MTP modules out: they keep their activations")
    elif "selective" in choices:
        yield _flag("recompute-granularity", "selective")
        yield _flag("recompute-modules", *modules(job))
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
    yield _flag("attention-dropout", 0.0)
    yield _flag("hidden-dropout", 0.0)


def _precision(job: Job) -> Iterator[str]:
    train = job.train
    yield _flag("optimizer", "adam")  # with decoupled weight decay, so AdamW
    if train.precision == "fp32":
        return
    yield _flag("fp16" if train.precision == "fp16" else "bf16")
    if train.precision == "fp8":
        yield _flag("fp8-format", "e4m3")
        yield _flag("fp8-recipe", "blockwise")
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
