"""Cross-entropy over a vocabulary that ranks share, with one of its reductions left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats

_SHARE = 0.98  # of the tokens that must keep to it
_RANKS = (2, 4, 8, 16, 32)


def vocabulary_causes(
    logits: Floats, own: Floats, labels: Array, loss: Floats, rounding: Floats
) -> Iterator[Cause]:
    """Try each rank's own maximum, sum of exponentials and predicted logit in place of the group's.

    Parameters
    ----------
    logits : ndarray, shape (tokens, vocabulary)
    own, labels, loss, rounding : ndarray, shape (tokens,)
        Logit of the label, the label, the loss as it was, and what rounding may leave of it.
    """
    for n in (n for n in _RANKS if logits.shape[1] % n == 0 and logits.shape[1] >= 2 * n):
        for text, value in _values(logits, own, labels, n):
            if np.mean(np.abs(loss - value) <= 4 * rounding) >= _SHARE:
                said = f"the losses are those of a vocabulary in {n} shards with {text}"
                yield Cause(kinds.MISSING_REDUCTION, 0.97, said)
                return


def _values(logits: Floats, own: Floats, labels: Array, n: int) -> Iterator[tuple[str, Floats]]:
    shards = logits.reshape(len(logits), n, -1)
    top = shards.max(axis=2)
    sums = np.exp(shards - top[:, :, None]).sum(axis=2)
    of_shard = np.log(sums) + top
    whole = top.max(axis=1)
    lse = np.log(np.exp(of_shard - whole[:, None]).sum(axis=1)) + whole
    total = np.log(sums.sum(axis=1))
    owner = labels * n // logits.shape[1]
    of_owner = np.take_along_axis(top, owner[:, None], axis=1)[:, 0]
    maximum = "the maximum not reduced: each shard takes off its own"
    yield f"{maximum}, the label's shard its own from the label's logit", total - own + of_owner
    for r in range(n):
        mine = owner == r
        yield f"{maximum}, and shard {r}'s is put back", total + top[:, r] - own
        yield (
            f"the sum of exponentials not reduced: shard {r}'s alone",
            of_shard[:, r] - own,
        )
        predicted = f"the predicted logit not reduced: 0 where the label is not shard {r}'s"
        yield predicted, lse - np.where(mine, own, 0.0)
        yield predicted, lse - whole - np.where(mine, own - whole, 0.0)
        yield f"nothing reduced: shard {r}'s alone", of_shard[:, r] - np.where(mine, own, 0.0)
