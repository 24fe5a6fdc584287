"""What the faults of the second table do to an event, where one line does not say it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import ml_dtypes
import numpy as np
from planted_faults import bf16

from telekit.accuracy.miniature import Fault
from telekit.accuracy.miniature import attention as att
from telekit.accuracy.miniature.mesh import Mesh

LAYER0, LAYER1 = "decoder.layers.0", "decoder.layers.1"


@contextmanager
def swapped(of, name, value):
    """Put something else in a module's, or a frozen object's, place for a while."""
    old = getattr(of, name)
    object.__setattr__(of, name, value)
    try:
        yield
    finally:
        object.__setattr__(of, name, old)


def fp8(x):
    return x.astype(ml_dtypes.float8_e4m3fn).astype(x.dtype)


def redrawn(event):
    x = event.inputs[0]
    weight = np.random.default_rng(7).standard_normal(x.shape[2:]) * x.std()
    return np.broadcast_to(weight.astype(x.dtype), x.shape).copy()


# --- attention and rotary ----------------------------------------------------------------------------------------


def _to_halves(x):
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def _to_neighbours(x):
    return np.stack(np.split(x, 2, axis=-1), axis=-1).reshape(x.shape)


def interleaved(event):
    if event.phase == "backward":
        grads, q, k = event.inputs
        return tuple(_to_neighbours(x) for x in event.call(tuple(_to_halves(g) for g in grads), q, k))
    return tuple(_to_neighbours(x) for x in event.call(*(_to_halves(x) for x in event.inputs)))


def only_queries(event):
    if event.phase == "backward":
        return event.call()[0], event.inputs[0][1]
    return event.call()[0], event.inputs[1]


_BLOCKS = att._blocks


def window_of_8(tape, positions_q, positions_k, offset, ring):
    return [
        seen & (np.roll(positions_k, j, axis=0)[:, None, :] > positions_q[:, :, None] - 8)
        for j, seen in enumerate(_BLOCKS(tape, positions_q, positions_k, offset, ring))
    ]


def with_sink(q, k, v, seen, scale):
    scores = att._scores(q, k, seen, scale)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    p = np.exp(scores - top)
    total = p.sum(axis=-1, keepdims=True) + np.exp(-top)
    return (p @ v) / total, np.log(total) + top


_ATTENTION_BACK = att.ATTENTION.backward


def without_delta(tape, *arrays, saved, **settings):
    return _ATTENTION_BACK(tape, *arrays, saved=(np.zeros_like(saved[0]), saved[1]), **settings)


_TILED = [0, 2, 1, 3]


def tiled(event):
    if event.phase == "backward":
        q, k, v = event.call(event.inputs[0][..., _TILED, :], *event.inputs[1:])
        return q[..., _TILED, :], k, v
    q, k, v = event.inputs
    return event.call(np.ascontiguousarray(q[..., _TILED, :]), k, v)[..., _TILED, :]


def keys_in_order(event):
    whole = np.arange(event.config.sequence)[None]
    return event.call(positions_k=whole.repeat(event.layout.cp, axis=0))


def unscaled_queries(event):
    q, k, v = event.call()
    return q * event.config.head_size**0.5, k, v


def first_head(event):
    grad, *rest = event.inputs
    q, _, _ = event.call()
    per = event.config.heads // event.config.kv_heads
    heads = grad.copy().reshape(*grad.shape[:-2], -1, per, grad.shape[-1])
    heads[..., 1:, :] = 0
    _, k, v = event.call(heads.reshape(grad.shape), *rest)
    return q, k, v


# --- norms, residuals, activations -------------------------------------------------------------------------------


def centred(event):
    if event.phase == "backward":
        grad, weight = event.call()
        return grad - grad.mean(axis=-1, keepdims=True), weight
    x, weight = event.inputs
    return event.call(x - x.mean(axis=-1, keepdims=True), weight)


def other_norm():
    kept = {}

    def remember(event):
        kept["weight"] = event.inputs[1]

    return [
        Fault(f"{LAYER1}.input_layernorm", remember),
        Fault(f"{LAYER1}.pre_mlp_layernorm", lambda event: event.call(event.inputs[0], kept["weight"])),
    ]


def after_the_norm():
    kept = {}

    def remember(event):
        kept["normed"] = event.call()
        return kept["normed"]

    def instead(event):
        return event.call(event.inputs[0], kept["normed"].astype(event.inputs[1].dtype))

    return [Fault(f"{LAYER1}.input_layernorm", remember), Fault(f"{LAYER1}.self_attn_bda", instead)]


def no_projection(event):
    grad, x, weight = event.inputs
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + event.settings["eps"])
    beside = weight.reshape(*weight.shape[:3], *(1,) * (x.ndim - 4), -1)
    return (scale * grad * beside).astype(grad.dtype), event.call()[1]


def raw_input(event):
    grad, x, _ = event.inputs
    return event.call()[0], (grad * x).reshape(*x.shape[:3], -1, x.shape[-1]).sum(axis=3)


def short_silu(event):
    grad, x = event.inputs
    gate, up = np.split(x, 2, axis=-1)
    sigmoid = 1 / (1 + np.exp(-gate))
    return (np.concatenate([grad * up * sigmoid, grad * gate * sigmoid], axis=-1),)


# --- tokens and loss ---------------------------------------------------------------------------------------------


def last_masked(event):
    out = event.call().copy()
    out[..., -1] = 0
    return out


def last_masked_back(event):
    grad = event.inputs[0].copy()
    grad[..., -1] = 0
    return event.call(grad, *event.inputs[1:])


def _log_sum(logits):
    top = logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]


def z_loss(event):
    lse = _log_sum(event.inputs[-1].astype(np.float64))
    out = event.call()
    return (out + 1e-3 * lse**2).astype(out.dtype)


def z_loss_back(event):
    logits = event.inputs[-1].astype(np.float64)
    lse = _log_sum(logits)
    more = event.inputs[0][..., None] * 2e-3 * lse[..., None] * np.exp(logits - lse[..., None])
    return ((event.call()[0] + more).astype(event.inputs[0].dtype),)


def cut_in_order(event):
    positions = np.argsort(Mesh(event.config, event.layout).positions, axis=None)

    def one(x):
        whole = np.concatenate(list(np.moveaxis(x, 1, 0)), axis=-1)[..., positions]
        return np.stack(np.split(whole, event.layout.cp, axis=-1), axis=1)

    return tuple(one(x) for x in event.inputs)


def one_token_more(event):
    tokens = np.roll(event.inputs[0], 1, axis=-1)
    tokens[..., 0] = 0
    return tokens, event.inputs[1]


def row_0_added(event):
    """Tokens of other ranks look up this rank's first row, and nothing sets that to zero."""
    weight, tokens = event.inputs[0], event.settings["tokens"]
    rows = weight.shape[3]
    first = (np.arange(event.layout.tp) * rows)[None, None, :, None, None]
    other = (tokens < first) | (tokens >= first + rows)
    return event.call() + other[..., None] * weight[:, :, :, 0][:, :, :, None, None, :]


