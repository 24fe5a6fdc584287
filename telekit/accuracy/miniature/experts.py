"""A mixture of experts: routing, the balancing loss, the exchange of tokens, and linear layers of many experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.accuracy.miniature.mesh import Array, Mesh
from telekit.accuracy.miniature.tape import Operator, Tape


def _softmax(tape: Tape, logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _softmax_back(tape: Tape, grad: Array, logits: Array) -> tuple[Array]:
    p = _softmax(tape, logits)
    return (p * (grad - (grad * p).sum(axis=-1, keepdims=True)),)


SOFTMAX = Operator(_softmax, _softmax_back, wide=True)


def _top_k(tape: Tape, p: Array, *, k: int, normalise: bool, indices: Array | None) -> Any:
    """Weights and numbers of the chosen experts, best first, the lower number of equals; ``indices`` are replayed."""
    chosen = np.argsort(-p, axis=-1, kind="stable")[..., :k] if indices is None else indices
    weights = np.take_along_axis(p, chosen, axis=-1)
    total = weights.sum(axis=-1, keepdims=True) if normalise else np.ones_like(weights[..., :1])
    return (weights / total, chosen), (chosen, weights / total, total)


def _top_k_back(tape: Tape, grads: tuple[Array, Array], p: Array, *, k: int, normalise: bool, indices: Array | None,
                saved: tuple[Array, Array, Array]) -> tuple[Array]:  # fmt: skip
    chosen, weights, total = saved
    inner = grads[0]
    if normalise:
        inner = (inner - (inner * weights).sum(axis=-1, keepdims=True)) / total
    of_p = np.zeros_like(p)
    np.put_along_axis(of_p, chosen, inner, axis=-1)
    return (of_p,)


TOP_K = Operator(_top_k, _top_k_back, wide=True, saves=True)


def _aux_loss(tape: Tape, p: Array, indices: Array, *, coefficient: float) -> tuple[Array, Array]:
    """Return a rank's share of the mean over sequences of E * sum(share of choices * mean probability)."""
    c, n = tape.config, tape.layout
    counts = (indices[..., None] == np.arange(c.experts)).sum(axis=(-3, -2)).astype(p.dtype)
    counts = tape.collective("all_reduce", "cp+tp" if n.splits_sequence else "cp", counts, tape.mesh.wide)
    share = counts / (c.sequence * c.top_k)
    each = coefficient * c.experts / (c.sequence * c.batch) * share
    return np.asarray((each * p.sum(axis=-2)).sum(axis=(-2, -1))), each


def _aux_loss_back(tape: Tape, grad: Array, p: Array, indices: Array, *, coefficient: float,
                   saved: Array) -> tuple[Array, None]:  # fmt: skip
    each = grad[..., None, None, None] * saved[..., None, :]
    return np.broadcast_to(each, p.shape).astype(p.dtype), None


AUX_LOSS = Operator(_aux_loss, _aux_loss_back, wide=True, saves=True)


@dataclass(frozen=True, eq=False)
class Exchange:
    """Who sends which row where, for every rank (g of dp and cp flattened, t of tp).

    Attributes
    ----------
    order : ndarray of int, shape (g, t, tokens * k)
        (token, choice) pairs of a rank sorted by expert.
    source, row : ndarray of int, shape (g, t, rows)
        Of each row that a rank's experts get: the rank it comes from and its place in that one's order.
    keys : ndarray of int, shape (dp, cp, tp, rows)
        Expert and token of the whole model; -1 for padding.
    offsets : ndarray of int, shape (g, t, experts of a rank + 1)
        Where each expert's rows begin.
    """

    order: Array
    source: Array
    row: Array
    keys: Array
    offsets: Array


def _token_numbers(mesh: Mesh, micro_batch: int, sequences: int) -> Array:
    """Give each token its number in the global batch, (dp * cp, tokens of a rank)."""
    n, s = mesh.layout, mesh.config.sequence
    first = (micro_batch * n.dp + np.arange(n.dp)) * sequences
    rows = first[:, None] + np.arange(sequences)
    numbers = rows[:, None, :, None] * s + mesh.positions[None, :, None, :]
    return np.asarray(numbers.reshape(n.dp * n.cp, -1))


