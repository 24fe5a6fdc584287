"""Ring attention done again: each rank's queries meet the keys of one rank after another, with mistakes to switch on.

Tensors are (batch, heads, tokens, size) with keys and values repeated over their groups; dealt to ranks they are
(ranks, batch, heads, positions of a rank, size). In step *j* a rank has the keys of the rank *j* before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.measures.pairs import Array, Floats

_BOTH = ("keys", "values")


@dataclass(frozen=True)
class Mistake:
    """What a ring does wrong; the empty one is right.

    Attributes
    ----------
    kind, text : str
        Class of the fault, and what it is.
    travels : str
        Whose keys or values a rank has in a step: ``first`` its own in every step, ``late`` those of the step before,
        ``back`` those of the rank *j* after it.
    of : tuple of str
        Which of keys and values travel so.
    merge : str
        How blocks are merged, forward: ``swapped``, ``base 2``, ``mixed bases``, ``largest``, ``totals``, ``means``,
        ``kept``, ``added``, ``last``.
    sums : str
        Whose log-sum-exp the backward divides by: of its ``own`` block, the ``first``, the ``last``, of all so far
        (``running``), its ``largest`` score alone.
    delta : str
        ``own``: gradient times output of each block alone, not of the merged output.
    """

    kind: str = ""
    text: str = ""
    travels: str = ""
    of: tuple[str, ...] = _BOTH
    merge: str = ""
    sums: str = ""
    delta: str = ""

    def step(self, what: str, j: int) -> int:
        """How many ranks before it the keys or values come from that a rank uses in a step."""
        if what not in self.of:
            return j
        return {"first": 0, "late": max(j - 1, 0), "back": -j}.get(self.travels, j)


@dataclass(frozen=True)
class Ring:
    """Positions of each rank, (ranks, positions of a rank)."""

    positions: Array

    def dealt(self, x: Floats) -> Floats:
        """Return each rank's positions."""
        return np.moveaxis(x[:, :, self.positions], 2, 0)

    def joined(self, x: Floats) -> Floats:
        """Put positions back."""
        ranks, batch, heads, per, size = x.shape
        value = np.empty((batch, heads, ranks * per, size))
        value[:, :, self.positions] = np.moveaxis(x, 0, 2)
        return value


@dataclass(frozen=True)
class _Block:
    """What a step makes: scores, minus infinity where hidden, output, and parts of the log-sum-exp."""

    scores: Floats
    keys: Floats
    values: Floats
    out: Floats
    top: Floats
    lse: Floats


