"""Slices of a weight, as experts, to which no gradient came: a step leaves them alone where golden's decays them."""

from __future__ import annotations

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import INPUT, OUTPUT
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import optimizer_row
from telekit.accuracy.measures.pairs import Array
from telekit.accuracy.updating.updates import States, fit

_BEFORE = ("grad", "parameter", "exp_avg", "exp_avg_sq")
_SAID = 12
_SAME = 0.2  # relative: the other slices decay as golden's


def idle_slices(node: Node) -> Cause | None:
    """Say which slices without a gradient come out as they went in, where golden's decay and the other slices do."""
    t, g = _states(node, "target"), _states(node, "golden")
    if t is None or g is None or t[0]["grad"].ndim < 2 or t[0]["grad"].shape != g[0]["parameter"].shape:
        return None
    idle = _whole(t[0]["grad"] == 0)
    still, kept = (_whole(before["parameter"] == after["parameter"]) for before, after in (t, g))
    if not idle.any() or not np.array_equal(still, idle) or idle.all() or kept[idle].any():
        return None
    p = g[0]["parameter"][idle]
    decay = float(np.vdot(p, p - g[1]["parameter"][idle])) / float(np.vdot(p, p))
    others = fit(*_some(t, ~idle))
    if others is None or abs(others.decay - decay) > _SAME * abs(decay):
        return None
    at = np.flatnonzero(idle)
    which = f"{at[:_SAID].tolist()}{'…' if at.size > _SAID else ''} of {len(idle)}"
    text = (
        f"slices (experts) {which} without a gradient come out as they went in, golden's decay by {decay:.3g}"
    )
    return Cause(kinds.WEIGHT_DECAY, 0.95, f"{text}: they are not stepped, the others are")


def _states(node: Node, side: str) -> States | None:
    """Load one side's tensors before and after the step, in their shape; None where one is missing or another shape."""
    rows = [
        {k: optimizer_row(node, k, part) for k in keys}
        for part, keys in ((INPUT, _BEFORE), (OUTPUT, _BEFORE[1:]))
    ]
    arrays = [{k: wide(getattr(r, side)) for k, r in of.items() if r is not None} for of in rows]
    before, after = ({k: a for k, a in of.items() if a is not None} for of in arrays)
    shapes = {a.shape for of in (before, after) for a in of.values()}
    return (before, after) if len(before) + len(after) == 2 * len(_BEFORE) - 1 and len(shapes) == 1 else None


def _whole(x: Array) -> Array:
    """Whether all of each slice of the first axis are so."""
    return np.asarray(x.reshape(len(x), -1).all(axis=1), bool)


def _some(states: States, which: Array) -> States:
    """Return the states of some slices."""
    before, after = ({k: a[which] for k, a in side.items()} for side in states)
    return before, after
