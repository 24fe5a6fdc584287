"""Formulas of RMSNorm and LayerNorm, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.compared import BACKWARD, FORWARD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.formula.fit import nearest
from telekit.accuracy.redoing.formula.formula import Formula, Variant, own_side, rounded
from telekit.accuracy.redoing.formula.orders import as_rows, counts


def norms(case: Case) -> Iterator[Formula]:
    """RMSNorm and LayerNorm with the eps that golden has, and the gradients of their input and weight."""
    g = case.golden
    assert g is not None
    if not g.ndim:
        return
    width = g.shape[-1:]
    weights = [k for k in case.parameters if k.golden is not None and k.golden.shape == width]
    inputs = [
        k for k in case.inputs if k.golden is not None and k.golden.ndim > 1 and k.golden.shape[-1:] == width
    ]
    if case.phase == FORWARD:
        for x, w in product(inputs, weights):
            if x.golden is not None and w.golden is not None and x.golden.shape == g.shape:
                for centred in (False, True):
                    eps = epsilon_of(x.golden, w.golden, g, centred)
                    if eps is not None:
                        yield _forward_norm(x, w, eps, centred, case)
    elif case.phase == BACKWARD and weights:
        for up, x in product(inputs, inputs):
            if up is x or up.golden is None or x.golden is None or up.golden.shape != x.golden.shape:
                continue
            for centred, w in product((False, True), weights):
                eps = _known_epsilon(case, x, w, centred)
                if eps is not None:
                    yield from _backward_norm(up, x, w, eps, centred, case)


def _known_epsilon(case: Case, x: Known, w: Known, centred: bool) -> float | None:
    """Eps that the forward shows: its output stands among what a backward is given; None where x is no input."""
    assert x.golden is not None and w.golden is not None
    best: tuple[float, float] | None = None
    for out in case.inputs:
        if out is x or out.golden is None or out.golden.shape != x.golden.shape:
            continue
        eps = epsilon_of(x.golden, w.golden, out.golden, centred)
        if eps is not None:
            left = normed(x.golden, w.golden, eps, centred) - out.golden
            error = float(
                np.linalg.norm(left.ravel()) / max(float(np.linalg.norm(out.golden.ravel())), 1e-300)
            )
            if error <= max(2 * case.epsilon, 1e-5) and (best is None or error < best[0]):
                best = error, eps
    return None if best is None else best[1]


def norm_name(centred: bool) -> str:
    """Name a norm."""
    return "LayerNorm" if centred else "RMSNorm"


def normed(x: Floats, weight: Floats, eps: float, centred: bool) -> Floats:
    """Return RMSNorm, or LayerNorm where it is centred."""
    centre = x - x.mean(axis=-1, keepdims=True) if centred else x
    return np.asarray(centre / np.sqrt((centre * centre).mean(axis=-1, keepdims=True) + eps) * weight)


def epsilon_of(x: Floats, weight: Floats, out: Floats, centred: bool) -> float | None:
    """Fit the eps with which a norm gives an output: each row says one, the smallest rows say it best."""
    centre = x - x.mean(axis=-1, keepdims=True) if centred else x
    top = centre * weight
    dot, square = (top * out).sum(axis=-1).ravel(), (top * top).sum(axis=-1).ravel()
    power = (centre * centre).mean(axis=-1).ravel()
    with np.errstate(all="ignore"):
        scale = np.where(square > 0, dot / square, np.nan)
        eps = 1 / (scale * scale) - power
    good = np.isfinite(eps)
    if not good.any():
        return None
    weights = 1 / np.maximum(power[good], 1e-30)
    return max(float((eps[good] * weights).sum() / weights.sum()), 0.0)


def _forward_norm(x: Known, w: Known, eps: float, centred: bool, case: Case) -> Formula:
    def variants() -> Iterator[Variant]:
        yield from _forward_variants(eps, centred)
        yield from _narrow_variants(eps, centred)
        for n, _ in counts(case):
            if x.golden is not None and x.golden.shape[-1] % n == 0:
                text = f"a mean square of each of {n} pieces of the channels"
                yield kinds.NORMALISATION, text, partial(_in_pieces, n, eps)
                for piece in range(min(n, 8)):
                    said = f"the mean square of piece {piece} of {n} of the channels alone"
                    yield kinds.NORMALISATION, said, partial(_of_piece, n, piece, eps)
        if case.target is None:
            return
        own = epsilon_of(own_side(x), own_side(w), case.target, centred)
        if own is not None and own <= MOST_EPSILON:
            yield kinds.NORM_EPSILON, f"an eps of {own:.3g}, not {eps:.3g}", partial(_of, own, centred)
        yield kinds.NORM_EPSILON, "an eps added to the root, not under it", partial(_outside, case.target)

    return Formula(norm_name(centred), (x, w), partial(_of, eps, centred), variants, (1,))


def _forward_variants(eps: float, centred: bool) -> tuple[Variant, ...]:
    norm, channel = kinds.NORMALISATION, kinds.CHANNEL_WEIGHT
    once = partial(normed, eps=eps, centred=centred)
    return (
        (norm, "its input handed on as it is, not normalised", lambda x, w: x),
        (norm, "its weight alone, not normalised", lambda x, w: x * w),
        (norm, f"{norm_name(not centred)} in its place", partial(_of, eps, not centred)),
        (channel, "a weight of 1 + w", lambda x, w: once(x, 1 + w)),
        (channel, "the weight left out", lambda x, w: once(x, np.ones_like(w))),
        (channel, "the weight taken twice", lambda x, w: once(x, w * w)),
        (norm, "the norm taken twice", lambda x, w: once(once(x, w), w)),
        (norm, "the sum of squares, not their mean", lambda x, w: x * w / np.sqrt(_power(x) * x.shape[-1] + eps)),
        (norm, "the mean square without its root", lambda x, w: x * w / (_power(x) + eps)),
        (norm, "the mean of absolute values", lambda x, w: x * w / (np.abs(x).mean(axis=-1, keepdims=True) + eps)),
        (norm, "the unbiased variance", lambda x, w: once(x, w) * np.sqrt(1 - 1 / x.shape[-1])),
        (norm, "one mean square for the whole tensor", lambda x, w: x * w / np.sqrt((x * x).mean() + eps)),
        (norm, "the mean square over the positions, by channel", lambda x, w: x * w / np.sqrt(_over(x, -2) + eps)),
        (norm, "the mean square over all tokens, by channel",
         lambda x, w: x * w / np.sqrt(_over(x, tuple(range(x.ndim - 1))) + eps)),
        (norm, "one mean square for each sequence",
         lambda x, w: x * w / np.sqrt(_over(x, tuple(range(1, x.ndim))) + eps)),
    )  # fmt: skip


def _narrow_variants(eps: float, centred: bool) -> Iterator[Variant]:
    """Norms whose mean square was kept in a narrower format, one channel after another or rounded at its end."""
    for dtype, (how, added) in product(("bfloat16", "float16"), _SUMS.items()):

        def made(x: Floats, w: Floats, dtype: str = dtype, added: Callable[..., Floats] = added) -> Floats:
            centre = x - x.mean(axis=-1, keepdims=True) if centred else x
            mean = rounded(added(rounded(centre * centre, dtype), dtype) / x.shape[-1], dtype)
            return np.asarray(centre / np.sqrt(mean[..., None] + eps) * w)

        yield kinds.WRONG_DTYPE, f"the sum of squares in {dtype}, {how}", made


def _one_by_one(squares: Floats, dtype: str) -> Floats:
    total = np.zeros(squares.shape[:-1])
    for channel in np.moveaxis(squares, -1, 0):
        total = rounded(total + channel, dtype)
    return total


def _by_halves(squares: Floats, dtype: str) -> Floats:
    while squares.shape[-1] > 1:
        odd = squares[..., squares.shape[-1] // 2 * 2 :]
        squares = np.concatenate([rounded(squares[..., 0:-1:2] + squares[..., 1::2], dtype), odd], axis=-1)
    return squares[..., 0]


_SUMS: dict[str, Callable[[Floats, str], Floats]] = {
    "one channel after another": _one_by_one,
    "in pairs": _by_halves,
    "rounded at its end": lambda squares, dtype: rounded(squares.sum(axis=-1), dtype),
}


def _over(x: Floats, axes: int | tuple[int, ...]) -> Floats:
    return np.asarray((x * x).mean(axis=axes, keepdims=True))


def _outside(target: Floats, x: Floats, w: Floats) -> Floats:
    """Fit what was added to the root mean square."""
    top, root = x * w, np.sqrt(_power(x))
    dot, square = (top * target).sum(axis=-1, keepdims=True), (top * top).sum(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        added = square / dot - root
    eps = float(np.median(added[np.isfinite(added)])) if np.isfinite(added).any() else 0.0
    return np.asarray(top / (root + min(max(eps, 0.0), MOST_EPSILON)))


MOST_EPSILON = 2.0
"""A larger eps is no norm's."""