def plan_exchange(mesh: Mesh, indices: Array, micro_batch: int) -> Exchange:
    """Sort the choices (dp, cp, tp, sequences, positions, k) by expert, then by source, then by token."""
    n, experts, k = mesh.layout, mesh.config.experts, indices.shape[-1]
    flat = indices.reshape(n.dp * n.cp, n.tp, -1)
    order = np.argsort(flat, axis=-1, kind="stable")
    chosen = np.take_along_axis(flat, order, axis=-1)
    tokens = _token_numbers(mesh, micro_batch, indices.shape[3])
    own, ranks = experts // n.ep, n.dp * n.cp
    lists: dict[tuple[int, int], tuple[Array, Array, Array]] = {}
    for g in range(ranks):
        group = np.arange(g // n.ep * n.ep, g // n.ep * n.ep + n.ep)
        for t in range(n.tp):
            expert = chosen[group, t]
            who, at = np.nonzero(expert // own == g % n.ep)
            by_expert = np.argsort(expert[who, at], kind="stable")
            who, at = who[by_expert], at[by_expert]
            key = expert[who, at] * mesh.config.tokens + tokens[group[who], order[group[who], t, at] // k]
            lists[g, t] = (group[who], at, key)
    rows = max(1, max(len(key) for _, _, key in lists.values()))
    source, row, keys = (np.full((ranks, n.tp, rows), fill) for fill in (0, 0, -1))
    offsets = np.zeros((ranks, n.tp, own + 1), np.int64)
    for (g, t), (who, at, key) in lists.items():
        source[g, t, : len(key)], row[g, t, : len(key)], keys[g, t, : len(key)] = who, at, key
        offsets[g, t] = np.searchsorted(key // mesh.config.tokens - g % n.ep * own, np.arange(own + 1))
    return Exchange(order, source, row, keys.reshape(*mesh.shape, rows), offsets)


def _by_rank(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])


def _permute(tape: Tape, x: Array, *, plan: Exchange) -> Array:
    flat = x.reshape(*x.shape[:3], -1, x.shape[-1])
    at = plan.order.reshape(*x.shape[:3], -1, 1) // tape.config.top_k
    return np.asarray(np.take_along_axis(flat, at, axis=3))


def _permute_back(tape: Tape, grad: Array, x: Array, *, plan: Exchange) -> tuple[Array]:
    return (_choices(tape, grad, plan).sum(axis=-2).reshape(x.shape),)


def _choices(tape: Tape, rows: Array, plan: Exchange) -> Array:
    """Put rows in the order of experts back: (dp, cp, tp, tokens, k, hidden)."""
    back = np.empty_like(rows)
    np.put_along_axis(back, plan.order.reshape(*rows.shape[:4], 1), rows, axis=3)
    return back.reshape(*rows.shape[:3], -1, tape.config.top_k, rows.shape[-1])


PERMUTE = Operator(_permute, _permute_back)
"""Each token once for each of its experts, sorted by expert."""


def _unpermute(tape: Tape, rows: Array, weights: Array, *, plan: Exchange) -> Array:
    mixed = _choices(tape, rows, plan) * weights.reshape(*rows.shape[:3], -1, tape.config.top_k, 1)
    return np.asarray(mixed.sum(axis=-2).reshape(*weights.shape[:-1], rows.shape[-1]))


def _unpermute_back(
    tape: Tape, grad: Array, rows: Array, weights: Array, *, plan: Exchange
) -> tuple[Array, Array]:
    up = grad.reshape(*rows.shape[:3], -1, 1, rows.shape[-1])
    of_weights = (up * _choices(tape, rows, plan)).sum(axis=-1).reshape(weights.shape)
    by_choice = up * weights.reshape(*rows.shape[:3], -1, tape.config.top_k, 1)
    flat = by_choice.reshape(rows.shape)
    at = plan.order.reshape(*rows.shape[:4], 1)
    return np.asarray(np.take_along_axis(flat, at, axis=3)), of_weights


UNPERMUTE = Operator(_unpermute, _unpermute_back)
"""The experts' answers of each token, weighed and added."""


def _send(tape: Tape, rows: Array, plan: Exchange) -> Array:
    """To the ranks that have the experts."""

    def function(rows: Array) -> Array:
        t = np.arange(tape.layout.tp)[None, :, None]
        got = _by_rank(rows)[plan.source, t, plan.row].reshape(*plan.keys.shape, rows.shape[-1])
        return np.where(plan.keys[..., None] >= 0, got, 0)

    if tape.layout.ep == 1:
        return rows
    return tape.communicated("all_to_all", "all_to_all_single", function, rows)


def _send_back(tape: Tape, rows: Array, plan: Exchange) -> Array:
    """From the ranks that have the experts to the tokens' own."""

    def function(rows: Array) -> Array:
        back = np.zeros((*plan.order.shape, rows.shape[-1]), rows.dtype)
        g, t, r = np.nonzero(_by_rank(plan.keys) >= 0)
        back[plan.source[g, t, r], t, plan.row[g, t, r]] = _by_rank(rows)[g, t, r]
        return back.reshape(*tape.mesh.shape, *back.shape[2:])

    if tape.layout.ep == 1:
        return rows
    return tape.communicated("all_to_all", "all_to_all_single", function, rows)


SEND = Operator(lambda tape, rows, *, plan: _send(tape, rows, plan),
                lambda tape, grad, rows, *, plan: (_send_back(tape, grad, plan),), own_event=False)  # fmt: skip
SEND_BACK = Operator(lambda tape, rows, *, plan: _send_back(tape, rows, plan),
                     lambda tape, grad, rows, *, plan: (_send(tape, grad, plan),), own_event=False)  # fmt: skip


def _grouped(tape: Tape, rows: Array, weight: Array, *, plan: Exchange) -> Array:
    out = np.zeros((*rows.shape[:4], weight.shape[-2]), rows.dtype)
    for at, expert, here in _segments(tape, plan):
        out[at][here] = rows[at][here] @ weight[at][expert].T
    return out


def _grouped_back(
    tape: Tape, grad: Array, rows: Array, weight: Array, *, plan: Exchange
) -> tuple[Array, Array]:
    of_rows, of_weight = np.zeros_like(rows), np.zeros_like(weight)
    for at, expert, here in _segments(tape, plan):
        of_rows[at][here] = grad[at][here] @ weight[at][expert]
        of_weight[at][expert] = grad[at][here].T @ rows[at][here]
    return of_rows, of_weight


def _segments(tape: Tape, plan: Exchange) -> Any:
    """Yield each rank, each of its experts, and the rows of that one."""
    offsets = plan.offsets.reshape(*tape.mesh.shape, -1)
    for at in np.ndindex(tape.mesh.shape):
        for expert in range(offsets.shape[-1] - 1):
            yield at, expert, slice(int(offsets[at][expert]), int(offsets[at][expert + 1]))


GROUPED_LINEAR = Operator(_grouped, _grouped_back)
"""Each expert's rows by its own weight."""
