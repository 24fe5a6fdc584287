"""A fourth table: experts and their exchange, routing, tied copies, rounding, and the optimizer.

Each is of a kind that the locator did not name when its author tried some ninety faults of these parts on it.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
from planted_faults import (
    ANY_PARAMETER,
    BACKWARD,
    DENSE,
    DP2,
    DP2_MB2,
    EP2,
    EP2_TP2,
    EP4,
    FORWARD,
    LAYER1,
    MIXTURE,
    ONLY_EXPERTS,
    OPTIMIZER,
    PP2,
    PP2_TP2,
    SETUP,
    TIED,
    TP2,
    TP2_DP2,
    Planted,
    at,
    bf16,
    of,
)

from telekit.accuracy.causes import finding as f
from telekit.accuracy.miniature import Fault, Layout, with_settings

EP2_MB2, MB4 = Layout(dp=2, ep=2, micro_batches=2), Layout(micro_batches=4)
DISPATCHER, EXPERTS, ROUTER = (f"{LAYER1}.mlp.{name}" for name in ("token_dispatcher", "experts", "router"))
COMBINE = f"{DISPATCHER}.combine.all_to_all"
TIES = r"embedding|output_layer"

# --- experts -----------------------------------------------------------------------------------------------------


def gradient_with_experts(order):
    """Rows' gradients with the weights of a rank's experts in another order."""

    def change(event):
        grad, x, weight = event.inputs
        return event.call(grad, x, order(weight))[0], event.call()[1]

    return change


def next_of_rank(by):
    return lambda weight: np.roll(weight, -by, axis=3)


def first_of_rank(event):
    x, weight = event.inputs
    return event.call(x, np.repeat(weight[:, :, :, :1], weight.shape[3], axis=3))


def before_they_came(own):
    """Rows of other ranks are read before they are there: nothing, or what the rank has at that place."""

    def change(event):
        out, x = event.call(), event.inputs[0]
        for rank in range(len(x)):
            held = np.broadcast_to(x[rank], x.shape).copy() if own else np.zeros_like(x)
            held[rank] = x[rank]
            out[rank] = event.call(held)[rank]
        return out

    return change


def of_the_last_micro_batch():
    kept = {}

    def change(event):
        new = event.call()
        old, kept["rows"] = kept.get("rows", new), new
        return old if old.shape == new.shape else new

    return [Fault(COMBINE, change)]


def not_put_back(event):
    rows, weights = event.inputs
    plan = event.settings["plan"]
    order = np.broadcast_to(np.arange(plan.order.shape[-1]), plan.order.shape).copy()
    return event.call(rows, weights, plan=replace(plan, order=order))


def added_in_bf16(event):
    rows, weights = event.inputs
    total = np.float32(0)
    for choice in np.eye(weights.shape[-1], dtype=weights.dtype):
        total = bf16(total + bf16(event.call(rows, weights * choice)))
    event.used = (event.inputs, event.settings)
    return total


def without_the_last_row(event):
    """Weights' gradients miss the last row of each expert."""
    grad, x, weight = event.inputs
    offsets, grad = event.settings["plan"].offsets.reshape(*grad.shape[:3], -1), grad.copy()
    for rank in np.ndindex(*grad.shape[:3]):
        at = offsets[rank]
        grad[rank][at[1:][np.diff(at) > 0] - 1] = 0
    return event.call()[0], event.call(grad, x, weight)[1]


def overwritten():
    """The last micro-batch's gradient takes the place of the sum."""
    point = f"gradients.{EXPERTS}.linear_fc1.weight.accumulate"
    return [Fault(point, lambda event: event.inputs[1] if event.micro_batch else event.call())]


# --- routing -----------------------------------------------------------------------------------------------------


def bias_in_weights(event):
    p = event.inputs[0]
    bias = np.linspace(-0.1, 0.1, p.shape[-1]).astype(p.dtype)
    return event.call(p + bias, indices=event.call()[1])


def first_choice_alone(event):
    weights, chosen = event.call()
    return weights * (np.arange(weights.shape[-1]) == 0) / weights[..., :1], chosen


# --- rounding ----------------------------------------------------------------------------------------------------


def split_sum(pieces):
    """A product whose inner dimension is summed piece by piece in bfloat16."""

    def change(event):
        x, weight = event.inputs
        total = np.float32(0)
        for k in np.array_split(np.arange(x.shape[-1]), pieces):
            part = event.call(np.ascontiguousarray(x[..., k]), np.ascontiguousarray(weight[..., k]))
            total = bf16(total + bf16(part))
        event.used = (event.inputs, event.settings)
        return total

    return change