# --- weights and ranks -------------------------------------------------------------------------------------------


def ungrouped_qkv(event):
    """All queries, then all keys, then all values, where each group has its own."""
    x, c = event.inputs[0], event.config
    per = c.heads // c.kv_heads
    groups = x.reshape(*x.shape[:3], c.kv_heads, per + 2, c.head_size, x.shape[-1])
    parts = [groups[:, :, :, :, :per], groups[:, :, :, :, per], groups[:, :, :, :, per + 1]]
    return np.concatenate([p.reshape(*x.shape[:3], -1, x.shape[-1]) for p in parts], axis=3)


def other_on_rank_1(event):
    x = event.inputs[0].copy()
    x[:, :, 1] += 0.05 * np.random.default_rng(5).standard_normal(x.shape[3:]).astype(x.dtype)
    return x


def gathered_backwards(event):
    return np.concatenate(np.split(event.call(), event.layout.tp, axis=4)[::-1], axis=4)


def without_rank_1(event):
    x = event.inputs[0].copy()
    x[1] = 0
    return event.call(x)


def stale_output():
    kept = {}

    def change(event):
        if event.micro_batch == 0:
            kept["out"] = event.call()
        return kept["out"]

    return [Fault(f"{LAYER0}.mlp_bda", change)]


def stale_input():
    kept = {}

    def change(event):
        grad, x, weight = event.inputs
        if event.micro_batch == 0:
            kept["x"] = x
        return event.call(grad, kept["x"], weight)

    return [Fault(f"{LAYER0}.mlp.linear_fc2.backward", change)]


