"""The model's part of Megatron-LM's arguments, and in notes what no argument says.

Options of linear and sparse attention, of hybrid patterns and of latent experts were read at 00caa53af309 of
github:NVIDIA/Megatron-LM: ``megatron/core/transformer/transformer_config.py``, whose fields are arguments,
``megatron/training/arguments.py``, and ``megatron/core/ssm/mamba_hybrid_layer_allocation.py``; what its flex dispatcher
asserts, in ``megatron/core/transformer/moe/token_dispatcher.py``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import groupby
from math import gcd

from telekit.job import Job
from telekit.launch.parts import attention_of, mtp_modules, unlike_attention
from telekit.layout.config import ParallelConfig
from telekit.model.attention import GatedDeltaNet, Mamba2
from telekit.model.config import GroupedQueryAttention, LayerKind, ModelConfig, MultiHeadLatentAttention

MAMBA_KERNEL = 4
"""Width of Mamba's convolution, which no argument changes."""


def flag(name: str, *values: object) -> str:
    """One argument, quoted for a shell."""
    return shlex.join([f"--{name}", *map(str, values)])


def note(text: str) -> str:
    """Say what no argument says."""
    return f"# {text}"


def model_lines(job: Job) -> Iterator[str]:
    """Arguments and notes of the model, and of how its experts are split."""
    yield from _shape(job)
    yield from _attention(job.model)
    yield from _variant(job)
    yield from _biases(job.model)
    yield from _experts(job)
    yield from (note(text) for holds, text in _unknown(job.model) if holds)


