"""Operators of softmax attention: grouped queries, latent attention, and DeepSeek-V4's compressed attention.

The layer is Megatron-Core's, with flash attention and no dropout. Symbols: ``t`` tokens of a micro-batch on a context
rank; ``t_s`` the same after sequence parallelism; ``a`` bytes of an activation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from telekit.model.attention import CompressedAttention, GroupedQueryAttention, MultiHeadLatentAttention
from telekit.model.attention_flops import indexer_flops, mixer_flops, scored_keys
from telekit.model.tensors import Tensor
from telekit.operators.coefficients import now
from telekit.operators.shapes import Operator, Shapes

FLASH_BACKWARD = 2.5
"""Flash attention's backward does five products where the forward does two (Dao 2023, section 3.2)."""
ATTENTION_LAUNCHES = 2.0
"""Operators that the host issues around a flash kernel: it, and the layout of its inputs (assumed)."""
INDEXER_BACKWARD = 3.0
"""An indexer learns from a loss of its own: its scores once more, and the gradients of queries and of keys."""

Matrices = dict[str, Tensor]


def _core_attention(x: Shapes, spec: Any, v_dim: int, read: Any) -> Iterator[Operator]:
    """Mix tokens; ``read`` numbers a token of queries, keys and values, on one tensor rank.

    Its output is held, since a norm's or a product's backward needs it too; one fp32 number a head and token is what
    flash attention keeps of the softmax.
    """
    output = x.bytes * x.tokens * spec.heads * v_dim / x.tp
    if x.unfused:
        yield from _unfused_attention(x, spec, v_dim, output)
        return
    per_token = mixer_flops(spec, x.seq_len) - indexer_flops(spec, x.seq_len)
    flops = x.tokens * per_token / x.tp
    moved = x.bytes * x.tokens * read + output
    log_sum_exp = 4.0 * x.tokens * spec.heads / x.tp
    yield Operator(
        "core_attention",
        "attention",
        ("core_attn",),
        flops,
        FLASH_BACKWARD * flops,
        moved,
        3.0 * moved,
        log_sum_exp,
        output,
        keys=min(spec.window or x.seq_len, x.seq_len) / x.cp,
        launches=now("ATTENTION_LAUNCHES", ATTENTION_LAUNCHES),
    )


def _unfused_attention(x: Shapes, spec: Any, v_dim: int, output: Any) -> Iterator[Operator]:
    """Scores, softmax with mask, dropout and values as kernels of their own: every pair is computed and written.

    Kept: the softmax, and dropout's mask and output (Korthikanti et al. 2022, equation 1: ``5 a s^2 b``).
    """
    pairs = x.tokens * float(x.seq_len) * spec.heads / x.tp
    heads = x.micro_batch * spec.heads / x.tp
    qk_dim = getattr(spec, "head_dim", v_dim)
    yield x.batched("attention_scores", pairs, heads, qk_dim, x.seq_len)
    yield x.stream(
        "softmax", 2.0 * x.bytes * pairs, 3.0 * x.bytes * pairs, "core_attn", saved=x.bytes * pairs
    )
    dropped = (2.0 * x.bytes + 1.0) * pairs
    yield x.stream("attention_dropout", dropped, dropped, "core_attn", saved=(x.bytes + 1.0) * pairs)
    yield x.batched("attention_values", pairs, heads, v_dim, x.seq_len, values=True, held=output)


def grouped(x: Shapes, spec: GroupedQueryAttention, found: Matrices) -> Iterator[Operator]:
    """Grouped-query attention. Kept: the projections' outputs, normed queries and keys, the gated output."""
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    values = spec.kv_heads * spec.value_dim
    own_keys, own_values = keys * spec.own_keys, values * (spec.own_keys and spec.own_values)
    gate = {"none": 0, "element": spec.heads * spec.value_dim, "head": spec.heads}[spec.output_gate]
    projected = float(queries + own_keys + own_values + gate)
    if spec.q_lora_rank:
        yield from _bottleneck(x, found["q_down"])
        rows = x.bytes * x.tokens * queries / x.tp
        yield x.gemm("q_up_projection", x.tokens, spec.q_lora_rank, queries / x.tp, held=rows)
        projected -= queries
    rows = x.bytes * x.tokens * projected / x.tp
    if projected:
        yield x.gemm("qkv_projection", x.tokens, x.hidden, projected / x.tp, held=rows)
    turned = x.bytes * x.tokens * (queries + own_keys) / x.tp
    if spec.qk_norm != "none":
        yield x.stream("qk_norm", 2.0 * turned, 3.0 * turned, held=turned)
    if (
        spec.own_keys and not spec.own_values
    ):  # values are the keys before norm and rotation, with a norm of their own
        other = x.bytes * x.tokens * values / x.tp
        yield x.stream("value_norm", 2.0 * other, 3.0 * other, held=other)
    yield x.stream("rotary", 2.0 * turned, 2.0 * turned)
    yield from _core_attention(x, spec, spec.value_dim, float(queries + keys + values) / x.tp)
    if gate:
        yield _output_gate(x, spec.heads * spec.value_dim / x.tp, gate / x.tp)
    yield x.gemm("output_projection", x.tokens, spec.heads * spec.value_dim / x.tp, x.hidden)


