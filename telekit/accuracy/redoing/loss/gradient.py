"""The gradient of a cross-entropy done again from its logits and labels: probabilities less one at each label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.fit import nearest
from telekit.accuracy.redoing.formula.formula import Formula, Variant, own_side
from telekit.accuracy.redoing.formula.orders import counts
from telekit.accuracy.redoing.formula.softmax import softmax
from telekit.accuracy.redoing.loss.vocabulary import FOREIGN, Index

_LOSS = ("loss", "entropy", "criterion")
_SCALES = np.geomspace(0.1, 10, 81)
_Term = Callable[[Floats, Floats], Floats]


def loss_gradients(case: Case) -> Iterator[Formula]:
    """Gradient of the logits (tokens, vocabulary) by logits, labels and the gradient of each token's loss."""
    g = case.golden
    assert g is not None
    if case.phase != BACKWARD or g.ndim < 2 or not any(w in case.words for w in _LOSS):
        return
    shape = g.shape[:-1]
    own = [k for k in case.inputs if k.golden is not None]
    tokens = [k for k in own if k.golden is not None and k.golden.shape == shape]
    ids = [k for k in tokens if k.golden is not None and _labels(k.golden)]
    for logits, labels, up in product(own, ids, tokens):
        if logits.golden is None or logits.golden.shape != g.shape or up is labels:
            continue
        inputs = (logits, labels, up)
        yield Formula(
            "the cross-entropy's gradient (probabilities less one at the label)", inputs, _made,
            partial(_variants, case, inputs), exact=True,
        )  # fmt: skip


def _labels(ids: Floats) -> bool:
    return bool(ids.size > 1 and (ids == np.rint(ids)).all() and ids.max() > 1)


def _ones(logits: Floats, labels: Floats) -> Array:
    """One at each label; none where the label is outside the vocabulary."""
    return np.asarray(labels[..., None] == np.arange(logits.shape[-1]), np.float64)


def _made(logits: Floats, labels: Floats, up: Floats) -> Floats:
    inside = (labels >= 0) & (labels < logits.shape[-1])  # else an ignored index
    return np.asarray((softmax(logits) - _ones(logits, labels)) * (up * inside)[..., None])


def _variants(case: Case, inputs: tuple[Known, Known, Known]) -> Iterator[Variant]:
    yield (
        kinds.MISSING_TERM,
        "the label's term left out: probabilities alone",
        lambda x, y, up: softmax(x) * up[..., None],
    )
    yield (
        kinds.MISSING_TERM,
        "the probabilities left out: the label's term alone",
        lambda x, y, up: -_ones(x, y) * up[..., None],
    )
    yield kinds.SIGN, "the opposite sign", lambda *a: -_made(*a)
    yield from _other_labels()
    for n, name in counts(case, "tp", "etp"):
        of = f"{n} shards of the vocabulary{f' ({name})' if name else ''}"
        yield from _sharded(n, of)
    yield from _fitted(case, inputs)


def _other_labels() -> Iterator[Variant]:
    for by in (1, -1):
        text = f"the label's term at the entry {by:+d} from the label"
        yield kinds.DIFFERENT_INPUTS, text, partial(_one_at, by)
        text = f"the labels of the position {by:+d}"
        yield kinds.DIFFERENT_INPUTS, text, lambda x, y, up, by=by: _made(x, np.roll(y, -by, axis=-1), up)


def _one_at(by: int, logits: Floats, labels: Floats, up: Floats) -> Floats:
    return np.asarray((softmax(logits) - _ones(logits, labels + by)) * up[..., None])


