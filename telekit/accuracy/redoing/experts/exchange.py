"""Formulas of a mixture's exchange: rows of chosen experts sent out, their products, and what comes back weighed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.compared import BACKWARD, FORWARD, Compared
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.formula import Formula, Variant
from telekit.accuracy.redoing.formula.numbers import distinct, numbers_of
from telekit.accuracy.redoing.formula.softmax import softmax

EXCHANGED = ("dispatch", "combine", "permute", "moe")
"""Words of operators that send rows to experts and back."""


def choices(case: Case) -> Iterator[Floats]:
    """Numbers of the chosen experts, (..., k), as a router of the same layer put them out."""
    layer = case.operator.split(".mlp")[0].split(".moe")[0]

    def fits(row: Compared) -> bool:
        g = row.golden
        return (
            row.name.startswith(layer)
            and g is not None
            and g.dtype.startswith("int")
            and len(g.shape or ()) >= 2
        )

    own = [k for k in (*case.inputs, *case.near) if k.golden is not None and k.golden.ndim >= 2]
    for known in (*own, *(case.pool(fits) if case.pool is not None else ())):
        x = known.golden
        if x is not None and x.shape[-1] <= 64 and numbers_of(x) and distinct(x):
            yield x


def slots_of(chosen: Floats) -> Array:
    """Where the row of each token's choice stands among rows sorted by expert, then token: (tokens, k)."""
    numbers = chosen.reshape(-1, chosen.shape[-1]).astype(int)
    order = np.argsort(numbers.ravel(), kind="stable")
    at = np.empty_like(order)
    at[order] = np.arange(order.size)
    return at.reshape(numbers.shape)


def exchanges(case: Case) -> Iterator[Formula]:
    """Rows sent to their experts and weighed sums of what comes back, forward and backward."""
    g = case.golden
    assert g is not None
    if g.ndim < 2 or not any(w in case.words for w in EXCHANGED):
        return
    for chosen in choices(case):
        slots, tokens = slots_of(chosen), chosen.shape[:-1]
        for x in case.inputs:
            if x.golden is None or x.golden.ndim < 2:
                continue
            width = x.golden.shape[-1:]
            rows = x.golden.shape == (slots.size, *width)
            if x.golden.shape == (*tokens, *width) and g.shape == (slots.size, *width):
                yield from _sent(case, x, chosen, slots)
            elif rows and g.shape == (*tokens, *width):
                yield from _returned(case, x, chosen, slots)
            elif rows and g.shape == chosen.shape and case.phase == BACKWARD:
                for up in case.inputs:
                    if up.golden is not None and up.golden.shape == (*tokens, *width):
                        made = partial(_of_weights, slots, g.shape)
                        variants = partial(_of_weights_variants, slots, g.shape)
                        yield Formula("the gradient of the routing weights", (up, x), made, variants)


def _sent(case: Case, x: Known, chosen: Floats, slots: Array) -> Iterator[Formula]:
    """Tokens to rows; on the way back each times its weight."""
    owner = np.empty(slots.size, int)
    owner[slots] = np.arange(len(slots))[:, None]
    if case.phase == FORWARD:
        yield Formula(
            "each token sent to its experts",
            (x,),
            partial(_send, owner),
            partial(_send_variants, owner, slots),
        )
    for w in case.inputs:
        if case.phase == BACKWARD and w.golden is not None and w.golden.shape == chosen.shape and w is not x:
            if np.array_equal(w.golden, chosen):
                continue

            def made(up: Floats, w: Floats) -> Floats:
                return np.asarray(_send(owner, up) * _by_row(slots, w)[:, None])

            yield Formula(
                "the gradient of the experts' rows", (x, w), made, partial(_sent_back_variants, owner, slots)
            )


def _send(owner: Array, x: Floats) -> Floats:
    return np.asarray(x.reshape(-1, x.shape[-1])[owner])


def _by_row(slots: Array, weights: Floats) -> Floats:
    found = np.empty(slots.size)
    found[slots] = weights.reshape(slots.shape)
    return found