def _output_gate(x: Shapes, output: Any, gate: Any) -> Operator:
    """Gate the output: it and the gates are held already, the gated output is what the projection reads."""
    rows, gates = x.bytes * x.tokens * output, x.bytes * x.tokens * gate
    held = x.product_bytes * x.tokens * output
    return x.stream("output_gate", 2.0 * rows + gates, 3.0 * rows + 2.0 * gates, held=held)


def _bottleneck(x: Shapes, down: Tensor) -> Iterator[Operator]:
    """Yield a projection into few numbers on the rank's own tokens, and their norm, which each rank then has whole."""
    width = down.shape[0]
    small = x.bytes * x.shard_tokens * width
    yield x.product(down)
    yield x.stream(f"{down.name}_norm", 2.0 * small, 3.0 * small, held=x.product_bytes * x.tokens * width)


def latent(x: Shapes, spec: MultiHeadLatentAttention, found: Matrices) -> Iterator[Operator]:
    """Latent attention, keys and values rebuilt; with an indexer, over the keys that it chose."""
    qk_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim
    width = spec.kv_lora_rank + spec.qk_rope_head_dim
    up = "mla_up_proj"
    queries = x.bytes * x.tokens * spec.heads * qk_dim / x.tp
    if spec.q_lora_rank is None:
        yield x.gemm("q_projection", x.tokens, x.hidden, spec.heads * qk_dim / x.tp, held=queries)
    else:
        small = x.bytes * x.shard_tokens * spec.q_lora_rank
        yield x.gemm("q_down_projection", x.shard_tokens, x.hidden, spec.q_lora_rank, held=small)
        yield x.stream(
            "q_norm", 2.0 * small, 3.0 * small, up, saved=x.product_bytes * x.tokens * spec.q_lora_rank
        )
        yield x.gemm(
            "q_up_projection", x.tokens, spec.q_lora_rank, spec.heads * qk_dim / x.tp, up, saved=queries
        )
    small = x.bytes * x.shard_tokens * width
    yield x.gemm("kv_down_projection", x.shard_tokens, x.hidden, width, held=small)
    yield x.stream(
        "kv_norm", 2.0 * small, 3.0 * small, up, saved=x.product_bytes * x.tokens * spec.kv_lora_rank
    )
    rebuilt = (
        x.bytes * x.tokens * spec.heads * (qk_dim + spec.v_head_dim) / x.tp
    )  # keys with rope, and values
    outputs = spec.heads * (spec.qk_nope_head_dim + spec.v_head_dim) / x.tp
    yield x.gemm("kv_up_projection", x.tokens, spec.kv_lora_rank, outputs, up, saved=rebuilt)
    turned = x.bytes * x.tokens * spec.heads * spec.qk_rope_head_dim / x.tp
    # rotated parts of queries and keys are read and written, then queries, keys and values are put together
    together = 4.0 * turned + 2.0 * queries + 2.0 * rebuilt
    yield x.stream("rotary", together, together, up, launches=8.0)
    if spec.indexer and spec.indexer.own:
        # both read the block's input, gathered whole for it where it is split
        yield x.product(found["indexer.k_proj"], whole_input=True, held=2.0)  # and its norm
        yield x.product(found["indexer.weights_proj"], whole_input=True)
        yield from _indexer(x, spec, found, spec.indexer.top_k, x.gathered_bytes)
    read = spec.heads * (2.0 * qk_dim + spec.v_head_dim) / x.tp
    yield from _core_attention(x, spec, spec.v_head_dim, read)
    yield x.gemm("output_projection", x.tokens, spec.heads * spec.v_head_dim / x.tp, x.hidden)


def _indexer(
    x: Shapes, spec: Any, found: Matrices, chosen: int, inputs_bytes: Any = 0.0
) -> Iterator[Operator]:
    """Yield queries, scores and choice of an indexer, the same on each tensor rank.

    Kept: its queries, four bytes for each chosen key, and a copy of its inputs where it has one. Scores are fp32,
    written and read once by the choice.
    """
    yield x.product(found["indexer.q_proj"], whole_input=True)
    flops = x.tokens * indexer_flops(spec, x.seq_len)
    keys = scored_keys(spec, x.seq_len)
    moved = 8.0 * x.tokens * keys + x.bytes * x.tokens * spec.indexer.heads * (spec.indexer.head_dim + 1)
    held = 4.0 * x.tokens * min(chosen, x.seq_len) + inputs_bytes
    yield Operator(
        "indexer.scores",
        "attention",
        (),
        flops,
        INDEXER_BACKWARD * flops,
        moved,
        3.0 * moved,
        held_bytes=held,
    )


