"""Between the backward and the optimizer: gradients reduced over ranks, their norm, and what clipping leaves.

Clipping hides a factor on all gradients and spreads one parameter's error over all others, so the gradients an
optimizer was given are first put back to what they were before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from telekit.accuracy.compared import INPUT, OUTPUT, Compared
from telekit.accuracy.graph.nodes import Node, module_path
from telekit.accuracy.graph.noise import FLOOR, explained, wide
from telekit.accuracy.measures.pairs import Floats

_CLIPPED = 1e-3
USUAL_STEP = 0.01  # an update over the weight, where no optimizer was dumped: lr 2e-4 on weights of 0.02
_NORM = ("total_norm", "grad_norm", "global_norm")


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient as the optimizer was given it.

    ``ratio`` and ``error`` are of the target before clipping, against golden before clipping; ``before`` is the
    worst error of what the backward made for it (None where it was not dumped).
    """

    node: Node
    row: Compared
    name: str
    target: Floats
    golden: Floats
    ratio: float
    error: float
    before: float | None

    def wrong(self, epsilon: float) -> bool:
        """Whether the reduction made it worse than rounding does."""
        return self.error > explained(epsilon, self.before or 0.0)


@dataclass(frozen=True)
class Sync:
    """Gradients before clipping, and norms: reported by each side, and of the gradients themselves."""

    gradients: tuple[Gradient, ...]
    reported: tuple[float, float] | None
    clipped: tuple[float, float]
    clips: bool

    @property
    def norm_ratio(self) -> float:
        """Target's reported norm over golden's."""
        return self.reported[0] / self.reported[1] if self.reported and self.reported[1] else 1.0

    @property
    def clip_ratio(self) -> float:
        """Norm of what clipping left, target's over golden's: 1 where both clip to one limit."""
        return self.clipped[0] / self.clipped[1] if self.clipped[1] else 1.0


def key_of(row: Compared) -> str:
    """Last part of a row's name: ``grad``, ``exp_avg``, ``parameter``."""
    return row.name.rsplit(".", 1)[-1].lower()


def parameter_name(node: Node) -> str:
    """Name the parameter that an optimizer's node updates: without ``Optimizer.`` before it and what comes after."""
    tokens = node.base.split(".")
    tokens = tokens[1:] if tokens[0].lower() in ("optimizer", "optim") else tokens
    while tokens and tokens[-1] not in ("weight", "bias") and any(t in ("weight", "bias") for t in tokens):
        tokens.pop()
    return ".".join(tokens)


def optimizer_row(node: Node, key: str, part: str = INPUT) -> Compared | None:
    """Return the row of a node that holds a gradient, a state or a weight."""
    keys = {"parameter": ("parameter", "param", "weight", "p"), "grad": ("grad", "main_grad", "g")}.get(
        key, (key,)
    )
    side = node.inputs if part == INPUT else node.outputs
    return next((r for r in side if key_of(r) in keys), None)


def update_noise(optimizer: Sequence[Node], epsilon: float) -> dict[str, float]:
    """Return, by parameter, what rounding makes one update leave in the weight, relative to it.

    Adam's first step is the gradient's sign, so the share of elements whose gradient is within rounding of zero, a few
    epsilons, may go the other way: a share ``s`` of elements off by two updates is ``2 sqrt(s)`` of the whole update.
    """
    found = {"": 2 * sqrt(FLOOR * epsilon) * USUAL_STEP}
    for node in optimizer:
        rows = optimizer_row(node, "parameter"), optimizer_row(node, "parameter", OUTPUT)
        before, after = (None if r is None else wide(r.golden) for r in rows)
        if before is not None and after is not None and before.shape == after.shape and before.any():
            step = float(np.linalg.norm(after - before)) / float(np.linalg.norm(before))
            found[parameter_name(node)] = 2 * sqrt(FLOOR * epsilon) * step
    return found


def read_sync(optimizer: Sequence[Node], errors: dict[str, float]) -> Sync | None:
    """Collect what the optimizer was given in one step; None where nothing of it was dumped with elements.

    Parameters
    ----------
    optimizer : sequence of Node
        Of one step.
    errors : dict of str to float
        By parameter: worst error of its gradient as the backward made it.
    """
    raw: list[tuple[Node, Compared, Floats, Floats]] = []
    reported: tuple[float, float] | None = None
    for node in optimizer:
        row = optimizer_row(node, "grad")
        if row is not None:
            t, g = wide(row.target), wide(row.golden)
            if t is not None and g is not None and t.shape == g.shape:
                raw.append((node, row, t, g))
        for out in node.outputs:
            if key_of(out) in _NORM:
                a, b = wide(out.target), wide(out.golden)
                if a is not None and b is not None and a.size and b.size:
                    reported = float(a.ravel()[0]), float(b.ravel()[0])
    if not raw:
        return None
    of_target = float(np.sqrt(sum(float((t**2).sum()) for _, _, t, _ in raw)))
    of_golden = float(np.sqrt(sum(float((g**2).sum()) for _, _, _, g in raw)))
    clips = reported is not None and of_golden < (1 - _CLIPPED) * reported[1]
    undo = reported[0] / of_golden if clips and reported and of_golden else 1.0
    undo_golden = reported[1] / of_golden if clips and reported and of_golden else 1.0
    found = []
    for node, row, t, g in raw:
        whole, right = t * undo, g * undo_golden
        norm = float(np.linalg.norm(right.ravel()))
        ratio = float(np.vdot(whole, right)) / norm**2 if norm else 1.0
        error = float(np.linalg.norm((whole - right).ravel())) / norm if norm else float(bool(whole.any()))
        name = parameter_name(node)
        found.append(Gradient(node, row, name, whole, right, ratio, error, errors.get(name)))
    return Sync(tuple(found), reported, (of_target, of_golden), clips)


def gradient_names(node: Node, row: Compared) -> str:
    """Name of the parameter a module's gradient row belongs to: module path and key."""
    return f"{module_path(node.base)}.{row.name.rsplit('.', 1)[-1]}"
