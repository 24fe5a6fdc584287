"""A constant of each expert in the scores that become routing weights: a bias that was meant for the choice alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.measures.pairs import Array, Floats

_EACH = 4  # weights for each constant that is fitted
Rule = Callable[[Floats, Array], Floats]
"""Weights of the chosen experts from the scores of all."""


def expert_constants(
    scores: Floats, at: Array, target: Floats, normalised: bool
) -> Iterator[tuple[str, str, Rule]]:
    """Fit a constant of each expert, added to its score or multiplied with it, and return the rules they make.

    Parameters
    ----------
    scores : ndarray, shape (..., experts)
        Softmax or sigmoid of the target's own logits.
    at, target : ndarray, shape (..., k)
        Which experts were chosen, and the target's weights.
    normalised : bool
        Whether the weights of a token are divided by their sum.
    """
    experts, k = scores.shape[-1], at.shape[-1]
    chosen, weights = at.reshape(-1, k), target.reshape(-1, k)
    p = np.take_along_axis(scores, at, axis=-1).reshape(-1, k)
    if weights.size < _EACH * experts or (normalised and k < 2):
        return

    def made(change: Callable[[Floats], Floats]) -> Rule:
        def rule(all_: Floats, at: Array) -> Floats:
            found = np.take_along_axis(change(all_), at, axis=-1)
            return np.asarray(found / found.sum(axis=-1, keepdims=True) if normalised else found)

        return rule

    added = _added(p, chosen, weights, experts, normalised)
    yield (
        kinds.ROUTER,
        f"a constant of each expert added to its score ({_few(added)}): a bias of the choice is in the weights",
        made(lambda s: s + added),
    )
    if (weights > 0).all() and (p > 0).all():
        factors = np.exp(_added_logs(p, chosen, weights, experts, normalised))
        yield (
            kinds.ROUTER,
            f"each expert's score times a factor of its own ({_few(factors)}): a bias is in the logits",
            made(lambda s: s * factors),
        )


def _few(values: Floats) -> str:
    return ", ".join(f"{v:.3g}" for v in values[:8]) + ("…" if values.size > 8 else "")


def _added(p: Floats, chosen: Array, weights: Floats, experts: int, normalised: bool) -> Floats:
    """Constants b with ``w sum(p + b) = p + b``, or ``w = p + b``, by least squares."""
    one = np.eye(experts)[chosen]  # token, choice, expert
    if not normalised:
        return _solved(one.reshape(-1, experts), (weights - p).ravel())
    matrix = weights[:, :, None] * one.sum(axis=1)[:, None, :] - one
    return _solved(matrix.reshape(-1, experts), (p - weights * p.sum(axis=1, keepdims=True)).ravel())


def _added_logs(p: Floats, chosen: Array, weights: Floats, experts: int, normalised: bool) -> Floats:
    """Constants b with ``log w = log p + b``, up to one constant of each token where weights are normalised."""
    one, of = np.eye(experts)[chosen], np.log(weights) - np.log(p)
    if normalised:
        one, of = one - one.mean(axis=1, keepdims=True), of - of.mean(axis=1, keepdims=True)
    return _solved(one.reshape(-1, experts), of.ravel())


def _solved(matrix: Floats, of: Floats) -> Floats:
    found, *_ = np.linalg.lstsq(matrix, of, rcond=1e-9)
    return np.asarray(found, np.float64)