def _cut(x, more=0):
    bits = np.ascontiguousarray(x.astype(np.float32)).view(np.uint32) + np.asarray(more, np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(x.dtype)


def at_random(event):
    out = event.call()
    return _cut(out, np.random.default_rng(0).integers(0, 1 << 16, out.shape))


def old_scale(share):
    """An input in fp8 with the scale of a time when its largest value was smaller."""

    def change(event):
        x = event.inputs[0]
        scale = np.float32(448 / (share * np.abs(x).max()))
        held = np.clip(x * scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(x.dtype) / scale
        return event.call(held.astype(x.dtype), *event.inputs[1:])

    return change


def in_fp16(event):
    return event.call().astype(np.float16).astype(np.float32)


# --- the optimizer -----------------------------------------------------------------------------------------------


def decays_afterwards(event):
    master, first, second = event.call(weight_decay=0.0)
    k = event.settings
    return master * (1 - k["lr"] * k["weight_decay"]), first, second


def change_clipped(event):
    master, first, second = event.call()
    old = event.inputs[1]
    return old + np.clip(master - old, -5e-4, 5e-4), first, second


def clipped_by_value(event):
    return event.call(np.clip(event.inputs[0], -3e-3, 3e-3), *event.inputs[1:])


def experts_moved(event):
    master, first, second = event.call()
    return np.roll(master, 1, axis=3), first, second


def over_tp(event):
    """A reduced gradient is reduced over ranks that hold other pieces of the weight."""
    x = event.call()
    return np.broadcast_to(x.sum(axis=2, keepdims=True), x.shape).astype(x.dtype).copy()


def apart(event):
    shape = [2 if n == 2 else 1 for n in (event.layout.dp, event.layout.cp, event.layout.tp)]
    return event.call() * np.array([1, 1.2], np.float32).reshape(shape)


def of_copy(**settings):
    return at("optimizer.output_layer.weight.adam", with_settings(**settings))


LOST = (f.DROPPED, f.ZERO, f.MISSING_TERM)
NOT_YET = (*LOST, f.STALE, f.DUPLICATED)
OTHER_WEIGHT = (f.PERMUTATION, f.DIFFERENT_WEIGHTS, f.DUPLICATED)
FC1, FC2 = of(1, r"mlp.experts\.linear_fc1"), of(1, r"mlp.experts\.linear_fc2")
ROWS, ROUTED = of(1, "mlp.token_dispatcher"), of(1, "mlp.router")
WRONG = (f.WRONG_DTYPE,)
SUMMED = (f.MISSING_REDUCTION, f.MISSING_TERM)

FOURTH_B = (
    Planted("tied: the sum reaches the first copy only", at("gradients.embedding.all_reduce", lambda e: (
        e.inputs[0] + e.inputs[1], e.inputs[1])), TIES, BACKWARD, SUMMED, (PP2, PP2_TP2), TIED),
    Planted("tied: the first copy's gradient counted twice, the other's not", at("gradients.embedding.all_reduce",
            lambda e: (2 * e.inputs[0], 2 * e.inputs[0])), TIES, BACKWARD, SUMMED, (PP2, PP2_TP2), TIED),
    Planted("tied: the copies' gradients exchanged", at("gradients.embedding.all_reduce", lambda e: e.inputs[::-1]),
            TIES, BACKWARD, SUMMED, (PP2, PP2_TP2), TIED),
    Planted("tied: the head's copy starts from bfloat16", at("initial.output_layer.weight", lambda e: bf16(
        e.inputs[0])), TIES, SETUP, (f.DIFFERENT_WEIGHTS, f.WRONG_DTYPE), (PP2, PP2_TP2), TIED),
    Planted("tied: the head's copy has a learning rate of its own", of_copy(lr=5e-4), TIES, OPTIMIZER,
            (f.LEARNING_RATE,), (PP2, PP2_TP2), TIED),
    Planted("tied: the head's copy does not decay", of_copy(weight_decay=0.0), TIES, OPTIMIZER, (f.WEIGHT_DECAY,),
            (PP2, PP2_TP2), TIED),
    Planted("grouped dgrad with the next expert of the rank", at(f"{EXPERTS}.linear_fc2.backward",
            gradient_with_experts(next_of_rank(1))), FC2, BACKWARD, OTHER_WEIGHT, (EP2, EP2_TP2), ONLY_EXPERTS),
    Planted("grouped dgrad two experts of the rank on", at(f"{EXPERTS}.linear_fc1.backward",
            gradient_with_experts(next_of_rank(2))), FC1, BACKWARD, OTHER_WEIGHT, (EP2, EP2), ONLY_EXPERTS),
    Planted("grouped forward with the next expert of the rank", at(f"{EXPERTS}.linear_fc1", lambda e: e.call(
        e.inputs[0], next_of_rank(1)(e.inputs[1]))), FC1, FORWARD, OTHER_WEIGHT, (EP4, EP2), ONLY_EXPERTS),
    Planted("each rank's first expert for all its rows", at(f"{EXPERTS}.linear_fc1", first_of_rank), FC1, FORWARD,
            OTHER_WEIGHT, (EP2, EP4), ONLY_EXPERTS),
    Planted("combine reads nothing where rows have not come", at(COMBINE, before_they_came(False)), ROWS, FORWARD,
            LOST, (EP2, EP4), MIXTURE),
    Planted("combine reads local rows where others have not come", at(COMBINE, before_they_came(True)), ROWS, FORWARD,
            NOT_YET, (EP2, EP4), MIXTURE),
    Planted("combine reads the last micro-batch's rows", of_the_last_micro_batch, ROWS, FORWARD, NOT_YET,
            (EP2_MB2, EP2_MB2), ONLY_EXPERTS),
    Planted("combine gives ranks each other's rows", at(COMBINE, lambda e: e.call()[::-1].copy()), ROWS, FORWARD,
            (f.PERMUTATION, f.DUPLICATED), (EP2, EP2), ONLY_EXPERTS),
    Planted("returned rows one place off", at(COMBINE, lambda e: np.roll(e.call(), 1, axis=3)), ROWS, FORWARD,
            (f.PERMUTATION,), (EP2, EP4), ONLY_EXPERTS),
    Planted("rows not put back in the tokens' order", at(f"{DISPATCHER}.unpermute", not_put_back), ROWS, FORWARD,
            (f.PERMUTATION,), (EP2, DP2), ONLY_EXPERTS),
    Planted("experts' answers added in bfloat16", at(f"{DISPATCHER}.unpermute", added_in_bf16), ROWS, FORWARD, WRONG,
            (EP2, DP2), replace(ONLY_EXPERTS, top_k=4)),
    Planted("an expert's micro-batches overwrite", overwritten, FC1, BACKWARD, SUMMED, (EP2_MB2, EP2_MB2),
            ONLY_EXPERTS),
    Planted("the choice's bias in the weights", at(f"{ROUTER}.top_k", bias_in_weights), ROUTED, FORWARD, (f.ROUTER,),
            (EP2, TP2), ONLY_EXPERTS),
    Planted("all the weight on the first choice", at(f"{ROUTER}.top_k", first_choice_alone), ROUTED, FORWARD,
            (f.ROUTER, f.MISSING_TERM), (EP2, TP2), ONLY_EXPERTS),
    Planted("split-K sums in bfloat16", at(f"{LAYER1}.mlp.linear_fc2", split_sum(8)), of(1, "mlp.linear_fc2"),
            FORWARD, WRONG, (DP2, DP2)),
    Planted("outputs cut off, not rounded", at(f"{LAYER1}.mlp.linear_fc2", lambda e: _cut(e.call())),
            of(1, "mlp.linear_fc2"), FORWARD, WRONG, (DP2, DP2)),
    Planted("outputs rounded at random", at(f"{LAYER1}.mlp.linear_fc1", at_random), of(1, "mlp.linear_fc1"), FORWARD,
            WRONG, (DP2, DP2)),
    Planted("fp8 with an old scale", at(f"{LAYER1}.mlp.linear_fc1", old_scale(1 / 3)), of(1, "mlp.linear_fc1"),
            FORWARD, (f.OVERFLOW, f.WRONG_DTYPE), (DP2, TP2)),
    Planted("experts in fp8 with an old scale", at(f"{EXPERTS}.linear_fc2", old_scale(1 / 4)), FC2, FORWARD,
            (f.OVERFLOW, f.WRONG_DTYPE), (EP2, EP4), ONLY_EXPERTS),
    Planted("gradients accumulate in fp16", at("gradients.*.accumulate", in_fp16), r"Gradient", BACKWARD, WRONG,
            (MB4, DP2_MB2)),
    Planted("decay after the step", at("*.adam", decays_afterwards), ANY_PARAMETER, OPTIMIZER, (f.WEIGHT_DECAY,),
            (DP2, TP2), replace(DENSE, lr=1e-2)),
    Planted("the change of a weight clipped", at("*.adam", change_clipped), ANY_PARAMETER, OPTIMIZER,
            (f.CLIPPING, f.LEARNING_RATE), (DP2, TP2)),
    Planted("gradients clipped by value in the optimizer", at("*.adam", clipped_by_value), ANY_PARAMETER, OPTIMIZER,
            (f.CLIPPING,), (DP2, TP2)),
    Planted("experts' masters one place on after the step", at(f"optimizer.{EXPERTS}.linear_fc1.weight.adam",
            experts_moved), FC1, OPTIMIZER, (f.PERMUTATION,), (EP2, EP4), ONLY_EXPERTS),
    Planted("experts' weight gradients miss their last row", at(f"{EXPERTS}.linear_fc1.backward",
            without_the_last_row), FC1, BACKWARD, (f.MISSING_TERM, f.LOCAL), (EP2, EP4), ONLY_EXPERTS),
    Planted("a split weight's gradient summed over TP", at(f"gradients.{LAYER1}.mlp.linear_fc1.weight.all_reduce",
            over_tp), of(1, "mlp.linear_fc1"), BACKWARD, (f.DOUBLE_REDUCTION, f.EXTRA_TERM), (TP2_DP2, TP2_DP2)),
    Planted("ranks clip with coefficients of their own", at("optimizer.clip_grad", apart), "clip_grad", OPTIMIZER,
            (f.CLIPPING,), (DP2, TP2)),
)  # fmt: skip
