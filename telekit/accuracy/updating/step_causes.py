"""Why one parameter's step is not golden's: rows left out, rounded states, another rule, other numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import INPUT, OUTPUT
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import optimizer_row
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.updating.fit_causes import Later, moment_causes, rate_causes, weight_causes
from telekit.accuracy.updating.idle import idle_slices
from telekit.accuracy.updating.other_gradients import other_gradient
from telekit.accuracy.updating.other_states import moved_weight, other_state
from telekit.accuracy.updating.stepping import RATE, Settings, Step, step_of, update, usual
from telekit.accuracy.updating.update_rules import left, rule_causes, weight_epsilon, with_betas
from telekit.accuracy.updating.updates import Fitted, fit, narrowed, states_of

_STUCK, _MOVED = 0.98, 0.1
_BLOCKS, _FEWEST = 8, 4
_STARTS, _MISSES = (
    1e-3,
    0.1,
)  # of the typical change: what a step from the right weight leaves, from another at least


@dataclass(frozen=True)
class Around:
    """What is known beside a step: sizes, what undoes clipping, the parameter's next and last step, others' steps."""

    sizes: Mapping[str, float] = field(default_factory=dict)
    unclip: float | None = None
    later: Callable[[], tuple[Fitted, Fitted, int] | None] = lambda: None
    last: Node | None = None
    others: Sequence[Node] = ()


def explain_step(node: Node, around: Around) -> list[Cause]:
    """Return explanations of one parameter's step, in no order; empty where there is nothing to explain."""
    narrow = narrowed(node)
    if narrow is not None:
        return [narrow]
    stale = old_gradient(node, around.last) if around.last is not None else None
    stuck = stale or stuck_rows(node, around.sizes) or idle_slices(node)
    moved = stuck or other_state(node, around.last, around.others) or other_gradient(node, around.others)
    if moved is not None:
        return [moved]
    t, g = states_of(node, "target"), states_of(node, "golden")
    if t is None or g is None:
        return []
    a, b = fit(*t), fit(*g)
    if a is None or b is None:
        return []
    golden = settings_of(b, node.step + 1)
    start = _other_start(step_of(*t), step_of(*g), golden, node, around)
    start = start or (moved_weight(node, golden) if golden is not None else None)
    if start is not None:
        return [start]
    causes = list(moment_causes(a, b, around.unclip))
    rules = _rules(step_of(*t), step_of(*g), a, b, node.step + 1, around, causes)
    if rules is None:  # golden's step is no AdamW by its own numbers: what the fits say
        return [*causes, *weight_causes(a, b, node.step + 1, around.later)]
    return [*causes, *rules]


def _other_start(
    t: Step | None, g: Step | None, golden: Settings | None, node: Node, around: Around
) -> Cause | None:
    """Say that the step starts from another weight than the one dumped: an older one, another parameter's."""
    if t is None or g is None or golden is None:
        return None
    epsilon = weight_epsilon(g.p1)
    with np.errstate(all="ignore"):
        base = left(g, usual(g, golden), epsilon)
        if base > _STARTS / 5 or left(t, usual(t, golden), epsilon) < _MISSES:
            return None
        last = [("the weight that the step before started from", around.last)] if around.last else []
        others = [(f"the weight of {n.base}", n) for n in around.others if n is not node]
        for said, other in (*last, *others):
            states = states_of(other, "target")
            old = None if states is None else states[0].get("parameter")
            if old is None or old.size != t.p.size or np.array_equal(old.ravel(), t.p):
                continue
            from_old = replace(t, p=old.ravel())
            if left(from_old, usual(from_old, golden), epsilon) <= max(3 * base, _STARTS):
                text = f"the step starts from {said}, not from the one dumped with it: from there it is golden's rule"
                return Cause(kinds.STALE, 0.95, text)
    return None


