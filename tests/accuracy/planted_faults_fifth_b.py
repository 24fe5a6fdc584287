"""A fifth table: the loss over a shared vocabulary, gated halves in ranks' pieces, routing, formats, the update.

Some are two authors' who had not read the locator, missed when they were fresh; the others are relatives of them. The
locator has since been improved on these very faults.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
from planted_faults import (
    BACKWARD,
    CP2_DP2,
    DENSE,
    DP2,
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
    SP2,
    TP2,
    TP4,
    Planted,
    at,
    bf16,
    of,
)

from telekit.accuracy.causes import finding as f
from telekit.accuracy.miniature import Fault, Layout

LOSS, NORM = r"\bloss\b", "grad_norm|clip"
E5M2, E4M3 = ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn
MB2 = Layout(micro_batches=2)
CP2_SP2 = Layout(cp=2, tp=2, sequence_parallel=True)
BALANCED, COUNTS = replace(ONLY_EXPERTS, aux_coefficient=0.1), (f.LOSS_TERM, f.MISSING_REDUCTION)


def step_before():
    """Every step has the first step's reduced gradient."""
    kept = {}

    def change(event):
        kept.setdefault("first", event.call())
        return kept["first"].copy()

    return [Fault(f"gradients.{FC2}.weight.all_reduce", change)]


def first_entry(event, logits):
    """Return the first id of each rank's shard, for tokens."""
    return (np.arange(event.layout.tp) * logits.shape[-1])[None, None, :, None, None]


def unmasked(index):
    """Ranks that do not hold the label add the logit at an entry of their own."""

    def make():
        kept = {}

        def remember(event):
            kept["logits"], kept["labels"] = event.inputs[0], event.settings["labels"]

        def change(event):
            logits = kept["logits"]
            width = logits.shape[-1]
            entry = kept["labels"] - first_entry(event, logits)
            other = (entry < 0) | (entry >= width)
            at_ = np.broadcast_to(index(entry, width), logits.shape[:-1])[..., None]
            more = np.take_along_axis(logits, at_, axis=-1)[..., 0]
            return event.call(event.inputs[0] + np.where(other, more, 0).astype(logits.dtype))

        return [Fault("loss", remember), Fault("loss.predicted.all_reduce", change)]

    return make


def smoothed(event):
    """Smoothing by the mean over the rank's own shard."""
    logits = event.inputs[-1].astype(np.float64)
    top = logits.max(axis=(2, 5), keepdims=True)
    lse = np.log(np.exp(logits - top).sum(axis=(2, 5), keepdims=True)) + top
    out = event.call()
    return (0.9 * out - 0.1 * (logits - lse).mean(axis=-1)).astype(out.dtype)


def smoothed_back(event):
    logits = event.inputs[1]
    width = logits.shape[-1]
    ones = (event.settings["labels"] - first_entry(event, logits))[..., None] == np.arange(width)
    return ((event.call()[0] + event.inputs[0][..., None] * (0.1 * ones - 0.1 / width)).astype(logits.dtype),)


def local_z(event):
    out = event.call()
    lse = np.log(np.exp(event.inputs[-1].astype(np.float64)).sum(axis=-1))
    return (out + 0.01 * lse**2).astype(out.dtype)


def last_entry_too(event):
    """Ranks without the label subtract one at their last entry."""
    logits, labels = event.inputs[1], event.settings["labels"]
    entry = labels - first_entry(event, logits)
    other = (entry < 0) | (entry >= logits.shape[-1])
    grad = event.call()[0].copy()
    grad[..., -1] -= np.where(other, event.inputs[0], 0).astype(grad.dtype)
    return (grad,)


def apart(x):
    return np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)


def gate_reversed(event):
    gate, up = np.split(event.inputs[0], 2, axis=-1)
    return event.call(np.concatenate([gate[..., ::-1], up], axis=-1))


