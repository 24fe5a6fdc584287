"""One tensor out of the shards of many ranks: which rule splits a name, and how its pieces go back together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.accuracy.compared import BACKWARD, INPUT, OUTPUT
from telekit.accuracy.comparing.names import read_call
from telekit.accuracy.readers.named import NamedTensor
from telekit.errors import bad

Array = NDArray[Any]
COLUMN, ROW, REPLICATED, SWIGLU, QKV, SUM, ZIGZAG, EXPERTS, AXIS = (
    "column", "row", "replicated", "swiglu", "qkv", "sum", "zigzag", "experts", "axis",
)  # fmt: skip
KINDS = (COLUMN, ROW, REPLICATED, SWIGLU, QKV, SUM, ZIGZAG, EXPERTS, AXIS)
# Names of Megatron-Core, Hugging Face transformers, vLLM and MindFormers, by the word that names the projection.
_WORDS = {
    COLUMN: "word_embeddings embed_tokens output_layer lm_head linear_qkv query_key_value linear_q_proj linear_q "
    "linear_q_up_proj linear_kv_up_proj q_b_proj kv_b_proj q_proj k_proj v_proj wq wk wv to_q to_k to_v gate_proj "
    "up_proj w1 w3",
    SWIGLU: "linear_fc1 gate_up_proj dense_h_to_4h w13 w_gate_hidden",
    QKV: "qkv_proj to_qkv w_qkv linear_qkv_concat",
    ROW: "linear_proj o_proj out_proj wo to_out dense linear_fc2 down_proj dense_4h_to_h w2",
    REPLICATED: "input_layernorm pre_mlp_layernorm post_attention_layernorm final_layernorm final_norm norm "
    "q_layernorm k_layernorm q_norm k_norm kv_norm router gate linear_q_down_proj linear_kv_down_proj",
}
_KIND_OF = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_GATED = {
    "linear_fc1": "linear_fc2",
    "gate_up_proj": "down_proj",
    "dense_h_to_4h": "dense_4h_to_h",
    "w13": "w2",
}


@dataclass(frozen=True)
class Rule:
    """How a tensor is split over tensor-parallel ranks.

    Attributes
    ----------
    kind : str
        ``column``, ``row`` and ``axis`` are plain pieces along ``axis``; ``swiglu`` holds [gate; up] of each rank,
        ``qkv`` [q; k; v] of each; ``sum`` are addends; ``zigzag`` are chunks r and 2n - 1 - r of a sequence;
        ``experts`` are whole experts, stacked; ``replicated`` are equal.
    axis : int
        Negative counts from the end.
    """

    kind: str
    axis: int = 0


def rule_for(tensor: NamedTensor, own: Mapping[str, str] | None = None) -> Rule | None:
    """Return how a tensor is split, by its name; None where no rule knows it.

    Parameters
    ----------
    tensor : NamedTensor
        A parameter, a gradient of one, or what goes in or out of a module.
    own : mapping of str to str
        Patterns to rules, tried first: ``column``, ``row``, ``replicated``, ``swiglu``, ``qkv``, ``sum``, ``experts``,
        ``axis 2``, ``zigzag 0``.

    Raises
    ------
    InputError
        A rule of ``own`` is not known.
    """
    for pattern, text in (own or {}).items():
        if re.search(pattern, tensor.name):
            return read_rule(text)
    known = [_KIND_OF[word] for word in tensor.name.split(".") if word in _KIND_OF]
    if not known:
        return None
    kind, dims = known[-1], len(tensor.shape or ())
    if tensor.api and tensor.part in (INPUT, OUTPUT):
        return _activation(kind, tensor)
    if kind == ROW:  # [out, in]: the inputs are split; a bias is added after the reduction
        return Rule(ROW, 1) if dims > 1 else Rule(REPLICATED)
    return Rule(kind, 0)


def _activation(kind: str, tensor: NamedTensor) -> Rule:
    """Return an activation's rule: what a column-parallel module puts out is split, and what a row-parallel takes."""
    outer = tensor.part == OUTPUT
    if read_call(tensor.api).phase == BACKWARD:  # gradients of what went out come in
        outer = not outer
    if kind == ROW:
        return Rule(REPLICATED) if outer else Rule(AXIS, -1)
    return Rule(AXIS if kind == COLUMN else kind, -1) if outer else Rule(REPLICATED)


