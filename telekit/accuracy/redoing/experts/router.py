"""Formulas of a router's gradients, through the softmax, the choice, and the normalisation of what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.compared import BACKWARD, FORWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.experts.balance_counts import balances_counted_otherwise
from telekit.accuracy.redoing.experts.constants import expert_constants
from telekit.accuracy.redoing.experts.own_experts import own_choices
from telekit.accuracy.redoing.formula.fit import nearest
from telekit.accuracy.redoing.formula.formula import Formula, Variant, own_side, rounded
from telekit.accuracy.redoing.formula.numbers import distinct, numbers_of
from telekit.accuracy.redoing.formula.softmax import sigmoid, softmax

_WORDS = ("router", "gate", "gating")
_Rule = Callable[[Floats, Array], Floats]
"""Weights of the chosen experts from the logits."""
_Chosen = Callable[[Floats, Array, Floats], Floats]
"""Gradient of the chosen probabilities from all of them, the choices, and the gradient of the weights."""
_Back = Callable[[Floats, Floats], Floats]
"""Gradient of the logits from the probabilities and their gradient."""


def router_gradients(case: Case) -> Iterator[Formula]:
    """Gradients of a router's input and weight; what a balancing loss adds is read from golden and kept."""
    g = case.golden
    assert g is not None
    if case.phase != BACKWARD or not any(w in case.words for w in _WORDS):
        return
    for w, x in product(case.parameters, case.inputs):
        a, b = x.golden, w.golden
        if a is None or b is None or b.ndim != 2 or a.ndim < 2 or a.shape[-1] != b.shape[1]:
            continue
        if g.shape not in (b.shape, a.shape):
            continue
        small = [k for k in case.inputs if k.golden is not None and k.golden.shape[:-1] == a.shape[:-1]]
        small = [k for k in small if k.golden is not None and k.golden.shape[-1] < len(b)]
        whole = (k.golden for k in small if k.golden is not None and numbers_of(k.golden, len(b)))
        chosen = next((numbers for numbers in whole if distinct(numbers)), None)
        for up in small if chosen is not None else ():
            if (
                up.golden is not None
                and chosen is not None
                and up.golden.shape == chosen.shape
                and up.golden is not chosen
            ):
                at = chosen.reshape(-1, chosen.shape[-1]).astype(int)
                for normalised in (True, False):
                    yield _formula(normalised, up, x, w, at, case)


def routing(case: Case) -> Iterator[Formula]:
    """Weights of the chosen experts from the router's input and weight; who they are is taken from the same output."""
    g = case.golden
    assert g is not None
    if case.phase != FORWARD or g.ndim < 2 or not any(w in case.words for w in _WORDS):
        return
    for x, w in product(case.inputs, case.parameters):
        if (
            x.golden is None
            or w.golden is None
            or w.golden.ndim != 2
            or x.golden.shape[-1:] != w.golden.shape[1:]
        ):
            continue
        for at in case.near:
            if at.golden is None or at.golden.shape != g.shape or x.golden.shape[:-1] != g.shape[:-1]:
                continue
            if numbers_of(at.golden, len(w.golden)) and distinct(at.golden):
                for name, rule in _RULES.items():
                    variants = partial(_rule_variants, name, x, w, at, case)
                    yield Formula(
                        f"routing weights ({name})", (x, w, at), partial(_weights, rule), variants, (1,), True
                    )


def _weights(rule: _Rule, x: Floats, w: Floats, at: Floats) -> Floats:
    return np.asarray(rule(_logits(x, w), at.astype(int)))


def _logits(x: Floats, w: Floats) -> Floats:
    return np.asarray((x.reshape(-1, x.shape[-1]) @ w.T).reshape(*x.shape[:-1], -1))


def _taken(values: Floats, at: Array) -> Floats:
    return np.take_along_axis(values, np.clip(at, 0, values.shape[-1] - 1), axis=-1)


def _share(values: Floats) -> Floats:
    return np.asarray(values / np.maximum(values.sum(axis=-1, keepdims=True), 1e-30))


_RULES: dict[str, _Rule] = {
    "softmax, normalised": lambda z, at: _share(_taken(softmax(z), at)),
    "softmax, not normalised": lambda z, at: _taken(softmax(z), at),
    "sigmoid, normalised": lambda z, at: _share(_taken(sigmoid(z), at)),
    "sigmoid, not normalised": lambda z, at: _taken(sigmoid(z), at),
}