def compressed(x: Shapes, spec: CompressedAttention, found: Matrices) -> Iterator[Operator]:
    """DeepSeek-V4's attention. All is held: no recompute module names its parts.

    Kept: outputs of every projection; queries and the key after their norms; of a compressor its inputs, and the
    blocks before and after their norm; the attention's output before and after its rotation back.
    """
    yield from _bottleneck(x, found["q_down"])
    yield x.product(found["q_up"])
    queries = x.bytes * x.tokens * spec.heads * spec.head_dim / x.tp
    yield x.stream("q_norm", 2.0 * queries, 3.0 * queries, held=queries)
    yield x.product(found["kv_proj"])
    key, whole = (x.bytes * tokens * spec.head_dim for tokens in (x.shard_tokens, x.tokens))
    yield x.stream("kv_norm", 2.0 * key, 3.0 * key, held=whole)
    yield x.stream("rotary", 2.0 * (queries + whole), 2.0 * (queries + whole))
    if spec.compress_ratio:
        yield from _compressor(x, spec, found, "compressor")
    if spec.indexer:
        yield from _compressor(x, spec, found, "indexer")
        yield x.product(found["indexer.weights_proj"])
        blocks = x.seq_len // spec.compress_ratio if spec.compress_ratio else 0
        yield from _indexer(x, spec, found, min(spec.indexer.top_k, blocks))
    read = spec.heads * spec.head_dim / x.tp + spec.head_dim * _keys_a_token(spec)
    yield from _core_attention(x, spec, spec.head_dim, read)
    turned = x.product_bytes * x.tokens * spec.heads * spec.head_dim / x.tp
    yield x.stream("rotary_back", 2.0 * queries, 2.0 * queries, held=turned)
    groups = spec.output_groups / x.tp
    heads_width, rank = spec.heads * spec.head_dim / spec.output_groups, spec.output_lora_rank
    small = x.bytes * x.tokens * groups * rank
    yield x.gemm("o_down", x.tokens * groups, heads_width, rank, groups=groups, held=small)
    yield x.gemm("o_up", x.tokens, groups * rank, x.hidden)


def _compressor(x: Shapes, spec: CompressedAttention, found: Matrices, name: str) -> Iterator[Operator]:
    yield x.product(found[f"{name}.kv_proj"])
    yield x.product(found[f"{name}.gate_proj"])
    wide, _ = found[f"{name}.kv_proj"].shape
    read = x.bytes * x.shard_tokens * 2 * wide
    blocks = read / (2 * (1 + spec.overlap)) / max(spec.compress_ratio, 1)
    yield x.stream(f"{name}.pool", read + blocks, 2.0 * read + blocks, held=2.0 * blocks)


def _keys_a_token(spec: CompressedAttention) -> float:
    """Keys that are stored for each token: its own, and its share of a block."""
    return 1.0 + (1.0 / spec.compress_ratio if spec.compress_ratio else 0.0)


def gathered_width(hidden: int, spec: Any) -> float:
    """Numbers a token that tensor parallelism gathers before a mixer.

    Parts that are whole on each rank run on the rank's own tokens, and their few outputs are gathered; latent
    attention's indexer reads the block's input and the queries' bottleneck, and has both gathered for it
    (Megatron-Core, ``experimental_attention_variant/dsa.py``).
    """
    found = float(hidden)
    if spec.kind == "mla":
        found = (spec.q_lora_rank or hidden) + spec.kv_lora_rank + spec.qk_rope_head_dim
        found += hidden + (spec.q_lora_rank or 0) if spec.indexer and spec.indexer.own else 0
    elif spec.kind == "gqa":
        found += spec.q_lora_rank or 0
    elif spec.kind == "kda":
        found += 2 * spec.head_dim
    elif spec.kind == "compressed":
        found = spec.q_lora_rank + spec.head_dim + block_width(spec)
        found += spec.indexer.heads if spec.indexer else 0
    return found


def block_width(spec: CompressedAttention) -> float:
    """Numbers a token of compressed blocks: keys, and the indexer's."""
    widths = spec.head_dim + (spec.indexer.head_dim if spec.indexer else 0)
    return widths / spec.compress_ratio if spec.compress_ratio else 0.0