def read_rule(text: str) -> Rule:
    """Read ``row``, ``axis 2``, ``zigzag 0``.

    Raises
    ------
    InputError
        No such rule.
    """
    kind, _, rest = text.strip().partition(" ")
    axis = {"": 1 if kind == ROW else 0}.get(rest)
    if axis is None and re.fullmatch(r"-?\d{1,2}", rest):
        axis = int(rest)
    if kind not in KINDS or axis is None:
        raise bad(
            "shards",
            text,
            f"must be one of {', '.join(KINDS)}, and an axis where it is not the usual",
            "axis 2",
        )
    return Rule(kind, axis)


@dataclass(frozen=True)
class Merged:
    """A tensor put together, what is said of it, and pieces that ought to equal one another."""

    tensor: NamedTensor
    notes: tuple[str, ...] = ()
    replicas: tuple[tuple[NamedTensor, ...], ...] = ()


def merge(
    parts: Sequence[NamedTensor],
    rule: Rule | None,
    *,
    expected: tuple[int, ...] | None = None,
    heads: int = 0,
    groups: int = 0,
) -> Merged:
    """Put the tensor-parallel pieces of one name together; nothing is loaded before the result is.

    Parameters
    ----------
    parts : sequence of NamedTensor
        In the order of tensor ranks; at least one.
    rule : Rule, or None
        How they were split, by their name.
    expected : tuple of int, optional
        Shape of the other side. It decides the axis where the rule does not lead to it, and that pieces of this very
        shape are replicas.
    heads, groups : int
        Attention heads and query groups of the whole model, for ``qkv``.

    Returns
    -------
    Merged
        Without data, with a note, where it cannot be known how the pieces go together: never a guess.
    """
    first = parts[0]
    if len(parts) == 1:
        return Merged(first)
    shapes = [p.shape for p in parts]
    if first.kind != "tensor" or any(s is None for s in shapes):
        return Merged(first, replicas=(tuple(parts),) if first.kind == "tensor" else ())
    if all(s == expected for s in shapes) and (rule is None or rule.kind != SUM):
        return Merged(first, (f"{len(parts)} replicas",), (tuple(parts),))
    if rule is not None and rule.kind != REPLICATED:
        made = _by_rule(parts, rule, heads, groups)
        if made is not None and (
            expected is None or made.tensor.shape == expected or not made.tensor.has_data
        ):
            return made
    axis = None if expected is None else _axis_by_shape([s for s in shapes if s is not None], expected)
    if axis is not None:
        said = f"{len(parts)} shards joined along axis {axis}, as golden's shape asks for"
        return Merged(_lazy(parts, expected or (), lambda a: np.concatenate(a, axis)), (said,))
    if rule is None:
        said = f"no rule says how {len(parts)} ranks hold it: taken as replicas"
        return Merged(first, (said,), (tuple(parts),))
    return Merged(first, (f"{len(parts)} replicas",), (tuple(parts),))


def _by_rule(parts: Sequence[NamedTensor], rule: Rule, heads: int, groups: int) -> Merged | None:
    """Merge as the rule says; None where the shapes do not allow it."""
    shapes = [p.shape or () for p in parts]
    dims, count = len(shapes[0]), len(parts)
    if any(len(s) != dims for s in shapes) or not -dims <= rule.axis < dims:
        return None
    axis = rule.axis % dims
    if rule.kind == SUM:
        return Merged(_lazy(parts, shapes[0], _added), (f"{count} addends summed in float32",))
    if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1:
        return None
    whole = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
    said = f"{count} shards joined by the rule {rule.kind}, axis {axis}"
    if rule.kind == SWIGLU:
        return Merged(_lazy(parts, whole, lambda a: join_segments(a, (1, 1), axis)), (said,))
    if rule.kind == ZIGZAG:
        return Merged(_lazy(parts, whole, lambda a: join_zigzag(a, axis)), (said,))
    if rule.kind == QKV:
        return _merge_qkv(parts, axis, whole, heads, groups)
    return Merged(_lazy(parts, whole, lambda a: np.concatenate(a, axis)), (said,))


