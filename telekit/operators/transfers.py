"""A layer's communication as a list of transfers, for one micro-batch on one device.

Tensor parallelism with sequence parallelism gathers a block's input and scatters its output (Megatron-Core; the
backward gathers once more for the weight gradient); without, it sums the output. Tokens go to their experts and back
by the layout's dispatcher, whose rows and time :mod:`telekit.comm.dispatch` knows. Context ranks pass keys and values
round a ring, or exchange sequence for heads before attention and back after it (Ulysses, arXiv 2309.14509,
section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from telekit.model.config import LayerKind, MixtureOfExperts, ModelConfig
from telekit.operators.attention import gathered_width
from telekit.operators.layer import Shapes, expert_width
from telekit.training.config import TrainConfig

EXPERT_GROUPS = ("ep",)
"""Groups whose traffic carries tokens to experts and back."""

FP8_SCALED = 1.0 + 4.0 / 128.0
"""Bytes of a number in fp8 with a 4-byte scale for every 128 numbers, as DeepSeek-V3 sends them."""


@dataclass(frozen=True)
class ExpertTraffic:
    """Tokens on their way to experts, or back.

    Parameters
    ----------
    dispatcher : str
        One of :data:`telekit.comm.dispatch.DISPATCHERS`.
    way : str
        ``dispatch`` or ``combine``; their gradients go the other way.
    tokens : float or column
        Tokens of one rank.
    row_bytes : float
        One token.
    experts, top_k, groups, group_limit : int
        How tokens choose (:class:`telekit.model.config.MixtureOfExperts`).
    """

    dispatcher: str
    way: str
    tokens: Any
    row_bytes: float
    experts: int
    top_k: int
    groups: int = 1
    group_limit: int | None = None


@dataclass(frozen=True)
class Transfer:
    """One call, and how often each pass makes it.

    Parameters
    ----------
    name, op, group : str
        What it is; the collective by its nccl-tests name, or ``expert``; the ranks that take part: tp, cp, ep, etp.
    size_bytes : float or column
        The whole buffer as nccl-tests counts it; of ``expert`` one rank's tokens, each once.
    forward_calls, backward_calls : float
        Calls in one pass.
    behind : str
        Operator it hides behind (ring attention), or "".
    modules : tuple of str
        Recompute modules that repeat its forward calls.
    expert : ExpertTraffic or None
        For ``expert``, what is sent: over ``ep`` by the dispatcher, over ``etp`` what arrived to the ranks that share
        an expert's matrices.
    """

    name: str
    op: str
    group: str
    size_bytes: Any
    forward_calls: float
    backward_calls: float
    behind: str = ""
    modules: tuple[str, ...] = ()
    expert: ExpertTraffic | None = None


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
    """Tokens to their experts and back, and both gradients; fp8 recipes dispatch in fp8 and combine in 16 bits."""
    width = float(expert_width(x.hidden, spec))
    there = width * (FP8_SCALED if train.precision == "fp8" else float(x.bytes))
    for way, row, forward, backward in (
        ("dispatch", there, "dispatch", "combine_backward"),
        ("combine", width * x.bytes, "combine", "dispatch_backward"),
    ):
        traffic = ExpertTraffic(
            layout.dispatcher,
            way,
            x.shard_tokens,
            row,
            spec.num_experts,
            spec.top_k,
            spec.groups,
            spec.group_limit,
        )
        size = x.shard_tokens * row
        yield Transfer(forward, "expert", "ep", size, 1.0, 0.0, "", ("moe",), traffic)
        yield Transfer(backward, "expert", "ep", size, 0.0, 1.0, "", (), traffic)
        name = "expert_tp_gather" if way == "dispatch" else "expert_tp_scatter"
        yield Transfer(name, "expert", "etp", size, 1.0, 1.0, "", ("moe",), traffic)