def of_experts(own):
    """Gradients of the routing weights for the experts of the token's rank alone, or of the others."""

    def make():
        kept, base = {}, f"{LAYER1}.mlp.token_dispatcher"

        def remember(event):
            kept["chosen"] = event.inputs[0]

        def change(event):
            rows, weights = event.call()
            n, chosen = event.layout, kept["chosen"]
            rank = np.arange(n.dp * n.cp).reshape(n.dp, n.cp, 1, 1, 1, 1) % n.ep
            return rows, weights * ((chosen // (event.config.experts // n.ep) == rank) == own)

        return [Fault(f"{base}.plan", remember), Fault(f"{base}.unpermute.backward", change)]

    return make


def reread(written, read, scale=lambda x: 1.0):
    """The first input's bytes, written in one format, read in another."""

    def change(event):
        x, *rest = event.inputs
        by = scale(x)
        held = (x / by).astype(written)
        other = held.view(np.uint8 if held.itemsize == 1 else np.uint16).view(read)
        return event.call((other.astype(np.float64) * by).astype(x.dtype), *rest)

    return change


def by_row(x):
    top = np.abs(x).max(axis=-1, keepdims=True)
    return 2.0 ** (np.floor(np.log2(np.where(top > 0, top, 1))) - 14)


def squares_in_bf16(event):
    x, weight = event.inputs
    total = np.zeros(x.shape[:-1], np.float32)
    for channel in np.moveaxis(x, -1, 0):
        total = bf16(total + bf16(channel * channel))
    mean = bf16(total / x.shape[-1])[..., None]
    shape = (*weight.shape[:3], *(1,) * (x.ndim - 4), -1)
    return (x / np.sqrt(mean + event.settings["eps"]) * weight.reshape(shape)).astype(x.dtype)


def idle_experts(event):
    grad, *state = event.inputs
    none = np.abs(grad).max(axis=(4, 5), keepdims=True) == 0
    return tuple(np.where(none, old, new) for old, new in zip(state, event.call(), strict=True))


def keeps(rows):
    """Rows of a weight and its states that come out as they went in."""

    def change(event):
        new = [x.copy() for x in event.call()]
        for after, before in zip(new, event.inputs[1:], strict=True):
            after[..., rows, :] = before[..., rows, :]
        return tuple(new)

    return change


def of_stage(stage):
    return lambda event: event.call([p for p in event.inputs[0] if p.stage == stage])


def own_counts(*axes):
    """Counts of the balancing loss added over some axes of the ranks (dp, cp, tp) alone."""
    return lambda e: np.broadcast_to(e.inputs[0].sum(axis=axes, keepdims=True), e.inputs[0].shape).copy()


def of_rank(axis, rank):
    """Squares of one rank of an axis of the ranks (dp, cp, tp)."""

    def change(event):
        squares = event.call()
        shape = [-1 if i == axis else 1 for i in range(squares.ndim)]
        return squares * (np.arange(squares.shape[axis]) == rank).reshape(shape).astype(squares.dtype)

    return change


def underflows(event):
    """The first gradient in float16, with a loss scale too small for it."""
    x, *rest = event.call()
    return ((x * 2.0**-14).astype(np.float16).astype(x.dtype) * x.dtype.type(2.0**14), *rest)


GATED, FC1, FC2 = (f"{LAYER1}.mlp.{name}" for name in ("activation_func", "linear_fc1", "linear_fc2"))
PROJ, DISPATCHER = f"{LAYER1}.self_attention.linear_proj", r"layers\.1\.mlp\.(token_dispatcher|router)"

FIFTH_B = (
    Planted("cross-entropy: ranks without the label add their first logit", unmasked(lambda a, w: 0 * a), LOSS,
            FORWARD, (f.EXTRA_TERM,), (TP2, TP4)),
    Planted("cross-entropy: foreign labels are clipped", unmasked(lambda a, w: np.clip(a, 0, w - 1)), LOSS, FORWARD,
            (f.EXTRA_TERM,), (TP4, SP2)),
    Planted("cross-entropy: foreign labels at their remainder", unmasked(lambda a, w: a % w), LOSS, FORWARD,
            (f.EXTRA_TERM,), (SP2, TP4)),
    Planted("cross-entropy: gathered logits taken for shards", at("loss.sum_exp.all_reduce",
            lambda e: e.call() * e.layout.tp), LOSS, FORWARD, (f.DOUBLE_REDUCTION, f.NORMALISATION), (TP2, TP4)),
    Planted("cross-entropy: the label's logit counted by every rank", at("loss.predicted.all_reduce",
            lambda e: e.call() * e.layout.tp), LOSS, FORWARD, (f.DOUBLE_REDUCTION, f.SCALED), (TP2, TP4)),
    Planted("cross-entropy: smoothing over a shard", lambda: [Fault("loss", smoothed),
            Fault("loss.backward", smoothed_back)], LOSS, FORWARD, (f.LOSS_TERM, f.EXTRA_TERM), (TP2, TP4)),
    Planted("cross-entropy: gradient smoothed over a shard", at("loss.backward", smoothed_back), LOSS, BACKWARD,
            (f.LOSS_TERM, f.EXTRA_TERM), (TP4, TP2)),
    Planted("cross-entropy: z-loss of a shard", at("loss", local_z), LOSS, FORWARD, (f.LOSS_TERM,), (TP2, TP4)),
    Planted("cross-entropy: sum of exponentials in bfloat16", at("loss.sum_exp.all_reduce", lambda e: bf16(e.call())),
            LOSS, FORWARD, (f.WRONG_DTYPE,), (TP2, TP4)),
    Planted("cross-entropy: gradient at the last entry of other shards", at("loss.backward", last_entry_too), LOSS,
            BACKWARD, (f.EXTRA_TERM,), (TP4, TP2)),
    Planted("gate and up read interleaved in each rank", at(GATED, lambda e: e.call(apart(e.inputs[0]))),
            of(1, "mlp.activation_func"), FORWARD, (f.PERMUTATION, f.ACTIVATION), (TP2, TP4)),
    Planted("experts' gate and up read interleaved in each rank", at(f"{LAYER1}.mlp.experts.activation_func",
            lambda e: e.call(apart(e.inputs[0]))), of(1, r"mlp\.experts.*"), FORWARD, (f.PERMUTATION, f.ACTIVATION),
            (EP2_TP2, TP2), ONLY_EXPERTS),
    Planted("backward reads gate and up interleaved in each rank", at(f"{GATED}.backward",
            lambda e: e.call(e.inputs[0], apart(e.inputs[1]))), of(1, "mlp.activation_func"), BACKWARD,
            (f.PERMUTATION, f.ACTIVATION), (TP4, TP2)),
    Planted("gradients of gate and up written in two runs", at(f"{GATED}.backward", lambda e: (apart(e.call()[0]),)),
            of(1, "mlp.activation_func"), BACKWARD, (f.PERMUTATION, f.ACTIVATION), (TP2, TP4)),
    Planted("gate's channels backwards", at(GATED, gate_reversed), of(1, "mlp.activation_func"), FORWARD,
            (f.PERMUTATION,), (TP2, DP2)),
    Planted("routing weights' gradient from the rank's own experts", of_experts(True), DISPATCHER, BACKWARD,
            (f.MISSING_TERM, f.MISSING_REDUCTION), (EP2, EP4), MIXTURE),
    Planted("routing weights' gradient from other ranks' experts", of_experts(False), DISPATCHER, BACKWARD,
            (f.MISSING_TERM, f.MISSING_REDUCTION), (EP4, Layout(dp=2, cp=2, ep=2)), MIXTURE),
    Planted("experts read e5m2 gradients as e4m3", at(f"{LAYER1}.mlp.experts.linear_fc2.backward",
            reread(E5M2, E4M3, by_row)), of(1, r"mlp\.experts\.linear_fc2"), BACKWARD, (f.WRONG_DTYPE,), (EP2, DP2),
            ONLY_EXPERTS),
    Planted("e4m3 gradients read as e5m2", at(f"{FC1}.backward", reread(E4M3, E5M2,
            lambda x: np.abs(x).max() / 224)), of(1, "mlp.linear_fc1"), BACKWARD, (f.WRONG_DTYPE,), (DP2, DP2)),
    Planted("bfloat16 read as float16", at(PROJ, reread(ml_dtypes.bfloat16, np.float16)),
            of(1, "self_attention.linear_proj"), FORWARD, (f.WRONG_DTYPE,), (DP2, TP2)),
    Planted("float16 read as bfloat16", at(PROJ, reread(np.float16, ml_dtypes.bfloat16)),
            of(1, "self_attention.linear_proj"), FORWARD, (f.WRONG_DTYPE,), (TP2, DP2)),
    Planted("norm's squares summed in bfloat16", at(f"{LAYER1}.input_layernorm", squares_in_bf16),
            of(1, "input_layernorm"), FORWARD, (f.WRONG_DTYPE, f.NORMALISATION), (DP2, TP2),
            replace(DENSE, hidden=256, heads=8)),
    Planted("a micro-batch accumulated twice", at(f"gradients.{FC1}.weight.accumulate",
            lambda e: e.inputs[0] + 2 * e.inputs[1], micro_batches=[0]), of(1, "mlp.linear_fc1"), BACKWARD,
            (f.EXTRA_TERM,), (MB2, Layout(tp=2, micro_batches=2))),
    Planted("norm of the last stage alone", at("optimizer.grad_norm", of_stage(1)), NORM, OPTIMIZER, (f.CLIPPING,),
            (PP2_TP2, PP2)),
    Planted("experts without tokens are not stepped", at("optimizer.*.experts.*.adam", idle_experts), r"mlp\.experts",
            OPTIMIZER, (f.WEIGHT_DECAY, f.OPTIMIZER_STATE), (EP2, EP2),
            replace(ONLY_EXPERTS, top_k=1, batch=2, sequence=8)),
    Planted("the last rows of a weight are not stepped", at(f"optimizer.{FC2}.weight.adam", keeps(slice(-3, None))),
            of(1, "mlp.linear_fc2"), OPTIMIZER, (f.STALE, f.LOCAL), (DP2, TP2)),
    Planted("balancing loss counts each rank's own choices", at("*.aux_loss.all_reduce", own_counts()),
            r"mlp\.router", (*BACKWARD, *FORWARD), COUNTS, (CP2_SP2, CP2_SP2), BALANCED),
    Planted("balancing loss counts each cp rank's choices", at("*.aux_loss.all_reduce", own_counts(2)),
            r"mlp\.router", (*BACKWARD, *FORWARD), COUNTS, (CP2_SP2, CP2_SP2), BALANCED),
    Planted("balancing loss counts replicas' choices too", at("*.aux_loss.all_reduce", own_counts(0, 1)),
            r"mlp\.router", (*BACKWARD, *FORWARD), (*COUNTS, f.DOUBLE_REDUCTION), (CP2_DP2, CP2_DP2), BALANCED),
    Planted("norm of qkv's last TP rank alone", at("optimizer.grad_norm.*.linear_qkv.weight", of_rank(2, 1)), NORM,
            OPTIMIZER, (f.CLIPPING,), (TP2, PP2_TP2)),
    Planted("gradient of fc2's input underflows", at(f"{FC2}.backward", underflows), of(1, "mlp.linear_fc2"), BACKWARD,
            (f.WRONG_DTYPE,), (DP2, TP2)),
    Planted("the step before's reduced gradient", step_before, of(1, "mlp.linear_fc2"), BACKWARD, (f.STALE,),
            (DP2, Layout(dp=4)), late=True),
)  # fmt: skip
