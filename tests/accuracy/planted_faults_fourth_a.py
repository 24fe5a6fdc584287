"""A fourth table of planted faults: the loss's gradient, splits and joins on the way back, reductions, narrow formats.

Three are a fourth author's, who had not read the locator; the others were written to see which relatives of published
faults it does not name. All were missed when they were fresh; the locator has since been improved on them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from planted_changes import fp8, swapped
from planted_faults import (
    BACKWARD,
    CP2,
    DP2,
    DP2_MB2,
    DP4,
    FORWARD,
    KV2,
    KV4,
    TP2,
    TP4,
    Planted,
    at,
    of,
)
from planted_faults_third import ACT, CORE, L0, L1

from telekit.accuracy.causes import finding as f
from telekit.accuracy.miniature import Fault, Layout
from telekit.accuracy.miniature import attention as att

MB2 = Layout(micro_batches=2)
LOSS, FACTOR = r"\bloss\b", (f.SCALED, f.GRADIENT_SCALING)
ORDER = (f.PERMUTATION,)


def scaled_fp8(x):
    """Round to fp8 after a scale that keeps a gradient away from its smallest numbers."""
    return fp8(x * np.float32(256)) / np.float32(256)


# --- the loss's gradient -----------------------------------------------------------------------------------------


def labelled(event, by=0, offset=True):
    """One at each rank's own labels; without ``offset`` at the label's remainder on every rank."""
    labels, width = event.settings["labels"] + by, event.inputs[1].shape[-1]
    if not offset:
        return np.broadcast_to((labels % width)[..., None] == np.arange(width), event.inputs[1].shape)
    first = (np.arange(event.layout.tp) * width)[None, None, :, None, None]
    return (labels - first)[..., None] == np.arange(width)


def with_more(made):
    """Add something to probabilities less one at the label, before the token's own gradient multiplies it."""

    def change(event):
        (grad,) = event.call()
        return ((grad + made(event) * event.inputs[0][..., None]).astype(grad.dtype),)

    return change


def probabilities(event):
    (grad,) = event.call(np.ones_like(event.inputs[0]), *event.inputs[1:])
    return grad + labelled(event)


def only_on_rank_0(event):
    lost = labelled(event) * 1.0
    lost[:, :, 0] = 0
    return lost


def of_the_shard(event):
    x = event.inputs[1]
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    return (((p - labelled(event)) * event.inputs[0][..., None]).astype(x.dtype),)


def loss_back(name, change, causes, layouts=(DP2, TP2)):
    return Planted(name, at("loss.backward", change), LOSS, BACKWARD, causes, layouts)


# --- splits and joins ----------------------------------------------------------------------------------------------


def joined_in_blocks(event):
    """[q; k; v] of all groups, where each group's q, k, v stand together."""
    parts = [x.reshape(*x.shape[:-2], -1) for x in event.inputs[0]]
    return (np.concatenate(parts, axis=-1).reshape(event.inputs[1].shape),)


def other_kv(change):
    """Hand the joining of q, k and v other gradients."""
    return lambda event: event.call(change(*event.inputs[0]), *event.inputs[1:])


def size_by_heads(event):
    grad, x = event.inputs
    read = grad.reshape(*x.shape[:-2], x.shape[-1], x.shape[-2])
    return (np.ascontiguousarray(read.swapaxes(-1, -2)),)


def ranks_reversed(event):
    return np.concatenate(np.split(event.call(), event.layout.cp, axis=4)[::-1], axis=4)


# --- reductions --------------------------------------------------------------------------------------------------


def rolled(by):
    def change(event):
        x = event.call()
        return np.roll(x.reshape(*x.shape[:3], -1), by, axis=-1).reshape(x.shape)

    return change


def largest(event):
    x = event.inputs[0]
    return np.broadcast_to(x.max(axis=0, keepdims=True), x.shape).copy()


def others_buffer():
    """The second fc1 gradient that is reduced is the first's."""
    kept = []

    def change(event):
        kept.append(event.inputs[0])
        return event.call(kept[0])

    return [Fault("gradients.*.mlp.linear_fc1.weight.all_reduce", change, steps=[0])]


# --- attention and norms ---------------------------------------------------------------------------------------------


def dropped_weights(q, k, v, seen, scale):
    scores = att._scores(q, k, seen, scale)
    top = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = p.sum(axis=-1, keepdims=True)
    p = p / np.where(total > 0, total, 1)
    p = p * (np.random.default_rng(3).random(p.shape) >= 0.1) / 0.9
    return p.astype(q.dtype) @ v, np.log(total) + top


