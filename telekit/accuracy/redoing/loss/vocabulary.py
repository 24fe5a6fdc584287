"""Cross-entropy over a vocabulary that ranks share, with one of its reductions left out, doubled or done too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats

_SHARE = 0.98  # of the tokens that must keep to it
_FIT = 0.02  # of the difference: what a fitted term may leave
_LEAST = 1e-3  # a fitted share is told from nothing by so much
_RANKS = (2, 4, 8, 16, 32)
Index = Callable[[Array, int], Array]
FOREIGN: dict[str, Index] = {
    "at its first entry": lambda at, width: np.zeros_like(at),
    "at the nearest entry that it has": lambda at, width: np.clip(at, 0, width - 1),
    "at the label's remainder": lambda at, width: at % width,
    "at its last entry": lambda at, width: np.full_like(at, width - 1),
}
"""Where a shard of so many entries looks for a label that it does not hold, ``at`` entries from its first."""


@dataclass(frozen=True)
class Shards:
    """Logits of a vocabulary dealt to shards, with what each makes of them.

    Attributes
    ----------
    logits : ndarray, shape (tokens, shards, width)
    own, labels : ndarray, shape (tokens,)
        Logit of the label, and the label.
    """

    logits: Floats
    own: Floats
    labels: Array

    @property
    def count(self) -> int:
        """Shards."""
        return int(self.logits.shape[1])

    @cached_property
    def top(self) -> Floats:
        """Maximum of each shard, (tokens, shards)."""
        return np.asarray(self.logits.max(axis=2))

    @cached_property
    def sums(self) -> Floats:
        """Sum of exponentials of each shard, its own maximum taken off."""
        return np.asarray(np.exp(self.logits - self.top[:, :, None]).sum(axis=2))

    @cached_property
    def of_shard(self) -> Floats:
        """Logarithm of each shard's sum of exponentials."""
        return np.asarray(np.log(self.sums) + self.top)

    @cached_property
    def whole(self) -> Floats:
        """Maximum over the vocabulary, (tokens,)."""
        return np.asarray(self.top.max(axis=1))

    @cached_property
    def lse(self) -> Floats:
        """Logarithm of the sum of all exponentials, (tokens,)."""
        return np.asarray(np.log(np.exp(self.of_shard - self.whole[:, None]).sum(axis=1)) + self.whole)

    @property
    def owner(self) -> Array:
        """Which shard holds each label."""
        return np.asarray(self.labels // self.logits.shape[2])

    @property
    def mine(self) -> Array:
        """Whether each shard holds each label, (tokens, shards)."""
        return np.asarray(self.owner[:, None] == np.arange(self.count))

    def taken(self, values: Floats) -> Floats:
        """Return of each token what its label's shard has, of (tokens, shards)."""
        return np.take_along_axis(values, self.owner[:, None], axis=1)[:, 0]


_Value = tuple[str, str, Floats]
"""Class of the fault, what it is in words, and the losses it makes, (tokens,)."""


def vocabulary_causes(
    logits: Floats, own: Floats, labels: Array, loss: Floats, rounding: Floats
) -> Iterator[Cause]:
    """Try each rank's own maximum, sum, predicted logit and smoothing in place of the group's.

    Parameters
    ----------
    logits : ndarray, shape (tokens, vocabulary)
    own, labels, loss, rounding : ndarray, shape (tokens,)
        Logit of the label, the label, the loss as it was, and what rounding may leave of it.
    """
    for n in (n for n in _RANKS if logits.shape[1] % n == 0 and logits.shape[1] >= 2 * n):
        s = Shards(logits.reshape(len(logits), n, -1), own, labels)
        for kind, text, value in (
            *_not_reduced(s),
            *_counted(s),
            *_predicted(s),
            *_fitted(s, loss, rounding),
        ):
            if np.mean(np.abs(loss - value) <= 4 * rounding) >= _SHARE:
                yield Cause(kind, 0.97, f"the losses are those of a vocabulary in {n} shards with {text}")
                return


def _not_reduced(s: Shards) -> Iterator[_Value]:
    """Losses with a reduction left out."""
    kind, own = kinds.MISSING_REDUCTION, s.own
    total = np.log(s.sums.sum(axis=1))
    maximum = "the maximum not reduced: each shard takes off its own"
    yield kind, f"{maximum}, the label's shard its own from the label's logit", total - own + s.taken(s.top)
    yield kind, "the sum of exponentials not reduced: the label's shard's alone", s.taken(s.of_shard) - own
    for r in range(s.count):
        mine = s.mine[:, r]
        yield kind, f"{maximum}, and shard {r}'s is put back", total + s.top[:, r] - own
        yield kind, f"the sum of exponentials not reduced: shard {r}'s alone", s.of_shard[:, r] - own
        predicted = f"the predicted logit not reduced: 0 where the label is not shard {r}'s"
        yield kind, predicted, s.lse - np.where(mine, own, 0.0)
        yield kind, predicted, s.lse - s.whole - np.where(mine, own - s.whole, 0.0)
        yield kind, f"nothing reduced: shard {r}'s alone", s.of_shard[:, r] - np.where(mine, own, 0.0)
    yield kind, "nothing reduced: the label's shard's softmax alone, averaged", s.of_shard.mean(axis=1) - own


def _counted(s: Shards) -> Iterator[_Value]:
    """Losses with a reduction done twice, or averaged: a constant on the log, a multiple of the label's logit."""
    n, double = s.count, kinds.DOUBLE_REDUCTION
    right, log = s.lse - s.own, float(np.log(s.count))
    text = f"the sum of exponentials counted {n} times: each loss is log({n}) = {log:.4g} too large"
    yield (
        double,
        f"{text}, as where every rank holds all logits, or what is reduced is reduced again",
        right + log,
    )
    text = f"the sum of exponentials averaged over the shards: each loss is log({n}) = {log:.4g} too small"
    yield kinds.NORMALISATION, text, right - log
    for shift, how in ((0.0, ""), (s.whole, " (less the maximum)")):
        more = s.own - shift
        yield double, f"the label's logit{how} counted {n} times", right - (n - 1) * more
        yield (
            kinds.NORMALISATION,
            f"the label's logit{how} averaged over the shards",
            right + (1 - 1 / n) * more,
        )
    yield (
        kinds.NORMALISATION,
        "the mean of the shards' maxima put back, not the largest",
        (right + s.top.mean(axis=1) - s.whole),
    )
    yield double, "the maximum put back once for every shard", right + (n - 1) * s.whole


def _predicted(s: Shards) -> Iterator[_Value]:
    """Losses in which shards that do not hold the label add a logit of their own."""
    width = s.logits.shape[2]
    at = s.labels[:, None] - width * np.arange(s.count)
    for where, index in FOREIGN.items():
        found = np.take_along_axis(s.logits, index(at, width)[:, :, None] % width, axis=2)[:, :, 0]
        for shift, how in ((0.0, ""), (s.whole[:, None], " less the maximum")):
            more = np.where(s.mine, 0.0, found - shift).sum(axis=1)
            text = (
                f"shards without the label adding their logit{how} {where}: what is not theirs is not masked"
            )
            yield kinds.EXTRA_TERM, text, s.lse - s.own - more


def _fitted(s: Shards, loss: Floats, rounding: Floats) -> Iterator[_Value]:
    """Losses with a term of a shard's own, whose share least squares finds: smoothing, a z-loss."""
    right = s.lse - s.own
    off = loss - right
    for text, column in _columns(s):
        square = float(column @ column)
        c = float(column @ off) / square if square else 0.0
        rest = np.maximum(np.abs(off - c * column) - rounding, 0)
        if abs(c) > _LEAST and float(np.linalg.norm(rest)) <= _FIT * float(np.linalg.norm(off)):
            yield kinds.LOSS_TERM, text.format(c), right + c * column


def _columns(s: Shards) -> Iterator[tuple[str, Floats]]:
    mean = s.logits.mean(axis=2)
    local = "label smoothing of {:.4g} over a shard's own vocabulary, not all of it: "
    yield f"{local}the label's shard's", s.own - s.taken(mean)
    yield f"{local}the sum of the shards' means", s.own - s.count * mean.mean(axis=1) + (s.count - 1) * s.lse
    for r in range(s.count):
        yield f"{local}shard {r}'s", s.own - mean[:, r]
        part = s.lse / s.count - s.logits[:, r].sum(axis=1) / s.logits[0].size
        yield f"{local}shard {r}'s part of the mean, not reduced", part - (s.lse - s.own)
        yield (
            f"a z-loss of {{:.4g}} times the square of shard {r}'s own log of the sum",
            s.of_shard[:, r] ** 2,
        )
