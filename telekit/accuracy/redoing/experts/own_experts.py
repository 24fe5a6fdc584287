"""Which choices of a token are held by its own expert-parallel rank: what is left where nothing comes from others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.experts.exchange import EXCHANGED, choices
from telekit.accuracy.redoing.experts.rows import dealt_tokens

_WORDS = (*EXCHANGED, "router", "gate", "expert")


def own_choices(case: Case, chosen: Floats, experts: int = 0) -> Iterator[Array]:
    """Return whether each choice is of an expert that the token's own rank holds, as layouts may deal both.

    Parameters
    ----------
    case : Case
        Its sizes tell the ranks.
    chosen : ndarray, shape (..., k)
        Numbers of the experts.
    experts : int
        How many there are in all; tried where it is not given.
    """
    ranks = int(case.sizes.get("ep", 1))
    if ranks < 2:
        return
    least = -(-(int(chosen.max()) + 1) // ranks)
    each = (experts // ranks,) if experts else range(least, 2 * least + 1)
    for _, label in dealt_tokens(case, chosen.shape[:-1]):
        own = (label % ranks).reshape(*chosen.shape[:-1], 1)
        for held in each:
            yield np.asarray(chosen // held == own)


def missing_choices(case: Case, gone: Array) -> Cause | None:
    """Explain zeros, one for each choice, that are all those of other ranks' experts, or of the token's own rank's."""
    if not any(w in case.words for w in _WORDS):
        return None
    for chosen in choices(case):
        if chosen.size != gone.size:
            continue
        for own in own_choices(case, chosen):
            for mask, whose in ((~own, "another expert-parallel rank"), (own, "the token's own rank")):
                if np.array_equal(mask.ravel(), gone.ravel()):
                    text = f"{int(gone.sum())} of {gone.size} choices are 0: exactly those whose expert {whose} holds"
                    return Cause(
                        kinds.MISSING_REDUCTION, 0.97, f"{text}, the rest is right: not summed over ep"
                    )
    return None
