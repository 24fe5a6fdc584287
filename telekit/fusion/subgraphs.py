"""Subgraphs of a transformer layer, with symbolic sizes, for 16-bit activations and 32-bit arithmetic inside.

T tokens, H width, F width of a feed-forward block, E experts, K experts a token, N copies of tokens, R = head size / 2,
A heads, V vocabulary, P parameters. Random numbers (dropout's mask) and selections (top-k) are inputs: they are kernels
of their own. Each graph casts where a framework's own code does, so that bytes are right.
"""

from __future__ import annotations

from collections.abc import Callable

from telekit.errors import bad
from telekit.fusion.graph import Graph, Value


def rms_norm(dtype: str = "bf16", epsilon: float = 1e-6, residual: bool = False) -> Graph:
    """``x / sqrt(mean(x^2) + epsilon) * weight``; with ``residual`` the sum x + residual is normed, and leaves too."""
    graph = Graph("residual-rms-norm" if residual else "rms-norm")
    x, weight = graph.input("x", ("T", "H"), dtype), graph.input("weight", ("H",), dtype)
    if residual:
        x = x + graph.input("residual", ("T", "H"), dtype)
        graph.output(x, "sum")
    wide = x.cast("fp32")
    scale = (wide.square().mean(-1, keepdims=True) + epsilon).rsqrt()
    graph.output((wide * scale).cast(dtype) * weight, "y")
    return graph


def rms_norm_backward(dtype: str = "bf16", epsilon: float = 1e-6, residual: bool = False) -> Graph:
    """Gradients of RMSNorm's input and weight; the scale is computed again.

    With ``residual``, the gradient that reaches the sum past the norm is added.
    """
    graph = Graph("residual-rms-norm-backward" if residual else "rms-norm-backward")
    dy, x = (
        graph.input("dy", ("T", "H"), dtype).cast("fp32"),
        graph.input("x", ("T", "H"), dtype).cast("fp32"),
    )
    weight = graph.input("weight", ("H",), dtype).cast("fp32")
    scale = (x.square().mean(-1, keepdims=True) + epsilon).rsqrt()
    normed, gradient = x * scale, dy * weight
    projected = (gradient * normed).mean(-1, keepdims=True)
    dx = ((gradient - normed * projected) * scale).cast(dtype)
    graph.output(dx + graph.input("dsum", ("T", "H"), dtype) if residual else dx, "dx")
    graph.output((dy * normed).sum(0), "dweight")
    return graph


def swiglu(dtype: str = "bf16") -> Graph:
    """``silu(gate) * up``, in the activations' dtype."""
    graph = Graph("swiglu")
    gate, up = (graph.input(name, ("T", "F"), dtype) for name in ("gate", "up"))
    graph.output(gate.silu() * up, "y")
    return graph


def swiglu_backward(dtype: str = "bf16") -> Graph:
    """Gradients of gate and up."""
    graph = Graph("swiglu-backward")
    dy, gate, up = (graph.input(name, ("T", "F"), dtype) for name in ("dy", "gate", "up"))
    share = gate.sigmoid()
    silu = gate * share
    graph.output(dy * up * (share + silu * (1.0 - share)), "dgate")
    graph.output(dy * silu, "dup")
    return graph


def rotary(dtype: str = "bf16", backward: bool = False) -> Graph:
    """Rotate pairs (first half, second half of a head) by each token's angles; backward turns the other way.

    The halves are two inputs, for a graph has no slices; ``cos`` and ``sin`` are (T, 1, R).
    """
    graph = Graph("rotary-backward" if backward else "rotary")
    first, second = (graph.input(name, ("T", "A", "R"), dtype) for name in ("first", "second"))
    cos, sin = (graph.input(name, ("T", 1, "R"), dtype) for name in ("cos", "sin"))
    if backward:
        graph.output(first * cos + second * sin, "dfirst")
        graph.output(second * cos - first * sin, "dsecond")
    else:
        graph.output(first * cos - second * sin, "first_turned")
        graph.output(second * cos + first * sin, "second_turned")
    return graph


