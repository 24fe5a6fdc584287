"""Where tokens go: the distinct nodes and devices that a token visits, and how unevenly ranks are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.comm import choices
from telekit.comm.choices import Floats, Ints
from telekit.comm.expert_load import dropped_share, imbalance
from telekit.errors import InputError, Problem, bad

MOST_EXPERTS = 4096
MOST_TOP_K = 128
MOST_DRAWN = 1_000_000_000
"""Bound on tokens times experts, of tokens that are drawn."""
FIT_ROUNDS = 2000
FIT_PATIENCE = 50
"""Rounds in which the error of a fit must halve; else it is given up."""
CLOSE = 1e-9
"""How near the fitted loads come to a measured histogram, as a share of the tokens."""


@dataclass(frozen=True)
class Routing:
    """How tokens choose experts.

    Parameters
    ----------
    experts, top_k : int
        Routed experts, and how many of them a token visits.
    groups, group_limit : int, int or None
        Blocks of experts that lie together, and how many of them a token may visit (DeepSeek-V3: 8 and 4); None: all.
    weights : tuple of float or None
        A token takes a set of experts with a probability in proportion to the product of their weights; None: all
        alike, which is what an auxiliary loss or a bias on the scores trains towards.

    Raises
    ------
    InputError
        All broken rules at once.
    """

    experts: int
    top_k: int
    groups: int = 1
    group_limit: int | None = None
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InputError(problems)

    @classmethod
    def uniform(cls, experts: int, top_k: int, groups: int = 1, group_limit: int | None = None) -> Routing:
        """All experts alike."""
        return cls(experts, top_k, groups, group_limit)

    @classmethod
    def node_limited(cls, experts: int, top_k: int, nodes: int, limit: int) -> Routing:
        """All experts alike, at most ``limit`` nodes a token: the groups are the nodes (DeepSeek-V3, section 2.1.2)."""
        return cls(experts, top_k, nodes, min(limit, nodes))

    @classmethod
    def zipf(
        cls,
        experts: int,
        top_k: int,
        exponent: float = 1.0,
        groups: int = 1,
        group_limit: int | None = None,
        seed: int | None = 0,
    ) -> Routing:
        """Weights that fall as ``1 / rank ** exponent``.

        ``seed`` shuffles which experts are popular; None leaves the popular ones together on the first ranks. Loads
        are flatter than weights: no expert can be chosen twice by a token (:meth:`load`).
        """
        if not 0 <= exponent <= 10:
            raise bad("exponent", exponent, "must be from 0 (all alike) to 10", "1 is Zipf's own")
        order = np.arange(experts) if seed is None else np.random.default_rng(seed).permutation(experts)
        weights = (1.0 + order) ** -float(exponent)
        return cls(experts, top_k, groups, group_limit, tuple(weights.tolist()))

    @classmethod
    def histogram(cls, counts: Any, top_k: int, groups: int = 1, group_limit: int | None = None) -> Routing:
        """Weights whose loads equal measured ones.

        Parameters
        ----------
        counts : array_like, shape (experts,)
            Tokens that each expert got.
        top_k : int
            Experts of a token.

        Raises
        ------
        InputError
            Where an expert got more tokens than there were, or the groups cannot give these loads.
        """
        load = np.asarray(counts, dtype=np.float64)
        plain = cls(len(load), top_k, groups, group_limit)
        wrong = np.flatnonzero(~(np.isfinite(load) & (load >= 0)))
        if len(wrong) or not load.sum() > 0:
            where = f"counts.{wrong[0]}" if len(wrong) else "counts"
            raise bad(where, load[wrong[0]] if len(wrong) else "all 0", "must be counts of tokens, not all 0")
        load = load * (top_k / load.sum())
        if load.max() >= 1:
            rule = f"more than 1 in {top_k} of all tokens: with top-{top_k} an expert gets at most one copy a token"
            raise bad(f"counts.{int(load.argmax())}", float(load.max() / top_k), f"is {rule}")
        return plain if np.ptp(load) == 0 else _fitted(plain, load)

    @property
    def limit(self) -> int:
        """Groups that a token may visit."""
        return self.group_limit or self.groups

    @property
    def balanced(self) -> bool:
        """Whether all experts are alike."""
        return self.weights is None

    def method(self, units: int) -> str:
        """Say how :meth:`distinct_units` gets its number."""
        drawn = _law(self, int(units))[1]
        return f"Monte Carlo over {drawn:,} choices of groups" if drawn else "exact"

    def distinct_units(self, units: Any) -> Any:
        """Mean number of distinct units that hold one of a token's experts.

        Parameters
        ----------
        units : int or array_like
            Nodes, or devices, that hold the experts in equal blocks, in order.

        Returns
        -------
        float or ndarray of the shape of ``units``
        """
        asked = np.asarray(units)
        distinct, at = np.unique(asked, return_inverse=True)
        if not np.all((distinct >= 1) & (distinct == np.rint(distinct)) & (distinct <= self.experts)):
            rule = f"must be whole numbers from 1 to the {self.experts} experts"
            raise bad("units", asked.ravel()[:4].tolist(), rule, f"for example {min(8, self.experts)}")
        values = np.array([_distinct(self, int(one)) for one in distinct])
        found = values[at].reshape(asked.shape)
        return float(found) if asked.ndim == 0 else found

    def monte_carlo(self, units: int, tokens: int = 20_000, seed: int = 0) -> tuple[float, float]:
        """Mean number of distinct units of drawn tokens, and its standard error."""
        owner = np.sort(choices.owners(self.experts, units)[self.draw(tokens, seed)], axis=1)
        counts = 1 + (np.diff(owner, axis=1) > 0).sum(axis=1)
        return float(counts.mean()), float(counts.std(ddof=1) / np.sqrt(tokens))

    def draw(self, tokens: int, seed: int = 0) -> Ints:
        """Experts of drawn tokens, shape (tokens, top_k), each row in rising order."""
        most = MOST_DRAWN // self.experts
        if not 2 <= tokens <= most:
            raise bad("tokens", tokens, f"must be from 2 to {most:,}", "for example 20000")
        weights, group, odds = _parts(self)
        rng = np.random.default_rng(seed)
        return choices.draw_grouped(weights, group, odds, self.limit, self.top_k, tokens, rng)

    def load(self) -> Floats:
        """Mean copies of a token that each expert gets, shape (experts,); they sum to ``top_k``."""
        return self.rank_load(self.experts)[0]

    def rank_load(self, ranks: int) -> tuple[Floats, Floats]:
        """Mean and variance of the copies of one token that each rank gets, both of shape (ranks,)."""
        law = _law(self, ranks)[0]
        number = np.arange(self.top_k + 1.0)
        mean = law @ number
        return mean, law @ number**2 - mean**2

    def imbalance(self, ranks: int, tokens: int) -> float:
        """Return the load of the busiest rank over the mean; see :func:`telekit.comm.expert_load.imbalance`."""
        return imbalance(*self.rank_load(ranks), tokens)

    def dropped_share(self, tokens: int, capacity_factor: float) -> float:
        """Share of copies dropped at a capacity; see :func:`telekit.comm.expert_load.dropped_share`."""
        return dropped_share(self.load(), tokens, capacity_factor)


def distinct_uniform(units: Any, experts: Any, top_k: int) -> Any:
    """Distinct units of a draw of ``top_k`` of ``experts`` without replacement, elementwise.

    ``units * (1 - C(E - E / units, k) / C(E, k))``, as a product of ``k`` factors, so that columns of units (and of
    experts) cost one pass; a unit may hold a part of an expert's number.
    """
    missed: Any = 1.0
    for taken in range(int(top_k)):
        missed = missed * np.maximum(experts - experts / units - taken, 0.0) / (experts - taken)
    return units * (1.0 - missed)


def _problems(routing: Routing) -> Any:
    experts, k, groups = routing.experts, routing.top_k, routing.groups
    if not 1 <= experts <= MOST_EXPERTS:
        yield Problem("experts", experts, f"must be from 1 to {MOST_EXPERTS:,}", "for example 256")
        return
    if not 1 <= k <= min(experts, MOST_TOP_K):
        yield Problem(
            "top_k", k, f"must be from 1 to {min(experts, MOST_TOP_K)}", f"{min(8, experts)} would work"
        )
        return
    if not 1 <= groups <= experts or experts % groups:
        near = max(g for g in range(1, min(max(groups, 1), experts) + 1) if experts % g == 0)
        yield Problem("groups", groups, f"must divide the {experts} experts", f"{near} would work")
        return
    limit, size = routing.group_limit, experts // groups
    if limit is not None and not -(-k // size) <= limit <= groups:
        rule = f"must be from {-(-k // size)}, which hold top_k = {k} experts, to the {groups} groups"
        yield Problem(
            "group_limit", limit, rule, f"{min(groups, max(-(-k // size), groups // 2))} would work"
        )
        return
    if routing.weights is not None:
        yield from _weight_problems(routing)


def _weight_problems(routing: Routing) -> Any:
    weights = np.asarray(routing.weights, dtype=np.float64)
    if weights.shape != (routing.experts,):
        yield Problem(
            "weights", f"{weights.size} numbers", f"must be one for each of {routing.experts} experts"
        )
    elif not (np.isfinite(weights).all() and (weights >= 0).all() and weights.max() < 1e12):
        yield Problem("weights", float(weights.min()), "must be from 0 to 1e12")
    else:
        held = np.sort((weights.reshape(routing.groups, -1) > 0).sum(axis=1))
        held = held[held > 0]
        least = int(held[: routing.limit].sum())
        if len(held) < routing.limit or least < routing.top_k:
            rule = f"must let any {routing.limit} groups hold top_k = {routing.top_k} experts above 0"
            yield Problem("weights", f"{least} above 0", rule)


def _parts(routing: Routing) -> tuple[Floats, Ints, Floats]:
    """Weights, group of each expert, and odds of each group."""
    weights = np.ones(routing.experts) if routing.weights is None else np.asarray(routing.weights)
    group = choices.owners(routing.experts, routing.groups)
    return weights, group, np.bincount(group, weights, routing.groups).astype(np.float64)


@lru_cache(maxsize=512)
def _law(routing: Routing, units: int) -> tuple[Floats, int]:
    """Probability of 0, 1, ... experts on each unit, shape (units, top_k + 1); choices of groups drawn, 0: exact."""
    weights, group, odds = _parts(routing)
    owner = choices.owners(routing.experts, units)
    groups, k = routing.groups, routing.top_k
    aligned = routing.experts % units == 0 and (groups % units == 0 or units % groups == 0)
    if routing.balanced and aligned:  # all units are alike
        chosen, chance = choices.alike_choices(groups, routing.limit, max(1, groups // units))
        first = choices.count_law(weights, group, owner, 1, k, chosen, chance)
        return np.broadcast_to(first, (units, k + 1)), 0
    most = choices.most_choices(routing.experts, k)
    chosen, chance, exact = choices.group_choices(odds, routing.limit, most)
    law = choices.count_law(weights, group, owner, units, k, chosen, chance)
    return law, 0 if exact else len(chosen)


@lru_cache(maxsize=4096)
def _distinct(routing: Routing, units: int) -> float:
    return float((1.0 - _law(routing, units)[0][:, 0]).sum())


def _fitted(plain: Routing, load: NDArray[np.float64]) -> Routing:
    """Weights that give these loads: each round scales every weight by what its load lacks."""
    most = choices.most_choices(plain.experts, plain.top_k)
    if comb(plain.groups, plain.limit) > most:
        rule = f"cannot be fitted: {plain.limit} of {plain.groups} groups can be chosen in more than {most:,} ways"
        raise bad("counts", f"{plain.experts} loads", rule, "leave the group limit out")
    weights, off = load / (1.0 - load), np.inf
    for done in range(FIT_ROUNDS):
        found = Routing(plain.experts, plain.top_k, plain.groups, plain.group_limit, tuple(weights.tolist()))
        got = found.load()
        now = float(np.abs(got - load).max())
        if now < CLOSE:
            return found
        if done % FIT_PATIENCE == FIT_PATIENCE - 1:
            if now > off / 2:
                break
            off = now
        weights = weights * np.divide(load, got, out=np.ones_like(load), where=got > 0)
        weights = weights / weights.max()
    rule = f"are loads that {plain.limit} of {plain.groups} groups a token did not give in {done + 1} rounds"
    raise bad("counts", f"off by {now:.2g}", rule, "leave the group limit out")