def _merge_qkv(
    parts: Sequence[NamedTensor], axis: int, whole: tuple[int, ...], heads: int, groups: int
) -> Merged:
    """Join [q; k; v] of each rank; where there are more ranks than groups, several hold the same k and v."""
    count = len(parts)
    if not heads or not groups or heads % count or (groups % count and count % groups):
        said = "q, k and v of each rank are fused: say heads and groups of the whole model in the mapping"
        return Merged(replace(parts[0], shape=whole, loader=None, statistics=None, md5=None), (said,))
    repeated = max(count // groups, 1)
    ratios = (heads // count, max(groups // count, 1), max(groups // count, 1))
    width = (parts[0].shape or ())[axis] // sum(ratios)
    shape = (*whole[:axis], (heads + 2 * groups) * width, *whole[axis + 1 :])
    said = f"{count} shards of [q; k; v] joined, {heads} heads and {groups} groups"
    return Merged(
        _lazy(parts, shape, lambda a: join_segments(a, ratios, axis, (1, repeated, repeated))), (said,)
    )


def join_segments(
    parts: Sequence[Array], ratios: Sequence[int], axis: int, every: Sequence[int] | None = None
) -> Array:
    """Join pieces that hold the same segments each: all first segments, then all second ones.

    Parameters
    ----------
    parts : sequence of array
        In the order of tensor ranks.
    ratios : sequence of int
        Relative lengths of the segments along ``axis`` in each piece: (1, 1) for [gate; up].
    every : sequence of int, optional
        Of each segment, every how many-th piece is taken: 2 where two ranks hold the same keys.

    Raises
    ------
    InputError
        The ratios do not divide a piece.
    """
    total = sum(ratios)
    for part in parts:
        if part.shape[axis] % total:
            rule = f"axis {axis} must be a multiple of {total}: it holds segments of {tuple(ratios)}"
            raise bad("shape", part.shape, rule, f"{part.shape[axis] // total * total}")
    found: list[Array] = []
    for k in range(len(ratios)):
        for part in parts[:: (every or [1] * len(ratios))[k]]:
            unit = part.shape[axis] // total
            start = sum(ratios[:k]) * unit
            found.append(part[(slice(None),) * axis + (slice(start, start + ratios[k] * unit),)])
    return np.concatenate(found, axis)


def split_segments(whole: Array, count: int, ratios: Sequence[int], axis: int) -> list[Array]:
    """Split as a tensor-parallel model does: each segment in ``count`` pieces; undone by `join_segments`."""
    total, size = sum(ratios), whole.shape[axis]
    if size % (total * count):
        raise bad("shape", whole.shape, f"axis {axis} must be a multiple of {total * count}")
    ends = np.cumsum([r * size // total for r in ratios])[:-1]
    segments = np.split(whole, ends, axis)
    pieces = [np.split(s, count, axis) for s in segments]
    return [np.concatenate([p[r] for p in pieces], axis) for r in range(count)]


def join_zigzag(parts: Sequence[Array], axis: int) -> Array:
    """Join a sequence of which rank r of n holds chunks r and 2n - 1 - r (context parallelism, balanced)."""
    n = len(parts)
    if any(p.shape[axis] % 2 for p in parts):
        raise bad("shape", parts[0].shape, f"axis {axis} must be even: each rank holds two chunks")
    halves = [np.split(p, 2, axis) for p in parts]
    return np.concatenate([h[0] for h in halves] + [halves[r][1] for r in reversed(range(n))], axis)


def _added(arrays: Sequence[Array]) -> Array:
    total = arrays[0].astype(np.float32)
    for array in arrays[1:]:
        total += array.astype(np.float32)
    return total


def _axis_by_shape(shapes: Sequence[tuple[int, ...]], expected: tuple[int, ...]) -> int | None:
    """Return the one axis along which pieces add up to a shape; a tie is no answer."""
    if any(len(s) != len(expected) for s in shapes):
        return None
    fits = [
        axis
        for axis, length in enumerate(expected)
        if sum(s[axis] for s in shapes) == length
        and all((*s[:axis], *s[axis + 1 :]) == (*expected[:axis], *expected[axis + 1 :]) for s in shapes)
    ]
    return fits[0] if len(fits) == 1 else None


def _lazy(
    parts: Sequence[NamedTensor], shape: tuple[int, ...], join: Callable[[Sequence[Array]], Array]
) -> NamedTensor:
    def load() -> Array:
        return join([p.load() for p in parts])

    whole = all(p.has_data for p in parts)
    place = f"merged of {', '.join(p.place for p in parts[:4])}{' and others' if len(parts) > 4 else ''}"
    return replace(
        parts[0], shape=shape, place=place, loader=load if whole else None, nbytes=sum(p.nbytes for p in parts),
        statistics=None, md5=None, rank=None, shard="",
    )  # fmt: skip


def gated(name: str, shapes: Mapping[str, tuple[int, ...] | None]) -> bool | None:
    """Whether a fused first projection holds [gate; up]: twice as many rows as its second one takes. None: not known.

    ``shapes`` are those of one rank.
    """
    words = name.split(".")
    for i in range(len(words) - 1, -1, -1):
        if words[i] in _GATED:
            own = shapes.get(name)
            other = shapes.get(".".join([*words[:i], _GATED[words[i]], *words[i + 1 :]]))
            if own and other and len(other) > 1:
                return own[0] == 2 * other[1]
            return None
    return None
