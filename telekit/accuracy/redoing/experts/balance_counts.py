"""A balancing loss whose counts of choices are not added over all ranks of a sequence, or over more than those."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes.case import Case
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.attention.attention import owners

_KEPT = 1e-3  # relative: golden's loss goes with the counts of whole sequences to so much


def balances_counted_otherwise(case: Case, chosen: Array, balance: Floats) -> Iterator[tuple[str, Floats]]:
    """Return what the loss gives each token's probabilities if its counts are those of some ranks.

    Parameters
    ----------
    case : Case
        With the sizes of groups.
    chosen : ndarray of int
        Experts, (sequences, positions, choices).
    balance : ndarray
        What golden's loss gives, (tokens, experts): as good as nothing is tried where it is not a number times how
        often a sequence chose each expert.

    Yields
    ------
    (str, ndarray)
        What is counted, and (tokens, experts).
    """
    sequences, positions, _ = chosen.shape
    of_token = (chosen[..., None] == np.arange(balance.shape[-1])).sum(axis=2).astype(np.float64)
    usual = _spread(of_token, np.zeros(positions, int)).reshape(balance.shape)
    slope = float(np.vdot(usual, balance)) / max(float(np.vdot(usual, usual)), 1e-300)
    size = float(np.linalg.norm(balance))
    if not size or float(np.linalg.norm(balance - slope * usual)) > _KEPT * size:
        return
    whole = "each sequence", np.zeros(positions, int)
    dp = int(case.sizes.get("dp", 1))
    for said, region in (whole, *_regions(positions, case)):
        if region.any():
            value = slope * _spread(of_token, region)
            yield f"the counts of {said}", value.reshape(balance.shape)
        if dp > 1 and sequences % dp == 0:
            added = of_token.reshape(dp, -1, *of_token.shape[1:]).sum(axis=0)
            value = slope * np.tile(_spread(added, region), (dp, 1, 1))
            yield f"the counts of {said}, added over dp", value.reshape(balance.shape)


def _spread(of_token: Floats, region: Array) -> Floats:
    """Give each token the sum over its sequence's tokens of the same region, (sequences, positions, experts)."""
    same = (region[:, None] == region[None, :]).astype(np.float64)
    return np.asarray(np.einsum("pq,sqe->spe", same, of_token))


def _regions(positions: int, case: Case) -> Iterator[tuple[str, Array]]:
    """Positions of one rank of cp, of tp where it splits the sequence, or of both."""
    tp = int(case.sizes.get("tp", 1))
    dealt = list(owners(positions, case))[::-1] if case.sizes.get("cp", 1) > 1 else []
    for how, owner in dealt or [("", np.zeros(positions, int))]:
        ranks = int(owner.max()) + 1
        within, per = np.zeros(positions, int), positions // ranks
        for rank in range(ranks):
            within[owner == rank] = np.arange(per)
        split = tp > 1 and per % tp == 0
        part = within * tp // per
        if split:
            yield f"each tp rank's part of a sequence{f' ({how}, added over cp)' if how else ''}", part
        if how:
            yield f"each cp rank's part of a sequence ({how})", owner
        if split and how:
            yield f"each rank's part of a sequence ({how}, split over tp)", owner * tp + part
