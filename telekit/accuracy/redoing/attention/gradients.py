"""Formulas of attention's gradients: done again from queries, keys, values and the gradient of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.attention.attention import attended, block_masks, fitting, ring_masks
from telekit.accuracy.redoing.attention.earlier import earlier_activations
from telekit.accuracy.redoing.formula.formula import Formula, Proven, Variant, other_inputs, own_side
from telekit.accuracy.redoing.formula.orders import counts, zigzags
from telekit.accuracy.redoing.formula.recomputed import other_activations


def attention_gradients(case: Case) -> Iterator[Formula]:
    """Gradients of queries, keys and values of causal attention."""
    g = case.golden
    assert g is not None
    if case.phase != BACKWARD or g.ndim != 4:
        return
    known = [k for k in case.inputs if k.golden is not None and k.golden.ndim >= 3]
    four = [k for k in known if k.golden is not None and k.golden.ndim == 4]
    given = [k for k in four if ".forward." in k.name and ".input." in k.name]
    for q, k, v in permutations(given or four[:5], 3):
        a, b, c = q.golden, k.golden, v.golden
        if a is None or b is None or c is None or b.shape != c.shape or a.shape[-1] != b.shape[-1]:
            continue
        ups = [
            u
            for u in known
            if u.golden is not None and u.golden.size == a.size and not any(u is x for x in (q, k, v))
        ]
        for order, up in product(fitting(a, b), ups):
            for which, what in enumerate(("queries", "keys", "values")):
                if g.shape != (b if which else a).shape:
                    continue
                n, groups = a.shape[order[2]], a.shape[order[1]] // b.shape[order[1]]
                variants = partial(_attention_variants, which, order, n, groups, case, (q, k, v))
                text = f"attention's gradient of its {what}"
                heads = in_shape(up, a.shape)
                yield Formula(text, (q, k, v, heads), partial(gradient_made, which, order, {}), variants)


def in_shape(known: Known, shape: tuple[int, ...]) -> Known:
    """Return a tensor of as many elements, read in another shape: heads with an axis of their own."""
    t, g = (
        a if a is None or a.size != np.prod(shape) else a.reshape(shape) for a in (known.target, known.golden)
    )
    return Known(known.name, t, g)


def gradient_made(
    which: int, order: tuple[int, ...], how: dict[str, object], q: Floats, k: Floats, v: Floats, up: Floats
) -> Floats:
    """Return the gradient of queries, keys or values (0, 1, 2) in the order of axes that they are dumped in."""
    moved = [a.transpose(order) for a in (q, k, v, up.reshape(q.shape))]
    value = gradients(moved, **how)[which]  # type: ignore[arg-type]
    return np.asarray(value.transpose(np.argsort(order)))


@dataclass(frozen=True)
class Call:
    """A proven call of attention; tensors are (batch, heads, tokens, size).

    Attributes
    ----------
    which : int, optional
        Whose gradient it gave: of queries, keys or values (0, 1, 2); None forward.
    target : ndarray
        What it gave.
    tensors : list of ndarray
        Its own queries, keys and values, and backward the output's gradient.
    args : tuple
        What its formula was made with.
    """

    which: int | None
    target: Floats
    tensors: list[Floats]
    args: tuple[Any, ...]


def proven_call(case: Case, found: Proven) -> Call | None:
    """Read a proven formula as a call of attention, forward or backward; None where it is no attention."""
    made, t = found.formula.make, case.target
    if t is None or not isinstance(made, partial) or made.func not in (attended, gradient_made):
        return None
    which = None if made.func is attended else made.args[0]
    order = made.args[0 if which is None else 1]
    own = [own_side(k) for k in found.formula.inputs]
    target = t.reshape(own[which or 0].shape).transpose(order)
    return Call(which, target, [x.transpose(order) for x in own], made.args)


def gradients(
    tensors: list[Floats], *, pairs: Array | None = None, mask: Array | None = None, back_mask: Array | None = None,
    scale: float = 1.0, back_scale: float = 1.0, delta: float = 1.0, heads: Array | None = None,
    tile: bool = False, weights: bool = True, saved: Sequence[Floats] = (),
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """Gradients of q, k and v of causal attention.

    Parameters
    ----------
    tensors : list of ndarray
        q, k, v and the output's gradient, (batch, heads, tokens, size).
    pairs : ndarray of bool
        Of query and key, that count in the gradients.
    mask, back_mask : ndarray of bool
        In place of the causal one; ``back_mask`` in the backward alone, with the forward's denominators.
    scale, back_scale : float
        Factors on the softmax's scale, forward and as the derivative has it.
    delta : float
        Share of the softmax's second term, the row's sum of gradient times output.
    heads : ndarray of bool
        Heads of a group that count in the gradients of keys and values.
    tile : bool
        Heads tiled over groups, not repeated.
    weights : bool
        Whether the probabilities weigh the gradient of the scores.
    saved : sequence of ndarray
        q, k, v that the forward had, where the backward has others: its denominators and output are kept.
    """
    q, k, v, up = tensors
    groups, n, usual = q.shape[1] // k.shape[1], q.shape[2], q.shape[-1] ** -0.5 * scale
    shown = np.tri(n, dtype=bool) if mask is None else mask
    repeat = partial(_over_groups, groups, tile)
    keys, values = repeat(k), repeat(v)
    q_saved, k_saved, v_saved = saved or (q, k, v)
    raw = (q_saved @ repeat(k_saved).swapaxes(-1, -2)) * usual
    top, total = _denominators(np.where(shown, raw, -np.inf))
    p = np.where(shown, np.exp(np.minimum(raw - top, 60)), 0.0) / total
    row = ((up @ repeat(v_saved).swapaxes(-1, -2)) * p).sum(axis=-1, keepdims=True)
    if saved or back_mask is not None:
        raw = (q @ keys.swapaxes(-1, -2)) * usual
        p = (
            np.where(shown if back_mask is None else back_mask, np.exp(np.minimum(raw - top, 60)), 0.0)
            / total
        )
    inner = up @ values.swapaxes(-1, -2) - delta * row
    count = 1.0 if pairs is None else pairs
    inner = (p * inner if weights else inner * (p > 0)) * (usual / scale * back_scale) * count
    of_k, of_v = inner.swapaxes(-1, -2) @ q, (p * count).swapaxes(-1, -2) @ up
    shape = (k.shape[0], groups, k.shape[1], n, -1) if tile else (k.shape[0], k.shape[1], groups, n, -1)
    kept = np.ones(groups, bool) if heads is None else heads
    at = 1 if tile else 2
    of_k, of_v = (np.compress(kept, a.reshape(shape), axis=at).sum(axis=at) for a in (of_k, of_v))
    return inner @ keys, of_k, of_v


def _over_groups(groups: int, tile: bool, x: Floats) -> Floats:
    """Repeat keys or values over the heads of a group."""
    return np.tile(x, (1, groups, 1, 1)) if tile else np.repeat(x, groups, axis=1)


def _denominators(scores: Floats) -> tuple[Floats, Floats]:
    """Return a row's largest score and the sum of its exponentials; 0 and 1 for a row that sees nothing."""
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.exp(scores - top).sum(axis=-1, keepdims=True)
    return top, np.where(total > 0, total, 1.0)