def _send_variants(owner: Array, slots: Array) -> Iterator[Variant]:
    yield (
        kinds.PERMUTATION,
        "rows in the tokens' order, not sorted by expert",
        lambda x: _send(np.arange(owner.size) // slots.shape[1], x),
    )
    yield (
        kinds.PERMUTATION,
        "choices taken one after another for all tokens",
        lambda x: _send(np.arange(owner.size) % len(slots), x),
    )
    for by in (1, -1):
        yield (
            kinds.PERMUTATION,
            f"tokens shifted by {by:+d}",
            lambda x, by=by: _send((owner + by) % len(slots), x),
        )


def _sent_back_variants(owner: Array, slots: Array) -> Iterator[Variant]:
    k = slots.shape[1]
    yield kinds.ROUTER, "the routing weights not applied", lambda up, w: _send(owner, up)
    yield kinds.ROUTER, f"equal weights of 1/{k}", lambda up, w: _send(owner, up) / k
    yield (
        kinds.ROUTER,
        "weights in the reverse order of their experts",
        lambda up, w: _send(owner, up) * _by_row(slots, w[..., ::-1])[:, None],
    )
    yield (
        kinds.ROUTER,
        "the weights applied twice",
        lambda up, w: _send(owner, up) * _by_row(slots, w * w)[:, None],
    )
    for c in range(k):
        alone = np.arange(k) == c
        for text, kept in ((f"choice {c} alone", alone), (f"all but choice {c}", ~alone)):
            yield (
                kinds.MISSING_TERM,
                text,
                lambda up, w, kept=kept: _send(owner, up) * _by_row(slots, w * kept)[:, None],
            )


def _returned(case: Case, x: Known, chosen: Floats, slots: Array) -> Iterator[Formula]:
    """Rows back to tokens: weighed on the way there, added on the way back."""
    k = chosen.shape[-1]
    shape = chosen.shape[:-1]

    def added(rows: Floats, weights: Floats) -> Floats:
        taken = rows[slots] * np.broadcast_to(weights, slots.shape)[..., None]
        return np.asarray(taken.sum(axis=1).reshape(*shape, rows.shape[-1]))

    if case.phase == BACKWARD:
        yield Formula(
            "the sum of the gradients of a token's experts",
            (x,),
            lambda r: added(r, np.ones(k)),
            lambda: _kept(k, added),
            once=True,
        )
        return
    for w in case.inputs:
        if w.golden is not None and w.golden.shape == chosen.shape and not np.array_equal(w.golden, chosen):
            yield Formula(
                "the experts' rows weighed and added", (x, w), lambda r, w: added(r, w.reshape(slots.shape)),
                lambda: _weighed_variants(k, slots, added), once=True,
            )  # fmt: skip


def _kept(k: int, added: Callable[[Floats, Floats], Floats]) -> Iterator[Variant]:
    for c in range(k):
        alone = np.arange(k) == c
        for text, kept in (
            (f"choice {c} of each token alone", alone),
            (f"all but choice {c} of each token", ~alone),
        ):
            yield kinds.MISSING_TERM, f"the expert of {text}", lambda r, kept=kept: added(r, kept * 1.0)
    yield kinds.NORMALISATION, "the mean, not the sum", lambda r: added(r, np.full(k, 1 / k))


def _weighed_variants(k: int, slots: Array, added: Callable[[Floats, Floats], Floats]) -> Iterator[Variant]:
    def weighed(function: Callable[[Floats], Floats], r: Floats, w: Floats) -> Floats:
        return added(r, function(w.reshape(slots.shape)))

    for text, function in (
        ("the routing weights not applied (all ones)", np.ones_like),
        (f"equal routing weights of 1/{k}", lambda w: np.full_like(w, 1 / k)),
        ("the routing weights in the reverse order of their experts", lambda w: w[:, ::-1]),
        ("the routing weights applied twice", lambda w: w * w),
        ("the roots of the routing weights", np.sqrt),
        ("the routing weights normalised again", lambda w: w / w.sum(axis=1, keepdims=True)),
        ("softmax over the routing weights again", softmax),
    ):
        yield kinds.ROUTER, text, partial(weighed, function)
    for c, alone in enumerate(np.eye(k)):
        yield (
            kinds.MISSING_TERM,
            f"the expert of choice {c} of each token alone",
            partial(weighed, partial(np.multiply, alone)),
        )
        yield (
            kinds.MISSING_TERM,
            f"the expert of choice {c} alone, not weighed",
            partial(weighed, partial(_instead, alone)),
        )
        yield (
            kinds.MISSING_TERM,
            f"all but the expert of choice {c}",
            partial(weighed, partial(np.multiply, 1 - alone)),
        )

    def in_order(r: Floats, w: Floats) -> Floats:
        straight = np.empty_like(r)
        straight[slots.ravel()] = r[np.arange(slots.size)]
        return added(straight, w.reshape(slots.shape))

    yield kinds.PERMUTATION, "rows taken in the tokens' order, not put back from the experts'", in_order


def _instead(weights: Floats, of: Floats) -> Floats:
    return np.broadcast_to(weights, of.shape)


def _of_weights(slots: Array, shape: tuple[int, ...], up: Floats, rows: Floats) -> Floats:
    tokens = up.reshape(-1, 1, up.shape[-1])
    return np.asarray((tokens * rows[slots]).sum(axis=-1).reshape(shape))


def _of_weights_variants(slots: Array, shape: tuple[int, ...]) -> Iterator[Variant]:
    right = partial(_of_weights, slots, shape)
    yield (
        kinds.PERMUTATION,
        "weights in the reverse order of their experts",
        lambda up, r: right(up, r)[..., ::-1],
    )
    for c in range(shape[-1]):
        alone = np.arange(shape[-1]) == c
        for text, kept in ((f"that of choice {c} alone", alone), (f"all but that of choice {c}", ~alone)):
            yield kinds.MISSING_TERM, text, lambda up, r, kept=kept: right(up, r) * kept
    yield (
        kinds.NORMALISATION,
        "the mean over channels, not the sum",
        lambda up, r: right(up, r) / r.shape[-1],
    )