def stale_weight():
    kept = {}

    def change(event):
        if event.step == 0:
            kept["weight"] = event.inputs[1].copy()
        return event.call(event.inputs[0], kept["weight"])

    return [Fault(f"{LAYER1}.mlp.linear_fc1", change)]


def fp16_overflow(event):
    grad, weight = event.call()
    with np.errstate(over="ignore"):
        big = (grad.astype(np.float64) * 2.0**27).astype(np.float16)
    return big.astype(grad.dtype) / grad.dtype.type(2.0**27), weight


# --- experts -----------------------------------------------------------------------------------------------------


def by_sigmoid(event):
    sigmoid = 1 / (1 + np.exp(-event.inputs[-1]))
    return (event.inputs[0] * sigmoid * (1 - sigmoid),) if event.phase == "backward" else sigmoid


def weights_reversed(event):
    weights, chosen = event.call()
    return weights[..., ::-1].copy(), chosen


def weights_times_2_5(event):
    weights, chosen = event.call()
    return weights * 2.5, chosen


def one_choice(event):
    grad, order = event.inputs[0].copy(), event.settings["plan"].order
    grad[order.reshape(*grad.shape[:3], -1) % event.config.top_k != 0] = 0
    return event.call(grad, *event.inputs[1:])


def one_row_off(event):
    plan = event.settings["plan"]
    offsets = plan.offsets.copy()
    offsets[..., 1:-1] = np.maximum(offsets[..., 1:-1] - 1, offsets[..., :-2])
    return event.call(plan=replace(plan, offsets=offsets))


def no_first_expert(event):
    grad, weight = event.call()
    weight = weight.copy()
    weight[..., 0, :, :] = 0
    return grad, weight


# --- optimizer ---------------------------------------------------------------------------------------------------


def eps_inside(event):
    grad, master, first, second = event.inputs
    k = event.settings
    first = first * k["beta1"] + grad * (1 - k["beta1"])
    second = second * k["beta2"] + grad * grad * (1 - k["beta2"])
    square = second / (1 - k["beta2"] ** k["time"]) + 1e-6
    step = first / (1 - k["beta1"] ** k["time"]) / np.sqrt(square)
    master = master * (1 - k["lr"] * k["weight_decay"]) - k["lr"] * step
    return master.astype(event.inputs[1].dtype), first, second


def bf16_second(event):
    master, first, second = event.call()
    return master, first, bf16(second)


def own_slice(event):
    """Each rank of dp updates its rows alone, and nobody gathers them."""
    master, first, second = event.call()
    master, n = master.copy(), event.layout.dp
    owner = np.arange(master.shape[3]) * n // master.shape[3]
    for rank in range(n):
        master[rank][:, :, owner != rank] = event.inputs[1][rank][:, :, owner != rank]
    return master, first, second


def atomics():
    """Gradients of a token's row are added in any order."""
    random = np.random.default_rng()

    def change(event):
        grad, weight = event.inputs
        tokens, out = event.settings["tokens"], np.zeros_like(weight)
        for rank in np.ndindex(*weight.shape[:3]):
            ids = tokens[rank].ravel() - rank[2] * weight.shape[3]
            rows = grad[rank].reshape(-1, grad.shape[-1])
            for i in random.permutation(len(ids)):
                if 0 <= ids[i] < weight.shape[3]:
                    total = out[rank][ids[i]] + rows[i]
                    out[rank][ids[i]] = bf16(total) if event.config.precision == "bf16" else total
        return (out,)

    return [Fault("embedding.word_embeddings.backward", change)]


def any_slots():
    """A token's chosen experts come in any order."""
    random = np.random.default_rng()

    def change(event):
        weights, chosen = event.call()
        flip = (random.random(weights.shape[:-1]) < 0.5)[..., None]
        return np.where(flip, weights[..., ::-1], weights), np.where(flip, chosen[..., ::-1], chosen)

    return [Fault(f"{LAYER0}.mlp.router.top_k", change)]
