"""Rotary embeddings turned by other angles: base, scale, positions, and how much of a head, fitted to the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.formula import Variant


def pairs(x: Floats, how: str) -> Array:
    """Pairs of a head's elements as complex numbers."""
    half = x.shape[-1] // 2
    a, b = (x[..., :half], x[..., half:]) if how == "halves" else (x[..., 0::2], x[..., 1::2])
    return np.asarray(a + 1j * b)


def unpaired(z: Array, how: str) -> Floats:
    """Return the elements of pairs."""
    if how == "halves":
        return np.concatenate([z.real, z.imag], axis=-1)
    return np.stack([z.real, z.imag], axis=-1).reshape(*z.shape[:-1], -1)


def turn_of(out: Floats, x: Floats, how: str) -> Array:
    """Return unit numbers by (batch, position, 1, pair) that turn x to out best: all heads of a token turn alike."""
    z = (pairs(out, how) * np.conj(pairs(x, how))).sum(axis=-2, keepdims=True)
    size = np.abs(z)
    return np.asarray(np.where(size > 0, z / np.where(size > 0, size, 1), 1))


def turned(turn: Array, how: str, x: Floats) -> Floats:
    """Turn each pair."""
    return unpaired(pairs(x, how) * turn, how)


@dataclass(frozen=True)
class _Angles:
    """Angles by position and pair: a frequency for each pair, and where the positions begin."""

    axis: int
    phases: Floats
    frequencies: Floats

    def turn(self, frequencies: Floats, positions: Floats) -> Array:
        """Return unit numbers shaped to turn a whole tensor."""
        z = np.exp(1j * np.outer(positions, frequencies))[:, None, :]
        return np.asarray(z[None] if self.axis == 1 else z[:, None])


def _angles(out: Floats, x: Floats, how: str, axis: int) -> _Angles:
    z = (pairs(out, how) * np.conj(pairs(x, how))).sum(axis=(1 - axis, 2))
    phases = np.unwrap(np.angle(z), axis=0)
    p = np.arange(len(phases)) - (len(phases) - 1) / 2
    return _Angles(axis, phases, (p[:, None] * phases).sum(axis=0) / (p * p).sum())


def _axis_of(turn: Array) -> int | None:
    """Which of the first two axes are positions: along the other all is turned alike."""
    for axis in (1, 0):
        first = np.take(turn, [0], axis=1 - axis)
        if turn.shape[axis] > 3 and float(np.abs(turn - first).max()) < 0.1:
            return axis
    return None


def angle_variants(
    golden: Floats, golden_x: Floats, target: Floats, own_x: Floats, how: str
) -> Iterator[Variant]:
    """Return rotary embeddings with one number of theirs changed, as the target tells it.

    Parameters
    ----------
    golden, golden_x : ndarray
        Golden's output and input, four axes: heads and their elements last.
    target, own_x : ndarray
        The target's.
    how : str
        ``"halves"`` or ``"neighbours"``: which elements are a pair.

    Yields
    ------
    (str, str, callable)
        Class, words, and what it makes of the input.
    """
    axis = _axis_of(turn_of(golden, golden_x, how))
    if axis is None:
        return
    right, other = _angles(golden, golden_x, how, axis), _angles(target, own_x, how, axis)
    f, n, start = right.frequencies, len(right.phases), _start(right)
    positions = start + np.arange(n, dtype=np.float64)
    ratio = float((f * other.frequencies).sum() / (f * f).sum())
    if 0.01 < ratio < 100 and abs(ratio - 1) > 1e-3:
        near = 1 / round(1 / ratio) if ratio < 1 else round(ratio) * 1.0
        c = near if abs(near / ratio - 1) < 0.01 else ratio
        said = f"positions interpolated by {1 / c:.4g}" if c < 1 else f"positions times {c:.4g}"
        yield kinds.ROTARY, f"{said} (linear scaling)", partial(turned, right.turn(f, positions * c), how)
    yield from _bases(right, other, positions, how)
    yield from _positions(right, other, how)
    yield from _parts(golden.shape[-1], target, own_x, how)
    if (other.frequencies > 0).all() and (f > 0).all():
        factors = other.frequencies / f
        text = (
            f"the pairs' frequencies times {factors.round(3).tolist()} (NTK by parts, YaRN, Llama 3 scaling)"
        )
        yield kinds.ROTARY, text, partial(turned, right.turn(other.frequencies, positions), how)
    yield from _lengthened(turn_of(golden, golden_x, how), target, own_x, how)