def _of(eps: float, centred: bool, x: Floats, w: Floats) -> Floats:
    return normed(x, w, eps, centred)


def _power(x: Floats) -> Floats:
    return np.asarray((x * x).mean(axis=-1, keepdims=True))


def _in_pieces(n: int, eps: float, x: Floats, w: Floats) -> Floats:
    parts = x.reshape(*x.shape[:-1], n, -1)
    return np.asarray((parts / np.sqrt(_power(parts) + eps)).reshape(x.shape) * w)


def _of_piece(n: int, piece: int, eps: float, x: Floats, w: Floats) -> Floats:
    part = np.split(x, n, axis=-1)[piece]
    return np.asarray(x / np.sqrt(_power(part) + eps) * w)


def _backward_norm(up: Known, x: Known, w: Known, eps: float, centred: bool, case: Case) -> Iterator[Formula]:
    g, name = case.golden, norm_name(centred)
    assert g is not None and x.golden is not None
    if g.shape == x.golden.shape:
        yield Formula(
            f"the gradient of {name}'s input", (up, x, w), partial(_norm_gradient, eps, centred, 1.0),
            partial(_all_gradient_variants, eps, centred, (up, x, w), case.target), (2,),
        )  # fmt: skip
    elif g.shape == x.golden.shape[-1:] and (case.part != "output" or "reduce" in case.words):

        def made(up: Floats, x: Floats) -> Floats:
            return np.asarray(as_rows(up * normed(x, np.ones(x.shape[-1]), eps, centred)).sum(axis=0))

        yield Formula(f"the gradient of {name}'s weight", (up, x), made, _weight_variants)


