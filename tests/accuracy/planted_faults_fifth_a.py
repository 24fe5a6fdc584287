"""A fifth table of planted faults: the ring of context parallelism, heads of a group, and what a recomputation reads.

Some are two authors' who had not read the locator, the others relatives of them. All were missed when they were fresh;
the locator has since been improved on them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from planted_changes import swapped
from planted_faults import (
    BACKWARD,
    CP2,
    CP2_DP2,
    CP2_TP2,
    CP4,
    DP2,
    DP4,
    FORWARD,
    KV2,
    KV4,
    TP2,
    Planted,
    at,
    of,
)
from planted_faults_third import CORE, L0, L1

from telekit.accuracy.causes import finding as f
from telekit.accuracy.miniature import Config, Fault, Layout
from telekit.accuracy.miniature import attention as att

GROUPED, HEADS8 = Config(), Config(heads=8, kv_heads=4)
MB2, SP2_DP2 = Layout(micro_batches=2), Layout(tp=2, dp=2, sequence_parallel=True)
BLOCKS = att._blocks
NORM, LOST, OLD = (f.NORMALISATION,), (f.MISSING_TERM, f.MISSING_REDUCTION), (f.STALE, f.DUPLICATED)
ROTARY = (f.ROTARY, f.DIFFERENT_INPUTS)
OTHER = (f.PERMUTATION, f.DUPLICATED, f.DIFFERENT_INPUTS, f.STALE)


def in_turn(j):
    """Rank whose keys a step has, counted back from a rank."""
    return j


def own(j):
    return 0


def late(j):
    return max(j - 1, 0)


def received(x, back, j, rank):
    """Keys or values of a step; where ``rank`` is given the others have the right ones."""
    if rank is None:
        return np.roll(x, back(j), 1)
    here = (np.arange(x.shape[1]) == rank).reshape(1, -1, *(1,) * (x.ndim - 2))
    return np.where(here, np.roll(x, back(j), 1), np.roll(x, j, 1))


def shares(lse, new):
    """Log-sum-exp of both, and the two outputs' shares."""
    both = np.logaddexp(lse, new)
    return both, np.exp(lse - both), np.exp(new - both)


def base_2(lse, new):
    both = np.logaddexp2(lse, new)
    return both, np.exp2(lse - both), np.exp2(new - both)


def exchanged(lse, new):
    both, a, b = shares(lse, new)
    return both, b, a


def halved(lse, new):
    seen = np.isfinite(new)
    return np.logaddexp(lse, new), np.where(seen, 0.5, 1.0), np.where(seen, 0.5, 0.0)


def squared(lse, new):
    both, a, b = shares(lse, new)
    return both, a * a, b * b


def ring(keys=in_turn, values=in_turn, merge=shares, rank=None):
    """Return a patch: attention whose steps have other keys or values, or are merged otherwise."""

    def forward(tape, q, k, v, *, scale, positions_q, positions_k, offset, ring, rescale):
        queries, all_k, all_v = att._queries(q, k.shape[-2]), att._keys(k), att._keys(v)
        out = lse = None
        for j, seen in enumerate(BLOCKS(tape, positions_q, positions_k, offset, ring)):
            here = received(all_k, keys, j, rank), received(all_v, values, j, rank)
            block, new = att._block(queries, *here, seen, scale)
            if out is None:
                out, lse = block, new
                continue
            lse, a, b = merge(lse, new)
            out = tape.mesh.wide(out * a + tape.mesh.round(block) * b)
        out = tape.mesh.round(out)
        return att._from_queries(out), (out, lse)

    return partial(swapped, att.ATTENTION, "forward", forward)


def always(j, steps):
    return 1


