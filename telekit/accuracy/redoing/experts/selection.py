"""Which experts a router chose, where not the largest of its logits: by other scores, ranks, tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import FORWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.formula import own_side
from telekit.accuracy.redoing.formula.numbers import distinct, numbers_of
from telekit.accuracy.redoing.formula.softmax import softmax

_WORDS = ("router", "gate", "gating", "topk", "top_k")
_TIE = 4.0  # errors of the logits, over their size: closer ones may change places for a rounding's sake
_PLAIN = 64.0  # epsilons: golden's choices that are further off go by another rule
_STRAY = 0.02  # of the tokens that a rule may miss: ties
_FEWEST = 4  # tokens that must have chosen otherwise
_ROWS = 1024  # that a constant for each expert must explain
_CONSTRAINTS = 1 << 17


def selection_causes(case: Case) -> Iterator[Cause]:
    """Compare the target's choices with its own logits, where golden chooses the largest of its own."""
    if case.phase != FORWARD or not any(w in case.words for w in _WORDS):
        return
    for logits, at in _known(case):
        golden, own = (x.reshape(-1, x.shape[-1]) for x in logits)
        right, chosen = (x.reshape(len(own), -1).astype(int) for x in at)
        plain = float(_short(golden, right).max())
        if plain > _PLAIN * case.epsilon:
            continue  # golden has another rule: not known
        tie = _TIE * max(plain, case.epsilon + case.inputs_error)
        if (np.diff(np.sort(chosen, axis=1), axis=1) == 0).any():
            text = f"{int((np.diff(np.sort(chosen), axis=1) == 0).any(axis=1).sum())} of {len(chosen)} tokens"
            yield Cause(kinds.ROUTER, 0.97, f"{text} chose one expert more than once")
            return
        wrong = _otherwise(own, chosen, tie)
        if wrong.sum() < _FEWEST:
            continue
        k = chosen.shape[1]
        said = (
            f"{int(wrong.sum())} of {len(own)} tokens chose experts that are not the {k} largest of the target's "
            "own router logits, golden's are"
        )
        rule = _rule(own, chosen, tie, at[0].shape)
        if rule:
            yield Cause(kinds.ROUTER, 0.96, f"{said}: {rule}")
        else:
            yield Cause(kinds.ROUTER, 0.88, f"{said}: they are chosen by other scores, or by another rule")
        return


def _known(case: Case) -> Iterator[tuple[tuple[Floats, Floats], tuple[Floats, Floats]]]:
    """Logits of golden and target, with the choices of both."""
    g, t = case.golden, case.target
    assert g is not None and t is not None
    of_case = Known(case.name, t, g)
    for x, w in product(case.inputs, case.parameters):
        a, b = x.golden, w.golden
        if a is None or b is None or b.ndim != 2 or a.ndim < 2 or a.shape[-1] != b.shape[1]:
            continue
        for at in (of_case, *case.near):
            if at.target is None or at.golden is None or not _numbers(at, len(b), a.shape[:-1]):
                continue
            yield (a @ b.T, own_side(x) @ own_side(w).T), (at.golden, at.target)


def _numbers(known: Known, experts: int, tokens: tuple[int, ...]) -> bool:
    """Whether both sides hold numbers of experts, fewer for each token than there are."""
    for x in (known.golden, known.target):
        if x is None or x.shape[:-1] != tokens or not 0 < x.shape[-1] < experts:
            return False
        if not numbers_of(x, experts):
            return False
    g = known.golden
    return g is not None and distinct(g)


def _otherwise(scores: Floats, chosen: Array, tie: float) -> Array:
    """Of each token, whether one left out has a score above one that was chosen, by more than a tie."""
    return np.asarray(_short(scores, chosen) > tie)


def _short(scores: Floats, chosen: Array) -> Floats:
    """Of each token, by how much the best left out is above the worst chosen, over the largest; negative if below."""
    taken = np.zeros(scores.shape, bool)
    np.put_along_axis(taken, chosen, True, axis=1)
    least = np.where(taken, scores, np.inf).min(axis=1)
    most = np.where(taken, -np.inf, scores).max(axis=1)
    finite = np.where(np.isfinite(scores), np.abs(scores), 0.0)
    return np.asarray((most - least) / np.maximum(finite.max(axis=1), 1e-30))