def _blocks(ring: Ring, how: Mistake, q: Floats, k: Floats, v: Floats) -> list[_Block]:
    found, scale = [], q.shape[-1] ** -0.5
    for j in range(len(ring.positions)):
        seen = np.roll(ring.positions, j, axis=0)[:, None, :] <= ring.positions[:, :, None]
        keys, values = (np.roll(x, how.step(name, j), axis=0) for name, x in zip(_BOTH, (k, v), strict=True))
        scores = np.where(seen[:, None, None], q @ keys.swapaxes(-1, -2) * scale, -np.inf)
        top = scores.max(axis=-1, keepdims=True)
        p = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = p.sum(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse = np.log(total) + top
        found.append(_Block(scores, keys, values, (p @ values) / np.where(total > 0, total, 1), top, lse))
    return found


def block_outputs(ring: Ring, q: Floats, k: Floats, v: Floats) -> Floats:
    """Return what each step alone makes, (steps, batch, heads, tokens, size)."""
    blocks = _blocks(ring, Mistake(), *(ring.dealt(x) for x in (q, k, v)))
    return np.stack([ring.joined(b.out) for b in blocks])


def ring_output(ring: Ring, how: Mistake, q: Floats, k: Floats, v: Floats) -> Floats:
    """Return the output of ring attention, its blocks merged one after another."""
    blocks = _blocks(ring, how, *(ring.dealt(x) for x in (q, k, v)))
    return ring.joined(_merged(blocks, how.merge)[0])


def _merged(blocks: list[_Block], merge: str = "") -> tuple[Floats, Floats]:
    """Return output and log-sum-exp."""

    def part(b: _Block) -> Floats:
        return {"largest": b.top, "totals": b.lse - np.where(np.isfinite(b.top), b.top, 0)}.get(merge, b.lse)

    out, lse = blocks[0].out, part(blocks[0])
    for b in blocks[1:]:
        new = part(b)
        two = merge in ("base 2", "mixed bases")
        both = np.logaddexp2(lse, new) if two else np.logaddexp(lse, new)
        power = np.exp2 if merge == "base 2" else np.exp
        old, of_new = power(lse - both), power(new - both)
        if merge == "swapped":
            old, of_new = of_new, old
        elif merge == "last":
            of_new, old = 1.0 * np.isfinite(new), 1.0 * ~np.isfinite(new)
        elif merge == "means":
            old, of_new = np.where(np.isfinite(new), 0.5, 1.0), 0.5 * np.isfinite(new)
        elif merge in ("kept", "added"):
            old, of_new = np.ones_like(old), of_new if merge == "kept" else np.ones_like(of_new)
        out, lse = out * old + b.out * of_new, both
    return out, lse


@dataclass(frozen=True)
class Pieces:
    """Gradients that each step makes: (steps, ranks, batch, heads, positions of a rank, size).

    Those of queries belong to the rank that makes them, those of keys and values to the rank *j* before it.
    """

    queries: Floats
    keys: Floats
    values: Floats

    def at_home(self, which: int) -> Floats:
        """Return the gradients of queries, keys or values of each step, by the rank that they belong to."""
        if not which:
            return self.queries
        made = (self.queries, self.keys, self.values)[which]
        return np.stack([np.roll(x, -j, axis=0) for j, x in enumerate(made)])


def ring_pieces(ring: Ring, how: Mistake, q: Floats, k: Floats, v: Floats, up: Floats) -> Pieces:
    """Return the gradients of each step, from a right forward's output and log-sum-exp."""
    q, k, v, up = (ring.dealt(x) for x in (q, k, v, up))
    right = _blocks(ring, Mistake(), q, k, v)
    out, lse = _merged(right)
    largest = np.maximum.reduce([b.top for b in right])
    delta = (up * out).sum(axis=-1, keepdims=True)
    made: tuple[list[Floats], ...] = ([], [], [])
    running = np.full_like(lse, -np.inf)
    for b in _blocks(ring, how, q, k, v):
        running = np.logaddexp(running, b.lse)
        at = {
            "own": b.lse, "first": right[0].lse, "last": right[-1].lse, "running": running, "largest": largest,
        }.get(how.sums, lse)  # fmt: skip
        with np.errstate(all="ignore"):
            p = np.nan_to_num(np.exp(np.minimum(b.scores - at, 80)), posinf=0.0)
        own = (up * b.out).sum(axis=-1, keepdims=True) if how.delta == "own" else delta
        inner = p * (up @ b.values.swapaxes(-1, -2) - own) * q.shape[-1] ** -0.5
        for part, value in zip(
            made, (inner @ b.keys, inner.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ up), strict=True
        ):
            part.append(value)
    return Pieces(*(np.stack(part) for part in made))


def _travels() -> Iterator[Mistake]:
    said = {
        "first": (kinds.STALE, "a rank's own {} (iteration 0's) in every step of the ring"),
        "late": (kinds.STALE, "in each step of the ring the {} of the step before, not yet received"),
        "back": (kinds.PERMUTATION, "{} that travel the ring the other way than is counted"),
    }
    for travels, (kind, text) in said.items():
        for of, name in ((_BOTH, "keys and values"), (_BOTH[:1], "keys"), (_BOTH[1:], "values")):
            yield Mistake(kind, text.format(name), travels, of)


_MERGES = {
    "swapped": "the old output weighed by the new block's share, and the reverse",
    "base 2": "log-sum-exps merged to base 2, though they are natural logarithms",
    "mixed bases": "a log-sum-exp added up to base 2 and applied to base e",
    "largest": "weighed by their largest scores alone, without their sums",
    "totals": "weighed by their sums of exponentials, each less its own largest score",
    "means": "as means of those seen, not weighed by their part of the softmax",
    "kept": "the output so far not scaled down for the new block",
    "added": "simply added",
    "last": "each written over the ones before",
}
_SUMS = {
    "own": "each block's own log-sum-exp in place of the merged one",
    "first": "the first block's log-sum-exp in place of the merged one",
    "last": "the last block's log-sum-exp in place of the merged one",
    "running": "the log-sum-exp of the blocks so far in place of the merged one",
    "largest": "the largest score in place of the log-sum-exp: the sum is left out",
}
FORWARD_MISTAKES = (
    *_travels(),
    *(Mistake(kinds.NORMALISATION, f"blocks of the ring {text}", merge=how) for how, text in _MERGES.items()),
)
BACKWARD_MISTAKES = (
    *_travels(),
    *(
        Mistake(kinds.NORMALISATION, f"{text} in the ring's backward", sums=how, delta=delta)
        for how, text in _SUMS.items()
        for delta in ("", "own")
    ),
    Mistake(kinds.NORMALISATION, "each block's own output in delta, not the merged output", delta="own"),
)
