"""A layer's communication as a list of transfers, for one micro-batch on one device.

Tensor parallelism with sequence parallelism gathers a block's input and scatters its output (Megatron-Core; the
backward gathers once more for the weight gradient); without, it sums the output. Experts send every chosen copy of a
token to its expert's rank and back. Context ranks pass keys and values round a ring, or exchange sequence for heads
before attention and back after it (Ulysses, arXiv 2309.14509, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from telekit.model.config import LayerKind, MixtureOfExperts, ModelConfig
from telekit.operators.attention import gathered_width
from telekit.operators.layer import Shapes, expert_width, routed_tokens
from telekit.training.config import TrainConfig

EXPERT_GROUPS = ("ep", "ep_inner", "ep_outer")
"""Groups whose traffic carries tokens to experts and back."""


@dataclass(frozen=True)
class Transfer:
    """One collective, and how often each pass calls it.

    Parameters
    ----------
    name, op, group : str
        What it is; the collective by its nccl-tests name; the ranks that take part: tp, cp, ep, etp;
        ep_inner and ep_outer are the ranks of ep inside one node, and those at one place of every node.
    size_bytes : float or column
        The whole buffer as nccl-tests counts it.
    forward_calls, backward_calls : float
        Calls in one pass.
    behind : str
        Operator it hides behind (ring attention), or "".
    per_rank : bool
        The buffer is this size times the ranks of the group.
    experts, fan_out : int
        Experts there are, and experts a token visits, where each token crosses to a node once.
    modules : tuple of str
        Recompute modules that repeat its forward calls.
    """

    name: str
    op: str
    group: str
    size_bytes: Any
    forward_calls: float
    backward_calls: float
    behind: str = ""
    modules: tuple[str, ...] = ()
    per_rank: bool = False
    experts: int = 0
    fan_out: int = 0


def layer_transfers(
    model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any
) -> tuple[Transfer, ...]:
    """Transfers of one transformer block."""
    x = Shapes.of(model, train, layout)
    block = x.bytes * x.tokens * x.hidden
    spec = kind.attention
    gathered = x.bytes * x.tokens * gathered_width(x.hidden, spec)
    found: list[Transfer] = []
    if spec.heads:
        found += [
            *_tensor_parallel("attention", layout, gathered, block),
            *_context_parallel(x, kind, layout),
        ]
    if isinstance(kind.mlp, MixtureOfExperts):
        found += _expert_parallel(x, kind.mlp, train, layout)
        if kind.mlp.shared_ffn_hidden_size:
            found += _tensor_parallel("shared_expert", layout, block, block, ("moe", "shared_experts"))
    elif kind.mlp.kind == "dense":
        found += _tensor_parallel("mlp", layout, block, block, ("mlp",))
    return tuple(found)


def head_transfers(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Transfer, ...]:
    """Transfers of the output head: its input and that input's gradient, and three numbers a token for the loss."""
    x = Shapes.of(model, train, layout)
    block = x.bytes * x.tokens * x.hidden
    loss = Transfer("loss_all_reduce", "all-reduce", "tp", 12.0 * x.tokens, 1.0, 0.0)
    if not layout.sequence_parallel:
        return (loss, Transfer("head_backward_all_reduce", "all-reduce", "tp", block, 0.0, 1.0))
    return (
        loss,
        Transfer("head_all_gather", "all-gather", "tp", block, 1.0, 1.0),
        Transfer("head_backward_scatter", "reduce-scatter", "tp", block, 0.0, 1.0),
    )


def embedding_transfers(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Transfer, ...]:
    """Transfers of the input embedding, whose rows are split over ``tp``: its output, and that output's gradient."""
    x = Shapes.of(model, train, layout)
    block = x.bytes * x.tokens * x.hidden
    if not layout.sequence_parallel:
        return (Transfer("embedding_all_reduce", "all-reduce", "tp", block, 1.0, 0.0),)
    return (
        Transfer("embedding_scatter", "reduce-scatter", "tp", block, 1.0, 0.0),
        Transfer("embedding_backward_gather", "all-gather", "tp", block, 0.0, 1.0),
    )


def _tensor_parallel(
    name: str, layout: Any, gathered: Any, scattered: Any, modules: tuple[str, ...] = ()
) -> Iterator[Transfer]:
    if layout.sequence_parallel:
        yield Transfer(f"{name}_all_gather", "all-gather", "tp", gathered, 1.0, 1.0, modules=modules)
        yield Transfer(f"{name}_backward_scatter", "reduce-scatter", "tp", gathered, 0.0, 1.0)
        yield Transfer(f"{name}_reduce_scatter", "reduce-scatter", "tp", scattered, 1.0, 0.0, modules=modules)
        yield Transfer(f"{name}_backward_gather", "all-gather", "tp", scattered, 0.0, 1.0)
    else:
        yield Transfer(f"{name}_all_reduce", "all-reduce", "tp", scattered, 1.0, 0.0, modules=modules)
        yield Transfer(f"{name}_backward_all_reduce", "all-reduce", "tp", gathered, 0.0, 1.0)