def _rule_variants(name: str, x: Known, w: Known, at: Known, case: Case) -> Iterator[Variant]:
    right = _RULES[name]
    yield from _with_numbers(name, x, w, at, case.target)
    yield from _biased_by_rank(right, x, w, at, case)
    for other, rule in _RULES.items():
        if other != name:
            kind = kinds.NORMALISATION if other.split(",")[0] == name.split(",")[0] else kinds.ROUTER
            yield kind, f"{other} in place of {name}", partial(_weights, rule)
    for rounding in ("bfloat16", "float16"):
        for where in ("logits", "probabilities", "weights"):
            rule = partial(_coarse, right, rounding, where)
            yield kinds.WRONG_DTYPE, f"{where} rounded to {rounding}", partial(_weights, rule)
    reverse = "weights in the reverse order of their experts"
    for text, rule in (
        ("equal weights", lambda z, at: np.full(at.shape, 1 / at.shape[-1])),
        ("weights of one", lambda z, at: np.ones(at.shape)),
        ("a weight of one for the first choice, none for others", lambda z, at: _of_first(np.ones(at.shape))),
        ("the first choice's weight alone, the others' zero", lambda z, at: _of_first(right(z, at))),
        (reverse, lambda z, at: right(z, at)[..., ::-1]),
        ("logits themselves as weights", _taken),
    ):
        yield kinds.ROUTER, text, partial(_weights, rule)
    for factor in (0.25, 0.5, 2.0, 4.0, 10.0):
        yield (
            kinds.SOFTMAX_SCALE,
            f"logits times {factor:g}",
            partial(_weights, partial(_heated, right, factor)),
        )
    said = "logits over the root of the width"
    yield kinds.SOFTMAX_SCALE, said, lambda x, w, at: _weights(right, x / x.shape[-1] ** 0.5, w, at)


def _biased_by_rank(right: _Rule, x: Known, w: Known, at: Known, case: Case) -> Iterator[Variant]:
    """Raise the logits of the experts that the token's own expert-parallel rank holds, as much as fits the target."""
    logits, target, chosen = _logits(own_side(x), own_side(w)), case.target, own_side(at).astype(int)
    experts = logits.shape[-1]
    if target is None or target.shape != chosen.shape:
        return
    for own in own_choices(case, np.broadcast_to(np.arange(experts), logits.shape), experts):

        def left(by: float, own: Array = own) -> float:
            return float(np.linalg.norm(right(logits + by * own, chosen) - target))

        by = nearest(left, np.linspace(-4, 4, 33))
        text = f"{by:.3g} added to the logits of the experts that the token's own expert-parallel rank holds"
        yield kinds.ROUTER, text, partial(_weights, partial(_raised, right, by * own))


def _of_first(weights: Floats) -> Floats:
    return np.asarray(weights * (np.arange(weights.shape[-1]) == 0))


def _with_numbers(name: str, x: Known, w: Known, at: Known, target: Floats | None) -> Iterator[Variant]:
    """Take a number that nobody knows into the rule, fitted to the target's weights."""
    if target is None or at.golden is None or target.shape != at.golden.shape:
        return
    chosen, logits = own_side(at).astype(int), _logits(own_side(x), own_side(w))
    for other, rule in _RULES.items():
        made = rule(logits, chosen)
        factor = float(np.vdot(target, made)) / max(float(np.vdot(made, made)), 1e-300)
        if abs(factor - 1) > _FACTOR and abs(factor) > _FACTOR:
            kind = kinds.SCALED if other == name else kinds.NORMALISATION
            yield kind, f"{other}, times {factor:.4g}", partial(_weights, partial(_times, rule, factor))
    scores = softmax if name.startswith("softmax") else sigmoid
    own = scores(logits)
    if "not" not in name and (target > 0).all():
        p = _taken(own, chosen)
        more = float(np.median(p / target - p.sum(axis=-1, keepdims=True)))
        text = f"{more:.3g} added to the sum that the weights are divided by"
        yield kinds.NORMALISATION, text, partial(_weights, partial(_more, scores, more))
    for kind, text, of_scores in expert_constants(own, chosen, target, "not" not in name):
        yield kind, text, partial(_weights, partial(_of_scores, scores, of_scores))


_SHARE = 0.05  # so much nearer to one a fitted share is golden's
_FACTOR = 0.01  # nearer to one, or to nothing, a factor is none


def _times(rule: _Rule, factor: float, logits: Floats, at: Array) -> Floats:
    return factor * rule(logits, at)