def router_scores(score: str = "softmax") -> Graph:
    """Scores of all experts from the router's logits (T, E).

    The sigmoid's come with the bias too, as ``choice``: what DeepSeek-V3 chooses by.

    Raises
    ------
    InputError
        ``score`` is neither softmax nor sigmoid.
    """
    if score not in ("softmax", "sigmoid"):
        raise bad("score", score, "must be softmax or sigmoid", "softmax")
    graph = Graph(f"router-{score}")
    logits = graph.input("logits", ("T", "E"), "fp32")
    scores = _softmax(logits)[0] if score == "softmax" else logits.sigmoid()
    graph.output(scores, "scores")
    if score == "sigmoid":
        graph.output(scores + graph.input("bias", ("E",), "fp32"), "choice")
    return graph


def router_weights(scale: float = 1.0) -> Graph:
    """Weights (T, E) of the chosen experts, 0 elsewhere, from their scores and the 0/1 mask of the choice.

    The choice itself is a sort: a kernel between this one and :func:`router_scores`, which cannot be fused across it.
    """
    graph = Graph("router-weights")
    scores, mask = (graph.input(name, ("T", "E"), "fp32") for name in ("scores", "mask"))
    chosen = scores * mask
    graph.output(chosen / (chosen.sum(-1, keepdims=True) + 1e-20) * scale, "weights")
    return graph


def router_backward(score: str = "softmax") -> Graph:
    """Gradient of the logits from that of the scores.

    Raises
    ------
    InputError
        ``score`` is neither softmax nor sigmoid.
    """
    if score not in ("softmax", "sigmoid"):
        raise bad("score", score, "must be softmax or sigmoid", "softmax")
    graph = Graph(f"router-{score}-backward")
    dscores, scores = (graph.input(name, ("T", "E"), "fp32") for name in ("dscores", "scores"))
    if score == "softmax":
        graph.output(scores * (dscores - (dscores * scores).sum(-1, keepdims=True)), "dlogits")
    else:
        graph.output(dscores * scores * (1.0 - scores), "dlogits")
    return graph


def router_weights_backward(scale: float = 1.0) -> Graph:
    """Gradient of the scores from that of the weights."""
    graph = Graph("router-weights-backward")
    dweights, scores, mask = (
        graph.input(name, ("T", "E"), "fp32") for name in ("dweights", "scores", "mask")
    )
    chosen = scores * mask
    total = chosen.sum(-1, keepdims=True) + 1e-20
    shared = (dweights * chosen).sum(-1, keepdims=True) / total
    graph.output((dweights - shared) / total * mask * scale, "dscores")
    return graph


def _softmax(x: Value) -> tuple[Value, Value, Value]:
    """Softmax of the last axis, with the largest and the sum it is made from."""
    largest = x.max(-1, keepdims=True)
    powers = (x - largest).exp()
    total = powers.sum(-1, keepdims=True)
    return powers / total, largest, total


def bias_dropout_add(dtype: str = "bf16", keep: float = 0.9) -> Graph:
    """``residual + (x + bias) * mask / keep``; the mask of zeros and ones is an input.

    Raises
    ------
    InputError
        ``keep`` is not above 0 and at most 1.
    """
    if not 0 < keep <= 1:
        raise bad("keep", keep, "must be above 0 and at most 1", "0.9")
    graph = Graph("bias-dropout-add")
    x, bias = graph.input("x", ("T", "H"), dtype), graph.input("bias", ("H",), dtype)
    mask, residual = graph.input("mask", ("T", "H"), dtype), graph.input("residual", ("T", "H"), dtype)
    graph.output(residual + (x + bias) * mask * (1 / keep), "y")
    return graph


