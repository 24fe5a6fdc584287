"""What a loss on a router's logits puts into its gradient: z-loss and its like, made again and fitted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.redo_formula import own_side, proven, relative
from telekit.accuracy.redoing.redo_gates import router_gradients, softmax

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