def _sharded(n: int, of: str) -> Iterator[Variant]:
    """Return gradients of a vocabulary in n shards, each with a step left out or done by itself."""

    def shards(logits: Floats, value: Floats) -> Floats:
        return value.reshape(*logits.shape[:-1], n, -1)

    def local(logits: Floats, labels: Floats, up: Floats) -> Floats:
        p = softmax(shards(logits, logits)).reshape(logits.shape)
        return np.asarray((p - _ones(logits, labels)) * up[..., None])

    def everywhere(index: Index, logits: Floats, labels: Floats, up: Floats) -> Floats:
        """Each shard subtracts one for every token: at the label, or where it is not its own at another entry."""
        width = logits.shape[-1] // n
        at = labels[..., None] - width * np.arange(n)
        at = np.where((at >= 0) & (at < width), at, index(at, width))
        ones = np.asarray(at[..., None] == np.arange(width), np.float64).reshape(logits.shape)
        return np.asarray((softmax(logits) - ones) * up[..., None])

    text = f"each of {of} divides by its own sum of exponentials alone"
    yield kinds.MISSING_REDUCTION, text, local
    for where, index in FOREIGN.items():
        text = f"each of {of} subtracts one {where} for tokens whose label is another shard's"
        yield kinds.EXTRA_TERM, text, partial(everywhere, index)


def _fitted(case: Case, inputs: tuple[Known, Known, Known]) -> Iterator[Variant]:
    """Return gradients with a term whose coefficient least squares finds: smoothing, a z-loss, a weight."""
    target = case.target
    if target is None:
        return
    own = tuple(own_side(k) for k in inputs)
    logits, labels, up = own
    off = (target - _made(logits, labels, up)).ravel()
    widths = [
        (logits.shape[-1] // n, f" of each of {n} shards' own vocabulary")
        for n, _ in counts(case, "tp", "etp")
    ]
    for kind, text, term in (*_TERMS, *(_smoothed(*of) for of in widths)):
        column = (term(logits, labels) * up[..., None]).ravel()
        square = float(column @ column)
        c = float(column @ off) / square if square else 0.0
        yield kind, text.format(c=c, more=1 + c), partial(_with_term, term, c)
    some = slice(0, max(1, len(logits) // 4))
    few = [a[some] for a in own]
    for factor in (False, True):

        def left(scale: float, factor: bool = factor) -> float:
            return float(np.linalg.norm(target[some] - _scaled(scale, factor, *few)))

        best = nearest(left, _SCALES)
        text = f"the logits are multiplied by {best:.4g} in the softmax{' and the gradient too' * factor}"
        yield kinds.SOFTMAX_SCALE, text, partial(_scaled, best, factor)


def _scaled(scale: float, factor: bool, logits: Floats, labels: Floats, up: Floats) -> Floats:
    return _made(scale * logits, labels, up) * (scale if factor else 1.0)


def _with_term(term: _Term, c: float, logits: Floats, labels: Floats, up: Floats) -> Floats:
    return _made(logits, labels, up) + c * term(logits, labels) * up[..., None]


def _lse(logits: Floats) -> Floats:
    top = logits.max(axis=-1, keepdims=True)
    return np.asarray(np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)) + top)


def _entropy(logits: Floats, labels: Floats) -> Floats:
    p = softmax(logits)
    log = logits - _lse(logits)
    return np.asarray(-p * (log - (p * log).sum(axis=-1, keepdims=True)))


def _smoothed(width: int, of: str = "") -> tuple[str, str, _Term]:
    """Label smoothing over so many entries."""
    return kinds.LOSS_TERM, f"label smoothing{of}, {{c:.4g}}", lambda x, y: _ones(x, y) - 1 / width


_TERMS: tuple[tuple[str, str, _Term], ...] = (
    (kinds.LOSS_TERM, "label smoothing of {c:.4g}", lambda x, y: _ones(x, y) - 1 / x.shape[-1]),
    (
        kinds.LOSS_TERM,
        "the gradient of a z-loss, {c:.4g} times the log of the sum",
        lambda x, y: _lse(x) * softmax(x),
    ),
    (kinds.LOSS_TERM, "the gradient of {c:.4g} times the entropy of the prediction", _entropy),
    (kinds.LOSS_TERM, "{c:.4g} times the logits added", lambda x, y: x),
    (kinds.NORMALISATION, "the probabilities counted {more:.4g} times", lambda x, y: softmax(x)),
    (kinds.SCALED, "the label's term counted {more:.4g} times", lambda x, y: -_ones(x, y)),
    (kinds.EXTRA_TERM, "{c:.4g} added to every entry", lambda x, y: np.ones_like(x)),
)
