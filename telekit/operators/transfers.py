"""A layer's communication as a list of transfers, for one micro-batch on one device.

Tensor parallelism with sequence parallelism gathers a block's input and scatters its output (Megatron-Core; the
backward gathers once more for the weight gradient); without, it sums the output. Experts send every chosen copy of a
token to its expert's rank and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from telekit.model.config import LayerKind, MixtureOfExperts, ModelConfig
from telekit.operators.layer import Shapes, routed_tokens
from telekit.training.config import TrainConfig


@dataclass(frozen=True)
class Transfer:
    """One collective, and how often each pass calls it.

    Parameters
    ----------
    name, op, group : str
        What it is; the collective by its nccl-tests name; the ranks that take part: tp, cp, ep or etp.
    size_bytes : float or column
        The whole buffer as nccl-tests counts it.
    forward_calls, backward_calls : float
        Calls in one pass.
    behind : str
        Operator it hides behind (ring attention), or "".
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


def layer_transfers(
    model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any
) -> tuple[Transfer, ...]:
    """Transfers of one transformer block."""
    x = Shapes.of(model, train, layout)
    block = x.bytes * x.tokens * x.hidden
    spec = kind.attention
    latent = (
        (spec.q_lora_rank or x.hidden) + spec.kv_lora_rank + spec.qk_rope_head_dim
        if spec.kind == "mla"
        else 0
    )
    gathered = x.bytes * x.tokens * latent if latent else block
    found = [*_tensor_parallel("attention", layout, gathered, block), _ring(x, kind, layout)]
    if isinstance(kind.mlp, MixtureOfExperts):
        found += _expert_parallel(x, kind.mlp, train, layout)
        if kind.mlp.shared_ffn_hidden_size:
            found += _tensor_parallel("shared_expert", layout, block, block, ("moe", "shared_experts"))
    else:
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


def _ring(x: Shapes, kind: LayerKind, layout: Any) -> Transfer:
    """Keys and values that each context rank passes on, hidden behind attention where that is longer."""
    spec = kind.attention
    if spec.kind == "mla":
        width = spec.heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim)
    else:
        width = 2 * spec.kv_heads * spec.head_dim
    whole = x.bytes * x.tokens * layout.cp * width / x.tp
    return Transfer("ring_attention", "all-gather", "cp", whole, 1.0, 2.0, "core_attention", ("core_attn",))


def _expert_parallel(
    x: Shapes, spec: MixtureOfExperts, train: TrainConfig, layout: Any
) -> Iterator[Transfer]:
    per_rank = routed_tokens(x, spec, layout) / layout.etp * x.hidden
    sent = 1.0 if train.precision == "fp8" else float(x.bytes)  # fp8 recipes dispatch in fp8, combine in bf16
    if layout.dispatcher == "allgather":
        whole = x.shard_tokens * layout.ep * x.hidden
        yield Transfer("expert_gather", "all-gather", "ep", sent * whole, 1.0, 1.0, modules=("moe",))
        yield Transfer("expert_scatter", "reduce-scatter", "ep", x.bytes * whole, 1.0, 1.0, modules=("moe",))
    else:
        op = "dedup-all-to-all" if layout.dispatcher == "deepep" else "all-to-all"
        yield Transfer("dispatch", op, "ep", sent * per_rank, 1.0, 0.0, modules=("moe",))
        yield Transfer("combine", op, "ep", x.bytes * per_rank, 1.0, 0.0, modules=("moe",))
        yield Transfer("dispatch_backward", op, "ep", x.bytes * per_rank, 0.0, 1.0)
        yield Transfer("combine_backward", op, "ep", sent * per_rank, 0.0, 1.0)
    within = x.bytes * per_rank * layout.etp
    yield Transfer("expert_tp_gather", "all-gather", "etp", within, 1.0, 1.0, modules=("moe",))
    yield Transfer("expert_tp_scatter", "reduce-scatter", "etp", within, 1.0, 1.0, modules=("moe",))
