"""Keys and values gathered from other ranks than their own: which piece each one's are is fitted to the output."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.formula import Proven
from telekit.accuracy.redoing.formula.orders import counts

_MOST_PIECES = 16
Sources = tuple[list[int], list[int]]
"""By piece of the positions: the piece that its keys are of, and the one that its values are of."""


def gathered_causes(case: Case, found: Proven, tensors: list[Floats], target: Floats) -> Iterator[Cause]:
    """Try pieces of keys, of values or of both that are another piece's.

    Parameters
    ----------
    case, found : Case, Proven
        Causal attention's output.
    tensors : list of ndarray
        Queries, keys and values of the target, (batch, heads, tokens, size).
    target : ndarray
        Its output, of the same axes.
    """
    n = target.shape[2]
    for ranks, _ in counts(case, "cp"):
        for pieces in (2 * ranks, ranks):
            if n % pieces or n < 2 * pieces or pieces > _MOST_PIECES:
                continue
            sources, left = fitted_sources(tensors, target, pieces, found.reach)
            if left <= found.reach and left <= found.own_error / 3:
                tail = f"({left:.2g} of it is left, {found.own_error:.2g} without)"
                text = f"{found.formula.name} is the target's with {_said(sources, ranks)} {tail}"
                yield Cause(_kind(sources), 0.97, text)
                return


def fitted_sources(tensors: list[Floats], target: Floats, pieces: int, reach: float) -> tuple[Sources, float]:
    """Fit which piece each piece's keys and values are: one after another, as a query sees none behind its own.

    Returns
    -------
    Sources
        As far as they were found.
    float
        Relative error that is left; infinite where a piece fits none.
    """
    q, k, v, out = (np.split(x, pieces, axis=2) for x in (*tensors, target))
    ks: list[int] = []
    vs: list[int] = []
    rest = 0.0
    for at in range(pieces):
        size = float(np.linalg.norm(out[at].ravel())) or 1.0
        best = (np.inf, at, at)
        for a in (at, *(i for i in range(pieces) if i != at)):
            weights = _weights(q[at], np.concatenate([*(k[i] for i in ks), k[a]], axis=2))
            for b in range(pieces):
                value = weights @ np.concatenate([*(v[i] for i in vs), v[b]], axis=2)
                left = float(np.linalg.norm((value - out[at]).ravel()))
                best = min(best, (left, a, b))
        left, a, b = best
        if not left <= 2 * reach * size:
            return (ks, vs), float("inf")
        ks.append(a)
        vs.append(b)
        rest += left**2
    return (ks, vs), float(np.sqrt(rest)) / max(float(np.linalg.norm(target.ravel())), 1e-300)


def _weights(q: Floats, k: Floats) -> Floats:
    """Softmax of the last piece's queries over keys up to their own positions."""
    n, seen = q.shape[2], k.shape[2]
    shown = np.arange(seen)[None, :] <= np.arange(seen - n, seen)[:, None]
    scores = np.where(shown, q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def _kind(sources: Sources) -> str:
    """Return a permutation where no piece is lost."""
    whole = all(sorted(of) == list(range(len(of))) for of in sources)
    return kinds.PERMUTATION if whole else kinds.DUPLICATED


def _said(sources: Sources, ranks: int) -> str:
    """Say whose keys and values stand where, by ranks where whole ranks' are exchanged."""
    pieces = len(sources[0])
    right, by = np.arange(pieces), pieces // ranks
    zigzag = np.stack([right[:ranks], right[::-1][:ranks]], axis=1) if by == 2 else right[:, None]
    ways = ((" (positions dealt zigzag)", zigzag), (" (positions in order)", right.reshape(ranks, by)))
    for how, own in ways:
        of_ranks = [_whole(np.array(of)[own], own) for of in sources]
        if all(of is not None for of in of_ranks):
            return _words([of or [] for of in of_ranks], f"ranks{{}}, gathered{how}")
    return _words([list(of) for of in sources], f"pieces{{}} of {pieces} of the positions")


def _whole(found: Array, own: Array) -> list[int] | None:
    """Return whose pieces each rank has, (ranks, pieces of a rank); None where they are not one rank's."""
    at = [np.flatnonzero((own == row).all(axis=1)) for row in found]
    return [int(i[0]) for i in at] if all(i.size for i in at) else None


def _words(of: list[list[int]], where: str) -> str:
    right = list(range(len(of[0])))
    wrong = [(name, order) for name, order in zip(("keys", "values"), of, strict=True) if order != right]
    if len(wrong) == 2 and of[0] == of[1]:
        wrong = [("keys and values", of[0])]
    of_others = ", the others right" if len(wrong) == 1 and of[0] != of[1] else ""
    named = " and ".join(f"the {name} of {where.format(f' {order}')}" for name, order in wrong)
    return f"{named} in place of {right}{of_others}"