def _lengthened(usual: Array, target: Floats, x: Floats, how: str) -> Iterator[Variant]:
    """Pairs that are not only turned but longer or shorter, by golden's angles or by others."""
    grown = float(np.linalg.norm(target.ravel()) / max(float(np.linalg.norm(x.ravel())), 1e-300))
    if abs(grown - 1) > _GROWN:
        factor = f"the turned elements times {grown:.4g} (YaRN's attention factor)"
        yield kinds.ROTARY, factor, partial(turned, grown * usual, how)
        scaled = grown * turn_of(target, x, how)
        yield kinds.ROTARY, f"{factor}, turned by other angles", partial(turned, scaled, how)


_GROWN = 2e-3  # by less rounding lengthens all of a tensor


def _start(angles: _Angles) -> float:
    """First position: what the fastest pair's phase says of it, 0 where that is near enough."""
    fast = float(angles.phases[0, 0]) / max(float(angles.frequencies[0]), 1e-9)
    return round(fast) * 1.0


def _bases(right: _Angles, other: _Angles, positions: Floats, how: str) -> Iterator[Variant]:
    """Another base, also the one that NTK scaling makes of it: frequencies in a geometric row that begins alike."""
    found = []
    for angles in (right, other):
        f = angles.frequencies
        if len(f) < 2 or (f <= 0).any():
            return
        k = np.arange(len(f)) / len(f)
        weight = np.minimum(f, 1.0) * k  # slow pairs tell little of their angle
        found.append(float(np.exp(-(weight * np.log(f)).sum() / max(float((weight * k).sum()), 1e-300))))
    usual, base = found
    if abs(np.log(base / usual)) < 1e-3:
        return
    usual, base = (_round(b) for b in found)
    f = base ** -(np.arange(len(right.frequencies)) / len(right.frequencies))
    text = f"a base of {base:.4g}, golden's is {usual:.4g}"
    yield kinds.ROTARY, text, partial(turned, right.turn(f, positions), how)


def _round(base: float) -> float:
    """Return a round number where it is as near as slow pairs can tell."""
    near = float(f"{base:.2g}")
    return near if abs(near / base - 1) < 0.02 else base


def _positions(right: _Angles, other: _Angles, how: str) -> Iterator[Variant]:
    """Other whole positions with the same frequencies: an offset, counted anew, one too far."""
    n = len(right.phases)
    tried = np.arange(-n, 4 * n)
    of_tried = np.exp(1j * np.outer(tried, right.frequencies))
    fits = (np.exp(1j * other.phases) @ np.conj(of_tried).T).real
    at = tried[fits.argmax(axis=1)] * 1.0
    usual = _start(right) + np.arange(n)
    if np.array_equal(at, usual):
        return
    by = at - usual
    whole = at.astype(int).tolist()
    said = (
        f"positions {int(by[0]):+d} everywhere (an offset)"
        if np.ptp(by) == 0
        else f"other positions: {whole[:16]}{'…' if n > 16 else ''}{_runs(at)}"
    )
    yield kinds.ROTARY, said, partial(turned, right.turn(right.frequencies, at), how)


def _runs(at: Floats) -> str:
    """Say where positions begin anew."""
    again = np.flatnonzero(np.diff(at) < 0) + 1
    if again.size and (at[again] == at[0]).all():
        return f", counted anew at {again[:8].tolist()}"
    return ""


def _parts(width: int, target: Floats, x: Floats, how: str) -> Iterator[Variant]:
    """Only a part of each head turned, in pairs of its own."""
    for share in (0.25, 0.5, 0.75):
        n = int(width * share)
        if n < 2 or n % 2:
            continue
        for said, part in (("first", slice(0, n)), ("last", slice(width - n, width))):
            text = f"only the {said} {n} of a head's {width} elements turned (partial rotary, {share:.0%})"
            yield (
                kinds.ROTARY,
                text,
                partial(_part_turned, part, turn_of(target[..., part], x[..., part], how), how),
            )


def _part_turned(part: slice, turn: Array, how: str, x: Floats) -> Floats:
    value = x.copy()
    value[..., part] = turned(turn, how, x[..., part])
    return value
