"""A step that used another gradient than the one dumped with it: clipped by value, rounded, centred, another's.

Golden's first moment says how a state and a gradient are mixed; the target's, with its state taken away, is the
gradient that was used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import optimizer_row
from telekit.accuracy.measures.pairs import Floats, to_grid
from telekit.accuracy.updating.other_states import mixed, moved, near

_NARROW = ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn")
_NONE = 1e-3  # of the gradient
_CLOSER = 10  # times nearer than the gradient that was dumped


def other_gradient(node: Node, others: Sequence[Node]) -> Cause | None:
    """Say which gradient the target's first moment was made from where it is not the one dumped.

    Parameters
    ----------
    node : Node
        A parameter's step.
    others : sequence of Node
        Other parameters' steps.
    """
    found = mixed(node, "exp_avg")
    if found is None or not found.take:
        return None
    given = found.gradient
    used = (found.after - found.keep * found.kept) / found.take
    size = float(np.linalg.norm(given))
    if near(used, given) or float(np.linalg.norm(used)) <= _NONE * size:
        return None  # none at all: the state stood still
    off = float(np.linalg.norm(used - given))
    for kind, text, value in (*_changed(used, given), *_elsewhere(used, given, node, others)):
        if (
            value.shape == used.shape
            and float(np.linalg.norm(used - value)) <= off / _CLOSER
            and near(used, value)
        ):
            return Cause(kind, 0.95, f"the first moment takes {text}")
    return None


def _changed(used: Floats, given: Floats) -> Iterator[tuple[str, str, Floats]]:
    """Yield what may have been done to a gradient, with its number read from what was used."""
    top = float(np.abs(used).max())
    clipped = float(np.mean(np.abs(given) > top))
    yield (
        kinds.CLIPPING,
        f"the gradient clipped by value at {top:.4g} ({clipped:.0%} of its elements), not by its norm",
        np.clip(given, -top, top),
    )
    yield kinds.SIGN, "the gradient with the opposite sign", -given
    yield kinds.NORMALISATION, f"the gradient's sign times {top:.4g}", top * np.sign(given)
    for axis in range(given.ndim):
        mean = given.mean(axis=axis, keepdims=True)
        yield kinds.NORMALISATION, f"the gradient less its mean over axis {axis}", given - mean
    for name in _NARROW:
        rounded = to_grid(given, name)
        yield kinds.WRONG_DTYPE, f"the gradient rounded to {name}", rounded
    for text, value in moved(used, given):
        yield kinds.PERMUTATION, f"the gradient with {text}", value
    kept = np.abs(used) > 0.5 * np.abs(given)
    yield (
        kinds.MISSING_TERM,
        f"the gradient with {float(np.mean(~kept)):.0%} of its elements lost",
        given * kept,
    )


def _elsewhere(
    used: Floats, given: Floats, node: Node, others: Sequence[Node]
) -> Iterator[tuple[str, str, Floats]]:
    for other in others:
        row = optimizer_row(other, "grad") if other is not node else None
        theirs = None if row is None else wide(row.target)
        if theirs is not None and theirs.size == used.size:
            yield kinds.STALE, f"the gradient of {other.base}", theirs.reshape(used.shape)