def _more(scores: Callable[[Floats], Floats], more: float, logits: Floats, at: Array) -> Floats:
    p = _taken(scores(logits), at)
    return np.asarray(p / (p.sum(axis=-1, keepdims=True) + more))


def _of_scores(scores: Callable[[Floats], Floats], rule: _Rule, logits: Floats, at: Array) -> Floats:
    return rule(scores(logits), at)


def _raised(rule: _Rule, by: Floats, logits: Floats, at: Array) -> Floats:
    return rule(logits + by, at)


def _heated(rule: _Rule, factor: float, logits: Floats, at: Array) -> Floats:
    return rule(factor * logits, at)


def _coarse(rule: _Rule, rounding: str, where: str, logits: Floats, at: Array) -> Floats:
    """Weights with something on the way rounded to a format; probabilities are those of a softmax, normalised."""
    if where == "probabilities":
        return _share(_taken(rounded(softmax(logits), rounding), at))
    if where == "logits":
        return rule(rounded(logits, rounding), at)
    return rounded(rule(logits, at), rounding)


def _formula(normalised: bool, up: Known, x: Known, w: Known, at: Array, case: Case) -> Formula:
    g, t = case.golden, case.target
    assert up.golden is not None and x.golden is not None and w.golden is not None and g is not None
    x_shape, experts = x.golden.shape[:-1], len(w.golden)
    of_weight = g.shape == w.golden.shape
    chosen = _normalised if normalised else _plain
    rest = g - _made(chosen, _through, at, of_weight, 0.0, up.golden, x.golden, w.golden)
    balance = _balance(rest, x.golden, w.golden, at, of_weight)
    what = "weight" if of_weight else "input"
    own = [own_side(k) for k in (up, x, w)]
    bare, whole = (_made(chosen, _through, at, of_weight, b, *own) for b in (0.0, balance))
    square = float(np.vdot(whole - bare, whole - bare))
    share = float(np.vdot(t - bare, whole - bare)) / square if t is not None and square else 1.0

    def counted() -> Iterator[Variant]:
        if isinstance(balance, float) or len(x_shape) != 2:
            return
        for said, other in balances_counted_otherwise(case, at.reshape(*x_shape, -1), balance):
            text = f"a balancing loss of {said}, in place of those of each whole sequence"
            yield kinds.LOSS_TERM, text, partial(_made, chosen, _through, at, of_weight, other)

    return Formula(
        f"the gradient of the router's {what}", (up, x, w), partial(_made, chosen, _through, at, of_weight, balance),
        lambda: (
            *_variants(normalised, at, of_weight, balance, share),
            *_of_own_experts(case, normalised, at.reshape(*x_shape, -1), experts, of_weight, balance), *counted(),
        ), (2,),
    )  # fmt: skip


def _of_own_experts(
    case: Case, normalised: bool, chosen: Array, experts: int, of_weight: bool, balance: Floats | float
) -> Iterator[Variant]:
    """Gradients of the choices alone that the token's own expert-parallel rank holds, or of all but those."""
    at, right = chosen.reshape(-1, chosen.shape[-1]), _normalised if normalised else _plain
    for own in own_choices(case, chosen, experts):
        for mask, whose in ((own, "the token's own rank holds"), (~own, "other ranks hold")):
            kept = mask.reshape(at.shape)
            if kept.all() or not kept.any():
                continue
            text = f"the gradient of the choices alone whose expert {whose}, not summed over ep"
            for before in (True, False):
                of_some = partial(_of_some, right, kept, before)
                yield kinds.MISSING_REDUCTION, text, partial(_made, of_some, _through, at, of_weight, balance)


def _of_some(right: _Chosen, kept: Array, before: bool, p: Floats, at: Array, up: Floats) -> Floats:
    """Take some choices' gradients alone, before or after the normalisation's derivative."""
    return right(p, at, up * kept) if before else np.asarray(kept * right(p, at, up))


def _made(
    chosen: _Chosen,
    back: _Back,
    at: Array,
    of_weight: bool,
    balance: Floats | float,
    up: Floats,
    x: Floats,
    w: Floats,
) -> Floats:
    """Return the gradient; ``balance`` is that of each token's probabilities, (tokens, experts)."""
    tokens = x.reshape(-1, x.shape[-1])
    p = softmax(tokens @ w.T)
    of_p = np.zeros_like(p)
    np.put_along_axis(of_p, at, chosen(p, at, up.reshape(at.shape)), axis=1)
    logits = back(p, of_p + balance)
    return np.asarray(logits.T @ tokens if of_weight else (logits @ w).reshape(x.shape))