def cross_entropy(dtype: str = "bf16") -> Graph:
    """Loss of each token, and the softmax that the backward pass needs (Megatron-Core keeps it too).

    ``target`` (T, 1) holds each token's logit of its label, which a gather along each row picks beforehand.
    """
    graph = Graph("cross-entropy")
    logits, target = (
        graph.input("logits", ("T", "V"), dtype).cast("fp32"),
        graph.input("target", ("T", 1), "fp32"),
    )
    softmax, largest, total = _softmax(logits)
    graph.output(total.log() + largest - target, "loss")
    graph.output(softmax.cast(dtype), "softmax")
    return graph


def cross_entropy_largest(dtype: str = "bf16") -> Graph:
    """Largest logit of each token, of a vocabulary that is split: what is all-reduced first."""
    graph = Graph("cross-entropy-largest")
    graph.output(graph.input("logits", ("T", "V"), dtype).cast("fp32").max(-1, keepdims=True), "largest")
    return graph


def cross_entropy_sum(dtype: str = "bf16") -> Graph:
    """Exponentials less the largest logit of all parts, and their sum: what is all-reduced second."""
    graph = Graph("cross-entropy-sum")
    logits, largest = graph.input("logits", ("T", "V"), dtype), graph.input("largest", ("T", 1), "fp32")
    raised = (logits.cast("fp32") - largest).exp()
    graph.output(raised, "raised")
    graph.output(raised.sum(-1, keepdims=True), "total")
    return graph


def cross_entropy_end(dtype: str = "bf16") -> Graph:
    """Loss and softmax from the sum of all parts; ``target`` is less the largest logit already."""
    graph = Graph("cross-entropy-end")
    raised = graph.input("raised", ("T", "V"), "fp32")
    total, target = (graph.input(name, ("T", 1), "fp32") for name in ("total", "target"))
    graph.output(total.log() - target, "loss")
    graph.output((raised / total).cast(dtype), "softmax")
    return graph


def cross_entropy_backward(dtype: str = "bf16") -> Graph:
    """Gradient of the logits, softmax times the loss's gradient, but for the label's 1, which a scatter takes off."""
    graph = Graph("cross-entropy-backward")
    softmax, dloss = graph.input("softmax", ("T", "V"), dtype), graph.input("dloss", ("T", 1), "fp32")
    graph.output((softmax.cast("fp32") * dloss).cast(dtype), "dlogits")
    return graph


def adam(beta1: float = 0.9, beta2: float = 0.95, epsilon: float = 1e-8, decay: float = 0.1) -> Graph:
    """AdamW with fp32 master weights and moments and a bf16 copy for the products.

    ``rate`` is the learning rate, ``unbias1`` and ``unbias2`` are ``1 / (1 - beta^step)``: numbers of each step.
    """
    graph = Graph("adamw")
    master, first, second, gradient = (
        graph.input(name, ("P",), "fp32") for name in ("master", "first", "second", "gradient")
    )
    rate, unbias1, unbias2 = (graph.input(name, (), "fp32") for name in ("rate", "unbias1", "unbias2"))
    first = first * beta1 + gradient * (1 - beta1)
    second = second * beta2 + gradient.square() * (1 - beta2)
    step = (first * unbias1) / ((second * unbias2).sqrt() + epsilon)
    master = master - rate * (step + master * decay)
    for value, name in ((master, "master_new"), (first, "first_new"), (second, "second_new")):
        graph.output(value, name)
    graph.output(master.cast("bf16"), "parameter")
    return graph


def permute(dtype: str = "bf16") -> Graph:
    """Copy tokens in the order of experts: row i is token ``index[i]``."""
    graph = Graph("permute")
    x, index = graph.input("x", ("T", "H"), dtype), graph.input("index", ("N",), "int64")
    graph.output(graph.gather(x, index), "y")
    return graph


