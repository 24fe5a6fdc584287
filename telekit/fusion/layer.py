"""The element-wise work of a real layer as graphs: what lies between its matrix products.

The lists of :mod:`telekit.operators.layer` say what a layer does and how wide it is; each operator there that is bound
by its bytes becomes the graph of what it computes, forward and backward. What no graph is known for is named, not
guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from telekit.fusion import subgraphs as made
from telekit.fusion.graph import Graph
from telekit.model.config import LayerKind, MixtureOfExperts, ModelConfig
from telekit.operators.layer import Operator, Shapes, head_operators, layer_operators, routed_tokens
from telekit.training.config import TrainConfig


@dataclass(frozen=True)
class Stretch:
    """Element-wise work between two matrix products, for one micro-batch on one device.

    Parameters
    ----------
    name : str
        The operator's name in the layer's list.
    forward, backward : Graph
        What it computes; ``backward`` is None where one of the stretches beside it has all of that.
    sizes : Mapping of str to int
        Value of each named size, of both graphs.
    """

    name: str
    forward: Graph
    backward: Graph | None
    sizes: Mapping[str, int]


def from_operators(
    model: ModelConfig, kind: LayerKind, train: TrainConfig, layout: Any
) -> tuple[tuple[Stretch, ...], tuple[str, ...]]:
    """Element-wise stretches of one block of ``kind``, in the order of the forward pass.

    Returns
    -------
    stretches, left_out : tuple
        The graphs; and the names of operators bound by their bytes for which no graph is known.
    """
    x = Shapes.of(model, train, layout)
    found: list[Stretch] = []
    left_out: list[str] = []
    for operator in layer_operators(model, kind, train, layout):
        stretches = list(_stretches(operator, x, kind, layout))
        found += stretches
        if operator.kind == "memory" and not stretches:
            left_out.append(operator.name)
    return tuple(found), tuple(left_out)


def head_stretches(model: ModelConfig, train: TrainConfig, layout: Any) -> tuple[Stretch, ...]:
    """Return final norm and cross-entropy of one micro-batch, on the device that has them."""
    x = Shapes.of(model, train, layout)
    names = {operator.name for operator in head_operators(model, train, layout)}
    dtype = _dtype(x)
    norm = _norm("final_norm", x.shard_tokens, x.hidden, dtype, residual=True)
    sizes = _sizes(T=x.tokens, V=model.vocab_size / x.tp)
    backward = made.cross_entropy_backward(dtype)
    if x.tp == 1:
        losses = [Stretch("cross_entropy", made.cross_entropy(dtype), backward, sizes)]
    else:  # an all-reduce of the largest logit and one of the sum lie between: no kernel spans them
        losses = [
            Stretch("cross_entropy_largest", made.cross_entropy_largest(dtype), None, sizes),
            Stretch("cross_entropy_sum", made.cross_entropy_sum(dtype), None, sizes),
            Stretch("cross_entropy", made.cross_entropy_end(dtype), backward, sizes),
        ]
    return (*[norm] * (norm.name in names), *(losses if "cross_entropy" in names else ()))


def _dtype(x: Shapes) -> str:
    return {2: "bf16", 4: "fp32"}[x.bytes]


def _sizes(**sizes: float) -> dict[str, int]:
    return {name: max(round(float(size)), 1) for name, size in sizes.items()}


def _norm(name: str, rows: float, width: float, dtype: str, residual: bool) -> Stretch:
    forward = made.rms_norm(dtype, residual=residual)
    return Stretch(name, forward, made.rms_norm_backward(dtype, residual=residual), _sizes(T=rows, H=width))


def _stretches(operator: Operator, x: Shapes, kind: LayerKind, layout: Any) -> Iterator[Stretch]:
    """Graphs of one operator of the list; none for a product, or where none is known."""
    if operator.name == "router" and isinstance(kind.mlp, MixtureOfExperts):
        yield from _router(x, kind.mlp)
        return
    for end, build in _BUILDERS.items():
        if operator.kind == "memory" and operator.name.endswith(end):
            yield from build(operator, x, kind, layout)
            return


def _router(x: Shapes, spec: MixtureOfExperts) -> Iterator[Stretch]:
    score = "sigmoid" if spec.correction_bias else "softmax"
    sizes = _sizes(T=x.shard_tokens, E=spec.num_experts)
    yield Stretch("router_scores", made.router_scores(score), made.router_backward(score), sizes)
    yield Stretch("router_weights", made.router_weights(), made.router_weights_backward(), sizes)


def _norms(operator: Operator, x: Shapes, kind: LayerKind, layout: Any) -> Iterator[Stretch]:
    residual = operator.name in ("input_norm", "pre_mlp_norm") and x.streams == 1
    width = x.hidden if residual else operator.forward_bytes / (2.0 * x.bytes * x.shard_tokens)
    yield _norm(operator.name, x.shard_tokens, width, _dtype(x), residual)


def _activation(operator: Operator, x: Shapes, kind: LayerKind, layout: Any) -> Iterator[Stretch]:
    spec: Any = kind.mlp
    if not spec.gated:
        return
    width = {
        "expert_activation": lambda: spec.expert_ffn_hidden_size / layout.etp,
        "shared_activation": lambda: spec.shared_ffn_hidden_size / x.tp,
        "activation": lambda: spec.ffn_hidden_size / x.tp,
    }[operator.name]()
    sizes = _sizes(T=operator.forward_bytes / (3.0 * x.bytes * width), F=width)
    yield Stretch(operator.name, made.swiglu(_dtype(x)), made.swiglu_backward(_dtype(x)), sizes)


def _rotary(operator: Operator, x: Shapes, kind: LayerKind, layout: Any) -> Iterator[Stretch]:
    """Turn queries and keys apart; latent attention turns one shared key a token, grouped queries a few."""
    spec: Any = kind.attention
    if operator.name != "rotary" or spec.kind not in ("mla", "gqa"):
        return
    half = (spec.qk_rope_head_dim if spec.kind == "mla" else spec.head_dim) / 2
    keys = 1 if spec.kind == "mla" else spec.kv_heads / x.tp
    graphs = made.rotary(_dtype(x)), made.rotary(_dtype(x), backward=True)
    for name, heads in (("rotary_queries", spec.heads / x.tp), ("rotary_keys", keys)):
        yield Stretch(name, *graphs, _sizes(T=x.tokens, A=heads, R=half))


def _permutation(operator: Operator, x: Shapes, kind: LayerKind, layout: Any) -> Iterator[Stretch]:
    spec: Any = kind.mlp
    copies, dtype = routed_tokens(x, spec, layout), _dtype(x)
    sizes = _sizes(T=copies / spec.top_k, K=spec.top_k, N=copies, H=spec.latent_size or x.hidden)
    if operator.name == "permute":
        yield Stretch("permute", made.permute(dtype), made.permute_backward(dtype), sizes)
    else:
        yield Stretch("unpermute", made.unpermute(dtype), made.unpermute_backward(dtype), sizes)


_BUILDERS: dict[str, Callable[[Operator, Shapes, LayerKind, Any], Iterator[Stretch]]] = {
    "norm": _norms,
    "activation": _activation,
    "rotary": _rotary,
    "permute": _permutation,
}
"""By the end of the operator's name (``unpermute`` ends in permute)."""
