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


def balance_causes(case: Case) -> Iterator[Cause]:
    """Try a gradient of the router off by what a loss on its probabilities gives: the load-balancing loss.

    Such a loss is linear in the probabilities, with one factor for each expert and sequence; the factors are fitted,
    far fewer than the elements they must explain.
    """
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != "backward" or not any(w in case.words for w in ("router", "gate")):
        return
    d = (t - g).ravel()
    for x, w in product(case.inputs, case.parameters):
        if x.golden is None or w.golden is None or w.golden.ndim != 2 or x.golden.ndim < 2:
            continue
        if x.golden.shape[-1] != w.golden.shape[1]:
            continue
        tokens = x.golden.reshape(-1, x.golden.shape[-1])
        p = _softmax(tokens @ w.golden.T)
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


def weight_gradient_causes(case: Case) -> Iterator[Cause]:
    """Try the router's gradient with, and without, what normalising the chosen weights puts into it.

    The difference alone is made again, so that whatever else is in the gradient (a balancing loss) does not count.
    """
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != "backward" or not any(w in case.words for w in ("router", "gate")):
        return
    known = [k.golden for k in case.inputs if k.golden is not None and k.golden.ndim >= 2]
    for x, w in product(known, case.parameters):
        if w.golden is None or w.golden.ndim != 2 or x.shape[-1] != w.golden.shape[1]:
            continue
        tokens = x.reshape(-1, x.shape[-1])
        p = _softmax(tokens @ w.golden.T)
        narrow = [
            a.reshape(len(tokens), -1) for a in known if a.shape[:-1] == x.shape[:-1] and a.shape != x.shape
        ]
        chosen = next((a.astype(int) for a in narrow if _expert_numbers(a, p.shape[1])), None)
        if chosen is None:
            continue
        weights = np.take_along_axis(p, chosen, axis=1)
        total = weights.sum(axis=1, keepdims=True)
        for up in (a for a in narrow if a.shape == chosen.shape):
            with_it = (up - (up * weights / total).sum(axis=1, keepdims=True)) / total
            of_p = np.zeros_like(p)
            np.put_along_axis(of_p, chosen, up - with_it, axis=1)
            inner = p * (of_p - (of_p * p).sum(axis=1, keepdims=True))
            made = inner.T @ tokens if g.shape == w.golden.shape else inner @ w.golden
            for text, sign in (("without", 1.0), ("with", -1.0)):
                share = taken_away(case, g + sign * made.reshape(g.shape)) if made.size == g.size else 0.0
                if share > 0.85:
                    said = f"the target is the gradient {text} the normalisation of the chosen weights"
                    yield Cause(kinds.NORMALISATION, 0.95 * share, f"{said}, golden is not")
                    return


def _expert_numbers(array: Floats, experts: int) -> bool:
    """Whether each row holds numbers of different experts."""
    if not (array == np.rint(array)).all() or array.min() < 0 or array.max() >= experts:
        return False
    ordered = np.sort(array, axis=1)
    return array.shape[1] < experts and bool((np.diff(ordered, axis=1) > 0).all())


def _softmax(x: Floats) -> Floats:
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _rules(logits: Floats, k: int) -> dict[str, tuple[Floats, Array]]:
    """By rule: the weights of the chosen experts in order of rank, and who they are."""
    sigmoid = 1 / (1 + np.exp(-logits))
    soft = _softmax(logits)
    top, low = (np.argsort(s, axis=1, kind="stable")[:, :k] for s in (-logits, logits))

    def of(values: Floats, chosen: Array) -> Floats:
        return np.take_along_axis(values, chosen, axis=1)

    def share(values: Floats) -> Floats:
        return np.asarray(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-30))

    return {
        "softmax over all experts, then the largest, normalised": (share(of(soft, top)), top),
        "softmax over all experts, then the largest, not normalised": (of(soft, top), top),
        "sigmoid, the largest, normalised": (share(of(sigmoid, top)), top),
        "sigmoid, the largest, not normalised": (of(sigmoid, top), top),
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


def drop_causes(case: Case) -> Iterator[Cause]:
    """Try tokens that miss one or more of their experts' rows, each with its weight: dropped, not combined.

    Golden's rows before the combination are known, in whatever order; each token's difference must be minus a weight
    times one of them (or a sum of as many as a token has experts).
    """
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != "forward" or g.ndim < 2 or not any(w in case.words for w in _EXPERTS):
        return
    d = (t - g).reshape(-1, g.shape[-1])
    size = np.linalg.norm(g.reshape(d.shape), axis=1)
    bad = np.flatnonzero(np.linalg.norm(d, axis=1) > max(case.noise, 1e-6) * np.maximum(size, 1e-30))
    tables = [k.golden for k in case.inputs if k.golden is not None and k.golden.shape[-1:] == g.shape[-1:]]
    known = [k.golden for k in case.inputs if k.golden is not None]
    weights = [a.reshape(len(d), -1) for a in known if a.shape[:-1] == g.shape[:-1] and a.shape != g.shape]
    if not 0 < bad.size < len(d) or g.shape[-1] < _LEAST_WIDTH or not weights:
        return
    for table in tables:
        rows = table.reshape(-1, g.shape[-1])
        if len(rows) < len(d) or rows.size * bad.size > 1 << 28:
            continue
        missing = [_missing_rows(d[b], rows, weights[0][b], max(case.noise, 1e-3)) for b in bad]
        share = float(np.mean([m > 0 for m in missing]))
        if share >= 0.9:
            text = f"{bad.size} of {len(d)} tokens miss {sum(missing)} weighted rows of their experts, and nothing else"
            yield Cause(kinds.DROPPED, 0.95 * share, f"{text}: dropped (over capacity), or not received")
            return


_LEAST_WIDTH = 8  # a narrower difference is near a multiple of some row by chance
_EXPERTS = ("combine", "unpermute", "dispatch", "expert", "moe")


def _missing_rows(difference: Floats, rows: Floats, weights: Floats, noise: float) -> int:
    """How many weighted rows must be taken away to explain a token's difference; 0 where they do not."""
    left = -difference
    whole, squares = float(np.linalg.norm(left)), (rows * rows).sum(axis=1)
    for used in range(1, weights.size + 1):
        change = weights[:, None] * (
            weights[:, None] * squares - 2 * (rows @ left)
        )  # of the square that is left
        which, row = np.unravel_index(int(change.argmin()), change.shape)
        left = left - weights[which] * rows[row]
        if float(np.linalg.norm(left)) <= max(5 * noise, 0.1) * whole:
            return used
    return 0


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