def _attention_variants(
    which: int, order: tuple[int, ...], n: int, groups: int, case: Case, inputs: tuple[Known, Known, Known]
) -> Iterator[Variant]:
    def made(**how: object) -> Callable[..., Floats]:
        return partial(gradient_made, which, order, how)

    if which < 2:
        delta = "delta (the row's sum of gradient times output)"
        yield kinds.MISSING_TERM, f"{delta} left out of the softmax's backward", made(delta=0.0)
        yield kinds.SIGN, f"{delta} with the other sign", made(delta=-1.0)
        yield kinds.EXTRA_TERM, f"{delta} taken twice", made(delta=2.0)
        yield kinds.NORMALISATION, "the probabilities left out of the scores' gradient", made(weights=False)
    yield from _scales(which, made)
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    masks = {
        "no mask": i >= 0 * j,
        "a mask that hides the token itself": j < i,
        "a mask of one token of the future": j <= i + 1,
    }
    masks |= {f"a window of {w}": (j <= i) & (i - j < w) for w in range(1, min(n, 64))}
    masks |= block_masks(n, case)
    for name, mask in masks.items():
        yield kinds.MASK, f"{name} in the scores done again", made(mask=mask)
        yield kinds.MASK, f"{name} in the backward, with the forward's denominators", made(back_mask=mask)
    yield from _groups(which, groups, made)
    for how, shown in ring_masks(n, case):
        yield kinds.MISSING_REDUCTION, f"pairs of query and key only {how}", made(pairs=shown)
    for m, _ in counts(case, "cp"):
        for text, at in zigzags(n, m):
            yield kinds.MASK, f"a mask of positions {text} of {m} ranks", made(mask=at[None, :] <= i)

    yield from _with_saved(which, order, case, inputs)


