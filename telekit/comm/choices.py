"""Which experts a token chooses, as a law whose counts can be computed exactly.

A token first chooses ``group_limit`` of ``groups`` blocks of experts, then ``top_k`` experts inside them. Of all sets
of that size a set is taken with a probability in proportion to the product of its members' weights (conditional Poisson
sampling: of all laws with given loads the one that assumes least; Chen, Dempster and Liu, Biometrika 81, 1994); equal
weights make it a draw without replacement. How many chosen experts lie on one unit (a node, a device) then follows
from elementary symmetric polynomials, which a dynamic program gives: no set is ever listed.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_CHOICES = 20_000
"""Choices of groups that are listed; of more, so many are drawn."""

CELLS = 4_000_000
"""Numbers held at once while units are worked through."""


def owners(experts: int, units: int) -> Ints:
    """Return the unit of each expert: equal blocks in order, shape (experts,)."""
    return np.arange(experts, dtype=np.int64) * units // experts


def times_factor(poly: Floats, weight: float | Floats) -> Floats:
    """Multiply polynomials (last axis: coefficients) by ``1 + weight * z``, cut at their length."""
    found = poly.copy()
    found[..., 1:] += np.asarray(weight)[..., None] * poly[..., :-1]
    return found


def times(one: Floats, other: Floats) -> Floats:
    """Multiply polynomials by polynomials, cut at their length."""
    found = np.zeros(np.broadcast_shapes(one.shape, other.shape))
    for power in range(one.shape[-1]):
        found[..., power:] += one[..., power, None] * other[..., : one.shape[-1] - power]
    return found


def suffixes(weights: Floats, top_k: int) -> Floats:
    """Polynomials of the experts from each one on, shape (experts + 1, top_k + 1)."""
    found = np.zeros((len(weights) + 1, top_k + 1))
    found[-1, 0] = 1.0
    for at in range(len(weights) - 1, -1, -1):
        found[at] = times_factor(found[at + 1], float(weights[at]))
    return found


def group_choices(odds: Floats, limit: int, seed: int = 0) -> tuple[Ints, Floats, bool]:
    """List the sets of ``limit`` groups, or draw some where there are too many.

    Returns
    -------
    sets : ndarray of int, shape (n, limit)
    probability : ndarray, shape (n,)
    exact : bool
        Whether all sets are there.
    """
    if comb(len(odds), limit) <= MOST_CHOICES:
        sets = np.array(list(combinations(range(len(odds)), limit)), dtype=np.int64)
        weight = np.prod(odds[sets], axis=1)
        return sets[weight > 0], weight[weight > 0] / weight.sum(), True
    sets = draw(odds, limit, MOST_CHOICES, np.random.default_rng(seed))
    return sets, np.full(len(sets), 1.0 / len(sets)), False


def alike_choices(groups: int, limit: int, touched: int) -> tuple[Ints, Floats]:
    """List sets of equal groups, one for each number of the first ``touched`` groups that is among them."""
    sets, probability = [], []
    for inside in range(max(0, limit - (groups - touched)), min(limit, touched) + 1):
        sets.append([*range(inside), *range(touched, touched + limit - inside)])
        ways = comb(touched, inside) * comb(groups - touched, limit - inside)
        probability.append(ways / comb(groups, limit))
    return np.array(sets, dtype=np.int64), np.array(probability)


def count_law(
    weights: Floats, group: Ints, owner: Ints, units: Ints, top_k: int, sets: Ints, probability: Floats
) -> Floats:
    """Probability that a token chooses 0, 1, ... experts of each unit.

    Parameters
    ----------
    weights, group, owner : ndarray, shape (experts,)
        Weight, group and unit of each expert.
    units : ndarray of int, shape (m,)
        Units that are asked for.
    top_k : int
        Experts of a token.
    sets, probability : ndarray, shapes (n, limit) and (n,)
        Choices of groups.

    Returns
    -------
    ndarray, shape (m, top_k + 1)
    """
    chunk = max(1, CELLS // (len(sets) * (top_k + 1) * 4))
    if len(units) > chunk:
        parts = [units[at : at + chunk] for at in range(0, len(units), chunk)]
        return np.concatenate(
            [count_law(weights, group, owner, part, top_k, sets, probability) for part in parts]
        )
    groups = int(group.max()) + 1
    inside = np.zeros((groups, len(units), top_k + 1))
    inside[..., 0] = 1.0
    outside = inside.copy()
    for expert, weight in enumerate(weights):
        here = owner[expert] == units
        at = group[expert]
        inside[at, here] = times_factor(inside[at, here], float(weight))
        outside[at, ~here] = times_factor(outside[at, ~here], float(weight))
    mine, rest = inside[sets[:, 0]], outside[sets[:, 0]]
    for column in sets.T[1:]:
        mine, rest = times(mine, inside[column]), times(rest, outside[column])
    ways = mine * rest[..., ::-1]  # j experts here, top_k - j elsewhere
    law: Floats = np.einsum("nmk,n->mk", ways / ways.sum(axis=-1, keepdims=True), probability)
    return law


def draw(weights: Floats, size: int, tokens: int, rng: np.random.Generator) -> Ints:
    """Draw sets of ``size`` members one after the other, shape (tokens, size), members in rising order."""
    after = suffixes(weights * (size / weights.sum()), size)
    scaled = weights * (size / weights.sum())
    missing = np.full(tokens, size)
    found = np.zeros((tokens, size), dtype=np.int64)
    for member, weight in enumerate(scaled):
        fewer = np.maximum(missing - 1, 0)
        chance = np.where(missing > 0, weight * after[member + 1, fewer] / after[member, missing], 0.0)
        rows = np.flatnonzero(rng.random(tokens) < chance)
        found[rows, size - missing[rows]] = member
        missing[rows] -= 1
    return found


def draw_grouped(
    weights: Floats, group: Ints, odds: Floats, limit: int, top_k: int, tokens: int, rng: np.random.Generator
) -> Ints:
    """Draw the experts of tokens, groups first, shape (tokens, top_k)."""
    sets, which = np.unique(draw(odds, limit, tokens, rng), axis=0, return_inverse=True)
    found = np.zeros((tokens, top_k), dtype=np.int64)
    for at, chosen in enumerate(sets):
        rows = np.flatnonzero(which.ravel() == at)
        members = np.flatnonzero(np.isin(group, chosen))
        found[rows] = members[draw(weights[members], top_k, len(rows), rng)]
    return found