def ring_back(
    keys=in_turn, values=in_turn, sums="", delta="", home=in_turn, counts=always, kept=1, local=False
):
    """Return a patch: gradients with other keys, sums or masks; ``counts`` times a step's, ``kept`` of what was."""

    def back(tape, grad, q, k, v, *, scale, positions_q, positions_k, offset, ring, rescale, saved):
        out, lse = saved
        rnd, queries, up = tape.mesh.round, att._queries(q, k.shape[-2]), att._queries(grad, k.shape[-2])
        all_k, all_v = att._keys(k), att._keys(v)
        of_q, of_k, of_v, running = (np.zeros_like(x) for x in (queries, all_k, all_v, lse))
        running -= np.inf
        blocks = BLOCKS(tape, positions_q, positions_k, offset, ring)
        for j, seen in enumerate(blocks):
            shown = np.broadcast_to(np.tri(seen.shape[1], dtype=bool), seen.shape) if local else seen
            here_k, here_v = np.roll(all_k, keys(j), 1), np.roll(all_v, values(j), 1)
            block, new = att._block(queries, here_k, here_v, shown, scale)
            running = np.logaddexp(running, new)
            total = {"own": new, "running": running, "first": new if j == 0 else lse}.get(sums, lse)
            lse = total if sums == "first" else lse
            weights = np.nan_to_num(np.exp(att._scores(queries, here_k, shown, scale) - total))
            rows = (up * (block if delta == "own" else out)).sum(axis=-1, keepdims=True)
            inner = weights * (up @ here_v.swapaxes(-1, -2) - rows) * up.dtype.type(scale)
            of_q = rnd(of_q * np.float32(kept) + rnd(inner @ here_k))
            made_k = (inner.swapaxes(-1, -2) @ queries).sum(axis=-3, keepdims=True)
            made_v = (weights.swapaxes(-1, -2) @ up).sum(axis=-3, keepdims=True)
            times = np.float32(counts(j, len(blocks)))
            of_k = rnd(of_k + times * rnd(np.roll(made_k, -home(j), 1)))
            of_v = rnd(of_v + rnd(np.roll(made_v, -home(j), 1)))
        back_k, back_v = (np.ascontiguousarray(np.moveaxis(x[..., 0, :, :], -2, -3)) for x in (of_k, of_v))
        return att._from_queries(of_q), back_k, back_v

    return partial(swapped, att.ATTENTION, "backward", back)