def _rules(
    t: Step | None, g: Step | None, a: Fitted, b: Fitted, time: int, around: Around, moments: list[Cause]
) -> list[Cause] | None:
    """Explain the weight's change by rules; None where nothing is known of golden's."""
    golden = settings_of(b, time)
    if t is None or g is None or golden is None:
        return None
    other = any(c.kind == kinds.ADAM_BETA for c in moments)
    target = with_betas(golden, 1 - a.take1, 1 - a.take2) if other else golden
    found = rule_causes(t, g, golden, target)
    if found is None:
        return None
    if any(c.kind == RATE for c in found):  # at the first step the sign of a moment is the step
        found = tuple(
            c for c in found if c.kind in (RATE, kinds.WEIGHT_DECAY, kinds.ADAM_EPSILON, kinds.SIGN)
        )
    causes: list[Cause] = []
    coupled = any(c.kind == kinds.WEIGHT_DECAY for c in moments)
    for cause in found:
        if coupled and cause.kind == kinds.WEIGHT_DECAY:
            continue
        if cause.kind == RATE:
            causes += _named_rate(cause, t, target, b, time, around.later)
        else:
            causes.append(cause)
    return causes


def _named_rate(cause: Cause, t: Step, k: Settings, b: Fitted, time: int, later: Later) -> list[Cause]:
    """Name a factor on the whole step: sign, trust ratio, learning rate or bias correction."""
    if "opposite" in cause.text:
        return [Cause(kinds.SIGN, 0.94, cause.text)]
    whole = -(k.decay * t.p + k.lr * update(t, k))
    ratio = float(np.vdot(t.change, whole)) / max(float(np.vdot(whole, whole)), 1e-300)
    step = float(np.linalg.norm(update(t, k)))
    trust = float(np.linalg.norm(t.p)) / step if step else 0.0
    if trust and abs(ratio / trust - 1) < 2e-3:
        text = f"{cause.text}: the weight's norm over the step's (LAMB's trust ratio)"
        return [Cause(kinds.LEARNING_RATE, 0.9, text)]
    return list(rate_causes(ratio, b, time, later, 2e-3))


def settings_of(g: Fitted, time: int) -> Settings | None:
    """Read golden's numbers back from its fit; None where they are no AdamW's."""
    beta1, beta2 = 1 - g.take1, 1 - g.take2
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and isfinite(g.rate) and g.rate > 0) or g.coupled:
        return None
    if max(g.left) > 0.1:
        return None
    first, second = 1 - beta1**time, 1 - beta2**time
    decay = g.decay if isfinite(g.decay) and abs(g.decay) > 1e-4 * g.rate else 0.0
    return Settings(g.rate * first / sqrt(second), beta1, beta2, g.eps / sqrt(second), decay, time)


def old_gradient(node: Node, last: Node) -> Cause | None:
    """Say that the first moment takes the gradient of the step before, mixed as golden mixes its own."""
    rows = (
        optimizer_row(node, "grad"),
        optimizer_row(node, "exp_avg"),
        optimizer_row(node, "exp_avg", OUTPUT),
    )
    before = optimizer_row(last, "grad")
    golden = [None if r is None else wide(r.golden) for r in rows]
    target = [None if r is None else wide(r.target) for r in (*rows, before)]
    g, m, m1 = golden
    new, kept, after, old = target
    if g is None or m is None or m1 is None or new is None or kept is None or after is None or old is None:
        return None
    if len({a.shape for a in (g, m, m1, new, kept, after, old)}) > 1:
        return None
    matrix = np.stack([m.ravel(), g.ravel()], axis=1)
    (keep, take), *_ = np.linalg.lstsq(matrix, m1.ravel(), rcond=1e-12)
    size = max(float(np.linalg.norm(after.ravel())), 1e-300)
    of_old, of_new = (
        float(np.linalg.norm((after - keep * kept - take * x).ravel())) / size for x in (old, new)
    )
    if of_old < 1e-4 and of_new > 1e-2:
        text = "the first moment takes the gradient of the step before, not the one that was dumped with it"
        return Cause(kinds.STALE, 0.94, text)
    return None


