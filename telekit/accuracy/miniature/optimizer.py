"""From a micro-batch's gradients to new weights: sums, reductions, clipping, AdamW."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from telekit.accuracy.miniature.mesh import Array, Place
from telekit.accuracy.miniature.parameters import Parameter
from telekit.accuracy.miniature.tape import Tape, Tensor


def gather_gradients(tape: Tape, parameters: Iterable[Parameter]) -> None:
    """Add a micro-batch's gradients to the main gradients, in float32 where weights are bfloat16."""
    for p in parameters:
        grad = p.value.grad
        p.value.grad = None
        if grad is None:  # an expert that no token reached has zeros, not nothing
            grad = np.zeros_like(p.master)
        if p.main_grad is None:
            p.main_grad = np.zeros_like(p.master)
        added, _ = tape.event(f"gradients.{p.name}.accumulate", "gradient", "backward",
                              lambda total, new: total + new, (p.main_grad, grad), {})  # fmt: skip
        p.main_grad = tape.mesh.wide(added)


def reduce_gradients(tape: Tape, parameters: dict[str, Parameter]) -> None:
    """Add over the ranks that had other tokens; then over the copies of a tied weight."""
    wide = tape.mesh.wide
    tape.phase = "backward"
    before: dict[str, Array] = {}
    for p in parameters.values():
        assert p.main_grad is not None
        tape.stage, before[p.name] = p.stage, p.main_grad
        if p.sequence_terms:
            point = f"gradients.{p.name}.sequence.all_reduce"
            p.main_grad = tape.collective("all_reduce", "tp", p.main_grad, wide, point=point)
        axes = "edp" if p.place.experts else "dp-cp"
        p.main_grad = tape.collective(
            "all_reduce", axes, p.main_grad, wide, point=f"gradients.{p.name}.all_reduce"
        )
    copies = tape.config.tied and tape.layout.pp > 1
    if copies:
        first, last = parameters["embedding.word_embeddings.weight"], parameters["output_layer.weight"]
        both = (first.main_grad, last.main_grad)
        point = "gradients.embedding.all_reduce"
        both, _ = tape.event(point, "collective", "backward", lambda a, b: (a + b, a + b), both, {})
        first.main_grad, last.main_grad = (wide(x) for x in both)
    for p in parameters.values():
        assert p.main_grad is not None
        terms = replace(p.place, data="partial", tensor="partial" if p.sequence_terms else p.place.tensor)
        parts: dict[str, tuple[Tensor, ...]] = {"output": (("0", p.main_grad, p.place, True),)}
        if not copies or p not in (first, last):  # a copy's own terms are no other layout's
            parts = {"input": (("0", before[p.name], terms, True),), **parts}
        tape.record("optimizer", f"Gradient.{p.name}.reduce", "backward", parts, stage=p.stage)


def _own_squares(tape: Tape, p: Parameter) -> Array:
    """Sum of squares of what each rank alone has: a weight that all tensor-parallel ranks have counts at the first."""
    assert p.main_grad is not None
    squares = np.square(p.main_grad).sum(axis=tuple(range(3, p.main_grad.ndim)), dtype=tape.mesh.dtype)
    if p.place.tensor != "split":
        squares = squares * (np.arange(tape.layout.tp) == 0)
    return np.asarray(squares)


def gradient_norm(tape: Tape, parameters: Iterable[Parameter]) -> Array:
    """Return the norm of the whole gradient as each rank gets it, (dp, cp, tp)."""
    n, wide = tape.layout, tape.mesh.wide
    dense, experts = (np.zeros((n.pp, *tape.mesh.shape), tape.mesh.dtype) for _ in range(2))
    for p in parameters:
        if p.counted:
            total = experts if p.place.experts else dense
            own, _ = tape.event(f"optimizer.grad_norm.{p.name}", "optimizer", "optimizer", partial(_own_squares, tape),
                                (p,), {})  # fmt: skip
            total[p.stage] = wide(total[p.stage] + own)
    sums = []
    for stage in range(n.pp):
        tape.stage = stage
        of_experts = tape.collective("all_reduce", "ep", experts[stage], wide,
                                     point="optimizer.grad_norm.experts.all_reduce")  # fmt: skip
        own = wide(dense[stage] + of_experts)
        sums.append(tape.collective("all_reduce", "tp", own, wide, point="optimizer.grad_norm.all_reduce"))
    total = sums[0]
    for other in sums[1:]:
        total = wide(total + other)
    return np.asarray(np.sqrt(total))


def _adam(grad: Array, master: Array, exp_avg: Array, exp_avg_sq: Array, *, lr: float, beta1: float, beta2: float,
          eps: float, weight_decay: float, time: int) -> tuple[Array, Array, Array]:  # fmt: skip
    first = exp_avg * beta1 + grad * (1 - beta1)
    second = exp_avg_sq * beta2 + grad * grad * (1 - beta2)
    size = np.sqrt(second / (1 - beta2**time)) + eps
    return master * (1 - lr * weight_decay) - lr * (first / (1 - beta1**time)) / size, first, second


def update(tape: Tape, parameters: dict[str, Parameter]) -> float:
    """Clip and step every parameter; return the norm of the gradient before clipping (of rank 0)."""
    c, wide = tape.config, tape.mesh.wide
    tape.phase = "optimizer"
    norm, _ = tape.event("optimizer.grad_norm", "optimizer", "optimizer", partial(gradient_norm, tape),
                         (parameters.values(),), {})  # fmt: skip
    clip = np.ones_like(norm)
    if c.clip_grad:
        clip, _ = tape.event(
            "optimizer.clip_grad", "optimizer", "optimizer", _clip, (norm,), {"largest": c.clip_grad}
        )
    tape.record("optimizer", "Optimizer.clip_grad_norm", "optimizer",
                {"output": (("total_norm", norm, Place("same"), True),)}, stage=-1)  # fmt: skip
    for p in parameters.values():
        assert p.main_grad is not None
        tape.stage = p.stage
        clipped = wide(p.main_grad * clip.reshape(*clip.shape, *(1,) * (p.main_grad.ndim - 3)))
        before = _tensors(p, clipped)
        settings: dict[str, Any] = {
            "lr": c.lr, "beta1": c.beta1, "beta2": c.beta2, "eps": c.adam_eps,
            "weight_decay": c.weight_decay if p.decays else 0.0, "time": tape.step + 1,
        }  # fmt: skip
        inputs = (clipped, p.master, p.exp_avg, p.exp_avg_sq)
        after, _ = tape.event(f"optimizer.{p.name}.adam", "optimizer", "optimizer", _adam, inputs, settings)
        p.master, p.exp_avg, p.exp_avg_sq = (wide(x) for x in after)
        p.value.data = tape.mesh.round(p.master)
        p.main_grad = None
        parts = {"input": before, "output": _tensors(p, clipped)[1:]}
        tape.record("optimizer", f"Optimizer.{p.name}.Adam", "optimizer", parts)
    tape.phase = "forward"
    return float(norm[0, 0, 0])


def _clip(norm: Array, *, largest: float) -> Array:
    return np.minimum(1, largest / (norm + 1e-6)).astype(norm.dtype)


def _tensors(p: Parameter, grad: Array) -> tuple[Tensor, ...]:
    place = p.place
    return (
        ("grad", grad, place, True), ("parameter", p.master, place, True), ("exp_avg", p.exp_avg, place, True),
        ("exp_avg_sq", p.exp_avg_sq, place, True),
    )  # fmt: skip
