"""Rotary embedding: a formula of its input; without one, pairs in its output that keep their norm and are turned."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.cause_values import other_signs
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.attention.angles import angle_variants, turn_of, turned
from telekit.accuracy.redoing.formula.formula import Formula, Variant, own_side
from telekit.accuracy.redoing.formula.orders import counts, zigzags

_ROTARY = ("rotary", "rope", "pos_emb")
_TURN = ("rotary", "rope", "rot", "position", "pos_emb", "attn", "attention", "qkv", "query", "key")
_NO_TURN = (
    "linear",
    "fc1",
    "fc2",
    "proj",
    "norm",
    "mlp",
    "router",
    "expert",
    "embed",
    "loss",
    "output_layer",
)


def rotary(case: Case) -> Iterator[Formula]:
    """Each pair of a head turned by an angle of its position: the angles are golden's own."""
    g, t = case.golden, case.target
    assert g is not None and t is not None
    if g.ndim != 4 or g.shape[-1] % 2 or g.shape[-2] < 2 or not any(w in case.words for w in _ROTARY):
        return
    for x in case.inputs:
        if x.golden is None or x.golden.shape != g.shape:
            continue
        for how in ("halves", "neighbours"):
            turn = turn_of(g, x.golden, how)
            yield Formula(
                f"pairs of {how} turned by golden's angles", (x,), partial(turned, turn, how),
                partial(_turn_variants, turn, how, case, x),
            )  # fmt: skip


def _turn_variants(turn: Array, how: str, case: Case, known: Known) -> Iterator[Variant]:
    golden, target = case.golden, case.target
    assert golden is not None and target is not None
    kind, other = kinds.ROTARY, "neighbours" if how == "halves" else "halves"
    yield (
        kind,
        f"pairs of {other} (interleaved, not in halves, or the reverse) turned by the same angles",
        partial(turned, turn, other),
    )
    yield kind, "the input handed on as it is, not turned", lambda x: x
    yield (
        kind,
        "the opposite angles (the way back not inverted, or inverted)",
        partial(turned, np.conj(turn), how),
    )
    yield kind, "twice the angles", partial(turned, turn * turn, how)
    for by in (1, -1):
        yield kind, f"angles of the position {by:+d}", partial(turned, np.roll(turn, -by, axis=1), how)
    for n, _ in counts(case, "cp"):
        for text, order in zigzags(turn.shape[1], n):
            yield kind, f"angles of positions {text} of {n} ranks", partial(turned, turn[:, order], how)
        if turn.shape[1] % n == 0:
            again = np.tile(turn[:, : turn.shape[1] // n], (1, n, 1, 1))
            yield kind, f"positions counted anew in each of {n} pieces", partial(turned, again, how)
    width = turn.shape[-1]
    for part in (2, 4):
        kept = np.where(np.arange(width) < width // part, turn, 1)
        yield kind, f"only the first 1/{part} of the pairs turned", partial(turned, kept, how)
    yield kind, "the pairs' frequencies in reverse order", partial(turned, turn[..., ::-1], how)
    assert known.golden is not None
    yield from angle_variants(golden, known.golden, target, own_side(known), how)
    for of in (how, other):
        yield (
            kind,
            f"pairs of {of} turned by other angles (base, offset, or positions)",
            partial(_refitted, of, target),
        )


def _refitted(how: str, target: Floats, x: Floats) -> Floats:
    return turned(turn_of(target, x, how), how, x)


def rotary_causes(case: Case) -> Iterator[Cause]:
    """Pairs of a head's elements keep their norm: they were turned by another angle."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    d = g.shape[-1] if g.ndim else 0
    if d < 2 or d % 2 or g.ndim < 2 or not _may_turn(case) or other_signs(case):
        return
    for how, split in (
        ("halves", (slice(0, d // 2), slice(d // 2, d))),
        ("neighbours", (slice(0, d, 2), slice(1, d, 2))),
    ):
        a, b = g[..., split[0]], g[..., split[1]]
        x, y = t[..., split[0]], t[..., split[1]]
        golden, target = a * a + b * b, x * x + y * y
        left = float(np.linalg.norm((golden - target).ravel())) / max(
            float(np.linalg.norm(golden.ravel())), 1e-300
        )
        error = float(np.linalg.norm((t - g).ravel()) / max(float(np.linalg.norm(g.ravel())), 1e-300))
        # what is not a rotation changes the norms by about as much as the elements
        if left > max(0.1 * error, min(2 * case.noise, 0.4 * error)) or error < 4 * case.epsilon:
            continue
        turn = np.angle((x + 1j * y) * np.conj(a + 1j * b))
        known = _turned_by(turn)
        sure = 0.93 if any(n in case.words for n in ("rot", "rope", "pos")) or known else 0.6
        yield Cause(
            kinds.ROTARY,
            sure,
            f"pairs of {how} keep their norm and are turned{known}: base, offset, or positions",
        )
        return


def _may_turn(case: Case) -> bool:
    """Whether an operator may turn pairs: its name says so, or does not say that it does something else."""
    path = case.operator.lower()
    if any(word in path for word in _TURN):
        return not any(word in path for word in ("linear", "proj", "norm"))
    return not any(word in path for word in _NO_TURN)


def _turned_by(turn: Floats) -> str:
    """Say how the extra angle goes with the position (axis of most spread): constant is an offset."""
    if turn.ndim < 3:
        return ""
    axes = [ax for ax in range(turn.ndim - 1) if turn.shape[ax] > 2]
    if not axes:
        return ""
    first = turn[..., 0]
    spread = [float(np.abs(np.diff(first, axis=ax)).mean()) for ax in axes]
    if max(spread) < 1e-3 and float(np.abs(first).mean()) > 1e-3:
        return f" by {float(first.mean()):.4g} at the fastest frequency whatever the position (an offset)"
    if float(np.abs(first).mean()) < 1e-3:
        return " by nothing at the fastest frequency, more at the slower ones (another base)"
    return " by an angle that goes with the position"
