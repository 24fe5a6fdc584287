"""Faults as training frameworks have them, planted in the miniature, with the place and the class that are right.

Places and classes were written down before the locator was run on them, by someone who had not read it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from telekit.accuracy.causes import finding as f
from telekit.accuracy.miniature import Config, Fault, Layout, scaled, skip, twice, with_settings

DENSE = Config(kv_heads=4)
MIXTURE = Config(experts=4, shared_ffn=32)
ONLY_EXPERTS = Config(experts=8, ffn=32, aux_coefficient=0.02)
TIED = Config(tied=True)

TP2, TP4 = Layout(tp=2), Layout(tp=4)
SP2, SP4 = Layout(tp=2, sequence_parallel=True), Layout(tp=4, sequence_parallel=True, reduce_order="tree")
DP2, DP4 = Layout(dp=2), Layout(dp=4)
CP2, CP4 = Layout(cp=2), Layout(cp=4)
CP2_TP2, CP2_DP2 = Layout(cp=2, tp=2), Layout(cp=2, dp=2)
KV2, KV4 = (Layout(cp=n, cp_comm_type="all_gather") for n in (2, 4))
TP2_DP2, DP2_MB2 = Layout(tp=2, dp=2), Layout(dp=2, micro_batches=2)
PP2, PP2_TP2 = Layout(pp=2), Layout(pp=2, tp=2)
EP2, EP4 = Layout(dp=2, ep=2), Layout(dp=4, ep=4)
EP2_TP2, EP2_SP2 = Layout(dp=2, ep=2, tp=2), Layout(dp=2, ep=2, tp=2, sequence_parallel=True)


@dataclass(frozen=True)
class Planted:
    """A fault: what it is, where the locator should point, which classes say it.

    ``where`` is a regular expression for the finding's operator, ``make`` returns fresh faults (some remember).
    ``layouts`` has one for float32 and one for bfloat16. ``steps`` are dumped: the first, or both where one cannot
    tell. ``patch`` puts something else in the miniature's place while the target runs.
    """

    name: str
    make: Callable[[], list[Fault]]
    where: str
    phases: tuple[str, ...]
    causes: tuple[str, ...]
    layouts: tuple[Layout, Layout]
    config: Config = DENSE
    rerun: bool = False
    late: bool = False
    patch: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def steps(self) -> list[int]:
        return [0, 1] if self.late or self.phases == OPTIMIZER else [0]


def at(point, change, **more):
    """Return a maker of one fault."""
    return lambda: [Fault(point, change, **more)]


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def own_part(ranks_axis, axis):
    """A reduce-scatter that only scatters: each rank keeps its part of its own term."""

    def change(event):
        x = event.inputs[0]
        parts = np.split(x, x.shape[ranks_axis], axis=axis)
        own = [np.take(part, i, axis=ranks_axis) for i, part in enumerate(parts)]
        return np.stack(own, axis=ranks_axis)

    return change


def gathered(order):
    """An all-gather over tp that puts the ranks' positions in another order."""

    def change(event):
        parts = np.split(event.call(), event.layout.tp, axis=4)
        return np.concatenate([parts[i] for i in order(event.layout.tp)], axis=4)

    return change


def split_naively(event):
    """[gate; up] of the whole cut in tp pieces as it stands, instead of each half."""
    gate, up = np.split(event.inputs[0], 2, axis=3)
    tp = event.layout.tp
    whole = np.concatenate([half[:, :, t] for half in (gate, up) for t in range(tp)], axis=2)
    return np.stack(np.split(whole, tp, axis=2), axis=2)


def heads_by_group_last(event):
    """Query heads in the order of tile, where that of repeat is meant."""
    q, k, v = event.call()
    groups, size = event.settings["groups"], event.settings["size"]
    by_group = q.reshape(*q.shape[:-2], groups, -1, size).swapaxes(-2, -3)
    return by_group.reshape(q.shape), k, v


