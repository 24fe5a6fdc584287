"""Whom a router chose, against its own logits, and what a loss on its logits puts into its gradient."""

from functools import partial

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.redoing.experts.router_loss import router_loss_causes
from telekit.accuracy.redoing.experts.selection import selection_causes

RANDOM = np.random.default_rng(23)
X, W = RANDOM.standard_normal((4, 24, 16)), 0.4 * RANDOM.standard_normal((8, 16))
LOGITS = X @ W.T
P = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=-1, keepdims=True)


def largest(scores, k=2):
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k].astype(float)


def chosen(target, golden=None, x=X):
    golden = largest(LOGITS) if golden is None else golden
    return Case(
        target, golden, "Module.mlp.router.TopKRouter.forward.0.output.1", "Module.mlp.router.TopKRouter", "forward",
        "output", inputs=(Known("x", x, x),), parameters=(Known("w", W, W),),
    )  # fmt: skip


def of_groups(p, groups=4, kept=1):
    best = p.reshape(*p.shape[:-1], groups, -1).sum(axis=-1)
    inside = np.argsort(np.argsort(-best, axis=-1), axis=-1) < kept
    return np.where(np.repeat(inside, p.shape[-1] // groups, axis=-1), p, -1)


BIAS = np.linspace(0.15, -0.15, 8)
RULES = {
    "expert bias": (largest(P + BIAS), "one constant for each expert, added to the softmax probabilities"),
    "ranks": (np.argsort(-LOGITS, axis=-1)[..., 1:3].astype(float), "those of rank [2, 3]"),
    "smallest": (largest(-LOGITS), "the smallest in place of the largest"),
    "one expert never": (largest(np.where(np.arange(8) == 7, -9.0, LOGITS)), "[0, 1, 2, 3, 4, 5, 6] alone"),
    "groups": (largest(of_groups(P, 2)), "the 1 best of 2 groups of experts"),
    "the token before": (np.roll(largest(LOGITS), 1, axis=1), "the choices of the token before it"),
    "noise": (largest(LOGITS + RANDOM.standard_normal(LOGITS.shape)), "by other scores, or by another rule"),
    "twice": (np.repeat(largest(LOGITS, 1), 2, axis=-1), "96 of 96 tokens chose one expert more than once"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_choice_by_another_rule_is_named(name):
    target, text = RULES[name]
    (cause,) = selection_causes(chosen(target))
    assert cause.kind == kinds.ROUTER
    assert text in cause.text


def test_a_bias_is_no_neighbour_where_an_axis_is_short():
    pairs = LOGITS.reshape(-1, 2, 8)  # (tokens, batch 2, experts), as Megatron lays them out
    p = np.exp(pairs) / np.exp(pairs).sum(axis=-1, keepdims=True)
    (cause,) = selection_causes(chosen(largest(p + BIAS), largest(pairs), X.reshape(-1, 2, 16)))
    assert "the token" not in cause.text


def test_the_right_choice_and_ties_are_no_other_rule():
    assert not list(selection_causes(chosen(largest(LOGITS))))
    tied = largest(LOGITS + 1e-8 * RANDOM.standard_normal(LOGITS.shape))
    assert not list(selection_causes(chosen(tied)))


def test_nothing_is_said_where_golden_chooses_by_another_rule():
    assert not list(selection_causes(chosen(largest(LOGITS), largest(P + BIAS))))


LSE = np.log(np.exp(LOGITS).sum(axis=-1, keepdims=True))
TERMS = {
    "a z-loss (the square": lambda z: 0.5 * (np.log(np.exp(z).sum(axis=-1)) ** 2).mean(),
    "without its square": lambda z: 0.5 * np.log(np.exp(z).sum(axis=-1)).mean(),
    "squares of the logits": lambda z: 0.5 * (z**2).sum(axis=-1).mean(),
    "squares of the probabilities": lambda z: 0.5 * (softmax(z) ** 2).sum(axis=-1).mean(),
    "the entropy": lambda z: -0.5 * (softmax(z) * np.log(softmax(z))).sum(axis=-1).mean(),
}


def softmax(z):
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


def slope(function, w, step=1e-5):
    """Gradient of a function of the router's weight by central differences."""
    found = np.zeros_like(w)
    for at in np.ndindex(w.shape):
        more, less = w.copy(), w.copy()
        more[at] += step
        less[at] -= step
        found[at] = (function(more) - function(less)) / (2 * step)
    return found


def routed(up, at, w):
    weights = np.take_along_axis(softmax(X @ w.T), at, axis=-1)
    return (up * weights / weights.sum(axis=-1, keepdims=True)).sum()


def gradients(name, changed):
    at = largest(LOGITS)
    up = RANDOM.standard_normal(at.shape)
    golden = slope(partial(routed, up, at.astype(int)), W)
    more = slope(lambda w: TERMS[name](X @ w.T), W) if changed else 0.0
    return Case(
        golden + more, golden, "Module.mlp.router.TopKRouter.parameters_grad.0.weight", "Module.mlp.router.TopKRouter",
        "backward", "parameters_grad",
        inputs=(Known("x", X, X), Known("weights", up, up), Known("at", at, at)), parameters=(Known("w", W, W),),
    )  # fmt: skip


@pytest.mark.parametrize("name", TERMS)
def test_a_loss_on_the_logits_is_named_with_its_coefficient(name):
    (cause,) = router_loss_causes(gradients(name, True))
    assert cause.kind == kinds.LOSS_TERM
    assert name in cause.text
    assert "added with a coefficient of 0.5 on its mean over 96 tokens" in cause.text


def test_a_clean_gradient_has_no_other_term():
    assert not list(router_loss_causes(gradients("the entropy", False)))