def _context_parallel(x: Shapes, kind: LayerKind, layout: Any) -> Iterator[Transfer]:
    """Keys and values round a ring, hidden behind attention where that is longer; or four all-to-alls in the open."""
    query, key, value, output = _attention_widths(kind)
    if layout.cp_comm_type == "a2a":
        for name, width in (("query", query), ("key", key), ("value", value), ("output", output)):
            sent = x.bytes * x.tokens * width / x.tp
            yield Transfer(f"ulysses_{name}", "all-to-all", "cp", sent, 1.0, 1.0, modules=("core_attn",))
        return
    whole = x.bytes * x.tokens * layout.cp * (key + value) / x.tp
    yield Transfer("ring_attention", "all-gather", "cp", whole, 1.0, 2.0, "core_attention", ("core_attn",))


def _attention_widths(kind: LayerKind) -> tuple[int, int, int, int]:
    """Numbers a token of queries, keys, values and output, over all heads."""
    spec = kind.attention
    if spec.kind == "mla":
        keys = spec.heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
        return keys, keys, spec.heads * spec.v_head_dim, spec.heads * spec.v_head_dim
    head, value_head = getattr(spec, "head_dim", 0), getattr(spec, "v_head_dim", None)
    value_head = value_head or head
    return spec.heads * head, spec.kv_heads * head, spec.kv_heads * value_head, spec.heads * value_head


def _expert_parallel(
    x: Shapes, spec: MixtureOfExperts, train: TrainConfig, layout: Any
) -> Iterator[Transfer]:
    width = expert_width(x.hidden, spec)
    per_rank = routed_tokens(x, spec, layout) / layout.etp * width
    sent = 1.0 if train.precision == "fp8" else float(x.bytes)  # fp8 recipes dispatch in fp8, combine in bf16
    if layout.dispatcher == "allgather":
        whole = x.shard_tokens * layout.ep * width
        yield Transfer("expert_gather", "all-gather", "ep", sent * whole, 1.0, 1.0, modules=("moe",))
        yield Transfer("expert_scatter", "reduce-scatter", "ep", x.bytes * whole, 1.0, 1.0, modules=("moe",))
    elif layout.dispatcher == "alltoall_deredundency":
        yield from _gathered_between_nodes(x, x.shard_tokens * width, per_rank, sent)
    else:
        op = "dedup-all-to-all" if layout.dispatcher == "deepep" else "all-to-all"
        visits: dict[str, Any] = {"experts": spec.num_experts, "fan_out": spec.top_k}
        there, back = sent * per_rank, x.bytes * per_rank
        yield Transfer("dispatch", op, "ep", there, 1.0, 0.0, modules=("moe",), **visits)
        yield Transfer("combine", op, "ep", back, 1.0, 0.0, modules=("moe",), **visits)
        yield Transfer("dispatch_backward", op, "ep", back, 0.0, 1.0, **visits)
        yield Transfer("combine_backward", op, "ep", there, 0.0, 1.0, **visits)
    within = x.bytes * per_rank * layout.etp
    yield Transfer("expert_tp_gather", "all-gather", "etp", within, 1.0, 1.0, modules=("moe",))
    yield Transfer("expert_tp_scatter", "reduce-scatter", "etp", within, 1.0, 1.0, modules=("moe",))


def _gathered_between_nodes(x: Shapes, tokens: Any, copies: Any, sent: float) -> Iterator[Transfer]:
    """Every token to every node, then copies inside the node (MindFormers' ``alltoall_deredundency``); and back.

    ``tokens`` and ``copies`` count numbers. With routing alike on all nodes, what a rank holds of all nodes' tokens
    for its own node is as many copies as it would send itself.
    """
    yield Transfer("dispatch_gather", "all-gather", "ep_outer", sent * tokens, 1.0, 1.0, "", ("moe",), True)
    yield Transfer("dispatch", "all-to-all", "ep_inner", sent * copies, 1.0, 1.0, modules=("moe",))
    yield Transfer("combine", "all-to-all", "ep_inner", x.bytes * copies, 1.0, 1.0, modules=("moe",))
    yield Transfer(
        "combine_scatter", "reduce-scatter", "ep_outer", x.bytes * tokens, 1.0, 1.0, "", ("moe",), True
    )
