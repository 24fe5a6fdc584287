"""Which experts a token chooses, as a law whose counts can be computed exactly.

A token first chooses ``group_limit`` of ``groups`` blocks of experts, then ``top_k`` experts inside them. Of all sets
of that size a set is taken with a probability in proportion to the product of its members' weights (conditional Poisson
sampling: of all laws with given loads the one that assumes least; Chen, Dempster and Liu, Biometrika 81, 1994); equal
weights make it a draw without replacement. How many chosen experts lie on one unit (a node, a device) then follows
from elementary symmetric polynomials, which a dynamic program gives: no set of experts is ever listed.

The law is that of independent choices with odds in proportion to the weights, given that ``top_k`` were made, whatever
the scale of the odds. With a scale at which about ``top_k`` are expected all polynomials are probabilities, and none
that counts is too small for a float, however steep the weights are.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

MOST_CHOICES = 20_000
"""Choices of groups that are listed; of more, so many are drawn."""

WORK = 300_000_000
"""Bound on choices of groups times experts times top-k: a law is found within seconds, else fewer choices are drawn."""

CELLS = 16_000_000
"""Numbers held at once while choices are worked through."""

SCALES = 0.1
"""Distance of the scales of the odds that are tried, in the logarithm."""


def owners(experts: int, units: int) -> Ints:
    """Return the unit of each expert: equal blocks in order, shape (experts,)."""
    return np.arange(experts, dtype=np.int64) * units // experts


def times(one: Floats, other: Floats) -> Floats:
    """Multiply polynomials (last axis: coefficients) by shorter ones, cut at the length of the first."""
    found = one * other[..., :1]
    for power in range(1, other.shape[-1]):
        found[..., power:] += one[..., :-power] * other[..., power, None]
    return found


def logarithms(weights: Floats) -> Floats:
    """Logarithms of weights; of 0 minus infinity."""
    return np.log(weights, out=np.full(len(weights), -np.inf), where=weights > 0)


def scales(log_weights: Floats) -> Floats:
    """Scales of the odds that are tried, in the logarithm: from hardly any choice to all."""
    held = log_weights[np.isfinite(log_weights)]
    return np.arange(-held.max() - np.log(len(held)) - 1.0, -held.min() + 12.0, SCALES)


def scale_of(log_weights: Floats, group: Ints, chosen: Flags, size: int) -> Ints:
    """Index of the scale at which each choice of groups expects about ``size`` members, shape (n,)."""
    from scipy.special import expit

    tried, starts = scales(log_weights), np.flatnonzero(np.diff(group, prepend=-1))
    expected = np.stack([np.add.reduceat(expit(log_weights + scale), starts) for scale in tried], axis=1)
    held = chosen @ np.add.reduceat(np.isfinite(log_weights).astype(np.float64), starts)
    wanted = np.minimum(float(size), held - 0.5)
    nearest: Ints = np.abs(chosen @ expected - wanted[:, None]).argmin(axis=1)
    return nearest


def most_choices(experts: int, top_k: int) -> int:
    """Choices of groups that are worked through at most."""
    return int(np.clip(WORK // (experts * (top_k + 1)), 1, MOST_CHOICES))


def group_choices(odds: Floats, limit: int, most: int, seed: int = 0) -> tuple[Flags, Floats, bool]:
    """List the sets of ``limit`` groups, or draw ``most`` where there are more.

    Returns
    -------
    chosen : ndarray of bool, shape (n, groups)
    probability : ndarray, shape (n,)
    exact : bool
        Whether all sets are there.
    """
    groups = len(odds)
    if comb(groups, limit) > most:
        sets = draw(odds, limit, most, np.random.default_rng(seed))
        return as_flags(sets, groups), np.full(most, 1.0 / most), False
    sets = np.array(list(combinations(range(groups), limit)), dtype=np.int64)
    log_weight = logarithms(odds)[sets].sum(axis=1)
    weight = np.exp(log_weight - log_weight.max())
    return as_flags(sets[weight > 0], groups), weight[weight > 0] / weight.sum(), True


def alike_choices(groups: int, limit: int, touched: int) -> tuple[Flags, Floats]:
    """List sets of equal groups, one for each number of the first ``touched`` groups that is among them."""
    sets, probability = [], []
    for inside in range(max(0, limit - (groups - touched)), min(limit, touched) + 1):
        sets.append([*range(inside), *range(touched, touched + limit - inside)])
        ways = comb(touched, inside) * comb(groups - touched, limit - inside)
        probability.append(ways / comb(groups, limit))
    return as_flags(np.array(sets, dtype=np.int64), groups), np.array(probability)


def as_flags(sets: Ints, groups: int) -> Flags:
    """Turn sets of groups, shape (n, limit), into flags, shape (n, groups)."""
    flags = np.zeros((len(sets), groups), dtype=np.bool_)
    np.put_along_axis(flags, sets, True, axis=1)
    return flags


def count_law(
    weights: Floats, group: Ints, owner: Ints, units: int, top_k: int, chosen: Flags, probability: Floats
) -> Floats:
    """Probability that a token chooses 0, 1, ... experts of each unit.

    Parameters
    ----------
    weights, group, owner : ndarray, shape (experts,)
        Weight, group and unit of each expert; groups and units are blocks in order.
    units : int
        So many of the first units are asked for.
    top_k : int
        Experts of a token.
    chosen, probability : ndarray, shapes (n, groups) and (n,)
        Choices of groups.

    Returns
    -------
    ndarray, shape (units, top_k + 1)
    """
    log_weights = logarithms(weights)
    at = scale_of(log_weights, group, chosen, top_k)
    parts = _parts(log_weights, group, owner, top_k, np.unique(at))
    at = np.searchsorted(np.unique(at), at)
    step = max(1, CELLS // ((units + 1) * (top_k + 1)))
    law = np.zeros((units, top_k + 1))
    for start in range(0, len(chosen), step):
        some = slice(start, start + step)
        law += _law_of(parts, chosen[some], at[some], probability[some], units, top_k)
    return law


Part = tuple[int, int, Floats]
"""Experts that one unit and one group share: unit, group, and probabilities of 0, 1, ... of them at each scale."""


def _parts(log_weights: Floats, group: Ints, owner: Ints, top_k: int, used: Ints) -> list[Part]:
    tried = scales(log_weights)[used]
    starts = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(owner, prepend=-1) != 0))
    found = []
    for begin, end in zip(starts, [*starts[1:], len(group)], strict=True):
        members = log_weights[begin:end]
        poly = np.full(min(len(members), top_k) + 1, -np.inf)  # elementary symmetric, in logarithms
        poly[0] = 0.0
        for weight in members:
            poly[1:] = np.logaddexp(poly[1:], poly[:-1] + weight)
        nothing = np.logaddexp(0.0, members + tried[:, None]).sum(axis=1)
        chances = np.exp(poly + np.arange(len(poly)) * tried[:, None] - nothing[:, None])
        found.append((int(owner[begin]), int(group[begin]), chances))
    return found


def _law_of(
    parts: list[Part], chosen: Flags, at: Ints, probability: Floats, units: int, top_k: int
) -> Floats:
    """Sum of the laws of some choices of groups, each with its probability."""
    of_unit = _of_units(parts, chosen, at, top_k)
    one = np.zeros((len(chosen), top_k + 1))
    one[:, 0] = 1.0
    after = [one]  # of the units behind each one, last unit first
    for inside in reversed(of_unit[1:]):
        after.append(times(after[-1], inside))
    before, law = one, np.zeros((units, top_k + 1))
    for unit, inside in enumerate(of_unit[:units]):
        behind = after[len(of_unit) - 1 - unit]
        most = inside.shape[1] - 1
        ways = np.zeros((len(chosen), most + 1))
        for number in range(most + 1):  # so many here, the others of top_k elsewhere
            rest = top_k - number
            elsewhere = np.einsum("ni,ni->n", before[:, : rest + 1], behind[:, rest::-1])
            ways[:, number] = inside[:, number] * elsewhere
        law[unit, : most + 1] = probability @ (ways / ways.sum(axis=1, keepdims=True))
        before = times(before, inside)
    return law


def _of_units(parts: list[Part], chosen: Flags, at: Ints, top_k: int) -> list[Floats]:
    """Probabilities of 0, 1, ... experts of each unit, all choices independent, each of shape (n, most + 1)."""
    found: list[Floats] = []
    for unit, group, chances in parts:
        mine = np.where(chosen[:, group, None], chances[at], np.eye(1, chances.shape[1]))
        if unit < len(found):
            room = min(top_k + 1, found[unit].shape[1] + mine.shape[1] - 1)
            found[unit] = times(np.pad(found[unit], ((0, 0), (0, room - found[unit].shape[1]))), mine)
        else:
            found.append(mine)
    return found


def draw(weights: Floats, size: int, tokens: int, rng: np.random.Generator) -> Ints:
    """Draw sets of ``size`` members one member after the other, shape (tokens, size), members in rising order."""
    from scipy.special import expit

    log_weights = logarithms(weights)
    everything, one = np.zeros(len(weights), dtype=np.int64), np.ones((1, 1), dtype=np.bool_)
    odds = log_weights + scales(log_weights)[scale_of(log_weights, everything, one, size)]
    after = np.zeros((len(weights) + 1, size + 1))  # chance of 0, 1, ... members from each one on
    after[-1, 0] = 1.0
    for at in range(len(weights) - 1, -1, -1):
        after[at] = expit(-odds[at]) * after[at + 1]
        after[at, 1:] += expit(odds[at]) * after[at + 1, :-1]
    missing = np.full(tokens, size)
    found = np.zeros((tokens, size), dtype=np.int64)
    for member, taken in enumerate(expit(odds)):
        fewer = np.maximum(missing - 1, 0)
        chance = np.where(missing > 0, taken * after[member + 1, fewer] / after[member, missing], 0.0)
        rows = np.flatnonzero(rng.random(tokens) < chance)
        found[rows, size - missing[rows]] = member
        missing[rows] -= 1
    return found


def draw_grouped(
    weights: Floats, group: Ints, odds: Floats, limit: int, top_k: int, tokens: int, rng: np.random.Generator
) -> Ints:
    """Draw the experts of tokens, groups first, shape (tokens, top_k).

    Experts are drawn independently, at the scale at which about ``top_k`` are expected, and again for the tokens that
    got another number.
    """
    from scipy.special import expit

    if limit == len(odds):
        return draw(weights, top_k, tokens, rng)
    log_weights = logarithms(weights)
    chosen = as_flags(draw(odds, limit, tokens, rng), len(odds))
    scale = scales(log_weights)[scale_of(log_weights, group, chosen, top_k)]
    found = np.zeros((tokens, top_k), dtype=np.int64)
    step = max(1, CELLS // len(weights))
    waiting = np.arange(tokens)
    while len(waiting):
        again = []
        for start in range(0, len(waiting), step):
            rows = waiting[start : start + step]
            chance = np.where(chosen[rows][:, group], expit(log_weights + scale[rows, None]), 0.0)
            taken = rng.random(chance.shape) < chance
            right = taken.sum(axis=1) == top_k
            found[rows[right]] = np.nonzero(taken[right])[1].reshape(-1, top_k)
            again.append(rows[~right])
        waiting = np.concatenate(again)
    return found