def _through(p: Floats, of_p: Floats) -> Floats:
    return np.asarray(p * (of_p - (of_p * p).sum(axis=-1, keepdims=True)))


def _normalised(p: Floats, at: Array, up: Floats) -> Floats:
    weights = np.take_along_axis(p, at, axis=1)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray((up - (up * weights / total).sum(axis=1, keepdims=True)) / total)


def _plain(p: Floats, at: Array, up: Floats) -> Floats:
    return up


def _total(p: Floats, at: Array) -> Floats:
    return np.asarray(np.take_along_axis(p, at, axis=1).sum(axis=1, keepdims=True))


def _balance(rest: Floats, x: Floats, w: Floats, at: Array, of_weight: bool) -> Floats | float:
    """Factors of a loss linear in the probabilities, by sequence and expert, that give what golden has besides."""
    tokens = x.reshape(-1, x.shape[-1])
    p = softmax(tokens @ w.T)
    sequences = x.shape[0] if x.ndim > 2 else 1
    of = np.repeat(np.arange(sequences), len(tokens) // sequences)
    columns = []
    for s in range(sequences):
        for e in range(p.shape[1]):
            inner = _through(p, np.where((of == s)[:, None], np.eye(p.shape[1])[e], 0.0))
            columns.append((inner.T @ tokens if of_weight else inner @ w).ravel())
    if not columns or len(columns) * 2 > rest.size or len(columns) > 512:
        return 0.0
    matrix = np.stack(columns, axis=1)
    if not np.isfinite(matrix).all() or not np.isfinite(rest).all():
        return 0.0
    factors, *_ = np.linalg.lstsq(matrix, rest.ravel(), rcond=1e-8)
    return np.asarray(
        _as_counted(np.asarray(factors.reshape(sequences, -1), np.float64), at.reshape(sequences, -1))[of]
    )


def _as_counted(factors: Floats, chosen: Array) -> Floats:
    """Add what the softmax hides, a constant for each sequence: the usual loss's factors go with the choices."""
    counts = np.stack([np.bincount(c, minlength=factors.shape[1]) for c in chosen]).astype(np.float64)
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (factors, counts))
    slope = float(np.vdot(a, b)) / max(float(np.vdot(b, b)), 1e-300)
    left = float(np.linalg.norm(a - slope * b)) / max(float(np.linalg.norm(a)), 1e-300)
    return slope * counts if left < 0.1 else factors


def _variants(
    normalised: bool, at: Array, of_weight: bool, balance: Floats | float, fitted: float
) -> Iterator[Variant]:
    """``fitted`` is how many times the balancing loss's gradient is in the target, as far as that alone is wrong."""
    right = _normalised if normalised else _plain

    def made(chosen: _Chosen = right, back: _Back = _through, share: float = 1.0) -> Callable[..., Floats]:
        return partial(_made, chosen, back, at, of_weight, balance * share)

    first = np.arange(at.shape[1]) == 0
    other = _plain if normalised else _normalised
    norm, lost = kinds.NORMALISATION, kinds.MISSING_TERM
    yield norm, "the normalisation of the chosen weights counted otherwise", made(other)
    yield lost, "the softmax's sum left out", made(back=lambda p, of_p: p * of_p)
    yield norm, "the softmax's derivative left out", made(back=lambda p, of_p: of_p)
    yield (
        norm,
        "the sigmoid's derivative in place of the softmax's",
        made(back=lambda p, of_p: p * (1 - p) * of_p),
    )
    yield norm, "the weights' total not divided by", made(lambda p, at, up: right(p, at, up) * _total(p, at))
    yield norm, "the weights' total taken for a constant", made(lambda p, at, up: up / _total(p, at))
    yield lost, "the gradient of the first choice alone", made(lambda p, at, up: right(p, at, up * first))
    yield lost, "all but the gradient of the first choice", made(lambda p, at, up: right(p, at, up * ~first))
    reverse = "the gradients of the choices in reverse order"
    yield kinds.PERMUTATION, reverse, made(lambda p, at, up: right(p, at, up[:, ::-1]))
    yield kinds.LOSS_TERM, "the balancing loss's gradient left out", made(share=0.0)
    yield kinds.LOSS_TERM, "the balancing loss's gradient alone", made(lambda p, at, up: 0 * up)
    if abs(fitted - 1) > _SHARE:
        yield kinds.LOSS_TERM, f"the balancing loss's gradient times {fitted:.3g}", made(share=fitted)