def stuck_rows(node: Node, sizes: Mapping[str, float]) -> Cause | None:
    """Say which rows of a weight or its states come out as they went in, where golden's change and others do."""
    for key, what in (("parameter", "weight"), ("exp_avg", "first moment"), ("exp_avg_sq", "second moment")):
        found = _before_and_after(node, key)
        if found is None:
            continue
        t0, t1, g0, g1 = found
        moves = g0 != g1
        source = optimizer_row(node, "exp_avg", OUTPUT) if key == "parameter" else optimizer_row(node, "grad")
        has = None if source is None else wide(source.target)
        if has is not None and has.shape == moves.shape:
            moves &= has != 0  # where no gradient came, nothing but decay is left
        still = (t0 == t1) & moves
        if still.sum() < _FEWEST or not 0.03 < still.sum() / moves.sum() < 0.995:
            continue
        where, whose = _where_stuck(still, moves, sizes)
        if where:
            text = f"part of the {what} comes out as it went in, golden's does not: {where}{whose}"
            return Cause(kinds.ONE_SHARD if whose else kinds.STALE, 0.93, text)
    return None


def _before_and_after(node: Node, key: str) -> tuple[Floats, Floats, Floats, Floats] | None:
    rows = optimizer_row(node, key, INPUT), optimizer_row(node, key, OUTPUT)
    arrays = [
        wide(getattr(r, side)) if r is not None else None for side in ("target", "golden") for r in rows
    ]
    t0, t1, g0, g1 = arrays
    if t0 is None or t1 is None or g0 is None or g1 is None:
        return None
    return (t0, t1, g0, g1) if len({x.shape for x in (t0, t1, g0, g1)}) == 1 and t0.size > 1 else None


def _where_stuck(still: Array, moves: Array, sizes: Mapping[str, float]) -> tuple[str, str]:
    """Say which indices along one axis, or stretch of the flat tensor, are stuck as a whole, and whose slice it is."""
    for axis in range(still.ndim):
        others = tuple(i for i in range(still.ndim) if i != axis)
        count = moves.sum(axis=others)
        share = np.where(count > 0, still.sum(axis=others) / np.maximum(count, 1), np.nan)
        stuck, moved = np.flatnonzero(share >= _STUCK), np.flatnonzero(share <= _MOVED)
        if stuck.size and stuck.size + moved.size == np.count_nonzero(count):
            name = "rows" if axis == 0 else f"indices along axis {axis}"
            size = still.shape[axis]
            groups = _ROWS if axis == 0 else _COLUMNS
            return f"{name} {_range(stuck, moved)} of {size}", _slice(stuck, moved, size, sizes, groups)
    flat, there = still.ravel(), np.flatnonzero(moves.ravel())
    if np.count_nonzero(flat[there][1:] != flat[there][:-1]) <= _BLOCKS:
        stuck, moved = there[flat[there]], there[~flat[there]]
        return f"elements {_range(stuck, moved)} of {still.size}", _slice(
            stuck, moved, still.size, sizes, _ROWS
        )
    return "", ""


def _range(stuck: Array, moved: Array) -> str:
    between = (moved > stuck[0]) & (moved < stuck[-1])
    return f"{stuck[0]} to {stuck[-1]}" if not between.any() else ", ".join(map(str, stuck[:8])) + "…"


_ROWS, _COLUMNS = ("tp", "etp", "ep", "cp", "dp"), ("tp", "etp")
"""Groups that deal a weight's rows, or its states flat, and those that deal its columns."""


def _slice(stuck: Array, moved: Array, size: int, sizes: Mapping[str, float], groups: Sequence[str]) -> str:
    """Say that what moved, or did not, is one rank's slice of a group."""
    for name, ranks in sizes.items():
        if name not in groups or not 1 < ranks <= size or not moved.size:
            continue
        a, b = (np.unique(x * round(ranks) // size) for x in (stuck, moved))
        if b.size == 1 and b[0] not in a:
            return (
                f": what moved is the slice of rank {b[0]} of {name}, the others' updates were not gathered"
            )
        if a.size == 1 and a[0] not in b:
            return f": the slice of rank {a[0]} of {name} was not updated"
    return ""


def later_fit(node: Node, later: Sequence[Node]) -> tuple[Fitted, Fitted, int] | None:
    """Fit the same parameter's next step."""
    for other in later:
        if other.base == node.base and other.rank == node.rank:
            t, g = states_of(other, "target"), states_of(other, "golden")
            a, b = None if t is None else fit(*t), None if g is None else fit(*g)
            return None if a is None or b is None else (a, b, other.step + 1)
    return None
