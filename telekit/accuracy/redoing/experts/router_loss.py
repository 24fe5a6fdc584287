"""What a loss on a router puts into its gradient: z-loss and its like, the balancing loss; made again and fitted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_values import taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.experts.router import router_gradients
from telekit.accuracy.redoing.formula.formula import own_side, proven, relative
from telekit.accuracy.redoing.formula.softmax import softmax

_SHARE = 0.03  # of the difference: what one fitted number may leave, where that is above rounding


def router_loss_causes(case: Case) -> Iterator[Cause]:
    """Try one term with one coefficient on top of the router's gradient, which golden proves."""
    t = case.target
    if t is None or case.phase != BACKWARD:
        return
    found = proven(case, (router_gradients,))
    if found is None:
        return
    _, x, w = (own_side(k) for k in found.formula.inputs)
    d = (t - found.own).ravel()
    whole = float(np.linalg.norm(d))
    if relative(found.own, t) <= found.limit:
        return
    tokens = x.reshape(-1, x.shape[-1])
    best: tuple[float, float, str] | None = None
    for text, of_logits in _terms(tokens @ w.T):
        column = (of_logits.T @ tokens if t.shape == w.shape else of_logits @ w).ravel()
        square = float(column @ column)
        c = float(column @ d) / square if square else 0.0
        rest = float(np.linalg.norm(d - c * column))
        near = rest <= max(_SHARE * whole, found.reach * float(np.linalg.norm(t))) and rest < 0.2 * whole
        if near and (best is None or rest < best[0]):
            best = (rest, c * len(tokens), text)
    if best is None:
        return
    rest, c, text = best
    said = "added" if c > 0 else "taken away"
    yield Cause(
        kinds.LOSS_TERM,
        0.96,
        f"{found.formula.name}, made again from the target's own inputs, has besides the gradient of {text}, {said} "
        f"with a coefficient of {abs(c):.2g} on its mean over {len(tokens)} tokens "
        f"({rest / max(whole, 1e-300):.2g} of the difference is left)",
    )


def _terms(logits: Floats) -> Iterator[tuple[str, Floats]]:
    """Gradients of each token's logits of terms with a coefficient of one."""
    top = logits.max(axis=1, keepdims=True)
    lse = np.log(np.exp(logits - top).sum(axis=1, keepdims=True)) + top
    p = softmax(logits)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1, keepdims=True)
    yield "a z-loss (the square of the log of the sum of the logits' exponentials)", 2 * lse * p
    yield "the log of the sum of the logits' exponentials (a z-loss without its square)", p
    yield "the sum of squares of the logits", 2 * logits
    yield "the entropy of the probabilities", -p * (np.log(np.maximum(p, 1e-300)) + entropy)
    yield (
        "the sum of squares of the probabilities",
        2 * p * (p - (p * p).sum(axis=1, keepdims=True)),
    )


def balance_causes(case: Case) -> Iterator[Cause]:
    """Try a gradient of the router off by what a loss on its probabilities gives: the load-balancing loss.

    Such a loss is linear in the probabilities, with one factor for each expert and sequence; the factors are fitted,
    far fewer than the elements they must explain.
    """
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != BACKWARD or not any(w in case.words for w in ("router", "gate")):
        return
    d = (t - g).ravel()
    for x, w in product(case.inputs, case.parameters):
        if x.golden is None or w.golden is None or w.golden.ndim != 2 or x.golden.ndim < 2:
            continue
        if x.golden.shape[-1] != w.golden.shape[1]:
            continue
        tokens = x.golden.reshape(-1, x.golden.shape[-1])
        p = softmax(tokens @ w.golden.T)
        sequences = x.golden.shape[0] if x.golden.ndim > 2 else 1
        of_sequence = np.repeat(np.arange(sequences), len(tokens) // sequences)
        columns = []
        for s, e in product(range(sequences), range(p.shape[1])):
            inner = np.where((of_sequence == s)[:, None], p[:, e : e + 1] * (np.eye(p.shape[1])[e] - p), 0.0)
            columns.append(inner.T @ tokens if g.shape == w.golden.shape else inner @ w.golden)
        if len(columns) * 2 > d.size or columns[0].size != d.size:
            continue
        matrix = np.stack([c.ravel() for c in columns], axis=1)
        if not np.isfinite(matrix).all() or not np.isfinite(d).all():
            continue
        factors, *_ = np.linalg.lstsq(matrix, d, rcond=1e-8)
        share = taken_away(case, (g.ravel() + matrix @ factors).reshape(g.shape))
        if share > 0.8:
            text = "the difference is a gradient of a term linear in the probabilities: the auxiliary (balancing) loss"
            yield Cause(kinds.LOSS_TERM, 0.9 * share, f"{text} is missing, added, or scaled")
            return
