"""A real model in another shape: more layers, fewer experts, another width, all else as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from telekit.errors import InputError, Problem
from telekit.model.attention import Frozen
from telekit.model.config import (
    FeedForward,
    LayerKind,
    MixtureOfExperts,
    Mlp,
    ModelConfig,
    NoFeedForward,
)

Record = TypeVar("Record", bound=Frozen)


@dataclass(frozen=True)
class Shape:
    """The numbers of a model that matter most for its size.

    Parameters
    ----------
    layers, hidden_size : int
        Blocks, and the width of the residual stream between them.
    dense_layers : int
        Leading layers with a dense feed-forward block, before the first with experts.
    experts, top_k : int
        Routed experts of a layer, and how many of them one token meets; 0 in a model without experts.
    width : int
        Width of one routed expert; without experts, of the widest feed-forward block.
    """

    layers: int
    hidden_size: int
    dense_layers: int
    experts: int
    top_k: int
    width: int


def shape_of(model: ModelConfig) -> Shape:
    """Read a model's shape."""
    moe = model.moe
    if moe is None:
        return Shape(model.num_layers, model.hidden_size, 0, 0, 0, _widest(model))
    dense = [isinstance(layer.mlp, FeedForward) for layer in model.layers].index(False)
    return Shape(
        model.num_layers, model.hidden_size, dense, moe.num_experts, moe.top_k, moe.expert_ffn_hidden_size
    )


def reshape(model: ModelConfig, shape: Shape) -> ModelConfig:
    """Give a model another shape.

    The layers after the leading dense ones are cut, or go on as their pattern repeats. Heads and their widths stay,
    whatever the hidden size. Shared experts that are whole multiples of a routed expert follow its width. A dense
    layer where there was none is as wide as what one token meets of a layer with experts (DeepSeek-V3's choice).

    Raises
    ------
    InputError
        A size below 1, or more experts, dense layers or top-k than there is room for.
    """
    was = shape_of(model)
    _check(model, was, shape)
    change = _Change(model, was, shape)
    kinds = tuple(dict.fromkeys(change.layers()))
    return _changed(
        model,
        kinds=kinds,
        pattern=tuple(kinds.index(kind) for kind in change.layers()),
        hidden_size=shape.hidden_size,
        mtp_kind=change.block(model.mtp_block) if model.mtp_layers else None,
    )


def _widest(model: ModelConfig) -> int:
    blocks = [kind.mlp for kind in model.kinds]
    return max((block.ffn_hidden_size for block in blocks if isinstance(block, FeedForward)), default=0)


def _check(model: ModelConfig, was: Shape, shape: Shape) -> None:
    named = {"layers": shape.layers, "hidden_size": shape.hidden_size}
    if was.width:
        named["width"] = shape.width
    problems = []
    if was.experts:
        named |= {"experts": shape.experts, "top_k": shape.top_k}
        if shape.top_k > shape.experts:
            rule = f"must not exceed the {shape.experts} experts"
            problems.append(Problem("top_k", shape.top_k, rule, f"for example {shape.experts}"))
    elif shape.experts or shape.top_k or shape.dense_layers:
        problems.append(
            Problem("experts", shape.experts, f"{model.name} has none", "begin with a model that has")
        )
    problems += [Problem(n, v, "must be at least 1") for n, v in named.items() if v < 1]
    if not 0 <= shape.dense_layers <= shape.layers:
        rule = f"must be from 0 to the {shape.layers} layers"
        problems.append(Problem("dense_layers", shape.dense_layers, rule))
    if problems:
        raise InputError(problems)


@dataclass(frozen=True)
class _Change:
    """One change of shape, block by block."""

    model: ModelConfig
    was: Shape
    shape: Shape

    def layers(self) -> Iterator[LayerKind]:
        first, body = self.was.dense_layers, self.model.layers[self.was.dense_layers :]
        for i in range(self.shape.layers):
            layer = self.model.layers[i] if i < first else body[(i - first) % len(body)]
            if isinstance(layer.mlp, NoFeedForward):  # half of a hybrid model's block
                yield layer
            elif i < self.shape.dense_layers:
                yield _with(layer, self.dense())
            elif i < first:
                assert self.model.moe is not None
                yield _with(layer, self.experts(self.model.moe))
            else:
                yield self.block(layer)

    def block(self, kind: LayerKind) -> LayerKind:
        """Return the block with its own kind of feed-forward part, resized."""
        if isinstance(kind.mlp, MixtureOfExperts):
            return _with(kind, self.experts(kind.mlp))
        if isinstance(kind.mlp, FeedForward) and not self.was.experts:
            return _with(kind, self.widened(kind.mlp))
        return kind

    def experts(self, moe: MixtureOfExperts) -> MixtureOfExperts:
        size, shared = self.shape.width, moe.shared_ffn_hidden_size
        number, rest = divmod(shared, moe.expert_ffn_hidden_size)
        experts, limit = self.shape.experts, moe.group_limit or moe.groups
        fits = experts % moe.groups == 0 and limit * experts >= self.shape.top_k * moe.groups
        return _changed(
            moe,
            num_experts=experts,
            top_k=self.shape.top_k,
            groups=moe.groups if fits else 1,
            group_limit=moe.group_limit if fits else None,
            expert_ffn_hidden_size=size,
            shared_ffn_hidden_size=shared if rest else number * size,
        )

    def widened(self, block: FeedForward) -> FeedForward:
        size = block.ffn_hidden_size * self.shape.width // self.was.width
        return _changed(block, ffn_hidden_size=max(1, size))

    def dense(self) -> FeedForward:
        blocks = [kind.mlp for kind in self.model.kinds]
        known = next((block for block in blocks if isinstance(block, FeedForward)), None)
        moe = self.model.moe
        if known or moe is None:
            return known or FeedForward(ffn_hidden_size=self.shape.width)
        moe = self.experts(moe)
        size = moe.top_k * moe.expert_ffn_hidden_size + moe.shared_ffn_hidden_size
        return FeedForward(ffn_hidden_size=size, gated=moe.gated)


def _with(kind: LayerKind, mlp: Mlp) -> LayerKind:
    return _changed(kind, name=str(mlp.kind), mlp=mlp)


def _changed(record: Record, **changes: Any) -> Record:
    """Build the record anew: ``model_copy`` would keep what was cached of the old one, and check nothing."""
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    return type(record).model_validate(fields | changes)