def _rule(scores: Floats, chosen: Array, tie: float, shape: tuple[int, ...]) -> str:
    """Name a rule by which all tokens chose; empty where none of those known does."""
    k, experts = chosen.shape[1], scores.shape[1]
    order = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    ranks = np.sort(np.take_along_axis(order, chosen, axis=1), axis=1)
    for places in (np.arange(k) + j for j in range(1, experts - k + 1)):
        if (ranks == places).all(axis=1).mean() >= 1 - _STRAY:
            last = places[-1] == experts - 1
            what = "the smallest" if last else f"those of rank {(places + 1).tolist()}"
            return f"they are {what} in place of the largest"
    used = np.unique(chosen)
    if k <= used.size < experts:
        some = np.full(scores.shape, -np.inf)
        some[:, used] = scores[:, used]
        if used.size > k and _otherwise(some, chosen, tie).mean() <= _STRAY:
            return f"they are the largest among experts {used.tolist()} alone"
    return _of_groups(scores, chosen, tie) or _moved(scores, chosen, tie, shape) or _constant(scores, chosen)


def _of_groups(scores: Floats, chosen: Array, tie: float) -> str:
    """Name the groups that a choice is limited to: of each token the best groups, by their largest scores."""
    k, experts = chosen.shape[1], scores.shape[1]
    for groups in (n for n in range(2, experts) if experts % n == 0):
        grouped = np.sort(softmax(scores).reshape(len(scores), groups, -1), axis=2)
        for best in sorted({1, 2, experts // groups}):
            of_group = grouped[:, :, -best:].sum(axis=2)
            for kept in range(1, groups):
                if kept * (experts // groups) <= k or best > experts // groups:
                    continue
                inside = np.argsort(np.argsort(-of_group, axis=1), axis=1) < kept
                some = np.where(np.repeat(inside, experts // groups, axis=1), scores, -np.inf)
                if _otherwise(some, chosen, tie).mean() <= _STRAY:
                    how = "largest score" if best == 1 else f"{best} largest scores"
                    return f"they are the largest of the {kept} best of {groups} groups of experts (by their {how})"
    return ""


def _moved(scores: Floats, chosen: Array, tie: float, shape: tuple[int, ...]) -> str:
    """Say that each token took the choices of the one beside it, along any axis but the experts'."""
    grid = scores.reshape(*shape[:-1], -1)
    for axis, by in product(range(grid.ndim - 1), (1, -1)):
        rows = np.roll(grid, by, axis=axis).reshape(scores.shape)
        wrong = _otherwise(rows, chosen, tie).reshape(grid.shape[:-1])
        wrong = np.delete(
            wrong, 0 if by > 0 else -1, axis=axis
        )  # what rolls over the end is nobody's neighbour
        if wrong.size and wrong.mean() <= _STRAY:
            along = f", along axis {axis}" if grid.ndim > 2 else ""
            return f"each token took the choices of the token {'before' if by > 0 else 'after'} it{along}"
    return ""


def _constant(scores: Floats, chosen: Array) -> str:
    """Say that one constant for each expert, added to its score, explains every choice: an expert bias.

    Whether there is such a set of constants is a linear programme; they have many more choices to explain than there
    are constants, and are asked to do so for all of them.
    """
    from scipy.optimize import linprog  # heavy, and seldom asked

    k, experts = chosen.shape[1], scores.shape[1]
    step = max(1, len(scores) // _ROWS)
    rows, picks = scores[::step], chosen[::step]
    if len(rows) < 4 * experts or len(rows) * k * (experts - k) > _CONSTRAINTS:
        return ""
    taken = np.zeros(rows.shape, bool)
    np.put_along_axis(taken, picks, True, axis=1)
    token, inside, outside = np.nonzero(taken[:, :, None] & ~taken[:, None, :])
    eye = np.eye(experts)
    matrix = eye[outside] - eye[inside]
    for name, values in (
        ("softmax probabilities", softmax(rows)),
        ("sigmoid scores", 1 / (1 + np.exp(-rows))),
        ("logits", rows),
    ):
        gap = values[token, inside] - values[token, outside]
        bounds = [(0.0, 0.0), *[(None, None)] * (experts - 1)]
        found = linprog(np.zeros(experts), A_ub=matrix, b_ub=gap, bounds=bounds, method="highs")
        if found.status == 0:
            said = f"one constant for each expert, added to the {name}, explains every choice"
            return f"{said}: an expert bias, or a factor"
    return ""