def _shape(job: Job) -> Iterator[str]:
    model, tp = job.model, job.layout.tp
    dense = {k.mlp.ffn_hidden_size for k in model.kinds if k.mlp.kind == "dense"}
    widest = max(dense) if dense else model.moe.expert_ffn_hidden_size if model.moe else 0
    yield flag("num-layers", model.num_layers)
    yield flag("hidden-size", model.hidden_size)
    if widest:
        yield flag("ffn-hidden-size", widest)
    if len(dense) > 1:
        yield note(f"feed-forward widths differ between layers ({sorted(dense)}); Megatron-LM takes one")
    gated = {kind.mlp.gated for kind in model.kinds if kind.mlp.kind != "none"}
    if True in gated:
        yield flag("swiglu")
    if len(gated) > 1:
        yield note("some feed-forward blocks are not gated; --swiglu gates them all")
    yield flag("normalization", "LayerNorm" if model.norm_bias else "RMSNorm")
    if any(kind.norms != len(_halves(kind)) for kind in model.kinds):
        yield note("layers with other than two norms need a layer spec of your own (--spec)")
    yield from _positions(model)
    if not model.tied_embeddings:
        yield flag("untie-embeddings-and-output-weights")
    yield flag("vocab-size", model.vocab_size)
    unit = gcd(model.vocab_size // tp, 128) if model.vocab_size % tp == 0 else 1
    if unit != 128:
        yield flag("make-vocab-size-divisible-by", unit)
    if model.vocab_size % tp:
        yield note(f"the vocabulary is padded to a multiple of tp = {tp}")
    if mtp_modules(job):
        yield flag("mtp-num-layers", mtp_modules(job))


def _halves(kind: LayerKind) -> list[str]:
    return [half.kind for half in (kind.attention, kind.mlp) if half.kind != "none"]


def _positions(model: ModelConfig) -> Iterator[str]:
    if hybrid_pattern(model):
        yield flag("position-embedding-type", "none")
        yield note("attention layers of a hybrid model get no position embedding, as in Nemotron-H")
    else:
        yield flag("position-embedding-type", "learned_absolute" if model.learned_positions else "rope")


def _attention(model: ModelConfig) -> Iterator[str]:
    attention = attention_of(model)
    if unlike_attention(model):
        yield note("attention differs between layers; Megatron-LM takes one: that of the last layer")
    if not attention.heads:
        yield note("the model has no attention; Megatron-LM asks for --num-attention-heads all the same")
        return
    yield flag("num-attention-heads", attention.heads)
    if isinstance(attention, MultiHeadLatentAttention):
        yield from _latent(attention)
    elif isinstance(attention, GroupedQueryAttention):
        yield from _grouped(attention)
        yield from _window(model)


def _latent(attention: MultiHeadLatentAttention) -> Iterator[str]:
    yield flag("multi-latent-attention")
    if attention.q_lora_rank:
        yield flag("q-lora-rank", attention.q_lora_rank)
    yield flag("kv-lora-rank", attention.kv_lora_rank)
    yield flag("qk-head-dim", attention.qk_nope_head_dim)
    yield flag("qk-pos-emb-head-dim", attention.qk_rope_head_dim)
    yield flag("v-head-dim", attention.v_head_dim)
    yield flag("qk-layernorm")


def _grouped(attention: GroupedQueryAttention) -> Iterator[str]:
    yield flag("kv-channels", attention.head_dim)
    if attention.kv_heads != attention.heads:
        yield flag("group-query-attention")
        yield flag("num-query-groups", attention.kv_heads)
    if attention.qk_norm != "none":
        yield flag("qk-layernorm")
    if attention.qk_norm == "full":
        yield note("qk_norm full: --qk-layernorm normalises each head apart, not all heads together")
    if attention.sinks:
        yield flag("softmax-type", "learnable")
    if attention.output_gate == "element":
        yield flag("attention-output-gate")
    elif attention.output_gate == "head":
        yield note("output_gate head: --attention-output-gate has one number for each output, not one a head")


def _window(model: ModelConfig) -> Iterator[str]:
    windowed = [layer.attention.window if layer.attention.kind == "gqa" else None for layer in model.layers]
    windows = {window for window in windowed if window}
    if not windows:
        return
    if len(windows) > 1:
        yield note(f"attention windows differ ({sorted(windows)}); Megatron-LM takes one: the widest")
    yield flag("window-size", f"{max(windows) - 1},0")  # keys before the query, which itself is not counted
    if not all(windowed):
        yield flag("window-attn-skip-freq", _pattern([int(window is not None) for window in windowed]))


def hybrid_pattern(model: ModelConfig) -> str | None:
    """One letter a layer, as Megatron-LM's hybrid models are written; None for what is no such model.

    M is a Mamba layer, ``*`` attention, ``-`` a feed-forward block, E an expert block: a layer is one half only.
    """
    letters = [_letters(kind) for kind in model.kinds]
    mamba = {kind.attention for kind in model.kinds if kind.attention.kind == "mamba2"}
    if len(mamba) != 1 or any(len(letter or "") != 1 for letter in letters):
        return None
    return "".join(letters[kind] or "" for kind in model.pattern)


def _letters(kind: LayerKind) -> str | None:
    known = {"mamba2": "M", "gqa": "*", "dense": "-", "moe": "E"}
    halves = [known.get(half) for half in _halves(kind)]
    return None if None in halves else "".join(half or "" for half in halves)


def _variant(job: Job) -> Iterator[str]:
    """Yield arguments of layers that are no plain attention, where there are any for them."""
    model = job.model
    pattern = hybrid_pattern(model)
    if pattern:
        yield from _hybrid(job, pattern)
    delta = {kind.attention for kind in model.kinds if isinstance(kind.attention, GatedDeltaNet)}
    if len(delta) == 1:
        yield from _gated_delta(model, delta.pop())
    attention = attention_of(model)
    if isinstance(attention, MultiHeadLatentAttention) and attention.indexer:
        yield flag("experimental-attention-variant", "dsa")
        yield flag("dsa-indexer-n-heads", attention.indexer.heads)
        yield flag("dsa-indexer-head-dim", attention.indexer.head_dim)
        yield flag("dsa-indexer-topk", attention.indexer.top_k)
        yield note("yours to add: --dsa-indexer-loss-coeff, the weight of the indexer's own loss")
    missing = [kind.attention.kind for kind in model.kinds if kind.attention.kind in _no_argument(model)]
    if missing:
        kinds = ", ".join(dict.fromkeys(missing))
        yield note(f"no argument makes {kinds} layers: they need a layer spec of your own (--spec)")
    if any(len(_halves(kind)) < 2 for kind in model.kinds) and not pattern:
        yield note(
            "layers without attention or without a feed-forward block: Megatron-LM takes those of a pruned model "
            "from its Hugging Face config.json (--heterogeneous-layers-config-path)"
        )


def _no_argument(model: ModelConfig) -> set[str]:
    found = {"kda", "lightning", "compressed"}
    if hybrid_pattern(model) is None:
        found.add("mamba2")
    if len({kind.attention for kind in model.kinds if kind.attention.kind == "gated-delta"}) > 1:
        found.add("gated-delta")
    return found


def _hybrid(job: Job, pattern: str) -> Iterator[str]:
    mamba = next(kind.attention for kind in job.model.kinds if isinstance(kind.attention, Mamba2))
    modules = "".join(f"/{_letters(job.model.mtp_block) or ''}" for _ in range(mtp_modules(job)))
    yield flag("is-hybrid-model")
    yield flag("hybrid-override-pattern", pattern + modules)
    yield flag("mamba-num-heads", mamba.heads)
    yield flag("mamba-head-dim", mamba.head_dim)
    yield flag("mamba-num-groups", mamba.groups)
    yield flag("mamba-state-dim", mamba.state_size)
    yield flag("spec", "megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
    yield note("a hybrid model is started by pretrain_mamba.py")
    if mamba.conv_kernel != MAMBA_KERNEL or mamba.projection_bias or not mamba.conv_bias:
        yield note(
            f"Mamba layers of Megatron-LM have a convolution of {MAMBA_KERNEL} with a bias, projections without"
        )


def _gated_delta(model: ModelConfig, spec: GatedDeltaNet) -> Iterator[str]:
    linear = [int(layer.attention.kind == "gated-delta") for layer in model.layers]
    yield flag("experimental-attention-variant", "gated_delta_net")
    yield flag("linear-attention-freq", _pattern(linear))
    yield flag("linear-conv-kernel-dim", spec.conv_kernel)
    yield flag("linear-key-head-dim", spec.key_head_dim)
    yield flag("linear-value-head-dim", spec.value_head_dim)
    yield flag("linear-num-key-heads", spec.key_heads)
    yield flag("linear-num-value-heads", spec.value_heads)


def _biases(model: ModelConfig) -> Iterator[str]:
    found: set[tuple[str, bool]] = set()
    for kind in model.kinds:
        attention, mlp = kind.attention, kind.mlp
        if attention.kind == "mla":
            found.add(("latent attention", attention.bias))
        elif attention.kind != "none":
            found |= {
                ("qkv", getattr(attention, "qkv_bias", False)),
                ("output", getattr(attention, "output_bias", False)),
            }
        if mlp.kind == "dense":
            found |= {("first feed-forward", mlp.bias), ("last feed-forward", mlp.bias or mlp.down_bias)}
        elif mlp.kind == "moe":
            found |= {("expert", mlp.expert_bias), ("router", mlp.router_bias)}
    there = {name for name, has in found if has}
    if there == {name for name, _ in found} and len(there) == len(found):
        return  # a bias everywhere is Megatron-LM's default
    yield flag("disable-bias-linear")
    if "qkv" in there:
        yield flag("add-qkv-bias")
    if there - {"qkv"}:
        lost = ", ".join(sorted(there - {"qkv"}))
        yield note(f"Megatron-LM has biases everywhere or on q, k, v only; left out: the bias of {lost}")


def _experts(job: Job) -> Iterator[str]:
    moe, layout = job.model.moe, job.layout
    if moe is None:
        return
    yield flag("num-experts", moe.num_experts)
    layers = [int(layer.mlp.kind == "moe") for layer in job.model.layers]
    if not all(layers) and not hybrid_pattern(job.model):
        yield flag("moe-layer-freq", _pattern(layers))
    yield flag("moe-ffn-hidden-size", moe.expert_ffn_hidden_size)
    if moe.shared_ffn_hidden_size:
        yield flag("moe-shared-expert-intermediate-size", moe.shared_ffn_hidden_size)
    if moe.shared_gate:
        yield flag("moe-shared-expert-gate")
    if moe.latent_size:
        yield flag("moe-latent-size", moe.latent_size)
    yield flag("moe-router-topk", moe.top_k)
    if moe.correction_bias:
        yield flag("moe-router-enable-expert-bias")
        yield flag("moe-router-score-function", "sigmoid")  # the bias is refused with softmax scores
    if job.train.wide == "bf16":
        yield flag("moe-grouped-gemm")
    else:
        yield note("experts run one by one: Megatron-LM's grouped matrix products need bf16")
    if job.train.precision == "fp16" and layout.ep > 1:
        yield note("Megatron-LM refuses ep > 1 in fp16: use bf16")
    yield flag("expert-model-parallel-size", layout.ep)
    yield flag("expert-tensor-parallel-size", layout.etp)
    yield from _dispatcher(layout)


def _dispatcher(layout: ParallelConfig) -> Iterator[str]:
    """Yield how tokens reach experts; DeepEP's dispatcher needs ranks to send them to."""
    if layout.dispatcher == "alltoall_deredundency":
        yield flag("moe-token-dispatcher-type", "alltoall")
        yield note(
            "alltoall_deredundency is MindFormers' dispatcher: alltoall stands instead, over all of ep"
        )
    elif layout.dispatcher not in ("deepep", "hybridep"):
        yield flag("moe-token-dispatcher-type", layout.dispatcher)
    elif layout.ep * layout.etp > 1:
        yield flag("moe-token-dispatcher-type", "flex")
        hybrid = layout.dispatcher == "hybridep"
        yield flag("moe-flex-dispatcher-backend", "hybridep") if hybrid else flag("moe-enable-deepep")
    else:
        yield flag("moe-token-dispatcher-type", "alltoall")
        yield note("the flex dispatcher wants ep * etp above 1: alltoall stands instead")


def _pattern(values: list[int]) -> str:
    """Write a list as the shortest repeated Python list: ``([0]*3+[1]*58)`` or ``([1]+[0])*18``."""
    size = len(values)
    period = next(p for p in range(1, size + 1) if size % p == 0 and values == values[:p] * (size // p))
    runs = [(value, len(list(same))) for value, same in groupby(values[:period])]
    text = "+".join(f"[{value}]" + (f"*{n}" if n > 1 else "") for value, n in runs)
    return f"({text})" + (f"*{size // period}" if size > period else "")


def _unknown(model: ModelConfig) -> Iterator[tuple[bool, str]]:
    """Yield parts of a model that no argument says, each with whether it is there."""
    grouped = [kind.attention for kind in model.kinds if isinstance(kind.attention, GroupedQueryAttention)]
    spec = "it needs a layer spec of your own (--spec)"
    moe = model.moe
    yield any(a.value_dim != a.head_dim for a in grouped), f"value heads of a width of their own: {spec}"
    yield any(a.q_lora_rank for a in grouped), f"a bottleneck of the queries without latent attention: {spec}"
    yield any(a.chunk for a in grouped), f"attention inside chunks of tokens: {spec}"
    yield any(not (a.own_keys and a.own_values) for a in grouped), f"shared keys or values: {spec}"
    yield model.residual_streams > 1, f"{model.residual_streams} residual streams: {spec}"
    yield model.per_layer_inputs is not None, f"per-layer embeddings: {spec}"
    yield model.embedding_norm, "the norm of the embedding is left out"
    yield model.head_bias, "the bias of the output head is left out"
    yield bool(moe and (moe.expert_scale or moe.router_scale)), "learned scales of the router are left out"