def _weight_variants() -> Iterator[Variant]:
    def total(value: Floats) -> Floats:
        return np.asarray(as_rows(value).sum(axis=0))

    yield kinds.NORMALISATION, "the input taken raw, not normalised", lambda up, x: total(up * x)
    yield kinds.NORMALISATION, "the input divided by its mean square", lambda up, x: total(up * x / _power(x))
    yield (
        kinds.NORMALISATION,
        "the input normalised over the whole tensor",
        lambda up, x: total(up * x / np.sqrt((x * x).mean())),
    )
    yield (
        kinds.NORMALISATION,
        "the input normalised twice",
        lambda up, x: total(up * x / np.sqrt(_power(x)) / np.sqrt(_power(x))),
    )
    yield kinds.MISSING_TERM, "the input left out: a bias's gradient", lambda up, x: total(up)


def _norm_gradient(eps: float, centred: bool, projected: float, up: Floats, x: Floats, w: Floats) -> Floats:
    """Gradient of a norm's input; ``projected`` is the share of the term that the denominator's derivative gives."""
    centre = x - x.mean(axis=-1, keepdims=True) if centred else x
    scale = 1 / np.sqrt(_power(centre) + eps)
    inner, unit = up * w, centre * scale
    value = scale * (inner - projected * unit * (inner * unit).mean(axis=-1, keepdims=True))
    return np.asarray(value - scale * inner.mean(axis=-1, keepdims=True) if centred else value)


def _norm_gradient_variants(eps: float, centred: bool) -> tuple[Variant, ...]:
    def scale(x: Floats) -> Floats:
        return np.asarray(1 / np.sqrt(_power(x - x.mean(axis=-1, keepdims=True) if centred else x) + eps))

    right = partial(_norm_gradient, eps, centred)
    bare = partial(right, 0.0)
    norm, channel = kinds.NORMALISATION, kinds.CHANNEL_WEIGHT
    return (
        (kinds.MISSING_TERM, "the projection term (of the denominator's derivative) left out", bare),
        (kinds.SIGN, "the projection term with the other sign", partial(right, -1.0)),
        (kinds.EXTRA_TERM, "the projection term taken twice", partial(right, 2.0)),
        (channel, "the weight left out", lambda up, x, w: right(1.0, up, x, np.ones_like(w))),
        (channel, "a weight of 1 + w", lambda up, x, w: right(1.0, up, x, 1 + w)),
        (channel, "the weight taken twice", lambda up, x, w: right(1.0, up, x, w * w)),
        (norm, "the sum in place of the mean in the projection", lambda up, x, w: right(float(x.shape[-1]), up, x, w)),
        (norm, "the raw input in the projection",
         lambda up, x, w: scale(x) * (up * w - x * (up * w * x).mean(axis=-1, keepdims=True))),
        (channel, "the projection made without the weight",
         lambda up, x, w: scale(x) * up * w + right(1.0, up, x, np.ones_like(w)) - scale(x) * up),
        (norm, "the division by the root mean square left out", lambda up, x, w: right(1.0, up, x, w) / scale(x)),
        (norm, "the root mean square divided by twice", lambda up, x, w: right(1.0, up, x, w) * scale(x)),
        (norm, "the output's gradient times the weight alone", lambda up, x, w: up * w),
        (norm, "the output's gradient handed on as it is", lambda up, x, w: up),
        (norm, f"{norm_name(not centred)}'s gradient", partial(_norm_gradient, eps, not centred, 1.0)),
    )  # fmt: skip


def _all_gradient_variants(
    eps: float, centred: bool, inputs: tuple[Known, Known, Known], target: Floats | None
) -> Iterator[Variant]:
    """Return those without a number, and the eps that comes nearest."""
    yield from _norm_gradient_variants(eps, centred)
    if target is None:
        return
    own = [own_side(k) for k in inputs]

    def left(power: float) -> float:
        return float(np.linalg.norm(_norm_gradient(float(np.exp(power)), centred, 1.0, *own) - target))

    best = nearest(left, np.log(np.geomspace(1e-8, MOST_EPSILON, 43)))
    own_eps = float(np.exp(best))
    text = f"an eps of {own_eps:.3g}, not {eps:.3g}, in the gradient"
    yield kinds.NORM_EPSILON, text, partial(_norm_gradient, own_eps, centred, 1.0)