def unpermute(dtype: str = "bf16") -> Graph:
    """Each token's weighted sum of its experts' outputs: rows ``index`` (T, K), times ``weights`` (T, K, 1)."""
    graph = Graph("unpermute")
    x, index = graph.input("x", ("N", "H"), dtype), graph.input("index", ("T", "K"), "int64")
    weights = graph.input("weights", ("T", "K", 1), dtype)
    graph.output((graph.gather(x, index) * weights).sum(1), "y")
    return graph


def permute_backward(dtype: str = "bf16") -> Graph:
    """Each token's sum of the gradients of its copies."""
    graph = Graph("permute-backward")
    dy, index = graph.input("dy", ("N", "H"), dtype), graph.input("index", ("T", "K"), "int64")
    graph.output(graph.gather(dy, index).sum(1), "dx")
    return graph


def unpermute_backward(dtype: str = "bf16") -> Graph:
    """Gradients of the experts' outputs, row by row, and of their weights."""
    graph = Graph("unpermute-backward")
    dy, token = graph.input("dy", ("T", "H"), dtype), graph.input("token", ("N",), "int64")
    x, weights = graph.input("x", ("N", "H"), dtype), graph.input("weights", ("N", 1), dtype)
    rows = graph.gather(dy, token)
    graph.output(rows * weights, "dx")
    graph.output((rows * x).sum(-1, keepdims=True), "dweights")
    return graph


def feed_forward(dtype: str = "bf16") -> Graph:
    """RMSNorm, two products, SwiGLU, a product and the residual: most kinds of kernels in one graph."""
    graph = Graph("feed-forward")
    x, weight = graph.input("x", ("T", "H"), dtype), graph.input("weight", ("H",), dtype)
    wide = x.cast("fp32")
    scale = (wide.square().mean(-1, keepdims=True) + 1e-6).rsqrt()
    normed = (wide * scale).cast(dtype) * weight
    gate, up = (normed @ graph.input(name, ("H", "F"), dtype) for name in ("w_gate", "w_up"))
    inner = gate.silu() * up
    graph.output(inner @ graph.input("w_down", ("F", "H"), dtype) + x, "y")
    return graph


SUBGRAPHS: dict[str, Callable[[], Graph]] = {
    "rms-norm": rms_norm,
    "residual-rms-norm": lambda: rms_norm(residual=True),
    "rms-norm-backward": rms_norm_backward,
    "residual-rms-norm-backward": lambda: rms_norm_backward(residual=True),
    "swiglu": swiglu,
    "swiglu-backward": swiglu_backward,
    "rotary": rotary,
    "rotary-backward": lambda: rotary(backward=True),
    "router-softmax": router_scores,
    "router-sigmoid": lambda: router_scores("sigmoid"),
    "router-weights": lambda: router_weights(2.5),
    "router-softmax-backward": router_backward,
    "router-sigmoid-backward": lambda: router_backward("sigmoid"),
    "router-weights-backward": lambda: router_weights_backward(2.5),
    "bias-dropout-add": bias_dropout_add,
    "cross-entropy": cross_entropy,
    "cross-entropy-backward": cross_entropy_backward,
    "adamw": adam,
    "permute": permute,
    "permute-backward": permute_backward,
    "unpermute": unpermute,
    "unpermute-backward": unpermute_backward,
    "feed-forward": feed_forward,
}
"""By name, as the command line takes them."""

SIZES = {
    "T": 4096, "H": 2560, "F": 1536, "E": 192, "K": 4, "N": 16384, "A": 32, "R": 32, "V": 131072, "P": 2**24
}  # fmt: skip
"""Sizes of TeleChat3-105B (one sequence; 16 Mi parameters), where none are given."""


def subgraph(name: str) -> Graph:
    """One of :data:`SUBGRAPHS`.

    Raises
    ------
    InputError
        No such name.
    """
    if name not in SUBGRAPHS:
        raise bad("name", name, "no such subgraph", ", ".join(SUBGRAPHS))
    return SUBGRAPHS[name]()
