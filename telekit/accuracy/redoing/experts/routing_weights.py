"""Routing weights done again from the router's logits: which scores, which experts, how they are normalised."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_values import agrees, taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.softmax import sigmoid, softmax

_SORTED = 0.3  # of the difference: what putting the slots in order may leave
_WORDS = ("router", "gate", "topk", "top_k", "moe")


def router_causes(case: Case) -> Iterator[Cause]:
    """Find dense logits among the inputs from which one of the usual rules gives golden, then try the others."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != "forward" or g.ndim < 2 or not any(w in case.words for w in _WORDS):
        return
    yield from _numbers(case)
    yield from _slots(case)
    rows = g.reshape(-1, g.shape[-1])
    for logits in _logits(case):
        if logits.ndim < 2 or logits.size // logits.shape[-1] != len(rows) or logits.shape[-1] < 2:
            continue
        scores = logits.reshape(len(rows), -1)
        dense = g.shape[-1] == scores.shape[1]
        k = int(np.count_nonzero(rows[0])) if dense else g.shape[-1]
        if not 0 < k <= scores.shape[1]:
            continue
        width = scores.shape[1] if dense else 0
        made = {name: _shaped(value, width) for name, value in _rules(scores, k).items()}
        used = next((n for n, v in made.items() if agrees(v, rows, case, 6.0, 1e-5)), None)
        if used is None:
            continue
        more = {
            f"top {j} instead of top {k}": _shaped(_rules(scores, j)[used], width)
            for j in range(1, k + 3)
            if j <= scores.shape[1]
        }
        for name, value in {**made, **more}.items():
            if value.shape != rows.shape or name == used:
                continue
            share = taken_away(case, value.reshape(g.shape))
            if share > 0.8:
                yield Cause(
                    kinds.ROUTER, 0.95 * share, f"routing done again: {name} gives the target, {used} golden"
                )
                return
        return


def _logits(case: Case) -> Iterator[Floats]:
    """Tensors that may be the scores: those dumped, and inputs times the router's weight."""
    yield from (k.golden for k in (*case.inputs, *case.near) if k.golden is not None)
    for x, w in product(case.inputs, case.parameters):
        a, b = x.golden, w.golden
        if a is not None and b is not None and b.ndim == 2 and a.shape[-1] == b.shape[1]:
            yield a @ b.T


def _rules(logits: Floats, k: int) -> dict[str, tuple[Floats, Array]]:
    """By rule: the weights of the chosen experts in order of rank, and who they are."""
    gates = sigmoid(logits)
    soft = softmax(logits)
    top, low = (np.argsort(s, axis=1, kind="stable")[:, :k] for s in (-logits, logits))

    def of(values: Floats, chosen: Array) -> Floats:
        return np.take_along_axis(values, chosen, axis=1)

    def share(values: Floats) -> Floats:
        return np.asarray(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-30))

    return {
        "softmax over all experts, then the largest, normalised": (share(of(soft, top)), top),
        "softmax over all experts, then the largest, not normalised": (of(soft, top), top),
        "sigmoid, the largest, normalised": (share(of(gates, top)), top),
        "sigmoid, the largest, not normalised": (of(gates, top), top),
        "equal weights for the largest": (np.full(top.shape, 1 / k), top),
        "a weight of 1 for each of the largest": (np.ones(top.shape), top),
        "the smallest experts, normalised": (share(of(soft, low)), low),
        "weights in the reverse order of their experts": (share(of(soft, top))[:, ::-1], top),
        "weights in the reverse order of their experts, not normalised": (of(soft, top)[:, ::-1], top),
        "logits themselves as weights": (of(logits, top), top),
    }


def _shaped(rule: tuple[Floats, Array], experts: int) -> Floats:
    """Weights by rank, or where ``experts`` is given as one column for each expert."""
    weights, chosen = rule
    if not experts:
        return weights
    dense = np.zeros((len(weights), experts))
    np.put_along_axis(dense, chosen, weights, axis=1)
    return dense


def _numbers(case: Case) -> Iterator[Cause]:
    """Numbers of the chosen experts: all off by one step, or some others."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if not ((t == np.rint(t)).all() and (g == np.rint(g)).all()) or g.min() < 0 or not (t != g).any():
        return
    widths = [k.golden.shape[0] for k in case.parameters if k.golden is not None and k.golden.ndim == 2]
    experts = next((w for w in widths if w > max(t.max(), g.max())), int(max(t.max(), g.max())) + 1)
    step = np.unique((t - g) % experts)
    if step.size == 1 and experts > 2:
        by = int(step[0]) if step[0] <= experts / 2 else int(step[0]) - experts
        text = f"every chosen expert's number is golden's {by:+d} modulo {experts}: experts are numbered otherwise"
        yield Cause(kinds.ROUTER, 0.96, text)


def _slots(case: Case) -> Iterator[Cause]:
    """Find the same values in each row, in other slots."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if g.shape[-1] < 2:
        return
    a, b = np.sort(t, axis=-1), np.sort(g, axis=-1)
    noise = max(case.noise, 1e-9) * float(np.linalg.norm(g.ravel()))
    left, whole = (float(np.linalg.norm((x - y).ravel())) for x, y in ((a, b), (t, g)))
    if left <= noise and left <= _SORTED * whole:
        near = noise / np.sqrt(g.size)
        moved = float(np.mean(np.any(np.abs(t - g) > near, axis=-1)))
        text = f"each row holds the same values in other slots ({moved:.0%} of the tokens): order of the chosen experts"
        yield Cause(kinds.ROUTER, 0.97, text)