def _with_saved(
    which: int, order: tuple[int, ...], case: Case, inputs: tuple[Known, Known, Known]
) -> Iterator[Variant]:
    """Return gradients whose backward has other queries, keys or values than the forward, whose sums it keeps."""
    own = [own_side(k) for k in inputs]
    make: Callable[..., Floats] = partial(
        gradient_made, which, order, {"saved": [a.transpose(order) for a in own]}
    )
    whole: Callable[..., Floats] = partial(gradient_made, which, order, {})
    for kind, said, others in earlier_activations(case, inputs):
        text = f"{said} in the backward"
        yield kind, text, lambda q, k, v, up, used=others: whole(*used, up)
        saved = f"{text}, with the forward's denominators and output"
        yield kind, saved, lambda q, k, v, up, used=others: make(*used, up)
    for at, known in enumerate(inputs):
        for kind, said, other in other_inputs(case, own[at]):
            used = [*own[:at], other, *own[at + 1 :]]
            text = f"{said} {known.name} in the backward, with the forward's denominators and output"
            yield kind, text, lambda q, k, v, up, used=used: make(*used, up)
    for kind, said, others in other_activations(case, inputs, [0, 1, 2]):
        text = f"{said}, in the backward, with the forward's denominators and output"
        yield kind, text, lambda q, k, v, up, used=others: make(*used, up)


_Maker = Callable[..., Callable[..., Floats]]


def _scales(which: int, made: _Maker) -> Iterator[Variant]:
    """Return gradients with another softmax scale, forward or backward."""
    scale = kinds.SOFTMAX_SCALE
    if which < 2:
        of = "of a head's width"
        yield (
            scale,
            f"the softmax scale left out (the root {of} too large)",
            lambda q, *r: made()(q, *r) * _root(q),
        )
        yield (
            scale,
            f"the softmax scale taken twice (the root {of} too small)",
            lambda q, *r: made()(q, *r) / _root(q),
        )
    yield scale, "no scale in the scores done again", lambda q, *r: made(scale=_root(q))(q, *r)
    yield scale, "no scale at all", lambda q, *r: made(scale=_root(q), back_scale=_root(q))(q, *r)


def _root(q: Floats) -> float:
    return float(q.shape[-1] ** 0.5)


def _groups(which: int, groups: int, made: _Maker) -> Iterator[Variant]:
    """Return gradients with a group's heads counted otherwise."""
    if groups == 1:
        return
    yield kinds.PERMUTATION, "key and value heads tiled, not repeated", made(tile=True)
    of = f"each group of {groups} heads"
    for k in range(groups if which else 0):
        alone = np.arange(groups) == k
        yield kinds.MISSING_TERM, f"head {k} alone of {of}", made(heads=alone)
        yield kinds.MISSING_TERM, f"all but head {k} of {of}", made(heads=~alone)
    if which:
        yield kinds.SCALED, f"the mean over the heads of {of}", lambda *a: made()(*a) / groups
