"""Cross-entropy done again in float64 from a side's own logits and labels, and what its losses are instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.checks.grids import coarser_grid
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.formula import rounded
from telekit.accuracy.redoing.loss.vocabulary import vocabulary_causes

_ROUNDING = 4 * 2.0**-23  # of the sizes that are subtracted
_FIT = 0.02  # of the difference: what a formula may leave and still be it
_FEW = 8
_SEARCHED = 1 << 20  # logits


@dataclass(frozen=True)
class Losses:
    """A side's logits (rows, vocabulary), labels and losses (rows); rows are tokens."""

    logits: Floats
    labels: Array
    loss: Floats

    @cached_property
    def lse(self) -> Floats:
        """Logarithm of the sum of the exponentials of a row."""
        top = self.logits.max(axis=1)
        return np.asarray(np.log(np.exp(self.logits - top[:, None]).sum(axis=1)) + top)

    @cached_property
    def own(self) -> Floats:
        """Of each row the logit of its label."""
        return np.asarray(self.logits[np.arange(len(self.labels)), self.labels])

    @cached_property
    def right(self) -> Floats:
        """Cross-entropy of each token."""
        return self.lse - self.own

    @property
    def inside(self) -> Array:
        """Of each row whether its label is one of the vocabulary."""
        return np.asarray((self.labels >= 0) & (self.labels < self.logits.shape[1]))

    def some(self) -> Losses:
        """Return so many rows as a search over formulas needs."""
        step = max(1, self.logits.size // _SEARCHED)
        return self if step == 1 else Losses(self.logits[::step], self.labels[::step], self.loss[::step])

    @property
    def rounding(self) -> Floats:
        """What float32 may be off by."""
        return _ROUNDING * (np.abs(self.lse) + np.abs(self.own) + 1)


def losses_of(logits: Floats, labels: Array, loss: Floats) -> Losses | None:
    """Flatten a side's tensors; None where their shapes do not belong together."""
    if logits.ndim < 2 or loss.size * logits.shape[-1] != logits.size or labels.size != loss.size:
        return None
    rows, ids = logits.reshape(-1, logits.shape[-1]), labels.ravel().astype(np.int64)
    if loss.shape != logits.shape[:-1] and loss.ndim > 1:
        return None
    return Losses(rows, ids, loss.ravel()) if np.isfinite(rows).all() else None


def labels_of(logits: Floats, loss: Floats) -> Array | None:
    """Recover the labels that losses were taken at; None where they do not fit a logit each."""
    rows = logits.reshape(-1, logits.shape[-1])
    if rows.shape[0] != loss.size:
        return None
    top = rows.max(axis=1)
    lse = np.log(np.exp(rows - top[:, None]).sum(axis=1)) + top
    off = np.abs((lse[:, None] - rows) - loss.reshape(-1, 1))
    found = off.argmin(axis=1)
    best = off[np.arange(len(found)), found]
    return found.reshape(loss.shape) if np.all(best <= 4 * _ROUNDING * (np.abs(lse) + 1)) else None


def loss_causes(t: Losses, g: Losses, shape: tuple[int, ...]) -> tuple[Cause, ...]:
    """Explain losses that are not the cross-entropy of the side's own logits and labels; empty where they are.

    Parameters
    ----------
    t, g : Losses
        Target's and golden's; nothing is said where golden's own losses are no plain cross-entropy.
    shape : tuple of int
        Of the losses before they were flattened: sequences and positions.
    """
    counted = g.inside & t.inside
    if not counted.all():  # an ignored index, as -100
        if not counted.any():
            return ()
        shape = (int(counted.sum()),)
        t, g = (Losses(x.logits[counted], x.labels[counted], x.loss[counted]) for x in (t, g))
    if np.abs(g.loss - g.right).max() > 4 * g.rounding.max():
        return ()
    off = t.loss - t.right
    wrong = ~(np.abs(off) <= t.rounding)
    if wrong.mean() < 0.02 and not (np.abs(off) > 100 * t.rounding).any():
        return ()
    with np.errstate(all="ignore"):
        found = [
            *_grid(t, g),
            *_narrow_sum(t),
            *_terms(t.some()),
            *_zeros(t, wrong, shape),
            *_labels(t, shape),
            *_softmax(t.some()),
            *_factor(t),
            *vocabulary_causes(t.logits, t.own, t.labels, t.loss, t.rounding),
        ]
    best = sorted(found, key=lambda c: -c.confidence)
    if best:
        return tuple(best)
    size = float(np.linalg.norm(off)) / max(float(np.linalg.norm(t.right)), 1e-300)
    text = f"losses are off by {size:.3g} from the cross-entropy of the target's own logits and labels"
    return (Cause(kinds.UNKNOWN, 0.3, text),)


def _grid(t: Losses, g: Losses) -> Iterator[Cause]:
    grid = coarser_grid(t.loss, g.loss)
    off = np.abs(t.loss - t.right)
    if grid is not None and np.quantile(off, 0.99) <= 0.02 * max(1.0, float(np.abs(t.lse).max())) * 4:
        yield Cause(kinds.WRONG_DTYPE, 0.94, f"{grid.said('every loss')}, though the logits give more digits")


def _narrow_sum(t: Losses) -> Iterator[Cause]:
    """Find sums of exponentials that are all values of a narrower format, in whatever order they were added."""
    top = t.logits.max(axis=1)
    used, right = np.exp(t.loss + t.own - top), np.exp(t.lse - top)
    for dtype in ("bfloat16", "float16"):
        near, other = (np.abs(x - rounded(x, dtype)) <= 2 * t.rounding * x for x in (used, right))
        if near.mean() >= _ON_GRID and other.mean() < 0.5 and np.abs(used / right - 1).max() < _COARSE:
            chance = f"{other.mean():.0%} by chance"
            text = f"the sum of exponentials of every token is a {dtype}: accumulated in it ({chance})"
            yield Cause(kinds.WRONG_DTYPE, 0.95, text)
            return


_ON_GRID = 0.98  # of the tokens
_COARSE = 0.2  # of a sum: what a narrow format may lose of it


def _terms(t: Losses) -> Iterator[Cause]:
    """Terms whose coefficient least squares finds: z-loss, label smoothing, an entropy bonus, a constant."""
    off = t.loss - t.right
    p = np.exp(t.logits - t.lse[:, None])
    entropy = t.lse - (p * t.logits).sum(axis=1)
    columns = {
        "z": (t.lse**2, "a z-loss: {c:.4g} times the square of the log of the sum of exponentials"),
        "abs z": (t.lse, "{c:.4g} times the log of the sum of exponentials, not its square"),
        "smooth": (t.own - t.logits.mean(axis=1),
                   "label smoothing of {c:.4g}: so much of the loss is the mean over the vocabulary"),
        "square": ((t.logits**2).sum(axis=1), "{c:.4g} times the sum of squares of the logits"),
        "mean square": ((t.logits**2).mean(axis=1), "{c:.4g} times the mean square of the logits"),
        "entropy": (entropy, "{c:.4g} times the entropy of the prediction"),
        "focal": (((1 - np.exp(-t.right)) ** 2 - 1) * t.right, "a focal loss (gamma 2), {c:.4g} of it"),
        "constant": (np.ones_like(off), "a constant {c:.4g} for every token"),
    }  # fmt: skip
    size = float(np.linalg.norm(off))
    for column, text in columns.values():
        square = float(column @ column)
        c = float(column @ off) / square if square else 0.0
        rest = off - c * column
        beyond = np.maximum(np.abs(rest) - t.rounding, 0)
        if (
            c
            and float(np.linalg.norm(beyond)) <= _FIT * size
            and np.abs(rest).mean() < 0.1 * np.abs(off).mean()
        ):
            sure = 0.93 - 0.5 * float(np.linalg.norm(rest)) / size
            sign = " (subtracted)" if c < 0 else ""
            yield Cause(
                kinds.LOSS_TERM,
                sure,
                f"each token's loss has more than its cross-entropy: {text.format(c=c)}{sign}",
            )


def _zeros(t: Losses, wrong: Array, shape: tuple[int, ...]) -> Iterator[Cause]:
    """Tokens that do not count though they should: zero, at some positions or for some label."""
    if not np.all(t.loss[wrong] == 0) or wrong.all():
        return
    grid = wrong.reshape(shape) if len(shape) > 1 else wrong[None]
    ids = np.unique(t.labels[wrong])
    for axis, name in ((grid.ndim - 1, "positions"), (0, "sequences")):
        others = tuple(i for i in range(grid.ndim) if i != axis)
        some = grid.any(axis=others)
        if np.array_equal(some, grid.all(axis=others)):
            at = ", ".join(map(str, np.flatnonzero(some)[:_FEW]))
            text = f"the loss is 0 at {name} {at} of {grid.shape[axis]}: masked out, golden counts them"
            yield Cause(kinds.MASK, 0.93, text)
            return
    if np.all(np.isin(t.labels, ids) == wrong):
        listed = f"{', '.join(map(str, ids[:_FEW]))}{'…' if ids.size > _FEW else ''}"
        text = f"the loss is 0 wherever the label is {listed}, and only there: ignored, golden counts them"
        yield Cause(kinds.MASK, 0.93, text)
        return
    yield Cause(
        kinds.MASK,
        0.92,
        f"the loss of {int(wrong.sum())} of {wrong.size} tokens is 0: masked out, golden counts them",
    )


def _labels(t: Losses, shape: tuple[int, ...]) -> Iterator[Cause]:
    """Losses that are exact ones, of other labels than those dumped."""
    used = labels_of(t.logits, t.loss)
    if used is None:
        return
    share = float(np.mean(used != t.labels))
    text = f"{share:.0%} of the losses are taken at another label than the one given"
    a, b = used.reshape(shape), t.labels.reshape(shape)
    if len(shape) > 1:
        for by, how in ((1, "before"), (-1, "after")):
            new, old = (a[..., by:], b[..., :-by]) if by > 0 else (a[..., :by], b[..., -by:])
            if new.size and np.mean(new == old) > 0.95:
                text += f": that of the position {how}"
    yield Cause(kinds.DIFFERENT_INPUTS, 0.93, text)


def _softmax(t: Losses) -> Iterator[Cause]:
    """Another normalisation: a temperature, no maximum taken off, more or fewer entries of the vocabulary."""
    total = np.exp(t.loss + t.own - t.lse)  # the sum that was taken over the right one
    more = (total - 1) * np.exp(t.lse)
    if (
        np.all(np.isfinite(more))
        and np.abs(more).min() > 0
        and np.ptp(more) <= 0.02 * abs(float(np.median(more)))
    ):
        n = float(np.median(more))
        which = "more" if n > 0 else "fewer"
        text = f"the softmax sums {abs(n):.4g} {which} entries with logit 0: a padded vocabulary, or a mask"
        yield Cause(kinds.NORMALISATION, 0.92, text)
    best = min(np.geomspace(0.1, 10, 81), key=lambda s: _left(t, s))
    for width in (0.06, 0.006, 0.0006, 0.00006):
        best = min(best * np.linspace(1 - width, 1 + width, 25), key=lambda s: _left(t, s))
    if abs(best - 1) > 1e-3 and _left(t, best) <= _FIT * _left(t, 1.0):
        text = f"the logits are multiplied by {best:.4g} before the softmax: a temperature or a scale"
        yield Cause(kinds.SOFTMAX_SCALE, 0.92, text)


def _left(t: Losses, scale: float) -> float:
    x = Losses(scale * t.logits, t.labels, t.loss)
    return float(np.linalg.norm(np.maximum(np.abs(x.loss - x.right) - t.rounding, 0)))


def _factor(t: Losses) -> Iterator[Cause]:
    ratio = t.loss / t.right
    middle = float(np.median(ratio))
    if (
        np.all(np.isfinite(ratio))
        and np.quantile(np.abs(ratio - middle), 0.98) <= 1e-4 * abs(middle)
        and middle
    ):
        base = abs(middle - 1 / np.log(2)) < 1e-3
        text = (
            f"every loss is {middle:.5g} times the cross-entropy{' (a logarithm of base 2)' if base else ''}"
        )
        yield Cause(kinds.SCALED, 0.93, text)
    if np.all(t.loss <= 0) and np.abs(t.loss + t.right).max() <= 4 * t.rounding.max():
        yield Cause(kinds.SIGN, 0.94, "every loss is the cross-entropy with the opposite sign")