def half_copied(grad, steps=att.ATTENTION.backward):
    """The last step's key gradients are written over what the second half of each rank's positions had."""

    def back(tape, up, q, k, v, **settings):
        right = steps(tape, up, q, k, v, **settings)
        last = len(BLOCKS(tape, settings["positions_q"], settings["positions_k"], 0, settings["ring"])) - 1

        def only_last(*given):
            return [x if j == last else np.zeros_like(x) for j, x in enumerate(BLOCKS(*given))]

        with swapped(att, "_blocks", only_last):
            alone = steps(tape, up, q, k, v, **settings)
        second = (np.arange(k.shape[4]) >= k.shape[4] // 2)[:, None, None]
        return right[0], *(np.where(second & grad, b, a) for a, b in zip(right[1:], alone[1:], strict=True))

    return partial(swapped, att.ATTENTION, "backward", back)


def masked_by_next_rank(tape, positions_q, positions_k, offset, ring):
    right = BLOCKS(tape, positions_q, positions_k, offset, ring)
    other = [
        np.roll(positions_k, j + 1, axis=0)[:, None, :] <= positions_q[:, :, None] for j in range(len(right))
    ]
    return [x if j == 0 else other[j] for j, x in enumerate(right)]


def local_positions(event):
    p = event.settings["positions_q"]
    local = np.tile(np.arange(p.shape[1]), (p.shape[0], 1))
    return event.call(positions_q=local, positions_k=local)


# --- heads ---------------------------------------------------------------------------------------------------------


def first_head(event):
    q, *kv = event.inputs
    return event.call(q, *(np.repeat(x[..., :1, :], x.shape[-2], axis=-2) for x in kv))


def by_remainder(event):
    """Query head h reads key head h % groups of its rank."""
    q, k, v = event.inputs
    order = np.argsort(np.arange(q.shape[-2]) % k.shape[-2], kind="stable")
    made = event.call(np.ascontiguousarray(q[..., order, :]), k, v)
    return np.ascontiguousarray(made[..., np.argsort(order), :])


def of_rank_0(event):
    q, *kv = event.inputs
    return event.call(q, *(np.repeat(x[:, :, :1], x.shape[2], axis=2) for x in kv))


def next_head_back(event):
    grad, q, *kv = event.inputs
    return event.call(grad, q, *(np.roll(x, 1, axis=-2) for x in kv))


# --- what a recomputation reads --------------------------------------------------------------------------------------


def weight_from(change):
    """The weight's gradient is made with another input, the input's is right."""

    def back(event):
        grad, x, *weight = event.inputs
        return event.call()[0], event.call(grad, change(event, x), *weight)[1]

    return back


def from_layer_0(module, only_weight=True):
    """Layer 1's backward has layer 0's activations."""

    def make():
        kept = {}

        def remember(event):
            kept[event.micro_batch] = event.inputs

        def back(event):
            held = kept[event.micro_batch]
            if only_weight:
                return weight_from(lambda e, x: held[0])(event)
            return event.call(event.inputs[0], *held)

        return [Fault(f"{L0}.{module}", remember), Fault(f"{L1}.{module}.backward", back)]

    return make


def second_half_of_replica(event, x):
    mixed = x.copy()
    half = x.shape[4] // 2
    mixed[..., half:, :] = x[::-1][..., half:, :]
    return mixed


def chunks_exchanged(event, x):
    return np.roll(x, x.shape[4] // 2, axis=4)


def forward(name, causes, layouts, config=HEADS8, change=None, **more):
    make = list if change is None else at(f"{L1}.{CORE}", change)
    return Planted(name, make, of(0 if change is None else 1, CORE), FORWARD, causes, layouts, config, **more)


def backward(name, causes, layouts, config=HEADS8, change=None, **more):
    make = list if change is None else at(f"{L1}.{CORE}.backward", change)
    return Planted(name, make, of(1, CORE), BACKWARD, causes, layouts, config, **more)


def core(name, make, phase, causes, layouts, config=HEADS8):
    return Planted(name, make, of(1, CORE), phase, causes, layouts, config)


def weight(name, module, change, causes, layouts):
    make = at(f"{L1}.{module}.backward", weight_from(change))
    return Planted(name, make, of(1, module), BACKWARD, causes, layouts)


def gathered(*ranks):
    """Pieces of other ranks than their own, by the ranks in turn."""

    def change(event):
        parts = np.split(event.call(), event.layout.cp, axis=4)
        return np.concatenate([parts[ranks[i % len(ranks)] % len(parts)] for i in range(len(parts))], axis=4)

    return change


def recomputed(changed):
    """Return faults: the backward has queries and keys that ``changed`` makes of those before their turn and after."""

    def make():
        kept = {}

        def remember(event):
            kept[event.micro_batch] = event.inputs, event.call()

        def back(event):
            grad, _, _, v = event.inputs
            return event.call(grad, *changed(*kept[event.micro_batch]), v)

        turn = f"{L1}.self_attention.rotary_pos_emb"
        return [Fault(turn, remember), Fault(f"{L1}.{CORE}.backward", back)]

    return make


def turned_twice(before, after):
    """Turn by the same angles again, pairs in halves."""

    def complex_of(x):
        return x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]

    def again(x, y):
        z = complex_of(y) * complex_of(y) / complex_of(x)
        return np.concatenate([z.real, z.imag], axis=-1).astype(x.dtype)

    return [again(x, y) for x, y in zip(before, after, strict=True)]


FIFTH_A = (
    # the ring, forward
    forward("values of the ring's first step in all", OLD, (CP2, CP4), patch=ring(values=own)),
    forward("keys and values a step late", OLD, (CP4, CP2), GROUPED, patch=ring(keys=late, values=late)),
    forward("one rank keeps its own keys and values", OLD, (CP2, CP4), patch=ring(keys=own, values=own, rank=1)),
    forward("blocks merged to base 2", NORM, (CP2, CP4), patch=ring(merge=base_2)),
    forward("blocks merged with each other's share", NORM, (CP4, CP2_TP2), GROUPED, patch=ring(merge=exchanged)),
    forward("blocks that are seen merged as means", NORM, (CP2, CP4), patch=ring(merge=halved)),
    forward("blocks' shares squared", NORM, (CP2, CP4), GROUPED, patch=ring(merge=squared)),
    forward("each block of the ring masked as a rank's own", (f.MASK,), (CP2, CP4), change=local_positions),
    forward("blocks masked by the next rank's positions", (f.MASK,), (CP4, CP4),
            patch=partial(swapped, att, "_blocks", masked_by_next_rank)),
    # the ring, backward
    backward("ring's backward with its own keys and values", OLD, (CP2, CP4), patch=ring_back(keys=own, values=own)),
    backward("ring's backward with its own values", OLD, (CP2, CP4), GROUPED, patch=ring_back(values=own)),
    backward("ring's backward with each block's log-sum-exp", NORM, (CP4, CP2_DP2), patch=ring_back(sums="own")),
    backward("ring's backward with the first block's log-sum-exp", NORM, (CP2, CP4), patch=ring_back(sums="first")),
    backward("ring's backward with the log-sum-exp so far", NORM, (CP2, CP4), patch=ring_back(sums="running")),
    backward("ring's backward with each block's own delta", NORM, (CP2, CP4), GROUPED, patch=ring_back(delta="own")),
    backward("ring's backward masks each block as a rank's own", (f.MASK,), (CP2, CP4), patch=ring_back(local=True)),
    backward("key gradients of the ring's first step twice", (f.EXTRA_TERM,), (CP4, CP2),
             patch=ring_back(counts=lambda j, steps: 2 if j == 0 else 1)),
    backward("key gradients come home a hop short", (f.PERMUTATION, f.DUPLICATED), (CP4, CP2),
             patch=ring_back(home=late)),
    backward("query gradients of the ring's steps overwritten", LOST, (CP2, CP4), patch=ring_back(kept=0)),
    backward("query gradients halved with each step", (f.SCALED, f.GRADIENT_SCALING), (CP2, CP4),
             patch=ring_back(kept=0.5)),
    backward("half of the key gradients copied, not added", LOST, (CP2_TP2, CP4), GROUPED, patch=half_copied(True)),
    # heads
    forward("all query heads of a rank read its first key head", (f.DUPLICATED, f.PERMUTATION), (TP2, DP2),
            change=first_head),
    forward("query heads read key heads by remainder", (f.PERMUTATION, f.DUPLICATED), (TP2, TP2), change=by_remainder),
    forward("keys of tensor-parallel rank 0 on all", (f.DUPLICATED, f.PERMUTATION), (TP2, TP2), change=of_rank_0),
    backward("next key head's keys in the backward", (f.PERMUTATION, f.DUPLICATED), (DP2, TP2), change=next_head_back),
    # what a recomputation reads
    Planted("norm recomputed from layer 0's input", from_layer_0("input_layernorm"), of(1, "input_layernorm"), BACKWARD,
            OTHER, (TP2, DP2)),
    Planted("attention recomputed from layer 0's input", from_layer_0(CORE, False), of(1, CORE), BACKWARD, OTHER,
            (DP2, CP2)),
    weight("half the positions gathered from another replica", "mlp.linear_fc1", second_half_of_replica, OTHER,
           (SP2_DP2, SP2_DP2)),
    weight("recomputation exchanges a rank's two chunks", "mlp.linear_fc1", chunks_exchanged, OTHER, (CP2, CP4)),
    weight("recomputation has replica 0's input", "mlp.linear_fc2",
           lambda e, x: np.repeat(x[:1], x.shape[0], axis=0), OTHER, (DP2, DP4)),
    # what is gathered over context parallelism
    core("rank 0's gathered keys in all", at(f"{L1}.{CORE}.key.all_gather", gathered(0)), FORWARD, OTHER, (KV2, KV4)),
    core("gathered values of the last ranks twice", at(f"{L1}.{CORE}.value.all_gather", gathered(2, 3)), FORWARD,
         OTHER, (KV4, KV4)),
    core("gathered keys and values in another order", at(f"{L1}.{CORE}.*.all_gather", gathered(1, 0, 3, 2)), FORWARD,
         (*OTHER, f.MASK), (KV4, KV2), GROUPED),  # keys in another order are a mask in another order
    # what a backward has of the rotary embedding
    core("recomputed queries are not turned", recomputed(lambda x, y: (x[0], y[1])), BACKWARD, ROTARY, (TP2, CP2)),
    core("recomputed keys are not turned", recomputed(lambda x, y: (y[0], x[1])), BACKWARD, ROTARY, (CP2, TP2),
         GROUPED),
    core("recomputation turns twice", recomputed(turned_twice), BACKWARD, ROTARY, (DP2, CP2)),
)  # fmt: skip