def local_positions(event):
    right = event.settings["positions"]
    return event.call(positions=np.tile(np.arange(right.shape[1]), (right.shape[0], 1)))


def other_way(event):
    return event.call(positions=-event.settings["positions"])


def next_expert(event):
    weights, chosen = event.call()
    return weights, (chosen + 1) % event.config.experts


def over_capacity(event):
    """The last expert's late tokens do not come back."""
    rows, weights = event.inputs
    rows = rows.copy()
    rows[..., -max(3, rows.shape[3] // 8) :, :] = 0
    return event.call(rows, weights)


def by_source_first():
    """Received rows stay in the order of their senders; sorting them by expert was forgotten."""
    plans = {}

    def remember(event):
        plans["plan"] = event.call()
        return plans["plan"]

    def unsorted(event):
        rows, plan = event.call().copy(), plans["plan"]
        keys = plan.keys.reshape(*plan.source.shape)
        for d, c, t in np.ndindex(*rows.shape[:3]):
            g = d * rows.shape[1] + c
            n = int((keys[g, t] >= 0).sum())
            rows[d, c, t, :n] = rows[d, c, t, np.lexsort((keys[g, t, :n], plan.source[g, t, :n]))]
        return rows

    layer = "decoder.layers.0.mlp.token_dispatcher"
    return [Fault(f"{layer}.plan", remember), Fault(f"{layer}.dispatch.all_to_all", unsorted)]


def last_duplicate_wins(event):
    """A scatter that writes where it should add: of a token's gradients one stays."""
    grad, weight = event.inputs
    tokens = event.settings["tokens"]
    grad = grad.copy()
    for rank in np.ndindex(*tokens.shape[:3]):
        ids, rows = tokens[rank].ravel(), grad[rank].reshape(-1, grad.shape[-1])
        last = {token: i for i, token in enumerate(ids)}
        rows[[last[token] != i for i, token in enumerate(ids)]] = 0
        grad[rank] = rows.reshape(grad[rank].shape)
    return event.call(grad, weight)


def every_rank_counts(event):
    grad = event.inputs[0].main_grad
    return np.square(grad).sum(axis=tuple(range(3, grad.ndim)), dtype=grad.dtype)


def l2_decay(event):
    grad, master, *moments = event.inputs
    grad = grad + np.float32(0.1) * master
    return event.call(grad, master, *moments, weight_decay=0.0)


def no_moments(event):
    grad, master, first, second = event.inputs
    return event.call(grad, master, 0 * first, 0 * second)


def bf16_weights(event):
    master, first, second = event.call()
    return bf16(master), first, second


def not_zeroed():
    """The main gradient of step 1 still holds that of step 0."""
    kept = {}

    def change(event):
        before, new = event.inputs
        kept[event.step] = event.call(kept.get(event.step - 1, before), new)
        return kept[event.step]

    return [Fault("gradients.decoder.layers.1.mlp.linear_fc2.weight.accumulate", change)]


def too_large(event):
    out = event.call().copy()
    out[np.abs(out) > 0.9 * np.abs(out).max()] = np.inf
    return out


def columns_flipped(event):
    out = event.call().copy()
    out[..., 3:6] *= -1
    return out


def gelu(event):
    gate, up = np.split(event.inputs[0], 2, axis=-1)
    return 0.5 * gate * (1 + np.tanh(0.7978845608 * (gate + 0.044715 * gate**3))) * up


def up_first(event):
    gate, up = np.split(event.inputs[0], 2, axis=-1)
    return event.call(np.concatenate([up, gate], axis=-1))


def same_data(event):
    return tuple(np.broadcast_to(x[:1], x.shape).copy() for x in event.inputs)


def another_checkpoint(event):
    x = event.inputs[0]
    whole = np.random.default_rng(99).standard_normal(x.shape[2:]) * x.std()
    return np.broadcast_to(whole.astype(x.dtype), x.shape).copy()


def swapped_over_ep():
    """Checkpoints of two expert-parallel ranks taken for each other."""
    layer = "initial.decoder.layers.1.mlp.experts"
    return [
        Fault(f"{layer}.{name}.weight", lambda event: event.inputs[0][::-1].copy())
        for name in ("linear_fc1", "linear_fc2")
    ]


def a_race():
    """Another result each time: one of a hundred elements of dq misses an addend."""
    random = np.random.default_rng()

    def change(event):
        q, k, v = event.call()
        return np.where(random.random(q.shape) < 0.01, 0.9 * q, q).astype(q.dtype), k, v

    return [Fault("decoder.layers.0.self_attention.core_attention.backward", change)]


def of(layer, operator):
    return rf"layers\.{layer}\.{operator}".replace("mlp.", r"mlp\.").replace("attention.", r"attention\.")


SCALING = (f.SCALED, f.GRADIENT_SCALING)
AUX = (f.LOSS_TERM, f.SCALED, f.GRADIENT_SCALING, f.EXTRA_TERM)
FORWARD, BACKWARD, OPTIMIZER, SETUP = (("forward",), ("backward",), ("optimizer",), ("setup",))
ATTENTION, LAYER0, LAYER1 = "self_attention", "decoder.layers.0", "decoder.layers.1"
ANY_PARAMETER = r"Optimizer|all parameters|adam"

PLANTED = (
    # reductions
    Planted("row all-reduce missing", at(f"{LAYER1}.self_attention.linear_proj.all_reduce", skip),
            of(1, "self_attention.linear_proj"), FORWARD, (f.MISSING_REDUCTION,), (TP2, TP4)),
    Planted("row all-reduce twice", at(f"{LAYER0}.mlp.linear_fc2.all_reduce", twice),
            of(0, "mlp.linear_fc2"), FORWARD, (f.DOUBLE_REDUCTION, f.SCALED), (TP4, TP2)),
    Planted("column backward not reduced", at(f"{LAYER0}.self_attention.linear_qkv.backward.all_reduce", skip),
            of(0, "self_attention.linear_qkv"), BACKWARD, (f.MISSING_REDUCTION,), (TP2, TP4)),
    Planted("SP scatters without reducing", at(f"{LAYER1}.mlp.linear_fc2.reduce_scatter", own_part(2, 4)),
            of(1, "mlp.linear_fc2"), FORWARD, (f.MISSING_REDUCTION,), (SP2, SP4)),
    Planted("SP norm gradient not reduced",
            at("gradients.decoder.final_layernorm.weight.sequence.all_reduce", skip),
            "final_layernorm", BACKWARD, (f.MISSING_REDUCTION,), (SP2, SP4)),
    Planted("SP gather in another order", at(f"{LAYER1}.mlp.linear_fc1.all_gather", gathered(lambda n: range(n)[::-1])),
            of(1, "mlp.linear_fc1"), FORWARD, (f.PERMUTATION, f.DUPLICATED), (SP2, SP4)),
    Planted("SP gather duplicates", at(f"{LAYER0}.self_attention.linear_qkv.all_gather",
                                       gathered(lambda n: [i % (n // 2) for i in range(n)])),
            of(0, "self_attention.linear_qkv"), FORWARD, (f.DUPLICATED, f.PERMUTATION), (SP4, SP2)),
    Planted("DP gradient of one weight not reduced", at(f"gradients.{LAYER0}.mlp.linear_fc1.weight.all_reduce", skip),
            of(0, "mlp.linear_fc1"), BACKWARD, (f.MISSING_REDUCTION,), (DP2, DP4)),
    Planted("tied embedding's gradients not added over PP", at("gradients.embedding.all_reduce", lambda e: e.inputs),
            r"embedding\.word_embeddings", BACKWARD, (f.MISSING_REDUCTION,), (PP2, PP2_TP2), TIED),
    Planted("CP: key gradients scattered, not reduced",
            at(f"{LAYER1}.self_attention.core_attention.key.backward.reduce_scatter", own_part(1, 4)),
            of(1, "self_attention.core_attention"), BACKWARD, (f.MISSING_REDUCTION, f.MISSING_TERM), (KV2, KV4)),
    Planted("cross-entropy's sum over the vocabulary not reduced", at("loss.sum_exp.all_reduce", skip),
            r"\bloss\b", FORWARD, (f.MISSING_REDUCTION, f.NORMALISATION), (TP2, SP4)),
    Planted("micro-batches overwrite",
            at(f"gradients.{LAYER1}.mlp.linear_fc1.weight.accumulate", lambda e: e.inputs[1]),
            of(1, "mlp.linear_fc1"), BACKWARD, (f.MISSING_TERM, f.MISSING_REDUCTION),
            (Layout(micro_batches=2), DP2_MB2)),
    # scale
    Planted("gradients averaged twice over DP", at("gradients.*.all_reduce", lambda e: e.call() / e.layout.dp),
            r"Gradient|all parameters", BACKWARD, SCALING, (DP2, DP4)),
    Planted("loss times cp", at("loss.mean", lambda e: e.call(tokens=e.settings["tokens"] // e.layout.cp)),
            r"\bloss\b", ("forward", "backward"), SCALING, (CP2, CP4)),
    Planted("gradient of the sum, not the mean, of tokens",
            at("loss.mean.backward", lambda e: e.call(tokens=1)), r"\bloss\b", BACKWARD, SCALING, (DP2, TP2_DP2)),
    Planted("aux gradient times tokens", at("*.aux_loss.backward", lambda e: scaled(e.config.tokens)(e)),
            of(1, "mlp.router"), BACKWARD, AUX, (CP2_DP2, EP2), MIXTURE),
    Planted("aux coefficient times tp cp", at(
        "*.aux_loss", lambda e: e.call(coefficient=e.settings["coefficient"] * e.layout.tp * e.layout.cp)),
            of(1, "mlp.router"), BACKWARD, AUX, (CP2_TP2, CP2_TP2), MIXTURE),
    Planted("expert gradients times ep", at("gradients.*.experts.*.accumulate", lambda e: e.call(
        e.inputs[0], e.inputs[1] * e.layout.ep)), r"mlp\.experts", BACKWARD, SCALING, (EP2, EP4), MIXTURE),
    # layout of weights and tokens
    Planted("SwiGLU resharded without interleave", at(f"initial.{LAYER0}.mlp.linear_fc1.weight", split_naively),
            of(0, "mlp.linear_fc1"), SETUP, (f.PERMUTATION,), (TP2, TP4)),
    Planted("query heads of groups interleaved", at(f"{LAYER1}.self_attention.split_qkv", heads_by_group_last),
            of(1, "self_attention.(linear_qkv|split_qkv|rotary|core)"), FORWARD, (f.PERMUTATION,), (DP2, TP2),
            replace(DENSE, hidden=64, heads=8)),
    Planted("experts' checkpoints swapped over EP", swapped_over_ep, of(1, "mlp.experts.linear_fc1"), SETUP,
            (f.PERMUTATION,), (EP2, EP4), MIXTURE),
    Planted("received tokens not sorted by expert", by_source_first, of(0, "mlp.token_dispatcher.dispatch"), FORWARD,
            (f.PERMUTATION,), (EP2, EP4), ONLY_EXPERTS),
    Planted("all DP ranks read the same data", at("data.tokens", same_data), "embedding", ("forward", "setup"),
            (f.DIFFERENT_INPUTS, f.DUPLICATED), (DP2, TP2_DP2)),
    Planted("another checkpoint's weight", at(f"initial.{LAYER1}.mlp.linear_fc2.weight", another_checkpoint),
            of(1, "mlp.linear_fc2"), SETUP, (f.DIFFERENT_WEIGHTS,), (DP2, TP2)),
    # attention
    Planted("rotary base", at("*.rotary_pos_emb", with_settings(base=500000.0)), of(0, "self_attention.rotary"),
            FORWARD, (f.ROTARY,), (TP2, CP2)),
    Planted("rotary positions from one",
            at("*.rotary_pos_emb", lambda e: e.call(positions=e.settings["positions"] + 1)),
            of(0, "self_attention.rotary"), FORWARD, (f.ROTARY,), (DP2, SP2)),
    Planted("position ids of the rank, not of the sequence, under CP", at("*.rotary_pos_emb", local_positions),
            of(0, "self_attention.rotary"), FORWARD, (f.ROTARY,), (CP2, CP4)),
    Planted("rotary's gradient turned the wrong way", at(f"{LAYER1}.*.rotary_pos_emb.backward", other_way),
            of(1, "self_attention.rotary"), BACKWARD, (f.ROTARY,), (TP2, DP2)),
    Planted("mask sees one too many", at("*.core_attention", with_settings(offset=1)),
            of(0, "self_attention.core_attention"), FORWARD, (f.MASK,), (TP2, CP2)),
    Planted("mask hides a query's own key", at(f"{LAYER1}.*.core_attention", with_settings(offset=-1)),
            of(1, "self_attention.core_attention"), FORWARD, (f.MASK,), (CP2, DP2)),
    Planted("softmax scale of the hidden size", at("*.core_attention", with_settings(scale=32**-0.5)),
            of(0, "self_attention.core_attention"), FORWARD, (f.SOFTMAX_SCALE,), (TP2, CP2_TP2)),
    Planted("ring blocks merged without their softmax shares", at("*.core_attention", with_settings(rescale=False)),
            of(0, "self_attention.core_attention"), FORWARD, (f.NORMALISATION,), (CP2, CP4)),
    Planted("ring not run on the way back", at(f"{LAYER1}.*.core_attention.backward", with_settings(ring=False)),
            of(1, "self_attention.core_attention"), BACKWARD, (f.MASK, f.MISSING_TERM, f.MISSING_REDUCTION),
            (CP2, CP4)),
    # norms, residuals, activations
    Planted("residual missing", at(f"{LAYER0}.mlp_bda", skip), of(0, "mlp_bda"), FORWARD, (f.MISSING_TERM,),
            (TP2, DP2)),
    Planted("norm eps 1e-3", at("*layernorm", with_settings(eps=1e-3)), of(0, "input_layernorm"), FORWARD,
            (f.NORM_EPSILON,), (SP2, TP2)),
    Planted("norm weight plus one", at("decoder.final_layernorm", lambda e: e.call(e.inputs[0], e.inputs[1] + 1)),
            "final_layernorm", FORWARD, (f.CHANNEL_WEIGHT,), (DP2, SP2)),
    Planted("GELU for SiLU", at(f"{LAYER1}.mlp.activation_func", gelu), of(1, "mlp.activation_func"), FORWARD,
            (f.ACTIVATION,), (TP2, DP2)),
    Planted("gate and up swapped", at("*.mlp.activation_func", up_first), of(0, "mlp.activation_func"), FORWARD,
            (f.ACTIVATION,), (DP2, TP4)),
    # experts
    Planted("router weights not normalised", at("*.router.top_k", with_settings(normalise=False)),
            of(0, "mlp.router"), FORWARD, (f.NORMALISATION,), (EP2, EP2_TP2), MIXTURE),
    Planted("router's gradient without its normalisation",
            at(f"{LAYER1}.*.top_k.backward", with_settings(normalise=False)),
            of(1, "mlp.router"), BACKWARD, (f.NORMALISATION,), (EP2, EP4), ONLY_EXPERTS),
    Planted("expert numbers off by one", at(f"{LAYER0}.mlp.router.top_k", next_expert), of(0, "mlp.router"), FORWARD,
            (f.ROUTER,), (EP2, EP4), ONLY_EXPERTS),
    Planted("tokens over capacity dropped", at(f"{LAYER1}.mlp.token_dispatcher.unpermute", over_capacity),
            of(1, "mlp.token_dispatcher.(combine|unpermute)"), FORWARD, (f.DROPPED,), (EP2, EP2_SP2), MIXTURE),
    # one place
    Planted("embedding gradient loses duplicates", at("embedding.word_embeddings.backward", last_duplicate_wins),
            r"embedding\.word_embeddings", BACKWARD, (f.MISSING_TERM, f.LOCAL), (DP2, TP2)),
    Planted("overflow in one operator", at(f"{LAYER1}.mlp.linear_fc1", too_large, ranks=[1]),
            of(1, "mlp.linear_fc1"), FORWARD, (f.OVERFLOW,), (TP2, DP2),
            late=True),
    Planted("one rank flips signs", at(f"{LAYER0}.mlp.linear_fc1", columns_flipped, ranks=[1]),
            of(0, "mlp.linear_fc1"), FORWARD, (f.ONE_SHARD, f.LOCAL), (TP2, TP4)),
    Planted("a race", a_race, of(0, "self_attention.core_attention"), BACKWARD, (f.NON_DETERMINISM,), (DP2, TP2),
            rerun=True),
    Planted("router logits in bfloat16", at("*.router.gating", lambda e: bf16(e.call())), of(0, "mlp.router"), FORWARD,
            (f.WRONG_DTYPE,), (EP2, EP4), MIXTURE),
    # optimizer
    Planted("replicated weights counted tp times", at("optimizer.grad_norm.*layernorm.weight", every_rank_counts),
            "grad_norm", OPTIMIZER, (f.CLIPPING,), (TP2, TP4)),
    Planted("experts' part of the norm not reduced", at("optimizer.grad_norm.experts.all_reduce", skip),
            "grad_norm", OPTIMIZER, (f.CLIPPING, f.MISSING_REDUCTION), (EP2, EP4), MIXTURE),
    Planted("not clipped", at("optimizer.clip_grad", with_settings(largest=1e3)), r"clip_grad|Optimizer|all parameters",
            OPTIMIZER, (f.CLIPPING,), (TP2, DP2)),
    Planted("no bias correction", at("*.adam", with_settings(time=10**9)), ANY_PARAMETER, OPTIMIZER,
            (f.BIAS_CORRECTION,), (TP2, EP2), MIXTURE),
    Planted("norms decay", at("*layernorm.weight.adam", with_settings(weight_decay=0.1)), "layernorm", OPTIMIZER,
            (f.WEIGHT_DECAY,), (DP2, TP2)),
    Planted("decay inside the gradient", at("*linear*.adam", l2_decay), ANY_PARAMETER, OPTIMIZER, (f.WEIGHT_DECAY,),
            (TP2, DP2)),
    Planted("betas swapped", at("*.adam", with_settings(beta1=0.95, beta2=0.9)), ANY_PARAMETER, OPTIMIZER,
            (f.ADAM_BETA,), (DP2, TP2)),
    Planted("Adam's eps 1e-5", at("*.adam", with_settings(eps=1e-5)), ANY_PARAMETER, OPTIMIZER, (f.ADAM_EPSILON,),
            (TP2, DP2)),
    Planted("a group's learning rate", at("optimizer.embedding*.adam", with_settings(lr=1e-4)),
            r"embedding\.word_embeddings", OPTIMIZER, (f.LEARNING_RATE,), (DP2, TP2)),
    Planted("moments lost before step 2", at("*.adam", no_moments, steps=[1]), ANY_PARAMETER, OPTIMIZER,
            (f.OPTIMIZER_STATE,), (TP2, DP2)),
    Planted("weights kept in bfloat16", at("*.adam", bf16_weights), ANY_PARAMETER, OPTIMIZER, (f.WRONG_DTYPE,),
            (TP2, DP2)),
    Planted("main gradient not zeroed", not_zeroed, of(1, "mlp.linear_fc2"), BACKWARD, (f.STALE, f.EXTRA_TERM),
            (DP2, TP2), late=True),
)  # fmt: skip