def earlier_queries():
    kept = {}

    def change(event):
        grad, q, k, v = event.inputs
        before = kept.get(event.step)
        kept[event.step] = q
        return None if before is None else event.call(grad, before, k, v)

    return [Fault(f"{L0}.{CORE}.backward", change)]


def over_positions(event):
    x, w = event.inputs
    scale = 1 / np.sqrt((x * x).mean(axis=-2, keepdims=True) + 1e-5)
    return (x * scale * w.reshape(*w.shape[:3], *(1,) * (x.ndim - 4), -1)).astype(x.dtype)


def heads_of_later_ranks_twice(event):
    rank = np.arange(event.layout.tp).reshape(1, 1, -1, 1, 1, 1)
    return event.call() * np.where(rank == 0, 1, 2).astype(np.float32)


QKV, SPLIT, MERGE = "self_attention.linear_qkv", "self_attention.split_qkv", f"{CORE}.merge_heads"
BUCKET = "gradients.{}.all_reduce"

FOURTH_A = (
    # the loss's gradient
    loss_back("label's term on one vocabulary rank alone", with_more(only_on_rank_0), (f.MISSING_TERM,), (TP2, TP4)),
    loss_back("label's term without the vocabulary's offset",
              with_more(lambda e: labelled(e) * 1.0 - labelled(e, offset=False)),
              (f.EXTRA_TERM, f.DIFFERENT_INPUTS, f.DUPLICATED), (TP2, TP4)),
    loss_back("label's term one entry on", with_more(lambda e: labelled(e) * 1.0 - labelled(e, by=1)),
              (f.DIFFERENT_INPUTS,)),
    loss_back("label's term left out", with_more(labelled), (f.MISSING_TERM,), (DP2, TP4)),
    loss_back("label smoothing in the gradient alone",
              with_more(lambda e: 0.1 * labelled(e) - 0.1 / e.config.vocabulary), (f.LOSS_TERM,)),
    loss_back("softmax of each vocabulary shard", of_the_shard, (f.MISSING_REDUCTION, f.NORMALISATION), (TP2, TP4)),
    loss_back("probabilities a tenth too large", with_more(lambda e: 0.1 * probabilities(e)),
              (f.NORMALISATION, f.LOSS_TERM)),
    loss_back("loss's gradient in fp8", lambda e: tuple(scaled_fp8(x) for x in e.call()), (f.WRONG_DTYPE,)),
    # splits and joins
    Planted("key and value gradients joined the wrong way round",
            at(f"{L1}.{SPLIT}.backward", other_kv(lambda q, k, v: (q, v, k))), of(1, "self_attention"), BACKWARD, ORDER,
            (DP2, TP2)),
    Planted("key gradients of the groups reversed",
            at(f"{L0}.{SPLIT}.backward", other_kv(lambda q, k, v: (q, k[..., ::-1, :].copy(), v))),
            of(0, "self_attention"), BACKWARD, ORDER, (DP2, CP2)),
    Planted("gradients joined by kind, not by group", at(f"{L0}.{SPLIT}.backward", joined_in_blocks),
            of(0, "self_attention"), BACKWARD, ORDER, (DP2, CP2)),
    Planted("joined gradients in fp8", at(f"{L1}.{SPLIT}.backward", lambda e: tuple(map(scaled_fp8, e.call()))),
            of(1, "self_attention"), BACKWARD, (f.WRONG_DTYPE,), (DP2, TP2)),
    Planted("joined key gradients a twentieth less",
            at(f"{L0}.{SPLIT}.backward", other_kv(lambda q, k, v: (q, k * np.float32(0.95), v))),
            of(0, "self_attention"), BACKWARD, FACTOR, (DP2, TP2)),
    Planted("heads reversed on the way back",
            at(f"{L1}.{MERGE}.backward", lambda e: (e.call()[0][..., ::-1, :].copy(),)),
            of(1, CORE), BACKWARD, ORDER, (DP2, CP2)),
    Planted("heads one on on the way back", at(f"{L0}.{MERGE}.backward", lambda e: (np.roll(e.call()[0], 1, axis=-2),)),
            of(0, CORE), BACKWARD, ORDER, (CP2, DP4)),
    Planted("heads read as size by heads on the way back", at(f"{L1}.{MERGE}.backward", size_by_heads), of(1, CORE),
            BACKWARD, ORDER, (DP2, TP2)),
    Planted("values of the next key head",
            at(f"{L1}.{CORE}", lambda e: e.call(*e.inputs[:2], np.roll(e.inputs[2], 1, axis=-2))), of(1, CORE), FORWARD,
            ORDER, (DP2, TP2)),
    Planted("queries and keys exchanged", at(f"{L1}.{CORE}", lambda e: e.call(e.inputs[1], e.inputs[0], e.inputs[2])),
            of(1, CORE), FORWARD, (*ORDER, f.DIFFERENT_INPUTS), (DP2, TP2)),
    Planted("CP: values gathered in the ranks' reverse order", at(f"{L0}.{CORE}.value.all_gather", ranks_reversed),
            of(0, CORE), FORWARD, (*ORDER, f.MASK), (KV2, KV4)),
    # reductions
    Planted("reduced gradient one element off", at(BUCKET.format(f"{L0}.mlp.linear_fc2.weight"), rolled(1)),
            of(0, "mlp.linear_fc2"), BACKWARD, ORDER, (DP2, DP4)),
    Planted("reduced gradient five elements off the other way", at(BUCKET.format("output_layer.weight"), rolled(-5)),
            "output_layer", BACKWARD, ORDER, (DP2, DP2_MB2)),
    Planted("reduced with MAX", at(BUCKET.format(f"{L1}.mlp.linear_fc1.weight"), largest), of(1, "mlp.linear_fc1"),
            BACKWARD, (f.MISSING_REDUCTION, f.NORMALISATION), (DP2, DP4)),
    Planted("reduced in fp8", at(BUCKET.format(f"{L0}.{QKV}.weight"), lambda e: e.call(scaled_fp8(e.inputs[0]))),
            of(0, QKV), BACKWARD, (f.WRONG_DTYPE,), (DP2, DP4)),
    Planted("reduced to 97 %", at(BUCKET.format(f"{L0}.mlp.linear_fc1.weight"), lambda e: e.call() * np.float32(0.97)),
            of(0, "mlp.linear_fc1"), BACKWARD, FACTOR, (DP2, DP4)),
    Planted("another weight's gradient is reduced", others_buffer, "linear_fc1", BACKWARD,
            (f.DIFFERENT_INPUTS, f.DUPLICATED, f.PERMUTATION, f.STALE), (DP2, DP4)),
    # attention, norms, formats
    Planted("dropout on attention's weights", list, of(0, CORE), FORWARD, (f.LOCAL, f.ZERO, f.DROPPED), (DP2, TP2),
            patch=partial(swapped, att, "_block", dropped_weights)),
    Planted("queries of the micro-batch before on the way back", earlier_queries, of(0, CORE), BACKWARD, (f.STALE,),
            (MB2, DP2_MB2)),
    Planted("norm over positions", at(f"{L1}.pre_mlp_layernorm", over_positions), of(1, "pre_mlp_layernorm"), FORWARD,
            (f.NORMALISATION,), (DP2, TP2)),
    Planted("norm's gradient with an eps of 0.05",
            at(f"{L0}.input_layernorm.backward", lambda e: (e.call(eps=0.05)[0], e.call()[1])),
            of(0, "input_layernorm"), BACKWARD, (f.NORM_EPSILON, f.NORMALISATION), (DP2, TP2)),
    Planted("a weight in fp8",
            at(f"{L1}.mlp.linear_fc1", lambda e: e.call(e.inputs[0], fp8(e.inputs[1] * 32) / np.float32(32))),
            of(1, "mlp.linear_fc1"), FORWARD, (f.WRONG_DTYPE,), (DP2, TP2)),
    Planted("a weight negated on one TP rank",
            at(f"{L1}.mlp.linear_fc1", lambda e: e.call(e.inputs[0], -e.inputs[1]), ranks=[1]),
            of(1, "mlp.linear_fc1"), FORWARD, (f.SIGN, f.ONE_SHARD, f.LOCAL), (TP2, TP4)),
    Planted("later TP ranks' heads twice", at(f"{L0}.{MERGE}", heads_of_later_ranks_twice), of(0, CORE), FORWARD,
            (f.ONE_SHARD, f.SCALED), (TP2, TP4)),
    Planted("an activation's input in fp8", at(f"{L1}.{ACT}", lambda e: e.call(fp8(e.inputs[0]))), of(1, ACT), FORWARD,
            (f.WRONG_DTYPE,), (DP2, TP2)),
)  # fmt: skip
